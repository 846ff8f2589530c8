# SPDX-License-Identifier: Apache-2.0
# long because each collective documents its parameters and shapes
"""The world: joining it, leaving it, and collectives on arrays over it or over a group."""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final, Never, TypeVar

import numpy as np

from .. import _core
from .. import comm as collectives
from .._util import config
from .._util.callsite import call_site
from .._util.signature_errors import REQUIRED, expect_op, with_signature
from ..dtypes import Shape
from ..errors import InitError
from . import Group, Mesh
from . import membership as members
from .group import GROUPS, living
from .launchers import environment
from .launchers.environment import Launch

logger = logging.getLogger("ngd")

_world: Group | None = None
_alone: Group | None = None
_hooked_in: int | None = None
"""The process that has the hooks: a child that it forks inherits them, and is no rank."""
_place: _core.Mark | None = None
"""Shows to children of this process that its place in the job is taken."""

_joining_callbacks: Final[list[Callable[[int | None], None]]] = []
"""What to call when this process has joined a group of ranks that it did not split."""

Batch = TypeVar("Batch")


def call_after_joining(callback: Callable[[int | None], None]) -> None:
    """Call a function when this process has joined a world, with the number of its ranks.

    The argument is None for a group beside the world.
    """
    _joining_callbacks.append(callback)


def report_joining(size: int | None) -> None:
    """Call the functions of `call_after_joining`."""
    for callback in _joining_callbacks:
        callback(size)


def alone() -> Group:
    """A group of one rank, which needs no launcher."""
    global _alone
    if _alone is None:
        _alone = Group(_core.Communicator.make_self(), "alone")
    return _alone


def init(*, comm: Any = None) -> Group:
    """Join the world: the group of all ranks that the launcher started.

    The first collective calls it too, and later calls return the same group. The launcher's
    environment variables give rank and size (docs/launchers.md). A process without a launcher is a
    world of one rank. In an elastic job (`ngd run --min-ranks`), a call after ngd.shutdown() joins
    the next world: the ranks that are left and the new ones.

    Parameters
    ----------
    comm : mpi4py communicator, optional
        Use the ranks of this communicator (build mode OMPI). ngd duplicates the communicator.
        mpi4py finalizes an MPI that it has initialized.

    Returns
    -------
    Group
        The world.

    Raises
    ------
    InitError
        The environment contradicts itself or this build, or a world exists already and comm asks
        for another one. The message contains the fix.
    CollectiveTimeoutError
        Ranks did not join within NGD_TIMEOUT. The message names them.

    Examples
    --------
    >>> world = ngd.init()
    >>> print(f"rank {world.rank} of {world.size}")
    rank 0 of 1
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
            f"ngd.init: comm: expected a process without a world; got {_world!r}, which exists "
            "already. Call ngd.shutdown() first."
        )
    _place = None
    config.check_variables()
    timeout = _core.timeout_seconds()
    if comm is not None:
        communicator = communicator_of(comm)
        environment.expect_size(communicator.size, "comm", os.environ)
    else:
        seat = members.seat(os.environ)
        launch = seat or environment.detect()
        mark = None
        if seat is not None or launch.size > 1:
            environment.refuse_inherited_place(launch)
            mark = _core.Mark(environment.name_of_place(launch))
        if seat is not None:
            members.take_place(os.environ, timeout)
            launch = environment.detect()
        communicator = make_communicator(launch, members.to_meet(timeout) if seat else timeout)
        _place = mark
    with to_its_end(communicator):
        install_hooks()
        world = Group(communicator)
        share_cores(world)
        report_joining(world.size)
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
            raise InitError(
                "ngd.init: expected one call at a time; got another one from a signal handler. "
                "Make no call of ngd in signal handlers."
            )
        failed_before = self.failed
        with self.lock:
            if self.failed > failed_before:
                raise InitError(
                    f"ngd.init: expected the call in another thread to succeed; got {self.failure}"
                )
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
        raise TypeError(
            f"group: expected an ngd.Group; got {type(group).__name__}. Use ngd.init() or its "
            "split()."
        )
    return group


def communicator_of(comm: Any) -> _core.Communicator:
    """The ranks of an mpi4py communicator."""
    built = _core.build_info()
    if built["mode"] != "OMPI":
        raise InitError(
            f"ngd.init: comm: expected a build with NGD_DISTRIBUTED_ENABLE=OMPI, which has MPI; "
            f"got mode {built['mode']}. Install such a build, or leave comm out."
        )
    version = getattr(sys.modules.get(type(comm).__module__), "Get_library_version", None)
    if version is None or not hasattr(comm, "py2f"):
        raise InitError(
            f"ngd.init: comm: expected an mpi4py communicator; got {type(comm).__name__}. Pass "
            "MPI.COMM_WORLD of mpi4py."
        )
    theirs = version().strip("\0\n ")
    ours = load_mpi("openmpi" if theirs.startswith("Open MPI") else "mpich")
    if theirs != ours:
        raise InitError(
            "ngd.init: comm: expected mpi4py and ngd to use one MPI; got {ours} in "
            f"ngd and {theirs} in mpi4py. Install mpi4py for the MPI of ngd."
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
            f"ngd.init: expected an MPI among {', '.join(built)}, for which ngd was built; got "
            f"{name}. Build ngd with its mpi.h as well (cmake.define.NGD_MPI_INCLUDE)."
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
        ranks_on = world.all_reduce(ranks_on, op="sum", site="ngd.init()")
        share = float((1 / ranks_on[mine]).sum())
    else:
        share = len(mine) / world.local_size if len(mine) == os.cpu_count() else len(mine)
    quota = _core.available_cores()
    if quota < len(mine):
        share = min(share, quota / world.local_size)
    _core.set_thread_share(max(1, int(share + 1e-6)))
    logger.debug("rank %d of %d: %d threads", world.rank, world.size, _core.thread_count())


def expect_one_host(mode: str, launch: Launch) -> None:
    """Raise an InitError if ranks that have only shared memory are on several hosts."""
    if launch.one_host:
        return
    limit, cure = f"mode {mode}", "build with NGD_DISTRIBUTED_ENABLE=OMPI and start with mpirun"
    if mode == "OMPI":
        limit, cure = "NGD_COMM=shm", "let mode OMPI use MPI: NGD_COMM=auto"
    raise InitError(
        f"ngd.init: expected all ranks on one host, because {limit} has only shared memory; "
        f"got {launch.size} ranks of {launch.launcher} on several hosts, {launch.local_size} "
        f"on this one. Start them all on one host (srun -N1, ngd run), or {cure}."
    )


def make_communicator(launch: Launch, timeout: float) -> _core.Communicator:
    """Pick among what was built: NGD_COMM, or what the mode and the hosts ask for.

    Over shared memory the ranks have so many seconds to meet.
    """
    mode = str(_core.build_info()["mode"])
    wanted = config.communicator(mode)
    one_host = launch.one_host and (mode == "MLSL" or config.host() is None)
    if wanted == "auto":
        if launch.size == 1:
            wanted = "self"
        elif mode == "OFF":
            raise InitError(
                f"ngd.init: expected a build for the {launch.size} ranks that {launch.launcher} "
                "started; got NGD_DISTRIBUTED_ENABLE=OFF. Build mode MLSL or OMPI."
            )
        else:
            wanted = "shm" if one_host or mode == "MLSL" else "hosts"
    if wanted == "self":
        if launch.size != 1:
            raise InitError(
                f"ngd.init: expected one rank with NGD_COMM=self; got {launch.size} ranks of "
                f"{launch.launcher}. Unset NGD_COMM."
            )
        return _core.Communicator.make_self()
    if wanted == "shm":
        expect_one_host(mode, launch)
        if launch.size > 1 and launch.job_key is None:
            raise InitError(
                f"ngd.init: expected a launcher that names the job; got {launch.launcher}, which "
                "does not. Set NGD_JOB, RANK and WORLD_SIZE of each rank, or use ngd run."
            )
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
    report_joining(None)
    if size == 1:
        return Group(_core.Communicator.make_self(), name)
    communicator = _core.Communicator.make_shm(job_key, rank, size, _core.timeout_seconds())
    with to_its_end(communicator):
        return Group(communicator, name)


def members_of(group: Group) -> list[int]:
    """The ranks of the world that a group has, in its order; all of them call this."""
    mine = np.array([init().rank])
    return [int(rank) for rank in group.all_gather(mine, site="ngd.kvstore.create()")]


def beside(group: Group, name: str) -> Group:
    """A group of the same ranks for another thread, which all of them make together.

    On one host it shares no family with `group`, so neither thread finds the other one inside.
    """
    if group.size == 1:
        return Group(_core.Communicator.make_self(), name)
    world, site = world_over_mpi(), "ngd.kvstore.create()"
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
    """Leave the world in good order. A second call does nothing, and ngd.init() joins a new world.

    Examples
    --------
    >>> ngd.shutdown()
    >>> ngd.is_initialized()
    False
    """
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


@with_signature
def all_reduce(
    x: Any,
    *surplus: Never,
    op: str = REQUIRED,
    out: Any = None,
    weight: float | None = None,
    algorithm: str = "auto",
    compression: Any = None,
    async_op: bool = False,
    group: Group | None = None,
) -> Any:  # long because each argument is described
    """Reduce an array over all ranks, element by element; every rank gets the result.

    Parameters
    ----------
    x : array_like or list of arrays
        Of one shape and dtype on all ranks. The arrays of a list are sent together, small ones of
        one dtype as one message. NumPy arrays, DLPack tensors (PyTorch on the CPU) and buffers are
        read without a copy.
    op : str
        "sum", "mean", "min", "max" or "prod"; there is no default. A mean of integers is an error.
        NaN propagates through min and max, and 16-bit floats are accumulated in float32.
    out : array or list of arrays, optional
        The array for the result, which may be `x` itself. The default is a new NumPy array. A
        call with `out` and contiguous NumPy arrays is the fastest.
    weight : float, optional
        With op="mean": this rank's weight in the weighted mean. A rank of weight 0 contributes
        nothing, even if its values are NaN. If all weights are 0, so is the result.
    algorithm : {"auto", "flat", "ring"}
        The algorithm. The default is NGD_ALLREDUCE, or the one that was measured to be faster.
    compression : str or TopK, optional
        "bf16" sends float32 as bfloat16, accumulates in float32 and rounds once more. A TopK sends
        only the largest elements. Not with weight.
    async_op : bool, default False
        Return an ngd.Work at once; its wait() returns the result.
    group : Group, optional
        The ranks. The default is the world.

    Returns
    -------
    numpy.ndarray, `out`, or Work
        The shape and dtype of `x`; a list for a list. All ranks get the same bits in every run.

    Notes
    -----
    With "bf16", the error of a sum S of values x is at most
    2**-8 * (sum(abs(x)) + abs(S)) * (1 + 2**-8).

    Examples
    --------
    Each rank contributes one array; here a single rank runs.

    >>> gradient = np.array([1.0, 2.0])
    >>> ngd.all_reduce(gradient, op="mean")
    array([1., 2.])
    """
    if surplus or op is REQUIRED:
        expect_op("ngd.all_reduce", all_reduce, (x, *surplus), op)
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


@with_signature
def reduce_scatter(
    x: Any,
    *surplus: Never,
    op: str = REQUIRED,
    axis: int = 0,
    out: Any = None,
    async_op: bool = False,
    group: Group | None = None,
) -> Any:
    """Reduce an array over all ranks; rank r gets the r-th block of the result.

    Parameters
    ----------
    x : array_like
        Of one shape and dtype on all ranks. Its size along `axis` is a multiple of the number of
        ranks.
    op : str
        "sum", "mean", "min", "max" or "prod", as in ngd.all_reduce.
    axis : int, default 0
        The axis that is split into blocks. Other axes than 0 cost copies.
    out : array, optional
        The array for the block. With axis 0 it may be this rank's block of `x`.
    async_op, group
        As in ngd.all_reduce.

    Returns
    -------
    numpy.ndarray, `out`, or Work
        The block: the shape of `x`, with its size along `axis` divided by the number of ranks.

    Examples
    --------
    With two ranks, each gets one half. Here a single rank gets all of it.

    >>> ngd.reduce_scatter(np.arange(4), op="sum")
    array([0, 1, 2, 3])
    """
    if surplus or op is REQUIRED:
        expect_op("ngd.reduce_scatter", reduce_scatter, (x, *surplus), op)
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
    """Concatenate the arrays of all ranks in the order of ranks; every rank gets the result.

    Parameters
    ----------
    x : array_like
        Of one shape and dtype on all ranks. A scalar counts as an array of shape (1,).
    axis : int, default 0
        The axis along which to concatenate. Other axes than 0 cost copies.
    out : array, optional
        The array for the result. With axis 0, `x` may be this rank's block of it.
    async_op, group
        As in ngd.all_reduce.

    Returns
    -------
    numpy.ndarray, `out`, or Work
        The shape of `x`, with its size along `axis` multiplied by the number of ranks.

    Examples
    --------
    On rank r of n, `ngd.rank()` is r, so that this returns 0 to n - 1.

    >>> ngd.all_gather(ngd.rank())
    array([0])
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
    """Concatenate arrays of different lengths along axis 0; every rank gets the result.

    Parameters
    ----------
    x : array_like
        Of one dtype on all ranks, and of one shape after the first axis.
    counts : sequence of ints, optional
        The length of each rank's array, the same list on all ranks. By default the ranks exchange
        the lengths first, which costs one more collective.
    out, async_op, group
        As in ngd.all_gather.

    Returns
    -------
    numpy.ndarray, `out`, or Work
        The rows of all ranks, in the order of ranks.

    Examples
    --------
    >>> ngd.all_gather_v(np.array([[1, 2], [3, 4]])).shape
    (2, 2)
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
    """Copy the array of rank `root` to all ranks.

    Parameters
    ----------
    x : array_like or list of arrays
        Of the same shape and dtype on all ranks. On other ranks than the root, the values are not
        read.
    root : int, default 0
        The rank whose array is sent.
    out : array or list of arrays, optional
        The array for the result, which may be `x` itself.
    async_op, group
        As in ngd.all_reduce.

    Returns
    -------
    numpy.ndarray, `out`, or Work
        The shape and dtype of `x`.

    Examples
    --------
    >>> ngd.broadcast(np.array([3, 1, 2]), root=0)
    array([3, 1, 2])
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
    """Reduce an array over all ranks, element by element; only rank `root` gets the result.

    Parameters
    ----------
    x : array_like
        Of one shape and dtype on all ranks.
    root : int, default 0
        The rank that gets the result.
    op : str
        "sum", "mean", "min", "max" or "prod", as in ngd.all_reduce.
    out : array, optional
        The array for the result on the root, where it may be `x` itself.
    async_op, group
        As in ngd.all_reduce.

    Returns
    -------
    numpy.ndarray, `out`, None, or Work
        The shape and dtype of `x` on the root, and None on the other ranks.

    Examples
    --------
    >>> ngd.reduce(np.array([1.0, 2.0]), root=0, op="sum")
    array([1., 2.])
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
    """Concatenate the arrays of all ranks along axis 0; only rank `root` gets the result.

    Parameters
    ----------
    x : array_like
        Of one shape and dtype on all ranks. A scalar counts as an array of shape (1,).
    root : int, default 0
        The rank that gets the result.
    out : array, optional
        The array for the result on the root. `x` may be the root's block of it.
    async_op, group
        As in ngd.all_reduce.

    Returns
    -------
    numpy.ndarray, `out`, None, or Work
        The blocks in the order of ranks on the root, and None on the other ranks.

    Examples
    --------
    >>> ngd.gather(np.array([1.0, 2.0]), root=0)
    array([1., 2.])
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
    """Split the array of rank `root` along axis 0; rank r gets the r-th block.

    Parameters
    ----------
    x : array_like, optional
        On the root: an array whose first axis is a multiple of the number of ranks. On the other
        ranks: None, or an array of the same shape and dtype, whose values are not read.
    root : int, default 0
        The rank whose array is sent.
    out : array, optional
        The array for the block. On the root it may be the root's block of `x`.
    shape, dtype : tuple of ints and dtype, optional
        Those of a block, for a rank that gives neither `x` nor `out`.
    async_op, group
        As in ngd.all_reduce.

    Returns
    -------
    numpy.ndarray, `out`, or Work
        The block of this rank.

    Examples
    --------
    >>> ngd.scatter(np.arange(4), root=0)
    array([0, 1, 2, 3])
    """
    return chosen(group).scatter(
        x, root, out=out, shape=shape, dtype=dtype, async_op=async_op, site=call_site()
    )


def all_to_all(
    x: Any, *, out: Any = None, async_op: bool = False, group: Group | None = None
) -> Any:
    """Exchange blocks: the r-th block of `x` along axis 0 is sent to rank r.

    Parameters
    ----------
    x : array_like
        Of one shape and dtype on all ranks. The first axis is a multiple of the number of ranks.
    out : array, optional
        The array for the result: `x` itself, or one that does not overlap it.
    async_op, group
        As in ngd.all_reduce.

    Returns
    -------
    numpy.ndarray, `out`, or Work
        The shape of `x`. Its r-th block is from rank r.

    Examples
    --------
    >>> ngd.all_to_all(np.arange(4))
    array([0, 1, 2, 3])
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
    """Exchange blocks of different lengths along axis 0.

    Parameters
    ----------
    x : array_like
        The block for rank 0, then the block for rank 1, and so on. The dtype, and the shape after
        the first axis, are the same on all ranks.
    send_counts : sequence of ints
        The number of rows of each block.
    receive_counts : sequence of ints, optional
        The number of rows from each rank. By default the ranks exchange the numbers first, which
        costs one more collective.
    out, async_op, group
        As in ngd.all_to_all.

    Returns
    -------
    numpy.ndarray, `out`, or Work
        The received rows, in the order of ranks.

    Examples
    --------
    >>> ngd.all_to_all_v(np.arange(4), send_counts=[4])
    array([0, 1, 2, 3])
    """
    return chosen(group).all_to_all_v(
        x, send_counts, receive_counts, out=out, async_op=async_op, site=call_site()
    )


def send(
    x: Any, to: int, tag: int = 0, *, async_op: bool = False, group: Group | None = None
) -> Any:
    """Send an array to one rank, which receives it by ngd.recv.

    The call returns when the array is received. Between two ranks, receives take the arrays in the
    order of the sends. The tag, the dtype and the number of elements are compared.

    Parameters
    ----------
    x : array_like
        The array to send, of any shape.
    to : int
        The rank that receives it.
    tag : int, default 0
        A number that both ranks give.
    async_op, group
        As in ngd.all_reduce.

    Returns
    -------
    None or Work
        A Work with async_op=True.

    Examples
    --------
    >>> if ngd.world_size() > 1 and ngd.rank() == 0:
    ...     ngd.send(np.arange(4), to=1)
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
    """Receive an array that one rank sends by ngd.send.

    Parameters
    ----------
    source : int
        The rank that sends it.
    tag : int, default 0
        A number that both ranks give.
    out : array, optional
        The array for the result.
    shape, dtype : tuple of ints and dtype, optional
        Those of the result, if there is no `out`.
    async_op, group
        As in ngd.all_reduce.

    Returns
    -------
    numpy.ndarray, `out`, or Work
        The received array.

    Examples
    --------
    >>> if ngd.rank() == 1:
    ...     received = ngd.recv(0, shape=(4,), dtype=np.int64)
    """
    return chosen(group).recv(
        source, tag, out=out, shape=shape, dtype=dtype, async_op=async_op, site=call_site()
    )


def barrier(*, async_op: bool = False, group: Group | None = None) -> Any:
    """Wait until every rank has called it.

    Parameters
    ----------
    group : Group, optional
        The ranks. The default is the world.
    async_op : bool, default False
        Return an ngd.Work at once.

    Returns
    -------
    None or Work
        A Work with async_op=True.

    Examples
    --------
    >>> ngd.barrier()
    """
    ranks = (_world or init()) if group is None else chosen(group)
    if not async_op and ranks.quick_barrier():
        return None
    return ranks.barrier(async_op=async_op, site=call_site())


def make_mesh(shape: Sequence[int], names: Sequence[str], *, group: Group | None = None) -> Mesh:
    """Arrange the ranks in a grid with named axes.

    Every rank of the group calls it. It makes the groups of all axes.

    Parameters
    ----------
    shape : sequence of ints
        The lengths of the axes, whose product is the number of ranks. The last axis varies fastest,
        so ranks 0 and 1 are neighbours along it.
    names : sequence of str
        A name for each axis.
    group : Group, optional
        The ranks. The default is the world.

    Returns
    -------
    Mesh
        `mesh[name]` is the group of ranks along an axis.

    Raises
    ------
    ValueError
        The shape does not fit the number of ranks, or ranks give different shapes or names.

    Examples
    --------
    On four ranks the shape may be (2, 2).

    >>> mesh = ngd.make_mesh((1, 1), ("data", "model"))
    >>> mesh["data"].size
    1
    """
    return Mesh(chosen(group), shape, names)


def join(
    batches: Iterable[Batch], *, empty: Batch | None = None, group: Group | None = None
) -> Iterator[tuple[Batch, float]]:
    """Iterate over batches until every rank has run out of them.

    The iterator yields pairs (batch, weight). The weight is 1.0. A rank that has run out before the
    other ranks gets its last batch again, with weight 0.0, and takes part in their collectives
    without changing the result. Each batch costs an all-reduce of one byte.

    Parameters
    ----------
    batches : iterable
        The batches of this rank, any number of them.
    empty : batch, optional
        The batch that a rank without any batch repeats. Without it, such a rank raises ValueError.
    group : Group, optional
        The ranks. The default is the world.

    Yields
    ------
    tuple of batch and float
        The batch and its weight. For batches of different sizes use `weight * len(batch)`.

    Examples
    --------
    >>> for batch, weight in ngd.join([np.ones(2), np.zeros(2)]):
    ...     mean = ngd.all_reduce(batch, op="mean", weight=weight)
    """
    return collectives.join(batches, chosen(group), empty)


def build_info() -> dict[str, str | None]:
    """Return the version, build mode and libraries of this installation.

    Returns
    -------
    dict from str to str or None
        Version, build mode, oneDNN version, SIMD level in use and MPI libraries.

    Examples
    --------
    >>> ngd.build_info()["version"] == ngd.__version__
    True
    """
    return _core.build_info()


def timeout_seconds() -> float:
    """Return NGD_TIMEOUT: the seconds to wait for a rank; 0 means no limit."""
    return _core.timeout_seconds()


def available_cores() -> int:
    """Return the number of cores that the affinity mask and the cgroup quotas allow."""
    return _core.available_cores()


def thread_count() -> int:
    """Return the number of threads of a kernel; InitError if NGD_THREADS is invalid."""
    return _core.thread_count()
