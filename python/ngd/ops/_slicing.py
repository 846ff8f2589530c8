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
from ._shape import inverse, reshape, transpose_cheaply

__all__ = ["slice"]


class Slice(Op):
    """Return x[index] for ints, slices of any step, None and `...`, as NumPy's basic indexing.

    Parameters
    ----------
    x : node or array
        An array of any dtype.
    index : int, slice, None, `...`, or a tuple of them
        The index. ops.getitem also takes arrays and masks.

    Raises
    ------
    ShapeError
        An int is out of range, or there are too many indices.
    DTypeError
        An index has another type.

    Examples
    --------
    ::

        >>> x = np.arange(6).reshape(2, 3)
        >>> ngd.function(lambda x: ops.slice(x, (0, slice(1, None))))(x)
        array([1, 2])
    """

    # Attributes of a node, with one number per axis: the slice has `sizes` elements, from index
    # `starts` on, at a distance of `steps`. A slice keeps all axes: `x[index]` also reshapes the
    # result, to remove the axes of ints and to insert axes for None.
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
        is_whole = all(r == range(n) for r, n in zip(ranges, x.shape, strict=True))
        return reshape(x if is_whole else self.node((x,), attrs), shape)

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
        return transpose_cheaply(self.node(node.inputs[0].inputs, attrs), axes)

    def offset(self, x: Type, *, starts: Shape, sizes: Shape, steps: Shape) -> int | None:
        """Return the byte offset of the slice in x, if the slice is contiguous, else None.

        Contiguous means that the elements of the slice are adjacent in memory, in the order of the
        slice.
        """
        if 0 in sizes:
            return 0
        # is_whole: the slice has all elements of the axes that the loop has visited.
        begin, stride, is_whole = 0, x.dtype.itemsize, True
        for n, start, size, step in reversed(list(zip(x.shape, starts, sizes, steps, strict=True))):
            if size > 1 and not (is_whole and step == 1):
                return None
            begin += start * stride
            stride *= n
            is_whole = is_whole and size == n
        return begin

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        attrs = node.attrs
        return (pad_slice(dy, node.inputs[0].shape, attrs["starts"], attrs["steps"]),)

    def reference(self, x: Array, *, starts: Shape, sizes: Shape, steps: Shape) -> Array:
        return x[as_slices(starts, sizes, steps)]

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
    """Return (ranges, shape) of x[index]: the indices to read, and the result's shape.

    ranges[i] is a Python range of the indices along axis i of x, such as range(3, 4) for index 3.
    """
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
            ranges.append(_one_index(x, len(ranges), item))
    return ranges, tuple(shape)


def _one_index(x: Type, axis: int, item: Any) -> range:
    """Convert an int index of an axis to a range: -1 on an axis of size 4 gives range(3, 4)."""
    try:
        if isinstance(item, (bool, np.bool_, Node)):
            raise TypeError
        position = operator.index(item)
    except TypeError:
        raise DTypeError(
            f"slice: expected ints, slices, None or ... as an index; got {item!r} "
            "(x[index] takes arrays of them, too)"
        ) from None
    n = x.shape[axis]
    if not -n <= position < n:
        raise ShapeError(
            f"slice: expected an index in [{-n}, {n}) for axis {axis} of {x}; got {position}"
        )
    return range(position % n, position % n + 1)


def as_slices(starts: Shape, sizes: Shape, steps: Shape) -> tuple[builtins.slice, ...]:
    """Return the tuple of slices that NumPy needs, from the attributes of a node of the op slice.

    The attributes `starts`, `sizes` and `steps` have one number per axis.
    """
    index = []
    for start, size, step in zip(starts, sizes, steps, strict=True):
        stop = start + size * step
        index.append(builtins.slice(start, stop if stop >= 0 else None, step))
        if size == 0:
            index[-1] = builtins.slice(0, 0)
    return tuple(index)


slice: Final[Slice] = register(Slice())


class PadSlice(Op):
    """The adjoint of a slice: zeros, with the operand x at the indices that the slice reads."""

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
                    f"pad_slice: expected positions inside {shape}; got {x} at starts {starts}, "
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
        result[as_slices(starts, x.shape, steps)] = x
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
