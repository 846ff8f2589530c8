# SPDX-License-Identifier: Apache-2.0
"""Basic indexing, x[a:b], and its adjoint, which pads with zeros."""

from __future__ import annotations

import builtins
import operator
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np

from ..dtypes import ALL, Array, Shape, Type
from ..errors import DTypeError, ShapeError
from ..graph.node import Node, Op
from ..graph.registry import register
from ..graph.samples import Operand, Sample
from ..graph.traits import Kernel
from ._operands import Value, as_node, as_shape
from ._shape import inverse, moved, reshape

__all__ = ["slice"]


class Slice(Op):
    """x[index]: ints, slices of any step, None and ..., as NumPy's basic indexing.

    Attrs: an axis of the result holds `sizes` elements, from `starts` on, `steps` apart. Axes that
    an int removes and None inserts are left to a reshape behind it.
    """

    name = "slice"
    kernel = Kernel(is_copy=True, is_view=True)
    dtypes = ALL

    def __call__(self, x: Value, index: Any) -> Node:
        x = as_node(x, where=self.name)
        ranges, shape = basic_index(x.type, index if isinstance(index, tuple) else (index,))
        attrs = {
            "starts": tuple(r.start for r in ranges),
            "sizes": tuple(len(r) for r in ranges),
            "steps": tuple(r.step for r in ranges),
        }
        whole = all(r == range(n) for r, n in zip(ranges, x.shape, strict=True))
        return reshape(x if whole else self.node((x,), attrs), shape)

    def infer(self, x: Type, *, starts: Shape, sizes: Shape, steps: Shape) -> Type:
        for n, start, size, step in zip(x.shape, starts, sizes, steps, strict=True):
            if size and not (0 <= start < n and 0 <= start + (size - 1) * step < n):
                raise ShapeError(
                    f"slice: expected a part of {x}; got starts {starts}, sizes {sizes}, "
                    f"steps {steps}"
                )
        return Type(x.dtype, sizes)

    def move_transpose(self, node: Node, axes: Shape) -> Node | None:
        back = inverse(axes)
        attrs = {key: tuple(values[a] for a in back) for key, values in node.attrs.items()}
        return moved(self.node(node.inputs[0].inputs, attrs), axes)

    def offset(self, x: Type, *, starts: Shape, sizes: Shape, steps: Shape) -> int | None:
        """Nothing is moved where the elements taken stand side by side."""
        if 0 in sizes:
            return 0
        begin, stride, whole = 0, x.dtype.itemsize, True  # whole: of all axes behind
        for n, start, size, step in reversed(list(zip(x.shape, starts, sizes, steps, strict=True))):
            if size > 1 and not (whole and step == 1):
                return None
            begin += start * stride
            stride *= n
            whole = whole and size == n
        return begin

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        attrs = node.attrs
        return (pad_slice(dy, node.inputs[0].shape, attrs["starts"], attrs["steps"]),)

    def reference(self, x: Array, *, starts: Shape, sizes: Shape, steps: Shape) -> Array:
        return x[places(starts, sizes, steps)]

    def samples(self) -> Iterable[Sample]:
        for shape, starts, sizes, steps in (
            ((7,), (2,), (3,), (1,)),
            ((7,), (6,), (4,), (-2,)),
            ((4, 5), (1, 4), (3, 5), (1, -1)),
            ((3, 4, 5), (0, 1, 0), (2, 1, 3), (2, 1, 2)),
            ((3, 4), (0, 0), (0, 4), (1, 1)),
        ):
            yield Sample((Operand(shape),), {"starts": starts, "sizes": sizes, "steps": steps})


def basic_index(x: Type, index: tuple[Any, ...]) -> tuple[list[range], Shape]:
    """Resolve an index: the elements taken along each axis, and the shape of the result."""
    consuming = builtins.sum(i is not None and i is not Ellipsis for i in index)
    if consuming > len(x.shape):
        raise ShapeError(
            f"slice: expected at most {len(x.shape)} indices for {x}; got {consuming}. Leave some "
            "out."
        )
    if builtins.sum(i is Ellipsis for i in index) > 1:
        raise ShapeError("slice: expected at most one ...; got several. Remove one.")
    if all(i is not Ellipsis for i in index):
        index = (*index, Ellipsis)
    ranges: list[range] = []
    shape: list[int] = []
    for item in index:
        if item is None:
            shape.append(1)
        elif item is Ellipsis:
            skipped = x.shape[len(ranges) : len(ranges) + len(x.shape) - consuming]
            ranges += map(range, skipped)
            shape += skipped
        elif isinstance(item, builtins.slice):
            ranges.append(range(x.shape[len(ranges)])[item])
            shape.append(len(ranges[-1]))
        else:
            ranges.append(_one_place(x, len(ranges), item))
    return ranges, tuple(shape)


def _one_place(x: Type, axis: int, item: Any) -> range:
    try:
        if isinstance(item, (bool, np.bool_, Node)):
            raise TypeError
        place = operator.index(item)
    except TypeError:
        raise DTypeError(
            f"slice: expected ints, slices, None or ... as an index; got {item!r} "
            "(x[index] takes arrays of them, too)"
        ) from None
    n = x.shape[axis]
    if not -n <= place < n:
        raise ShapeError(
            f"slice: expected an index in [{-n}, {n}) for axis {axis} of {x}; got {place}"
        )
    return range(place % n, place % n + 1)


def places(starts: Shape, sizes: Shape, steps: Shape) -> tuple[builtins.slice, ...]:
    """Spell a slice node's attributes as an index of NumPy's."""
    index = []
    for start, size, step in zip(starts, sizes, steps, strict=True):
        stop = start + size * step
        index.append(builtins.slice(start, stop if stop >= 0 else None, step))
        if size == 0:
            index[-1] = builtins.slice(0, 0)
    return tuple(index)


slice: Final[Slice] = register(Slice())


class PadSlice(Op):
    """pad_slice(x, shape, starts, steps): zeros, with x written where slice would read it."""

    name = "pad_slice"
    kernel = Kernel(is_copy=True)
    public = False
    dtypes = ALL

    def __call__(self, x: Value, shape: Shape, starts: Shape, steps: Shape) -> Node:
        attrs = {"shape": as_shape(shape), "starts": as_shape(starts), "steps": as_shape(steps)}
        return self.node((as_node(x, where=self.name),), attrs)

    def infer(self, x: Type, *, shape: Shape, starts: Shape, steps: Shape) -> Type:
        for n, start, size, step in zip(shape, starts, x.shape, steps, strict=True):
            if size and not (0 <= start < n and 0 <= start + (size - 1) * step < n):
                raise ShapeError(
                    f"pad_slice: expected places inside {shape}; got {x} at starts {starts}, "
                    f"steps {steps}"
                )
        return Type(x.dtype, shape)

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        attrs = {
            "starts": node.attrs["starts"],
            "sizes": node.inputs[0].shape,
            "steps": node.attrs["steps"],
        }
        return (slice.node((dy,), attrs),)

    def reference(self, x: Array, *, shape: Shape, starts: Shape, steps: Shape) -> Array:
        result = np.zeros(shape, x.dtype)
        result[places(starts, x.shape, steps)] = x
        return result

    def samples(self) -> Iterable[Sample]:
        for part, shape, starts, steps in (
            ((3,), (7,), (2,), (1,)),
            ((4,), (7,), (6,), (-2,)),
            ((3, 5), (4, 5), (1, 4), (1, -1)),
            ((2, 1, 3), (3, 4, 5), (0, 1, 0), (2, 1, 2)),
            ((0, 4), (3, 4), (0, 0), (1, 1)),
        ):
            yield Sample((Operand(part),), {"shape": shape, "starts": starts, "steps": steps})


pad_slice: Final[PadSlice] = register(PadSlice())
