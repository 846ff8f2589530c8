# SPDX-License-Identifier: Apache-2.0
"""The measurement of a collective, which is equal for ngd and for all peers.

Before each call, every rank rewrites its operand, so that no call finds it in a shared cache. Then
all ranks enter a barrier. The time of a call is that of the slowest rank. A line of JSON has the
median over the calls, in microseconds. This module needs only NumPy.

With --tail N, the ranks make N calls without anything between them. The line then has percentiles
of the times of the slowest rank.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

KINDS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all")
WARM_UP_CALLS = 3
WARM_UP_TAIL = 1000
PERCENTILES = (50, 99, 99.9)


@dataclass(frozen=True)
class Case:
    """A collective of float32, with its buffers on one rank."""

    kind: str
    nbytes: int
    """The size of a rank's larger buffer, which is the source or the result."""
    rank: int
    ranks: int

    @property
    def count(self) -> int:
        """The number of elements of the larger buffer: a multiple of the ranks if it has blocks."""
        count = self.nbytes // 4
        in_place = self.kind in ("all_reduce", "broadcast")
        return count if in_place else max(1, count // self.ranks) * self.ranks

    @property
    def calls(self) -> int:
        return 400 if self.nbytes <= 128 << 10 else 60 if self.nbytes <= 4 << 20 else 15

    def buffers(self) -> tuple[Array, Array]:
        """Return the source and the destination. They are equal if the call works in place."""
        whole, block = np.empty(self.count, np.float32), np.empty(self.count, np.float32)
        block = block[: self.count // self.ranks]
        return {
            "all_reduce": (whole, whole),
            "broadcast": (whole, whole),
            "reduce_scatter": (whole, block),
            "all_gather": (block, whole),
            "all_to_all": (whole, np.empty_like(whole)),
        }[self.kind]

    def check(self, result: Array) -> None:
        """Raise if `result` is not the result for operands that are 1 + rank on every rank."""
        total = self.ranks * (self.ranks + 1) / 2
        expected = {"all_reduce": [total], "reduce_scatter": [total], "broadcast": [1.0]}
        blocks = np.array(expected.get(self.kind, 1.0 + np.arange(self.ranks)), np.float32)
        if (result.reshape(len(blocks), -1) != blocks[:, None]).any():
            raise AssertionError(f"{self}: wrong result {result[:4]}...")


@dataclass(frozen=True)
class Way:
    """One form of calling a collective."""

    call: Callable[[], Any]
    source: Array
    result: Array | None = None
    """The result to check, or None."""


def read_arguments() -> argparse.Namespace:
    """Read the arguments that the driver gives to a program: kind and sizes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", choices=KINDS, required=True)
    parser.add_argument("--bytes", type=int, nargs="+", required=True)
    parser.add_argument("--from", dest="origins", nargs="+", default=["array"])
    parser.add_argument("--tail", type=int, default=0, metavar="CALLS")
    return parser.parse_args()


def measure(
    program: str,
    case: Case,
    ways: Mapping[str, Way],
    barrier: Callable[[], Any],
    slowest: Callable[[Array], Array],
    less: Mapping[str, str] | None = None,
) -> None:
    """Time all forms in turns, and print the medians on rank 0.

    `slowest` returns the element-wise maximum over the ranks. `less` maps the name of a form to the
    name of another form, whose time is subtracted.
    """
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(-WARM_UP_CALLS, case.calls):
        for name, way in ways.items():
            way.source[:] = 1 + case.rank
            barrier()
            start = time.perf_counter()
            way.call()
            spent = time.perf_counter() - start
            if number >= 0:
                seconds[name].append(spent)
            elif way.result is not None:
                case.check(way.result)
    times = {name: slowest(np.array(spent)) for name, spent in seconds.items()}
    for name, other in (less or {}).items():
        times[name] = times[name] - times.pop(other)
    if case.rank == 0:
        for name, spent in times.items():
            us = statistics.median(spent.tolist()) * 1e6
            line = {"program": program, "from": name, "bytes": case.nbytes, "us": us}
            print(json.dumps(line), flush=True)


def measure_tail(
    program: str,
    case: Case,
    call: Callable[[], Any],
    calls: int,
    barrier: Callable[[], Any],
    slowest: Callable[[Array], Array],
) -> None:
    """Time calls without anything between them, and print percentiles on rank 0."""
    now = time.perf_counter_ns
    stamps = np.empty(calls + 1, np.int64)
    for _ in range(WARM_UP_TAIL):
        call()
    barrier()
    stamps[0] = now()
    for number in range(1, calls + 1):
        call()
        stamps[number] = now()
    us = slowest(np.diff(stamps) / 1e3)
    if case.rank == 0:
        found = dict(zip(map(str, PERCENTILES), np.percentile(us, PERCENTILES), strict=True))
        line = {"program": program, "bytes": case.nbytes, "us": found, "most_us": float(us.max())}
        print(json.dumps(line), flush=True)
