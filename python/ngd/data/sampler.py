# SPDX-License-Identifier: Apache-2.0
"""Samplers, which divide the samples into batches and the batches among the ranks."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._util.signature_errors import check_constructor

if TYPE_CHECKING:
    from ..comm import Mesh

IndexArray = NDArray[np.int64]


def current_rank_and_size() -> tuple[int, int]:
    """Return the rank and the size of the world. Before `ngd.init`, the launcher gives them."""
    from ..comm.world import rank, world_size  # not at the top: workers do not load the core

    return rank(), world_size()


class Shard(NamedTuple):
    """The samples that one rank has in one batch.

    Attributes
    ----------
    number : int
        The number of the batch, counted from the start of the training.
    epoch : int
        The epoch of the batch, from 0.
    indices : int64 array
        The indices of this rank's samples. There is at least one.
    weight : int
        The number of this rank's samples. It is 0 if the batch has fewer samples than there are
        ranks and this rank got a copy of another rank's sample.
    total : int
        The number of samples that all ranks have together.

    Examples
    --------
    >>> from ngd import data
    >>> data.Sampler(8, 4, shuffle=False).shard(1).indices.tolist()
    [4, 5, 6, 7]
    """

    number: int
    epoch: int
    indices: IndexArray
    weight: int
    total: int


class Sampler:
    """The order of the samples in batches, the shard of each rank, and the current position.

    A batch depends on the seed and the number of the batch, and not on the number of ranks. The
    ranks get shards of nearly equal size. If the loss of each rank is weighted by its number of
    samples, the mean over the ranks is the mean over the batch, for any number of ranks.

    Iteration returns the rest of the epoch. A batch counts as done when it is returned. `state()`
    is the position after it, for a checkpoint.

    Parameters
    ----------
    num_samples : int
        The number of samples of the data set, for example `len(source)`.
    batch_size : int
        The number of samples of one step, of all ranks together. PyTorch's `batch_size` is the
        number for one rank.
    rank, size : int, optional
        The number of this process's shard and the number of shards. Give both or none. The default
        is the rank and the size of the world. Before `ngd.init` they are the launcher's values. In
        an elastic job they change with the world.
    mesh : Mesh, optional
        A mesh of ngd.make_mesh. Each position along the axis `axis` of the mesh gets a shard. Ranks
        that differ only in other axes get the same samples.
    axis : str, default "data"
        The name of the mesh's axis.
    seed : int, default 0
        The seed of the order, and of the random numbers of a loader's transforms. It is the same on
        all ranks.
    shuffle : bool, default True
        Permute the samples in each epoch. With False the order is that of the source.
    replacement : bool, default False
        Draw each batch from all samples, so that a sample may occur twice. No permutation is kept
        in memory. Needs `shuffle`.
    drop_last : bool, default False
        Omit the last batch of an epoch if it has fewer than `batch_size` samples.

    Attributes
    ----------
    steps : int
        The number of batches of an epoch, which is also `len(sampler)`.
    done : int
        The number of batches that were returned, in all epochs. If you assign a number, the next
        iteration begins with the batch of this number.

    Raises
    ------
    TypeError
        An unknown argument, or a number that is not an integer.
    ValueError
        A value out of range, `rank` without `size`, or an axis that the mesh does not have.
    InitError
        The environment variables of the launcher contradict each other.

    Examples
    --------
    >>> from ngd import data
    >>> sampler = data.Sampler(10, batch_size=4, seed=1)
    >>> len(sampler), [shard.total for shard in sampler]
    (3, [4, 4, 2])
    >>> sampler.epoch
    1

    The second of two shards:

    >>> sampler = data.Sampler(10, 4, rank=1, size=2, shuffle=False, drop_last=True)
    >>> [shard.indices.tolist() for shard in sampler]
    [[2, 3], [6, 7]]
    """

    @check_constructor("data.Sampler")
    def __init__(
        self,
        num_samples: int,
        batch_size: int,
        *,
        rank: int | None = None,
        size: int | None = None,
        mesh: Mesh | None = None,
        axis: str = "data",
        seed: int = 0,
        shuffle: bool = True,
        replacement: bool = False,
        drop_last: bool = False,
    ) -> None:
        self.num_samples = _integer("num_samples", num_samples, least=1)
        self.batch_size = _integer("batch_size", batch_size, least=1)
        self.seed = _integer("seed", seed, least=0)
        self.shuffle, self.replacement, self.drop_last = shuffle, replacement, drop_last
        if drop_last and self.num_samples < self.batch_size:
            raise ValueError(
                f"data.Sampler: expected at least one full batch with drop_last; got {num_samples} "
                f"samples for a batch_size of {batch_size}. Use a smaller batch_size."
            )
        if replacement and not shuffle:
            raise ValueError(
                "data.Sampler: expected shuffle=True with replacement=True; got shuffle=False. "
                "Remove one of them."
            )
        self._fixed = _fixed_rank_and_size(rank, size, mesh, axis)
        self.rank_and_size()  # raises an error if the launcher's values are wrong
        full, rest = divmod(self.num_samples, self.batch_size)
        self.steps = full if drop_last or not rest else full + 1
        self.done = 0
        self._orders: dict[int, IndexArray] = {}

    def rank_and_size(self) -> tuple[int, int]:
        """Return the number of this process's shard, and the number of shards.

        Returns
        -------
        tuple of int
            The arguments `rank` and `size`, if they were given. With a mesh: the position along its
            axis and the length of the axis. Otherwise: the current rank and size of the world.

        Examples
        --------
        >>> from ngd import data
        >>> data.Sampler(10, 4, rank=1, size=2).rank_and_size()
        (1, 2)
        """
        return self._fixed or current_rank_and_size()

    @property
    def rank(self) -> int:
        """The index of this process's shard in each batch, from 0."""
        return self.rank_and_size()[0]

    @property
    def size(self) -> int:
        """The number of shards per batch: one per rank, or per position along the mesh's axis."""
        return self.rank_and_size()[1]

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[Shard]:
        end = (self.epoch + 1) * self.steps
        while self.done < end:
            shard = self.shard(self.done)
            self.done += 1
            yield shard

    @property
    def epoch(self) -> int:
        """The epoch of the next batch, from 0."""
        return self.done // self.steps

    @property
    def step(self) -> int:
        """The number of the next batch in its epoch, from 0."""
        return self.done % self.steps

    def state(self) -> dict[str, int]:
        """Return the position, for a checkpoint.

        Returns
        -------
        dict
            "epoch": the epoch of the next batch. "step": the number of this batch in its epoch,
            from 0. The other entries are the arguments that determine the batches, such as "seed".
            All values are ints or bools, and the dict is equal on all ranks.

        Examples
        --------
        >>> import itertools
        >>> from ngd import data
        >>> sampler = data.Sampler(10, 4)
        >>> for shard in itertools.islice(sampler, 2):
        ...     pass
        >>> sampler.state()["epoch"], sampler.state()["step"]
        (0, 2)
        """
        return {"epoch": self.epoch, "step": self.step, **self._identity()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a position of `state()`, with any number of ranks.

        Parameters
        ----------
        state : mapping
            A result of `state()`.

        Raises
        ------
        ValueError
            A key is missing, or the position belongs to other batches: those of another seed,
            batch size or number of samples.

        Examples
        --------
        >>> from ngd import data
        >>> first, second = data.Sampler(10, 4), data.Sampler(10, 4, rank=0, size=2)
        >>> first.done = 5
        >>> second.load_state(first.state())
        >>> second.epoch, second.step
        (1, 2)
        """
        call = "data.Sampler.load_state"
        if not isinstance(state, Mapping):
            raise ValueError(
                f"{call}: expected a result of state(); got {state!r}. Save `sampler.state()` as "
                "the position of the checkpoint."
            )
        missing = [key for key in self.state() if key not in state]
        if missing:
            raise ValueError(
                f"{call}: expected a result of state(); got a mapping without "
                f"{', '.join(missing)}. Save `sampler.state()` as the position of the checkpoint."
            )
        for key, value in self._identity().items():
            if state[key] != value:
                raise ValueError(
                    f"{call}: expected a position of a sampler with {key} {value}; got one with "
                    f"{key} {state[key]}. Make the sampler with the arguments of the saved one."
                )
        self.done = int(state["epoch"]) * self.steps + int(state["step"])

    def _identity(self) -> dict[str, int]:
        """Return the arguments that determine the batches, by name.

        `state` adds them to the position. `load_state` raises ValueError if those in the state
        differ from those of this sampler.
        """
        names = ("num_samples", "batch_size", "seed", "shuffle", "replacement", "drop_last")
        return {name: getattr(self, name) for name in names}

    def shard(self, number: int) -> Shard:
        """Return this rank's samples of a batch. The position of the sampler does not change.

        Parameters
        ----------
        number : int
            The number of the batch, counted from the start of the training.

        Returns
        -------
        Shard
            The indices of this rank's samples, and how many samples this rank and all ranks have.

        Examples
        --------
        >>> from ngd import data
        >>> data.Sampler(10, 4, shuffle=False).shard(2).indices.tolist()
        [8, 9]
        """
        epoch, step = divmod(number, self.steps)
        if self.replacement:
            random = np.random.default_rng((self.seed, number))
            batch = random.integers(0, self.num_samples, self.batch_size)
        else:
            batch = self._order(epoch)[step * self.batch_size : (step + 1) * self.batch_size]
        rank, size = self.rank_and_size()
        own = np.array_split(batch, size)[rank]
        return Shard(number, epoch, own if len(own) else batch[:1], len(own), len(batch))

    def _order(self, epoch: int) -> IndexArray:
        """Return the indices of all samples, in the order of the epoch.

        The orders of the last two epochs are cached.
        """
        if not self.shuffle:
            epoch = 0
        if epoch not in self._orders:
            order = np.arange(self.num_samples)
            if self.shuffle:
                order = np.random.default_rng((self.seed, epoch)).permutation(self.num_samples)
            self._orders = {**dict([*self._orders.items()][-1:]), epoch: order}
        return self._orders[epoch]


def _integer(name: str, value: Any, *, least: int) -> int:
    """Return an argument of Sampler as an int; raise an error unless it is an int >= `least`."""
    if isinstance(value, (bool, np.bool_)) or not hasattr(value, "__index__"):
        fix = " Write len(source)." if hasattr(value, "__len__") else ""
        raise TypeError(
            f"data.Sampler: {name}: expected an integer; got {type(value).__name__}.{fix}"
        )
    number = operator.index(value)
    if number < least:
        raise ValueError(f"data.Sampler: {name}: expected an integer >= {least}; got {number}.")
    return number


def _fixed_rank_and_size(
    rank: int | None, size: int | None, mesh: Mesh | None, axis: str
) -> tuple[int, int] | None:
    """Return (rank, size) from the arguments, or None if they give neither `size` nor `mesh`.

    A mesh gives this rank's position along `axis` and the length of the axis. If the result is
    None, the sampler uses the rank and the size of the world.
    """
    if mesh is not None:
        from ..comm import Mesh as MeshType

        if not isinstance(mesh, MeshType):
            raise TypeError(
                f"data.Sampler: mesh: expected an ngd.Mesh; got {type(mesh).__name__}. "
                "ngd.make_mesh makes one."
            )
        if rank is not None or size is not None:
            raise ValueError(
                "data.Sampler: expected mesh, or rank and size; got both. Remove one of them."
            )
        if axis not in mesh.names:
            raise ValueError(
                f"data.Sampler: axis: expected an axis of the mesh, {', '.join(mesh.names)}; got "
                f"{axis!r}. Give the axis that divides the samples."
            )
        return mesh[axis].rank, mesh[axis].size
    if rank is None and size is None:
        return None
    if rank is None or size is None:
        given, other = ("size", "rank") if rank is None else ("rank", "size")
        raise ValueError(
            f"data.Sampler: expected rank and size together; got {given} only. Give {other} too, "
            "or neither: then they are those of the world."
        )
    rank, size = _integer("rank", rank, least=0), _integer("size", size, least=1)
    if rank >= size:
        raise ValueError(
            f"data.Sampler: rank: expected an integer below size, {size}; got {rank}. Ranks count "
            "from 0."
        )
    return rank, size
