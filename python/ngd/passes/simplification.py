# SPDX-License-Identifier: Apache-2.0
"""The simplification of a graph: merge equal nodes, fold small constants, drop ops without effect.

`Op.simplify` returns a simpler node than the one given. Only rewrites that keep every bit of the
result are made: x * 1 becomes x, but x + 0 does not, because it turns -0 into 0.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from ..graph.graph import Graph
from ..graph.leaves import CONSTANT, PLACEHOLDER, VARIABLE, Leaf, constant_node
from ..graph.node import Node
from ..ops._precision import expect_types
from .options import CompileOptions
from .target import Target

FOLD_LIMIT: Final = 64
"""The largest number of elements for two simplifications: replace an op on constants by its result,
and merge equal constants. Larger results and larger constants stay as they are."""


def simplify(graph: Graph, target: Target, options: CompileOptions) -> Graph:
    """Return a graph in which nodes are as simple as possible, and equal nodes are merged."""
    unique: dict[Any, Node] = {}

    def change(node: Node, inputs: tuple[Node, ...]) -> Node:
        if node.op is VARIABLE or node.op is PLACEHOLDER:
            return node
        node = node.with_inputs(inputs)
        for _ in range(8):
            simpler = node.op.simplify(node)
            if simpler is None:
                simpler = fold_constant(node)
            if simpler is None:
                break
            if simpler.type != node.type:
                expect_types(node, "simplify", (simpler,))
            node = simpler
            if node.number:  # a result of an input, which was simplified before
                return node
        return unique.setdefault(key_of(node), node)

    return graph.rewrite(change)


def key_of(node: Node) -> Any:
    """Return a key that is equal for two nodes if they compute the same value."""
    if node.op is CONSTANT:
        value = node.attrs["value"]
        return (node.type, value.tobytes()) if value.size <= FOLD_LIMIT else node.id
    if isinstance(node.op, Leaf) or node.op.comm.is_collective:  # order_collectives has merged them
        return node.id
    attrs = tuple(sorted(node.attrs.items(), key=lambda item: item[0])) if node.attrs else ()
    return (node.op, tuple([i.id for i in node.inputs]), attrs, node.keeps_float32)


def fold_constant(node: Node) -> Node | None:
    """Return a constant that replaces a node with constant inputs, or None.

    The result is None if an input is not a constant, or if the node is a collective, has no inputs,
    has several results, or has more than FOLD_LIMIT elements.
    """
    for operand in node.inputs:
        if operand.op is not CONSTANT:
            return None
    if not node.inputs or node.has_several_results or node.type.count > FOLD_LIMIT:
        return None
    if node.op.comm.is_collective:
        return None
    with np.errstate(all="ignore"):
        value: Any = node.op.reference(*(i.attrs["value"] for i in node.inputs), **node.attrs)
    return constant_node(np.asarray(value, node.dtype))
