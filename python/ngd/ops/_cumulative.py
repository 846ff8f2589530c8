# SPDX-License-Identifier: Apache-2.0
"""Cumulative sums, products, maxima, minima and logsumexp along an axis."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import numpy as np

from ..dtypes import FLOATS, Array, Type, float32, float64, int64, uint64
from ..graph.node import Node, Op
from ..graph.registry import public, register
from ..graph.samples import Operand, Sample
from ._arithmetic import dtype_limits, maximum, minimum, multiply
from ._casting import cast
from ._composite import as_compute_dtype
from ._concatenation import concat
from ._creation import full
from ._exponentials import logaddexp
from ._operands import (
    Value,
    accumulator,
    as_axis,
    as_node,
    compute_dtype,
    expect_dtype,
    narrow,
    widen,
)
from ._shape import reshape

__all__ = ["cummax", "cummin", "cumprod", "cumsum", "logcumsumexp"]


class CumSum(Op):
    """Return the sum of each element and all elements before it, as numpy.cumsum.

    Parameters
    ----------
    x
        Numbers or bools of any shape. Bools and small integers become int64 or uint64.
    axis
        An axis. None, the default, sums along the flattened array.
    reverse
        If True, the sum of each element and all elements after it.

    Notes
    -----
    float32 is accumulated in float64, and 16-bit floats in float32. Each sum is rounded once.

    Examples
    --------
    ::

        >>> ngd.function(ops.cumsum)(np.array([1.0, 2.0, 3.0]))
        array([1., 3., 6.])
    """

    name = "cumsum"
    batching = "axis"
    dtypes = (int64, uint64, *FLOATS)

    def __call__(self, x: Value, axis: int | None = None, reverse: bool = False) -> Node:
        x = as_node(x, where=self.name)
        x = cast(x, accumulator(x.dtype))
        line = reshape(x, -1) if axis is None else x
        along = as_axis(self.name, 0 if axis is None else axis, line.ndim, x.type)
        return self.node((line,), {"axis": along, "reverse": bool(reverse)})

    def infer(self, x: Type, *, axis: int, reverse: bool) -> Type:
        expect_dtype(self.name, (x,), self.dtypes)
        return x

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (self.node((dy,), {**node.attrs, "reverse": not node.attrs["reverse"]}),)

    def reference(self, x: Array, *, axis: int, reverse: bool) -> Array:
        terms = x.astype(float64) if x.dtype == float32 else widen(x)
        order = np.flip(terms, axis) if reverse else terms
        sums = np.cumsum(order, axis, dtype=terms.dtype)
        return narrow(np.flip(sums, axis) if reverse else sums, x.dtype)

    def samples(self) -> Iterable[Sample]:
        for shape, axis in (((7,), 0), ((2, 5, 3), 1), ((3, 70), 0), ((2, 0), 1), ((0, 3), 1)):
            for reverse in (False, True):
                yield Sample((Operand(shape),), {"axis": axis, "reverse": reverse})


cumsum: Final[CumSum] = register(CumSum())


def _shift(x: Node, distance: int, axis: int, fill: float) -> Node:
    """Return x moved by `distance` towards the end of an axis, with `fill` at the start."""
    before = (slice(None),) * axis
    filling = full((*x.shape[:axis], distance, *x.shape[axis + 1 :]), fill, x.dtype)
    return concat([filling, x[(*before, slice(x.shape[axis] - distance))]], axis)


def _accumulate(
    where_: str, x: Node, axis: int | None, combine: Callable[[Node, Node], Node], identity: float
) -> Node:
    """Combine each element with all elements before it, in log2(n) rounds for n elements.

    `combine` is associative, and `identity` is its neutral element. After round k = 1, 2, ..., the
    value at index i is the combination of the 2 ** k elements that end at index i (Hillis and
    Steele, "Data parallel algorithms", CACM 29, 1986).
    """
    line = reshape(x, -1) if axis is None else x
    along = as_axis(where_, 0 if axis is None else axis, line.ndim, x.type)
    distance = 1
    while distance < line.shape[along]:
        line = combine(line, _shift(line, distance, along, identity))
        distance *= 2
    return line


@public
def cumprod(x: Value, axis: int | None = None) -> Node:
    """Return the product of each element and all elements before it, as numpy.cumprod.

    Parameters
    ----------
    x
        Numbers of any shape. Bools and small integers become int64 or uint64.
    axis
        An axis. None, the default, means the flattened array.

    Examples
    --------
    ::

        >>> ngd.function(ops.cumprod)(np.array([1.0, 2.0, 3.0]))
        array([1., 2., 6.])
    """
    node = as_node(x, where="cumprod")
    dtype = accumulator(node.dtype)
    operand = cast(node, compute_dtype(dtype))
    return cast(_accumulate("cumprod", operand, axis, multiply, 1), dtype)


@public
def cummax(x: Value, axis: int | None = None) -> Node:
    """Return the largest of each element and all elements before it, as numpy.maximum.accumulate.

    NaN propagates. torch.cummax also returns the indices; this op does not.

    Parameters
    ----------
    x
        Numbers of any shape.
    axis
        An axis. None, the default, means the flattened array.

    Examples
    --------
    ::

        >>> ngd.function(ops.cummax)(np.array([1, 3, 2, 5]))
        array([1, 3, 3, 5])
    """
    node = as_node(x, where="cummax")
    return _accumulate("cummax", node, axis, maximum, dtype_limits(node.dtype)[0])


@public
def cummin(x: Value, axis: int | None = None) -> Node:
    """Return the smallest of each element and all elements before it, as numpy.minimum.accumulate.

    NaN propagates.

    Parameters
    ----------
    x
        Numbers of any shape.
    axis
        An axis. None, the default, means the flattened array.

    Examples
    --------
    ::

        >>> ngd.function(ops.cummin)(np.array([4, 3, 5, 1]))
        array([4, 3, 3, 1])
    """
    node = as_node(x, where="cummin")
    return _accumulate("cummin", node, axis, minimum, dtype_limits(node.dtype)[1])


@public
def logcumsumexp(x: Value, axis: int | None = None) -> Node:
    """Return log(cumsum(exp(x))), without overflow.

    Parameters
    ----------
    x
        Floats of any shape. Integers become floats.
    axis
        An axis. None, the default, means the flattened array.

    Examples
    --------
    ::

        >>> ngd.function(ops.logcumsumexp)(np.array([0.0, 0.0, 1000.0]))
        array([   0.    ,    0.6931, 1000.    ])
    """
    operand, dtype = as_compute_dtype("logcumsumexp", x)
    return cast(_accumulate("logcumsumexp", operand, axis, logaddexp, -math.inf), dtype)
