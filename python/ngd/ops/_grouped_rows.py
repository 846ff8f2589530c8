# SPDX-License-Identifier: Apache-2.0
"""Matrix multiplication of groups of rows, for mixtures of experts.

Group g has the rows from `offsets[g - 1]` (0 for the first group) to `offsets[g]`. The offsets are
known only at run time, so one compiled program works for any sizes of the groups. Rows after the
last offset belong to no group.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np

from ..dtypes import FLOATS, Array, Type, int32, int64
from ..errors import OutOfRangeError, ShapeError
from ..graph.cost import Cost
from ..graph.node import Node, Op
from ..graph.registry import register
from ..graph.samples import Operand, Sample
from ._elementwise import align
from ._gathering import as_indices
from ._matmul import swaps_last_two
from ._operands import INDICES, Value, describe_types, expect_dtype, narrow, widen

__all__ = ["grouped_matmul"]


class GroupedOp(Op):
    """An op on groups of rows: grouped_matmul, or the op for the gradient of its weights.

    The third operand has, per group, the index after the last row of the group.

    The op computes in the dtype of its operands. Mixed precision does not cast its float32 operands
    to 16-bit floats.
    """

    dtypes = FLOATS

    def cost(self, operands: Sequence[Type], results: Sequence[Type], **attrs: Any) -> Cost:
        """Return the cost: 2 * rows * k * n operations if the matrix of each group is [k, n].

        The cost assumes that each row belongs to a group, because the offsets are not known before
        the run.
        """
        weight = (*operands, *results)[self.weight]
        rows, terms = operands[0].shape[0], weight.count // max(weight.shape[0], 1)
        return Cost.touching(2 * rows * terms, (*operands, *results))

    weight: int
    """The position, in the list (*operands, result), of the weights or of their gradient.

    It is 1 in grouped_matmul(x, w, offsets), and 3 in the op that returns the gradient of w.
    """


class GroupedMatMul(GroupedOp):
    """Multiply each row by the matrix of its group, as in a mixture of experts.

    Parameters
    ----------
    x
        Rows [rows, k], sorted by group: the rows of a group follow each other.
    w
        A matrix [k, n] per group: [groups, k, n].
    offsets
        Integers [groups]: for each group, the index after its last row. For example, groups of 1
        and 2 rows have the offsets [1, 3].

    Returns
    -------
    Node
        [rows, n]. Rows after the last offset are zero, and get a gradient of zero.

    Raises
    ------
    ShapeError
        The shapes do not fit.
    OutOfRangeError
        At run time: an offset is less than the one before, or exceeds the rows.

    Examples
    --------
    ::

        >>> step = ngd.function(ops.grouped_matmul)
        >>> step(np.ones((3, 1)), np.array([[[1.0, 2.0]], [[3.0, 4.0]]]), np.array([1, 3]))
        array([[1., 2.],
               [3., 4.],
               [3., 4.]])
    """

    # Attribute of a node: transpose_b, True if the kernel reads w with its last two axes exchanged.
    name = "grouped_matmul"
    weight = 1

    def __call__(self, x: Value, w: Value, offsets: Value) -> Node:
        x, w = align(self.name, x, w)
        ends = as_indices(offsets, self.name, "offsets")
        node = self.node((x, w, ends), {"transpose_b": False})
        # Read a transposed w in place, so that its gradient has the layout of that array.
        while (simpler := self.simplify(node)) is not None:
            node = simpler
        return node

    def infer(self, x: Type, w: Type, offsets: Type, *, transpose_b: bool = False) -> Type:
        dtype = expect_dtype(self.name, (x, w), self.dtypes)
        expect_dtype(self.name, (offsets,), INDICES)
        fits = (len(x.shape), len(w.shape), len(offsets.shape)) == (2, 3, 1)
        if (
            not fits
            or x.shape[1] != w.shape[2 if transpose_b else 1]
            or offsets.shape != w.shape[:1]
        ):
            read = " (read transposed)" if transpose_b else ""
            raise ShapeError(
                f"{self.name}: expected x [rows, k], w [groups, k, n] and offsets [groups]; got "
                f"{describe_types(x, w, offsets)}{read}. Reshape them, or transpose w by "
                "ops.swapaxes."
            )
        return Type(dtype, (x.shape[0], w.shape[1 if transpose_b else 2]))

    def simplify(self, node: Node) -> Node | None:
        """Replace a transposition of the weights w by the attribute transpose_b, or return None.

        b in transpose_b means w, the second operand. The new node reads the operand of the
        transposition, and its kernel reads the matrices with rows and columns exchanged. The
        method returns None if w is not the result of an exchange of the last two axes.
        """
        x, w, offsets = node.inputs
        if not swaps_last_two(w):
            return None
        attrs = {"transpose_b": not node.attrs["transpose_b"]}
        return self.node((x, w.inputs[0], offsets), attrs)

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        x, w, offsets = node.inputs
        is_transposed = node.attrs["transpose_b"]
        dx = self.node((dy, w, offsets), {"transpose_b": not is_transposed})
        rows = (dy, x) if is_transposed else (x, dy)  # so that dw has the layout of w
        return dx, grouped_weight_grad.node((*rows, offsets)), None

    def reference(self, x: Array, w: Array, offsets: Array, *, transpose_b: bool = False) -> Array:
        weight = widen(w).swapaxes(1, 2) if transpose_b else widen(w)
        result = np.zeros((len(x), weight.shape[2]), weight.dtype)
        for group, rows in enumerate(rows_of_groups(offsets, len(x))):
            result[rows] = widen(x)[rows] @ weight[group]
        return narrow(result, x.dtype)

    def samples(self) -> Iterable[Sample]:
        for rows, groups, k, n, most in ((7, 3, 4, 5, 7), (6, 5, 3, 2, 4), (40, 2, 33, 17, 40)):
            for is_transposed in (False, True):
                weight = (groups, n, k) if is_transposed else (groups, k, n)
                operands = Operand((rows, k)), Operand(weight), offsets_of(groups, most)
                yield Sample(operands, {"transpose_b": is_transposed})
        ends = Operand((2,), 0, 0, dtype=int32)
        yield Sample((Operand((0, 3)), Operand((2, 3, 4)), ends), {"transpose_b": False})
        yield Sample((Operand((3, 0)), Operand((2, 0, 4)), ends), {"transpose_b": False})


class GroupedWeightGrad(GroupedOp):
    """The adjoint of the weights of grouped_matmul: aᵀ b for the rows of each group.

    a is the x of grouped_matmul, and b is the adjoint of its result. If grouped_matmul has
    transpose_b=True, a and b are exchanged. A group without rows gets zeros.
    """

    name = "grouped_weight_grad"
    public = False
    weight = 3

    def infer(self, a: Type, b: Type, offsets: Type) -> Type:
        dtype = expect_dtype(self.name, (a, b), self.dtypes)
        expect_dtype(self.name, (offsets,), INDICES)
        fits = (len(a.shape), len(b.shape), len(offsets.shape)) == (2, 2, 1)
        if not fits or a.shape[0] != b.shape[0]:
            raise ShapeError(
                f"{self.name}: expected a [rows, m], b [rows, n] and offsets [groups]; got "
                f"{describe_types(a, b, offsets)}. Reshape them."
            )
        return Type(dtype, (offsets.shape[0], a.shape[1], b.shape[1]))

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        a, b, offsets = node.inputs
        da = grouped_matmul.node((b, dy, offsets), {"transpose_b": True})
        return da, grouped_matmul.node((a, dy, offsets), {"transpose_b": False}), None

    def reference(self, a: Array, b: Array, offsets: Array) -> Array:
        rows_of = rows_of_groups(offsets, len(a))
        products = [widen(a)[rows].T @ widen(b)[rows] for rows in rows_of]
        shape = (len(products), a.shape[1], b.shape[1])
        return narrow(np.asarray(products, widen(a).dtype).reshape(shape), a.dtype)

    def samples(self) -> Iterable[Sample]:
        for rows, groups, m, n, most in ((7, 3, 4, 5, 7), (6, 5, 3, 2, 4), (40, 2, 33, 17, 40)):
            yield Sample((Operand((rows, m)), Operand((rows, n)), offsets_of(groups, most)))
        ends = Operand((2,), 0, 0, dtype=int32)
        yield Sample((Operand((0, 3)), Operand((0, 4)), ends))


def offsets_of(groups: int, most: int) -> Operand:
    """Return random offsets for a test: the ascending ends of `groups` groups, in [0, most]."""
    return Operand((groups,), 0, most, dtype=int64, ascending=True)


def rows_of_groups(offsets: Array, rows: int) -> list[slice]:
    """Return a slice of rows per group; raise OutOfRangeError for an invalid offset.

    The error has the same message as src/cpp/kernels/fallback/grouped_matmul.cpp.
    """
    slices, start = [], 0
    for group, offset in enumerate(offsets.tolist()):
        if not start <= offset <= rows:
            raise OutOfRangeError(
                f"grouped_matmul: expected offsets from 0 to {rows} that do not decrease; got "
                f"{offset} after {start} at [{group}] of the offsets"
            )
        slices.append(slice(start, offset))
        start = offset
    return slices


grouped_weight_grad: Final[GroupedWeightGrad] = register(GroupedWeightGrad())
grouped_matmul: Final[GroupedMatMul] = register(GroupedMatMul())
