# SPDX-License-Identifier: Apache-2.0
"""Collectives on arrays: shapes, dtypes, destinations, weights, refusals, groups made again."""

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

over = pytest.mark.parametrize("communicator", harness.communicators())
everywhere = pytest.mark.parametrize(("communicator", "ranks"), harness.worlds())


def shapes_and_dtypes() -> None:
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


@everywhere
def test_shapes_and_dtypes(communicator: str, ranks: int) -> None:
    run_in_world(shapes_and_dtypes, communicator, ranks)


def destinations() -> None:
    world = ngd.init()
    whole = np.arange(24.0).reshape(4, 6)
    assert np.array_equal(ngd.all_reduce(whole[:, ::2], op="mean"), whole[:, ::2])
    assert np.array_equal(ngd.all_reduce(whole.T, op="max"), whole.T)
    out = np.empty((4, 6))
    assert ngd.all_reduce(whole, op="sum", out=out) is out
    assert np.array_equal(out, whole * world.size)
    assert ngd.all_reduce(out, op="mean", out=out) is out
    assert np.array_equal(out, whole * world.size)
    frozen = np.empty((4, 6))
    frozen.flags.writeable = False
    for bad in (np.empty((4, 5)), np.empty((4, 6), np.float32), np.empty((6, 4)).T, frozen):
        error = caught(lambda bad=bad: ngd.all_reduce(whole, op="sum", out=bad))
        assert error["error"] == "ShapeError"
        assert "all_reduce: out" in error["message"]


@over
@pytest.mark.parametrize("ranks", [1, 3])
def test_destinations(communicator: str, ranks: int) -> None:
    run_in_world(destinations, communicator, ranks)


def refusals() -> None:
    """A refusal comes before anything is sent, so the group lives on."""
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


@over
@pytest.mark.parametrize("ranks", [1, 2])
def test_refusals_leave_the_group_open(communicator: str, ranks: int) -> None:
    run_in_world(refusals, communicator, ranks)


def weighted() -> None:
    """Ranks of weight 0 contribute nothing; the others make the mean of all rows."""
    world = ngd.init()
    rows = np.random.default_rng(3).standard_normal((7, 5))
    share = np.array_split(rows, max(1, world.size - 1))
    mine = share[world.rank] if world.rank < len(share) else np.empty((0, 5))
    value = mine.mean(axis=0) if len(mine) else np.full(5, np.nan)
    mean = ngd.all_reduce(value, op="mean", weight=len(mine))
    assert np.allclose(mean, rows.mean(axis=0), rtol=1e-14)
    nothing = ngd.all_reduce(np.full(5, np.nan), op="mean", weight=0)
    assert nothing.tolist() == [0] * 5


@everywhere
def test_weights(communicator: str, ranks: int) -> None:
    run_in_world(weighted, communicator, ranks)


def broadcasts() -> None:
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


@everywhere
def test_broadcasts(communicator: str, ranks: int) -> None:
    run_in_world(broadcasts, communicator, ranks)


def group() -> dict[str, Any]:
    world = ngd.init()
    assert ngd.init() is world
    return {
        "place": [world.rank, world.size, world.local_rank, world.local_size],
        "name": world.communicator.name,
    }


@everywhere
def test_the_world_is_known(communicator: str, ranks: int) -> None:
    for rank, outcome in enumerate(run_in_world(group, communicator, ranks)):
        assert outcome.value["place"] == [rank, ranks, rank, ranks]
        assert outcome.value["name"] == (communicator if ranks > 1 else "self")


def again() -> None:
    for _ in range(5):
        world = ngd.init()
        assert int(ngd.all_reduce(1, op="sum")) == world.size
        ngd.shutdown()
        ngd.shutdown()
        error = caught(lambda world=world: world.all_reduce(1, op="sum"))
        assert error["error"] == "GroupClosedError"


@over
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_shutdown_then_init(communicator: str, ranks: int) -> None:
    run_in_world(again, communicator, ranks)


def order() -> None:
    """A rank may be a hundred collectives behind another, and late for every one."""
    world, random = ngd.init(), np.random.default_rng(ngd.init().rank)
    for step in range(100):
        if random.random() < 0.1:
            time.sleep(random.random() * 0.01)
        count = [1, 2000, 70_000][step % 3]
        root = step % world.size
        assert (ngd.all_reduce(np.full(count, step), op="sum") == step * world.size).all()
        assert (ngd.broadcast(np.full(count, world.rank), root=root) == root).all()


@over
@pytest.mark.parametrize("ranks", [2, 4])
def test_late_ranks(communicator: str, ranks: int) -> None:
    run_in_world(order, communicator, ranks)
