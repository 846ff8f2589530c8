# SPDX-License-Identifier: Apache-2.0
"""Ops that change the shape of an array or the order of its axes. They compute no values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np

from ..dtypes import ALL, Array, Shape, Type
from ..errors import ShapeError
from ..graph.node import Node, Op
from ..graph.registry import public, register
from ..graph.samples import Operand, Sample
from ..graph.traits import Kernel, Layout
from ._operands import Value, as_axis, as_node, as_shape, unchanged_operand

__all__ = ["broadcast_to", "expand_dims", "reshape", "squeeze", "stop_gradient", "transpose"]


def regroup_axes(old: Shape, new: Shape) -> list[tuple[range, range]]:
    """Return pairs (range of old axes, range of new axes) of a reshape from `old` to `new`.

    In each pair, the sizes of the old axes and those of the new axes have the same product. The
    ranges are as short as possible. For example, the reshape from (6, 4) to (2, 3, 4) returns
    [(range(0, 1), range(0, 2)), (range(1, 2), range(2, 3))], because 6 = 2 * 3 and 4 = 4. If an
    axis has size 0 or 1, the ranges are ambiguous, and the list is empty.
    """
    groups: list[tuple[range, range]] = []
    if math.prod(old) == 0 or 1 in old or 1 in new:
        return groups
    i = j = 0
    while i < len(old):
        begin, left, right = (i, j), old[i], new[j]
        while left != right:
            if left < right:
                i += 1
                left *= old[i]
            else:
                j += 1
                right *= new[j]
        i, j = i + 1, j + 1
        groups.append((range(begin[0], i), range(begin[1], j)))
    return groups


class Reshape(Op):
    """Return x with another shape. The row-major order of the elements does not change.

    Parameters
    ----------
    x : node or array
        An array of any shape and dtype.
    shape : int or sequence of int
        The new shape. One size may be -1; it is computed from the others.

    Raises
    ------
    ShapeError
        The shape has another number of elements than x.

    Examples
    --------
    ::

        >>> ngd.function(lambda x: ops.reshape(x, (3, -1)))(np.arange(6))
        array([[0, 1],
               [2, 3],
               [4, 5]])
    """

    # Attribute of a node: shape.
    name = "reshape"
    kernel = Kernel(is_view=True)
    dtypes = ALL

    def __call__(self, x: Value, shape: int | Sequence[int]) -> Node:
        x = as_node(x, where=self.name)
        extents = as_shape(shape)
        if extents.count(-1) == 1:
            i = extents.index(-1)
            known_count = math.prod(extents[:i] + extents[i + 1 :])
            if known_count <= 0 or x.type.count % known_count:
                raise ShapeError(
                    f"reshape: expected {x.type.count} elements as in {x.type}, and extents other "
                    f"than -1 that divide them; got {extents}. Choose extents whose product "
                    f"divides {x.type.count}."
                )
            extents = (*extents[:i], x.type.count // known_count, *extents[i + 1 :])
        return x if extents == x.shape else self.node((x,), {"shape": extents})

    def infer(self, x: Type, *, shape: Shape) -> Type:
        if any(n < 0 for n in shape) or math.prod(shape) != x.count:
            raise ShapeError(
                f"reshape: expected {x.count} elements as in {x}; got {shape}. Use -1 for one "
                "extent to compute it."
            )
        return Type(x.dtype, shape)

    def simplify(self, node: Node) -> Node | None:
        (x,) = node.inputs
        merged = x.op is self and node.type != x.type
        return self.node(x.inputs, node.attrs) if merged else unchanged_operand(node)

    def move_transpose(self, node: Node, axes: Shape) -> Node | None:
        (x,), groups = node.inputs, regroup_axes(node.inputs[0].shape, node.shape)
        moved_groups = sorted((axes[old[0]], old, new) for old, new in groups)
        for first, old, _ in moved_groups:
            if [axes[axis] for axis in old] != [*range(first, first + len(old))]:
                return None
        order = [axis for _, _, new in moved_groups for axis in new]
        if not moved_groups or len(order) != node.ndim:
            return None
        reshaped = self.node(x.inputs, {"shape": tuple(node.shape[axis] for axis in order)})
        return transpose_cheaply(reshaped, inverse(tuple(order)))

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (self(dy, node.inputs[0].shape),)

    def reference(self, x: Array, *, shape: Shape) -> Array:
        return x.reshape(shape)

    def samples(self) -> Iterable[Sample]:
        for old, new in (((2, 6), (3, 4)), ((), (1, 1)), ((4,), (2, 1, 2)), ((0, 3), (3, 0, 2))):
            yield Sample((Operand(old),), {"shape": new})


reshape: Final[Reshape] = register(Reshape())


class Transpose(Op):
    """Permute the axes.

    Parameters
    ----------
    x : node or array
        An array of any shape and dtype.
    axes : sequence of int, optional
        The order of the axes: axis i of the result is axis axes[i] of x. The default reverses the
        order.

    Raises
    ------
    ShapeError
        An axis is missing, occurs twice, or does not exist.

    Examples
    --------
    ::

        >>> ngd.function(ops.transpose)(np.array([[1, 2, 3], [4, 5, 6]]))
        array([[1, 4],
               [2, 5],
               [3, 6]])
    """

    # Attribute of a node: axes.
    name = "transpose"
    kernel = Kernel(is_copy=True)
    layout = Layout(is_transpose=True)
    dtypes = ALL

    def __call__(self, x: Value, axes: Sequence[int] | None = None) -> Node:
        x = as_node(x, where=self.name)
        if axes is None:
            order = tuple(reversed(range(x.ndim)))
        else:
            order = tuple(as_axis(self.name, a, x.ndim, x.type) for a in axes)
        return x if order == tuple(range(x.ndim)) else self.node((x,), {"axes": order})

    def infer(self, x: Type, *, axes: Shape) -> Type:
        if sorted(axes) != list(range(len(x.shape))):
            raise ShapeError(
                f"transpose: expected each axis of {x} once; got {axes}. Give an order of all "
                f"axes, such as {tuple(reversed(range(len(x.shape))))}."
            )
        return Type(x.dtype, tuple(x.shape[a] for a in axes))

    def lower(self, **attrs: Any) -> tuple[str, dict[str, Any]]:
        return self.name, {"permutation": attrs["axes"]}

    def simplify(self, node: Node) -> Node | None:
        (x,) = node.inputs
        if x.op is not self:
            return None
        return self(x.inputs[0], [x.attrs["axes"][axis] for axis in node.attrs["axes"]])

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (self(dy, inverse(node.attrs["axes"])),)

    def reference(self, x: Array, *, axes: Shape) -> Array:
        return np.transpose(x, axes)

    def samples(self) -> Iterable[Sample]:
        for shape, axes in (
            ((2, 3), (1, 0)),
            ((2, 3, 4), (2, 0, 1)),
            ((33, 18), (1, 0)),
            ((2, 3, 4, 5), (0, 2, 1, 3)),
            ((0, 3), (1, 0)),
        ):
            yield Sample((Operand(shape),), {"axes": axes})


transpose: Final[Transpose] = register(Transpose())


def inverse(axes: Shape) -> Shape:
    """Return the permutation of axes that undoes the given permutation."""
    return tuple(sorted(range(len(axes)), key=axes.__getitem__))


def transpose_cheaply(x: Node, axes: Shape) -> Node:
    """Return transpose(x, axes), in a form that copies as little as possible.

    The form is a reshape if only axes of size 1 move. If x is a broadcast, the operand of
    the broadcast is transposed, and the result is broadcast. If x is a transposition, both
    transpositions become one.
    """
    if x.op is broadcast_to:
        (operand,) = x.inputs
        full_rank = reshape(operand, (*(1,) * (x.ndim - operand.ndim), *operand.shape))
        return broadcast_to(transpose_cheaply(full_rank, axes), [x.shape[axis] for axis in axes])
    if x.op is transpose:
        x, axes = x.inputs[0], tuple(x.attrs["axes"][axis] for axis in axes)
    filled = [axis for axis in axes if x.shape[axis] != 1]
    if filled != sorted(filled):
        return transpose(x, axes)
    shape = tuple(x.shape[axis] for axis in axes)
    return reshape(x.inputs[0] if x.op is reshape else x, shape)


class BroadcastTo(Op):
    """Repeat an array along new axes and along axes of size 1, as numpy.broadcast_to.

    Parameters
    ----------
    x : node or array
        An array of any shape and dtype.
    shape : int or sequence of int
        The shape of the result.

    Raises
    ------
    ShapeError
        x does not broadcast to the shape.

    Examples
    --------
    ::

        >>> ngd.function(lambda x: ops.broadcast_to(x, (2, 3)))(np.array([1, 2, 3]))
        array([[1, 2, 3],
               [1, 2, 3]])
    """

    # Attribute of a node: shape.
    name = "broadcast_to"
    kernel = Kernel(is_broadcast=True, opcode="copy")
    dtypes = ALL

    def __call__(self, x: Value, shape: int | Sequence[int]) -> Node:
        x = as_node(x, where=self.name)
        extents = as_shape(shape)
        return x if extents == x.shape else self.node((x,), {"shape": extents})

    def infer(self, x: Type, *, shape: Shape) -> Type:
        pairs = zip(reversed(x.shape), reversed(shape), strict=False)
        fits = len(x.shape) <= len(shape) and all(a in (1, b) for a, b in pairs)
        if not fits or any(n < 0 for n in shape):
            raise ShapeError(
                f"broadcast_to: expected a shape that {x} broadcasts to; got {shape}. Reshape it "
                "first."
            )
        return Type(x.dtype, shape)

    def simplify(self, node: Node) -> Node | None:
        return unchanged_operand(node)

    def move_transpose(self, node: Node, axes: Shape) -> Node | None:
        (x,) = node.inputs
        if x.ndim != node.ndim:
            return None
        shape = tuple(node.shape[axis] for axis in inverse(axes))
        return transpose_cheaply(self.node(x.inputs, {"shape": shape}), axes)

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy,)

    def reference(self, x: Array, *, shape: Shape) -> Array:
        return np.broadcast_to(x, shape)

    def samples(self) -> Iterable[Sample]:
        for old, new in (((), (2, 3)), ((3,), (2, 3)), ((2, 1), (2, 4)), ((1, 3), (0, 3))):
            yield Sample((Operand(old),), {"shape": new})


broadcast_to: Final[BroadcastTo] = register(BroadcastTo())


class StopGradient(Op):
    """Return x, through which no gradient flows.

    Parameters
    ----------
    x : node or array
        An array of any shape and dtype.

    Examples
    --------
    ::

        >>> ngd.grad(lambda x: x * ops.stop_gradient(x))(np.array(3.0))
        array(3.)
    """

    name = "stop_gradient"
    kernel = Kernel(is_view=True)
    dtypes = ALL
    smooth = False

    def __call__(self, x: Value) -> Node:
        return self.node((as_node(x, where=self.name),))

    def infer(self, x: Type) -> Type:
        return x

    def expand(self, x: Node) -> Node:
        return x

    def simplify(self, node: Node) -> Node | None:
        return unchanged_operand(node)

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (None,)

    def reference(self, x: Array) -> Array:
        return x

    def samples(self) -> Iterable[Sample]:
        yield Sample((Operand((2, 3)),))


stop_gradient: Final[StopGradient] = register(StopGradient())


@public
def expand_dims(x: Value, axis: int) -> Node:
    """Insert an axis of size 1, as numpy.expand_dims.

    Parameters
    ----------
    x : node or array
        An array of any shape and dtype.
    axis : int
        The index of the new axis in the result.

    Examples
    --------
    ::

        >>> ngd.function(lambda x: ops.expand_dims(x, 0))(np.array([1, 2, 3]))
        array([[1, 2, 3]])
    """
    x = as_node(x, where="expand_dims")
    at = as_axis("expand_dims", axis, x.ndim + 1, x.type)
    return reshape(x, (*x.shape[:at], 1, *x.shape[at:]))


@public
def squeeze(x: Value, axis: int | Sequence[int] | None = None) -> Node:
    """Remove axes of size 1, as numpy.squeeze.

    Parameters
    ----------
    x : node or array
        An array of any shape and dtype.
    axis : int or sequence of int, optional
        The axis or axes to remove. The default removes all axes of size 1.

    Raises
    ------
    ShapeError
        An axis has another size, or does not exist.

    Examples
    --------
    ::

        >>> ngd.function(ops.squeeze)(np.array([[1, 2, 3]]))
        array([1, 2, 3])
    """
    x = as_node(x, where="squeeze")
    if axis is None:
        removed = {i for i, n in enumerate(x.shape) if n == 1}
    else:
        removed = {as_axis("squeeze", a, x.ndim, x.type) for a in as_shape(axis)}
    if any(x.shape[i] != 1 for i in removed):
        raise ShapeError(
            f"squeeze: expected axes of size 1; got {sorted(removed)} of {x.type}. Leave the other "
            "axes out, or join axes by ops.reshape."
        )
    return reshape(x, tuple(n for i, n in enumerate(x.shape) if i not in removed))
