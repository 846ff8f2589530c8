# SPDX-License-Identifier: Apache-2.0
"""Convolutions of data in the layout channels last: data and results are [N, spatial..., C].

The kernels of vendor libraries are fast in this layout. The ops of _convolution.py have data
[N, C, spatial...]. The compiler replaces them with the ops of this module if the device has kernels
for the ops of this module (passes/layouts.py). The layout of weights is unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Final

import numpy as np

from ..dtypes import FLOATS, Array, Type
from ..graph.cost import Cost
from ..graph.node import Node, Op
from ..graph.registry import register
from ..graph.samples import Operand, Sample
from ..graph.traits import Layout, Numerics
from ._convolution import conv, conv_data_grad, conv_weight_grad, with_channel_bias
from ._operands import expect_dtype
from ._shape import transpose, transpose_cheaply
from ._windows import channels_first_order, channels_last_order, permute_shape

NAME: Final = "channels last"
"""The name that profiles show for [N, spatial..., C], the layout of the ops of this module."""


def channels_first(x: Node) -> Node:
    """Transpose [N, spatial..., C] to [N, C, spatial...], for the ops of _convolution.py."""
    return transpose(x, channels_first_order(x.ndim))


class ChannelsLast(Op):
    """The base of the ops of this module: a convolution or one of its gradients.

    Data is [N, spatial..., C]. `row_major_op` is the op of _convolution.py that computes the same
    on data [N, C, spatial...]. The nodes of both ops have the same attributes, such as `strides`.
    """

    dtypes = FLOATS
    public = False
    numerics = Numerics(is_contraction=True)
    data: ClassVar[tuple[int, ...]]
    """The positions of the operands that are data [N, spatial..., C], and not weights."""
    is_data_result: ClassVar[bool] = True
    """True if the result is data, False if it is the gradient of weights."""

    @property
    def row_major_op(self) -> Op:
        """The op of _convolution.py that computes the same on data [N, C, spatial...].

        ngd calls the standard layout [N, C, spatial...] row-major.
        """
        op: Op = self.layout.row_major_op
        return op

    def infer(self, *inputs: Type, **attrs: Any) -> Type:
        expect_dtype(self.name, inputs[:2], self.dtypes)
        types = self.map_data(
            inputs,
            lambda x: Type(x.dtype, permute_shape(x.shape, channels_first_order(len(x.shape)))),
        )
        result: Any = self.row_major_op.infer(*types, **attrs)
        if not self.is_data_result:
            return Type(result.dtype, result.shape)
        return Type(
            result.dtype, permute_shape(result.shape, channels_last_order(len(result.shape)))
        )

    def expand(self, *inputs: Node, **attrs: Any) -> Node:
        result = self.row_major_op.node(self.map_data(inputs, channels_first), attrs)
        return (
            transpose(result, channels_last_order(result.ndim)) if self.is_data_result else result
        )

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        row_major = self.row_major_op.node(self.map_data(node.inputs, channels_first), node.attrs)
        dy = transpose(dy, channels_first_order(dy.ndim)) if self.is_data_result else dy
        adjoints = self.row_major_op.grad(row_major, dy)
        return self.map_data(
            adjoints, lambda g: None if g is None else transpose(g, channels_last_order(g.ndim))
        )

    def replace_row_major(self, node: Node) -> Node | None:
        if node.inputs[0].ndim < 4:
            return None
        operands = self.map_data(
            node.inputs, lambda x: transpose_cheaply(x, channels_last_order(x.ndim))
        )
        result = self.node(operands, node.attrs)
        return (
            transpose_cheaply(result, channels_first_order(result.ndim))
            if self.is_data_result
            else result
        )

    def reference(self, *inputs: Array, **attrs: Any) -> Array:
        arrays = self.map_data(inputs, lambda x: np.transpose(x, channels_first_order(x.ndim)))
        result: Any = self.row_major_op.reference(*arrays, **attrs)
        return (
            np.transpose(result, channels_last_order(result.ndim))
            if self.is_data_result
            else result
        )

    def lower(self, **attrs: Any) -> tuple[str, dict[str, Any]]:
        name, lowered = self.row_major_op.lower(**attrs)
        return name, {**lowered, "channels_last": 1}

    def cost(self, operands: Sequence[Type], results: Sequence[Type], **attrs: Any) -> Cost:
        # The cost depends on numbers of elements and on the weights, which have the same layout.
        return self.row_major_op.cost(operands, results, **attrs)

    def samples(self) -> Iterable[Sample]:
        for sample in self.row_major_op.samples():
            operands = self.map_data(
                sample.operands,
                lambda x: Operand(permute_shape(x.shape, channels_last_order(len(x.shape))), -1, 1),
            )
            yield Sample(tuple(operands), sample.attrs)

    def map_data(self, values: Sequence[Any], change: Callable[[Any], Any]) -> list[Any]:
        """Return a list with change(value) for each data operand, and value for other operands.

        `values` has one value per operand of the op. The other operands are weights.
        """
        return [change(x) if position in self.data else x for position, x in enumerate(values)]


class ConvChannelsLast(ChannelsLast):
    """The op conv on data [N, spatial..., C]."""

    name = "conv_channels_last"
    layout = Layout(NAME, row_major_op=conv)
    fusion = conv.fusion
    data = (0,)

    def with_bias(self, node: Node, bias: Node) -> Node | None:
        return with_channel_bias(node, bias, -1)


class ConvDataGradChannelsLast(ChannelsLast):
    """The op conv_data_grad on data [N, spatial..., C]."""

    name = "conv_data_grad_channels_last"
    layout = Layout(NAME, row_major_op=conv_data_grad)
    data = (0,)


class ConvWeightGradChannelsLast(ChannelsLast):
    """The op conv_weight_grad on data [N, spatial..., C]."""

    name = "conv_weight_grad_channels_last"
    layout = Layout(NAME, row_major_op=conv_weight_grad)
    data, is_data_result = (0, 1), False


for op in (ConvChannelsLast(), ConvDataGradChannelsLast(), ConvWeightGradChannelsLast()):
    register(op)
