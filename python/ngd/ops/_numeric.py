# SPDX-License-Identifier: Apache-2.0
"""Elementwise functions of numbers, such as trunc, copysign, isnan, fmax and select."""

from __future__ import annotations

import math
from collections.abc import Sequence

import ml_dtypes

from ..dtypes import bool_, is_float
from ..errors import ShapeError
from ..graph.node import Node
from ..graph.registry import public
from ._arithmetic import abs, ceil, floor, maximum, minimum, remainder
from ._casting import as_floats, cast
from ._compare import equal, less, logical_and, not_equal, where
from ._creation import full
from ._elementwise import align
from ._operands import Value, as_node, float_of

__all__ = [
    "copysign",
    "fmax",
    "fmin",
    "fmod",
    "heaviside",
    "isclose",
    "isfinite",
    "isinf",
    "isnan",
    "logical_xor",
    "nan_to_num",
    "select",
    "signbit",
    "trunc",
]


@public
def trunc(x: Value) -> Node:
    """Round x towards zero. Integers do not change, and the gradient is 0.

    Parameters
    ----------
    x : node or array
        Numbers of any shape.

    Examples
    --------
    ::

        >>> ngd.function(ops.trunc)(np.array([-1.7, 0.2, 1.7]))
        array([-1.,  0.,  1.])
    """
    x = as_node(x, where="trunc")
    return where(x < 0, ceil(x), floor(x)) if is_float(x.dtype) else floor(x)


@public
def fmod(a: Value, b: Value) -> Node:
    """Return the remainder of a / b with the sign of a, as numpy.fmod. It is exact.

    ops.remainder has the sign of b. An integer modulo zero is 0.

    Parameters
    ----------
    a, b : node or array
        Numbers that broadcast.

    Examples
    --------
    ::

        >>> ngd.function(ops.fmod)(np.array([-7.5, 7.5]), np.array([2.0, -2.0]))
        array([-1.5,  1.5])
    """
    first, second = align("fmod", a, b)
    if not is_float(first.dtype):  # -first would overflow for the smallest one
        rest = remainder(first, second)
        has_sign_of_divisor = logical_and(not_equal(rest, 0), not_equal(rest < 0, first < 0))
        return where(has_sign_of_divisor, rest - second, rest)
    is_negative = signbit(first)
    magnitude = remainder(where(is_negative, -first, first), abs(second))
    return where(is_negative, -magnitude, magnitude)


@public
def heaviside(a: Value, b: Value) -> Node:
    """Return 0 where a < 0, b where a is 0, and 1 where a > 0, as numpy.heaviside.

    Parameters
    ----------
    a, b : node or array
        Numbers that broadcast. Where a is NaN, the result is NaN.

    Examples
    --------
    ::

        >>> ngd.function(ops.heaviside)(np.array([-1.0, 0.0, 2.0]), 0.5)
        array([0. , 0.5, 1. ])
    """
    x, at_zero = align("heaviside", a, b)
    step = where(x < 0, 0, where(x > 0, 1, at_zero))
    return where(equal(x, x), step, x) if is_float(x.dtype) else step


@public
def logical_xor(a: Value, b: Value) -> Node:
    """Return True where exactly one of a and b is not 0.

    Parameters
    ----------
    a, b : node or array
        Values that broadcast. Values other than bools are compared with 0.

    Examples
    --------
    ::

        >>> ngd.function(ops.logical_xor)(np.array([0, 1, 1]), np.array([1, 1, 0]))
        array([ True, False,  True])
    """
    first, second = (cast(as_node(x, where="logical_xor"), bool_) for x in (a, b))
    return not_equal(first, second)


@public
def isnan(x: Value) -> Node:
    """Return True where x is NaN.

    Parameters
    ----------
    x : node or array
        Values of any shape and dtype. Integers are never NaN.

    Examples
    --------
    ::

        >>> ngd.function(ops.isnan)(np.array([1.0, np.nan, np.inf]))
        array([False,  True, False])
    """
    x = as_node(x, where="isnan")
    return not_equal(x, x) if is_float(x.dtype) else full(x.shape, False, bool_)


@public
def isinf(x: Value) -> Node:
    """Return True where x is inf or -inf.

    Parameters
    ----------
    x : node or array
        Values of any shape and dtype. Integers are never infinite.

    Examples
    --------
    ::

        >>> ngd.function(ops.isinf)(np.array([1.0, np.nan, -np.inf]))
        array([False, False,  True])
    """
    x = as_node(x, where="isinf")
    return equal(abs(x), math.inf) if is_float(x.dtype) else full(x.shape, False, bool_)


@public
def isfinite(x: Value) -> Node:
    """Return True where x is neither NaN nor infinite.

    Parameters
    ----------
    x : node or array
        Values of any shape and dtype. Integers are always finite.

    Examples
    --------
    ::

        >>> ngd.function(ops.isfinite)(np.array([1.0, np.nan, -np.inf]))
        array([ True, False, False])
    """
    x = as_node(x, where="isfinite")
    return less(abs(x), math.inf) if is_float(x.dtype) else full(x.shape, True, bool_)


@public
def fmax(a: Value, b: Value) -> Node:
    """Return the larger operand, or the other one if one is NaN, as numpy.fmax.

    Parameters
    ----------
    a, b : node or array
        Numbers that broadcast.

    Examples
    --------
    ::

        >>> ngd.function(ops.fmax)(np.array([1.0, np.nan]), np.array([2.0, 3.0]))
        array([2., 3.])
    """
    x, y = align("fmax", a, b)
    return where(isnan(x), y, where(isnan(y), x, maximum(x, y)))


@public
def fmin(a: Value, b: Value) -> Node:
    """Return the smaller operand, or the other one if one is NaN, as numpy.fmin.

    Parameters
    ----------
    a, b : node or array
        Numbers that broadcast.

    Examples
    --------
    ::

        >>> ngd.function(ops.fmin)(np.array([1.0, np.nan]), np.array([2.0, 3.0]))
        array([1., 3.])
    """
    x, y = align("fmin", a, b)
    return where(isnan(x), y, where(isnan(y), x, minimum(x, y)))


@public
def signbit(x: Value) -> Node:
    """Return True where the sign bit is set, which includes -0.0, as numpy.signbit.

    Parameters
    ----------
    x : node or array
        Numbers of any shape. NaN counts as positive.

    Examples
    --------
    ::

        >>> ngd.function(ops.signbit)(np.array([-1.0, -0.0, 0.0]))
        array([ True,  True, False])
    """
    node = as_node(x, where="signbit")
    return where(equal(node, 0), 1 / node, node) < 0 if is_float(node.dtype) else less(node, 0)


@public
def copysign(a: Value, b: Value) -> Node:
    """Return the magnitude of a with the sign of b, as numpy.copysign.

    Parameters
    ----------
    a, b : node or array
        Numbers that broadcast. Integers become floats. A NaN in b counts as positive.

    Examples
    --------
    ::

        >>> ngd.function(ops.copysign)(np.array([1.0, 2.0]), np.array([-0.0, 3.0]))
        array([-1.,  2.])
    """
    x, y = (cast(node, float_of(node.dtype)) for node in align("copysign", a, b))
    return where(signbit(y), -abs(x), abs(x))


@public
def isclose(
    a: Value, b: Value, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Node:
    """Return True where abs(a - b) <= atol + rtol * abs(b), as numpy.isclose.

    Parameters
    ----------
    a, b : node or array
        Numbers that broadcast.
    rtol : float, default 1e-5
        The relative tolerance.
    atol : float, default 1e-8
        The absolute tolerance.
    equal_nan : bool, default False
        If True, NaN is close to NaN.

    Examples
    --------
    ::

        >>> ngd.function(lambda x: ops.isclose(x, 1.0))(np.array([1.0, 1.1]))
        array([ True, False])
    """
    nodes = (as_node(value, where="isclose") for value in (a, b))
    x, y = align("isclose", *(as_floats(node) for node in nodes))
    is_near = (abs(x - y) <= atol + rtol * abs(y)) & isfinite(y)
    result = is_near | equal(x, y)
    return result | (isnan(x) & isnan(y)) if equal_nan else result


@public
def nan_to_num(
    x: Value, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Node:
    """Replace NaN and infinities by numbers, as numpy.nan_to_num.

    Parameters
    ----------
    x : node or array
        Values of any shape. Integers are returned unchanged.
    nan : float, default 0.0
        The number that replaces NaN.
    posinf, neginf : float, optional
        The numbers that replace inf and -inf. The defaults are the largest and the smallest finite
        number of the dtype.

    Examples
    --------
    ::

        >>> ngd.function(ops.nan_to_num)(np.array([1.0, np.nan, np.inf]), posinf=9.0)
        array([1., 0., 9.])
    """
    x = as_node(x, where="nan_to_num")
    if not is_float(x.dtype):
        return x
    largest = float(largest_of(x))
    x = where(equal(x, x), x, nan)
    x = where(equal(x, math.inf), largest if posinf is None else posinf, x)
    return where(equal(x, -math.inf), -largest if neginf is None else neginf, x)


def largest_of(x: Node) -> float:
    """Return the largest finite number in the dtype of x, which is a floating dtype."""
    return float(ml_dtypes.finfo(x.dtype).max)  # type: ignore[no-untyped-call]


@public
def select(conditions: Sequence[Value], choices: Sequence[Value], default: Value = 0) -> Node:
    """Return, element by element, the choice whose condition is the first one that is true.

    It is numpy.select.

    Parameters
    ----------
    conditions : sequence of nodes or arrays
        Bools that broadcast, at least one array.
    choices : sequence of nodes or arrays
        One array for each condition.
    default : node or array, default 0
        The value where no condition is true.

    Raises
    ------
    ShapeError
        The numbers of conditions and choices differ, or are 0.

    Examples
    --------
    ::

        >>> def f(x):
        ...     return ops.select([x < 1, x < 3], [x, 10 * x], -1)
        >>> ngd.function(f)(np.arange(5))
        array([ 0, 10, 20, -1, -1])
    """
    if len(conditions) != len(choices) or not conditions:
        raise ShapeError(
            f"select: expected a choice for each of one condition or more; got {len(conditions)} "
            f"conditions and {len(choices)} choices"
        )
    *nodes, result = align("select", *choices, default)
    for condition, node in zip(reversed(conditions), reversed(nodes), strict=True):
        result = where(condition, node, result)
    return result
