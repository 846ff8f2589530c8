# SPDX-License-Identifier: Apache-2.0
"""What updates need of whole gradients, computed by one rank of a host for all of them.

Muon (optim/muon.py) multiplies matrices that are made of a whole gradient, many times. All ranks
have the gradient's sum, and each would compute the same. So such a chain of products has an owner:
it computes the chain, and broadcasts what comes out to the other ranks of its host. Where there are
several chains the ranks own nearly equal work, and compute at the same time. "Muon is Scalable for
LLM Training" (J. Liu et al. 2025, arXiv:2502.16982, section 2.3) shares the work so, too.

A chain begins at a sum over the ranks. It ends at the first node that all of its products lead to,
and by which alone the rest of the step reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from ...graph.graph import Graph
from ...graph.node import Node
from ..collective_order import order_of
from ..op_costs import cost_of

LEAST: Final = 4_000_000
"""Operations of a chain that are worth a broadcast, about 40 us."""
LEAST_A_BYTE: Final = 64
"""The same for each byte that is broadcast."""


@dataclass
class Chain:
    """Products of a whole sum over the ranks."""

    total: Node
    """That sum."""
    nodes: list[Node] = field(default_factory=list)
    """The products, and what is made of them and of no other sum, each after what it reads."""
    owner: int = 0

    @property
    def flops(self) -> int:
        """How many operations it has."""
        return sum(cost_of(node).flops for node in self.nodes if node.op.is_heavy)

    @property
    def is_worth_it(self) -> bool:
        """Whether its end takes less time to send than to compute."""
        return self.flops >= max(LEAST, LEAST_A_BYTE * self.total.type.bytes)


def owned(found: Iterable[Chain], ends: Ends, ranks: int) -> dict[Node, Chain]:
    """The chains that have owners, by their ends; all ranks find them in the same order."""
    worth: dict[Node, Chain] = {}
    for chain in sorted(found, key=lambda c: order_of(c.total)) if ranks > 1 else ():
        end = ends.of(chain)
        if end is not None and chain.is_worth_it:
            worth[end] = chain
    while lonely := [end for end in worth if not ends.met(end, worth)]:
        for end in lonely:
            del worth[end]
    load = [0] * ranks
    for chain in sorted(worth.values(), key=lambda c: -c.flops):
        chain.owner = load.index(min(load))
        load[chain.owner] += chain.flops
    return worth


def chains(graph: Graph, is_sum: Callable[[Node], bool]) -> Iterable[Chain]:
    """Of each sum over the ranks, its products; whether they have an end is not asked here."""
    sums: dict[Node, set[Node]] = {}  # that a node is made of; not by way of scalars
    found: dict[Node, Chain] = {}
    behind: set[Node] = set()  # products, and what is made of them
    for node in graph.nodes:
        if is_sum(node):
            sums[node] = {node}
            continue
        mine = set[Node]().union(*(sums[i] for i in node.inputs if i in sums))
        product = (node.op.is_heavy and bool(mine)) or not behind.isdisjoint(node.inputs)
        if product:
            behind.update(node.results)
        if mine and (product or node.type.count > 1):
            sums.update(dict.fromkeys(node.results, mine))
        if product and len(mine) == 1:
            (total,) = mine
            found.setdefault(total, Chain(total)).nodes.append(node)
    return found.values()


class Ends:
    """Finds where chains end, which are below some values that are equal on all ranks.

    `totals` may be reduced over the ranks, too; of each, the sums that it is made of.
    """

    def __init__(
        self, graph: Graph, values: list[Node], totals: Mapping[Node, Collection[Node]]
    ) -> None:
        self.graph, self.totals = graph, totals
        self.readers: dict[Node, list[Node]] = {}
        """Of each result."""
        self.wanted = set(values)
        """What the values are made of, down to what collectives give."""
        self.kept = {*graph.outputs, *(value for _, value in graph.updates)}
        for node in reversed(graph.nodes):
            if not self.wanted.isdisjoint(node.results) and node.op.order is None:
                self.wanted.update(node.inputs)
            for operand in node.inputs:
                self.readers.setdefault(operand, []).append(node)

    def of(self, chain: Chain) -> Node | None:
        """The end of a chain, or None."""
        place = {node: i for i, node in enumerate(chain.nodes)}
        # All heavy ops of the chain come before its end.
        last = max(place[node] for node in chain.nodes if node.op.is_heavy)
        for i, node in enumerate(chain.nodes):
            if i >= last and self.may_end(chain, node):
                return node
            for result in node.results:
                readers = self.readers.get(result, [])
                if result in self.kept or any(reader not in place for reader in readers):
                    return None
                last = max([last, *(place[reader] for reader in readers)])
        return None

    def may_end(self, chain: Chain, node: Node) -> bool:
        """Whether all ranks may be sent this, in memory like the sum's, after all collectives."""
        total = chain.total.type
        alike = node.type.count == total.count and node.dtype == total.dtype
        plain = node.op.order is None and not node.several
        return alike and plain and node in self.wanted and not self.is_told(chain, node)

    def is_reduced(self, chain: Chain, node: Node) -> bool:
        """Whether the ranks talk for a node: not for a total that is made of the chain's sum."""
        totals = self.totals.get(node, ())
        return node.op.order is not None or any(each is not chain.total for each in totals)

    def is_told(self, chain: Chain, node: Node) -> bool:
        """Whether a node leads to one for which the ranks talk."""
        seen, left = {node}, [node]
        while left:
            for reader in self.readers.get(left.pop(), ()):
                if self.is_reduced(chain, reader):
                    return True
                if reader not in seen:
                    seen.add(reader)
                    left.extend(reader.results)
        return False

    def met(self, end: Node, worth: Mapping[Node, Chain]) -> bool:
        """Whether each collective that a chain needs is one that the other ranks need, too."""
        alive, below, chain = set(self.kept), {end}, worth[end]
        for node in reversed(self.graph.nodes):
            if not below.isdisjoint(node.results):
                if self.is_reduced(chain, node) and alive.isdisjoint(node.results):
                    return False
                below.update(() if node.op.order is not None else node.inputs)
            if not alive.isdisjoint(node.results):
                alive.update((worth[node].total,) if node in worth else node.inputs)
        return True


__all__ = ["Chain", "Ends", "chains", "owned"]
