# SPDX-License-Identifier: Apache-2.0
"""NumPy functions on nodes that a few ops compose. They have NumPy's parameters.

`numpy_functions.py` maps NumPy's functions to them. They are not in `ngd.ops`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ..dtype import float64, is_float
from ..errors import ShapeError
from ..ir import Node
from . import arithmetic, cumulative, joining, rearrange, reductions, shape
from .casting import cast
from .compare import equal, where
from .elementwise import align
from .numeric import isfinite, isnan
from .operands import Axis, as_node, broadcast_shapes


def round_to(a: Any, decimals: int = 0) -> Node:
    """Round to a number of decimals, as numpy.round. Halves are rounded to even digits."""
    x = as_node(a, where="numpy.round")
    if decimals == 0 or (decimals > 0 and not is_float(x.dtype)):
        return arithmetic.round(x)
    wide = x if is_float(x.dtype) else cast(x, float64)
    scale = 10.0 ** abs(decimals)
    up, down = wide * scale, wide / scale
    rounded = arithmetic.round(up) / scale if decimals > 0 else arithmetic.round(down) * scale
    return cast(rounded, x.dtype)


def flipud(m: Any) -> Node:
    """Reverse the first axis, as numpy.flipud."""
    return rearrange.flip(_with_axes("numpy.flipud", m, 1), 0)


def fliplr(m: Any) -> Node:
    """Reverse the second axis, as numpy.fliplr."""
    return rearrange.flip(_with_axes("numpy.fliplr", m, 2), 1)


def matrix_transpose(x: Any, /) -> Node:
    """Exchange the last two axes, as numpy.matrix_transpose."""
    return rearrange.swapaxes(_with_axes("numpy.matrix_transpose", x, 2), -1, -2)


def _with_axes(where_: str, x: Any, least: int) -> Node:
    node = as_node(x, where=where_)
    if node.ndim < least:
        raise ShapeError(f"{where_}: expected at least {least} axes; got {node.type}")
    return node


def isclose(
    a: Any, b: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Node:
    """Return True where |a - b| <= atol + rtol * |b|, as numpy.isclose."""
    nodes = (as_node(value, where="numpy.isclose") for value in (a, b))
    x, y = align("numpy.isclose", *(n if is_float(n.dtype) else cast(n, float64) for n in nodes))
    is_near = (arithmetic.abs(x - y) <= atol + rtol * arithmetic.abs(y)) & isfinite(y)
    result = is_near | equal(x, y)
    return result | (isnan(x) & isnan(y)) if equal_nan else result


def isin(
    element: Any,
    test_elements: Any,
    assume_unique: bool = False,
    invert: bool = False,
    *,
    kind: str | None = None,
) -> Node:
    """Return True where an element is among some elements, as numpy.isin.

    The time is the product of the numbers of elements.
    """
    x, tests = (as_node(value, where="numpy.isin") for value in (element, test_elements))
    found = reductions.any(equal(shape.expand_dims(x, -1), shape.reshape(tests, -1)), -1)
    return equal(found, False) if invert else found


def column_stack(tup: Sequence[Any]) -> Node:
    """Join tensors of one axis as columns, and matrices along the second axis."""
    nodes = [as_node(x, where="numpy.column_stack") for x in tup]
    return shape.concat([x if x.ndim > 1 else shape.reshape(x, (-1, 1)) for x in nodes], 1)


def dstack(tup: Sequence[Any]) -> Node:
    """Join tensors along the third axis, as numpy.dstack."""
    return shape.concat([joining.atleast_3d(x) for x in tup], 2)


def unstack(x: Any, /, *, axis: int = 0) -> tuple[Node, ...]:
    """Return the slices along an axis, as numpy.unstack."""
    return joining.unbind(x, axis)


def nanmax(a: Any, axis: Axis = None, *, keepdims: bool = False) -> Node:
    """Return the largest element that is not NaN, or NaN if all are NaN."""
    return _nan_extremum("numpy.nanmax", reductions.max, -math.inf, a, axis, keepdims)


def nanmin(a: Any, axis: Axis = None, *, keepdims: bool = False) -> Node:
    """Return the smallest element that is not NaN, or NaN if all are NaN."""
    return _nan_extremum("numpy.nanmin", reductions.min, math.inf, a, axis, keepdims)


def _nan_extremum(
    where_: str, reduce: Callable[..., Node], filling: float, a: Any, axis: Axis, keepdims: bool
) -> Node:
    x = as_node(a, where=where_)
    if not is_float(x.dtype):
        return reduce(x, axis, keepdims)
    is_missing = isnan(x)
    found = reduce(where(is_missing, filling, x), axis, keepdims)
    return where(reductions.all(is_missing, axis, keepdims), math.nan, found)


def cumulative_sum(
    x: Any, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False
) -> Node:
    """Return the sums of the elements up to each one, as numpy.cumulative_sum."""
    where_ = "numpy.cumulative_sum"
    return _cumulative(where_, cumulative.cumsum, 0, x, axis, dtype, include_initial)


def cumulative_prod(
    x: Any, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False
) -> Node:
    """Return the products of the elements up to each one, as numpy.cumulative_prod."""
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
    node = _with_axes(where_, x, 1)
    if axis is None and node.ndim > 1:
        raise ShapeError(
            f"{where_}: expected an axis for more than one axis; got {node.type}. Give axis."
        )
    along = 0 if axis is None else axis
    found = scan(node if dtype is None else cast(node, dtype), along)
    if not include_initial:
        return found
    extents = [1 if i == along % node.ndim else n for i, n in enumerate(found.shape)]
    return shape.concat([shape.full(extents, first, found.dtype), found], along)


def copy(a: Any, order: str = "K", subok: bool = False) -> Node:
    """Return the node itself, because a node never changes."""
    return as_node(a, where="numpy.copy")


def broadcast_arrays(*args: Any, subok: bool = False) -> tuple[Node, ...]:
    """Broadcast tensors to one shape, as numpy.broadcast_arrays."""
    nodes = [as_node(x, where="numpy.broadcast_arrays") for x in args]
    extents = broadcast_shapes("numpy.broadcast_arrays", *(x.shape for x in nodes))
    return tuple(shape.broadcast_to(x, extents) for x in nodes)
