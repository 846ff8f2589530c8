# SPDX-License-Identifier: Apache-2.0
"""Tests of ranks that make different calls, and of the errors that name both calls."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

import ngd
from tests.support import harness
from tests.support.harness import Job, caught
from tests.support.standing import fail_in_world

pytestmark = harness.needs_ranks
each_communicator = pytest.mark.parametrize("communicator", harness.communicators())


CALLS: dict[str, Any] = {
    "sum": lambda: ngd.all_reduce(np.ones(6, np.float32), op="sum"),
    "count": lambda: ngd.all_reduce(np.ones(5, np.float32), op="sum"),
    "dtype": lambda: ngd.all_reduce(np.ones(6, np.float64), op="sum"),
    "op": lambda: ngd.all_reduce(np.ones(6, np.float32), op="prod"),
    "broadcast": lambda: ngd.broadcast(np.ones(6, np.float32)),
    "root": lambda: ngd.broadcast(np.ones(6, np.float32), root=1),
    "barrier": lambda: ngd.barrier(),
    "large": lambda: ngd.all_reduce(np.ones(300_000, np.float32), op="sum"),
    "larger": lambda: ngd.all_reduce(np.ones(300_001, np.float32), op="sum"),
    "ring": lambda: ngd.all_reduce(np.ones(300_000, np.float32), op="sum", algorithm="ring"),
}
SIX: Any = np.ones(6, np.float32)
CALLS |= {
    "reduce_scatter": lambda: ngd.reduce_scatter(SIX, op="sum"),
    "reduce_scatter max": lambda: ngd.reduce_scatter(SIX, op="max"),
    "all_gather": lambda: ngd.all_gather(SIX),
    "all_gather longer": lambda: ngd.all_gather(np.ones(7, np.float32)),
    "all_gather_v": lambda: ngd.all_gather_v(SIX, counts=[6] * ngd.init().size),
    "all_gather_v counts": lambda: ngd.all_gather_v(SIX, counts=[6] + [5] * (ngd.init().size - 1)),
    "reduce": lambda: ngd.reduce(SIX, op="sum"),
    "reduce root": lambda: ngd.reduce(SIX, 1, op="sum"),
    "gather": lambda: ngd.gather(SIX),
    "gather root": lambda: ngd.gather(SIX, 1),
    "scatter": lambda: ngd.scatter(SIX, shape=(6 // ngd.init().size,), dtype="float32"),
    "scatter root": lambda: ngd.scatter(SIX, 1, shape=(6 // ngd.init().size,), dtype="float32"),
    "all_to_all": lambda: ngd.all_to_all(SIX),
    "all_to_all larger": lambda: ngd.all_to_all(np.ones(60_000, np.float32)),
}
WORDS = {"sum": "all_reduce(sum) of 6 float32", "count": "of 5 ", "dtype": "float64", "op": "prod"}
WORDS |= {"larger": "300001", "barrier": "barrier", "broadcast": "broadcast"}


def disagree(pairs: list[list[str]]) -> list[dict[str, str]]:
    """For each pair, rank 0 makes the second call and the other ranks the first one.

    A new world follows after each pair.
    """
    errors = []
    for usual, odd in pairs:
        world = ngd.init()
        call = CALLS[odd if world.rank == 0 else usual]
        # A rank that only sends may return before the others notice the mismatch.
        errors.append(caught(lambda call=call: (call(), ngd.barrier())))
        ngd.shutdown()
    return errors


PAIRS = [["sum", odd] for odd in ("count", "dtype", "op", "broadcast", "barrier", "larger")]
PAIRS += [["reduce_scatter", "reduce_scatter max"], ["all_gather", "all_gather longer"]]
PAIRS += [["all_gather_v", "all_gather_v counts"], ["all_to_all", "all_to_all larger"]]
PAIRS += [[kind, f"{kind} root"] for kind in ("reduce", "gather", "scatter")]
PAIRS += [["all_gather", "gather"], ["reduce_scatter", "all_to_all"], ["scatter", "sum"]]
PAIRS += [["large", "larger"], ["broadcast", "root"], ["large", "ring"], ["barrier", "large"]]


@each_communicator
@pytest.mark.parametrize("ranks", [2, 3])
def test_a_mismatch_shows_both_calls(communicator: str, ranks: int) -> None:
    for outcome in fail_in_world(disagree, communicator, ranks, pairs=PAIRS):
        for (usual, odd), error in zip(PAIRS, outcome.value, strict=True):
            assert error["error"] == "CollectiveMismatchError", (usual, odd, error)
            message = error["message"]
            assert "rank 0" in message, (usual, odd, error)
            assert "rank 1" in message or "rank 2" in message, (usual, odd, error)
            assert WORDS.get(usual, "") in message, (usual, odd, error)
            assert WORDS.get(odd, "") in message, (usual, odd, error)
            assert message.count("test_mismatches.py:") >= 2, (usual, odd, error)
            assert "All ranks must call the same collectives" in message, (usual, odd, error)


def omit_a_call() -> dict[str, str]:
    """Rank 0 omits an all_reduce, and is one barrier ahead."""
    world = ngd.init()

    def calls() -> None:
        if world.rank != 0:
            ngd.all_reduce(np.ones(3), op="sum")
        ngd.barrier()

    return caught(calls)


@each_communicator
def test_forgotten_call_is_a_mismatch(communicator: str) -> None:
    for outcome in fail_in_world(omit_a_call, communicator, 3):
        assert outcome.value["error"] == "CollectiveMismatchError", outcome
        assert "barrier" in outcome.value["message"]
        assert "all_reduce(sum)" in outcome.value["message"]


def skip_an_equal_call() -> dict[str, Any]:
    """Skip one of two equal calls on ranks other than 0, and then call a barrier."""
    world = ngd.init()
    sums: list[float] = []

    def calls() -> None:
        if world.rank == 0:
            ngd.all_reduce(np.full(1, 100.0), op="sum")
        sums.append(float(ngd.all_reduce(np.ones(1), op="sum")[0]))
        ngd.barrier()

    return {"sums": sums, **caught(calls)}


@each_communicator
def test_a_barrier_finds_a_skipped_call(communicator: str) -> None:
    """The next equal call replaces a skipped one, until the barrier differs."""
    for rank, outcome in enumerate(fail_in_world(skip_an_equal_call, communicator, 3)):
        assert outcome.value["sums"] == ([] if rank == 0 else [102.0]), outcome
        assert outcome.value["error"] == "CollectiveMismatchError", outcome
        assert "barrier" in outcome.value["message"]


def receive_something_else(what: str) -> dict[str, str]:
    """Send four float64 with tag 0 to a rank that receives something else, or nothing."""
    world = ngd.init()

    def call() -> None:
        if world.rank == 0:
            ngd.send(np.ones(4), 1)
        elif what == "silence":
            time.sleep(0.2)
        else:
            shape, dtype = (5 if what == "count" else 4,), "int64" if what == "dtype" else "float64"
            ngd.recv(0, tag=int(what == "tag"), shape=shape, dtype=dtype)
        ngd.barrier()

    return caught(call)


@each_communicator
@pytest.mark.parametrize(
    ("what", "words"), [("count", "of 5 "), ("dtype", "int64"), ("tag", "tag 1")]
)
def test_a_receive_of_something_else_is_a_mismatch(
    communicator: str, what: str, words: str
) -> None:
    for outcome in fail_in_world(receive_something_else, communicator, 2, what=what):
        assert outcome.value["error"] == "CollectiveMismatchError", outcome
        message = outcome.value["message"]
        assert "send of 4 float64 to rank 1" in message
        assert "from rank 0" in message
        assert words in message
        assert message.count("test_mismatches.py:") >= 2
        assert "must have the same number of elements, dtype and tag" in message


def call_in_different_groups(size: int) -> dict[str, str]:
    """Rank 0 calls in a group of the first `size` ranks, the others in the world."""
    world = harness.hurried(2.5)
    first = world.split(0 if world.rank < size else None)
    group = first if world.rank == 0 else None
    return caught(lambda: ngd.all_reduce(np.ones(3), op="sum", group=group))


@each_communicator
@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.long)])
def test_calls_in_different_groups_raise_at_the_deadline(communicator: str, size: int) -> None:
    """Ranks that wait for each other in different groups raise at the deadline."""
    arguments = {"size": size}
    with Job(call_in_different_groups, 3, **harness.over(communicator, arguments=arguments)) as job:
        outcomes = job.wait(30)
    errors = [outcome.value["error"] for outcome in outcomes]
    if communicator == "mpi":  # a slightly later rank sees the others leave
        errors = ["CollectiveTimeoutError" if e == "RankLostError" else e for e in errors]
    assert errors == ["CollectiveTimeoutError"] * 3, outcomes
    for outcome in outcomes:
        assert "rank " in outcome.value["message"]
        assert "all_reduce(sum) of 3 float64" in outcome.value["message"]
        assert "test_mismatches.py:" in outcome.value["message"]


def call_in_another_order() -> dict[str, str]:
    """Rank 0 sums before it multiplies, and the other ranks after."""
    world = ngd.init()
    ops_in_order = ["sum", "prod"] if world.rank == 0 else ["prod", "sum"]
    return caught(lambda: [ngd.all_reduce(np.ones(4), op=op) for op in ops_in_order])


@each_communicator
def test_another_order_is_a_mismatch(communicator: str) -> None:
    for outcome in fail_in_world(call_in_another_order, communicator, 3):
        assert outcome.value["error"] == "CollectiveMismatchError", outcome
        assert "all_reduce(sum) of 4 float64" in outcome.value["message"]
        assert "all_reduce(prod) of 4 float64" in outcome.value["message"]
