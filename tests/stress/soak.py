# SPDX-License-Identifier: Apache-2.0
"""Kills a rank of a training loop at a random point, many times.

    python -m tests.stress.soak --times 1000

Every kill has its own job, alternately with plain ranks and under `ngd run`. Half of the ranks are
killed from outside at a random time. The others die in the middle of a step, by a timer. In half of
the jobs the ranks share the variable (`shard="host"`). After the death a rank reads the complete
variable, or gets an error. Every other rank must raise RankLostError within a second, and name the
right rank. The job may leave nothing (processes, their mappings, sockets, files in /dev/shm), and
the next job must start; plain ranks use the same key again. The exit code is 1 if there are
failures.
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
"""Numbers of elements: beside the flag, inline, in one chunk, and in many chunks."""


def train(count: int, victim: int, fuse: float, shard: str, depth: int) -> None:
    """Train until a rank dies.

    If `fuse` is positive, the victim dies `fuse` seconds into a step. If it is negative, the victim
    dies after the fraction -fuse of the duration of a step. `depth` is the number of ops that
    compute a new value after all collectives of the step. The batch is the number of the rank, so
    all elements of the variable are equal between two steps.
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
        number, duration = 0, 0.0
        while True:
            number += 1
            begin = time.monotonic()
            if fuse != 0 and number == 8 and world.rank == victim:
                seconds = fuse if fuse > 0 else -fuse * duration
                signal.setitimer(signal.ITIMER_REAL, seconds)  # without a handler: death
            step(mine)
            duration = time.monotonic() - begin
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
        report = {"at": time.monotonic(), "error": type(error).__name__, "message": str(error)}
        harness.say(json.dumps({**report, "value": state_of(w)}))
        raise


def state_of(w: ngd.Variable) -> str:
    """Return "whole", "poisoned", or "torn" if only a part of the variable was updated."""
    try:
        value = w.numpy()
    except ngd.errors.PoisonedVariableError:
        return "poisoned"
    return "whole" if np.ptp(value) == 0 else "torn"


def segments_of(process: str) -> list[str]:
    """Return the inodes of the segments that a process maps or holds open."""
    inodes: set[str] = set()
    with contextlib.suppress(OSError):
        maps = Path(f"/proc/{process}/maps").read_text()
        inodes |= set(re.findall(r" (\d+) +/memfd:ngd", maps))
        for entry in os.scandir(f"/proc/{process}/fd"):
            with contextlib.suppress(OSError):
                if "/memfd:ngd" in os.readlink(entry.path):
                    inodes.add(str(os.stat(entry.path).st_ino))
    return sorted(inodes)


def leftovers(segments: set[str]) -> list[str]:
    """Return processes that hold one of these segments, and sockets of ngd without a process."""
    pids = [entry for entry in os.listdir("/proc") if entry.isdecimal()]
    holders = [f"process {pid} holds a segment" for pid in pids if segments & set(segments_of(pid))]
    names = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    # Inode 0 is a connection that its listener, maybe of another job, has not yet accepted.
    inodes = {name[6] for name in names if name[-1].startswith("@ngd-")} - {"0"}
    owned_inodes: set[str] = set()
    for pid in pids if inodes else []:
        with contextlib.suppress(OSError):
            for entry in os.scandir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    owned_inodes |= set(re.findall(r"socket:\[(\d+)\]", os.readlink(entry.path)))
    return holders + [f"socket {inode} is nobody's" for inode in inodes - owned_inodes]


def lines_of(job: harness.Job, rank: int) -> list[dict[str, Any]]:
    """Return the lines that a rank has printed so far."""
    lines = job.read(rank, "out").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def wait_for_line(job: harness.Job, rank: int, seconds: float) -> dict[str, Any]:
    limit = time.monotonic() + seconds
    while not lines_of(job, rank):
        started = [*job.processes.values(), *([job.launcher] if job.launcher else [])]
        has_ended = any(harness.has_ended(process.pid) for process in started)
        if has_ended or time.monotonic() > limit:
            raise AssertionError(f"no training: {job.outcome(rank)}{job.said}")
        time.sleep(0.005)
    return lines_of(job, rank)[0]


def is_dead(pid: int) -> bool:
    """Return if a process has died. A zombie counts as dead."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def kill_once(ranks: int, launcher: str, random_: random.Random) -> tuple[str, float, float]:
    """Run a job, and kill one of its ranks.

    Returns a description of the outcome, the seconds until the last rank raised its error, and the
    seconds until all ranks had started to train. Raises AssertionError if something is wrong.
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
        started = [wait_for_line(job, rank, 60) for rank in range(ranks)]
        training = time.monotonic() - begin
        if not fuse:
            time.sleep(delay)
            os.kill(started[victim]["pid"], signal.SIGKILL)
        limit = time.monotonic() + 30
        while not is_dead(started[victim]["pid"]):
            assert time.monotonic() < limit, f"{what}: it did not die"
            time.sleep(0.0005)
        death = time.monotonic()
        outcomes = job.wait(20)
        if job.launcher is not None:
            number = signal.SIGALRM if fuse else signal.SIGKILL
            assert job.launcher.returncode == 128 + number, f"{what}: {job.said}"
        errors_of = [lines_of(job, rank)[1:] for rank in range(ranks)]
        assert not errors_of[victim]
    slowest = 0.0
    for rank in set(range(ranks)) - {victim}:
        assert len(errors_of[rank]) == 1, f"{what}: rank {rank} was not told: {outcomes[rank]}"
        (error,) = errors_of[rank]
        assert error["error"] == "RankLostError", f"{what}: rank {rank}: {error}"
        assert f"rank {victim} " in error["message"], f"{what}: rank {rank}: {error}"
        assert outcomes[rank].code in (1, None), f"{what}: {outcomes[rank]}"
        assert error["value"] != "torn", f"{what}: rank {rank} reads a variable half written"
        what += f", rank {rank}: {error['value']}"
        slowest = max(slowest, error["at"] - death)
    assert slowest < 1, f"{what}: told after {slowest:.2f} s"
    segments = {inode for each in started for inode in each["maps"]}
    limit = time.monotonic() + 2  # the rendezvous of another job may be open
    while remaining := leftovers(segments):
        assert time.monotonic() < limit, f"{what}: {remaining}"
        time.sleep(0.05)
    return what, slowest, training


def main() -> int:
    """Run the kills, and report."""
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
    failures, poisoned, delays, begin = 0, 0, [], time.monotonic()
    for number in range(options.times):
        launcher = options.launcher or LAUNCHERS[number % len(LAUNCHERS)]
        try:
            what, slowest, training = kill_once(options.ranks, launcher, random_)
        except (AssertionError, harness.pytest.fail.Exception) as error:
            failures += 1
            print(f"kill {number}: {error}", flush=True)
            continue
        delays.append(slowest)
        poisoned += "poisoned" in what
        if options.verbose:
            print(f"{what}: told in {slowest * 1e3:.1f} ms, began in {training:.2f} s", flush=True)
    seconds = time.monotonic() - begin
    if delays:
        median, most = statistics.median(delays) * 1e3, max(delays) * 1e3
        print(f"the others were told within {median:.1f} ms (median), {most:.1f} ms (at most)")
    print(
        f"{options.times} kills in {seconds:.0f} s, {poisoned} amid an update, {failures} failures"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
