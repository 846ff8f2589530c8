# SPDX-License-Identifier: Apache-2.0
"""A process that cleans up after the actor of a host, however the actor ends.

`guard.py FOLDER` reads lines from its input. "+N" means that the actor has started session N, and
"-N" that all processes of session N have ended. A session has the processes of one command. When
the actor ends, the input ends. Then the guard ends the remaining sessions and removes the folder.
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

KILL_SECONDS: Final = 5.0
"""The longest time in seconds that `end_session` waits for killed processes to end. After this time
it returns even if a process has not ended. For example, the kernel ends a process only after a
pending disk operation."""


def end_session(leader: int) -> None:
    """Kill the processes of a session, including new ones, until none is left.

    Return after KILL_SECONDS even if processes are left. `leader` is the session ID: the pid of the
    process that created the session.
    """
    limit = time.monotonic() + KILL_SECONDS
    while (pids := processes(leader)) and time.monotonic() < limit:
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def processes(session: int) -> list[int]:
    """Return the pids of the running processes of a session. Zombies are left out."""
    pids = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # the process has ended
            state, _, _, session_id = path.read_bytes().rpartition(b")")[2].split()[:4]
            if int(session_id) == session and state not in (b"Z", b"X"):
                pids.append(int(path.parent.name))
    return pids


def main() -> None:
    """Fork a child that does the work of the guard, and exit at once in the parent.

    The child reads lines from its standard input, until the Ray actor that writes them ends. The
    line "+12" says that session 12 has started, and "-12" that it has ended. Then the child kills
    the processes of all sessions that have not ended, and removes the folder of the actor.
    """
    if os.fork():  # when Ray ends an actor, it kills the children, but not the grandchildren
        os._exit(0)
    sessions: set[int] = set()
    for line in sys.stdin:
        (sessions.add if line[0] == "+" else sessions.discard)(int(line[1:]))
    for session in sessions:
        end_session(session)
    shutil.rmtree(sys.argv[1], ignore_errors=True)


if __name__ == "__main__":
    main()
