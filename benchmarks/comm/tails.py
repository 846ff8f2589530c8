# SPDX-License-Identifier: Apache-2.0
"""Measure slow calls: 200,000 all-reduces of 8 bytes in a row, by ngd and by Open MPI.

    python benchmarks/comm/tails.py --openmpi-python PATH --turns 10

Each cell has a number of ranks and a neighbour: none, a process that uses 5 % of a core, or a
process that always computes at the lowest priority. The runs of ngd and of Open MPI take turns.
The program prints one line of JSON per cell. For each percentile of the calls it has the medians
over the runs in microseconds, the median of the paired ratios (ngd's time divided by Open MPI's),
and all runs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from bench import lines_of
from timing import cpu_name

WANTS_A_PART = """
import time
while True:
    end = time.perf_counter() + 1e-3
    while time.perf_counter() < end:
        pass
    time.sleep(19e-3)
"""
ALWAYS_BUSY = """
import os
os.nice(19)
while True:
    pass
"""
NEIGHBOURS = {"nobody": None, "5% of a core": WANTS_A_PART, "niced": ALWAYS_BUSY}
CELLS = {
    "alone": (2, "nobody"),
    "part": (2, "5% of a core"),
    "niced": (2, "niced"),
    "crowded": (4, "nobody"),
}

Percentiles = dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description="Slow calls, by ngd and by Open MPI in turns.")
    parser.add_argument("--cells", nargs="+", choices=CELLS, default=list(CELLS))
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--calls", type=int, default=200_000)
    parser.add_argument("--bytes", type=int, default=8)
    parser.add_argument("--openmpi-python", metavar="PATH", default=sys.executable)
    args = parser.parse_args()
    for cell in args.cells:
        print(json.dumps(compare(cell, args)), flush=True)


def compare(cell: str, args: argparse.Namespace) -> dict[str, Any]:
    """Return the line of one cell."""
    ranks, neighbour = CELLS[cell]
    arguments = ["--kind", "all_reduce", "--bytes", str(args.bytes), "--tail", str(args.calls)]
    ours: list[Percentiles] = []
    theirs: list[Percentiles] = []
    with run_neighbour(NEIGHBOURS[neighbour]):
        for _ in range(args.turns):
            ours.append(lines_of("ngd", ranks, args, arguments)[0]["us"])
            theirs.append(lines_of("openmpi", ranks, args, arguments)[0]["us"])
    line: dict[str, Any] = {"cell": cell, "ranks": ranks, "neighbour": neighbour}
    for percentile in ours[0]:
        pairs = [(o[percentile], t[percentile]) for o, t in zip(ours, theirs, strict=True)]
        ratios = [o / t for o, t in pairs]
        line[f"p{percentile}"] = {
            "ngd_us": round(statistics.median(o for o, _ in pairs), 2),
            "openmpi_us": round(statistics.median(t for _, t in pairs), 2),
            "ratio": round(statistics.median(ratios), 3),
            "runs_us": [(round(o, 2), round(t, 2)) for o, t in pairs],
        }
    return line | {"cpu": cpu_name(), "cores": len(os.sched_getaffinity(0))}


@contextlib.contextmanager
def run_neighbour(program: str | None) -> Iterator[None]:
    """Run a neighbour process during the block."""
    if program is None:
        yield
        return
    neighbour = subprocess.Popen([sys.executable, "-c", program])
    try:
        yield
    finally:
        neighbour.kill()
        neighbour.wait()


if __name__ == "__main__":
    main()
