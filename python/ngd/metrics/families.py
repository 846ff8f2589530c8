# SPDX-License-Identifier: Apache-2.0
"""A rank's metrics: their names, labels and values, as prometheus-client's families."""

from __future__ import annotations

import copy
import socket
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Final

from prometheus_client import Metric
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from .. import _core
from ..comm import CallStats, Group
from ..comm.group import GROUPS, living
from ..comm.statistics import stats_of
from .counting import BOUNDS, by_hand, by_site

CALL: Final = ("group", "op", "site")
INFO: Final = ("mode", "version", "host")
BY_HAND: Final = "ngd.metrics.count"
"""What stands for the line of the steps that users count."""
COLLECTIVE: Final = {
    "calls": "Collectives that are over.",
    "seconds": "From start to completion, in seconds.",
    "waited_seconds": "What of it was spent waiting, in seconds.",
    "bytes": "Of this rank's source or destination, the larger.",
}
"""Of a family by its name, which is also that of an attribute of Total: what it counts."""


class Total:
    """What a collective at a call site has cost, in all groups of one name that there were."""

    def __init__(self) -> None:
        self.calls = self.bytes = 0
        self.seconds = self.waited_seconds = 0.0
        self.last: dict[int, int] = {}

    def add(self, row: CallStats) -> None:
        """Add what one group says."""
        self.calls += row.calls
        self.bytes += row.bytes
        self.seconds += row.seconds
        self.waited_seconds += row.waited
        for peer, times in enumerate(row.last):
            if times:
                self.last[peer] = self.last.get(peer, 0) + times


class Collectives:
    """What collectives have cost. A group that is gone counts on with what it was last seen with.

    So the numbers never fall, which Prometheus would take for a restart.
    """

    def __init__(self) -> None:
        self.seen: dict[weakref.ref[Group], list[CallStats]] = {}
        self.gone: dict[tuple[str, ...], Total] = {}

    def totals(self) -> dict[tuple[str, ...], Total]:
        """By group, op and call site."""
        self.seen |= {weakref.ref(group): stats_of(group) for group in living(GROUPS)}
        for group in [group for group in self.seen if group() is None]:
            add_to(self.gone, self.seen.pop(group))
        found = copy.deepcopy(self.gone)
        for rows in self.seen.values():
            add_to(found, rows)
        return found


def add_to(totals: dict[tuple[str, ...], Total], rows: Iterable[CallStats]) -> None:
    """Count rows in."""
    for row in rows:
        totals.setdefault((row.group, row.op, row.site), Total()).add(row)


class NgdCollector(Collector):
    """The families of this rank. They are made when somebody asks, and until then cost nothing."""

    def __init__(self, size: Callable[[], int]) -> None:
        self.size = size
        self.collectives = Collectives()
        self.host = socket.gethostname()

    def collect(self) -> Iterator[Metric]:
        """All families, also those without samples yet."""
        info = _core.build_info()
        about = GaugeMetricFamily(
            "ngd_build_info", "Is 1; the labels say what runs where.", labels=INFO
        )
        about.add_metric([str(info["mode"]), str(info["version"]), self.host], 1)
        yield about
        yield GaugeMetricFamily("ngd_world_size", "How many ranks the job has.", self.size())
        yield from of_steps()
        yield from of_collectives(self.collectives.totals())


def of_steps() -> Iterator[Metric]:
    """Steps and examples."""
    steps = CounterMetricFamily("ngd_steps", "Steps that this rank has made.", labels=["site"])
    taken = HistogramMetricFamily(
        "ngd_step_seconds", "What compiled steps took, in seconds.", labels=["site"]
    )
    for site, tally in by_site().items():
        made = list(accumulate(tally.buckets))
        names = [*map(floatToGoString, BOUNDS), "+Inf"]
        steps.add_metric([site], made[-1])
        taken.add_metric([site], [*zip(names, made, strict=True)], tally.seconds)
    if by_hand.steps:
        steps.add_metric([BY_HAND], by_hand.steps)
    yield steps
    yield taken
    yield CounterMetricFamily(
        "ngd_examples", "Examples that this rank has trained on.", by_hand.examples
    )


def of_collectives(totals: Mapping[tuple[str, ...], Total]) -> Iterator[Metric]:
    """What ngd.comm_stats() has; who came last, of each group."""
    last: dict[tuple[str, str], int] = {}
    families = {
        name: CounterMetricFamily(f"ngd_collective_{name}", text, labels=CALL)
        for name, text in COLLECTIVE.items()
    }
    for labels, total in totals.items():
        for name, family in families.items():
            family.add_metric(labels, getattr(total, name))
        for peer, times in total.last.items():
            key = labels[0], str(peer)
            last[key] = last.get(key, 0) + times
    yield from families.values()
    latecomers = CounterMetricFamily(
        "ngd_last_to_come",
        "How often a rank of the group was the last to come to a collective.",
        labels=["group", "peer"],
    )
    for key, times in last.items():
        latecomers.add_metric(key, times)
    yield latecomers
