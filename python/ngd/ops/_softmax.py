# SPDX-License-Identifier: Apache-2.0
# The file is long because each argument is described.
"""Softmax, and losses that use it. 16-bit floats are computed in float32 and rounded once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from ..dtypes import FLOATS, Array, DType, Type, int32, int64, is_float
from ..errors import ShapeError
from ..graph.node import Node, Op
from ..graph.registry import public, register
from ..graph.samples import Operand, Sample
from ..graph.traits import Numerics
from ._activation import softplus
from ._arithmetic import abs, maximum, minimum, square
from ._casting import cast
from ._compare import not_equal, where
from ._creation import arange, one_hot, ones
from ._elementwise import align
from ._gathering import as_indices, take
from ._operands import (
    INDICES,
    Value,
    as_axis,
    as_node,
    check_indices,
    compute_dtype,
    describe_types,
    expect_dtype,
    float_of,
    local_number,
    narrow,
    widen,
)
from ._reductions import max, mean, sum
from ._shape import expand_dims, stop_gradient, transpose
from ._transcendental import exp, log

__all__ = [
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cross_entropy",
    "huber_loss",
    "kl_div",
    "l1_loss",
    "log_softmax",
    "mse_loss",
    "softmax",
    "softmax_cross_entropy",
]

LOSS_REDUCTIONS: Final = ("mean", "sum", "none")
"""The values of the argument `reduction` that all losses allow. kl_div also allows "batchmean"."""


def _log_softmax(x: Array, axis: int) -> Array:
    """Return log(softmax(x)) along an axis, in NumPy, without overflow."""
    shifted: Array = x - np.max(x, axis=axis, keepdims=True)
    result: Array = shifted - np.log(np.sum(np.exp(shifted), axis=axis, keepdims=True))
    return result


class AlongAxis(Op):
    """The base of softmax and log_softmax, which need at least one element along the axis."""

    # Attribute of a node: axis.
    batching = "axis"
    dtypes = FLOATS
    numerics = Numerics(needs_float32_gradient=True)

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
    """Return exp(x) divided by its sum along the axis, without overflow.

    Parameters
    ----------
    x : node or array
        Numbers of any shape, at least one element along the axis. Integers become floats.
    axis : int, default -1
        The axis along which the results add up to 1.

    Raises
    ------
    ShapeError
        The axis has no element, or does not exist.

    Examples
    --------
    ::

        >>> ngd.function(lambda x: ops.softmax(x))(np.array([1.0, 2.0, 3.0]))
        array([0.09  , 0.2447, 0.6652])
    """

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
    """Return the logarithm of softmax, without overflow and without log(0).

    Parameters
    ----------
    x : node or array
        Numbers of any shape, at least one element along the axis. Integers become floats.
    axis : int, default -1
        The axis of softmax.

    Raises
    ------
    ShapeError
        The axis has no element, or does not exist.

    Examples
    --------
    ::

        >>> ngd.function(lambda x: ops.log_softmax(x))(np.array([1.0, 2.0, 3.0]))
        array([-2.4076, -1.4076, -0.4076])
    """

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
    """Return the type of the losses, one per label; raise for wrong dtypes or shapes."""
    expect_dtype(name, (logits,), FLOATS)
    expect_dtype(name, (labels,), INDICES)
    if not logits.shape or not logits.shape[-1] or logits.shape[:-1] != labels.shape:
        raise ShapeError(
            f"{name}: expected logits [..., classes] and labels [...]; got "
            f"{describe_types(logits, labels)}. Give labels of shape {logits.shape[:-1]}."
        )
    return Type(logits.dtype, labels.shape)


class SoftmaxCrossEntropy(Op):
    """Return -log_softmax(logits)[label], one loss per row of logits.

    ops.cross_entropy has weights, label smoothing and a reduction.

    Parameters
    ----------
    logits : node or array
        [..., C] for C classes. Integers become floats.
    labels : node or array
        [...], integers in [0, C).

    Returns
    -------
    Node
        The losses [...].

    Raises
    ------
    ShapeError
        The shapes do not fit.
    OutOfRangeError
        A label is outside of [0, C). The error is raised at run time, not when the graph is built.
        It is also an IndexError and a ValueError.

    Examples
    --------
    ::

        >>> logits = np.array([[2.0, 0.0], [1.0, 1.0]])
        >>> ngd.function(ops.softmax_cross_entropy)(logits, np.array([0, 1]))
        array([0.1269, 0.6931])
    """

    # Public calls that use this op set the attribute `caller` to their name, for error messages.
    name = "softmax_cross_entropy"
    batching = "leading"
    dtypes = FLOATS

    def __call__(self, logits: Value, labels: Value) -> Node:
        logits, labels = as_node(logits, where=self.name), as_node(labels, where=self.name)
        if labels.shape == logits.shape and labels.ndim:
            raise ShapeError(
                f"{self.name}: expected logits [..., classes] and integer labels [...]; got "
                f"{describe_types(logits.type, labels.type)}; if the labels are one-hot, give "
                "ngd.ops.argmax(labels, -1)"
            )
        label_node = as_indices(labels, self.name, "labels")
        return self.node((cast(logits, float_of(logits.dtype)), label_node))

    def infer(self, logits: Type, labels: Type, **checked: str) -> Type:
        return _infer_loss(self.name, logits, labels)

    def expand(self, logits: Node, labels: Node, **checked: str) -> Node:
        at_label = one_hot(labels, logits.shape[-1], bool)
        return -sum(where(at_label, log_softmax(logits), 0), -1)

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        logits, labels = node.inputs
        return softmax_cross_entropy_grad.node((logits, labels, dy), node.attrs), None

    def reference(self, logits: Array, labels: Array, *, caller: str | None = None) -> Array:
        check_indices(caller or self.name, labels, logits.shape[-1], negative=False)
        log_probabilities = np.take_along_axis(
            _log_softmax(widen(logits), -1), labels[..., None], -1
        )
        return narrow(-log_probabilities[..., 0], logits.dtype)

    def samples(self) -> Iterable[Sample]:
        for shape, dtype in (((5,), int64), ((3, 4), int64), ((2, 3, 37), int32), ((0, 3), int64)):
            labels = Operand(shape[:-1], 0, shape[-1] - 1, dtype=dtype)
            yield Sample((Operand(shape, -4, 4), labels))


softmax_cross_entropy: Final[SoftmaxCrossEntropy] = register(SoftmaxCrossEntropy())


class SoftmaxCrossEntropyGrad(Op):
    """The adjoint of the logits, computed from dy, the adjoint of the losses.

    It is (softmax(logits) - one_hot(labels)) * dy.
    """

    name = "softmax_cross_entropy_grad"
    batching = "leading"
    public = False
    dtypes = FLOATS

    def __call__(self, logits: Node, labels: Node, dy: Node) -> Node:
        return self.node((logits, labels, dy))

    def infer(self, logits: Type, labels: Type, dy: Type, **checked: str) -> Type:
        if _infer_loss(self.name, logits, labels) != dy:
            raise ShapeError(
                f"{self.name}: expected dy of the type of the loss; got "
                f"{describe_types(logits, labels, dy)}"
            )
        return logits

    def expand(self, logits: Node, labels: Node, dy: Node, **checked: str) -> Node:
        hot = one_hot(labels, logits.shape[-1], logits.dtype)
        return (softmax(logits) - hot) * expand_dims(dy, -1)

    def reference(
        self, logits: Array, labels: Array, dy: Array, *, caller: str | None = None
    ) -> Array:
        check_indices(caller or self.name, labels, logits.shape[-1], negative=False)
        hot = labels[..., None] == np.arange(logits.shape[-1])
        probabilities = np.exp(_log_softmax(widen(logits), -1))
        return narrow(
            (probabilities - hot.astype(probabilities.dtype)) * widen(dy)[..., None], logits.dtype
        )

    def samples(self) -> Iterable[Sample]:
        for sample in softmax_cross_entropy.samples():
            yield Sample((*sample.operands, Operand(sample.operands[1].shape)))


softmax_cross_entropy_grad: Final[SoftmaxCrossEntropyGrad] = register(SoftmaxCrossEntropyGrad())


def expect_labels(where_: str, name: str, x: Node, labels: Node) -> Node:
    """Return the labels as a node of integers, for logits x of shape [N, C, ...] or [C].

    Raise a ShapeError if their shape is not that of x without the axis C. `name` is the name of x
    in the message.
    """
    label_node = as_indices(labels, where_, "labels")
    if not x.ndim or label_node.shape != (*x.shape[: x.ndim > 1], *x.shape[2:]):
        types = describe_types(x.type, label_node.type)
        raise ShapeError(
            f"{where_}: expected {name} [N, C, ...] and labels [N, ...]; got {types}. Move the "
            "classes to axis 1, and drop the other axes of the labels."
        )
    return label_node


def class_weights(where_: str, weight: Value | None, wide: Node, labels: Node) -> Node:
    """Return, for each label, the element of `weight` for its class; 1 if `weight` is None.

    `wide` is the node of the logits or log-probabilities, [..., C], in the dtype of the
    computation. C is the number of classes. The result has the dtype of `wide`. A label outside of
    [0, C) raises an error at run time.
    """
    count = wide.shape[-1]
    if weight is None:
        factors = ones((count,), wide.dtype)
    else:
        factors = cast(as_node(weight, where=where_), wide.dtype)
    if factors.shape != (count,):
        raise ShapeError(
            f"{where_}: expected a weight for {count} classes; got {factors.type}. Give one number "
            "per class."
        )
    return take.node((factors, labels), {"axis": 0, "caller": where_, "negative": False})


@public
def cross_entropy(
    logits: Value,
    labels: Value,
    weight: Value | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> Node:  # long because each argument is described
    """Return the cross-entropy of logits and labels, as torch.nn.functional.cross_entropy.

    For an integer label the loss is -log_softmax(logits)[label].

    Parameters
    ----------
    logits : node or array
        [C], [N, C] or [N, C, d1, ...] for C classes. Integers become floats.
    labels : node or array
        Integers in [0, C) with the shape of the logits without C, or floats with the shape of the
        logits: the probabilities of the classes.
    weight : node or array, optional
        [C]: a factor for each class.
    ignore_index : int, default -100
        An integer label with this value has the loss 0, and the mean leaves it out. If all labels
        have this value, the mean is NaN.
    label_smoothing : float, default 0.0
        A number s in [0, 1]. The probability p of each class, 0 or 1 for an integer label, becomes
        p * (1 - s) + s / C (Szegedy et al. 2016, arXiv:1512.00567, section 7).
    reduction : str, default "mean"
        "mean", "sum" or "none". The mean divides by the sum of the weights of the labels. For
        probabilities, it divides by the number of labels.

    Raises
    ------
    ShapeError
        The shapes do not fit.
    ValueError
        The reduction is unknown, or label_smoothing is outside of [0, 1].
    OutOfRangeError
        A label is outside of [0, C). The error is raised at run time, not when the graph is built.

    Examples
    --------
    ::

        >>> ngd.function(lambda x: ops.cross_entropy(x, [0, 1]))(np.array([[2.0, 0.0], [1.0, 1.0]]))
        array(0.41)
    """
    where_ = "cross_entropy"
    check_reduction(where_, reduction, LOSS_REDUCTIONS)
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"{where_}: expected smoothing in [0, 1]; got {label_smoothing}")
    x, target = as_node(logits, where=where_), as_node(labels, where=where_)
    has_probabilities = is_float(target.dtype) and target.shape == x.shape
    label_node = target if has_probabilities else expect_labels(where_, "logits", x, target)
    dtype = float_of(x.dtype)
    wide = _classes_last(cast(x, compute_dtype(dtype)))
    if has_probabilities:
        probabilities = _classes_last(cast(label_node, wide.dtype))
        return reduce_loss(
            _soft_loss(wide, probabilities, weight, label_smoothing), reduction, dtype
        )
    loss, factors = _hard_loss(wide, label_node, weight, ignore_index, label_smoothing)
    return reduce_weighted_loss(loss, factors, reduction, dtype)


def reduce_weighted_loss(loss: Node, factors: Node, reduction: str, dtype: DType) -> Node:
    """Return a weighted loss reduced by "mean", "sum" or "none", cast to a dtype.

    `factors` has the weight of each element of `loss`. `loss` is already multiplied by the weights.
    The mean is the sum of `loss` divided by the sum of `factors`.
    """
    if reduction == "mean":
        loss = sum(loss) / sum(factors)
    return cast(sum(loss) if reduction == "sum" else loss, dtype)


def _soft_loss(logits: Node, probabilities: Node, weight: Value | None, smoothing: float) -> Node:
    """Return the cross-entropy of each example, whose label is a probability per class.

    The classes are the last axis.
    """
    smoothed = probabilities * (1 - smoothing) + smoothing / logits.shape[-1]
    if weight is not None:
        smoothed = smoothed * _weights_of(weight, logits)
    return -sum(smoothed * log_softmax(logits), -1)


def _hard_loss(
    logits: Node, labels: Node, weight: Value | None, ignore_index: int, smoothing: float
) -> tuple[Node, Node]:
    """Return the cross-entropy of each example with an integer label, and its weight in the mean.

    The classes are the last axis. Loss and weight are 0 where the label is `ignore_index`.
    """
    is_counted = not_equal(labels, ignore_index)
    safe_labels = where(is_counted, labels, 0)
    loss = softmax_cross_entropy.node((logits, safe_labels), {"caller": "cross_entropy"})
    factors = cast(is_counted, logits.dtype)
    if weight is not None:
        label_weights = class_weights("cross_entropy", weight, logits, safe_labels)
        loss, factors = loss * label_weights, where(is_counted, label_weights, 0)
    if smoothing:
        logs = log_softmax(logits)
        logs = logs if weight is None else logs * _weights_of(weight, logits)
        loss = (1 - smoothing) * loss - smoothing * mean(logs, -1)
    return where(is_counted, loss, 0), factors


def _classes_last(x: Node) -> Node:
    """Move the axis of the classes from axis 1 to the end."""
    return transpose(x, (0, *range(2, x.ndim), 1)) if x.ndim > 2 else x


def _weights_of(weight: Value, logits: Node) -> Node:
    """Return `weight` as a node with one number per class of the logits."""
    return class_weights("cross_entropy", weight, logits, arange(logits.shape[-1]))


def loss_operands(where: str, prediction: Value, target: Value) -> tuple[DType, Node, Node]:
    """Return (dtype of the loss, prediction, target).

    Prediction and target are nodes, cast to the dtype of the computation: float32 if the loss has a
    dtype of 16-bit floats, else the dtype of the loss.

    Raise a ShapeError if prediction and target have different shapes.
    """
    x, y = align(where, prediction, target)
    if x.shape != y.shape:
        raise ShapeError(
            f"{where}: expected two tensors of one shape; got {describe_types(x.type, y.type)}. "
            "Reshape one."
        )
    dtype = float_of(x.dtype)
    wide = compute_dtype(dtype)
    return dtype, cast(x, wide), cast(y, wide)


def check_reduction(where: str, reduction: str, known: Sequence[str]) -> None:
    """Raise ValueError if the argument `reduction` is not in `known`."""
    if reduction not in known:
        names = ", ".join(f'"{name}"' for name in known)
        raise ValueError(f"{where}: expected a reduction among {names}; got {reduction!r}")


def reduce_loss(loss: Node, reduction: str, dtype: DType) -> Node:
    """Return a loss reduced by "mean", "sum" or "none", cast to a dtype."""
    if reduction != "none":
        loss = (mean if reduction == "mean" else sum)(loss)
    return cast(loss, dtype)


@public
def mse_loss(prediction: Value, target: Value, reduction: str = "mean") -> Node:
    """Return the squared error (prediction - target) ** 2, as torch.nn.functional.mse_loss.

    Parameters
    ----------
    prediction, target : node or array
        Two arrays of one shape.
    reduction : str, default "mean"
        "mean", "sum" or "none".

    Raises
    ------
    ShapeError
        The shapes differ.
    ValueError
        The reduction is unknown.

    Examples
    --------
    ::

        >>> ngd.function(ops.mse_loss)(np.array([1.0, 3.0]), np.array([1.0, 1.0]))
        array(2.)
    """
    check_reduction("mse_loss", reduction, LOSS_REDUCTIONS)
    dtype, x, y = loss_operands("mse_loss", prediction, target)
    return reduce_loss(square(x - y), reduction, dtype)


@public
def l1_loss(prediction: Value, target: Value, reduction: str = "mean") -> Node:
    """Return the absolute error abs(prediction - target), as torch.nn.functional.l1_loss.

    Parameters
    ----------
    prediction, target : node or array
        Two arrays of one shape.
    reduction : str, default "mean"
        "mean", "sum" or "none".

    Raises
    ------
    ShapeError
        The shapes differ.
    ValueError
        The reduction is unknown.

    Examples
    --------
    ::

        >>> ngd.function(ops.l1_loss)(np.array([1.0, 3.0]), np.array([1.0, 1.0]))
        array(1.)
    """
    check_reduction("l1_loss", reduction, LOSS_REDUCTIONS)
    dtype, x, y = loss_operands("l1_loss", prediction, target)
    return reduce_loss(abs(x - y), reduction, dtype)


@public
def huber_loss(
    prediction: Value, target: Value, delta: float = 1.0, reduction: str = "mean"
) -> Node:
    """Return a loss that is quadratic near 0 and linear beyond, as torch.nn.functional.huber_loss.

    For d = abs(prediction - target), it is d ** 2 / 2 if d <= delta, and delta * (d - delta / 2)
    otherwise.

    Parameters
    ----------
    prediction, target : node or array
        Two arrays of one shape.
    delta : float, default 1.0
        The distance from which the loss is linear, a number > 0.
    reduction : str, default "mean"
        "mean", "sum" or "none".

    Raises
    ------
    ShapeError
        The shapes differ.
    ValueError
        delta is not positive, or the reduction is unknown.

    Notes
    -----
    Huber 1964 (Ann. Math. Stat. 35), section 1.

    Examples
    --------
    ::

        >>> f = ngd.function(lambda x, y: ops.huber_loss(x, y, reduction="none"))
        >>> f(np.array([1.0, 3.0]), np.array([0.5, 1.0]))
        array([0.125, 1.5  ])
    """
    check_reduction("huber_loss", reduction, LOSS_REDUCTIONS)
    if not delta > 0:
        raise ValueError(f"huber_loss: expected delta > 0; got {delta}")
    dtype, x, y = loss_operands("huber_loss", prediction, target)
    distance = abs(x - y)
    near = minimum(distance, delta)  # avoids a square that overflows
    return reduce_loss(near * (distance - 0.5 * near), reduction, dtype)


@public
def kl_div(
    log_prediction: Value, target: Value, log_target: bool = False, reduction: str = "mean"
) -> Node:  # long because each argument is described
    """Return the Kullback-Leibler divergence, as torch.nn.functional.kl_div.

    For a true probability p, it is p * (log(p) - log_prediction) before the reduction, and 0 if p
    is 0.

    Parameters
    ----------
    log_prediction : node or array
        The logarithms of the predicted probabilities.
    target : node or array
        The true probabilities p, of the same shape.
    log_target : bool, default False
        If True, `target` contains log(p) instead of p.
    reduction : str, default "mean"
        "mean", "sum", "none" or "batchmean". "mean" divides by the number of elements. "batchmean"
        divides the sum by the size of axis 0, the number of examples in the batch.

    Raises
    ------
    ShapeError
        The shapes differ, or "batchmean" is given for scalars.
    ValueError
        The reduction is unknown.

    Notes
    -----
    Kullback and Leibler 1951 (Ann. Math. Stat. 22), equation 2.4.

    Examples
    --------
    ::

        >>> f = ngd.function(lambda x, y: ops.kl_div(x, y, reduction="sum"))
        >>> f(np.log([0.5, 0.5]), np.array([0.25, 0.75]))
        array(0.1308)
    """
    check_reduction("kl_div", reduction, (*LOSS_REDUCTIONS, "batchmean"))
    dtype, x, y = loss_operands("kl_div", log_prediction, target)
    if log_target:
        loss = exp(y) * (y - x)
    else:
        is_positive = y > 0
        loss = where(is_positive, y * (log(where(is_positive, y, 1)) - x), 0)
    if reduction == "batchmean":
        if not loss.ndim:
            raise ShapeError(
                "kl_div: expected an axis for \"batchmean\"; got a scalar. Use reduction='sum'."
            )
        return cast(sum(loss) / local_number(loss.shape[0], loss), dtype)
    return reduce_loss(loss, reduction, dtype)


@public
def binary_cross_entropy(
    probabilities: Value,
    target: Value,
    weight: Value | None = None,
    reduction: str = "mean",
) -> Node:
    """Return -(t log(p) + (1 - t) log(1 - p)), as torch.nn.functional.binary_cross_entropy.

    A logarithm is at least -100, as in PyTorch. Where it would be less, its gradient is 0.
    ops.binary_cross_entropy_with_logits is more accurate.

    Parameters
    ----------
    probabilities : node or array
        The probabilities p.
    target : node or array
        The targets t in [0, 1], of the same shape.
    weight : node or array, optional
        A factor for each loss, which broadcasts to the shape of the target.
    reduction : str, default "mean"
        "mean", "sum" or "none".

    Raises
    ------
    ShapeError
        The shapes do not fit.
    ValueError
        The reduction is unknown.

    Examples
    --------
    ::

        >>> ngd.function(ops.binary_cross_entropy)(np.array([0.9, 0.2]), np.array([1.0, 0.0]))
        array(0.1643)
    """
    check_reduction("binary_cross_entropy", reduction, LOSS_REDUCTIONS)
    dtype, p, t = loss_operands("binary_cross_entropy", probabilities, target)

    def bounded_log(x: Node) -> Node:
        is_positive = x > 0
        return where(is_positive, maximum(log(where(is_positive, x, 1)), -100), -100)

    loss = -(t * bounded_log(p) + (1 - t) * bounded_log(1 - p))
    return reduce_loss(_weighted("binary_cross_entropy", loss, weight), reduction, dtype)


@public
def binary_cross_entropy_with_logits(
    logits: Value,
    target: Value,
    weight: Value | None = None,
    pos_weight: Value | None = None,
    reduction: str = "mean",
) -> Node:
    """Return the binary cross-entropy of sigmoid(logits), without overflow.

    It computes the same as torch.nn.functional.binary_cross_entropy_with_logits.

    Parameters
    ----------
    logits : node or array
        The logits.
    target : node or array
        The targets t in [0, 1], of the same shape.
    weight : node or array, optional
        A factor for each loss, which broadcasts to the shape of the target.
    pos_weight : node or array, optional
        A factor for the term t * log(sigmoid(logits)) of the loss. It broadcasts to the shape of
        the target.
    reduction : str, default "mean"
        "mean", "sum" or "none".

    Raises
    ------
    ShapeError
        The shapes do not fit.
    ValueError
        The reduction is unknown.

    Examples
    --------
    ::

        >>> f = ngd.function(ops.binary_cross_entropy_with_logits)
        >>> f(np.array([2.0, -1.0]), np.array([1.0, 0.0]))
        array(0.2201)
    """
    where_ = "binary_cross_entropy_with_logits"
    check_reduction(where_, reduction, LOSS_REDUCTIONS)
    dtype, x, t = loss_operands(where_, logits, target)
    # log(sigmoid(x)) = -softplus(-x), log(1 - sigmoid(x)) = -x - softplus(-x)
    positive = t if pos_weight is None else _weighted(where_, t, pos_weight)
    loss = (1 - t) * x + (1 - t + positive) * softplus(-x)
    return reduce_loss(_weighted(where_, loss, weight), reduction, dtype)


def _weighted(where: str, loss: Node, weight: Value | None) -> Node:
    """Multiply a loss by a weight that broadcasts to its shape."""
    if weight is None:
        return loss
    factor = cast(as_node(weight, like=loss, where=where), loss.dtype)
    product = loss * factor
    if product.shape != loss.shape:
        raise ShapeError(
            f"{where}: expected a weight that broadcasts to {loss.type}; got {factor.type}. "
            "Reshape the weight."
        )
    return product
