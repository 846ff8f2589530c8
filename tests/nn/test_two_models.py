# SPDX-License-Identifier: Apache-2.0
"""Tests of two models with the same names, in one step, one optimizer and one average."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import numpy.testing as npt
import pytest

import ngd
from ngd import checkpoint, nn, ops, optim
from ngd.errors import CompileError, EqualModelsWarning

X = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)


def linear(seed: int, name: str = "") -> nn.Linear:
    layer = nn.Linear(3, 3, bias=False)
    layer.name = name
    layer.initialize(seed)
    return layer


def step_of(models: list[nn.Linear], optimizer: Any) -> Any:
    """Return a step that trains models to return zeros. It uses them in reverse order."""

    @ngd.function(updates=True)
    def step(x: Any) -> Any:
        loss = sum(ops.sum(ops.square(model(x))) for model in reversed(models))
        return loss, optimizer.minimize(loss, [model.parameters() for model in models])

    return step


def momentum_steps(w: Any, times: int) -> Any:
    """Return a weight after steps of SGD with momentum 0.9 and rate 0.01, computed by NumPy."""
    b = np.zeros_like(w)
    for _ in range(times):
        b = 0.9 * b + 2 * (X @ w.T).T @ X
        w = w - 0.01 * b
    return w


@pytest.mark.parametrize("names", [("", ""), ("critic", "critic"), ("", "model_1")])
def test_two_models_with_the_same_names_train_in_one_step(names: tuple[str, str]) -> None:
    models = [linear(seed, name) for seed, name in enumerate(names)]
    before = [model.state_dict()["weight"] for model in models]
    optimizer = optim.SGD(0.01, momentum=0.9)
    step = step_of(models, optimizer)
    for _ in range(3):
        step(X)
    for model, w in zip(models, before, strict=True):
        npt.assert_allclose(model.state_dict()["weight"], momentum_steps(w, 3), rtol=1e-4)
    assert [list(model.state_dict()) for model in models] == [["weight"], ["weight"]]


def test_the_second_model_gets_a_prefix() -> None:
    first, second, third = linear(0), linear(1), linear(2, "critic")
    x = ngd.placeholder("x", X.shape)
    step = ngd.compile([x], [third(x) + second(x) + first(x)])  # construction decides, not use
    names = {first.weight: "weight", second.weight: "model_1.weight", third.weight: "critic.weight"}
    assert step.graph.names == names
    assert [v.name for v in names] == ["weight", "weight", "critic.weight"]
    optimizer = optim.SGD(0.1, momentum=0.9)
    optimizer.apply({v: v for v in (first.weight, second.weight)})
    state = {name for name in optimizer.state if name.endswith("momentum")}
    assert state == {"sgd.weight.momentum", "sgd.model_1.weight.momentum"}
    average = optim.ExponentialMovingAverage()
    average.updates({v: v for v in (first.weight, second.weight)})
    assert "ema.model_1.weight" in average.state


def test_all_variables_of_a_model_get_the_prefix() -> None:
    first, second = linear(0), nn.Linear(3, 3)
    x = ngd.placeholder("x", X.shape)
    names = ngd.compile([x], [second(x) + first(x)]).graph.names
    assert sorted(names.values()) == ["model_1.bias", "model_1.weight", "weight"]


def test_a_checkpoint_of_one_model_has_no_prefix(tmp_path: Any) -> None:
    saved, loaded = linear(1), linear(2)
    x = ngd.placeholder("x", X.shape)
    ngd.compile([x], [saved(x) + loaded(x)])(X)
    checkpoint.save(tmp_path, saved.variables())
    checkpoint.load(tmp_path, loaded.variables())  # like a program with one model
    npt.assert_array_equal(loaded.weight.numpy(), saved.weight.numpy())
    with pytest.raises(ValueError, match=r"got two called 'weight'\. Give each model"):
        checkpoint.save(tmp_path, [saved.variables(), loaded.variables()])


def test_variables_with_equal_names_and_without_a_model_are_rejected() -> None:
    w, own = ngd.variable("weight", np.ones((3, 3), np.float32)), linear(0)
    x = ngd.placeholder("x", X.shape)
    names = ngd.compile([x], [own(x) + x @ w]).graph.names
    assert names == {w: "weight", own.weight: "model_1.weight"}
    other = ngd.variable("weight", np.zeros((3, 3), np.float32))
    with pytest.raises(CompileError, match=r"got two variables called 'weight': one made at .*py:"):
        ngd.compile([x], [x @ w + x @ other])


def test_models_with_equal_initial_weights_warn() -> None:
    models = [nn.Linear(3, 3, bias=False) for _ in range(2)]
    with pytest.warns(EqualModelsWarning, match=r"got 'weight' of two models .*initialize\(seed"):
        step_of(models, optim.SGD(0.1))(X)
    named = [nn.Linear(3, 3, bias=False) for _ in range(2)]
    named[1].name = "second"
    assert not np.array_equal(named[0].weight.numpy(), named[1].weight.numpy())
    teacher = linear(0)
    for pair in (named, [linear(0), linear(1)], [teacher, copy.deepcopy(teacher)]):
        step_of(pair, optim.SGD(0.1))(X)  # no warning, which would be an error
