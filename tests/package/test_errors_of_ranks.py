# SPDX-License-Identifier: Apache-2.0
"""Tests that an error has the numbers of the ranks that it names (docs/failure-model.md)."""

from __future__ import annotations

import os
import pickle
import time
from typing import Any

import numpy as np
import pytest

import ngd
from tests.support import harness
from tests.support.harness import Job

pytestmark = harness.needs_ranks

shm, mpi = harness.communicators()
PLACES = [
    pytest.param("shm", False, id="shm", marks=shm.marks),
    pytest.param("mpi", False, id="mpi", marks=mpi.marks),
    pytest.param("hierarchical", False, id="hierarchical", marks=mpi.marks),
    pytest.param("shm", True, id="shm-group", marks=shm.marks),
    pytest.param("mpi", True, id="mpi-group", marks=mpi.marks),
    pytest.param("hierarchical", True, id="hierarchical-group", marks=mpi.marks),
]
RANKS = 4


def job_arguments(communicator: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return arguments for Job. The ranks of a hierarchical world are on two hosts by NGD_HOST."""
    if communicator != "hierarchical":
        return harness.over(communicator, RANKS, arguments=arguments)
    return {"launcher": "mpirun", "arguments": arguments}


def error_of(call: Any) -> dict[str, Any]:
    """Return the class, the message and the ranks of a call's error, which is pickled once."""
    try:
        call()
    except ngd.errors.Error as raised:
        error = pickle.loads(pickle.dumps(raised))
        return {
            "error": type(error).__name__,
            "message": str(error),
            "ranks": list(error.ranks),
            "rank": error.rank,
        }
    raise AssertionError("no error")


def fail_on_one_rank(fault: str, odd: int, hosts: bool, split: bool, device: str | None) -> Any:
    """Let one rank leave, fail, be late, or call another collective than the others."""
    if hosts:
        os.environ["NGD_HOST"] = f"host-{int(harness.own_rank()) // 2}"
    world = harness.hurried(2) if fault == "late" else ngd.init()
    group = world.split(world.rank // 2) if split else world
    x = ngd.placeholder("x", (3,), np.float64)
    total = ngd.ops.all_reduce(x, op="sum", group=group)
    step = None if device is None else ngd.compile([x], [total], device=device)

    def call() -> None:
        if step is not None:
            step(np.ones(3))
        else:
            ngd.all_reduce(np.ones(3), op="sum", group=group)
        ngd.barrier(group=group)

    ngd.barrier()
    if split and world.rank < 2:  # the other group, which gets no error
        time.sleep(5 if fault == "late" else 2)
        return None
    if world.rank == odd and fault == "leaves":
        return None
    if world.rank == odd and fault == "late":
        time.sleep(4)
    if world.rank == odd and fault == "fails":
        group.abort("broken shard")
    if world.rank == odd and fault == "disagrees":
        first = error_of(lambda: ngd.all_gather(np.ones(4), group=group))
    else:
        first = error_of(call)
    return first, error_of(call)


KINDS = {
    "leaves": "RankLostError",
    "late": "CollectiveTimeoutError",
    "fails": "RemoteRankError",
    "disagrees": "CollectiveMismatchError",
}


@pytest.mark.long
@pytest.mark.parametrize(("communicator", "split"), PLACES)
@pytest.mark.parametrize("fault", KINDS)
def test_an_error_has_the_numbers_of_its_ranks(fault: str, communicator: str, split: bool) -> None:
    odd = 3 if split else 2
    arguments = {
        "fault": fault,
        "odd": odd,
        "hosts": communicator == "hierarchical",
        "split": split,
        "device": None,
    }
    with Job(fail_on_one_rank, RANKS, **job_arguments(communicator, arguments)) as job:
        outcomes = job.wait(40)
    for rank in (2,) if split else (0, 1, 3):
        first, again = outcomes[rank].value
        assert first["error"] == KINDS[fault], outcomes[rank]
        assert again["error"] == "GroupClosedError", outcomes[rank]
        assert again["ranks"] == first["ranks"]
        check(first, fault, odd)
    if fault == "disagrees":
        first, _ = outcomes[odd].value
        assert first["error"] == KINDS[fault], outcomes[odd]
        check(first, fault, odd)


def check(error: dict[str, Any], fault: str, odd: int) -> None:
    if fault == "disagrees":
        assert len(error["ranks"]) == 2, error
        assert odd in error["ranks"], error
        assert error["ranks"] == sorted(error["ranks"])
        assert error["rank"] is None
    else:
        assert error["ranks"] == [odd], error
        assert error["rank"] == odd
    for rank in error["ranks"]:
        assert f"rank {rank}" in error["message"], error


@pytest.mark.parametrize("device", ["CPU", "INTERPRETER"])
@pytest.mark.parametrize("fault", ["leaves", "fails"])
def test_an_error_of_a_step_has_the_numbers_of_its_ranks(fault: str, device: str) -> None:
    arguments = {"fault": fault, "odd": 1, "hosts": False, "split": False, "device": device}
    with Job(fail_on_one_rank, 2, arguments=arguments) as job:
        outcome = job.wait(40)[0]
    first, _ = outcome.value
    assert (first["error"], first["ranks"]) == (KINDS[fault], [1]), outcome


def init_without_the_other() -> Any:
    os.environ["NGD_TIMEOUT"] = "2"
    return error_of(ngd.init)


def test_a_timeout_of_init_has_the_number_of_the_rank() -> None:
    with Job(init_without_the_other, 4, start=[0, 2]) as job:
        outcomes = job.wait(30, [0, 2])
    for outcome in outcomes:
        assert outcome.value["error"] == "CollectiveTimeoutError", outcome
        assert outcome.value["ranks"] == [1, 3], outcome


def test_errors_of_one_rank_have_no_ranks() -> None:
    error = ngd.errors.ShapeError("add: ...")
    assert (error.ranks, error.rank) == ((), None)
