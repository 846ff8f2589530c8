# SPDX-License-Identifier: Apache-2.0
"""Take elements at indices (take), and add elements at indices (scatter_add, its adjoint)."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np

from ..dtypes import ALL, INTEGERS, NUMBERS, Array, Type, int32, int64, parse_shape
from ..errors import DTypeError, ShapeError
from ..graph.node import Node, Op
from ..graph.registry import register
from ..graph.samples import Operand, Sample
from ..graph.traits import Kernel
from ._casting import cast
from ._operands import INDICES, Value, as_axis, as_node, check_indices, expect_dtype, narrow, widen

__all__ = ["scatter_add", "take"]


def as_indices(indices: Value, where: str, name: str = "indices") -> Node:
    """Return indices as a node of int32 or int64. `name` is the argument's name in messages."""
    node = as_node(indices, where=where)
    if node.dtype not in INTEGERS:
        raise DTypeError(
            f"{where}: expected integer {name}; got {node.type}. Cast: {name}.astype('int64')."
        )
    return node if node.dtype in INDICES else cast(node, int64)


class Take(Op):
    """Return the elements at indices along an axis, as numpy.take.

    Parameters
    ----------
    x
        An array of any dtype.
    indices
        Integers of any shape. Negative indices count from the end.
    axis
        The axis of x that the indices refer to. The axes of the indices replace it in the result.

    Raises
    ------
    OutOfRangeError
        At run time: an index is out of range. The error is also an IndexError and
        a ValueError.

    Examples
    --------
    ::

        >>> ngd.function(lambda x: ops.take(x, [2, 0], axis=1))(np.arange(6.0).reshape(2, 3))
        array([[2., 0.],
               [5., 3.]])
    """

    # Attributes of a node: axis; caller, the public op that error messages name; negative, which is
    # False if negative indices are an error.
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
    """Return zeros to which updates are added at indices along an axis. It is the adjoint of take.

    Parameters
    ----------
    updates
        Numbers of the shape first + indices.shape + rest. The result has the shape
        first + (size,) + rest: `first` has the extents before `axis`, and `rest` those after it.
    indices
        Integers. Negative indices count from the end. Updates with equal indices are added up.
    axis
        The axis of the result that the indices refer to.
    size
        The extent of the result along this axis, an int.

    Raises
    ------
    ShapeError
        The shapes do not fit.
    OutOfRangeError
        At run time: an index is out of range. The error is also an IndexError and
        a ValueError.

    Notes
    -----
    16-bit floats are accumulated in float32 and rounded once.

    Examples
    --------
    ::

        >>> ngd.function(lambda x: ops.scatter_add(x, [3, 3], axis=0, size=5))(np.array([1.0, 2.0]))
        array([0., 0., 0., 3., 0.])
    """

    # Attributes of a node: axis; size, the extent of the result along the axis; caller and negative
    # as in `take`.
    name = "scatter_add"
    dtypes = NUMBERS

    def __call__(self, updates: Value, indices: Value, axis: int, size: int) -> Node:
        updates = as_node(updates, where=self.name)
        chosen = as_indices(indices, self.name)
        ndim = updates.ndim - chosen.ndim + 1
        along = as_axis(self.name, axis, ndim, updates.type)
        return self.node(
            (updates, chosen), {"axis": along, "size": parse_shape(size, self.name)[0]}
        )

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
