# SPDX-License-Identifier: Apache-2.0
"""Rematerialisation for `memory_limit`: recompute cheap values instead of keeping them.

The method is that of T. Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost"
(arXiv:1604.06174), section 3: if cheap ops can compute a value from values that are kept anyway,
the value is not kept, but computed a second time.

An op is *cheap* if it takes about one pass over memory: elementwise ops, broadcasts and moves. The
*peak* is the instruction after which most bytes are kept, usually between the forward and the
backward pass. A value *waits* if it is computed at the peak or before it, and is read after it. A
*copy* of a waiting value is a second computation of the value by cheap ops. The copy is computed
from leaves and other waiting values, which are kept anyway. It may also be computed from a value
that is much smaller and would not be kept otherwise. The readers after the peak read the copy, so
the value itself need not be kept. The copy must not be computed too early, because it would then be
kept at the peak, too. So its ops are made to depend on a *gate*, an op shortly before the first of
these readers (ops/_custom.py, `after`). The bits of the results do not change.

Only the planner knows how much memory a graph needs. So the pass works in rounds: it plans the
graph, and if the plan is too large, it copies enough values to save the bytes above the limit. In
the next round the peak may be another instruction. If these rounds do not reach the limit, other
rounds copy all values that they can.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, NamedTuple

from .._util.callsite import at_site
from ..errors import CompileError
from ..graph.cost import Cost
from ..graph.graph import Graph
from ..graph.leaves import Leaf
from ..graph.node import Node
from ..graph.precision_marks import keep_float32
from ..ops._custom import after
from .memory.plan import Plan
from .op_costs import cost_of_graph
from .options import CompileOptions
from .precision import selecting_reductions
from .scheduling import schedule
from .target import Target
from .views import is_view, source_of

ROUNDS: Final = 8
SMALL: Final = 16
"""A value may be kept in memory only to recompute a larger value from it. It must have at most
1 / SMALL of the bytes of the larger value."""
LONGEST: Final = 16
"""The largest number of ops that recompute one value."""


def plan_within_limit(
    graph: Graph,
    target: Target,
    options: CompileOptions,
    limit: int,
    plan_of: Callable[[Graph], Plan],
) -> Plan:
    """Return a plan of at most `limit` bytes, for the graph or for a graph that recomputes values.

    Raises
    ------
    CompileError
        No such plan was found. The message has the number of bytes of the smallest plan.
    """
    cost_before = cost_of_graph(graph)
    least = math.inf
    for all_at_once in (False, True):
        now, before_this = graph, math.inf
        for _ in range(ROUNDS):
            plan = plan_of(now)
            excess = bytes_of(plan) - limit
            if excess <= 0:
                plan.recomputed = difference(cost_of_graph(now), cost_before)
                return plan
            if all_at_once:  # independent of the limit, so this size works as a limit
                least = min(least, bytes_of(plan))
            if bytes_of(plan) >= before_this:
                break
            before_this = bytes_of(plan)
            smaller = Waiting(now, target, options).copied(math.inf if all_at_once else excess)
            if smaller is now:
                break
            now = smaller
    raise CompileError(
        f"compile: memory_limit: expected at least {least} bytes, which this step needs even if it "
        f"recomputes cheap values; got {limit}. Raise memory_limit, or make the batch smaller."
    )


def bytes_of(plan: Plan) -> int:
    """Return the bytes that a plan needs for values, in its private arena and its shared arena."""
    return plan.private_bytes + plan.shared_bytes


def difference(all: Cost, without: Cost) -> Cost:
    """Return the operations and bytes that recomputation adds: `all` minus `without`.

    `all` is the cost of the graph that recomputes values; `without` is that of the original graph.
    """
    return Cost(all.flops - without.flops, all.bytes - without.bytes)


class Copy(NamedTuple):
    """A second computation of `value` by `ops`, which are computed in their order.

    `kept` has the values that the ops read, and that must therefore be kept in memory. Inputs,
    variables and constants are not listed.
    """

    value: Node
    ops: list[Node]
    kept: list[Node]


class Waiting:
    """The values that are kept at the memory peak of a graph: computed by then, and read later."""

    def __init__(self, graph: Graph, target: Target, options: CompileOptions) -> None:
        self.graph = graph
        self.order = schedule(graph, target).order
        self.position = {r: i for i, node in enumerate(self.order) for r in node.results}
        self.last = self.last_reads()
        rounds = options.has_low_precision
        ordered = (
            n for n in self.order if rounds and n.op.kernel.reduction in selecting_reductions()
        )
        self.compared = {source_of(node.inputs[0]) for node in ordered}
        """The values that must not be recomputed. With mixed precision, they are the operands of
        reductions such as a maximum. To find the largest elements, the gradient compares such an
        operand with the maximum. A recomputed operand could be rounded differently, and then no
        element would be equal to the maximum. Without mixed precision, the set is empty."""
        self.peak = self.peak_position()

    def last_reads(self) -> dict[Node, int]:
        """Return the position of the last reader of each value, including readers of its views."""
        last = dict.fromkeys(self.position, -1)
        after_last = len(self.order)
        for i, node in enumerate(self.order):
            for operand in node.inputs:
                if operand in last:
                    last[operand] = max(last[operand], i)
        for root in self.graph.roots:
            if root in last:
                last[root] = after_last
        for node in reversed(self.order):
            if is_view(node) and node.inputs[0] in last:
                last[node.inputs[0]] = max(last[node.inputs[0]], last[node])
        return last

    def peak_position(self) -> int:
        """Return the position of the instruction after which most bytes are kept."""
        change = [0] * (len(self.order) + 2)
        graph_roots = {*self.graph.roots}  # the roots are not in the arenas
        for value, position in self.position.items():
            if not is_view(value) and value not in graph_roots and self.last[value] > position:
                change[position] += value.type.bytes
                change[self.last[value]] -= value.type.bytes
        most = at = now = 0
        for position, difference in enumerate(change[: len(self.order)]):
            now += difference
            if now > most:
                most, at = now, position
        return at

    def waits(self, value: Node) -> bool:
        """Return whether a value is kept at the peak and read after it.

        The peak is the instruction after which most bytes are kept.
        """
        return value in self.position and self.position[value] <= self.peak < self.last[value]

    def copied(self, bytes_to_save: float) -> Graph:
        """Return a graph that recomputes values after the peak instead of keeping them.

        The peak is the instruction after which most bytes are kept. Values are chosen until their
        sizes add up to `bytes_to_save`, or no other value can be recomputed. If no value can be
        recomputed, return the graph itself.
        """
        copies: dict[Node, Copy] = {}
        kept: set[Node] = set()
        for node in self.order:
            if bytes_to_save <= 0:
                break
            if is_view(node) or not is_cheap(node) or not self.waits(node) or node in kept:
                continue
            if node in self.compared:
                continue
            made = self.copy_of(node, copies)
            if made is not None:
                copies[node] = made
                kept.update(made.kept)
                bytes_to_save -= node.type.bytes
        return self.with_copies(copies) if copies else self.graph

    def copy_of(self, value: Node, copies: dict[Node, Copy]) -> Copy | None:
        """Return the ops that compute `value` a second time, or None if this is not possible.

        There are at most LONGEST ops, and each takes about one pass over memory. They read inputs,
        variables, constants, small values, and values that are kept anyway at the memory peak. They
        do not read the values in `copies`, which are themselves recomputed.
        """
        kept: list[Node] = []
        ops: set[Node] = set()
        stack = [value]
        while stack:
            node = stack.pop()
            ops.add(node)
            if len(ops) > LONGEST:
                return None
            for operand in node.inputs:
                source = source_of(operand)
                if isinstance(source.op, Leaf) or operand in ops:
                    continue
                is_small = source.type.bytes * SMALL <= value.type.bytes
                if source not in copies and (is_small or self.waits(source)):
                    kept.append(source)
                elif is_cheap(operand) and source not in copies:
                    stack.append(operand)
                else:
                    return None
        return Copy(value, sorted(ops, key=self.position.__getitem__), kept)

    def with_copies(self, copies: dict[Node, Copy]) -> Graph:
        """Return the graph in which readers after the peak read recomputed values.

        The peak is the instruction after which most bytes are kept. `copies` has the values to
        recompute.
        """
        new: dict[Node, Node] = {}
        copied_nodes: dict[Node, Node] = {}

        def copied(old: Node, reader: Node) -> Node:
            if old not in copied_nodes:
                if old in copies:
                    copied_nodes[old] = self.make_copy(copies[old], reader, new)
                else:
                    other_inputs = [new.get(i, i) for i in old.inputs[1:]]
                    with at_site(old.site), keep_float32(old.keeps_float32):
                        inputs = (copied(old.inputs[0], reader), *other_inputs)
                        copied_nodes[old] = Node(old.op, inputs, old.attrs, old.type)
            return copied_nodes[old]

        def change(node: Node, inputs: tuple[Node, ...]) -> Node:
            if self.position.get(node, -1) > self.peak and not is_view(node):
                inputs = tuple(
                    copied(old, node) if source_of(old) in copies else now
                    for old, now in zip(node.inputs, inputs, strict=True)
                )
            made = node.with_inputs(inputs)
            new.update(zip(node.results, made.results, strict=True))
            return made

        return self.graph.rewrite(change, self.order_with_leaves())

    def order_with_leaves(self) -> list[Node]:
        """Return all nodes for `Graph.rewrite`: the leaves, then the others as they are executed.

        The leaves (inputs, variables and constants) are not executed, so `order` has none of them.
        """
        leaves = [node for node in self.graph.nodes if isinstance(node.op, Leaf)]
        return [*leaves, *self.order]

    def make_copy(self, copy: Copy, reader: Node, new: dict[Node, Node]) -> Node:
        """Return the node of a copy of a value: a second computation of the value.

        The copy is computed after the gate, an op shortly before the first reader of the copy.
        """
        gates = [new[gate] for gate in self.gates(self.position[reader])]
        made: dict[Node, Node] = {}

        def operand(x: Node) -> Node:
            if x in made:
                return made[x]
            now = new.get(x, x)
            with keep_float32(x.keeps_float32):
                return now if isinstance(x.op, Leaf) or not gates else after(now, *gates)

        for node in copy.ops:
            with at_site(node.site), keep_float32(node.keeps_float32):
                inputs = tuple(operand(x) for x in node.inputs)
                made[node] = Node(node.op, inputs, node.attrs, node.type)
        return made[copy.value]

    def gates(self, position: int) -> list[Node]:
        """Return a list with the op that a recomputation waits for, or an empty list.

        This op is the *gate*: a value is recomputed only after it, because it would otherwise be
        kept for too long. `position` is the position of the first reader of the recomputed value.
        The gate is the last op before `position` that takes more than about one pass over memory.
        Return an empty list if there is no such op after the peak, the instruction after which most
        bytes are kept.
        """
        for i in range(position - 1, self.peak, -1):
            node = self.order[i]
            if not is_cheap(node) and not is_view(node) and not node.op.kernel.is_broadcast:
                return [node]
        return []


def is_cheap(node: Node) -> bool:
    """Return whether an op takes about one pass over memory."""
    if node.has_several_results:
        return False
    kernel = node.op.kernel
    is_one_pass = kernel.is_elementwise or kernel.is_broadcast or kernel.is_copy
    return is_one_pass or (kernel.is_view and len(node.inputs) == 1)


__all__ = ["plan_within_limit"]
