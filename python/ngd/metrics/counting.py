# SPDX-License-Identifier: Apache-2.0
"""Counters of a rank: the time of compiled steps, and the samples and steps that users count.

Counting a run of a step takes only a few additions. The counters are read only when Prometheus
scrapes the rank.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_left
from typing import Final

BOUNDS: Final = tuple(base * 10.0**power for power in range(-4, 2) for base in (1.0, 2.5, 5.0))
"""The upper bounds of the buckets of the histogram of step times, in seconds.

They are from 100 us to 50 s.
"""


class Tally:
    """The number of runs of a compiled step, and their time.

    `add` takes no lock. It is called right after a run, and two threads do not run the same step on
    the CPU at the same time. A call of a step that another thread runs raises BusyError.

    Parameters
    ----------
    site : str
        The line of the user's code that compiled the step, as file:line.
    """

    __slots__ = ("buckets", "seconds", "site")

    def __init__(self, site: str) -> None:
        self.site = site
        """The line of the user's code that compiled the step, as file:line."""
        self.seconds = 0.0
        """The total time of the runs of the step, in seconds."""
        self.buckets = [0] * (len(BOUNDS) + 1)
        """The number of runs in each bucket of the histogram.

        Bucket i has the runs that took at most BOUNDS[i] and more than BOUNDS[i - 1]. The last
        bucket has the longer runs.
        """

    def add(self, seconds: float) -> None:
        """Count a finished run.

        Parameters
        ----------
        seconds : float
            The time of the run, in seconds.
        """
        self.buckets[bisect_left(BOUNDS, seconds)] += 1
        self.seconds += seconds


class UserCounts:
    """The samples and steps that users count with `ngd.metrics.count`, from any thread."""

    def __init__(self) -> None:
        self.examples = self.steps = 0
        self.renew()
        os.register_at_fork(after_in_child=self.renew)

    def renew(self) -> None:
        """Make a new lock. The constructor calls this method, and so does each forked child.

        If another thread held the lock during the fork, the child's copy would never be released.
        """
        self._lock = threading.Lock()

    def add(self, examples: int, steps: int) -> None:
        """Add to the number of samples and to the number of steps."""
        with self._lock:
            self.examples += examples
            self.steps += steps


TALLIES: Final[list[Tally]] = []
"""One Tally (number and time of the runs) per step that was compiled in this process.

A Tally stays when its step is deleted, because a counter of Prometheus must not decrease.
"""

user_counts: Final = UserCounts()


def tally(site: str) -> Tally:
    """Return a new Tally (number and time of a step's runs) that the metrics include from now on.

    Parameters
    ----------
    site : str
        The line of the user's code that compiled the step, as file:line.
    """
    new = Tally(site)
    TALLIES.append(new)
    return new


def by_site() -> dict[str, Tally]:
    """Return the number and time of the runs of compiled steps, by the line that compiled them.

    A key is the line, as file:line. Its Tally has the sums over the steps compiled at this line.
    """
    totals: dict[str, Tally] = {}
    for one in list(TALLIES):
        total = totals.setdefault(one.site, Tally(one.site))
        total.seconds += one.seconds
        total.buckets = [a + b for a, b in zip(total.buckets, one.buckets, strict=True)]
    return totals
