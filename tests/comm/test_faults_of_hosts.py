# SPDX-License-Identifier: Apache-2.0
"""Faults in transfers between hosts: refused steps, and memory and groups after a failure."""

from __future__ import annotations

import atexit
import contextlib
import gc
import signal
import threading
import time
from typing import Any

import numpy as np
import pytest

import ngd
from ngd.errors import BusyError
from tests.support import harness
from tests.support.harness import Job, caught
from tests.support.hosts import Hosts, permitted

__all__ = ["permitted"]

pytestmark = pytest.mark.usefixtures("permitted")

MIB = 1 << 20


def host_group(world: Any) -> Any:
    return world.split(world.rank // 2, world.rank)


# A step that shared memory refuses, because another thread is in there.


def broadcasts_beside_a_wait(steps: int) -> list[list[float]]:
    """Broadcast while a thread of rank 0 waits for rank 1 in the group of their host."""
    world = ngd.init()
    rank = world.rank
    host = host_group(world)
    ngd.barrier()

    def reduce_on_host() -> None:
        if rank == 1:
            time.sleep(1)
        host.all_reduce(np.ones(1000), op="sum")

    thread = threading.Thread(target=reduce_on_host)
    if rank < 2:
        thread.start()
        time.sleep(0.2)
    seen = []
    for step in range(steps):
        array = np.full(4096, step if rank == 0 else -1, np.int64)
        while True:
            try:
                ngd.broadcast(array, 0, out=array)
                break
            except BusyError:
                time.sleep(0.001)
        seen.append(sorted(set(array.tolist())))
    if rank < 2:
        thread.join()
    ngd.barrier()
    return seen


def test_a_broadcast_that_is_refused_is_sent_once() -> None:
    steps = 30
    with Hosts(2) as hosts:
        arguments = {"steps": steps}
        outcomes = harness.run(
            broadcasts_beside_a_wait, 4, arguments=arguments, launcher=hosts.launcher(2)
        )
    for outcome in outcomes:
        assert outcome.value == [[step] for step in range(steps)], outcome.rank


# Memory after a failure.


class StoppedError(Exception):
    pass


def stop(number: int, frame: Any) -> None:
    raise StoppedError


def large_collective(kind: str, source: Any, size: int) -> None:
    out = np.full(source.size, -5.0)
    if kind == "all_gather":
        ngd.all_gather(source[: source.size // size], out=out)
    elif kind == "all_to_all":
        ngd.all_to_all(source, out=out)
    elif kind == "reduce_scatter":
        ngd.reduce_scatter(source, op="sum", out=out[: source.size // size])
    else:
        ngd.broadcast(source, 0, out=out)


def interrupt_and_go_on(kind: str, stopped: int) -> dict[str, Any]:
    """Interrupt one rank in a collective; what happens to arrays that are made later."""
    world = harness.hurried(8)
    rank, size = world.rank, world.size
    atexit.register(time.sleep, 20)  # the first rank to exit ends the others
    host = host_group(world)
    source = np.full(16 * MIB // 8, rank + 1.0)
    large_collective(kind, source, size)
    ngd.barrier()
    if rank == stopped:
        signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
    first = "nothing"
    try:
        large_collective(kind, source, size)
    except (StoppedError, ngd.errors.Error) as error:
        first = type(error).__name__
        error.__traceback__ = None
    del source
    gc.collect()
    fresh = [np.full(16 * MIB // 8, 7.0) for _ in range(4)]
    after = [caught(lambda: host.all_reduce(np.ones(50_000), op="sum"))["error"] for _ in range(2)]
    ngd.shutdown()
    joined = {"error": "none"}
    try:
        ngd.init()
    except ngd.errors.Error as error:
        joined = {"error": type(error).__name__, "message": str(error)}
    time.sleep(0.3)
    changed = [int((array != 7.0).sum()) for array in fresh]
    return {"first": first, "after": after, "init": joined, "changed": changed}


@pytest.mark.parametrize(
    ("kind", "stopped"),
    [("all_gather", 0), ("all_to_all", 0), ("reduce_scatter", 3), ("broadcast", 1)],
)
def test_later_arrays_keep_what_is_in_them(kind: str, stopped: int) -> None:
    with Hosts(2) as hosts:
        hosts.slow_down("200mbit")
        arguments = {"kind": kind, "stopped": stopped}
        with Job(interrupt_and_go_on, 4, arguments=arguments, launcher=hosts.launcher(2)) as job:
            values = job.values(range(4), 60)
    for rank, value in enumerate(values):
        assert value["changed"] == [0, 0, 0, 0], (rank, values)
        assert value["first"] == ("StoppedError" if rank == stopped else "RemoteRankError"), values
        assert value["after"] == ["GroupClosedError"] * 2, (rank, values)
        if value["init"]["error"] == "InitError":
            assert "Start a new process" in value["init"]["message"], values


# A failure in one group closes all of them.


def fail_in(failing: str, stopped: int) -> list[dict[str, Any]]:
    """One rank is interrupted in a group; what later calls in each group raise."""
    world = harness.hurried(15)
    rank = world.rank
    atexit.register(time.sleep, 20)
    groups = {"world": world, "host": host_group(world), "across": world.split(rank % 2, rank)}
    ngd.barrier()
    if rank == stopped:
        signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with contextlib.suppress(StoppedError):
            groups[failing].barrier()
        signal.setitimer(signal.ITIMER_REAL, 0)
    else:
        time.sleep(1)
        with_it = {
            "world": True,
            "host": rank // 2 == stopped // 2,
            "across": rank % 2 == stopped % 2,
        }
        if with_it[failing]:
            # The rank was interrupted after it had come to the barrier, which may be complete.
            with contextlib.suppress(ngd.errors.Error):
                groups[failing].barrier()
    results = []
    for _ in range(2):
        for name in ("world", "host", "across"):
            results.append({"group": name, **caught(groups[name].barrier)})
    return results


@pytest.mark.parametrize(("failing", "stopped"), [("world", 1), ("host", 3), ("across", 0)])
def test_a_failure_closes_every_group_on_every_rank(failing: str, stopped: int) -> None:
    with Hosts(2) as hosts:
        arguments = {"failing": failing, "stopped": stopped}
        with Job(fail_in, 4, arguments=arguments, launcher=hosts.launcher(2)) as job:
            values = job.values(range(4), 60)
    for rank, results in enumerate(values):
        kinds = [each["error"] for each in results]
        if rank == stopped:
            assert kinds == ["GroupClosedError"] * 6, results
        else:
            assert kinds[0] in ("RemoteRankError", "GroupClosedError"), results
            assert kinds[1:] == ["GroupClosedError"] * 5, results
        for each in results:
            assert f"rank {stopped}" in each["message"] or rank == stopped, results
            assert "interrupted" in each["message"], results
            assert each["ranks"] == [stopped], results
