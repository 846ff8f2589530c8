# SPDX-License-Identifier: Apache-2.0
"""Tests of features that all optimizers share: rates, schedules, groups, clipping, averages."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ngd
from ngd import ops, optim

DEVICES = ("CPU", "INTERPRETER")


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_rate_may_be_a_variable_a_node_or_a_schedule(device: str) -> None:
    gradient = ngd.constant(np.ones(2))
    w = ngd.variable("w", np.zeros(2))
    optimizer = optim.SGD(0.5)
    step = ngd.compile([], [], updates=optimizer.apply({w: gradient}), device=device)
    step()
    optimizer.state["sgd.lr"].assign(0.25)
    step()
    np.testing.assert_array_equal(w.numpy(), -0.75)
    assert optimizer.step.numpy() == 2
    assert set(optimizer.state) == {"sgd.step", "sgd.lr"}

    rate = ngd.placeholder("rate", (), uniform=True)
    given = ngd.variable("given", np.zeros(2))
    updates = optim.SGD(rate).apply({given: gradient})
    ngd.compile([rate], [], updates=updates, device=device)(2)
    np.testing.assert_array_equal(given.numpy(), -2)

    scheduled = ngd.variable("scheduled", np.zeros(2))
    updates = optim.SGD(lambda done: done + 1.0).apply({scheduled: gradient})
    step = ngd.compile([], [], updates=updates, device=device)
    step()
    step()
    np.testing.assert_array_equal(scheduled.numpy(), -3)


def half_cosine(step: int) -> float:
    return 0.01 + 0.09 * (1 + math.cos(math.pi * min(step / 4, 1))) / 2


SCHEDULES: dict[str, tuple[Any, Callable[[int], float]]] = {
    "constant": (optim.constant(0.1), lambda t: 0.1),
    "steps": (
        optim.steps(0.1, {5: 0.5, 2: 0.1}),
        lambda t: 0.1 * (0.1 if t >= 2 else 1) * (0.5 if t >= 5 else 1),
    ),
    "cosine": (optim.cosine(0.1, 4, 0.01), half_cosine),
    "polynomial": (
        optim.polynomial(0.1, 4, power=2, final_lr=0.01),
        lambda t: 0.01 + 0.09 * (1 - min(t / 4, 1)) ** 2,
    ),
    "warm_up": (
        optim.warm_up(optim.cosine(0.1, 4, 0.01), 3, 0.01),
        lambda t: 0.01 + 0.09 * t / 3 if t < 3 else half_cosine(t - 3),
    ),
    "warm_up_to_a_number": (optim.warm_up(0.1, 4), lambda t: 0.1 * min(t / 4, 1)),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_equal_the_formulas(name: str, device: str) -> None:
    schedule, wanted = SCHEDULES[name]
    step = ngd.placeholder("step", (), "float64")
    rate = ngd.compile([step], [schedule(step)], device=device)
    found = [float(rate(float(t))[0]) for t in range(9)]
    np.testing.assert_allclose(found, [wanted(t) for t in range(9)], rtol=1e-14)


def test_linear_scaling_multiplies_by_the_batch_size() -> None:
    assert optim.linear_scaling(0.1, 8192) == pytest.approx(3.2)
    with pytest.raises(ValueError, match=r"cosine: expected a number of steps > 0; got 0"):
        optim.cosine(0.1, 0)


def test_options_of_groups_override_those_of_the_optimizer(device: str) -> None:
    w, b, k = (ngd.variable(n, np.ones(s)) for n, s in (("w", (1, 1)), ("a.bias", 1), ("k", 1)))
    groups = [
        optim.ParameterGroup("*.bias", weight_decay=0.0),
        optim.ParameterGroup({"of": [k]}, lr_factor=10.0),
        optim.ParameterGroup(optim.is_vector, weight_decay=100.0),
    ]
    optimizer = optim.SGD(0.1, weight_decay=0.5, groups=groups)
    updates = optimizer.apply({v: ops.ones(v.shape, v.dtype) for v in (w, b, k)})
    ngd.compile([], [], updates=updates, device=device)()
    assert [float(v.numpy().sum()) for v in (w, b, k)] == pytest.approx([0.85, 0.9, -0.5])
    with pytest.raises(TypeError, match=r"groups: expected options .*momentum.*; got 'betas'"):
        optim.SGD(0.1, groups=[optim.ParameterGroup("*", betas=(0, 0))])


def test_gradients_are_clipped_by_the_global_norm(device: str) -> None:
    a, b = np.full((2, 2), 3.0), np.full(5, 4.0, np.float32)
    tree = {"a": ngd.constant(a), "b": [ngd.constant(b)]}
    clipped, norm = optim.clip_by_global_norm(tree, 2.0)
    found, size = ngd.compile([], [clipped, norm], device=device)()
    wanted = math.sqrt(4 * 9 + 5 * 16)
    assert float(size) == pytest.approx(wanted, rel=1e-6)
    np.testing.assert_allclose(found["a"], a * 2 / wanted, rtol=1e-6)
    np.testing.assert_allclose(found["b"][0], b * 2 / wanted, rtol=1e-6)
    assert found["b"][0].dtype == np.float32
    same, _ = optim.clip_by_global_norm(tree, 100.0)
    np.testing.assert_array_equal(ngd.compile([], same, device=device)()["a"], a)
    w = ngd.variable("w", np.zeros(1))
    updates = optim.SGD(1.0, clip_norm=0.5).apply({w: ngd.constant(np.array([8.0]))})
    ngd.compile([], [], updates=updates, device=device)()
    np.testing.assert_allclose(w.numpy(), -0.5, rtol=1e-6)


def test_micro_batches_equal_one_batch(device: str) -> None:
    data = np.random.default_rng(1).normal(size=(4, 6, 3))

    def train(micro_batches: int) -> Any:
        w = ngd.variable("w", np.ones(3))
        x = ngd.placeholder("x", (6 // micro_batches, 3), "float64")
        loss, optimizer = ops.mean(ops.square(x @ w - 1.0)), optim.AdamW(0.1)
        add = ngd.compile([x], [], updates=optimizer.accumulate(loss, [w]), device=device)
        updates = optimizer.minimize(loss, [w], micro_batches=micro_batches)
        last = ngd.compile([x], [], updates=updates, device=device)
        for batch in data:
            *first, rest = np.split(batch, micro_batches)
            for part in first:
                add(part)
            last(rest)
        assert optimizer.step.numpy() == 4
        return w.numpy()

    np.testing.assert_allclose(train(3), train(1), rtol=1e-12)


@pytest.mark.parametrize("warm_up", [False, True])
def test_averages_follow_the_formula(warm_up: bool, device: str) -> None:
    w, b = ngd.variable("w", np.ones(2)), ngd.variable("b", np.ones(2, np.float32))
    updates: dict[Any, Any] = {w: w * 2, b: b + 1}
    average = optim.ExponentialMovingAverage(0.9, warm_up=warm_up)
    updates |= average.updates(updates, {"w": w})
    step = ngd.compile([], [], updates=updates, device=device)
    value = wanted = np.ones(2)
    for t in range(5):
        step()
        decay = min(0.9, (1 + t) / (10 + t)) if warm_up else 0.9
        value = value * 2
        wanted = decay * wanted + (1 - decay) * value
    np.testing.assert_allclose(average.averages[w].numpy(), wanted, rtol=1e-14)
    assert set(average.state) == {"ema.step", "ema.w"}
    with average.applied():
        np.testing.assert_allclose(w.numpy(), wanted, rtol=1e-14)
    np.testing.assert_array_equal(w.numpy(), value)
    with pytest.raises(ValueError, match=r"expected a next value of .*; got none"):
        average.updates({b: b}, [w])


def test_the_state_is_created_once() -> None:
    w = ngd.variable("w", np.zeros(2, np.float32))
    optimizer = optim.Adam(name="generator")
    for _ in range(2):
        optimizer.minimize(ops.sum(ops.square(w)), w)
    names = ("step", "lr", "w.first_moment", "w.second_moment")
    assert set(optimizer.state) == {f"generator.{name}" for name in names}


def test_two_variables_with_the_same_name_are_rejected() -> None:
    one, other = ngd.variable("w", np.ones(2)), ngd.variable("w", np.zeros(3))
    optimizer, average = optim.SGD(0.1, momentum=0.9), optim.ExponentialMovingAverage(0.9)
    for w in (one, one):
        average.updates(optimizer.apply({w: ops.ones(w.shape, w.dtype)}), w)
    says = r"expected variables of different names; got two that are called 'w', made at .*py:\d+ "
    with pytest.raises(ValueError, match=f"sgd: apply: {says}"):
        optimizer.apply({other: ops.ones((3,), "float64")})
    with pytest.raises(ValueError, match=f"ema: updates: {says}"):
        average.updates({other: other * 2.0})


def test_bad_parameters_and_options_raise_errors() -> None:
    w, x = ngd.variable("w", [1.0]), ngd.placeholder("x", (1,))

    def with_and_without_weights() -> None:
        optimizer = optim.SGD(0.1)
        optimizer.accumulate(ops.sum(w), w)
        optimizer.minimize(ops.sum(w), w, weight=3, micro_batches=2)

    cases: list[tuple[Callable[[], Any], str]] = [
        (
            lambda: optim.SGD(0.1).minimize(ops.sum(w), {"a": [w, x]}),
            r"parameters\['a'\]\[1\]: exp",
        ),
        (lambda: optim.SGD(0.1).minimize(ops.sum(w), [w, w]), "got 'w' 2 times"),
        (lambda: optim.SGD(-0.1), "lr: expected a number >= 0; got -0.1"),
        (
            lambda: optim.SGD(0.1, nesterov=True),
            "expected a momentum > 0, and no dampening, with nesterov",
        ),
        (lambda: optim.SGD(0.1).minimize(ops.sum(w), w, weight=[1.0]), "expected a scalar weight"),
        (with_and_without_weights, "expected weights for all micro-batches, or for none"),
        (lambda: optim.Muon().apply({w: w}), "expected parameters of two axes or more"),
        (
            lambda: optim.Muon(adjust_lr_fn="none"),
            'adjust_lr_fn: expected "original" or "match_rms_adamw"',
        ),
        (lambda: optim.ExponentialMovingAverage(1.0), "decay: expected a number in"),
    ]
    for call, says in cases:
        with pytest.raises((TypeError, ValueError), match=says):
            call()
