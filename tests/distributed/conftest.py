# SPDX-License-Identifier: Apache-2.0
"""Ends the standing worlds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def _standing_worlds() -> Iterator[None]:
    """They stay from the first test that wants one to the last of all."""
    from standing import close_worlds

    yield
    close_worlds()
