# SPDX-License-Identifier: Apache-2.0
"""Softmax and the losses made of it. Two-byte floats are computed in float32 and rounded once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from ..dtype import FLOATS, float32, int32, int64
from ..errors import ShapeError
from ..ir import Array, Node, Op, Operand, Sample, Type, public, register
from .cast import cast
from .compare import not_equal, where
from .operands import (
    HALVES,
    INDICES,
    Value,
    as_axis,
    as_node,
    expect_dtype,
    float_of,
    got,
    narrow,
    widen,
)
from .reduce import max, mean, sum
from .shape import as_indices, check_indices, expand_dims, one_hot, stop_gradient, transpose
from .transcendental import exp, log


def _log_softmax(x: Array, axis: int) -> Array:
    shifted: Array = x - np.max(x, axis=axis, keepdims=True)
    result: Array = shifted - np.log(np.sum(np.exp(shifted), axis=axis, keepdims=True))
    return result


class AlongAxis(Op):
    """A normalization along one axis, of at least one element; attrs: axis."""

    dtypes = FLOATS
    gradient_rounds = True

    def __call__(self, x: Value, axis: int = -1) -> Node:
        x = as_node(x, where=self.name)
        x = cast(x, float_of(x.dtype))
        return self.node((x,), {"axis": as_axis(self.name, axis, x.ndim, x.type)})

    def infer(self, x: Type, *, axis: int) -> Type:
        expect_dtype(self.name, (x,), self.dtypes)
        if x.shape[axis] == 0:
            raise ShapeError(f"{self.name}: expected at least one element along {axis}; got {x}")
        return x

    def samples(self) -> Iterable[Sample]:
        for shape, axis in (((5,), 0), ((3, 4), 1), ((3, 4), 0), ((2, 3, 37), 2), ((0, 3), 1)):
            yield Sample((Operand(shape, -4, 4),), {"axis": axis})


class Softmax(AlongAxis):
    """softmax(x, axis=-1): exp(x) divided by its sum along the axis, without overflow."""

    name = "softmax"

    def expand(self, x: Node, *, axis: int) -> Node:
        powers = exp(x - stop_gradient(max(x, axis, keepdims=True)))
        return powers / sum(powers, axis, keepdims=True)

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        inner = sum(dy * node, node.attrs["axis"], keepdims=True)
        return (node * (dy - inner),)

    def reference(self, x: Array, *, axis: int) -> Array:
        return narrow(np.exp(_log_softmax(widen(x), axis)), x.dtype)


softmax: Final[Softmax] = register(Softmax())


class LogSoftmax(AlongAxis):
    """log_softmax(x, axis=-1): the logarithm of softmax, without overflow or log(0)."""

    name = "log_softmax"

    def expand(self, x: Node, *, axis: int) -> Node:
        shifted = x - stop_gradient(max(x, axis, keepdims=True))
        return shifted - log(sum(exp(shifted), axis, keepdims=True))

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy - exp(node) * sum(dy, node.attrs["axis"], keepdims=True),)

    def reference(self, x: Array, *, axis: int) -> Array:
        return narrow(_log_softmax(widen(x), axis), x.dtype)


log_softmax: Final[LogSoftmax] = register(LogSoftmax())


def _infer_loss(name: str, logits: Type, labels: Type) -> Type:
    expect_dtype(name, (logits,), FLOATS)
    expect_dtype(name, (labels,), INDICES)
    if not logits.shape or not logits.shape[-1] or logits.shape[:-1] != labels.shape:
        raise ShapeError(
            f"{name}: expected logits [..., classes] and labels [...]; got {got(logits, labels)}"
        )
    return Type(logits.dtype, labels.shape)


class SoftmaxCrossEntropy(Op):
    """softmax_cross_entropy(logits, labels): -log_softmax(logits)[label], a loss a row.

    The last axis of the logits is the classes; the labels are integers of the shape of the others.
    A label outside [0, classes) is a ValueError when the step runs.
    """

    name = "softmax_cross_entropy"
    dtypes = FLOATS

    def __call__(self, logits: Value, labels: Value) -> Node:
        logits, labels = as_node(logits, where=self.name), as_node(labels, where=self.name)
        if labels.shape == logits.shape and labels.ndim:
            raise ShapeError(
                f"{self.name}: expected logits [..., classes] and integer labels [...]; got "
                f"{got(logits.type, labels.type)}; if the labels are one-hot, give "
                "ngd.ops.argmax(labels, -1)"
            )
        chosen = as_indices(labels, self.name)
        return self.node((cast(logits, float_of(logits.dtype)), chosen))

    def infer(self, logits: Type, labels: Type) -> Type:
        return _infer_loss(self.name, logits, labels)

    def expand(self, logits: Node, labels: Node) -> Node:
        at_label = one_hot(labels, logits.shape[-1], bool)
        return -sum(where(at_label, log_softmax(logits), 0), -1)

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        logits, labels = node.inputs
        return softmax_cross_entropy_grad(logits, labels, dy), None

    def reference(self, logits: Array, labels: Array) -> Array:
        check_indices(self.name, labels, logits.shape[-1], 0)
        chosen = np.take_along_axis(_log_softmax(widen(logits), -1), labels[..., None], -1)
        return narrow(-chosen[..., 0], logits.dtype)

    def samples(self) -> Iterable[Sample]:
        for shape, dtype in (((5,), int64), ((3, 4), int64), ((2, 3, 37), int32), ((0, 3), int64)):
            labels = Operand(shape[:-1], 0, shape[-1] - 1, dtype=dtype)
            yield Sample((Operand(shape, -4, 4), labels))


softmax_cross_entropy: Final[SoftmaxCrossEntropy] = register(SoftmaxCrossEntropy())


class SoftmaxCrossEntropyGrad(Op):
    """(softmax(logits) - one_hot(labels)) * dy: the adjoint of softmax_cross_entropy's logits."""

    name = "softmax_cross_entropy_grad"
    public = False
    dtypes = FLOATS

    def __call__(self, logits: Node, labels: Node, dy: Node) -> Node:
        return self.node((logits, labels, dy))

    def infer(self, logits: Type, labels: Type, dy: Type) -> Type:
        if _infer_loss(self.name, logits, labels) != dy:
            raise ShapeError(f"{self.name}: expected dy as the loss; got {got(logits, labels, dy)}")
        return logits

    def expand(self, logits: Node, labels: Node, dy: Node) -> Node:
        hot = one_hot(labels, logits.shape[-1], logits.dtype)
        return (softmax(logits) - hot) * expand_dims(dy, -1)

    def reference(self, logits: Array, labels: Array, dy: Array) -> Array:
        check_indices(self.name, labels, logits.shape[-1], 0)
        hot = labels[..., None] == np.arange(logits.shape[-1])
        odds = np.exp(_log_softmax(widen(logits), -1))
        return narrow((odds - hot.astype(odds.dtype)) * widen(dy)[..., None], logits.dtype)

    def samples(self) -> Iterable[Sample]:
        for sample in softmax_cross_entropy.samples():
            yield Sample((*sample.operands, Operand(sample.operands[1].shape)))


softmax_cross_entropy_grad: Final[SoftmaxCrossEntropyGrad] = register(SoftmaxCrossEntropyGrad())


@public
def cross_entropy(
    logits: Value,
    labels: Value,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> Node:
    """Compare logits with integer labels, as torch.nn.functional.cross_entropy.

    The logits are [C], [N, C] or [N, C, d1, ...], the labels have their shape without C. What has
    the label ignore_index counts for nothing; of nothing else, the mean is NaN. With smoothing, all
    classes share that part of the label (Szegedy et al. 2016, arXiv:1512.00567, section 7). The
    reduction is "mean", "sum" or "none".
    """
    where_ = "cross_entropy"
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f'{where_}: expected "mean", "sum" or "none"; got {reduction!r}')
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"{where_}: expected smoothing in [0, 1]; got {label_smoothing}")
    x, chosen = as_node(logits, where=where_), as_indices(labels, where_)
    if not x.ndim or chosen.shape != (*x.shape[: x.ndim > 1], *x.shape[2:]):
        raise ShapeError(
            f"{where_}: expected logits [N, C, ...] and labels [N, ...]; got "
            f"{got(x.type, chosen.type)}"
        )
    if x.ndim > 2:
        x = transpose(x, (0, *range(2, x.ndim), 1))
    x = cast(x, float_of(x.dtype))
    wide = cast(x, float32) if x.dtype in HALVES else x
    counts = not_equal(chosen, ignore_index)
    loss = softmax_cross_entropy(wide, where(counts, chosen, 0))
    if label_smoothing:
        even = -mean(log_softmax(wide), -1)
        loss = (1 - label_smoothing) * loss + label_smoothing * even
    loss = where(counts, loss, 0)
    if reduction != "none":
        loss = sum(loss)
    if reduction == "mean":
        loss = loss / sum(cast(counts, wide.dtype))
    return cast(loss, x.dtype)
