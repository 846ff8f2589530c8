# SPDX-License-Identifier: Apache-2.0
"""Attention: the value and its gradient are an op each, whose kernels store no scores."""

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
from ._operands import HALVES, Value, as_node, broadcast_shapes, expect_dtype, float_of, got
from ._rearrangement import swapaxes, tri
from ._reductions import any, max, sum
from ._shape import expand_dims, reshape
from ._transcendental import exp, log

__all__ = ["attention"]

_WIDE: Final = (float32, float64)
_SAMPLES: Final[tuple[tuple[Shape, Shape, Shape, Shape | None, bool], ...]] = (
    ((1, 3, 4), (1, 5, 4), (1, 5, 2), None, False),
    ((4, 3, 2), (2, 3, 2), (2, 3, 5), (3, 3), True),
    ((2, 2, 3, 4), (2, 1, 5, 4), (2, 1, 5, 4), (2, 1, 1, 5), False),
    ((1, 70, 3), (1, 131, 3), (1, 131, 2), None, True),
    ((0, 2, 3, 4), (0, 2, 3, 4), (0, 2, 3, 4), None, False),
    ((2, 0, 4), (2, 3, 4), (2, 3, 4), None, False),
)
"""Shapes of query, key, value and mask; and whether they are causal."""


def _scores_shape(where_: str, q: Type, k: Type, v: Type) -> Shape:
    """The shape of the scores, [..., heads, L, S], of operands that fit."""
    fits = len(q.shape) == len(k.shape) == len(v.shape) and len(q.shape) >= 3
    fits = fits and q.shape[-1] == k.shape[-1] and k.shape[:-1] == v.shape[:-1]
    if not fits or q.shape[:-3] != k.shape[:-3]:
        raise ShapeError(
            f"{where_}: expected [..., heads, L, E], [..., h, S, E] and [..., h, S, V]; got "
            f"{got(q, k, v)}. Transpose or reshape them."
        )
    heads, h = q.shape[-3], k.shape[-3]
    if h < 1 or heads % h:
        raise ShapeError(
            f"{where_}: expected heads that those of the keys divide; got {got(q, k, v)}. Choose a "
            "number of key heads that divides them."
        )
    if not k.shape[-2]:
        raise ShapeError(f"{where_}: expected at least one key; got {got(q, k, v)}")
    return (*q.shape[:-1], k.shape[-2])


def _pairs(operands: Sequence[Type], causal: bool, scale: float, heads_last: bool) -> int:
    """How many scores there are, a mask aside."""
    q, k, _ = (_swapped(x.shape) if heads_last else x.shape for x in operands[:3])
    places, keys = q[-2], k[-2]
    pairs = places * keys
    if causal:
        corner = builtins.min(places, keys)
        pairs = corner * (corner + 1) // 2 + (places - corner) * keys
    return math.prod(q[:-2]) * pairs


def _as_mask(mask: Value, dtype: DType) -> Node:
    """Return a mask as a node of bools, or of floats of the scores' dtype.

    An integer mask is refused. Added to the scores, its ones and zeros would mask nothing.
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
    if mask.dtype not in (bool_, scores.dtype):
        raise DTypeError(f"{where_}: expected a mask of bools or of {scores.dtype}; got {mask}")
    if broadcast_shapes(where_, mask.shape, scores.shape) != scores.shape:
        raise ShapeError(
            f"{where_}: expected a mask that broadcasts to {scores}; got {mask}. Reshape the mask."
        )


def _swapped(shape: Shape) -> Shape:
    """With the heads behind the places; or before them again."""
    return (*shape[:-3], shape[-2], shape[-3], shape[-1])


def _swap(x: Node) -> Node:
    return swapaxes(x, -2, -3)


def _swap_array(x: Array) -> Array:
    return np.swapaxes(x, -2, -3)


def _before(x: Node) -> Node | None:
    """What was transposed to put these heads before the places; None: something else."""
    axes = tuple(range(x.ndim))
    swapped = x.ndim >= 3 and (*axes[:-3], x.ndim - 2, x.ndim - 3, x.ndim - 1)
    return x.inputs[0] if x.op.layout.is_transpose and x.attrs["axes"] == swapped else None


def _grouped(x: Node, groups: int) -> Node:
    """Part the heads into groups: [..., groups, heads / groups, places, extent]."""
    heads = x.shape[-3] // groups
    return reshape(x, (*x.shape[:-3], groups, heads, *x.shape[-2:]))


def _products(a: Node, b: Node, groups: int) -> Node:
    """Multiply the heads of a with those of b, transposed: [..., heads, L, S]."""
    made = matmul(_grouped(a, groups), swapaxes(_grouped(b, groups), -1, -2))
    return reshape(made, (*a.shape[:-1], b.shape[-2]))


def _seen(
    q: Node, k: Node, mask: Node | None, causal: bool, scale: float
) -> tuple[Node, Node | None]:
    """The scores, -inf where a key is not seen, and which are seen; None: all."""
    scores = _products(q * scale, k, k.shape[-3])
    allowed: Node | None = None
    if mask is not None:
        allowed = mask if mask.dtype == bool_ else not_equal(mask, -math.inf)
        scores = scores if mask.dtype == bool_ else scores + mask
    if causal:
        earlier = tri(*scores.shape[-2:])
        allowed = earlier if allowed is None else logical_and(allowed, earlier)
    return (scores if allowed is None else where(allowed, scores, -math.inf)), allowed


def _seen_array(
    q: Array, k: Array, mask: Sequence[Array], causal: bool, scale: float
) -> tuple[Array, Array]:
    """What `_seen` gives, in NumPy; the keys' heads are repeated."""
    scores = (q * q.dtype.type(scale)) @ np.swapaxes(k, -1, -2)
    allowed = np.ones(scores.shape, bool)
    for given in mask:
        allowed = allowed & (given if given.dtype == bool_ else given != -math.inf)
        scores = scores if given.dtype == bool_ else scores + given
    if causal:
        allowed = allowed & (np.tri(*scores.shape[-2:]) != 0)
    return np.where(allowed, scores, scores.dtype.type(-math.inf)), allowed


def _repeated(x: Array, heads: int) -> Array:
    return np.repeat(x, heads // x.shape[-3], axis=-3)


class Attend(Op):
    """The value of attention, and the logarithm of each query's sum of exponentials.

    Of query [..., heads, L, E], key [..., h, S, E], value [..., h, S, V] and perhaps a mask; attrs:
    causal, scale, heads_last. With the last, all of them, the result too, are [..., L, heads, E];
    the logarithm is [..., heads, L] always. Of a query that sees nothing both results are 0.
    """

    name = "attend"
    public = False
    dtypes = _WIDE

    def infer(
        self, q: Type, k: Type, v: Type, *mask: Type, causal: bool, scale: float, heads_last: bool
    ) -> tuple[Type, ...]:
        dtype = expect_dtype(self.name, (q, k, v), _WIDE)
        if heads_last:
            q, k, v = (Type(dtype, _swapped(x.shape)) for x in (q, k, v))
        scores = _scores_shape(self.name, q, k, v)
        for given in mask:
            _check_mask(self.name, given, Type(dtype, scores))
        value = (*scores[:-1], v.shape[-1])
        return Type(dtype, _swapped(value) if heads_last else value), Type(dtype, scores[:-1])

    def expand(
        self, q: Node, k: Node, v: Node, *mask: Node, causal: bool, scale: float, heads_last: bool
    ) -> tuple[Node, ...]:
        if heads_last:
            q, k, v = map(_swap, (q, k, v))
        seen, allowed = _seen(q, k, mask[0] if mask else None, causal, scale)
        some = None if allowed is None else any(allowed, -1, keepdims=True)
        if some is not None:  # of a query that sees nothing all scores are made equal
            seen = where(some, seen, 0)
        top = max(seen, -1, keepdims=True)
        powers = exp(seen - top)
        total = sum(powers, -1, keepdims=True)
        weights, logsum = powers / total, top + log(total)
        if some is not None:
            weights, logsum = where(some, weights, 0), where(some, logsum, 0)
        h = k.shape[-3]
        made = matmul(_grouped(weights, h), _grouped(v, h))
        value = reshape(made, (*q.shape[:-1], v.shape[-1]))
        return _swap(value) if heads_last else value, reshape(logsum, q.shape[:-1])

    def grad(self, node: Node, dy: tuple[Node | None, ...]) -> Sequence[Node | None]:
        (q, k, v, *mask), (value, logsum) = node.inputs, node.results
        to_value, to_logsum = (
            zeros(x.shape, x.dtype) if d is None else d
            for d, x in zip(dy, node.results, strict=True)
        )
        operands = (q, k, v, value, logsum, to_value, to_logsum, *mask)
        slopes = attend_grad.node(operands, node.attrs).results
        if not mask or not is_float(mask[0].dtype):
            return (*slopes, *(None for _ in mask))
        # As many numbers as scores: it is made of them, where it is asked for.
        return (*slopes, attend_grad.to_scores(*operands, **node.attrs)[1])

    def cost(self, operands: Sequence[Type], results: Sequence[Type], **attrs: Any) -> Cost:
        """Two products, of the scores that are seen as far as the attributes say."""
        q, _, v, *_ = operands
        terms = _pairs(operands, **attrs) * (q.shape[-1] + v.shape[-1])
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
        k, v = _repeated(k, q.shape[-3]), _repeated(v, q.shape[-3])
        seen, allowed = _seen_array(q, k, mask, causal, scale)
        some = allowed.any(-1, keepdims=True)
        seen = np.where(some, seen, 0)
        top = seen.max(-1, keepdims=True)
        powers = np.exp(seen - top)
        total = powers.sum(-1, keepdims=True)
        logsum = np.where(some, top + np.log(total), 0)
        value = np.asarray(np.where(some, powers / total, 0) @ v)
        return _swap_array(value) if heads_last else value, logsum[..., 0]

    def samples(self) -> Iterable[Sample]:
        for number, (q, k, v, mask, causal) in enumerate(_SAMPLES):
            last = number % 2 == 1
            attrs = {"causal": causal, "scale": 0.4, "heads_last": last}
            operands = tuple(Operand(_swapped(x) if last else x) for x in (q, k, v))
            if mask is None:
                yield Sample(operands, attrs)
            else:
                yield Sample((*operands, Operand(mask)), attrs)
                yield Sample((*operands, Operand(mask, dtype=bool_)), attrs)


attend: Final[Attend] = register(Attend())


class AttendGrad(Op):
    """The adjoints of attend's query, key and value.

    Of these, the value, the logarithms of sums, the adjoints of these two, and perhaps a mask.
    Dao et al. 2022 (arXiv:2205.14135), algorithm 4.
    """

    name = "attend_grad"
    public = False
    smooth = False
    dtypes = _WIDE

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
        expect_dtype(self.name, (q, k, v), _WIDE)
        results = attend.infer(q, k, v, *mask, **attrs)
        if (y, logsum) != results or (dy, dlogsum) != results:
            raise ShapeError(
                f"{self.name}: expected results of attend and their adjoints; "
                f"got {got(y, logsum, dy, dlogsum)}"
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
        """The weights and the adjoint of the scores, as nodes."""
        if heads_last:
            q, k, v, y, dy = map(_swap, (q, k, v, y, dy))
        seen, _ = _seen(q, k, mask[0] if mask else None, causal, scale)
        weights = exp(seen - expand_dims(logsum, -1))
        delta = expand_dims(sum(dy * y, -1) - dlogsum, -1)
        return weights, weights * (_products(dy, v, v.shape[-3]) - delta)

    def cost(self, operands: Sequence[Type], results: Sequence[Type], **attrs: Any) -> Cost:
        """Five products: the scores once more, the weights' adjoints, and a result each."""
        q, _, v, *_ = operands
        terms = _pairs(operands, **attrs) * (3 * q.shape[-1] + 2 * v.shape[-1])
        return Cost.touching(2 * terms, (*operands, *results))

    def expand(
        self, *operands: Node, causal: bool, scale: float, heads_last: bool
    ) -> tuple[Node, ...]:
        weights, slopes = self.to_scores(
            *operands, causal=causal, scale=scale, heads_last=heads_last
        )
        q, k, dy = operands[0], operands[1], operands[5]
        if heads_last:
            q, k, dy = map(_swap, (q, k, dy))
        h = k.shape[-3]

        def to_keys(left: Node, right: Node) -> Node:
            made = matmul(swapaxes(_grouped(left, h), -1, -2), _grouped(right, h))
            return sum(made, -3)

        to_query = reshape(matmul(_grouped(slopes, h), _grouped(k, h)), q.shape)
        made = (to_query * scale, to_keys(slopes, q) * scale, to_keys(weights, dy))
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
        k, v = _repeated(k, heads), _repeated(v, heads)
        weights = np.exp(_seen_array(q, k, mask, causal, scale)[0] - logsum[..., None])
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
                logsum = _swapped(y)[:-1]
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
) -> Node:
    """softmax(query @ key^T * scale) @ value, as torch...scaled_dot_product_attention.

    query is [..., heads, L, E], key [..., h, S, E], value [..., h, S, V]; h divides heads, and each
    of the h is used by heads / h queries in turn (enable_gqa). The mask broadcasts to
    [..., heads, L, S]: of bools, True takes part; floats are added; integers are a DTypeError.
    With causal, place i of L sees
    places up to i of S. A query that sees nothing gives 0. The scale is 1 / sqrt(E) by default.

    Scores are computed block by block and never stored, neither for the value nor for the gradient,
    which computes them again: memory grows with the context, not with its square. Only the gradient
    of a mask, and the gradient of a gradient, hold heads * L * S numbers.

    Vaswani et al. 2017 (arXiv:1706.03762), equation 1; Ainslie et al. 2023 (arXiv:2305.13245); Dao
    et al. 2022 (arXiv:2205.14135).
    """
    where_ = "attention"
    q, k, v = (cast(x, float_of(x.dtype)) for x in align(where_, query, key, value))
    if scale is None and q.shape[-1:] == (0,):
        raise ShapeError(
            f"{where_}: expected elements along the last axis, or a scale; got {q.type}"
        )
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else float(scale)
    operands = [cast(x, float32) if x.dtype in HALVES else x for x in (q, k, v)]
    if q.ndim == k.ndim == v.ndim == 2:
        operands = [expand_dims(x, 0) for x in operands]
    scores = _scores_shape(where_, *(x.type for x in operands))
    as_stored = [x for x in map(_before, operands) if x is not None]
    last = len(as_stored) == len(operands)  # the kernel reads them as they lie
    operands = as_stored if last else operands
    if mask is not None:
        node = _as_mask(mask, operands[0].dtype)
        _check_mask(where_, node.type, Type(operands[0].dtype, scores))
        operands.append(node)
    made = attend.node(operands, {"causal": bool(causal), "scale": factor, "heads_last": last})
    made = _swap(made) if last else made
    return cast(reshape(made, (*q.shape[:-1], v.shape[-1])), q.dtype)
