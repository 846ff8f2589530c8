# SPDX-License-Identifier: Apache-2.0
"""Tests of grid_sample, ctc_loss and instance_norm against NumPy, differences and PyTorch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.testing as npt
import pytest

import ngd
from ngd import grad, ops
from ngd.dtypes import Array, Type, float32, float64
from ngd.errors import DTypeError, OutOfRangeError, ShapeError
from ngd.graph.node import Node
from tests.ops.cases import placeholders
from tests.ops.conftest import Runner
from tests.ops.witness import agrees, drawn

GRIDS = [
    {"mode": mode, "padding_mode": padding, "align_corners": corners}
    for mode in ("bilinear", "nearest")
    for padding in ("zeros", "border", "reflection")
    for corners in (False, True)
]
CPU = pytest.mark.parametrize("device", ["CPU"])


def pixel(image: Array, row: int, column: int) -> Any:
    """Return a pixel [C], or zeros outside of the image."""
    height, width = image.shape[1:]
    inside = 0 <= row < height and 0 <= column < width
    return image[:, row, column] if inside else np.zeros(image.shape[0])


def position(coordinate: float, size: int, padding: str, corners: bool) -> float:
    """Return the position in pixels. Reflections are applied one by one."""
    at = (coordinate + 1) / 2 * (size - 1) if corners else ((coordinate + 1) * size - 1) / 2
    low, high = (0.0, size - 1.0) if corners else (-0.5, size - 0.5)
    while padding == "reflection" and not low <= at <= high:
        at = 2 * low - at if at < low else 2 * high - at
    return at if padding == "zeros" else min(max(at, 0.0), size - 1.0)


def sample_by_loops(
    x: Array, grid: Array, mode: str, padding_mode: str, align_corners: bool
) -> Array:
    """Return the result of grid_sample, computed by loops."""
    result = np.zeros((x.shape[0], x.shape[1], *grid.shape[1:3]))
    for n, i, j in np.ndindex(grid.shape[:3]):
        column, row = (
            position(grid[n, i, j, axis], size, padding_mode, align_corners)
            for axis, size in ((0, x.shape[3]), (1, x.shape[2]))
        )
        if mode == "nearest":
            result[n, :, i, j] = pixel(x[n], round(row), round(column))
            continue
        for a, b in itertools.product((0, 1), (0, 1)):
            r, c = math.floor(row) + a, math.floor(column) + b
            weight = (1 - abs(row - r)) * (1 - abs(column - c))
            result[n, :, i, j] += weight * pixel(x[n], r, c)
    return result


@pytest.mark.parametrize("how", GRIDS, ids=lambda how: "-".join(map(str, how.values())))
def test_grid_sample_equals_loops(how: dict[str, Any], run: Runner) -> None:
    x, grid = drawn(float64, (2, 3, 4, 5), (2, 3, 4, 2))
    grid *= 2.7
    inputs = placeholders([Type(a.dtype, a.shape) for a in (x, grid)])
    (found,) = run(inputs, [ops.grid_sample(*inputs, **how)], [x, grid])
    npt.assert_allclose(found, sample_by_loops(x, grid, **how), rtol=0, atol=1e-12)


def slopes(f: Callable[[Array], Any], at: Array) -> Array:
    """Return the gradient of a scalar function by central differences."""
    found = np.zeros_like(at)
    for position_in_array in np.ndindex(at.shape):
        ends = []
        for sign in (1, -1):
            changed = at.copy()
            changed[position_in_array] += sign * 1e-6
            ends.append(float(f(changed)))
        found[position_in_array] = (ends[0] - ends[1]) / 2e-6
    return found


def test_gradients_of_grid_sample_equal_finite_differences() -> None:
    x, grid = drawn(float64, (1, 2, 3, 4), (1, 2, 2, 2))

    @ngd.function
    def total(x: Node, grid: Node) -> Node:
        return ops.sum(ops.square(ops.grid_sample(x, grid)))

    slope = ngd.function(lambda a, b: grad(total(a, b), [a, b]))
    of_x, of_grid = slope(x, grid)
    npt.assert_allclose(of_x, slopes(lambda v: total(v, grid), x), atol=1e-6)
    npt.assert_allclose(of_grid, slopes(lambda v: total(x, v), grid), atol=1e-6)


@CPU
@pytest.mark.parametrize("how", GRIDS, ids=lambda how: "-".join(map(str, how.values())))
def test_grid_sample_equals_pytorch(how: dict[str, Any], run: Runner) -> None:
    x, grid = drawn(float64, (2, 3, 4, 5), (2, 3, 4, 2))
    agrees(
        run,
        [x],
        lambda x: ops.grid_sample(x, 1.3 * grid, **how),
        lambda t, x: t.nn.functional.grid_sample(x, t.tensor(1.3 * grid), **how),
    )
    if how["mode"] == "bilinear":
        agrees(
            run,
            [1.3 * grid],
            lambda grid: ops.grid_sample(x, grid, **how),
            lambda t, grid: t.nn.functional.grid_sample(t.tensor(x), grid, **how),
        )


def collapse(alignment: tuple[int, ...], blank: int) -> list[int]:
    return [c for c, _ in itertools.groupby(alignment) if c != blank]


def loss_of_all_alignments(log_p: Array, target: list[int], blank: int) -> float:
    """Return the loss of one sequence [T, C]: the sum over all alignments, one by one."""
    steps, classes = log_p.shape
    total = sum(
        math.exp(sum(log_p[t, c] for t, c in enumerate(alignment)))
        for alignment in itertools.product(range(classes), repeat=steps)
        if collapse(alignment, blank) == target
    )
    return -math.log(total) if total else math.inf


def log_softmax(x: Array) -> Array:
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


TARGETS = np.array([[1, 2], [2, 2], [2, 9], [9, 9], [1, 2]])
STEPS, COUNTS = np.array([5, 4, 3, 5, 1]), np.array([2, 2, 1, 0, 2])


@pytest.mark.parametrize("blank", [0, 2])
def test_ctc_loss_is_the_sum_over_all_alignments(blank: int, run: Runner) -> None:
    log_p = log_softmax(*drawn(float64, (5, 5, 3)))
    targets = np.where(blank == TARGETS, 0, TARGETS) if blank else TARGETS
    wanted = np.array(
        [
            loss_of_all_alignments(log_p[:t, n], targets[n, :s].tolist(), blank)
            for n, (t, s) in enumerate(zip(STEPS, COUNTS, strict=True))
        ]
    )
    assert np.isinf(wanted).tolist() == [False] * 4 + [True]
    (x,) = placeholders([Type(log_p.dtype, log_p.shape)])

    def loss(**how: Any) -> Node:
        return ops.ctc_loss(x, targets, STEPS, COUNTS, blank, **how)

    outputs = [loss(reduction="none"), loss(zero_infinity=True), loss(reduction="sum")]
    each, mean, total = run([x], outputs, [log_p])
    npt.assert_allclose(each, wanted, rtol=1e-9)
    npt.assert_allclose(mean, (wanted[:4] / [2, 2, 1, 1]).sum() / 5, rtol=1e-9)
    assert total == math.inf


def test_gradients_of_ctc_loss_equal_finite_differences() -> None:
    (x,) = drawn(float64, (4, 5, 3))

    @ngd.function
    def loss(x: Node) -> Node:
        steps = np.minimum(STEPS, 4)
        return ops.ctc_loss(ops.log_softmax(x, 2), TARGETS, steps, COUNTS, zero_infinity=True)

    found = ngd.function(lambda x: grad(loss(x), x))(x)
    npt.assert_allclose(found, slopes(loss, x), atol=1e-7)
    assert not found[:, 4].any()  # the target has more labels than steps


@CPU
@pytest.mark.parametrize("dtype", [float32, float64], ids=str)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_ctc_loss_equals_pytorch(reduction: str, dtype: Any, run: Runner) -> None:
    lengths = np.array([6, 5, 4]), np.array([3, 0, 2])
    targets = np.array([[1, 1, 3], [2, 2, 2], [3, 1, 0]])

    def theirs(t: Any, x: Any) -> Any:
        given = (t.tensor(v) for v in (targets, *lengths))
        return t.nn.functional.ctc_loss(x.log_softmax(2), *given, reduction=reduction)

    agrees(
        run,
        drawn(dtype, (6, 3, 4)),
        lambda x: ops.ctc_loss(ops.log_softmax(x, 2), targets, *lengths, reduction=reduction),
        theirs,
    )


def test_instance_norm_equals_numpy(run: Runner) -> None:
    x, weight, bias = drawn(float64, (2, 3, 4, 5), (3,), (3,))
    inputs = placeholders([Type(a.dtype, a.shape) for a in (x, weight, bias)])
    (found,) = run(inputs, [ops.instance_norm(*inputs, 1e-3)], [x, weight, bias])
    mean, var = x.mean((2, 3), keepdims=True), x.var((2, 3), keepdims=True)
    shape = (3, 1, 1)
    wanted = (x - mean) / np.sqrt(var + 1e-3) * weight.reshape(shape) + bias.reshape(shape)
    npt.assert_allclose(found, wanted, atol=1e-12)


X, GRID = np.zeros((1, 2, 3, 4)), np.zeros((1, 5, 5, 2))
P = np.zeros((4, 2, 3))
REFUSED: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: ops.grid_sample(X, GRID, "cubic"), ValueError, 'mode: expected one of "bilinear", "n'),
    (lambda: ops.grid_sample(X, GRID, padding_mode="wrap"), ValueError, "padding_mode: expected"),
    (lambda: ops.grid_sample(X[0], GRID), ShapeError, r"expected images \[N, C, H, W\] and a grid"),
    (lambda: ops.grid_sample(X, GRID[..., :1]), ShapeError, r"expected images \[N, C, H, W\]"),
    (lambda: ops.ctc_loss(P, [[1]], [4, 4], [1, 1]), ShapeError, r"targets \[N, S\], and lengths"),
    (lambda: ops.ctc_loss(P, [[1], [1]], [4], [1, 1]), ShapeError, r"targets \[N, S\], and leng"),
    (lambda: ops.ctc_loss(P, [[1.0], [1]], [4, 4], [1, 1]), DTypeError, "ctc_loss: expected int"),
    (lambda: ops.ctc_loss(P, [[1], [1]], [4, 4], [1, 1], 3), ValueError, r"blank in \[0, C\)"),
    (
        lambda: ops.ctc_loss(P, [[1], [1]], [4, 4], [1, 1], reduction="max"),
        ValueError,
        "ctc_loss: expected a reduction among",
    ),
    (lambda: ops.instance_norm(np.zeros(3)), ShapeError, r"instance_norm: expected \[N, C"),
]


@pytest.mark.parametrize(("call", "error", "says"), REFUSED)
def test_bad_arguments_raise_errors(
    call: Callable[[], Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        call()


def test_labels_out_of_range_raise_when_the_step_runs() -> None:
    step = ngd.function(lambda t: ops.ctc_loss(P, t, [4, 4], [1, 1]))
    for label in (3, -1):
        with pytest.raises(OutOfRangeError, match=rf"ctc_loss: expected .*; got {label} at"):
            step(np.array([[1], [label]]))
