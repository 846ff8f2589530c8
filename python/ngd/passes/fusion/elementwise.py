# SPDX-License-Identifier: Apache-2.0
"""Fusion of elementwise ops: one kernel computes many of them, in one pass over memory.

An elementwise kernel runs the statements of its body (kernel_body.py) over tiles that stay in L1.
The values of some statements are its results.

The ops of a kernel have one shape. Each op is looked at once, after all that read it:

- *Absorbed*: what one kernel alone reads is computed there, and stored nowhere.
- *Merged*: what is read elsewhere too becomes one more result of a kernel that reads it, or that
  reads an operand of full size which it reads; so a momentum and the weight that follows from it
  leave one kernel. Both must have one *place*.
- Else it begins a kernel of its own.

The place of an op is three things. Its *depth*: how many ops that are not elementwise stand on the
longest way to it. Its *need*: who waits for it, of all that it reaches through elementwise ops
alone; by the first collective that such a reader leads to, then by that reader's depth, the least
counts. And its shape. So a merge makes nothing wait that did not wait before: all results of a
kernel can be had at one depth, and are wanted at one depth and before one collective.

Nor does it make a circle. Along every edge neither depth nor need become less, and shapes only grow
(by broadcasting); an op that is not elementwise adds to the depth. So a way from one op of a place
to another one leads through ops of this place alone, and a circle could only be one of kernels of
one place. These are numbered as they are begun, and an op never joins one whose number is less than
that of another kernel of its place which reads it. So numbers do not grow along edges: in a circle
all would be equal. What is absorbed changes none of this: it is read by its kernel alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import inf
from sys import maxsize
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import numpy as np

from ...dtypes import SHORT_NAMES, Shape
from ...graph.graph import Graph
from ...graph.node import Node
from ...graph.order import Order
from ...ops._operands import scalar_value
from ..options import CompileOptions
from ..target import Target
from .kernel_body import (
    Input,
    KernelBody,
    Literal,
    Operand,
    Statement,
    Value,
    body_of,
    fused_node,
    input_at,
    value_at,
)

MAX_INSTRUCTIONS: Final = 24
MAX_INPUTS: Final = 12

Need: TypeAlias = tuple[Order, float]
"""The order of a collective, and a depth; the smaller one waits first."""
LAST: Final[Need] = (Order(maxsize), inf)
"""The need of what only leaves the step."""


class Place(NamedTuple):
    """Where an op stands: see the head of this file."""

    depth: int
    need: Need
    shape: Shape


@dataclass(eq=False, slots=True)
class Kernel:
    """A kernel that is being put together."""

    number: int
    place: Place
    members: list[Node] = field(default_factory=list)
    """Its ops, each before what it reads."""
    results: list[Node] = field(default_factory=list)
    """Those that are read elsewhere, in the same order."""
    outside: dict[Node, None] = field(default_factory=dict)
    """What the members read that is no member."""

    def has_room(self, node: Node, sources: list[Node]) -> bool:
        """Whether one more op, with what `external` says of it, keeps the limits."""
        if len(self.members) >= MAX_INSTRUCTIONS:
            return False
        left = MAX_INPUTS - len(self.outside) + (node in self.outside)
        return len(sources) <= left or len(set(sources) - self.outside.keys()) <= left

    def add(self, node: Node, sources: list[Node]) -> None:
        """Take one more op."""
        self.members.append(node)
        self.outside.pop(node, None)
        for source in sources:
            self.outside[source] = None


def fuse_elementwise(graph: Graph, target: Target, options: CompileOptions) -> Graph:
    """Replace the elementwise ops by kernels that compute many: see the head of this file."""
    kernels = Grouping(graph).kernels
    new: dict[Node, Node] = {}

    def change(node: Node, inputs: tuple[Node, ...]) -> Node:
        kernel = kernels.get(node)
        if kernel is None:
            made = node.with_inputs(inputs)
            if made is not node:
                new.update(zip(node.results, made.results, strict=True))
            return made
        if node is kernel.members[0]:
            new.update(zip(reversed(kernel.results), emit(kernel, new).results, strict=True))
        return new.get(node, node)

    return graph.rewrite(change, in_turn(graph.roots, kernels))


class Together(Protocol):
    """Nodes that stand side by side in an order."""

    @property
    def members(self) -> Sequence[Node]:
        """The nodes, each of which leads here."""
        ...

    @property
    def outside(self) -> Collection[Node]:
        """What stands before all of them."""
        ...


def in_turn(roots: Iterable[Node], kernels: Mapping[Node, Together]) -> list[Node]:
    """As `topological`, but with the members of each kernel side by side after all they read."""
    order: list[Node] = []
    seen: set[Node] = set()
    stack: list[Any] = [*roots]
    stack.reverse()
    while stack:
        node = stack.pop()
        if node is None:  # what the next ones read is listed
            order += stack.pop()
            continue
        if node.number:
            node = node.results[0]
        kernel = kernels.get(node)
        members = kernel.members if kernel else (node,)
        if members[0] not in seen:
            seen.add(members[0])
            stack += (members, None)
            stack += reversed([*kernel.outside] if kernel else node.inputs)
    return order


class Grouping:
    """Decides which kernel computes each elementwise op."""

    def __init__(self, graph: Graph) -> None:
        self.kernels: dict[Node, Kernel] = {}
        self.begun = 0
        self.depths = depths(graph)
        self.needs = needs(graph, self.depths)
        self.stored = set(graph.roots)
        """What others than kernels read."""
        self.readers: dict[Node, dict[Kernel, None]] = {}
        """The kernels that read a value."""
        self.latest: dict[tuple[Place, Node], Kernel] = {}
        """The last kernel of a place that read an operand of full size."""
        for node in reversed(graph.nodes):
            if not is_elementwise(node):
                if node.inputs:
                    self.stored.update(node.inputs)
                continue
            if node.op.kernel.is_elementwise or node in self.stored:
                self.place(node)
            else:  # a broadcast that its readers see through
                self.note_readers(node, self.readers[node])

    def note_readers(self, node: Node, kernels: Iterable[Kernel]) -> None:
        """Note that kernels read the inputs of a node."""
        for operand in node.inputs:
            readers = self.readers.setdefault(operand, {})
            for kernel in kernels:
                readers[kernel] = None

    def place(self, node: Node) -> None:
        """Find a kernel for an elementwise op."""
        sources, readers = external(node), self.readers.get(node, {})
        kernel = self.sole_reader(node, sources, readers)
        if kernel is None:
            place = Place(self.depths[node], self.needs[node], node.shape)
            kernel = self.mergeable(node, place, sources, readers)
            if kernel is None:
                kernel = Kernel(self.begun, place)
                self.begun += 1
            kernel.results.append(node)
        self.kernels[node] = kernel
        kernel.add(node, sources)
        self.note_readers(node, (kernel,))
        for source in sources:
            if source.shape == node.shape:
                self.latest[kernel.place, source] = kernel

    def sole_reader(
        self, node: Node, sources: list[Node], readers: Mapping[Kernel, None]
    ) -> Kernel | None:
        """The kernel that absorbs this op."""
        if len(readers) == 1 and node not in self.stored:
            (kernel,) = readers
            if kernel.place.shape == node.shape and kernel.has_room(node, sources):
                return kernel
        return None

    def mergeable(
        self, node: Node, place: Place, sources: list[Node], readers: Mapping[Kernel, None]
    ) -> Kernel | None:
        """A kernel of this place that may have the op as one more result."""
        reading = [kernel for kernel in readers if kernel.place == place]
        least = max([kernel.number for kernel in reading], default=-1)
        sharing = [self.latest.get((place, source)) for source in sources]
        for kernel in (*reading, *sharing):
            if kernel and kernel.number >= least and kernel.has_room(node, sources):
                return kernel
        return None


def depths(graph: Graph) -> dict[Node, int]:
    """How many ops that are not elementwise stand on the longest way to each value, it included."""
    found: dict[Node, int] = {}
    for node in graph.nodes:
        depth = 0
        for operand in node.inputs:
            if found[operand] > depth:
                depth = found[operand]
        if node.inputs and not is_elementwise(node):
            depth += 1
        found[node] = depth
        if node.several:
            found.update(dict.fromkeys(node.results, depth))
    return found


def needs(graph: Graph, depths: Mapping[Node, int]) -> dict[Node, Need]:
    """Who waits for each value: see the head of this file."""
    found = dict.fromkeys(depths, LAST)
    for node in reversed(graph.nodes):
        if not node.inputs:
            continue
        need = found[node]
        if not is_elementwise(node):
            first = min([found[result][0] for result in node.results]) if node.several else need[0]
            order = node.op.order
            need = first if order is None else min(first, order), depths[node]
        for operand in node.inputs:
            if need < found[operand]:
                found[operand] = need
    return found


def is_elementwise(node: Node) -> bool:
    """Whether the elementwise kernel computes this node."""
    kernel = node.op.kernel
    return kernel.is_elementwise or kernel.is_broadcast


def external(node: Node) -> list[Node]:
    """What a node reads, immediates left out, broadcasts seen through."""
    return [see_through(i) for i in node.inputs if scalar_value(i) is None]


def see_through(node: Node) -> Node:
    """What a broadcast reads: the kernel reads it with stride 0."""
    while node.op.kernel.is_broadcast:
        node = node.inputs[0]
    return node


def literal(node: Node) -> Literal | None:
    """Return a constant whose elements are all equal as a literal, or None."""
    value = scalar_value(node)
    if value is None:
        return None
    return Literal(int(value) if node.dtype.kind in "iub" else float(value))


class BodyWriter:
    """Writes the body of one kernel."""

    def __init__(self, shape: Shape, new: dict[Node, Node]) -> None:
        self.shape = shape
        self.new = new
        self.values: dict[Node, Value] = {}
        """The value of each node that has a statement."""
        self.inputs: dict[tuple[int, tuple[int, ...]], tuple[Input, Node]] = {}
        """The operand and the node of each input, by the id of the node and its strides."""
        self.statements: list[Statement] = []

    def operand(self, node: Node) -> Operand:
        """Return the operand by which a statement reads a node."""
        value = self.values.get(node)
        if value is not None:
            return value
        number = literal(node)
        if number is not None:
            return number
        source = see_through(node)
        source = self.new.get(source, source)
        key = (source.id, broadcast_strides(broadcast_chain(node), self.shape))
        found = self.inputs.get(key)
        if found is None:
            found = self.inputs[key] = input_at(len(self.inputs)), source
        return found[0]

    def add(self, node: Node) -> None:
        """Append the statement of one node."""
        domain = SHORT_NAMES[node.inputs[-1].dtype]
        kernel = node.op.kernel
        if kernel.is_conversion:
            domain += ">" + SHORT_NAMES[node.dtype]
        operands = tuple([self.operand(x) for x in node.inputs])
        self.values[node] = value_at(len(self.statements))
        self.statements.append(Statement(kernel.opcode or node.op.name, domain, operands))


def emit(kernel: Kernel, new: dict[Node, Node]) -> Node:
    """Make the fused node; `new` maps what it reads to the rewritten graph."""
    writer = BodyWriter(kernel.place.shape, new)
    for node in reversed(kernel.members):
        writer.add(node)
    results = kernel.results[::-1]
    body = KernelBody(
        tuple(writer.statements),
        tuple([writer.values[node].number for node in results]),
        tuple([stride for _, strides in writer.inputs for stride in strides]),
    )
    inputs = [node for _, node in writer.inputs.values()]
    members = tuple([(node.op.name, node.site) for node in reversed(kernel.members)])
    wide = tuple([node.wide for node in results])
    return fused_node(inputs, body, [node.type for node in results], members, wide)


def broadcast_chain(node: Node) -> tuple[Shape, ...]:
    """The shapes of a node and of what it broadcasts, down to what is there."""
    shapes = [node.shape]
    while node.op.kernel.is_broadcast:
        node = node.inputs[0]
        shapes.append(node.shape)
    return tuple(shapes)


@lru_cache(maxsize=4096)
def broadcast_strides(shapes: tuple[Shape, ...], shape: Shape) -> tuple[int, ...]:
    """The element strides with which a kernel over `shape` reads a broadcast_chain."""
    view = np.lib.stride_tricks.as_strided(
        np.empty(1, np.int8), shapes[-1], dense_strides(shapes[-1])
    )
    for outer in reversed(shapes[:-1]):
        view = np.broadcast_to(view, outer)
    return tuple(np.broadcast_to(view, shape).strides)


def dense_strides(shape: Shape) -> tuple[int, ...]:
    """Row-major strides in elements; 0 along axes of size 1, as broadcasting has it."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(0 if size == 1 else step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def dense_operands(kernel: Node) -> dict[Node, int]:
    """The operands of which a kernel reads element by element what it makes; their numbers."""
    shape, strides = kernel.shape, body_of(kernel).input_strides
    dense = dense_strides(shape)
    return {
        operand: number
        for number, operand in enumerate(kernel.inputs)
        if operand.shape == shape
        and strides[number * len(shape) : (number + 1) * len(shape)] == dense
    }


__all__ = ["dense_operands", "depths", "fuse_elementwise", "in_turn", "needs"]
