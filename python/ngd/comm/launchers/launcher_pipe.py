# SPDX-License-Identifier: Apache-2.0
"""The pipe NGD_LAUNCHER, through which ranks send messages of one word to `ngd run`."""

from __future__ import annotations

import contextlib
import os
import stat

from .base import Environ
from .registry import surroundings


def address_of_launcher(pipe: int) -> str:
    """Return the value of NGD_LAUNCHER: the path and the inode of the pipe's reading end.

    The path is /proc/PID/fd/N, where PID is the launcher. Only processes of the same user can open
    this path, and no other process can put a file there. Ranks open the path for each message. If
    the launcher has ended and another process has its PID, the path may lead to another file. Then
    the inode differs, and no message is sent.
    """
    return f"/proc/{os.getpid()}/fd/{pipe} {os.fstat(pipe).st_ino}"


def notify_launcher(environ: Environ | None = None) -> None:
    """Notify `ngd run` that this rank is about to end.

    Call this function before the other ranks are notified: `ngd run` takes the order of failures
    from these messages.
    """
    environ = os.environ if environ is None else environ
    if "NGD_MEMBER" in environ or "RANK" in environ:
        send_to_launcher(environ.get("NGD_MEMBER") or environ["RANK"], environ)


def send_to_launcher(word: str, environ: Environ) -> bool:
    """Send a message of one word to the `ngd run` that started this process.

    The word "3" means that process 3 of the job is about to end. The number is the rank. In an
    elastic job, it is the number that `ngd run` gave to the process, which stays the same when
    ranks change. "+3" means that process 3 of an elastic job waits for the next world (group of all
    ranks). Return True if the word was sent, and False if `ngd run` did not start this process or
    has ended.
    """
    path, _, inode = environ.get("NGD_LAUNCHER", "").partition(" ")
    is_foreign = environ.get("NGD_SURROUNDINGS") != surroundings(environ)
    if not path or is_foreign:
        return False
    with contextlib.suppress(OSError):
        status = os.stat(path)
        if not stat.S_ISFIFO(status.st_mode) or str(status.st_ino) != inode:
            return False
        pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.write(pipe, f"{word}\n".encode())
            return True
        finally:
            os.close(pipe)
    return False
