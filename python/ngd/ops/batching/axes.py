# SPDX-License-Identifier: Apache-2.0
"""Batching rules of ops that compute along axes, which follow the batch axis by one."""

from __future__ import annotations

from collections.abc import Sequence

from ...dtypes import Shape
from ...graph.node import Node
from .._activation import Activation
from .._along_axis import AddAlongAxis, TakeAlongAxis
from .._casting import Cast
from .._concatenation import Concat, Split
from .._creation import OneHot
from .._cumulative import CumSum
from .._elementwise import Elementwise
from .._normalization import Moments, RmsStandardize, Standardize
from .._reductions import ArgExtremum, Reduction
from .._rows import RowNumber
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
from .._softmax import AlongAxis, SoftmaxCrossEntropy, SoftmaxCrossEntropyGrad
from .._sorting import TopK
from .rewrite import Batched, Batching, Results, batches, lead


def shift(axes: Sequence[int]) -> Shape:
    """Return the axes of a tensor with one more axis in front."""
    return tuple(axis + 1 for axis in axes)


@batches(Elementwise, Activation, Cast, OneHot, StopGradient, TopK)
def broadcast_operands(batching: Batching, node: Node, operands: Sequence[Batched]) -> Results:
    """Apply the op to operands whose trailing axes broadcast."""
    ndim = max(x.ndim for x in node.inputs)
    return node.op.node([lead(x, ndim) for x in operands], node.attrs)


@batches(RowNumber, SoftmaxCrossEntropy, SoftmaxCrossEntropyGrad)
def repeat_operands(batching: Batching, node: Node, operands: Sequence[Batched]) -> Results:
    """Apply the op to operands that all have the batch axis, as one more leading axis."""
    return node.op.node([batching.with_batch_axis(x) for x in operands], node.attrs)


@batches(AddAlongAxis, AlongAxis, ArgExtremum, Concat, CumSum, Split, TakeAlongAxis)
def shift_axis(batching: Batching, node: Node, operands: Sequence[Batched]) -> Results:
    """Apply the op along the axis that follows by one."""
    attrs = {**node.attrs, "axis": node.attrs["axis"] + 1}
    return node.op.node([batching.with_batch_axis(x) for x in operands], attrs)


@batches(Moments, Reduction, RmsStandardize, Standardize)
def shift_axes(batching: Batching, node: Node, operands: Sequence[Batched]) -> Results:
    """Apply the op over the axes that follow by one."""
    attrs = {**node.attrs, "axes": shift(node.attrs["axes"])}
    return node.op.node([x.node for x in operands], attrs)


@batches(Reshape)
def batch_reshape(batching: Batching, node: Node, operands: Sequence[Batched]) -> Results:
    """Reshape the axes after the batch axis."""
    return reshape(operands[0].node, (batching.size, *node.shape))


@batches(BroadcastTo)
def batch_broadcast_to(batching: Batching, node: Node, operands: Sequence[Batched]) -> Results:
    """Repeat along the axes after the batch axis."""
    return broadcast_to(lead(operands[0], node.ndim), (batching.size, *node.shape))


@batches(Transpose)
def batch_transpose(batching: Batching, node: Node, operands: Sequence[Batched]) -> Results:
    """Keep the batch axis in front."""
    return transpose(operands[0].node, (0, *shift(node.attrs["axes"])))


@batches(Slice, PadSlice)
def batch_slice(batching: Batching, node: Node, operands: Sequence[Batched]) -> Results:
    """Take the batch axis whole."""
    first = {"starts": 0, "steps": 1, "sizes": batching.size, "shape": batching.size}
    attrs = {key: (first[key], *values) for key, values in node.attrs.items()}
    return node.op.node([operands[0].node], attrs)
