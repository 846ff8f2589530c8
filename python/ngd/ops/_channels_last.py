# SPDX-License-Identifier: Apache-2.0
"""Convolutions of data whose channels come last: the order in which vendors' kernels are fast.

The compiler makes them of the ops of convolution.py where the device has a kernel for them
(passes/layouts.py). Data and results are [N, spatial..., C]; weights are as ever.
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
from ._convolution import biased, conv, conv_data_grad, conv_weight_grad
from ._operands import expect_dtype
from ._shape import moved, transpose
from ._windows import first, last, ordered

NAME: Final = "channels last"
"""The name of the layout."""


def to_first(x: Node) -> Node:
    """Data as the plain op takes it."""
    return transpose(x, first(x.ndim))


class ChannelsLast(Op):
    """A convolution or one of its gradients; attrs: its own."""

    dtypes = FLOATS
    public = False
    numerics = Numerics(is_contraction=True)
    data: ClassVar[tuple[int, ...]]
    """Which operands are data: not weights."""
    gives_data: ClassVar[bool] = True

    @property
    def row_major_op(self) -> Op:
        """The same op on data whose channels precede the spatial axes."""
        op: Op = self.layout.row_major_op
        return op

    def infer(self, *inputs: Type, **attrs: Any) -> Type:
        expect_dtype(self.name, inputs[:2], self.dtypes)
        given = self.with_data(
            inputs, lambda x: Type(x.dtype, ordered(x.shape, first(len(x.shape))))
        )
        made: Any = self.row_major_op.infer(*given, **attrs)
        if not self.gives_data:
            return Type(made.dtype, made.shape)
        return Type(made.dtype, ordered(made.shape, last(len(made.shape))))

    def expand(self, *inputs: Node, **attrs: Any) -> Node:
        made = self.row_major_op.node(self.with_data(inputs, to_first), attrs)
        return transpose(made, last(made.ndim)) if self.gives_data else made

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        made = self.row_major_op.node(self.with_data(node.inputs, to_first), node.attrs)
        dy = transpose(dy, first(dy.ndim)) if self.gives_data else dy
        adjoints = self.row_major_op.grad(made, dy)
        return self.with_data(adjoints, lambda g: None if g is None else transpose(g, last(g.ndim)))

    def replace_row_major(self, node: Node) -> Node | None:
        if node.inputs[0].ndim < 4:
            return None
        operands = self.with_data(node.inputs, lambda x: moved(x, last(x.ndim)))
        made = self.node(operands, node.attrs)
        return moved(made, first(made.ndim)) if self.gives_data else made

    def reference(self, *inputs: Array, **attrs: Any) -> Array:
        given = self.with_data(inputs, lambda x: np.transpose(x, first(x.ndim)))
        made: Any = self.row_major_op.reference(*given, **attrs)
        return np.transpose(made, last(made.ndim)) if self.gives_data else made

    def lower(self, **attrs: Any) -> tuple[str, dict[str, Any]]:
        name, lowered = self.row_major_op.lower(**attrs)
        return name, {**lowered, "channels_last": 1}

    def cost(self, operands: Sequence[Type], results: Sequence[Type], **attrs: Any) -> Cost:
        return self.row_major_op.cost(operands, results, **attrs)  # of counts, and of weights

    def samples(self) -> Iterable[Sample]:
        for sample in self.row_major_op.samples():
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
    layout = Layout(NAME, row_major_op=conv)
    fusion = conv.fusion
    data = (0,)

    def with_bias(self, node: Node, bias: Node) -> Node | None:
        return biased(node, bias, -1)


class ConvDataGradChannelsLast(ChannelsLast):
    """conv_data_grad of [N, spatial..., C]."""

    name = "conv_data_grad_channels_last"
    layout = Layout(NAME, row_major_op=conv_data_grad)
    data = (0,)


class ConvWeightGradChannelsLast(ChannelsLast):
    """conv_weight_grad of [N, spatial..., C]."""

    name = "conv_weight_grad_channels_last"
    layout = Layout(NAME, row_major_op=conv_weight_grad)
    data, gives_data = (0, 1), False


for op in (ConvChannelsLast(), ConvDataGradChannelsLast(), ConvWeightGradChannelsLast()):
    register(op)
