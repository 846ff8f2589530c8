# SPDX-License-Identifier: Apache-2.0
"""The process of a rank: its start, and the end of all processes that it has started.

Each rank leads a process group. When a rank ends, `ngd run` kills its group. If `ngd run` itself is
killed, the kernel kills the ranks (PR_SET_PDEATHSIG), but not the processes that the ranks started.
So `ngd run` starts one more process, the *guard*. It waits until `ngd run` ends, and then kills the
process groups of the ranks.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from .streams import OutputStream

PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h

GUARD: Final = """
import os, signal, sys
groups = set()
for line in sys.stdin:
    (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
for group in groups:
    try:
        os.killpg(group, signal.SIGKILL)
    except OSError:
        pass
"""
"""The program of the guard, the process that kills the ranks' process groups if the launcher dies.

It reads the numbers of the groups from its standard input until the input is closed, and then kills
the groups. The kernel closes the input when the launcher ends, even if the launcher is killed.
"""


class Guard:
    """A process that kills the groups of the ranks if the launcher ends before them."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", GUARD],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def add(self, group: int) -> None:
        """Make the guard kill this process group if the launcher ends."""
        self._write(f"+{group}\n")

    def remove(self, group: int) -> None:
        """Remove an ended process group from the groups that the guard process will kill."""
        self._write(f"-{group}\n")

    def _write(self, line: str) -> None:
        """Send the guard process a line: "+" (add) or "-" (remove), and a process group id."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # if the guard was killed, the ranks continue
            self.process.stdin.write(line.encode())
            self.process.stdin.flush()

    def close(self) -> None:
        """Kill the guard, so that it does not kill the groups when its standard input is closed."""
        self.process.kill()
        self.process.communicate()


@dataclass
class RankProcess:
    """The process of a rank, from its start until `reap`, which returns its exit code."""

    process: subprocess.Popen[bytes]
    streams: list[OutputStream] = field(default_factory=list)
    """The standard output and the standard error of the rank."""

    def send_signal(self, number: int) -> None:
        """Send a signal to the process group of the rank: the rank and the processes it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def has_ended(self) -> bool:
        """Return True if the process has ended."""
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self.process.pid, flags) is not None

    def reap(self) -> int:
        """Kill the processes that an ended rank has started; return the rank's exit code."""
        # The rank is a zombie until wait(), so no other group can have its number.
        os.killpg(self.process.pid, signal.SIGKILL)
        return self.process.wait()


def start_process(
    command: Sequence[str], env: Mapping[str, str], cores: list[int] | None
) -> subprocess.Popen[bytes]:
    """Start the process of a rank on its cores.

    Raise OSError if the command cannot be executed.
    """
    return subprocess.Popen(
        command,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=prepare_child(cores),
    )


def prepare_child(cores: list[int] | None) -> Callable[[], None]:
    """Return the function that a child runs before its program.

    It binds the child to its cores, and makes the child the leader of a process group. It also
    makes the kernel kill the child when the launcher ends.

    The child does not lead a session. Linux gives each session the same share of the cores
    (autogroup), and compares priorities (nice) only inside a session. So if each rank had its own
    session, a low-priority program in another session could get as much time as a rank.
    """
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    launcher = os.getpid()

    def prepare() -> None:
        os.setpgid(0, 0)
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != launcher:  # the launcher ended before the line above
            os._exit(1)
        if cores is not None:
            os.sched_setaffinity(0, cores)

    return prepare


def describe_end(code: int) -> str:
    """Return how a process has ended, in words: "returned 1" or "was killed by SIGKILL"."""
    return f"was killed by {signal_name(-code)}" if code < 0 else f"returned {code}"


def signal_name(number: int) -> str:
    """Return the name of a signal, or "signal N" for a real-time signal without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
