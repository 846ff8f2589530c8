# SPDX-License-Identifier: Apache-2.0
"""Groups of ranks, and collectives on arrays."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import traceback
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Final

import numpy as np

from . import _core, config, environment
from .dtype import as_dtype, bfloat16, float16, float32, is_float
from .environment import Launch
from .errors import GroupClosedError, InitError, ShapeError
from .ir import Array, call_site
from .variable import Variable


class Group:
    """Ranks that communicate: every collective is called by all of them, in the same order."""

    def __init__(self, communicator: _core.Communicator) -> None:
        self.communicator = communicator
        self.rank: int = communicator.rank
        self.size: int = communicator.size
        self.local_rank: int = communicator.local_rank
        self.local_size: int = communicator.local_size
        self.closed = False
        self._timeout = _core.timeout_seconds()

    def __repr__(self) -> str:
        return f"<ngd.Group rank {self.rank} of {self.size} ({self.communicator.name})>"

    def check_open(self) -> None:
        """Raise GroupClosedError after shutdown()."""
        if self.closed:
            raise GroupClosedError("this group was shut down; ngd.init() makes a new one")

    def all_reduce(
        self,
        array: Any,
        *,
        op: str,
        out: Array | None = None,
        weight: float | None = None,
        algorithm: str = "auto",
        site: str | None = None,
        sequence: _core.Sequence | None = None,
    ) -> Array:
        """Reduce over the ranks; see ngd.all_reduce."""
        site = site or call_site()
        if op not in REDUCTIONS:
            raise ValueError(f"all_reduce: expected op among {', '.join(REDUCTIONS)}; got {op!r}")
        if weight is not None:
            return self._weighted_mean(array, op, weight, out, algorithm, site)
        source = as_operand(array, "all_reduce")
        destination = self._destination(source, out, "all_reduce")
        self._run("all_reduce", op, source, destination, 0, algorithm, site, sequence)
        return destination

    def broadcast(
        self,
        array: Any,
        *,
        root: int = 0,
        out: Array | None = None,
        site: str | None = None,
        sequence: _core.Sequence | None = None,
    ) -> Array:
        """Give every rank the root's array; see ngd.broadcast."""
        site = site or call_site()
        source = as_operand(array, "broadcast")
        destination = self._destination(source, out, "broadcast")
        self._run("broadcast", "none", source, destination, root, "auto", site, sequence)
        return destination

    def barrier(self, *, site: str | None = None) -> None:
        """Return when every rank has come."""
        nothing: Array = np.empty(0, np.uint8)
        self._run("barrier", "none", nothing, nothing, 0, "auto", site or call_site(), None)

    def _run(
        self,
        kind: str,
        op: str,
        source: Array,
        destination: Array,
        root: int,
        algorithm: str,
        site: str,
        sequence: _core.Sequence | None,
    ) -> None:
        self.check_open()
        work = self.communicator.submit(
            kind,
            op,
            source.dtype.name,
            source.size,
            root,
            source.ctypes.data,
            destination.ctypes.data,
            algorithm=algorithm,
            site=site,
            sequence=sequence,
        )
        self.communicator.wait(work, self._timeout)

    def _destination(self, source: Array, out: Array | None, where: str) -> Array:
        if out is None:
            return np.empty_like(source)
        if not isinstance(out, np.ndarray):
            raise TypeError(f"{where}: out: expected a NumPy array; got {type(out).__name__}")
        fits = out.shape == source.shape and out.dtype == source.dtype
        if not (fits and out.flags.c_contiguous and out.flags.writeable):
            contiguous = "contiguous" if out.flags.c_contiguous else "strided"
            raise ShapeError(
                f"{where}: out: expected a contiguous, writable {source.dtype} array of shape "
                f"{source.shape}; got a {contiguous}"
                f"{'' if out.flags.writeable else ', read-only'} {out.dtype} one of {out.shape}"
            )
        return out

    def _weighted_mean(
        self, array: Any, op: str, weight: float, out: Array | None, algorithm: str, site: str
    ) -> Array:
        """As the op in the graph: two sums, of two-byte floats in float32; 0 where all weigh 0."""
        source = as_operand(array, "all_reduce")
        if op != "mean" or not is_float(source.dtype):
            raise ValueError(
                "all_reduce: weight goes with op='mean' and floats; "
                f"got op={op!r} and {source.dtype}"
            )
        if not 0 <= weight < float("inf"):
            raise ValueError(f"all_reduce: expected a finite weight >= 0; got {weight}")
        result = self._destination(source, out, "all_reduce")
        dtype = float32 if source.dtype in (float16, bfloat16) else source.dtype
        share = np.array(weight, dtype)
        scaled = source.astype(dtype) * share if weight else np.zeros(source.shape, dtype)
        kwargs: dict[str, Any] = {"op": "sum", "algorithm": algorithm, "site": site}
        total = self.all_reduce(share, **kwargs)
        sums = self.all_reduce(scaled, **kwargs)
        result[...] = (sums / total if total else np.zeros_like(sums)).astype(source.dtype)
        return result

    def close(self) -> None:
        """Leave; idempotent."""
        if not self.closed:
            self.closed = True
            self.communicator.close()


def as_operand(array: Any, where: str) -> Array:
    """The argument of a collective, contiguous and in this machine's byte order.

    It is copied only where it must be.
    """
    operand = np.asarray(array)
    dtype = as_dtype(operand.dtype.newbyteorder("="), where)
    return np.ascontiguousarray(operand, dtype).reshape(operand.shape)


REDUCTIONS: Final = ("sum", "mean", "min", "max", "prod")

logger = logging.getLogger("ngd")

_world: Group | None = None
_alone: Group | None = None
_hooked = False


def alone() -> Group:
    """A group of one rank, which needs no launcher."""
    global _alone
    if _alone is None:
        _alone = Group(_core.Communicator.make_self())
    return _alone


def init() -> Group:
    """Join the other ranks of this job and return the world; idempotent, implicit at first use.

    The launcher's environment says who and where they are (docs/launchers.md).

    Raises
    ------
    InitError
        The environment contradicts itself or this build; the message says what would help.
    CollectiveTimeoutError
        Ranks that did not come within NGD_TIMEOUT, named.
    """
    global _world
    if _world is None or _world.closed:
        launch = environment.detect()
        install_hooks()
        _world = Group(make_communicator(launch))
        share_cores(_world)
    return _world


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


def make_communicator(launch: Launch) -> _core.Communicator:
    """Pick among what was built: NGD_COMM, or what the mode and the hosts ask for."""
    mode, wanted = _core.build_info()["mode"], config.communicator()
    one_host = launch.one_host
    if wanted == "auto":
        if launch.size == 1:
            wanted = "self"
        elif mode == "OFF":
            raise InitError(
                f"ngd.init: {launch.launcher} started {launch.size} ranks, but ngd was built with "
                "NGD_DISTRIBUTED_ENABLE=OFF; build mode MLSL or OMPI"
            )
        else:
            wanted = "shm" if one_host or mode == "MLSL" else "mpi"
    if wanted == "self":
        if launch.size != 1:
            raise InitError(
                f"ngd.init: {launch.launcher} started {launch.size} ranks, and NGD_COMM=self "
                "makes groups of one"
            )
        return _core.Communicator.make_self()
    if wanted == "shm" and not one_host:
        raise InitError(
            f"ngd.init: the ranks are on several hosts ({launch.local_size} of {launch.size} on "
            "this one), and shared memory reaches one host only; build with "
            "NGD_DISTRIBUTED_ENABLE=OMPI"
        )
    timeout = _core.timeout_seconds()
    if wanted == "shm":
        if launch.size > 1 and launch.job_key is None:
            raise InitError(f"ngd.init: {launch.launcher} gives its ranks no way to meet")
        return _core.Communicator.make_shm(
            launch.job_key or f"alone:{os.getpid()}", launch.rank, launch.size, timeout
        )
    communicator = _core.Communicator.make_mpi(-1, timeout)
    if communicator.size != launch.size:
        raise InitError(
            f"ngd.init: {launch.launcher} started {launch.size} ranks, but MPI sees "
            f"{communicator.size}: ngd was built against another MPI than this launcher's "
            f"({_core.build_info()['mpi']})"
        )
    return communicator


def shutdown() -> None:
    """Leave the world in good order; ngd.init() makes a new one. Idempotent."""
    global _world
    if _world is not None:
        _world.close()
        _world = None


def leave() -> None:
    """End the world, and MPI with it: after a failure MPI ends the process at once."""
    shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    _core.finalize_mpi()


def install_hooks() -> None:
    """Tell the peers when this rank raises, and leave in order when it ends."""
    global _hooked
    if _hooked:
        return
    _hooked = True
    atexit.register(leave)
    previous = sys.excepthook

    def tell_peers(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        if _world is not None and not _world.closed:
            _world.communicator.abort("".join(traceback.format_exception(kind, error, trace)))
        previous(kind, error, trace)

    sys.excepthook = tell_peers


def all_reduce(
    array: Any,
    *,
    op: str,
    out: Array | None = None,
    weight: float | None = None,
    algorithm: str = "auto",
    group: Group | None = None,
) -> Array:
    """Reduce an array over all ranks, element by element; every rank gets the result.

    Parameters
    ----------
    array
        Array-like of one shape and dtype on all ranks.
    op
        "sum", "mean", "min", "max" or "prod"; there is no default. A mean of integers is an error.
        NaN propagates through min and max; two-byte floats are accumulated in float32.
    out
        Where to put the result (may be `array` itself); by default a fresh array.
    weight
        With op="mean": this rank's weight in the weighted mean. A rank of weight 0 contributes
        nothing, whatever its values; if all are 0, so is the result.
    algorithm
        "flat", "ring" or "auto" (NGD_ALLREDUCE, or what was measured to be the faster).
    group
        The ranks; by default the world.

    Returns
    -------
    numpy.ndarray
        The same bits on every rank, and from run to run.
    """
    return (group or init()).all_reduce(
        array, op=op, out=out, weight=weight, algorithm=algorithm, site=call_site()
    )


def broadcast(
    array: Any, root: int = 0, *, out: Array | None = None, group: Group | None = None
) -> Array:
    """Give every rank the array of rank `root`; all pass one of the same shape and dtype."""
    return (group or init()).broadcast(array, root=root, out=out, site=call_site())


def barrier(group: Group | None = None) -> None:
    """Return when every rank has come."""
    (group or init()).barrier(site=call_site())


def broadcast_variables(
    variables: Iterable[Variable] | Sequence[Variable], root: int = 0, *, group: Group | None = None
) -> None:
    """Give every rank the values of rank `root`, variable by variable, in the order of names."""
    site, ranks = call_site(), group or init()
    for variable in sorted(variables, key=lambda v: v.name):
        variable.assign(ranks.broadcast(variable.numpy(), root=root, site=site))


def build_info() -> dict[str, str | None]:
    """Version, build mode, oneDNN's version, SIMD level in use and MPI library."""
    return _core.build_info()


def available_cores() -> int:
    """How many cores this process may keep busy: its affinity mask, and its cgroup's quota."""
    return _core.available_cores()


def thread_count() -> int:
    """How many threads a kernel uses; InitError where NGD_THREADS makes no sense."""
    return _core.thread_count()
