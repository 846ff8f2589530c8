# SPDX-License-Identifier: Apache-2.0
"""Tests of `ngd.function` on two ranks: they train like one rank, whichever traces they have."""

from __future__ import annotations

from typing import Any

import numpy as np

import ngd
from ngd import ops
from tests.support import harness
from tests.support.standing import run_in_world


def train(remat: bool = False) -> dict[str, Any]:
    """Take ten data-parallel steps. The shard of each rank changes its size."""
    world = ngd.init()
    random = np.random.default_rng(3)
    parameters = {
        name: ngd.variable(name, random.normal(size=shape))
        for name, shape in (("w", (4, 5)), ("b", (5,)), ("v", (5, 2)))
    }

    def hidden(p: Any, x: Any) -> Any:
        return ops.tanh(x @ p["w"] + p["b"])

    def loss_of(p: Any, x: Any, y: Any) -> Any:
        predicted = (ngd.remat(hidden) if remat else hidden)(p, x) @ p["v"]
        return ops.mean((predicted - y) ** 2)

    @ngd.function(updates=True)
    def step(x: Any, y: Any, rate: float) -> Any:
        loss, gradients = ngd.value_and_grad(loss_of)(parameters, x, y)
        share = ops.full((), len(x), x.dtype)
        mean = ngd.trees.map(
            lambda g: ops.all_reduce(g, op="mean", weight=share), {"loss": loss, **gradients}
        )
        return mean["loss"], {v: v - rate * mean[name] for name, v in parameters.items()}

    losses = []
    for number in range(10):
        x, y = random.normal(size=(6, 4)), random.normal(size=(6, 2))
        cuts = [1 + number % 3] if world.size == 2 else []
        shard = np.array_split(np.arange(6), cuts)[world.rank]
        losses.append(float(step(x[shard], y[shard], 0.1 / (1 + number))))
    assert step.num_traces == (3 if world.size == 2 else 1)
    return {"losses": losses, **{k: v.numpy().tolist() for k, v in parameters.items()}}


def compare(alone: dict[str, Any], both: list[dict[str, Any]]) -> None:
    assert both[0] == both[1]
    for key, wanted in alone.items():
        np.testing.assert_allclose(both[0][key], wanted, 1e-10, 1e-10, err_msg=key)


@harness.needs_ranks
def test_two_ranks_take_the_steps_of_one() -> None:
    (alone,) = run_in_world(train, "shm", 1)
    compare(alone.value, [rank.value for rank in run_in_world(train, "shm", 2)])


@harness.needs_ranks
def test_two_ranks_take_the_steps_of_one_with_remat() -> None:
    (alone,) = run_in_world(train, "shm", 1)
    both = run_in_world(train, "shm", 2, remat=True)
    compare(alone.value, [rank.value for rank in both])


def through_collectives() -> dict[str, Any]:
    """Differentiate through a collective, with and without rematerialisation."""
    world = ngd.init()
    x = np.arange(3.0) + world.rank

    def f(x: Any) -> Any:
        return ops.sum(ops.all_reduce(x, op="sum") ** 2)

    def g(x: Any) -> Any:
        total = ops.all_reduce(ops.tanh(x), op="sum")
        return ops.sum(total * total * x)

    vector = np.ones(3)
    return {
        "f": [a.tolist() for a in ngd.value_and_grad(f)(x)],
        "g": [a.tolist() for a in ngd.value_and_grad(g)(x)],
        "again": [a.tolist() for a in ngd.value_and_grad(ngd.remat(g))(x)],
        "jvp": ngd.jvp(lambda x: ops.all_reduce(x * x, op="sum"), (x,), (vector,))[1].tolist(),
        "vjp": ngd.vjp(lambda x: ops.all_reduce(x * x, op="sum"), x)[1](vector)[0].tolist(),
    }


@harness.needs_ranks
def test_derivatives_through_collectives_equal_the_formulas() -> None:
    first, second = (rank.value for rank in run_in_world(through_collectives, "shm", 2))
    a, b = np.arange(3.0), np.arange(3.0) + 1
    assert first["f"][0] == np.sum((a + b) ** 2)
    # ngd.grad differentiates the sum of the losses of all ranks: here twice the same loss.
    np.testing.assert_allclose(first["f"][1], 4 * (a + b))
    for rank in (first, second):
        assert rank["again"] == rank["g"]
    np.testing.assert_allclose(first["jvp"], 2 * a + 2 * b)
    assert first["jvp"] == second["jvp"]
    np.testing.assert_allclose(first["vjp"], 2 * a * 2)
    np.testing.assert_allclose(second["vjp"], 2 * b * 2)
    total = np.tanh(a) + np.tanh(b)
    slope = 2 * total * (a + b) * (1 - np.tanh(a) ** 2) + total**2
    np.testing.assert_allclose(first["g"][1], slope)


def after_shutdown() -> list[float]:
    """Run a function that was traced in one world in the next world."""
    f = ngd.function(lambda x: ops.all_reduce(x, op="sum"))
    found = [float(f(np.float64(ngd.init().rank + 1)))]
    ngd.shutdown()
    try:
        f(np.float64(1))
    except ngd.errors.GroupClosedError:
        found.append(-1)
    ngd.init()
    found.append(float(f(np.float64(ngd.init().rank + 1))))
    assert f.num_traces == 1
    return found


@harness.needs_ranks
def test_a_function_runs_in_the_next_world() -> None:
    for rank in run_in_world(after_shutdown, "shm", 2):
        assert rank.value == [3, -1, 3]
