# SPDX-License-Identifier: Apache-2.0
"""Matmuls of whole gradients, which one rank of a host computes for all ranks of the host.

Muon (optim/muon.py) multiplies matrices that are computed from a whole gradient, many times. All
ranks have the sum of the gradient, so each of them would compute the same. Instead, such a *chain*
of matmuls has an *owner*: one rank that computes the chain and broadcasts its result to the other
ranks of its host. If there are several chains, the chains are divided so that each rank computes a
nearly equal number of operations, and the ranks compute at the same time. "Muon is Scalable for LLM
Training" (J. Liu et al. 2025, arXiv:2502.16982, section 2.3) divides the work in this way, too.

A chain begins at a sum over the ranks. The *end* of a chain is the node whose value is broadcast.
It comes after all matmuls of the chain. The rest of the step does not read the nodes of the chain
that come before the end. If several nodes meet these conditions, the end is the first of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from ...graph.graph import Graph
from ...graph.node import Node
from ..collective_order import order_of
from ..op_costs import cost_of

MIN_FLOPS: Final = 4_000_000
"""The least number of operations of matmuls that one rank computes for its host. With fewer, each
rank computes the matmuls itself, because a broadcast of the result is not worth it. A rank computes
this number of operations in about 40 us."""
MIN_FLOPS_PER_BYTE: Final = 64
"""The least number of operations per byte of the result, for matmuls that one rank computes for its
host. With fewer, each rank computes the matmuls itself, because a broadcast of the result would
take longer. The result has the size of the gradient from which the matmuls are computed."""


@dataclass
class Chain:
    """The matmuls that depend on one sum over the ranks, and the rank that computes the matmuls."""

    total: Node
    """The sum over the ranks, such as a gradient, from which the matmuls are computed."""
    nodes: list[Node] = field(default_factory=list)
    """The matmuls and the nodes that are computed from them, each after its inputs. Nodes that are
    also computed from another sum over the ranks are left out."""
    owner: int = 0

    @property
    def flops(self) -> int:
        """The number of operations of the matmuls."""
        return sum(cost_of(node).flops for node in self.nodes if node.op.is_heavy)

    @property
    def is_worth_it(self) -> bool:
        """True if a broadcast of the result takes less time than the matmuls of the chain."""
        return self.flops >= max(MIN_FLOPS, MIN_FLOPS_PER_BYTE * self.total.type.bytes)


def assign_owners(candidates: Iterable[Chain], ends: Ends, ranks: int) -> dict[Node, Chain]:
    """Return the chains of matmuls that one rank per host computes, as a dict {end: chain}.

    The end is the node through which the rest of the step reads the chain. `Chain.owner` is set to
    the rank that computes the chain. The owners are chosen so that the ranks of a host have nearly
    equal work. All ranks make the same choice, in the same order.
    """
    owned_by_end: dict[Node, Chain] = {}
    for chain in sorted(candidates, key=lambda c: order_of(c.total)) if ranks > 1 else ():
        end = ends.of(chain)
        if end is not None and chain.is_worth_it:
            owned_by_end[end] = chain
    while unmatched := [
        end for end in owned_by_end if not ends.needs_same_collectives(end, owned_by_end)
    ]:
        for end in unmatched:
            del owned_by_end[end]
    load = [0] * ranks
    for chain in sorted(owned_by_end.values(), key=lambda c: -c.flops):
        chain.owner = load.index(min(load))
        load[chain.owner] += chain.flops
    return owned_by_end


def chains(graph: Graph, is_sum: Callable[[Node], bool]) -> Iterable[Chain]:
    """Return one chain per sum over the ranks: the matmuls that are computed only from this sum.

    The nodes that are computed from these matmuls also belong to the chain. If the rest of the step
    needs several values of a chain, a single broadcast cannot send them. Then `Ends.of` returns
    None for the chain, and every rank computes it.
    """
    sums: dict[Node, set[Node]] = {}  # the sums that a node depends on, except through scalars
    candidates: dict[Node, Chain] = {}
    after_matmul: set[Node] = set()  # matmuls, and the nodes computed from them
    for node in graph.nodes:
        if is_sum(node):
            sums[node] = {node}
            continue
        own_sums = set[Node]().union(*(sums[i] for i in node.inputs if i in sums))
        product = (node.op.is_heavy and bool(own_sums)) or not after_matmul.isdisjoint(node.inputs)
        if product:
            after_matmul.update(node.results)
        if own_sums and (product or node.type.count > 1):
            sums.update(dict.fromkeys(node.results, own_sums))
        if product and len(own_sums) == 1:
            (total,) = own_sums
            candidates.setdefault(total, Chain(total)).nodes.append(node)
    return candidates.values()


class Ends:
    """The search for the end of each chain of matmuls: the node whose value is broadcast.

    The rest of the step reads the matmuls of a chain only through the end of the chain. `values`
    are the nodes that compute the new values of the shared variables. Each end is one of them, or
    one of the nodes from which they are computed.

    A *total* is a reduction to one element. The ranks may compute a total together, each from its
    shard of the operand, so a total counts as a collective. `totals` maps each total to the
    all-reduces from which it is computed.
    """

    def __init__(
        self, graph: Graph, values: list[Node], totals: Mapping[Node, Collection[Node]]
    ) -> None:
        self.graph, self.totals = graph, totals
        self.readers: dict[Node, list[Node]] = {}
        """For each result, the nodes that read it."""
        self.wanted = set(values)
        """`values` (the nodes that compute the new values of the shared variables), and the nodes
        from which they are computed. The search for these nodes stops at collectives: it includes
        them, but does not visit their operands."""
        self.roots = {*graph.outputs, *(value for _, value in graph.updates)}
        for node in reversed(graph.nodes):
            if not self.wanted.isdisjoint(node.results) and node.op.order is None:
                self.wanted.update(node.inputs)
            for operand in node.inputs:
                self.readers.setdefault(operand, []).append(node)

    def of(self, chain: Chain) -> Node | None:
        """Return the end of a chain of matmuls: the node to broadcast.

        The rest of the step reads the chain only through its end. Return None if there is no node
        that can be the end.
        """
        position = {node: i for i, node in enumerate(chain.nodes)}
        # The end is the last heavy op of the chain, or a node after it.
        last = max(position[node] for node in chain.nodes if node.op.is_heavy)
        for i, node in enumerate(chain.nodes):
            if i >= last and self.may_end(chain, node):
                return node
            for result in node.results:
                readers = self.readers.get(result, [])
                if result in self.roots or any(reader not in position for reader in readers):
                    return None
                last = max([last, *(position[reader] for reader in readers)])
        return None

    def may_end(self, chain: Chain, node: Node) -> bool:
        """Return whether a node may be the end of a chain of matmuls: the node that is broadcast.

        The chain is computed from a sum over the ranks. The node must have the size and dtype of
        this sum: the ranks that do not compute the chain receive the node's value in the memory of
        the sum. The broadcast comes after all collectives of the step, so no collective may depend
        on the node.
        """
        total = chain.total.type
        same_type = node.type.count == total.count and node.dtype == total.dtype
        is_plain = node.op.order is None and not node.has_several_results
        return (
            same_type
            and is_plain
            and node in self.wanted
            and not self.leads_to_collective(chain, node)
        )

    def is_reduced(self, chain: Chain, node: Node) -> bool:
        """Return whether the ranks communicate to compute a node.

        The answer is True for a collective. It is also True for a node in `self.totals` that is
        computed from another sum than `chain.total`, the sum at which the chain begins. A node in
        `self.totals` is a reduction to one element: each rank may reduce its shard, and a
        collective then reduces the results.
        """
        totals = self.totals.get(node, ())
        return node.op.order is not None or any(each is not chain.total for each in totals)

    def leads_to_collective(self, chain: Chain, node: Node) -> bool:
        """Return whether the ranks communicate to compute any node that depends on `node`."""
        seen, to_visit = {node}, [node]
        while to_visit:
            for reader in self.readers.get(to_visit.pop(), ()):
                if self.is_reduced(chain, reader):
                    return True
                if reader not in seen:
                    seen.add(reader)
                    to_visit.extend(reader.results)
        return False

    def needs_same_collectives(self, end: Node, owned_by_end: Mapping[Node, Chain]) -> bool:
        """Return whether all ranks call every collective that a chain of matmuls depends on.

        Only one rank of a host, the owner, computes the chain. If only the chain needs the result
        of a collective, the other ranks do not call this collective. Then return False. `end` is
        the node of the chain that the owner broadcasts.
        """
        alive, below, chain = set(self.roots), {end}, owned_by_end[end]
        for node in reversed(self.graph.nodes):
            if not below.isdisjoint(node.results):
                if self.is_reduced(chain, node) and alive.isdisjoint(node.results):
                    return False
                below.update(() if node.op.order is not None else node.inputs)
            if not alive.isdisjoint(node.results):
                alive.update((owned_by_end[node].total,) if node in owned_by_end else node.inputs)
        return True


__all__ = ["Chain", "Ends", "assign_owners", "chains"]
