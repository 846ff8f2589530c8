# SPDX-License-Identifier: Apache-2.0
"""Sharded weight updates: each rank of a host updates its shard of every variable.

This is the automatic sharding of weight updates by Y. Xu et al. 2020 (arXiv:2004.13336). The ranks
of a host keep one copy of a variable (devices/cpu/shared_variables.py). The *next value* of the
variable is the value that the step writes to it. If the next value is proved equal on all ranks,
this rank computes and writes only its shard of this value. `shard_needs.py` finds which values are
computed as shards. An all-reduce becomes a reduce-scatter if each rank needs only its shard of the
result. No all-gather follows, because all ranks of the host read the same memory.

A variable is divided as a flat array of elements (partition.py), so the shards of all variables of
one size have the same bounds. A small variable is not divided, because its all-reduce is a single
message. Each rank keeps a copy of it.

If the group has several hosts, each host needs the same number of ranks, with consecutive rank
numbers. Each host has a copy of a variable, and its ranks have shards of this copy. The
counterparts of a rank are the ranks with the same shard on the other hosts. A gradient is reduced
over the ranks of the host first, and then over the counterparts:

- With `shard="host"`, each counterpart updates the whole shard in the copy of its host.
- With `shard="world"` (ZeRO stage 1, S. Rajbhandari et al. 2020, arXiv:1910.02054), each
  counterpart updates only its own part of the shard. If each host needs a copy of the variable,
  such as a weight, the counterparts then send one another the new parts (all-gather). If only the
  computation of next values reads the variable (optimizer state), each rank keeps only its part.

If a gradient is a matrix product over few samples, the ranks of one host exchange its factors and
not the gradient (gradient_factors.py). One rank of a host computes the matrix products that need a
whole gradient, for all ranks of the host (matmul_owners.py).

The bits do not change. The order of a sum does not depend on the division
(docs/adr/0006-order-of-reduction.md). Between hosts it is the order of an all-reduce
(docs/adr/0010-hierarchical.md) if a host has 2, 4, 8, ... ranks. Totals (reductions to one element,
such as the norm of all gradients) are the exception: each rank reduces its shard, and one small
collective for all totals reduces the results. This is another order of summation, so the last bits
may differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, Final, NamedTuple

from ..._util.callsite import at_site
from ...dtypes import DType, Type
from ...graph.graph import Graph
from ...graph.leaves import CONSTANT, constant_node
from ...graph.node import Node
from ...graph.order import Order, Stage
from ...graph.precision_marks import keep_float32
from ...ops import _concatenation as concatenation
from ...ops import _shape as shape
from ...ops import _slicing as slicing
from ...ops.collectives.exchanges import ReduceScatter, all_gather_v
from ...ops.collectives.groups import Ranks
from ...ops.collectives.reductions import Collective, all_reduce, broadcast
from ..collective_order import Ordered
from ..fusion.patterns import uses
from ..options import CompileOptions
from ..partition import is_divided, shard_bounds, shard_lengths
from ..target import Target
from .equal_values import Equal
from .gradient_factors import factors_of, slice_of_sum
from .shard_needs import ShardNeeds, has_shards
from .uniform import is_per_rank


class ReduceShard(Collective):
    """A reduce-scatter that returns this rank's shard of a flat array, reduced over the ranks.

    `reduce_op` is the reduction, such as "sum". `counts` has the number of elements of each rank's
    shard. `rank` is the number of this rank in `group`; None stands for the group of the step.
    """

    kind = ReduceScatter.kind

    def infer(
        self,
        x: Type,
        *,
        reduce_op: str,
        counts: tuple[int, ...],
        rank: int,
        group: Ranks | None = None,
    ) -> Type:
        """Return the type of the result, this rank's shard of `x`."""
        return Type(x.dtype, (counts[rank],))

    def is_uniform(self, inputs: Sequence[Node], attrs: Mapping[str, Any]) -> bool:
        """Return False: each rank gets a different shard."""
        return False

    def submission(self, x: Type, **attrs: Any) -> dict[str, Any]:
        """Return the attributes that the communicator needs for a reduce-scatter."""
        return {"reduce_op": attrs["reduce_op"], "counts": attrs["counts"]}

    def offset_in_operand(self, x: Type, **attrs: Any) -> int | None:
        """Return the index of the shard's first element in the operand."""
        return int(sum(attrs["counts"][: attrs["rank"]]))


REDUCE_SHARD: Final = ReduceShard()


def shard_updates(graph: Graph, target: Target, options: CompileOptions) -> Graph:
    """Return a graph in which this rank computes only its shard of the new values of variables.

    These are the variables that the ranks share (`Sharing.variables`).
    """
    shared = target.sharing.variables
    updates = {v: value for v, value in graph.updates if v in shared and value is not v}
    if not updates:
        return graph
    needs = ShardNeeds(graph, updates, target.sharing)
    levels = levels_of(graph, needs.totals)
    sharded = ShardedGraph(graph, needs, levels, target, options)
    new = graph.rewrite(sharded.change, sorted(graph.nodes, key=levels.level.__getitem__))
    pairs = tuple(
        sharded.update(v, updates[v]) if v in updates else (v, value) for v, value in new.updates
    )
    return Graph(new.inputs, new.outputs, pairs)


def shareable_variables(graph: Graph, equal: Equal, ranks: int, shared: set[Node]) -> set[Node]:
    """Return the variables whose updates a step can shard.

    The value that the step writes to such a variable is proved equal on all ranks. The value also
    depends on a collective, on a variable that the ranks share already (`shared`), or on another
    variable whose update can be sharded. So a variable that the step sets to a constant is left
    out. Small variables and variables with `per_rank=True` are left out, too.
    """
    able = {
        v: value
        for v, value in graph.updates
        if value in equal.nodes and is_divided(v.type, ranks) and not is_per_rank(v)
    }
    shareable: set[Node] = set()
    while True:
        reached = equal.reaching(shared | shareable)
        more = {v for v, value in able.items() if value in reached}
        if more == shareable:
            return shareable
        shareable = more


class Levels(NamedTuple):
    """For each node, the largest number of totals on a path to it, and its last collective.

    A total is a reduction to one element.
    """

    level: dict[Node, int]
    """The largest number of totals (reductions to one element) on a path that ends at a node."""
    last_collective: dict[Node, int]
    """For each node, the `collective_number` of the last collective among the node and the nodes
    that it is computed from; -1 if none of them is a collective."""


def levels_of(graph: Graph, totals: set[Node]) -> Levels:
    """Return the level of each node, and the last collective that it is computed from.

    The level is the largest number of totals (reductions to one element) on a path that ends at the
    node. So totals of one level do not depend on one another.
    """
    levels = Levels({}, {})
    for node in graph.nodes:
        level = max((levels.level[i] for i in node.inputs), default=0)
        last = max((levels.last_collective[i] for i in node.inputs), default=-1)
        level += node in totals
        last = max(last, collective_number(node))
        levels.level.update(dict.fromkeys(node.results, level))
        levels.last_collective.update(dict.fromkeys(node.results, last))
    return levels


def collective_number(node: Node) -> int:
    """Return the number of a collective in the order of all collectives; -1 for another node."""
    return -1 if node.op.order is None else node.op.order.number


class ShardedGraph:
    """The rewrite of a graph to a new graph that computes this rank's shards.

    A total is a reduction to one element. The level of a node is the largest number of totals on a
    path that ends at the node. `Graph.rewrite` calls `change` for the nodes in ascending order of
    their levels. So one collective can reduce all totals of a level, before any node needs them.
    """

    def __init__(
        self,
        graph: Graph,
        needs: ShardNeeds,
        levels: Levels,
        target: Target,
        options: CompileOptions,
    ) -> None:
        self.graph, self.needs, self.levels = graph, needs, levels
        self.target, self.options = target, options
        self.partition = target.sharing.partition
        self.num_readers = uses(graph)
        self.shards: dict[Node, Node] = {}
        """A dict from nodes of the old graph to nodes of the new one. The new node computes this
        rank's shard of the old node's value. Only nodes of which a shard is needed have an entry.
        """
        self.taken_shards: dict[Node, Node] = {}
        """For each new node that is computed whole and of which a shard is needed: the node that
        takes this shard, a slice of the whole value. So each slice is made only once."""
        self.totals: dict[Node, Node] = {}
        """The new node of each total (reduction to one element) of the old graph."""
        self.owned_sums = {chain.total: chain.total for chain in needs.owned_chains.values()}
        """A dict from old to new nodes: sums over the ranks that are inputs of chains of matmuls.
        Only one rank of each host computes a chain. The other ranks receive the result of the chain
        in the memory of the sum."""
        self.level_reached = 0
        self.last_number = max(map(collective_number, graph.nodes))
        """The number of the last collective of the graph."""
        self.broadcast_positions = {end: i for i, end in enumerate(needs.owned_chains)}
        self.total_positions = count()
        self.gather_positions = count()

    def change(self, node: Node, inputs: tuple[Node, ...]) -> Node | tuple[Node, ...]:
        """Return the node of the new graph that replaces `node`, a node of the old graph.

        If this rank needs the shard of a result of `node`, store in `self.shards` the new node that
        computes this shard.
        """
        if self.levels.level[node] > self.level_reached:
            self.level_reached = self.levels.level[node]
            self.reduce_totals(self.level_reached)
        if node in self.totals:
            return self.totals[node]
        new = node.with_inputs(inputs)
        if node in self.owned_sums:
            self.owned_sums[node] = new
        if node in self.needs.owned_chains:
            new = self.broadcast_from_owner(node, new)
        for old, whole in zip(node.results, new.results, strict=True):
            if old in self.needs.sharded:
                self.shards[old] = self.shard_of(old, whole, inputs)
        return new

    def shard_of(self, old: Node, whole: Node, inputs: tuple[Node, ...]) -> Node:
        """Return the node of the new graph that computes the shard of `old`, a node of the old one.

        `whole` is the new node that computes the whole value, and `inputs` are the inputs of
        `whole`. The returned node is a slice of `whole`, or is computed without `whole`.
        """
        if self.needs.is_sum(old) and old not in self.needs.whole:
            return self.shard_of_sum(old, inputs[0])
        if not has_shards(old) or old in self.needs.owned_chains:
            return self.take_shard(whole)
        pairs = list(zip(old.inputs, inputs, strict=True))
        if not old.op.kernel.is_elementwise:  # a view of all elements, or one element repeated
            return self.operand_shard(*pairs[0], old)
        return old.op.node([self.operand_shard(i, new, old) for i, new in pairs], old.attrs)

    def shard_of_sum(self, old: Node, operand: Node) -> Node:
        """Return this rank's shard of `old`, a sum over the ranks that no rank needs whole.

        If the operand is a matmul A^T B, and A and B are small, the ranks exchange A and B. Each
        rank then computes its shard from them (gradient_factors.py). Otherwise the ranks reduce
        the operand by a reduce-scatter.
        """
        num_readers = self.num_readers[old.inputs[0]]
        bounds = shard_bounds(old.type.count, self.target.size)
        factors = factors_of(old, operand, num_readers, bounds, self.target, self.options)
        if factors is not None:
            return slice_of_sum(old, factors, self.target)
        return self.reduce_shard(old, operand)

    def broadcast_from_owner(self, old: Node, new: Node) -> Node:
        """Return the broadcast of the result of a chain of matmuls to the ranks of this host.

        The root is the only rank of the host that computes the chain. There, the operand is `new`,
        the result of the chain. The input of the chain is a sum over the ranks, which every rank
        has. On the other ranks, the operand is this sum. These ranks do not send the sum: they
        receive the result in the memory of the sum, which has the right size.
        """
        chain, here = self.needs.owned_chains[old], self.partition.host_ranks
        if chain.owner != here.rank:
            new = shape.reshape(self.owned_sums[chain.total], old.shape)
        attrs = {"root": chain.owner, **self.group_attrs(here)}
        order = Order(self.last_number, Stage.OWNED_RESULTS, self.broadcast_positions[old])
        return Ordered(broadcast, order).node((new,), attrs)

    def operand_shard(self, operand: Node, new: Node, reader: Node) -> Node:
        """Return the operand with which this rank computes its shard of `reader`.

        `operand` and `reader` are old nodes; `new` is the new node of `operand`. If `operand` has
        as many elements as `reader`, return the shard of `operand`. If it has one element, return
        it as a scalar. Otherwise return the shard of its broadcast to the shape of `reader`.
        """
        if operand.type.count == reader.type.count:
            return self.shards[operand]
        if operand.type.count == 1:
            return shape.reshape(new, ())
        return self.take_shard(shape.broadcast_to(new, reader.shape))

    def take_shard(self, whole: Node) -> Node:
        """Return the node that takes this rank's shard from `whole`, a node of the new graph."""
        if whole not in self.taken_shards:
            self.taken_shards[whole] = elements_of(whole, *self.partition.part(whole.type.count))
        return self.taken_shards[whole]

    def update(self, variable: Node, value: Node) -> tuple[Node, Node]:
        """Return the part of a variable that this rank writes, and the value to write.

        `value` is the node of the old graph that computes the new value of the whole variable.
        """
        shard, (begin, end) = self.shards[value], self.partition.part(value.type.count)
        if shard.shape != (end - begin,):
            shard = shape.broadcast_to(shard, (end - begin,))
        if not self.partition.is_once_over_hosts or variable in self.needs.once_over_hosts:
            return self.take_shard(variable), shard
        begin, end = self.partition.slice(value.type.count)
        counts = shard_lengths(shard_bounds(end - begin, self.partition.counterparts.size))
        order = Order(self.last_number, Stage.UPDATED_PARTS, next(self.gather_positions))
        attrs = {"group": self.partition.counterparts, "counts": counts}
        gathered = Ordered(all_gather_v, order).node((shard,), attrs)
        if end - begin == variable.type.count:
            return variable, shape.reshape(gathered, variable.shape)
        return elements_of(variable, begin, end), gathered

    def reduce_shard(self, old: Node, operand: Node) -> Node:
        """Reduce `operand` over all ranks; return the node of this rank's shard of the result.

        The shard replaces `old`, an all-reduce. First, the ranks of each host reduce `operand`, and
        each gets a shard. Then this shard is reduced over the counterparts: the ranks that have the
        same local index on each host.
        """
        here, there = self.partition.host_ranks, self.partition.counterparts
        number, reduce_op = collective_number(old), old.attrs["reduce_op"]
        between_hosts = Order(number, Stage.BETWEEN_HOSTS)
        row = shape.reshape(operand, (old.type.count,))
        shard = self.reduce_scatter(row, reduce_op, here, Order(number))
        if self.partition.is_once_over_hosts:
            return self.reduce_scatter(shard, reduce_op, there, between_hosts)
        if there.size == 1:
            return shard
        attrs = {"reduce_op": reduce_op, "algorithm": "auto", "group": there}
        return Ordered(all_reduce, between_hosts).node((shard,), attrs)

    def reduce_scatter(self, row: Node, reduce_op: str, ranks: Ranks, order: Order) -> Node:
        """Return this rank's shard of the flat array `row`, reduced over `ranks`."""
        if ranks.size == 1:
            return row
        counts = shard_lengths(shard_bounds(row.type.count, ranks.size))
        attrs = {"reduce_op": reduce_op, "counts": counts, "rank": ranks.rank}
        return Ordered(REDUCE_SHARD, order).node((row,), attrs | self.group_attrs(ranks))

    def group_attrs(self, ranks: Ranks) -> dict[str, Any]:
        """Return the attributes that specify the group of a collective.

        They are {} if `ranks` is the group of the step, which is the default.
        """
        return {} if ranks is self.target.sharing.group else {"group": ranks}

    def reduce_totals(self, level: int) -> None:
        """Compute the totals of one level, with one collective for each dtype and reduction.

        A total is a reduction to one element. The level of a total is the largest number of totals
        on a path that ends at it.
        """
        kinds: dict[tuple[DType, str], list[Node]] = {}
        for node in self.graph.nodes:
            if node in self.needs.totals and self.levels.level[node] == level:
                kinds.setdefault((node.dtype, node.op.kernel.reduction), []).append(node)
        for (_, reduce_op), totals in kinds.items():
            parts = [self.reduce_own_shard(total) for total in totals]
            number = max(self.levels.last_collective[total] for total in totals)
            order = Order(number, Stage.TOTALS, next(self.total_positions))
            with at_site(totals[0].site), keep_float32(totals[0].keeps_float32):
                attrs = {"reduce_op": reduce_op, "algorithm": "auto"}
                if (
                    not self.partition.is_once_over_hosts
                ):  # the shards of one host have all elements
                    attrs |= self.group_attrs(self.partition.host_ranks)
                row = Ordered(all_reduce, order).node((concatenation.stack(parts),), attrs)
                for i, total in enumerate(totals):
                    self.totals[total] = shape.reshape(slicing.slice(row, i), total.shape)

    def reduce_own_shard(self, total: Node) -> Node:
        """Return the node that reduces this rank's shard of `total`'s operand to one element."""
        with at_site(total.site), keep_float32(total.keeps_float32):
            attrs = {**total.attrs, "axes": (0,), "keepdims": False}
            return total.op.node((self.shards[total.inputs[0]],), attrs)


def elements_of(node: Node, begin: int, end: int) -> Node:
    """Return a range of the elements of a node that is computed whole, as a 1-d array."""
    if node.op is CONSTANT:
        part = constant_node(node.attrs["value"].reshape(-1)[begin:end])
    else:
        part = slicing.slice(shape.reshape(node, (node.type.count,)), slice(begin, end))
    part.uniform = False
    return part


__all__ = ["shard_updates", "shareable_variables"]
