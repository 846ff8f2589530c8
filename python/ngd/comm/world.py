# SPDX-License-Identifier: Apache-2.0
"""Functions that join and leave the world, the group of all ranks that the launcher started."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Final

import numpy as np

from .. import _core
from .._util import config
from .._util.callsite import call_site
from ..errors import CollectiveError, InitError, RemoteRankError
from . import membership
from .communicator import communicator_of, make_communicator
from .cores import share_cores
from .group import GROUPS, Group, existing_groups
from .launchers.base import expect_size
from .launchers.detect import detect, launched_rank_and_size
from .launchers.job_names import mark_name
from .launchers.launcher_pipe import notify_launcher
from .launchers.process_tree import refuse_inherited_rank

current: Group | None = None
"""The world that this process joined last; None before the first world and after shutdown().

`Group.close()` closes a world, but does not change this variable; shutdown() closes the world and
sets the variable to None. A collective that has a fast path, such as ngd.all_reduce, reads this
variable if it gets no `group`. If that world is closed, the collective raises GroupClosedError.
"""
_alone: Group | None = None
"""The group of one rank that `alone()` returns; None before the first call of `alone()`.

Compiled steps that need no other rank use this group.
"""
_hooked_pid: int | None = None
"""The pid of the process that ran `install_hooks`; None before that call.

A forked child inherits the hooks, but is not a rank. Its own pid differs from this one.
"""
_mark: _core.Mark | None = None
"""The mark of this process: a memory mapping, whose name in /proc/PID/maps has its job and rank.

A child of this process inherits the environment with the rank. ngd.init() in the child finds this
mark in /proc/PID/maps of its ancestor, and raises an error. So the child does not join the job as
the same rank. None if this process has no mark: before ngd.init(), after shutdown(), as the only
rank of its job, and in a world of an mpi4py communicator.
"""

_joining_callbacks: Final[list[Callable[[int | None], None]]] = []
"""The functions that `call_after_joining` registered."""

MOST_BYTES: Final = 4096
"""The longest text of an exception that `raise_together` sends to the other ranks, in bytes."""


def call_after_joining(callback: Callable[[int | None], None]) -> None:
    """Register a function to call when this process joins a world or makes a local group.

    If the process joins a world, the argument of `callback` is the number of ranks in the world. If
    the process makes a group with `make_local_group`, the argument is None, because that group does
    not show how many ranks the world has.
    """
    _joining_callbacks.append(callback)


def report_joining(size: int | None) -> None:
    """Call each function that `call_after_joining` registered, with the argument `size`."""
    for callback in _joining_callbacks:
        callback(size)


def alone() -> Group:
    """Return a group of one rank, which needs no launcher. It is created once."""
    global _alone
    if _alone is None:
        _alone = Group(_core.Communicator.make_self(), "alone")
    return _alone


def init(*, comm: Any = None) -> Group:
    """Join the world, the group of all ranks that the launcher started.

    The first collective calls this function if the program has not called it. Later calls return
    the same group. The launcher's environment variables give rank and size (docs/launchers.md). A
    process without a launcher is a world of one rank. In an elastic job (`ngd run --min-ranks`), a
    call after ngd.shutdown() joins the next world, which has the remaining ranks and the new ones.

    Parameters
    ----------
    comm : mpi4py communicator, optional
        The communicator whose ranks form the world, in build mode OMPI. ngd duplicates it. If
        mpi4py has initialized MPI, mpi4py also finalizes it.

    Returns
    -------
    Group
        The world.

    Raises
    ------
    InitError
        The environment variables contradict each other, or require a feature that this build of ngd
        does not have. Or `comm` is given although a world exists. The message contains the fix.
    CollectiveTimeoutError
        Other ranks did not join within NGD_TIMEOUT. The message names them.

    Examples
    --------
    >>> world = ngd.init()
    >>> print(f"rank {world.rank} of {world.size}")
    rank 0 of 1
    """
    _core.stay_if_ending()
    world = current
    if comm is None and world is not None and not world.closed:
        return world
    with _entrance.alone():
        return _join(comm)


def _join(comm: Any) -> Group:
    """Join the world, unless another thread has joined it in the meantime."""
    global current, _mark
    if current is not None and not current.closed:
        if comm is None:
            return current
        raise InitError(
            f"ngd.init: comm: expected a process without a world; got {current!r}, which exists "
            "already. Call ngd.shutdown() first."
        )
    _mark = None
    config.check_variables()
    timeout = _core.timeout_seconds()
    if comm is not None:
        communicator = communicator_of(comm)
        expect_size(communicator.size, "comm", os.environ)
    else:
        seat = membership.member_launch(os.environ)
        launch = seat or detect()
        mark = None
        if seat is not None or launch.size > 1:
            refuse_inherited_rank(launch)
            mark = _core.Mark(mark_name(launch))
        if seat is not None:
            membership.join_next_world(os.environ, timeout)
            launch = detect()
        communicator = make_communicator(
            launch, membership.rendezvous_seconds(timeout) if seat else timeout
        )
        _mark = mark
    with abort_on_error(communicator):
        install_hooks()
        world = Group(communicator)
        share_cores(world)
        report_joining(world.size)
    current = world
    return world


@contextmanager
def abort_on_error(communicator: _core.Communicator) -> Iterator[None]:
    """Abort and close a new group if the `with` block raises an error.

    Otherwise, other ranks that already use the group would wait for this rank.
    """
    try:
        yield
    except BaseException as error:
        communicator.abort(f"{type(error).__name__}: {error}")
        communicator.close()
        raise


class _Entrance:
    """A lock for `init()`. One thread joins the world, and other threads wait for its result."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.inside: int | None = None
        self.failed = 0
        """The number of attempts to join that failed in this process.

        A thread reads this number before and after it waits for the lock. If the number has grown,
        the attempt of another thread has failed in between, and `failure` has the error of that
        attempt.
        """
        self.failure = ""

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Return a context manager for the `with` block in which a thread joins the world.

        The lock lets only one thread at a time into the block. If the attempt of another thread
        fails while this thread waits for the lock, this thread does not enter the block. The
        context manager then raises an InitError with the error of that attempt.
        """
        if self.inside == threading.get_ident():
            raise InitError(
                "ngd.init: expected one call at a time; got another one from a signal handler. "
                "Do not call ngd in signal handlers."
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
    """Replace the lock in a forked child.

    Another thread of the parent may have held the lock. The child does not have this thread, so
    there the old lock would stay locked forever.
    """
    global _entrance
    _entrance = _Entrance()


os.register_at_fork(after_in_child=_after_fork)


def group_or_world(group: Group | None) -> Group:
    """Return `group`, or the world if it is None."""
    if group is None:
        return init()
    if not isinstance(group, Group):
        raise TypeError(
            f"group: expected an ngd.Group; got {type(group).__name__}. Use ngd.init() or its "
            "split()."
        )
    return group


def make_local_group(job_key: str, rank: int, size: int, name: str) -> Group:
    """Make a group of ranks of this host, in addition to the world.

    Parameters
    ----------
    job_key : str
        A text that is equal on these ranks, and that no other group has. The ranks find each other
        by it.
    rank, size : int
        The number of this rank in the group, and the number of ranks.
    name : str
        The name of the group.
    """
    install_hooks()
    report_joining(None)
    if size == 1:
        return Group(_core.Communicator.make_self(), name)
    communicator = _core.Communicator.make_shm(job_key, rank, size, _core.timeout_seconds())
    with abort_on_error(communicator):
        return Group(communicator, name)


def open_world() -> Group | None:
    """Return the world, or None if it is closed or was not joined."""
    return None if current is None or current.closed else current


def world_over_mpi() -> Group | None:
    """Return the world if it is open and uses MPI, with or without shared memory; else None."""
    world = open_world()
    over_mpi = world is not None and world.communicator.name in ("mpi", "hierarchical")
    return world if over_mpi else None


def is_initialized() -> bool:
    """Return True if this process has joined the world and has not left it.

    Examples
    --------
    >>> world = ngd.init()
    >>> ngd.is_initialized()
    True
    """
    return open_world() is not None


def rank() -> int:
    """Return the number of this rank in the world, from 0.

    Before the process joins the world, the launcher's environment variables give the number, and
    the call does not wait for other ranks. In an elastic job the number may change with each world.

    Raises
    ------
    InitError
        The launcher's environment variables contradict each other.

    Examples
    --------
    >>> if ngd.rank() == 0:
    ...     print(loss)
    """
    world = open_world()
    return launched_rank_and_size()[0] if world is None else world.rank


def world_size() -> int:
    """Return the number of ranks in the world.

    Before the process joins the world, the launcher's environment variables give the number, and
    the call does not wait for other ranks.

    Raises
    ------
    InitError
        The launcher's environment variables contradict each other.

    Examples
    --------
    >>> samples_per_rank = 1024 // ngd.world_size()
    """
    world = open_world()
    return launched_rank_and_size()[1] if world is None else world.size


def shutdown() -> None:
    """Leave the world. A second call does nothing. A later ngd.init() joins a new world.

    Examples
    --------
    >>> ngd.shutdown()
    >>> ngd.is_initialized()
    False
    """
    global current, _mark
    if current is not None:
        current.close()
        current = None
    _mark = None


def leave() -> None:
    """Close all groups and finalize MPI, at the end of the program.

    If a collective over MPI has failed, this function calls MPI_Abort, which ends the process.

    Only daemon threads may still run at this time. If a daemon thread waits in a collective, its
    wait ends, because the group is closed. The thread then sleeps until the process ends, so that
    it prints no error whose only cause is the end of the program.
    """
    if os.getpid() == _hooked_pid:
        notify_launcher()
    _core.begin_end()
    shutdown()
    for group in existing_groups(GROUPS):
        group.close()
    sys.stdout.flush()
    sys.stderr.flush()
    _core.finalize_mpi()


def install_hooks() -> None:
    """Install the exception hook and the exit function of a rank, once per process.

    After an uncaught exception, the hook notifies the launcher and the other ranks. At the end of
    the program, `leave` runs.
    """
    global _hooked_pid
    if _hooked_pid is not None:
        return
    atexit.unregister(leave)  # registered by a call that was interrupted
    atexit.register(leave)
    previous = sys.excepthook

    def notify_peers(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        if os.getpid() == _hooked_pid:
            notify_launcher()
        text = "".join(traceback.format_exception(kind, error, trace))
        for group in [group for group in existing_groups(GROUPS) if not group.closed]:
            group.abort(text)
        previous(kind, error, trace)

    sys.excepthook = notify_peers
    _hooked_pid = os.getpid()


@contextmanager
def raise_together(*, group: Group | None = None) -> Iterator[None]:
    """Raise an exception on all ranks if one rank raises in the block.

    Use it around work that can fail on one rank only, such as reading a file. Without it, the other
    ranks would wait for that rank in their next collective. All ranks of the group must enter the
    block.

    Parameters
    ----------
    group : Group, optional
        The ranks that enter the block. The default is the world.

    Raises
    ------
    Exception
        On a rank that raised in the block: its own exception.
    RemoteRankError
        On the other ranks. It names the first rank that raised and has the text of its exception.
        The group stays usable.

    Examples
    --------
    >>> with ngd.raise_together():
    ...     images = read_images(folder) if ngd.rank() == 0 else None
    """
    ranks, site = group_or_world(group), call_site()
    try:
        yield
    except Exception as error:
        with suppress(CollectiveError):  # if the group is closed, the other ranks have an error
            _exchange(ranks, f"{type(error).__name__}: {error}", site)
        raise
    raised = _exchange(ranks, "", site)
    if raised:
        first = min(raised)
        remote = RemoteRankError(
            f"raise_together: expected the block to succeed on all ranks; rank {first} raised "
            f"{raised[first]} (block at {site}). Correct that on rank {first}."
        )
        remote.ranks = tuple(sorted(raised))
        raise remote


def _exchange(ranks: Group, text: str, site: str) -> dict[int, str]:
    """Gather one text from each rank of a group, and return a dict of the texts that are not empty.

    `raise_together` uses it: a text is the exception of a rank, and is empty if the rank raised
    none. A key is the number of the rank in the world, not in the group.
    """
    own_text = text.encode(errors="replace")[:MOST_BYTES]
    number = np.array([rank(), len(own_text)], np.int64)
    site = f"raise_together() at {site}"
    headers = ranks.all_gather(number.reshape(1, 2), site=site)
    counts = [int(length) for length in headers[:, 1]]
    if not any(counts):
        return {}
    gathered = ranks.all_gather_v(np.frombuffer(own_text, np.uint8), counts=counts, site=site)
    parts = np.split(gathered, np.cumsum(counts)[:-1])
    return {
        int(number): part.tobytes().decode(errors="replace")
        for (number, length), part in zip(headers, parts, strict=True)
        if length
    }
