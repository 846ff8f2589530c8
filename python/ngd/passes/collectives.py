# SPDX-License-Identifier: Apache-2.0
"""Collectives: one order for all ranks, then a start and a wait for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from ..errors import CompileError
from ..ir import Graph, Node, Op, Type, constant_node
from .target import Target


def order_collectives(graph: Graph, target: Target) -> Graph:
    """Number the collectives (attr `order`), and settle what depends on the group alone.

    The order is that of depth, so that the gradients that backward computes first are sent first;
    equals keep the order of the structural walk. Depth counts matrix products and collectives
    only: autodiff adds sums and reshapes where the shapes of a rank's shard make an operand
    broadcast, and shards may differ. So the order is the same on all ranks, whatever the order in
    which a script made its nodes, and it respects dependence: what needs another's result is
    deeper. In a group of one a collective is its input.

    Equal collectives of one operand are merged here, and nowhere later: whether two operands turn
    out to be equal may hang on a rank's own constants, and then the ranks would not agree.
    """
    depth: dict[Node, int] = {}
    for node in graph.nodes:
        own = node.op.collective or node.op.name == "matmul"
        depth[node] = own + max((depth[i] for i in node.inputs), default=0)
    collectives = sorted((n for n in graph.nodes if n.op.collective), key=depth.__getitem__)
    number = {node: i for i, node in enumerate(collectives)}
    unique: dict[Any, Node] = {}

    def change(node: Node, inputs: tuple[Node, ...]) -> Node:
        if node.op.name == "is_rank":
            return constant_node(np.asarray(target.rank == node.attrs["root"]))
        if node in number and not 0 <= node.attrs.get("root", 0) < target.size:
            raise CompileError(
                f"{node.op.name} (made at {node.site}): expected a root in [0, {target.size}); "
                f"got {node.attrs['root']}"
            )
        if node not in number:
            return node if inputs == node.inputs else node.op.node(inputs, node.attrs)
        if target.size == 1:
            return inputs[0]
        key = (node.op, inputs, tuple(sorted(node.attrs.items())))
        if key not in unique:
            unique[key] = Ordered(node.op, number[node]).node(inputs, node.attrs)
        return unique[key]

    return graph.rewrite(change)


class Ordered(Op):
    """A collective that knows its place in the sequence."""

    collective = True

    def __init__(self, op: Op, order: int) -> None:
        self.name = op.name  # type: ignore[misc]
        self.kind = op
        self.order = order

    def infer(self, *inputs: Type, **attrs: Any) -> Type:
        """As the collective."""
        return self.kind.infer(*inputs, **attrs)

    def uniform(self, inputs: Sequence[Node], attrs: Any) -> bool:
        """As the collective."""
        return self.kind.uniform(inputs, attrs)


class Start(Op):
    """Hands the operand over; the result is the buffer in flight, not to be read."""

    name = "start"

    def __init__(self, op: Ordered) -> None:
        self.kind = op

    def infer(self, *inputs: Type, **attrs: Any) -> Type:
        """The type of the collective's result."""
        return self.kind.infer(*inputs, **attrs)

    def lower(self, **attrs: Any) -> tuple[str, dict[str, Any]]:
        """The kind of collective and its attributes."""
        return self.kind.name, attrs


class Wait(Op):
    """Its one input is a start; the result is the collective's, in the same buffer."""

    name = "wait"

    def infer(self, *inputs: Type, **attrs: Any) -> Type:
        """The type of the buffer in flight."""
        return inputs[0]


WAIT: Final = Wait()


def split_collectives(graph: Graph, target: Target) -> Graph:
    """Replace each collective by a start and a wait joined by an edge."""

    def change(node: Node, inputs: tuple[Node, ...]) -> Node:
        if isinstance(node.op, Ordered):
            start = Start(node.op).node(inputs, node.attrs)
            wait = WAIT.node((start,))
            wait.uniform = node.uniform
            return wait
        return node if inputs == node.inputs else node.op.node(inputs, node.attrs)

    return graph.rewrite(change)
