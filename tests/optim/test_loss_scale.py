# SPDX-License-Identifier: Apache-2.0
"""Tests of dynamic loss scaling: the scale, skipped updates, and float16 that needs a scale."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ngd
from ngd import nn, ops, optim

DEVICES = ("CPU", "INTERPRETER")
INF, NAN = float("inf"), float("nan")
BY_HAND = [
    # gradient, weight, scale, good steps, updates
    (1.0, 0.5, 4.0, 1, 1),
    (1.0, 0.0, 8.0, 0, 2),  # the second good step in a row
    (1e38, 0.0, 4.0, 0, 2),  # 8e38 is larger than any float32
    (2.0, -1.0, 4.0, 1, 3),
    (NAN, -1.0, 2.0, 0, 3),
    (-INF, -1.0, 1.0, 0, 3),
    (INF, -1.0, 1.0, 0, 3),  # never below 1
    (-2.0, 0.0, 1.0, 1, 4),
    (0.0, 0.0, 2.0, 0, 5),
]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")  # NumPy overflows
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_scale_and_weights_equal_values_computed_by_hand(micro_batches: int, device: str) -> None:
    w = ngd.variable("w", np.float32([1, 1]))
    x = ngd.placeholder("x", (2,))
    scale = optim.LossScale(4, growth_interval=2)
    optimizer = optim.SGD(0.5, loss_scale=scale)
    loss = ops.sum(x * w)
    add = ngd.compile([x], [], updates=optimizer.accumulate(loss, w), device=device)
    updates = optimizer.minimize(loss, w, micro_batches=micro_batches)
    step = ngd.compile([x], [loss], updates=updates, device=device)
    for gradient, weight, wanted, good_steps, done in BY_HAND:
        if micro_batches == 2:
            add(np.float32([0, 2 * gradient if abs(gradient) < INF else gradient]))
        before = w.numpy()
        (value,) = step(np.float32([0, gradient if micro_batches == 1 else 0]))
        if micro_batches == 1:
            assert value == pytest.approx(gradient * before[1], nan_ok=True) or before[1] == 0
        assert w.numpy().tolist() == [1, weight]
        assert float(scale.scale.numpy()) == wanted
        assert int(scale.good_steps.numpy()) == good_steps
        assert int(optimizer.step.numpy()) == done


OPTIMIZERS: dict[str, Callable[..., optim.Optimizer]] = {
    "sgd": lambda **how: optim.SGD(0.1, **how),
    "momentum": lambda **how: optim.SGD(0.1, momentum=0.9, dampening=0.1, **how),
    "adamw": lambda **how: optim.AdamW(optim.cosine(0.03, 10), **how),
    "lamb": lambda **how: optim.LAMB(0.03, weight_decay=0.1, **how),
    "muon": lambda **how: optim.Muon(0.03, **how),
}


@pytest.mark.parametrize("clip_norm", [None, 0.05])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_scale_without_overflow_changes_no_bit(
    name: str, clip_norm: float | None, device: str
) -> None:
    """The scale is a power of two, so no number is rounded, even when the scale grows."""
    batches = np.random.default_rng(1).normal(size=(7, 6, 5)).astype(np.float32)

    def train(scale: optim.LossScale | None) -> tuple[Any, Any]:
        random = np.random.default_rng(2)
        shapes = {"a": (5, 4), "b": (4, 3)}
        weights = {k: ngd.variable(k, random.normal(size=s) * 0.3) for k, s in shapes.items()}
        weights = {k: ngd.variable(k, v.numpy().astype("float32")) for k, v in weights.items()}
        x = ngd.placeholder("x", (6, 5))
        loss = ops.mean(ops.square(ops.tanh(x @ weights["a"]) @ weights["b"] - 0.5))
        optimizer = OPTIMIZERS[name](clip_norm=clip_norm, loss_scale=scale)
        updates = optimizer.minimize(loss, weights)
        step = ngd.compile([x], [loss], updates=updates, device=device)
        losses = [step(batch)[0].tobytes() for batch in batches]
        return losses, {v.name: v.numpy().tobytes() for v in weights.values()}

    scale = optim.LossScale(2.0**10, growth_interval=3)
    assert train(scale) == train(None)
    assert float(scale.scale.numpy()) == 2.0**12


def test_a_skipped_step_keeps_the_state(device: str) -> None:
    """The optimizer state does not change. The statistics of batch normalization do."""
    norm = nn.BatchNorm1d(3)
    norm.initialize(0)
    x, factor = ngd.placeholder("x", (4, 3)), ngd.placeholder("factor", ())
    optimizer = optim.AdamW(0.1, weight_decay=0.1, loss_scale=optim.LossScale())
    with nn.training() as state:
        loss = ops.sum(norm(x) * x) * factor
    updates = [optimizer.minimize(loss, norm.parameters()), state.updates]
    step = ngd.compile([x, factor], [loss], updates, device=device)
    batch = np.random.default_rng(4).normal(size=(4, 3)).astype(np.float32) + 5
    step(batch, 1.0)
    variables = {v.name: v for v in (*norm.parameters().values(), *optimizer.state.values())}
    before = {name: v.numpy() for name, v in variables.items() if "loss_scale" not in name}
    assert len(before) == 2 * 3 + 2
    statistics = norm.running_mean.numpy()
    step(batch, 1e37)
    for name, value in before.items():
        np.testing.assert_array_equal(variables[name].numpy(), value, name)
    assert (norm.running_mean.numpy() > statistics).all()
    assert np.isfinite(norm.running_var.numpy()).all()
    assert float(optimizer.loss_scale.scale.numpy()) == 2.0**14  # type: ignore[union-attr]
    step(batch, 1.0)
    assert int(optimizer.step.numpy()) == 2


def test_float16_learns_from_small_gradients_with_a_scale() -> None:
    """The gradients are about 1e-9, which is 0 in float16, whose smallest number is 6e-8."""

    def train(precision: str, **how: Any) -> Any:
        random = np.random.default_rng(5)
        x = ngd.placeholder("x", (16, 8))
        a, b = (ngd.variable(n, random.normal(size=(8, 8)).astype("float32")) for n in "ab")
        loss = ops.mean(ops.square(ops.tanh(x @ a) @ b)) * 1e-6
        updates = optim.SGD(1e5, **how).minimize(loss, [a, b])
        step = ngd.compile([x], [loss], updates, device="INTERPRETER", precision=precision)
        before = a.numpy()
        for _ in range(20):
            step(random.normal(size=(16, 8)).astype(np.float32))
        return a.numpy() - before

    exact = train("float32")
    assert np.abs(exact).max() > 0.1
    lost = train("float16")
    scale = optim.LossScale()
    scaled = train("float16", loss_scale=scale)
    errors = [np.linalg.norm(found - exact) / np.linalg.norm(exact) for found in (lost, scaled)]
    assert errors[0] > 0.1
    assert errors[1] < 0.01
    assert int(scale.good_steps.numpy()) == 20


@pytest.mark.filterwarnings("ignore:overflow encountered in cast:RuntimeWarning")
def test_float16_finds_a_scale_that_does_not_overflow() -> None:
    random = np.random.default_rng(6)
    x, w = ngd.placeholder("x", (16, 8)), ngd.variable("w", np.ones((8, 4), np.float32))
    loss = ops.mean(ops.square(x @ w))
    scale = optim.LossScale(2.0**30)
    updates = optim.SGD(0.1, loss_scale=scale).minimize(loss, w)
    step = ngd.compile([x], [loss], updates, device="INTERPRETER", precision="float16")
    losses = [float(step(random.normal(size=(16, 8)).astype(np.float32))[0]) for _ in range(60)]
    assert np.isfinite(losses).all()
    assert np.isfinite(w.numpy()).all()
    assert np.mean(losses[-5:]) < 0.1 * np.mean(losses[:5])
    assert 1 < float(scale.scale.numpy()) < 2.0**30


def test_two_optimizers_skip_together(device: str) -> None:
    matrix, bias = ngd.variable("matrix", np.eye(2)), ngd.variable("bias", np.zeros(2))
    given = ngd.placeholder("given", (), "float64")
    loss = ops.sum(matrix) + given * ops.sum(bias)
    scale = optim.LossScale(8)
    gradients = ngd.grad(scale.scaled(loss), {"muon": matrix, "sgd": bias})
    gradients, finite = scale.unscaled(gradients)
    updates = [
        optim.Muon(0.1).apply({matrix: gradients["muon"]}, where=finite),
        optim.SGD(0.5).apply({bias: gradients["sgd"]}, where=finite),
        scale.updates(finite),
    ]
    step = ngd.compile([given], [], updates, device=device)
    step(INF)
    np.testing.assert_array_equal(matrix.numpy(), np.eye(2))
    np.testing.assert_array_equal(bias.numpy(), 0)
    step(1.0)
    assert (matrix.numpy() != np.eye(2)).all()
    np.testing.assert_array_equal(bias.numpy(), -0.5)
    assert float(scale.scale.numpy()) == 4


def test_the_scale_is_in_the_checkpoint(tmp_path: Path) -> None:
    def make_step(initial: float) -> tuple[optim.Optimizer, Any]:
        w = ngd.variable("w", np.ones(3, np.float32))
        optimizer = optim.SGD(0.1, loss_scale=optim.LossScale(initial, growth_interval=2))
        updates = optimizer.minimize(ops.sum(ops.square(w)), w)
        return optimizer, ngd.compile([], [], updates)

    first, step = make_step(16)
    for _ in range(3):
        step()
    assert set(first.state) == {
        "sgd.step",
        "sgd.lr",
        "loss_scale.scale",
        "loss_scale.good_steps",
    }
    ngd.checkpoint.save(tmp_path, first.state)
    second, step = make_step(1)
    ngd.checkpoint.load(tmp_path, second.state)
    step()
    found = {name: float(v.numpy()) for name, v in second.state.items()}
    assert (found["loss_scale.scale"], found["loss_scale.good_steps"]) == (64, 0)
    separate = first.with_own_state("other")
    assert separate.loss_scale is None
    assert set(separate.state) == {"other.step"}


def test_bad_arguments_raise_errors() -> None:
    with pytest.raises(
        ValueError, match=r"optim.LossScale: expected an initial scale .*; got 0\.5"
    ):
        optim.LossScale(0.5)
    with pytest.raises(ValueError, match="init_scale: expected a finite number; got nan"):
        optim.LossScale(NAN)
    with pytest.raises(ValueError, match="growth_interval: expected a whole number >= 1; got 0"):
        optim.LossScale(growth_interval=0, name="x")
