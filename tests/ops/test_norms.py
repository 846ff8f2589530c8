# SPDX-License-Identifier: Apache-2.0
"""Tests of normalizations, attention and cross entropy against PyTorch: values and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.testing as npt
import pytest

from ngd import grad, ops
from ngd.dtypes import DType, Type, float16, float32, float64
from ngd.errors import ShapeError
from tests.ops.cases import placeholders, run_reference
from tests.ops.conftest import Runner
from tests.ops.witness import Shape, agrees, drawn, torch_or_skip

DTYPES = pytest.mark.parametrize("dtype", [float32, float64], ids=str)


@DTYPES
@pytest.mark.parametrize("shape", [(4, 7), (2, 3, 5, 6)], ids=str)
@pytest.mark.parametrize("last", [1, 2])
def test_layer_norm_and_rms_norm_equal_pytorch(
    run: Runner, dtype: DType, shape: Shape, last: int
) -> None:
    inner = shape[-last:] if last < len(shape) else shape[1:]
    agrees(
        run,
        drawn(dtype, shape, inner, inner),
        lambda x, w, b: ops.layer_norm(x, inner, w, b),
        lambda torch, x, w, b: torch.nn.functional.layer_norm(x, inner, w, b),
    )
    agrees(
        run,
        drawn(dtype, shape, inner),
        lambda x, w: ops.rms_norm(x, inner, w, eps=1e-3),
        lambda torch, x, w: torch.nn.functional.rms_norm(x, inner, w, eps=1e-3),
    )


@DTYPES
@pytest.mark.parametrize("groups", [1, 2, 6])
def test_group_norm_equals_pytorch(run: Runner, dtype: DType, groups: int) -> None:
    agrees(
        run,
        drawn(dtype, (2, 6, 3, 5), (6,), (6,)),
        lambda x, w, b: ops.group_norm(x, groups, w, b),
        lambda torch, x, w, b: torch.nn.functional.group_norm(x, groups, w, b),
    )


@DTYPES
@pytest.mark.parametrize("shape", [(6, 3), (4, 3, 5), (2, 3, 4, 5)], ids=str)
def test_batch_norm_equals_pytorch(run: Runner, dtype: DType, shape: Shape) -> None:
    agrees(
        run,
        drawn(dtype, shape, (3,), (3,)),
        lambda x, w, b: ops.batch_norm(x, w, b)[0],
        lambda torch, x, w, b: torch.nn.functional.batch_norm(x, None, None, w, b, training=True),
    )
    x, mean = drawn(dtype, shape, (3,))
    at = (1, 3, *(1,) * (len(shape) - 2))
    agrees(
        run,
        [x, mean, np.abs(mean) + 1, mean, mean + 1],
        lambda x, m, v, w, b: ops.batch_norm_inference(x, m, v, w, b, eps=1e-3),
        lambda torch, x, m, v, w, b: (
            (x - m.view(at)) / (v.view(at) + 1e-3).sqrt() * w.view(at) + b.view(at)
        ),
    )


def test_statistics_far_from_zero_are_accurate(run: Runner) -> None:
    x = np.random.default_rng(1).normal(1e4, 1, (8, 3, 5)).astype(np.float32)
    (node,) = placeholders([Type(x.dtype, x.shape)])
    _, mean, variance = ops.batch_norm(node)
    found = run([node], [mean, variance], [x])
    wide = x.astype(np.float64)
    npt.assert_allclose(found[0], wide.mean((0, 2)), rtol=1e-6)
    npt.assert_allclose(found[1], wide.var((0, 2)), rtol=1e-4)


def test_16_bit_floats_are_rounded_once(run: Runner) -> None:
    x, w, b = drawn(float16, (4, 9), (9,), (9,))
    inputs = placeholders([Type(a.dtype, a.shape) for a in (x, w, b)])
    (found,) = run(inputs, [ops.layer_norm(inputs[0], 9, *inputs[1:])], [x, w, b])
    wide = [a.astype(np.float64) for a in (x, w, b)]
    center = wide[0] - wide[0].mean(-1, keepdims=True)
    exact = center / np.sqrt(np.mean(center**2, -1, keepdims=True) + 1e-5) * wide[1] + wide[2]
    npt.assert_allclose(found.astype(np.float64), exact, rtol=2.0**-11, atol=1e-6)


ATTENTION: list[tuple[Shape, Shape, Shape]] = [
    ((5, 4), (6, 4), (6, 3)),
    ((2, 3, 5, 4), (2, 3, 5, 4), (2, 3, 5, 4)),
    ((2, 6, 3, 4), (2, 2, 7, 4), (2, 2, 7, 5)),
]


@DTYPES
@pytest.mark.parametrize("shapes", ATTENTION, ids=str)
@pytest.mark.parametrize("masking", ["none", "causal", "bool", "float", "scale"])
def test_attention_equals_pytorch(
    run: Runner, dtype: DType, shapes: tuple[Shape, ...], masking: str
) -> None:
    torch = torch_or_skip()
    size = (shapes[0][-2], shapes[1][-2])
    rng = np.random.default_rng(8)
    visible = rng.uniform(size=size) < 0.6
    visible[:, 0] = True
    addend = np.asarray(rng.uniform(-1, 1, size), dtype)
    options: dict[str, dict[str, Any]] = {
        "none": {},
        "causal": {"causal": True},
        "bool": {"mask": visible},
        "float": {"mask": addend},
        "scale": {"scale": 0.3},
    }
    ours = options[masking]
    theirs = {"attn_mask" if k == "mask" else k: v for k, v in ours.items()}
    theirs = {"is_causal" if k == "causal" else k: v for k, v in theirs.items()}
    if "attn_mask" in theirs:
        theirs["attn_mask"] = torch.tensor(theirs["attn_mask"])

    def witness(torch: Any, q: Any, k: Any, v: Any) -> Any:
        grouped = q.ndim > 2 and q.shape[-3] != k.shape[-3]
        options = {**theirs, "enable_gqa": grouped}
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)

    agrees(run, drawn(dtype, *shapes), lambda q, k, v: ops.attention(q, k, v, **ours), witness)


def test_a_query_without_visible_keys_gives_zeros(run: Runner) -> None:
    arrays = drawn(float32, (3, 4), (3, 4), (3, 2))
    mask = np.array([[1, 0, 1], [0, 0, 0], [1, 1, 1]], bool)
    inputs = placeholders([Type(a.dtype, a.shape) for a in arrays])
    y = ops.attention(*inputs, mask=mask, causal=True)
    value, *slopes = run(inputs, [y, *grad(ops.sum(y), inputs)], arrays)
    npt.assert_array_equal(value[1], 0)
    npt.assert_array_equal(slopes[0][1], 0)
    assert all(np.isfinite(s).all() for s in slopes)


@DTYPES
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("shape", [(5,), (6, 5), (3, 5, 4), (2, 5, 3, 2)], ids=str)
def test_cross_entropy_equals_pytorch(
    run: Runner, dtype: DType, shape: Shape, smoothing: float, reduction: str
) -> None:
    labels = np.random.default_rng(5).integers(0, 5, (*shape[: len(shape) > 1], *shape[2:]))
    if labels.ndim:
        labels.reshape(-1)[1] = 7
    agrees(
        run,
        drawn(dtype, shape),
        lambda x: ops.cross_entropy(x, labels, None, 7, smoothing, reduction),
        lambda torch, x: torch.nn.functional.cross_entropy(
            x,
            torch.tensor(labels),
            ignore_index=7,
            label_smoothing=smoothing,
            reduction=reduction,
        ),
    )


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (
        lambda: ops.layer_norm(np.ones((2, 3)), 4),
        r"^layer_norm: .* axes of shape \(4,\)",
    ),
    (lambda: ops.layer_norm(np.ones((2, 3)), 3, np.ones(2)), "^layer_norm: expected weight"),
    (lambda: ops.group_norm(np.ones((2, 3)), 2), "^group_norm: .*divides"),
    (lambda: ops.batch_norm(np.ones(3)), r"^batch_norm: .*\[N, C"),
    (lambda: ops.batch_norm(np.ones((0, 3))), r"^ops\.batch_norm: .*at least one"),
    (lambda: ops.attention(np.ones((2, 3)), np.ones((2, 4)), np.ones((2, 3))), "^attention: "),
    (lambda: ops.cross_entropy(np.ones((2, 3)), np.zeros(3, int)), "^cross_entropy: "),
]


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_bad_arguments_raise_shape_error(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        call()


def test_the_mean_of_ignored_labels_is_nan() -> None:
    loss = ops.cross_entropy(np.ones((2, 3)), np.array([-100, -100]))
    with np.errstate(all="ignore"):
        assert np.isnan(run_reference([], [loss], [])[0])
