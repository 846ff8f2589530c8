# SPDX-License-Identifier: Apache-2.0
"""A group for tests that build graphs and run no collective."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FakeGroup:
    """A group of which only this rank's number and the number of ranks are known."""

    rank: int = 0
    size: int = 1
