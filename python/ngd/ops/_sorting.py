# SPDX-License-Identifier: Apache-2.0
"""Elements in the order of their size. NaN is larger than any number; equals keep their order."""

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
    """top_k(x, k, axis=-1, largest=True): the k largest, or smallest, and their places (int64).

    The most extreme one comes first, of equals the one of the smaller place; NaN counts as the
    largest. A node sorts along the last axis. Attrs: k, largest.
    """

    name = "top_k"
    batching = "leading"
    dtypes = NUMBERS

    def __call__(self, x: Value, k: int, axis: int = -1, largest: bool = True) -> tuple[Node, Node]:
        x = as_node(x, where=self.name)
        along = as_axis(self.name, axis, x.ndim, x.type)
        line = moveaxis(cast(x, uint8) if x.dtype == bool_ else x, along, -1)
        values, places = self.node((line,), {"k": int(k), "largest": bool(largest)}).results
        return cast(moveaxis(values, -1, along), x.dtype), moveaxis(places, -1, along)

    def infer(self, x: Type, *, k: int, largest: bool) -> tuple[Type, ...]:
        expect_dtype(self.name, (x,), self.dtypes)
        if not x.shape or not 0 <= k <= x.shape[-1]:
            raise ShapeError(
                f"top_k: expected an axis of at least {k} elements; got {x}. Set a smaller k."
            )
        shape = (*x.shape[:-1], k)
        return Type(x.dtype, shape), Type(int64, shape)

    def grad(self, node: Node, dy: tuple[Node | None, Node | None]) -> Sequence[Node | None]:
        (x,), (_, places), (d_values, _) = node.inputs, node.results, dy
        if d_values is None:
            return (None,)
        return (add_along_axis(d_values, places, x.ndim - 1, x.shape[-1]),)

    def reference(self, x: Array, *, k: int, largest: bool) -> tuple[Array, ...]:
        wide = widen(x)
        if largest:  # of equals the first comes first where a stable sort goes from the back
            backwards = np.argsort(wide[..., ::-1], axis=-1, kind="stable")[..., ::-1]
            order = x.shape[-1] - 1 - backwards
        else:
            order = np.argsort(wide, axis=-1, kind="stable")
        places = narrow(order[..., :k], int64)
        return np.take_along_axis(x, places, -1), places

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
    node = as_node(x, where=where)
    along = as_axis(where, axis, node.ndim, node.type)
    return top_k(node, node.shape[along], along, largest=descending)


@public
def sort(x: Value, axis: int = -1, descending: bool = False) -> Node:
    """Sort along an axis; NaN comes last, or first where the order descends."""
    return _sorted("sort", x, axis, descending)[0]


@public
def argsort(x: Value, axis: int = -1, descending: bool = False) -> Node:
    """Name the places of the elements in their order (int64); equals keep theirs."""
    return _sorted("argsort", x, axis, descending)[1]
