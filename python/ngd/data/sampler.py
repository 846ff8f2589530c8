# SPDX-License-Identifier: Apache-2.0
"""Whose turn it is: an order of the samples, dealt out to the ranks, that can go on anywhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

IndexArray = NDArray[np.int64]


class Part(NamedTuple):
    """What a rank has of one batch."""

    number: int
    """Which batch this is, counted from the beginning of the training."""
    epoch: int
    indices: IndexArray
    """Which samples; never none."""
    weight: int
    """How many of them count: all, or none of the one that a rank without samples gets."""
    total: int
    """How many samples all ranks have together."""


class Sampler:
    """The batches of all epochs, and where the training stands in them.

    Each batch of all ranks together depends on the seed and its number alone. A rank gets the
    near-equal part of it that is its own; of a batch that is shorter than the number of ranks, some
    get one of the others' samples, which weighs nothing. So any number of ranks takes the same
    steps, where each rank's loss counts as much as its part's weight.

    To iterate gives the rest of the epoch. What was given counts as done: `state`, for a
    checkpoint's position, says what comes next.

    Parameters
    ----------
    count
        How many samples there are.
    batch
        How many all ranks together take a step.
    rank, size
        Which rank this is, of how many.
    seed
        What the order depends on, and what the draws of a loader's transforms depend on.
    shuffle
        Each epoch is a new permutation; else the samples come in their order.
    replace
        The samples of each batch are drawn out of all instead, so that one may come twice: for a
        count of which no permutation fits into memory.
    drop_last
        Leave out an epoch's last batch where it is shorter than the others.
    """

    def __init__(
        self,
        count: int,
        batch: int,
        *,
        rank: int = 0,
        size: int = 1,
        seed: int = 0,
        shuffle: bool = True,
        replace: bool = False,
        drop_last: bool = False,
    ) -> None:
        for name, value in (("samples", count), ("samples a batch", batch), ("ranks", size)):
            if value < 1:
                raise ValueError(f"data.Sampler: expected a number of {name} >= 1; got {value}")
        if not 0 <= rank < size:
            raise ValueError(f"data.Sampler: expected a rank of {size}; got {rank}")
        if seed < 0:
            raise ValueError(f"data.Sampler: expected a seed >= 0; got {seed}")
        if drop_last and count < batch:
            raise ValueError(f"data.Sampler: {count} samples fill no batch of {batch}")
        if replace and not shuffle:
            raise ValueError("data.Sampler: expected shuffle, too, where replace is given")
        self.count, self.batch, self.rank, self.size = count, batch, rank, size
        self.seed, self.shuffle, self.replace, self.drop_last = seed, shuffle, replace, drop_last
        self.steps = count // batch if drop_last else -(-count // batch)
        """How many batches an epoch has."""
        self.done = 0
        """How many batches were given, in all epochs."""
        self._orders: dict[int, IndexArray] = {}

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[Part]:
        end = (self.epoch + 1) * self.steps
        while self.done < end:
            part = self.part(self.done)
            self.done += 1
            yield part

    @property
    def epoch(self) -> int:
        """The epoch of the next batch, from 0."""
        return self.done // self.steps

    @property
    def step(self) -> int:
        """The place of the next batch in its epoch, from 0."""
        return self.done % self.steps

    def state(self) -> dict[str, int]:
        """Where the training stands, as JSON can hold it; the same on all ranks."""
        return {"epoch": self.epoch, "step": self.step, **self._identity()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on there, at any number of ranks; ValueError where the batches would be others."""
        wanted = {"epoch", "step", *self._identity()}
        if not isinstance(state, Mapping) or not wanted <= state.keys():
            raise ValueError(f"data.Sampler.load_state: expected {sorted(wanted)}; got {state}")
        for key, mine in self._identity().items():
            if state[key] != mine:
                raise ValueError(
                    f"data.Sampler.load_state: saved with {key} {state[key]}; this one has {mine}"
                )
        self.done = int(state["epoch"]) * self.steps + int(state["step"])

    def _identity(self) -> dict[str, int]:
        """What the batches depend on."""
        names = ("count", "batch", "seed", "shuffle", "replace", "drop_last")
        return {name: getattr(self, name) for name in names}

    def part(self, number: int) -> Part:
        """What this rank has of a batch; nothing changes."""
        epoch, step = divmod(number, self.steps)
        if self.replace:
            random = np.random.default_rng((self.seed, number))
            batch = random.integers(0, self.count, self.batch)
        else:
            batch = self._order(epoch)[step * self.batch : (step + 1) * self.batch]
        mine = np.array_split(batch, self.size)[self.rank]
        return Part(number, epoch, mine if len(mine) else batch[:1], len(mine), len(batch))

    def _order(self, epoch: int) -> IndexArray:
        """All samples in the epoch's order; it and the one before are kept."""
        if not self.shuffle:
            epoch = 0
        if epoch not in self._orders:
            order = np.arange(self.count)
            if self.shuffle:
                order = np.random.default_rng((self.seed, epoch)).permutation(self.count)
            self._orders = {**dict([*self._orders.items()][-1:]), epoch: order}
        return self._orders[epoch]
