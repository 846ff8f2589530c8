# SPDX-License-Identifier: Apache-2.0
"""Give values the order of axes that the kernels of heavy ops like, for whole stretches of a graph.

A layout below the user's graph is a transposition in it: no value has bytes in another order than
its type says. First, a heavy op is replaced by the op in a layout of its own, where there is one
and the device has a kernel for it, between transpositions of its data. Then transpositions move
towards the outputs: an op all of whose large operands are transposed alike computes on what they
were before (Op.move_transpose; elementwise ops here), and its result is transposed instead. Where
two meet, they are merged, and most of them cancel. The others are computed where a layout ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from functools import cache
from typing import Final, TypeAlias

from ..dtypes import Shape
from ..graph.graph import Graph
from ..graph.node import Node, Op
from ..graph.registry import OPS
from ..ops._shape import inverse, moved, reshape
from .options import CompileOptions
from .target import Target, query_node

Transposition: TypeAlias = tuple[Node, Shape]
"""A node, and the order of axes in which it is there anyway."""
SMALL: Final = 16
"""An operand that is repeated so often at least may be transposed for an elementwise op."""


@cache
def variants() -> Mapping[Op, Op]:
    """Op -> the same in a layout of its own."""
    own_layout = (op for op in OPS.values() if op.layout.row_major_op is not None)
    return {op.layout.row_major_op: op for op in own_layout}


def assign_layouts(graph: Graph, target: Target, options: CompileOptions) -> Graph:
    """Put heavy ops into the layouts that they have kernels for, and move transpositions on."""
    if not any(node.op in variants() for node in graph.nodes):
        return graph
    accepted: list[Node] = []
    there: set[Transposition] = set()

    def settled(node: Node, variant: Op) -> Node | None:
        """A node of the plain op in the variant's layout, if the device takes that."""
        made = variant.replace_row_major(node)
        if made is None:
            return None
        inner = made if made.op is variant else made.inputs[0]
        if not query_node(target, inner).accepted:
            return None
        transposed = [i for i in inner.inputs if i.op.layout.is_transpose]
        there.update((i.inputs[0], i.attrs["axes"]) for i in transposed)
        accepted.append(inner)
        return made

    def change(node: Node, inputs: tuple[Node, ...]) -> Node | tuple[Node, ...]:
        node = node.with_inputs(inputs)
        variant = variants().get(node.op)
        made = settled(node, variant) if variant else ahead(node, there) if accepted else None
        return node if made is None else made

    changed = graph.rewrite(change)
    return changed if accepted else graph


def ahead(node: Node, there: Set[Transposition]) -> Node | tuple[Node, ...] | None:
    """The node's value as a transposition of what its op makes of operands before one; or None."""
    axes = next((i.attrs["axes"] for i in node.inputs if i.op.layout.is_transpose), None)
    if axes is None or node.op.layout.is_transpose:
        return None
    if node.op.kernel.is_elementwise:
        return elementwise_ahead(node, axes, there)
    alike = all(i.op.layout.is_transpose and i.attrs["axes"] == axes for i in node.inputs)
    return node.op.move_transpose(node, axes) if alike else None


def elementwise_ahead(node: Node, axes: Shape, there: Set[Transposition]) -> Node | None:
    """Of an elementwise op: operands that are repeated are put in the order of the others."""
    if len(axes) != node.ndim:
        return None
    operands = []
    for operand in node.inputs:
        placed = before(operand, node, axes, there)
        if placed is None:
            return None
        operands.append(placed)
    made = moved(node.op.node(operands, node.attrs), axes)
    return made if made.type == node.type else None  # operands alone may repeat too little


def before(operand: Node, node: Node, axes: Shape, there: Set[Transposition]) -> Node | None:
    """An operand of an elementwise node as it was before it was transposed; None: it was not."""
    if operand.op.layout.is_transpose and operand.attrs["axes"] == axes:
        return operand.inputs[0]
    if operand.op.kernel.is_broadcast:
        operand = operand.inputs[0]
    if operand.ndim == 0:
        return operand
    whole = reshape(operand, (*(1,) * (node.ndim - operand.ndim), *operand.shape))
    placed = moved(whole, inverse(axes))
    small = operand.type.count * SMALL <= node.type.count
    free = not placed.op.layout.is_transpose or (placed.inputs[0], placed.attrs["axes"]) in there
    return placed if small or free else None
