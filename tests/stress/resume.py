# SPDX-License-Identifier: Apache-2.0
"""Kills trainings at random, resumes them, and compares them with trainings without kills.

    python -m tests.stress.resume --runs 500 --seed 7

A run is one training with a drawn optimizer, schedule, average, loss scale, sampler, number of
loading processes, random state and sharding, by `ngd.compile`, `@ngd.function` or `train.Trainer`,
on one or two ranks. It is killed up to three times: by SIGKILL from outside at a random time, or at
a random system call of a save. After each kill, a new process resumes it. At the end all variables,
states and losses must have the bits of a training that was never killed.

Prints one line of JSON: the seed, counts of runs and kills, and the findings. The exit code is 1 if
there is a finding. Without --runs it stops after --seconds. `--first N` starts at run N of a seed.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from ngd import checkpoint
from tests.stress import resumed_training as training
from tests.support import harness

CALLS = {
    "write": 150,
    "fsync": 40,
    "after fsync": 40,
    "replace": 20,
    "after replace": 20,
    "unlink": 9,
}
"""The calls of a save at which a process dies, and about how many of them ten saves make."""
MOST_KILLS = 3
DEADLINE = 120.0
"""The seconds in which one process of a training must end."""

ENVIRONMENT = {"NGD_THREADS": "1", "NGD_CHECK": "0"}


class Suite:
    """The runs, their counts and their findings."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.counts: Counter[str] = Counter()
        self.found: list[str] = []
        self.seconds = 1.0
        """The time that a training takes, as a moving average."""

    def run(self, number: int) -> None:
        """Train, kill, resume and compare once."""
        random_ = random.Random(f"{self.seed}.{number}")
        scenario = training.draw_scenario(random_, number)
        kills = random_.randint(1, MOST_KILLS)
        folder = tempfile.mkdtemp(prefix="ngd-resume-")
        done: list[str] = []
        try:
            for _ in range(kills):
                done.append(self.life(scenario, folder, random_))
                if done[-1] == "finished":
                    break
            if done[-1] != "finished":
                done.append(self.life(scenario, folder, None))
        except BaseException as error:  # also that of pytest.fail
            self.found.append(f"{self.seed}.{number}: {scenario}, {done}: {error}")
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        self.counts[scenario["how"]] += 1
        self.counts[f"{scenario['ranks']} ranks"] += 1

    def life(self, scenario: dict[str, Any], folder: str, random_: random.Random | None) -> str:
        """Run the training once, and kill it if `random_` is given; return how it ended."""
        where, victim, number = "", -1, 0
        if random_ is not None and random_.random() < 0.5:
            where, victim = random_.choice([*CALLS]), 0  # rank 0 writes
            number = random_.randint(1, CALLS[where])
        arguments = {"scenario": scenario, "folder": folder, "victim": victim, "number": number}
        arguments["where"] = where
        ranks = scenario["ranks"]
        with harness.Job(
            training.train_and_compare, ranks, arguments=arguments, env=ENVIRONMENT
        ) as job:
            for rank in range(ranks):
                job.wait_for(rank, "begun", DEADLINE)
            begin = time.monotonic()
            if where:
                return self.end_of(job, begin, f"killed at {where} {number}")
            if random_ is None:
                return self.end_of(job, begin, "")
            saves, delay = random_.choice([0, *range(1, 10)]), random_.uniform(0, 0.05)
            victims = random_.choice([[0], [ranks - 1], [*range(ranks)]])
            before = number_of_saves(folder)
            while number_of_saves(folder) < before + saves and not is_over(job):
                time.sleep(0.001)
            time.sleep(delay if saves else random_.uniform(0, self.seconds))
            if "finished" in job.read(0, "out"):
                return self.end_of(job, begin, "")
            for rank in victims:
                with suppress(ProcessLookupError):
                    job.kill(rank)
            return self.end_of(job, begin, "killed from outside")

    def end_of(self, job: harness.Job, begin: float, killed: str) -> str:
        """Wait for the end of a process, and check that it ended as planned."""
        while not is_over(job):
            time.sleep(0.002)
            if time.monotonic() > begin + DEADLINE:
                raise AssertionError(f"it takes longer than {DEADLINE} s: {job.everything}")
        if "finished" in job.read(0, "out") and not killed:
            self.seconds = 0.7 * self.seconds + 0.3 * (time.monotonic() - begin)
        outcomes = job.wait(DEADLINE)
        self.counts["resumes"] += "resumes" in outcomes[0].out
        codes = {outcome.code for outcome in outcomes}
        if -signal.SIGKILL in codes and killed:
            self.counts[killed.rstrip("0123456789 ")] += 1
            self._expect_lost(outcomes)
            return killed
        for outcome in outcomes:
            if outcome.code != 0 or outcome.value is None or outcome.err:
                raise AssertionError(str(outcome))
            if outcome.value:
                raise AssertionError(f"rank {outcome.rank}: these differ: {outcome.value}")
        self.counts["resumed to the end"] += 1
        return "finished"

    def _expect_lost(self, outcomes: list[Any]) -> None:
        """Check that the other ranks raise RankLostError, or had finished."""
        for outcome in outcomes:
            if outcome.code not in (-signal.SIGKILL, 0) and "RankLostError" not in outcome.err:
                raise AssertionError(str(outcome))


def number_of_saves(folder: str) -> int:
    """Return how often a checkpoint was saved into the folder."""
    try:
        index: dict[str, Any] = json.loads((Path(folder) / checkpoint.INDEX).read_text())
    except FileNotFoundError:
        return 0
    return int(index["number"])


def is_over(job: harness.Job) -> bool:
    """Return if the training of a job has finished, or a rank has ended."""
    return "finished" in job.read(0, "out") or job.any_has_ended()


def main() -> int:
    """Run the command line of the module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=0, help="trainings; 0: as --seconds says")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31))
    parser.add_argument("--first", type=int, default=0, help="the number of the first run")
    options = parser.parse_args()
    begin, number = time.monotonic(), options.first
    suite = Suite(options.seed)

    def is_enough() -> bool:
        if options.runs:
            return number >= options.first + options.runs
        return time.monotonic() - begin >= options.seconds

    while not suite.found and not is_enough():
        suite.run(number)
        number += 1
    seconds = round(time.monotonic() - begin, 1)
    report = {"seed": options.seed, "runs": number - options.first, "seconds": seconds}
    print(json.dumps({**report, **dict(sorted(suite.counts.items())), "found": suite.found}))
    return 1 if suite.found else 0


if __name__ == "__main__":
    sys.exit(main())
