# SPDX-License-Identifier: Apache-2.0
"""Search in sorted arrays, counts of values, and interpolation between points."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..dtypes import bool_, int64, is_float
from ..errors import ShapeError
from ..graph.node import Node
from ..graph.registry import public
from ._arithmetic import clip
from ._casting import cast
from ._compare import equal, logical_and, logical_not, logical_or, where
from ._composite import as_compute_dtype
from ._creation import full, linspace
from ._elementwise import align
from ._gathering import as_indices, scatter_add, take
from ._operands import Value, as_node, describe_types, float_of
from ._reductions import any, max, min, sum
from ._shape import broadcast_to, expand_dims, reshape
from ._sorting import argsort, sort

__all__ = [
    "argpartition",
    "bincount",
    "digitize",
    "histogram",
    "interp",
    "isin",
    "partition",
    "searchsorted",
]


def expect_line(where_: str, name: str, x: Node) -> Node:
    """Return x as it is; ShapeError unless it has exactly one axis."""
    if x.ndim != 1:
        raise ShapeError(
            f"{where_}: expected {name} of one axis; got {x.type}. Reshape it: x.reshape(-1)."
        )
    return x


@public
def searchsorted(
    sorted: Value, values: Value, side: str = "left"
) -> Node:  # long because each argument is described
    """Return the indices where values would be inserted into a sorted array, as numpy.searchsorted.

    Parameters
    ----------
    sorted : node or array
        n numbers along one axis, in ascending order. The order is not checked.
    values : node or array
        Numbers of any shape.
    side : str, default "left"
        "left" returns the index before equal elements, and "right" the index after them.

    Returns
    -------
    Node
        Indices in [0, n], int64, of the shape of the values.

    Raises
    ------
    ValueError
        The side is unknown.

    Notes
    -----
    The op is a binary search with log2(n) iterations. NaN counts as the largest number.

    Examples
    --------
    ::

        >>> ngd.function(lambda v: ops.searchsorted([1, 3, 5], v))(np.array([0, 3, 6]))
        array([0, 1, 3])
    """
    if side not in ("left", "right"):
        raise ValueError(f'searchsorted: expected side "left" or "right"; got {side!r}')
    keys, queries = align("searchsorted", sorted, values)
    expect_line("searchsorted", "the sorted tensor", keys)
    n = keys.shape[0]
    count = full(queries.shape, 0, int64)
    step = 1 << max_bit(n)
    while step and n:
        candidate = count + step
        element = take(keys, clip(candidate - 1, 0, n - 1))
        is_before = element < queries if side == "left" else element <= queries
        if is_float(keys.dtype):
            is_nan = logical_not(equal(queries, queries))
            if side == "left":
                is_nan = logical_and(is_nan, equal(element, element))
            is_before = logical_or(is_before, is_nan)
        count = where(logical_and(is_before, candidate <= n), candidate, count)
        step //= 2
    return count


@public
def isin(x: Value, values: Value, invert: bool = False) -> Node:
    """Return True where an element of x is among some values, as numpy.isin.

    Parameters
    ----------
    x : node or array
        An array of any shape.
    values : node or array
        An array of any shape. The time grows with x.size * values.size, because each element of x
        is compared with each value.
    invert : bool, default False
        If True, return True where an element is not among the values.

    Examples
    --------
    ::

        >>> ngd.function(lambda x: ops.isin(x, [1, 3]))(np.array([1, 2, 3]))
        array([ True, False,  True])
    """
    node, candidates = (as_node(value, where="isin") for value in (x, values))
    is_found = any(equal(expand_dims(node, -1), reshape(candidates, -1)), -1)
    return logical_not(is_found) if invert else is_found


def max_bit(n: int) -> int:
    """Return the position of the highest bit of n that is set: 0 for n = 0 or 1, 3 for n = 8."""
    return n.bit_length() - 1 if n else 0


@public
def digitize(x: Value, bins: Value, right: bool = False) -> Node:
    """Return the number of the bin that each element belongs to, int64, as numpy.digitize.

    Parameters
    ----------
    x : node or array
        Numbers of any shape.
    bins : node or array
        The edges of the bins, a 1-D array. They are in ascending order. A `bins` that is not a node
        may also be in descending order.
    right : bool, default False
        If True, a bin contains its right edge instead of its left edge.

    Returns
    -------
    Node
        Numbers in [0, len(bins)]: 0 before the first edge, and len(bins) after the last edge.

    Examples
    --------
    ::

        >>> ngd.function(lambda x: ops.digitize(x, [1.0, 2.0]))(np.array([0.5, 1.0, 7.0]))
        array([0, 1, 2])
    """
    side = "left" if right else "right"
    if not isinstance(bins, Node):
        edges = np.asarray(bins)
        if edges.ndim == 1 and len(edges) > 1 and edges[0] > edges[-1]:
            indices = searchsorted(edges[::-1], x, side)
            return len(edges) - indices
    return searchsorted(bins, x, side)


@public
def bincount(x: Value, length: int, weights: Value | None = None) -> Node:
    """Return the number of occurrences of 0, 1, ..., length - 1, as numpy.bincount.

    Parameters
    ----------
    x : node or array
        Integers in [0, length), along one axis.
    length : int
        The number of results. NumPy takes it from the largest element, but shapes are known when
        the graph is built.
    weights : node or array, optional
        The number that each element adds to its count. The default is 1.

    Returns
    -------
    Node
        [length], int64, or of the dtype of the weights.

    Raises
    ------
    OutOfRangeError
        An element is outside of [0, length). The error is raised at run time, not when the graph
        is built.

    Examples
    --------
    ::

        >>> ngd.function(lambda x: ops.bincount(x, 4))(np.array([1, 3, 1]))
        array([0, 2, 0, 1])
    """
    indices = expect_line("bincount", "integers", as_indices(x, "bincount"))
    amounts = (
        full(indices.shape, 1, int64) if weights is None else as_node(weights, where="bincount")
    )
    if amounts.shape != indices.shape:
        raise ShapeError(
            "bincount: expected a weight for each element; got "
            f"{describe_types(indices.type, amounts.type)}. Give one per element."
        )
    amounts = cast(amounts, int64) if amounts.dtype == bool_ else amounts
    attrs = {"axis": 0, "size": int(length), "caller": "bincount", "negative": False}
    return scatter_add.node((amounts, indices), attrs)


def _edges(line: Node, bins: Any, span: tuple[float, float] | None) -> tuple[Node, Node]:
    """Return (elements, edges of the bins) of a histogram of `line`.

    `bins` is the number of bins of equal width, or the edges. If it is a number, the returned
    elements are `line`, cast to the float dtype in which the edges are computed. If it has the
    edges, `line` is returned unchanged. `span` is the range of the bins, or None for the range of
    the elements; it is unused if `bins` has the edges.
    """
    if not isinstance(bins, (int, np.integer)):
        return line, expect_line("histogram", "edges", as_node(bins, where="histogram"))
    wide, _ = as_compute_dtype("histogram", line)
    if span is not None:
        return wide, linspace(float(span[0]), float(span[1]), int(bins) + 1, dtype=wide.dtype)
    low, high = min(wide), max(wide)
    half = where(equal(low, high), 0.5 + 0 * low, 0)
    return wide, linspace(low - half, high + half, int(bins) + 1, dtype=wide.dtype)


def _sum_per_bin(line: Node, edges: Node, weights: Node) -> Node:
    """Return the sum of the weights of the elements in each bin.

    A bin contains its left edge, and the last bin also its right edge. Elements outside of all bins
    are left out.
    """
    count = edges.shape[0] - 1
    is_inside = logical_and(line >= edges[0], line <= edges[count])
    bins = clip(searchsorted(edges, line, "right") - 1, 0, count - 1)
    return bincount(bins, count, where(is_inside, weights, 0))


def _density(counts: Node, edges: Node) -> Node:
    """Return the density of each bin: its fraction of all counts, divided by its width."""
    floats = cast(counts, edges.dtype if is_float(edges.dtype) else float_of(counts.dtype))
    return floats / sum(floats) / (edges[1:] - edges[:-1])


def _summands(x: Node, weights: Value | None) -> Node:
    """Return a vector of the numbers that the elements of x add to the counts of a histogram."""
    if weights is None:
        return full((x.size,), 1, int64)
    node = as_node(weights, where="histogram")
    if node.shape != x.shape:
        raise ShapeError(
            "histogram: expected a weight for each element; got "
            f"{describe_types(x.type, node.type)}. Give one per element."
        )
    return reshape(node, -1)


@public
def histogram(
    x: Value,
    bins: Any = 10,
    range: tuple[float, float] | None = None,
    weights: Value | None = None,
    density: bool = False,
) -> tuple[Node, Node]:
    """Return the number of elements per bin, and the edges of the bins, as numpy.histogram.

    Parameters
    ----------
    x : node or array
        Numbers of any shape.
    bins : int, node or array, default 10
        The number of bins of equal width, or their edges in ascending order. The last bin contains
        its right edge. Rules that compute the number of bins from the data, such as "auto" in
        NumPy, do not exist: the number of bins must be known when the graph is built.
    range : pair of float, optional
        The first and the last edge. The defaults are the smallest and the largest element.
    weights : node or array, optional
        The number that each element adds to its count, an array of the shape of x. The default is
        1.
    density : bool, default False
        If True, the counts are divided by their sum and by the width of the bin.

    Returns
    -------
    tuple of Node
        The counts and the edges. Counts are floats if density is True. Otherwise they are int64,
        or have the dtype of the weights.

    Examples
    --------
    ::

        >>> ngd.function(lambda x: ops.histogram(x, 2)[0])(np.array([1.0, 2.0, 3.0, 5.0]))
        array([2, 2])
    """
    node = as_node(x, where="histogram")
    if isinstance(bins, str):
        raise ValueError(f"histogram: expected a number of bins or their edges; got {bins!r}")
    line, edges = _edges(reshape(node, -1), bins, range)
    count = edges.shape[0] - 1
    if count < 1:
        raise ShapeError(f"histogram: expected at least one bin; got {count}")
    counts = _sum_per_bin(line, edges, _summands(node, weights))
    return (_density(counts, edges) if density else counts), edges


def _interpolate_between(positions: Node, points: Node, values: Node) -> Node:
    """Interpolate linearly between the two points around each position."""
    n = points.shape[0]
    if n == 1:
        return broadcast_to(values[0], positions.shape)
    index = clip(searchsorted(points, positions, "right") - 1, 0, n - 2)
    first, second = take(points, index), take(points, index + 1)
    low, high = take(values, index), take(values, index + 1)
    width = where(equal(first, second), 1, second - first)
    return low + (high - low) * ((positions - first) / width)


@public
def interp(
    x: Value,
    xp: Value,
    fp: Value,
    left: Value | None = None,
    right: Value | None = None,
) -> Node:
    """Interpolate linearly between points, as numpy.interp.

    Parameters
    ----------
    x : node or array
        The positions to evaluate at, numbers of any shape.
    xp, fp : node or array
        Two 1-D arrays of one size: the ascending coordinates of the points, and their values.
    left, right : node or array, optional
        The values before the first point and after the last one. The defaults are the values at
        these points.

    Returns
    -------
    Node
        An array of the shape of x. Gradients flow to x, xp and fp.

    Raises
    ------
    ShapeError
        xp and fp differ in shape, or have no element.

    Examples
    --------
    ::

        >>> ngd.function(lambda x: ops.interp(x, [0.0, 1.0], [0.0, 10.0]))(np.array([0.25, 2.0]))
        array([ 2.5, 10. ])
    """
    nodes = align("interp", x, xp, fp)
    (positions, dtype), (points, _), (values, _) = (as_compute_dtype("interp", n) for n in nodes)
    expect_line("interp", "xp", points)
    if points.shape != values.shape or not points.shape[0]:
        raise ShapeError(
            f"interp: expected a value for each of one point or more; got "
            f"{describe_types(points.type, values.type)}"
        )
    n = points.shape[0]
    result = _interpolate_between(positions, points, values)
    result = where(positions < points[0], values[0] if left is None else left, result)
    result = where(positions > points[n - 1], values[n - 1] if right is None else right, result)
    return cast(result, dtype)


@public
def partition(x: Value, kth: int, axis: int = -1) -> Node:
    """Return x partitioned by its kth smallest element, as numpy.partition.

    The element that sorting would put at index kth is at this index. No element before it is
    larger, and no element after it is smaller. The op sorts all elements, which fulfils this.

    Parameters
    ----------
    x : node or array
        Numbers of any shape.
    kth : int
        An index along the axis.
    axis : int, default -1
        The axis to order.

    Examples
    --------
    ::

        >>> ngd.function(lambda x: ops.partition(x, 1))(np.array([3, 1, 2]))
        array([1, 2, 3])
    """
    _expect_kth("partition", as_node(x, where="partition"), kth, axis)
    return sort(x, axis)


@public
def argpartition(x: Value, kth: int, axis: int = -1) -> Node:
    """Return the indices (int64) that order x as ops.partition does, as numpy.argpartition.

    Parameters
    ----------
    x, kth, axis
        The same as for ops.partition.

    Examples
    --------
    ::

        >>> ngd.function(lambda x: ops.argpartition(x, 1))(np.array([3, 1, 2]))
        array([1, 2, 0])
    """
    _expect_kth("argpartition", as_node(x, where="argpartition"), kth, axis)
    return argsort(x, axis)


def _expect_kth(where_: str, x: Node, kth: int, axis: int) -> None:
    """Raise ShapeError if `kth` is not an index along `axis`. Do not check `axis` itself."""
    n = x.shape[axis] if -x.ndim <= axis < x.ndim else 0
    if n and not -n <= kth < n:
        raise ShapeError(f"{where_}: expected kth in [{-n}, {n}); got {kth}")
