# SPDX-License-Identifier: Apache-2.0
"""Places in sorted tensors, counts of values, and interpolation between given points."""

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
from ._composite import widened
from ._creation import full, linspace
from ._elementwise import align
from ._gathering import as_indices, scatter_add, take
from ._operands import Value, as_node, float_of, got
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
    """Refuse a tensor that has not one axis."""
    if x.ndim != 1:
        raise ShapeError(
            f"{where_}: expected {name} of one axis; got {x.type}. Reshape it: x.reshape(-1)."
        )
    return x


@public
def searchsorted(sorted: Value, values: Value, side: str = "left") -> Node:
    """Return where values would be inserted into a sorted tensor, int64, as numpy.searchsorted.

    A binary search: log2(n) rounds for n sorted elements. NaN counts as the largest number.

    Parameters
    ----------
    sorted
        Numbers of one axis, in ascending order. The order is not checked.
    values
        Numbers of any shape.
    side
        "left": before equal elements; "right": after them.

    Returns
    -------
    Node
        Indices of the shape of the values, in [0, n].

    Raises
    ------
    ValueError
        The side is unknown.

    Examples
    --------
    ::

        >>> ngd.function(lambda v: ops.searchsorted([1, 3, 5], v))(np.array([0, 3, 6]))
        array([0, 1, 3])
    """
    if side not in ("left", "right"):
        raise ValueError(f'searchsorted: expected side "left" or "right"; got {side!r}')
    line, wanted = align("searchsorted", sorted, values)
    expect_line("searchsorted", "the sorted tensor", line)
    n = line.shape[0]
    found = full(wanted.shape, 0, int64)
    step = 1 << max_bit(n)
    while step and n:
        candidate = found + step
        element = take(line, clip(candidate - 1, 0, n - 1))
        ahead = element < wanted if side == "left" else element <= wanted
        if is_float(line.dtype):
            unordered = logical_not(equal(wanted, wanted))
            if side == "left":
                unordered = logical_and(unordered, equal(element, element))
            ahead = logical_or(ahead, unordered)
        found = where(logical_and(ahead, candidate <= n), candidate, found)
        step //= 2
    return found


@public
def isin(x: Value, values: Value, invert: bool = False) -> Node:
    """Return True where an element of x is among some values, as numpy.isin.

    Parameters
    ----------
    x
        A tensor of any shape.
    values
        A tensor of any shape. The time is the product of the numbers of elements.
    invert
        If True, return True where it is not among them.

    Examples
    --------
    ::

        >>> ngd.function(lambda x: ops.isin(x, [1, 3]))(np.array([1, 2, 3]))
        array([ True, False,  True])
    """
    node, among = (as_node(value, where="isin") for value in (x, values))
    found = any(equal(expand_dims(node, -1), reshape(among, -1)), -1)
    return logical_not(found) if invert else found


def max_bit(n: int) -> int:
    """Return the number of the highest bit that is set, and 0 for 0."""
    return n.bit_length() - 1 if n else 0


@public
def digitize(x: Value, bins: Value, right: bool = False) -> Node:
    """Return the number of the bin that each element belongs to, int64, as numpy.digitize.

    Parameters
    ----------
    x
        Numbers of any shape.
    bins
        Edges of one axis: ascending, or an array in descending order. A node must be ascending.
    right
        If True, a bin contains its right edge and not its left one.

    Returns
    -------
    Node
        0 below the first edge, len(bins) beyond the last one.

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
            found = searchsorted(edges[::-1], x, side)
            return len(edges) - found
    return searchsorted(bins, x, side)


@public
def bincount(x: Value, length: int, weights: Value | None = None) -> Node:
    """Return how often each of 0, 1, ..., length - 1 occurs, as numpy.bincount.

    Parameters
    ----------
    x
        Integers of one axis in [0, length).
    length
        The number of results: shapes are known when the graph is built.
    weights
        The amount that each element adds to its count. The default is 1.

    Returns
    -------
    Node
        [length], int64, or of the dtype of the weights.

    Raises
    ------
    OutOfRangeError
        An element is outside of [0, length), when the step runs.

    Examples
    --------
    ::

        >>> ngd.function(lambda x: ops.bincount(x, 4))(np.array([1, 3, 1]))
        array([0, 2, 0, 1])
    """
    indices = expect_line("bincount", "integers", as_indices(x, "bincount"))
    given = full(indices.shape, 1, int64) if weights is None else as_node(weights, where="bincount")
    if given.shape != indices.shape:
        raise ShapeError(
            f"bincount: expected a weight for each element; got {got(indices.type, given.type)}. "
            "Give one per element."
        )
    given = cast(given, int64) if given.dtype == bool_ else given
    attrs = {"axis": 0, "size": int(length), "caller": "bincount", "negative": False}
    return scatter_add.node((given, indices), attrs)


def _edges(line: Node, bins: Any, span: tuple[float, float] | None) -> tuple[Node, Node]:
    """Return the elements in the dtype in which they are compared, and the edges of the bins."""
    if not isinstance(bins, (int, np.integer)):
        return line, expect_line("histogram", "edges", as_node(bins, where="histogram"))
    wide, _ = widened("histogram", line)
    if span is not None:
        return wide, linspace(float(span[0]), float(span[1]), int(bins) + 1, dtype=wide.dtype)
    low, high = min(wide), max(wide)
    half = where(equal(low, high), 0.5 + 0 * low, 0)
    return wide, linspace(low - half, high + half, int(bins) + 1, dtype=wide.dtype)


def _sum_per_bin(line: Node, edges: Node, weights: Node) -> Node:
    """Return the sum of the weights of the elements in each bin; the last bin has both edges."""
    count = edges.shape[0] - 1
    is_inside = logical_and(line >= edges[0], line <= edges[count])
    bins = clip(searchsorted(edges, line, "right") - 1, 0, count - 1)
    return bincount(bins, count, where(is_inside, weights, 0))


def _density(counts: Node, edges: Node) -> Node:
    """Return the density in each bin: its part of all counts, divided by its width."""
    floats = cast(counts, edges.dtype if is_float(edges.dtype) else float_of(counts.dtype))
    return floats / sum(floats) / (edges[1:] - edges[:-1])


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
    x
        Numbers, which are flattened.
    bins
        The number of bins of equal width, or their edges in ascending order. The last bin contains
        its right edge. NumPy's rules such as "auto" do not exist: shapes are known when the graph
        is built.
    range
        The first and the last edge. By default, they are the least and the largest element.
    weights
        The amount that each element adds to its count, as a tensor of the shape of x.
    density
        If True, the counts are divided by their sum and by the width of the bin.

    Returns
    -------
    tuple of Node
        The counts (int64, or of the dtype of the weights, or float) and the edges.

    Examples
    --------
    ::

        >>> ngd.function(lambda x: ops.histogram(x, 2)[0])(np.array([1.0, 2.0, 3.0, 5.0]))
        array([2, 2])
    """
    line = reshape(as_node(x, where="histogram"), -1)
    if isinstance(bins, str):
        raise ValueError(f"histogram: expected a number of bins or their edges; got {bins!r}")
    line, edges = _edges(line, bins, range)
    count = edges.shape[0] - 1
    if count < 1:
        raise ShapeError(f"histogram: expected at least one bin; got {count}")
    given = full(line.shape, 1, int64)
    if weights is not None:
        given = reshape(as_node(weights, where="histogram"), -1)
    counts = _sum_per_bin(line, edges, given)
    return (_density(counts, edges) if density else counts), edges


def _interpolate_between(at: Node, points: Node, values: Node) -> Node:
    """Interpolate linearly between the two points around each position."""
    n = points.shape[0]
    if n == 1:
        return broadcast_to(values[0], at.shape)
    place = clip(searchsorted(points, at, "right") - 1, 0, n - 2)
    first, second = take(points, place), take(points, place + 1)
    low, high = take(values, place), take(values, place + 1)
    width = where(equal(first, second), 1, second - first)
    return low + (high - low) * ((at - first) / width)


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
    x
        Where to evaluate; numbers of any shape.
    xp, fp
        The coordinates of the points, of one axis, and their values. xp is ascending.
    left, right
        The values below the first point and above the last one. By default, they are the values of
        these points.

    Returns
    -------
    Node
        The shape of x. Gradients flow to x, xp and fp.

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
    (at, dtype), (points, _), (values, _) = (widened("interp", n) for n in nodes)
    expect_line("interp", "xp", points)
    if points.shape != values.shape or not points.shape[0]:
        raise ShapeError(
            f"interp: expected a value for each of one point or more; got "
            f"{got(points.type, values.type)}"
        )
    n = points.shape[0]
    found = _interpolate_between(at, points, values)
    found = where(at < points[0], values[0] if left is None else left, found)
    found = where(at > points[n - 1], values[n - 1] if right is None else right, found)
    return cast(found, dtype)


@public
def partition(x: Value, kth: int, axis: int = -1) -> Node:
    """Return x with the element of sorted index kth at this index, and smaller ones before it.

    numpy.partition. It sorts, which is one of the allowed orders.

    Parameters
    ----------
    x
        Numbers of any shape.
    kth
        An index along the axis.
    axis
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
    """Return the indices (int64) that order x as ops.partition does.

    Parameters
    ----------
    x, kth, axis
        As in ops.partition.

    Examples
    --------
    ::

        >>> ngd.function(lambda x: ops.argpartition(x, 1))(np.array([3, 1, 2]))
        array([1, 2, 0])
    """
    _expect_kth("argpartition", as_node(x, where="argpartition"), kth, axis)
    return argsort(x, axis)


def _expect_kth(where_: str, x: Node, kth: int, axis: int) -> None:
    n = x.shape[axis] if -x.ndim <= axis < x.ndim else 0
    if n and not -n <= kth < n:
        raise ShapeError(f"{where_}: expected kth in [{-n}, {n}); got {kth}")
