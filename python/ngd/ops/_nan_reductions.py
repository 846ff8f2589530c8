# SPDX-License-Identifier: Apache-2.0
"""Reductions and cumulative ops that ignore NaN."""

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
from ._composite import as_compute_dtype
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


def _without_nan(where_: str, x: Value, fill_value: int = 0) -> tuple[Node, Node]:
    """Return x with NaN replaced by `fill_value`, and a mask that is True where x is not NaN."""
    node = as_node(x, where=where_)
    is_number = equal(node, node)
    return where(is_number, node, fill_value), is_number


@public
def nansum(x: Value, axis: Axis = None, keepdims: bool = False) -> Node:
    """Return the sum of the elements that are not NaN, or 0 if all are NaN.

    Parameters
    ----------
    x : node or array
        Numbers of any shape.
    axis : int or sequence of int, optional
        The axis or axes to reduce. The default is all axes.
    keepdims : bool, default False
        If True, the result keeps the reduced axes, with size 1.

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
    x : node or array
        Numbers of any shape. Integers become float64.
    axis : int or sequence of int, optional
        The axis or axes to reduce. The default is all axes.
    keepdims : bool, default False
        If True, the result keeps the reduced axes, with size 1.

    Examples
    --------
    ::

        >>> ngd.function(ops.nanmean)(np.array([1.0, np.nan, 2.0]))
        array(1.5)
    """
    node = as_node(x, where="nanmean")
    node = as_floats(node)
    wide, dtype = as_compute_dtype("nanmean", node)
    values, is_number = _without_nan("nanmean", wide)
    count = sum(cast(is_number, wide.dtype), axis, keepdims)
    return cast(sum(values, axis, keepdims) / count, dtype)


@public
def nanprod(x: Value, axis: Axis = None, keepdims: bool = False) -> Node:
    """Return the product of the elements that are not NaN, or 1 if all are NaN.

    Parameters
    ----------
    x : node or array
        Numbers of any shape.
    axis : int or sequence of int, optional
        The axis or axes to reduce. The default is all axes.
    keepdims : bool, default False
        If True, the result keeps the reduced axes, with size 1.

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
    x : node or array
        Numbers of any shape.
    axis : int or sequence of int, optional
        The axis or axes to reduce. The default is all axes.
    keepdims : bool, default False
        If True, the result keeps the reduced axes, with size 1.

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
    x : node or array
        Numbers of any shape.
    axis : int or sequence of int, optional
        The axis or axes to reduce. The default is all axes.
    keepdims : bool, default False
        If True, the result keeps the reduced axes, with size 1.

    Examples
    --------
    ::

        >>> ngd.function(ops.nanmin)(np.array([1.0, np.nan, 3.0]))
        array(1.)
    """
    return _nan_extremum("nanmin", reductions.min, math.inf, x, axis, keepdims)


def _nan_extremum(
    where_: str,
    reduce: Callable[..., Node],
    fill_value: float,
    x: Value,
    axis: Axis,
    keepdims: bool,
) -> Node:
    """Return the maximum or minimum of the elements that are not NaN, or NaN if all are NaN.

    `reduce` is the op: max or min. `fill_value` replaces NaN before the reduction.
    """
    node = as_node(x, where=where_)
    if not is_float(node.dtype):
        return reduce(node, axis, keepdims)
    is_missing = isnan(node)
    result = reduce(where(is_missing, fill_value, node), axis, keepdims)
    return where(reductions.all(is_missing, axis, keepdims), math.nan, result)


@public
def nanargmax(x: Value, axis: int | None = None, keepdims: bool = False) -> Node:
    """Return the index of the largest element that is not NaN, an int64, or -1 if all are NaN.

    Parameters
    ----------
    x : node or array
        Numbers of any shape.
    axis : int, optional
        The axis to reduce. The default returns an index into the flattened array.
    keepdims : bool, default False
        If True, the result keeps the reduced axes, with size 1.

    Examples
    --------
    ::

        >>> ngd.function(ops.nanargmax)(np.array([np.nan, 1.0, 3.0]))
        array(2)
    """
    return _nan_index("nanargmax", reductions.argmax, -math.inf, x, axis, keepdims)


@public
def nanargmin(x: Value, axis: int | None = None, keepdims: bool = False) -> Node:
    """Return the index of the smallest element that is not NaN, an int64, or -1 if all are NaN.

    Parameters
    ----------
    x : node or array
        Numbers of any shape.
    axis : int, optional
        The axis to reduce. The default returns an index into the flattened array.
    keepdims : bool, default False
        If True, the result keeps the reduced axes, with size 1.

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
    fill_value: float,
    x: Value,
    axis: int | None,
    keepdims: bool,
) -> Node:
    """Return the index of the extremum of the elements that are not NaN, or -1 if all are NaN.

    `search` is argmax or argmin.
    """
    node = as_node(x, where=where_)
    if not is_float(node.dtype):
        return search(node, axis, keepdims)
    is_missing = isnan(node)
    result = search(where(is_missing, fill_value, node), axis, keepdims)
    return where(reductions.all(is_missing, axis, keepdims), -1, result)


@public
def nanvar(x: Value, axis: Axis = None, keepdims: bool = False, ddof: int = 0) -> Node:
    """Return the variance of the elements that are not NaN, as numpy.nanvar.

    Parameters
    ----------
    x : node or array
        Numbers of any shape. Integers become float64.
    axis : int or sequence of int, optional
        The axis or axes to reduce. The default is all axes.
    keepdims : bool, default False
        If True, the result keeps the reduced axes, with size 1.
    ddof : int, default 0
        The divisor of the sum of squares is the number of elements that are not NaN, minus ddof.

    Returns
    -------
    Node
        NaN where the number of elements that are not NaN is at most ddof.

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
    x : node or array
        Numbers of any shape. Integers become float64.
    axis : int or sequence of int, optional
        The axis or axes to reduce. The default is all axes.
    keepdims : bool, default False
        If True, the result keeps the reduced axes, with size 1.
    ddof : int, default 0
        The divisor of the sum of squares is the number of elements that are not NaN, minus ddof.

    Returns
    -------
    Node
        NaN where the number of elements that are not NaN is at most ddof. The gradient is 0 where
        the result is 0.

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
    """Return x minus its mean, the divisor of the variance, and the dtype of the variance.

    The mean is that of the elements that are not NaN. Where x is NaN, the first result is 0. The
    divisor is the number of elements that are not NaN, minus ddof. The first two results have the
    dtype in which the variance is computed, and the caller casts the variance to the third one.
    """
    node = as_node(x, where=where_)
    wide, dtype = as_compute_dtype(where_, as_floats(node))
    values, is_number = _without_nan(where_, wide)
    count = sum(cast(is_number, wide.dtype), axis, True)
    safe_count = arithmetic.maximum(count, 1)
    distance = where(is_number, wide - sum(values, axis, True) / safe_count, 0)
    # Subtract the mean a second time, because the first mean is rounded.
    distance = where(is_number, distance - sum(distance, axis, True) / safe_count, 0)
    return distance, sum(cast(is_number, wide.dtype), axis, keepdims) - ddof, dtype


@public
def nanquantile(
    x: Value, q: Quantiles, axis: Axis = None, keepdims: bool = False, method: str = "linear"
) -> Node:
    """Return quantiles of the elements that are not NaN, or NaN if all are NaN.

    Parameters
    ----------
    x : node or array
        Numbers of any shape. Integers become floats.
    q : float or sequence of float
        A number in [0, 1], or several. They must be known when the graph is built.
    axis : int or sequence of int, optional
        The axis or axes to reduce. The default is all axes.
    keepdims : bool, default False
        If True, the result keeps the reduced axes, with size 1.
    method : str, default "linear"
        The value for a position between two elements. "linear" interpolates, and "midpoint" takes
        their mean. "lower", "higher" and "nearest" take one of them; if both are equally near,
        "nearest" takes the one with the even index.

    Returns
    -------
    Node
        The axes of q, followed by the remaining axes of x.

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
    x : node or array
        Numbers of any shape. Integers become floats.
    q : float or sequence of float
        A number in [0, 100], or several. They must be known when the graph is built.
    axis : int or sequence of int, optional
        The axis or axes to reduce. The default is all axes.
    keepdims : bool, default False
        If True, the result keeps the reduced axes, with size 1.
    method : str, default "linear"
        The value for a position between two elements. "linear" interpolates, and "midpoint" takes
        their mean. "lower", "higher" and "nearest" take one of them; if both are equally near,
        "nearest" takes the one with the even index.

    Returns
    -------
    Node
        The axes of q, followed by the remaining axes of x.

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
    x : node or array
        Numbers of any shape. Integers become floats.
    axis : int or sequence of int, optional
        The axis or axes to reduce. The default is all axes.
    keepdims : bool, default False
        If True, the result keeps the reduced axes, with size 1.

    Examples
    --------
    ::

        >>> ngd.function(ops.nanmedian)(np.array([1.0, np.nan, 3.0, 2.0]))
        array(2.)
    """
    return _nan_quantile("nanmedian", x, np.float64(0.5), axis, keepdims, "midpoint")


def _nan_quantile(where_: str, x: Value, q: Any, axis: Axis, keepdims: bool, method: str) -> Node:
    """Return quantiles of the elements that are not NaN.

    All elements along the axes in `axis` are sorted, with NaN at the end. If n of them are not NaN,
    the quantile q is the element at position q * (n - 1). If this position is between two elements,
    `method` determines the result, such as "linear" for interpolation.
    """
    expect_quantiles(where_, q, method)
    node, dtype = as_compute_dtype(where_, x)
    ordered, axes = sorted_lines(where_, node, axis)
    count = sum(cast(equal(ordered, ordered), float64), -1, True)
    position = arithmetic.maximum(count - 1, 0) * q.reshape(-1)
    low, high = arithmetic.floor(position), arithmetic.ceil(position)

    def take_at(index: Node) -> Node:
        return take_along_axis(ordered, cast(index, int64), -1)

    if method in ("lower", "nearest", "higher"):
        result = take_at(
            {"lower": low, "nearest": arithmetic.round(position), "higher": high}[method]
        )
    else:
        fraction = cast(high > low, float64) * 0.5 if method == "midpoint" else position - low
        weight, below = cast(fraction, ordered.dtype), take_at(low)
        result = where(weight > 0, below + (take_at(high) - below) * weight, below)
    shape = (*q.shape, *reduced_shape(node.shape, axes, keepdims))
    return cast(quantiles_first(result, ordered.ndim - 1, shape), dtype)


@public
def nancumsum(x: Value, axis: int | None = None) -> Node:
    """Return the cumulative sum along an axis, with NaN counted as 0, as numpy.nancumsum.

    Parameters
    ----------
    x : node or array
        Numbers of any shape. Bools and small integers become int64 or uint64.
    axis : int, optional
        The axis. The default accumulates over the flattened array.

    Examples
    --------
    ::

        >>> ngd.function(ops.nancumsum)(np.array([1.0, np.nan, 2.0]))
        array([1., 1., 3.])
    """
    return cumulative.cumsum(_without_nan("nancumsum", x, 0)[0], axis)


@public
def nancumprod(x: Value, axis: int | None = None) -> Node:
    """Return the cumulative product along an axis, with NaN counted as 1, as numpy.nancumprod.

    Parameters
    ----------
    x : node or array
        Numbers of any shape. Bools and small integers become int64 or uint64.
    axis : int, optional
        The axis. The default accumulates over the flattened array.

    Examples
    --------
    ::

        >>> ngd.function(ops.nancumprod)(np.array([1.0, np.nan, 2.0]))
        array([1., 1., 2.])
    """
    return cumulative.cumprod(_without_nan("nancumprod", x, 1)[0], axis)
