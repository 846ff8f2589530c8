# SPDX-License-Identifier: Apache-2.0
"""The order of collectives, which is equal on all ranks, and their split into start and wait.

A *collective* in this file is a node that communicates: a collective op, or a loop or branch with
one in its body. All ranks have to start the collectives of a step in the same order.
`collectives_in_order` finds this order from the structure of the graph, and `order_collectives`
stores it (`Op.order`). Later `split_collectives` replaces each collective op by two nodes, a start
and a wait. A loop or branch stays one node. The *start* passes the operand to the communicator. The
*wait* returns when the result is complete. Between the two the collective is *pending*, and other
instructions run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ..dtypes import Type
from ..errors import CompileError
from ..graph.graph import Graph, communicates
from ..graph.leaves import constant_node
from ..graph.node import Node, Op
from ..graph.order import Order
from ..graph.traits import Comm, Kernel
from ..ops.collectives.reductions import Collective
from ..ops.control.bodies import Control
from .options import CompileOptions
from .target import Target


def collectives_in_order(graph: Graph) -> list[Node]:
    """Return the nodes that communicate, in the order in which every rank starts them.

    Nodes are ordered by ascending depth, so that the gradients that the backward pass computes
    first are sent first. The depth of a node is the largest number of heavy ops (such as matmuls,
    see `Op.is_heavy`) and collectives on a path to the node. Other ops are not counted, because
    their number may differ between ranks: shards may have different shapes, and autodiff adds sums
    and reshapes if an operand is broadcast. Nodes of equal depth keep the order of `topological`:
    depth first from the roots of the graph, with inputs from left to right. So the order is the
    same on all ranks, whatever the order in which a script made its nodes. A node that needs the
    result of a collective is deeper, and so comes later, than this collective.

    Messages (sends and receives between two ranks) keep the order in which they were made, because
    the other rank makes the matching nodes in that order. So the depth of a message is raised, if
    necessary, to the depth of the latest earlier message with the same op (send or receive), the
    same group and the same other rank.
    """
    communicating = {node for node in graph.nodes if communicates(node)}
    if not communicating:
        return []
    depth: dict[Node, int] = {}
    latest: dict[Any, int] = {}
    for node in sorted(graph.nodes, key=lambda n: n.id):  # inputs have smaller ids
        is_counted = node in communicating or node.op.is_heavy
        depth[node] = is_counted + max([depth[i] for i in node.inputs], default=0)
        if is_counted and is_message(node):
            pair = node.op, node.attrs.get("group"), node.attrs["root"]
            depth[node] = latest[pair] = max(depth[node], latest.get(pair, 0))
        if node.has_several_results:
            depth.update(dict.fromkeys(node.results, depth[node]))
    return sorted(
        (n for n in graph.nodes if n in communicating),
        key=lambda n: (depth[n], n.id if is_message(n) else 0),
    )


def depends_on_group(graph: Graph) -> bool:
    """Return whether a graph has collectives, or values of the group such as this rank's number."""
    return any(communicates(n) or n.op.comm.has_group_value for n in graph.nodes)


def is_message(node: Node) -> bool:
    """Return whether a node is a send or a receive between two ranks."""
    return isinstance(node.op, Collective) and node.op.kind.is_point_to_point


def order_collectives(graph: Graph, target: Target, options: CompileOptions) -> Graph:
    """Number the nodes that communicate, and replace values that depend on the group by constants.

    The number of a node is stored in `Op.order`. A value that depends on the group is, for example,
    the number of the rank. In a group of one rank, a collective is replaced by its input.

    Collectives with the same op, attributes and operands are merged here, and in no later pass.
    All ranks must merge the same collectives. So operands are compared as nodes of the given graph,
    which is built in the same way on all ranks. Nodes of the new graph are not compared, because
    the new graph may differ between ranks. For example, all_reduce(x, group=g) is replaced by x
    only on a rank whose group g has size 1.
    """
    if not depends_on_group(graph):
        return graph
    orders = {node: Order(number) for number, node in enumerate(collectives_in_order(graph))}
    merged = Merged()

    def change(node: Node, inputs: tuple[Node, ...]) -> Node:
        group = node.attrs.get("group") or target
        if node.op.comm.has_group_value:
            return constant_node(node.op.group_value(group, **node.attrs))
        if isinstance(node.op, Control) and node in orders:
            return node.op.with_order(orders[node]).node(inputs, node.attrs)
        if not isinstance(node.op, Collective):
            return node.with_inputs(inputs)
        check_root(node, group.rank, group.size)
        is_single = group.size == 1
        new = inputs[0] if is_single else Ordered(node.op, orders[node]).node(inputs, node.attrs)
        return new if is_message(node) else merged.first(node, new)

    return graph.rewrite(change)


class Merged:
    """A table of the collectives of a graph, with one new node for all equal collectives.

    Collectives are equal if they have the same op, operands and attributes.
    """

    def __init__(self) -> None:
        self.first_equal: dict[Node, Node] = {}
        """For each collective of the old graph: the first one with the same op, operands and
        attributes, which may be the collective itself."""
        self.new: dict[Any, Node] = {}
        """For each key (op, operands, attributes): the node of the new graph that replaces all
        collectives with this key."""
        self.old: dict[Any, Node] = {}

    def first(self, node: Node, new: Node) -> Node:
        """Return the node of the new graph that replaces `node`, a collective of the old graph.

        `new` is a new node made for `node`. If an earlier call had a collective with the same op,
        operands and attributes, return the result of that call. Otherwise store and return `new`.
        """
        operands = tuple(self.first_equal.get(i, i).id for i in node.inputs)
        key = (node.op, operands, tuple(sorted(node.attrs.items())))
        self.first_equal[node] = self.old.setdefault(key, node)
        return self.new.setdefault(key, new)


def check_root(node: Node, rank: int, size: int) -> None:
    """Raise CompileError if the root of a collective is not a rank of the group.

    For a send or a receive, the attribute `root` is the other rank. It must be in the group, too,
    and must not be this rank.
    """
    root, between_two = node.attrs.get("root", 0), is_message(node)
    if not 0 <= root < size:
        raise CompileError(
            f"{node.op.name} (made at {node.site}): expected a {'rank' if between_two else 'root'} "
            f"in [0, {size}); got {root}"
        )
    if between_two and root == rank:
        raise CompileError(
            f"{node.op.name} (made at {node.site}): expected another rank; got {root}, this one"
        )


class Ordered(Op):
    """A collective with its position in the order of all collectives of the step."""

    comm = Comm(is_collective=True)
    order: Order

    def __init__(self, block: Collective, order: Order) -> None:
        self.name = block.name  # type: ignore[misc]
        self.block = block
        self.order = order

    def infer(self, *inputs: Type, **attrs: Any) -> Type | tuple[Type, ...]:
        """Return the type of the collective's result."""
        return self.block.infer(*inputs, **attrs)

    def is_uniform(self, inputs: Sequence[Node], attrs: Any) -> bool:
        """Return whether the collective's result is equal on all ranks."""
        return self.block.is_uniform(inputs, attrs)


def order_of(node: Node) -> Order:
    """Return the sort key of a collective; collectives start in the ascending order of their keys.

    The key is a tuple, which `order_collectives` has stored in `Op.order`.
    """
    order = node.op.order
    assert order is not None
    return order


class Start(Op):
    """The start of a collective. Its result is a buffer that is complete after the `Wait` node."""

    name = "start"

    def __init__(self, op: Ordered) -> None:
        self.block, self.order = op.block, op.order

    def infer(self, *inputs: Type, **attrs: Any) -> Type | tuple[Type, ...]:
        """Return the type of the result of the collective that this op starts."""
        return self.block.infer(*inputs, **attrs)


class Wait(Op):
    """The wait for a collective. Its input and its result are the buffer of the `Start` node."""

    name = "wait"
    kernel = Kernel(is_view=True)

    def infer(self, *inputs: Type, **attrs: Any) -> Type:
        """Return the type of the input, the `Start` node: the wait does not change the type."""
        return inputs[0]


WAIT: Final = Wait()


def split_collectives(graph: Graph, target: Target, options: CompileOptions) -> Graph:
    """Replace each collective op by a start and a wait.

    Loops and branches with collectives in their bodies are not split.
    """

    def change(node: Node, inputs: tuple[Node, ...]) -> Node:
        if isinstance(node.op, Ordered):
            start = Start(node.op).node(inputs, node.attrs)
            wait = WAIT.node((start,))
            wait.uniform = node.uniform
            return wait
        return node.with_inputs(inputs)

    return graph.rewrite(change)
