# SPDX-License-Identifier: Apache-2.0
"""Makes, uses and tears down worlds, groups, works and executables in many threads at once.

    python -m tests.stress.threads --runs 200 --seed 7

A run is the life of a world of two or three ranks. The main thread of each rank goes through one
random sequence of collectives, splits and steps, equal on all ranks, and checks all results. Beside
it two threads drop groups and executables, compile, count, collect garbage, and look at works, and
signals interrupt it. Some worlds end before their time: a thread or a handler of one rank calls
ngd.shutdown(), or tells that it has failed. Then every rank must get the right error, soon, and the
next world must start. Some ranks end with a daemon thread in a collective.

Prints one line of JSON: how many of what, and what was found. The exit code says whether that was
nothing. Without --runs it stops after half a minute.
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
"""Of a job."""

SOON = 20.0
"""Seconds, on a machine that has other things to do; NGD_TIMEOUT is 60."""


class Life:
    """One world, on one rank. What is decided by `common` is equal on all ranks."""

    def __init__(self, seed: str) -> None:
        self.common = random.Random(seed)
        self.world = ngd.init()
        self.own = random.Random(f"{seed}/{self.world.rank}")
        self.counts: Counter[str] = Counter()
        self.groups: list[ngd.Group] = []
        self.steps: list[Any] = []
        self.looked_at: list[ngd.Work] = []
        self.dropped: list[Any] = []
        self.over = threading.Event()
        self.found: list[str] = []
        self.lock = threading.Lock()

    def side_thread(self, seed: int) -> None:
        """Do what any thread may, until the life is over."""
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

        def look() -> None:
            with self.lock:
                work = own.choice(self.looked_at) if self.looked_at else None
            if work is not None:
                work.done()
                self.counts["looks"] += 1

        def count() -> None:
            ngd.comm_stats()
            self.counts["statistics"] += 1

        calls: list[Callable[[], Any]] = [drop, compile_, look, look, count, gc.collect]
        while not self.over.is_set():
            try:
                own.choice(calls)()
            except (BusyError, CollectiveError):
                self.counts["refused"] += 1  # the world has ended, say
            except Exception as error:
                self.found.append(f"a thread: {type(error).__name__}: {error}")
                return
            time.sleep(own.random() * 3e-3)

    def go(self) -> None:
        """Go through the sequence; check every result."""
        for number in range(self.common.randrange(20, 80)):
            kind = self.common.choice(("sum", "sum", "works", "split", "step", "drop", "pair"))
            getattr(self, kind)(number)
            self.counts[kind] += 1

    def ranks(self) -> ngd.Group:
        """The world, or one of the groups."""
        place = self.common.randrange(len(self.groups) + 1)
        return self.world if place == 0 else self.groups[place - 1]

    def check(self, got: Any, want: float, what: str) -> None:
        """Every element is what it must be."""
        if not (np.asarray(got) == want).all():
            self.found.append(f"{what}: expected {want}; got {np.asarray(got).ravel()[:3]}")

    def again(self, call: Callable[[], Any]) -> Any:
        """Call until no other thread is in the way."""
        while True:
            try:
                return call()
            except BusyError:
                self.counts["busy"] += 1
                time.sleep(1e-4)

    def sum(self, number: int) -> None:
        """One all_reduce of some size."""
        group, size = self.ranks(), self.common.choice((1, 200, 5_000, 100_000))
        mine = np.full(size, float(number + group.rank))
        got = self.again(lambda: group.all_reduce(mine, op="sum"))
        self.check(got, number * group.size + sum(range(group.size)), "sum")

    def works(self, number: int) -> None:
        """Many at once, looked at by other threads, waited for in an order of one's own."""
        group, many = self.ranks(), self.common.choice((3, 20, 150))
        begun = []
        for i in range(many):
            mine = np.array([float(i + group.rank)])
            start = functools.partial(group.all_reduce, mine, op="sum", async_op=True)
            begun.append((i, self.again(start)))
            with self.lock:
                self.looked_at.append(begun[-1][1])
        self.own.shuffle(begun)
        for i, work in begun:
            self.check(self.again(work.wait), i * group.size + sum(range(group.size)), "work")
        with self.lock:
            self.looked_at.clear()

    def split(self, number: int) -> None:
        """A group more."""
        if len(self.groups) < 6:
            group = self.again(lambda: self.world.split(0, self.world.rank))
            self.groups.append(group)

    def step(self, number: int) -> None:
        """A step in a group, sometimes a new one."""
        x = ngd.placeholder("x", (300,))
        group = self.ranks()
        y = ops.all_reduce(x * float(number), op="mean")
        step = ngd.compile([x], [ops.all_reduce(y, op="sum")], group=group)
        got = self.again(lambda: step(np.ones(300, np.float32)))
        self.check(got[0], number * group.size, "step")
        with self.lock:
            self.dropped.append(step)

    def drop(self, number: int) -> None:
        """Another thread ends a group that everybody is done with."""
        if self.groups:
            group = self.groups.pop(self.common.randrange(len(self.groups)))
            self.again(group.barrier)
            with self.lock:
                self.dropped.append(group)

    def pair(self, number: int) -> None:
        """A message around the ring, beside what is under way."""
        right, left = (self.world.rank + 1) % self.world.size, self.world.rank - 1
        message = np.full(self.common.choice((3, 40_000)), float(self.world.rank))
        got = np.empty_like(message)
        sent = self.again(lambda: self.world.send(message, right, async_op=True))
        with self.lock:
            self.looked_at.append(sent)
        self.again(lambda: self.world.recv(left % self.world.size, out=got))
        self.again(sent.wait)
        self.check(got, left % self.world.size, "recv")


def end_early(life: Life, how: str) -> Callable[[], None]:
    """Let a thread, or a handler, end the world at a random time; returns what calls that off."""
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
    """Interrupt the main thread now and then by a handler that asks and collects."""

    def handle(*_: Any) -> None:
        life.counts["handlers"] += 1
        with contextlib.suppress(CollectiveError):
            ngd.comm_stats()
        gc.collect(0)

    signal.signal(signal.SIGPROF, handle)
    signal.setitimer(signal.ITIMER_PROF, 0.02, 0.02)


def live(seed: str, found: list[str], counts: Counter[str]) -> None:
    """One life; adds what was counted and what was found."""
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
        life.go()
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
    life.over.set()
    for thread in threads:
        thread.join(SOON)
        if thread.is_alive():
            life.found.append("a thread is stuck")
    for work in life.looked_at:  # else it says that it was dropped
        work.exception()
    ngd.shutdown()
    found += [f"{seed}, {how}, rank {life.world.rank}: {text}" for text in life.found]
    counts.update(life.counts)


def wait_for_ever(world: ngd.Group) -> None:
    """What a daemon thread does, until the other ranks have left, or the program ends."""
    with contextlib.suppress(CollectiveError):
        while True:
            world.barrier()


def lives(seed: str, number: int) -> Counter[str]:
    """What a rank runs: so many lives; one rank then ends with a daemon thread in a barrier.

    Raises AssertionError with what it has found.
    """
    found: list[str] = []
    counts: Counter[str] = Counter()
    for i in range(number):
        live(f"{seed}.{i}", found, counts)
        if found:  # the others may have found nothing: they are not met again
            raise AssertionError("; ".join(found))
    world = ngd.init()
    world.barrier()
    if world.rank == 0:
        threading.Thread(target=wait_for_ever, args=(world,), daemon=True).start()
        time.sleep(0.05)
    return counts


def job(seed: str, ranks: int, number: int) -> tuple[list[str], Counter[str]]:
    """One job; what was found, and what was counted."""
    counts: Counter[str] = Counter()
    arguments = {"seed": seed, "number": number}
    try:
        with harness.Job(lives, ranks, arguments=arguments) as running:
            outcomes = running.wait(30 + 2 * SOON * number)
    except BaseException as error:  # pytest.fail's, too
        return [f"{seed}: {error}"], counts
    found = []
    for outcome in outcomes:
        if outcome.code != 0 or outcome.err or outcome.value is None:
            found.append(f"{seed}: {outcome}")
        else:
            counts.update(outcome.value)
    return found, counts


def main() -> int:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=0, help="lives of a world; 0: half a minute")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31))
    wanted = parser.parse_args()
    begin, runs, jobs = time.monotonic(), 0, 0
    found: list[str] = []
    counts: Counter[str] = Counter()
    while not found and (runs < wanted.runs if wanted.runs else time.monotonic() - begin < 30):
        number = min(LIVES, wanted.runs - runs) if wanted.runs else LIVES
        new, counted = job(f"{wanted.seed}.{jobs}", 2 + jobs % 2, number)
        found += new
        counts.update(counted)
        runs, jobs = runs + number, jobs + 1
    seconds = round(time.monotonic() - begin, 1)
    report = {"seed": wanted.seed, "runs": runs, "jobs": jobs, "seconds": seconds}
    print(json.dumps({**report, "counts": dict(sorted(counts.items())), "found": found}))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
