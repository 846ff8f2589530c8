# SPDX-License-Identifier: Apache-2.0
"""Makes, uses and ends worlds, groups, works and executables in many threads at once.

    python -m tests.stress.threads --runs 200 --seed 7

A run is the life of a world of two or three ranks. The main thread of each rank makes one random
sequence of collectives, splits and steps, which is equal on all ranks, and checks all results. At
the same time two threads drop groups and executables, compile, count, collect garbage, and poll
works, and signals interrupt the main thread. Some worlds end early: a thread or a handler of one
rank calls ngd.shutdown(), or reports a failure. Then every rank must soon get the right error, and
the next world must start. Some ranks end with a daemon thread in a collective.

Prints one line of JSON with the counts and the findings. The exit code is 1 if there is a finding.
Without --runs it stops after half a minute.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import json
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

import ngd
from ngd import ops
from ngd.errors import BusyError, CollectiveError, GroupClosedError, RankLostError, RemoteRankError
from tests.support import harness

ENDS = ("in order", "in order", "thread", "handler", "abort")
LIVES = 10
"""The number of worlds of a job."""

SOON = 20.0
"""Seconds, on a machine under load. NGD_TIMEOUT is 60."""


class Life:
    """One world, on one rank. All ranks get equal numbers from `common`."""

    def __init__(self, seed: str) -> None:
        self.common = random.Random(seed)
        self.world = ngd.init()
        self.own = random.Random(f"{seed}/{self.world.rank}")
        self.counts: Counter[str] = Counter()
        self.groups: list[ngd.Group] = []
        self.steps: list[Any] = []
        self.polled: list[ngd.Work] = []
        self.dropped: list[Any] = []
        self.is_over = threading.Event()
        self.found: list[str] = []
        self.lock = threading.Lock()

    def side_thread(self, seed: int) -> None:
        """Make random calls that any thread may make, until the world ends."""
        own = random.Random(seed)
        x = ngd.placeholder("x", (300,))

        def drop() -> None:
            with self.lock:
                thing = self.dropped.pop() if self.dropped else None
            self.counts["dropped"] += thing is not None

        def compile_() -> None:
            sum = ops.all_reduce(x + own.random(), op="sum")
            ngd.compile([x], [sum], group=self.world)
            self.counts["compiled"] += 1

        def poll() -> None:
            with self.lock:
                work = own.choice(self.polled) if self.polled else None
            if work is not None:
                work.done()
                self.counts["looks"] += 1

        def count() -> None:
            ngd.comm_stats()
            self.counts["statistics"] += 1

        calls: list[Callable[[], Any]] = [drop, compile_, poll, poll, count, gc.collect]
        while not self.is_over.is_set():
            try:
                own.choice(calls)()
            except (BusyError, CollectiveError):
                self.counts["refused"] += 1  # the world has ended, for example
            except Exception as error:
                self.found.append(f"a thread: {type(error).__name__}: {error}")
                return
            time.sleep(own.random() * 3e-3)

    def run(self) -> None:
        """Make the sequence of calls, and check every result."""
        for number in range(self.common.randrange(20, 80)):
            kind = self.common.choice(("sum", "sum", "works", "split", "step", "drop", "pair"))
            getattr(self, kind)(number)
            self.counts[kind] += 1

    def draw_group(self) -> ngd.Group:
        """Return the world, or one of the groups."""
        index = self.common.randrange(len(self.groups) + 1)
        return self.world if index == 0 else self.groups[index - 1]

    def check(self, got: Any, want: float, what: str) -> None:
        """Check every element of a result."""
        if not (np.asarray(got) == want).all():
            self.found.append(f"{what}: expected {want}; got {np.asarray(got).ravel()[:3]}")

    def retry(self, call: Callable[[], Any]) -> Any:
        """Call until no BusyError is raised."""
        while True:
            try:
                return call()
            except BusyError:
                self.counts["busy"] += 1
                time.sleep(1e-4)

    def sum(self, number: int) -> None:
        """Make one all_reduce of a random size."""
        group, size = self.draw_group(), self.common.choice((1, 200, 5_000, 100_000))
        mine = np.full(size, float(number + group.rank))
        got = self.retry(lambda: group.all_reduce(mine, op="sum"))
        self.check(got, number * group.size + sum(range(group.size)), "sum")

    def works(self, number: int) -> None:
        """Start many works, which other threads poll, and wait for them in a random order."""
        group, many = self.draw_group(), self.common.choice((3, 20, 150))
        started = []
        for i in range(many):
            mine = np.array([float(i + group.rank)])
            start = functools.partial(group.all_reduce, mine, op="sum", async_op=True)
            started.append((i, self.retry(start)))
            with self.lock:
                self.polled.append(started[-1][1])
        self.own.shuffle(started)
        for i, work in started:
            self.check(self.retry(work.wait), i * group.size + sum(range(group.size)), "work")
        with self.lock:
            self.polled.clear()

    def split(self, number: int) -> None:
        """Make another group."""
        if len(self.groups) < 6:
            group = self.retry(lambda: self.world.split(0, self.world.rank))
            self.groups.append(group)

    def step(self, number: int) -> None:
        """Compile and run a step in a group."""
        x = ngd.placeholder("x", (300,))
        group = self.draw_group()
        y = ops.all_reduce(x * float(number), op="mean")
        step = ngd.compile([x], [ops.all_reduce(y, op="sum")], group=group)
        got = self.retry(lambda: step(np.ones(300, np.float32)))
        self.check(got[0], number * group.size, "step")
        with self.lock:
            self.dropped.append(step)

    def drop(self, number: int) -> None:
        """Let another thread drop a group that all ranks have finished to use."""
        if self.groups:
            group = self.groups.pop(self.common.randrange(len(self.groups)))
            self.retry(group.barrier)
            with self.lock:
                self.dropped.append(group)

    def pair(self, number: int) -> None:
        """Send a message around the ring, while other calls are pending."""
        right, left = (self.world.rank + 1) % self.world.size, self.world.rank - 1
        message = np.full(self.common.choice((3, 40_000)), float(self.world.rank))
        got = np.empty_like(message)
        sent = self.retry(lambda: self.world.send(message, right, async_op=True))
        with self.lock:
            self.polled.append(sent)
        self.retry(lambda: self.world.recv(left % self.world.size, out=got))
        self.retry(sent.wait)
        self.check(got, left % self.world.size, "recv")


def end_early(life: Life, how: str) -> Callable[[], None]:
    """Let a thread or a handler end the world at a random time; return a function to cancel it."""
    delay = life.own.random() * 0.3

    def end() -> None:
        life.counts[f"ended by {how}"] += 1
        if how == "abort":
            life.world.abort("ValueError: on purpose")
        else:
            ngd.shutdown()

    if how == "handler":
        signal.signal(signal.SIGALRM, lambda *_: end())
        signal.setitimer(signal.ITIMER_REAL, delay + 1e-3)
        return lambda: signal.setitimer(signal.ITIMER_REAL, 0.0) and None
    timer = threading.Timer(delay, end)
    timer.start()

    def call_off() -> None:
        timer.cancel()
        timer.join()

    return call_off


def disturb(life: Life) -> None:
    """Interrupt the main thread regularly by a handler that reads statistics and collects."""

    def handle(*_: Any) -> None:
        life.counts["handlers"] += 1
        with contextlib.suppress(CollectiveError):
            ngd.comm_stats()
        gc.collect(0)

    signal.signal(signal.SIGPROF, handle)
    signal.setitimer(signal.ITIMER_PROF, 0.02, 0.02)


def run_world(seed: str, found: list[str], counts: Counter[str]) -> None:
    """Run one world; add its counts and findings."""
    life = Life(seed)
    how = life.common.choice(ENDS)
    chosen = life.world.rank == life.common.randrange(life.world.size)
    threads = [
        threading.Thread(target=life.side_thread, args=(life.own.randrange(2**30),))
        for _ in range(2)
    ]
    disturb(life)
    for thread in threads:
        thread.start()
    begin = time.monotonic()
    call_off = end_early(life, how) if chosen and how != "in order" else lambda: None
    try:
        life.run()
    except (GroupClosedError, RankLostError, RemoteRankError) as error:
        life.counts[type(error).__name__] += 1
        if how == "in order":
            life.found.append(f"{type(error).__name__}: {error}")
    except Exception as error:
        life.found.append(f"{type(error).__name__}: {error}")
    call_off()
    signal.setitimer(signal.ITIMER_PROF, 0.0)
    if (seconds := time.monotonic() - begin) > SOON:
        life.found.append(f"took {seconds:.0f} s")
    life.is_over.set()
    for thread in threads:
        thread.join(SOON)
        if thread.is_alive():
            life.found.append("a thread is stuck")
    for work in life.polled:  # otherwise it reports that it was dropped
        work.exception()
    ngd.shutdown()
    found += [f"{seed}, {how}, rank {life.world.rank}: {text}" for text in life.found]
    counts.update(life.counts)


def call_barriers(world: ngd.Group) -> None:
    """Call barriers in a daemon thread, until the other ranks have left or the program ends."""
    with contextlib.suppress(CollectiveError):
        while True:
            world.barrier()


def run_worlds(seed: str, number: int) -> Counter[str]:
    """Run `number` worlds on a rank. Rank 0 then ends with a daemon thread in a barrier.

    Raises AssertionError with the findings.
    """
    found: list[str] = []
    counts: Counter[str] = Counter()
    for i in range(number):
        run_world(f"{seed}.{i}", found, counts)
        if found:  # the other ranks may have no findings, so they are not called again
            raise AssertionError("; ".join(found))
    world = ngd.init()
    world.barrier()
    if world.rank == 0:
        threading.Thread(target=call_barriers, args=(world,), daemon=True).start()
        time.sleep(0.05)
    return counts


def job(seed: str, ranks: int, number: int) -> tuple[list[str], Counter[str]]:
    """Run one job; return the findings and the counts."""
    counts: Counter[str] = Counter()
    arguments = {"seed": seed, "number": number}
    try:
        with harness.Job(run_worlds, ranks, arguments=arguments) as running:
            outcomes = running.wait(30 + 2 * SOON * number)
    except BaseException as error:  # also that of pytest.fail
        return [f"{seed}: {error}"], counts
    found = []
    for outcome in outcomes:
        if outcome.code != 0 or outcome.err or outcome.value is None:
            found.append(f"{seed}: {outcome}")
        else:
            counts.update(outcome.value)
    return found, counts


def main() -> int:
    """Run the command line of the module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=0, help="lives of a world; 0: half a minute")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31))
    options = parser.parse_args()
    begin, runs, jobs = time.monotonic(), 0, 0
    found: list[str] = []
    counts: Counter[str] = Counter()
    while not found and (runs < options.runs if options.runs else time.monotonic() - begin < 30):
        number = min(LIVES, options.runs - runs) if options.runs else LIVES
        new, new_counts = job(f"{options.seed}.{jobs}", 2 + jobs % 2, number)
        found += new
        counts.update(new_counts)
        runs, jobs = runs + number, jobs + 1
    seconds = round(time.monotonic() - begin, 1)
    report = {"seed": options.seed, "runs": runs, "jobs": jobs, "seconds": seconds}
    print(json.dumps({**report, "counts": dict(sorted(counts.items())), "found": found}))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
