# SPDX-License-Identifier: Apache-2.0
"""Settings for all tests: verify graphs after every pass, and stop standing worlds at the end."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator

import pytest

os.environ.setdefault("NGD_CHECK", "1")
os.environ.setdefault("OMPI_ALLOW_RUN_AS_ROOT", "1")
os.environ.setdefault("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")

# A shell starts background jobs with SIGINT ignored. Processes that tests start must receive it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # nohup starts programs with SIGHUP ignored
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="session", autouse=True)
def _standing_worlds() -> Iterator[None]:
    """Stop the worlds of `tests.support.standing` after the last test."""
    yield
    standing = sys.modules.get("tests.support.standing")
    if standing is not None:
        standing.close_worlds()
