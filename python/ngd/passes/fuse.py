# SPDX-License-Identifier: Apache-2.0
"""Fusion: bias and relu into the matrix product, chains of elementwise ops into one kernel.

An elementwise kernel runs a little program over tiles that stay in L1 (see
src/cpp/kernels/fused): `op:dtype operand operand;...`, where iN is input N, tN the result of
instruction N, and #value an immediate.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from itertools import chain
from typing import Any, ClassVar, Final

import numpy as np

from ..dtype import SHORT_NAMES, float32, float64
from ..ir import Graph, Node, Op, Shape, Type
from .simplify import scalar_value
from .target import Target, query_node

MAX_INSTRUCTIONS: Final = 24
MAX_INPUTS: Final = 12


class FusedElementwise(Op):
    """A chain of elementwise ops as one kernel; attrs: program, results, input_strides."""

    name = "elementwise"

    def __init__(self, result: Type) -> None:
        self.result = result

    def infer(self, *inputs: Type, **attrs: Any) -> Type:
        """The type of the chain's last op."""
        return self.result


def uses(graph: Graph) -> Counter[Node]:
    """How often each node is read, the graph's own outputs and updates counted."""
    reads = [graph.roots, *[node.inputs for node in graph.nodes]]
    return Counter(chain.from_iterable(reads))


def fuse_matmul(graph: Graph, target: Target) -> Graph:
    """relu(a @ b + bias) becomes one product with a bias and a post-operation."""
    counts = uses(graph)
    readers: dict[Node, int] = {}

    def only_reader(node: Node) -> bool:
        return readers.get(node, 0) == 1

    def with_bias(node: Node) -> Node | None:
        if node.dtype not in (float32, float64):
            return None
        for product, bias in (node.inputs, node.inputs[::-1]):
            if (
                product.op.name == "matmul"
                and len(product.inputs) == 2
                and only_reader(product)
                and product.type == node.type
                and bias.shape == product.shape[-1:]
            ):
                return product.op.node((*product.inputs, bias), product.attrs)
        return None

    def with_relu(node: Node) -> Node | None:
        product = node.inputs[0]
        if product.op.name != "matmul" or node.dtype not in (float32, float64):
            return None
        if not only_reader(product) or product.attrs.get("post") or product.type != node.type:
            return None
        return product.op.node(product.inputs, {**product.attrs, "post": "relu"})

    rules = {"add": with_bias, "relu": with_relu}

    def change(node: Node, inputs: tuple[Node, ...]) -> Node:
        new = node.with_inputs(inputs)
        rule = rules.get(node.op.name)
        fused = None if rule is None else rule(new)
        if fused is not None and query_node(target, fused).accepted:
            new = fused
        readers[new] = counts[node]
        return new

    return graph.rewrite(change)


def is_elementwise(node: Node) -> bool:
    """Whether the elementwise kernel computes this node."""
    return node.op.elementwise or node.op.name == "broadcast_to"


def fuse_elementwise(graph: Graph, target: Target) -> Graph:
    """Group every elementwise op with the ones that feed it alone, and emit one kernel a group."""
    counts = uses(graph)
    absorbed: set[Node] = set()
    groups: dict[Node, list[Node]] = {}
    order = graph.nodes
    position = {node: i for i, node in enumerate(order)}
    for root in reversed(order):
        if is_elementwise(root) and root not in absorbed:
            members = grow(root, counts)
            groups[root] = sorted(members, key=position.__getitem__)
            absorbed.update(members)

    def change(node: Node, inputs: tuple[Node, ...]) -> Node:
        new[node] = fused = rebuilt(node, inputs)
        return fused

    def rebuilt(node: Node, inputs: tuple[Node, ...]) -> Node:
        if node in groups:
            return emit(node, groups[node], new)
        if node in absorbed:  # never read again: its group's root stands for it
            return node
        return node.with_inputs(inputs)

    new: dict[Node, Node] = {}
    return graph.rewrite(change)


def grow(root: Node, counts: Counter[Node]) -> list[Node]:
    """The root and every elementwise producer of its shape that nobody outside reads.

    Rounds go over the producers that the members so far read, in the order in which they were first
    read. One that is turned down may fit in a later round, when more of its readers are members.
    """
    members: list[Node] = []
    producers: list[Node] = []  # those that may still join
    read_inside: dict[Node, int] = {}
    outside: dict[Node, None] = {}  # what the members read there

    def join(node: Node, inputs: list[Node]) -> None:
        members.append(node)
        for operand in node.inputs:
            same_shape = operand.op.elementwise and operand.shape == root.shape
            if same_shape and operand not in read_inside:
                producers.append(operand)
            read_inside[operand] = read_inside.get(operand, 0) + 1
        outside.pop(node, None)
        outside.update(dict.fromkeys(inputs))

    def joins(node: Node) -> bool:
        if read_inside[node] != counts[node] or len(members) == MAX_INSTRUCTIONS:
            return False
        inputs = external(node)
        added = [source for source in inputs if source not in outside]
        others = len(outside) - (node in outside)
        if others + len(set(added)) > MAX_INPUTS:
            return False
        join(node, inputs)
        return True

    join(root, external(root))
    changed = True
    while changed and len(members) < MAX_INSTRUCTIONS:
        changed = False
        waiting, producers[:] = producers[:], []
        left = []
        for node in waiting:
            if joins(node):
                changed = True
            else:
                left.append(node)
        producers[:0] = left
    return members


def external(node: Node) -> list[Node]:
    """What a node reads, immediates left out, broadcasts seen through."""
    return [see_through(i) for i in node.inputs if scalar_value(i) is None]


def see_through(node: Node) -> Node:
    """What a broadcast reads: the kernel reads it with stride 0."""
    while node.op.name == "broadcast_to":
        node = node.inputs[0]
    return node


def immediate(node: Node) -> str | None:
    """A one-valued constant as the kernel's text."""
    value = scalar_value(node)
    if value is None:
        return None
    if node.dtype.kind in "iub":
        return f"#{int(value)}"
    return f"#{float(value)!r}"


class Emitter:
    """Writes the program of one group."""

    OPCODES: ClassVar[dict[str, str]] = {"broadcast_to": "copy"}

    def __init__(self, root: Node, new: dict[Node, Node]) -> None:
        self.shape = root.shape
        self.new = new
        self.names: dict[Node, str] = {}
        self.inputs: dict[tuple[int, tuple[int, ...]], tuple[int, Node]] = {}
        """What is read, by the node's id and the strides: the operand's number, and the node."""
        self.lines: list[str] = []

    def operand(self, node: Node) -> str:
        """The text by which an instruction names this operand."""
        name = self.names.get(node)
        if name is not None:
            return name
        literal = immediate(node)
        if literal is not None:
            return literal
        source = self.new[see_through(node)]
        key = (source.id, broadcast_strides(broadcast_chain(node), self.shape))
        number, _ = self.inputs.setdefault(key, (len(self.inputs), source))
        return f"i{number}"

    def instruction(self, node: Node) -> None:
        """Append one node's instruction."""
        opcode = self.OPCODES.get(node.op.name, node.op.name)
        domain = SHORT_NAMES[node.inputs[-1].dtype]
        if node.op.name == "cast":
            domain += ">" + SHORT_NAMES[node.dtype]
        operands = " ".join(self.operand(i) for i in node.inputs)
        self.names[node] = f"t{len(self.lines)}"
        self.lines.append(f"{opcode}:{domain} {operands}")


def emit(root: Node, members: list[Node], new: dict[Node, Node]) -> Node:
    """The fused node of a group in order; `new` maps what it reads to the rewritten graph."""
    emitter = Emitter(root, new)
    for node in members:
        emitter.instruction(node)
    inputs = tuple(node for _, node in emitter.inputs.values())
    attrs = {
        "program": ";".join(emitter.lines),
        "results": (len(emitter.lines) - 1,),
        "input_strides": tuple(s for _, strides in emitter.inputs for s in strides),
    }
    return FusedElementwise(root.type).node(inputs, attrs)


def broadcast_chain(node: Node) -> tuple[Shape, ...]:
    """The shapes of a node and of what it broadcasts, down to what is there."""
    shapes = [node.shape]
    while node.op.name == "broadcast_to":
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


__all__ = ["FusedElementwise", "fuse_elementwise", "fuse_matmul"]
