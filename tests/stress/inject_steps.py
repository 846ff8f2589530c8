# SPDX-License-Identifier: Apache-2.0
"""What the scenarios of inject.py are made of: steps, and checks of their results.

A step is one call and the check of its result. Where it raises and the group stays open, nothing
has happened: the step is done once more. `expects` are the errors that a step must end in without
any fault: of calls that are wrong on purpose, for the code that words errors fails, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import ngd

SMALL, MIDDLE, LARGE = 5, 60_000, 700_000
"""Elements (of 8 bytes) that ride beside the flag, in one piece, and in several chunks."""


@dataclass
class Step:
    """One call, checked."""

    name: str
    call: Callable[[], Any]
    expects: tuple[type[BaseException], ...] = ()


@dataclass
class Scenario:
    """The steps of a rank, by its number."""

    name: str
    steps: Callable[[int], list[Step]]
    ranks: int = 2
    env: dict[str, str] = field(default_factory=dict)
    joins: bool = True
    """The ranks have a world before the first step."""
    again: bool = True
    """After an error that leaves the group open, or makes none, a step is called again."""
    independent: bool = False
    """Each step stands for itself: only that with the fault is run."""


def check(got: Any, want: Any) -> None:
    """Refuse a wrong result."""
    if not np.array_equal(got, want):
        raise AssertionError(f"wrong result: {np.ravel(got)[:4]}, not {np.ravel(want)[:4]}")


def of(rank: int, count: int, dtype: Any = np.float64) -> Any:
    """A rank's contribution."""
    return (np.arange(count) % 7 + 10 * rank + 1).astype(dtype)


def total(count: int, dtype: Any = np.float64) -> Any:
    """What both contribute, added."""
    return of(0, count, dtype) + of(1, count, dtype)


def joined(count: int) -> Any:
    """Both contributions, one behind the other."""
    return np.concatenate([of(0, count), of(1, count)])


def fresh() -> list[Step]:
    """Memory of a world that nobody has used yet, and its call sites."""
    return [Step("barrier", ngd.barrier)]
