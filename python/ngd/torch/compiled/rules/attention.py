# SPDX-License-Identifier: Apache-2.0
"""Rules that translate softmax and attention of PyTorch into ngd nodes."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch

from .... import ops
from ....graph.node import Node
from .registry import Call, Sample, T, as_array, as_node, expect, rule

aten: Final = torch.ops.aten

QUERY: Final = T((2, 4, 5, 3))
KEY: Final = T((2, 4, 6, 3))
MASK: Final = T((5, 6), torch.bool)


@rule(aten.softmax.int, aten.log_softmax.int, samples=[Sample(QUERY, 1), Sample(QUERY, -1)])
@rule(aten._softmax.default, aten._log_softmax.default, samples=[Sample(QUERY, 1, False)])
def softmax(call: Call, x: Any, dim: int, *dtype: Any, **options: Any) -> Node:
    function = ops.log_softmax if "log" in call.name else ops.softmax
    return function(call.cast(x), dim)


@rule(
    aten.scaled_dot_product_attention.default,
    samples=[
        Sample(QUERY, KEY, KEY),
        Sample(QUERY, KEY, KEY, T((5, 6))),
        Sample(QUERY, QUERY, QUERY, None, 0.0, True),
        Sample(QUERY, KEY, KEY, scale=0.3),
        Sample(T((2, 4, 5, 3)), T((2, 2, 6, 3)), T((2, 2, 6, 3)), enable_gqa=True),
    ],
    is_random=True,
)
def attention(
    call: Call,
    query: Any,
    key: Any,
    value: Any,
    mask: Any = None,
    dropout: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Node:
    query, key, value = as_node(query), as_node(key), as_node(value)
    mask, is_causal = _simplified(mask, is_causal)
    if mask is not None and mask.dtype != bool:
        mask = ops.cast(mask, query.dtype)
    if dropout > 0:
        return _with_dropout(call, query, key, value, mask, dropout, is_causal, scale)
    return ops.attention(query, key, value, mask, is_causal, scale)


def _simplified(mask: Any, is_causal: bool) -> tuple[Node | None, bool]:
    """Return (mask, is_causal), with None for a constant mask that attention does not need.

    A boolean mask that is all true has no effect: return None for it. The causal mask is square and
    lower triangular: return None for it, and True for `is_causal`. Return any other mask as a node.
    """
    if not isinstance(mask, torch.Tensor):
        return (None if mask is None else as_node(mask)), is_causal
    values = as_array(mask)
    if values.dtype == bool:
        if values.all():
            return None, is_causal
        if values.shape[-1] == values.shape[-2] and (values == np.tril(np.ones_like(values))).all():
            return None, True
    return as_node(mask), is_causal


def _with_dropout(
    call: Call,
    query: Node,
    key: Node,
    value: Node,
    mask: Node | None,
    dropout: float,
    is_causal: bool,
    scale: float | None,
) -> Node:
    """Return attention with dropout of its weights, as separate ops that store all weights."""
    groups = query.shape[-3] // key.shape[-3] if query.ndim > 2 else 1
    if groups > 1:
        key, value = ops.repeat(key, groups, -3), ops.repeat(value, groups, -3)
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    scores = ops.matmul(query * call.cast(factor), ops.swapaxes(key, -1, -2))
    lowest = call.cast(-np.inf)
    if is_causal:
        expect(mask is None, "causal attention with a mask and dropout")
        mask = as_node(np.tril(np.ones(scores.shape[-2:], bool)))
    if mask is not None:
        scores = ops.where(mask, scores, lowest) if mask.dtype == bool else scores + mask
    weights = ops.dropout(ops.softmax(scores, -1), dropout, **call.draws.next())
    return ops.matmul(weights, value)
