# SPDX-License-Identifier: Apache-2.0
"""Tests of the operators and methods of nodes: each equals that of a NumPy array."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.testing as npt
import pytest

import ngd
from ngd import ops

RNG = np.random.default_rng(3)
DEVICES = ("INTERPRETER", "CPU")


def check_agrees(device: str, apply: Callable[..., Any], *arrays: np.ndarray[Any, Any]) -> None:
    """Check that a call on nodes has the values, shape and dtype of the same call on arrays."""
    inputs = [ngd.placeholder(f"x{i}", a.shape, a.dtype) for i, a in enumerate(arrays)]
    (found,) = ngd.compile(inputs, [apply(*inputs)], device=device)(*arrays)
    with np.errstate(all="ignore"):
        expected = np.asarray(apply(*arrays))
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    npt.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)


NUMBERS = {
    "int32": np.array([-7, -3, 0, 3, 8, 120], np.int32),
    "uint8": np.array([0, 1, 2, 3, 200, 255], np.uint8),
    "float32": np.array([-7.5, -3, -0.5, 3, 8.25, 120], np.float32),
    "bool": np.array([True, False, True, True, False, False]),
}
OTHERS = {
    "int32": np.array([2, -3, 5, -8, 3, 7], np.int32),
    "uint8": np.array([3, 1, 0, 255, 9, 16], np.uint8),
    "float32": np.array([2, -3, 5.5, -8, 0.3, 7], np.float32),
    "bool": np.array([True, True, False, True, False, True]),
}
ARITHMETIC = [operator.floordiv, operator.mod, operator.add, operator.mul]
BITS = [operator.and_, operator.or_, operator.xor]


def check_all_operand_kinds(apply: Any, dtype: str, device: str) -> None:
    x, y = NUMBERS[dtype], OTHERS[dtype]
    check_agrees(device, apply, x, y)
    constant = y.copy()
    check_agrees(device, lambda a: apply(a, constant), x)
    check_agrees(device, lambda a: apply(constant, a), x)
    scalar: Any = {"float32": 2.5, "bool": True}.get(dtype, 3)
    check_agrees(device, lambda a: apply(a, scalar), x)
    check_agrees(device, lambda a: apply(scalar, a), y)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["int32", "uint8", "float32"])
@pytest.mark.parametrize("apply", ARITHMETIC)
def test_arithmetic_operators_equal_numpy(apply: Any, dtype: str, device: str) -> None:
    check_all_operand_kinds(apply, dtype, device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["int32", "uint8", "bool"])
@pytest.mark.parametrize("apply", BITS)
def test_bitwise_operators_equal_numpy(apply: Any, dtype: str, device: str) -> None:
    check_all_operand_kinds(apply, dtype, device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", list(NUMBERS))
def test_unary_operators_equal_numpy(dtype: str, device: str) -> None:
    if dtype != "float32":
        check_agrees(device, operator.invert, NUMBERS[dtype])
    if dtype != "bool":
        check_agrees(device, operator.pos, NUMBERS[dtype])
        check_agrees(device, operator.neg, NUMBERS[dtype])
        check_agrees(device, abs, NUMBERS[dtype])


def test_bitwise_operators_reject_floats() -> None:
    x = ngd.placeholder("x", (2,))
    for apply in BITS:
        with pytest.raises(
            ngd.errors.DTypeError, match=r"^bitwise_\w+: expected bools or integers"
        ):
            apply(x, x)
    with pytest.raises(
        ngd.errors.DTypeError, match=r"^bitwise_not: expected integers; got float32"
    ):
        operator.invert(x)


def test_divmod_is_quotient_and_remainder() -> None:
    x = ngd.placeholder("x", (6,), "int32")
    for pair in (divmod(x, 3), divmod(3, x)):
        assert [n.op for n in pair] == [ops.floor_divide, ops.remainder]


X = RNG.uniform(-3, 3, (2, 3, 4)).astype(np.float32)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "apply",
    [
        *[lambda x, n=n: getattr(x, n)() for n in ("sum", "prod", "mean", "var", "max", "min")],
        *[
            lambda x, n=n: getattr(x, n)(axis=(0, -1), keepdims=True)
            for n in ("sum", "prod", "mean", "var", "max", "min")
        ],
        lambda x: x.sum(1),
        lambda x: x.max(-1, keepdims=True),
        lambda x: x.argmax(),
        lambda x: x.argmin(axis=1, keepdims=True),
        lambda x: x.reshape(4, 6),
        lambda x: x.reshape((4, -1)),
        lambda x: x.reshape(-1),
        lambda x: x.flatten(),
        lambda x: x.ravel(),
        lambda x: x.transpose(),
        lambda x: x.transpose(1, 2, 0),
        lambda x: x.transpose((-1, 0, 1)),
        lambda x: x[0, 0].transpose(0),
        lambda x: x.swapaxes(0, -1),
        lambda x: x.T,
        lambda x: x[:1].squeeze(),
        lambda x: x[:1, :, :1].squeeze(0),
        lambda x: x.take([1, 0], axis=2),
        lambda x: x.take(np.array([[5, -1], [0, 2]])),
        lambda x: x.round(),
        lambda x: x.clip(-1, 1.5),
        lambda x: x.clip(max=0.5),
        lambda x: x.clip(min=0.5),
        lambda x: x.clip(x.min(-1, keepdims=True) + 1, 2),
        lambda x: x.astype(np.float64),
        lambda x: x.astype("int32"),
        lambda x: np.clip(x, -1, 1),
        lambda x: np.invert(x > 0),
        lambda x: np.floor_divide(x, 2),
    ],
)
def test_methods_equal_those_of_arrays(apply: Callable[[Any], Any], device: str) -> None:
    check_agrees(device, apply, X)


def test_attributes_equal_those_of_arrays() -> None:
    x = ngd.placeholder("x", (2, 3, 4), np.float16)
    for name in ("size", "nbytes", "itemsize", "ndim", "shape", "dtype"):
        assert getattr(x, name) == getattr(X.astype(np.float16), name), name
    assert x.mT.shape == (2, 4, 3)
    assert x.flatten().shape == (24,)
    assert (+x) is x


def test_errors_of_methods_name_the_method() -> None:
    x = ngd.placeholder("x", (2, 3))
    with pytest.raises(ngd.errors.ShapeError, match=r"^swapaxes: expected an axis in \[-2, 2\)"):
        x.swapaxes(0, 2)
    with pytest.raises(ngd.errors.ShapeError, match=r"^reshape: expected 6 elements"):
        x.reshape(4, -1)
    with pytest.raises(ngd.errors.ShapeError, match=r"^sum: expected an axis"):
        x.sum(2)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("device", ["CPU", "INTERPRETER"])
def test_a_constant_of_a_python_float_takes_the_dtype_of_the_other_operand(
    dtype: str, device: str
) -> None:
    """The constant keeps the digits of the Python float until it has the final dtype."""
    x = ngd.placeholder("x", (3,), dtype)
    tenth = ngd.constant(0.1)
    found = [x + tenth, ops.where(x > 0, tenth, x), ops.stack([x[0], tenth]), tenth.astype(dtype)]
    given = np.array([1, -2, 3]).astype(np.dtype(dtype))
    results = ngd.compile([x], found, device=device)(given)
    assert [r.dtype for r in results] == [given.dtype] * 4
    wanted = [given + given.dtype.type(0.1), np.where(given > 0, 0.1, given), [given[0], 0.1], 0.1]
    for result, each in zip(results, wanted, strict=True):
        np.testing.assert_array_equal(result, np.asarray(each, given.dtype))


def test_a_weak_constant_is_rounded_once() -> None:
    h = ngd.placeholder("h", (), "float16")
    above_half = 1 + 2**-11 + 2**-30
    for number in (above_half, ngd.constant(above_half)):
        assert ngd.compile([h], [h * number])(np.float16(1))[0] == 1 + 2**-10


def test_constants_with_a_dtype_keep_it() -> None:
    x, third = ngd.placeholder("x", (3,)), ngd.constant(np.float64(1 / 3))
    assert (x + third).dtype == np.float64
    assert (third * ngd.constant(0.1) + x).dtype == np.float64
    assert (x + ngd.constant(0.1, "float64")).dtype == np.float64
    assert (x + ngd.constant(0.1).astype("float64")).dtype == np.float64
    assert ngd.constant([0.1, 0.2]).dtype == np.float32
    assert ngd.constant(0.1).dtype == (ngd.constant(0.1) * 2).dtype == np.float32
    w = ngd.variable("w", 0.5)
    ngd.compile([], [], {w: ngd.constant(0.1)})()
    assert w.numpy() == np.float32(0.1)


def test_weak_scalars_keep_the_dtype() -> None:
    x = ngd.placeholder("x", (2,), np.float16)
    for node in (x // 2, 2 // x, x % 2.5, x.clip(-1, 1), x.clip(0)):
        assert node.dtype == np.float16
    assert (ngd.placeholder("n", (2,), np.uint8) & 3).dtype == np.uint8
