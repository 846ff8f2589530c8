# SPDX-License-Identifier: Apache-2.0
"""Layouts: the order of axes that the kernels of heavy ops, such as convolutions, prefer.

A *layout* is an order of axes in memory. The bytes of every value are in the order of the axes of
its shape. So the graph expresses another layout by a transposition, whose result has another shape.
A *variant* of an op computes the same in another layout: it is applied to transpositions of the
operands. The original op is `layout.row_major_op` of the variant. The pass has three rules:

1. A heavy op is replaced by its variant if the device has a kernel for the variant. Transpositions
   convert the operands and the result.
2. Transpositions move towards the outputs. If all large operands of an op are transposed in the
   same way, the op computes on the operands before their transposition. Then its result is
   transposed instead. `Op.move_transpose` does this; for elementwise ops,
   `move_elementwise_transposition` does.
3. A transposition of a transposition becomes one transposition. In most cases, the two cancel. A
   transposition that remains is computed as an op of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from functools import cache
from typing import Final, TypeAlias

from ..dtypes import Shape
from ..graph.graph import Graph
from ..graph.node import Node, Op
from ..graph.registry import OPS
from ..ops._shape import inverse, reshape, transpose_cheaply
from .options import CompileOptions
from .target import Target, query_node

Transposition: TypeAlias = tuple[Node, Shape]
"""A transposition as a pair: the node that is transposed, and the order of axes of the result."""
SMALL: Final = 16
"""An operand of an elementwise op is small if it has at most 1 / SMALL of the elements of the
result. A small operand may be transposed for the op."""


@cache
def variants() -> Mapping[Op, Op]:
    """Return a dict from each op that has a variant in another layout to this variant.

    For example, the variant of a convolution computes the same with the channels as the last axis.
    """
    own_layout = (op for op in OPS.values() if op.layout.row_major_op is not None)
    return {op.layout.row_major_op: op for op in own_layout}


def assign_layouts(graph: Graph, target: Target, options: CompileOptions) -> Graph:
    """Choose the layouts of heavy ops, such as convolutions, and move transpositions.

    If the device has a kernel for an op's variant, which computes the same in another order of
    axes, the variant replaces the op.
    """
    if not any(node.op in variants() for node in graph.nodes):
        return graph
    accepted: list[Node] = []
    computed: set[Transposition] = set()

    def use_variant(node: Node, variant: Op) -> Node | None:
        """Return a node that computes the value of `node` by `variant`, or None.

        `variant` is the op of `node` with another order of axes. The result is None if `variant`
        cannot replace the op, or if the device has no kernel for `variant`.
        """
        replacement = variant.replace_row_major(node)
        if replacement is None:
            return None
        inner = replacement if replacement.op is variant else replacement.inputs[0]
        if not query_node(target, inner).accepted:
            return None
        transposed = [i for i in inner.inputs if i.op.layout.is_transpose]
        computed.update((i.inputs[0], i.attrs["axes"]) for i in transposed)
        accepted.append(inner)
        return replacement

    def change(node: Node, inputs: tuple[Node, ...]) -> Node | tuple[Node, ...]:
        node = node.with_inputs(inputs)
        variant = variants().get(node.op)
        replacement = (
            use_variant(node, variant)
            if variant
            else move_transposition(node, computed)
            if accepted
            else None
        )
        return node if replacement is None else replacement

    new_graph = graph.rewrite(change)
    return new_graph if accepted else graph


def move_transposition(node: Node, computed: Set[Transposition]) -> Node | tuple[Node, ...] | None:
    """Return a replacement of a node with transposed operands: one node, or one per result.

    The replacement applies the op to the operands before their transposition, and transposes the
    result. Return None if no operand is transposed, or if the op has no such replacement.
    """
    axes = next((i.attrs["axes"] for i in node.inputs if i.op.layout.is_transpose), None)
    if axes is None or node.op.layout.is_transpose:
        return None
    if node.op.kernel.is_elementwise:
        return move_elementwise_transposition(node, axes, computed)
    same_axes = all(i.op.layout.is_transpose and i.attrs["axes"] == axes for i in node.inputs)
    return node.op.move_transpose(node, axes) if same_axes else None


def move_elementwise_transposition(
    node: Node, axes: Shape, computed: Set[Transposition]
) -> Node | None:
    """Return an equal node that transposes the result instead of operands, or None.

    For example, transpose(x) + transpose(y) becomes transpose(x + y). At least one operand of
    `node` is transposed by `axes`. Return None if the transposition of another operand costs too
    much to undo (`without_transposition`), or if the result would have another type.
    """
    if len(axes) != node.ndim:
        return None
    operands = []
    for operand in node.inputs:
        reordered = without_transposition(operand, node, axes, computed)
        if reordered is None:
            return None
        operands.append(reordered)
    replacement = transpose_cheaply(node.op.node(operands, node.attrs), axes)
    return (
        replacement if replacement.type == node.type else None
    )  # without the broadcasts, its shape may be smaller


def without_transposition(
    operand: Node, node: Node, axes: Shape, computed: Set[Transposition]
) -> Node | None:
    """Return an operand with a transposition by `axes` undone, or None if that costs too much.

    `node` is the elementwise node that reads the operand. If the operand is x transposed by `axes`,
    return x. For another operand, return the operand transposed by the inverse of `axes`, if the
    operand is small or this transposition costs nothing. A transposition costs nothing if it moves
    no elements, or if it is in `computed`, the transpositions that the new graph computes anyway.
    """
    if operand.op.layout.is_transpose and operand.attrs["axes"] == axes:
        return operand.inputs[0]
    if operand.op.kernel.is_broadcast:
        operand = operand.inputs[0]
    if operand.ndim == 0:
        return operand
    padded = reshape(operand, (*(1,) * (node.ndim - operand.ndim), *operand.shape))
    reordered = transpose_cheaply(padded, inverse(axes))
    is_small = operand.type.count * SMALL <= node.type.count
    is_free = (
        not reordered.op.layout.is_transpose
        or (reordered.inputs[0], reordered.attrs["axes"]) in computed
    )
    return reordered if is_small or is_free else None
