# SPDX-License-Identifier: Apache-2.0
"""Functions that all programs of a comparison share: cores, arguments, time and report."""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

DEADLINE_SECONDS = 600
FEATURES, CLASSES, LEARNING_RATE = 784, 10, 0.01
SAMPLES = 5


def cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown"


def last_line(
    command: Sequence[str], program: str, env: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Run one turn of a program, and return the JSON object in its last line."""
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=DEADLINE_SECONDS, env=env
    )
    if done.returncode != 0:
        raise SystemExit(f"{program} returned {done.returncode}:\n{done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def read_case() -> argparse.Namespace:
    """Read the command line, and take the cores of this rank. Call it before any framework."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--hidden", type=int, nargs="+", default=[])
    parser.add_argument("--network", default="", help="of models/networks.py, instead of an MLP")
    parser.add_argument("--compile", action="store_true", help="where the program has a compiler")
    parser.add_argument("--shard", action="store_true", help="weights once a host: ngd alone")
    parser.add_argument("--warm-up", type=int, default=20)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--ranks", type=int, default=1, help="whose work one process does")
    parser.add_argument("--precision", default="float32", help="of products and activations")
    case = parser.parse_args()
    rank = int(os.environ.get("RANK", "0"))
    mine = case.threads * case.ranks
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[(rank * mine + i) % len(cores)] for i in range(mine)})
    case.batch *= case.ranks
    case.sizes = [FEATURES, *case.hidden, CLASSES]
    return case


def report(
    name: str,
    case: argparse.Namespace,
    steps: Callable[[int], None],
    compiling: float = 0,
    flops: int = 0,
) -> None:
    """Time `steps(n)`, which takes n training steps and waits for the last. Rank 0 prints.

    `flops` per step are known only for ngd.
    """
    steps(case.warm_up)
    samples = []
    for _ in range(SAMPLES):
        start = time.perf_counter()
        steps(case.steps)
        samples.append((time.perf_counter() - start) / case.steps)
    if os.environ.get("RANK", "0") == "0":
        seconds = statistics.median(samples)
        line = {
            "program": name,
            "case": case.network or case.hidden,
            "batch": case.batch,
            "world": int(os.environ.get("WORLD_SIZE", "1")),
            "precision": case.precision,
            "cores": len(os.sched_getaffinity(0)),
            "us_per_step": round(seconds * 1e6, 1),
            "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
            "compile_s": round(compiling, 2),
        }
        if flops:
            line |= {"gflop": round(flops / 1e9, 3), "gflop_per_s": round(flops / seconds / 1e9, 1)}
        print(json.dumps(line), flush=True)
