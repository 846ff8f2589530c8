# SPDX-License-Identifier: Apache-2.0
"""Convolutions over one, two and three axes, and transposed convolutions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, TypeAlias

from .. import ops
from ..graph.node import Node
from .initializers import Initializer, torch_default
from .inputs import expect_axes, expect_channels
from .module import Module
from .parameter import Parameter

PerAxis: TypeAlias = int | Sequence[int]


class Convolution(Module):
    """The base class of convolutions.

    The weight is [out_channels, in_channels / groups, kernel...].
    """

    axes: ClassVar[int]
    """The number of spatial axes of the input: 1, 2 or 3."""
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
            raise ValueError(
                f"nn.{name}: expected kernel_size of {self.axes} axes; got {kernel}. Give one "
                "number, or one per axis."
            )
        if groups < 1 or in_channels % groups or out_channels % groups:
            raise ValueError(
                f"nn.{name}: expected groups that divide {in_channels} and {out_channels} "
                f"channels; got {groups}. Choose a divisor of both."
            )
        self.in_channels, self.out_channels, self.kernel_size = in_channels, out_channels, kernel
        self.stride, self.padding, self.dilation = stride, padding, dilation
        self.groups = groups
        rows, columns = out_channels, in_channels // groups
        if self.transposed:
            rows, columns = in_channels, out_channels // groups
        default = torch_default(columns * math.prod(kernel))
        self.weight = Parameter((rows, columns, *kernel), weight_initializer or default)
        self.bias = Parameter(out_channels, bias_initializer or default) if bias else None

    def check(self, x: Node) -> None:
        """Raise a ShapeError if x is not [batch, in_channels, spatial...]."""
        expect_axes(self, x, self.axes, self.in_channels)
        expect_channels(self, x, self.in_channels, "in_channels")

    def forward(self, x: Node) -> Node:
        """Return the convolution of x with the weight, plus the bias.

        Parameters
        ----------
        x : Node
            Floats [batch, in_channels, spatial...].

        Returns
        -------
        Node
            [batch, out_channels, spatial...].
        """
        self.check(x)
        return ops.conv(
            x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups
        )

    def describe(self) -> str:
        """Return the main arguments of the constructor, for `repr`."""
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, "
            f"stride={self.stride}"
        )


class Conv1d(Convolution):
    """A convolution over one axis.

    Parameters
    ----------
    in_channels : int
        The number of channels of the input.
    out_channels : int
        The number of channels of the output.
    kernel_size : int or sequence of ints
        The size of the kernel, for all axes or per axis.
    stride : int or sequence of ints, default 1
        The distance between windows.
    padding : int, sequence, or "same", default 0
        Zeros that are added at both ends of each axis. A pair (before, after) per axis pads the
        ends differently. "same" gives ceil(n / stride) windows along an axis of n elements, for any
        stride.
    dilation : int or sequence of ints, default 1
        The distance between elements of the kernel.
    groups : int, default 1
        The number of groups of channels. An output channel depends only on the input channels of
        its group.
    bias : bool, default True
        Add a bias per output channel.
    weight_initializer, bias_initializer : function, optional
        See `nn.initializers`. The default is PyTorch's initializer for both (`torch_default`).

    Notes
    -----
    Input: [batch, in_channels, length], floats. Output: [batch, out_channels, length_out], with
    length_out = floor((length + 2 * padding - dilation * (kernel_size - 1) - 1) / stride) + 1.

    Variables: `weight` [out_channels, in_channels / groups, kernel...] and `bias` [out_channels].

    Examples
    --------
    >>> layer = nn.Conv1d(3, 16, kernel_size=3, padding=1)
    >>> signals = ngd.placeholder("signals", (8, 3, 100))
    >>> layer(signals).shape
    (8, 16, 100)
    """

    axes = 1


class Conv2d(Convolution):
    """A convolution over two axes.

    Parameters
    ----------
    in_channels : int
        The number of channels of the input.
    out_channels : int
        The number of channels of the output.
    kernel_size : int or sequence of ints
        The size of the kernel, for all axes or per axis.
    stride : int or sequence of ints, default 1
        The distance between windows.
    padding : int, sequence, or "same", default 0
        Zeros that are added at both ends of each axis. A pair (before, after) per axis pads the
        ends differently. "same" gives ceil(n / stride) windows along an axis of n elements, for any
        stride.
    dilation : int or sequence of ints, default 1
        The distance between elements of the kernel.
    groups : int, default 1
        The number of groups of channels. An output channel depends only on the input channels of
        its group.
    bias : bool, default True
        Add a bias per output channel.
    weight_initializer, bias_initializer : function, optional
        See `nn.initializers`. The default is PyTorch's initializer for both (`torch_default`).

    Notes
    -----
    Input: [batch, in_channels, height, width], floats. Output: [batch, out_channels, height_out,
    width_out]. If height or width is n, the corresponding size of the output is
    floor((n + 2 * padding - dilation * (kernel_size - 1) - 1) / stride) + 1.

    Variables: `weight` [out_channels, in_channels / groups, kernel...] and `bias` [out_channels].

    Examples
    --------
    >>> layer = nn.Conv2d(3, 16, kernel_size=3, padding=1)
    >>> images = ngd.placeholder("images", (8, 3, 32, 32))
    >>> layer(images).shape
    (8, 16, 32, 32)
    """

    axes = 2


class Conv3d(Convolution):
    """A convolution over three axes.

    Parameters
    ----------
    in_channels : int
        The number of channels of the input.
    out_channels : int
        The number of channels of the output.
    kernel_size : int or sequence of ints
        The size of the kernel, for all axes or per axis.
    stride : int or sequence of ints, default 1
        The distance between windows.
    padding : int, sequence, or "same", default 0
        Zeros that are added at both ends of each axis. A pair (before, after) per axis pads the
        ends differently. "same" gives ceil(n / stride) windows along an axis of n elements, for any
        stride.
    dilation : int or sequence of ints, default 1
        The distance between elements of the kernel.
    groups : int, default 1
        The number of groups of channels. An output channel depends only on the input channels of
        its group.
    bias : bool, default True
        Add a bias per output channel.
    weight_initializer, bias_initializer : function, optional
        See `nn.initializers`. The default is PyTorch's initializer for both (`torch_default`).

    Notes
    -----
    Input: [batch, in_channels, depth, height, width], floats. Output: [batch, out_channels,
    depth_out, height_out, width_out]. If depth, height or width is n, the corresponding size of the
    output is floor((n + 2 * padding - dilation * (kernel_size - 1) - 1) / stride) + 1.

    Variables: `weight` [out_channels, in_channels / groups, kernel...] and `bias` [out_channels].

    Examples
    --------
    >>> layer = nn.Conv3d(3, 16, kernel_size=3, padding=1)
    >>> volumes = ngd.placeholder("volumes", (8, 3, 16, 16, 16))
    >>> layer(volumes).shape
    (8, 16, 16, 16, 16)
    """

    axes = 3


class TransposedConvolution(Convolution):
    """The base class of transposed convolutions.

    The weight is [in_channels, out_channels / groups, kernel...].
    """

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
        """Return the transposed convolution of x with the weight, plus the bias.

        Parameters
        ----------
        x : Node
            Floats [batch, in_channels, spatial...].

        Returns
        -------
        Node
            [batch, out_channels, spatial...].
        """
        self.check(x)
        return ops.conv_transpose(
            x,
            self.weight,
            self.bias,
            self.stride,
            self.padding,
            self.output_padding,
            self.groups,
            self.dilation,
        )


class ConvTranspose1d(TransposedConvolution):
    """A transposed convolution over one axis.

    Parameters
    ----------
    in_channels : int
        The number of channels of the input.
    out_channels : int
        The number of channels of the output.
    kernel_size : int or sequence of ints
        The size of the kernel, for all axes or per axis.
    stride : int or sequence of ints, default 1
        The stride of the convolution that this layer transposes. The output is about `stride` times
        as large as the input along each axis.
    padding : int or sequence of ints, default 0
        The padding of the convolution that this layer transposes. The layer removes this number of
        elements at both ends of each axis of the output.
    output_padding : int or sequence of ints, default 0
        The number of additional elements at the end of the output, less than the stride.
    groups : int, default 1
        The number of groups of channels.
    bias : bool, default True
        Add a bias per output channel.
    dilation : int or sequence of ints, default 1
        The distance between elements of the kernel.
    **initializers : function, optional
        `weight_initializer` and `bias_initializer`, as for `Conv1d`.

    Notes
    -----
    Input: [batch, in_channels, length], floats. Output: [batch, out_channels, length_out], with
    length_out = (length - 1) * stride - 2 * padding + dilation * (kernel_size - 1)
    + output_padding + 1.

    Variables: `weight` [in_channels, out_channels / groups, kernel...] and `bias` [out_channels].

    Examples
    --------
    >>> layer = nn.ConvTranspose1d(3, 16, kernel_size=2, stride=2)
    >>> signals = ngd.placeholder("signals", (8, 3, 100))
    >>> layer(signals).shape
    (8, 16, 200)
    """

    axes = 1


class ConvTranspose2d(TransposedConvolution):
    """A transposed convolution over two axes.

    Parameters
    ----------
    in_channels : int
        The number of channels of the input.
    out_channels : int
        The number of channels of the output.
    kernel_size : int or sequence of ints
        The size of the kernel, for all axes or per axis.
    stride : int or sequence of ints, default 1
        The stride of the convolution that this layer transposes. The output is about `stride` times
        as large as the input along each axis.
    padding : int or sequence of ints, default 0
        The padding of the convolution that this layer transposes. The layer removes this number of
        elements at both ends of each axis of the output.
    output_padding : int or sequence of ints, default 0
        The number of additional elements at the end of the output, less than the stride.
    groups : int, default 1
        The number of groups of channels.
    bias : bool, default True
        Add a bias per output channel.
    dilation : int or sequence of ints, default 1
        The distance between elements of the kernel.
    **initializers : function, optional
        `weight_initializer` and `bias_initializer`, as for `Conv2d`.

    Notes
    -----
    Input: [batch, in_channels, height, width], floats. Output: [batch, out_channels, height_out,
    width_out]. If height or width is n, the corresponding size of the output is
    (n - 1) * stride - 2 * padding + dilation * (kernel_size - 1) + output_padding + 1.

    Variables: `weight` [in_channels, out_channels / groups, kernel...] and `bias` [out_channels].

    Examples
    --------
    >>> layer = nn.ConvTranspose2d(3, 16, kernel_size=2, stride=2)
    >>> images = ngd.placeholder("images", (8, 3, 32, 32))
    >>> layer(images).shape
    (8, 16, 64, 64)
    """

    axes = 2


class ConvTranspose3d(TransposedConvolution):
    """A transposed convolution over three axes.

    Parameters
    ----------
    in_channels : int
        The number of channels of the input.
    out_channels : int
        The number of channels of the output.
    kernel_size : int or sequence of ints
        The size of the kernel, for all axes or per axis.
    stride : int or sequence of ints, default 1
        The stride of the convolution that this layer transposes. The output is about `stride` times
        as large as the input along each axis.
    padding : int or sequence of ints, default 0
        The padding of the convolution that this layer transposes. The layer removes this number of
        elements at both ends of each axis of the output.
    output_padding : int or sequence of ints, default 0
        The number of additional elements at the end of the output, less than the stride.
    groups : int, default 1
        The number of groups of channels.
    bias : bool, default True
        Add a bias per output channel.
    dilation : int or sequence of ints, default 1
        The distance between elements of the kernel.
    **initializers : function, optional
        `weight_initializer` and `bias_initializer`, as for `Conv3d`.

    Notes
    -----
    Input: [batch, in_channels, depth, height, width], floats. Output: [batch, out_channels,
    depth_out, height_out, width_out]. If depth, height or width is n, the corresponding size of the
    output is (n - 1) * stride - 2 * padding + dilation * (kernel_size - 1) + output_padding + 1.

    Variables: `weight` [in_channels, out_channels / groups, kernel...] and `bias` [out_channels].

    Examples
    --------
    >>> layer = nn.ConvTranspose3d(3, 16, kernel_size=2, stride=2)
    >>> volumes = ngd.placeholder("volumes", (8, 3, 16, 16, 16))
    >>> layer(volumes).shape
    (8, 16, 32, 32, 32)
    """

    axes = 3
