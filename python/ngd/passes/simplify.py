# SPDX-License-Identifier: Apache-2.0
"""Merge equal nodes, fold small constants, and drop what changes nothing.

Only rewrites that keep every bit of the result are made: x * 1, but not x + 0, which turns -0 to 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from ..ir import CONSTANT, Graph, Leaf, Node, constant_node
from .target import Target

FOLD_LIMIT: Final = 64
"""Constants of at most so many elements are folded and merged."""


def simplify(graph: Graph, target: Target) -> Graph:
    """Rewrite until each node is as simple as its inputs allow, then merge equal ones."""
    unique: dict[Any, Node] = {}

    def change(node: Node, inputs: tuple[Node, ...]) -> Node:
        node = node.with_inputs(inputs)
        for _ in range(8):
            simpler = next((new for rule in RULES if (new := rule(node)) is not None), None)
            if simpler is None:
                break
            node = simpler
        return unique.setdefault(key_of(node), node)

    return graph.rewrite(change)


def key_of(node: Node) -> Any:
    """What two nodes share when they compute the same value."""
    if node.op is CONSTANT:
        value = node.attrs["value"]
        return (node.type, value.tobytes()) if value.size <= FOLD_LIMIT else node.id
    if isinstance(node.op, Leaf) or node.op.collective:  # order_collectives has merged them
        return node.id
    attrs = tuple(sorted(node.attrs.items(), key=lambda item: item[0]))
    return (node.op, tuple(i.id for i in node.inputs), attrs)


def scalar_value(node: Node) -> Any:
    """The one value of a constant, also behind a broadcast; None for anything else."""
    while node.op.name in ("broadcast_to", "reshape"):
        node = node.inputs[0]
    if node.op is CONSTANT and node.type.count == 1:
        return node.attrs["value"].reshape(())[()]
    return None


def drop_identity(node: Node) -> Node | None:
    """Ops that hand their input through."""
    name, inputs = node.op.name, node.inputs
    if name in ("stop_gradient", "reshape", "broadcast_to", "cast") and node.type == inputs[0].type:
        return inputs[0]
    if name in ("multiply", "divide") and node.type == inputs[0].type:
        one = scalar_value(inputs[1])
        if one is not None and one == 1:
            return inputs[0]
    if name == "multiply" and node.type == inputs[1].type:
        one = scalar_value(inputs[0])
        if one is not None and one == 1:
            return inputs[1]
    return None


def merge_views(node: Node) -> Node | None:
    """Merge a view of a view, and drop a negative of a negative."""
    name = node.op.name
    if not node.inputs or node.inputs[0].op.name != name:
        return None
    inner = node.inputs[0].inputs
    if name in ("reshape", "negative"):
        return inner[0] if name == "negative" else node.op.node(inner, node.attrs)
    if name == "transpose":
        outer_axes, inner_axes = node.attrs["axes"], node.inputs[0].attrs["axes"]
        axes = tuple(inner_axes[a] for a in outer_axes)
        if axes == tuple(range(len(axes))):
            return inner[0]
        return node.op.node(inner, {"axes": axes})
    return None


def swaps_last_two(node: Node) -> bool:
    """Whether this is a transpose of the last two axes alone."""
    if node.op.name != "transpose" or node.ndim < 2:
        return False
    n = node.ndim
    return tuple(node.attrs["axes"]) == (*range(n - 2), n - 1, n - 2)


def transpose_into_matmul(node: Node) -> Node | None:
    """A matrix product reads a transposed operand in place."""
    if node.op.name != "matmul":
        return None
    for i, attr in ((0, "transpose_a"), (1, "transpose_b")):
        if swaps_last_two(node.inputs[i]):
            inputs = list(node.inputs)
            inputs[i] = node.inputs[i].inputs[0]
            return node.op.node(inputs, {**node.attrs, attr: not node.attrs[attr]})
    return None


def fold_constant(node: Node) -> Node | None:
    """A small op on constants is computed now, by its reference."""
    if isinstance(node.op, Leaf) or node.op.collective or not node.inputs:
        return None
    if node.type.count > FOLD_LIMIT or any(i.op is not CONSTANT for i in node.inputs):
        return None
    with np.errstate(all="ignore"):
        value = node.op.reference(*(i.attrs["value"] for i in node.inputs), **node.attrs)
    return constant_node(np.asarray(value, node.dtype))


RULES: Final[tuple[Callable[[Node], Node | None], ...]] = (
    drop_identity,
    merge_views,
    transpose_into_matmul,
    fold_constant,
)
