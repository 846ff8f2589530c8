# SPDX-License-Identifier: Apache-2.0
"""Measure if transfers between two hosts progress while kernels run, over a slow link.

    python benchmarks/comm/overlap.py [--rate 1gbit] [--megabytes 16] [--rounds 7]

The program has the requirements of benchmarks/namespaces.py: root, iproute2, mode OMPI, Open MPI.
Each host has one rank. A step starts an all-reduce, computes, and waits, and the computation is
about as long as the transfer. The program prints one line of JSON for each of NGD_PROGRESS=on, off
and auto, with medians over the rounds of the slowest rank in milliseconds, and the ratio of the
step to the longer of its two parts.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import ngd

sys.path.insert(0, str(Path(__file__).parents[1]))
import namespaces
from timing import cpu_name


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", default="1gbit", help="of each host's link, as tc writes it")
    parser.add_argument("--megabytes", type=float, default=16, help="of the array that is reduced")
    parser.add_argument("--rounds", type=int, default=7)
    return parser.parse_args()


def milliseconds(call: Callable[[], None]) -> float:
    """Return the time of a call that all ranks start together, on the slowest rank."""
    ngd.barrier()
    start = time.perf_counter()
    call()
    seconds = np.array(time.perf_counter() - start)
    return float(ngd.all_reduce(seconds, op="max")) * 1e3


def measure(args: argparse.Namespace) -> dict[str, float]:
    data = np.ones(int(args.megabytes * 2**20) // 4, np.float32)
    total = np.empty_like(data)
    width = 384
    x = ngd.placeholder("x", (width, width), "float32")
    multiply = ngd.compile([x], [x @ x], device="CPU")
    operand = np.ones((width, width), np.float32)

    def transfer() -> None:
        ngd.all_reduce(data, op="sum", out=total)

    def compute(times: int) -> None:
        for _ in range(times):
            multiply(operand)

    def step(times: int) -> None:
        work = ngd.all_reduce(data, op="sum", out=total, async_op=True)
        compute(times)
        work.wait()

    milliseconds(transfer), milliseconds(lambda: compute(50))
    transfer_time = statistics.median(milliseconds(transfer) for _ in range(3))
    one = statistics.median(milliseconds(lambda: compute(50)) for _ in range(3)) / 50
    times = max(1, round(transfer_time / one))
    rounds = [
        (
            milliseconds(transfer),
            milliseconds(lambda: compute(times)),
            milliseconds(lambda: step(times)),
        )
        for _ in range(args.rounds)
    ]
    transfer_ms, compute_ms, step_ms = (
        statistics.median(column) for column in zip(*rounds, strict=True)
    )
    ratios = [each / max(t, c) for t, c, each in rounds]
    return {
        "transfer_ms": round(transfer_ms, 2),
        "compute_ms": round(compute_ms, 2),
        "step_ms": round(step_ms, 2),
        "step_over_larger": round(statistics.median(ratios), 3),
        "step_over_sum": round(step_ms / (transfer_ms + compute_ms), 3),
    }


def main() -> int:
    args = read_options()
    if "OMPI_COMM_WORLD_RANK" in os.environ:
        figures = measure(args)
        if ngd.init().rank == 0:
            line = {"progress": os.environ["NGD_PROGRESS"], "rate": args.rate, **figures}
            print(json.dumps({**line, "cpu": cpu_name()}), flush=True)
        return 0
    if reason := namespaces.why_not():
        print(f"cannot play two hosts here: {reason}", file=sys.stderr)
        return 1
    with namespaces.Hosts(2) as hosts:
        hosts.slow_down(args.rate)
        for progress in ("on", "off", "auto"):
            switches = {"NGD_PROGRESS": progress, "NGD_THREADS": os.environ.get("NGD_THREADS", "1")}
            switches |= {"NGD_TIMEOUT": "60", "OMP_NUM_THREADS": "1", "NGD_CHECK": "0"}
            environment = {**os.environ, **namespaces.OPEN_MPI, **switches}
            command = [*hosts.mpirun(1, switches), sys.executable, *sys.argv]
            status = subprocess.run(command, env=environment, timeout=300).returncode
            if status != 0:
                return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
