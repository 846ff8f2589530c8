# SPDX-License-Identifier: Apache-2.0
"""Functions composed of other ops: exp2, log2, log10, logaddexp, logaddexp2, cbrt and hypot."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Final

import numpy as np

from ..dtypes import DType
from ..graph.node import Node
from ..graph.registry import public, register
from ._arithmetic import abs, maximum, minimum, round, square
from ._casting import cast
from ._compare import equal, logical_or, where
from ._composite import CompositeBinary, CompositeUnary, as_compute_dtype
from ._elementwise import align
from ._operands import Value
from ._transcendental import exp, log, log1p, power, sqrt

__all__ = ["cbrt", "exp2", "hypot", "log2", "log10", "logaddexp", "logaddexp2"]


class LogTo(CompositeUnary):
    """The logarithm to the base `base`. The result is exact for integer powers of the base."""

    base: ClassVar[float]
    domain = ((0.2, 3),)
    further = ((5, 200),)

    def expand(self, x: Node) -> Node:
        approximate = log(x) * (1 / math.log(self.base))
        rounded = round(approximate)
        return where(equal(power(self.base, rounded), x), rounded, approximate)

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy / (node.inputs[0] * math.log(self.base)),)


class Log2(LogTo):
    """Return the logarithm to base 2. It is exact for powers of 2.

    Parameters
    ----------
    x
        Floats of any shape. Integers become floats.

    Examples
    --------
    ::

        >>> ngd.function(ops.log2)(np.array([0.5, 1.0, 8.0]))
        array([-1.,  0.,  3.])
    """

    name = "log2"
    base = 2.0
    compute = np.log2


log2: Final[Log2] = register(Log2())


class Log10(LogTo):
    """Return the logarithm to base 10.

    Parameters
    ----------
    x
        Floats of any shape. Integers become floats.

    Examples
    --------
    ::

        >>> ngd.function(ops.log10)(np.array([0.1, 1.0, 1000.0]))
        array([-1.,  0.,  3.])
    """

    name = "log10"
    base = 10.0
    compute = np.log10


log10: Final[Log10] = register(Log10())


class Exp2(CompositeUnary):
    """Return 2 to the power of x.

    Parameters
    ----------
    x
        Floats of any shape. Integers become floats.

    Examples
    --------
    ::

        >>> ngd.function(ops.exp2)(np.array([-1.0, 0.5, 3.0]))
        array([0.5   , 1.4142, 8.    ])
    """

    name = "exp2"
    compute = np.exp2
    further = ((-9, 9),)

    def expand(self, x: Node) -> Node:
        return power(2.0, x)

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy * node * math.log(2),)


exp2: Final[Exp2] = register(Exp2())


class Hypot(CompositeBinary):
    """Return sqrt(a ** 2 + b ** 2), without overflow.

    The gradient is 0 where both are 0.

    Parameters
    ----------
    a, b
        Floats that broadcast. Integers become floats.

    Examples
    --------
    ::

        >>> ngd.function(ops.hypot)(np.array([3.0, 5.0]), np.array([4.0, 12.0]))
        array([ 5., 13.])
    """

    name = "hypot"
    compute = np.hypot
    kink_at_zero = True
    further = (((5, 9), (-1, 1)),)

    def expand(self, a: Node, b: Node) -> Node:
        first, second = abs(a), abs(b)
        largest, smallest = maximum(first, second), minimum(first, second)
        ratio = smallest / where(equal(largest, 0), 1, largest)
        result = largest * sqrt(1 + square(ratio))
        is_infinite = logical_or(first >= math.inf, second >= math.inf)
        return where(is_infinite, math.inf, result)

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        a, b = node.inputs
        length = where(equal(node, 0), 1, node)
        return dy * (a / length), dy * (b / length)


hypot: Final[Hypot] = register(Hypot())


class Cbrt(CompositeUnary):
    """Return the cube root, including that of negative numbers.

    Parameters
    ----------
    x
        Floats of any shape. Integers become floats.

    Examples
    --------
    ::

        >>> ngd.function(ops.cbrt)(np.array([-8.0, 0.0, 27.0]))
        array([-2.,  0.,  3.])
    """

    name = "cbrt"
    compute = np.cbrt
    kink_at_zero = True
    further = ((-9, -4), (1e3, 6e4))

    def expand(self, x: Node) -> Node:
        size = abs(x)
        root = power(size, 1 / 3)
        divisor = where(equal(root, 0), 1, root)
        refined = root - (root - size / square(divisor)) / 3  # one step of Newton's method
        magnitude = where(size < math.inf, refined, size)
        return where(x < 0, -magnitude, magnitude)

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy / (3 * square(node)),)


cbrt: Final[Cbrt] = register(Cbrt())


@public
def logaddexp(a: Value, b: Value) -> Node:
    """Return log(exp(a) + exp(b)) without overflow, as numpy.logaddexp.

    Parameters
    ----------
    a, b
        Floats that broadcast. Integers become floats.

    Examples
    --------
    ::

        >>> ngd.function(ops.logaddexp)(np.array([0.0, 1000.0]), np.array([0.0, 1000.0]))
        array([   0.6931, 1000.6931])
    """
    larger, distance, dtype = _larger_and_distance("logaddexp", a, b)
    return cast(larger + log1p(exp(-distance)), dtype)


def _larger_and_distance(where_: str, a: Value, b: Value) -> tuple[Node, Node, DType]:
    """Return max(a, b), abs(a - b), and the dtype to which the caller casts its own result.

    16-bit floats are cast to float32 first. For equal infinities abs(a - b) is 0, instead of the
    NaN of inf - inf.
    """
    operands = align(where_, a, b)
    (first, dtype), (second, _) = (as_compute_dtype(where_, x) for x in operands)
    same = equal(first, second)  # without this, inf - inf would be NaN
    distance = abs(where(same, 0, first) - where(same, 0, second))
    return maximum(first, second), distance, dtype


@public
def logaddexp2(a: Value, b: Value) -> Node:
    """Return log2(2**a + 2**b) without overflow, as numpy.logaddexp2.

    Parameters
    ----------
    a, b
        Floats that broadcast. Integers become floats.

    Examples
    --------
    ::

        >>> ngd.function(ops.logaddexp2)(np.array([0.0, 1000.0]), np.array([0.0, 1000.0]))
        array([   1., 1001.])
    """
    larger, distance, dtype = _larger_and_distance("logaddexp2", a, b)
    return cast(larger + log1p(exp2(-distance)) / math.log(2), dtype)
