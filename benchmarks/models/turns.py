# SPDX-License-Identifier: Apache-2.0
"""Comparisons of training programs in turns on the same cores, each with its own Python.

The output has one line of JSON per program and turn, and a line with the medians: of the time per
step and the peak memory of each program, and of the paired ratios ngd / peer.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
BRIDGES = ("tensorflow", "mxnet")
"""Programs of other frameworks that train over ngd."""

sys.path.insert(0, str(HERE.parent))
from timing import cpu_name, last_line  # noqa: E402


def parser_of(
    description: str | None, batch: int, steps: int, ranks: Sequence[int] = ()
) -> argparse.ArgumentParser:
    """Return a parser with the common arguments. If `ranks` is given, --ranks accepts several."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--batch", type=int, default=batch, help="samples a rank and step")
    parser.add_argument("--ranks", type=int, default=ranks or 1, nargs="+" if ranks else None)
    parser.add_argument("--threads", type=int, default=1, help="cores a rank")
    parser.add_argument("--steps", type=int, default=steps, help="steps a sample; 5 samples a turn")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--peers", default="", help="names of programs, by commas")
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--precision", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--shard", action="store_true", help="ngd's weights once a host")
    return parser


def program_of(program: str, script: str, case: Sequence[str], args: Any) -> list[str]:
    """Return the command line of one rank of a program.

    "torch-compile" is torch with --compile, and "ngd-shard" is ngd with --shard.
    """
    name, _, option = program.partition("-")
    options = [*case, "--batch", str(args.batch), "--steps", str(args.steps)]
    options += ["--threads", str(args.threads), *([f"--{option}"] if option else [])]
    options += ["--precision", args.precision]
    if name in ("ngd", *BRIDGES):
        python = sys.executable if name == "ngd" else args.peer_python
        return [python, str(HERE / f"{script}_{name}.py"), *options]
    return [args.peer_python, str(HERE / "peers" / f"{script}_{name}.py"), *options]


def command_of(program: str, script: str, case: Sequence[str], args: Any) -> list[str]:
    """Return the command line of one turn of a program, with all of its ranks."""
    python, *rest = program_of(program, script, case, args)
    name = program.partition("-")[0]
    if name in ("ngd", *BRIDGES):
        return [python, "-m", "ngd.launch", "-n", str(args.ranks), "--no-prefix", "--", *rest]
    if name == "torch" and args.ranks > 1:
        launcher = ["-m", "torch.distributed.run", "--standalone"]
        return [python, *launcher, "--nproc-per-node", str(args.ranks), *rest]
    return [python, *rest, "--ranks", str(args.ranks)]


def compare_network(description: str | None, name: str, batch: int) -> None:
    """Compare the programs that train one of networks.py."""
    parser = parser_of(description, batch=batch, steps=1)
    case = ["--network", name, "--warm-up", "3"]
    compare(parser, parser.parse_args(), name, "network", case)


def compare(
    parser: argparse.ArgumentParser, args: Any, title: str, script: str, case: Sequence[str]
) -> None:
    """Run all turns, and print their results and the summary."""
    cores = len(os.sched_getaffinity(0))
    if args.ranks * args.threads > cores:
        parser.error(f"{args.ranks} ranks x {args.threads} threads need more than {cores} cores")
    ours = "ngd-shard" if args.shard else "ngd"
    programs = [ours, *filter(None, args.peers.split(","))]
    turns = []
    for turn in range(args.turns):
        results = {p: last_line(command_of(p, script, case, args), p) for p in programs}
        turns.append(results)
        for result in results.values():
            print(json.dumps({"turn": turn, **result}), flush=True)

    def values_of(program: str, what: str) -> list[float]:
        return [turn[program][what] for turn in turns]

    def medians(what: str) -> dict[str, float]:
        return {p: round(statistics.median(values_of(p, what)), 1) for p in programs}

    def ratio(peer: str) -> float:
        pairs = zip(values_of(ours, "us_per_step"), values_of(peer, "us_per_step"), strict=True)
        return round(statistics.median(a / b for a, b in pairs), 3)

    summary = {
        "case": title,
        "batch": args.batch,
        "ranks": args.ranks,
        "threads": args.threads,
        "precision": args.precision,
        "cpu": cpu_name(),
        "us_per_step": medians("us_per_step"),
        "peak_mib": medians("peak_mib"),
        "ngd_over_peer": {peer: ratio(peer) for peer in programs[1:]},
    }
    print(json.dumps(summary))
