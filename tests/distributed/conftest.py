# SPDX-License-Identifier: Apache-2.0
"""Makes harness.py importable for the tests of this folder, and ends its standing worlds."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session", autouse=True)
def _standing_worlds() -> Iterator[None]:
    """They stay from the first test that wants one to the last of all."""
    from standing import close_worlds

    yield
    close_worlds()
