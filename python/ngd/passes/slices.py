# SPDX-License-Identifier: Apache-2.0
"""Updates in slices: each rank of a host updates a part of every variable, for all of them.

Automatic sharding of the weight update (Y. Xu et al. 2020, arXiv:2004.13336), where the ranks of a
host keep one copy of a variable (devices/sharing.py). Where an update is proved equal on all ranks,
this rank computes its own slice of the new value and writes that alone; elementwise ops compute
slices of slices, and a gradient that nobody else reads is not all-reduced: each rank reduces its
own slice of it. No gather follows, since the others see what is written.

A variable is cut as a row of elements, in nearly equal parts that begin on cache lines; so the
slices of all variables of one size lie at the same place. What is small stays as it is: to reduce
it on all ranks takes one message beside the flag, and the ranks keep a copy each.

Of a gradient that is a product of few samples, not even that is made: the ranks exchange what is
multiplied (factors.py).

The bits stay: a sum's order does not depend on the slicing (ADR 6).

Where such slices are reduced to one element, as for the norm of all gradients, each rank reduces
its own, and one small collective for all such totals combines the ranks'. There the order of the
sum, and so its last bits, are other ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import floor
from typing import Any, Final

from ..dtype import DType, Type
from ..ir import CONSTANT, Graph, Node, constant_node, offset_of
from ..narrowing import wide
from ..ops import shape
from ..ops.collective import COMBINED, Collective, all_reduce
from ..ops.exchange import ReduceScatter
from ..sites import at_site
from .collectives import Ordered
from .equal import Equal
from .factors import factors_of, slice_of_sum
from .patterns import uses
from .target import Target

SMALL: Final = 2048
"""Bytes of a variable that are not cut: a sum of so many goes beside the flag (shm/flat.cpp)."""
UNIT: Final = 64
"""Elements: parts begin at multiples of it, which are cache lines for every dtype."""


def cuts(count: int, ranks: int) -> tuple[int, ...]:
    """Where the parts of so many elements begin, and where the last one ends."""
    return (*(count * r // ranks // UNIT * UNIT for r in range(ranks)), count)


def is_cut(typed: Type, ranks: int) -> bool:
    """Whether what has this type is cut; then no part is empty."""
    return ranks > 1 and typed.bytes > SMALL and typed.count >= UNIT * ranks


class ReduceSlice(Collective):
    """My part of a sum over the ranks; attrs: reduce_op, counts, rank."""

    kind = ReduceScatter.kind

    def infer(self, x: Type, *, reduce_op: str, counts: tuple[int, ...], rank: int) -> Type:
        """The type of a part."""
        return Type(x.dtype, (counts[rank],))

    def uniform(self, inputs: Sequence[Node], attrs: Mapping[str, Any]) -> bool:
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
    slicing = Slicing(Wanted(graph, list(mine.values()), target), target)
    new = graph.rewrite(slicing.change, slicing.order())
    updates = tuple(
        (slicing.part(v), slicing.of(mine[v])) if v in mine else (v, value)
        for v, value in new.updates
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
        v: value for v, value in graph.updates if value in equal.nodes and is_cut(v.type, ranks)
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

    def __init__(self, graph: Graph, values: Sequence[Node], target: Target) -> None:
        self.graph, self.values, self.target = graph, values, target
        self.sums = self.sums_below()
        self.totals = {node for node in graph.nodes if self.may_be_total(node)}
        """Reductions to one element of what is computed in slices: each part, then all parts."""
        self.whole: set[Node] = set()
        self.sliced: set[Node] = set()
        while self.decide():
            pass

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
        """Whether a node is an all-reduce over the ranks that share, of what is cut."""
        if not isinstance(node.op, Ordered) or not is_cut(node.type, self.target.size):
            return False
        kind, attrs = node.op.block.kind, node.attrs
        mine = attrs.get("group", self.target.group) == self.target.group
        return kind.reduces and kind.equal_results and mine and attrs["algorithm"] != "ring"

    def may_be_total(self, node: Node) -> bool:
        """Whether a node reduces what is computed in slices to one element."""
        if node.op.reduces not in COMBINED or node.type.count != 1 or node.several:
            return False
        operand = node.inputs[0]
        return operand in self.sums and is_cut(operand.type, self.target.size)

    def decide(self) -> bool:
        """Walk from what is wanted to what it is made of; whether that must be done again."""
        self.sliced = set(self.values)
        cut = set(self.values)
        self.whole = {*self.graph.outputs, *(v for _, v in self.graph.updates if v not in cut)}
        for node in reversed(self.graph.nodes):
            in_slices = not self.sliced.isdisjoint(node.results)
            whole = not self.whole.isdisjoint(node.results)
            if in_slices and passes_slices(node):
                for operand in node.inputs:
                    same = operand.type.count == node.type.count
                    (self.sliced if same else self.whole).add(operand)
            elif in_slices:
                whole = True
                if not self.is_sum(node):
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
        self.wanted, self.target = wanted, target
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
        self.reached = 0

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
        for old, whole in zip(node.results, new.results, strict=True):
            if old in self.wanted.sliced:
                self.slices[old] = self.slice_of(old, whole, inputs)
        return new

    def slice_of(self, old: Node, whole: Node, inputs: tuple[Node, ...]) -> Node:
        """My slice of a node, of which `whole` is the new one, with new inputs."""
        if self.wanted.is_sum(old) and old not in self.wanted.whole:
            reads, at = self.reads[old.inputs[0]], cuts(old.type.count, self.target.size)
            found = factors_of(old, inputs[0], reads, at, self.wanted.graph, self.target)
            if found is not None:
                return slice_of_sum(old, found, self.target)
            return self.reduced(old, inputs[0])
        if not passes_slices(old):
            return self.part(whole)
        pairs = list(zip(old.inputs, inputs, strict=True))
        if not old.op.elementwise:  # a view of the same elements, or one that is repeated
            return self.fitting(*pairs[0], old)
        return old.op.node([self.fitting(i, new, old) for i, new in pairs], old.attrs)

    def fitting(self, operand: Node, new: Node, reader: Node) -> Node:
        """An operand as its reader in slices needs it: a slice, or one element."""
        if operand.type.count == reader.type.count:
            return self.slices[operand]
        if operand.type.count == 1:
            return shape.reshape(new, ())
        return self.part(shape.broadcast_to(new, reader.shape))

    def of(self, value: Node) -> Node:
        """My slice of an old value."""
        mine, count = self.slices[value], self.extent(value)[1]
        return mine if mine.shape == (count,) else shape.broadcast_to(mine, (count,))

    def extent(self, node: Node) -> tuple[int, int]:
        """Where my slice of a node begins, and how many elements it has."""
        at = cuts(node.type.count, self.target.size)
        return at[self.target.rank], at[self.target.rank + 1] - at[self.target.rank]

    def part(self, node: Node) -> Node:
        """My slice of what is computed whole."""
        if node not in self.parts:
            begin, count = self.extent(node)
            if node.op is CONSTANT:
                part = constant_node(node.attrs["value"].reshape(-1)[begin : begin + count])
            else:
                row = shape.reshape(node, (node.type.count,))
                part = shape.slice(row, slice(begin, begin + count))
            part.uniform = False
            self.parts[node] = part
        return self.parts[node]

    def reduced(self, old: Node, operand: Node) -> Node:
        """My slice of a sum of which no rank needs all."""
        assert isinstance(old.op, Ordered)
        count = old.type.count
        attrs = {
            "reduce_op": old.attrs["reduce_op"],
            "counts": tuple(b - a for a, b in pairwise(cuts(count, self.target.size))),
            "rank": self.target.rank,
        }
        row = shape.reshape(operand, (count,))
        return Ordered(REDUCE_SLICE, old.op.order).node((row,), attrs)

    def combine(self, totals: list[Node]) -> None:
        """Make totals, all of one kind with one collective: of my slices, then of all ranks'."""
        kinds: dict[tuple[DType, str], list[Node]] = {}
        for total in totals:
            kinds.setdefault((total.dtype, total.op.reduces), []).append(total)
        for (_, reduce_op), alike in kinds.items():
            parts = []
            for total in alike:
                with at_site(total.site), wide(total.wide):
                    attrs = {**total.attrs, "axes": (0,), "keepdims": False}
                    parts.append(total.op.node((self.slices[total.inputs[0]],), attrs))
            latest = max(self.latest[total] for total in alike)
            with at_site(alike[0].site), wide(alike[0].wide):
                attrs = {"reduce_op": reduce_op, "algorithm": "auto"}
                ordered = Ordered(all_reduce, (latest + floor(latest) + 1) / 2)
                row = ordered.node((shape.stack(parts),), attrs)
                for i, total in enumerate(alike):
                    self.made[total] = shape.reshape(shape.slice(row, i), total.shape)


def passes_slices(node: Node) -> bool:
    """Whether a slice of a node is computed of slices of its operands."""
    if node.several or node.type.count == 1 or not node.inputs:
        return False
    same = node.inputs[0].type.count == node.type.count and offset_of(node) == 0
    repeated = node.op.broadcasts and node.inputs[0].type.count == 1
    return node.op.elementwise or repeated or same


__all__ = ["cuts", "is_cut", "to_share", "update_in_slices"]
