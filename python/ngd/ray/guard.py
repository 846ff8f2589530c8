# SPDX-License-Identifier: Apache-2.0
"""Clears up behind the actor of a host, however it ends: `guard.py FOLDER`, and lines on its input.

A line "+N" names a session that the actor has started, "-N" one of which nothing is left. The
stream ends with the actor. Then the guard ends the sessions, and removes the folder.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Final

ENDS_IN: Final = 5.0
"""Seconds in which killed processes end; who waits for a broken disk may need longer."""


def end_session(leader: int) -> None:
    """Kill a session until nothing of it runs: a process may have started another one meanwhile."""
    limit = time.monotonic() + ENDS_IN
    while (found := processes(leader)) and time.monotonic() < limit:
        for pid in found:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def processes(session: int) -> list[int]:
    """Who runs in a session; a dead process that nobody has waited for does not."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            state, _, _, its_session = path.read_bytes().rpartition(b")")[2].split()[:4]
            if int(its_session) == session and state not in (b"Z", b"X"):
                found.append(int(path.parent.name))
    return found


def main() -> None:
    """Guard until the input ends."""
    if os.fork():  # Ray kills the children of an actor that it ends, but not theirs
        os._exit(0)
    sessions: set[int] = set()
    for line in sys.stdin:
        (sessions.add if line[0] == "+" else sessions.discard)(int(line[1:]))
    for session in sessions:
        end_session(session)
    shutil.rmtree(sys.argv[1], ignore_errors=True)


if __name__ == "__main__":
    main()
