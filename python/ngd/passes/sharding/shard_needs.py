# SPDX-License-Identifier: Apache-2.0
"""Analysis for sharded weight updates: values that ranks need whole, and those needed as shards.

The needs start at the outputs, and at the new values that the step writes to variables. They are
passed on to operands:

- A node that computes element by element computes the shard of its result from the shards of its
  operands. A view of all elements does so, too, and so does a broadcast of a single element
  (`has_shards`).
- A sum over the ranks computes the shard of its result from its whole operand, by a reduce-scatter.
- Another node computes its whole result, and the shard is taken from that.
- A *total* is a reduction to one element whose operand the ranks compute as shards. Each rank
  reduces its shard, and a collective reduces the results of the ranks. So a total needs only the
  shard of its operand.
- A node whose whole result is needed needs its whole operands.

A node may be needed both whole and as a shard. A total costs a collective. In return, only shards
are needed of the sums over the ranks from which the total is computed. If other nodes need all of
these sums whole, the total is dropped: each rank then needs the operand whole. This may make other
totals useless. So the walk is repeated until no total is dropped.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...graph.graph import Graph
from ...graph.leaves import VARIABLE
from ...graph.node import Node, offset_of
from ...ops._operands import FLOATS_16_BIT
from ...ops.collectives.reductions import COMBINED
from ..collective_order import Ordered
from ..partition import is_divided
from ..target import Sharing
from .matmul_owners import Ends, assign_owners, chains


class ShardNeeds:
    """The nodes of a graph whose whole value this rank needs, and those whose shard it needs."""

    def __init__(self, graph: Graph, updates: Mapping[Node, Node], sharing: Sharing) -> None:
        self.graph, self.sharing = graph, sharing
        self.values = list(updates.values())
        """The nodes that compute the new values of the shared variables."""
        self.sums = self.find_sums()
        """A dict from a node to the set of sums over the ranks from which the node is computed. A
        node has an entry only if its shard can be computed from shards of these sums."""
        self.totals = {node for node in graph.nodes if self.may_be_total(node)}
        """The totals: reductions to one element whose operand the ranks compute as shards."""
        sums_of_totals = {total: self.sums[total.inputs[0]] for total in self.totals}
        candidates = chains(graph, self.is_sum)
        ends = Ends(graph, self.values, sums_of_totals)
        self.owned_chains = assign_owners(candidates, ends, sharing.partition.host_ranks.size)
        """The chains of matmuls that one rank per host computes. The key of a chain is its end: the
        node through which the rest of the step reads the chain."""
        self.whole: set[Node] = set()
        """The nodes whose whole value this rank needs."""
        self.sharded: set[Node] = set()
        """The nodes whose shard this rank needs. If this rank also needs the whole value of a node,
        the node is in `whole`, too."""
        self.find_needs()
        self.once_over_hosts = self.variables_once_over_hosts(updates)
        """The variables that are divided over all hosts: no host has all of their elements."""

    def find_sums(self) -> dict[Node, set[Node]]:
        """Return a dict from each node to the sums over the ranks from which it is computed.

        A sum is the node of an all-reduce. A node has an entry only if its shard can be computed
        from shards of these sums.
        """
        sums: dict[Node, set[Node]] = {}
        for node in self.graph.nodes:
            if self.is_sum(node):
                sums[node] = {node}
            elif has_shards(node):
                below = [sums[i] for i in node.inputs if i in sums]
                if below:
                    sums[node] = below[0].union(*below[1:])
        return sums

    def is_sum(self, node: Node) -> bool:
        """Return whether a node is an all-reduce that could give each rank only its shard.

        The all-reduce is over the ranks of the step. On several hosts, the shards would be reduced
        within each host, then between the hosts. Both reductions would round 16-bit floats, so on
        several hosts the result is False for 16-bit floats.
        """
        partition, group = self.sharing.partition, self.sharing.group
        if not isinstance(node.op, Ordered) or not is_divided(node.type, partition.parts):
            return False
        if partition.counterparts.size > 1 and node.dtype in FLOATS_16_BIT:
            return False
        kind, attrs = node.op.block.kind, node.attrs
        is_of_step = attrs.get("group", group) == group
        return (
            kind.reduces and kind.has_equal_results and is_of_step and attrs["algorithm"] != "ring"
        )

    def may_be_total(self, node: Node) -> bool:
        """Return whether a node may be a total: a reduction of its operand to one element.

        The reduction is a sum, min, max or prod, and the ranks can compute the operand as shards.
        """
        if (
            node.op.kernel.reduction not in COMBINED
            or node.type.count != 1
            or node.has_several_results
        ):
            return False
        operand = node.inputs[0]
        return operand in self.sums and is_divided(operand.type, self.sharing.partition.parts)

    def find_needs(self) -> None:
        """Set `whole` and `sharded`: the nodes whose whole value, or whose shard, this rank needs.

        A total, a reduction to one element, costs a collective. In return, this rank needs only
        shards of the sums over the ranks from which the total is computed. So a total is removed
        from `totals` if other nodes need all of these sums whole.
        """
        while True:
            self.pass_on_needs()
            worth_it = {t for t in self.totals if self.sums[t.inputs[0]] - self.whole}
            if worth_it == self.totals:
                return
            self.totals = worth_it

    def pass_on_needs(self) -> None:
        """Set `whole` and `sharded`: the nodes whose whole value, or whose shard, this rank needs.

        One walk goes from the outputs, and from the new values of variables, to the leaves. To
        compute a reduction to one element that is in `self.totals`, this rank needs only the shard
        of the operand.
        """
        shared = set(self.values)
        self.sharded = set(shared)
        other_values = (value for _, value in self.graph.updates if value not in shared)
        self.whole = {*self.graph.outputs, *other_values}
        for node in reversed(self.graph.nodes):
            is_whole = not self.whole.isdisjoint(node.results)
            if not self.sharded.isdisjoint(node.results):
                if has_shards(node) and node not in self.owned_chains:
                    self.need_operands_of_shard(node)
                elif node.op is not VARIABLE:
                    is_whole = True
                    if not self.is_sum(node):
                        self.whole.add(node)
            if is_whole:
                self.need_operands_of_whole(node)

    def need_operands_of_shard(self, node: Node) -> None:
        """Record which operands are needed to compute the shard of a node's result.

        Of an operand with as many elements as the result, only the shard is needed. Any other
        operand is needed whole.
        """
        for operand in node.inputs:
            has_same_size = operand.type.count == node.type.count
            (self.sharded if has_same_size else self.whole).add(operand)

    def need_operands_of_whole(self, node: Node) -> None:
        """Record which operands are needed to compute the whole result of a node.

        A node in `self.totals`, a reduction to one element, needs only the shard of its operand.
        Any other node needs its operands whole.
        """
        if node in self.totals:
            self.sharded.add(node.inputs[0])
        else:
            self.whole.update(node.inputs)

    def variables_once_over_hosts(self, updates: Mapping[Node, Node]) -> set[Node]:
        """Return the variables that are divided over all hosts, such as optimizer state.

        No host has all elements of such a variable: each rank keeps only the elements that it
        updates. This requires that the step does not need the whole variable. Variables of which
        an earlier compiled step put a whole copy on each host are left out. If each host has a copy
        of every variable (`Partition.is_once_over_hosts` is False), the set is empty.
        """
        if not self.sharing.partition.is_once_over_hosts:
            return set()
        return set(updates) - self.whole - self.sharing.once


def has_shards(node: Node) -> bool:
    """Return whether the shard of a node can be computed from the shards of its operands."""
    if node.has_several_results or node.type.count == 1 or not node.inputs:
        return False
    is_view = node.inputs[0].type.count == node.type.count and offset_of(node) == 0
    is_repeated = node.op.kernel.is_broadcast and node.inputs[0].type.count == 1
    return node.op.kernel.is_elementwise or is_repeated or is_view


__all__ = ["ShardNeeds", "has_shards"]
