# SPDX-License-Identifier: Apache-2.0
"""Functions of one tensor as modules, with PyTorch's names: what ngd.ops has."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

from .. import Node, ops
from .module import Module


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
