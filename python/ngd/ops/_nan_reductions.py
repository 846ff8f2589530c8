# SPDX-License-Identifier: Apache-2.0
"""Reductions and scans of the elements that are not NaN."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..dtypes import DType, float64, int64, is_float
from ..graph.node import Node
from ..graph.registry import public
from . import _arithmetic as arithmetic
from . import _cumulative as cumulative
from . import _reductions as reductions
from ._along_axis import take_along_axis
from ._casting import as_floats, cast
from ._compare import equal, where
from ._composite import widened
from ._numeric import isnan
from ._operands import Axis, Value, as_node, normalize_axes
from ._reductions import l2_norm, prod, reduced_shape, sum
from ._statistics import Quantiles, expect_quantiles, quantiles_first, sorted_lines
from ._transcendental import sqrt

__all__ = [
    "nanargmax",
    "nanargmin",
    "nancumprod",
    "nancumsum",
    "nanmax",
    "nanmean",
    "nanmedian",
    "nanmin",
    "nanpercentile",
    "nanprod",
    "nanquantile",
    "nanstd",
    "nansum",
    "nanvar",
]


def _without_nan(where_: str, x: Value, filling: int = 0) -> tuple[Node, Node]:
    """Return x with a filling for NaN, and which elements are numbers."""
    node = as_node(x, where=where_)
    numbers = equal(node, node)
    return where(numbers, node, filling), numbers


@public
def nansum(x: Value, axis: Axis = None, keepdims: bool = False) -> Node:
    """Return the sum of the elements that are not NaN, or 0 if all are NaN.

    Parameters
    ----------
    x
        Numbers of any shape.
    axis
        One axis, several, or None for all.
    keepdims
        If True, the reduced axes stay with extent 1.

    Examples
    --------
    ::

        >>> ngd.function(ops.nansum)(np.array([1.0, np.nan, 2.0]))
        array(3.)
    """
    return sum(_without_nan("nansum", x)[0], axis, keepdims)


@public
def nanmean(x: Value, axis: Axis = None, keepdims: bool = False) -> Node:
    """Return the mean of the elements that are not NaN, or NaN if all are NaN.

    Parameters
    ----------
    x
        Numbers of any shape. Integers become float64.
    axis
        One axis, several, or None for all.
    keepdims
        If True, the reduced axes stay with extent 1.

    Examples
    --------
    ::

        >>> ngd.function(ops.nanmean)(np.array([1.0, np.nan, 2.0]))
        array(1.5)
    """
    node = as_node(x, where="nanmean")
    node = as_floats(node)
    wide, dtype = widened("nanmean", node)
    values, numbers = _without_nan("nanmean", wide)
    count = sum(cast(numbers, wide.dtype), axis, keepdims)
    return cast(sum(values, axis, keepdims) / count, dtype)


@public
def nanprod(x: Value, axis: Axis = None, keepdims: bool = False) -> Node:
    """Return the product of the elements that are not NaN, or 1 if all are NaN.

    Parameters
    ----------
    x
        Numbers of any shape.
    axis
        One axis, several, or None for all.
    keepdims
        If True, the reduced axes stay with extent 1.

    Examples
    --------
    ::

        >>> ngd.function(ops.nanprod)(np.array([2.0, np.nan, 3.0]))
        array(6.)
    """
    return prod(_without_nan("nanprod", x, 1)[0], axis, keepdims)


@public
def nanmax(x: Value, axis: Axis = None, keepdims: bool = False) -> Node:
    """Return the largest element that is not NaN, or NaN if all are NaN.

    Parameters
    ----------
    x
        Numbers of any shape.
    axis
        One axis, several, or None for all.
    keepdims
        If True, the reduced axes stay with extent 1.

    Examples
    --------
    ::

        >>> ngd.function(ops.nanmax)(np.array([1.0, np.nan, 3.0]))
        array(3.)
    """
    return _nan_extremum("nanmax", reductions.max, -math.inf, x, axis, keepdims)


@public
def nanmin(x: Value, axis: Axis = None, keepdims: bool = False) -> Node:
    """Return the smallest element that is not NaN, or NaN if all are NaN.

    Parameters
    ----------
    x
        Numbers of any shape.
    axis
        One axis, several, or None for all.
    keepdims
        If True, the reduced axes stay with extent 1.

    Examples
    --------
    ::

        >>> ngd.function(ops.nanmin)(np.array([1.0, np.nan, 3.0]))
        array(1.)
    """
    return _nan_extremum("nanmin", reductions.min, math.inf, x, axis, keepdims)


def _nan_extremum(
    where_: str, reduce: Callable[..., Node], filling: float, x: Value, axis: Axis, keepdims: bool
) -> Node:
    node = as_node(x, where=where_)
    if not is_float(node.dtype):
        return reduce(node, axis, keepdims)
    is_missing = isnan(node)
    found = reduce(where(is_missing, filling, node), axis, keepdims)
    return where(reductions.all(is_missing, axis, keepdims), math.nan, found)


@public
def nanargmax(x: Value, axis: int | None = None, keepdims: bool = False) -> Node:
    """Return the index of the largest element that is not NaN, int64, or -1 if all are NaN.

    Parameters
    ----------
    x
        Numbers of any shape.
    axis
        One axis; None counts along the flattened tensor.
    keepdims
        If True, the reduced axes stay with extent 1.

    Examples
    --------
    ::

        >>> ngd.function(ops.nanargmax)(np.array([np.nan, 1.0, 3.0]))
        array(2)
    """
    return _nan_index("nanargmax", reductions.argmax, -math.inf, x, axis, keepdims)


@public
def nanargmin(x: Value, axis: int | None = None, keepdims: bool = False) -> Node:
    """Return the index of the smallest element that is not NaN, int64, or -1 if all are NaN.

    Parameters
    ----------
    x
        Numbers of any shape.
    axis
        One axis; None counts along the flattened tensor.
    keepdims
        If True, the reduced axes stay with extent 1.

    Examples
    --------
    ::

        >>> ngd.function(ops.nanargmin)(np.array([np.nan, 1.0, 3.0]))
        array(1)
    """
    return _nan_index("nanargmin", reductions.argmin, math.inf, x, axis, keepdims)


def _nan_index(
    where_: str,
    search: Callable[..., Node],
    filling: float,
    x: Value,
    axis: int | None,
    keepdims: bool,
) -> Node:
    node = as_node(x, where=where_)
    if not is_float(node.dtype):
        return search(node, axis, keepdims)
    is_missing = isnan(node)
    found = search(where(is_missing, filling, node), axis, keepdims)
    return where(reductions.all(is_missing, axis, keepdims), -1, found)


@public
def nanvar(x: Value, axis: Axis = None, keepdims: bool = False, ddof: int = 0) -> Node:
    """Return the variance of the elements that are not NaN, as numpy.nanvar.

    Parameters
    ----------
    x
        Numbers of any shape. Integers become float64.
    axis
        One axis, several, or None for all.
    keepdims
        If True, the reduced axes stay with extent 1.
    ddof
        The sum of squares is divided by the number of these elements minus ddof.

    Returns
    -------
    Node
        NaN where there are not more than ddof of these elements.

    Examples
    --------
    ::

        >>> ngd.function(ops.nanvar)(np.array([1.0, np.nan, 3.0]))
        array(1.)
    """
    distance, divisor, dtype = _distances("nanvar", x, axis, keepdims, ddof)
    squares = sum(arithmetic.square(distance), axis, keepdims)
    return cast(where(divisor > 0, squares / arithmetic.maximum(divisor, 1), math.nan), dtype)


@public
def nanstd(x: Value, axis: Axis = None, keepdims: bool = False, ddof: int = 0) -> Node:
    """Return the standard deviation of the elements that are not NaN, as numpy.nanstd.

    Parameters
    ----------
    x
        Numbers of any shape. Integers become float64.
    axis
        One axis, several, or None for all.
    keepdims
        If True, the reduced axes stay with extent 1.
    ddof
        The sum of squares is divided by the number of these elements minus ddof.

    Returns
    -------
    Node
        NaN where there are not more than ddof of these elements. The gradient is 0 where the
        result is 0.

    Examples
    --------
    ::

        >>> ngd.function(ops.nanstd)(np.array([1.0, np.nan, 3.0]))
        array(1.)
    """
    distance, divisor, dtype = _distances("nanstd", x, axis, keepdims, ddof)
    axes = normalize_axes("nanstd", axis, distance.type)
    root = l2_norm(distance, axes, keepdims) / sqrt(arithmetic.maximum(divisor, 1))
    return cast(where(divisor > 0, root, math.nan), dtype)


def _distances(
    where_: str, x: Value, axis: Axis, keepdims: bool, ddof: int
) -> tuple[Node, Node, DType]:
    """Return the distances from the mean, with 0 for NaN, the divisors, and the result's dtype."""
    node = as_node(x, where=where_)
    wide, dtype = widened(where_, as_floats(node))
    values, numbers = _without_nan(where_, wide)
    count = sum(cast(numbers, wide.dtype), axis, True)
    least = arithmetic.maximum(count, 1)
    distance = where(numbers, wide - sum(values, axis, True) / least, 0)
    # a second time, because the first mean is rounded
    distance = where(numbers, distance - sum(distance, axis, True) / least, 0)
    return distance, sum(cast(numbers, wide.dtype), axis, keepdims) - ddof, dtype


@public
def nanquantile(
    x: Value, q: Quantiles, axis: Axis = None, keepdims: bool = False, method: str = "linear"
) -> Node:
    """Return quantiles of the elements that are not NaN, or NaN if all are NaN.

    Parameters
    ----------
    x, axis, keepdims, method
        As in ops.quantile.
    q
        A number in [0, 1], or several, which are known when the graph is built.

    Returns
    -------
    Node
        The axes of q first, then those of x that are left.

    Examples
    --------
    ::

        >>> ngd.function(lambda x: ops.nanquantile(x, 0.5))(np.array([1.0, np.nan, 2.0]))
        array(1.5)
    """
    return _nan_quantile("nanquantile", x, np.asarray(q, np.float64), axis, keepdims, method)


@public
def nanpercentile(
    x: Value, q: Quantiles, axis: Axis = None, keepdims: bool = False, method: str = "linear"
) -> Node:
    """Return percentiles of the elements that are not NaN, or NaN if all are NaN.

    Parameters
    ----------
    x, axis, keepdims, method
        As in ops.quantile.
    q
        A number in [0, 100], or several, which are known when the graph is built.

    Returns
    -------
    Node
        The axes of q first, then those of x that are left.

    Examples
    --------
    ::

        >>> ngd.function(lambda x: ops.nanpercentile(x, 50))(np.array([1.0, np.nan, 2.0]))
        array(1.5)
    """
    return _nan_quantile(
        "nanpercentile", x, np.asarray(q, np.float64) / 100, axis, keepdims, method
    )


@public
def nanmedian(x: Value, axis: Axis = None, keepdims: bool = False) -> Node:
    """Return the median of the elements that are not NaN, or NaN if all are NaN.

    Parameters
    ----------
    x
        Numbers of any shape. Integers become floats.
    axis
        One axis, several, or None for all.
    keepdims
        If True, the reduced axes stay with extent 1.

    Examples
    --------
    ::

        >>> ngd.function(ops.nanmedian)(np.array([1.0, np.nan, 3.0, 2.0]))
        array(2.)
    """
    return _nan_quantile("nanmedian", x, np.float64(0.5), axis, keepdims, "midpoint")


def _nan_quantile(where_: str, x: Value, q: Any, axis: Axis, keepdims: bool, method: str) -> Node:
    """Interpolate between the sorted elements; their number differs from line to line."""
    expect_quantiles(where_, q, method)
    node, dtype = widened(where_, x)
    ordered, axes = sorted_lines(where_, node, axis)
    numbers = sum(cast(equal(ordered, ordered), float64), -1, True)
    place = arithmetic.maximum(numbers - 1, 0) * q.reshape(-1)
    low, high = arithmetic.floor(place), arithmetic.ceil(place)

    def at(index: Node) -> Node:
        return take_along_axis(ordered, cast(index, int64), -1)

    if method in ("lower", "nearest", "higher"):
        found = at({"lower": low, "nearest": arithmetic.round(place), "higher": high}[method])
    else:
        part = cast(high > low, float64) * 0.5 if method == "midpoint" else place - low
        weight, below = cast(part, ordered.dtype), at(low)
        found = where(weight > 0, below + (at(high) - below) * weight, below)
    shape = (*q.shape, *reduced_shape(node.shape, axes, keepdims))
    return cast(quantiles_first(found, ordered.ndim - 1, shape), dtype)


@public
def nancumsum(x: Value, axis: int | None = None) -> Node:
    """Return the sum of each element and all before it, with 0 for NaN.

    Parameters
    ----------
    x
        Numbers of any shape. Bools and small integers become int64 or uint64.
    axis
        An axis; None: the flattened tensor.

    Examples
    --------
    ::

        >>> ngd.function(ops.nancumsum)(np.array([1.0, np.nan, 2.0]))
        array([1., 1., 3.])
    """
    return cumulative.cumsum(_without_nan("nancumsum", x, 0)[0], axis)


@public
def nancumprod(x: Value, axis: int | None = None) -> Node:
    """Return the product of each element and all before it, with 1 for NaN.

    Parameters
    ----------
    x
        Numbers of any shape. Bools and small integers become int64 or uint64.
    axis
        An axis; None: the flattened tensor.

    Examples
    --------
    ::

        >>> ngd.function(ops.nancumprod)(np.array([1.0, np.nan, 2.0]))
        array([1., 1., 2.])
    """
    return cumulative.cumprod(_without_nan("nancumprod", x, 1)[0], axis)
