# SPDX-License-Identifier: Apache-2.0
"""The launcher of ngd, `ngd run`."""

from __future__ import annotations

from typing import Final

from .base import Environ, Launch, Launcher, read_plain_launch
from .registry import surroundings


def is_present(environ: Environ) -> bool:
    """Return True if this process is a rank of `ngd run`, or of a job that a user starts directly.

    To start ranks without a launcher, a user sets NGD_JOB, RANK and WORLD_SIZE for each of them.
    Then NGD_SURROUNDINGS is not set.

    A rank of `ngd run` may start a job with another launcher, such as mpirun. The processes of that
    job inherit NGD_JOB, but are not ranks of `ngd run`, so return False for them. They also inherit
    NGD_SURROUNDINGS, in which `ngd run` stored a hash of the variables of all other launchers
    (`surroundings`). The second launcher has changed these variables, so their hash now differs.
    """
    recorded = environ.get("NGD_SURROUNDINGS")
    return "NGD_JOB" in environ and recorded in (None, surroundings(environ))


def read(environ: Environ) -> Launch:
    """Return the `Launch` (rank, size and job) of a rank of `ngd run`."""
    return read_plain_launch(environ, "ngd", f"ngd:{environ['NGD_JOB']}")


NGD: Final = Launcher("ngd", is_present, read)
