# SPDX-License-Identifier: Apache-2.0
"""Interrupts public calls at random points, and checks the ranks afterwards.

    python -m tests.stress.interrupts --runs 2000 --seed 7 --mode tracer

In a run, all ranks of a world make the same call. One of them is interrupted in it; in mode signal
sometimes all of them are. In mode tracer, a KeyboardInterrupt is raised before a random bytecode of
ngd's Python code. In mode signal, one or more signals arrive at random microseconds, while the
ranks wait for each other in native code. Then every rank checks docs/failure-model.md:

- All later collectives give exact results on all ranks, or every rank gets the error of a closed
  group, which names the rank that closed it. A rank that has skipped a call is noticed, because its
  next collective is another one than that of the other ranks.
- The other ranks have right results of the call.
- No rank hangs or dies, and no freed memory is written to.
- Variables, and the residual of a compression, have the value before or after the call, or they are
  poisoned.

The last line is a JSON object. The exit code is 1 if there are findings. `--only N` repeats run N
of a seed.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import secrets
import select
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from tests.stress import (
    interrupted_calls,
    interrupted_ranks,
)
from tests.support import harness

TIMEOUT_SECONDS = 4
"""The NGD_TIMEOUT of the ranks, which limits the wait for a rank that makes another call."""

RUN_SECONDS = 40
"""A rank that takes more seconds for a run counts as hung."""

NOTIFIED = (
    "GroupClosedError",
    "RemoteRankError",
    "RankLostError",
    "CollectiveMismatchError",
    "CollectiveTimeoutError",
    "InitError",
)


class HangError(Exception):
    """A rank did not answer, or has ended."""


class World:
    """Ranks that stay for many runs."""

    def __init__(self, communicator: str, ranks: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ngd-interrupts-"))
        self.orders, self.replies = [], []
        for rank in range(ranks):
            for name, pipes in (("orders", self.orders), ("replies", self.replies)):
                path = self.folder / f"{rank}.{name}"
                os.mkfifo(path)
                pipes.append(os.open(path, os.O_RDWR))
        env = {
            "NGD_JOB": secrets.token_hex(8),
            "NGD_TIMEOUT": str(TIMEOUT_SECONDS),
            "NGD_CHECK": "0",
        }
        arguments = {"folder": str(self.folder)}
        how = harness.over(communicator, ranks, arguments=arguments, env=env)
        self.job = harness.Job(interrupted_ranks.serve, ranks, **how)
        self.bytecodes: dict[Any, int] = {}
        self.start()

    def ask(self, order: dict[str, Any]) -> list[dict[str, Any]]:
        """Send an order to every rank, and return the answers."""
        line = json.dumps(order).encode() + b"\n"
        for pipe in self.orders:
            os.write(pipe, line)
        limit = time.monotonic() + RUN_SECONDS
        return [self._read(rank, limit) for rank in range(self.job.ranks)]

    def _read(self, rank: int, limit: float) -> dict[str, Any]:
        line = b""
        while not line.endswith(b"\n"):
            ready = select.select([self.replies[rank]], [], [], 0.2)[0]
            if ready:
                line += os.read(self.replies[rank], 1 << 16)
            elif self.job.any_has_ended():
                time.sleep(0.5)
                raise HangError(f"a rank has ended: {self._everything()}")
            elif time.monotonic() > limit:
                for process in self.job.processes.values():
                    process.send_signal(10)  # they print their stacks
                time.sleep(1)
                raise HangError(f"rank {rank} hangs: {self._everything()}")
        reply = json.loads(line)
        if "broken" in reply:
            raise HangError(f"rank {rank}: {reply['broken']}")
        return reply

    def _everything(self) -> str:
        codes = {rank: process.poll() for rank, process in self.job.processes.items()}
        return f"{codes}\n" + "\n".join(
            f"--- rank {rank}\n{self.job.read(rank, 'err')[-3000:]}"
            for rank in range(self.job.ranks)
        )

    def start(self) -> None:
        """Make a new group, after one that was closed."""
        self.ask({"do": "start"})

    def close(self) -> None:
        """End the ranks."""
        with self.job:
            for pipe in (*self.orders, *self.replies):
                os.close(pipe)
            shutil.rmtree(self.folder, ignore_errors=True)
            limit = time.monotonic() + 5
            while not all(map(harness.has_ended, self._pids())) and time.monotonic() < limit:
                time.sleep(0.01)

    def _pids(self) -> list[int]:
        return [process.pid for process in self.job.processes.values()]


def draw_order(seed: int, number: int, mode: str, ranks: int, only: str | None) -> dict[str, Any]:
    """Draw the order of a run, which depends only on the seed and the number of the run.

    `fraction` selects the bytecode of the call.
    """
    draw = random.Random(f"{seed} {number} {mode}")
    names = [n for n in interrupted_calls.CASES if mode == "tracer" or n not in SHORT]
    order: dict[str, Any] = {
        "do": "run",
        "mode": mode,
        "number": number,
        "case": draw.choice([n for n in names if only is None or n == only]),
        "count": draw.choice(interrupted_calls.ELEMENTS),
        "victims": [draw.randrange(ranks)],
        "late": [0.0] * ranks,
        "fraction": draw.random(),
    }
    if mode == "tracer":
        order["late"] = [draw.choice((0.0, 0.0, 1e-3)) for _ in range(ranks)]
        return order
    if draw.random() < 0.2:
        order["victims"] = list(range(ranks))
    late = draw.choice((0.0, draw.uniform(0, 2e-3), draw.uniform(0.05, 0.15)))
    order["late"] = [draw.choice((0.0, late)) for _ in range(ranks)]
    order["late"][order["victims"][0]] = 0.0
    order["first"] = draw.choice((draw.uniform(1e-6, 3e-4), draw.uniform(1e-6, late + 3e-4)))
    order["gaps"] = draw.choice(([], [], [draw.uniform(1e-6, 1e-3)], [1e-6, 5e-5, 0.06]))
    return order


SHORT = ("comm_stats", "assign")
"""The calls that never wait."""


def is_closed(reply: dict[str, Any]) -> bool:
    """Return if a rank got the error of a closed group."""
    return any(probe != "right" for probe in reply["probes"])


def judge(order: dict[str, Any], replies: list[dict[str, Any]]) -> list[str]:
    """Return the findings of a run."""
    wrong = [f"rank {rank}: {what}" for rank, r in enumerate(replies) for what in r["wrong"]]
    for rank, reply in enumerate(replies):
        errors = [reply["error"], *reply["probes"], *reply["works"]]
        for error in errors:
            if error is None or error == "right":
                continue
            if not isinstance(error, list) or error[0] not in NOTIFIED:
                wrong.append(f"rank {rank}: {error}")
            elif not any(word in error[1] for word in ("rank", "closed", "shut down")):
                wrong.append(f"rank {rank}: an error that names nobody: {error}")
        if reply["outcome"] == "value" and reply["state"] not in ("nothing", "after"):
            wrong.append(f"rank {rank}: a call that has returned leaves {reply['state']}")
    states = {is_closed(reply) for reply in replies}
    if len(states) > 1:
        wrong.append("the group works for some of the ranks only")
    if states != {False}:
        return wrong
    ends_world = order["case"] in interrupted_calls.LEAVE  # the next call makes a new world
    for rank, reply in enumerate(replies):
        if (reply["outcome"] == "error" and not ends_world) or reply["works"]:
            wrong.append(f"rank {rank}: an error, and yet the group works")
    others = {r["state"] for i, r in enumerate(replies) if i not in order["victims"]}
    mine = {replies[victim]["state"] for victim in order["victims"]}
    is_local = order["case"] in interrupted_calls.ALONE
    if not is_local and "after" in others and "before" in mine:
        wrong.append("the others are a step ahead, and the group works")
    return wrong


class Suite:
    """All runs. One world of two ranks and one of three run at a time."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.lock = threading.Lock()
        self.runs = 0
        self.kinds: collections.Counter[str] = collections.Counter()
        self.cases: collections.Counter[str] = collections.Counter()
        self.findings: list[str] = []

    def run_size(self, ranks: int) -> None:
        """Make the runs of one size of world."""
        options, world = self.options, None
        numbers = range(options.runs) if options.only is None else [options.only]
        limit = time.monotonic() + options.seconds
        for number in numbers:
            if 2 + number % 2 != ranks or time.monotonic() > limit:
                continue
            order = draw_order(options.seed, number, options.mode, ranks, options.case)
            try:
                world = world or World(options.communicator, ranks)
                replies = self.run_order(world, order)
                wrong = judge(order, replies)
                is_interrupted = any(reply["outcome"] == "interrupt" for reply in replies)
                needs_new_group = (
                    any(map(is_closed, replies)) or order["case"] in interrupted_calls.LEAVE
                )
                needs_new_group = needs_new_group or (
                    is_interrupted and order["case"] in interrupted_calls.MESSAGES
                )
                self.note(order, replies, wrong)
                if needs_new_group and options.communicator == "mpi":
                    world, _ = None, world.close()
                elif needs_new_group:
                    world.start()
            except (HangError, AssertionError, OSError) as error:
                self.note(order, [], [str(error)])
                if world is not None:
                    world.close()
                world = None
        if world is not None:
            world.close()

    def run_order(self, world: World, order: dict[str, Any]) -> list[dict[str, Any]]:
        """Make a run. The first run of a call in a world counts its bytecodes."""
        if order["mode"] == "tracer":
            key = order["case"], order["count"], order["victims"][0]
            if key not in world.bytecodes:
                replies = world.ask(order | {"at": 0})
                wrong = judge(order, replies)
                if wrong or any(reply["outcome"] != "value" for reply in replies):
                    raise AssertionError(f"not interrupted, and yet: {wrong} {replies}")
                world.bytecodes[key] = replies[order["victims"][0]]["bytecodes"]
                if order["case"] in interrupted_calls.LEAVE:
                    world.start()
            order["at"] = 1 + int(order["fraction"] * world.bytecodes[key])
        return world.ask(order)

    def note(self, order: dict[str, Any], replies: list[dict[str, Any]], wrong: list[str]) -> None:
        """Count a run, and print its findings."""
        with self.lock:
            self.runs += 1
            self.cases[order["case"]] += 1
            for victim in order["victims"] if replies else ():
                what = replies[victim]["outcome"]
                self.kinds[f"{what}, {'closed' if is_closed(replies[victim]) else 'open'}"] += 1
            if self.options.verbose:
                print(order, [r["outcome"] for r in replies], flush=True)
            if wrong:
                where = [r["where"] for r in replies if r["where"]]
                again = (
                    f"--mode {order['mode']} --seed {self.options.seed} --only {order['number']}"
                )
                if self.options.case:
                    again += f" --case {self.options.case}"
                lines = "\n  ".join(wrong)
                text = f"FINDING {order['case']} at {where} ({again}):\n  {lines}\n  {order}"
                self.findings.append(text)
                print(text, flush=True)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the options."""
    options = argparse.ArgumentParser(description="Interrupt public calls at random points.")
    options.add_argument("--runs", type=int, default=2000)
    options.add_argument("--seed", type=int, default=None, help="default: another one each time")
    options.add_argument("--mode", choices=("tracer", "signal"), default="tracer")
    options.add_argument("--communicator", choices=("shm", "mpi"), default="shm")
    options.add_argument("--case", choices=interrupted_calls.CASES, help="this call only")
    options.add_argument("--only", type=int, help="this run only")
    options.add_argument("--seconds", type=float, default=1e9, help="begin no run after so long")
    options.add_argument("--verbose", action="store_true", help="a line for every run")
    return options


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Make the runs, and return the report."""
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {options.seed}", flush=True)
    suite, begin = Suite(options), time.monotonic()
    threads = [threading.Thread(target=suite.run_size, args=(ranks,)) for ranks in (2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {
        "mode": options.mode,
        "seed": options.seed,
        "runs": suite.runs,
        "seconds": round(time.monotonic() - begin, 1),
        "kinds": dict(suite.kinds),
        "cases": dict(suite.cases),
        "findings": len(suite.findings),
    }


if __name__ == "__main__":
    report = run(parser().parse_args())
    print(json.dumps(report))
    sys.exit(1 if report["findings"] else 0)
