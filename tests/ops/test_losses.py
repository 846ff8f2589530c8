# SPDX-License-Identifier: Apache-2.0
"""Tests of losses against PyTorch, and at the ends of their domains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.testing as npt
import pytest

from ngd import grad, ops
from ngd.dtypes import Array, DType, Type, float16, float32, float64
from ngd.errors import ShapeError
from ngd.graph.node import Node
from tests.ops.cases import placeholders
from tests.ops.conftest import Runner
from tests.ops.witness import agrees, drawn

BOTH = pytest.mark.parametrize("dtype", [float32, float64], ids=str)
Loss = tuple[Callable[..., Node], Callable[..., Any], Callable[[Array], Array]]
LOSSES: dict[str, Loss] = {
    "mse": (ops.mse_loss, lambda f, x, t, **o: f.mse_loss(x, t, **o), lambda x: x),
    "l1": (ops.l1_loss, lambda f, x, t, **o: f.l1_loss(x, t, **o), lambda x: x),
    "huber": (
        lambda x, t, **o: ops.huber_loss(x, t, 0.4, **o),
        lambda f, x, t, **o: f.huber_loss(x, t, delta=0.4, **o),
        lambda x: x,
    ),
    "kl": (ops.kl_div, lambda f, x, t, **o: f.kl_div(x, t, **o), np.abs),
    "kl_of_logarithms": (
        lambda x, t, **o: ops.kl_div(x, t, log_target=True, **o),
        lambda f, x, t, **o: f.kl_div(x, t, log_target=True, **o),
        lambda x: x,
    ),
    "bce": (
        lambda x, t, **o: ops.binary_cross_entropy(ops.sigmoid(x), t, **o),
        lambda f, x, t, **o: f.binary_cross_entropy(x.sigmoid(), t, **o),
        np.abs,
    ),
    "bce_with_logits": (
        ops.binary_cross_entropy_with_logits,
        lambda f, x, t, **o: f.binary_cross_entropy_with_logits(x, t, **o),
        np.abs,
    ),
}
"""The function of ngd, that of PyTorch, and a function from a number in [-1, 1] to a target."""


@BOTH
@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")  # it recommends "batchmean"
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_losses_and_gradients_equal_pytorch(
    run: Runner, dtype: DType, name: str, reduction: str
) -> None:
    ours, theirs, target_of = LOSSES[name]
    x, t = drawn(dtype, (4, 7), (4, 7))
    agrees(
        run,
        [x, target_of(t)],
        lambda x, t: ours(x, t, reduction=reduction),
        lambda torch, x, t: theirs(torch.nn.functional, x, t, reduction=reduction),
    )


def test_batchmean_equals_pytorch(run: Runner) -> None:
    x, t = drawn(float64, (4, 7), (4, 7))
    agrees(
        run,
        [x, np.abs(t)],
        lambda x, t: ops.kl_div(x, t, reduction="batchmean"),
        lambda torch, x, t: torch.nn.functional.kl_div(x, t, reduction="batchmean"),
    )


def test_weights_equal_pytorch(run: Runner) -> None:
    x, t, w, p = drawn(float64, (4, 7), (4, 7), (7,), (7,))
    t, p = np.abs(t), np.abs(p)
    agrees(
        run,
        [np.abs(x) * 0.9 + 0.05],
        lambda x: ops.binary_cross_entropy(x, t, w),
        lambda torch, x: torch.nn.functional.binary_cross_entropy(
            x, torch.tensor(t), torch.tensor(w)
        ),
    )
    agrees(
        run,
        [x],
        lambda x: ops.binary_cross_entropy_with_logits(x, t, w, p),
        lambda torch, x: torch.nn.functional.binary_cross_entropy_with_logits(
            x, torch.tensor(t), torch.tensor(w), pos_weight=torch.tensor(p)
        ),
    )


@BOTH
def test_large_logits_have_finite_losses_and_gradients(run: Runner, dtype: DType) -> None:
    points = np.array([-1e30, -200.0, 200.0, 1e30], dtype)
    (x,) = placeholders([Type(dtype, points.shape)])
    outputs: list[Node] = []
    for target in (0.0, 1.0):
        t = np.full(points.shape, target, dtype)
        loss = ops.binary_cross_entropy_with_logits(x, t, reduction="none")
        outputs += [loss, grad(ops.sum(loss), x)]
    found = run([x], outputs, [points])
    npt.assert_allclose(found[0], np.maximum(points, 0), atol=1e-30)
    npt.assert_allclose(found[1], [0, 0, 1, 1], atol=1e-30)
    npt.assert_allclose(found[2], np.maximum(-points, 0), atol=1e-30)
    npt.assert_allclose(found[3], [-1, -1, 0, 0], atol=1e-30)


@BOTH
def test_probabilities_of_zero_and_one_have_finite_losses_and_gradients(
    run: Runner, dtype: DType
) -> None:
    """A correct one has the loss 0, and a wrong one has the loss 100."""
    p, t = np.array([0, 1, 0, 1], dtype), np.array([0, 1, 1, 0], dtype)
    (x,) = placeholders([Type(dtype, p.shape)])
    loss = ops.binary_cross_entropy(x, t, reduction="none")
    value, slope = run([x], [loss, grad(ops.sum(loss), x)], [p])
    npt.assert_array_equal(value, [0, 0, 100, 100])
    assert np.isfinite(slope).all()


def test_targets_of_zero_have_finite_gradients(run: Runner) -> None:
    x, t = np.log([[0.5, 0.25, 0.25]]), np.array([[0.5, 0.5, 0.0]])
    inputs = placeholders([Type(float64, x.shape), Type(float64, t.shape)])
    loss = ops.kl_div(*inputs, reduction="sum")
    value, *slopes = run(inputs, [loss, *grad(loss, inputs)], [x, t])
    npt.assert_allclose(value, 0.5 * np.log(2))
    assert np.isfinite(slopes).all()


def test_16_bit_floats_are_rounded_once(run: Runner) -> None:
    x, t = drawn(float16, (500,), (500,))
    inputs = placeholders([Type(float16, x.shape)] * 2)
    (found,) = run(inputs, [ops.mse_loss(*inputs)], [x, t])
    exact = np.mean((x.astype(np.float64) - t.astype(np.float64)) ** 2)
    npt.assert_allclose(found.astype(np.float64), exact, rtol=2.0**-11)


A = np.ones((2, 3))
REFUSED: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: ops.mse_loss(A, np.ones(3)), ShapeError, "^mse_loss: expected two tensors of one sh"),
    (lambda: ops.l1_loss(A, A, "average"), ValueError, "^l1_loss: expected a reduction among"),
    (lambda: ops.huber_loss(A, A, 0), ValueError, "^huber_loss: expected delta > 0"),
    (lambda: ops.kl_div(1.0, 1.0, reduction="batchmean"), ShapeError, "^kl_div: expected an axis"),
    (lambda: ops.mse_loss(A, A, "batchmean"), ValueError, "^mse_loss: expected a reduction"),
    (
        lambda: ops.binary_cross_entropy(A, A, np.ones((4, 2, 3))),
        ShapeError,
        "^binary_cross_entropy: expected a weight that broadcasts",
    ),
    (lambda: ops.cross_entropy(A, [0, 1], reduction="x"), ValueError, "^cross_entropy: expected"),
]


@pytest.mark.parametrize(("call", "error", "message"), REFUSED)
def test_bad_arguments_raise_errors(
    call: Callable[[], Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call()
