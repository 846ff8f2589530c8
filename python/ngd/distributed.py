# SPDX-License-Identifier: Apache-2.0
"""The world: joining it, leaving it, and every collective on arrays over it or over a group."""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final, TypeVar

import numpy as np

from . import _core, collectives, config, environment, logs, members, metrics
from .collectives import Group, Mesh
from .collectives.group import GROUPS, living
from .dtype import Shape
from .environment import Launch
from .errors import InitError
from .sites import call_site
from .variables import Variable

logger = logging.getLogger("ngd")
logs.begin()

_world: Group | None = None
_alone: Group | None = None
_hooked_in: int | None = None
"""The process that has the hooks: a child that it forks inherits them, and is no rank."""
_place: _core.Mark | None = None
"""Shows to children of this process that its place in the job is taken."""

Batch = TypeVar("Batch")


def alone() -> Group:
    """A group of one rank, which needs no launcher."""
    global _alone
    if _alone is None:
        _alone = Group(_core.Communicator.make_self(), "alone")
    return _alone


def init(*, comm: Any = None) -> Group:
    """Join the other ranks of this job and return the world; idempotent, implicit at first use.

    The launcher's environment says who and where they are (docs/launchers.md). Under
    `ngd run --min-ranks` they are the members that wait for a world now: after ngd.shutdown() a
    call makes the next world, of those that are left and those that are new.

    Parameters
    ----------
    comm
        An mpi4py communicator, whose ranks then are the world (build mode OMPI). ngd duplicates
        it; the MPI that mpi4py has begun stays mpi4py's to end.

    Raises
    ------
    InitError
        The environment contradicts itself or this build, or there is a world already and comm
        asks for another; the message says what would help.
    CollectiveTimeoutError
        Ranks that did not come within NGD_TIMEOUT, named.
    """
    _core.stay_if_ending()
    there = _world
    if comm is None and there is not None and not there.closed:
        return there
    with _entrance.alone():
        return _join(comm)


def _join(comm: Any) -> Group:
    """Make the world, unless another thread has made it meanwhile."""
    global _world, _place
    if _world is not None and not _world.closed:
        if comm is None:
            return _world
        raise InitError(
            "ngd.init: comm: expected to be the first to make the world; there is one "
            f"already, {_world!r}: ngd.shutdown() ends it"
        )
    _place = None
    if comm is not None:
        communicator = communicator_of(comm)
        environment.expect_size(communicator.size, "comm", os.environ)
    else:
        config.log_as_json()  # says what is wrong with NGD_LOG
        seat = members.seat(os.environ)
        launch = seat or environment.detect()
        mark = None
        if seat is not None or launch.size > 1:
            environment.refuse_inherited_place(launch)
            mark = _core.Mark(environment.name_of_place(launch))
        if seat is not None:
            members.take_place(os.environ, _core.timeout_seconds())
            launch = environment.detect()
        timeout = _core.timeout_seconds()
        communicator = make_communicator(launch, members.to_meet(timeout) if seat else timeout)
        _place = mark
    with to_its_end(communicator):
        install_hooks()
        world = Group(communicator)
        share_cores(world)
        metrics.begin(world.size)
    _world = world
    return world


@contextmanager
def to_its_end(communicator: _core.Communicator) -> Iterator[None]:
    """The others have the group: where this rank does not get that far, they hear of it."""
    try:
        yield
    except BaseException as error:
        communicator.abort(f"{type(error).__name__}: {error}")
        communicator.close()
        raise


class _Entrance:
    """One thread at a time makes the world; who comes meanwhile waits for what becomes of it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.inside: int | None = None
        self.failed = 0
        """How often it went wrong; then `failure` says what."""
        self.failure = ""

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Enter as the only one, or raise what has kept the one before from making the world."""
        if self.inside == threading.get_ident():
            raise InitError("ngd.init: called once more from within itself, by a signal handler")
        failed_before = self.failed
        with self.lock:
            if self.failed > failed_before:
                raise InitError(f"ngd.init: in another thread it failed meanwhile: {self.failure}")
            try:
                self.inside = threading.get_ident()
                yield
            except BaseException as error:
                self.failed += 1
                self.failure = f"{type(error).__name__}: {error}"
                raise
            finally:
                self.inside = None


_entrance = _Entrance()


def _after_fork() -> None:
    """A thread that was inside is none of the child's."""
    global _entrance
    _entrance = _Entrance()


os.register_at_fork(after_in_child=_after_fork)


MPI_OF_LAUNCHER: Final = {"openmpi": "openmpi", "pmi": "mpich"}
"""What starts ranks says which MPI they use; others leave it to NGD_MPI, or to what is there."""


def chosen(group: Group | None) -> Group:
    """The group that a caller names, or the world."""
    if group is None:
        return init()
    if not isinstance(group, Group):
        raise TypeError(f"group: expected an ngd.Group; got {type(group).__name__}")
    return group


def communicator_of(comm: Any) -> _core.Communicator:
    """The ranks of an mpi4py communicator."""
    built = _core.build_info()
    if built["mode"] != "OMPI":
        raise InitError(
            f"ngd.init: comm: expected a build with NGD_DISTRIBUTED_ENABLE=OMPI, which has MPI; "
            f"this one is of mode {built['mode']}"
        )
    version = getattr(sys.modules.get(type(comm).__module__), "Get_library_version", None)
    if version is None or not hasattr(comm, "py2f"):
        raise InitError(
            f"ngd.init: comm: expected an mpi4py communicator; got {type(comm).__name__}"
        )
    theirs = version().strip("\0\n ")
    ours = load_mpi("openmpi" if theirs.startswith("Open MPI") else "mpich")
    if theirs != ours:
        raise InitError(
            "ngd.init: comm: expected mpi4py and ngd to use one MPI; ngd has loaded "
            f"{ours}, and mpi4py runs on {theirs}"
        )
    return between_hosts(comm.py2f())


def mpis() -> list[str]:
    """The MPIs that this ngd was built for."""
    return (_core.build_info()["mpi"] or "").split()


def load_mpi(name: str) -> str:
    """Settle which MPI this process uses, "" for any; return what it says of itself."""
    built = mpis()
    if name and name not in built:
        raise InitError(
            f"ngd.init: {name} is asked for, and this ngd was built for {', '.join(built)}: build "
            "it with the mpi.h of that, too (cmake.define.NGD_MPI_INCLUDE)"
        )
    _core.load_mpi(name)
    return _core.mpi_version()


def share_cores(world: Group) -> None:
    """Settle how many threads this rank's kernels use, and say so once at debug level.

    A core that k ranks may run on counts 1/k for each of them, so ranks that a launcher bound to
    cores of their own keep them whole. Between hosts, where the numbers of cores repeat, ranks are
    taken to share alike.
    """
    mine = sorted(os.sched_getaffinity(0))
    if world.size == 1:
        share = float(len(mine))
    elif world.local_size == world.size:
        ranks_on = np.zeros(4096, np.int16)
        ranks_on[mine] = 1
        ranks_on = world.all_reduce(ranks_on, op="sum", site="ngd.init")
        share = float((1 / ranks_on[mine]).sum())
    else:
        share = len(mine) / world.local_size if len(mine) == os.cpu_count() else len(mine)
    quota = _core.available_cores()
    if quota < len(mine):
        share = min(share, quota / world.local_size)
    _core.set_thread_share(max(1, int(share + 1e-6)))
    logger.debug("rank %d of %d: %d threads", world.rank, world.size, _core.thread_count())


def make_communicator(launch: Launch, timeout: float) -> _core.Communicator:
    """Pick among what was built: NGD_COMM, or what the mode and the hosts ask for.

    Over shared memory the ranks have so many seconds to meet.
    """
    mode, wanted = _core.build_info()["mode"], config.communicator()
    one_host = launch.one_host and (mode == "MLSL" or config.host() is None)
    if wanted == "auto":
        if launch.size == 1:
            wanted = "self"
        elif mode == "OFF":
            raise InitError(
                f"ngd.init: {launch.launcher} started {launch.size} ranks, but ngd was built with "
                "NGD_DISTRIBUTED_ENABLE=OFF; build mode MLSL or OMPI"
            )
        else:
            wanted = "shm" if one_host or mode == "MLSL" else "hosts"
    if wanted == "self":
        if launch.size != 1:
            raise InitError(
                f"ngd.init: {launch.launcher} started {launch.size} ranks, and NGD_COMM=self "
                "makes groups of one"
            )
        return _core.Communicator.make_self()
    if wanted == "shm" and not launch.one_host:
        limit, cure = f"mode {mode}", "build with NGD_DISTRIBUTED_ENABLE=OMPI and start with mpirun"
        if mode == "OMPI":
            limit, cure = "NGD_COMM=shm", "let mode OMPI use MPI: NGD_COMM=auto"
        raise InitError(
            f"ngd.init: {launch.launcher} started {launch.size} ranks on several hosts "
            f"({launch.local_size} on this one), and shared memory, all that {limit} has, reaches "
            f"one host only: start them all on one host (srun -N1, ngd run), or {cure}"
        )
    if wanted == "shm":
        if launch.size > 1 and launch.job_key is None:
            raise InitError(f"ngd.init: {launch.launcher} gives its ranks no way to meet")
        return _core.Communicator.make_shm(
            launch.job_key or f"alone:{os.getpid()}", launch.rank, launch.size, timeout
        )
    if mode == "OMPI":
        likely = MPI_OF_LAUNCHER.get(launch.launcher, "")
        load_mpi(config.mpi() or (likely if likely in mpis() else ""))
    communicator = between_hosts(-1)
    if communicator.size != launch.size:
        of_mpi = launch.launcher in ("openmpi", "pmi", "pmix")
        reason = (
            "the launcher is of another MPI than this process has loaded"
            if of_mpi
            else f"{launch.launcher} tells this MPI nothing of its ranks; start them with that "
            "MPI's mpirun, which finds the hosts of a job of Slurm or PBS by itself"
        )
        raise InitError(
            f"ngd.init: {launch.launcher} started {launch.size} ranks, but MPI sees "
            f"{communicator.size}: {reason} ({_core.mpi_version()}); NGD_MPI chooses among "
            f"{', '.join(mpis())}"
        )
    return communicator


def meet(job_key: str, rank: int, size: int, name: str) -> Group:
    """A group beside the world, of ranks of this host that know a key of their own."""
    install_hooks()
    metrics.begin()
    if size == 1:
        return Group(_core.Communicator.make_self(), name)
    communicator = _core.Communicator.make_shm(job_key, rank, size, _core.timeout_seconds())
    with to_its_end(communicator):
        return Group(communicator, name)


def members_of(group: Group) -> list[int]:
    """The ranks of the world that a group has, in its order; all of them call this."""
    mine = np.array([init().rank])
    return [int(rank) for rank in group.all_gather(mine, site="ngd.kvstore.create")]


def beside(group: Group, name: str) -> Group:
    """A group of the same ranks for another thread, which all of them make together.

    On one host it shares no family with `group`, so neither thread finds the other one inside.
    """
    if group.size == 1:
        return Group(_core.Communicator.make_self(), name)
    world, site = world_over_mpi(), "ngd.kvstore.create"
    key = np.frombuffer(secrets.token_bytes(16), np.uint8)
    key = group.broadcast(key, 0, site=site).tobytes().hex()
    if world is None:
        return meet(f"beside:{key}", group.rank, group.size, name)
    number = np.array([world.communicator.next_group_number()])
    number = group.all_reduce(number, op="max", site=site)
    return world.group_of(members_of(group), int(number[0]), f"beside:{key}", name)


def living_world() -> Group | None:
    """The world, if there is one that is open."""
    return None if _world is None or _world.closed else _world


def world_over_mpi() -> Group | None:
    """The world, if there is one and it is over MPI."""
    world = living_world()
    over_mpi = world is not None and world.communicator.name in ("mpi", "hierarchical")
    return world if over_mpi else None


def between_hosts(fortran_handle: int) -> _core.Communicator:
    """The ranks of an MPI communicator (-1: the world), which need not share a host.

    NGD_COMM=mpi keeps them from using shared memory where they do.
    """
    timeout = _core.timeout_seconds()
    if config.communicator() == "mpi":
        return _core.Communicator.make_mpi(fortran_handle, timeout)
    return _core.Communicator.make_hierarchical(fortran_handle, timeout)


def shutdown() -> None:
    """Leave the world in good order; ngd.init() makes a new one. Idempotent."""
    global _world, _place
    if _world is not None:
        _world.close()
        _world = None
    _place = None


def leave() -> None:
    """End the world, and MPI with it: after a failure MPI ends the process at once.

    Threads that are left are daemons, which end with the process: where one waits in a group, its
    wait ends here, and it does not come back to Python.
    """
    if os.getpid() == _hooked_in:
        environment.tell_launcher()
    _core.begin_end()
    shutdown()
    for group in living(GROUPS):
        group.close()
    sys.stdout.flush()
    sys.stderr.flush()
    _core.finalize_mpi()


def install_hooks() -> None:
    """Tell the peers when this rank raises, and leave in order when it ends."""
    global _hooked_in
    if _hooked_in is not None:
        return
    atexit.unregister(leave)  # of one that was interrupted here
    atexit.register(leave)
    previous = sys.excepthook

    def tell_peers(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        if os.getpid() == _hooked_in:
            environment.tell_launcher()
        text = "".join(traceback.format_exception(kind, error, trace))
        for group in [group for group in living(GROUPS) if not group.closed]:
            group.abort(text)
        previous(kind, error, trace)

    sys.excepthook = tell_peers
    _hooked_in = os.getpid()


def all_reduce(
    x: Any,
    *,
    op: str,
    out: Any = None,
    weight: float | None = None,
    algorithm: str = "auto",
    compression: Any = None,
    async_op: bool = False,
    group: Group | None = None,
) -> Any:
    """Reduce an array over all ranks, element by element; every rank gets the result.

    Parameters
    ----------
    x
        Array-like of one shape and dtype on all ranks; or a list of arrays, which travel together:
        small ones of a dtype as one message. What NumPy can read is read in place: NumPy's own
        arrays, DLPack (PyTorch's tensors on the CPU), the buffer protocol.
    op
        "sum", "mean", "min", "max" or "prod"; there is no default. A mean of integers is an error.
        NaN propagates through min and max; two-byte floats are accumulated in float32.
    out
        Where to put the result (may be `x` itself); by default a fresh NumPy array. A list for
        a list. With it, contiguous NumPy arrays take the quickest way.
    weight
        With op="mean": this rank's weight in the weighted mean. A rank of weight 0 contributes
        nothing, whatever its values; if all are 0, so is the result.
    algorithm
        "flat", "ring" or "auto" (NGD_ALLREDUCE, or what was measured to be the faster).
    compression
        "bf16": float32 travels as bfloat16, is accumulated in float32 and rounded once more; for a
        sum S of values x the error is at most 2**-8 * (sum|x| + |S|) * (1 + 2**-8). An ngd.TopK
        sends the largest elements only, the others later. Not with weight.
    async_op
        Return an ngd.Work at once, whose wait() returns the result.
    group
        The ranks; by default the world.

    Returns
    -------
    numpy.ndarray, or `out`, or an ngd.Work
        The same bits on every rank, and from run to run.
    """
    ranks = (_world or init()) if group is None else chosen(group)
    if weight is None and compression is None and algorithm == "auto" and not async_op:
        result = ranks.quick("all_reduce", x, out, op)
        if result is not None:
            return result
    return ranks.all_reduce(
        x,
        op=op,
        out=out,
        weight=weight,
        algorithm=algorithm,
        compression=compression,
        async_op=async_op,
        site=call_site(),
    )


def reduce_scatter(
    x: Any,
    *,
    op: str,
    axis: int = 0,
    out: Any = None,
    async_op: bool = False,
    group: Group | None = None,
) -> Any:
    """Reduce over all ranks, and give every rank its block of the result.

    Parameters
    ----------
    x
        Array-like of one shape and dtype on all ranks; its size along `axis` is a multiple of the
        number of ranks. Rank r gets the r-th part along that axis.
    op
        As in ngd.all_reduce.
    axis
        What the ranks share out. Others than 0 cost copies.
    out
        Where to put the block; with axis 0 it may be this rank's block of `x`.
    async_op, group
        As in ngd.all_reduce.
    """
    ranks = (_world or init()) if group is None else chosen(group)
    if axis == 0 and not async_op:
        result = ranks.quick("reduce_scatter", x, out, op)
        if result is not None:
            return result
    return ranks.reduce_scatter(x, op=op, axis=axis, out=out, async_op=async_op, site=call_site())


def all_gather(
    x: Any,
    *,
    axis: int = 0,
    out: Any = None,
    async_op: bool = False,
    group: Group | None = None,
) -> Any:
    """Join the arrays of all ranks along an axis, in the order of ranks; every rank gets all.

    Parameters
    ----------
    x
        Array-like of one shape and dtype on all ranks. A number counts as an array of one.
    axis
        Where to join. Others than 0 cost copies.
    out
        Where to put the result; with axis 0 `x` may be its own block of it.
    async_op, group
        As in ngd.all_reduce.
    """
    ranks = (_world or init()) if group is None else chosen(group)
    if axis == 0 and not async_op:
        result = ranks.quick("all_gather", x, out, "none")
        if result is not None:
            return result
    return ranks.all_gather(x, axis=axis, out=out, async_op=async_op, site=call_site())


def all_gather_v(
    x: Any,
    *,
    counts: Sequence[int] | None = None,
    out: Any = None,
    async_op: bool = False,
    group: Group | None = None,
) -> Any:
    """As ngd.all_gather with axis 0, where the ranks' arrays differ in length.

    Parameters
    ----------
    x
        Array-like, of one dtype and one shape behind the first axis on all ranks.
    counts
        The length of every rank's array, the same on all ranks; by default they tell one another
        first, which costs one more collective and waits for it.
    out, async_op, group
        As in ngd.all_gather.
    """
    return chosen(group).all_gather_v(
        x, counts=counts, out=out, async_op=async_op, site=call_site()
    )


def broadcast(
    x: Any,
    root: int = 0,
    *,
    out: Any = None,
    async_op: bool = False,
    group: Group | None = None,
) -> Any:
    """Give every rank the array of rank `root`; all pass one of the same shape and dtype.

    `out` may be `x` itself. A list of arrays travels together, as in ngd.all_reduce.
    """
    ranks = (_world or init()) if group is None else chosen(group)
    if not async_op:
        result = ranks.quick("broadcast", x, out, "none", root)
        if result is not None:
            return result
    return ranks.broadcast(x, root, out=out, async_op=async_op, site=call_site())


def reduce(
    x: Any,
    root: int = 0,
    *,
    op: str,
    out: Any = None,
    async_op: bool = False,
    group: Group | None = None,
) -> Any:
    """As ngd.all_reduce, but only rank `root` gets the result, and the others None.

    `out` counts on the root, where it may be `x` itself.
    """
    return chosen(group).reduce(x, root, op=op, out=out, async_op=async_op, site=call_site())


def gather(
    x: Any,
    root: int = 0,
    *,
    out: Any = None,
    async_op: bool = False,
    group: Group | None = None,
) -> Any:
    """As ngd.all_gather with axis 0, but only rank `root` gets the result, and the others None.

    `out` counts on the root, where `x` may be its own block of it.
    """
    return chosen(group).gather(x, root, out=out, async_op=async_op, site=call_site())


def scatter(
    x: Any = None,
    root: int = 0,
    *,
    out: Any = None,
    shape: Shape | None = None,
    dtype: Any = None,
    async_op: bool = False,
    group: Group | None = None,
) -> Any:
    """Give every rank its block, along axis 0, of the array of rank `root`.

    Parameters
    ----------
    x
        On the root: array-like whose first axis is a multiple of the number of ranks. Elsewhere:
        None, or one of the same shape and dtype, which is only asked for these.
    root
        Whose array it is.
    out
        Where to put the block; on the root it may be its own block of `x`.
    shape, dtype
        Of a block: for a rank that gives neither `x` nor `out`.
    async_op, group
        As in ngd.all_reduce.
    """
    return chosen(group).scatter(
        x, root, out=out, shape=shape, dtype=dtype, async_op=async_op, site=call_site()
    )


def all_to_all(
    x: Any, *, out: Any = None, async_op: bool = False, group: Group | None = None
) -> Any:
    """Exchange blocks: the r-th part of `x`, along axis 0, goes to rank r.

    The result is of the same shape: its r-th part came from rank r. The first axis is a multiple
    of the number of ranks; `out` is `x` itself, or memory apart from it.
    """
    ranks = (_world or init()) if group is None else chosen(group)
    if not async_op:
        result = ranks.quick("all_to_all", x, out, "none")
        if result is not None:
            return result
    return ranks.all_to_all(x, out=out, async_op=async_op, site=call_site())


def all_to_all_v(
    x: Any,
    send_counts: Sequence[int],
    receive_counts: Sequence[int] | None = None,
    *,
    out: Any = None,
    async_op: bool = False,
    group: Group | None = None,
) -> Any:
    """As ngd.all_to_all, with blocks of different lengths.

    Parameters
    ----------
    x
        Array-like, of one dtype and one shape behind the first axis on all ranks: the block for
        rank 0, that for rank 1, and so on.
    send_counts
        The rows of each of these blocks.
    receive_counts
        The rows that each rank has for this one; by default they tell one another first, which
        costs one more collective and waits for it.
    out, async_op, group
        As in ngd.all_to_all.
    """
    return chosen(group).all_to_all_v(
        x, send_counts, receive_counts, out=out, async_op=async_op, site=call_site()
    )


def send(
    x: Any, to: int, tag: int = 0, *, async_op: bool = False, group: Group | None = None
) -> Any:
    """Send an array to rank `to`, which receives it by ngd.recv; returns when it is taken.

    Between two ranks the order of sends is that of receives; the tag, the dtype and the number of
    elements are compared. What is asynchronous gives an ngd.Work.
    """
    return chosen(group).send(x, to, tag, async_op=async_op, site=call_site())


def recv(
    source: int,
    tag: int = 0,
    *,
    out: Any = None,
    shape: Shape | None = None,
    dtype: Any = None,
    async_op: bool = False,
    group: Group | None = None,
) -> Any:
    """Receive the array that rank `source` sends, into `out` or one of that shape and dtype."""
    return chosen(group).recv(
        source, tag, out=out, shape=shape, dtype=dtype, async_op=async_op, site=call_site()
    )


def barrier(*, async_op: bool = False, group: Group | None = None) -> Any:
    """Return when every rank has come."""
    ranks = (_world or init()) if group is None else chosen(group)
    if not async_op and ranks.quick_barrier():
        return None
    return ranks.barrier(async_op=async_op, site=call_site())


def make_mesh(shape: Sequence[int], names: Sequence[str], *, group: Group | None = None) -> Mesh:
    """Lay the ranks out as a grid: `make_mesh((2, 2), ("data", "model"))["data"]` is a group.

    Parameters
    ----------
    shape
        The lengths of the axes; their product is the number of ranks. The last varies fastest:
        ranks 0 and 1 are neighbours along it.
    names
        A name for each axis.
    group
        The ranks; by default the world. All of them call this, and make all the groups at once.
    """
    return Mesh(chosen(group), shape, names)


def join(
    batches: Iterable[Batch], *, empty: Batch | None = None, group: Group | None = None
) -> Iterator[tuple[Batch, float]]:
    """Go through batches until every rank has run out of them, as (batch, weight).

    The weight is 1.0; a rank that has run out while others have not gets its last batch again
    with weight 0.0, and so takes part in their collectives without changing the result:

        for batch, weight in ngd.join(batches):
            gradient = step(batch)
            mean = ngd.all_reduce(gradient, op="mean", weight=weight)

    Costs one all-reduce of a byte a step. Batches that differ in size want `weight * len(batch)`.

    Parameters
    ----------
    batches
        This rank's; as many as it has.
    empty
        What a rank without any batch repeats; without it that is a ValueError.
    group
        The ranks; by default the world.
    """
    return collectives.join(batches, chosen(group), empty)


def broadcast_variables(
    variables: Iterable[Variable] | Sequence[Variable], root: int = 0, *, group: Group | None = None
) -> None:
    """Give every rank the values of rank `root`, variable by variable, in the order of names.

    Call it on all ranks before the first step if one rank loads weights, or values are random.
    """
    site, ranks = call_site(), chosen(group)
    listed = list(variables) if isinstance(variables, Iterable) else [variables]
    if any(not isinstance(variable, Variable) for variable in listed):
        raise TypeError(f"broadcast_variables: expected variables; got {variables!r}")
    for variable in listed:
        variable.cell.check_readable()
    with ranks.under_way():
        for variable in sorted(listed, key=lambda v: v.name):
            variable.assign(ranks.broadcast(variable.numpy(), root=root, site=site))


def build_info() -> dict[str, str | None]:
    """Version, build mode, oneDNN's version, SIMD level in use and MPI library."""
    return _core.build_info()


def timeout_seconds() -> float:
    """NGD_TIMEOUT: how long a rank is waited for; 0: for ever."""
    return _core.timeout_seconds()


def available_cores() -> int:
    """Return how many cores the affinity mask and the quotas of enclosing cgroups allow."""
    return _core.available_cores()


def thread_count() -> int:
    """How many threads a kernel uses; InitError where NGD_THREADS makes no sense."""
    return _core.thread_count()
