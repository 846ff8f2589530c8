# SPDX-License-Identifier: Apache-2.0
"""A pattern matcher for graphs, and tables of rules: a pattern, a condition, a replacement.

A pattern describes a node by the traits of its op, and the operands of the node by other patterns.
It gives names to the nodes that it matches. A rule replaces the matched node if its condition holds
and the device accepts the replacement.
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
"""The nodes that a pattern has matched, by the names that the pattern gives them."""


@dataclass(frozen=True)
class Pattern:
    """The description of a node: its name in a match, a test of its op, and its operands.

    `trait` is the test, a function that returns True for the ops that may match. `operands` has the
    patterns of the first operands. Any further operands are not restricted.
    """

    name: str
    trait: Callable[[Op], bool] = lambda op: True
    operands: tuple[Pattern, ...] = ()
    any_order: bool = False
    """True if the two operands may be in either order."""
    read_once: bool = False
    """True if the node must not have a second reader, because the replacement removes the node."""

    def may_match(self, op: Op, operands: Sequence[Op]) -> bool:
        """Return False if no node with this op and these ops of operands can match.

        This is a quick test, which needs no node. `matches` finds the matches.
        """
        if not self.trait(op) or len(operands) < len(self.operands):
            return False
        first_operands = operands[: len(self.operands)]
        orders = (first_operands, first_operands[::-1]) if self.any_order else (first_operands,)
        return any(
            all(pattern.trait(found) for pattern, found in zip(self.operands, each, strict=True))
            for each in orders
        )

    def matches(self, node: Node, counts: Mapping[Node, int]) -> Iterator[Match]:
        """Yield all matches of the pattern with a node: with `any_order` there may be several.

        `counts` has the number of reads of each node.
        """
        if not self.trait(node.op) or (self.read_once and counts.get(node, 0) != 1):
            return
        if len(node.inputs) < len(self.operands):
            return
        first_operands = node.inputs[: len(self.operands)]
        for inputs in (
            (first_operands, first_operands[::-1]) if self.any_order else (first_operands,)
        ):
            yield from ({self.name: node, **m} for m in self.of_operands(inputs, counts))

    def of_operands(self, inputs: Sequence[Node], counts: Mapping[Node, int]) -> Iterator[Match]:
        """Yield all matches in which the pattern `operands[n]` matches `inputs[n]`, for every n.

        `counts` has the number of reads of each node.
        """
        found: list[Match] = [{}]
        for pattern, node in zip(self.operands, inputs, strict=True):
            found = [{**one, **m} for one in found for m in pattern.matches(node, counts)]
        yield from found


@dataclass(frozen=True)
class Rule:
    """A replacement for the nodes that match a pattern and fulfil a condition."""

    pattern: Pattern
    condition: Callable[[Match], bool]
    replacement: Callable[[Match], Node | None]
    """A function that takes a match, and returns the new node or None (no replacement)."""

    def apply(self, node: Node, counts: Mapping[Node, int], target: Target) -> Node | None:
        """Return a replacement of `node` for which the device has a kernel, or None."""
        for match in self.pattern.matches(node, counts):
            new = self.replacement(match) if self.condition(match) else None
            if new is not None and query_node(target, source_of(new)).accepted:
                return new
        return None


def apply_rules(graph: Graph, rules: Sequence[Rule], target: Target) -> Graph:
    """Return the graph after the rules: the first rule that applies to a node replaces the node.

    Each node is visited after its inputs. So a pattern is compared with operands that the rules
    have already replaced.
    """
    counts = uses(graph)
    readers: dict[Node, int] = {}  # the counts for nodes of the new graph
    candidates: dict[tuple[Op, ...], list[Rule]] = {}  # by the ops of a node and of its operands

    def change(node: Node, inputs: tuple[Node, ...]) -> Node:
        new = node.with_inputs(inputs)
        key = (new.op, *[operand.op for operand in inputs])
        if key not in candidates:
            candidates[key] = [rule for rule in rules if rule.pattern.may_match(key[0], key[1:])]
        for rule in candidates[key]:
            found = rule.apply(new, readers, target)
            if found is not None:
                new = found
                break
        readers[new] = counts[node]
        return new

    return graph.rewrite(change)


def uses(graph: Graph) -> Counter[Node]:
    """Return the number of reads of each node.

    If a node is an output of the graph, or a value that the step stores to a variable, this counts
    as a read, too.
    """
    reads = [graph.roots, *[node.inputs for node in graph.nodes]]
    return Counter(chain.from_iterable(reads))
