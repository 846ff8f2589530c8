# SPDX-License-Identifier: Apache-2.0
"""Tests of ops on random shapes against PyTorch: values and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ngd import ops
from ngd.dtypes import Array, DType, float32, float64
from tests.ops.conftest import Runner
from tests.ops.witness import Shape, agrees

COMMON = settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
BOTH = pytest.mark.parametrize("dtype", [float32, float64], ids=str)
CPU = pytest.mark.parametrize("device", ["CPU"])  # other tests compare the CPU with the INTERPRETER
EXTENTS = st.sampled_from([1, 2, 3, 5, 8, 17])
SHAPES = st.lists(EXTENTS, max_size=3).map(tuple)

UNARY = (
    *("negative", "abs", "sign", "square", "reciprocal", "floor", "ceil", "round", "sqrt", "rsqrt"),
    *("exp", "expm1", "log", "log1p", "tanh", "sin", "cos", "erf", "sigmoid", "relu"),
)
BINARY = ("add", "subtract", "multiply", "divide", "maximum", "minimum", "power")
REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum": lambda t, x, axis: t.sum(x, axis, keepdim=True),
    "mean": lambda t, x, axis: t.mean(x, axis, keepdim=True),
    "prod": lambda t, x, axis: t.prod(x, axis, keepdim=True),
    "max": lambda t, x, axis: t.amax(x, axis, keepdim=True),
    "min": lambda t, x, axis: t.amin(x, axis, keepdim=True),
    "var": lambda t, x, axis: t.var(x, axis, correction=0, keepdim=True),
    "logsumexp": lambda t, x, axis: t.logsumexp(x, axis, keepdim=True),
}
LINES: dict[str, Callable[..., Any]] = {
    "softmax": lambda t, x, axis: t.softmax(x, axis),
    "log_softmax": lambda t, x, axis: t.log_softmax(x, axis),
    "cumsum": lambda t, x, axis: t.cumsum(x, axis),
    "flip": lambda t, x, axis: t.flip(x, (axis,)),
    "sort": lambda t, x, axis: t.sort(x, axis).values,
}


def drawn(name: str, dtype: DType, *shapes: Shape) -> list[Array]:
    """Return different random numbers from the domain of an op, where it has a slope."""
    rng = np.random.default_rng(len(name))
    low = 0.3 if name in ("sqrt", "rsqrt", "log", "log1p", "power", "reciprocal", "divide") else -2
    return [np.asarray(rng.uniform(low, 2, shape), dtype) for shape in shapes]


@CPU
@BOTH
@pytest.mark.parametrize("name", UNARY)
@COMMON
@given(shape=SHAPES)
def test_of_one_operand(run: Runner, dtype: DType, name: str, shape: Shape) -> None:
    agrees(run, drawn(name, dtype, shape), getattr(ops, name), lambda t, x: getattr(t, name)(x))


@st.composite
def broadcasting(draw: st.DrawFn) -> tuple[Shape, Shape]:
    """Draw two shapes that broadcast together."""
    shape = draw(SHAPES)
    other = tuple(draw(st.sampled_from([1, n])) for n in shape)
    left, right = draw(st.permutations([shape, other[draw(st.integers(0, len(shape))) :]]))
    return left, right


@CPU
@BOTH
@pytest.mark.parametrize("name", BINARY)
@COMMON
@given(shapes=broadcasting())
def test_of_two_operands(run: Runner, dtype: DType, name: str, shapes: tuple[Shape, Shape]) -> None:
    theirs = {"power": "pow"}.get(name, name)
    arrays = drawn(name, dtype, *shapes)
    agrees(run, arrays, getattr(ops, name), lambda t, x, y: getattr(t, theirs)(x, y))


@CPU
@BOTH
@pytest.mark.parametrize("name", [*REDUCTIONS, *LINES])
@COMMON
@given(shape=SHAPES.filter(len), place=st.integers(0, 2))
def test_along_an_axis(run: Runner, dtype: DType, name: str, shape: Shape, place: int) -> None:
    axis = place % len(shape)
    keep = {"keepdims": True} if name in REDUCTIONS else {}
    theirs = {**REDUCTIONS, **LINES}[name]
    agrees(
        run,
        drawn(name, dtype, shape),
        lambda x: getattr(ops, name)(x, axis, **keep),
        lambda t, x: theirs(t, x, axis),
    )


@CPU
@BOTH
@COMMON
@given(batch=st.lists(EXTENTS, max_size=2).map(tuple), extents=st.tuples(EXTENTS, EXTENTS, EXTENTS))
def test_matmul(run: Runner, dtype: DType, batch: Shape, extents: tuple[int, int, int]) -> None:
    m, k, n = extents
    for left, right in (((*batch, m, k), (*batch, k, n)), ((*batch, m, k), (k, n)), ((k,), (k, n))):
        agrees(run, drawn("matmul", dtype, left, right), ops.matmul, lambda t, x, y: t.matmul(x, y))


@CPU
@BOTH
@COMMON
@given(shape=SHAPES.filter(len), place=st.integers(0, 2), seed=st.integers(0, 99))
def test_indices(run: Runner, dtype: DType, shape: Shape, place: int, seed: int) -> None:
    axis = place % len(shape)
    chosen = np.random.default_rng(seed).integers(0, shape[axis], (7,))
    whole = (*shape[:axis], 7, *shape[axis + 1 :])
    lines = np.random.default_rng(seed).integers(0, shape[axis], whole)
    (x,) = drawn("gather", dtype, shape)
    agrees(
        run,
        [x],
        lambda x: ops.take(x, chosen, axis),
        lambda t, x: t.index_select(x, axis, t.tensor(chosen)),
    )
    agrees(
        run,
        [x],
        lambda x: ops.take_along_axis(x, lines, axis),
        lambda t, x: t.take_along_dim(x, t.tensor(lines), axis),
    )
    agrees(
        run,
        drawn("scatter_add", dtype, whole),
        lambda u: ops.scatter_add(u, chosen, axis, shape[axis]),
        lambda t, u: t.zeros(shape, dtype=u.dtype).index_add(axis, t.tensor(chosen), u),
    )
