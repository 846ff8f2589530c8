# SPDX-License-Identifier: Apache-2.0
"""What steps take, and what users count: a few additions a step, read when somebody asks."""

from __future__ import annotations

import os
import threading
from bisect import bisect_left
from typing import Final

BOUNDS: Final = tuple(base * 10.0**power for power in range(-4, 2) for base in (1.0, 2.5, 5.0))
"""The upper bounds of the histogram of steps, in seconds: 100 us to 50 s."""


class Tally:
    """The number of runs of a compiled step, and their time.

    One thread at a time adds: it holds the step's variables, or is the only one that calls the
    step.
    """

    __slots__ = ("buckets", "seconds", "site")

    def __init__(self, site: str) -> None:
        self.site = site
        """Where the step was compiled."""
        self.seconds = 0.0
        self.buckets = [0] * (len(BOUNDS) + 1)
        """How many took as long as the bound or less, and more than the bound before; then the
        longer ones."""

    def add(self, seconds: float) -> None:
        """A run is over."""
        self.buckets[bisect_left(BOUNDS, seconds)] += 1
        self.seconds += seconds


class ByHand:
    """What users count, from whatever thread."""

    def __init__(self) -> None:
        self.examples = self.steps = 0
        self.renew()
        os.register_at_fork(after_in_child=self.renew)

    def renew(self) -> None:
        """A forked child has no thread that would give the lock back."""
        self._lock = threading.Lock()

    def add(self, examples: int, steps: int) -> None:
        """Add to both."""
        with self._lock:
            self.examples += examples
            self.steps += steps


TALLIES: Final[list[Tally]] = []
"""Of all steps that were compiled, also of those that are gone: a counter never goes back."""
by_hand: Final = ByHand()


def tally(site: str) -> Tally:
    """A new tally, which is reported from now on."""
    made = Tally(site)
    TALLIES.append(made)
    return made


def by_site() -> dict[str, Tally]:
    """The steps compiled on one line of the program, together."""
    found: dict[str, Tally] = {}
    for each in list(TALLIES):
        sum_ = found.setdefault(each.site, Tally(each.site))
        sum_.seconds += each.seconds
        sum_.buckets = [a + b for a, b in zip(sum_.buckets, each.buckets, strict=True)]
    return found
