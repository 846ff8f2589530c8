# SPDX-License-Identifier: Apache-2.0
"""Training that continues after a rank was lost. It corresponds to `horovod.torch.elastic`.

There are two forms of recovery:

- Under `ngd run --min-ranks M` the remaining processes continue. The decorator `run` of this module
  restores the last `commit`, joins a new world of the remaining ranks, and gives all of them the
  values of the rank that has the newest commit. A new process joins when the ranks call `commit`
  or `check_host_updates` under `run`, or together with the remaining ranks after a loss.
- Under `ngd run --max-restarts N` without `--min-ranks`, and under `ngd.ray.run_elastic`, all ranks
  are started again, and the decorator gives them the newest commit. The first rank of each host
  writes each commit to NGD_ELASTIC_DIR, a directory that the launcher creates for the job and
  removes.

Under other launchers no commit is written to a file, and an error ends the job.
"""

from __future__ import annotations

import copy
import functools
import itertools
import logging
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NoReturn

import numpy as np
import torch

from ...comm.membership import end_for_hosts, hosts_wait, newcomers
from ...errors import CollectiveError, CollectiveMismatchError
from ..calls import Max
from ..numpy import allgather, allgather_object, allreduce, barrier, broadcast_object
from ..world import HorovodInternalError, init, is_initialized, local_rank, rank, shutdown, size

logger = logging.getLogger("ngd")

MOST_WORLDS: Final = 16
"""The maximum number of consecutive failures that `run` handles by joining a new world.

A commit between two failures restarts the count. If one more failure follows, `run` raises its
error.
"""

_states = itertools.count()
"""The counter that numbers the `State` objects of this process, from 0.

The number of a state is part of the name of its file.
"""


class HostsUpdatedInterrupt(Exception):  # noqa: N818  # Horovod's name
    """New ranks wait to join. `run` admits them, and the training continues with the current state.

    Corresponds to `horovod.common.exceptions.HostsUpdatedInterrupt`.
    """


def read_commit(path: Path) -> Any:
    """Return the number of the commit in a file, and its values. The first commit has number 1.

    The file is unpickled, which can run code. So PermissionError is raised if the file belongs to
    another user of the system.
    """
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW)) as file:
        owner = os.fstat(file.fileno()).st_uid
        if owner != os.getuid():
            raise PermissionError(
                f"hvd.elastic: expected {path} to belong to user {os.getuid()}; got one of user "
                f"{owner}. Set NGD_ELASTIC_DIR to a directory of your own."
            )
        return torch.load(file, weights_only=False)


class State:
    """The values that `commit` stores and `restore` sets back. Each value is an attribute.

    Derive your own state from this class by overriding `values`, which returns a copy of the
    values, and `take`, which sets the attributes to such a copy.

    Corresponds to `horovod.common.elastic.State`. `ObjectState` is the same class.

    Parameters
    ----------
    **values
        The initial values, by name.
    """

    def __init__(self, **values: Any) -> None:
        self._callbacks: list[Callable[[], None]] = []
        self._number = next(_states)
        self._saved: dict[str, Any] | None = None
        self._commits = 0
        self._written = 0
        """The number of the newest commit that this process wrote to its file or read from it.

        0 means none.
        """
        self._names = list(values)
        for name, value in values.items():
            setattr(self, name, value)

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], None]]) -> None:
        """Register functions that are called after a restart or a change of the ranks."""
        self._callbacks.extend(callbacks)

    @property
    def _file(self) -> Path | None:
        """The file of the last commit. None if NGD_ELASTIC_DIR is not set: no file is written."""
        folder = os.environ.get("NGD_ELASTIC_DIR")
        return Path(folder) / f"commit-{self._number}.pt" if folder else None

    def values(self) -> dict[str, Any]:
        """Return a copy of the values to commit."""
        return {name: copy.deepcopy(getattr(self, name)) for name in self._names}

    def take(self, values: dict[str, Any]) -> None:
        """Set each attribute to a copy of its value in `values`, which `values()` returned."""
        for name in self._names:
            setattr(self, name, copy.deepcopy(values[name]))

    def commit(self) -> None:
        """Store the state, as `save` does, and check if new ranks wait. All ranks call this method.

        Raises
        ------
        HostsUpdatedInterrupt
            New ranks wait to join; `run` handles it.
        """
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Check if new ranks or hosts wait to join. All ranks call this method.

        If any wait, store the state as `save` does, and raise HostsUpdatedInterrupt.
        """
        wait = newcomers() if hosts_wait() is None else hosts_wait()
        if wait is not None and allreduce(np.int64(wait), op=Max):
            self.save()  # also gathers the processed indices of samplers
            raise HostsUpdatedInterrupt

    def save(self) -> None:
        """Store a copy of the values: in memory for `restore`, and in a file for a restart.

        Only the first rank of each host writes the file, and only if NGD_ELASTIC_DIR is set.
        `commit` calls this method, and then checks if new ranks wait to join.
        """
        self._saved = self.values()
        self._commits += 1
        self._write()

    def _write(self) -> None:
        """Write the last commit to the file of this host, if this is the first rank of the host.

        Otherwise, or if NGD_ELASTIC_DIR is not set, do nothing.
        """
        path = self._file
        if path is not None and local_rank() == 0:
            with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
                torch.save((self._commits, self._saved), file)  # only the file's owner can read it
            Path(file.name).replace(path)
            self._written = self._commits

    def restore(self) -> None:
        """Set the values to those of the last commit or `sync` of this process."""
        if self._saved is None:
            raise ValueError(
                "hvd.elastic: restore: expected a commit before it; got none. Call commit() or "
                "sync() first."
            )
        self.take(self._saved)

    def sync(self) -> None:
        """Give all ranks the values of the rank that has the newest commit.

        If several ranks have the newest commit, the first of them sends its values. Before the
        first commit, this is rank 0. If NGD_ELASTIC_DIR is set, the first rank of each host then
        writes this commit to its file, unless the file already has it. So the commit survives the
        loss of the other hosts.
        """
        path, committed, is_late = self._file, None, self._is_late_joiner
        if local_rank() == 0 and is_late and path is not None and path.exists():
            self._commits, committed = read_commit(path)
            self._written = self._commits
        newest = int(np.argmax(allgather(np.array([self._commits]))))
        if committed is None and rank() == newest:
            committed = self.values()
        self._commits, committed = broadcast_object((self._commits, committed), root_rank=newest)
        self.take(committed)
        self._saved = committed
        if self._commits > self._written:
            self._write()
        if is_late and not self._commits and rank() == 0:
            logger.warning("hvd.elastic: no commit is left: the training starts from the beginning")

    @property
    def _is_late_joiner(self) -> bool:
        """True if this process was restarted or joins a running job, and has no commit yet.

        NGD_RESTART_COUNT is more than 0 in a process that was restarted or joins later.
        """
        return self._saved is None and int(os.environ.get("NGD_RESTART_COUNT", "0")) > 0

    def on_reset(self) -> None:
        """Call the functions that `register_reset_callbacks` has registered."""
        for callback in self._callbacks:
            callback()


ObjectState = State


class TorchState(State):
    """The state of a model, an optimizer, samplers and other values; each is an attribute.

    Corresponds to `horovod.torch.elastic.TorchState`.

    Parameters
    ----------
    model : torch.nn.Module, optional
        The model; its `state_dict` is stored.
    optimizer : torch.optim.Optimizer, optional
        The optimizer; its `state_dict` is stored.
    **values
        Other values. An object with `state_dict` and `load_state_dict` is stored by these methods,
        and any other value by a copy.
    """

    def __init__(self, model: Any = None, optimizer: Any = None, **values: Any) -> None:
        components = {"model": model, "optimizer": optimizer}
        super().__init__(**{k: v for k, v in components.items() if v is not None}, **values)

    def values(self) -> dict[str, Any]:
        """Return copies of the state dicts of the model and optimizer, and of the other values."""
        copies = {}
        for name in self._names:
            value = getattr(self, name)
            has_state = hasattr(value, "state_dict")
            copies[name] = copy.deepcopy(value.state_dict() if has_state else value)
        return copies

    def take(self, values: dict[str, Any]) -> None:
        """Set the attributes to copies of their values in `values`, which `values()` returned.

        An object with the method `load_state_dict` is not replaced: it loads its state dict.
        """
        for name in self._names:
            value = getattr(self, name)
            if hasattr(value, "load_state_dict"):
                value.load_state_dict(copy.deepcopy(values[name]))
            else:
                setattr(self, name, copy.deepcopy(values[name]))

    def save(self) -> None:
        """Store the values, as `State.save` does. All ranks call this method.

        First, each ElasticSampler of the state gathers from all ranks the indices of the samples
        that were processed in this epoch.
        """
        for name in self._names:
            value = getattr(self, name)
            if isinstance(value, ElasticSampler):
                value.gather()
        super().save()


def exit_for_new_hosts() -> NoReturn:
    """Wait until all ranks have called this function, and end this process with exit code 0.

    All ranks have stored their states before. `ngd.ray.run_elastic` then starts new processes for
    all ranks, on the old and the new hosts.
    """
    barrier()
    end_for_hosts()
    shutdown()
    raise SystemExit(0)


def run(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls `state.sync()` and then `function(state, ...)`.

    - Under `ngd run --min-ranks`, it restores the last `state.commit()` after the loss of a rank,
      and calls `function` again. When new ranks join, it calls `function` with the current state.
    - Under `ngd run --max-restarts` without `--min-ranks`, a failure ends the process. The launcher
      starts all ranks again, and they continue from the newest commit.
    - Under `ngd.ray.run_elastic`, a failure also ends the process, and all ranks are started again
      from the newest commit. If new hosts wait to join, the processes end with exit code 0, and
      all ranks are started again, on the old and the new hosts.
    - Under other launchers, a failure ends the process and the job.

    Corresponds to `horovod.torch.elastic.run`.

    Parameters
    ----------
    function : callable
        The training function. Its first argument is a `State`.
    """

    @functools.wraps(function)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> Any:
        is_restart, attempts = state._is_late_joiner, 0
        while True:
            committed = None
            try:
                if not is_initialized():
                    init()
                state.sync()
                committed = state._saved
                if is_restart:
                    state.on_reset()
                return function(state, *args, **kwargs)
            except HostsUpdatedInterrupt:
                if hosts_wait() is not None:
                    exit_for_new_hosts()
                logger.info("hvd.elastic: new ranks join")
            except (HorovodInternalError, CollectiveError) as error:
                has_committed = committed is not None and state._saved is not committed
                attempts = 1 if has_committed else attempts + 1
                is_mismatch = isinstance(error.__cause__ or error, CollectiveMismatchError)
                if newcomers() is None or is_mismatch or attempts > MOST_WORLDS:
                    raise
                logger.warning("hvd.elastic: restoring the last commit: %s", error)
                if state._saved is not None:
                    state.restore()
            shutdown()
            is_restart = True

    return wrapper


class ElasticSampler(torch.utils.data.Sampler[int]):
    """A sampler that divides the samples not yet processed in this epoch among the ranks.

    It yields the indices of these samples in the dataset.

    Corresponds to `horovod.torch.elastic.ElasticSampler`.

    Parameters
    ----------
    dataset
        An object with a length.
    shuffle : bool
        If True, each epoch has a different random order.
    seed : int
        The seed of the order; the same on all ranks.
    """

    def __init__(self, dataset: Any, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset, self.shuffle, self.seed = dataset, shuffle, seed
        self.epoch = 0
        self.processed_indices: set[int] = set()
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Start epoch `epoch`: no index of the dataset counts as processed yet."""
        self.epoch = epoch
        self.processed_indices = set()
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Record that this rank has processed the indices of batch `batch_idx`.

        Batches are counted from 0 and have `batch_size` indices each. Batch 0 is the first one
        after the last call of `set_epoch`, `reset` or `load_state_dict`.
        """
        begin = batch_idx * batch_size
        self.record_indices(self.indices[begin : begin + batch_size])

    def record_indices(self, indices: Iterable[int]) -> None:
        """Record that this rank has processed these indices."""
        self.processed_indices.update(indices)

    def gather(self) -> None:
        """Set `processed_indices` to the union over all ranks. All ranks call this method."""
        self.processed_indices = set().union(*allgather_object(self.processed_indices))

    def reset(self) -> None:
        """Divide the indices not yet processed in this epoch among the ranks, in equal numbers.

        If their number is not a multiple of the number of ranks, the first indices are repeated.
        """
        remaining = [i for i in range(len(self.dataset)) if i not in self.processed_indices]
        if self.shuffle:
            generator = torch.Generator().manual_seed(self.seed + self.epoch)
            remaining = [
                remaining[i] for i in torch.randperm(len(remaining), generator=generator).tolist()
            ]
        ranks, own_rank = (size(), rank()) if is_initialized() else (1, 0)
        num_per_rank = -(-len(remaining) // ranks)
        padded = (
            [remaining[i % len(remaining)] for i in range(num_per_rank * ranks)]
            if remaining
            else []
        )
        self.indices = padded[own_rank::ranks]

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch and its processed indices."""
        return {"epoch": self.epoch, "processed_indices": sorted(self.processed_indices)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state that `state_dict` returned."""
        self.epoch = state["epoch"]
        self.processed_indices = set(state["processed_indices"])
        self.reset()

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices)

    def __len__(self) -> int:
        return len(self.indices)


__all__ = [
    "ElasticSampler",
    "HostsUpdatedInterrupt",
    "ObjectState",
    "State",
    "TorchState",
    "run",
]
