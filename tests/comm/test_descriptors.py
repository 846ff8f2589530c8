# SPDX-License-Identifier: Apache-2.0
"""Tests of programs that close file descriptors of ngd: collectives and failure detection work."""

from __future__ import annotations

import os
import resource
import signal
import time
from typing import Any

import numpy as np
import pytest

import ngd
from ngd import ops
from tests.support import harness
from tests.support.harness import Job, caught, run

pytestmark = harness.needs_ranks


def close_all() -> None:
    os.closerange(3, 4096)


def run_collectives(world: ngd.Group) -> list[float]:
    """Run small and large collectives, a smaller group, and a step in shared memory."""
    total = ngd.all_reduce(np.full(300_000, world.rank + 1.0), op="sum")
    half = world.split(world.rank % 2)
    x = ngd.placeholder("x", (200_000,), np.float32)
    y = ops.all_reduce(x * 2.0, op="sum")
    step = ngd.compile([x], [y])
    (result,) = step(np.full(200_000, world.rank + 1.0, np.float32))
    small = float(half.all_reduce(world.rank, op="sum"))
    return [float(total[-1]), float(result[-1]), small]


def close_and_use(who: list[int], reuse: bool) -> list[float]:
    world = ngd.init()
    ngd.barrier()
    others: list[Any] = []
    if world.rank in who:
        close_all()
        if reuse:  # each number gets another file: some are readable, some never are
            others = [os.pipe() for _ in range(10)]
            others += [os.open("/etc/passwd", os.O_RDONLY) for _ in range(40)]
    time.sleep(0.2 * world.rank)  # early ranks check whether the late ones are alive
    results = run_collectives(world)
    ngd.shutdown()
    for each in others:  # no other code has closed them
        for descriptor in each if isinstance(each, tuple) else [each]:
            os.close(descriptor)
    ngd.init()
    assert int(ngd.all_reduce(1, op="sum")) == world.size
    return results


@pytest.mark.parametrize("reuse", [False, True])
@pytest.mark.parametrize("who", [[0], [0, 1, 2]])
def test_closed_descriptors_change_no_result(who: list[int], reuse: bool) -> None:
    outcomes = run(close_and_use, 3, arguments={"who": who, "reuse": reuse})
    for outcome in outcomes:
        assert outcome.value == [6.0, 12.0, 1.0 if outcome.rank == 1 else 2.0]


def close_and_wait_for_a_dead_rank(reuse: bool) -> dict[str, Any]:
    world = ngd.init()
    ngd.barrier()
    close_all()
    pipes = [os.pipe() for _ in range(10)] if reuse else []
    ngd.barrier()
    if world.rank == 1:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    since = time.monotonic()
    error = caught(ngd.barrier)
    for pair in pipes:
        os.close(pair[0])
    return {**error, "seconds": time.monotonic() - since}


@pytest.mark.parametrize("reuse", [False, True])
def test_a_death_is_noticed_without_descriptors(reuse: bool) -> None:
    with Job(close_and_wait_for_a_dead_rank, 3, arguments={"reuse": reuse}) as job:
        outcomes = job.wait(30)
    for rank in (0, 2):
        assert outcomes[rank].value["error"] == "RankLostError", outcomes[rank]
        assert "rank 1" in outcomes[rank].value["message"]
        assert outcomes[rank].value["seconds"] < 1.3


def use_the_last_descriptor() -> int:
    """A late rank counts as alive even if no descriptor is free to check it."""
    world = ngd.init()
    ngd.all_reduce(1, op="sum")  # also imports all modules
    close_all()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
    time.sleep(0.3 * world.rank)
    total = int(ngd.all_reduce(1, op="sum"))
    resource.setrlimit(resource.RLIMIT_NOFILE, before)
    return total


def test_a_late_rank_is_alive_without_free_descriptors() -> None:
    assert [o.value for o in run(use_the_last_descriptor, 2)] == [2, 2]
