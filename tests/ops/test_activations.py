# SPDX-License-Identifier: Apache-2.0
"""Tests of activations against formulas in Python's math module, and against PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.testing as npt
import pytest

from ngd import grad, ops
from ngd.dtypes import Array, DType, Type, float32, float64
from ngd.graph.node import Node
from tests.ops.cases import placeholders, run_reference
from tests.ops.conftest import Runner

Scalar = Callable[[float], float]


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > 0 else math.exp(x) / (1 + math.exp(x))


def normal_cdf(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2))


def tanh_gelu(x: float) -> float:
    if abs(x) > 1e3:
        return max(x, 0.0)
    return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def tanh_gelu_slope(x: float) -> float:
    if abs(x) > 30:
        return float(x > 0)
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    outer = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x**2)
    return 0.5 * (1 + math.tanh(inner)) + 0.5 * x * outer / math.cosh(inner) ** 2


def density(x: float) -> float:
    return math.exp(-min(x * x, 1e4) / 2) / math.sqrt(2 * math.pi)


def hardsigmoid(x: float) -> float:
    return min(max(x + 3, 0.0), 6.0) / 6


CASES: dict[str, tuple[Callable[[Any], Node], Scalar, Scalar]] = {
    "softplus": (ops.softplus, lambda x: max(x, 0) + math.log1p(math.exp(-abs(x))), sigmoid),
    "silu": (
        ops.silu,
        lambda x: x * sigmoid(x),
        lambda x: sigmoid(x) + x * sigmoid(x) * sigmoid(-x),
    ),
    "gelu": (ops.gelu, lambda x: x * normal_cdf(x), lambda x: normal_cdf(x) + x * density(x)),
    "gelu_tanh": (lambda x: ops.gelu(x, approximate="tanh"), tanh_gelu, tanh_gelu_slope),
    "leaky_relu": (
        lambda x: ops.leaky_relu(x, 0.2),
        lambda x: x if x > 0 else 0.2 * x,
        lambda x: 1 if x > 0 else 0.2,
    ),
    "elu": (
        lambda x: ops.elu(x, alpha=0.5),
        lambda x: x if x > 0 else 0.5 * math.expm1(x),
        lambda x: 1 if x > 0 else 0.5 * math.exp(x),
    ),
    "hardsigmoid": (ops.hardsigmoid, hardsigmoid, lambda x: 1 / 6 if abs(x) < 3 else 0),
    "hardswish": (
        ops.hardswish,
        lambda x: x * hardsigmoid(x),
        lambda x: x / 3 + 0.5 if abs(x) < 3 else float(x > 0),
    ),
}
POINTS = [0.0, 1e-30, 1e-7, 0.3, 1.0, 2.9, 3.0, 3.1, 5.0, 8.0, 16.5, 40.0, 88.0, 104.0, 710.0, 1e4]
"""These points and their negatives: exponentials of float32 and float64 overflow and vanish."""
FAR = {float32: [1e18, 2e19, 3e38], float64: [1e100, 1e160, 1e308]}
"""Numbers whose squares overflow."""
TOLERANCE: dict[DType, tuple[float, float]] = {float32: (2e-6, 3e-7), float64: (1e-13, 1e-15)}


@pytest.mark.parametrize("dtype", [float32, float64], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_values_and_slopes_equal_the_formulas(name: str, dtype: DType, run: Runner) -> None:
    ours, value, slope = CASES[name]
    points = np.array([s * p for p in [*POINTS, *FAR[dtype]] for s in (-1, 1)], dtype)
    (x,) = placeholders([Type(points.dtype, points.shape)])
    y = ours(x)
    found = run([x], [y, grad(ops.sum(y), x)], [points])
    relative, absolute = TOLERANCE[dtype]
    for result, exact in zip(found, (value, slope), strict=True):
        expected = np.array([exact(float(p)) for p in points])
        npt.assert_allclose(result, expected.astype(dtype), rtol=relative, atol=absolute * 10)


@pytest.mark.parametrize("name", CASES)
def test_a_nan_stays_a_nan(name: str, run: Runner) -> None:
    (x,) = placeholders([Type(float32, (1,))])
    assert np.isnan(run([x], [CASES[name][0](x)], [np.array([np.nan], np.float32)])[0]).all()


TORCH: dict[str, Callable[[Any, Any], Any]] = {
    "softplus": lambda f, x: f.softplus(x, threshold=1e9),
    "silu": lambda f, x: f.silu(x),
    "gelu": lambda f, x: f.gelu(x),
    "gelu_tanh": lambda f, x: f.gelu(x, approximate="tanh"),
    "leaky_relu": lambda f, x: f.leaky_relu(x, 0.2),
    "elu": lambda f, x: f.elu(x, alpha=0.5),
    "hardsigmoid": lambda f, x: f.hardsigmoid(x),
    "hardswish": lambda f, x: f.hardswish(x),
}


@pytest.mark.parametrize("name", TORCH)
def test_activations_equal_pytorch(name: str, run: Runner) -> None:
    torch: Any = pytest.importorskip("torch")
    array = np.random.default_rng(2).uniform(-5, 5, 200)
    theirs = torch.tensor(array, requires_grad=True)
    result = TORCH[name](torch.nn.functional, theirs)
    result.sum().backward()
    (x,) = placeholders([Type(float64, array.shape)])
    y = CASES[name][0](x)
    value, slope = run([x], [y, grad(ops.sum(y), x)], [array])
    npt.assert_allclose(value, result.detach().numpy(), rtol=1e-12, atol=1e-13)
    close = 1e-7 if name == "hardsigmoid" else 1e-12  # PyTorch rounds its slope, 1 / 6, to float32
    npt.assert_allclose(slope, theirs.grad.numpy(), rtol=close, atol=1e-13)


def values(nodes: list[Node]) -> list[Array]:
    found: list[Array] = run_reference([], nodes, [])
    return found


def test_integers_are_converted_to_floats() -> None:
    (node,) = values([ops.silu(np.array([0, 1]))])
    npt.assert_allclose(node, [0, sigmoid(1)])
    assert node.dtype == float64


def test_gelu_rejects_unknown_approximations() -> None:
    with pytest.raises(ValueError, match=r"^gelu: .* among none, tanh; got 'erf'"):
        ops.gelu(1.0, approximate="erf")


class TestClip:
    X = np.array([-2.0, -1.0, 0.0, 1.0, 2.0])

    def gradients(self, low: Any, high: Any) -> list[Array]:
        x, a, b = (ops.as_node(np.asarray(v, float)) for v in (self.X, low, high))
        return values(grad(ops.sum(ops.clip(x, a, b)), [x, a, b]))

    def test_a_value_on_a_bound_gets_the_gradient(self) -> None:
        to_x, to_low, to_high = self.gradients(-1, 1)
        assert to_x.tolist() == [0, 1, 1, 1, 0]
        assert to_low == 1
        assert to_high == 1

    def test_crossed_bounds_give_the_upper_bound(self) -> None:
        to_x, to_low, to_high = self.gradients(1, -1)
        assert values([ops.clip(self.X, 1, -1)])[0].tolist() == [-1] * 5
        assert to_x.tolist() == [0] * 5
        assert to_low == 0
        assert to_high == 5

    @pytest.mark.parametrize("dtype", ["int8", "uint16", "float32", "float16"])
    def test_clip_without_bounds_changes_nothing(self, dtype: str) -> None:
        limits = np.finfo(dtype) if dtype.startswith("float") else np.iinfo(dtype)
        x = np.array([limits.min, limits.max, 1], dtype)
        npt.assert_array_equal(values([ops.clip(x)])[0], x)
        npt.assert_array_equal(values([ops.clip(x, min=1)])[0], np.maximum(x, x[2]))
        npt.assert_array_equal(values([ops.clip(x, max=1)])[0], np.minimum(x, x[2]))
