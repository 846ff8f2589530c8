# SPDX-License-Identifier: Apache-2.0
"""Detection of the launcher, rank, size and job of this process.

Only environment variables and /proc are read. No code of a launcher is imported, and no launcher is
contacted. docs/launchers.md lists the launchers.
"""

from __future__ import annotations

import os

from .base import Environ, Launch, expect_size
from .ngd import NGD
from .registry import OTHER_LAUNCHERS


def detect(environ: Environ | None = None) -> Launch:
    """Return the `Launch` of this process, from the first launcher whose variables are set.

    Without a launcher, the process is rank 0 of 1. Raise InitError if a variable is missing or
    invalid, or if the number of ranks differs from NGD_EXPECT_SIZE.
    """
    environ = os.environ if environ is None else environ
    launch = launch_from_environment(environ)
    expect_size(launch.size, launch.launcher, environ)
    return launch


def launched_rank_and_size() -> tuple[int, int]:
    """Return the rank of this process and the number of ranks, as the launcher set them."""
    launch = detect()
    return launch.rank, launch.size


def launch_from_environment(environ: Environ) -> Launch:
    """Return the `Launch` of this process, as `detect` does, but do not check NGD_EXPECT_SIZE.

    Log lines and metrics need the rank, size and job even if the number of ranks differs from
    NGD_EXPECT_SIZE.
    """
    for launcher in (NGD, *OTHER_LAUNCHERS):
        if launcher.is_present(environ):
            return launcher.read(environ)
    return Launch("alone", 0, 1, 0, 1, None)
