# SPDX-License-Identifier: Apache-2.0
"""A matcher, and tables of rules over it: a pattern, a condition, a replacement.

A pattern describes a node by the traits of its op, and its operands by patterns; it names what it
finds. A rule replaces the node where its condition holds and the device takes the replacement.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias

from ...graph.graph import Graph
from ...graph.node import Node, Op
from ..target import Target, query_node
from ..views import source_of

Match: TypeAlias = Mapping[str, Node]
"""What a pattern has found, by the names that it gives."""


@dataclass(frozen=True)
class Pattern:
    """A node: how a match names it, what its op must be, and its first operands."""

    name: str
    trait: Callable[[Op], bool] = lambda op: True
    operands: tuple[Pattern, ...] = ()
    any_order: bool = False
    """Whether the operands, two, may stand in either order."""
    read_once: bool = False
    """Whether nothing else may read the node, which the replacement does away with."""

    def may_match(self, op: Op, operands: Sequence[Op]) -> bool:
        """Whether the traits of a node's op, and of those of its operands, allow it."""
        if not self.trait(op) or len(operands) < len(self.operands):
            return False
        given = operands[: len(self.operands)]
        orders = (given, given[::-1]) if self.any_order else (given,)
        return any(
            all(pattern.trait(found) for pattern, found in zip(self.operands, each, strict=True))
            for each in orders
        )

    def matches(self, node: Node, counts: Mapping[Node, int]) -> Iterator[Match]:
        """All ways in which the pattern fits this node."""
        if not self.trait(node.op) or (self.read_once and counts.get(node, 0) != 1):
            return
        if len(node.inputs) < len(self.operands):
            return
        given = node.inputs[: len(self.operands)]
        for inputs in (given, given[::-1]) if self.any_order else (given,):
            yield from ({self.name: node, **m} for m in self.of_operands(inputs, counts))

    def of_operands(self, inputs: Sequence[Node], counts: Mapping[Node, int]) -> Iterator[Match]:
        """All ways in which the operands' patterns fit these."""
        found: list[Match] = [{}]
        for pattern, node in zip(self.operands, inputs, strict=True):
            found = [{**one, **m} for one in found for m in pattern.matches(node, counts)]
        yield from found


@dataclass(frozen=True)
class Rule:
    """What to put in the place of a pattern, and when."""

    pattern: Pattern
    condition: Callable[[Match], bool]
    replacement: Callable[[Match], Node | None]
    """None: there is none after all."""

    def apply(self, node: Node, counts: Mapping[Node, int], target: Target) -> Node | None:
        """The replacement of a node that the device accepts."""
        for match in self.pattern.matches(node, counts):
            new = self.replacement(match) if self.condition(match) else None
            if new is not None and query_node(target, source_of(new)).accepted:
                return new
        return None


def apply_rules(graph: Graph, rules: Sequence[Rule], target: Target) -> Graph:
    """The graph in which, from the inputs on, the first rule that fits has replaced each node."""
    counts = uses(graph)
    readers: dict[Node, int] = {}  # the same, of the nodes of the new graph
    likely: dict[tuple[Op, ...], list[Rule]] = {}  # by a node's op and those of its operands

    def change(node: Node, inputs: tuple[Node, ...]) -> Node:
        new = node.with_inputs(inputs)
        key = (new.op, *[operand.op for operand in inputs])
        if key not in likely:
            likely[key] = [rule for rule in rules if rule.pattern.may_match(key[0], key[1:])]
        for rule in likely[key]:
            found = rule.apply(new, readers, target)
            if found is not None:
                new = found
                break
        readers[new] = counts[node]
        return new

    return graph.rewrite(change)


def uses(graph: Graph) -> Counter[Node]:
    """How often each node is read, the graph's own outputs and updates counted."""
    reads = [graph.roots, *[node.inputs for node in graph.nodes]]
    return Counter(chain.from_iterable(reads))
