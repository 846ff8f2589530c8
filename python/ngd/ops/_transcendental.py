# SPDX-License-Identifier: Apache-2.0
"""Elementwise powers, roots, exponentials, logarithms, and functions of analysis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from ..dtypes import FLOATS, Array, is_float
from ..graph.node import Node
from ..graph.registry import register
from ._arithmetic import square
from ._compare import equal, where
from ._elementwise import Binary, Unary
from ._operands import Value, is_weak

__all__ = ["cos", "erf", "exp", "expm1", "log", "log1p", "power", "rsqrt", "sin", "sqrt", "tanh"]


def _power(a: Array, b: Array) -> Array:
    if is_float(b.dtype):
        return np.power(a, b)
    unit = np.where(b % 2 == 0, np.abs(a), a)  # (-1)^b and 1^b
    below_zero = np.where(np.abs(a) == 1, unit, a.dtype.type(0))
    return np.where(b < 0, below_zero, np.power(a, np.maximum(b, 0)))


class Power(Binary):
    """a ** b. Integers to negative powers are the true value, truncated: 0 unless |a| is 1.

    The gradient to the exponent is 0 where a <= 0.
    """

    name = "power"
    compute = staticmethod(_power)
    domain = ((0.2, 2), (-2, 2))

    def __call__(self, a: Value, b: Value) -> Node:
        if isinstance(a, Node) and is_weak(b) and b == 2:
            return square(a)
        return super().__call__(a, b)

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        a, b = node.inputs
        less_one = where(equal(b, 0), 1, b - 1)  # so that a ** 0 has slope 0 at a = 0 too
        positive = a > 0
        logarithm = where(positive, log(where(positive, a, 1)), 0)
        return dy * b * power(a, less_one), dy * node * logarithm


power: Final[Power] = register(Power())


class Sqrt(Unary):
    """The square root."""

    name = "sqrt"
    dtypes = FLOATS
    compute = np.sqrt
    domain = ((0.2, 3),)

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy * 0.5 / node,)


sqrt: Final[Sqrt] = register(Sqrt())


class Rsqrt(Unary):
    """1 / sqrt(x)."""

    name = "rsqrt"
    dtypes = FLOATS
    compute = staticmethod(lambda x: 1 / np.sqrt(x))
    domain = ((0.2, 3),)

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy * -0.5 * (node * node * node),)


rsqrt: Final[Rsqrt] = register(Rsqrt())


class Exp(Unary):
    """e to the power x."""

    name = "exp"
    dtypes = FLOATS
    compute = np.exp

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy * node,)


exp: Final[Exp] = register(Exp())


class Expm1(Unary):
    """exp(x) - 1, accurate near 0."""

    name = "expm1"
    dtypes = FLOATS
    compute = np.expm1

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy * (node + 1),)


expm1: Final[Expm1] = register(Expm1())


class Log(Unary):
    """The natural logarithm."""

    name = "log"
    dtypes = FLOATS
    compute = np.log
    domain = ((0.2, 3),)

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy / node.inputs[0],)


log: Final[Log] = register(Log())


class Log1p(Unary):
    """log(1 + x), accurate near 0."""

    name = "log1p"
    dtypes = FLOATS
    compute = np.log1p
    domain = ((-0.7, 2),)

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy / (node.inputs[0] + 1),)


log1p: Final[Log1p] = register(Log1p())


class Tanh(Unary):
    """The hyperbolic tangent."""

    name = "tanh"
    dtypes = FLOATS
    compute = np.tanh

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy * (1 - node * node),)


tanh: Final[Tanh] = register(Tanh())


class Sin(Unary):
    """The sine of x radians."""

    name = "sin"
    dtypes = FLOATS
    compute = np.sin

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy * cos(node.inputs[0]),)


sin: Final[Sin] = register(Sin())


class Cos(Unary):
    """The cosine of x radians."""

    name = "cos"
    dtypes = FLOATS
    compute = np.cos

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (-(dy * sin(node.inputs[0])),)


cos: Final[Cos] = register(Cos())


class Erf(Unary):
    """The error function, 2 / sqrt(pi) times the integral of exp(-t * t) from 0 to x."""

    name = "erf"
    dtypes = FLOATS
    compute = np.vectorize(math.erf, otypes=[np.float64])

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy * (2 / math.sqrt(math.pi)) * exp(-square(node.inputs[0])),)


erf: Final[Erf] = register(Erf())
