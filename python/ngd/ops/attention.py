# SPDX-License-Identifier: Apache-2.0
"""Attention, as a composite: it stores the scores."""

from __future__ import annotations

import math

from ..dtype import bool_, float32
from ..errors import ShapeError
from ..ir import Node, public
from .cast import cast
from .compare import logical_and, where
from .elementwise import align
from .loss import softmax
from .matmul import matmul
from .operands import HALVES, Value, as_node, got
from .rearrange import swapaxes, tri
from .reduce import any
from .shape import reshape


@public
def attention(
    query: Value,
    key: Value,
    value: Value,
    mask: Value | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Node:
    """softmax(query @ key^T * scale) @ value, as torch...scaled_dot_product_attention.

    query is [..., heads, L, E], key [..., h, S, E], value [..., h, S, V]; h divides heads, and each
    of the h is used by heads / h queries in turn (enable_gqa). The mask broadcasts to
    [..., heads, L, S]: of bools, True takes part; floats are added. With causal, place i of L sees
    places up to i of S. A query that sees nothing gives 0. The scale is 1 / sqrt(E) by default.

    It is made of other ops and stores the scores, heads * L * S numbers, for the gradient too: its
    memory grows with the square of the context.

    Vaswani et al. 2017 (arXiv:1706.03762), equation 1; Ainslie et al. 2023 (arXiv:2305.13245).
    """
    where_ = "attention"
    q, k, v = align(where_, query, key, value)
    types = got(q.type, k.type, v.type)
    fits = q.ndim == k.ndim == v.ndim and q.ndim >= 2 and q.shape[-1] == k.shape[-1]
    if not fits or k.shape[:-1] != v.shape[:-1] or q.shape[:-3] != k.shape[:-3]:
        raise ShapeError(
            f"{where_}: expected [..., heads, L, E], [..., h, S, E] and [..., h, S, V]; got {types}"
        )
    wide = [cast(x, float32) if x.dtype in HALVES else x for x in (q, k, v)]
    if q.ndim > 2:
        heads, h = q.shape[-3], k.shape[-3]
        if h < 1 or heads % h:
            raise ShapeError(f"{where_}: expected heads that those of the keys divide; got {types}")
        wide = [_grouped(x, h) for x in wide]
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else float(scale)
    scores = matmul(wide[0] * factor, swapaxes(wide[1], -1, -2))
    weights = _weights(reshape(scores, (*q.shape[:-1], k.shape[-2])), mask, causal)
    made = matmul(reshape(weights, scores.shape), wide[2])
    return cast(reshape(made, (*q.shape[:-1], v.shape[-1])), q.dtype)


def _grouped(x: Node, groups: int) -> Node:
    """Part the heads into groups: [..., groups, heads / groups, places, extent]."""
    heads = x.shape[-3] // groups
    return reshape(x, (*x.shape[:-3], groups, heads, *x.shape[-2:]))


def _weights(scores: Node, mask: Value | None, causal: bool) -> Node:
    allowed: Node | None = None
    if mask is not None:
        node = as_node(mask, where="attention")
        if node.dtype == bool_:
            allowed = node
        else:
            addend = cast(node, scores.dtype)
            allowed, scores = addend > -math.inf, scores + addend
    if causal:
        rows, columns = scores.shape[-2:]
        earlier = tri(rows, columns)
        allowed = earlier if allowed is None else logical_and(allowed, earlier)
    if allowed is None:
        return softmax(scores)
    # Of a query that sees nothing all scores are made equal, so that nothing is infinite.
    some = any(allowed, -1, keepdims=True)
    seen = where(some, where(allowed, scores, -math.inf), 0)
    return where(some, softmax(seen), 0)
