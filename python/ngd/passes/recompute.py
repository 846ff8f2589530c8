# SPDX-License-Identifier: Apache-2.0
"""Compute again what is cheap, instead of keeping it: how a step stays within `memory_limit`.

T. Chen et al. 2016, Training Deep Nets with Sublinear Memory Cost (arXiv:1604.06174), section 3:
what cheap ops make of values that are kept anyway is not kept. Where a step needs most memory,
between the forward and the backward pass, values wait for readers that come much later. Those that
elementwise ops and moves compute, from others that wait too, are computed again for these readers;
the copies wait for an op shortly before the first of them (ops.custom.after). The bits stay.

The planner says what is needed, so this goes in rounds: a plan, and if it is too large, copies for
as many bytes as it has too many; the place of the maximum may be another one in the next round.
Where that leads nowhere, rounds follow that copy all that they can.
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
from ..graph.precision_marks import wide
from ..ops._custom import after
from .memory.plan import Plan
from .op_costs import cost_of_graph
from .options import CompileOptions
from .precision import chooses
from .scheduling import schedule
from .target import Target
from .views import is_view, source_of

ROUNDS: Final = 8
SMALL: Final = 16
"""What is so many times smaller than what is made of it may be kept for that."""
LONGEST: Final = 16
"""How many ops make a value again at most."""


def within(
    graph: Graph,
    target: Target,
    options: CompileOptions,
    limit: int,
    plan_of: Callable[[Graph], Plan],
) -> Plan:
    """The plan of the graph, or of one that computes some values again, of so many bytes at most.

    Raises
    ------
    CompileError
        It says how many bytes the smallest plan that was found takes.
    """
    before = cost_of_graph(graph)
    least = math.inf
    for all_at_once in (False, True):
        now, before_this = graph, math.inf
        for _ in range(ROUNDS):
            plan = plan_of(now)
            excess = bytes_of(plan) - limit
            if excess <= 0:
                plan.recomputed = difference(cost_of_graph(now), before)
                return plan
            if all_at_once:  # the same for any limit, so that what the error says can be kept
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
    """What a step computes takes."""
    return plan.private_bytes + plan.shared_bytes


def difference(all: Cost, without: Cost) -> Cost:
    """What a step costs more."""
    return Cost(all.flops - without.flops, all.bytes - without.bytes)


class Copy(NamedTuple):
    """A value that is computed again: the ops that make it, in turn, and what they read."""

    value: Node
    ops: list[Node]
    kept: list[Node]


class Waiting:
    """The values of a graph that wait where it needs most memory."""

    def __init__(self, graph: Graph, target: Target, options: CompileOptions) -> None:
        self.graph = graph
        self.order = schedule(graph, target).order
        self.place = {r: i for i, node in enumerate(self.order) for r in node.results}
        self.last = self.last_reads()
        rounds = options.has_low_precision
        ordered = (n for n in self.order if rounds and n.op.kernel.reduction in chooses())
        self.compared = {source_of(node.inputs[0]) for node in ordered}
        """What is compared with its own maximum: a copy may be rounded otherwise."""
        self.peak = self.place_of_the_peak()

    def last_reads(self) -> dict[Node, int]:
        """When a value is read for the last time, also by way of a view."""
        last = dict.fromkeys(self.place, -1)
        end = len(self.order)
        for i, node in enumerate(self.order):
            for operand in node.inputs:
                if operand in last:
                    last[operand] = max(last[operand], i)
        for root in self.graph.roots:
            if root in last:
                last[root] = end
        for node in reversed(self.order):
            if is_view(node) and node.inputs[0] in last:
                last[node.inputs[0]] = max(last[node.inputs[0]], last[node])
        return last

    def place_of_the_peak(self) -> int:
        """The instruction behind which most bytes wait."""
        change = [0] * (len(self.order) + 2)
        given = {*self.graph.roots}  # they lie elsewhere
        for value, place in self.place.items():
            if not is_view(value) and value not in given and self.last[value] > place:
                change[place] += value.type.bytes
                change[self.last[value]] -= value.type.bytes
        most = at = now = 0
        for place, difference in enumerate(change[: len(self.order)]):
            now += difference
            if now > most:
                most, at = now, place
        return at

    def waits(self, value: Node) -> bool:
        """Whether a value is there at the peak, and is read later."""
        return value in self.place and self.place[value] <= self.peak < self.last[value]

    def copied(self, wanted: float) -> Graph:
        """The graph that keeps so many bytes less at the peak; itself: there is nothing to copy."""
        copies: dict[Node, Copy] = {}
        kept: set[Node] = set()
        for node in self.order:
            if wanted <= 0:
                break
            if is_view(node) or not is_cheap(node) or not self.waits(node) or node in kept:
                continue
            if node in self.compared:
                continue
            made = self.copy_of(node, copies)
            if made is not None:
                copies[node] = made
                kept.update(made.kept)
                wanted -= node.type.bytes
        return self.with_copies(copies) if copies else self.graph

    def copy_of(self, value: Node, copies: dict[Node, Copy]) -> Copy | None:
        """How to make a value of what is kept anyway; None: it cannot be had so."""
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
                small = source.type.bytes * SMALL <= value.type.bytes
                if source not in copies and (small or self.waits(source)):
                    kept.append(source)
                elif is_cheap(operand) and source not in copies:
                    stack.append(operand)
                else:
                    return None
        return Copy(value, sorted(ops, key=self.place.__getitem__), kept)

    def with_copies(self, copies: dict[Node, Copy]) -> Graph:
        """The graph in which late readers read copies."""
        new: dict[Node, Node] = {}
        again: dict[Node, Node] = {}

        def copied(old: Node, reader: Node) -> Node:
            if old not in again:
                if old in copies:
                    again[old] = self.made_again(copies[old], reader, new)
                else:
                    others = [new.get(i, i) for i in old.inputs[1:]]
                    with at_site(old.site), wide(old.wide):
                        inputs = (copied(old.inputs[0], reader), *others)
                        again[old] = Node(old.op, inputs, old.attrs, old.type)
            return again[old]

        def change(node: Node, inputs: tuple[Node, ...]) -> Node:
            if self.place.get(node, -1) > self.peak and not is_view(node):
                inputs = tuple(
                    copied(old, node) if source_of(old) in copies else now
                    for old, now in zip(node.inputs, inputs, strict=True)
                )
            made = node.with_inputs(inputs)
            new.update(zip(node.results, made.results, strict=True))
            return made

        return self.graph.rewrite(change, self.order_with_leaves())

    def order_with_leaves(self) -> list[Node]:
        """All nodes, each after its inputs, in the order of execution."""
        leaves = [node for node in self.graph.nodes if isinstance(node.op, Leaf)]
        return [*leaves, *self.order]

    def made_again(self, copy: Copy, reader: Node, new: dict[Node, Node]) -> Node:
        """The nodes of a copy, which waits until its first reader's turn is near."""
        gates = [new[gate] for gate in self.gates(self.place[reader])]
        made: dict[Node, Node] = {}

        def operand(x: Node) -> Node:
            if x in made:
                return made[x]
            now = new.get(x, x)
            with wide(x.wide):
                return now if isinstance(x.op, Leaf) or not gates else after(now, *gates)

        for node in copy.ops:
            with at_site(node.site), wide(node.wide):
                inputs = tuple(operand(x) for x in node.inputs)
                made[node] = Node(node.op, inputs, node.attrs, node.type)
        return made[copy.value]

    def gates(self, place: int) -> list[Node]:
        """The last op before an instruction, behind the peak, that is no view and not cheap."""
        for i in range(place - 1, self.peak, -1):
            node = self.order[i]
            if not is_cheap(node) and not is_view(node) and not node.op.kernel.is_broadcast:
                return [node]
        return []


def is_cheap(node: Node) -> bool:
    """Whether an op takes about a pass over memory."""
    if node.several:
        return False
    kernel = node.op.kernel
    is_one_pass = kernel.is_elementwise or kernel.is_broadcast or kernel.is_copy
    return is_one_pass or (kernel.is_view and len(node.inputs) == 1)


__all__ = ["within"]
