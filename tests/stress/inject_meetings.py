# SPDX-License-Identifier: Apache-2.0
"""Scenarios of a failing rendezvous for inject.py. The code that reports the errors fails, too."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from ngd import _core, errors
from tests.stress.inject_steps import Scenario, Step


def another_size(rank: int) -> list[Step]:
    """The ranks have different world sizes."""

    def make_with_other_size() -> None:
        key = f"{os.environ['NGD_JOB']}-size"
        _core.Communicator.make_shm(key, rank, 2 + rank, 10.0)

    return [Step("init", make_with_other_size, (errors.InitError,))]


def taken_name(rank: int) -> list[Step]:
    """Two ranks have number 0: the name is taken, or rank 1 does not come."""

    def wait_for_rank_1() -> None:
        _core.Communicator.make_shm(f"{os.environ['NGD_JOB']}-taken", 0, 2, 1.0)

    return [Step("init", wait_for_rank_1, (errors.InitError, errors.CollectiveTimeoutError))]


def without_rank_0(rank: int) -> list[Step]:
    """Each rank joins a job of its own: rank 1 waits without a rank 0, and rank 0 waits alone."""

    def wait_alone() -> None:
        key = f"{os.environ['NGD_JOB']}-deserted-{rank}"
        _core.Communicator.make_shm(key, rank, 6, 1.3 * rank or 0.3)

    return [Step("init", wait_alone, (errors.CollectiveTimeoutError,))]


def without_other_ranks(rank: int) -> list[Step]:
    """The other ranks do not come, and rank 1 has a shorter timeout than rank 0."""

    def wait_for_ranks() -> None:
        key = f"{os.environ['NGD_JOB']}-incomplete"
        _core.Communicator.make_shm(key, rank, 6, 0.6 if rank else 4.0)

    return [Step("init", wait_for_ranks, (errors.CollectiveTimeoutError,))]


PR_SET_PDEATHSIG = 1
"""The option of prctl(2) that sets the signal that a process gets when its parent dies."""

NOBODY, NAMES = 65534, 16
"""The number of another user, and the number of names of a rendezvous.

See src/cpp/comm/shm/names.hpp.
"""


@contextlib.contextmanager
def squatter(key: str) -> Iterator[None]:
    """Hold all names of a job in a process of another user, which listens on half of them."""
    ready, is_ready = os.pipe()
    hashes = [hashlib.sha256(f"{key}/{i}".encode()).hexdigest()[:32] for i in range(NAMES)]
    names = [f"\0ngd-{os.geteuid()}-{each}" for each in hashes]
    child = os.fork()
    if child == 0:
        try:
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # a rank may be killed here
            sockets = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in names]
            for i, (each, name) in enumerate(zip(sockets, names, strict=True)):
                each.bind(name)
                each.listen() if i % 2 else None
            os.write(is_ready, b"x")
            signal.pause()
        finally:
            os._exit(0)
    os.close(is_ready)
    try:
        assert os.read(ready, 1) == b"x"
        yield
    finally:
        os.close(ready)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def squatted_names(rank: int) -> list[Step]:
    """Another user has taken all names. Each rank has its own key."""

    def make_with_squatter() -> None:
        key = f"{os.environ['NGD_JOB']}-squatted-{rank}"
        with squatter(key):
            _core.Communicator.make_shm(key, rank, 2, 4.0)

    return [Step("init", make_with_squatter, (errors.InitError,))]


def interrupted_wait(rank: int) -> list[Step]:
    """A signal handler raises while a rank waits for the others."""

    def raise_it(*_: object) -> None:
        raise KeyboardInterrupt

    def wait_with_timer() -> None:
        before = signal.signal(signal.SIGALRM, raise_it)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        try:
            key = f"{os.environ['NGD_JOB']}-interrupted-{rank}"
            _core.Communicator.make_shm(key, rank, 2, 4.0)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    return [Step("init", wait_with_timer, (KeyboardInterrupt,))]


def name_of(process: int) -> str:
    """Return the name of the socket on which a process listens, after it has started to listen."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        links = [os.readlink(entry) for entry in Path(f"/proc/{process}/fd").iterdir()]
        for line in Path("/proc/net/unix").read_text().splitlines():
            fields = line.split()
            if f"socket:[{fields[6]}]" in links and fields[-1].startswith("@ngd"):
                return "\0" + fields[-1][1:]
        time.sleep(0.001)
    raise AssertionError("rank 0 does not listen")


def stranger_connects(rank: int) -> list[Step]:
    """A process that is not a rank connects to the rendezvous, and sends a message."""

    def meet_stranger() -> None:
        key = f"{os.environ['NGD_JOB']}-stranger"
        if rank == 1:
            ignore_errors = contextlib.suppress(OSError, AssertionError)  # if rank 0 has failed
            with ignore_errors, contextlib.ExitStack() as stack:
                name = name_of(int(os.environ["NGD_INJECT_FIRST"]))
                for _ in range(4):
                    other = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                    stack.enter_context(other).connect(name)
                time.sleep(0.1)
                other.send(b"hello")
                time.sleep(0.1)
        _core.Communicator.make_shm(key, rank, 2, 10.0)

    return [Step("init", meet_stranger)]


MEETINGS = (
    Scenario("another size", another_size, joins=False, again=False),
    Scenario("taken", taken_name, joins=False, again=False),
    Scenario("deserted", without_rank_0, joins=False, again=False),
    Scenario("incomplete", without_other_ranks, joins=False, again=False),
    Scenario("interrupted", interrupted_wait, joins=False, again=False),
    Scenario("stranger", stranger_connects, joins=False, again=False),
    *(
        [Scenario("squatted", squatted_names, joins=False, again=False)]
        if os.geteuid() == 0
        else []
    ),
)
