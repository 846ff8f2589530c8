# SPDX-License-Identifier: Apache-2.0
"""ngd.rank, ngd.world_size, ngd.is_initialized and ngd.raise_together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ngd
from ngd import ops
from tests.support import harness
from tests.support.standing import run_in_world


def world_facts() -> list[Any]:
    """Return rank, size and state before the world is joined, in it, and after it is left."""
    ngd.shutdown()
    facts = [[ngd.rank(), ngd.world_size(), ngd.is_initialized()]]
    world = ngd.init()
    facts.append([ngd.rank(), ngd.world_size(), ngd.is_initialized()])
    assert (world.rank, world.size) == tuple(facts[-1][:2])
    return facts


@harness.needs_ranks
def test_rank_and_size_equal_those_of_the_launcher() -> None:
    ranks = harness.run(world_facts, 3)
    for number, rank in enumerate(ranks):
        assert rank.value == [[number, 3, False], [number, 3, True]]


def test_one_process_is_a_world_of_one() -> None:
    assert (ngd.rank(), ngd.world_size()) == (0, 1)


def try_block(failing: list[int]) -> list[Any]:
    """Raise on some ranks in a block, and use the group afterwards."""
    caught_errors: list[Any] = []
    try:
        with ngd.raise_together():
            if ngd.rank() in failing:
                raise FileNotFoundError(f"no file on rank {ngd.rank()}")
        caught_errors.append("went on")
    except FileNotFoundError as error:
        caught_errors.append(f"own: {error}")
    except ngd.errors.RemoteRankError as error:
        caught_errors += [str(error), list(error.ranks)]
    return [*caught_errors, float(ngd.all_reduce(np.ones(()), op="sum"))]


@harness.needs_ranks
@pytest.mark.parametrize("failing", [[], [1], [1, 2], [0, 1, 2]])
def test_a_block_raises_on_all_ranks_or_on_none(failing: list[int]) -> None:
    for number, rank in enumerate(run_in_world(try_block, "shm", 3, failing=failing)):
        *errors, total = rank.value
        assert total == 3.0
        if not failing:
            assert errors == ["went on"]
        elif number in failing:
            assert errors == [f"own: no file on rank {number}"]
        else:
            first = failing[0]
            assert f"rank {first} raised FileNotFoundError: no file on rank {first}" in errors[0]
            assert errors[1] == failing


def leave_a_block_by_a_group_error() -> str:
    """Let an error of the group itself leave the block."""
    try:
        with ngd.raise_together():
            ngd.all_reduce(np.ones(2 + ngd.rank()), op="sum")
    except ngd.errors.CollectiveMismatchError as error:
        return type(error).__name__
    return "nothing"


@harness.needs_ranks
def test_a_group_error_leaves_the_block() -> None:
    ranks = harness.run(leave_a_block_by_a_group_error, 2)
    assert [rank.value for rank in ranks] == ["CollectiveMismatchError"] * 2


def build_before_the_world() -> list[Any]:
    """Build graphs whose shapes depend on the number of ranks, before the world is joined."""
    ngd.shutdown()
    x = ngd.placeholder("x", (2,), "float64")
    gathered = ops.all_gather(x)
    loss = ops.sum(ops.square(gathered) * (1 + ops.arange(2 * ngd.world_size())))
    gradient = ngd.grad(loss, x)
    _, sums = ops.scan(lambda carry, row: (carry, ops.all_gather(row)), x, ops.stack([x, x + 1]))
    local = ngd.compile(x, x + 1)
    mine = np.full(2, 1.0 + ngd.rank())
    local(mine)
    results: list[Any] = [ngd.is_initialized()]
    step = ngd.compile(x, [gathered, gradient, sums])
    results.append(ngd.is_initialized())
    return results + [value.tolist() for value in step(mine)]


@harness.needs_ranks
def test_a_graph_is_built_without_the_other_ranks() -> None:
    rank_0, rank_1 = harness.run(build_before_the_world, 2)
    before, after, gathered, gradient, sums = rank_0.value
    assert (before, after) == (False, True)
    assert gathered == rank_1.value[2] == [1, 1, 2, 2]
    np.testing.assert_allclose(
        gradient, [2 * 2 * 1, 2 * 2 * 2]
    )  # the losses of both ranks: 2 * 2 x c
    np.testing.assert_allclose(rank_1.value[3], [2 * 2 * 2 * 3, 2 * 2 * 2 * 4])
    assert sums == [[1, 1, 2, 2], [2, 2, 3, 3]]


def build_alone_in_a_job() -> bool:
    """Build and run a local graph on rank 0 while rank 1 never joins."""
    if ngd.rank() == 0:
        x = ngd.placeholder("x", (2,), "float64")
        ops.all_gather(x)
        ngd.compile(x, x * 2)(np.ones(2))
    return ngd.is_initialized()


@harness.needs_ranks
def test_a_local_step_needs_no_other_rank() -> None:
    assert [rank.value for rank in harness.run(build_alone_in_a_job, 2)] == [False, False]
