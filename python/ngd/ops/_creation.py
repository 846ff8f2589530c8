# SPDX-License-Identifier: Apache-2.0
"""Create arrays: constants, ranges, grids, identity matrices and one-hot rows."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np

from ..dtypes import NUMBERS, Array, DType, Type, as_dtype, bool_, float32, float64, int32, int64
from ..errors import ShapeError
from ..graph.leaves import constant_node
from ..graph.node import Node, Op
from ..graph.registry import public, register
from ..graph.samples import Operand, Sample
from ._arithmetic import add, multiply
from ._casting import cast
from ._compare import equal, where
from ._elementwise import align
from ._gathering import as_indices
from ._operands import INDICES, Value, as_node, expect_dtype, float_of, is_weak, narrow, scalar
from ._shape import broadcast_to, expand_dims, reshape

__all__ = ["arange", "eye", "full", "linspace", "meshgrid", "one_hot", "ones", "zeros"]


@public
def full(shape: int | Sequence[int], value: Any, dtype: Any = float32) -> Node:
    """Return an array whose elements all have one value.

    Parameters
    ----------
    shape
        The shape, an int or ints.
    value
        A number that fits into the dtype.
    dtype
        The dtype of the result.

    Examples
    --------
    ::

        >>> ngd.function(lambda: ops.full((2, 2), 0.5))()
        array([[0.5, 0.5],
               [0.5, 0.5]], dtype=float32)
    """
    return broadcast_to(scalar(value, as_dtype(dtype, "full"), "full"), shape)


@public
def zeros(shape: int | Sequence[int], dtype: Any = float32) -> Node:
    """Return an array of zeros.

    Parameters
    ----------
    shape
        The shape, an int or ints.
    dtype
        The dtype of the result.

    Examples
    --------
    ::

        >>> ngd.function(lambda: ops.zeros(3))()
        array([0., 0., 0.], dtype=float32)
    """
    return full(shape, 0, dtype)


@public
def ones(shape: int | Sequence[int], dtype: Any = float32) -> Node:
    """Return an array of ones.

    Parameters
    ----------
    shape
        The shape, an int or ints.
    dtype
        The dtype of the result.

    Examples
    --------
    ::

        >>> ngd.function(lambda: ops.ones(3))()
        array([1., 1., 1.], dtype=float32)
    """
    return full(shape, 1, dtype)


class Arange(Op):
    """Return start, start + step, start + 2 * step, ... up to but not including stop.

    The numbers are those of numpy.arange.

    Parameters
    ----------
    start
        The first number. With one argument, arange(n) counts from 0 to n - 1.
    stop
        The bound, which is not part of the result.
    step
        The difference between neighbours, not 0. It may be negative.
    dtype
        The dtype of the result. The default is int64 if start, stop and step are ints, else
        float32.

    Raises
    ------
    TypeError
        An argument is a node. The size of the result must be known when the graph is built.
    ValueError
        `step` is 0.

    Examples
    --------
    ::

        >>> ngd.function(lambda: ops.arange(4))()
        array([0, 1, 2, 3])
        >>> ngd.function(lambda: ops.arange(1.0, 0.0, -0.25))()
        array([1.  , 0.75, 0.5 , 0.25], dtype=float32)
    """

    name = "arange"
    dtypes = ()

    def __call__(
        self,
        start: int | float,
        stop: int | float | None = None,
        step: int | float = 1,
        dtype: Any = None,
    ) -> Node:
        first, end = (0, start) if stop is None else (start, stop)
        if any(isinstance(n, Node) for n in (first, end, step)):
            raise TypeError(
                f"arange: expected numbers; got the nodes among {[first, end, step]}. The shape of "
                "a result is known when the graph is built; scale and shift arange(n) instead."
            )
        if step == 0:
            raise ValueError(
                "arange: expected a step that is not 0; got 0. Leave step out, or give another."
            )
        ints = all(isinstance(n, (int, np.integer)) for n in (first, end, step))
        result_dtype = as_dtype((int64 if ints else float32) if dtype is None else dtype, self.name)
        size = max(-((first - end) // step) if ints else math.ceil((end - first) / step), 0)
        if ints and (first, step) == (0, 1):
            return self.node((), {"size": int(size), "dtype": result_dtype})
        internal_dtype = int64 if ints else float64
        indices = self.node((), {"size": int(size), "dtype": internal_dtype})
        scaled = multiply(indices, scalar(step, internal_dtype, self.name))
        return cast(add(scaled, scalar(first, internal_dtype, self.name)), result_dtype)

    def infer(self, *, size: int, dtype: DType) -> Type:
        if size < 0 or dtype == bool_:
            raise ShapeError(f"arange: expected a size >= 0 and not bool; got {size}, {dtype}")
        return Type(dtype, (size,))

    def lower(self, **attrs: Any) -> tuple[str, dict[str, Any]]:
        return "iota", {"axis": 0}

    def expand(self, *, size: int, dtype: DType) -> Node:
        return constant_node(self.reference(size=size, dtype=dtype))

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return ()

    def reference(self, *, size: int, dtype: DType) -> Array:
        return narrow(np.arange(size), dtype)

    def samples(self) -> Iterable[Sample]:
        for dtype in NUMBERS:
            yield Sample((), {"size": 5, "dtype": dtype})
        yield Sample((), {"size": 0, "dtype": int64})


arange: Final[Arange] = register(Arange())


class OneHot(Op):
    """Return 1 at each index along a new last axis, and 0 elsewhere: [...] becomes [..., depth].

    Parameters
    ----------
    indices
        Integers of any shape. An index outside of [0, depth) gives zeros.
    depth
        The extent of the new axis, an int >= 0.
    dtype
        The dtype of the result.

    Examples
    --------
    ::

        >>> ngd.function(lambda i: ops.one_hot(i, 3))(np.array([2, 0, -1]))
        array([[0., 0., 1.],
               [1., 0., 0.],
               [0., 0., 0.]], dtype=float32)
    """

    name = "one_hot"
    dtypes = INDICES

    def __call__(self, indices: Value, depth: int, dtype: Any = float32) -> Node:
        chosen = as_indices(indices, self.name)
        return self.node((chosen,), {"depth": int(depth), "dtype": as_dtype(dtype, self.name)})

    def infer(self, indices: Type, *, depth: int, dtype: DType) -> Type:
        expect_dtype(self.name, (indices,), self.dtypes)
        if depth < 0:
            raise ShapeError(f"one_hot: expected a depth >= 0; got {depth}")
        return Type(dtype, (*indices.shape, depth))

    def expand(self, indices: Node, *, depth: int, dtype: DType) -> Node:
        return cast(equal(expand_dims(indices, -1), arange(depth, dtype=indices.dtype)), dtype)

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (None,)

    def reference(self, indices: Array, *, depth: int, dtype: DType) -> Array:
        return narrow(indices[..., None] == np.arange(depth), dtype)

    def samples(self) -> Iterable[Sample]:
        yield Sample((Operand((4,), -1, 3),), {"depth": 3, "dtype": float32})
        yield Sample((Operand((2, 2), 0, 4),), {"depth": 5, "dtype": int32})
        yield Sample((Operand((), 0, 1),), {"depth": 2, "dtype": bool_})


one_hot: Final[OneHot] = register(OneHot())


def _bound(where_: str, name: str, value: Value) -> Node:
    """Return `value`, an end point of a range, as a scalar node.

    `where_` and `name` are the names of the public op and of its argument, for error messages.
    """
    node = as_node(value, where=where_)
    if node.shape:
        raise ShapeError(
            f"{where_}: expected {name} as a scalar; got {node.type}. Take one element: x[0]."
        )
    return node


@public
def linspace(
    start: Value,
    stop: Value,
    num: int = 50,
    endpoint: bool = True,
    dtype: Any = None,
) -> Node:
    """Return evenly spaced numbers between two scalars, as numpy.linspace.

    Parameters
    ----------
    start, stop
        The first and the last number. They may be nodes; gradients flow to them.
    num
        The number of elements of the result, an int >= 0.
    endpoint
        If False, the result does not include stop, and the distance is (stop - start) / num.
    dtype
        The dtype of the result. The default is the floating dtype of the nodes and arrays among
        start and stop, or float32 if both are Python numbers.

    Returns
    -------
    Node
        An array [num].

    Examples
    --------
    ::

        >>> ngd.function(lambda: ops.linspace(0, 1, 5))()
        array([0.  , 0.25, 0.5 , 0.75, 1.  ], dtype=float32)
    """
    count = operator.index(num)
    if count < 0:
        raise ShapeError(f"linspace: expected num >= 0; got {num}")
    arrays = [x for x in (start, stop) if not is_weak(x)]
    first, last = (_bound("linspace", n, x) for n, x in (("start", start), ("stop", stop)))
    if dtype is not None:
        result_dtype = as_dtype(dtype, "linspace")
    else:
        result_dtype = float_of(align("linspace", *arrays)[0].dtype) if arrays else float32
    internal_dtype = float64 if result_dtype == float64 or not arrays else float32
    first, last = cast(first, internal_dtype), cast(last, internal_dtype)
    steps = count - 1 if endpoint else count
    part = cast(arange(count), internal_dtype) / max(steps, 1)
    points = first + part * (last - first)
    if endpoint and count > 1:  # the last element is exactly stop
        points = where(equal(part, 1), last, points)
    return cast(points, result_dtype)


@public
def eye(rows: int, columns: int | None = None, k: int = 0, dtype: Any = float32) -> Node:
    """Return a matrix of ones on diagonal number k, and zeros elsewhere, as numpy.eye.

    Parameters
    ----------
    rows, columns
        The shape. The default number of columns is the number of rows.
    k
        The diagonal: 0 is the main one, k > 0 is above it, k < 0 below.
    dtype
        The dtype of the result.

    Examples
    --------
    ::

        >>> ngd.function(lambda: ops.eye(2, 3))()
        array([[1., 0., 0.],
               [0., 1., 0.]], dtype=float32)
    """
    if rows < 0 or (columns is not None and columns < 0):
        raise ShapeError(f"eye: expected extents >= 0; got {rows} and {columns}")
    line = arange(rows if columns is None else columns)
    return cast(equal(line, expand_dims(arange(rows), 1) + operator.index(k)), dtype)


@public
def meshgrid(*xi: Value, indexing: str = "xy", sparse: bool = False) -> tuple[Node, ...]:
    """Return the coordinates of the points of a grid, as numpy.meshgrid.

    Parameters
    ----------
    xi
        The coordinates along each axis: arrays of one axis, or scalars.
    indexing
        "xy" (Cartesian): the second axis of the results is that of the first array. "ij": axes are
        in the order of the arrays.
    sparse
        If True, each result has extent 1 along the axes of the other arrays.

    Returns
    -------
    tuple of Node
        An array for each of xi.

    Examples
    --------
    ::

        >>> ngd.function(lambda: ops.meshgrid([1, 2, 3], [4, 5]))()[1]
        array([[4, 4, 4],
               [5, 5, 5]])
    """
    if indexing not in ("xy", "ij"):
        raise ValueError(f'meshgrid: expected indexing "xy" or "ij"; got {indexing!r}')
    lines = [as_node(x, where="meshgrid") for x in xi]
    for line in lines:
        if line.ndim > 1:
            raise ShapeError(
                f"meshgrid: expected tensors of one axis; got {line.type}. Reshape them: "
                "x.reshape(-1)."
            )
    axes = list(range(len(lines)))
    if indexing == "xy" and len(lines) > 1:
        axes[:2] = [1, 0]
    shape = [0] * len(lines)
    for line, axis in zip(lines, axes, strict=True):
        shape[axis] = line.type.count
    grids = []
    for line, axis in zip(lines, axes, strict=True):
        line_shape = [1] * len(lines)
        line_shape[axis] = line.type.count
        grid = reshape(line, line_shape)
        grids.append(grid if sparse else broadcast_to(grid, shape))
    return tuple(grids)
