# SPDX-License-Identifier: Apache-2.0
"""Fusion of elementwise ops: one kernel computes many of them, in one pass over memory.

A fused kernel runs the *statements* of its *body* (kernel_body.py) over tiles that stay in the L1
cache. The values of some statements are the results of the kernel, which it writes to memory. All
ops of a kernel have one shape.

Three facts decide whether two ops may be results of one kernel. Together they are the *merge key*
of an op:

- its *depth*: the largest number of ops that are not elementwise, on a path up to and including the
  op.
- its *need*: a pair (first collective, depth). A value with a lesser need is needed earlier. Each
  op that is not elementwise, and that reads the value directly or through elementwise ops, has such
  a pair. The need of the value is the least of these pairs. The first collective of an op is the op
  itself, if it is a collective, or else the first collective that depends on the op.
- its shape.

Each elementwise op is visited once, after all ops that read it:

- *Absorbed*: if only one kernel reads the op, that kernel computes it, and its value is not stored.
- *Merged*: otherwise the op becomes one more result of a kernel with the same merge key. This
  kernel reads the op, or it reads an operand of the op, if this operand has the shape of the op. So
  a momentum and the weight that is computed from it are results of one kernel.
- Otherwise it starts a kernel of its own.

A merge delays no result. All results of a kernel can be computed at one depth, and they are needed
at one depth and before the same collective.

A merge makes no cycle either, for two reasons:

- From an operand to its elementwise reader, depth and need do not decrease, and the shape stays or
  grows by broadcasting. An op that is not elementwise increases the depth. So every op on a path
  between two ops of one merge key has this merge key, and a cycle could only consist of kernels of
  one merge key.
- These kernels are numbered in the order in which they are started, and an op is visited after its
  readers. An op may join a kernel only if all other kernels of this merge key that read the op
  have smaller numbers. So along a path from operands to readers the numbers never increase. In a
  cycle all numbers would be equal: it would be one kernel.

Absorbed ops change none of this, because only their own kernel reads them.
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
"""A sort key of a value: a value with a lesser `Need` is needed earlier in the step.

The key is the least pair (first collective, depth) of some ops. These ops are not elementwise, and
read the value directly or through elementwise ops. The first collective of an op is the op itself,
if it is a collective, or else the first collective that depends on the op. The depth of an op is
the largest number of ops that are not elementwise, on a path up to and including the op."""
LAST: Final[Need] = (Order(maxsize), inf)
"""The greatest need. A value has this need if all ops that depend on the value are elementwise, or
if no op depends on it. For example, the step only returns the value or stores it in a variable."""


class MergeKey(NamedTuple):
    """The key of an op for fusion: ops with equal keys may be results of one kernel.

    `depth` is the largest number of ops that are not elementwise, on a path up to and including the
    op. `need` is a sort key: it is lesser if the step needs the value of the op earlier (see
    `Need`). `shape` is the shape of the op.
    """

    depth: int
    need: Need
    shape: Shape


@dataclass(eq=False, slots=True)
class Kernel:
    """A fused kernel to which ops are added."""

    number: int
    merge_key: MergeKey
    members: list[Node] = field(default_factory=list)
    """The ops of the kernel, each before its operands."""
    results: list[Node] = field(default_factory=list)
    """The ops whose values the kernel writes to memory, in the order of `members`."""
    outside: dict[Node, None] = field(default_factory=dict)
    """The values that the kernel reads from memory: operands of members that are not members."""

    def has_room(self, node: Node, sources: list[Node]) -> bool:
        """Return whether the kernel can take one more op without exceeding its limits.

        The limits are MAX_INSTRUCTIONS ops, and MAX_INPUTS values that the kernel reads from
        memory. `sources` are the operands that the new op reads from memory.
        """
        if len(self.members) >= MAX_INSTRUCTIONS:
            return False
        free_inputs = MAX_INPUTS - len(self.outside) + (node in self.outside)
        return len(sources) <= free_inputs or len(set(sources) - self.outside.keys()) <= free_inputs

    def add(self, node: Node, sources: list[Node]) -> None:
        """Add the op `node` to the kernel.

        `sources` are the operands of `node`, as `external` returns them. The kernel reads an
        operand from memory, unless the operand is added to the kernel later.
        """
        self.members.append(node)
        self.outside.pop(node, None)
        for source in sources:
            self.outside[source] = None


def fuse_elementwise(graph: Graph, target: Target, options: CompileOptions) -> Graph:
    """Replace elementwise ops by fused kernels, each of which computes many of them."""
    kernels = Grouping(graph).kernels
    new: dict[Node, Node] = {}

    def change(node: Node, inputs: tuple[Node, ...]) -> Node:
        kernel = kernels.get(node)
        if kernel is None:
            new_node = node.with_inputs(inputs)
            if new_node is not node:
                new.update(zip(node.results, new_node.results, strict=True))
            return new_node
        if node is kernel.members[0]:
            new.update(zip(reversed(kernel.results), emit(kernel, new).results, strict=True))
        return new.get(node, node)

    return graph.rewrite(change, order_bundles(graph.roots, kernels))


class Bundle(Protocol):
    """Nodes that `order_bundles` puts next to each other in the list that it returns.

    For example, they are the ops that one fused kernel replaces. The operands of the kernel come
    before the first of these ops, and the readers of the kernel come after the last one.
    """

    @property
    def members(self) -> Sequence[Node]:
        """The nodes of the bundle, in the order in which `order_bundles` returns them."""
        ...

    @property
    def outside(self) -> Collection[Node]:
        """The nodes that come before all of `members`, such as the operands of `members`."""
        ...


def order_bundles(roots: Iterable[Node], kernels: Mapping[Node, Bundle]) -> list[Node]:
    """Return the nodes that the roots need, with the ops of each kernel next to each other.

    Except for these ops, the order is that of `topological`: depth first, each node after its
    inputs. `kernels` maps each op of a kernel to the kernel. The ops of a kernel are its `members`,
    in their order. They come after all nodes of its `outside`, such as its operands.
    """
    order: list[Node] = []
    seen: set[Node] = set()
    stack: list[Any] = [*roots]
    stack.reverse()
    while stack:
        node = stack.pop()
        if node is None:  # the operands of these members are in `order`
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
    """The choice of a kernel for each elementwise op."""

    def __init__(self, graph: Graph) -> None:
        self.kernels: dict[Node, Kernel] = {}
        self.num_started = 0
        self.depths = depths(graph)
        self.needs = needs(graph, self.depths)
        self.stored = set(graph.roots)
        """The nodes whose values must be in memory: the roots of the graph, and the operands of
        nodes that are not elementwise."""
        self.readers: dict[Node, dict[Kernel, None]] = {}
        """For each value, the elementwise kernels made so far that read it."""
        self.latest: dict[tuple[MergeKey, Node], Kernel] = {}
        """For each pair (`MergeKey`, operand): the kernel with this key to which an op that reads
        the operand was added most recently. Another op that has this key and reads the operand may
        also be added to this kernel. The dict has only operands that have the kernel's shape."""
        for node in reversed(graph.nodes):
            if not is_elementwise(node):
                if node.inputs:
                    self.stored.update(node.inputs)
                continue
            if node.op.kernel.is_elementwise or node in self.stored:
                self.choose_kernel(node)
            else:  # a broadcast, whose readers read its operand instead
                self.note_readers(node, self.readers[node])

    def note_readers(self, node: Node, kernels: Iterable[Kernel]) -> None:
        """Add `kernels` to the recorded readers (`self.readers`) of each operand of `node`."""
        for operand in node.inputs:
            readers = self.readers.setdefault(operand, {})
            for kernel in kernels:
                readers[kernel] = None

    def choose_kernel(self, node: Node) -> None:
        """Add an elementwise op to a kernel, or start a new kernel with the op.

        If only one kernel reads the op, this kernel also computes the op, if it can. The value of
        the op is then not written to memory. Otherwise the op becomes one more result of a kernel
        with an equal `MergeKey`. If no such kernel can take the op, the op starts a new kernel.
        """
        sources, readers = external(node), self.readers.get(node, {})
        kernel = self.sole_reader(node, sources, readers)
        if kernel is None:
            merge_key = MergeKey(self.depths[node], self.needs[node], node.shape)
            kernel = self.mergeable(node, merge_key, sources, readers)
            if kernel is None:
                kernel = Kernel(self.num_started, merge_key)
                self.num_started += 1
            kernel.results.append(node)
        self.kernels[node] = kernel
        kernel.add(node, sources)
        self.note_readers(node, (kernel,))
        for source in sources:
            if source.shape == node.shape:
                self.latest[kernel.merge_key, source] = kernel

    def sole_reader(
        self, node: Node, sources: list[Node], readers: Mapping[Kernel, None]
    ) -> Kernel | None:
        """Return the only kernel that reads `node`, if it can also compute `node`; else None.

        `sources` are the operands of `node`, as `external` returns them. `readers` are the kernels
        that read `node`. If the value of `node` must be in memory, for example as an output, the
        result is None.
        """
        if len(readers) == 1 and node not in self.stored:
            (kernel,) = readers
            if kernel.merge_key.shape == node.shape and kernel.has_room(node, sources):
                return kernel
        return None

    def mergeable(
        self, node: Node, merge_key: MergeKey, sources: list[Node], readers: Mapping[Kernel, None]
    ) -> Kernel | None:
        """Return a kernel that can compute `node` as one more result; None if no kernel can.

        The kernel has the merge key `merge_key`, and reads `node` or one of `sources`, the operands
        of `node` that `external` returns. `readers` are the kernels that read `node`.
        """
        reading_kernels = [kernel for kernel in readers if kernel.merge_key == merge_key]
        least = max([kernel.number for kernel in reading_kernels], default=-1)
        sharing_kernels = [self.latest.get((merge_key, source)) for source in sources]
        for kernel in (*reading_kernels, *sharing_kernels):
            if kernel and kernel.number >= least and kernel.has_room(node, sources):
                return kernel
        return None


def depths(graph: Graph) -> dict[Node, int]:
    """Return the depth of each value.

    The depth is the largest number of ops that are not elementwise, on a path up to and including
    the op that computes the value. A node without inputs, such as a variable, has depth 0.
    """
    found: dict[Node, int] = {}
    for node in graph.nodes:
        depth = 0
        for operand in node.inputs:
            if found[operand] > depth:
                depth = found[operand]
        if node.inputs and not is_elementwise(node):
            depth += 1
        found[node] = depth
        if node.has_several_results:
            found.update(dict.fromkeys(node.results, depth))
    return found


def needs(graph: Graph, depths: Mapping[Node, int]) -> dict[Node, Need]:
    """Return the `Need` of each value: a sort key, which is lesser if the value is needed earlier.

    `depths` is the result of the function `depths` for the graph.
    """
    found = dict.fromkeys(depths, LAST)
    for node in reversed(graph.nodes):
        if not node.inputs:
            continue
        need = found[node]
        if not is_elementwise(node):
            first = (
                min([found[result][0] for result in node.results])
                if node.has_several_results
                else need[0]
            )
            order = node.op.order
            need = first if order is None else min(first, order), depths[node]
        for operand in node.inputs:
            if need < found[operand]:
                found[operand] = need
    return found


def is_elementwise(node: Node) -> bool:
    """Return whether an elementwise kernel can compute a node: an elementwise op or a broadcast."""
    kernel = node.op.kernel
    return kernel.is_elementwise or kernel.is_broadcast


def external(node: Node) -> list[Node]:
    """Return the operands of a node that a kernel reads from memory.

    A constant with one element, or a broadcast of it, is left out: its number is written into the
    statements of the kernel. Any other broadcast is replaced by the operand that it repeats.
    """
    return [see_through(i) for i in node.inputs if scalar_value(i) is None]


def see_through(node: Node) -> Node:
    """Return the value that a broadcast repeats, or `node` itself if it is not a broadcast.

    If the operand of the broadcast is also a broadcast, return the value that this one repeats, and
    so on. A kernel reads the value with stride 0, so the broadcasts need not be computed.
    """
    while node.op.kernel.is_broadcast:
        node = node.inputs[0]
    return node


def literal(node: Node) -> Literal | None:
    """Return a one-element constant as a `Literal`, a number in the statements of a kernel.

    `node` may also be a view or a broadcast of the constant. Return None for any other node.
    """
    value = scalar_value(node)
    if value is None:
        return None
    return Literal(int(value) if node.dtype.kind in "iub" else float(value))


class BodyWriter:
    """A writer of the statements of one fused kernel."""

    def __init__(self, shape: Shape, new: dict[Node, Node]) -> None:
        self.shape = shape
        self.new = new
        self.values: dict[Node, Value] = {}
        """For each node that the kernel computes: the number of its statement, as a `Value`."""
        self.inputs: dict[tuple[int, tuple[int, ...]], tuple[Input, Node]] = {}
        """The inputs of the kernel: a dict from (id of a node, strides of the reads) to (input,
        node). A node that is read with two different strides is two inputs. `Input` has the number
        by which statements refer to the input."""
        self.statements: list[Statement] = []

    def operand(self, node: Node) -> Operand:
        """Return the object by which statements refer to `node`, one of their operands.

        The object is the `Value` of an earlier statement, a `Literal` (a number), or an `Input` of
        the kernel. A new input is added to `self.inputs`.
        """
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
        """Append the statement that computes a node."""
        domain = SHORT_NAMES[node.inputs[-1].dtype]
        kernel = node.op.kernel
        if kernel.is_conversion:
            domain += ">" + SHORT_NAMES[node.dtype]
        operands = tuple([self.operand(x) for x in node.inputs])
        self.values[node] = value_at(len(self.statements))
        self.statements.append(Statement(kernel.opcode or node.op.name, domain, operands))


def emit(kernel: Kernel, new: dict[Node, Node]) -> Node:
    """Add a fused kernel to the new graph, and return the node of the kernel's first result.

    `new` maps nodes of the old graph to the nodes of the new graph that replace them.
    """
    writer = BodyWriter(kernel.merge_key.shape, new)
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
    keeps_float32 = tuple([node.keeps_float32 for node in results])
    return fused_node(inputs, body, [node.type for node in results], members, keeps_float32)


def broadcast_chain(node: Node) -> tuple[Shape, ...]:
    """Return the shape of a node and, if it is a broadcast, the shape of its operand, and so on.

    The last shape is that of the first operand that is not a broadcast. For example, the result is
    ((2, 3), (3,)) for a broadcast of a vector, and ((3,),) for the vector.
    """
    shapes = [node.shape]
    while node.op.kernel.is_broadcast:
        node = node.inputs[0]
        shapes.append(node.shape)
    return tuple(shapes)


@lru_cache(maxsize=4096)
def broadcast_strides(shapes: tuple[Shape, ...], shape: Shape) -> tuple[int, ...]:
    """Return the strides, in elements, with which a kernel reads an operand that it broadcasts.

    `shapes` is the result of `broadcast_chain`: the shapes of the broadcasts, and last the shape of
    the operand. `shape` is the shape of the kernel's results. For example, the result for the
    shapes ((2, 3), (3,)) and the shape (2, 3) is (0, 1).
    """
    view = np.lib.stride_tricks.as_strided(
        np.empty(1, np.int8), shapes[-1], dense_strides(shapes[-1])
    )
    for outer in reversed(shapes[:-1]):
        view = np.broadcast_to(view, outer)
    return tuple(np.broadcast_to(view, shape).strides)


def dense_strides(shape: Shape) -> tuple[int, ...]:
    """Return row-major strides in elements; 0 along axes of size 1, as in broadcasting."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(0 if size == 1 else step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def dense_operands(kernel: Node) -> dict[Node, int]:
    """Return a dict from operands of a kernel to their numbers among the inputs of the kernel.

    It has the operands that the kernel reads without broadcasting and in row-major order.
    """
    shape, strides = kernel.shape, body_of(kernel).input_strides
    dense = dense_strides(shape)
    return {
        operand: number
        for number, operand in enumerate(kernel.inputs)
        if operand.shape == shape
        and strides[number * len(shape) : (number + 1) * len(shape)] == dense
    }


__all__ = ["dense_operands", "depths", "fuse_elementwise", "needs", "order_bundles"]
