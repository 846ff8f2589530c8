# SPDX-License-Identifier: Apache-2.0
"""Join arrays along an axis, and split an array into parts."""

from __future__ import annotations

import builtins
import operator
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Any, Final

import numpy as np

from ..dtypes import ALL, Array, Shape, Type
from ..errors import ShapeError
from ..graph.node import Node, Op
from ..graph.registry import public, register
from ..graph.samples import Operand, Sample
from ..graph.traits import Kernel
from ._creation import zeros
from ._elementwise import align
from ._operands import Value, as_axis, as_node, describe_types, expect_dtype
from ._shape import expand_dims, transpose_cheaply
from ._slicing import slice

__all__ = ["concat", "split", "stack"]


def expect_list(where: str, values: Any) -> Sequence[Value]:
    """Return `values`, the arrays to join, as a list. Raise TypeError if `values` is a node."""
    if isinstance(values, Node):
        raise TypeError(
            f"{where}: expected a list of tensors; got {values!r}. Write {where}([a, b])."
        )
    return list(values)


class Concat(Op):
    """Join arrays along an axis.

    Parameters
    ----------
    values
        A list of arrays of any dtype, at least one. Their shapes differ only along the axis. They
        are promoted to one dtype.
    axis
        The axis along which they are joined.

    Raises
    ------
    ShapeError
        The shapes differ along another axis, or the list is empty.

    Examples
    --------
    ::

        >>> ngd.function(lambda x: ops.concat([x, 10 * x], axis=1))(np.array([[1.0], [2.0]]))
        array([[ 1., 10.],
               [ 2., 20.]])
    """

    name = "concat"
    batching = "axis"
    kernel = Kernel(is_copy=True)
    dtypes = ALL

    def __call__(self, values: Sequence[Value], axis: int = 0) -> Node:
        items = expect_list(self.name, values)
        if not items:
            raise ShapeError("concat: expected at least one tensor; got none")
        nodes = align(self.name, *items)
        along = as_axis(self.name, axis, nodes[0].ndim, nodes[0].type)
        return nodes[0] if len(nodes) == 1 else self.node(nodes, {"axis": along})

    def infer(self, *inputs: Type, axis: int) -> Type:
        dtype = expect_dtype(self.name, inputs, self.dtypes)
        others = {(*t.shape[:axis], *t.shape[axis + 1 :]) for t in inputs}
        if len(others) != 1 or len({len(t.shape) for t in inputs}) != 1:
            raise ShapeError(
                f"concat: expected shapes that differ only along axis {axis}; got "
                f"{describe_types(*inputs)}. Reshape or pad one."
            )
        shape = list(inputs[0].shape)
        shape[axis] = builtins.sum(t.shape[axis] for t in inputs)
        return Type(dtype, tuple(shape))

    def move_transpose(self, node: Node, axes: Shape) -> Node | None:
        joined = self.node([x.inputs[0] for x in node.inputs], {"axis": axes[node.attrs["axis"]]})
        return transpose_cheaply(joined, axes)

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        axis = node.attrs["axis"]
        ends = np.cumsum([x.shape[axis] for x in node.inputs])
        return split(dy, [int(n) for n in ends[:-1]], axis)

    def reference(self, *inputs: Array, axis: int) -> Array:
        return np.concatenate(inputs, axis)

    def samples(self) -> Iterable[Sample]:
        yield Sample((Operand((2,)), Operand((3,))), {"axis": 0})
        yield Sample((Operand((2, 3)), Operand((2, 1)), Operand((2, 0))), {"axis": 1})
        yield Sample((Operand((2, 3, 4)), Operand((5, 3, 4))), {"axis": 0})


concat: Final[Concat] = register(Concat())


class Split(Op):
    """Split an array into equal parts, or at indices, as numpy.split.

    Parameters
    ----------
    x
        An array of any dtype.
    sections
        The number of equal parts, or the ascending indices at which the array is split.
    axis
        The axis that is split.

    Returns
    -------
    tuple of Node
        The parts, in order.

    Raises
    ------
    ShapeError
        The number of parts does not divide the extent, or the indices do not ascend.

    Examples
    --------
    ::

        >>> ngd.function(lambda x: ops.split(x, 2))(np.arange(4.0))
        (array([0., 1.]), array([2., 3.]))
        >>> ngd.function(lambda x: ops.split(x, [1]))(np.arange(4.0))
        (array([0.]), array([1., 2., 3.]))
    """

    # The attribute `sizes` has the extent of each part. Parts along the outermost axis are views.
    name = "split"
    batching = "axis"
    kernel = Kernel(is_copy=True)
    dtypes = ALL

    def __call__(self, x: Value, sections: int | Sequence[int], axis: int = 0) -> tuple[Node, ...]:
        x = as_node(x, where=self.name)
        along = as_axis(self.name, axis, x.ndim, x.type)
        n = x.shape[along]
        if isinstance(sections, (int, np.integer)):
            if sections < 1 or n % sections:
                raise ShapeError(
                    f"split: expected a number that divides the {n} elements along axis {axis} "
                    f"of {x.type}; got {sections}. Give the indices to split at, such as [1], for "
                    "sections of different sizes."
                )
            sizes = (n // int(sections),) * int(sections)
        else:
            bounds = [0, *(range(n)[: operator.index(cut)].stop for cut in sections), n]
            if bounds != sorted(bounds):
                raise ShapeError(f"split: expected ascending indices; got {sections}. Sort them.")
            sizes = tuple(end - begin for begin, end in pairwise(bounds))
        return self.node((x,), {"sizes": sizes, "axis": along}).results

    def infer(self, x: Type, *, sizes: Shape, axis: int) -> tuple[Type, ...]:
        if builtins.sum(sizes) != x.shape[axis]:
            raise ShapeError(
                f"split: expected sizes that fill axis {axis} of {x}; got {sizes}. Give sizes "
                "whose sum is the extent."
            )
        before, after = x.shape[:axis], x.shape[axis + 1 :]
        return tuple(Type(x.dtype, (*before, size, *after)) for size in sizes)

    def grad(self, node: Node, dy: tuple[Node | None, ...]) -> Sequence[Node | None]:
        parts = zip(dy, node.results, strict=True)
        adjoints = [zeros(r.shape, r.dtype) if d is None else d for d, r in parts]
        return (concat(adjoints, node.attrs["axis"]),)

    def expand(self, x: Node, *, sizes: Shape, axis: int) -> tuple[Node, ...]:
        before = (builtins.slice(None),) * axis
        bounds = pairwise(accumulate(sizes, initial=0))
        return tuple(slice(x, (*before, builtins.slice(a, b))) for a, b in bounds)

    def reference(self, x: Array, *, sizes: Shape, axis: int) -> tuple[Array, ...]:
        return tuple(np.split(x, list(accumulate(sizes))[:-1], axis))

    def samples(self) -> Iterable[Sample]:
        yield Sample((Operand((6,)),), {"sizes": (2, 0, 3, 1), "axis": 0})
        yield Sample((Operand((4, 3)),), {"sizes": (3, 1), "axis": 0})
        yield Sample((Operand((2, 5, 3)),), {"sizes": (1, 4), "axis": 1})
        yield Sample((Operand((1, 4, 2)),), {"sizes": (2, 2), "axis": 1})
        yield Sample((Operand((3, 2)),), {"sizes": (2,), "axis": 1})


split: Final[Split] = register(Split())


@public
def stack(values: Sequence[Value], axis: int = 0) -> Node:
    """Join arrays of one shape along a new axis.

    Parameters
    ----------
    values
        A list of arrays of one shape. They are promoted to one dtype.
    axis
        The index of the new axis in the result.

    Raises
    ------
    ShapeError
        The shapes differ.

    Examples
    --------
    ::

        >>> ngd.function(lambda x: ops.stack([x, 10 * x]))(np.array([1.0, 2.0]))
        array([[ 1.,  2.],
               [10., 20.]])
    """
    nodes = align("stack", *expect_list("stack", values))
    if len({n.shape for n in nodes}) != 1:
        types = describe_types(*(n.type for n in nodes))
        raise ShapeError(f"stack: expected tensors of one shape; got {types}. Reshape or pad them.")
    return concat([expand_dims(n, axis) for n in nodes], axis)
