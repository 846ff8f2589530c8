# SPDX-License-Identifier: Apache-2.0
"""Who takes part: the world by Horovod's names, and sets of its ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

import numpy as np

from ..comm import Group, calls, world
from ..comm.checks import position_of_world_rank
from ..profiling import timeline

NOT_BEGUN: Final = "Horovod has not been initialized; use hvd.init()."


class HorovodInternalError(RuntimeError):
    """A collective failed: a rank is lost, did not come, or called another one."""


class ProcessSet:
    """Ranks that communicate: all of them, or some.

    Parameters
    ----------
    ranks_or_comm
        The ranks of the world that belong to it.

    Attributes
    ----------
    ranks
        These, in rising order.
    process_set_id
        0 is the world; None before `add_process_set`.
    """

    def __init__(self, ranks_or_comm: Iterable[int]) -> None:
        self.ranks = sorted({int(rank) for rank in ranks_or_comm})
        self.process_set_id: int | None = None
        self._group: Group | None = None

    def __repr__(self) -> str:
        return f"<ProcessSet {self.process_set_id}: ranks {self.ranks}>"

    @property
    def group(self) -> Group:
        """The ranks, as ngd has them."""
        if self._group is None:
            raise ValueError(
                f"hvd.ProcessSet: expected a registered set; got {self!r}. Register it by "
                "hvd.init(process_sets=) or hvd.add_process_set()."
            )
        return self._group

    def included(self) -> bool:
        """Whether this rank belongs to it."""
        return self.group.is_member

    def size(self) -> int:
        """How many ranks it has."""
        return len(self.ranks)

    def rank(self) -> int:
        """The number of this process in it."""
        if not self.included():
            raise ValueError(
                f"hvd.ProcessSet.rank: expected a set that has rank {rank()}, which is this one; "
                f"got {self!r}. Call included() before."
            )
        return self.group.rank

    def root(self, root_rank: int, where: str) -> int:
        """Return the number in the set of a rank of the world."""
        return position_of_world_rank(root_rank, self.ranks, where, "root_rank")


class World(ProcessSet):
    """All ranks: `global_process_set`."""

    def __init__(self) -> None:
        super().__init__(())
        self.calls = 0
        """How many collectives this rank has announced (calls.py)."""
        self.process_set_id = 0
        self.across = (0, 1)
        """Which host is this, and how many have a rank of this local number."""
        self.same_everywhere = True
        self.sets: dict[int, ProcessSet] = {0: self}
        self.next_id = 1

    @property
    def group(self) -> Group:
        """The world of ngd."""
        if self._group is None or self._group.closed:
            raise ValueError(NOT_BEGUN)
        return self._group

    def begin(self, group: Group) -> None:
        """Take the world that there is now."""
        rows = group.all_gather(np.array([[group.local_rank, group.local_size]], np.int64))
        alike = np.flatnonzero(rows[:, 0] == group.local_rank)
        self.across = int(np.searchsorted(alike, group.rank)), len(alike)
        self.same_everywhere = bool((rows[:, 1] == rows[0, 1]).all())
        self.sets, self.next_id, self.calls = {0: self}, 1, 0
        self.ranks = list(range(group.size))
        self._group = group

    def end(self) -> None:
        """Forget the world, and the sets that were registered in it."""
        for process_set in self.sets.values():
            process_set._group = None
            if process_set is not self:
                process_set.process_set_id = None
        self.sets = {0: self}


global_process_set = World()


def init(
    comm: Any = None, process_sets: Sequence[ProcessSet | Sequence[int]] | str | None = None
) -> None:
    """Join the other ranks of the job.

    Parameters
    ----------
    comm
        An mpi4py communicator (build mode OMPI); by default all ranks of the launcher.
    process_sets
        Sets of ranks to register, the same list on all ranks; or "dynamic", which they always are.
    """
    if isinstance(comm, (list, tuple)):
        raise TypeError(
            "hvd.init: comm: expected an mpi4py communicator; got a list of ranks. Write "
            "hvd.init(process_sets=[hvd.ProcessSet(ranks)])."
        )
    group = world.init(comm=comm)
    if global_process_set._group is not group:
        global_process_set.begin(group)
    if process_sets is None or isinstance(process_sets, str):
        return
    for process_set in process_sets:
        if not isinstance(process_set, ProcessSet) or process_set.process_set_id is None:
            add_process_set(process_set)


def shutdown() -> None:
    """Leave the world; `init` makes a new one."""
    stop_timeline()
    world.shutdown()
    global_process_set.end()


def is_initialized() -> bool:
    """Whether there is a world."""
    return global_process_set._group is not None and not global_process_set._group.closed


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Register a set of ranks; all ranks of the world call it alike."""
    made = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    world = global_process_set.group
    if made.process_set_id is not None:
        raise ValueError(
            f"hvd.add_process_set: expected a new set; got {made!r}, which is registered already. "
            "Use it as it is."
        )
    outside = [r for r in made.ranks if not 0 <= r < world.size]
    if not made.ranks or outside:
        raise ValueError(
            f"hvd.add_process_set: expected ranks from 0 to {world.size - 1}; got {made.ranks}"
        )
    if any(other.ranks == made.ranks for other in global_process_set.sets.values()):
        raise ValueError(
            f"hvd.add_process_set: expected other ranks than those of the registered sets; got "
            f"{made.ranks}. Use the set that has these ranks."
        )
    number = global_process_set.next_id
    mine = 0 if world.rank in made.ranks else None
    made._group = world.split(mine, name=f"process set {number}")
    made.process_set_id = number
    global_process_set.next_id += 1
    global_process_set.sets[number] = made
    return made


def remove_process_set(process_set: ProcessSet) -> bool:
    """Forget a set; whether there was one. All ranks of the world call it alike."""
    number = process_set.process_set_id
    if not number or global_process_set.sets.get(number) is not process_set:
        return False
    del global_process_set.sets[number]
    process_set.group.close()
    process_set._group = process_set.process_set_id = None
    return True


def begun() -> World:
    """The world, which `init` has made."""
    if not is_initialized():
        raise ValueError(NOT_BEGUN)
    return global_process_set


def rank() -> int:
    """The number of this process in the world, from 0."""
    return global_process_set.group.rank


def size() -> int:
    """How many ranks there are."""
    return global_process_set.group.size


def local_rank() -> int:
    """The number of this process among those on this host."""
    return global_process_set.group.local_rank


def local_size() -> int:
    """How many ranks this host has."""
    return global_process_set.group.local_size


def cross_rank() -> int:
    """Which of the hosts that have a rank of this local number is this one."""
    return begun().across[0]


def cross_size() -> int:
    """How many hosts have a rank of this local number."""
    return begun().across[1]


def is_homogeneous() -> bool:
    """Whether all hosts have equally many ranks."""
    return begun().same_everywhere


def mpi_built() -> bool:
    """Whether this build of ngd goes over MPI between hosts."""
    return calls.build_info()["mode"] == "OMPI"


def mpi_enabled() -> bool:
    """Whether the ranks of this job meet over MPI."""
    return is_initialized() and global_process_set.group.communicator.name in (
        "mpi",
        "hierarchical",
    )


def mpi_threads_supported() -> bool:
    """Whether several threads may call: they may, one after the other."""
    return mpi_enabled()


def absent() -> bool:
    """False: ngd has no such transport."""
    return False


def absent_version() -> int:
    """0: ngd has no such transport."""
    return 0


gloo_built = gloo_enabled = cuda_built = rocm_built = ddl_built = ccl_built = absent
nccl_built = absent_version

_timeline: AbstractContextManager[Any] | None = None


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Record what the ranks do, as `ngd.timeline` does; `stop_timeline` writes the file.

    All ranks call both; rank 0 writes. There are no cycles to mark.
    """
    global _timeline
    if _timeline is not None:
        raise ValueError(
            "hvd.start_timeline: expected no recording; got one that runs. Call "
            "hvd.stop_timeline() first."
        )
    began = timeline(file_path)
    began.__enter__()
    _timeline = began


def stop_timeline() -> None:
    """End what `start_timeline` began, and write its file."""
    global _timeline
    ending, _timeline = _timeline, None
    if ending is not None:
        ending.__exit__(None, None, None)


__all__ = [
    "HorovodInternalError",
    "ProcessSet",
    "add_process_set",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]
