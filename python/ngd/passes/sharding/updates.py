# SPDX-License-Identifier: Apache-2.0
"""Updates in slices: each rank of a host updates a part of every variable, for all of them.

Automatic sharding of the weight update (Y. Xu et al. 2020, arXiv:2004.13336), in which the ranks of
a host keep one copy of a variable (devices/cpu/sharing.py). If an update is proved equal on all
ranks, this rank computes its own slice of the new value and writes only that; elementwise ops
compute slices of slices, and a gradient that nobody else reads is not all-reduced: each rank
reduces its own slice of it. No gather follows, since the others see what is written.

A variable is cut as a row of elements, in nearly equal parts that begin on cache lines; so the
slices of all variables of one size lie at the same place. What is small stays as it is: to reduce
it on all ranks takes one message beside the flag, and the ranks keep a copy each.

Over several hosts with as many ranks each, in consecutive blocks, a rank's slice is one of its
host's copy: it reduces that over the ranks of its host, and then with its counterparts, the ranks
in its place on the other hosts, who have the same slice there. Where what only updates read is to
be kept once over all hosts (`apart`; ZeRO stage 1, S. Rajbhandari et al. 2020, arXiv:1910.02054),
counterparts update a part of the slice each, and gather the parts of what a host keeps whole.

A gradient that is a matrix product over few samples is not computed at all: the ranks of one host
exchange the factors (gradient_factors.py). One rank of a host computes the matrix products
that need a whole gradient, for all ranks (matmul_owners.py).

The bits stay: a sum's order does not depend on the slicing (ADR 6), and between hosts it is the one
of an all-reduce (ADR 10), where a host has 2, 4, 8, ... ranks.

Where such slices are reduced to one element, as for the norm of all gradients, each rank reduces
its own, and one small collective for all such totals combines the ranks'. There the order of the
sum, and so its last bits, are other ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import floor
from typing import Any, Final

from ..._util.callsite import at_site
from ...dtypes import DType, Type
from ...graph.graph import Graph
from ...graph.leaves import CONSTANT, VARIABLE, constant_node
from ...graph.node import Node, offset_of
from ...graph.precision_marks import wide
from ...ops import _concatenation as concatenation
from ...ops import _shape as shape
from ...ops import _slicing as slicing
from ...ops._operands import HALVES
from ...ops.collectives.exchanges import ReduceScatter, all_gather_v
from ...ops.collectives.groups import Ranks
from ...ops.collectives.reductions import COMBINED, Collective, all_reduce, broadcast
from ..collective_order import Ordered
from ..fusion.patterns import uses
from ..partition import is_divided, shard_bounds, shard_lengths
from ..target import Target
from .equal_values import Equal
from .gradient_factors import factors_of, slice_of_sum
from .matmul_owners import Ends, chains, owned
from .uniform import is_per_rank

BETWEEN: Final = 0.25
"""In the order of collectives: what goes between hosts comes behind what a host has reduced."""


class ReduceSlice(Collective):
    """My part of a sum over the ranks; attrs: reduce_op, counts, rank, group."""

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
        """The type of a part."""
        return Type(x.dtype, (counts[rank],))

    def is_uniform(self, inputs: Sequence[Node], attrs: Mapping[str, Any]) -> bool:
        """Each rank has another one."""
        return False

    def submission(self, x: Type, **attrs: Any) -> dict[str, Any]:
        """As for reduce_scatter."""
        return {"reduce_op": attrs["reduce_op"], "counts": attrs["counts"]}

    def place_in_operand(self, x: Type, **attrs: Any) -> int | None:
        """In the place of my own part."""
        return int(sum(attrs["counts"][: attrs["rank"]]))


REDUCE_SLICE: Final = ReduceSlice()


def update_in_slices(graph: Graph, target: Target) -> Graph:
    """Cut the updates of the variables that the ranks share."""
    mine = {v: value for v, value in graph.updates if is_shared(v, value, target)}
    if not mine:
        return graph
    slicing = Slicing(Wanted(graph, mine, target), target)
    new = graph.rewrite(slicing.change, slicing.order())
    updates = tuple(
        slicing.update(v, mine[v]) if v in mine else (v, value) for v, value in new.updates
    )
    return replace(new, updates=updates)


def is_shared(variable: Node, value: Node, target: Target) -> bool:
    """Whether this rank writes a part of the variable alone."""
    return variable in target.shared and value is not variable


def to_share(graph: Graph, equal: Equal, ranks: int, shared: set[Node]) -> set[Node]:
    """Which variables a step can share, where some are shared already.

    Those that it updates by what is equal on all ranks, and comes from a collective or from a
    variable that is shared: so not what it only sets back.
    """
    able = {
        v: value
        for v, value in graph.updates
        if value in equal.nodes and is_divided(v.type, ranks) and not is_per_rank(v)
    }
    found: set[Node] = set()
    while True:
        reached = equal.reaching(shared | found)
        more = {v for v, value in able.items() if value in reached}
        if more == found:
            return found
        found = more


class Wanted:
    """What of a graph is wanted whole, and what in slices."""

    def __init__(self, graph: Graph, mine: Mapping[Node, Node], target: Target) -> None:
        self.graph, self.values, self.target = graph, list(mine.values()), target
        self.cut = target.places.parts
        self.sums = self.sums_below()
        self.totals = {node for node in graph.nodes if self.may_be_total(node)}
        """Reductions to one element of what is computed in slices: each part, then all parts."""
        found = chains(graph, self.is_sum)
        ends = Ends(graph, self.values, {t: self.sums[t.inputs[0]] for t in self.totals})
        self.owned = owned(found, ends, target.places.here.size)
        """What one rank of a host computes for all, by its end."""
        self.whole: set[Node] = set()
        self.sliced: set[Node] = set()
        while self.decide():
            pass
        self.apart: set[Node] = set()
        """The variables of which each rank of all hosts keeps a part."""
        if target.places.apart:
            self.apart = set(mine) - self.whole - target.once

    def sums_below(self) -> dict[Node, set[Node]]:
        """Of what could be computed in slices, the sums over the ranks that it is made of."""
        sums: dict[Node, set[Node]] = {}
        for node in self.graph.nodes:
            if self.is_sum(node):
                sums[node] = {node}
            elif passes_slices(node):
                below = [sums[i] for i in node.inputs if i in sums]
                if below:
                    sums[node] = below[0].union(*below[1:])
        return sums

    def is_sum(self, node: Node) -> bool:
        """Whether a node is an all-reduce over the ranks that share, of what is cut.

        Between hosts two bytes would be rounded twice: these are reduced as they were.
        """
        if not isinstance(node.op, Ordered) or not is_divided(node.type, self.cut):
            return False
        if self.target.places.there.size > 1 and node.dtype in HALVES:
            return False
        kind, attrs = node.op.block.kind, node.attrs
        mine = attrs.get("group", self.target.group) == self.target.group
        return kind.reduces and kind.equal_results and mine and attrs["algorithm"] != "ring"

    def may_be_total(self, node: Node) -> bool:
        """Whether a node reduces what is computed in slices to one element."""
        if node.op.kernel.reduction not in COMBINED or node.type.count != 1 or node.several:
            return False
        operand = node.inputs[0]
        return operand in self.sums and is_divided(operand.type, self.cut)

    def decide(self) -> bool:
        """Walk from what is wanted to what it is made of; whether that must be done again."""
        self.sliced = set(self.values)
        cut = set(self.values)
        self.whole = {*self.graph.outputs, *(v for _, v in self.graph.updates if v not in cut)}
        for node in reversed(self.graph.nodes):
            in_slices = not self.sliced.isdisjoint(node.results)
            whole = not self.whole.isdisjoint(node.results)
            if in_slices and passes_slices(node) and node not in self.owned:
                for operand in node.inputs:
                    same = operand.type.count == node.type.count
                    (self.sliced if same else self.whole).add(operand)
            elif in_slices:
                whole = whole or node.op is not VARIABLE
                if whole and not self.is_sum(node):
                    self.whole.add(node)
            if whole and node in self.totals:
                self.sliced.add(node.inputs[0])
            elif whole:
                self.whole.update(node.inputs)
        useful = {t for t in self.totals if self.sums[t.inputs[0]] - self.whole}
        again = len(useful) < len(self.totals)
        self.totals = useful
        return again


class Slicing:
    """Makes the new graph, in one walk."""

    def __init__(self, wanted: Wanted, target: Target) -> None:
        self.wanted, self.target, self.places = wanted, target, target.places
        self.reads = uses(wanted.graph)
        self.slices: dict[Node, Node] = {}
        """By the old node."""
        self.parts: dict[Node, Node] = {}
        """Of what is computed whole, by the new node."""
        self.level: dict[Node, int] = {}
        """How many totals, one behind the other, lead to a node; a total is counted, too."""
        self.latest: dict[Node, float] = {}
        """The last collective that leads to a node."""
        self.made: dict[Node, Node] = {}
        """The totals."""
        self.sums = {chain.total: chain.total for chain in wanted.owned.values()}
        """Those that what is owned is made of; the new ones."""
        self.reached = 0
        self.combined = 0
        """How many collectives the totals have taken: no two have one number."""
        self.last = max(node.op.order for node in wanted.graph.nodes)
        """The last collective of all."""
        self.turns = {end: self.last + i for i, end in enumerate(wanted.owned, 1)}
        """Of the broadcasts of what is owned, which no collective waits for."""
        self.last += len(self.turns)

    def order(self) -> list[Node]:
        """The nodes by their level, each after what it reads: so totals can go together."""
        for node in self.wanted.graph.nodes:
            level = max((self.level[i] for i in node.inputs), default=0)
            latest = max((self.latest[i] for i in node.inputs), default=-1.0)
            level += node in self.wanted.totals
            latest = max(latest, node.op.order)
            self.level.update(dict.fromkeys(node.results, level))
            self.latest.update(dict.fromkeys(node.results, latest))
        return sorted(self.wanted.graph.nodes, key=self.level.__getitem__)

    def change(self, node: Node, inputs: tuple[Node, ...]) -> Node | tuple[Node, ...]:
        """The new node; its slice is kept, where that is wanted."""
        if self.level[node] > self.reached:
            self.reached = self.level[node]
            totals = [n for n in self.wanted.graph.nodes if n in self.wanted.totals]
            self.combine([t for t in totals if self.level[t] == self.reached])
        if node in self.made:
            return self.made[node]
        new = node.with_inputs(inputs)
        if node in self.sums:
            self.sums[node] = new
        if node in self.wanted.owned:
            new = self.from_owner(node, new)
        for old, whole in zip(node.results, new.results, strict=True):
            if old in self.wanted.sliced:
                self.slices[old] = self.slice_of(old, whole, inputs)
        return new

    def slice_of(self, old: Node, whole: Node, inputs: tuple[Node, ...]) -> Node:
        """My slice of a node, of which `whole` is the new one, with new inputs."""
        if self.wanted.is_sum(old) and old not in self.wanted.whole:
            reads, at = self.reads[old.inputs[0]], shard_bounds(old.type.count, self.target.size)
            found = factors_of(old, inputs[0], reads, at, self.wanted.graph, self.target)
            if found is not None:
                return slice_of_sum(old, found, self.target)
            return self.reduced(old, inputs[0])
        if not passes_slices(old) or old in self.wanted.owned:
            return self.part(whole)
        pairs = list(zip(old.inputs, inputs, strict=True))
        if not old.op.kernel.is_elementwise:  # a view of the same elements, or one that is repeated
            return self.fitting(*pairs[0], old)
        return old.op.node([self.fitting(i, new, old) for i, new in pairs], old.attrs)

    def from_owner(self, old: Node, new: Node) -> Node:
        """What its owner computes, on all ranks of a host.

        The others give the sum that it is made of, as the memory to receive it in.
        """
        chain, here = self.wanted.owned[old], self.places.here
        if chain.owner != here.rank:
            new = shape.reshape(self.sums[chain.total], old.shape)
        attrs = {"root": chain.owner, **self.over(here)}
        return Ordered(broadcast, self.turns[old]).node((new,), attrs)

    def fitting(self, operand: Node, new: Node, reader: Node) -> Node:
        """An operand as its reader in slices needs it: a slice, or one element."""
        if operand.type.count == reader.type.count:
            return self.slices[operand]
        if operand.type.count == 1:
            return shape.reshape(new, ())
        return self.part(shape.broadcast_to(new, reader.shape))

    def update(self, variable: Node, value: Node) -> tuple[Node, Node]:
        """What I write of a variable, and its new value, of which the old one is given."""
        mine, (begin, end) = self.slices[value], self.places.part(value.type.count)
        if mine.shape != (end - begin,):
            mine = shape.broadcast_to(mine, (end - begin,))
        if not self.places.apart or variable in self.wanted.apart:
            return self.part(variable), mine
        begin, end = self.places.slice(value.type.count)
        counts = shard_lengths(shard_bounds(end - begin, self.places.there.size))
        self.last += 1
        gather, attrs = Ordered(all_gather_v, self.last), {"group": self.places.there}
        mine = gather.node((mine,), {**attrs, "counts": counts})
        if end - begin == variable.type.count:
            return variable, shape.reshape(mine, variable.shape)
        return part_of(variable, begin, end), mine

    def part(self, node: Node) -> Node:
        """My slice of what is computed whole."""
        if node not in self.parts:
            self.parts[node] = part_of(node, *self.places.part(node.type.count))
        return self.parts[node]

    def reduced(self, old: Node, operand: Node) -> Node:
        """My slice of a sum of which no rank needs all."""
        assert isinstance(old.op, Ordered)
        row, here, there = (
            shape.reshape(operand, (old.type.count,)),
            self.places.here,
            self.places.there,
        )
        order, reduce_op = old.op.order, old.attrs["reduce_op"]
        mine = self.scattered(row, reduce_op, here, order)
        if self.places.apart:
            return self.scattered(mine, reduce_op, there, order + BETWEEN)
        if there.size == 1:
            return mine
        attrs = {"reduce_op": reduce_op, "algorithm": "auto", "group": there}
        return Ordered(all_reduce, order + BETWEEN).node((mine,), attrs)

    def scattered(self, row: Node, reduce_op: str, ranks: Ranks, order: float) -> Node:
        """My part of a row of elements, reduced over some ranks."""
        if ranks.size == 1:
            return row
        counts = shard_lengths(shard_bounds(row.type.count, ranks.size))
        attrs = {"reduce_op": reduce_op, "counts": counts, "rank": ranks.rank}
        return Ordered(REDUCE_SLICE, order).node((row,), attrs | self.over(ranks))

    def over(self, ranks: Ranks) -> dict[str, Any]:
        """The attributes of a collective over some ranks."""
        return {} if ranks is self.target.group else {"group": ranks}

    def combine(self, totals: list[Node]) -> None:
        """Make totals, all of one kind with one collective: of my slices, then of all ranks'.

        These are the ranks of my host, where each host has slices of all.
        """
        kinds: dict[tuple[DType, str], list[Node]] = {}
        for total in totals:
            kinds.setdefault((total.dtype, total.op.kernel.reduction), []).append(total)
        for (_, reduce_op), alike in kinds.items():
            parts = []
            for total in alike:
                with at_site(total.site), wide(total.wide):
                    attrs = {**total.attrs, "axes": (0,), "keepdims": False}
                    parts.append(total.op.node((self.slices[total.inputs[0]],), attrs))
            latest = floor(max(self.latest[total] for total in alike))
            self.combined += 1
            order = latest + 0.5 + 0.5 * self.combined / (len(self.wanted.totals) + 1)
            with at_site(alike[0].site), wide(alike[0].wide):
                attrs = {"reduce_op": reduce_op, "algorithm": "auto"}
                attrs |= {} if self.places.apart else self.over(self.places.here)
                ordered = Ordered(all_reduce, order)
                row = ordered.node((concatenation.stack(parts),), attrs)
                for i, total in enumerate(alike):
                    self.made[total] = shape.reshape(slicing.slice(row, i), total.shape)


def part_of(node: Node, begin: int, end: int) -> Node:
    """Some elements of what is computed whole."""
    if node.op is CONSTANT:
        part = constant_node(node.attrs["value"].reshape(-1)[begin:end])
    else:
        part = slicing.slice(shape.reshape(node, (node.type.count,)), slice(begin, end))
    part.uniform = False
    return part


def passes_slices(node: Node) -> bool:
    """Whether a slice of a node is computed of slices of its operands."""
    if node.several or node.type.count == 1 or not node.inputs:
        return False
    same = node.inputs[0].type.count == node.type.count and offset_of(node) == 0
    kernel = node.op.kernel
    repeated = kernel.is_broadcast and node.inputs[0].type.count == 1
    return kernel.is_elementwise or repeated or same


__all__ = ["to_share", "update_in_slices"]
