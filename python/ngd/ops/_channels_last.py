# SPDX-License-Identifier: Apache-2.0
"""Convolutions of data whose channels come last: the order in which vendors' kernels are fast.

The compiler makes them of the ops of convolution.py where the device has a kernel for them
(passes/layouts.py). Data and results are [N, spatial..., C]; weights are as ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from ..dtypes import FLOATS, Array, Type
from ..graph.cost import Cost
from ..graph.node import Node, Op
from ..graph.registry import register
from ..graph.samples import Operand, Sample
from ._convolution import biased, conv, conv_data_grad, conv_weight_grad
from ._operands import expect_dtype
from ._shape import moved, transpose
from ._windows import first, last, ordered


def to_first(x: Node) -> Node:
    """Data as the plain op takes it."""
    return transpose(x, first(x.ndim))


class ChannelsLast(Op):
    """A convolution or one of its gradients; attrs: its own."""

    dtypes = FLOATS
    public = False
    accumulates = True
    layout = "channels last"
    plain: ClassVar[Op]
    data: ClassVar[tuple[int, ...]]
    """Which operands are data: not weights."""
    gives_data: ClassVar[bool] = True

    def infer(self, *inputs: Type, **attrs: Any) -> Type:
        expect_dtype(self.name, inputs[:2], self.dtypes)
        given = self.with_data(
            inputs, lambda x: Type(x.dtype, ordered(x.shape, first(len(x.shape))))
        )
        made: Any = self.plain.infer(*given, **attrs)
        if not self.gives_data:
            return Type(made.dtype, made.shape)
        return Type(made.dtype, ordered(made.shape, last(len(made.shape))))

    def expand(self, *inputs: Node, **attrs: Any) -> Node:
        made = self.plain.node(self.with_data(inputs, to_first), attrs)
        return transpose(made, last(made.ndim)) if self.gives_data else made

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        made = self.plain.node(self.with_data(node.inputs, to_first), node.attrs)
        dy = transpose(dy, first(dy.ndim)) if self.gives_data else dy
        return self.with_data(
            self.plain.grad(made, dy), lambda g: None if g is None else transpose(g, last(g.ndim))
        )

    def in_place_of(self, node: Node) -> Node | None:
        if node.inputs[0].ndim < 4:
            return None
        operands = self.with_data(node.inputs, lambda x: moved(x, last(x.ndim)))
        made = self.node(operands, node.attrs)
        return moved(made, first(made.ndim)) if self.gives_data else made

    def reference(self, *inputs: Array, **attrs: Any) -> Array:
        given = self.with_data(inputs, lambda x: np.transpose(x, first(x.ndim)))
        made: Any = self.plain.reference(*given, **attrs)
        return np.transpose(made, last(made.ndim)) if self.gives_data else made

    def lower(self, **attrs: Any) -> tuple[str, dict[str, Any]]:
        name, lowered = self.plain.lower(**attrs)
        return name, {**lowered, "channels_last": 1}

    def cost(self, operands: Sequence[Type], results: Sequence[Type], **attrs: Any) -> Cost:
        return self.plain.cost(operands, results, **attrs)  # of counts, and of weights

    def samples(self) -> Iterable[Sample]:
        for sample in self.plain.samples():
            operands = self.with_data(
                sample.operands, lambda x: Operand(ordered(x.shape, last(len(x.shape))), -1, 1)
            )
            yield Sample(tuple(operands), sample.attrs)

    def with_data(self, values: Sequence[Any], change: Callable[[Any], Any]) -> list[Any]:
        """One value an operand, those of data changed."""
        return [change(x) if place in self.data else x for place, x in enumerate(values)]


class ConvChannelsLast(ChannelsLast):
    """conv of [N, spatial..., C]."""

    name = "conv_channels_last"
    plain, data = conv, (0,)
    posts = conv.posts

    def with_bias(self, node: Node, bias: Node) -> Node | None:
        return biased(node, bias, -1)


class ConvDataGradChannelsLast(ChannelsLast):
    """conv_data_grad of [N, spatial..., C]."""

    name = "conv_data_grad_channels_last"
    plain, data = conv_data_grad, (0,)


class ConvWeightGradChannelsLast(ChannelsLast):
    """conv_weight_grad of [N, spatial..., C]."""

    name = "conv_weight_grad_channels_last"
    plain, data, gives_data = conv_weight_grad, (0, 1), False


for op in (ConvChannelsLast(), ConvDataGradChannelsLast(), ConvWeightGradChannelsLast()):
    register(op)
