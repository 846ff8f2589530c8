# SPDX-License-Identifier: Apache-2.0
"""Measure the memory of weights and moments on a host: a copy per rank, or one per host.

    python benchmarks/models/memory.py --ranks 4 --megabytes 300

Adam trains a network of three layers for a few steps. The result is the sum of the ranks' Pss,
minus the Pss before the variables were created, and minus the arenas of the step. (In the Pss of a
process, a page that n processes share counts 1/n.) One line of JSON per form has the ratio to the
memory of one rank.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from timing import cpu_name, last_line

STEPS = 3


def pss() -> int:
    """Return this process's proportional share of the memory that it maps, in bytes."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def turn(megabytes: int, shard: str) -> None:
    """Train, and print the memory of all ranks on rank 0."""
    import ngd
    from ngd import ops, optim

    world = ngd.init()
    width = math.isqrt(megabytes * 2**20 // 4 // 3)
    world.barrier()
    before = pss()
    x = ngd.placeholder("x", (2, width))
    hidden, weights = x, []
    for layer in range(3):
        initial = np.full((width, width), 1e-3, np.float32)
        weights.append(ngd.variable(f"w{layer}", initial))
        hidden = ops.tanh(hidden @ weights[-1])
    updates = optim.Adam(1e-3).minimize(ops.mean(hidden), weights)
    del initial
    step = ngd.compile([x], [ops.mean(hidden)], updates, shard=shard)
    for _ in range(STEPS):
        step(np.ones((2, width), np.float32))
    world.barrier()
    memory = step.memory()
    pss_of_variables = pss() - before - memory["private"] - memory["shared"]
    total = int(world.all_reduce(np.array([pss_of_variables]), op="sum")[0])
    if world.rank == 0:
        print(json.dumps({"mib": round(total / 2**20), "of_one_rank": memory["variables"] / 2**20}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--megabytes", type=int, default=300, help="of weights")
    parser.add_argument("--turn", choices=["none", "host"], help="be one of the ranks")
    args = parser.parse_args()
    if args.turn:
        turn(args.megabytes, args.turn)
        return
    found: dict[tuple[int, str], dict[str, Any]] = {}
    for ranks, shard in ((1, "none"), (args.ranks, "none"), (args.ranks, "host")):
        launcher = [sys.executable, "-m", "ngd.launch", "-n", str(ranks), "--no-prefix", "--"]
        options = ["--turn", shard, "--megabytes", str(args.megabytes)]
        found[ranks, shard] = last_line([*launcher, __file__, *options], f"{ranks} ranks")
        ratio = found[ranks, shard]["mib"] / found[1, "none"]["mib"]
        line = {"ranks": ranks, "shard": shard, **found[ranks, shard], "over_one_rank": ratio}
        print(json.dumps({**line, "cpu": cpu_name()}), flush=True)


if __name__ == "__main__":
    main()
