# SPDX-License-Identifier: Apache-2.0
"""Functions on nodes that run when a NumPy function, such as numpy.block, is called on a node.

A function here has the parameters of the NumPy function. ngd.ops has no function with the same
name and parameters. The dict FUNCTIONS in _numpy_functions.py has the replacement of each NumPy
function.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..dtypes import is_float
from ..errors import ShapeError
from ..graph.node import Node
from . import _arithmetic as arithmetic
from . import _concatenation as concatenation
from . import _creation as creation
from . import _cumulative as cumulative
from . import _gathering as gathering
from . import _joining as joining
from . import _linear_algebra as linear_algebra
from . import _rearrangement as rearrange
from . import _searching as searching
from . import _shape as shape
from ._casting import as_floats, cast
from ._operands import as_axis, as_node, broadcast_shapes, node_of_axes


def round_to(a: Any, decimals: int = 0) -> Node:
    """Round to a number of decimals, as numpy.round. Halves are rounded to even digits."""
    x = as_node(a, where="numpy.round")
    if decimals == 0 or (decimals > 0 and not is_float(x.dtype)):
        return arithmetic.round(x)
    wide = as_floats(x)
    scale = 10.0 ** abs(decimals)
    up, down = wide * scale, wide / scale
    rounded = arithmetic.round(up) / scale if decimals > 0 else arithmetic.round(down) * scale
    return cast(rounded, x.dtype)


def matrix_transpose(x: Any, /) -> Node:
    """Exchange the last two axes, as numpy.matrix_transpose."""
    return rearrange.swapaxes(node_of_axes("numpy.matrix_transpose", x, 2), -1, -2)


def isin(
    element: Any,
    test_elements: Any,
    assume_unique: bool = False,
    invert: bool = False,
    *,
    kind: str | None = None,
) -> Node:
    """Return True where an element is among the test elements, as numpy.isin.

    It compares each element with each test element, so the time is proportional to
    element.size * test_elements.size.
    """
    return searching.isin(element, test_elements, invert)


def unstack(x: Any, /, *, axis: int = 0) -> tuple[Node, ...]:
    """Return the slices along an axis, as numpy.unstack."""
    return joining.unbind(x, axis)


def cumulative_sum(
    x: Any, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False
) -> Node:
    """Return the sum of each element and all elements before it, as numpy.cumulative_sum."""
    where_ = "numpy.cumulative_sum"
    return _cumulative(where_, cumulative.cumsum, 0, x, axis, dtype, include_initial)


def cumulative_prod(
    x: Any, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False
) -> Node:
    """Return the product of each element and all elements before it, as numpy.cumulative_prod."""
    where_ = "numpy.cumulative_prod"
    return _cumulative(where_, cumulative.cumprod, 1, x, axis, dtype, include_initial)


def _cumulative(
    where_: str,
    scan: Callable[..., Node],
    first: int,
    x: Any,
    axis: int | None,
    dtype: Any,
    include_initial: bool,
) -> Node:
    """Return a cumulative sum or product.

    If include_initial is True, the result has one more element: it begins with `first`.
    """
    node = node_of_axes(where_, x, 1)
    if axis is None and node.ndim > 1:
        raise ShapeError(
            f"{where_}: expected an axis for more than one axis; got {node.type}. Give axis."
        )
    scan_axis = 0 if axis is None else axis
    result = scan(node if dtype is None else cast(node, dtype), scan_axis)
    if not include_initial:
        return result
    extents = [1 if i == scan_axis % node.ndim else n for i, n in enumerate(result.shape)]
    return concatenation.concat([creation.full(extents, first, result.dtype), result], scan_axis)


def copy(a: Any, order: str = "K", subok: bool = False) -> Node:
    """Return the node itself: the value of a node never changes."""
    return as_node(a, where="numpy.copy")


def broadcast_arrays(*args: Any, subok: bool = False) -> tuple[Node, ...]:
    """Broadcast arrays to one shape, as numpy.broadcast_arrays."""
    nodes = [as_node(x, where="numpy.broadcast_arrays") for x in args]
    extents = broadcast_shapes("numpy.broadcast_arrays", *(x.shape for x in nodes))
    return tuple(shape.broadcast_to(x, extents) for x in nodes)


def block(arrays: Any) -> Node:
    """Join nested lists of arrays, as numpy.block.

    The innermost lists are joined along the last axis, the lists around them along the axis before
    it, and so on.
    """
    depth, inner = 0, arrays
    while isinstance(inner, list):
        depth, inner = depth + 1, inner[0] if inner else None
    return _concat_blocks(arrays, depth, _most_axes(arrays, depth))


def _most_axes(arrays: Any, depth: int) -> int:
    """Return max(depth, largest ndim of the arrays in nested lists).

    `depth` is the number of levels of the lists.
    """
    if isinstance(arrays, list):
        return max((_most_axes(each, depth) for each in arrays), default=depth)
    return max(depth, as_node(arrays, where="numpy.block").ndim)


def _concat_blocks(arrays: Any, depth: int, ndim: int) -> Node:
    """Join the arrays in nested lists: the innermost lists along the last axis, and so on outwards.

    `depth` is the depth of the lists. Each array first gets leading axes of size 1, up to `ndim`
    axes.
    """
    if isinstance(arrays, list) != (depth > 0) or (depth and not arrays):
        raise ShapeError(
            f"numpy.block: expected lists of one depth that are not empty; got {arrays}"
        )
    if depth:
        return concatenation.concat(
            [_concat_blocks(each, depth - 1, ndim) for each in arrays], -depth
        )
    x = as_node(arrays, where="numpy.block")
    return shape.reshape(x, (*(1,) * (ndim - x.ndim), *x.shape))


def delete(arr: Any, obj: Any, axis: int | None = None) -> Node:
    """Remove the elements at the indices `obj` along an axis, as numpy.delete.

    The indices must be known when the graph is built: a node raises a ShapeError.
    """
    x = as_node(arr, where="numpy.delete")
    x = shape.reshape(x, -1) if axis is None else x
    along = as_axis("numpy.delete", 0 if axis is None else axis, x.ndim, x.type)
    if isinstance(obj, Node):
        raise ShapeError(
            f"numpy.delete: expected indices that are known when the graph is built; got {obj.type}"
        )
    return gathering.take(x, np.delete(np.arange(x.shape[along]), obj), along)


def rollaxis(a: Any, axis: int, start: int = 0) -> Node:
    """Move an axis before the axis `start`, as numpy.rollaxis."""
    x = as_node(a, where="numpy.rollaxis")
    order = np.rollaxis(np.empty(range(x.ndim)), axis, start).shape
    return shape.transpose(x, order)


def diagflat(v: Any, k: int = 0) -> Node:
    """Return a matrix with the flattened array on diagonal k, as numpy.diagflat."""
    return linear_algebra.diag(shape.reshape(as_node(v, where="numpy.diagflat"), -1), k)


def polyval(p: Any, x: Any) -> Node:
    """Return the value of a polynomial by Horner's rule, as numpy.polyval."""
    coefficients = as_node(p, where="numpy.polyval")
    if coefficients.ndim != 1:
        raise ShapeError(f"numpy.polyval: expected p of one axis; got {coefficients.type}")
    position = as_node(x, where="numpy.polyval")
    value = creation.full(position.shape, 0, position.dtype)
    for factor in joining.unbind(coefficients):
        value = value * position + factor
    return value
