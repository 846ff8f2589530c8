# SPDX-License-Identifier: Apache-2.0
"""Compare two ways to make one step data-parallel, in turns: ngd's and the framework's own.

A program with both ways calls `main`, which starts a process per rank and turn. The output has one
line of JSON per way and turn, and a line with the medians of the times per step and of the paired
ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from timing import cpu_name

ROUNDS, WARM_UP_STEPS, DEADLINE_SECONDS = 5, 20, 600

StepOf = Callable[[argparse.Namespace], Callable[[], Callable[[], Any]]]
"""A function that returns the step of this rank. The step returns a function that waits for it."""


def run_rank(args: argparse.Namespace, step_of: StepOf) -> None:
    """Run one rank, and print the median of the rounds."""
    step = step_of(args)

    def seconds(steps: int) -> float:
        begin = time.perf_counter()
        for _ in range(steps):
            wait = step()
        wait()
        return (time.perf_counter() - begin) / steps

    seconds(WARM_UP_STEPS)
    median = statistics.median(seconds(args.steps) for _ in range(ROUNDS))
    print(json.dumps({"way": args.way, "us_per_step": round(median * 1e6, 1)}), flush=True)


def free_ports(count: int) -> list[int]:
    """Return ports of this host that no program listens on."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def measure(file: str, way: str, args: argparse.Namespace) -> dict[str, Any]:
    """Run one turn of a way in separate processes. WORKERS is the list of their addresses."""
    case = ["--hidden", *map(str, args.hidden), "--batch", str(args.batch)]
    case += ["--steps", str(args.steps), "--threads", str(args.threads), "--way", way]
    workers = [f"127.0.0.1:{port}" for port in free_ports(args.ranks)]
    ranks = []
    for rank in range(args.ranks):
        variables = {"RANK": rank, "WORLD_SIZE": args.ranks, "LOCAL_RANK": rank}
        variables |= {"LOCAL_WORLD_SIZE": args.ranks, "NGD_JOB": workers[0]}
        env = {
            **os.environ,
            **{k: str(v) for k, v in variables.items()},
            "WORKERS": ",".join(workers),
        }
        command = [sys.executable, file, *case]
        ranks.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True))
    outputs = [rank.communicate(timeout=DEADLINE_SECONDS)[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise SystemExit(f"{way}: the ranks returned {[rank.returncode for rank in ranks]}")
    return dict(json.loads(outputs[0].splitlines()[-1]))


def main(file: str, description: str | None, ways: Sequence[str], step_of: StepOf) -> None:
    """Run all turns and print their results, or run one way as a rank."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--hidden", type=int, nargs="+", default=[1024, 1024, 1024])
    parser.add_argument("--batch", type=int, default=128, help="images a rank and step")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="cores a rank")
    parser.add_argument("--steps", type=int, default=30, help="steps a round; 5 rounds a turn")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--way", choices=ways, help="in a rank: the one to measure")
    args = parser.parse_args()
    if args.way is not None:
        run_rank(args, step_of)
        return
    turns: list[dict[str, float]] = []
    for turn in range(args.turns):
        turns.append({})
        for way in ways:
            result = measure(file, way, args)
            turns[-1][way] = result["us_per_step"]
            print(json.dumps({"turn": turn, **result}), flush=True)
    ours, theirs = ways
    summary = {
        "case": "-".join(map(str, [784, *args.hidden, 10])),
        "batch": args.batch,
        "ranks": args.ranks,
        "threads": args.threads,
        "cpu": cpu_name(),
        "us_per_step": {way: round(statistics.median(t[way] for t in turns), 1) for way in ways},
        f"{ours}_over_{theirs}": round(statistics.median(t[ours] / t[theirs] for t in turns), 3),
    }
    print(json.dumps(summary))
