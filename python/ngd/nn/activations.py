# SPDX-License-Identifier: Apache-2.0
"""Activation functions as modules, with PyTorch's names."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from .. import ops
from ..graph.node import Node
from .initializers import constant
from .module import Module, OpModule
from .parameter import Parameter


class Activation(OpModule):
    """The base class of activations. Each subclass is computed by one function of ngd.ops."""

    def __init__(self) -> None:
        self.options = {}

    def forward(self, x: Node) -> Node:
        """Return the activation of x.

        Parameters
        ----------
        x : Node
            Floats of any shape.

        Returns
        -------
        Node
            An array with the shape and dtype of x.
        """
        return super().forward(x)


class Named(Activation):
    """The base class of the activations whose function in ngd.ops is given by its name, `op`."""

    op: ClassVar[str]

    def forward(self, x: Node) -> Node:
        """Return the activation of x, in the dtype of x."""
        y: Node = getattr(ops, self.op)(x, **self.options)
        return y


class ReLU(Activation):
    """The activation max(x, 0).

    Input: numbers of any shape. Output: the shape and dtype of the input.

    Examples
    --------
    >>> features = ngd.placeholder("features", (4, 3))
    >>> nn.ReLU()(features).shape
    (4, 3)
    """

    function = ops.relu


class SiLU(Activation):
    """The activation x * sigmoid(x), also called swish.

    Input: floats of any shape. Output: the shape and dtype of the input.

    Examples
    --------
    >>> features = ngd.placeholder("features", (4, 3))
    >>> nn.SiLU()(features).shape
    (4, 3)
    """

    function = ops.silu


class Sigmoid(Activation):
    """The activation 1 / (1 + exp(-x)).

    Input: floats of any shape. Output: the shape and dtype of the input.

    Examples
    --------
    >>> features = ngd.placeholder("features", (4, 3))
    >>> nn.Sigmoid()(features).shape
    (4, 3)
    """

    function = ops.sigmoid


class Tanh(Activation):
    """The hyperbolic tangent.

    Input: floats of any shape. Output: the shape and dtype of the input.

    Examples
    --------
    >>> features = ngd.placeholder("features", (4, 3))
    >>> nn.Tanh()(features).shape
    (4, 3)
    """

    function = ops.tanh


class Softplus(Activation):
    """The activation log(1 + exp(x)).

    Input: floats of any shape. Output: the shape and dtype of the input.

    Examples
    --------
    >>> features = ngd.placeholder("features", (4, 3))
    >>> nn.Softplus()(features).shape
    (4, 3)
    """

    function = ops.softplus


class Hardswish(Activation):
    """The activation x * min(max(x + 3, 0), 6) / 6.

    Input: floats of any shape. Output: the shape and dtype of the input.

    Notes
    -----
    Howard et al., 2019 (arXiv:1905.02244), section 5.2.

    Examples
    --------
    >>> features = ngd.placeholder("features", (4, 3))
    >>> nn.Hardswish()(features).shape
    (4, 3)
    """

    function = ops.hardswish


class Hardsigmoid(Activation):
    """The activation min(max(x + 3, 0), 6) / 6.

    Input: floats of any shape. Output: the shape and dtype of the input.

    Examples
    --------
    >>> features = ngd.placeholder("features", (4, 3))
    >>> nn.Hardsigmoid()(features).shape
    (4, 3)
    """

    function = ops.hardsigmoid


class GELU(Activation):
    """The activation x * P(X <= x), where X has the standard normal distribution.

    Input: floats of any shape. Output: the shape and dtype of the input.

    Parameters
    ----------
    approximate : {"none", "tanh"}, default "none"
        With "tanh": 0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))).

    Notes
    -----
    Hendrycks and Gimpel, 2016 (arXiv:1606.08415), section 2.

    Examples
    --------
    >>> features = ngd.placeholder("features", (4, 3))
    >>> nn.GELU(approximate="tanh")(features).shape
    (4, 3)
    """

    function = ops.gelu

    def __init__(self, approximate: str = "none") -> None:
        self.options = {"approximate": approximate}


class LeakyReLU(Activation):
    """The activation x for x > 0, and negative_slope * x otherwise.

    Input: floats of any shape. Output: the shape and dtype of the input.

    Parameters
    ----------
    negative_slope : float, default 0.01
        The slope for negative x.

    Examples
    --------
    >>> features = ngd.placeholder("features", (4, 3))
    >>> nn.LeakyReLU(0.1)(features).shape
    (4, 3)
    """

    function = ops.leaky_relu

    def __init__(self, negative_slope: float = 0.01) -> None:
        self.options = {"negative_slope": negative_slope}


class ELU(Activation):
    """The activation x for x > 0, and alpha * (exp(x) - 1) otherwise.

    Input: floats of any shape. Output: the shape and dtype of the input.

    Parameters
    ----------
    alpha : float, default 1.0
        The activation tends to -alpha as x tends to minus infinity.

    Notes
    -----
    Clevert, Unterthiner and Hochreiter, 2016 (arXiv:1511.07289), equation 14.

    Examples
    --------
    >>> features = ngd.placeholder("features", (4, 3))
    >>> nn.ELU()(features).shape
    (4, 3)
    """

    function = ops.elu

    def __init__(self, alpha: float = 1.0) -> None:
        self.options = {"alpha": alpha}


class ReLU6(Activation):
    """The activation min(max(x, 0), 6).

    Input: numbers of any shape. Output: the shape and dtype of the input.

    Examples
    --------
    >>> features = ngd.placeholder("features", (4, 3))
    >>> nn.ReLU6()(features).shape
    (4, 3)
    """

    function = ops.clip

    def __init__(self) -> None:
        self.options = {"min": 0.0, "max": 6.0}


class Softmax(Activation):
    """Exponentials that are divided by their sum along an axis, exp(x) / sum(exp(x)).

    Input: floats of any shape. Output: the shape and dtype of the input.

    Parameters
    ----------
    dim : int, default -1
        The axis along which the elements sum to 1.

    Examples
    --------
    >>> logits = ngd.placeholder("logits", (4, 10))
    >>> nn.Softmax()(logits).shape
    (4, 10)
    """

    function = ops.softmax

    def __init__(self, dim: int = -1) -> None:
        self.options = {"axis": dim}


class LogSoftmax(Activation):
    """The logarithm of the softmax along an axis.

    Input: floats of any shape. Output: the shape and dtype of the input.

    Parameters
    ----------
    dim : int, default -1
        The axis of the softmax.

    Examples
    --------
    >>> features = ngd.placeholder("features", (4, 6))
    >>> nn.LogSoftmax()(features).shape
    (4, 6)
    """

    function = ops.log_softmax

    def __init__(self, dim: int = -1) -> None:
        self.options = {"axis": dim}


class Softmin(Named):
    """The softmax of -x along an axis.

    Input: floats of any shape. Output: the shape and dtype of the input.

    Parameters
    ----------
    dim : int, default -1
        The axis along which the elements sum to 1.

    Examples
    --------
    >>> features = ngd.placeholder("features", (4, 6))
    >>> nn.Softmin()(features).shape
    (4, 6)
    """

    op = "softmin"

    def __init__(self, dim: int = -1) -> None:
        self.options = {"axis": dim}


class GLU(Named):
    """The gated linear unit: the first half of an axis times the sigmoid of the second half.

    Input: floats with an even extent along `dim`. Output: the shape of the input, but half the
    extent along `dim`, and the dtype of the input.

    Parameters
    ----------
    dim : int, default -1
        The axis that is divided into two halves.

    Notes
    -----
    Dauphin et al., 2016 (arXiv:1612.08083), equation 1.

    Examples
    --------
    >>> features = ngd.placeholder("features", (4, 6))
    >>> nn.GLU()(features).shape
    (4, 3)
    """

    op = "glu"

    def __init__(self, dim: int = -1) -> None:
        self.options = {"axis": dim}


class Mish(Named):
    """The activation x * tanh(softplus(x)).

    Input: floats of any shape. Output: the shape and dtype of the input.

    Notes
    -----
    Misra, 2019 (arXiv:1908.08681), equation 1.

    Examples
    --------
    >>> features = ngd.placeholder("features", (4, 6))
    >>> nn.Mish()(features).shape
    (4, 6)
    """

    op = "mish"


class SELU(Named):
    """The activation SELU, a scaled ELU whose results tend to mean 0 and variance 1.

    Input: floats of any shape. Output: the shape and dtype of the input.

    Notes
    -----
    scale * x for x > 0, and scale * alpha * (exp(x) - 1) otherwise, with alpha = 1.6733 and
    scale = 1.0507. Klambauer et al., 2017 (arXiv:1706.02515), equation 2.

    Examples
    --------
    >>> features = ngd.placeholder("features", (4, 6))
    >>> nn.SELU()(features).shape
    (4, 6)
    """

    op = "selu"


class Softsign(Named):
    """The activation x / (1 + abs(x)).

    Input: floats of any shape. Output: the shape and dtype of the input.

    Examples
    --------
    >>> features = ngd.placeholder("features", (4, 6))
    >>> nn.Softsign()(features).shape
    (4, 6)
    """

    op = "softsign"


class LogSigmoid(Named):
    """The activation log(1 / (1 + exp(-x))), the logarithm of the sigmoid.

    Input: floats of any shape. Output: the shape and dtype of the input.

    Examples
    --------
    >>> features = ngd.placeholder("features", (4, 6))
    >>> nn.LogSigmoid()(features).shape
    (4, 6)
    """

    op = "logsigmoid"


class Hardtanh(Named):
    """The activation min(max(x, min_val), max_val).

    Input: floats of any shape. Output: the shape and dtype of the input.

    Parameters
    ----------
    min_val, max_val : float
        The bounds of the result. The defaults are -1 and 1.

    Examples
    --------
    >>> features = ngd.placeholder("features", (4, 6))
    >>> nn.Hardtanh(-2, 2)(features).shape
    (4, 6)
    """

    op = "hardtanh"

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0) -> None:
        self.options = {"min": min_val, "max": max_val}


class PReLU(Module):
    """The activation x for x > 0, and weight * x otherwise, with a trained weight.

    Input: floats. With more than one weight, axis 1 has one channel per weight. Output: the shape
    and dtype of the input.

    Parameters
    ----------
    num_parameters : int, default 1
        The number of weights: 1, or the number of channels.
    init : float, default 0.25
        The first value of the weights.

    Notes
    -----
    See `ops.prelu`. Variable: `weight` [num_parameters].

    Examples
    --------
    >>> features = ngd.placeholder("features", (4, 6))
    >>> nn.PReLU(6)(features).shape
    (4, 6)
    """

    weight: Any

    def __init__(self, num_parameters: int = 1, init: float = 0.25) -> None:
        self.num_parameters = num_parameters
        self.weight = Parameter(num_parameters, constant(init))

    def forward(self, x: Node) -> Node:
        """Return the activation of x.

        Parameters
        ----------
        x : Node
            Floats. If num_parameters is 1, x may have any shape. Otherwise its shape is
            [batch, num_parameters, ...] or [num_parameters].

        Returns
        -------
        Node
            An array with the shape and dtype of x.
        """
        return ops.prelu(x, self.weight)

    def describe(self) -> str:
        """Return the argument that `repr` shows, such as "num_parameters=6"."""
        return f"num_parameters={self.num_parameters}"


class Identity(Module):
    """A module that returns its input.

    Examples
    --------
    >>> features = ngd.placeholder("features", (4, 3))
    >>> nn.Identity()(features) is features
    True
    """

    def forward(self, x: Any) -> Any:
        """Return the argument.

        Parameters
        ----------
        x : object
            Any value.
        """
        return x


class Flatten(Module):
    """A module that joins the axes from start_dim to the last one into one axis.

    Input: [batch, ...]. Output: [batch, n] for the default start_dim, where n is the number of
    elements of one sample.

    Parameters
    ----------
    start_dim : int, default 1
        The first of the joined axes.

    Examples
    --------
    >>> images = ngd.placeholder("images", (8, 3, 32, 32))
    >>> nn.Flatten()(images).shape
    (8, 3072)
    """

    def __init__(self, start_dim: int = 1) -> None:
        self.start_dim = start_dim

    def forward(self, x: Node) -> Node:
        """Return x with the axes from start_dim to the last one joined into one axis.

        Parameters
        ----------
        x : Node
            [batch, ...] of any dtype.

        Returns
        -------
        Node
            An array with the axes before start_dim, then the joined axis, in the dtype of x.
        """
        leading = x.shape[: self.start_dim]
        return ops.reshape(x, (*leading, math.prod(x.shape[len(leading) :])))
