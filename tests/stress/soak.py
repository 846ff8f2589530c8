# SPDX-License-Identifier: Apache-2.0
"""Kills a rank of a training loop at a random point, again and again.

    python -m tests.stress.soak --times 1000

Every kill has a job of its own, started by hand and under `ngd run` in turns. Half of the ranks are
killed from outside at a random time; the others die in the middle of a step: a timer goes off in
it. In half of the jobs the ranks share the variable (`shard="host"`). After the death a rank reads
it whole, or gets an error. Every other rank must raise RankLostError that names the right one in
under a second, nothing of the job may be left (processes, what they mapped, sockets, files in
/dev/shm), and the next job must start; by hand it has the same key. The exit code says whether all
went well.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import signal
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import ngd
from ngd import ops
from tests.support import harness

LAUNCHERS = ("plain", "ngd run")
COUNTS = (3, 700, 60_000, 1_000_000)
"""Elements that ride beside the flag, inline, in one piece, and in many."""


def train(count: int, victim: int, fuse: float, shard: str, depth: int) -> None:
    """Train for ever; where `fuse` is positive, the victim dies so many seconds into a step.

    Where it is negative, after such a share of what a step takes. `depth` is how many ops a new
    value is made by; they run behind all collectives of the step. The batch is a rank's number, so
    that all elements of the variable are equal between two steps.
    """
    world = ngd.init()
    w = ngd.variable("w", np.zeros(count))
    x = ngd.placeholder("x", (count,), np.float64)
    gradient = ops.all_reduce(ops.tanh(x + w), op="mean")
    following = w - 0.1 * gradient
    for _ in range(depth):
        following = ops.tanh(following)
    step = ngd.compile([x], [ops.sum(gradient)], {w: following}, shard=shard)
    mine, received = np.full(count, world.rank + 1.0), np.empty(count)
    batch = mine.copy()
    half = world.split(world.rank % 2)
    harness.say(json.dumps({"pid": os.getpid(), "maps": segments_of("self")}))
    try:
        number, took = 0, 0.0
        while True:
            number += 1
            begin = time.monotonic()
            if fuse != 0 and number == 8 and world.rank == victim:
                seconds = fuse if fuse > 0 else -fuse * took
                signal.setitimer(signal.ITIMER_REAL, seconds)  # nobody handles its signal: death
            step(mine)
            took = time.monotonic() - begin
            ngd.all_reduce(batch, op="max")
            ngd.broadcast(batch, root=number % world.size)
            half.all_reduce(batch, op="sum")
            ngd.all_gather(batch[:5000])
            sent = ngd.send(batch, (world.rank + 1) % world.size, async_op=True)
            ngd.recv((world.rank - 1) % world.size, out=received)
            sent.wait()
            if number % 3 == 0:
                ngd.barrier()
    except ngd.errors.CollectiveError as error:
        told = {"at": time.monotonic(), "error": type(error).__name__, "message": str(error)}
        harness.say(json.dumps({**told, "value": state_of(w)}))
        raise


def state_of(w: ngd.Variable) -> str:
    """Whether the variable is whole, or not and says so, or is torn."""
    try:
        value = w.numpy()
    except ngd.errors.PoisonedVariableError:
        return "poisoned"
    return "whole" if np.ptp(value) == 0 else "torn"


def segments_of(process: str) -> list[str]:
    """The inodes of the segments that a process maps or holds open; none if it is gone."""
    found: set[str] = set()
    with contextlib.suppress(OSError):
        maps = Path(f"/proc/{process}/maps").read_text()
        found |= set(re.findall(r" (\d+) +/memfd:ngd", maps))
        for entry in os.scandir(f"/proc/{process}/fd"):
            with contextlib.suppress(OSError):
                if "/memfd:ngd" in os.readlink(entry.path):
                    found.add(str(os.stat(entry.path).st_ino))
    return sorted(found)


def leftovers(segments: set[str]) -> list[str]:
    """Who still holds one of these segments, and sockets of ngd's that no process owns."""
    pids = [entry for entry in os.listdir("/proc") if entry.isdecimal()]
    held = [f"process {pid} holds a segment" for pid in pids if segments & set(segments_of(pid))]
    names = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    # Number 0 is a connection that its listener, which may be another job's, has yet to accept.
    bound = {name[6] for name in names if name[-1].startswith("@ngd-")} - {"0"}
    owned: set[str] = set()
    for pid in pids if bound else []:
        with contextlib.suppress(OSError):
            for entry in os.scandir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    owned |= set(re.findall(r"socket:\[(\d+)\]", os.readlink(entry.path)))
    return held + [f"socket {inode} is nobody's" for inode in bound - owned]


def said(job: harness.Job, rank: int) -> list[dict[str, Any]]:
    """The lines that a rank has printed so far."""
    lines = job.read(rank, "out").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def wait_until_said(job: harness.Job, rank: int, seconds: float) -> dict[str, Any]:
    limit = time.monotonic() + seconds
    while not said(job, rank):
        started = [*job.processes.values(), *([job.launcher] if job.launcher else [])]
        ended = any(harness.has_ended(process.pid) for process in started)
        if ended or time.monotonic() > limit:
            raise AssertionError(f"no training: {job.outcome(rank)}{job.said}")
        time.sleep(0.005)
    return said(job, rank)[0]


def gone(pid: int) -> bool:
    """Whether a process has died, be it a zombie or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def kill_once(ranks: int, launcher: str, random_: random.Random) -> tuple[str, float, float]:
    """Run a job and kill one of its ranks.

    Returns what was done and found, the seconds until the last of the others was told, and those
    until all had begun to train. Raises AssertionError for whatever is wrong.
    """
    victim, count = random_.randrange(ranks), random_.choice(COUNTS)
    fuse = random_.choice((0.0, random_.uniform(1e-6, 2e-3)))
    delay, depth = random_.uniform(0, 0.1), 0
    point = f"{fuse * 1e6:.0f} us into a step" if fuse else f"after {delay * 1e3:.0f} ms"
    shard = random_.choice(("none", "host"))
    if fuse and random_.random() < 0.75:
        count, depth, fuse = max(COUNTS), 12, -random_.uniform(0.4, 1)
        point = f"after {-fuse:.2f} of a step, most of which is its update"
    what = f"{launcher}, {count} elements, shard {shard}, rank {victim} {point}"
    arguments = {"count": count, "victim": victim, "fuse": fuse, "shard": shard}
    arguments["depth"] = depth
    begin = time.monotonic()
    with harness.Job(train, ranks, arguments=arguments, launcher=launcher) as job:
        started = [wait_until_said(job, rank, 60) for rank in range(ranks)]
        training = time.monotonic() - begin
        if not fuse:
            time.sleep(delay)
            os.kill(started[victim]["pid"], signal.SIGKILL)
        limit = time.monotonic() + 30
        while not gone(started[victim]["pid"]):
            assert time.monotonic() < limit, f"{what}: it did not die"
            time.sleep(0.0005)
        death = time.monotonic()
        outcomes = job.wait(20)
        if job.launcher is not None:
            number = signal.SIGALRM if fuse else signal.SIGKILL
            assert job.launcher.returncode == 128 + number, f"{what}: {job.said}"
        told = [said(job, rank)[1:] for rank in range(ranks)]
        assert not told[victim]
    slowest = 0.0
    for rank in set(range(ranks)) - {victim}:
        assert len(told[rank]) == 1, f"{what}: rank {rank} was not told: {outcomes[rank]}"
        (error,) = told[rank]
        assert error["error"] == "RankLostError", f"{what}: rank {rank}: {error}"
        assert f"rank {victim} " in error["message"], f"{what}: rank {rank}: {error}"
        assert outcomes[rank].code in (1, None), f"{what}: {outcomes[rank]}"
        assert error["value"] != "torn", f"{what}: rank {rank} reads a variable half written"
        what += f", rank {rank}: {error['value']}"
        slowest = max(slowest, error["at"] - death)
    assert slowest < 1, f"{what}: told after {slowest:.2f} s"
    segments = {inode for each in started for inode in each["maps"]}
    limit = time.monotonic() + 2  # another job may be meeting while we look
    while left := leftovers(segments):
        assert time.monotonic() < limit, f"{what}: {left}"
        time.sleep(0.05)
    return what, slowest, training


def main() -> int:
    """Run and count."""
    parser = argparse.ArgumentParser(description="Kill ranks of a training loop at random points.")
    parser.add_argument("--times", type=int, default=100)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--seed", type=int, default=None, help="default: another one each time")
    parser.add_argument("--launcher", choices=LAUNCHERS, default=None, help="default: in turns")
    parser.add_argument("--verbose", action="store_true", help="a line for every kill")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    random_ = random.Random(seed)
    failures, amid, delays, begin = 0, 0, [], time.monotonic()
    for number in range(options.times):
        launcher = options.launcher or LAUNCHERS[number % len(LAUNCHERS)]
        try:
            what, slowest, training = kill_once(options.ranks, launcher, random_)
        except (AssertionError, harness.pytest.fail.Exception) as error:
            failures += 1
            print(f"kill {number}: {error}", flush=True)
            continue
        delays.append(slowest)
        amid += "poisoned" in what
        if options.verbose:
            print(f"{what}: told in {slowest * 1e3:.1f} ms, began in {training:.2f} s", flush=True)
    seconds = time.monotonic() - begin
    if delays:
        median, most = statistics.median(delays) * 1e3, max(delays) * 1e3
        print(f"the others were told within {median:.1f} ms (median), {most:.1f} ms (at most)")
    print(f"{options.times} kills in {seconds:.0f} s, {amid} amid an update, {failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
