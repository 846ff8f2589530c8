# SPDX-License-Identifier: Apache-2.0
"""The steps of the scenarios of inject.py, and checks of their results.

A step is one call and the check of its result. A step that raises and leaves the group open must
have no effect, so it is called once more. `expects` has the errors in which a step must end without
a fault. Such calls are wrong on purpose, because the code that reports errors can fail, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import ngd

SMALL, MIDDLE, LARGE = 5, 60_000, 700_000
"""Numbers of 8-byte elements: beside the flag, in one chunk, and in several chunks."""


@dataclass
class Step:
    """One call with its check."""

    name: str
    call: Callable[[], Any]
    expects: tuple[type[BaseException], ...] = ()


@dataclass
class Scenario:
    """A scenario, which gives the steps of a rank."""

    name: str
    steps: Callable[[int], list[Step]]
    ranks: int = 2
    env: dict[str, str] = field(default_factory=dict)
    joins: bool = True
    """True if the ranks have a world before the first step."""
    again: bool = True
    """True if a step is called again after an error that leaves the group open, or makes none."""
    independent: bool = False
    """True if each step is independent, so that only the step with the fault runs."""


def check(got: Any, want: Any) -> None:
    """Raise AssertionError if a result is wrong."""
    if not np.array_equal(got, want):
        raise AssertionError(f"wrong result: {np.ravel(got)[:4]}, not {np.ravel(want)[:4]}")


def contribution(rank: int, count: int, dtype: Any = np.float64) -> Any:
    """Return a rank's contribution."""
    return (np.arange(count) % 7 + 10 * rank + 1).astype(dtype)


def total(count: int, dtype: Any = np.float64) -> Any:
    """Return the sum of both contributions."""
    return contribution(0, count, dtype) + contribution(1, count, dtype)


def contributions(count: int) -> Any:
    """Return the concatenation of both contributions."""
    return np.concatenate([contribution(0, count), contribution(1, count)])


def first_barrier() -> list[Step]:
    """Return a first barrier, which allocates memory and call sites of the world."""
    return [Step("barrier", ngd.barrier)]
