# SPDX-License-Identifier: Apache-2.0
"""Elementwise powers, roots, exponentials, logarithms, trigonometric functions and erf."""

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
    """Return a ** b in NumPy.

    An integer a to a negative power is 1 / a ** abs(b) rounded towards zero: 0, 1 or -1. It is 0
    for a = 0.
    """
    if is_float(b.dtype):
        return np.power(a, b)
    unit = np.where(b % 2 == 0, np.abs(a), a)  # a ** b for a = -1 or 1
    below_zero = np.where(np.abs(a) == 1, unit, a.dtype.type(0))
    return np.where(b < 0, below_zero, np.power(a, np.maximum(b, 0)))


class Power(Binary):
    """Return a to the power of b.

    Parameters
    ----------
    a, b : node or array
        Numbers that broadcast.

    Notes
    -----
    An integer to a negative power is truncated: it is 0 unless abs(a) is 1. The gradient with
    respect to b is 0 where a <= 0.

    Examples
    --------
    ::

        >>> ngd.function(ops.power)(np.array([1.0, 2.0, 4.0]), np.array([3.0, 2.0, 0.5]))
        array([1., 4., 2.])
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
        less_one = where(equal(b, 0), 1, b - 1)  # else 0 * 0 ** -1 at a = b = 0: NaN
        is_positive = a > 0
        logarithm = where(is_positive, log(where(is_positive, a, 1)), 0)
        return dy * b * power(a, less_one), dy * node * logarithm


power: Final[Power] = register(Power())


class Sqrt(Unary):
    """Return the square root of x.

    Parameters
    ----------
    x : node or array
        Floats of any shape. Integers become floats.

    Examples
    --------
    ::

        >>> ngd.function(ops.sqrt)(np.array([1.0, 4.0]))
        array([1., 2.])
    """

    name = "sqrt"
    dtypes = FLOATS
    compute = np.sqrt
    domain = ((0.2, 3),)

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy * 0.5 / node,)


sqrt: Final[Sqrt] = register(Sqrt())


class Rsqrt(Unary):
    """Return 1 / sqrt(x).

    Parameters
    ----------
    x : node or array
        Floats of any shape. Integers become floats.

    Examples
    --------
    ::

        >>> ngd.function(ops.rsqrt)(np.array([1.0, 4.0]))
        array([1. , 0.5])
    """

    name = "rsqrt"
    dtypes = FLOATS
    compute = staticmethod(lambda x: 1 / np.sqrt(x))
    domain = ((0.2, 3),)

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy * -0.5 * (node * node * node),)


rsqrt: Final[Rsqrt] = register(Rsqrt())


class Exp(Unary):
    """Return e to the power of x.

    Parameters
    ----------
    x : node or array
        Floats of any shape. Integers become floats.

    Examples
    --------
    ::

        >>> ngd.function(ops.exp)(np.array([0.0, 1.0]))
        array([1.    , 2.7183])
    """

    name = "exp"
    dtypes = FLOATS
    compute = np.exp

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy * node,)


exp: Final[Exp] = register(Exp())


class Expm1(Unary):
    """Return exp(x) - 1, which is accurate near 0.

    Parameters
    ----------
    x : node or array
        Floats of any shape. Integers become floats.

    Examples
    --------
    ::

        >>> ngd.function(ops.expm1)(np.array([0.0, 1.0]))
        array([0.    , 1.7183])
    """

    name = "expm1"
    dtypes = FLOATS
    compute = np.expm1

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy * (node + 1),)


expm1: Final[Expm1] = register(Expm1())


class Log(Unary):
    """Return the natural logarithm of x.

    Parameters
    ----------
    x : node or array
        Floats of any shape. Integers become floats.

    Examples
    --------
    ::

        >>> ngd.function(ops.log)(np.array([1.0, 4.0]))
        array([0.    , 1.3863])
    """

    name = "log"
    dtypes = FLOATS
    compute = np.log
    domain = ((0.2, 3),)

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy / node.inputs[0],)


log: Final[Log] = register(Log())


class Log1p(Unary):
    """Return log(1 + x), which is accurate near 0.

    Parameters
    ----------
    x : node or array
        Floats of any shape. Integers become floats.

    Examples
    --------
    ::

        >>> ngd.function(ops.log1p)(np.array([0.0, 1.0]))
        array([0.    , 0.6931])
    """

    name = "log1p"
    dtypes = FLOATS
    compute = np.log1p
    domain = ((-0.7, 2),)

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy / (node.inputs[0] + 1),)


log1p: Final[Log1p] = register(Log1p())


class Tanh(Unary):
    """Return the hyperbolic tangent of x.

    Parameters
    ----------
    x : node or array
        Floats of any shape. Integers become floats.

    Examples
    --------
    ::

        >>> ngd.function(ops.tanh)(np.array([0.0, 1.0]))
        array([0.    , 0.7616])
    """

    name = "tanh"
    dtypes = FLOATS
    compute = np.tanh

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy * (1 - node * node),)


tanh: Final[Tanh] = register(Tanh())


class Sin(Unary):
    """Return the sine of x, an angle in radians.

    Parameters
    ----------
    x : node or array
        Floats of any shape. Integers become floats.

    Examples
    --------
    ::

        >>> ngd.function(ops.sin)(np.array([0.0, 1.0]))
        array([0.    , 0.8415])
    """

    name = "sin"
    dtypes = FLOATS
    compute = np.sin

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy * cos(node.inputs[0]),)


sin: Final[Sin] = register(Sin())


class Cos(Unary):
    """Return the cosine of x, an angle in radians.

    Parameters
    ----------
    x : node or array
        Floats of any shape. Integers become floats.

    Examples
    --------
    ::

        >>> ngd.function(ops.cos)(np.array([0.0, 1.0]))
        array([1.    , 0.5403])
    """

    name = "cos"
    dtypes = FLOATS
    compute = np.cos

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (-(dy * sin(node.inputs[0])),)


cos: Final[Cos] = register(Cos())


class Erf(Unary):
    """Return the error function, 2 / sqrt(pi) times the integral of exp(-t * t) from 0 to x.

    Parameters
    ----------
    x : node or array
        Floats of any shape. Integers become floats.

    Examples
    --------
    ::

        >>> ngd.function(ops.erf)(np.array([0.0, 1.0]))
        array([0.    , 0.8427])
    """

    name = "erf"
    dtypes = FLOATS
    compute = np.vectorize(math.erf, otypes=[np.float64])

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy * (2 / math.sqrt(math.pi)) * exp(-square(node.inputs[0])),)


erf: Final[Erf] = register(Erf())
