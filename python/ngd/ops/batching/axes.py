# SPDX-License-Identifier: Apache-2.0
"""Batching rules of elementwise ops, and of ops that change shapes."""

from __future__ import annotations

from collections.abc import Sequence

from ...graph.node import Node
from .._activation import Activation
from .._casting import Cast
from .._creation import OneHot
from .._elementwise import Elementwise
from .._shape import (
    BroadcastTo,
    Reshape,
    StopGradient,
    Transpose,
    broadcast_to,
    reshape,
    transpose,
)
from .._slicing import PadSlice, Slice
from .rewrite import Batched, Batching, Results, after_batch_axis, align_batch_axis, batches


@batches(Elementwise, Activation, Cast, OneHot, StopGradient)
def broadcast_operands(batching: Batching, node: Node, operands: Sequence[Batched]) -> Results:
    """Apply an elementwise op to operands that all have the batch axis in front.

    Operands with fewer axes get axes of size 1 after the batch axis, so that they broadcast as they
    do without the batch axis.
    """
    ndim = max(x.ndim for x in node.inputs)
    return node.op.node([align_batch_axis(x, ndim) for x in operands], node.attrs)


@batches(Reshape)
def batch_reshape(batching: Batching, node: Node, operands: Sequence[Batched]) -> Results:
    """Reshape the axes after the batch axis, which is kept."""
    return reshape(operands[0].node, (batching.size, *node.shape))


@batches(BroadcastTo)
def batch_broadcast_to(batching: Batching, node: Node, operands: Sequence[Batched]) -> Results:
    """Broadcast the axes after the batch axis, which is kept."""
    return broadcast_to(align_batch_axis(operands[0], node.ndim), (batching.size, *node.shape))


@batches(Transpose)
def batch_transpose(batching: Batching, node: Node, operands: Sequence[Batched]) -> Results:
    """Permute the axes after the batch axis, which is kept."""
    return transpose(operands[0].node, (0, *after_batch_axis(node.attrs["axes"])))


@batches(Slice, PadSlice)
def batch_slice(batching: Batching, node: Node, operands: Sequence[Batched]) -> Results:
    """Slice the axes after the batch axis, which is kept whole."""
    first = {"starts": 0, "steps": 1, "sizes": batching.size, "shape": batching.size}
    attrs = {key: (first[key], *values) for key, values in node.attrs.items()}
    return node.op.node([operands[0].node], attrs)
