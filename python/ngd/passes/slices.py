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

The bits stay: a sum's order does not depend on the slicing (ADR 6).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

from ..dtype import Type
from ..ir import CONSTANT, Graph, Node, constant_node, offset_of
from ..kinds import KINDS
from ..narrowing import wide
from ..ops import shape
from ..ops.collective import Collective
from ..sites import at_site
from .collectives import Ordered
from .target import Target

SMALL: Final = 2048
"""Bytes of a variable that are not cut: a sum of so many goes beside the flag (comm/shm/flat.cpp)."""
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

    kind = KINDS["reduce_scatter"]

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
    """Cut the updates that can be, where the step asks for it (`Graph.shard`)."""
    if graph.shard == "none" or not target.has_common_memory:
        return graph
    mine = {v: value for v, value in graph.updates if is_shared(v, value, target)}
    if not mine:
        return graph
    slicing = Slicing(graph, list(mine.values()), target)
    updates = tuple(
        (slicing.part(v), slicing.of(value)) if v in mine else (v, value)
        for v, value in graph.updates
    )
    return slicing.reduce_parts(replace(graph, updates=updates))


def is_shared(variable: Node, value: Node, target: Target) -> bool:
    """Whether this rank writes a part of the variable alone."""
    return is_cut(variable.type, target.size) and value.uniform and value is not variable


class Slicing:
    """The slices of some values that all ranks have in common."""

    def __init__(self, graph: Graph, values: Sequence[Node], target: Target) -> None:
        self.graph, self.target = graph, target
        self.parts: dict[Node, Node] = {}
        """Of what is computed whole, the slice."""
        self.slices: dict[Node, Node] = {}
        """Of what is computed in slices, the slice; of what is one element, that."""
        for node in self.wanted(values):
            self.slices[node] = self.computed(node)

    def wanted(self, values: Sequence[Node]) -> list[Node]:
        """What is computed in slices, each after what it reads."""
        wanted = set(values)
        for node in reversed(self.graph.nodes):
            if node in wanted:
                wanted.update(node.inputs if passes_slices(node) else ())
        return [n for node in self.graph.nodes for n in node.results if n in wanted]

    def computed(self, node: Node) -> Node:
        """The slice of a node, or the node itself where it has one element."""
        with at_site(node.site), wide(node.wide):
            if node.type.count == 1:
                return shape.reshape(node, ())
            if not passes_slices(node):
                return self.part(node)
            if not node.op.elementwise:  # a view of the same elements, or one that is repeated
                return self.slices[node.inputs[0]]
            operands = [self.fitting(i, node) for i in node.inputs]
            return node.op.node(operands, node.attrs)

    def fitting(self, operand: Node, reader: Node) -> Node:
        """The slice of an operand, as its reader in slices needs it."""
        if operand.type.count in (1, reader.type.count):
            return self.slices[operand]
        return self.part(shape.broadcast_to(operand, reader.shape))

    def of(self, value: Node) -> Node:
        """My slice of a value."""
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
            with at_site(node.site), wide(node.wide):
                if node.op is CONSTANT:
                    row = node.attrs["value"].reshape(-1)
                    part = constant_node(row[begin : begin + count])
                else:
                    row = shape.reshape(node, (node.type.count,))
                    part = shape.slice(row, slice(begin, begin + count))
            part.uniform = False
            self.parts[node] = part
        return self.parts[node]

    def reduce_parts(self, graph: Graph) -> Graph:
        """Let sums of which slices alone are read be reduced slice by slice."""
        readers = Counter(i for node in graph.nodes for i in node.inputs)
        readers.update(graph.roots)
        sums = {
            part: node
            for node, part in self.parts.items()
            if self.is_sum(node) and readers[node] == 1
        }

        def change(node: Node, inputs: tuple[Node, ...]) -> Node:
            if node not in sums:
                return node.with_inputs(inputs)
            whole = inputs[0] if isinstance(inputs[0].op, Ordered) else inputs[0].inputs[0]
            assert isinstance(whole.op, Ordered)
            count = whole.type.count
            at = cuts(count, self.target.size)
            attrs = {
                "reduce_op": whole.attrs["reduce_op"],
                "counts": tuple(end - begin for begin, end in pairwise(at)),
                "rank": self.target.rank,
            }
            operand = shape.reshape(whole.inputs[0], (count,))
            return Ordered(REDUCE_SLICE, whole.op.order).node((operand,), attrs)

        return graph.rewrite(change)

    def is_sum(self, node: Node) -> bool:
        """Whether a node is an all-reduce over the ranks that share."""
        if not isinstance(node.op, Ordered):
            return False
        kind, attrs = node.op.block.kind, node.attrs
        mine = attrs.get("group", self.target.group) == self.target.group
        return kind.reduces and kind.equal_results and mine and attrs["algorithm"] != "ring"


def passes_slices(node: Node) -> bool:
    """Whether a slice of a node is computed of slices of its operands."""
    if node.several or node.type.count == 1 or not node.inputs:
        return False
    same = node.inputs[0].type.count == node.type.count and offset_of(node) == 0
    repeated = node.op.broadcasts and node.inputs[0].type.count == 1
    return node.op.elementwise or repeated or same


__all__ = ["update_in_slices"]
