# SPDX-License-Identifier: Apache-2.0
"""Convolutions over one, two and three axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, TypeAlias

from .. import Node, ops
from .initializers import Initializer, torch_default
from .module import Module, Parameter

PerAxis: TypeAlias = int | Sequence[int]


class Convolution(Module):
    """What all of them share: weight [out_channels, in_channels / groups, kernel...], and bias."""

    axes: ClassVar[int]
    transposed: ClassVar[bool] = False

    weight: Any
    bias: Any

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: PerAxis,
        stride: PerAxis = 1,
        padding: Any = 0,
        dilation: PerAxis = 1,
        groups: int = 1,
        bias: bool = True,
        *,
        weight_initializer: Initializer | None = None,
        bias_initializer: Initializer | None = None,
    ) -> None:
        name = type(self).__name__
        kernel = (kernel_size,) * self.axes if isinstance(kernel_size, int) else tuple(kernel_size)
        if len(kernel) != self.axes:
            raise ValueError(f"nn.{name}: expected kernel_size of {self.axes} axes; got {kernel}")
        if groups < 1 or in_channels % groups or out_channels % groups:
            raise ValueError(
                f"nn.{name}: expected groups that divide {in_channels} and {out_channels} "
                f"channels; got {groups}"
            )
        self.in_channels, self.out_channels, self.kernel_size = in_channels, out_channels, kernel
        self.stride, self.padding, self.dilation = stride, padding, dilation
        self.groups = groups
        first, second = out_channels, in_channels // groups
        if self.transposed:
            first, second = in_channels, out_channels // groups
        default = torch_default(second * math.prod(kernel))
        self.weight = Parameter((first, second, *kernel), weight_initializer or default)
        self.bias = Parameter(out_channels, bias_initializer or default) if bias else None

    def check(self, x: Node) -> None:
        """Refuse what has another number of axes."""
        if x.ndim != self.axes + 2:
            raise ValueError(
                f"nn.{type(self).__name__}: expected [N, C, {self.axes} axes]; got {x!r}"
            )

    def forward(self, x: Node) -> Node:
        """[N, in_channels, ...] to [N, out_channels, ...]."""
        self.check(x)
        y: Node = ops.conv(
            x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups
        )
        return y

    def describe(self) -> str:
        """See Module."""
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, "
            f"stride={self.stride}"
        )


class Conv1d(Convolution):
    """ops.conv of [N, C, L]. The padding is a number, pairs (before, after), or "same"."""

    axes = 1


class Conv2d(Convolution):
    """ops.conv of [N, C, H, W]. The padding is a number, or two, pairs, or "same"."""

    axes = 2


class Conv3d(Convolution):
    """ops.conv of [N, C, D, H, W]. The padding is a number, or three, pairs, or "same"."""

    axes = 3


class TransposedConvolution(Convolution):
    """What the transposed ones share: weight [in_channels, out_channels / groups, kernel...]."""

    transposed = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: PerAxis,
        stride: PerAxis = 1,
        padding: Any = 0,
        output_padding: PerAxis = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: PerAxis = 1,
        **initializers: Initializer | None,
    ) -> None:
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            dilation,
            groups,
            bias,
            **initializers,
        )
        self.output_padding = output_padding

    def forward(self, x: Node) -> Node:
        """[N, in_channels, ...] to [N, out_channels, ...]."""
        self.check(x)
        y: Node = ops.conv_transpose(
            x,
            self.weight,
            self.bias,
            self.stride,
            self.padding,
            self.output_padding,
            self.groups,
            self.dilation,
        )
        return y


class ConvTranspose1d(TransposedConvolution):
    """ops.conv_transpose of [N, C, L]."""

    axes = 1


class ConvTranspose2d(TransposedConvolution):
    """ops.conv_transpose of [N, C, H, W]."""

    axes = 2


class ConvTranspose3d(TransposedConvolution):
    """ops.conv_transpose of [N, C, D, H, W]."""

    axes = 3
