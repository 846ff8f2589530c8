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
    """Draw numbers for all examples.

    If the seed has the batch axis, each example draws with its own seed. Otherwise the function
    that the user passed to ngd.vmap creates the seed. One larger draw then gives different numbers
    to each example.
    """
    (seed,) = operands
    if seed.is_mapped:
        return one_by_one(batching, node, operands)
    shape = (batching.size, *node.attrs["shape"])
    return node.op.node((seed.node,), {**node.attrs, "shape": shape})


@batches(Dropout)
def batch_dropout(batching: Batching, node: Node, operands: Sequence[Batched]) -> Results:
    """Drop elements of all examples.

    The mapped function is the function that the user passed to ngd.vmap. If it creates the seed, or
    if the seed has the batch axis, each example drops its own elements. If the seed comes from
    outside of the function, all examples drop the same elements, as without vmap.
    """
    x, seed = operands
    if seed.is_mapped:
        return one_by_one(batching, node, operands)
    if not batching.is_fresh(node.inputs[1]):
        return expand(batching, node, operands)
    return node.op.node((batching.with_batch_axis(x), seed.node), node.attrs)
