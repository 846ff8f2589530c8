# SPDX-License-Identifier: Apache-2.0
"""Tests of loss scaling on ranks: if one gradient overflows, all ranks skip the update."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ngd
from ngd import ops, optim
from tests.support import harness
from tests.support.standing import run_in_world

STEPS, SKIPPED = 8, 3
SHAPE = (40, 50)  # larger than the variables that have one copy per rank (docs/sharding.md)


def train(
    shard: str, culprit: int | None, clip_norm: float | None = None, scaled: bool = True
) -> dict[str, Any]:
    """Take some steps of AdamW. In one step, a gradient element of the culprit overflows."""
    world = ngd.init()
    random = np.random.default_rng(3)
    w = ngd.variable("w", (random.normal(size=SHAPE) * 0.1).astype(np.float32))
    b = ngd.variable("b", np.zeros(SHAPE[1], np.float32))
    x, factor = ngd.placeholder("x", (4, SHAPE[0])), ngd.placeholder("factor", ())
    loss = ops.mean(ops.square(ops.tanh(x @ w + b) - 0.5)) + factor * w[7, 9]
    scale = optim.LossScale(2.0**10, growth_interval=2)
    how: dict[str, Any] = {"clip_norm": clip_norm, "loss_scale": scale if scaled else None}
    optimizer = optim.AdamW(0.01, **how)
    step = ngd.compile([x, factor], [loss], optimizer.minimize(loss, [w, b]), shard=shard)
    scales, batches = [], np.random.default_rng(world.rank)
    for number in range(STEPS):
        before = w.numpy()
        wrong = number == SKIPPED and culprit == world.rank
        step(batches.normal(size=x.shape).astype(np.float32), 1e37 if wrong else 0.0)
        has_changed = not np.array_equal(before, w.numpy())
        assert has_changed == (culprit is None or number != SKIPPED), number
        scales.append(float(scale.scale.numpy()))
        ngd.barrier()  # no rank may write values that another rank reads
    return {
        "scales": scales,
        "updates": int(optimizer.step.numpy()),
        "weights": [v.numpy().tobytes().hex() for v in (w, b, *optimizer.state.values())],
        "sharded": step.memory()["sharded"],
    }


def overflow() -> dict[str, Any]:
    """Let the first or the last rank overflow, with and without sharding."""
    world = ngd.init()
    found = {}
    for culprit in {0, world.size - 1}:
        plain = train("none", culprit)
        assert plain["updates"] == STEPS - 1
        assert plain["scales"] == [2.0**n for n in (10, 11, 11, 10, 10, 11, 11, 12)]
        shared = train("host", culprit)
        assert (shared["sharded"] > 0) == (world.size > 1 and world.communicator.name == "shm")
        assert {**shared, "sharded": 0} == plain
        found[str(culprit)] = plain
    return found


@harness.needs_ranks
@pytest.mark.parametrize(("communicator", "ranks"), harness.worlds(2, 3))
def test_all_ranks_skip_an_update_that_overflows_on_one(communicator: str, ranks: int) -> None:
    outcomes = run_in_world(overflow, communicator, ranks)
    for outcome in outcomes[1:]:
        assert outcome.value == outcomes[0].value


def compare_with_and_without_scale() -> None:
    """Compare the bits with and without a scale."""
    for shard in ("none", "host"):
        for clip_norm in (None, 0.01):
            with_scale = train(shard, None, clip_norm)
            without = train(shard, None, clip_norm, scaled=False)
            for a, b in zip(with_scale["weights"], without["weights"], strict=False):
                assert a == b, (shard, clip_norm)


@harness.needs_ranks
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_scale_without_overflow_changes_no_bit(ranks: int) -> None:
    run_in_world(compare_with_and_without_scale, "shm", ranks)


def count_collectives_of_totals() -> None:
    """Check that the count of values that are not finite shares an all-reduce with the norm."""
    w = ngd.variable("w", np.ones(SHAPE, np.float32))
    x = ngd.placeholder("x", (4, SHAPE[0]))
    loss = ops.mean(ops.square(x @ w))
    for clip_norm in (None, 1.0):
        optimizer = optim.SGD(0.1, clip_norm=clip_norm, loss_scale=optim.LossScale())
        program = str(ngd.compile([x], [], optimizer.minimize(loss, w), shard="host"))
        starts = [
            line.split("= start ")[1].split("(")[0]
            for line in program.splitlines()
            if "= start " in line
        ]
        assert starts.count("reduce_scatter") == 1
        assert starts.count("all_reduce") == 1


@harness.needs_ranks
def test_the_norm_and_the_finite_count_share_an_all_reduce() -> None:
    run_in_world(count_collectives_of_totals, "shm", 2)


def parts_of_a_model() -> list[float]:
    """Use a different gradient on each rank, which is not reduced."""
    world = ngd.init()
    part = ngd.variable("part", np.ones(2, np.float32))
    x = ngd.placeholder("x", (2,))
    scale = optim.LossScale(4, group=world)
    gradient, finite = scale.unscaled(ngd.grad(scale.scaled(ops.sum(x * part)), part))
    updates = [optim.SGD(0.5).apply({part: gradient}, where=finite), scale.updates(finite)]
    step = ngd.compile([x], [], updates)
    step(np.float32([1, np.nan if world.rank == 1 else 1]))
    assert part.numpy().tolist() == [1, 1]
    step(np.float32([1, world.rank]))
    return [float(scale.scale.numpy()), *part.numpy().tolist()]


@harness.needs_ranks
def test_ranks_with_own_parameters_skip_together() -> None:
    both = run_in_world(parts_of_a_model, "shm", 2)
    assert [rank.value for rank in both] == [[2, 0.5, 1], [2, 0.5, 0.5]]
