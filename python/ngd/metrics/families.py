# SPDX-License-Identifier: Apache-2.0
"""The metrics of a rank as metric families of prometheus-client: names, labels and values."""

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
from ..comm.group import GROUPS, existing_groups
from ..comm.statistics import stats_of
from .counting import BOUNDS, by_site, user_counts

CALL: Final = ("group", "op", "site")
INFO: Final = ("mode", "version", "host")
USER_SITE: Final = "ngd.metrics.count"
"""The value of the label `site` for steps that users count with ngd.metrics.count."""
COLLECTIVE: Final = {
    "calls": "The number of completed collectives.",
    "seconds": "The time of collectives from start to completion, in seconds.",
    "waited_seconds": "The part of ngd_collective_seconds that was spent waiting, in seconds.",
    "bytes": "The bytes of this rank's source or destination, whichever is larger.",
}
"""The help text of each metric family of collectives.

For example, the key "bytes" belongs to the family `ngd_collective_bytes`, and the values of this
family are those of the attribute `Total.bytes`. The other keys follow the same rule.
"""


class Total:
    """The number, time and bytes of the calls of one collective at one call site.

    If several groups have the same name, a Total has the sums over these groups.
    """

    def __init__(self) -> None:
        self.calls = self.bytes = 0
        self.seconds = self.waited_seconds = 0.0
        self.last: dict[int, int] = {}
        """For each rank, the number of calls of the collective at which this rank arrived last."""

    def add(self, row: CallStats) -> None:
        """Add the numbers of `row`, the statistics of one group, to the numbers of this Total."""
        self.calls += row.calls
        self.bytes += row.bytes
        self.seconds += row.seconds
        self.waited_seconds += row.waited
        for peer, times in enumerate(row.last):
            if times:
                self.last[peer] = self.last.get(peer, 0) + times


class Collectives:
    """The number, time and bytes of all collectives of this process, even of deleted groups.

    For a deleted group, the totals include its numbers at the last call of `totals` before it was
    deleted. So the totals never decrease: Prometheus would take a decrease for a restart of the
    process.
    """

    def __init__(self) -> None:
        self.rows_by_group: dict[weakref.ref[Group], list[CallStats]] = {}
        """The statistics of each group at the last call of `totals`: a list of CallStats.

        A CallStats has the number and the time of the calls of one collective at one call site.
        """
        self.deleted: dict[tuple[str, ...], Total] = {}
        """The number, time and bytes of the collectives that ran in deleted groups.

        A key is (group name, op, call site).
        """

    def totals(self) -> dict[tuple[str, ...], Total]:
        """Return the number, time and bytes of collectives, by (group name, op, call site).

        Each value of the dict is a Total. The dict includes the groups that exist now, and the
        groups that existed at an earlier call of this method.
        """
        self.rows_by_group |= {
            weakref.ref(group): stats_of(group) for group in existing_groups(GROUPS)
        }
        for group in [group for group in self.rows_by_group if group() is None]:
            add_rows(self.deleted, self.rows_by_group.pop(group))
        totals = copy.deepcopy(self.deleted)
        for rows in self.rows_by_group.values():
            add_rows(totals, rows)
        return totals


def add_rows(totals: dict[tuple[str, ...], Total], rows: Iterable[CallStats]) -> None:
    """Add the statistics of a group to `totals`, a dict by (group name, op, call site)."""
    for row in rows:
        totals.setdefault((row.group, row.op, row.site), Total()).add(row)


class NgdCollector(Collector):
    """The metric families of this rank, which are built each time that Prometheus scrapes them."""

    def __init__(self, size: Callable[[], int]) -> None:
        self.size = size
        self.collectives = Collectives()
        self.host = socket.gethostname()

    def collect(self) -> Iterator[Metric]:
        """Yield all metric families of ngd, including families without samples."""
        info = _core.build_info()
        about = GaugeMetricFamily(
            "ngd_build_info", "Always 1. The labels have the build and the host.", labels=INFO
        )
        about.add_metric([str(info["mode"]), str(info["version"]), self.host], 1)
        yield about
        yield GaugeMetricFamily("ngd_world_size", "The number of ranks of the job.", self.size())
        yield from step_families()
        yield from collective_families(self.collectives.totals())


def step_families() -> Iterator[Metric]:
    """Yield the metric families of steps (their number and time) and of trained samples."""
    steps = CounterMetricFamily("ngd_steps", "The number of successful steps.", labels=["site"])
    histogram = HistogramMetricFamily(
        "ngd_step_seconds", "The time per run of a compiled step, in seconds.", labels=["site"]
    )
    for site, tally in by_site().items():
        cumulative = list(accumulate(tally.buckets))
        names = [*map(floatToGoString, BOUNDS), "+Inf"]
        steps.add_metric([site], cumulative[-1])
        histogram.add_metric([site], [*zip(names, cumulative, strict=True)], tally.seconds)
    if user_counts.steps:
        steps.add_metric([USER_SITE], user_counts.steps)
    yield steps
    yield histogram
    yield CounterMetricFamily(
        "ngd_examples", "The number of samples of this rank.", user_counts.examples
    )


def collective_families(totals: Mapping[tuple[str, ...], Total]) -> Iterator[Metric]:
    """Yield the metric families of collectives: calls, times, bytes and last arrivals.

    The family of last arrivals has, for each rank of a group, the number of calls at which this
    rank arrived last. `totals` is a dict from (group name, op, call site) to a Total.
    """
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
    last_arrivals = CounterMetricFamily(
        "ngd_last_arrivals",
        "How often rank `peer` of the group was the last to arrive at a collective.",
        labels=["group", "peer"],
    )
    for key, times in last.items():
        last_arrivals.add_metric(key, times)
    yield last_arrivals
