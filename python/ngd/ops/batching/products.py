# SPDX-License-Identifier: Apache-2.0
"""Batching rules of matmuls, attention, convolutions and pooling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...graph.node import Node
from .._attention import Attend, AttendGrad
from .._convolution import Conv, ConvDataGrad, ConvWeightGrad
from .._matmul import MatMul
from .._pooling import AvgPoolGrad, Pool
from .._shape import reshape, transpose
from .rewrite import Batched, Batching, Results, align_batch_axis, batches


@batches(MatMul)
def batch_matmul(batching: Batching, node: Node, operands: Sequence[Batched]) -> Results:
    """Multiply the matrices a and b of each example.

    If all examples share one matrix b and a is not transposed, a is reshaped to one matrix, which
    has the rows of all examples. Otherwise the op multiplies stacks of matrices, with the batch
    axis in front of the other axes.
    """
    a, b = operands
    if not b.is_mapped and b.node.ndim == 2 and not node.attrs["transpose_a"]:
        rows = reshape(a.node, (-1, a.node.shape[-1])) if a.node.type.count else a.node
        return reshape(node.op.node((rows, b.node), node.attrs), (batching.size, *node.shape))
    ndim = max(x.ndim for x in node.inputs)
    return node.op.node((align_batch_axis(a, ndim), align_batch_axis(b, ndim)), node.attrs)


@batches(Attend, AttendGrad)
def batch_attention(batching: Batching, node: Node, operands: Sequence[Batched]) -> Results:
    """Apply the op with the batch axis as one more leading axis of all operands.

    A mask without the batch axis is not repeated: it broadcasts along the batch axis.
    """
    ndim = node.inputs[0].ndim
    num_masks = len(operands) - (3 if isinstance(node.op, Attend) else 7)
    split = len(operands) - num_masks
    masks = [align_batch_axis(x, ndim) for x in operands[split:]]
    return node.op.node(
        [*(batching.with_batch_axis(x) for x in operands[:split]), *masks], node.attrs
    )


def fold(x: Node) -> Node:
    """Join the batch axis and the next axis: [batch, n, ...] to [batch * n, ...]."""
    batch, n, *shape = x.shape
    return reshape(x, (batch * n, *shape))


def fold_into_channels(x: Node) -> Node:
    """Join the batch axis with the channels: [batch, N, C, ...] to [N, batch * C, ...]."""
    batch, n, channels, *spatial = x.shape
    transposed = transpose(x, (1, 0, *range(2, x.ndim)))
    return reshape(transposed, (n, batch * channels, *spatial))


@batches(Pool, AvgPoolGrad)
def batch_pool(batching: Batching, node: Node, operands: Sequence[Batched]) -> Results:
    """Join the batch axis with the axis N, because a window reads one sample only."""
    pooled = node.op.node((fold(operands[0].node),), node.attrs)
    return [
        reshape(new, (batching.size, *old.shape))
        for new, old in zip(pooled.results, node.results, strict=True)
    ]


@batches(Conv, ConvDataGrad)
def batch_convolution(batching: Batching, node: Node, operands: Sequence[Batched]) -> Results:
    """Convolve all examples at once.

    If the weights do not have the batch axis, the batch axis of the data is joined with the axis N
    of the data. Otherwise the channels of all examples are concatenated. Each example keeps its
    own groups of channels, which have their own weights.
    """
    data, weight = operands
    if not weight.is_mapped:
        result = node.op.node((fold(data.node), weight.node), node.attrs)
        return reshape(result, (batching.size, *node.shape))
    new_operands = (fold_into_channels(batching.with_batch_axis(data)), fold(weight.node))
    result = node.op.node(new_operands, in_groups(batching, node))
    n, channels, *spatial = node.shape
    result = reshape(result, (n, batching.size, channels, *spatial))
    return transpose(result, (1, 0, *range(2, result.ndim)))


@batches(ConvWeightGrad)
def batch_weight_grad(batching: Batching, node: Node, operands: Sequence[Batched]) -> Results:
    """Compute the gradients of the weights of all examples by one grouped convolution.

    The channels of all examples are concatenated. Each example keeps its own groups of channels.
    """
    new_operands = [fold_into_channels(batching.with_batch_axis(x)) for x in operands]
    result = node.op.node(new_operands, in_groups(batching, node))
    return reshape(result, (batching.size, *node.shape))


def in_groups(batching: Batching, node: Node) -> dict[str, Any]:
    """Return the attributes of a convolution, with `groups` multiplied by the batch size.

    The channels of all examples are concatenated. For example, 4 examples with 2 groups of
    channels each give 8 groups.
    """
    return {**node.attrs, "groups": node.attrs["groups"] * batching.size}
