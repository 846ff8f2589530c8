# SPDX-License-Identifier: Apache-2.0
"""Trigonometric and hyperbolic functions, and their inverses.

They are computed from sin, cos, exp and log. Their results differ from NumPy's by a few units in
the last place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from ..graph.node import Node
from ..graph.registry import public, register
from ._arithmetic import abs, maximum, minimum, sign, square
from ._casting import cast
from ._compare import equal, where
from ._composite import CompositeBinary, CompositeUnary, as_compute_dtype, polynomial
from ._numeric import signbit
from ._operands import Value, as_node
from ._transcendental import cos, exp, expm1, log, log1p, sin, sqrt

__all__ = [
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "cosh",
    "deg2rad",
    "rad2deg",
    "sinc",
    "sinh",
    "tan",
]

ATAN: Final = (
    -0.3333333333333333,
    0.199999999999998,
    -0.14285714285658824,
    0.1111111110505757,
    -0.09090908748635232,
    0.07692296234491514,
    -0.06666422364033206,
    0.05878900032342983,
    -0.052302411507894,
    0.045506220391755364,
    -0.034545610104858494,
    0.016258132064979208,
)
"""The coefficients of p(z) = (atan(t) / t - 1) / z, with z = t * t and abs(t) <= tan(pi / 8).

The polynomial p interpolates the right side at 12 Chebyshev nodes. The relative error of atan is
below 2e-19.
"""
EIGHTH: Final = math.tan(math.pi / 8)
"""The largest abs(x) for which `Atan` evaluates its polynomial at abs(x): tan(pi / 8)."""
THREE_EIGHTHS: Final = math.tan(3 * math.pi / 8)
"""The abs(x) above which `Atan` evaluates its polynomial at -1 / abs(x): tan(3 pi / 8)."""
QUARTER_PI_LOW: Final = 3.061616997868383e-17
"""The rounding error of pi / 4 in float64: the exact value minus the float."""


class Tan(CompositeUnary):
    """Return the tangent of x, an angle in radians.

    Parameters
    ----------
    x : node or array
        Floats of any shape. Integers become floats.

    Examples
    --------
    ::

        >>> ngd.function(ops.tan)(np.array([0.0, 0.5]))
        array([0.    , 0.5463])
    """

    name = "tan"
    compute = np.tan
    domain = ((-1.4, 1.4),)
    further = ((1.7, 4.5),)

    def expand(self, x: Node) -> Node:
        return sin(x) / cos(x)

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy * (1 + square(node)),)


tan: Final[Tan] = register(Tan())


class Atan(CompositeUnary):
    """Return the angle in (-pi / 2, pi / 2) whose tangent is x, as numpy.arctan.

    Parameters
    ----------
    x : node or array
        Floats of any shape. Integers become floats.

    Notes
    -----
    abs(x) is reduced to at most tan(pi / 8), where a polynomial is evaluated: Cody and Waite,
    "Software Manual for the Elementary Functions" (1980), chapter 11.

    Examples
    --------
    ::

        >>> ngd.function(ops.atan)(np.array([-1.0, 0.0, 1e9]))
        array([-0.7854,  0.    ,  1.5708])
    """

    name = "atan"
    compute = np.arctan
    domain = ((-1, 1),)
    further = ((-9, 9), (0, 1e4))

    def expand(self, x: Node) -> Node:
        size = abs(x)
        is_large, is_middle = size > THREE_EIGHTHS, size > EIGHTH
        t = where(is_large, -1 / size, where(is_middle, (size - 1) / (size + 1), size))
        one = as_node(1.0, x)
        eighths = where(is_large, 2 * one, where(is_middle, one, 0))
        z = square(t)
        reduced_angle = t + (t * z * polynomial(z, ATAN) + eighths * QUARTER_PI_LOW)
        angle = eighths * (math.pi / 4) + reduced_angle
        return where(x < 0, -angle, angle)

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy / (1 + square(node.inputs[0])),)


atan: Final[Atan] = register(Atan())


class Asin(CompositeUnary):
    """Return the angle in [-pi / 2, pi / 2] whose sine is x, as numpy.arcsin.

    The result is NaN outside of [-1, 1].

    Parameters
    ----------
    x : node or array
        Floats of any shape. Integers become floats.

    Examples
    --------
    ::

        >>> ngd.function(ops.asin)(np.array([-1.0, 0.0, 0.5]))
        array([-1.5708,  0.    ,  0.5236])
    """

    name = "asin"
    compute = np.arcsin
    domain = ((-0.9, 0.9),)

    def expand(self, x: Node) -> Node:
        return atan(x / sqrt((1 - x) * (1 + x)))

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        (x,) = node.inputs
        return (dy / sqrt((1 - x) * (1 + x)),)


asin: Final[Asin] = register(Asin())


class Acos(CompositeUnary):
    """Return the angle in [0, pi] whose cosine is x, as numpy.arccos.

    The result is NaN outside of [-1, 1].

    Parameters
    ----------
    x : node or array
        Floats of any shape. Integers become floats.

    Examples
    --------
    ::

        >>> ngd.function(ops.acos)(np.array([-1.0, 0.0, 1.0]))
        array([3.1416, 1.5708, 0.    ])
    """

    name = "acos"
    compute = np.arccos
    domain = ((-0.9, 0.9),)

    def expand(self, x: Node) -> Node:
        return 2 * atan(sqrt((1 - x) / (1 + x)))

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        (x,) = node.inputs
        return (-(dy / sqrt((1 - x) * (1 + x))),)


acos: Final[Acos] = register(Acos())


class Atan2(CompositeBinary):
    """Return the angle in [-pi, pi] from the positive b axis to the point (b, a), as numpy.arctan2.

    Parameters
    ----------
    a, b : node or array
        Floats that broadcast. Integers become floats.

    Notes
    -----
    The gradient is (b, -a) / (a ** 2 + b ** 2), and 0 where a and b are 0.

    Examples
    --------
    ::

        >>> ngd.function(ops.atan2)(np.array([1.0, -1.0]), np.array([-1.0, 0.0]))
        array([ 2.3562, -1.5708])
    """

    name = "atan2"
    compute = np.arctan2
    kink_at_zero = True
    further = (((-9, 9), (-0.1, 0.1)), ((-0.1, 0.1), (1, 9)))

    def expand(self, a: Node, b: Node) -> Node:
        up, right = abs(a), abs(b)
        equals = where(equal(up, 0), up, 1)
        angle = atan(where(equal(up, right), equals, up / right))
        angle = where(signbit(b), math.pi - angle, angle)
        return where(signbit(a), -angle, angle)

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        a, b = node.inputs
        largest = maximum(abs(a), abs(b))
        scale = where(equal(largest, 0), 1, largest)
        y, x = a / scale, b / scale
        length = square(x) + square(y)
        unit = dy / (where(equal(length, 0), 1, length) * scale)
        return x * unit, -(y * unit)


atan2: Final[Atan2] = register(Atan2())


HALF_RANGE: Final = 1.0
"""The largest magnitude of x for which sinh(x) is computed with expm1.

For small x, exp(x) - exp(-x) would lose digits by cancellation. For larger x, sinh uses exp of half
of x, because exp(x) may overflow when sinh(x) does not.
"""


class Sinh(CompositeUnary):
    """Return the hyperbolic sine of x, (exp(x) - exp(-x)) / 2.

    Parameters
    ----------
    x : node or array
        Floats of any shape. Integers become floats.

    Examples
    --------
    ::

        >>> ngd.function(ops.sinh)(np.array([-1.0, 0.0, 2.0]))
        array([-1.1752,  0.    ,  3.6269])
    """

    name = "sinh"
    compute = np.sinh
    domain = ((-3, 3),)
    further = ((10, 11), (-1e-3, 1e-3))

    def expand(self, x: Node) -> Node:
        size = abs(x)
        less_one = expm1(size)
        near = 0.5 * (less_one + less_one / (less_one + 1))
        root = exp(0.5 * size)  # exp(size) may overflow where sinh does not
        far = (0.5 * root) * root - (0.5 / root) / root
        value = where(size > HALF_RANGE, far, near)
        return where(x < 0, -value, value)

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy * cosh(node.inputs[0]),)


sinh: Final[Sinh] = register(Sinh())


class Cosh(CompositeUnary):
    """Return the hyperbolic cosine of x, (exp(x) + exp(-x)) / 2.

    Parameters
    ----------
    x : node or array
        Floats of any shape. Integers become floats.

    Examples
    --------
    ::

        >>> ngd.function(ops.cosh)(np.array([-1.0, 0.0, 2.0]))
        array([1.5431, 1.    , 3.7622])
    """

    name = "cosh"
    compute = np.cosh
    domain = ((-3, 3),)
    further = ((10, 11),)

    def expand(self, x: Node) -> Node:
        root = exp(0.5 * abs(x))
        return (0.5 * root) * root + (0.5 / root) / root

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy * sinh(node.inputs[0]),)


cosh: Final[Cosh] = register(Cosh())

LARGE: Final = 1e8
"""The magnitude of x from which sqrt(x ** 2 + 1) equals abs(x) in float64.

For larger x, x ** 2 may overflow, so it is not computed.
"""


class Asinh(CompositeUnary):
    """Return the number whose hyperbolic sine is x, as numpy.arcsinh.

    Parameters
    ----------
    x : node or array
        Floats of any shape. Integers become floats.

    Examples
    --------
    ::

        >>> ngd.function(ops.asinh)(np.array([-1.0, 0.0, 2.0]))
        array([-0.8814,  0.    ,  1.4436])
    """

    name = "asinh"
    compute = np.arcsinh
    domain = ((-3, 3),)
    further = ((100, 200), (1e4, 6e4))

    def expand(self, x: Node) -> Node:
        size = abs(x)
        near = minimum(size, LARGE)
        value = log1p(near + square(near) / (1 + sqrt(1 + square(near))))
        value = where(size > LARGE, log(size) + math.log(2), value)
        return where(x < 0, -value, value)

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        size = abs(node.inputs[0])
        near = minimum(size, LARGE)
        return (dy / where(size > LARGE, size, sqrt(1 + square(near))),)


asinh: Final[Asinh] = register(Asinh())


class Acosh(CompositeUnary):
    """Return the number >= 0 whose hyperbolic cosine is x, as numpy.arccosh. It is NaN below 1.

    Parameters
    ----------
    x : node or array
        Floats of any shape. Integers become floats.

    Examples
    --------
    ::

        >>> ngd.function(ops.acosh)(np.array([1.0, 2.0]))
        array([0.   , 1.317])
    """

    name = "acosh"
    compute = np.arccosh
    domain = ((1.2, 4),)
    further = ((1e4, 6e4),)

    def expand(self, x: Node) -> Node:
        above = minimum(x, LARGE) - 1
        value = log1p(above + sqrt(above * (above + 2)))
        return where(x > LARGE, log(x) + math.log(2), where(x < 1, math.nan, value))

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        (x,) = node.inputs
        return (dy / (sqrt(x - 1) * sqrt(x + 1)),)


acosh: Final[Acosh] = register(Acosh())


class Atanh(CompositeUnary):
    """Return the number whose hyperbolic tangent is x, as numpy.arctanh.

    The result is inf for 1, -inf for -1, and NaN outside of [-1, 1].

    Parameters
    ----------
    x : node or array
        Floats of any shape. Integers become floats.

    Examples
    --------
    ::

        >>> ngd.function(ops.atanh)(np.array([-0.5, 0.0, 0.9]))
        array([-0.5493,  0.    ,  1.4722])
    """

    name = "atanh"
    compute = np.arctanh
    domain = ((-0.9, 0.9),)

    def expand(self, x: Node) -> Node:
        size = abs(x)
        return sign(x) * (0.5 * log1p(2 * size / (1 - size)))

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        (x,) = node.inputs
        return (dy / ((1 - x) * (1 + x)),)


atanh: Final[Atanh] = register(Atanh())


class Sinc(CompositeUnary):
    """Return sin(pi * x) / (pi * x), and 1 at 0, as numpy.sinc.

    Parameters
    ----------
    x : node or array
        Floats of any shape. Integers become floats.

    Examples
    --------
    ::

        >>> ngd.function(ops.sinc)(np.array([0.0, 0.5, 1.5]))
        array([ 1.    ,  0.6366, -0.2122])
    """

    name = "sinc"
    compute = np.sinc
    further = ((-0.05, 0.05), (4, 5))
    SERIES = (-1 / 3, 1 / 30, -1 / 840, 1 / 45360, -1 / 3991680)
    """The coefficients of a polynomial p, for the gradient of sinc near 0.

    With t = pi * x, sinc(x) is sin(t) / t. If abs(t) < 0.25, the gradient computes the derivative
    of sin(t) / t with respect to t as t * p(t ** 2).
    """

    def expand(self, x: Node) -> Node:
        angle = x * math.pi
        is_zero = equal(angle, 0)
        return where(is_zero, 1, sin(angle) / where(is_zero, 1, angle))

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        angle = node.inputs[0] * math.pi
        is_near = abs(angle) < 0.25  # `far` loses digits by cancellation
        safe = where(is_near, 1, angle)
        small = where(is_near, angle, 0)
        far = (cos(safe) - sin(safe) / safe) / safe
        slope = where(is_near, small * polynomial(square(small), self.SERIES), far)
        return (dy * (math.pi * slope),)


sinc: Final[Sinc] = register(Sinc())


@public
def deg2rad(x: Value) -> Node:
    """Convert degrees to radians, as numpy.deg2rad.

    Parameters
    ----------
    x : node or array
        Numbers of any shape. Integers become floats.

    Examples
    --------
    ::

        >>> ngd.function(ops.deg2rad)(np.array([0.0, 180.0]))
        array([0.    , 3.1416])
    """
    node, dtype = as_compute_dtype("deg2rad", x)
    return cast(node * (math.pi / 180), dtype)


@public
def rad2deg(x: Value) -> Node:
    """Convert radians to degrees, as numpy.rad2deg.

    Parameters
    ----------
    x : node or array
        Numbers of any shape. Integers become floats.

    Examples
    --------
    ::

        >>> ngd.function(ops.rad2deg)(np.array([0.0, np.pi]))
        array([  0., 180.])
    """
    node, dtype = as_compute_dtype("rad2deg", x)
    return cast(node * (180 / math.pi), dtype)
