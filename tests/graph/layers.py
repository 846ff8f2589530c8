# SPDX-License-Identifier: Apache-2.0
"""Smooth layers of every kind that tests stack into networks."""

from __future__ import annotations

from typing import Any

from ngd import ops


def block(x: Any, w: Any, kind: int) -> Any:
    """A layer of a kind from 0 to 6, of [rows, width]."""
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
