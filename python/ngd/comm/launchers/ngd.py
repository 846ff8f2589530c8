# SPDX-License-Identifier: Apache-2.0
"""The launcher of ngd, `ngd run`."""

from __future__ import annotations

from typing import Final

from .base import Environ, Launch, Launcher, read_plain_launch
from .registry import surroundings


def is_present(environ: Environ) -> bool:
    """Return True if this process is a rank of `ngd run`, or a user set NGD_JOB for it.

    A rank of `ngd run` may start a job with another launcher, such as mpirun. The processes of that
    job inherit NGD_JOB, but are not ranks of `ngd run`. For them, return False. They have new
    variables of the other launcher, so the hash of these variables differs from NGD_SURROUNDINGS,
    the hash that `ngd run` set.
    """
    recorded = environ.get("NGD_SURROUNDINGS")
    return "NGD_JOB" in environ and recorded in (None, surroundings(environ))


def read(environ: Environ) -> Launch:
    """Return the `Launch` (rank, size and job) of a rank of `ngd run`."""
    return read_plain_launch(environ, "ngd", f"ngd:{environ['NGD_JOB']}")


NGD: Final = Launcher("ngd", is_present, read)
