# SPDX-License-Identifier: Apache-2.0
"""Another user of the host attacks real jobs in random ways; see tests/support/attackers.py.

    python -m tests.stress.strangers --runs 500 --seed 1

Each run draws a launcher, a number of ranks, one to four kinds of attackers, and the number of the
job's names that squatters hold from the start. If a name is free, the job must work. If they hold
all names, it must fail on every rank with the error that names the user. No attacker may receive a
byte of any rank, and `ngd run` must name the rank that left, with its exit code. Prints one line of
JSON. The exit code is 1 if there is a finding. Needs root, to become the other user.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import secrets
import sys
import time
from pathlib import Path

from tests.support import harness
from tests.support.attackers import (
    KNOCKERS,
    NAMES,
    NOBODY,
    SQUATTERS,
    attackers,
    leave_with_3,
    meet_twice,
    names_of,
)
from tests.support.harness import Job

SECONDS = 240.0
"""The seconds for a job whose ranks share two cores with all attackers: over twice NGD_TIMEOUT."""

TIMEOUT = "100"
"""The NGD_TIMEOUT of a job, which has two rendezvous."""

LAUNCHERS = ("key", "torchrun", "plain", "ngd run", "mpirun")


def environment_of(launcher: str) -> tuple[dict[str, str], str | None]:
    """Return the environment of a job, and its key if other users can guess it."""
    if launcher == "key":  # set by hand, and known to others
        job = f"guessed-{secrets.token_hex(8)}"
        return {"NGD_JOB": job}, f"ngd:{job}"
    if launcher == "torchrun":
        env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(random.randrange(20000, 30000))}
        return env, f"torch:{':'.join(env.values())}::"
    if launcher == "plain":
        own = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        namespace = os.readlink("/proc/self/ns/pid")
        return {}, f"process:{namespace}:{os.getpid()}:{own[19]}"
    return {}, None


def attack(draw: random.Random) -> tuple[str, list[str]]:
    """Make one run; return a description and the findings."""
    launcher = draw.choice([each for each in LAUNCHERS if each != "mpirun" or harness.HAS_OPEN_MPI])
    env, key = environment_of(launcher)
    ranks = draw.randint(2, 4)
    num_held = draw.choice((1, 2, NAMES - 1, NAMES)) if key is not None else 0
    kinds = draw.sample(SQUATTERS, 1) if num_held else []
    kinds += draw.sample((*KNOCKERS, "forge"), draw.randint(0 if kinds else 1, 3))
    leaves = launcher == "ngd run" and draw.random() < 0.5
    num_taken = num_held if kinds[0] != "datagram" else 0  # occupies no name
    what = (
        f"{launcher}, {ranks} ranks, {kinds} on {num_held} names{', one leaves' if leaves else ''}"
    )
    env |= {"NGD_TIMEOUT": TIMEOUT}
    how = launcher if launcher in ("ngd run", "mpirun") else "plain"
    program = leave_with_3 if leaves else meet_twice
    findings: list[str] = []
    with attackers(kinds, names_of(key)[:num_held] if key else []) as started:
        with Job(program, ranks, env=env, launcher=how) as job:
            outcomes = job.wait(SECONDS)
            code = job.launcher.returncode if job.launcher is not None else 0
            output = job.said
        reports = [each.end() for each in started]
    findings += [f"an attacker heard {text!r}" for text in reports if text != "got 0 0\n"]
    if leaves:
        if code != 3 or "rank 1" not in output:
            findings.append(f"exit code {code}: {output}")
        return what, findings
    for outcome in outcomes:
        value = outcome.value or {}
        if num_taken == NAMES:
            good = f"uid {NOBODY} holds {NAMES} of" in value.get("message", "")
        else:
            good = value == {"sums": [sum(10**rank for rank in range(ranks))] * 2}
        if not good:
            findings.append(str(outcome))
    return what, findings


def main() -> int:
    """Make the runs, and report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    args = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("needs root, to become another user")
    kinds: collections.Counter[str] = collections.Counter()
    found: list[str] = []
    slowest = 0.0
    begin = time.monotonic()
    for run in range(args.runs):
        draw = random.Random(f"{args.seed}/{run}")
        since = time.monotonic()
        try:
            what, findings = attack(draw)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            what, findings = "a run that did not end", [f"{type(error).__name__}: {error}"]
        slowest = max(slowest, time.monotonic() - since)
        kinds[what.split(",")[0]] += 1
        for finding in findings:
            print(f"run {run} ({what}): {finding}", file=sys.stderr)
        found += findings
    print(
        json.dumps(
            {
                "suite": "strangers",
                "runs": args.runs,
                "seed": args.seed,
                "launchers": kinds,
                "findings": len(found),
                "slowest_s": round(slowest, 1),
                "seconds": round(time.monotonic() - begin),
            }
        )
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
