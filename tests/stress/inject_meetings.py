# SPDX-License-Identifier: Apache-2.0
"""What goes wrong where ranks meet, for inject.py: what says so fails, too."""

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
    """The ranks were told different sizes."""

    def apart() -> None:
        key = f"{os.environ['NGD_JOB']}-size"
        _core.Communicator.make_shm(key, rank, 2 + rank, 10.0)

    return [Step("init", apart, (errors.InitError,))]


def taken(rank: int) -> list[Step]:
    """Two ranks say that they are rank 0: the name is taken, or no rank 1 comes."""

    def waited() -> None:
        _core.Communicator.make_shm(f"{os.environ['NGD_JOB']}-taken", 0, 2, 1.0)

    return [Step("init", waited, (errors.InitError, errors.CollectiveTimeoutError))]


def deserted(rank: int) -> list[Step]:
    """Nobody is rank 0: who comes looks who holds its names. To another rank 0 nobody comes."""

    def waited() -> None:
        key = f"{os.environ['NGD_JOB']}-deserted-{rank}"
        _core.Communicator.make_shm(key, rank, 6, 1.3 * rank or 0.3)

    return [Step("init", waited, (errors.CollectiveTimeoutError,))]


def incomplete(rank: int) -> list[Step]:
    """The other ranks do not come, and rank 1 has less patience than rank 0."""

    def waited() -> None:
        key = f"{os.environ['NGD_JOB']}-incomplete"
        _core.Communicator.make_shm(key, rank, 6, 0.6 if rank else 4.0)

    return [Step("init", waited, (errors.CollectiveTimeoutError,))]


PR_SET_PDEATHSIG = 1
"""prctl(2): the signal that a process gets when its parent dies."""

NOBODY, NAMES = 65534, 16
"""Another user; under how many names a job may meet (src/cpp/comm/shm/names.hpp)."""


@contextlib.contextmanager
def squatter(key: str) -> Iterator[None]:
    """A process of another user holds all names of a job; it listens on half of them."""
    ready, told = os.pipe()
    hashes = [hashlib.sha256(f"{key}/{i}".encode()).hexdigest()[:32] for i in range(NAMES)]
    names = [f"\0ngd-{os.geteuid()}-{each}" for each in hashes]
    child = os.fork()
    if child == 0:
        try:
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # a rank may be killed here
            held = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in names]
            for i, (each, name) in enumerate(zip(held, names, strict=True)):
                each.bind(name)
                each.listen() if i % 2 else None
            os.write(told, b"x")
            signal.pause()
        finally:
            os._exit(0)
    os.close(told)
    try:
        assert os.read(ready, 1) == b"x"
        yield
    finally:
        os.close(ready)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def squatted(rank: int) -> list[Step]:
    """Another user has taken all names, one key for each rank."""

    def refused() -> None:
        key = f"{os.environ['NGD_JOB']}-squatted-{rank}"
        with squatter(key):
            _core.Communicator.make_shm(key, rank, 2, 4.0)

    return [Step("init", refused, (errors.InitError,))]


def interrupted(rank: int) -> list[Step]:
    """A signal's handler raises while a rank waits for the others."""

    def raise_it(*_: object) -> None:
        raise KeyboardInterrupt

    def waited() -> None:
        before = signal.signal(signal.SIGALRM, raise_it)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        try:
            key = f"{os.environ['NGD_JOB']}-interrupted-{rank}"
            _core.Communicator.make_shm(key, rank, 2, 4.0)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    return [Step("init", waited, (KeyboardInterrupt,))]


def name_of(process: int) -> str:
    """The name of the socket on which a process of ours listens, once it does."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        links = [os.readlink(entry) for entry in Path(f"/proc/{process}/fd").iterdir()]
        for line in Path("/proc/net/unix").read_text().splitlines():
            fields = line.split()
            if f"socket:[{fields[6]}]" in links and fields[-1].startswith("@ngd"):
                return "\0" + fields[-1][1:]
        time.sleep(0.001)
    raise AssertionError("rank 0 does not listen")


def stranger(rank: int) -> list[Step]:
    """Somebody who is no rank comes to the rendezvous, and says something."""

    def met() -> None:
        key = f"{os.environ['NGD_JOB']}-stranger"
        if rank == 1:
            gone = contextlib.suppress(OSError, AssertionError)  # where rank 0 has failed
            with gone, contextlib.ExitStack() as stack:
                name = name_of(int(os.environ["NGD_INJECT_FIRST"]))
                for _ in range(4):
                    other = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                    stack.enter_context(other).connect(name)
                time.sleep(0.1)
                other.send(b"hello")
                time.sleep(0.1)
        _core.Communicator.make_shm(key, rank, 2, 10.0)

    return [Step("init", met)]


MEETINGS = (
    Scenario("another size", another_size, joins=False, again=False),
    Scenario("taken", taken, joins=False, again=False),
    Scenario("deserted", deserted, joins=False, again=False),
    Scenario("incomplete", incomplete, joins=False, again=False),
    Scenario("interrupted", interrupted, joins=False, again=False),
    Scenario("stranger", stranger, joins=False, again=False),
    *([Scenario("squatted", squatted, joins=False, again=False)] if os.geteuid() == 0 else []),
)
