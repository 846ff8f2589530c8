# SPDX-License-Identifier: Apache-2.0
"""Take elements by index, and add elements at indices, which is the adjoint."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np

from ..dtypes import ALL, INTEGERS, NUMBERS, Array, Type, int32, int64, lengths
from ..errors import DTypeError, ShapeError
from ..graph.node import Node, Op
from ..graph.registry import register
from ..graph.samples import Operand, Sample
from ..graph.traits import Kernel
from ._casting import cast
from ._operands import INDICES, Value, as_axis, as_node, check_indices, expect_dtype, narrow, widen

__all__ = ["scatter_add", "take"]


def as_indices(indices: Value, where: str, name: str = "indices") -> Node:
    """Make indices or labels, by their `name`, int32 or int64; they must be integers."""
    node = as_node(indices, where=where)
    if node.dtype not in INTEGERS:
        raise DTypeError(
            f"{where}: expected integer {name}; got {node.type}. Cast: {name}.astype('int64')."
        )
    return node if node.dtype in INDICES else cast(node, int64)


class Take(Op):
    """take(x, indices, axis=0): numpy.take. Negative indices count from the end; attrs: axis.

    An index out of range is an OutOfRangeError, an IndexError and a ValueError, when the step runs.
    """

    name = "take"
    kernel = Kernel(is_copy=True)
    dtypes = ALL

    def __call__(self, x: Value, indices: Value, axis: int = 0) -> Node:
        x = as_node(x, where=self.name)
        along = as_axis(self.name, axis, x.ndim, x.type)
        return self.node((x, as_indices(indices, self.name)), {"axis": along})

    def infer(self, x: Type, indices: Type, *, axis: int, **checked: Any) -> Type:
        expect_dtype(self.name, (indices,), INDICES)
        return Type(x.dtype, (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        x, indices = node.inputs
        attrs = {"caller": self.name, **node.attrs, "size": x.shape[node.attrs["axis"]]}
        return scatter_add.node((dy, indices), attrs), None

    def reference(
        self,
        x: Array,
        indices: Array,
        *,
        axis: int,
        caller: str | None = None,
        negative: bool = True,
    ) -> Array:
        check_indices(caller or self.name, indices, x.shape[axis], negative=negative)
        return np.take(x, indices, axis=axis)

    def lower(self, **attrs: Any) -> tuple[str, dict[str, Any]]:
        return "gather", {"caller": self.name, **attrs}

    def samples(self) -> Iterable[Sample]:
        yield Sample((Operand((5,)), Operand((3,), -5, 4, dtype=int64)), {"axis": 0})
        yield Sample((Operand((4, 3)), Operand((), 0, 3, dtype=int32)), {"axis": 0})
        yield Sample((Operand((4, 3)), Operand((2, 2), -3, 2, dtype=int64)), {"axis": 1})
        yield Sample((Operand((2, 3, 4)), Operand((5,), 0, 2, dtype=int32)), {"axis": 1})
        yield Sample((Operand((2, 3)), Operand((0,), 0, 1, dtype=int64)), {"axis": 0})
        attrs = {"axis": 0, "caller": "embedding", "negative": False}
        yield Sample((Operand((4, 3)), Operand((2,), 0, 3, dtype=int64)), attrs)


take: Final[Take] = register(Take())


class ScatterAdd(Op):
    """scatter_add(updates, indices, axis, size): zeros, with the updates added where take reads.

    Two-byte floats are accumulated in float32 and rounded once. Attrs: axis, size; caller and
    negative. An index out of range is an OutOfRangeError when the step runs, as that of take.
    """

    name = "scatter_add"
    dtypes = NUMBERS

    def __call__(self, updates: Value, indices: Value, axis: int, size: int) -> Node:
        updates = as_node(updates, where=self.name)
        chosen = as_indices(indices, self.name)
        ndim = updates.ndim - chosen.ndim + 1
        along = as_axis(self.name, axis, ndim, updates.type)
        return self.node((updates, chosen), {"axis": along, "size": lengths(size, self.name)[0]})

    def infer(self, updates: Type, indices: Type, *, axis: int, size: int, **checked: Any) -> Type:
        expect_dtype(self.name, (updates,), self.dtypes)
        expect_dtype(self.name, (indices,), INDICES)
        end = axis + len(indices.shape)
        if updates.shape[axis:end] != indices.shape:
            raise ShapeError(
                f"scatter_add: expected the updates' axes from {axis} on to be those of the "
                f"indices; got {updates} and {indices}"
            )
        return Type(updates.dtype, (*updates.shape[:axis], size, *updates.shape[end:]))

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        attrs = {"caller": self.name, **node.attrs}
        del attrs["size"]
        return take.node((dy, node.inputs[1]), attrs), None

    def reference(
        self,
        updates: Array,
        indices: Array,
        *,
        axis: int,
        size: int,
        caller: str | None = None,
        negative: bool = True,
    ) -> Array:
        before, after = updates.shape[:axis], updates.shape[axis + indices.ndim :]
        total = np.zeros((*before, size, *after), widen(updates).dtype)
        chosen = check_indices(caller or self.name, indices, size, negative=negative)
        index: Any = (*(builtins.slice(None),) * axis, chosen)
        np.add.at(total, index, widen(updates))
        return narrow(total, updates.dtype)

    def samples(self) -> Iterable[Sample]:
        for updates, indices, axis, size in (
            ((3,), Operand((3,), -5, 4, dtype=int64), 0, 5),
            ((3,), Operand((), 0, 3, dtype=int32), 0, 4),
            ((4, 2, 2), Operand((2, 2), -3, 2, dtype=int64), 1, 3),
            ((2, 9, 4), Operand((9,), 0, 2, dtype=int32), 1, 3),
            ((0, 3), Operand((0,), 0, 1, dtype=int64), 0, 2),
        ):
            yield Sample((Operand(updates), indices), {"axis": axis, "size": size})


scatter_add: Final[ScatterAdd] = register(ScatterAdd())
