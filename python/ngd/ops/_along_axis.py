# SPDX-License-Identifier: Apache-2.0
"""The op take_along_axis, as numpy.take_along_axis, and the op for its adjoint."""

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
    describe_types,
    expect_dtype,
    narrow,
    widen,
)
from ._shape import broadcast_to, transpose_cheaply

__all__ = ["take_along_axis"]


def _with_extent(shape: Shape, axis: int, extent: int) -> Shape:
    return (*shape[:axis], extent, *shape[axis + 1 :])


def _expect(where: str, x: Type, indices: Type, axis: int) -> None:
    """Raise unless the indices are integers, of x's shape except along `axis`."""
    expect_dtype(where, (indices,), INDICES)
    same_rank = len(x.shape) == len(indices.shape) > axis
    if not same_rank or _with_extent(x.shape, axis, 0) != _with_extent(indices.shape, axis, 0):
        raise ShapeError(
            f"{where}: expected indices of the tensor's shape except axis {axis}; got "
            f"{describe_types(x, indices)}. Reshape or broadcast the indices."
        )


_CASES: Final[tuple[tuple[Shape, Shape, int], ...]] = (
    ((5,), (3,), 0),
    ((4, 3), (4, 7), 1),
    ((4, 3), (2, 3), 0),
    ((2, 3, 5), (2, 4, 5), 1),
    ((2, 3), (0, 3), 0),
)
"""One tuple per test sample: (shape of the array, shape of the indices, axis)."""


class TakeAlongAxis(Op):
    """Return the elements at the indices along an axis, as numpy.take_along_axis.

    Each 1-d slice of x along the axis has its own indices. ops.take uses the same indices for all
    slices.

    Parameters
    ----------
    x
        An array of any dtype.
    indices
        Integers, with the same number of axes as x. Negative indices count from the end. The other
        axes of x and of the indices broadcast.
    axis
        The axis of x that the indices refer to.

    Returns
    -------
    Node
        An array of the dtype of x. Its extent along the axis is that of the indices.

    Raises
    ------
    ShapeError
        x and indices have different numbers of axes, or their other axes do not broadcast, or x has
        no such axis.
    OutOfRangeError
        At run time: an index is out of range. The error is also an IndexError and
        a ValueError.

    Examples
    --------
    ::

        >>> x = np.array([[10, 20, 30], [40, 50, 60]])
        >>> ngd.function(lambda x: ops.take_along_axis(x, [[2], [0]], axis=1))(x)
        array([[30],
               [40]])
    """

    name = "take_along_axis"
    batching = "axis"
    kernel = Kernel(is_copy=True)
    dtypes = ALL

    def __call__(self, x: Value, indices: Value, axis: int) -> Node:
        x, chosen = as_node(x, where=self.name), as_indices(indices, self.name)
        if x.ndim != chosen.ndim:
            types = describe_types(x.type, chosen.type)
            raise ShapeError(
                f"{self.name}: expected the same number of axes in both; got {types}. Reshape "
                "the indices."
            )
        along = as_axis(self.name, axis, x.ndim, x.type)
        unit_shapes = _with_extent(x.shape, along, 1), _with_extent(chosen.shape, along, 1)
        common = broadcast_shapes(self.name, *unit_shapes)
        x = broadcast_to(x, _with_extent(common, along, x.shape[along]))
        chosen = broadcast_to(chosen, _with_extent(common, along, chosen.shape[along]))
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
    """The adjoint of take_along_axis: an array of zeros to which the op adds the updates.

    The operands are `updates` and `indices`, of equal shape. For axis 1 of two axes, the op adds
    updates[i, j] to result[i, indices[i, j]]. In the gradient of take_along_axis, `updates` is the
    adjoint of its result. 16-bit floats are accumulated in float32 and rounded once.

    Attributes of a node: axis; size, the extent of the result along the axis; caller, the name of
    the public op in error messages.
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
                f"{self.name}: expected one index per update; got "
                f"{describe_types(updates, indices)}. Reshape "
                "the indices to the shape of the updates."
            )
        return Type(updates.dtype, _with_extent(updates.shape, axis, size))

    def move_transpose(self, node: Node, axes: Shape) -> Node | None:
        attrs = {**node.attrs, "axis": axes[node.attrs["axis"]]}
        return transpose_cheaply(self.node([i.inputs[0] for i in node.inputs], attrs), axes)

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return take_along_axis(dy, node.inputs[1], node.attrs["axis"]), None

    def reference(
        self, updates: Array, indices: Array, *, axis: int, size: int, caller: str | None = None
    ) -> Array:
        chosen = check_indices(caller or self.name, indices, size)
        total = np.zeros(_with_extent(updates.shape, axis, size), widen(updates).dtype)
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
