# SPDX-License-Identifier: Apache-2.0
"""Sorting. NaN is larger than every number. The sort is stable."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from ..dtypes import NUMBERS, Array, Type, bool_, int64, uint8
from ..errors import ShapeError
from ..graph.node import Node, Op
from ..graph.registry import public, register
from ..graph.samples import Operand, Sample
from ._along_axis import add_along_axis
from ._casting import cast
from ._operands import Value, as_axis, as_node, expect_dtype, narrow, widen
from ._rearrangement import moveaxis

__all__ = ["argsort", "sort", "top_k"]


class TopK(Op):
    """Return the k largest or smallest elements along an axis, and their indices (int64).

    The most extreme element comes first. Of equal elements, the one with the smaller index comes
    first. NaN counts as the largest number.

    Parameters
    ----------
    x : node or array
        Numbers of any shape.
    k : int
        The number of elements to return.
    axis : int, default -1
        The axis to search along.
    largest : bool, default True
        If True, return the largest elements, else the smallest.

    Returns
    -------
    tuple of Node
        The elements and their indices along the axis.

    Raises
    ------
    ShapeError
        The axis has fewer than k elements, or does not exist.

    Examples
    --------
    ::

        >>> ngd.function(lambda x: ops.top_k(x, 2))(np.array([3.0, 1.0, 2.0]))
        (array([3., 2.]), array([0, 2]))
    """

    # A node sorts along the last axis. Attributes of a node: k, largest.
    name = "top_k"
    batching = "leading"
    dtypes = NUMBERS

    def __call__(self, x: Value, k: int, axis: int = -1, largest: bool = True) -> tuple[Node, Node]:
        x = as_node(x, where=self.name)
        sorted_axis = as_axis(self.name, axis, x.ndim, x.type)
        axis_last = moveaxis(cast(x, uint8) if x.dtype == bool_ else x, sorted_axis, -1)
        values, indices = self.node((axis_last,), {"k": int(k), "largest": bool(largest)}).results
        return cast(moveaxis(values, -1, sorted_axis), x.dtype), moveaxis(indices, -1, sorted_axis)

    def infer(self, x: Type, *, k: int, largest: bool) -> tuple[Type, ...]:
        expect_dtype(self.name, (x,), self.dtypes)
        if not x.shape or not 0 <= k <= x.shape[-1]:
            raise ShapeError(
                f"top_k: expected an axis of at least {k} elements; got {x}. Set a smaller k."
            )
        shape = (*x.shape[:-1], k)
        return Type(x.dtype, shape), Type(int64, shape)

    def grad(self, node: Node, dy: tuple[Node | None, Node | None]) -> Sequence[Node | None]:
        (x,), (_, indices), (d_values, _) = node.inputs, node.results, dy
        if d_values is None:
            return (None,)
        return (add_along_axis(d_values, indices, x.ndim - 1, x.shape[-1]),)

    def reference(self, x: Array, *, k: int, largest: bool) -> tuple[Array, ...]:
        wide = widen(x)
        # A stable sort of the reversed elements, read backwards, keeps the order of equal elements.
        if largest:
            backwards = np.argsort(wide[..., ::-1], axis=-1, kind="stable")[..., ::-1]
            order = x.shape[-1] - 1 - backwards
        else:
            order = np.argsort(wide, axis=-1, kind="stable")
        indices = narrow(order[..., :k], int64)
        return np.take_along_axis(x, indices, -1), indices

    def samples(self) -> Iterable[Sample]:
        for shape, k, largest in (
            ((7,), 3, True),
            ((2, 3, 4), 1, True),
            ((5, 33), 33, True),
            ((0, 3), 2, True),
            ((2, 0), 0, True),
            ((2, 9), 4, False),
            ((3, 33), 33, False),
        ):
            yield Sample((Operand(shape, distinct=True),), {"k": k, "largest": largest})


top_k: Final[TopK] = register(TopK())


def _sorted(where: str, x: Value, axis: int, descending: bool) -> tuple[Node, Node]:
    """Return x sorted along an axis, and the index in x of each sorted element."""
    node = as_node(x, where=where)
    sorted_axis = as_axis(where, axis, node.ndim, node.type)
    return top_k(node, node.shape[sorted_axis], sorted_axis, largest=descending)


@public
def sort(x: Value, axis: int = -1, descending: bool = False) -> Node:
    """Sort along an axis. NaN comes last, or first in descending order.

    Parameters
    ----------
    x : node or array
        Numbers of any shape.
    axis : int, default -1
        The axis to sort along.
    descending : bool, default False
        If True, sort in descending order.

    Raises
    ------
    ShapeError
        The axis does not exist.

    Examples
    --------
    ::

        >>> ngd.function(lambda x: ops.sort(x))(np.array([3.0, 1.0, 2.0]))
        array([1., 2., 3.])
    """
    return _sorted("sort", x, axis, descending)[0]


@public
def argsort(x: Value, axis: int = -1, descending: bool = False) -> Node:
    """Return the indices that sort x along an axis, int64. Equal elements keep their order.

    Parameters
    ----------
    x : node or array
        Numbers of any shape.
    axis : int, default -1
        The axis to sort along.
    descending : bool, default False
        If True, sort in descending order.

    Raises
    ------
    ShapeError
        The axis does not exist.

    Examples
    --------
    ::

        >>> ngd.function(lambda x: ops.argsort(x))(np.array([3.0, 1.0, 2.0]))
        array([1, 2, 0])
    """
    return _sorted("argsort", x, axis, descending)[1]
