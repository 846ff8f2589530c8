# SPDX-License-Identifier: Apache-2.0
"""Tests of accuracy against float64: 16-bit floats, large offsets, very large and small numbers.

For 16-bit floats, the expected result is that of float64 on the same numbers, rounded once. A
device computes in float32, so its rounding may differ by one unit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
import pytest

from ngd import grad, ops
from ngd.dtypes import (
    SHORT_NAMES,
    Array,
    DType,
    Type,
    bfloat16,
    float16,
    float32,
    float64,
    is_float,
)
from ngd.graph.node import Node
from tests.ops.cases import Case, all_cases, placeholders, run_reference
from tests.ops.conftest import Runner

HALVES = (float16, bfloat16)
DIGITS = {float16: 11, bfloat16: 8, float32: 24, float64: 53}


def units(found: Array, wanted: Array, scale: float = 0) -> float:
    """Return the largest difference in units of the last place of the dtype of `found`.

    Two NaNs have the difference 0. Numbers smaller than `scale` are measured as if they were of
    that
    size.
    """
    digits = DIGITS[found.dtype]
    found, wanted = found.astype(float64), wanted.astype(float64)
    same = (found == wanted) | (np.isnan(found) & np.isnan(wanted))
    if same.all():
        return 0
    if not np.isfinite(found[~same]).all() or not np.isfinite(wanted[~same]).all():
        return math.inf
    _, exponent = np.frexp(np.maximum(np.abs(wanted), scale))
    with np.errstate(invalid="ignore"):
        return float(np.max(np.where(same, 0, np.abs(found - wanted) / 2.0 ** (exponent - digits))))


def as_float64(arrays: list[Array]) -> list[Array]:
    return [a.astype(float64) if is_float(a.dtype) else a for a in arrays]


def rounded(value: Array, dtype: DType) -> Array:
    with np.errstate(over="ignore"):  # numbers out of range become infinities
        return np.asarray(value.astype(float32) if dtype in HALVES else value).astype(dtype)


COMPUTING = [
    case
    for case in all_cases()
    if case.dtype in HALVES
    and case.op.name not in ("stop_gradient", "cast")
    and not case.op.comm.is_collective
    and not (
        case.op.name == "matmul" and len(case.results[0].shape) > 2
    )  # a batched matmul has one more sum
    and case.readings != [()]
    and any(operand.dtype is None for operand in case.sample.operands)
]


@pytest.mark.parametrize(
    "case",
    [c for c in COMPUTING if c.op.has_expansion and not c.op.numerics.has_float32_results],
    ids=str,
)
def test_an_expansion_is_rounded_once(case: Case, run: Runner) -> None:
    inputs, arrays = placeholders(case.types), case.arrays()
    wanted = case.reference(as_float64(arrays))
    for found, true in zip(run(inputs, case.apply(inputs), arrays), wanted, strict=True):
        assert units(found, rounded(true, found.dtype), scale=2**-8) <= 1


@pytest.mark.parametrize("case", COMPUTING, ids=str)
def test_a_gradient_is_rounded_once(case: Case, run: Runner) -> None:
    assert case.dtype is not None
    arrays = case.arrays()
    rng = np.random.default_rng(3)
    read = case.readings[0]
    shapes = [case.results[number].shape for number in read]
    seeds = [rounded(rng.uniform(0.5, 1.5, shape), case.dtype) for shape in shapes]

    def gradients(dtype: DType) -> tuple[list[Node], list[Node]]:
        types = [Type(dtype if is_float(t.dtype) else t.dtype, t.shape) for t in case.types]
        inputs = placeholders([*types, *(Type(dtype, shape) for shape in shapes)])
        operands, dy = inputs[: len(types)], inputs[len(types) :]
        results = case.apply(operands)
        parts = [ops.sum(results[n] * d) for n, d in zip(read, dy, strict=True)]
        loss = reduce(ops.add, parts)
        wrt = [x for x in operands if is_float(x.dtype)]
        return inputs, grad(loss, wrt, unused="zero")

    inputs, outputs = gradients(case.dtype)
    found = run(inputs, outputs, [*arrays, *seeds])
    wide, wide_outputs = gradients(float64)
    wanted = run_reference(wide, wide_outputs, as_float64([*arrays, *seeds]))
    for one, true in zip(found, wanted, strict=True):
        assert units(one, rounded(true, case.dtype), scale=2**-8) <= 1


LARGE: list[tuple[str, Callable[[Node], Node], Callable[[Array], Any], Array]] = [
    ("var near 300", ops.var, np.var, 300 + 20 * np.sin(np.arange(4000.0))),
    (
        "logsumexp of zeros",
        ops.logsumexp,
        lambda x: np.log(np.sum(np.exp(x))),
        np.zeros(100_000),
    ),
    ("mean", ops.mean, np.mean, np.full(100_000, 3.0)),
    (
        "cross entropy",
        lambda x: ops.mean(ops.softmax_cross_entropy(ops.reshape(x, (1, -1)), np.zeros(1, int))),
        lambda x: np.log(np.sum(np.exp(x - x[0]))),
        np.concatenate([np.zeros(70_000), np.full(30_000, 2.0)]),
    ),
]


@pytest.mark.parametrize("dtype", HALVES, ids=SHORT_NAMES.__getitem__)
@pytest.mark.parametrize(
    ("op", "theirs", "values"), [c[1:] for c in LARGE], ids=[c[0] for c in LARGE]
)
def test_reductions_of_many_16_bit_floats_are_rounded_once(
    op: Callable[[Node], Node],
    theirs: Callable[[Array], Any],
    values: Array,
    dtype: DType,
    run: Runner,
) -> None:
    array = rounded(values, dtype)
    (x,) = placeholders([Type(dtype, array.shape)])
    loss = op(x)
    found, slope = run([x], [loss, grad(loss, x)], [array])
    assert units(found, rounded(np.asarray(theirs(array.astype(float64))), dtype)) <= 1
    (wide,) = placeholders([Type(float64, array.shape)])
    (true,) = run_reference([wide], [grad(op(wide), wide)], as_float64([array]))
    assert units(slope, rounded(true, dtype), scale=2.0**-14) <= 1


def logsumexp(x: Array) -> Array:
    top = np.max(x)
    return top + np.log(np.sum(np.exp(x - top)))


def softmax(x: Array) -> Array:
    powers = np.exp(x - np.max(x))
    return powers / powers.sum()


RNG = np.random.default_rng(5)
SPREAD = RNG.normal(size=64)
HARD: dict[str, Array] = {
    "two equal at 1e7": np.array([1e7, 1e7]),
    **{f"offset {offset:g}": SPREAD + offset for offset in (1e4, -1e5, 1e6, 1e8, -1e8)},
    "huge": np.array([3e38, 1e38, -3e38]),
    "tiny": np.array([1e-38, -1e-38, 0.0, 1e-40]),
    "far apart": np.array([-1e4, 0.0, 90.0, 88.0]),
    "masked": np.array([-np.inf, 1.0, 2.0, -np.inf]),
    "one": np.array([1e8]),
    "equal": np.full(9, -7e4),
}
OPS: dict[str, tuple[Callable[[Node], Node], Callable[[Array], Any], Callable[[Array], Array]]] = {
    "logsumexp": (ops.logsumexp, logsumexp, softmax),
    "log_softmax": (
        lambda x: ops.log_softmax(x)[-2:][0],
        lambda x: (x - logsumexp(x))[-2:][0],
        lambda x: np.eye(x.size)[-2:][0] - softmax(x),
    ),
    "softmax": (
        lambda x: ops.softmax(x)[-2:][0],
        lambda x: softmax(x)[-2:][0],
        lambda x: softmax(x)[-2:][0] * (np.eye(x.size)[-2:][0] - softmax(x)),
    ),
    "softmax_cross_entropy": (
        lambda x: ops.softmax_cross_entropy(x, np.int64(x.shape[0] - 1)),
        lambda x: -(x - logsumexp(x))[-1],
        lambda x: softmax(x) - np.eye(x.size)[-1],
    ),
    "var": (ops.var, np.var, lambda x: 2 / x.size * (x - np.mean(x))),
    "sigmoid": (
        lambda x: ops.sum(ops.sigmoid(x)),
        lambda x: np.sum(0.5 * (1 + np.tanh(x / 2))),
        lambda x: 0.25 / np.cosh(np.clip(x, -1400, 1400) / 2) ** 2,
    ),
    "tanh": (
        lambda x: ops.sum(ops.tanh(x)),
        lambda x: np.sum(np.tanh(x)),
        lambda x: 1 / np.cosh(np.clip(x, -700, 700)) ** 2,
    ),
    "softplus": (
        lambda x: ops.sum(ops.maximum(x, 0) + ops.log1p(ops.exp(-abs(x)))),
        lambda x: np.sum(np.logaddexp(x, 0)),
        lambda x: 0.5 * (1 + np.tanh(x / 2)),
    ),
    "norm": (
        lambda x: ops.sqrt(ops.sum(ops.square(x))),
        lambda x: np.sqrt(np.sum(x * x)),
        lambda x: x / np.sqrt(np.sum(x * x)),
    ),
}
OUT_OF_RANGE = {
    ("var", "huge"),
    ("norm", "huge"),
    ("norm", "tiny"),
    ("var", "tiny"),
    ("var", "masked"),
    ("norm", "masked"),
}
"""Cases in which float32 squares overflow or vanish, or in which the result is not finite."""


@pytest.mark.parametrize("values", HARD)
@pytest.mark.parametrize("name", OPS)
def test_difficult_numbers_are_accurate(name: str, values: str, run: Runner) -> None:
    """The tolerance is some units of the last place of the largest number."""
    if (name, values) in OUT_OF_RANGE or (
        HARD[values].size < 2 and name in ("log_softmax", "softmax")
    ):
        pytest.skip("leaves float32's range, or has no second element")
    ours, value, gradient = OPS[name]
    array = HARD[values].astype(float32)
    (x,) = placeholders([Type(float32, array.shape)])
    loss = ours(x)
    found, slope = run([x], [loss, grad(loss, x)], [array])
    with np.errstate(all="ignore"):
        wanted, true = value(array.astype(float64)), gradient(array.astype(float64))
    size = float(np.max(np.abs(true[np.isfinite(true)]), initial=0))
    assert units(found, rounded(np.asarray(wanted), float32), scale=2.0**-10) <= 16, (found, wanted)
    assert units(slope, rounded(true, float32), scale=max(size, 2.0**-10)) <= 16, (slope, true)


def test_logsumexp_of_masked_rows_is_minus_infinity_without_a_gradient(run: Runner) -> None:
    array = np.full((2, 3), -np.inf, np.float32)
    array[1] = [0, -np.inf, np.nan]
    (x,) = placeholders([Type(float32, (2, 3))])
    loss = ops.logsumexp(x, 1)
    found, slope = run([x], [loss, grad(ops.sum(loss), x)], [array])
    np.testing.assert_array_equal(found, [-np.inf, np.nan])
    np.testing.assert_array_equal(slope[0], 0)
    assert np.isnan(slope[1]).all()
