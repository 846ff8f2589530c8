# SPDX-License-Identifier: Apache-2.0
"""Products of vectors and matrices, diagonals and traces."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence

import numpy as np

from ..dtypes import bool_
from ..errors import ShapeError
from ..graph.node import Node
from ..graph.registry import public
from ._arithmetic import multiply
from ._compare import where
from ._concatenation import concat
from ._creation import eye
from ._elementwise import align, zero_like
from ._matmul import matmul
from ._operands import Value, as_axis, as_node, describe_types
from ._rearrangement import moveaxis, pad
from ._reductions import sum
from ._shape import expand_dims, reshape, transpose

__all__ = ["cross", "diag", "diagonal", "inner", "kron", "outer", "tensordot", "trace", "vdot"]


@public
def diagonal(x: Value, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Node:
    """Return a diagonal of each matrix in an array, as numpy.diagonal.

    The result has the axes of x without axis1 and axis2, then the axis of the diagonal.

    Parameters
    ----------
    x
        An array of at least two axes.
    offset
        The diagonal: 0 is the main one, a positive one is above it, a negative one below.
    axis1, axis2
        The axes of the rows and the columns.

    Raises
    ------
    ShapeError
        x has fewer than two axes, or the axes are equal.

    Examples
    --------
    ::

        >>> ngd.function(lambda: ops.diagonal([[1, 2, 3], [4, 5, 6]], 1))()
        array([2, 6])
    """
    x = as_node(x, where="diagonal")
    if x.ndim < 2:
        raise ShapeError(f"diagonal: expected at least two axes; got {x.type}")
    rows, columns = (as_axis("diagonal", a, x.ndim, x.type) for a in (axis1, axis2))
    if rows == columns:
        raise ShapeError(
            f"diagonal: expected two axes that differ; got {axis1} and {axis2}. Give two different "
            "axes."
        )
    order = [a for a in range(x.ndim) if a not in (rows, columns)]
    matrices = transpose(x, [*order, rows, columns])
    n, m = matrices.shape[-2:]
    above, below = max(operator.index(offset), 0), max(-operator.index(offset), 0)
    count = max(min(n - below, m - above), 0)
    if count == 0:
        return matrices[..., 0:0, 0] if m else reshape(matrices, (*matrices.shape[:-2], 0))
    line = reshape(matrices, (*matrices.shape[:-2], n * m))
    first = below * m + above
    return line[..., first : first + (count - 1) * (m + 1) + 1 : m + 1]


@public
def diag(x: Value, k: int = 0) -> Node:
    """Return the diagonal of a matrix, or the matrix with a given diagonal, as numpy.diag.

    Parameters
    ----------
    x
        A matrix, whose diagonal is returned; or an array of one axis, the diagonal of a new square
        matrix, which is zero elsewhere.
    k
        The diagonal: 0 is the main one, k > 0 is above it, k < 0 below.

    Raises
    ------
    ShapeError
        x has neither one axis nor two.

    Examples
    --------
    ::

        >>> ngd.function(lambda: ops.diag([1, 2]))()
        array([[1, 0],
               [0, 2]])
    """
    x = as_node(x, where="diag")
    if x.ndim == 2:
        return diagonal(x, k)
    if x.ndim != 1:
        raise ShapeError(
            f"diag: expected one axis or two; got {x.type}. Use ops.diagonal for more."
        )
    offset = operator.index(k)
    line = pad(x, (max(-offset, 0), max(offset, 0)))
    size = line.shape[0]
    return where(eye(size, size, offset, bool_), expand_dims(line, 1), zero_like(x))


@public
def trace(x: Value, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Node:
    """Return the sum of a diagonal, as numpy.trace.

    Parameters
    ----------
    x
        An array of at least two axes.
    offset
        The diagonal: 0 is the main one, a positive one is above it, a negative one below.
    axis1, axis2
        The axes of the rows and the columns.

    Examples
    --------
    ::

        >>> ngd.function(lambda: ops.trace([[1.0, 2.0], [3.0, 4.0]]))()
        array(5.)
    """
    x = as_node(x, where="trace")
    if x.ndim < 2:
        raise ShapeError(f"trace: expected at least two axes; got {x.type}")
    return sum(diagonal(x, offset, axis1, axis2), -1)


@public
def outer(a: Value, b: Value) -> Node:
    """Return the product of each element of a with each of b, [a.size, b.size], as numpy.outer.

    Parameters
    ----------
    a, b
        Arrays of numbers. They are flattened.

    Examples
    --------
    ::

        >>> ngd.function(lambda: ops.outer([1, 2], [3, 4, 5]))()
        array([[ 3,  4,  5],
               [ 6,  8, 10]])
    """
    x, y = as_node(a, where="outer"), as_node(b, where="outer")
    return multiply(reshape(x, (x.type.count, 1)), reshape(y, (1, y.type.count)))


def _summed_axes(
    x: Node, y: Node, axes: int | Sequence[int | Sequence[int]]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the axes of x and the axes of y over which tensordot sums."""
    if isinstance(axes, (int, np.integer)):
        if not 0 <= axes <= min(x.ndim, y.ndim):
            types = describe_types(x.type, y.type)
            raise ShapeError(
                f"tensordot: expected axes in both; got {axes} for {types}. Give a number, or a "
                "list of axes for each tensor."
            )
        return tuple(range(x.ndim - int(axes), x.ndim)), tuple(range(int(axes)))
    pair = [(n,) if isinstance(n, (int, np.integer)) else tuple(n) for n in axes]
    first = tuple(as_axis("tensordot", n, x.ndim, x.type) for n in pair[0])
    return first, tuple(as_axis("tensordot", n, y.ndim, y.type) for n in pair[1])


@public
def tensordot(a: Value, b: Value, axes: int | Sequence[int | Sequence[int]] = 2) -> Node:
    """Sum products over axes of a and b, as numpy.tensordot.

    Parameters
    ----------
    a, b
        Arrays of numbers.
    axes
        A number n: the last n axes of a and the first n axes of b. Or a pair: axes of a, and axes
        of b with the same extents.

    Returns
    -------
    Node
        An array with the other axes of a, then the other axes of b.

    Raises
    ------
    ShapeError
        The extents of the axes differ, or an axis does not exist.

    Examples
    --------
    ::

        >>> ngd.function(lambda: ops.tensordot(np.ones((2, 3)), np.ones((3, 4)), 1))()
        array([[3., 3., 3., 3.],
               [3., 3., 3., 3.]])
    """
    x, y = align("tensordot", a, b)
    first, second = _summed_axes(x, y, axes)
    if [x.shape[n] for n in first] != [y.shape[n] for n in second]:
        raise ShapeError(
            f"tensordot: expected axes of equal extents; got {describe_types(x.type, y.type)} with "
            f"axes {first} and {second}. Choose other axes."
        )
    left = [n for n in range(x.ndim) if n not in first]
    right = [n for n in range(y.ndim) if n not in second]
    rows, columns = tuple(x.shape[n] for n in left), tuple(y.shape[n] for n in right)
    inner_size = math.prod(x.shape[n] for n in first)
    left_matrix = reshape(transpose(x, [*left, *first]), (math.prod(rows), inner_size))
    right_matrix = reshape(transpose(y, [*second, *right]), (inner_size, math.prod(columns)))
    return reshape(matmul(left_matrix, right_matrix), (*rows, *columns))


@public
def inner(a: Value, b: Value) -> Node:
    """Sum products over the last axes of a and b, as numpy.inner. Scalars are multiplied.

    Parameters
    ----------
    a, b
        Arrays whose last axes have the same extent.

    Raises
    ------
    ShapeError
        The last axes differ.

    Examples
    --------
    ::

        >>> ngd.function(lambda: ops.inner([1, 2, 3], [4, 5, 6]))()
        array(32)
    """
    x, y = as_node(a, where="inner"), as_node(b, where="inner")
    if not x.ndim or not y.ndim:
        return multiply(a, b)
    if x.shape[-1] != y.shape[-1]:
        raise ShapeError(
            f"inner: expected last axes of one extent; got {describe_types(x.type, y.type)}. "
            "Transpose or reshape one."
        )
    return tensordot(a, b, ((-1,), (-1,)))


@public
def vdot(a: Value, b: Value) -> Node:
    """Return the sum of the products of all elements, as numpy.vdot.

    Parameters
    ----------
    a, b
        Arrays with the same number of elements. They are flattened.

    Raises
    ------
    ShapeError
        The numbers of elements differ.

    Examples
    --------
    ::

        >>> ngd.function(lambda: ops.vdot([[1, 2], [3, 4]], [[5, 6], [7, 8]]))()
        array(70)
    """
    x, y = align("vdot", a, b)
    if x.type.count != y.type.count:
        types = describe_types(x.type, y.type)
        raise ShapeError(
            f"vdot: expected equal numbers of elements; got {types}. Reshape or slice one."
        )
    return matmul(reshape(x, -1), reshape(y, -1))


@public
def kron(a: Value, b: Value) -> Node:
    """Return the Kronecker product, as numpy.kron: blocks of b, scaled by the elements of a.

    Parameters
    ----------
    a, b
        Arrays of numbers. The one with fewer axes gets axes of extent 1 in front.

    Examples
    --------
    ::

        >>> ngd.function(lambda: ops.kron([[1, 2]], [[1, 1], [0, 1]]))()
        array([[1, 1, 2, 2],
               [0, 1, 0, 2]])
    """
    x, y = as_node(a, where="kron"), as_node(b, where="kron")
    ndim = max(x.ndim, y.ndim)
    shapes = [(1,) * (ndim - n.ndim) + n.shape for n in (x, y)]
    left = [extent for n in shapes[0] for extent in (n, 1)]
    right = [extent for n in shapes[1] for extent in (1, n)]
    product = multiply(reshape(x, left), reshape(y, right))
    return reshape(product, [n * m for n, m in zip(*shapes, strict=True)])


@public
def cross(a: Value, b: Value, axis: int = -1) -> Node:
    """Return the cross product of vectors of three elements, as numpy.cross.

    Parameters
    ----------
    a, b
        Arrays that broadcast, with extent 3 along the axis.
    axis
        The axis of the vectors in a, in b and in the result.

    Raises
    ------
    ShapeError
        The extent along the axis is not 3.

    Examples
    --------
    ::

        >>> ngd.function(lambda: ops.cross([1, 0, 0], [0, 1, 0]))()
        array([0, 0, 1])
    """
    vectors = []
    for value in align("cross", a, b):
        along = as_axis("cross", axis, value.ndim, value.type)
        if value.shape[along] != 3:
            raise ShapeError(
                f"cross: expected extent 3 along axis {axis}; got {value.type}. Choose another "
                "axis, or pad the vectors."
            )
        vectors.append(moveaxis(value, along, -1))
    x, y = vectors
    rotations = [concat([n[..., k:], n[..., :k]], -1) for n in (x, y) for k in (1, 2)]
    product = rotations[0] * rotations[3] - rotations[1] * rotations[2]
    return moveaxis(product, -1, axis)
