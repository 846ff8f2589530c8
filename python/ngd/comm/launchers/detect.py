# SPDX-License-Identifier: Apache-2.0
"""The launch of this process: its launcher, rank, size and job.

docs/launchers.md is the table of these modules. Nothing is imported from, or asked of, any
launcher.
"""

from __future__ import annotations

import os

from .base import Environ, Launch, expect_size
from .ngd import NGD
from .registry import OTHER_LAUNCHERS


def detect(environ: Environ | None = None) -> Launch:
    """Find this process's place, by the first launcher whose variables are set; alone if none is.

    Raises InitError that names the variable where one is missing, no number, or out of range; or
    where there are not as many ranks as NGD_EXPECT_SIZE says.
    """
    environ = os.environ if environ is None else environ
    found = told_by_launcher(environ)
    expect_size(found.size, found.launcher, environ)
    return found


def launched_rank_and_size() -> tuple[int, int]:
    """Return the launcher's rank and number of ranks for this process."""
    launch = detect()
    return launch.rank, launch.size


def told_by_launcher(environ: Environ) -> Launch:
    """The same, of however many ranks: for what only names this process."""
    for launcher in (NGD, *OTHER_LAUNCHERS):
        if launcher.is_present(environ):
            return launcher.read(environ)
    return Launch("alone", 0, 1, 0, 1, None)
