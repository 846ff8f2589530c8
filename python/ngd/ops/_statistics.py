# SPDX-License-Identifier: Apache-2.0
"""Statistics along axes: standard deviation, quantiles, weighted means and covariances."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from ..dtypes import Array, Shape, float64, int64, is_float
from ..errors import ShapeError
from ..graph.node import Node
from ..graph.registry import public
from ._arithmetic import clip
from ._casting import as_floats, cast
from ._compare import equal, not_equal, where
from ._composite import as_compute_dtype
from ._gathering import take
from ._linear_algebra import diagonal
from ._matmul import matmul
from ._operands import Axis, Value, as_axis, as_node, describe_types, local_number, normalize_axes
from ._reductions import centered, extent, l2_norm, max, mean, min, reduced_shape, sum
from ._shape import broadcast_to, expand_dims, reshape, transpose
from ._sorting import sort
from ._transcendental import sqrt

__all__ = [
    "average",
    "corrcoef",
    "count_nonzero",
    "cov",
    "median",
    "percentile",
    "ptp",
    "quantile",
    "std",
]

Quantiles: TypeAlias = float | Sequence[float] | Array
"""The type of the argument q of ops.quantile and ops.percentile: one or several numbers.

They are in [0, 1] for quantiles, and in [0, 100] for percentiles.
"""
METHODS: Final = ("linear", "lower", "higher", "nearest", "midpoint")
"""The ways to choose a quantile that is between two elements, as in NumPy."""


@public
def std(x: Value, axis: Axis = None, keepdims: bool = False, ddof: int = 0) -> Node:
    """Return the standard deviation along the axes, the square root of ops.var.

    The gradient is 0 where the result is 0.

    Parameters
    ----------
    x : node or array
        Numbers of any shape. Integers become float64.
    axis : int or sequence of int, optional
        The axis or axes to reduce. The default is all axes.
    keepdims : bool, default False
        If True, the result keeps the reduced axes, with size 1.
    ddof : int, default 0
        The divisor of the sum of squares is the number of elements minus ddof. torch.std has
        ddof=1.

    Examples
    --------
    ::

        >>> ngd.function(ops.std)(np.array([1.0, 2.0, 3.0, 4.0]))
        array(1.118)
    """
    node = as_node(x, where="std")
    node = as_floats(node)
    wide, dtype = as_compute_dtype("std", node)
    axes = normalize_axes("std", axis, wide.type)
    count = extent(wide.shape, axes)
    divisor = count - ddof
    factor = 1 / math.sqrt(divisor) if divisor > 0 else math.nan
    root = l2_norm(centered(wide, axes), axes, keepdims)
    return cast(root * local_number(factor, root), dtype)


def lines_of(where_: str, x: Value, axis: Axis) -> tuple[Node, Shape]:
    """Return (lines, axes): x with the given axes joined to one last axis, and the given axes.

    A line is a vector along the last axis of `lines`. `axes` is a tuple of sorted non-negative
    numbers.
    """
    node = as_node(x, where=where_)
    axes = normalize_axes(where_, axis, node.type)
    other_axes = [a for a in range(node.ndim) if a not in axes]
    lines = transpose(node, [*other_axes, *axes])
    shape = (*(node.shape[a] for a in other_axes), extent(node.shape, axes))
    return reshape(lines, shape), axes


@public
def quantile(
    x: Value, q: Quantiles, axis: Axis = None, keepdims: bool = False, method: str = "linear"
) -> Node:
    """Return quantiles along the axes, as numpy.quantile. The result is NaN if an element is NaN.

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
        The quantiles. The shape is that of q, followed by the remaining axes of x.

    Raises
    ------
    ValueError
        A q is outside of [0, 1], or the method is unknown.
    ShapeError
        There is no element along the axes.

    Examples
    --------
    ::

        >>> ngd.function(lambda x: ops.quantile(x, [0.25, 0.5]))(np.arange(9.0))
        array([2., 4.])
    """
    return _quantile("quantile", x, np.asarray(q, np.float64), axis, keepdims, method)


@public
def percentile(
    x: Value, q: Quantiles, axis: Axis = None, keepdims: bool = False, method: str = "linear"
) -> Node:
    """Return ops.quantile for q / 100, as numpy.percentile.

    Parameters
    ----------
    x, axis, keepdims, method
        The same as for ops.quantile.
    q : float or sequence of float
        A number in [0, 100], or several. They must be known when the graph is built.

    Examples
    --------
    ::

        >>> ngd.function(lambda x: ops.percentile(x, 90))(np.arange(11.0))
        array(9.)
    """
    return _quantile("percentile", x, np.asarray(q, np.float64) / 100, axis, keepdims, method)


@public
def median(x: Value, axis: Axis = None, keepdims: bool = False) -> Node:
    """Return the median along the axes, as numpy.median.

    For an even number of elements, it is the mean of the two middle elements.

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

        >>> ngd.function(ops.median)(np.array([3.0, 1.0, 4.0, 2.0]))
        array(2.5)
    """
    return _quantile("median", x, np.float64(0.5), axis, keepdims, "midpoint")


def _quantile(where_: str, x: Value, q: Any, axis: Axis, keepdims: bool, method: str) -> Node:
    """Return the quantiles of x for `q`, an array of numbers in [0, 1].

    The axes of `q` come first in the result.
    """
    expect_quantiles(where_, q, method)
    node, dtype = as_compute_dtype(where_, x)
    ordered, axes = sorted_lines(where_, node, axis)
    n = ordered.shape[-1]
    position = q * (n - 1)
    low, high = np.floor(position).astype(np.int64), np.ceil(position).astype(np.int64)
    if method in ("lower", "nearest", "higher"):
        index = {"lower": low, "nearest": np.rint(position).astype(np.int64), "higher": high}[
            method
        ]
        result = take(ordered, index, ordered.ndim - 1)
    else:
        fraction = np.where(high > low, 0.5, 0) if method == "midpoint" else position - low
        below = take(ordered, low, ordered.ndim - 1)
        above = take(ordered, high, ordered.ndim - 1)
        weight = as_node(np.asarray(fraction, ordered.dtype))
        result = where(weight > 0, below + (above - below) * weight, below)
    last = ordered[(..., n - 1, *(None for _ in range(q.ndim)))]  # a NaN, if the line has one
    result = where(equal(last, last), result, last)
    shape = (*q.shape, *reduced_shape(node.shape, axes, keepdims))
    return cast(quantiles_first(result, ordered.ndim - 1, shape), dtype)


def expect_quantiles(where_: str, q: Any, method: str) -> None:
    """Raise ValueError for an unknown method, or for a quantile outside of [0, 1]."""
    if method not in METHODS:
        raise ValueError(f"{where_}: expected a method among {', '.join(METHODS)}; got {method!r}")
    if not ((q >= 0) & (q <= 1)).all():
        raise ValueError(
            f"{where_}: expected q in [0, 1], or percentages in [0, 100]; got the quantile {q}. "
            "Give numbers in this range."
        )


def sorted_lines(where_: str, x: Node, axis: Axis) -> tuple[Node, Shape]:
    """Return x with the given axes joined to one last axis and sorted along it, NaN at the end.

    Also return the axes as a tuple of non-negative numbers.
    """
    lines, axes = lines_of(where_, x, axis)
    if lines.shape[-1] == 0:
        raise ShapeError(f"{where_}: expected at least one element along {axes}; got {x.type}")
    return sort(lines), axes


def quantiles_first(values: Node, num_kept: int, shape: Shape) -> Node:
    """Move the axes of the quantiles to the front, and reshape the result to `shape`.

    `values` has `num_kept` axes of x that are not reduced, followed by the axes of the argument q.
    `shape` is the shape of q, followed by the shape of x after the reduction. With keepdims=True,
    this shape has axes of size 1, which `values` does not have.
    """
    return reshape(transpose(values, [*range(num_kept, values.ndim), *range(num_kept)]), shape)


@public
def ptp(x: Value, axis: Axis = None, keepdims: bool = False) -> Node:
    """Return the largest element minus the smallest element, as numpy.ptp.

    Parameters
    ----------
    x : node or array
        Numbers of any shape, at least one element along the axes.
    axis : int or sequence of int, optional
        The axis or axes to reduce. The default is all axes.
    keepdims : bool, default False
        If True, the result keeps the reduced axes, with size 1.

    Examples
    --------
    ::

        >>> ngd.function(ops.ptp)(np.array([3, 1, 4]))
        array(3)
    """
    x = as_node(x, where="ptp")
    return max(x, axis, keepdims) - min(x, axis, keepdims)


@public
def count_nonzero(x: Value, axis: Axis = None, keepdims: bool = False) -> Node:
    """Return the number of elements that are not 0, int64. NaN is not 0.

    Parameters
    ----------
    x : node or array
        Values of any shape and dtype.
    axis : int or sequence of int, optional
        The axis or axes to reduce. The default is all axes.
    keepdims : bool, default False
        If True, the result keeps the reduced axes, with size 1.

    Examples
    --------
    ::

        >>> ngd.function(ops.count_nonzero)(np.array([3, 0, 4]))
        array(2)
    """
    x = as_node(x, where="count_nonzero")
    return sum(cast(not_equal(x, 0), int64), axis, keepdims)


def _weights_along(x: Node, weights: Node, axis: Axis) -> Node:
    """Broadcast a vector of weights, one per index along `axis`, to the shape of x."""
    if axis is None or not isinstance(axis, (int, np.integer)) or weights.ndim != 1:
        raise ShapeError(
            f"average: expected weights of the shape of x, or of the length of one axis; got "
            f"{describe_types(x.type, weights.type)}"
        )
    index = as_axis("average", axis, x.ndim, x.type)
    if weights.shape[0] != x.shape[index]:
        raise ShapeError(
            f"average: expected {x.shape[index]} weights for axis {axis}; got {weights.type}. "
            "Give one per element of the axis."
        )
    shape = [-1 if a == index else 1 for a in range(x.ndim)]
    return broadcast_to(reshape(weights, shape), x.shape)


@public
def average(
    x: Value, axis: Axis = None, weights: Value | None = None, keepdims: bool = False
) -> Node:
    """Return the weighted mean, sum(x * weights) / sum(weights), as numpy.average.

    Parameters
    ----------
    x : node or array
        Numbers of any shape.
    axis : int or sequence of int, optional
        The axis or axes to reduce. The default is all axes.
    weights : node or array, optional
        The weights, an array of the shape of x. If `axis` is an int, they may also be a vector
        with one weight per index along this axis. By default all weights are 1.
    keepdims : bool, default False
        If True, the result keeps the reduced axes, with size 1.

    Raises
    ------
    ShapeError
        The weights have another shape.

    Examples
    --------
    ::

        >>> ngd.function(lambda x: ops.average(x, weights=[1.0, 3.0]))(np.array([2.0, 4.0]))
        array(3.5)
    """
    x = as_node(x, where="average")
    if weights is None:
        return mean(x, axis, keepdims)
    factors = as_node(weights, like=x, where="average")
    if factors.shape != x.shape:
        factors = _weights_along(x, factors, axis)
    product = x * factors
    wide, dtype = as_compute_dtype("average", product)
    if not is_float(product.dtype):
        wide, dtype = cast(wide, float64), float64
    total = sum(cast(factors, wide.dtype), axis, keepdims)
    return cast(sum(wide, axis, keepdims) / total, dtype)


@public
def cov(x: Value, rowvar: bool = True, ddof: int = 1) -> Node:
    """Return the covariance matrix of variables, as numpy.cov.

    Parameters
    ----------
    x : node or array
        A matrix with one row per variable and one column per observation, or a vector: one
        variable.
    rowvar : bool, default True
        If False, each column is a variable and each row an observation.
    ddof : int, default 1
        The divisor is the number of observations minus ddof.

    Raises
    ------
    ShapeError
        x has no axis, or more than two axes.

    Examples
    --------
    ::

        >>> ngd.function(ops.cov)(np.array([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]]))
        array([[ 1., -1.],
               [-1.,  1.]])
    """
    node = as_node(x, where="cov")
    if node.ndim not in (1, 2):
        raise ShapeError(f"cov: expected one axis or two; got {node.type}")
    node = as_floats(node)
    wide, dtype = as_compute_dtype("cov", node)
    is_vector = node.ndim == 1
    rows = expand_dims(wide, 0) if is_vector else wide if rowvar else transpose(wide)
    distances = centered(rows, (1,))
    divisor = rows.shape[1] - ddof
    factor = local_number(1 / divisor if divisor > 0 else math.nan, wide)
    product = matmul(distances, transpose(distances)) * factor
    return cast(reshape(product, ()) if product.shape == (1, 1) else product, dtype)


@public
def corrcoef(x: Value, rowvar: bool = True) -> Node:
    """Return the matrix of correlation coefficients, in [-1, 1], as numpy.corrcoef.

    Parameters
    ----------
    x, rowvar
        The same as for ops.cov.

    Examples
    --------
    ::

        >>> ngd.function(ops.corrcoef)(np.array([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]]))
        array([[ 1., -1.],
               [-1.,  1.]])
    """
    node, dtype = as_compute_dtype("corrcoef", as_node(x, where="corrcoef"))
    products = cov(node, rowvar)
    if not products.ndim:
        return cast(products / products, dtype)
    deviation = sqrt(diagonal(products))
    return cast(clip(products / expand_dims(deviation, 1) / deviation, -1.0, 1.0), dtype)
