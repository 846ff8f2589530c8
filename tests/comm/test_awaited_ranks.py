# SPDX-License-Identifier: Apache-2.0
"""Tests of timeouts between hosts: errors name the late rank and the deadline.

NGD_HOST divides the ranks into hosts.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import ngd
from tests.support import harness
from tests.support.harness import Job, caught, run, say

pytestmark = harness.needs_mpi

MIB = 1 << 20


def init_on_two_hosts() -> ngd.Group:
    """Join a world of two hosts with two ranks each."""
    os.environ["NGD_HOST"] = f"host-{int(harness.own_rank()) // 2}"
    return ngd.init()


def wait_for_a_late_rank() -> dict[str, str]:
    """Rank 1 misses the collective of its host, while a collective of the world is pending."""
    world = init_on_two_hosts()
    host = world.split(world.rank // 2)
    x = np.ones(1000)
    if world.rank != 1:
        ngd.all_reduce(x, op="sum", async_op=True)
    if world.rank == 0:
        return caught(lambda: host.all_reduce(x, op="sum"))
    time.sleep(30)
    return {}


def test_a_timeout_names_the_late_rank_and_the_deadline() -> None:
    with Job(wait_for_a_late_rank, 4, launcher="mpirun", env={"NGD_TIMEOUT": "3"}) as job:
        (error,) = job.values([0])
    assert error["error"] == "CollectiveTimeoutError"
    assert "rank 1 did not arrive" in error["message"]
    assert "within 3 s" in error["message"]


def stop_in_a_transfer(kind: str) -> None:
    """Stop rank 0 while it runs long collectives."""
    world = init_on_two_hosts()
    x = np.ones(4 * MIB)
    ngd.barrier()
    if world.rank == 0:
        stop = threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGSTOP))
        stop.start()
    calls = {
        "all_reduce": lambda: ngd.all_reduce(x, op="sum", out=x),
        "reduce_scatter": lambda: ngd.reduce_scatter(x, op="sum"),
        "all_gather": lambda: ngd.all_gather(x[:MIB]),
    }
    try:
        while True:
            calls[kind]()
    except ngd.errors.Error as error:
        say(json.dumps([type(error).__name__, list(error.ranks), str(error)]))
    time.sleep(60)  # the exit of the first rank would end the job


@pytest.mark.parametrize("kind", ["all_reduce", "reduce_scatter", "all_gather"])
def test_all_ranks_name_the_stopped_rank(kind: str) -> None:
    arguments = {"kind": kind}
    env = {"NGD_TIMEOUT": "3"}
    with Job(stop_in_a_transfer, 4, arguments=arguments, launcher="mpirun", env=env) as job:
        for rank in (1, 2, 3):
            job.wait_for(rank, "]\n")
        errors = [json.loads(job.read(rank, "out")) for rank in (1, 2, 3)]
    for name, ranks, message in errors:
        assert name == "CollectiveTimeoutError", errors
        assert ranks == [0], errors
        assert "rank 0 did not finish" in message or "rank 0 did not" in message, errors


def run_out_of_address_space() -> str:
    """Use up the address space after ngd.init(), before the first work of the progress thread."""
    world = ngd.init()
    x, out = np.full(4 * MIB, world.rank + 1.0), np.zeros(4 * MIB)
    ngd.barrier()
    if world.rank == 1:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        used = pages * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used, resource.RLIM_INFINITY))
    try:
        work = ngd.all_reduce(x, op="sum", out=out, async_op=True)
        time.sleep(1)
        work.wait()
        result = f"{out.min()} {out.max()}"
    except MemoryError:
        result = "MemoryError"
    except ngd.errors.Error as error:
        result = type(error).__name__
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
    return result


def test_a_progress_thread_without_address_space_does_not_end_the_rank() -> None:
    """The C library ends a process that has no memory for the variables of a thread."""
    env = {"NGD_COMM": "mpi", "NGD_PROGRESS": "on", "NGD_TIMEOUT": "20"}
    values = [o.value for o in run(run_out_of_address_space, 2, launcher="mpirun", env=env)]
    assert values == ["3.0 3.0"] * 2 or values == ["RemoteRankError", "MemoryError"], values
