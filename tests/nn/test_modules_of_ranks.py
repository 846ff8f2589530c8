# SPDX-License-Identifier: Apache-2.0
"""Tests of models on two ranks: they train like one rank, and draws differ or are equal."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ngd
from ngd import nn, ops, optim
from tests.support import harness
from tests.support.standing import run_in_world


def train(dtype: str) -> dict[str, Any]:
    """Take ten steps of a model with synchronized batch normalization, on uneven shards."""
    world = ngd.init()
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, bias=False),  # the gradient of a bias would be only rounding
        nn.BatchNorm2d(4, synchronized=True),
        nn.GELU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.LayerNorm(4),
        nn.Linear(4, 3),
    ).astype(dtype)
    shard = np.array_split(np.arange(6), [4])[world.rank] if world.size == 2 else np.arange(6)
    x = ngd.placeholder("x", (len(shard), 2, 4, 4), dtype)
    y = ngd.placeholder("y", (len(shard),), "int64")
    optimizer = optim.AdamW(0.03)
    with nn.training() as state:
        loss = ops.mean(ops.softmax_cross_entropy(model(x), y))
    updates = [optimizer.minimize(loss, model.parameters(), weight=len(shard)), state.updates]
    step, evaluate = ngd.compile([x, y], [loss], updates), ngd.compile([x], [model(x)])
    random = np.random.default_rng(3)
    for _ in range(10):
        data, labels = random.normal(size=(6, 2, 4, 4)) + 1, random.integers(3, size=6)
        step(data[shard].astype(dtype), labels[shard])
    first = evaluate(data[shard].astype(dtype))[0][:2] if world.rank == 0 else np.zeros(())
    return {"logits": first.tolist(), **{k: v.tolist() for k, v in model.state_dict().items()}}


@harness.needs_ranks
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-9), ("float32", 1e-3)])
def test_two_ranks_take_the_steps_of_one(dtype: str, tolerance: float) -> None:
    (alone,) = run_in_world(train, "shm", 1, dtype=dtype)
    both = [rank.value for rank in run_in_world(train, "shm", 2, dtype=dtype)]
    for key, wanted in alone.value.items():
        assert key == "logits" or both[0][key] == both[1][key], key
        np.testing.assert_allclose(both[0][key], wanted, tolerance, tolerance, err_msg=key)


def draw_masks() -> dict[str, list[list[float]]]:
    """Return ones after dropout, with draws per rank and with common draws.

    The two rows are drawn in the two iterations of a loop.
    """
    x, drop = ngd.placeholder("x", (2, 64)), nn.Dropout(0.5)
    found = {}
    for per_rank in (True, False):
        with nn.training(nn.Random(seed=5, per_rank=per_rank)) as state:
            y = ops.scan(lambda carry, row: (carry, drop(row)), 0.0, x)[1]
            step = ngd.compile([x], [y], state.updates)
        found[str(per_rank)] = step(np.ones((2, 64), np.float32))[0].tolist()
    return found


@harness.needs_ranks
def test_draws_are_different_or_equal_on_the_ranks() -> None:
    first, second = (rank.value for rank in run_in_world(draw_masks, "shm", 2))
    assert first["True"] != second["True"]
    assert first["False"] == second["False"]
    assert first["True"] == first["False"]  # rank 0 draws like a single rank
    for one, other in (*first.values(), *second.values()):
        assert one != other


def average_statistics() -> dict[str, Any]:
    """Return the statistics of each rank, and their mean, of batch norm without synchronization."""
    world = ngd.init()
    norm = nn.BatchNorm1d(3)
    x = ngd.placeholder("x", (4, 3))
    with nn.training() as state:
        step = ngd.compile([x], [norm(x)], state.updates)
    step(np.random.default_rng(world.rank).normal(size=(4, 3)).astype(np.float32))
    own = norm.state_dict()
    with norm.averaged_buffers():
        found = {"own": own, "mean": norm.state_dict()}
    found["after"] = norm.state_dict()
    return {name: {k: v.tolist() for k, v in each.items()} for name, each in found.items()}


@harness.needs_ranks
def test_statistics_of_ranks_are_averaged() -> None:
    first, second = (rank.value for rank in run_in_world(average_statistics, "shm", 2))
    assert first["mean"] == second["mean"]
    for key, value in first["mean"].items():
        wanted = np.mean([first["own"][key], second["own"][key]], axis=0)
        np.testing.assert_allclose(value, wanted, 1e-6, err_msg=key)
    assert first["own"]["running_mean"] != second["own"]["running_mean"]
    assert (first["after"], second["after"]) == (first["own"], second["own"])


def two_models() -> dict[str, Any]:
    """Take two steps of two equal models. Rank 0 constructs another model before them."""
    world = ngd.init()
    if world.rank == 0:
        nn.Linear(3, 3)
    models = [nn.Linear(3, 3) for _ in range(2)]
    models[1].initialize(1)
    optimizer = optim.SGD(0.1, momentum=0.9)

    @ngd.function(updates=True)
    def step(x: Any) -> Any:
        loss = ops.mean(ops.square(models[0](x) - models[1](x)))
        return loss, optimizer.minimize(loss, [model.parameters() for model in models])

    for _ in range(2):
        step(np.full((2, 3), world.rank + 1.0, np.float32))
    weights = [model.weight.numpy().tolist() for model in models]
    return {"weights": weights, "state": sorted(optimizer.state), "names": models[1].weight.name}


@harness.needs_ranks
def test_two_equal_models_train_identically_on_all_ranks() -> None:
    first, second = (rank.value for rank in run_in_world(two_models, "shm", 2))
    assert first == second
    assert first["weights"][0] != first["weights"][1]
    assert first["names"] == "weight"
    assert {"sgd.weight.momentum", "sgd.model_1.weight.momentum"} <= set(first["state"])
