# SPDX-License-Identifier: Apache-2.0
"""Smooth layers that tests stack into networks, and the precisions that the CPU has kernels for."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

import ngd
from ngd import ops


def multiplies(dtype: str) -> bool:
    """Return True if the CPU device has kernels that multiply in a 16-bit float dtype."""
    x = ngd.placeholder("x", (64, 64), "float32")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return "cast:f32>" in str(ngd.compile([x], [x @ x], device="CPU", precision=dtype))


needs_bfloat16 = pytest.mark.skipif(
    not multiplies("bfloat16"), reason="this CPU's kernels multiply no bfloat16"
)


def block(x: Any, w: Any, kind: int) -> Any:
    """Return a layer of a kind from 0 to 6, applied to x [rows, width]."""
    rows, width = x.shape
    if kind == 0:
        return ops.silu(x @ w)
    if kind == 1:
        return x + ops.gelu(ops.layer_norm(x, width, eps=0.1) @ w)
    if kind == 2:
        return ops.softmax(x @ ops.transpose(w)) * x
    if kind == 3:
        heads = ops.reshape(x @ w, (1, rows, 2, width // 2)).swapaxes(1, 2)
        seen = ops.attention(heads, heads, heads, causal=True)
        return ops.reshape(seen.swapaxes(1, 2), (rows, width)) @ w
    if kind == 4:
        return ops.concat([x @ w, x], 1)[:, width // 2 : width // 2 + width]
    if kind == 5:
        images = ops.reshape(x @ w, (1, rows, width // 2, 2))
        return x + ops.reshape(ops.avg_pool(images, (1, 2), (1, 1), (0, 1)), (rows, -1))[:, :width]
    return ops.sigmoid(x) * (x @ w) - ops.mean(x, 0)
