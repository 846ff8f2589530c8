# SPDX-License-Identifier: Apache-2.0
"""The costs of nodes: `Op.cost` for heavy ops, such as matmuls, and rules for all other ops.

A cost is a number of operations, and a number of bytes that are read and written. The bytes are
those of the operands and results. An op that only moves elements is an exception: it reads as many
bytes as it writes. If an op is composed of other ops, such as gelu, its number of operations is the
sum over its component ops, but the operands and results of the component ops are not counted as
bytes. Any other op has one operation for each element of its largest operand or result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from ..dtypes import Type
from ..graph.cost import Cost
from ..graph.graph import Graph, bodies_of
from ..graph.leaves import PLACEHOLDER, Leaf
from ..graph.node import Node, Op, offset_of, topological
from ..ops._precision import expansion
from .collective_order import Start
from .fusion.kernel_body import FusedKernel, body_of, shape_of


def cost_of_graph(graph: Graph) -> Cost:
    """Return the sum of the costs of all nodes of a graph."""
    return sum((cost_of(node) for node in graph.nodes), Cost())


def cost_of(node: Node, bodies: Sequence[Cost] | None = None) -> Cost:
    """Return the cost of a node.

    `bodies` has the costs of the graphs that a loop or branch runs. If it is None, they are
    computed.
    """
    op, results = node.op, [result.type for result in node.results]
    if isinstance(op, Leaf) or offset_of(node) is not None:
        return Cost()
    operands = [operand.type for operand in node.inputs]
    if op.kernel.control_flow:
        costs = bodies or [cost_of_graph(graph) for graph in bodies_of(node)]
        return op.cost(operands, results, bodies=costs, **node.attrs)
    if op.is_heavy:
        return op.cost(operands, results, **node.attrs)
    if op.kernel.is_copy or op.kernel.is_broadcast:
        return Cost(0, 2 * sum([type.bytes for type in results]))
    return Cost.touching(operations(node, operands, results), (*operands, *results))


def operations(node: Node, operands: Sequence[Type], results: Sequence[Type]) -> int:
    """Return the number of scalar operations of a node whose op does not define `Op.cost`."""
    op = node.op
    if op.comm.is_collective or isinstance(op, Start):
        return 0
    if isinstance(op, FusedKernel):
        body = body_of(node)
        count = math.prod(shape_of(node))
        in_products = sum(cost_of(product).flops for product in op.products)
        return in_products + count * (len(body.statements) + len(body.reduced))
    if op.has_expansion and not op.kernel.is_elementwise:
        return operations_of_expansion(op, tuple(operands), tuple(node.attrs.items()))
    return max([type.count for type in (*operands, *results)])


@lru_cache(maxsize=4096)
def operations_of_expansion(
    op: Op, operands: tuple[Type, ...], attrs: tuple[tuple[str, Any], ...]
) -> int:
    """Return the number of operations of a composed op: the sum over the ops that replace it."""
    inputs = [Node(PLACEHOLDER, (), {"name": "x", "uniform": True}, t) for t in operands]
    expanded_nodes = topological(expansion(op.node(inputs, dict(attrs))), stop=inputs)
    return sum(cost_of(node).flops for node in expanded_nodes)
