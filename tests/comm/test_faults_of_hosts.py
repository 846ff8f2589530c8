# SPDX-License-Identifier: Apache-2.0
"""Tests of faults in transfers between hosts: busy calls, and memory and groups after a failure."""

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


# A call that raises BusyError, because another thread is in the shared-memory group.


def broadcast_while_a_thread_waits(steps: int) -> list[list[float]]:
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
    values = []
    for step in range(steps):
        array = np.full(4096, step if rank == 0 else -1, np.int64)
        while True:
            try:
                ngd.broadcast(array, 0, out=array)
                break
            except BusyError:
                time.sleep(0.001)
        values.append(sorted(set(array.tolist())))
    if rank < 2:
        thread.join()
    ngd.barrier()
    return values


def test_a_broadcast_after_busy_error_is_sent_once() -> None:
    steps = 30
    with Hosts(2) as hosts:
        arguments = {"steps": steps}
        outcomes = harness.run(
            broadcast_while_a_thread_waits, 4, arguments=arguments, launcher=hosts.launcher(2)
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


def interrupt_a_collective(kind: str, stopped: int) -> dict[str, Any]:
    """Interrupt one rank in a collective, and return changes in arrays that are made later."""
    world = harness.hurried(8)
    rank, size = world.rank, world.size
    atexit.register(time.sleep, 20)  # the exit of the first rank ends the others
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
    init_error = {"error": "none"}
    try:
        ngd.init()
    except ngd.errors.Error as error:
        init_error = {"error": type(error).__name__, "message": str(error)}
    time.sleep(0.3)
    changed = [int((array != 7.0).sum()) for array in fresh]
    return {"first": first, "after": after, "init": init_error, "changed": changed}


@pytest.mark.parametrize(
    ("kind", "stopped"),
    [("all_gather", 0), ("all_to_all", 0), ("reduce_scatter", 3), ("broadcast", 1)],
)
def test_an_interrupted_collective_does_not_change_later_arrays(kind: str, stopped: int) -> None:
    with Hosts(2) as hosts:
        hosts.slow_down("200mbit")
        arguments = {"kind": kind, "stopped": stopped}
        with Job(interrupt_a_collective, 4, arguments=arguments, launcher=hosts.launcher(2)) as job:
            values = job.values(range(4), 60)
    for rank, value in enumerate(values):
        assert value["changed"] == [0, 0, 0, 0], (rank, values)
        assert value["first"] == ("StoppedError" if rank == stopped else "RemoteRankError"), values
        assert value["after"] == ["GroupClosedError"] * 2, (rank, values)
        if value["init"]["error"] == "InitError":
            assert "Start a new process" in value["init"]["message"], values


# A failure in one group closes all of them.


def fail_in(failing: str, stopped: int) -> list[dict[str, Any]]:
    """Interrupt one rank in a group, and return the errors of later calls in each group."""
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
            # The interrupted rank may have arrived, so the barrier may be complete.
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
