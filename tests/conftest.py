# SPDX-License-Identifier: Apache-2.0
"""For all tests: verify after every pass, let Open MPI run as root, and end standing worlds."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator

import pytest

os.environ.setdefault("NGD_CHECK", "1")
os.environ.setdefault("OMPI_ALLOW_RUN_AS_ROOT", "1")
os.environ.setdefault("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")

# A shell starts what it puts into the background deaf to Ctrl-C; what tests start shall hear it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # under nohup
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="session", autouse=True)
def _standing_worlds() -> Iterator[None]:
    """End the worlds of `tests.support.standing`, if there are any, after the last test."""
    yield
    standing = sys.modules.get("tests.support.standing")
    if standing is not None:
        standing.close_worlds()
