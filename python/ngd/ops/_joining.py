# SPDX-License-Identifier: Apache-2.0
"""Join arrays along existing or new axes, split them, and repeat elements."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np

from ..dtypes import Array
from ..errors import ShapeError
from ..graph.node import Node
from ..graph.registry import public
from ._concatenation import concat, expect_list, split
from ._gathering import take
from ._operands import Value, as_axis, as_node, node_of_axes
from ._shape import broadcast_to, expand_dims, reshape
from ._slicing import slice

__all__ = [
    "append",
    "array_split",
    "atleast_1d",
    "atleast_2d",
    "atleast_3d",
    "chunk",
    "column_stack",
    "dsplit",
    "dstack",
    "hsplit",
    "hstack",
    "repeat",
    "unbind",
    "vsplit",
    "vstack",
]


def _at_least(where_: str, ndim: int, values: Sequence[Value]) -> Any:
    """Return arrays with axes of size 1 added, so that each has at least `ndim` axes.

    The result is one node for one array, and a tuple of nodes for several arrays.
    """
    nodes = [as_node(x, where=where_) for x in values]
    results = []
    for node in nodes:
        if ndim == 3 and node.ndim < 3:  # as NumPy: [n] to [1, n, 1], [m, n] to [m, n, 1]
            shape = (*((1,) * (2 - node.ndim)), *node.shape, 1)
        else:
            shape = (*((1,) * (ndim - node.ndim)), *node.shape)
        results.append(reshape(node, shape))
    return results[0] if len(results) == 1 else tuple(results)


@public
def atleast_1d(*x: Value) -> Any:
    """Return arrays of at least one axis: scalars become [1].

    Parameters
    ----------
    x
        One array or several.

    Returns
    -------
    Node, or a tuple of Node if several are given

    Examples
    --------
    ::

        >>> ngd.function(lambda: ops.atleast_1d(3))()
        array([3])
    """
    return _at_least("atleast_1d", 1, x)


@public
def atleast_2d(*x: Value) -> Any:
    """Return arrays of at least two axes: [n] becomes [1, n].

    Parameters
    ----------
    x
        One array or several.

    Returns
    -------
    Node, or a tuple of Node if several are given

    Examples
    --------
    ::

        >>> ngd.function(lambda: ops.atleast_2d([1, 2]))()
        array([[1, 2]])
    """
    return _at_least("atleast_2d", 2, x)


@public
def atleast_3d(*x: Value) -> Any:
    """Return arrays of at least three axes: [n] becomes [1, n, 1], [m, n] becomes [m, n, 1].

    Parameters
    ----------
    x
        One array or several.

    Returns
    -------
    Node, or a tuple of Node if several are given

    Examples
    --------
    ::

        >>> ngd.function(lambda: ops.atleast_3d([1, 2]))().shape
        (1, 2, 1)
    """
    return _at_least("atleast_3d", 3, x)


@public
def vstack(values: Sequence[Value]) -> Node:
    """Join arrays along the first axis, as numpy.vstack. An array [n] counts as [1, n].

    Parameters
    ----------
    values
        A list of arrays.

    Examples
    --------
    ::

        >>> ngd.function(lambda: ops.vstack([[1, 2], [3, 4]]))()
        array([[1, 2],
               [3, 4]])
    """
    return concat([_at_least("vstack", 2, [x]) for x in expect_list("vstack", values)], 0)


@public
def hstack(values: Sequence[Value]) -> Node:
    """Join arrays along the second axis, as numpy.hstack. Arrays of one axis are joined along it.

    Parameters
    ----------
    values
        A list of arrays.

    Examples
    --------
    ::

        >>> ngd.function(lambda: ops.hstack([[1, 2], [3]]))()
        array([1, 2, 3])
    """
    nodes = [_at_least("hstack", 1, [x]) for x in expect_list("hstack", values)]
    if not nodes:
        raise ShapeError("hstack: expected at least one tensor; got none")
    return concat(nodes, 0 if nodes[0].ndim == 1 else 1)


@public
def dstack(values: Sequence[Value]) -> Node:
    """Join arrays along the third axis, as numpy.dstack. An array [m, n] counts as [m, n, 1].

    Parameters
    ----------
    values
        A list of arrays.

    Examples
    --------
    ::

        >>> ngd.function(lambda: ops.dstack([[1, 2], [3, 4]]))()
        array([[[1, 3],
                [2, 4]]])
    """
    return concat([_at_least("dstack", 3, [x]) for x in expect_list("dstack", values)], 2)


@public
def column_stack(values: Sequence[Value]) -> Node:
    """Join arrays of one axis as the columns of a matrix, and matrices along the second axis.

    Parameters
    ----------
    values
        A list of arrays.

    Examples
    --------
    ::

        >>> ngd.function(lambda: ops.column_stack([[1, 2], [3, 4]]))()
        array([[1, 3],
               [2, 4]])
    """
    nodes = [as_node(x, where="column_stack") for x in expect_list("column_stack", values)]
    return concat([x if x.ndim > 1 else reshape(x, (-1, 1)) for x in nodes], 1)


@public
def append(x: Value, values: Value, axis: int | None = None) -> Node:
    """Join an array and more values, as numpy.append.

    Parameters
    ----------
    x
        An array.
    values
        An array with the shape of x except along `axis`, or with any shape if `axis` is None.
    axis
        The axis along which x and values are joined. None, the default, joins the flattened arrays.

    Examples
    --------
    ::

        >>> ngd.function(lambda: ops.append([1, 2], [[3], [4]]))()
        array([1, 2, 3, 4])
    """
    nodes = [as_node(each, where="append") for each in (x, values)]
    if axis is None:
        return concat([reshape(node, -1) for node in nodes], 0)
    return concat(nodes, axis)


MOST_PARTS: Final = 2**16
"""The maximum number of parts of a split. More parts would take minutes to build and compile."""


def expect_parts(where_: str, count: int) -> None:
    """Raise a ShapeError unless `count`, the number of parts of a split, is in [1, MOST_PARTS]."""
    if not 1 <= count <= MOST_PARTS:
        raise ShapeError(f"{where_}: expected at least one part, at most {MOST_PARTS}; got {count}")


@public
def array_split(x: Value, sections: int | Sequence[int], axis: int = 0) -> tuple[Node, ...]:
    """Split an array into parts that need not be equal, as numpy.array_split.

    Parameters
    ----------
    x
        An array.
    sections
        The number of parts, or the indices at which the array is split. If the number does not
        divide the extent, the first parts are larger by one.
    axis
        The axis that is split.

    Returns
    -------
    tuple of Node

    Examples
    --------
    ::

        >>> ngd.function(lambda: ops.array_split([1, 2, 3], 2))()
        (array([1, 2]), array([3]))
    """
    node = as_node(x, where="array_split")
    along = as_axis("array_split", axis, node.ndim, node.type)
    n = node.shape[along]
    if isinstance(sections, (int, np.integer)):
        expect_parts("array_split", int(sections))
        smaller, num_larger = divmod(n, int(sections))
        sizes = [smaller + (i < num_larger) for i in range(int(sections))]
        bounds = [0, *np.cumsum(sizes).tolist()]
    else:
        bounds = [0, *(int(cut) for cut in sections), n]
    before = (np.s_[:],) * along
    return tuple(slice(node, (*before, np.s_[begin:end])) for begin, end in pairwise(bounds))


@public
def hsplit(x: Value, sections: int | Sequence[int]) -> tuple[Node, ...]:
    """Split an array along the second axis, as numpy.hsplit.

    Parameters
    ----------
    x
        An array of at least one axis. An array of one axis is split along that axis.
    sections
        The number of equal parts, or the indices at which the array is split.

    Returns
    -------
    tuple of Node

    Examples
    --------
    ::

        >>> ngd.function(lambda: ops.hsplit([[1, 2], [3, 4]], 2))()
        (array([[1],
               [3]]), array([[2],
               [4]]))
    """
    node = node_of_axes("hsplit", x, 1)
    return split(node, sections, 0 if node.ndim == 1 else 1)


@public
def vsplit(x: Value, sections: int | Sequence[int]) -> tuple[Node, ...]:
    """Split an array along the first axis, as numpy.vsplit.

    Parameters
    ----------
    x
        An array of at least two axes.
    sections
        The number of equal parts, or the indices at which the array is split.

    Returns
    -------
    tuple of Node

    Examples
    --------
    ::

        >>> ngd.function(lambda: ops.vsplit([[1, 2], [3, 4]], 2))()
        (array([[1, 2]]), array([[3, 4]]))
    """
    return split(node_of_axes("vsplit", x, 2), sections, 0)


@public
def dsplit(x: Value, sections: int | Sequence[int]) -> tuple[Node, ...]:
    """Split an array along the third axis, as numpy.dsplit.

    Parameters
    ----------
    x
        An array of at least three axes.
    sections
        The number of equal parts, or the indices at which the array is split.

    Returns
    -------
    tuple of Node

    Examples
    --------
    ::

        >>> ngd.function(lambda: ops.dsplit([[[1, 2, 3]]], [1]))()
        (array([[[1]]]), array([[[2, 3]]]))
    """
    return split(node_of_axes("dsplit", x, 3), sections, 2)


@public
def chunk(x: Value, chunks: int, axis: int = 0) -> tuple[Node, ...]:
    """Split an array into at most `chunks` parts, as torch.chunk.

    Parameters
    ----------
    x
        An array.
    chunks
        The maximum number of parts, at least 1. Each part has ceil(n / chunks) elements along the
        axis of n elements, and the last part may have fewer. For example, chunks=4 splits 5
        elements into three parts of 2, 2 and 1. If n is 0, there are `chunks` empty parts.
    axis
        The axis that is split.

    Returns
    -------
    tuple of Node

    Examples
    --------
    ::

        >>> ngd.function(lambda: ops.chunk([1, 2, 3, 4, 5], 3))()
        (array([1, 2]), array([3, 4]), array([5]))
    """
    node = as_node(x, where="chunk")
    along = as_axis("chunk", axis, node.ndim, node.type)
    expect_parts("chunk", chunks)
    n = node.shape[along]
    if n == 0:
        return (node,) * chunks
    return array_split(node, range(-(-n // chunks), n, -(-n // chunks)), along)


@public
def unbind(x: Value, axis: int = 0) -> tuple[Node, ...]:
    """Return the slices along an axis, without that axis, as torch.unbind.

    Parameters
    ----------
    x
        An array of at least one axis.
    axis
        The axis along which x is split. The slices do not have it.

    Returns
    -------
    tuple of Node
        One slice per index.

    Examples
    --------
    ::

        >>> ngd.function(lambda: ops.unbind([[1, 2], [3, 4]], 1))()
        (array([1, 3]), array([2, 4]))
    """
    node = as_node(x, where="unbind")
    along = as_axis("unbind", axis, node.ndim, node.type)
    before = (np.s_[:],) * along
    return tuple(slice(node, (*before, i)) for i in range(node.shape[along]))


@public
def repeat(x: Value, repeats: int | Sequence[int] | Array, axis: int | None = None) -> Node:
    """Repeat each element, as numpy.repeat. ops.tile repeats the whole array.

    Parameters
    ----------
    x
        An array.
    repeats
        The number of repetitions: one for all elements, or one per index of the axis. The numbers
        must be known when the graph is built, because the shape of the result depends on them.
    axis
        An axis. None, the default, means the flattened array.

    Raises
    ------
    ShapeError
        A number is not an int >= 0, `repeats` is a node, or there is neither one number nor one
        number per index of the axis.

    Examples
    --------
    ::

        >>> ngd.function(lambda: ops.repeat([1, 2, 3], [2, 0, 1]))()
        array([1, 1, 3])
    """
    node = as_node(x, where="repeat")
    if isinstance(repeats, Node):
        raise ShapeError(
            f"repeat: expected numbers that are known when the graph is built; got {repeats.type}. "
            "Give Python numbers, or use ops.take."
        )
    node = reshape(node, -1) if axis is None else node
    along = as_axis("repeat", 0 if axis is None else axis, node.ndim, node.type)
    counts = np.asarray(repeats)
    n = node.shape[along]
    if counts.dtype.kind not in "iu" or (counts < 0).any() or counts.shape not in ((), (1,), (n,)):
        raise ShapeError(
            f"repeat: expected a number >= 0, or {n} for axis {along} of {node.type}; got {repeats}"
        )
    if counts.size == 1:
        count = int(counts.reshape(()))
        expanded = expand_dims(node, along + 1)
        shape = (*node.shape[: along + 1], count, *node.shape[along + 1 :])
        merged = (*node.shape[:along], n * count, *node.shape[along + 1 :])
        return reshape(broadcast_to(expanded, shape), merged)
    return take(node, np.repeat(np.arange(n), counts), along)
