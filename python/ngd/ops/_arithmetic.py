# SPDX-License-Identifier: Apache-2.0
"""Elementwise arithmetic and rounding."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from ..dtypes import FLOATS, INTEGERS, DType, float64, is_float
from ..graph.leaves import constant_node
from ..graph.node import Node
from ..graph.registry import register
from ..graph.samples import Operand, Sample
from ..graph.traits import Fusion, Kernel, Numerics
from ._casting import cast
from ._compare import equal, logical_and, where
from ._elementwise import Binary, Unary, align, zero_like
from ._operands import Value, as_node, is_one

__all__ = [
    "abs",
    "add",
    "ceil",
    "clip",
    "divide",
    "floor",
    "floor_divide",
    "maximum",
    "minimum",
    "multiply",
    "negative",
    "reciprocal",
    "remainder",
    "round",
    "sign",
    "square",
    "subtract",
]


class Rounding(Unary):
    """The base of floor, ceil and round. The gradient is zero. Integers are returned unchanged."""

    dtypes = FLOATS
    numerics = Numerics(needs_float32_gradient=False)
    smooth = False

    def __call__(self, x: Value) -> Node:
        x = as_node(x, where=self.name)
        return x if x.dtype in INTEGERS else self.node((x,))

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (zero_like(dy),)


class Add(Binary):
    """Return a + b, element by element.

    Parameters
    ----------
    a, b
        Numbers that broadcast. They are promoted to one dtype.

    Examples
    --------
    ::

        >>> ngd.function(ops.add)(np.array([1.0, 2.0]), np.array([10.0, 20.0]))
        array([11., 22.])
    """

    name = "add"
    fusion = Fusion(is_addition=True)
    numerics = Numerics(needs_float32_gradient=False)
    compute = np.add

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return dy, dy


add: Final[Add] = register(Add())


class Subtract(Binary):
    """Return a - b, element by element.

    Parameters
    ----------
    a, b
        Numbers that broadcast. They are promoted to one dtype.

    Examples
    --------
    ::

        >>> ngd.function(ops.subtract)(np.array([1.0, 2.0]), np.array([10.0, 20.0]))
        array([ -9., -18.])
    """

    name = "subtract"
    numerics = Numerics(needs_float32_gradient=False)
    compute = np.subtract

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return dy, -dy


subtract: Final[Subtract] = register(Subtract())


class Multiply(Binary):
    """Return a * b, element by element.

    Parameters
    ----------
    a, b
        Numbers that broadcast. They are promoted to one dtype.

    Examples
    --------
    ::

        >>> ngd.function(ops.multiply)(np.array([1.0, 2.0]), np.array([10.0, 20.0]))
        array([10., 40.])
    """

    name = "multiply"
    fusion = Fusion(is_multiplication=True)
    compute = np.multiply

    def simplify(self, node: Node) -> Node | None:
        a, b = node.inputs
        if is_one(b) and node.type == a.type:
            return a
        return b if is_one(a) and node.type == b.type else None

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        a, b = node.inputs
        return dy * b, dy * a


multiply: Final[Multiply] = register(Multiply())


class Divide(Binary):
    """Return a / b in floats, element by element.

    Parameters
    ----------
    a, b
        Numbers or bools that broadcast. They are promoted to one dtype. Integers become float64.

    Examples
    --------
    ::

        >>> ngd.function(ops.divide)(np.array([1, 7]), np.array([2, 2]))
        array([0.5, 3.5])
    """

    name = "divide"
    dtypes = FLOATS
    compute = np.divide
    kink_at_zero = True

    def __call__(self, a: Value, b: Value) -> Node:
        operands = align(self.name, a, b)
        if not is_float(operands[0].dtype):
            operands = [cast(x, float64) for x in operands]
        return self.node(operands)

    def simplify(self, node: Node) -> Node | None:
        a, b = node.inputs
        return a if is_one(b) and node.type == a.type else None

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        _, b = node.inputs
        return dy / b, -(dy * node / b)


divide: Final[Divide] = register(Divide())


class FloorDivide(Binary):
    """Return the largest integer that is not greater than a / b, as numpy.floor_divide.

    An integer divided by zero is 0. The gradient is zero.

    Parameters
    ----------
    a, b
        Numbers that broadcast. They are promoted to one dtype.

    Examples
    --------
    ::

        >>> ngd.function(ops.floor_divide)(np.array([7, -7, 7]), np.array([2, 2, 0]))
        array([ 3, -4,  0])
    """

    name = "floor_divide"
    compute = np.floor_divide
    kink_at_zero = True
    smooth = False

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return zero_like(dy), zero_like(dy)


floor_divide: Final[FloorDivide] = register(FloorDivide())


class Remainder(Binary):
    """Return a - floor_divide(a, b) * b, which has the sign of b, as numpy.remainder.

    An integer modulo zero is 0.

    Parameters
    ----------
    a, b
        Numbers that broadcast. They are promoted to one dtype.

    Examples
    --------
    ::

        >>> ngd.function(ops.remainder)(np.array([7, -7, 7]), np.array([3, 3, 0]))
        array([1, 2, 0])
    """

    name = "remainder"
    compute = np.remainder
    kink_at_zero = True
    smooth = False

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        a, b = node.inputs
        return dy, -(dy * floor_divide(a, b))


remainder: Final[Remainder] = register(Remainder())


class Maximum(Binary):
    """Return the larger of a and b, element by element.

    NaN propagates. Equal operands get half of the gradient each.

    Parameters
    ----------
    a, b
        Numbers that broadcast. They are promoted to one dtype.

    Examples
    --------
    ::

        >>> ngd.function(ops.maximum)(np.array([1.0, 5.0]), np.array([3.0, 2.0]))
        array([3., 5.])
    """

    name = "maximum"
    compute = np.maximum
    smooth = False

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        a, b = node.inputs
        to_a = where(a > b, dy, where(equal(a, b), dy * 0.5, 0))
        return to_a, dy - to_a


maximum: Final[Maximum] = register(Maximum())


class Minimum(Binary):
    """Return the smaller of a and b, element by element.

    NaN propagates. Equal operands get half of the gradient each.

    Parameters
    ----------
    a, b
        Numbers that broadcast. They are promoted to one dtype.

    Examples
    --------
    ::

        >>> ngd.function(ops.minimum)(np.array([1.0, 5.0]), np.array([3.0, 2.0]))
        array([1., 2.])
    """

    name = "minimum"
    compute = np.minimum
    smooth = False

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        a, b = node.inputs
        to_a = where(a < b, dy, where(equal(a, b), dy * 0.5, 0))
        return to_a, dy - to_a


minimum: Final[Minimum] = register(Minimum())


def dtype_limits(dtype: DType) -> tuple[float, float]:
    """Return the smallest and the largest value of a dtype: -inf and inf for floats."""
    if is_float(dtype):
        return -math.inf, math.inf
    limits = np.iinfo(dtype)
    return int(limits.min), int(limits.max)


class Clip(Binary):
    """Limit each element to [min, max]: minimum(maximum(x, min), max).

    An element on a bound passes its gradient to x. If a bound replaces an element, the bound gets
    the gradient.

    Parameters
    ----------
    x
        Numbers of any shape.
    min, max
        The bounds, numbers that broadcast with x. None means no bound. If min > max, the result is
        max.

    Examples
    --------
    ::

        >>> ngd.function(lambda x: ops.clip(x, 0.0, 2.0))(np.array([-1.0, 1.0, 3.0]))
        array([0., 1., 2.])
    """

    name = "clip"
    kernel = Kernel(is_elementwise=False)
    numerics = Numerics(needs_float32_gradient=False)
    smooth = False
    compute = staticmethod(lambda x, low, high: np.minimum(np.maximum(x, low), high))

    def __call__(self, x: Value, min: Value | None = None, max: Value | None = None) -> Node:
        given_bounds = [bound for bound in (min, max) if bound is not None]
        node, *bounds = align(self.name, as_node(x, where=self.name), *given_bounds)
        lowest, largest = (constant_node(end, node.dtype) for end in dtype_limits(node.dtype))
        low = lowest if min is None else bounds[0]
        return self.node((node, low, largest if max is None else bounds[-1]))

    def expand(self, x: Node, low: Node, high: Node) -> Node:
        return minimum(maximum(x, low), high)

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        x, low, high = node.inputs
        inside = logical_and(x >= low, x <= high)
        below = logical_and(x < low, low <= high)
        return where(inside, dy, 0), where(below, dy, 0), where(maximum(x, low) > high, dy, 0)

    def samples(self) -> Iterable[Sample]:
        for shape, bound in (((), ()), ((2, 3), ()), ((4, 5), (5,)), ((0, 3), (3,))):
            yield Sample((Operand(shape), Operand(bound, -1.5, -0.5), Operand(bound, 0.5, 1.5)))
        yield Sample((Operand((7,)), Operand((), 2, 3), Operand((), 0, 1)))  # max < min


clip: Final[Clip] = register(Clip())


class Negative(Unary):
    """Return -x, element by element.

    Parameters
    ----------
    x
        Numbers of any shape.

    Examples
    --------
    ::

        >>> ngd.function(ops.negative)(np.array([-2.0, 3.0]))
        array([ 2., -3.])
    """

    name = "negative"
    numerics = Numerics(needs_float32_gradient=False)
    compute = np.negative

    def simplify(self, node: Node) -> Node | None:
        (x,) = node.inputs
        return x.inputs[0] if x.op is self else None

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (-dy,)


negative: Final[Negative] = register(Negative())


class Abs(Unary):
    """Return the absolute value of each element. The gradient at 0 is 0.

    Parameters
    ----------
    x
        Numbers of any shape.

    Examples
    --------
    ::

        >>> ngd.function(ops.abs)(np.array([-2.0, 3.0]))
        array([2., 3.])
    """

    name = "abs"
    numerics = Numerics(needs_float32_gradient=False)
    compute = np.abs
    kink_at_zero = True
    smooth = False

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy * sign(node.inputs[0]),)


abs: Final[Abs] = register(Abs())


class Sign(Unary):
    """Return -1, 0 or 1 for each element. NaN stays NaN, and the gradient is zero.

    Parameters
    ----------
    x
        Numbers of any shape.

    Examples
    --------
    ::

        >>> ngd.function(ops.sign)(np.array([-2.0, 0.0, 3.0]))
        array([-1.,  0.,  1.])
    """

    name = "sign"
    numerics = Numerics(needs_float32_gradient=False)
    compute = np.sign
    kink_at_zero = True
    smooth = False

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (zero_like(dy),)


sign: Final[Sign] = register(Sign())


class Square(Unary):
    """Return x * x, element by element.

    Parameters
    ----------
    x
        Numbers of any shape.

    Examples
    --------
    ::

        >>> ngd.function(ops.square)(np.array([-2.0, 3.0]))
        array([4., 9.])
    """

    name = "square"
    compute = np.square

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy * 2 * node.inputs[0],)


square: Final[Square] = register(Square())


class Reciprocal(Unary):
    """Return 1 / x, element by element.

    Parameters
    ----------
    x
        Floats of any shape. Integers become floats.

    Examples
    --------
    ::

        >>> ngd.function(ops.reciprocal)(np.array([1.0, 4.0]))
        array([1.  , 0.25])
    """

    name = "reciprocal"
    dtypes = FLOATS
    compute = np.reciprocal
    kink_at_zero = True

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (-(dy * node * node),)


reciprocal: Final[Reciprocal] = register(Reciprocal())


class Floor(Rounding):
    """Return the largest integer that is not greater than each element. The gradient is zero.

    Parameters
    ----------
    x
        Numbers of any shape. The result has their dtype.

    Examples
    --------
    ::

        >>> ngd.function(ops.floor)(np.array([-1.5, 0.4, 2.5]))
        array([-2.,  0.,  2.])
    """

    name = "floor"
    compute = np.floor


floor: Final[Floor] = register(Floor())


class Ceil(Rounding):
    """Return the smallest integer that is not less than each element. The gradient is zero.

    Parameters
    ----------
    x
        Numbers of any shape. The result has their dtype.

    Examples
    --------
    ::

        >>> ngd.function(ops.ceil)(np.array([-1.5, 0.4, 2.5]))
        array([-1.,  1.,  3.])
    """

    name = "ceil"
    compute = np.ceil


ceil: Final[Ceil] = register(Ceil())


class Round(Rounding):
    """Round each element to the nearest integer, and halves to the even one. The gradient is zero.

    Parameters
    ----------
    x
        Numbers of any shape. The result has their dtype.

    Examples
    --------
    ::

        >>> ngd.function(ops.round)(np.array([-1.5, 0.4, 2.5]))
        array([-2.,  0.,  2.])
    """

    name = "round"
    compute = np.rint


round: Final[Round] = register(Round())
