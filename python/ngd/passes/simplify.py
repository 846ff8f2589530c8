# SPDX-License-Identifier: Apache-2.0
"""Merge equal nodes, fold small constants, and drop what changes nothing.

Only rewrites that keep every bit of the result are made: x * 1, but not x + 0, which turns -0 to 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from ..ir import CONSTANT, PLACEHOLDER, VARIABLE, Graph, Leaf, Node, constant_node
from .target import Target

FOLD_LIMIT: Final = 64
"""Constants of at most so many elements are folded and merged."""


def simplify(graph: Graph, target: Target) -> Graph:
    """Rewrite until each node is as simple as its inputs allow, then merge equal ones."""
    unique: dict[Any, Node] = {}

    def change(node: Node, inputs: tuple[Node, ...]) -> Node:
        if node.op is VARIABLE or node.op is PLACEHOLDER:
            return node
        node = node.with_inputs(inputs)
        for _ in range(8):
            simpler = apply_rules(node)
            if simpler is None:
                break
            node = simpler
            if node.number:  # of an input, which is as simple as it gets
                return node
        return unique.setdefault(key_of(node), node)

    return graph.rewrite(change)


def apply_rules(node: Node) -> Node | None:
    """What the first rule that fits makes of a node."""
    for rule in RULES.get(node.op.name, ()):
        simpler = rule(node)
        if simpler is not None:
            return simpler
    return fold_constant(node)


def key_of(node: Node) -> Any:
    """What two nodes share when they compute the same value."""
    if node.op is CONSTANT:
        value = node.attrs["value"]
        return (node.type, value.tobytes()) if value.size <= FOLD_LIMIT else node.id
    if isinstance(node.op, Leaf) or node.op.collective:  # order_collectives has merged them
        return node.id
    attrs = tuple(sorted(node.attrs.items(), key=lambda item: item[0])) if node.attrs else ()
    return (node.op, tuple([i.id for i in node.inputs]), attrs)


def scalar_value(node: Node) -> Any:
    """The one value of a constant, also behind a broadcast; None for anything else."""
    while node.op.name in ("broadcast_to", "reshape"):
        node = node.inputs[0]
    if node.op is CONSTANT and node.type.count == 1:
        return node.attrs["value"].reshape(())[()]
    return None


def drop_identity(node: Node) -> Node | None:
    """An op that hands its input through."""
    return node.inputs[0] if node.type == node.inputs[0].type else None


def drop_one(node: Node) -> Node | None:
    """A product with 1, or a division by it."""
    a, b = node.inputs
    if is_one(b) and node.type == a.type:
        return a
    if node.op.name == "multiply" and is_one(a) and node.type == b.type:
        return b
    return None


def is_one(node: Node) -> bool:
    """Whether this is a constant 1."""
    value = scalar_value(node)
    return value is not None and bool(value == 1)


def merge_views(node: Node) -> Node | None:
    """Merge a view of a view, and drop a negative of a negative."""
    name = node.op.name
    if node.inputs[0].op.name != name:
        return None
    inner = node.inputs[0].inputs
    if name in ("reshape", "negative"):
        return inner[0] if name == "negative" else node.op.node(inner, node.attrs)
    outer_axes, inner_axes = node.attrs["axes"], node.inputs[0].attrs["axes"]
    axes = tuple(inner_axes[a] for a in outer_axes)
    return inner[0] if axes == tuple(range(len(axes))) else node.op.node(inner, {"axes": axes})


def swaps_last_two(node: Node) -> bool:
    """Whether this is a transpose of the last two axes alone."""
    if node.op.name != "transpose" or node.ndim < 2:
        return False
    n = node.ndim
    return tuple(node.attrs["axes"]) == (*range(n - 2), n - 1, n - 2)


def transpose_into_matmul(node: Node) -> Node | None:
    """A matrix product reads a transposed operand in place."""
    for i, attr in ((0, "transpose_a"), (1, "transpose_b")):
        if swaps_last_two(node.inputs[i]):
            inputs = list(node.inputs)
            inputs[i] = node.inputs[i].inputs[0]
            return node.op.node(inputs, {**node.attrs, attr: not node.attrs[attr]})
    return None


def fold_constant(node: Node) -> Node | None:
    """A small op of one result on constants is computed now, by its reference."""
    for operand in node.inputs:
        if operand.op is not CONSTANT:
            return None
    if not node.inputs or node.several or node.op.collective or node.type.count > FOLD_LIMIT:
        return None
    with np.errstate(all="ignore"):
        value: Any = node.op.reference(*(i.attrs["value"] for i in node.inputs), **node.attrs)
    return constant_node(np.asarray(value, node.dtype))


RULES: Final[dict[str, tuple[Callable[[Node], Node | None], ...]]] = {
    "stop_gradient": (drop_identity,),
    "reshape": (drop_identity, merge_views),
    "broadcast_to": (drop_identity,),
    "cast": (drop_identity,),
    "multiply": (drop_one,),
    "divide": (drop_one,),
    "negative": (merge_views,),
    "transpose": (merge_views,),
    "matmul": (transpose_into_matmul,),
}
"""Of the ops that have some, in order; `fold_constant` follows, for all."""
