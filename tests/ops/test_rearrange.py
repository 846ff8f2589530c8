# SPDX-License-Identifier: Apache-2.0
"""Tests of ops that move, sort or accumulate elements, against NumPy and PyTorch's gradients."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.testing as npt
import pytest

from ngd import grad, ops
from ngd.dtypes import Array, DType, Type, float32, float64
from ngd.errors import DTypeError, ShapeError
from ngd.graph.node import Node
from tests.ops.cases import placeholders, run_reference
from tests.ops.conftest import Runner
from tests.ops.witness import agrees, drawn

X = np.arange(24).reshape(2, 3, 4)
SAME: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "moveaxis": (lambda x: ops.moveaxis(x, 0, -1), lambda x: np.moveaxis(x, 0, -1)),
    "swapaxes": (lambda x: ops.swapaxes(x, 0, -1), lambda x: np.swapaxes(x, 0, -1)),
    "flip": (ops.flip, np.flip),
    "flip_two": (lambda x: ops.flip(x, (0, -1)), lambda x: np.flip(x, (0, -1))),
    "roll": (lambda x: ops.roll(x, 7), lambda x: np.roll(x, 7)),
    "roll_axes": (lambda x: ops.roll(x, (1, -5), (0, 2)), lambda x: np.roll(x, (1, -5), (0, 2))),
    "roll_one": (lambda x: ops.roll(x, 2, (0, 1)), lambda x: np.roll(x, 2, (0, 1))),
    "roll_none": (lambda x: ops.roll(x[:0], 3, 0), lambda x: np.roll(x[:0], 3, 0)),
    "tile": (lambda x: ops.tile(x, (2, 1, 3)), lambda x: np.tile(x, (2, 1, 3))),
    "tile_short": (lambda x: ops.tile(x, 2), lambda x: np.tile(x, 2)),
    "tile_long": (lambda x: ops.tile(x[0], (2, 0, 1, 2)), lambda x: np.tile(x[0], (2, 0, 1, 2))),
    "tril": (ops.tril, np.tril),
    "tril_2": (lambda x: ops.tril(x, 2), lambda x: np.tril(x, 2)),
    "triu": (lambda x: ops.triu(x, -1), lambda x: np.triu(x, -1)),
    "triu_of_bools": (lambda x: ops.triu(x > 3), lambda x: np.triu(x > 3)),
    "tri": (lambda x: ops.tri(3, 5, -1), lambda x: np.tri(3, 5, -1, dtype=bool)),
    "pad": (
        lambda x: ops.pad(x, ((1, 0), (0, 2), (3, 1))),
        lambda x: np.pad(x, ((1, 0), (0, 2), (3, 1))),
    ),
    "pad_5": (lambda x: ops.pad(x, 1, value=5), lambda x: np.pad(x, 1, constant_values=5)),
    "pad_0": (lambda x: ops.pad(x, 0, value=5), lambda x: x),
    "edge": (lambda x: ops.pad(x, (2, 1), "edge"), lambda x: np.pad(x, (2, 1), "edge")),
    "reflect": (lambda x: ops.pad(x, (1, 3), "reflect"), lambda x: np.pad(x, (1, 3), "reflect")),
    "symmetric": (lambda x: ops.pad(x, 2, "symmetric"), lambda x: np.pad(x, 2, "symmetric")),
    "wrap": (lambda x: ops.pad(x, 5, "wrap"), lambda x: np.pad(x, 5, "wrap")),
    "cumsum": (lambda x: ops.cumsum(x, 1), lambda x: np.cumsum(x, 1)),
    "cumsum_flat": (ops.cumsum, np.cumsum),
    "cumsum_of_bools": (lambda x: ops.cumsum(x > 3, -1), lambda x: np.cumsum(x > 3, -1)),
    "cumsum_reverse": (
        lambda x: ops.cumsum(x, 0, reverse=True),
        lambda x: np.cumsum(x[::-1], 0)[::-1],
    ),
    "any": (lambda x: ops.any(x > 22, 1), lambda x: np.any(x > 22, 1)),
    "any_keeps": (lambda x: ops.any(x, (0, 2), True), lambda x: np.any(x, (0, 2), keepdims=True)),
    "any_of_none": (lambda x: ops.any(x[:0], 0), lambda x: np.any(x[:0], 0)),
    "all": (ops.all, np.all),
    "all_of_none": (lambda x: ops.all(x[:, :0], (1, 2)), lambda x: np.all(x[:, :0], (1, 2))),
}


def evaluate(node: Node) -> Array:
    found: Array = run_reference([], [node], [])[0]
    return found


@pytest.mark.parametrize("name", SAME)
def test_ops_equal_numpy(name: str, run: Runner) -> None:
    ours, theirs = SAME[name]
    (x,) = placeholders([Type(X.dtype, X.shape)])
    (found,) = run([x], [ours(x)], [X])
    expected = np.asarray(theirs(X))
    assert found.dtype == expected.dtype
    npt.assert_array_equal(found, expected)


def test_numpy_functions_accept_nodes() -> None:
    x = ops.as_node(X)
    for made, expected in [
        (np.flip(x, 1), np.flip(X, 1)),
        (np.roll(x, 3), np.roll(X, 3)),
        (np.tile(x, 2), np.tile(X, 2)),
        (np.pad(x, 1), np.pad(X, 1)),
        (np.triu(x), np.triu(X)),
        (np.cumsum(x, 0), np.cumsum(X, 0)),
        (np.einsum("abc->cb", x), np.einsum("abc->cb", X)),
        (np.any(x), np.any(X)),
        (x.all(1), X.all(1)),
        (np.sort(x, 0), np.sort(X, 0)),
        (x.argsort(), X.argsort()),
        (x.cumsum(1), X.cumsum(1)),
    ]:
        npt.assert_array_equal(evaluate(made), expected)


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.float16, np.float32, np.float64])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_sort_and_argsort_equal_numpy(dtype: Any, axis: int, run: Runner) -> None:
    """Many values are equal, and argsort keeps their order."""
    array = np.random.default_rng(1).integers(0, 4, (3, 20, 2)).astype(dtype)
    (x,) = placeholders([Type(array.dtype, array.shape)])
    outputs = [ops.sort(x, axis), ops.argsort(x, axis), ops.argsort(x, axis, descending=True)]
    found = run([x], outputs, [array])
    npt.assert_array_equal(found[0], np.sort(array, axis))
    npt.assert_array_equal(found[1], np.argsort(array, axis, kind="stable"))
    npt.assert_array_equal(found[2], np.argsort(-array.astype(int), axis, kind="stable"))


def test_nan_is_sorted_as_the_largest_value(run: Runner) -> None:
    array = np.array([2, np.nan, -np.inf, np.inf, np.nan, 1], float32)
    (x,) = placeholders([Type(array.dtype, array.shape)])
    up, down = run([x], [ops.argsort(x), ops.argsort(x, descending=True)], [array])
    assert up.tolist() == [2, 5, 0, 3, 1, 4]
    assert down.tolist() == [1, 4, 3, 0, 5, 2]


def test_top_k_can_return_the_smallest_values(run: Runner) -> None:
    array = np.array([[3.0, 1.0], [1.0, 5.0], [2.0, 5.0]])
    (x,) = placeholders([Type(float64, array.shape)])
    found = run([x], list(ops.top_k(x, 2, axis=0, largest=False)), [array])
    assert found[0].tolist() == [[1, 1], [2, 5]]
    assert found[1].tolist() == [[1, 0], [2, 1]]


@pytest.mark.parametrize("dtype", [float32, float64], ids=str)
def test_cumulative_sums_of_many_rows_are_rounded_once(dtype: DType, run: Runner) -> None:
    """The array has more rows than one pass of the kernel takes."""
    array = np.asarray(np.random.default_rng(2).uniform(0, 1, (300, 150)), dtype)
    (x,) = placeholders([Type(dtype, array.shape)])
    for axis, reverse in itertools.product((0, 1), (False, True)):
        (found,) = run([x], [ops.cumsum(x, axis, reverse)], [array])
        wide = np.flip(array, axis) if reverse else array
        sums = np.cumsum(wide.astype(np.longdouble), axis)
        exact = np.flip(sums, axis) if reverse else sums
        npt.assert_allclose(found, exact.astype(dtype), rtol=np.finfo(dtype).eps * 40)


@pytest.mark.parametrize("dtype", [float32, float64], ids=str)
@pytest.mark.parametrize("ord", [1, 2, 3, math.inf, -math.inf, -1.5])
@pytest.mark.parametrize("axis", [None, 1, (0, 2)])
def test_norms_equal_pytorch(run: Runner, dtype: DType, ord: float, axis: Any) -> None:
    agrees(
        run,
        drawn(dtype, (3, 4, 5)),
        lambda x: ops.vector_norm(x, axis, True, ord),
        lambda torch, x: torch.linalg.vector_norm(x, ord, axis, True),
    )


def test_the_norm_of_zeros_has_a_zero_gradient() -> None:
    x = ops.as_node(np.zeros((2, 3)))
    assert evaluate(ops.vector_norm(x)) == 0
    npt.assert_array_equal(evaluate(grad(ops.vector_norm(x), x)), 0)


WITNESSED: dict[str, tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]] = {
    "flip": (lambda x: ops.flip(x, 1), lambda t, x: t.flip(x, (1,))),
    "roll": (lambda x: ops.roll(x, 2, 1), lambda t, x: t.roll(x, 2, 1)),
    "tile": (lambda x: ops.tile(x, (2, 3)), lambda t, x: t.tile(x, (2, 3))),
    "tril": (lambda x: ops.tril(x, -1), lambda t, x: t.tril(x, -1)),
    "pad": (lambda x: ops.pad(x, 2), lambda t, x: t.nn.functional.pad(x, (2, 2, 2, 2))),
    "pad_3": (
        lambda x: ops.pad(x, 1, value=3.0),
        lambda t, x: t.nn.functional.pad(x, (1, 1, 1, 1), value=3.0),
    ),
    "reflect": (
        lambda x: ops.pad(x, ((0, 0), (2, 1)), "reflect"),
        lambda t, x: t.nn.functional.pad(x, (2, 1), "reflect"),
    ),
    "cumsum": (lambda x: ops.cumsum(x, 0), lambda t, x: t.cumsum(x, 0)),
    "sort": (lambda x: ops.sort(x, 0), lambda t, x: t.sort(x, 0).values),
    "top_k": (
        lambda x: ops.top_k(x, 2, 0, largest=False)[0],
        lambda t, x: t.topk(x, 2, 0, largest=False).values,
    ),
}


@pytest.mark.parametrize("name", WITNESSED)
def test_gradients_equal_pytorch(name: str, run: Runner) -> None:
    ours, theirs = WITNESSED[name]
    agrees(run, drawn(float64, (4, 5)), ours, theirs)


@pytest.mark.parametrize("padding_idx", [None, 2, -1])
def test_embedding_equals_pytorch(run: Runner, padding_idx: int | None) -> None:
    indices = np.array([[0, 2, 4], [2, 2, 1]])
    agrees(
        run,
        drawn(float64, (5, 3)),
        lambda w: ops.embedding(indices, w, padding_idx),
        lambda t, w: t.nn.functional.embedding(t.tensor(indices), w, padding_idx),
    )


@pytest.mark.parametrize(("first", "begins"), [(1, 1), (-3, 0), (9, 2)])
def test_dynamic_slice_clamps_its_start(run: Runner, first: int, begins: int) -> None:
    x, start = placeholders([Type(X.dtype, X.shape), Type(np.dtype(np.int32), ())])
    part = ops.dynamic_slice(x, (0, 1, start), (2, 1, 2))
    (found,) = run([x, start], [part], [X, np.array(first, np.int32)])
    npt.assert_array_equal(found, X[:, 1:2, begins : begins + 2])


REFUSED: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: ops.flip(X, 3), ShapeError, "^flip: expected an axis"),
    (lambda: ops.roll(X, (1, 2), 0), ShapeError, "^roll: expected a shift for each"),
    (lambda: ops.tile(X, -1), ShapeError, "^tile: expected counts"),
    (lambda: ops.tril(X[0, 0]), ShapeError, "^tril: expected at least two axes"),
    (lambda: ops.pad(X, ((1, 2), (3, 4))), ShapeError, "^pad: expected widths"),
    (lambda: ops.pad(X, -1), ShapeError, "^pad: expected widths"),
    (lambda: ops.pad(X, 1.5), ShapeError, "^pad: expected widths"),
    (lambda: ops.pad(X, 1, "mirror"), ValueError, "^pad: expected a mode among constant"),
    (lambda: ops.pad(X[:0], 1, "edge"), ShapeError, "^pad: expected elements along axis 0"),
    (lambda: ops.cumsum(X, 3), ShapeError, "^cumsum: expected an axis"),
    (lambda: ops.sort(X, 3), ShapeError, "^sort: expected an axis"),
    (lambda: ops.vector_norm(X, ord=0), ValueError, "^vector_norm: expected an ord"),
    (lambda: ops.embedding([1.5], np.ones((2, 2))), DTypeError, "^embedding: expected integer"),
    (lambda: ops.embedding([1], np.ones(2)), ShapeError, "^embedding: expected a table"),
    (lambda: ops.embedding([1], np.ones((2, 2)), 2), ShapeError, "^embedding: .*padding_idx"),
    (lambda: ops.dynamic_slice(X, (0, 0), (1, 1)), ShapeError, "^dynamic_slice: expected a start"),
    (lambda: ops.dynamic_slice(X, (0, 0, 0), (1, 1, 5)), ShapeError, "^dynamic_slice: expected"),
    (lambda: ops.dynamic_slice(X, (0.5, 0, 0), (1, 1, 1)), DTypeError, "^dynamic_slice: .*float64"),
]


@pytest.mark.parametrize(("call", "error", "message"), REFUSED)
def test_bad_arguments_raise_errors(
    call: Callable[[], Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call()
