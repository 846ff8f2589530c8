# SPDX-License-Identifier: Apache-2.0
"""Horovod's functions about the world, its ranks and hosts, process sets, and timelines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

import numpy as np

from ..comm import Group, calls, world
from ..comm.checks import position_of_world_rank
from ..profiling import timeline

NOT_INITIALIZED: Final = "Horovod has not been initialized; use hvd.init()."


class HorovodInternalError(RuntimeError):
    """A collective failed: a rank is lost, is late, or called another collective.

    Corresponds to `horovod.common.exceptions.HorovodInternalError`.
    """


class ProcessSet:
    """A set of ranks that communicate with each other.

    Corresponds to `horovod.common.process_sets.ProcessSet`.

    Parameters
    ----------
    ranks_or_comm : iterable of int
        The ranks of the world that belong to the set.

    Attributes
    ----------
    ranks : list of int
        The ranks of the set, in ascending order.
    process_set_id : int or None
        The number of the set; 0 is the world. It is None before `add_process_set`.
    """

    def __init__(self, ranks_or_comm: Iterable[int]) -> None:
        self.ranks = sorted({int(rank) for rank in ranks_or_comm})
        self.process_set_id: int | None = None
        self._group: Group | None = None

    def __repr__(self) -> str:
        return f"<ProcessSet {self.process_set_id}: ranks {self.ranks}>"

    @property
    def group(self) -> Group:
        """The group of ngd with the same ranks. Raise ValueError if the set is not registered."""
        if self._group is None:
            raise ValueError(
                f"hvd.ProcessSet: expected a registered set; got {self!r}. Register it by "
                "hvd.init(process_sets=) or hvd.add_process_set()."
            )
        return self._group

    def included(self) -> bool:
        """Return True if this rank belongs to the set."""
        return self.group.is_member

    def size(self) -> int:
        """Return the number of ranks in the set."""
        return len(self.ranks)

    def rank(self) -> int:
        """Return the rank of this process in the set."""
        if not self.included():
            raise ValueError(
                f"hvd.ProcessSet.rank: expected a set that includes this rank, {rank()}; "
                f"got {self!r}. Call included() before."
            )
        return self.group.rank

    def root(self, root_rank: int, where: str) -> int:
        """Return the rank in this set of the process with rank `root_rank` in the world.

        Raise ValueError if that process is not in the set. `where` is the name of the public
        function for the message, such as "hvd.broadcast".
        """
        return position_of_world_rank(root_rank, self.ranks, where, "root_rank")


class World(ProcessSet):
    """The process set of all ranks, `global_process_set`."""

    def __init__(self) -> None:
        super().__init__(())
        self.calls = 0
        """The number of collectives that this rank has announced to all ranks.

        `calls.announce` sends a description of each collective on the world before it runs. `join`
        sets this number to the maximum over the ranks.
        """
        self.process_set_id = 0
        self.cross = (0, 1)
        """The pair (index of this host, number of hosts) that `cross_rank` and `cross_size` return.

        Only hosts are counted that have a rank with the same local rank as this process.
        """
        self.has_equal_hosts = True
        self.sets: dict[int, ProcessSet] = {0: self}
        self.next_id = 1

    @property
    def group(self) -> Group:
        """The group of all ranks. Raise ValueError if no world was joined, or it is closed."""
        if self._group is None or self._group.closed:
            raise ValueError(NOT_INITIALIZED)
        return self._group

    def attach(self, group: Group) -> None:
        """Set the group of the world to `group`, and forget the sets of `add_process_set`.

        `init` calls this method with the group of the world that it has joined. All ranks exchange
        their local ranks here.
        """
        rows = group.all_gather(np.array([[group.local_rank, group.local_size]], np.int64))
        counterparts = np.flatnonzero(rows[:, 0] == group.local_rank)
        self.cross = int(np.searchsorted(counterparts, group.rank)), len(counterparts)
        self.has_equal_hosts = bool((rows[:, 1] == rows[0, 1]).all())
        self.detach()  # a set of an earlier world can then be registered again
        self.next_id, self.calls = 1, 0
        self.ranks = list(range(group.size))
        self._group = group

    def detach(self) -> None:
        """Release the group of the world, and unregister the sets of `add_process_set`."""
        for process_set in self.sets.values():
            process_set._group = None
            if process_set is not self:
                process_set.process_set_id = None
        self.sets = {0: self}


global_process_set = World()


def init(
    comm: Any = None, process_sets: Sequence[ProcessSet | Sequence[int]] | str | None = None
) -> None:
    """Join the other ranks of the job, and register process sets.

    Corresponds to `horovod.torch.init`.

    Parameters
    ----------
    comm : mpi4py communicator, optional
        The communicator whose ranks form the world; by default all ranks of the launcher. It needs
        a build of ngd with MPI (build mode OMPI); other builds raise InitError.
    process_sets : sequence, optional
        Process sets, or lists of ranks, to register. All ranks pass the same list. "dynamic" is
        accepted and changes nothing, because sets can always be added later.
    """
    if isinstance(comm, (list, tuple)):
        raise TypeError(
            "hvd.init: comm: expected an mpi4py communicator; got a list of ranks. Write "
            "hvd.init(process_sets=[hvd.ProcessSet(ranks)])."
        )
    group = world.init(comm=comm)
    if global_process_set._group is not group:
        global_process_set.attach(group)
    if process_sets is None or isinstance(process_sets, str):
        return
    for process_set in process_sets:
        if not isinstance(process_set, ProcessSet) or process_set.process_set_id is None:
            add_process_set(process_set)


def shutdown() -> None:
    """Leave the world. A later `init` joins a new one.

    Corresponds to `horovod.torch.shutdown`.
    """
    stop_timeline()
    world.shutdown()
    global_process_set.detach()


def is_initialized() -> bool:
    """Return True if this process has joined a world and the world is not closed.

    Corresponds to `horovod.torch.is_initialized`.
    """
    return global_process_set._group is not None and not global_process_set._group.closed


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Register a set of ranks and return it. All ranks of the world call it with the same set.

    Corresponds to `horovod.torch.add_process_set`.

    Parameters
    ----------
    process_set : ProcessSet or sequence of int
        The set, or its ranks.
    """
    new_set = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    world = global_process_set.group
    if new_set.process_set_id is not None:
        raise ValueError(
            f"hvd.add_process_set: expected a new set; got {new_set!r}, which is registered "
            "already. Use it as it is."
        )
    outside = [r for r in new_set.ranks if not 0 <= r < world.size]
    if not new_set.ranks or outside:
        raise ValueError(
            f"hvd.add_process_set: expected ranks from 0 to {world.size - 1}; got {new_set.ranks}"
        )
    if any(other.ranks == new_set.ranks for other in global_process_set.sets.values()):
        raise ValueError(
            f"hvd.add_process_set: expected other ranks than those of the registered sets; got "
            f"{new_set.ranks}. Use the set that has these ranks."
        )
    number = global_process_set.next_id
    color = 0 if world.rank in new_set.ranks else None
    new_set._group = world.split(color, name=f"process set {number}")
    new_set.process_set_id = number
    global_process_set.next_id += 1
    global_process_set.sets[number] = new_set
    return new_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Remove a set and return True; return False if it was not registered.

    All ranks of the world call it with the same set.

    Corresponds to `horovod.torch.remove_process_set`.
    """
    number = process_set.process_set_id
    if not number or global_process_set.sets.get(number) is not process_set:
        return False
    del global_process_set.sets[number]
    process_set.group.close()
    process_set._group = process_set.process_set_id = None
    return True


def initialized_world() -> World:
    """Return the world. Raise ValueError if no world was joined, or it is closed."""
    if not is_initialized():
        raise ValueError(NOT_INITIALIZED)
    return global_process_set


def rank() -> int:
    """Return the rank of this process in the world, from 0.

    Corresponds to `horovod.torch.rank`.
    """
    return global_process_set.group.rank


def size() -> int:
    """Return the number of ranks in the world.

    Corresponds to `horovod.torch.size`.
    """
    return global_process_set.group.size


def local_rank() -> int:
    """Return the rank of this process among those of its host, from 0.

    Corresponds to `horovod.torch.local_rank`.
    """
    return global_process_set.group.local_rank


def local_size() -> int:
    """Return the number of ranks on this host.

    Corresponds to `horovod.torch.local_size`.
    """
    return global_process_set.group.local_size


def cross_rank() -> int:
    """Return the index of this process among the ranks with the same local rank, one per host.

    Corresponds to `horovod.torch.cross_rank`.
    """
    return initialized_world().cross[0]


def cross_size() -> int:
    """Return the number of ranks with the same local rank as this process, one per host.

    Corresponds to `horovod.torch.cross_size`.
    """
    return initialized_world().cross[1]


def is_homogeneous() -> bool:
    """Return True if all hosts have the same number of ranks.

    Corresponds to `horovod.torch.is_homogeneous`.
    """
    return initialized_world().has_equal_hosts


def mpi_built() -> bool:
    """Return True if this build of ngd uses MPI between hosts.

    Corresponds to `horovod.torch.mpi_built`.
    """
    return calls.build_info()["mode"] == "OMPI"


def mpi_enabled() -> bool:
    """Return True if the ranks of this job communicate over MPI.

    Corresponds to `horovod.torch.mpi_enabled`.
    """
    return is_initialized() and global_process_set.group.communicator.name in (
        "mpi",
        "hierarchical",
    )


def mpi_threads_supported() -> bool:
    """Return True if the ranks communicate over MPI. The thread level of MPI is not checked.

    ngd requests MPI_THREAD_MULTIPLE if it initializes MPI. If MPI provides only
    MPI_THREAD_SERIALIZED, several threads may call MPI, but not at the same time.

    Corresponds to `horovod.torch.mpi_threads_supported`.
    """
    return mpi_enabled()


def absent() -> bool:
    """Return False, for `gloo_built` and similar functions.

    ngd does not use Gloo, CUDA, ROCm, DDL or oneCCL.
    """
    return False


def absent_version() -> int:
    """Return 0 as the version of NCCL: ngd does not use NCCL."""
    return 0


gloo_built = gloo_enabled = cuda_built = rocm_built = ddl_built = ccl_built = absent
nccl_built = absent_version

_timeline: AbstractContextManager[Any] | None = None


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Start to record a timeline, as `ngd.timeline` does. `stop_timeline` writes the file.

    All ranks call both functions, and rank 0 writes the file.

    Corresponds to `horovod.torch.start_timeline`.

    Parameters
    ----------
    file_path : str
        The file to write.
    mark_cycles : bool
        Ignored. In Horovod, it marks the cycles of the thread that runs the collectives; ngd has no
        such cycles.
    """
    global _timeline
    if _timeline is not None:
        raise ValueError(
            "hvd.start_timeline: expected no recording; got one that runs. Call "
            "hvd.stop_timeline() first."
        )
    recording = timeline(file_path)
    recording.__enter__()
    _timeline = recording


def stop_timeline() -> None:
    """Stop the recording that `start_timeline` started, and write its file.

    Corresponds to `horovod.torch.stop_timeline`.
    """
    global _timeline
    recording, _timeline = _timeline, None
    if recording is not None:
        recording.__exit__(None, None, None)


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
