# SPDX-License-Identifier: Apache-2.0
"""Losses and similarities of torch.nn.functional that are composed of other ops."""

from __future__ import annotations

import math

from ..errors import ShapeError
from ..graph.node import Node
from ..graph.registry import public
from ._arithmetic import abs, maximum, minimum, square
from ._casting import cast
from ._compare import not_equal, where
from ._composite import as_compute_dtype
from ._creation import one_hot
from ._elementwise import align
from ._operands import Value, as_node, compute_dtype, describe_types, float_of
from ._reductions import sum, vector_norm
from ._shape import stop_gradient, transpose
from ._softmax import (
    LOSS_REDUCTIONS,
    check_reduction,
    class_weights,
    expect_labels,
    loss_operands,
    reduce_loss,
    reduce_weighted_loss,
)
from ._transcendental import log

__all__ = [
    "cosine_similarity",
    "gaussian_nll_loss",
    "nll_loss",
    "smooth_l1_loss",
    "triplet_margin_loss",
]


@public
def nll_loss(
    log_probabilities: Value,
    labels: Value,
    weight: Value | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Node:
    """Return -log_probabilities[label], as torch.nn.functional.nll_loss.

    Parameters
    ----------
    log_probabilities
        [C], [N, C] or [N, C, d1, ...] for C classes: the result of ops.log_softmax.
    labels
        Integers in [0, C), in the shape of log_probabilities without C.
    weight
        [C], a factor for each class, or None. "mean" is sum(loss) / sum(weight[labels]).
    ignore_index
        A label that is allowed too. Its loss is 0, and "mean" does not count it.
    reduction
        "mean", "sum" or "none".

    Raises
    ------
    OutOfRangeError
        A label is neither in [0, C) nor ignore_index. The error is raised when the function runs.
    ShapeError
        The shapes do not fit.

    Examples
    --------
    ::

        >>> def f(x):
        ...     return ops.nll_loss(ops.log_softmax(x), [0, 1])
        >>> ngd.function(f)(np.zeros((2, 4)))
        array(1.3863)
    """
    check_reduction("nll_loss", reduction, LOSS_REDUCTIONS)
    x, target = (as_node(v, where="nll_loss") for v in (log_probabilities, labels))
    chosen = expect_labels("nll_loss", "log probabilities", x, target)
    log_probs, dtype = as_compute_dtype("nll_loss", x)
    if log_probs.ndim > 2:
        log_probs = transpose(log_probs, (0, *range(2, log_probs.ndim), 1))
    is_counted = not_equal(chosen, ignore_index)
    safe_labels = where(is_counted, chosen, 0)
    label_log_probs = sum(where(one_hot(safe_labels, log_probs.shape[-1], bool), log_probs, 0), -1)
    factors = class_weights("nll_loss", weight, log_probs, safe_labels)
    loss = where(is_counted, -label_log_probs * factors, 0)
    return reduce_weighted_loss(loss, where(is_counted, factors, 0), reduction, dtype)


@public
def smooth_l1_loss(
    prediction: Value, target: Value, beta: float = 1.0, reduction: str = "mean"
) -> Node:
    """Return the smooth L1 loss of d = abs(prediction - target).

    It is d ** 2 / (2 * beta) where d < beta, and d - beta / 2 elsewhere.

    Parameters
    ----------
    prediction, target
        Numbers of one shape.
    beta
        The distance below which the loss is a square, >= 0. With beta = 0 it is the l1 loss.
    reduction
        "mean", "sum" or "none".

    Raises
    ------
    ValueError
        `beta` is negative.

    Notes
    -----
    As torch.nn.functional.smooth_l1_loss. Girshick 2015 (arXiv:1504.08083), equation 3.

    Examples
    --------
    ::

        >>> ngd.function(lambda x: ops.smooth_l1_loss(x, [0.0, 0.0]))(np.array([0.5, 3.0]))
        array(1.3125)
    """
    check_reduction("smooth_l1_loss", reduction, LOSS_REDUCTIONS)
    if not beta >= 0:
        raise ValueError(f"smooth_l1_loss: expected beta >= 0; got {beta}")
    dtype, x, y = loss_operands("smooth_l1_loss", prediction, target)
    distance = abs(x - y)
    if beta == 0:
        return reduce_loss(distance, reduction, dtype)
    bounded = minimum(distance, beta)
    return reduce_loss(bounded * (distance - 0.5 * bounded) / beta, reduction, dtype)


def _gaussian_nll(x: Node, y: Node, variance: Node, eps: float) -> Node:
    """Return the Gaussian negative log-likelihood per element, without its constant term."""
    # As in PyTorch, the value is eps where the variance is smaller, and the slope is still 1.
    minimum_variance = eps + (variance - stop_gradient(variance))
    bounded = where(variance < eps, minimum_variance, variance)
    return 0.5 * (log(bounded) + square(x - y) / bounded)


@public
def gaussian_nll_loss(
    prediction: Value,
    target: Value,
    var: Value,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Node:  # long because each argument is described
    """Return (log(var) + (prediction - target) ** 2 / var) / 2, where var is at least eps.

    Where var is below eps, the gradient with respect to var is not 0: it is that at var = eps.

    Parameters
    ----------
    prediction, target
        Numbers of one shape.
    var
        The variances, which broadcast to that shape.
    full
        If True, log(2 * pi) / 2 is added.
    eps
        A lower bound of the variances: eps replaces a smaller variance.
    reduction
        "mean", "sum" or "none".

    Raises
    ------
    ShapeError
        The shapes differ, or var does not broadcast.

    Notes
    -----
    As torch.nn.functional.gaussian_nll_loss. Nix and Weigend 1994 (ICNN), equation 3.

    Examples
    --------
    ::

        >>> ngd.function(lambda x: ops.gaussian_nll_loss(x, [0.0], [1.0]))(np.array([2.0]))
        array(2.)
    """
    check_reduction("gaussian_nll_loss", reduction, LOSS_REDUCTIONS)
    dtype, x, y = loss_operands("gaussian_nll_loss", prediction, target)
    variance = cast(as_node(var, like=x, where="gaussian_nll_loss"), x.dtype)
    loss = _gaussian_nll(x, y, variance, eps)
    if loss.shape != x.shape:
        raise ShapeError(
            f"gaussian_nll_loss: expected var that broadcasts to {x.type}; got {variance.type}. "
            "Reshape var."
        )
    if full:
        loss = loss + 0.5 * math.log(2 * math.pi)
    return reduce_loss(loss, reduction, dtype)


@public
def cosine_similarity(a: Value, b: Value, axis: int = 1, eps: float = 1e-8) -> Node:
    """Return the cosine of the angle between vectors, sum(a * b) / (norm(a) * norm(b)).

    Parameters
    ----------
    a, b
        Floats that broadcast. Integers become floats.
    axis
        The axis of the vectors.
    eps
        A lower bound of each norm: eps replaces a smaller norm.

    Notes
    -----
    As torch.nn.functional.cosine_similarity.

    Examples
    --------
    ::

        >>> ngd.function(lambda a, b: ops.cosine_similarity(a, b, 0))(np.ones(3), np.ones(3))
        array(1.)
    """
    first, second = align("cosine_similarity", a, b)
    dtype = float_of(first.dtype)
    x, y = (cast(v, compute_dtype(dtype)) for v in (first, second))
    norms = [maximum(vector_norm(v, axis, keepdims=True), eps) for v in (x, y)]
    return cast(sum((x / norms[0]) * (y / norms[1]), axis), dtype)


@public
def triplet_margin_loss(
    anchor: Value,
    positive: Value,
    negative: Value,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: str = "mean",
) -> Node:  # long because each argument is described
    """Return max(distance(anchor, positive) - distance(anchor, negative) + margin, 0).

    Parameters
    ----------
    anchor, positive, negative
        Floats [N, D]: N samples of D features; or [D], one sample.
    margin
        The loss is 0 if the negative is farther than the positive by at least this margin.
    p
        The order of the norm. The distance of a and b is the norm of a - b + eps over the last
        axis.
    eps
        A small number that is added to the differences.
    swap
        If True, min(distance(anchor, negative), distance(positive, negative)) replaces
        distance(anchor, negative).
    reduction
        "mean", "sum" or "none".

    Raises
    ------
    ShapeError
        The shapes differ.

    Notes
    -----
    As torch.nn.functional.triplet_margin_loss. Balntas et al. 2016 (BMVC), section 3.

    Examples
    --------
    ::

        >>> def f(a):
        ...     return ops.triplet_margin_loss(a, np.ones((1, 2)), np.zeros((1, 2)))
        >>> ngd.function(f)(np.ones((1, 2)))
        array(0.)
    """
    check_reduction("triplet_margin_loss", reduction, LOSS_REDUCTIONS)
    a, pos, neg = align("triplet_margin_loss", anchor, positive, negative)
    if not a.shape == pos.shape == neg.shape or not a.ndim:
        types = describe_types(a.type, pos.type, neg.type)
        raise ShapeError(
            f"triplet_margin_loss: expected three tensors of one shape; got {types}. Reshape them."
        )
    dtype = float_of(a.dtype)
    a, pos, neg = (cast(v, compute_dtype(dtype)) for v in (a, pos, neg))
    positive_distance, negative_distance = (vector_norm(a - v + eps, -1, ord=p) for v in (pos, neg))
    if swap:
        negative_distance = minimum(negative_distance, vector_norm(pos - neg + eps, -1, ord=p))
    return reduce_loss(maximum(positive_distance - negative_distance + margin, 0), reduction, dtype)
