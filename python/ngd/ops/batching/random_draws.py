# SPDX-License-Identifier: Apache-2.0
"""Batching rules of random draws and dropout."""

from __future__ import annotations

from collections.abc import Sequence

from ...graph.node import Node
from .._random import Draw, Dropout, RandomBits
from .control_flow import one_by_one
from .rewrite import Batched, Batching, Results, batches, expand


@batches(Draw, RandomBits)
def batch_draw(batching: Batching, node: Node, operands: Sequence[Batched]) -> Results:
    """Draw for all examples from one seed, or for each example from its own seed."""
    (seed,) = operands
    if seed.is_mapped:
        return one_by_one(batching, node, operands)
    shape = (batching.size, *node.attrs["shape"])
    return node.op.node((seed.node,), {**node.attrs, "shape": shape})


@batches(Dropout)
def batch_dropout(batching: Batching, node: Node, operands: Sequence[Batched]) -> Results:
    """Choose the elements to drop for each example, or once for all if the seed is captured."""
    x, seed = operands
    if seed.is_mapped:
        return one_by_one(batching, node, operands)
    if not batching.is_fresh(node.inputs[1]):
        return expand(batching, node, operands)
    return node.op.node((batching.with_batch_axis(x), seed.node), node.attrs)
