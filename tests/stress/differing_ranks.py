# SPDX-License-Identifier: Apache-2.0
"""Tests jobs in which one rank differs from the others, in each way of differing_ways.py.

    python -m tests.stress.differing_ranks --runs 20 --seed 7

A run tests all ways in random order, with 2 to 4 ranks, a random odd rank and a random device. It
also gives one rank another value of each environment variable. For each way, all ranks must get an
error with the way's words, or the right numbers; no rank may hang. The ranks are real processes,
each with a deadline.

Prints one line of JSON with the seed and the counts. The exit code is 1 if there is a finding.
`--seconds N` stops after about N seconds, which may be in the middle of the list.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import ngd
from tests.stress.differing_ways import EITHER, NAMED, RIGHT, WAYS, Run, Way
from tests.support import harness

TIMEOUT = 8
"""The NGD_TIMEOUT of the jobs, in seconds."""
PER_WAY = 2 * TIMEOUT + 10.0
"""The seconds in which a way must end, including the next ngd.init()."""
START = 60.0
"""The seconds in which all ranks of a job must start."""
WAYS_PER_JOB = 8

SWITCHES: dict[str, tuple[str, str]] = {
    "NGD_THREADS": ("1", "2"),
    "NGD_SIMD": ("baseline", ""),
    "NGD_ALLREDUCE": ("ring", ""),
    "NGD_CHECK": ("0", "1"),
    "NGD_CHECK_FINITE": ("1", ""),
    "NGD_DEVICE": ("INTERPRETER", "CPU"),
    "NGD_TIMEOUT": ("20", "8"),
    "NGD_LOG": ("json", ""),
    "NGD_PROGRESS": ("off", ""),
    "NGD_COMM": ("self", ""),
    "NGD_JOB": ("another", ""),
    "NGD_EXPECT_SIZE": ("9", ""),
}
"""The value of the odd rank and the value of the other ranks, for each environment variable."""


def outcome_of(way: Way, run: Run) -> dict[str, Any]:
    """Run a way on this rank, and return how it ended."""
    try:
        way.run(run)
    except Exception as error:
        is_good = isinstance(error, (ngd.errors.Error, ValueError))
        text = str(error) if is_good else traceback.format_exc()
        return {"error": type(error).__name__, "text": text, "is_good": is_good}
    return {"error": "", "text": ""}


def run_ways(names: Sequence[str], seed: str, odd: int, device: str) -> list[dict[str, Any]]:
    """Run several ways on a rank, each in a new world."""
    outcomes = []
    for name in names:
        run = Run(ngd.init(), odd, device, random.Random(f"{seed}/{name}"))
        outcomes.append(outcome_of(WAYS[name], run))
        print(name, json.dumps(outcomes[-1]), flush=True)
        if not outcomes[-1]["error"]:
            try:
                ngd.barrier()  # reports a rank that left without an error
            except ngd.errors.Error as error:
                outcomes[-1] = {"error": type(error).__name__, "text": str(error), "is_good": True}
        ngd.shutdown()
    return outcomes


def train_with_environment(seed: str) -> dict[str, Any]:
    """Train on a rank, and return the result. The environment of the ranks differs."""
    try:
        run = Run(ngd.init(), 1, ngd._util.config.device(None, "test"), random.Random(seed))
        v = ngd.variable("v", np.ones((16, 16), np.float32))
        x = ngd.placeholder("x", (16, 16))
        loss = ngd.ops.sum(ngd.ops.square(x @ v))
        step = ngd.compile([x], [loss], ngd.optim.SGD(1e-4).minimize(loss, [v]))
        for _ in range(3):
            step(np.full((16, 16), run.world.rank + 1, np.float32))
        everywhere = run.world.all_gather(v.numpy()[None])
    except ngd.errors.Error as error:
        return {"error": type(error).__name__, "text": str(error), "is_good": True}
    return {
        "error": "",
        "text": "",
        "equal": bool((everywhere == everywhere[0]).all()),
        "size": run.world.size,
    }


def findings(way: Way, outcomes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the findings of a way from its outcome on each rank."""
    errors = [each["error"] for each in outcomes]
    verdict = way.verdict
    if verdict == EITHER:
        verdict = NAMED if any(errors) else RIGHT
    if verdict == RIGHT:
        return [f"rank {r}: {o}" for r, o in enumerate(outcomes) if o["error"]]
    texts = [f"rank {r} got no error" for r, error in enumerate(errors) if not error]
    texts += [f"rank {r}: {o}" for r, o in enumerate(outcomes) if o["error"] and not o["is_good"]]
    for rank, outcome in enumerate(outcomes):
        if outcome["error"] and "rank" not in outcome["text"]:
            texts.append(f"rank {rank}: names no rank: {outcome}")
    everything = " ".join(each["text"] for each in outcomes)
    texts += [f"no rank names {w!r}: {outcomes}" for w in way.words if w not in everything]
    return texts


def run_job(names: Sequence[str], seed: str, draw: random.Random) -> dict[str, list[str]]:
    """Run some ways in one job, and return the findings per way."""
    ranks = draw.randint(2, 4)
    how = {"odd": draw.randrange(ranks), "device": draw.choice(["CPU", "INTERPRETER"])}
    env = {"NGD_TIMEOUT": str(TIMEOUT), "NGD_COMM": "shm"}
    arguments = {"names": [*names], "seed": seed, **how}
    with harness.Job(run_ways, ranks, arguments=arguments, env=env) as job:
        outcomes = job.wait(START + PER_WAY * len(names))
        if any(each.value is None for each in outcomes):
            return {names[0]: [f"{names}, {how}: {' '.join(map(str, outcomes))}"]}
    return {
        name: [f"{how}, {ranks} ranks: {text}" for text in findings(WAYS[name], at)]
        for name, *at in zip(names, *(each.value for each in outcomes), strict=True)
    }


def run_switch(name: str, seed: str) -> list[str]:
    """Run two ranks with different values of an environment variable, and return the findings."""
    odd, usual = SWITCHES[name]
    env = {"NGD_TIMEOUT": str(TIMEOUT)}
    with harness.Job(train_with_environment, 2, arguments={"seed": seed}, env=env, start=[]) as job:
        for rank, value in enumerate((usual, odd)):
            own = {name: value} if value else {}
            job.start(rank, {**harness.plain_environment(rank, 2), **own})
        outcomes = [each.value for each in job.wait(START + 3 * TIMEOUT)]
    if any(each is None for each in outcomes):
        return [f"a rank died: {outcomes}"]
    if not any(each["error"] for each in outcomes):
        good = all(each["equal"] and each["size"] == 2 for each in outcomes)
        return [] if good else [f"no error, and {outcomes}"]
    return findings(Way(lambda run: None, NAMED), outcomes)


def plan(draw: random.Random, only: str) -> list[list[str]]:
    """Return all ways in random order, divided into jobs.

    In each job, the ways that end at the deadline are last.
    """
    names = [name for name in WAYS if only in name]
    draw.shuffle(names)
    jobs = [names[i : i + WAYS_PER_JOB] for i in range(0, len(names), WAYS_PER_JOB)]
    return [sorted(job, key=lambda name: WAYS[name].is_late) for job in jobs]


def main() -> int:
    """Run the ways, and report the findings."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", default="", help="ways and switches whose names contain this")
    args = parser.parse_args()
    begin = time.monotonic()
    counts: Counter[str] = Counter()
    found: list[str] = []
    for number in range(args.runs):
        draw = random.Random(f"{args.seed}/{number}")
        tasks: list[Any] = [*plan(draw, args.only), *(n for n in SWITCHES if args.only in n)]
        draw.shuffle(tasks)
        for task in tasks:
            if time.monotonic() - begin > args.seconds:
                break
            names = [task] if isinstance(task, str) else task
            counts["switches" if isinstance(task, str) else "ways"] += len(names)
            try:
                if isinstance(task, str):
                    result = {task: run_switch(task, str(args.seed))}
                else:
                    result = run_job(task, f"{args.seed}/{number}", draw)
            except BaseException as error:  # also pytest.fail() of the harness, at the deadline
                if isinstance(error, KeyboardInterrupt):
                    raise
                result = {names[0]: [f"{names} did not end: {type(error).__name__}: {error}"]}
            for name, texts in result.items():
                found += [f"{name}: {text}" for text in texts]
                for text in texts:
                    print(f"{name}: {text}", file=sys.stderr, flush=True)
    report = {"suite": "differing_ranks", "seed": args.seed, **counts, "findings": len(found)}
    print(json.dumps({**report, "seconds": round(time.monotonic() - begin)}))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
