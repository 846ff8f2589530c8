# SPDX-License-Identifier: Apache-2.0
"""All-reduce of float32 by ngd, from arrays and in the graph, in turns with MPI through mpi4py.

    mpirun -np 2 python benchmarks/comm/bench.py [--bytes 8 1048576 67108864] [--no-mpi]

Before every call each rank rewrites its buffer, so that no call finds its operand shared in a cache
already. A call's time is that of the slowest rank; a line holds its median over the calls, in
microseconds, and algbw = bytes / time. In the graph the operand is computed by the same step: its
time is the step's less that of an equal step without the all-reduce, taken in the same turn.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import ngd
from ngd import ops

sys.path.insert(0, str(Path(__file__).parents[1]))
from timing import cpu_name

SIZES = [8, 1 << 10, 16 << 10, 128 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20]
ROW = 1024
"""The operand of a step is an outer product of rows of this many columns: written, hardly read."""


def timed(call: Callable[[], Any]) -> float:
    """The seconds of one call, begun by all ranks together."""
    ngd.barrier()
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def step_of(count: int, reduced: bool) -> Callable[[], Any]:
    """A compiled step that computes `count` numbers and, maybe, all-reduces them."""
    columns = min(ROW, count)
    left = ngd.placeholder("left", (count // columns, 1), "float32")
    right = ngd.placeholder("right", (1, columns), "float32")
    result = left * right
    if reduced:
        result = ops.all_reduce(result, op="sum")
    step = ngd.compile([left, right], [result[:1, :1]], device="CPU")
    operands = np.ones((count // columns, 1), np.float32), np.ones((1, columns), np.float32)
    return lambda: step(*operands)


def turns(nbytes: int, calls: int, rank: int, mpi: Any) -> dict[str, list[float]]:
    """This rank's seconds of each call, by each way."""
    count = nbytes // 4
    buffer, result = np.empty(count, np.float32), np.empty(count, np.float32)
    with_reduce, without = step_of(count, True), step_of(count, False)
    ways: dict[str, Callable[[], Any]] = {
        "array": lambda: ngd.all_reduce(buffer, op="sum", out=result),
        "step": with_reduce,
        "step without": without,
    }
    if mpi:
        ways["mpi"] = lambda: mpi.COMM_WORLD.Allreduce(mpi.IN_PLACE, buffer)
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(-3, calls):
        for way, call in ways.items():
            buffer[:] = 1 + rank
            spent = timed(call)
            if number >= 0:
                seconds[way].append(spent)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bytes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--no-mpi", action="store_true", help="without mpi4py beside ngd")
    args = parser.parse_args()
    world = ngd.init()
    mpi: Any = None
    mpi_name = None
    if not args.no_mpi:
        from mpi4py import MPI

        mpi = MPI
        mpi_name = mpi.Get_library_version().split(",")[0].strip()
    for nbytes in args.bytes:
        calls = 400 if nbytes <= 128 << 10 else 60 if nbytes <= 4 << 20 else 15
        mine = turns(nbytes, calls, world.rank, mpi)
        slowest = {way: ngd.all_reduce(np.array(t), op="max") for way, t in mine.items()}
        slowest["graph"] = slowest["step"] - slowest.pop("step without")
        line: dict[str, Any] = {"bytes": nbytes, "ranks": world.size, "mpi": mpi_name}
        for way, times in slowest.items():
            us = statistics.median(times.tolist()) * 1e6
            line[f"{way}_us"] = round(us, 2)
            if way != "step":
                line[f"{way}_algbw_gbs"] = round(nbytes / us / 1e3, 3) if us > 0 else None
        if mpi:
            for way in ("array", "graph"):
                ratios = (slowest["mpi"] / np.maximum(slowest[way], 1e-9)).tolist()
                line[f"{way}_speedup_over_mpi"] = round(statistics.median(ratios), 2)
        if world.rank == 0:
            print(json.dumps({**line, "cpu": cpu_name()}), flush=True)


if __name__ == "__main__":
    main()
