# SPDX-License-Identifier: Apache-2.0
"""Tests of matmuls of groups of rows, and of offsets that a step computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.testing as npt
import pytest

import ngd
from ngd import ops
from ngd.errors import OutOfRangeError, ShapeError
from ngd.graph.node import topological

RNG = np.random.default_rng(0)
X, W, DY = (RNG.standard_normal(shape) for shape in ((6, 3), (4, 3, 2), (6, 2)))


def with_gradients(x: Any, w: Any, offsets: Any) -> Any:
    y = ops.grouped_matmul(x, w, offsets)
    return y, *ngd.grad(ops.sum(y * DY), [x, w])


@pytest.mark.parametrize("ends", [[1, 4, 4, 6], [0, 2, 3, 4], [6, 6, 6, 6], [0, 0, 0, 0]])
def test_results_and_gradients_equal_one_matmul_per_group(device: str, ends: list[int]) -> None:
    """One step serves all offsets."""
    step = ngd.function(with_gradients, device=device)
    y, dx, dw = step(X, W, np.array(ends))
    wanted_y, wanted_dx, wanted_dw = np.zeros_like(DY), np.zeros_like(X), np.zeros_like(W)
    for group, (begin, end) in enumerate(zip([0, *ends], ends, strict=False)):
        wanted_y[begin:end] = X[begin:end] @ W[group]
        wanted_dx[begin:end] = DY[begin:end] @ W[group].T
        wanted_dw[group] = X[begin:end].T @ DY[begin:end]
    for found, wanted in ((y, wanted_y), (dx, wanted_dx), (dw, wanted_dw)):
        npt.assert_allclose(found, wanted, 1e-12, 1e-12)


def test_a_transposed_weight_needs_no_transpose() -> None:
    """Neither the matmul nor the weight gradient, in the weight's layout, needs a transpose."""
    x, w = ngd.placeholder("x", (6, 3)), ngd.placeholder("w", (4, 2, 3))
    y = ops.grouped_matmul(x, ops.swapaxes(w, 1, 2), np.array([1, 2, 3, 6]))
    (slope,) = ngd.grad(ops.sum(y * y), [w])
    assert slope.shape == w.shape
    assert "transpose" not in {node.op.name for node in topological([y, slope])}


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ([2, 1, 4, 6], r"got 1 after 2 at \[1\] of the offsets"),
        ([2, 4, 6, 7], r"got 7 after 6 at \[3\] of the offsets"),
        ([-1, 4, 6, 6], r"got -1 after 0 at \[0\] of the offsets"),
    ],
)
def test_bad_offsets_raise_when_the_step_runs(device: str, ends: list[int], said: str) -> None:
    expected = f"^grouped_matmul: expected offsets from 0 to 6 that do not decrease; {said}"
    for call in (ops.grouped_matmul, lambda *given: with_gradients(*given)[2]):
        step = ngd.function(call, device=device)
        with pytest.raises(OutOfRangeError, match=f"{expected} .made at .*test_grouped_matmul"):
            step(X, W, np.array(ends))


def test_bad_shapes_are_rejected() -> None:
    with pytest.raises(
        ShapeError, match=r"^grouped_matmul: expected x \[rows, k\], w .*float64\[4"
    ):
        ops.grouped_matmul(X, W, [1, 2, 6])
    with pytest.raises(ShapeError, match=r"got float64\[6, 2\] and float64\[4, 3, 2\]"):
        ops.grouped_matmul(DY, W, [1, 2, 3, 6])


def test_grouped_matmul_stays_float32_in_a_bfloat16_step(device: str) -> None:
    x, w = (ngd.placeholder(n, a.shape, "float32") for n, a in (("x", X), ("w", W)))
    y = ops.grouped_matmul(x, w, np.array([1, 2, 3, 6]))
    step = ngd.compile([x, w], [y], precision="bfloat16", device=device)
    given = X.astype("float32"), W.astype("float32")
    (found,) = step(*given)
    wanted = np.concatenate(
        [a @ b for a, b in zip(np.split(given[0], [1, 2, 3]), given[1], strict=True)]
    )
    npt.assert_allclose(found, wanted, 1e-5, 1e-6)
