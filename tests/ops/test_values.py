# SPDX-License-Identifier: Apache-2.0
"""Tests of elementwise ops on special values, and on arrays longer than a tile of a kernel."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.testing as npt
import pytest

from ngd.dtypes import (
    ALL,
    FLOATS,
    SHORT_NAMES,
    Array,
    DType,
    Type,
    bfloat16,
    bool_,
    float16,
    is_float,
)
from ngd.graph.node import Op
from ngd.graph.registry import OPS
from tests.ops.cases import Case, all_cases, assert_close, draw, placeholders
from tests.ops.conftest import Runner

ELEMENTWISE = [op for op in OPS.values() if op.kernel.is_elementwise]
PAIRS = [(op, dtype) for op in ELEMENTWISE for dtype in op.dtypes]
EITHER_ZERO = ("maximum", "minimum")
"""Ops whose result for 0 and -0 may be either: IEEE 754-2008 and NumPy leave it open."""

LONG = 5003
"""More elements than a tile, and not a multiple of a vector."""


def special_values(dtype: DType) -> Array:
    """Return the limits of the range, zeros, infinities and NaN."""
    if dtype == bool_:
        return np.array([False, True])
    if not is_float(dtype):
        limits = np.iinfo(dtype)
        small = [0, 1, 2, 3, 7, 31, -1, -2, -7]
        kept = [n for n in small if limits.min <= n]
        return np.array([limits.min, limits.min + 1, limits.max, limits.max - 1, *kept], dtype)
    limits = np.finfo(np.float32 if dtype == bfloat16 else dtype)
    ends = [float(limits.max) * 0.99, float(limits.tiny)]
    plain = [0.0, 0.5, 1.0, 1.5, 2.5, 3.0, 80.0, 100.0, 1e4, 2.0**31, 2.0**63, np.inf]
    values = np.array([*ends, *plain])
    with np.errstate(over="ignore"):
        both = np.concatenate([values, -values, [np.nan]]).astype(np.float64)
        narrow = both.astype(np.float32) if dtype in (float16, bfloat16) else both
        return np.asarray(narrow.astype(dtype))


def operands(op: Op, dtype: DType) -> list[Array]:
    """Return each special value, or all pairs of special values, for an op's operands."""
    values = special_values(dtype)
    if op.name == "where":
        return [np.array([[True], [False]]), values, values[::-1].copy()]
    if len(getattr(op, "domain", ((),))) == 2:
        pairs = np.array(list(itertools.product(values, values)), dtype)
        return [pairs[:, 0].copy(), pairs[:, 1].copy()]
    return [values]


def attributes(op: Op) -> list[dict[str, Any]]:
    return [{"dtype": d} for d in ALL] if op.name == "cast" else [{}]


@pytest.mark.parametrize(
    ("op", "dtype"), PAIRS, ids=[f"{op.name}-{SHORT_NAMES[d]}" for op, d in PAIRS]
)
def test_special_values_equal_the_reference(op: Op, dtype: DType, run: Runner) -> None:
    arrays = operands(op, dtype)
    inputs = placeholders([Type(a.dtype, a.shape) for a in arrays])
    for attrs in attributes(op):
        (found,) = run(inputs, [op.node(inputs, attrs)], arrays)
        with np.errstate(all="ignore"):
            expected = np.asarray(op.reference(*arrays, **attrs))
        assert_close(found, expected)
        if is_float(expected.dtype) and op.name not in EITHER_ZERO:
            zero = expected == 0
            npt.assert_array_equal(np.signbit(found[zero]), np.signbit(expected[zero]))


LONG_CASES = [
    case
    for case in all_cases()
    if case.op.kernel.is_elementwise
    and case.dtype in FLOATS
    and case.number == 1
    and case.sample.operands
]


@pytest.mark.parametrize("case", LONG_CASES, ids=str)
@pytest.mark.parametrize("layout", ["dense", "broadcast"])
def test_long_arrays_equal_the_reference(case: Case, layout: str, run: Runner) -> None:
    rng = np.random.default_rng(11)
    shapes = [(LONG,)] * 3 if layout == "dense" else [(1, LONG), (3, 1), (3, LONG)]
    arrays = [
        draw(type(o)(shape, o.low, o.high, away_from_zero=o.away_from_zero), t.dtype, rng)
        for o, t, shape in zip(case.sample.operands, case.types, shapes, strict=False)
    ]
    inputs = placeholders([Type(a.dtype, a.shape) for a in arrays])
    for found, wanted in zip(
        run(inputs, case.apply(inputs), arrays), case.reference(arrays), strict=True
    ):
        assert_close(found, wanted)
