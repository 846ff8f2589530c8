# SPDX-License-Identifier: Apache-2.0
"""The pipe NGD_LAUNCHER, through which ranks send words to `ngd run`."""

from __future__ import annotations

import contextlib
import os
import stat

from .base import Environ
from .registry import surroundings


def address_of_launcher(pipe: int) -> str:
    """Return the value of NGD_LAUNCHER: the pipe to which ranks write before they end.

    A pipe has no name that others could take, and the kernel opens it to processes of its own user
    only. They open it when they have something to say; the inode shows that it is still the same.
    """
    return f"/proc/{os.getpid()}/fd/{pipe} {os.fstat(pipe).st_ino}"


def tell_launcher(environ: Environ | None = None) -> None:
    """Let `ngd run` know that this rank is about to end, before its peers know."""
    environ = os.environ if environ is None else environ
    if "NGD_MEMBER" in environ or "RANK" in environ:
        say_to_launcher(environ.get("NGD_MEMBER") or environ["RANK"], environ)


def say_to_launcher(word: str, environ: Environ) -> bool:
    """Send a word to the `ngd run` that started this process; return whether it was sent."""
    path, _, inode = environ.get("NGD_LAUNCHER", "").partition(" ")
    of_another = environ.get("NGD_SURROUNDINGS") != surroundings(environ)
    if not path or of_another:
        return False
    with contextlib.suppress(OSError):
        found = os.stat(path)
        if not stat.S_ISFIFO(found.st_mode) or str(found.st_ino) != inode:
            return False
        pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.write(pipe, f"{word}\n".encode())
            return True
        finally:
            os.close(pipe)
    return False
