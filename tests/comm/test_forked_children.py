# SPDX-License-Identifier: Apache-2.0
"""Tests of forked children of a rank that exit normally, with exit handlers and destructors.

The child must end, and its parent must not be affected.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import numpy as np
import pytest

import ngd
from tests.support import harness
from tests.support.harness import run
from tests.support.hosts import Hosts, permitted

__all__ = ["permitted"]

pytestmark = harness.needs_ranks

MIB = 1 << 20
each_communicator = pytest.mark.parametrize("communicator", harness.communicators())


def end_of_child(seconds: float = 20) -> str:
    """Fork a child that exits normally, and return how it ended."""
    child = os.fork()
    if child == 0:
        sys.exit(0)
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return f"status {status}"
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "never"


def fork_between_collectives() -> list[str]:
    """Fork six times, every second time with a pending collective.

    The progress thread sleeps during the other forks.
    """
    world = ngd.init()
    half = world.split(world.rank // 2)
    step = ngd.compile([], [ngd.ops.all_reduce(ngd.constant(np.ones(100_000)), op="sum")])
    ends = []
    for number in range(6):
        x = np.full(MIB, world.rank + 1.0)
        work = ngd.all_reduce(x, op="sum", out=x, async_op=True) if number % 2 else None
        if world.rank == 0:
            ends.append(end_of_child())
        if work is not None:
            work.wait()
            assert (x == sum(range(1, world.size + 1))).all()
        assert (step()[0] == world.size).all()
        half.barrier()
    return ends


@each_communicator
@pytest.mark.parametrize("progress", ["on", "off"])
def test_a_child_that_exits_normally_ends(communicator: str, progress: str) -> None:
    how = harness.over(communicator, env={"NGD_PROGRESS": progress})
    outcomes = run(fork_between_collectives, 2, **how)
    assert outcomes[0].value == ["status 0"] * 6, outcomes[0]


def fork_in_a_transfer(steps: int) -> list[Any]:
    """Fork when some messages of a collective have arrived over TCP."""
    world = ngd.init()
    wrong, ends = [], []
    for _ in range(steps):
        x = np.full(4 * MIB, world.rank + 1, np.int64)
        work = ngd.all_reduce(x, op="sum", out=x, async_op=True)
        try:
            work.wait(timeout=0.1)
        except TimeoutError:
            if world.rank == 0:
                ends.append(end_of_child())
            work.wait()
        if (x != sum(range(1, world.size + 1))).any():
            wrong.append(sorted({int(each) for each in x}))
    return [wrong, ends]


@harness.needs_mpi
def test_a_child_takes_no_messages_of_its_parent(permitted: None) -> None:
    with Hosts(2) as hosts:
        hosts.slow_down("400mbit")
        outcomes = run(
            fork_in_a_transfer,
            4,
            arguments={"steps": 3},
            launcher=hosts.launcher(2, "-x", "NGD_PROGRESS"),
            env={"NGD_PROGRESS": "off", "NGD_TIMEOUT": "8"},
        )
    for outcome in outcomes:
        assert outcome.value == [[], ["status 0"] * 3 if outcome.rank == 0 else []], outcome
