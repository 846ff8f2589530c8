# SPDX-License-Identifier: Apache-2.0
"""The faults of inject.py, and the library that makes them."""

from __future__ import annotations

import ctypes
import errno
import glob
from dataclasses import dataclass
from pathlib import Path

from tests.stress.inject_sites import FUNCTIONS, Sites

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "inject"
PACKAGE, HOOK = BUILD / "package", BUILD / "inject-hook.so"

MOST_SITES = 4096
LOST, TRUNCATED = -2, -3  # as in inject.cpp
ALL_LATER = "every later allocation, too"

E = errno
HOW: dict[str, tuple[int, ...]] = {
    "allocate": (E.ENOMEM,),
    "aligned_alloc": (E.ENOMEM,),
    "mmap": (E.ENOMEM,),
    "madvise": (E.EINVAL,),
    "memfd_create": (E.EMFILE,),
    "ftruncate": (E.ENOSPC, E.EINTR),
    "fallocate": (E.ENOSPC, E.EINTR),
    "fcntl": (E.EPERM,),
    "fstat": (E.ENOMEM,),
    "socket": (E.EMFILE,),
    "bind": (E.ENOMEM,),
    "listen": (E.EADDRINUSE,),
    "accept4": (E.EMFILE, E.EINTR, E.ECONNABORTED),
    "connect": (E.EACCES, E.EINTR, E.EAGAIN),
    "sendmsg": (E.EPIPE, E.EINTR, E.ENOBUFS),
    "recvmsg": (E.ECONNRESET, E.EINTR, TRUNCATED),
    "poll": (E.EINTR, E.ENOMEM),
    "getsockopt": (E.ENOBUFS,),
    "setsockopt": (E.ENOBUFS,),
    "getrlimit": (E.EINVAL,),
    "getrusage": (E.EINVAL,),
    "opendir": (E.EMFILE,),
    "sched_getaffinity": (E.EINVAL,),
    "sched_setaffinity": (E.EINVAL,),
    "sysconf": (E.EINVAL,),
    "futex_wait": (E.EINTR, E.EAGAIN),
    "futex_wake": (LOST,),
    "pidfd_open": (E.ENOSYS,),
    "getrandom": (E.EINTR,),
    "pthread_create": (E.EAGAIN,),
    "open": (E.EMFILE, E.EINTR),
    "read": (E.EIO, E.EINTR),
    "send": (E.ENOBUFS,),
    "recv": (E.ENOBUFS, E.EINTR),
}
assert set(HOW) == set(FUNCTIONS)


def module() -> Path:
    """Return the path of the extension module."""
    (path,) = glob.glob(str(PACKAGE / "ngd" / "_core" / "_core.*.so"))
    return Path(path)


@dataclass(frozen=True)
class Fault:
    """Call number `number` of `function` from one site fails, in one rank of a scenario."""

    scenario: str
    rank: int
    site: int
    function: str
    number: int
    kind: int
    goes_on: bool = False
    step: int = -1
    """The index of the step, if the steps of the scenario are independent."""


class Hook:
    """The library inject.cpp in this process."""

    def __init__(self, sites: Sites) -> None:
        self.library = ctypes.CDLL(str(HOOK))
        n = len(sites.ends)
        ends, begins = (ctypes.c_uint64 * n)(*sites.ends), (ctypes.c_uint64 * n)(*sites.begins)
        numbers = (ctypes.c_int32 * n)(*sites.numbers)
        size = ctypes.c_size_t(n)
        assert len(sites.names) <= MOST_SITES
        built = str(module()).encode()
        if self.library.inject_install(built, ends, begins, numbers, size) != 0:
            from ngd import _core

            raise SystemExit(
                f"inject: expected ngd to be loaded from {module()}, which has the breakpoints' "
                f"addresses; got {_core.__file__}. Uninstall the editable ngd of this environment."
            )
        self.sites = sites
        for name in ("inject_reached", "inject_failed"):
            getattr(self.library, name).restype = ctypes.POINTER(ctypes.c_uint8)
        self.library.inject_calls.restype = ctypes.POINTER(ctypes.c_uint32)
        self.set_breakpoints()

    def set_breakpoints(self) -> None:
        """Set a breakpoint at every site that was not reached so far."""
        assert self.library.inject_break() == 0

    def arm(self, fault: Fault) -> None:
        """Start to count calls, and let the call fail that the fault selects."""
        function = FUNCTIONS.index(fault.function)
        self.library.inject_arm(fault.site, function, fault.number, fault.kind, fault.goes_on)

    def disarm(self) -> int:
        """Let no further calls fail, and return the number of failures."""
        return int(self.library.inject_disarm())

    def count(self, rank: int) -> None:
        """Count the calls of this rank; with -1, count none."""
        self.library.inject_count(rank)

    def calls(self, rank: int) -> dict[tuple[int, str], int]:
        """Return the number of calls per site and function in a rank."""
        import numpy as np

        n = MOST_SITES * len(FUNCTIONS)
        counts = np.ctypeslib.as_array(self.library.inject_calls(rank), (n,))
        return {
            (int(index) // len(FUNCTIONS), FUNCTIONS[int(index) % len(FUNCTIONS)]): int(
                counts[index]
            )
            for index in np.flatnonzero(counts)
        }

    def forget_calls(self) -> None:
        """Restart the count of calls at 0."""
        self.library.inject_forget_calls()

    def flags(self, which: str) -> set[int]:
        """Return the sites that were "reached", or that have "failed"."""
        flags = getattr(self.library, f"inject_{which}")()
        return {site for site in range(len(self.sites.names)) if flags[site]}

    def blocks(self) -> dict[str, int]:
        """Return the number of allocated blocks per site."""
        counts = (ctypes.c_uint32 * MOST_SITES)()
        self.library.inject_blocks(counts)
        names = self.sites.names
        return {names[site]: counts[site] for site in range(len(names)) if counts[site]}
