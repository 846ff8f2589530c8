# SPDX-License-Identifier: Apache-2.0
"""Tests of collectives on arrays: shapes, dtypes, out arrays, weights, errors, repeated init()."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

import ngd
from ngd import dtypes
from tests.support import harness
from tests.support.harness import caught
from tests.support.standing import run_in_world

each_communicator = pytest.mark.parametrize("communicator", harness.communicators())
each_world = pytest.mark.parametrize(("communicator", "ranks"), harness.worlds())


def check_shapes_and_dtypes() -> None:
    world = ngd.init()
    total = world.size * (world.size + 1) // 2
    for dtype in dtypes.NUMBERS:
        for shape in [(), (0,), (3,), (2, 0, 3), (5, 300, 2)]:
            mine = np.full(shape, world.rank + 1, dtype)
            result = ngd.all_reduce(mine, op="sum")
            assert result.shape == shape
            assert result.dtype == dtype
            assert (result == total).all()
            assert (mine == world.rank + 1).all()
            assert not np.shares_memory(result, mine)
    assert float(ngd.all_reduce(1.5, op="sum")) == 1.5 * world.size
    assert ngd.all_reduce([world.rank], op="max").tolist() == [world.size - 1]
    flags = np.array([world.rank == 0, True, False])
    assert ngd.all_reduce(flags, op="max").tolist() == [True, True, False]
    assert ngd.all_reduce(flags, op="min").tolist() == [world.size == 1, True, False]


@each_world
def test_all_reduce_of_every_shape_and_dtype(communicator: str, ranks: int) -> None:
    run_in_world(check_shapes_and_dtypes, communicator, ranks)


def check_out_arrays() -> None:
    world = ngd.init()
    array = np.arange(24.0).reshape(4, 6)
    assert np.array_equal(ngd.all_reduce(array[:, ::2], op="mean"), array[:, ::2])
    assert np.array_equal(ngd.all_reduce(array.T, op="max"), array.T)
    out = np.empty((4, 6))
    assert ngd.all_reduce(array, op="sum", out=out) is out
    assert np.array_equal(out, array * world.size)
    assert ngd.all_reduce(out, op="mean", out=out) is out
    assert np.array_equal(out, array * world.size)
    frozen = np.empty((4, 6))
    frozen.flags.writeable = False
    for bad in (np.empty((4, 5)), np.empty((4, 6), np.float32), np.empty((6, 4)).T, frozen):
        error = caught(lambda bad=bad: ngd.all_reduce(array, op="sum", out=bad))
        assert error["error"] == "ShapeError"
        assert "all_reduce: out" in error["message"]


@each_communicator
@pytest.mark.parametrize("ranks", [1, 3])
def test_results_are_written_to_out(communicator: str, ranks: int) -> None:
    run_in_world(check_out_arrays, communicator, ranks)


def check_bad_arguments() -> None:
    """Check that bad arguments raise before anything is sent, and leave the group open."""
    ones = np.ones(3)
    assert caught(lambda: ngd.all_reduce(ones))["error"] == "TypeError"  # type: ignore[call-arg]
    for bad_op in ("average", "none", ""):
        assert "op" in caught(lambda op=bad_op: ngd.all_reduce(ones, op=op))["message"]
    assert "mean" in caught(lambda: ngd.all_reduce(np.ones(3, np.int32), op="mean"))["message"]
    assert "bool" in caught(lambda: ngd.all_reduce(np.ones(3, bool), op="sum"))["message"]
    assert "algorithm" in caught(lambda: ngd.all_reduce(ones, op="sum", algorithm="x"))["message"]
    assert "weight" in caught(lambda: ngd.all_reduce(ones, op="sum", weight=1.0))["message"]
    for root in (-1, ngd.init().size):
        error = caught(lambda root=root: ngd.broadcast(ones, root=root))
        assert error["error"] == "ValueError"
        assert str(root) in error["message"]
    ngd.barrier()
    assert ngd.all_reduce(ones, op="prod").tolist() == [1, 1, 1]


@each_communicator
@pytest.mark.parametrize("ranks", [1, 2])
def test_bad_arguments_leave_the_group_open(communicator: str, ranks: int) -> None:
    run_in_world(check_bad_arguments, communicator, ranks)


def check_weights() -> None:
    """Check weighted means: ranks of weight 0 contribute nothing to the mean of all rows."""
    world = ngd.init()
    rows = np.random.default_rng(3).standard_normal((7, 5))
    share = np.array_split(rows, max(1, world.size - 1))
    mine = share[world.rank] if world.rank < len(share) else np.empty((0, 5))
    value = mine.mean(axis=0) if len(mine) else np.full(5, np.nan)
    mean = ngd.all_reduce(value, op="mean", weight=len(mine))
    assert np.allclose(mean, rows.mean(axis=0), rtol=1e-14)
    nothing = ngd.all_reduce(np.full(5, np.nan), op="mean", weight=0)
    assert nothing.tolist() == [0] * 5


@each_world
def test_weighted_means_ignore_ranks_of_weight_zero(communicator: str, ranks: int) -> None:
    run_in_world(check_weights, communicator, ranks)


def check_broadcasts() -> None:
    world = ngd.init()
    for dtype in dtypes.ALL:
        for count in (0, 1, 1000, 300_000):
            for root in range(world.size):
                mine = (np.arange(count) % 100 + world.rank).astype(dtype)
                want = (np.arange(count) % 100 + root).astype(dtype)
                assert ngd.broadcast(mine, root=root).tobytes() == want.tobytes()
    variables = [ngd.variable(name, np.full(3, world.rank)) for name in ("b", "a")]
    ngd.broadcast_variables(reversed(variables) if world.rank else variables, root=world.size - 1)
    assert all((v.numpy() == world.size - 1).all() for v in variables)


@each_world
def test_broadcast_of_arrays_and_lists(communicator: str, ranks: int) -> None:
    run_in_world(check_broadcasts, communicator, ranks)


def describe_world() -> dict[str, Any]:
    world = ngd.init()
    assert ngd.init() is world
    return {
        "place": [world.rank, world.size, world.local_rank, world.local_size],
        "name": world.communicator.name,
    }


@each_world
def test_the_world_has_rank_and_size(communicator: str, ranks: int) -> None:
    for rank, outcome in enumerate(run_in_world(describe_world, communicator, ranks)):
        assert outcome.value["place"] == [rank, ranks, rank, ranks]
        assert outcome.value["name"] == (communicator if ranks > 1 else "self")


def init_again() -> None:
    for _ in range(5):
        world = ngd.init()
        assert int(ngd.all_reduce(1, op="sum")) == world.size
        ngd.shutdown()
        ngd.shutdown()
        error = caught(lambda world=world: world.all_reduce(1, op="sum"))
        assert error["error"] == "GroupClosedError"


@each_communicator
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_init_after_shutdown_joins_again(communicator: str, ranks: int) -> None:
    run_in_world(init_again, communicator, ranks)


def call_with_late_ranks() -> None:
    """Check the order of results when ranks are late, and up to a hundred collectives apart."""
    world, random = ngd.init(), np.random.default_rng(ngd.init().rank)
    for step in range(100):
        if random.random() < 0.1:
            time.sleep(random.random() * 0.01)
        count = [1, 2000, 70_000][step % 3]
        root = step % world.size
        assert (ngd.all_reduce(np.full(count, step), op="sum") == step * world.size).all()
        assert (ngd.broadcast(np.full(count, world.rank), root=root) == root).all()


@each_communicator
@pytest.mark.parametrize("ranks", [2, 4])
def test_late_ranks_get_the_right_results(communicator: str, ranks: int) -> None:
    run_in_world(call_with_late_ranks, communicator, ranks)
