# SPDX-License-Identifier: Apache-2.0
"""Measure the cost of NGD_METRICS for a step of about 1 ms, and print one line of JSON.

python -m ngd.launch -n 2 --no-prefix benchmarks/metrics.py

Steps with and without counting use one executable. The object that locks its variables, which also
counts steps, is exchanged between them. A pair is a series of counted steps and a series of plain
steps, of about one second each, in an order that alternates. At the start of each counted series
another process requests the page. Drifts of the machine therefore affect both series, and there is
one scrape per second.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from typing import Any

import numpy as np

os.environ.setdefault("NGD_METRICS", "0")
os.environ.setdefault("NGD_THREADS", "1")

import ngd
from ngd import ops

CLIENT = """
import socket, sys
for line in sys.stdin:
    with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as page:
        page.sendall(b"GET /metrics HTTP/1.0\\r\\n\\r\\n")
        size = 0
        while part := page.recv(1 << 20):
            size += len(part)
    print(size, flush=True)
"""
"""A client that requests the page once per line of its input."""


def step_of(size: int) -> Any:
    """Return a step of several matmuls, and of the mean of the result over all ranks."""
    x = ngd.placeholder("x", (size, size))
    y = x
    for _ in range(4):
        y = ops.tanh(y @ x)
    return ngd.compile([x], [ops.all_reduce(y, op="mean")])


def seconds(step: Any, hold: Any, x: Any, steps: int) -> tuple[float, float]:
    """Return the wall time of a series of steps, and the CPU time of the process."""
    step.hold = hold
    ngd.barrier()
    begin, cpu = time.perf_counter(), time.process_time()
    for _ in range(steps):
        step(x)
    return time.perf_counter() - begin, time.process_time() - cpu


def main() -> None:
    """Measure the pairs, and print a report on rank 0."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", type=int, default=288, help="of the matrices")
    parser.add_argument("--pairs", type=int, default=20)
    arguments = parser.parse_args()
    world = ngd.init()
    step = step_of(arguments.size)
    setting = os.environ.pop("NGD_METRICS")
    counted, plain = step.hold, step_of(arguments.size).hold
    os.environ["NGD_METRICS"] = setting
    address, client = ngd.metrics.address(), None
    if address is not None:
        command = [sys.executable, "-I", "-S", "-c", CLIENT, *map(str, address)]
        client = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
    x = np.random.default_rng(0).normal(size=(arguments.size, arguments.size)).astype(np.float32)
    step_seconds = [seconds(step, hold, x, 200)[0] / 200 for hold in (counted, plain) * 3]
    steps = int(ngd.broadcast(np.int64(1 / min(step_seconds))))
    pairs, pages = [], []
    for number in range(arguments.pairs):
        found = {}
        for is_counted in (True, False) if number % 2 else (False, True):
            if is_counted and client is not None:
                assert client.stdin is not None
                client.stdin.write("?\n")
            found[is_counted] = seconds(step, counted if is_counted else plain, x, steps)
            if is_counted and client is not None:
                assert client.stdout is not None
                pages.append(int(client.stdout.readline()))
        pairs.append((found[True], found[False]))
    if client is not None:
        client.communicate(timeout=60)
    page = int(ngd.all_reduce(max(pages, default=0), op="max"))
    if world.rank == 0:
        report(pairs, steps, world.size, page)


Pair = tuple[tuple[float, float], tuple[float, float]]
"""The results of seconds() for counted steps and for plain steps."""


def median_of(values: list[float]) -> tuple[float, list[float]]:
    """Return the median and its 95 % confidence interval (bootstrap, percentiles)."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(2000))
    return round(statistics.median(values), 4), [round(medians[50], 4), round(medians[-50], 4)]


def report(pairs: list[Pair], steps: int, ranks: int, page: int) -> None:
    """Print one line of JSON. On a busy machine, the CPU time is more reliable than the ratio.

    `cpu_ms` is the additional CPU time per second of steps, including the scrape. The limit is 10
    ms.
    """
    ratio, interval = median_of([counted[0] / plain[0] for counted, plain in pairs])
    cpu, cpu_interval = median_of([1e3 * (counted[1] - plain[1]) for counted, plain in pairs])
    line = {
        "program": "metrics",
        "ranks": ranks,
        "steps": steps,
        "us_per_step": round(statistics.median(p[0] for _, p in pairs) / steps * 1e6, 1),
        "ratio": ratio,
        "interval": interval,
        "cpu_ms": cpu,
        "cpu_ms_interval": cpu_interval,
        "page_bytes": page,
        "bar": 1.01,
    }
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
