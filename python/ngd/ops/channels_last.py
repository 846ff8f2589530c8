# SPDX-License-Identifier: Apache-2.0
"""Convolutions of data whose channels come last: the order in which vendors' kernels are fast.

The compiler makes them of the ops of conv.py where the device has a kernel for them
(passes/layouts.py). Data and results are [N, spatial..., C]; weights are as ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from ..dtype import FLOATS
from ..ir import Array, Node, Op, Operand, Sample, Shape, Type, register
from .conv import conv, conv_data_grad, conv_weight_grad
from .operands import expect_dtype
from .shape import moved, transpose


def first(ndim: int) -> Shape:
    """The order of axes that puts the channels, which come last, in front of the spatial axes."""
    return (0, ndim - 1, *range(1, ndim - 1))


def last(ndim: int) -> Shape:
    """The order of axes that puts the channels last."""
    return (0, *range(2, ndim), 1)


def ordered(shape: Shape, axes: Shape) -> Shape:
    """A shape with its axes in this order."""
    return tuple(shape[axis] for axis in axes)


class ChannelsLast(Op):
    """A convolution or one of its gradients; attrs: its own."""

    dtypes = FLOATS
    heavy = True
    public = False
    plain: ClassVar[Op]
    data: ClassVar[tuple[int, ...]]
    """Which operands are data: not weights."""
    gives_data: ClassVar[bool] = True

    def infer(self, *inputs: Type, **attrs: Any) -> Type:
        expect_dtype(self.name, inputs, self.dtypes)
        given = list(inputs)
        for place in self.data:
            x = given[place]
            given[place] = Type(x.dtype, ordered(x.shape, first(len(x.shape))))
        made: Any = self.plain.infer(*given, **attrs)
        if not self.gives_data:
            return Type(made.dtype, made.shape)
        return Type(made.dtype, ordered(made.shape, last(len(made.shape))))

    def expand(self, *inputs: Node, **attrs: Any) -> Node:
        made = self.plain.node(self._first(inputs), attrs)
        return transpose(made, last(made.ndim)) if self.gives_data else made

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        made = self.plain.node(self._first(node.inputs), node.attrs)
        dy = transpose(dy, first(dy.ndim)) if self.gives_data else dy
        found = list(self.plain.grad(made, dy))
        for place in self.data:
            g = found[place]
            found[place] = None if g is None else transpose(g, last(g.ndim))
        return found

    def in_place_of(self, node: Node) -> Node | None:
        if node.inputs[0].ndim < 4:
            return None
        operands = [
            moved(x, last(x.ndim)) if i in self.data else x for i, x in enumerate(node.inputs)
        ]
        made = self.node(operands, node.attrs)
        return moved(made, first(made.ndim)) if self.gives_data else made

    def reference(self, *inputs: Array, **attrs: Any) -> Array:
        given = list(inputs)
        for place in self.data:
            given[place] = np.transpose(given[place], first(given[place].ndim))
        made: Any = self.plain.reference(*given, **attrs)
        return np.transpose(made, last(made.ndim)) if self.gives_data else made

    def lower(self, **attrs: Any) -> tuple[str, dict[str, Any]]:
        name, lowered = self.plain.lower(**attrs)
        return name, {**lowered, "channels_last": 1}

    def samples(self) -> Iterable[Sample]:
        for sample in self.plain.samples():
            operands = list(sample.operands)
            for place in self.data:
                shape = operands[place].shape
                operands[place] = Operand(ordered(shape, last(len(shape))), -1, 1)
            yield Sample(tuple(operands), sample.attrs)

    def _first(self, inputs: Sequence[Node]) -> list[Node]:
        """The operands of the plain op."""
        pairs = enumerate(inputs)
        return [transpose(x, first(x.ndim)) if i in self.data else x for i, x in pairs]


class ConvChannelsLast(ChannelsLast):
    """conv of [N, spatial..., C]."""

    name = "conv_channels_last"
    plain, data = conv, (0,)


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
