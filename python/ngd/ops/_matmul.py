# SPDX-License-Identifier: Apache-2.0
"""Matrix multiplication."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np

from ..dtypes import FLOATS, NUMBERS, Array, DType, Shape, Type, is_float
from ..errors import ShapeError
from ..graph.cost import Cost
from ..graph.node import Node, Op
from ..graph.registry import register
from ..graph.samples import Operand, Sample
from ..graph.traits import Fusion, Numerics
from ._activation import ADDED, POSTS, adjoint_before_post, apply_post_operations, split_added
from ._elementwise import align
from ._operands import Value, broadcast_shapes, describe_types, narrow, product_dtype, widen
from ._shape import reshape, transpose

__all__ = ["matmul"]


def _shape_as_read(x: Shape, transposed: bool) -> Shape:
    """Return the shape `x` of an operand, with the last two sizes exchanged if `transposed`."""
    return (*x[:-2], x[-1], x[-2]) if transposed else x


def swaps_last_two(node: Node) -> bool:
    """Return True if a node is a transposition that exchanges the last two axes and no others."""
    if node.op is not transpose or node.ndim < 2:
        return False
    n = node.ndim
    return tuple(node.attrs["axes"]) == (*range(n - 2), n - 1, n - 2)


class MatMul(Op):
    """Return the matrix product, as numpy.matmul: [..., M, K] and [..., K, N] give [..., M, N].

    Parameters
    ----------
    a, b
        Numbers of at least one axis. They are promoted to one dtype. An operand of one axis is a
        vector, and its axis is not in the result. The axes before the last two broadcast.

    Raises
    ------
    ShapeError
        The extents K of a and b differ, the axes before the last two do not broadcast, or an
        operand is a scalar.

    Notes
    -----
    16-bit floats are accumulated in float32 and rounded once.

    Examples
    --------
    ::

        >>> ngd.function(ops.matmul)(np.arange(6.0).reshape(2, 3), np.ones((3, 2)))
        array([[ 3.,  3.],
               [12., 12.]])
    """

    # The operands of a node have two axes or more. The attributes transpose_a and transpose_b are
    # True if the kernel reads a or b with the last two axes exchanged. For floats, passes may add a
    # third operand, a bias along the result's last axis, and the attribute `post`, the names of the
    # post-operations (`Fusion.post_operations`). The post-operation "add" adds the last operand.
    # If the attribute `dtype` is float32 and the operands are 16-bit floats, the result is float32,
    # and the bias and the added operand may be float32.
    name = "matmul"
    numerics = Numerics(is_contraction=True)
    dtypes = NUMBERS
    fusion = Fusion(post_operations=(*POSTS, ADDED))

    def __call__(self, a: Value, b: Value) -> Node:
        a, b = align(self.name, a, b)
        if not a.ndim or not b.ndim:
            raise ShapeError(
                f"matmul: expected tensors, not scalars; got {describe_types(a.type, b.type)}. Use "
                "ops.multiply for a scalar."
            )
        row = reshape(a, (1, *a.shape)) if a.ndim == 1 else a
        column = reshape(b, (*b.shape, 1)) if b.ndim == 1 else b
        product = self._product(row, column)
        shape = list(product.shape)
        if b.ndim == 1:
            del shape[-1]
        if a.ndim == 1:
            del shape[-1 if b.ndim == 1 else -2]
        return reshape(product, shape)

    def _product(self, a: Node, b: Node) -> Node:
        """Return the product of operands with at least two axes.

        If a has more than two axes and b has two, a is reshaped to a matrix: [2, 3, 4] to [6, 4].
        The matmul reads a transposed operand without a copy (see `simplify`).
        """
        attrs = {"transpose_a": False, "transpose_b": False}
        if a.ndim > 2 and b.ndim == 2:  # one matmul for all batches, one for db
            rows = reshape(a, (math.prod(a.shape[:-1]), a.shape[-1]))
            return reshape(self._product(rows, b), (*a.shape[:-1], b.shape[-1]))
        node = self.node((a, b), attrs)
        # Read transposed operands in place, so that gradients have the layout of that array.
        while (simpler := self.simplify(node)) is not None:
            node = simpler
        return node

    def infer(
        self,
        *inputs: Type,
        transpose_a: bool = False,
        transpose_b: bool = False,
        post: tuple[str, ...] = (),
        dtype: DType | None = None,
    ) -> Type:
        dtype = product_dtype(self.name, inputs[:2], inputs[2:], self.dtypes, dtype)
        a, b = (
            _shape_as_read(x.shape, t)
            for x, t in zip(inputs, (transpose_a, transpose_b), strict=False)
        )
        if a[-1] != b[-2]:
            read = " (read transposed)" if transpose_a or transpose_b else ""
            raise ShapeError(
                f"matmul: expected the last axis of a to equal the second to last of b; "
                f"got {describe_types(*inputs)}{read}. Transpose one by ops.swapaxes, or reshape "
                "it."
            )
        posts = self.fusion.post_operations
        if post and not (is_float(dtype) and set(post) <= set(posts)):
            raise ValueError(f"matmul: expected post among {posts}, of floats; got {post}")
        result = Type(dtype, (*broadcast_shapes(self.name, a[:-2], b[:-2]), a[-2], b[-1]))
        (_, _, *bias), added = split_added(inputs, post)
        if bias and bias[0].shape != b[-1:]:
            raise ShapeError(f"matmul: expected a bias of shape {b[-1:]}; got {bias[0]}")
        if added is not None and added.shape != result.shape:
            raise ShapeError(f"matmul: expected {result} to add to the product; got {added}")
        return result

    def cost(self, operands: Sequence[Type], results: Sequence[Type], **attrs: Any) -> Cost:
        """Return the cost: a multiplication and an addition per term of the sums.

        A bias costs one operation per element of the result. So does each elementwise op, such as
        relu, that the matmul applies to its result (the attribute `post`).
        """
        depth = _shape_as_read(operands[0].shape, attrs["transpose_a"])[-1]
        kernel_operands, _ = split_added(operands, attrs.get("post", ()))
        extra = len(kernel_operands) - 2 + len(attrs.get("post", ()))
        return Cost.touching(results[0].count * (2 * depth + extra), (*operands, *results))

    def simplify(self, node: Node) -> Node | None:
        """Return a matmul without the transposition of an operand, or None if no operand has one.

        Only transpositions of the last two axes are removed. The new node has the attribute
        transpose_a or transpose_b instead, so that its kernel reads the operand transposed.
        """
        for i, attr in ((0, "transpose_a"), (1, "transpose_b")):
            if swaps_last_two(node.inputs[i]):
                inputs = list(node.inputs)
                inputs[i] = node.inputs[i].inputs[0]
                return self.node(inputs, {**node.attrs, attr: not node.attrs[attr]})
        return None

    def with_bias(self, node: Node, bias: Node) -> Node | None:
        if len(node.inputs) > 2 or node.attrs.get("post") or bias.shape != node.shape[-1:]:
            return None
        return self.node((*node.inputs, bias), node.attrs)

    def gradient_factors(self, node: Node) -> tuple[Node, Node] | None:
        attrs = node.attrs
        is_plain = node.ndim == len(node.inputs) == 2 and not attrs.get("post")
        if not is_plain or not attrs["transpose_a"] or attrs["transpose_b"]:
            return None
        a, b = node.inputs
        return a, b

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        (a, b, *bias), _ = split_added(node.inputs, node.attrs.get("post", ()))
        ta, tb = node.attrs["transpose_a"], node.attrs["transpose_b"]
        dy, added_adjoints = adjoint_before_post(node, dy)

        def matmul_of(x: Node, y: Node, transpose_x: bool, transpose_y: bool) -> Node:
            return self.node((x, y), {"transpose_a": transpose_x, "transpose_b": transpose_y})

        # With A and B as the kernel reads them, dA = dy Bᵀ and dB = Aᵀ dy. If an operand is read
        # transposed, the matmul computes the transposed gradient, in the layout of the operand.
        da = matmul_of(b, dy, tb, True) if ta else matmul_of(dy, b, False, not tb)
        db = matmul_of(dy, a, True, ta) if tb else matmul_of(a, dy, not ta, False)
        return (da, db, *(dy for _ in bias), *added_adjoints)

    def reference(
        self,
        *inputs: Array,
        transpose_a: bool = False,
        transpose_b: bool = False,
        post: tuple[str, ...] = (),
        dtype: DType | None = None,
    ) -> Array:
        (a, b, *bias), added = split_added([widen(x) for x in inputs], post)
        result = np.matmul(
            a.swapaxes(-1, -2) if transpose_a else a, b.swapaxes(-1, -2) if transpose_b else b
        )
        for addend in bias:
            result = result + addend
        return narrow(apply_post_operations(result, post, added), dtype or inputs[0].dtype)

    def lower(self, **attrs: Any) -> tuple[str, dict[str, Any]]:
        return self.name, {k: v for k, v in attrs.items() if k != "dtype"}

    def samples(self) -> Iterable[Sample]:
        for ta in (False, True):
            for tb in (False, True):
                for a, b, n in (((2, 3), (3, 4), 4), ((17, 33), (33, 9), 9)):
                    attrs = {"transpose_a": ta, "transpose_b": tb}
                    left, right = Operand(_shape_as_read(a, ta)), Operand(_shape_as_read(b, tb))
                    yield Sample((left, right), attrs)
                    yield Sample((left, right, Operand((n,))), attrs | {"post": ()})
        plain = {"transpose_a": False, "transpose_b": False}
        batches: tuple[tuple[Shape, Shape], ...] = (
            ((5, 2, 3), (5, 3, 4)),
            ((2, 3), (5, 3, 4)),
            ((2, 1, 2, 3), (5, 3, 1)),
            ((0, 3), (3, 4)),
            ((2, 0), (0, 4)),
        )
        for left_shape, right_shape in batches:
            yield Sample((Operand(left_shape), Operand(right_shape)), plain)
        relu = {"transpose_a": False, "transpose_b": True, "post": ("relu",)}
        for dtype in FLOATS:
            left, right = Operand((4, 2), dtype=dtype), Operand((3, 2), dtype=dtype)
            yield Sample((left, right), relu)
            yield Sample((left, right, Operand((3,), dtype=dtype)), relu)


matmul: Final[MatMul] = register(MatMul())
