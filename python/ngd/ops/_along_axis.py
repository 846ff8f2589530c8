# SPDX-License-Identifier: Apache-2.0
"""Indices that each line along an axis has of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from ..dtypes import ALL, NUMBERS, Array, Shape, Type, int32, int64
from ..errors import ShapeError
from ..graph.node import Node, Op
from ..graph.registry import register
from ..graph.samples import Operand, Sample
from ..graph.traits import Kernel, Numerics
from ._gathering import as_indices
from ._operands import (
    INDICES,
    Value,
    as_axis,
    as_node,
    broadcast_shapes,
    check_indices,
    expect_dtype,
    got,
    narrow,
    widen,
)
from ._shape import broadcast_to, moved

__all__ = ["take_along_axis"]


def _beside(shape: Shape, axis: int, extent: int) -> Shape:
    return (*shape[:axis], extent, *shape[axis + 1 :])


def _expect(where: str, x: Type, indices: Type, axis: int) -> None:
    expect_dtype(where, (indices,), INDICES)
    same_rank = len(x.shape) == len(indices.shape) > axis
    if not same_rank or _beside(x.shape, axis, 0) != _beside(indices.shape, axis, 0):
        raise ShapeError(
            f"{where}: expected indices of the tensor's shape but for axis {axis}; got "
            f"{got(x, indices)}. Reshape or broadcast the indices."
        )


_CASES: Final[tuple[tuple[Shape, Shape, int], ...]] = (
    ((5,), (3,), 0),
    ((4, 3), (4, 7), 1),
    ((4, 3), (2, 3), 0),
    ((2, 3, 5), (2, 4, 5), 1),
    ((2, 3), (0, 3), 0),
)
"""Tensor, indices, axis."""


class TakeAlongAxis(Op):
    """take_along_axis(x, indices, axis): numpy.take_along_axis; attrs: axis.

    Negative indices count from the end. One out of range is an OutOfRangeError, an IndexError and a
    ValueError, when the step runs.
    """

    name = "take_along_axis"
    batching = "axis"
    kernel = Kernel(is_copy=True)
    dtypes = ALL

    def __call__(self, x: Value, indices: Value, axis: int) -> Node:
        x, chosen = as_node(x, where=self.name), as_indices(indices, self.name)
        if x.ndim != chosen.ndim:
            types = got(x.type, chosen.type)
            raise ShapeError(
                f"{self.name}: expected as many axes in both; got {types}. Reshape the indices."
            )
        along = as_axis(self.name, axis, x.ndim, x.type)
        one = _beside(x.shape, along, 1), _beside(chosen.shape, along, 1)
        common = broadcast_shapes(self.name, *one)
        x = broadcast_to(x, _beside(common, along, x.shape[along]))
        chosen = broadcast_to(chosen, _beside(common, along, chosen.shape[along]))
        return self.node((x, chosen), {"axis": along})

    def infer(self, x: Type, indices: Type, *, axis: int) -> Type:
        _expect(self.name, x, indices, axis)
        return Type(x.dtype, indices.shape)

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        x, indices = node.inputs
        axis = node.attrs["axis"]
        attrs = {"axis": axis, "size": x.shape[axis], "caller": self.name}
        return add_along_axis.node((dy, indices), attrs), None

    def reference(self, x: Array, indices: Array, *, axis: int) -> Array:
        return np.take_along_axis(x, check_indices(self.name, indices, x.shape[axis]), axis)

    def samples(self) -> Iterable[Sample]:
        for number, (x, indices, axis) in enumerate(_CASES):
            n = x[axis]
            chosen = Operand(indices, -n, n - 1, dtype=(int64, int32)[number % 2])
            yield Sample((Operand(x), chosen), {"axis": axis})


take_along_axis: Final[TakeAlongAxis] = register(TakeAlongAxis())


class AddAlongAxis(Op):
    """add_along_axis(updates, indices, axis, size): the adjoint of take_along_axis.

    Zeros, with the updates added where take_along_axis reads. Two-byte floats are accumulated in
    float32 and rounded once. Attrs: axis, size; caller as take has it.
    """

    name = "add_along_axis"
    batching = "axis"
    numerics = Numerics(can_keep_16_bits=True)
    public = False
    dtypes = NUMBERS

    def __call__(self, updates: Node, indices: Node, axis: int, size: int) -> Node:
        return self.node((updates, indices), {"axis": axis, "size": size})

    def infer(
        self, updates: Type, indices: Type, *, axis: int, size: int, caller: str | None = None
    ) -> Type:
        expect_dtype(self.name, (updates,), self.dtypes)
        _expect(self.name, updates, indices, axis)
        if updates.shape != indices.shape:
            raise ShapeError(
                f"{self.name}: expected an index an update; got {got(updates, indices)}. Reshape "
                "the indices to the shape of the updates."
            )
        return Type(updates.dtype, _beside(updates.shape, axis, size))

    def move_transpose(self, node: Node, axes: Shape) -> Node | None:
        attrs = {**node.attrs, "axis": axes[node.attrs["axis"]]}
        return moved(self.node([i.inputs[0] for i in node.inputs], attrs), axes)

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return take_along_axis(dy, node.inputs[1], node.attrs["axis"]), None

    def reference(
        self, updates: Array, indices: Array, *, axis: int, size: int, caller: str | None = None
    ) -> Array:
        chosen = check_indices(caller or self.name, indices, size)
        total = np.zeros(_beside(updates.shape, axis, size), widen(updates).dtype)
        index: list[Array] = list(np.indices(updates.shape, sparse=True))
        index[axis] = chosen
        np.add.at(total, tuple(index), widen(updates))
        return narrow(total, updates.dtype)

    def samples(self) -> Iterable[Sample]:
        for number, (x, indices, axis) in enumerate(_CASES):
            n = x[axis]
            chosen = Operand(indices, -n, n - 1, dtype=(int64, int32)[number % 2])
            yield Sample((Operand(indices), chosen), {"axis": axis, "size": n})


add_along_axis: Final[AddAlongAxis] = register(AddAlongAxis())
