# SPDX-License-Identifier: Apache-2.0
"""Training that goes on after a rank was lost: `ngd run --max-restarts N`, `ngd.ray.run_elastic`.

With `--min-ranks M` the others go on: `run` goes back to the last `commit`, makes a world of those
who are there, and gives all of them the newest state. A new process comes in at a `commit`.

Without it, and between hosts, all ranks are started again; `run` then gives them the newest
`commit`. Each host's first rank keeps it in NGD_ELASTIC_DIR, a directory that the launcher makes
for the job, and removes. Under other launchers nothing is kept, and an error ends the job.
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
"""That are made one after the other without a commit in between."""

_states = itertools.count()
"""Numbers the states of a process: each has a file."""


class HostsUpdatedInterrupt(Exception):  # noqa: N818  # Horovod's name
    """New ranks wait: `run` lets them in, and training goes on with the state as it is."""


def read(path: Path) -> Any:
    """Which commit it was, and what was committed, unless the file is another user's."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW)) as file:
        owner = os.fstat(file.fileno()).st_uid
        if owner != os.getuid():
            raise PermissionError(
                f"hvd.elastic: expected {path} to belong to user {os.getuid()}; got one of user "
                f"{owner}. Set NGD_ELASTIC_DIR to a directory of your own."
            )
        return torch.load(file, weights_only=False)


class State:
    """What is committed and restored; to make one's own, derive from this."""

    def __init__(self, **values: Any) -> None:
        self._callbacks: list[Callable[[], None]] = []
        self._number = next(_states)
        self._saved: dict[str, Any] | None = None
        self._commits = 0
        self._written = 0
        """The newest commit that this process has written or read."""
        self._names = list(values)
        for name, value in values.items():
            setattr(self, name, value)

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], None]]) -> None:
        """Call these when training goes on after a restart, or with other ranks."""
        self._callbacks.extend(callbacks)

    @property
    def _file(self) -> Path | None:
        """Where it is kept; None: nowhere."""
        folder = os.environ.get("NGD_ELASTIC_DIR")
        return Path(folder) / f"commit-{self._number}.pt" if folder else None

    def values(self) -> dict[str, Any]:
        """What is committed: a copy."""
        return {name: copy.deepcopy(getattr(self, name)) for name in self._names}

    def take(self, values: dict[str, Any]) -> None:
        """Go back to what was committed."""
        for name in self._names:
            setattr(self, name, copy.deepcopy(values[name]))

    def commit(self) -> None:
        """Keep the state as it is; all ranks call it, and the first of each host writes it."""
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """HostsUpdatedInterrupt where new ranks wait; all ranks call it, and see the same."""
        wait = newcomers() if hosts_wait() is None else hosts_wait()
        if wait is not None and allreduce(np.int64(wait), op=Max):
            self.save()  # samplers learn what the others have done
            raise HostsUpdatedInterrupt

    def save(self) -> None:
        """Keep the state, for `restore` and for a restart."""
        self._saved = self.values()
        self._commits += 1
        self._write()

    def _write(self) -> None:
        """Write the last commit to the file of this host, of which its first rank takes care."""
        path = self._file
        if path is not None and local_rank() == 0:
            with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
                torch.save((self._commits, self._saved), file)  # its owner's alone
            Path(file.name).replace(path)
            self._written = self._commits

    def restore(self) -> None:
        """Go back to the last commit of this process, or to what it began with."""
        if self._saved is None:
            raise ValueError(
                "hvd.elastic: restore: expected a commit before it; got none. Call commit() or "
                "sync() first."
            )
        self.take(self._saved)

    def sync(self) -> None:
        """Give all ranks the state of the newest commit; rank 0's, where several have that.

        Hosts without this commit write it, and can lose the others from now on.
        """
        path, kept, late = self._file, None, self._comes_late
        if local_rank() == 0 and late and path is not None and path.exists():
            self._commits, kept = read(path)
            self._written = self._commits
        newest = int(np.argmax(allgather(np.array([self._commits]))))
        if kept is None and rank() == newest:
            kept = self.values()
        self._commits, kept = broadcast_object((self._commits, kept), root_rank=newest)
        self.take(kept)
        self._saved = kept
        if self._commits > self._written:
            self._write()
        if late and not self._commits and rank() == 0:
            logger.warning("hvd.elastic: no commit is left: the training begins at its beginning")

    @property
    def _comes_late(self) -> bool:
        """Whether others have trained before, and this process has nothing of it yet."""
        return self._saved is None and int(os.environ.get("NGD_RESTART_COUNT", "0")) > 0

    def on_reset(self) -> None:
        """Call what register_reset_callbacks was given."""
        for callback in self._callbacks:
            callback()


ObjectState = State


class TorchState(State):
    """A model, an optimizer, samplers, and any other values, which become attributes.

    Parameters
    ----------
    model, optimizer
        Their state dicts are kept.
    **values
        What has `state_dict` and `load_state_dict` is kept by these; other values as they are.
    """

    def __init__(self, model: Any = None, optimizer: Any = None, **values: Any) -> None:
        given = {"model": model, "optimizer": optimizer}
        super().__init__(**{k: v for k, v in given.items() if v is not None}, **values)

    def values(self) -> dict[str, Any]:
        """State dicts, and values."""
        found = {}
        for name in self._names:
            value = getattr(self, name)
            has_state = hasattr(value, "state_dict")
            found[name] = copy.deepcopy(value.state_dict() if has_state else value)
        return found

    def take(self, values: dict[str, Any]) -> None:
        """Load state dicts, and set values."""
        for name in self._names:
            value = getattr(self, name)
            if hasattr(value, "load_state_dict"):
                value.load_state_dict(copy.deepcopy(values[name]))
            else:
                setattr(self, name, copy.deepcopy(values[name]))

    def save(self) -> None:
        """Keep the state; samplers first learn what all ranks have done."""
        for name in self._names:
            value = getattr(self, name)
            if isinstance(value, ElasticSampler):
                value.gather()
        super().save()


def leave_for_hosts() -> NoReturn:
    """End this process once all ranks have kept their state; the launcher starts them again."""
    barrier()
    end_for_hosts()
    shutdown()
    raise SystemExit(0)


def run(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function `f(state, ...)` that begins with the state of the last commit.

    Under `ngd run --min-ranks` it begins again where a rank was lost, and where new ones wait.
    Elsewhere an error ends the process, as without it. Under `ngd.ray.run_elastic` the process
    ends, with the exit code 0, also where new hosts wait; it is started again with them.
    """

    @functools.wraps(function)
    def runs(state: State, *args: Any, **kwargs: Any) -> Any:
        anew, tries = state._comes_late, 0
        while True:
            kept = None
            try:
                if not is_initialized():
                    init()
                state.sync()
                kept = state._saved
                if anew:
                    state.on_reset()
                return function(state, *args, **kwargs)
            except HostsUpdatedInterrupt:
                if hosts_wait() is not None:
                    leave_for_hosts()
                logger.info("hvd.elastic: new ranks come in")
            except (HorovodInternalError, CollectiveError) as error:
                went_on = kept is not None and state._saved is not kept
                tries = 1 if went_on else tries + 1
                disagree = isinstance(error.__cause__ or error, CollectiveMismatchError)
                if newcomers() is None or disagree or tries > MOST_WORLDS:
                    raise
                logger.warning("hvd.elastic: back to the last commit: %s", error)
                if state._saved is not None:
                    state.restore()
            shutdown()
            anew = True

    return runs


class ElasticSampler(torch.utils.data.Sampler[int]):
    """Shares the indices of a data set among the ranks, those that were not processed.

    Parameters
    ----------
    dataset
        What has a length.
    shuffle
        Whether to go through it in another order each epoch.
    seed
        Of these orders; the same on all ranks.
    """

    def __init__(self, dataset: Any, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset, self.shuffle, self.seed = dataset, shuffle, seed
        self.epoch = 0
        self.processed_indices: set[int] = set()
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch: nothing of it is processed."""
        self.epoch = epoch
        self.processed_indices = set()
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Note that this rank has processed a batch, counted since the loader began."""
        begin = batch_idx * batch_size
        self.record_indices(self.indices[begin : begin + batch_size])

    def record_indices(self, indices: Iterable[int]) -> None:
        """Note that this rank has processed these."""
        self.processed_indices.update(indices)

    def gather(self) -> None:
        """Learn what all ranks have processed; all of them call it."""
        self.processed_indices = set().union(*allgather_object(self.processed_indices))

    def reset(self) -> None:
        """Share out what is left, in equal parts: the last ones begin again with the first."""
        left = [i for i in range(len(self.dataset)) if i not in self.processed_indices]
        if self.shuffle:
            generator = torch.Generator().manual_seed(self.seed + self.epoch)
            left = [left[i] for i in torch.randperm(len(left), generator=generator).tolist()]
        ranks, mine = (size(), rank()) if is_initialized() else (1, 0)
        share = -(-len(left) // ranks)
        filled = [left[i % len(left)] for i in range(share * ranks)] if left else []
        self.indices = filled[mine::ranks]

    def state_dict(self) -> dict[str, Any]:
        """The epoch, and what of it is processed."""
        return {"epoch": self.epoch, "processed_indices": sorted(self.processed_indices)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
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
