# SPDX-License-Identifier: Apache-2.0
"""Training steps of a small network: ngd beside its peers, in turns, on the same cores.

    python benchmarks/models/mlp.py --hidden 100 --peers torch,jax --peer-python PATH

One JSON line a program and turn, then one with the medians: of each program's time a step, and of
the ratios ngd / peer of the turns. Peers run under a Python of their own, which has them installed.
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
sys.path.insert(0, str(HERE.parent))
from timing import cpu_name, last_line  # noqa: E402


def command_of(program: str, args: argparse.Namespace) -> list[str]:
    """The command line of one turn of one program."""
    case = ["--hidden", *map(str, args.hidden), "--batch", str(args.batch)]
    case += ["--steps", str(args.steps), "--threads", str(args.threads)]
    if program == "ngd":
        script = str(HERE / "mlp_ngd.py")
        launcher = ["-m", "ngd.launch", "-n", str(args.ranks), "--no-prefix"]
        return [sys.executable, *launcher, "--", script, *case]
    script = str(HERE / "peers" / f"mlp_{program}.py")
    if program == "torch" and args.ranks > 1:
        launcher = ["-m", "torch.distributed.run", "--standalone"]
        launcher += ["--nproc-per-node", str(args.ranks)]
        return [args.peer_python, *launcher, script, *case]
    return [args.peer_python, script, *case, "--ranks", str(args.ranks)]


def measure(program: str, args: argparse.Namespace) -> dict[str, Any]:
    """One turn of one program."""
    return last_line(command_of(program, args), program)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hidden", type=int, nargs="+", default=[100])
    parser.add_argument("--batch", type=int, default=128, help="images a rank and step")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="cores a rank")
    parser.add_argument("--steps", type=int, default=200, help="steps a sample; 5 samples a turn")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--peers", default="", help="some of torch,jax")
    parser.add_argument("--peer-python", default=sys.executable)
    args = parser.parse_args(argv)
    cores = len(os.sched_getaffinity(0))
    if args.ranks * args.threads > cores:
        parser.error(f"{args.ranks} ranks x {args.threads} threads need more than {cores} cores")
    programs = ["ngd", *filter(None, args.peers.split(","))]
    turns = []
    for turn in range(args.turns):
        results = {program: measure(program, args) for program in programs}
        turns.append(results)
        for result in results.values():
            print(json.dumps({"turn": turn, **result}), flush=True)

    def times(program: str) -> list[float]:
        return [turn[program]["us_per_step"] for turn in turns]

    ratios = {
        peer: statistics.median(a / b for a, b in zip(times("ngd"), times(peer), strict=True))
        for peer in programs[1:]
    }
    summary = {
        "case": "-".join(map(str, [784, *args.hidden, 10])),
        "batch": args.batch,
        "ranks": args.ranks,
        "threads": args.threads,
        "cpu": cpu_name(),
        "us_per_step": {p: round(statistics.median(times(p)), 1) for p in programs},
        "ngd_over_peer": {peer: round(ratio, 3) for peer, ratio in ratios.items()},
    }
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
