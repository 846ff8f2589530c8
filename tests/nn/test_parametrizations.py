# SPDX-License-Identifier: Apache-2.0
"""Tests of weight norm and spectral norm against NumPy and finite differences."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ngd
from ngd import nn, ops, optim

KEYS = ["parametrizations.weight.original0", "parametrizations.weight.original1"]
ORIGINAL = "parametrizations.weight.original"
VECTORS = ["parametrizations.weight.0._u", "parametrizations.weight.0._v"]


def weight_of(layer: nn.Module, name: str = "weight") -> Any:
    return ngd.compile([], [getattr(layer, name)])()[0]


@pytest.mark.parametrize(("dim", "axes"), [(0, (1, 2)), (1, (0, 2)), (None, (0, 1, 2))])
def test_weight_norm_keeps_the_value_of_the_weight(dim: int | None, axes: tuple[int, ...]) -> None:
    layer = nn.Conv1d(4, 6, 3).astype("float64")
    before = layer.weight.numpy()
    nn.weight_norm(layer, dim=dim)
    state = layer.state_dict()
    assert list(state) == ["bias", *KEYS]
    norms = np.sqrt((before**2).sum(axes, keepdims=dim is not None))
    np.testing.assert_allclose(state[KEYS[0]], norms, 1e-14)
    np.testing.assert_array_equal(state[KEYS[1]], before)
    np.testing.assert_allclose(weight_of(layer), before, 1e-14)
    state[KEYS[0]] = state[KEYS[0]] * 0 + 3
    layer.load_state_dict(state)
    weight = weight_of(layer)
    np.testing.assert_allclose(np.sqrt((weight**2).sum(axes)), 3, 1e-14)
    np.testing.assert_allclose(weight / before, (3 / norms) * np.ones(before.shape), 1e-12)


@pytest.mark.parametrize("seed", [0, 5])
def test_the_initial_magnitude_is_the_norm_of_the_direction(seed: int) -> None:
    layer = nn.weight_norm(nn.Linear(4, 3))
    if seed:
        layer.initialize(seed)
    state = layer.state_dict()
    np.testing.assert_allclose(
        state[KEYS[0]], np.linalg.norm(state[KEYS[1]], axis=1, keepdims=True), 1e-6
    )


def test_gradients_of_weight_norm_equal_finite_differences() -> None:
    layer = nn.weight_norm(nn.Linear(3, 2)).astype("float64")
    x, adjoint = np.random.default_rng(1).normal(size=(2, 4, 3))
    loss = ops.sum(layer(ngd.constant(x)) ** 3 * adjoint[:, :2])
    parameters = layer.parameters()
    value = ngd.compile([], [loss])
    found = ngd.compile([], [ngd.grad(loss, [parameters[key] for key in KEYS])])()[0]
    for key, slope in zip(KEYS, found, strict=True):
        variable, step = parameters[key], 1e-6
        first = variable.numpy()
        for index in np.ndindex(first.shape):
            ends = []
            for sign in (1, -1):
                changed = first.copy()
                changed[index] += sign * step
                variable.assign(changed)
                ends.append(value()[0])
            variable.assign(first)
            np.testing.assert_allclose(slope[index], (ends[0] - ends[1]) / (2 * step), 1e-6, 1e-8)


@pytest.mark.parametrize(
    ("make", "dim", "shape"),
    [
        (lambda: nn.Linear(5, 4), 0, (2, 5)),
        (lambda: nn.Conv2d(2, 3, 2), 0, (2, 2, 4, 4)),
        (lambda: nn.ConvTranspose1d(2, 3, 2), 1, (2, 2, 4)),
    ],
)
def test_power_iterations_equal_numpy(
    make: Callable[[], nn.Module], dim: int, shape: tuple[int, ...]
) -> None:
    layer = nn.spectral_norm(make(), n_power_iterations=2).astype("float64")
    first = layer.state_dict()
    assert list(first) == ["bias", ORIGINAL, *VECTORS]
    original = first[ORIGINAL]
    matrix = np.moveaxis(original, dim, 0).reshape(original.shape[dim], -1)
    u, v = (first[key] for key in VECTORS)
    np.testing.assert_allclose([np.linalg.norm(u), np.linalg.norm(v)], 1, 1e-14)
    largest = np.linalg.svd(matrix, compute_uv=False)[0]
    assert 0.9 * largest < u @ matrix @ v <= largest * (1 + 1e-12)
    np.testing.assert_allclose(weight_of(layer), original / (u @ matrix @ v), 1e-12)
    with nn.training() as state:
        y = layer(ngd.constant(np.ones(shape)))
        again = layer.weight
    step = ngd.compile([], [y, again], state.updates)
    weight = step()[1]
    for _ in range(4):  # two reads with two iterations each
        u = matrix @ v / np.linalg.norm(matrix @ v)
        v = matrix.T @ u / np.linalg.norm(matrix.T @ u)
    np.testing.assert_allclose(weight, original / (u @ matrix @ v), 1e-12)
    for key, wanted in zip(VECTORS, (u, v), strict=True):
        np.testing.assert_allclose(layer.state_dict()[key], wanted, 1e-12)
    for _ in range(50):
        step()
    singular = np.linalg.svd(np.moveaxis(weight_of(layer), dim, 0).reshape(matrix.shape))[1]
    np.testing.assert_allclose(singular[0], 1, 1e-8)


def test_vectors_stay_float32_in_a_bfloat16_step() -> None:
    layer = nn.spectral_norm(nn.Linear(30, 20))
    state = layer.state_dict()
    matrix, v = state[ORIGINAL].astype("f8"), state[VECTORS[1]].astype("f8")
    x = ngd.placeholder("x", (4, 30))
    with nn.training() as training:
        y = layer(x)
    step = ngd.compile([x], [y], training.updates, device="INTERPRETER", precision="bfloat16")
    step(np.ones((4, 30), "f"))
    wanted = matrix @ v / np.linalg.norm(matrix @ v)
    np.testing.assert_allclose(layer.state_dict()[VECTORS[0]], wanted, 0, 1e-6)


def test_evaluation_does_not_change_the_vectors() -> None:
    layer = nn.spectral_norm(nn.Linear(3, 2))
    before = layer.state_dict()
    with nn.training() as state, nn.evaluation():
        y = layer(ngd.constant(np.ones((1, 3), np.float32)))
    assert state.updates == {}
    ngd.compile([], [y])()
    for key, value in layer.state_dict().items():
        np.testing.assert_array_equal(value, before[key])


def test_forgotten_updates_are_named() -> None:
    layer = nn.spectral_norm(nn.Linear(3, 2))
    with nn.training():
        y = layer(ngd.constant(np.ones((1, 3), np.float32)))
    with pytest.warns(ngd.errors.UpdatesWarning, match=r"parametrizations\.weight\.0"):
        ngd.compile([], [y])


def test_a_weight_of_one_axis_is_divided_by_its_norm() -> None:
    layer = nn.spectral_norm(nn.LayerNorm(4))
    assert list(layer.state_dict()) == ["bias", ORIGINAL]
    np.testing.assert_allclose(weight_of(layer), np.full(4, 0.5), 1e-6)


def test_recurrent_weights_and_biases_can_be_normalized() -> None:
    layer = nn.weight_norm(nn.LSTM(3, 2), "weight_hh_l0")
    before = weight_of(layer, "weight_hh_l0")
    x = ngd.constant(np.ones((4, 1, 3), np.float32))
    linear_without_bias = nn.remove_parametrizations(copy.deepcopy(layer), "weight_hh_l0")
    np.testing.assert_allclose(linear_without_bias.weight_hh_l0.numpy(), before, 1e-6)
    one, other = (ngd.compile([], [each(x)[0]])()[0] for each in (layer, linear_without_bias))
    np.testing.assert_allclose(one, other, 1e-5)
    linear = nn.weight_norm(nn.Linear(3, 2), "bias")
    assert repr(linear).startswith("Linear(3, 2, bias=True\n")


@pytest.mark.parametrize("normalize", [nn.weight_norm, nn.spectral_norm])
def test_removing_a_parametrization_keeps_the_value(normalize: Callable[..., Any]) -> None:
    layer = normalize(nn.Linear(3, 2, bias=False))
    layer.initialize(seed=4)
    value = weight_of(layer)
    assert nn.remove_parametrizations(layer) is layer
    assert list(layer.state_dict()) == ["weight"]
    np.testing.assert_array_equal(layer.weight.numpy(), value)
    assert repr(layer) == "Linear(3, 2, bias=False)"
    normalize(layer)
    np.testing.assert_allclose(weight_of(layer), value, 0.2)


@pytest.mark.parametrize("normalize", [nn.weight_norm, nn.spectral_norm])
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_have_their_own_variables(normalize: Any, copied: Callable[[Any], Any]) -> None:
    model = nn.Sequential(normalize(nn.Linear(3, 2)))
    fresh = copied(model)
    model.initialize(seed=3)
    later_copy = copied(model)
    fresh.initialize(seed=3)
    assert repr(later_copy) == repr(fresh) == repr(model)
    for other in (later_copy, fresh):
        assert list(other.state_dict()) == list(model.state_dict())
        for key, value in model.state_dict().items():
            np.testing.assert_array_equal(other.state_dict()[key], value)
    before = weight_of(model[0])
    later_copy.initialize(seed=4)
    np.testing.assert_array_equal(weight_of(model[0]), before)


@pytest.mark.parametrize("normalize", [nn.weight_norm, nn.spectral_norm])
def test_a_normalized_model_trains_and_resumes(normalize: Any, tmp_path: Any) -> None:
    random = np.random.default_rng(0)
    x, y = random.normal(size=(8, 3)).astype("f"), random.normal(size=(8, 2)).astype("f")

    def make() -> tuple[Any, Any, Any]:
        model = nn.Sequential(normalize(nn.Linear(3, 4)), nn.Tanh(), normalize(nn.Linear(4, 2)))
        optimizer = optim.AdamW(0.05)

        @ngd.function(updates=True)
        def step(x: Any, y: Any) -> Any:
            with nn.training() as state:
                loss = ops.mean((model(x) - y) ** 2)
            return loss, [optimizer.minimize(loss, model.parameters()), state.updates]

        return model, optimizer, step

    model, optimizer, step = make()
    first = [float(step(x, y)) for _ in range(30)]
    assert first[-1] < 0.7 * first[0]
    ngd.checkpoint.save(tmp_path, [model.variables(), optimizer.state], private={})
    wanted = [float(step(x, y)) for _ in range(3)]
    model, optimizer, step = make()
    ngd.checkpoint.load(tmp_path, [model.variables(), optimizer.state])
    assert [float(step(x, y)) for _ in range(3)] == wanted


def test_variables_are_named_by_their_keys() -> None:
    model = nn.Sequential(nn.weight_norm(nn.Linear(3, 2)))
    assert [v.name for v in model.parameters().values()] == list(model.parameters())
    group = optim.ParameterGroup("*.original0", weight_decay=0.0)
    optim.AdamW(0.1, groups=[group]).minimize(
        ops.sum(model(ngd.constant(np.ones((1, 3), np.float32)))), model.parameters()
    )


def test_a_shared_weight_keeps_its_name() -> None:
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 5, bias=False))
    model[1].weight = model[0].parameter("weight")
    nn.weight_norm(model[1])
    assert list(model.parameters()) == ["0.weight", f"1.{KEYS[0]}"]
    assert model[0].weight.name == "0.weight"
    np.testing.assert_allclose(weight_of(model[1]), model[0].weight.numpy(), 1e-6)


def linear_without_bias() -> nn.Module:
    return nn.Linear(3, 2, bias=False)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: nn.weight_norm(3), TypeError, r"nn\.weight_norm: expected an nn\.Module; got 3"),
        (
            lambda: nn.weight_norm(linear_without_bias(), "bias"),
            ValueError,
            r"of Linear\(3, 2, bias=False\), among weight; got 'bias'",
        ),
        (
            lambda: nn.weight_norm(linear_without_bias(), dim=-1),
            ValueError,
            r"dim in \[0, 2\).*; got -1",
        ),
        (
            lambda: nn.spectral_norm(linear_without_bias(), dim=2),
            ValueError,
            r"dim in \[-2, 2\).*; got 2",
        ),
        (
            lambda: nn.spectral_norm(linear_without_bias(), n_power_iterations=0),
            ValueError,
            "n_power_iterations >= 1; got 0",
        ),
        (
            lambda: nn.spectral_norm(nn.weight_norm(linear_without_bias())),
            ValueError,
            r"without a parametrization; got 'weight' .* Call nn\.remove_parametrizations first",
        ),
        (
            lambda: nn.remove_parametrizations(linear_without_bias()),
            ValueError,
            r"computes; got 'weight' of",
        ),
        (
            lambda: setattr(nn.weight_norm(linear_without_bias()), "weight", nn.Parameter((2, 3))),
            RuntimeError,
            r"Linear\.weight: expected an attribute without a parametrization",
        ),
    ],
)
def test_bad_arguments_raise_errors(
    call: Callable[[], Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_a_copied_weight_is_normalized_as_its_original(duplicate: Callable[[Any], Any]) -> None:
    original = nn.Linear(3, 2, bias=False).astype("float64")
    original.weight.assign([[1.0, 2.0, 3.0], [4.0, 5.0, 7.0]])
    expected = original.weight.numpy()
    copied = nn.weight_norm(duplicate(original))
    np.testing.assert_allclose(weight_of(copied), expected, 1e-14)
    again = nn.weight_norm(nn.remove_parametrizations(copied))
    np.testing.assert_allclose(weight_of(again), expected, 1e-14)
    divided = nn.spectral_norm(duplicate(original))
    largest = np.linalg.svd(expected, compute_uv=False)[0]
    with nn.evaluation():
        np.testing.assert_allclose(weight_of(divided), expected / largest, 1e-10)
