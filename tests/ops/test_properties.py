# SPDX-License-Identifier: Apache-2.0
"""Tests of ops on random shapes, some without elements, against NumPy, on each device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ngd import ops
from ngd.dtypes import (
    FLOATS,
    INTEGERS,
    Array,
    DType,
    Type,
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
)
from ngd.graph.node import Node
from tests.ops.cases import assert_close, placeholders
from tests.ops.conftest import Runner

COMMON = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
EXTENTS = st.one_of(st.integers(0, 5), st.sampled_from([8, 17, 33, 70]))
SHAPES = st.lists(EXTENTS, max_size=3).map(tuple)
NUMBERS = (*INTEGERS, *FLOATS)
HALVES = (float16, bfloat16)


def values(seed: int, shape: Sequence[int], dtype: DType) -> Array:
    """Draw small numbers. Integers and their sums are exact in the accumulator of each dtype."""
    rng = np.random.default_rng(seed)
    if dtype == bool_:
        return rng.integers(0, 2, shape).astype(bool)
    if dtype in FLOATS:
        return np.asarray(rng.uniform(-2, 2, shape), np.float32).astype(dtype)
    return rng.integers(0 if dtype.kind == "u" else -5, 6, shape).astype(dtype)


def check(
    run: Runner,
    arrays: Sequence[Array],
    ours: Callable[..., Node],
    theirs: Callable[..., Any],
    slack: float = 1,
) -> None:
    """Compare an op on the device with NumPy's function. NumPy gets 16-bit floats as float32."""
    inputs = placeholders([Type(a.dtype, a.shape) for a in arrays])
    node = ours(*inputs)
    (found,) = run(inputs, [node], arrays)
    wide = [a.astype(np.float32) if a.dtype in HALVES else a for a in arrays]
    with np.errstate(all="ignore"):
        expected = np.asarray(theirs(*wide))
    assert_close(found, expected.astype(node.dtype), slack)


@st.composite
def broadcasting(draw: st.DrawFn) -> list[tuple[int, ...]]:
    """Two shapes that broadcast together."""
    whole = draw(SHAPES)
    found = []
    for _ in range(2):
        kept = draw(st.integers(0, len(whole)))
        ones = [draw(st.booleans()) for _ in range(kept)]
        tail = whole[len(whole) - kept :]
        found.append(tuple(1 if one else n for n, one in zip(tail, ones, strict=True)))
    return found


@COMMON
@given(
    broadcasting(),
    st.sampled_from(NUMBERS),
    st.sampled_from(["add", "subtract", "multiply", "maximum", "less", "equal"]),
    st.integers(0, 9),
)
def test_broadcasting(
    run: Runner, shapes: list[tuple[int, ...]], dtype: DType, name: str, seed: int
) -> None:
    arrays = [values(seed + i, shape, dtype) for i, shape in enumerate(shapes)]
    check(run, arrays, getattr(ops, name), getattr(np, name))


@COMMON
@given(broadcasting(), st.sampled_from(FLOATS), st.integers(0, 9))
def test_chains_of_elementwise_ops(
    run: Runner, shapes: list[tuple[int, ...]], dtype: DType, seed: int
) -> None:
    arrays = [values(seed + i, shape, dtype) for i, shape in enumerate(shapes)]
    if dtype in HALVES:  # NumPy rounds after each op, like ngd
        check(
            run,
            arrays,
            lambda a, b: ops.where(a > b, a * b, a),
            lambda a, b: np.where(a > b, a * b, a),
        )
        return
    check(
        run,
        arrays,
        lambda a, b: ops.where(a > b, ops.exp(a - b) * 2, ops.tanh(a) / (b * b + 1)) + b,
        lambda a, b: np.where(a > b, np.exp(a - b) * 2, np.tanh(a) / (b * b + 1)) + b,
        slack=4,
    )


@COMMON
@given(st.data())
def test_reductions(run: Runner, data: st.DataObject) -> None:
    shape = data.draw(SHAPES)
    dtype = data.draw(st.sampled_from(NUMBERS))
    name = data.draw(st.sampled_from(["sum", "mean", "max", "min"]))
    axis = data.draw(
        st.sets(st.integers(0, max(len(shape) - 1, 0)), max_size=len(shape)).map(tuple)
    )
    keepdims = data.draw(st.booleans())
    if name in ("max", "min") and 0 in [shape[a] for a in axis]:
        axis = tuple(a for a in axis if shape[a])
    array = values(data.draw(st.integers(0, 9)), shape, dtype)
    if name == "mean" and 0 in [shape[a] for a in axis]:
        name = "sum"  # NumPy warns about the mean of no elements
    check(
        run,
        [array],
        lambda x: getattr(ops, name)(x, axis, keepdims),
        lambda x: getattr(np, name)(x, axis=axis, keepdims=keepdims),
        slack=4,
    )


@COMMON
@given(st.data())
def test_matmul(run: Runner, data: st.DataObject) -> None:
    m, k, n = (data.draw(EXTENTS) for _ in range(3))
    batches = data.draw(broadcasting())
    dtype = data.draw(st.sampled_from((*FLOATS, *INTEGERS)))
    a = values(1, (*batches[0][-2:], m, k), dtype)
    b = values(2, (*batches[1][-2:], k, n), dtype)
    check(run, [a, b], ops.matmul, np.matmul, slack=8)
    transposed = data.draw(st.booleans())
    if transposed:
        check(run, [a, b.swapaxes(-1, -2).copy()], *_with_transposed_b(b.ndim), slack=8)


def _with_transposed_b(ndim: int) -> tuple[Callable[..., Node], Callable[..., Any]]:
    axes = (*range(ndim - 2), ndim - 1, ndim - 2)
    return (
        lambda a, b: ops.matmul(a, ops.transpose(b, axes)),
        lambda a, b: np.matmul(a, np.transpose(b, axes)),
    )


@st.composite
def indices(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """Draw a basic index of this shape."""
    found: list[Any] = []
    for n in shape[: draw(st.integers(0, len(shape)))]:
        if n and draw(st.booleans()):
            found.append(draw(st.integers(-n, n - 1)))
        else:
            bound = st.one_of(st.none(), st.integers(-n - 2, n + 2))
            step = st.one_of(st.none(), st.sampled_from([-3, -2, -1, 1, 2, 3]))
            found.append(slice(draw(bound), draw(bound), draw(step)))
    if draw(st.booleans()):
        found.insert(draw(st.integers(0, len(found))), None)
    if draw(st.booleans()):
        found.append(...)
    return tuple(found)


@COMMON
@given(st.data())
def test_slices(run: Runner, data: st.DataObject) -> None:
    shape = data.draw(SHAPES)
    index = data.draw(indices(shape))
    array = values(3, shape, data.draw(st.sampled_from((bool_, *NUMBERS))))
    check(run, [array], lambda x: x[index], lambda x: x[index])


@COMMON
@given(st.data())
def test_reshape_and_transpose(run: Runner, data: st.DataObject) -> None:
    shape = data.draw(SHAPES)
    axes = data.draw(st.permutations(range(len(shape))))
    split = data.draw(st.sampled_from([(-1,), (1, -1), (-1, 1)]))
    if 0 in shape:
        split = (0, 4)
    array = values(4, shape, data.draw(st.sampled_from((bool_, *NUMBERS))))
    check(
        run,
        [array],
        lambda x: ops.reshape(ops.transpose(x, axes), split),
        lambda x: np.transpose(x, axes).reshape(split),
    )


@COMMON
@given(st.data())
def test_concat(run: Runner, data: st.DataObject) -> None:
    shape = data.draw(SHAPES.filter(bool))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    extents = data.draw(st.lists(EXTENTS, min_size=1, max_size=4))
    dtype = data.draw(st.sampled_from((bool_, *NUMBERS)))
    shapes = [list(shape) for _ in extents]
    for one, n in zip(shapes, extents, strict=True):
        one[axis] = n
    arrays = [values(i, one, dtype) for i, one in enumerate(shapes)]
    check(
        run,
        arrays,
        lambda *xs: ops.concat(xs, axis),
        lambda *xs: np.concatenate(xs, axis),
    )


@COMMON
@given(st.data())
def test_gather_and_its_adjoint(run: Runner, data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple))
    axis = data.draw(st.integers(0, len(shape) - 1))
    n = shape[axis]
    chosen = data.draw(st.lists(st.integers(-n, n - 1), max_size=12))
    where = np.array(chosen, data.draw(st.sampled_from([np.int32, np.int64])))
    if data.draw(st.booleans()) and where.size % 2 == 0:
        where = where.reshape(2, -1)
    dtype = data.draw(st.sampled_from(NUMBERS))
    x = values(5, shape, dtype)
    check(run, [x, where], lambda a, i: ops.take(a, i, axis), lambda a, i: np.take(a, i, axis))

    def added(updates: Array, places: Array) -> Array:
        total = np.zeros(shape, updates.dtype)
        np.add.at(total, (*(slice(None),) * axis, places), updates)
        return total

    updates = values(6, (*shape[:axis], *where.shape, *shape[axis + 1 :]), dtype)
    check(run, [updates, where], lambda u, i: ops.scatter_add(u, i, axis, n), added, slack=4)


@COMMON
@given(SHAPES.filter(lambda s: bool(s) and s[-1] > 0), st.sampled_from([float32, float64]))
def test_softmax_family(run: Runner, shape: tuple[int, ...], dtype: DType) -> None:
    """Compute the textbook's formulas in float64, which does not overflow for such inputs."""
    x = values(8, shape, dtype) * dtype.type(3)
    labels = np.random.default_rng(9).integers(0, shape[-1], shape[:-1])

    def softmax(x: Array) -> Array:
        powers = np.exp(x.astype(float64))
        return powers / powers.sum(-1, keepdims=True)

    def loss(x: Array, labels: Array) -> Array:
        return -np.log(np.take_along_axis(softmax(x), labels[..., None], -1))[..., 0]

    check(run, [x], ops.softmax, softmax, slack=4)
    check(run, [x], ops.log_softmax, lambda x: np.log(softmax(x)), slack=4)
    check(run, [x, labels], ops.softmax_cross_entropy, loss, slack=4)


@pytest.mark.parametrize("bad", [3, -4])
def test_an_index_out_of_range_is_named(run: Runner, bad: int) -> None:
    x, i = placeholders([Type(float32, (3, 2)), Type(np.dtype(np.int64), (4,))])
    where = np.array([0, 1, bad, 2])
    with pytest.raises(ValueError, match=rf"take: .*{bad}"):
        run([x, i], [ops.take(x, i)], [np.ones((3, 2), "f"), where])


@pytest.mark.parametrize("bad", [5, -1])
def test_a_label_out_of_range_is_named(run: Runner, bad: int) -> None:
    logits, labels = placeholders([Type(float32, (4, 5)), Type(np.dtype(np.int64), (4,))])
    with pytest.raises(ValueError, match=rf"softmax_cross_entropy: .*{bad}"):
        run(
            [logits, labels],
            [ops.softmax_cross_entropy(logits, labels)],
            [np.ones((4, 5), "f"), np.array([0, 1, bad, 2])],
        )
