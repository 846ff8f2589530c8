# SPDX-License-Identifier: Apache-2.0
"""Functions of one tensor as modules, with PyTorch's names: what ngd.ops has."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

from .. import Node, ops
from .initializers import constant
from .module import Module, Parameter


class Activation(Module):
    """A function of one tensor, with options; a subclass names it."""

    function: ClassVar[Callable[..., Any]]

    def __init__(self) -> None:
        self.options: dict[str, Any] = {}

    def forward(self, x: Node) -> Node:
        """Of the shape and dtype of x."""
        y: Node = type(self).function(x, **self.options)
        return y

    def describe(self) -> str:
        """See Module."""
        return ", ".join(f"{key}={value!r}" for key, value in self.options.items())


class Named(Activation):
    """An activation that a function of ngd.ops computes; a subclass gives its name."""

    op: ClassVar[str]

    def forward(self, x: Node) -> Node:
        """Of the dtype of x."""
        y: Node = getattr(ops, self.op)(x, **self.options)
        return y


class ReLU(Activation):
    """max(x, 0)."""

    function = ops.relu


class SiLU(Activation):
    """x * sigmoid(x)."""

    function = ops.silu


class Sigmoid(Activation):
    """1 / (1 + exp(-x))."""

    function = ops.sigmoid


class Tanh(Activation):
    """The hyperbolic tangent."""

    function = ops.tanh


class Softplus(Activation):
    """log(1 + exp(x))."""

    function = ops.softplus


class Hardswish(Activation):
    """x * hardsigmoid(x)."""

    function = ops.hardswish


class Hardsigmoid(Activation):
    """x / 6 + 1/2 within [0, 1]."""

    function = ops.hardsigmoid


class GELU(Activation):
    """ops.gelu; approximate "none" or "tanh"."""

    function = ops.gelu

    def __init__(self, approximate: str = "none") -> None:
        self.options = {"approximate": approximate}


class LeakyReLU(Activation):
    """x where x > 0, else negative_slope * x."""

    function = ops.leaky_relu

    def __init__(self, negative_slope: float = 0.01) -> None:
        self.options = {"negative_slope": negative_slope}


class ELU(Activation):
    """x where x > 0, else alpha * (exp(x) - 1)."""

    function = ops.elu

    def __init__(self, alpha: float = 1.0) -> None:
        self.options = {"alpha": alpha}


class ReLU6(Activation):
    """x within [0, 6]."""

    function = ops.clip

    def __init__(self) -> None:
        self.options = {"min": 0.0, "max": 6.0}


class Softmax(Activation):
    """exp(x) divided by its sum along an axis."""

    function = ops.softmax

    def __init__(self, dim: int = -1) -> None:
        self.options = {"axis": dim}


class LogSoftmax(Activation):
    """The logarithm of softmax along an axis."""

    function = ops.log_softmax

    def __init__(self, dim: int = -1) -> None:
        self.options = {"axis": dim}


class Softmin(Named):
    """Softmax of -x along an axis."""

    op = "softmin"

    def __init__(self, dim: int = -1) -> None:
        self.options = {"axis": dim}


class GLU(Named):
    """The first half of an axis times sigmoid of the second half."""

    op = "glu"

    def __init__(self, dim: int = -1) -> None:
        self.options = {"axis": dim}


class Mish(Named):
    """x * tanh(softplus(x))."""

    op = "mish"


class SELU(Named):
    """A scaled ELU whose results tend to mean 0 and variance 1."""

    op = "selu"


class Softsign(Named):
    """x / (1 + abs(x))."""

    op = "softsign"


class LogSigmoid(Named):
    """log(sigmoid(x))."""

    op = "logsigmoid"


class Hardtanh(Named):
    """x within [min_val, max_val]."""

    op = "hardtanh"

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0) -> None:
        self.options = {"min": min_val, "max": max_val}


class PReLU(Module):
    """x where it is positive, else weight * x: ops.prelu.

    Parameters
    ----------
    num_parameters : int
        1, or the number of channels, which are axis 1.
    init : float
        The first value of the weights.
    """

    weight: Any

    def __init__(self, num_parameters: int = 1, init: float = 0.25) -> None:
        self.num_parameters = num_parameters
        self.weight = Parameter(num_parameters, constant(init))

    def forward(self, x: Node) -> Node:
        """Of the shape and dtype of x."""
        y: Node = ops.prelu(x, self.weight)
        return y

    def describe(self) -> str:
        """See Module."""
        return f"num_parameters={self.num_parameters}"


class Identity(Module):
    """The tensor itself."""

    def forward(self, x: Any) -> Any:
        """The argument."""
        return x


class Flatten(Module):
    """All axes from start_dim on as one: [batch, ...] to [batch, n]."""

    def __init__(self, start_dim: int = 1) -> None:
        self.start_dim = start_dim

    def forward(self, x: Node) -> Node:
        """Of the dtype of x."""
        ahead = x.shape[: self.start_dim]
        y: Node = ops.reshape(x, (*ahead, math.prod(x.shape[len(ahead) :])))
        return y
