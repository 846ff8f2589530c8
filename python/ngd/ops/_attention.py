# SPDX-License-Identifier: Apache-2.0
"""Scaled dot-product attention.

The op `attend` computes attention, and the op `attend_grad` its gradient. Their kernels compute the
scores block by block and do not store them. In the shapes below, L is the number of queries of a
head, S the number of keys, E the extent of a query and of a key, and V the extent of a value.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np

from ..dtypes import Array, DType, Shape, Type, bool_, float32, float64, is_float
from ..errors import DTypeError, ShapeError
from ..graph.cost import Cost
from ..graph.node import Node, Op
from ..graph.registry import public, register
from ..graph.samples import Operand, Sample
from ._casting import cast
from ._compare import logical_and, not_equal, where
from ._creation import zeros
from ._elementwise import align
from ._matmul import matmul
from ._operands import (
    FLOATS_16_BIT,
    Value,
    as_node,
    broadcast_shapes,
    describe_types,
    expect_dtype,
    float_of,
)
from ._rearrangement import swapaxes, tri
from ._reductions import any, max, sum
from ._shape import expand_dims, reshape
from ._transcendental import exp, log

__all__ = ["attention"]

_COMPUTE_DTYPES: Final = (float32, float64)
"""The dtypes that the kernels compute in."""
_SAMPLES: Final[tuple[tuple[Shape, Shape, Shape, Shape | None, bool], ...]] = (
    ((1, 3, 4), (1, 5, 4), (1, 5, 2), None, False),
    ((4, 3, 2), (2, 3, 2), (2, 3, 5), (3, 3), True),
    ((2, 2, 3, 4), (2, 1, 5, 4), (2, 1, 5, 4), (2, 1, 1, 5), False),
    ((1, 70, 3), (1, 131, 3), (1, 131, 2), None, True),
    ((0, 2, 3, 4), (0, 2, 3, 4), (0, 2, 3, 4), None, False),
    ((2, 0, 4), (2, 3, 4), (2, 3, 4), None, False),
)
"""The shapes of query, key, value and mask (or None), and `causal`, for each test sample."""


def _scores_shape(where_: str, q: Type, k: Type, v: Type) -> Shape:
    """Return the shape of the attention scores, [..., heads, L, S].

    Raise a ShapeError unless query q is [..., heads, L, E], key k [..., h, S, E] and value v
    [..., h, S, V], h divides heads, and S > 0.
    """
    fits = len(q.shape) == len(k.shape) == len(v.shape) and len(q.shape) >= 3
    fits = fits and q.shape[-1] == k.shape[-1] and k.shape[:-1] == v.shape[:-1]
    if not fits or q.shape[:-3] != k.shape[:-3]:
        raise ShapeError(
            f"{where_}: expected [..., heads, L, E], [..., h, S, E] and [..., h, S, V]; got "
            f"{describe_types(q, k, v)}. Transpose or reshape them."
        )
    heads, h = q.shape[-3], k.shape[-3]
    if h < 1 or heads % h:
        raise ShapeError(
            f"{where_}: expected heads that those of the keys divide; got "
            f"{describe_types(q, k, v)}. Choose a number of key heads that divides them."
        )
    if not k.shape[-2]:
        raise ShapeError(f"{where_}: expected at least one key; got {describe_types(q, k, v)}")
    return (*q.shape[:-1], k.shape[-2])


def _num_scores(operands: Sequence[Type], causal: bool, scale: float, heads_last: bool) -> int:
    """Return the number of scores in all heads: pairs of a query and a key that it may attend to.

    The cost estimate of the op uses this number. If `causal`, query i may attend to the keys 0 to
    i. Pairs that a mask excludes are counted, because the values of a mask are not known when the
    graph is built.
    """
    q, k, _ = (_swap_shape(x.shape) if heads_last else x.shape for x in operands[:3])
    num_queries, num_keys = q[-2], k[-2]
    num_scores = num_queries * num_keys
    if causal:
        corner = builtins.min(num_queries, num_keys)
        num_scores = corner * (corner + 1) // 2 + (num_queries - corner) * num_keys
    return math.prod(q[:-2]) * num_scores


def _as_mask(mask: Value, dtype: DType) -> Node:
    """Return a mask as a node of bools, or of floats of the scores' dtype.

    An integer mask raises a DTypeError: added to the scores, its ones and zeros would mask nothing.
    """
    node = as_node(mask, where="attention: mask")
    if node.dtype == bool_:
        return node
    if not is_float(node.dtype):
        raise DTypeError(
            "attention: mask: expected bools (True takes part) or floats (added to the scores); "
            f'got {node.type} (made at {node.site}). Convert it: mask != 0, or mask.astype("bool").'
        )
    return cast(node, dtype)


def _check_mask(where_: str, mask: Type, scores: Type) -> None:
    """Raise an error unless the mask has a valid dtype and broadcasts to the scores."""
    if mask.dtype not in (bool_, scores.dtype):
        raise DTypeError(f"{where_}: expected a mask of bools or of {scores.dtype}; got {mask}")
    if broadcast_shapes(where_, mask.shape, scores.shape) != scores.shape:
        raise ShapeError(
            f"{where_}: expected a mask that broadcasts to {scores}; got {mask}. Reshape the mask."
        )


def _swap_shape(shape: Shape) -> Shape:
    """Exchange the axes -3 and -2 of a shape.

    This converts between [..., heads, L, E] and [..., L, heads, E].
    """
    return (*shape[:-3], shape[-2], shape[-3], shape[-1])


def _swap(x: Node) -> Node:
    """Exchange the axes -3 and -2 of x, those of the heads and of the positions."""
    return swapaxes(x, -2, -3)


def _swap_array(x: Array) -> Array:
    """Exchange the axes -3 and -2 of a NumPy array, those of the heads and of the positions."""
    return np.swapaxes(x, -2, -3)


def _operand_of_swap(x: Node) -> Node | None:
    """Return the operand of x if x exchanges the operand's axes -3 and -2, else None.

    For example, x is [..., heads, L, E], and its operand is [..., L, heads, E].
    """
    axes = tuple(range(x.ndim))
    swapped = x.ndim >= 3 and (*axes[:-3], x.ndim - 2, x.ndim - 3, x.ndim - 1)
    return x.inputs[0] if x.op.layout.is_transpose and x.attrs["axes"] == swapped else None


def _group_heads(x: Node, groups: int) -> Node:
    """Split the axis of the heads of x into groups.

    [..., heads, positions, E] becomes [..., groups, heads / groups, positions, E].
    """
    heads = x.shape[-3] // groups
    return reshape(x, (*x.shape[:-3], groups, heads, *x.shape[-2:]))


def _matmul_by_head(a: Node, b: Node, groups: int) -> Node:
    """Return a[head] @ b[head]^T for each head: [..., heads, L, S].

    `groups` is the number of heads of b. If a has more heads, consecutive heads of a share one
    head of b.
    """
    scores = matmul(_group_heads(a, groups), swapaxes(_group_heads(b, groups), -1, -2))
    return reshape(scores, (*a.shape[:-1], b.shape[-2]))


def _masked_scores(
    q: Node, k: Node, mask: Node | None, causal: bool, scale: float
) -> tuple[Node, Node | None]:
    """Return the scores, and a mask that is True where a query attends to a key.

    Scores where the mask is False are -inf. The mask is None if each query attends to all keys.
    """
    scores = _matmul_by_head(q * scale, k, k.shape[-3])
    allowed: Node | None = None
    if mask is not None:
        allowed = mask if mask.dtype == bool_ else not_equal(mask, -math.inf)
        scores = scores if mask.dtype == bool_ else scores + mask
    if causal:
        causal_mask = tri(*scores.shape[-2:])
        allowed = causal_mask if allowed is None else logical_and(allowed, causal_mask)
    return (scores if allowed is None else where(allowed, scores, -math.inf)), allowed


def _masked_scores_array(
    q: Array, k: Array, mask: Sequence[Array], causal: bool, scale: float
) -> tuple[Array, Array]:
    """Compute (scores, allowed) in NumPy; `allowed` is True where a query attends to a key.

    Scores where `allowed` is False are -inf. k has one head per query head: if several query heads
    share a key head, the caller has repeated it by `_repeat_heads`. `mask` is a sequence of one
    array, or is empty if there is no mask.
    """
    scores = (q * q.dtype.type(scale)) @ np.swapaxes(k, -1, -2)
    allowed = np.ones(scores.shape, bool)
    for each in mask:
        allowed = allowed & (each if each.dtype == bool_ else each != -math.inf)
        scores = scores if each.dtype == bool_ else scores + each
    if causal:
        allowed = allowed & (np.tri(*scores.shape[-2:]) != 0)
    return np.where(allowed, scores, scores.dtype.type(-math.inf)), allowed


def _repeat_heads(x: Array, heads: int) -> Array:
    """Repeat each head of the keys or values once per query head that uses it."""
    return np.repeat(x, heads // x.shape[-3], axis=-3)


class Attend(Op):
    """Attention, with two results: the output, and the logsumexp of the scores of each query.

    The operands are query [..., heads, L, E], key [..., h, S, E], value [..., h, S, V] and at most
    one mask. Each head has L queries and S keys. A query and a key have size E, and a value has
    size V. The number of key heads, h, divides `heads`. Attributes of a node: causal, scale,
    heads_last. With heads_last, query, key, value and the first result have the axis of the heads
    after that of the positions, such as [..., L, heads, E]. The second result is always
    [..., heads, L]. Both results are 0 for a query that attends to no key.
    """

    name = "attend"
    public = False
    dtypes = _COMPUTE_DTYPES

    def infer(
        self, q: Type, k: Type, v: Type, *mask: Type, causal: bool, scale: float, heads_last: bool
    ) -> tuple[Type, ...]:
        dtype = expect_dtype(self.name, (q, k, v), _COMPUTE_DTYPES)
        if heads_last:
            q, k, v = (Type(dtype, _swap_shape(x.shape)) for x in (q, k, v))
        scores = _scores_shape(self.name, q, k, v)
        for each in mask:
            _check_mask(self.name, each, Type(dtype, scores))
        value = (*scores[:-1], v.shape[-1])
        return Type(dtype, _swap_shape(value) if heads_last else value), Type(dtype, scores[:-1])

    def expand(
        self, q: Node, k: Node, v: Node, *mask: Node, causal: bool, scale: float, heads_last: bool
    ) -> tuple[Node, ...]:
        if heads_last:
            q, k, v = map(_swap, (q, k, v))
        masked, allowed = _masked_scores(q, k, mask[0] if mask else None, causal, scale)
        has_key = None if allowed is None else any(allowed, -1, keepdims=True)
        if has_key is not None:
            # A query that attends to no key gets scores of 0, because exp(-inf + inf) is NaN.
            masked = where(has_key, masked, 0)
        top = max(masked, -1, keepdims=True)
        powers = exp(masked - top)
        total = sum(powers, -1, keepdims=True)
        weights, logsum = powers / total, top + log(total)
        if has_key is not None:
            weights, logsum = where(has_key, weights, 0), where(has_key, logsum, 0)
        h = k.shape[-3]
        value_by_group = matmul(_group_heads(weights, h), _group_heads(v, h))
        value = reshape(value_by_group, (*q.shape[:-1], v.shape[-1]))
        return _swap(value) if heads_last else value, reshape(logsum, q.shape[:-1])

    def grad(self, node: Node, dy: tuple[Node | None, ...]) -> Sequence[Node | None]:
        (q, k, v, *mask), (value, logsum) = node.inputs, node.results
        to_value, to_logsum = (
            zeros(x.shape, x.dtype) if d is None else d
            for d, x in zip(dy, node.results, strict=True)
        )
        operands = (q, k, v, value, logsum, to_value, to_logsum, *mask)
        adjoints = attend_grad.node(operands, node.attrs).results
        if not mask or not is_float(mask[0].dtype):
            return (*adjoints, *(None for _ in mask))
        # The adjoint of a mask is as large as the scores, so attend_grad does not compute it.
        # Separate ops do, and only in a step that needs it.
        return (*adjoints, attend_grad.to_scores(*operands, **node.attrs)[1])

    def cost(self, operands: Sequence[Type], results: Sequence[Type], **attrs: Any) -> Cost:
        """Return the cost of query @ key^T and of weights @ value. A mask does not reduce it."""
        q, _, v, *_ = operands
        terms = _num_scores(operands, **attrs) * (q.shape[-1] + v.shape[-1])
        return Cost.touching(2 * terms, (*operands, *results))

    def reference(
        self,
        q: Array,
        k: Array,
        v: Array,
        *mask: Array,
        causal: bool,
        scale: float,
        heads_last: bool,
    ) -> tuple[Array, ...]:
        if heads_last:
            q, k, v = map(_swap_array, (q, k, v))
        k, v = _repeat_heads(k, q.shape[-3]), _repeat_heads(v, q.shape[-3])
        masked, allowed = _masked_scores_array(q, k, mask, causal, scale)
        has_key = allowed.any(-1, keepdims=True)
        masked = np.where(has_key, masked, 0)
        top = masked.max(-1, keepdims=True)
        powers = np.exp(masked - top)
        total = powers.sum(-1, keepdims=True)
        logsum = np.where(has_key, top + np.log(total), 0)
        value = np.asarray(np.where(has_key, powers / total, 0) @ v)
        return _swap_array(value) if heads_last else value, logsum[..., 0]

    def samples(self) -> Iterable[Sample]:
        for number, (q, k, v, mask, causal) in enumerate(_SAMPLES):
            heads_last = number % 2 == 1
            attrs = {"causal": causal, "scale": 0.4, "heads_last": heads_last}
            operands = tuple(Operand(_swap_shape(x) if heads_last else x) for x in (q, k, v))
            if mask is None:
                yield Sample(operands, attrs)
            else:
                yield Sample((*operands, Operand(mask)), attrs)
                yield Sample((*operands, Operand(mask, dtype=bool_)), attrs)


attend: Final[Attend] = register(Attend())


class AttendGrad(Op):
    """The adjoints of attend's query, key and value.

    The operands are query, key and value, the two results of attend, the adjoints of these results,
    and at most one mask. Dao et al. 2022 (arXiv:2205.14135), algorithm 4.
    """

    name = "attend_grad"
    public = False
    smooth = False
    dtypes = _COMPUTE_DTYPES

    def infer(
        self,
        q: Type,
        k: Type,
        v: Type,
        y: Type,
        logsum: Type,
        dy: Type,
        dlogsum: Type,
        *mask: Type,
        **attrs: Any,
    ) -> tuple[Type, ...]:
        expect_dtype(self.name, (q, k, v), _COMPUTE_DTYPES)
        results = attend.infer(q, k, v, *mask, **attrs)
        if (y, logsum) != results or (dy, dlogsum) != results:
            raise ShapeError(
                f"{self.name}: expected results of attend and their adjoints; "
                f"got {describe_types(y, logsum, dy, dlogsum)}"
            )
        return q, k, v

    def to_scores(
        self,
        q: Node,
        k: Node,
        v: Node,
        y: Node,
        logsum: Node,
        dy: Node,
        dlogsum: Node,
        *mask: Node,
        causal: bool,
        scale: float,
        heads_last: bool,
    ) -> tuple[Node, Node]:
        """Return (attention weights, adjoint of the scores), computed by nodes of other ops."""
        if heads_last:
            q, k, v, y, dy = map(_swap, (q, k, v, y, dy))
        masked, _ = _masked_scores(q, k, mask[0] if mask else None, causal, scale)
        weights = exp(masked - expand_dims(logsum, -1))
        delta = expand_dims(sum(dy * y, -1) - dlogsum, -1)
        return weights, weights * (_matmul_by_head(dy, v, v.shape[-3]) - delta)

    def cost(self, operands: Sequence[Type], results: Sequence[Type], **attrs: Any) -> Cost:
        """Return the cost of five matmuls.

        They compute the scores, the adjoint of the attention weights, and the adjoints of query,
        key and value.
        """
        q, _, v, *_ = operands
        terms = _num_scores(operands, **attrs) * (3 * q.shape[-1] + 2 * v.shape[-1])
        return Cost.touching(2 * terms, (*operands, *results))

    def expand(
        self, *operands: Node, causal: bool, scale: float, heads_last: bool
    ) -> tuple[Node, ...]:
        weights, scores_adjoint = self.to_scores(
            *operands, causal=causal, scale=scale, heads_last=heads_last
        )
        q, k, dy = operands[0], operands[1], operands[5]
        if heads_last:
            q, k, dy = map(_swap, (q, k, dy))
        h = k.shape[-3]

        def to_keys(left: Node, right: Node) -> Node:
            by_head = matmul(swapaxes(_group_heads(left, h), -1, -2), _group_heads(right, h))
            return sum(by_head, -3)

        to_query = reshape(matmul(_group_heads(scores_adjoint, h), _group_heads(k, h)), q.shape)
        made = (to_query * scale, to_keys(scores_adjoint, q) * scale, to_keys(weights, dy))
        return tuple(map(_swap, made)) if heads_last else made

    def reference(
        self,
        q: Array,
        k: Array,
        v: Array,
        y: Array,
        logsum: Array,
        dy: Array,
        dlogsum: Array,
        *mask: Array,
        causal: bool,
        scale: float,
        heads_last: bool,
    ) -> tuple[Array, ...]:
        if heads_last:
            q, k, v, y, dy = map(_swap_array, (q, k, v, y, dy))
        heads, h = q.shape[-3], k.shape[-3]
        k, v = _repeat_heads(k, heads), _repeat_heads(v, heads)
        weights = np.exp(_masked_scores_array(q, k, mask, causal, scale)[0] - logsum[..., None])
        delta = ((dy * y).sum(-1) - dlogsum)[..., None]
        slopes = weights * (dy @ np.swapaxes(v, -1, -2) - delta) * q.dtype.type(scale)

        def to_keys(left: Array, right: Array) -> Array:
            made = np.swapaxes(left, -1, -2) @ right
            grouped = made.reshape((*made.shape[:-3], h, heads // h, *made.shape[-2:]))
            return np.asarray(grouped.sum(-3))

        made = (np.asarray(slopes @ k), to_keys(slopes, q), to_keys(weights, dy))
        return tuple(map(_swap_array, made)) if heads_last else made

    def samples(self) -> Iterable[Sample]:
        for sample in attend.samples():
            q, k, v, *mask = sample.operands
            y, logsum = (*q.shape[:-1], v.shape[-1]), q.shape[:-1]
            if sample.attrs["heads_last"]:
                logsum = _swap_shape(y)[:-1]
            more = (Operand(y), Operand(logsum, 1, 2), Operand(y), Operand(logsum), *mask)
            yield Sample((q, k, v, *more), sample.attrs)


attend_grad: Final[AttendGrad] = register(AttendGrad())


@public
def attention(
    query: Value,
    key: Value,
    value: Value,
    mask: Value | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Node:  # long because each argument is described
    """Return softmax(query @ key^T * scale) @ value, the scaled dot-product attention.

    The arguments are those of torch.nn.functional.scaled_dot_product_attention. Memory grows
    linearly with the length of the context.

    Parameters
    ----------
    query
        [..., heads, L, E]: for each head, L queries of size E. [L, E] is one head, if key and value
        have two axes too.
    key
        [..., h, S, E]: for each of h heads, S >= 1 keys of size E. h divides heads. Each key head
        serves heads / h consecutive query heads (grouped-query attention, enable_gqa in PyTorch).
    value
        [..., h, S, V]: for each key, a value of size V.
    mask
        None, or a mask that broadcasts to [..., heads, L, S]. In a mask of bools, True means that
        the query attends to the key. Floats are added to the scores.
    causal
        If True, query i attends only to keys 0 to i.
    scale
        The factor of the scores. The default is 1 / sqrt(E).

    Returns
    -------
    Node
        [..., heads, L, V]. The result is 0 for a query that attends to no key.

    Raises
    ------
    ShapeError
        The shapes do not fit.
    DTypeError
        The mask consists of integers.

    Notes
    -----
    Scores are computed block by block and not stored. The gradient computes them again. Only the
    gradient of a mask, and the gradient of a gradient, hold heads * L * S numbers.

    Vaswani et al. 2017 (arXiv:1706.03762), equation 1; Ainslie et al. 2023 (arXiv:2305.13245) for
    grouped queries; Dao et al. 2022 (arXiv:2205.14135) for the computation in blocks.

    Examples
    --------
    ::

        >>> query, key, value = np.ones((1, 2, 3, 4)), np.ones((1, 2, 5, 4)), np.ones((1, 2, 5, 6))
        >>> ngd.function(ops.attention)(query, key, value).shape
        (1, 2, 3, 6)
    """
    where_ = "attention"
    q, k, v = (cast(x, float_of(x.dtype)) for x in align(where_, query, key, value))
    if scale is None and q.shape[-1:] in ((), (0,)):
        raise ShapeError(
            f"{where_}: expected elements along the last axis, or a scale; got {q.type}"
        )
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else float(scale)
    operands = [cast(x, float32) if x.dtype in FLOATS_16_BIT else x for x in (q, k, v)]
    if q.ndim == k.ndim == v.ndim == 2:
        operands = [expand_dims(x, 0) for x in operands]
    scores = _scores_shape(where_, *(x.type for x in operands))
    unswapped = [x for x in map(_operand_of_swap, operands) if x is not None]
    heads_last = len(unswapped) == len(operands)  # then the kernel reads them without a copy
    operands = unswapped if heads_last else operands
    if mask is not None:
        node = _as_mask(mask, operands[0].dtype)
        _check_mask(where_, node.type, Type(operands[0].dtype, scores))
        operands.append(node)
    result = attend.node(
        operands, {"causal": bool(causal), "scale": factor, "heads_last": heads_last}
    )
    result = _swap(result) if heads_last else result
    return cast(reshape(result, (*q.shape[:-1], v.shape[-1])), q.dtype)
