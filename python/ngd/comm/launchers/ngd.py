# SPDX-License-Identifier: Apache-2.0
"""The launcher of ngd, `ngd run`."""

from __future__ import annotations

from typing import Final

from .base import Environ, Launch, Launcher, read_plain_launch
from .registry import surroundings


def is_present(environ: Environ) -> bool:
    """Return True if `ngd run` started this process directly.

    Return False if another launcher started this process inside a rank of `ngd run`. Then the hash
    of the variables of other launchers differs from NGD_SURROUNDINGS, the hash that `ngd run` set.
    """
    recorded = environ.get("NGD_SURROUNDINGS")
    return "NGD_JOB" in environ and recorded in (None, surroundings(environ))


def read(environ: Environ) -> Launch:
    """Return the `Launch` (rank, size and job) of a rank of `ngd run`."""
    return read_plain_launch(environ, "ngd", f"ngd:{environ['NGD_JOB']}")


NGD: Final = Launcher("ngd", is_present, read)
