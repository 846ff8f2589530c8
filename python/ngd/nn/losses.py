# SPDX-License-Identifier: Apache-2.0
"""Losses as modules, with PyTorch's names and arguments. ngd.ops has the functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from .. import ops
from ..graph.node import Node
from .module import Module


class Loss(Module):
    """The base class of losses. A subclass calls one function of ngd.ops with `options`."""

    options: dict[str, Any]
    """The keyword arguments that the subclass passes to its function of ngd.ops."""

    def describe(self) -> str:
        """Return the options that are not None, for `repr`."""
        shown = {key: value for key, value in self.options.items() if value is not None}
        return ", ".join(f"{key}={value!r}" for key, value in shown.items())


class CrossEntropyLoss(Loss):
    """The cross entropy of logits and classes; see ops.cross_entropy.

    Input: logits [batch, classes, ...], and labels [batch, ...] or probabilities of the logits'
    shape.
    Output: a scalar, or [batch, ...] with `reduction="none"`.

    Parameters
    ----------
    weight : array_like, optional
        [classes]: the factor of each class.
    ignore_index : int, default -100
        A label that is left out of the loss.
    label_smoothing : float, default 0
        A number s in [0, 1]. The probability p of each class in a target, which is 0 or 1 for a
        label, becomes p * (1 - s) + s / classes.
    reduction : str, default "mean"
        "mean", "sum" or "none".

    Notes
    -----
    -weight[label] * log_softmax(logits)[label]. The mean divides by the sum of the weights of the
    labels, and for probabilities by the number of targets. Label smoothing is that of Szegedy et
    al., 2016 (arXiv:1512.00567), section 7.

    Examples
    --------
    >>> logits, labels = ngd.placeholder("x", (8, 10)), ngd.placeholder("y", (8,), "int64")
    >>> nn.CrossEntropyLoss(label_smoothing=0.1)(logits, labels).shape
    ()
    """

    def __init__(
        self,
        weight: Any = None,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        reduction: str = "mean",
    ) -> None:
        self.weight = weight
        self.options = {
            "ignore_index": ignore_index,
            "label_smoothing": label_smoothing,
            "reduction": reduction,
        }

    def forward(self, logits: Node, labels: Any) -> Node:
        """Return the loss.

        Parameters
        ----------
        logits : Node
            [classes], [batch, classes] or [batch, classes, d1, ...].
        labels : array_like
            Integers in [0, classes), of the shape of the logits without the axis of classes. Or
            floats of the shape of the logits: the probabilities of the classes.

        Returns
        -------
        Node
            A scalar, or the losses of all labels with `reduction="none"`.
        """
        return ops.cross_entropy(logits, labels, self.weight, **self.options)


class NLLLoss(Loss):
    """The negative log-likelihood of log-probabilities; see ops.nll_loss.

    Input: log-probabilities [batch, classes, ...] and labels [batch, ...].
    Output: a scalar, or [batch, ...] with `reduction="none"`.

    Parameters
    ----------
    weight : array_like, optional
        [classes]: the factor of each class.
    ignore_index : int, default -100
        A label that is left out of the loss.
    reduction : str, default "mean"
        "mean", "sum" or "none".

    Notes
    -----
    -weight[label] * log_probabilities[label]. The mean divides by the sum of the weights of the
    labels.

    Examples
    --------
    >>> x, labels = ngd.placeholder("x", (8, 10)), ngd.placeholder("labels", (8,), "int64")
    >>> nn.NLLLoss()(ops.log_softmax(x), labels).shape
    ()
    """

    def __init__(
        self, weight: Any = None, ignore_index: int = -100, reduction: str = "mean"
    ) -> None:
        self.weight = weight
        self.options = {"ignore_index": ignore_index, "reduction": reduction}

    def forward(self, log_probabilities: Node, labels: Any) -> Node:
        """Return the loss.

        Parameters
        ----------
        log_probabilities : Node
            [classes], [batch, classes] or [batch, classes, d1, ...], the result of ops.log_softmax.
        labels : array_like
            Integers in [0, classes), of that shape without the axis of classes.

        Returns
        -------
        Node
            A scalar, or the losses of all labels with `reduction="none"`.
        """
        return ops.nll_loss(log_probabilities, labels, self.weight, **self.options)


class PairLoss(Loss):
    """The base class of losses of a prediction and a target of the same shape."""

    function: ClassVar[Callable[..., Node]]

    def forward(self, prediction: Node, target: Any) -> Node:
        """Return the loss.

        Parameters
        ----------
        prediction : Node
            The prediction, of any shape.
        target : array_like
            The target, of the same shape.

        Returns
        -------
        Node
            A scalar, or that shape with `reduction="none"`.
        """
        return type(self).function(prediction, target, **self.options)


class MSELoss(PairLoss):
    """The mean of the squared differences; see ops.mse_loss.

    Input: a prediction and a target of one shape. Output: a scalar, or that shape with
    `reduction="none"`.

    Parameters
    ----------
    reduction : str, default "mean"
        "mean", "sum" or "none".

    Examples
    --------
    >>> prediction, target = ngd.placeholder("x", (8, 3)), ngd.placeholder("y", (8, 3))
    >>> nn.MSELoss()(prediction, target).shape
    ()
    """

    function = staticmethod(ops.mse_loss)

    def __init__(self, reduction: str = "mean") -> None:
        self.options = {"reduction": reduction}


class L1Loss(PairLoss):
    """The mean of the absolute differences; see ops.l1_loss.

    Input: a prediction and a target of one shape. Output: a scalar, or that shape with
    `reduction="none"`.

    Parameters
    ----------
    reduction : str, default "mean"
        "mean", "sum" or "none".

    Examples
    --------
    >>> prediction, target = ngd.placeholder("x", (8, 3)), ngd.placeholder("y", (8, 3))
    >>> nn.L1Loss()(prediction, target).shape
    ()
    """

    function = staticmethod(ops.l1_loss)

    def __init__(self, reduction: str = "mean") -> None:
        self.options = {"reduction": reduction}


class SmoothL1Loss(PairLoss):
    """A loss that is quadratic for differences below beta, and linear above.

    See ops.smooth_l1_loss.

    Input: a prediction and a target of one shape. Output: a scalar, or that shape with
    `reduction="none"`.

    Parameters
    ----------
    beta : float, default 1
        The difference above which the loss is linear.
    reduction : str, default "mean"
        "mean", "sum" or "none".

    Notes
    -----
    With d = abs(prediction - target): d**2 / (2 * beta) for d < beta, and d - beta / 2 otherwise.
    Girshick, 2015 (arXiv:1504.08083), equation 3.

    Examples
    --------
    >>> prediction, target = ngd.placeholder("x", (8, 3)), ngd.placeholder("y", (8, 3))
    >>> nn.SmoothL1Loss(beta=0.5)(prediction, target).shape
    ()
    """

    function = staticmethod(ops.smooth_l1_loss)

    def __init__(self, beta: float = 1.0, reduction: str = "mean") -> None:
        self.options = {"beta": beta, "reduction": reduction}


class HuberLoss(PairLoss):
    """Huber's loss: quadratic for differences below delta, and linear above; see ops.huber_loss.

    Input: a prediction and a target of one shape. Output: a scalar, or that shape with
    `reduction="none"`.

    Parameters
    ----------
    delta : float, default 1
        The difference above which the loss is linear.
    reduction : str, default "mean"
        "mean", "sum" or "none".

    Notes
    -----
    With d = abs(prediction - target): d**2 / 2 for d <= delta, and delta * (d - delta / 2)
    otherwise. Huber, 1964 (Annals of Mathematical Statistics 35), section 1.

    Examples
    --------
    >>> prediction, target = ngd.placeholder("x", (8, 3)), ngd.placeholder("y", (8, 3))
    >>> nn.HuberLoss(delta=2.0)(prediction, target).shape
    ()
    """

    function = staticmethod(ops.huber_loss)

    def __init__(self, delta: float = 1.0, reduction: str = "mean") -> None:
        self.options = {"delta": delta, "reduction": reduction}


class KLDivLoss(PairLoss):
    """The Kullback-Leibler divergence between a target and a prediction; see ops.kl_div.

    Input: log-probabilities, and probabilities of that shape. Output: a scalar, or that shape with
    `reduction="none"`.

    Parameters
    ----------
    log_target : bool, default False
        True if the target is given as log-probabilities too.
    reduction : str, default "mean"
        "mean", "batchmean", "sum" or "none".

    Notes
    -----
    target * (log(target) - prediction), where the prediction is given as log-probabilities.
    "batchmean" divides the sum by the size of axis 0, which is the mean of the divergence over a
    batch. "mean" divides by the number of elements. Kullback and Leibler, 1951 (Annals of
    Mathematical Statistics 22), equation 2.4.

    Examples
    --------
    >>> prediction, target = ngd.placeholder("x", (8, 3)), ngd.placeholder("y", (8, 3))
    >>> nn.KLDivLoss(reduction="batchmean")(prediction, target).shape
    ()
    """

    function = staticmethod(ops.kl_div)

    def __init__(self, log_target: bool = False, reduction: str = "mean") -> None:
        self.options = {"log_target": log_target, "reduction": reduction}


class BCELoss(PairLoss):
    """The binary cross entropy of probabilities; see ops.binary_cross_entropy.

    Input: probabilities, and targets in [0, 1] of that shape. Output: a scalar, or that shape with
    `reduction="none"`.

    Parameters
    ----------
    reduction : str, default "mean"
        "mean", "sum" or "none".

    Notes
    -----
    -(t * log(p) + (1 - t) * log(1 - p)) for the probability p and the target t. The logarithms are
    at least -100. BCEWithLogitsLoss is more precise.

    Examples
    --------
    >>> prediction, target = ngd.placeholder("x", (8, 3)), ngd.placeholder("y", (8, 3))
    >>> nn.BCELoss()(ops.sigmoid(prediction), target).shape
    ()
    """

    function = staticmethod(ops.binary_cross_entropy)

    def __init__(self, reduction: str = "mean") -> None:
        self.options = {"reduction": reduction}


class BCEWithLogitsLoss(PairLoss):
    """The binary cross entropy of logits; see ops.binary_cross_entropy_with_logits.

    Input: logits, and targets in [0, 1] of that shape. Output: a scalar, or that shape with
    `reduction="none"`.

    Parameters
    ----------
    reduction : str, default "mean"
        "mean", "sum" or "none".

    Notes
    -----
    -(t * log(p) + (1 - t) * log(1 - p)) with p = sigmoid(logits) for the target t, without
    overflow.

    Examples
    --------
    >>> prediction, target = ngd.placeholder("x", (8, 3)), ngd.placeholder("y", (8, 3))
    >>> nn.BCEWithLogitsLoss()(prediction, target).shape
    ()
    """

    function = staticmethod(ops.binary_cross_entropy_with_logits)

    def __init__(self, reduction: str = "mean") -> None:
        self.options = {"reduction": reduction}


class CTCLoss(Loss):
    """The CTC loss of log-probabilities; see ops.ctc_loss.

    Input: log-probabilities [time, batch, classes], targets [batch, max_labels], and the lengths
    of both, each [batch].
    Output: a scalar, or [batch] with `reduction="none"`.

    Parameters
    ----------
    blank : int, default 0
        The class of the blank.
    reduction : str, default "mean"
        "mean", "sum" or "none".
    zero_infinity : bool, default False
        Use the loss 0, instead of infinity, for sequences that are too short for their target.

    Notes
    -----
    "mean" divides the loss of each sequence by its number of labels. Graves et al., 2006 (ICML).

    Examples
    --------
    >>> x = ngd.placeholder("x", (6, 2, 5))
    >>> nn.CTCLoss()(ops.log_softmax(x), [[1, 2], [3, 3]], [6, 6], [2, 2]).shape
    ()
    """

    def __init__(
        self, blank: int = 0, reduction: str = "mean", zero_infinity: bool = False
    ) -> None:
        self.options = {"blank": blank, "reduction": reduction, "zero_infinity": zero_infinity}

    def forward(
        self, log_probabilities: Node, targets: Any, input_lengths: Any, target_lengths: Any
    ) -> Node:
        """Return the loss.

        Parameters
        ----------
        log_probabilities : Node
            [time, batch, classes]: the result of ops.log_softmax for a batch of sequences.
        targets : array_like
            [batch, max_labels]: labels in [0, classes). Labels after the end of a target are not
            read.
        input_lengths : array_like
            [batch]: the number of time steps of each sequence.
        target_lengths : array_like
            [batch]: the number of labels of each target.

        Returns
        -------
        Node
            A scalar, or [batch] with `reduction="none"`.
        """
        return ops.ctc_loss(
            log_probabilities, targets, input_lengths, target_lengths, **self.options
        )


class TripletMarginLoss(Loss):
    """The triplet loss max(d(anchor, positive) - d(anchor, negative) + margin, 0).

    See ops.triplet_margin_loss. d is the distance between two vectors.

    Input: an anchor, a positive and a negative example, each [batch, features]. Output: a scalar,
    or [batch] with `reduction="none"`.

    Parameters
    ----------
    margin : float, default 1
        The smallest difference of the two distances for which the loss is 0.
    p : float, default 2
        The order of the norm that measures a distance.
    eps : float, default 1e-6
        Added to the elements of the differences of vectors.
    swap : bool, default False
        Use the distance between positive and negative, if it is smaller, instead of the distance
        between anchor and negative.
    reduction : str, default "mean"
        "mean", "sum" or "none".

    Notes
    -----
    The distance d(a, b) is the norm of order p over the last axis of a - b + eps. Balntas et al.,
    2016 (BMVC), section 3.

    Examples
    --------
    >>> anchor, positive, negative = (ngd.placeholder(name, (8, 3)) for name in "apn")
    >>> nn.TripletMarginLoss(margin=0.5)(anchor, positive, negative).shape
    ()
    """

    def __init__(
        self,
        margin: float = 1.0,
        p: float = 2.0,
        eps: float = 1e-6,
        swap: bool = False,
        reduction: str = "mean",
    ) -> None:
        self.options = {
            "margin": margin,
            "p": p,
            "eps": eps,
            "swap": swap,
            "reduction": reduction,
        }

    def forward(self, anchor: Node, positive: Any, negative: Any) -> Node:
        """Return the loss.

        Parameters
        ----------
        anchor : Node
            Floats [batch, features], or [features].
        positive : array_like
            Examples of the class of the anchor, of the same shape.
        negative : array_like
            Examples of another class, of the same shape.

        Returns
        -------
        Node
            A scalar, or the losses of all triplets with `reduction="none"`.
        """
        return ops.triplet_margin_loss(anchor, positive, negative, **self.options)


class GaussianNLLLoss(Loss):
    """The negative log-likelihood of a normal distribution; see ops.gaussian_nll_loss.

    Input: a prediction and a target of one shape, and variances that broadcast to this shape.
    Output: a scalar, or that shape with `reduction="none"`.

    Parameters
    ----------
    full : bool, default False
        Add log(2 * pi) / 2.
    eps : float, default 1e-6
        The lower bound of the variance.
    reduction : str, default "mean"
        "mean", "sum" or "none".

    Notes
    -----
    (log(var) + (prediction - target)**2 / var) / 2, with var at least eps. Nix and Weigend, 1994
    (ICNN), equation 3.

    Examples
    --------
    >>> prediction, target = ngd.placeholder("x", (8, 3)), ngd.placeholder("y", (8, 3))
    >>> nn.GaussianNLLLoss()(prediction, target, 0.5).shape
    ()
    """

    def __init__(self, *, full: bool = False, eps: float = 1e-6, reduction: str = "mean") -> None:
        self.options = {"full": full, "eps": eps, "reduction": reduction}

    def forward(self, prediction: Node, target: Any, var: Any) -> Node:
        """Return the loss.

        Parameters
        ----------
        prediction : Node
            The means, of any shape.
        target : array_like
            The target, of the same shape.
        var : array_like
            The variances, which broadcast to that shape.

        Returns
        -------
        Node
            A scalar, or that shape with `reduction="none"`.
        """
        return ops.gaussian_nll_loss(prediction, target, var, **self.options)


class CosineSimilarity(Module):
    """The cosine of the angle between vectors; see ops.cosine_similarity.

    Input: two tensors that broadcast. Output: their shape without the axis of the vectors.

    Parameters
    ----------
    dim : int, default 1
        The axis of the vectors.
    eps : float, default 1e-8
        The lower bound of the norms by which vectors are divided.

    Notes
    -----
    sum(x * y) / (norm(x) * norm(y)) along the axis `dim`, with norms of at least eps.

    Examples
    --------
    >>> x, y = ngd.placeholder("x", (8, 3)), ngd.placeholder("y", (8, 3))
    >>> nn.CosineSimilarity()(x, y).shape
    (8,)
    """

    def __init__(self, dim: int = 1, eps: float = 1e-8) -> None:
        self.dim, self.eps = dim, eps

    def forward(self, x: Node, y: Any) -> Node:
        """Return the cosines.

        Parameters
        ----------
        x, y : array_like
            Floats that broadcast to one shape.

        Returns
        -------
        Node
            That shape without the axis `dim`.
        """
        return ops.cosine_similarity(x, y, self.dim, self.eps)

    def describe(self) -> str:
        """Return the arguments of the constructor, for `repr`."""
        return f"dim={self.dim}, eps={self.eps}"
