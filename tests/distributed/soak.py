# SPDX-License-Identifier: Apache-2.0
"""Kills a rank of the example at a random moment of its training, again and again.

    python tests/distributed/soak.py --times 50

Every other rank must exit non-zero within two seconds, naming the lost one, while it is still a
zombie; nothing may be left. One line a kill; the exit code says whether all went well.
"""

from __future__ import annotations

import argparse
import random
import runpy
import sys
import time
from pathlib import Path

import harness

DATA_ARGUMENTS = ["--epochs", "100000", "--batch", "64"]


def example(arguments: list[str]) -> None:
    """What a rank runs: the example, as from the command line."""
    path = harness.EXAMPLES / "dist_mnist_mlp.py"
    sys.argv = [str(path), *arguments]
    sys.path.insert(0, str(path.parent))
    runpy.run_path(str(path), run_name="__main__")


def kill_once(ranks: int, victim: int, delay: float, arguments: list[str]) -> str:
    """Run the example, kill, and return what is wrong with what follows ("" if nothing)."""
    with harness.Job(example, ranks, arguments={"arguments": arguments}) as job:
        limit = time.monotonic() + 120
        while "epoch 1:" not in job.read(0, "err") and "epoch 2:" not in job.read(0, "err"):
            if time.monotonic() > limit:
                return f"no training in 120 s: {job.outcome(0)}"
            time.sleep(0.01)
        time.sleep(delay)
        job.kill(victim)
        since = time.monotonic()
        survivors = [rank for rank in range(ranks) if rank != victim]
        outcomes = job.wait(20, survivors)
        seconds = time.monotonic() - since
        state = Path(f"/proc/{job.processes[victim].pid}/stat").read_text().rpartition(")")[2]
        print(f"{ranks} ranks, rank {victim} after {delay:.3f} s: {seconds:.2f} s", flush=True)
        if state.split()[0] != "Z":
            return "the dead rank was reaped before the others ended"
        if seconds >= 2:
            return f"the others took {seconds:.2f} s"
        for outcome in outcomes:
            if outcome.code == 0 or f"rank {victim}" not in outcome.err:
                return str(outcome)
    return ""


def main() -> int:
    """Run and count."""
    parser = argparse.ArgumentParser(description="Kill ranks of the example at random moments.")
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", default=None, help="MNIST's files; default: bundled digits")
    options = parser.parse_args()
    arguments = DATA_ARGUMENTS + (["--data", options.data] if options.data else [])
    draw, failures = random.Random(options.seed), 0
    for number in range(options.times):
        ranks = (2, 4)[number % 2]
        problem = kill_once(ranks, draw.randrange(ranks), draw.uniform(0, 0.5), arguments)
        if problem:
            failures += 1
            print(f"FAILED: {problem}", flush=True)
    print(f"{options.times - failures} of {options.times} went well", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
