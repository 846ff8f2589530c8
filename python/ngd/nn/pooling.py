# SPDX-License-Identifier: Apache-2.0
"""Pooling over one, two and three axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, TypeAlias

from .. import ops
from ..graph.node import Node
from .inputs import expect_axes
from .module import OpModule

PerAxis: TypeAlias = int | Sequence[int]


class Pool(OpModule):
    """The base class of the modules for maximum and average pooling."""

    axes: ClassVar[int]
    """The number of spatial axes of the input: 1, 2 or 3."""

    def forward(self, x: Node) -> Node:
        """Return the maximum or the mean of each window of x.

        Parameters
        ----------
        x : Node
            [batch, channels, spatial...].

        Returns
        -------
        Node
            [batch, channels, spatial...], the dtype of x.
        """
        expect_axes(self, x, self.axes)
        return super().forward(x)


class MaxPool(Pool):
    """The base class of maximum pooling (ops.max_pool)."""

    function = ops.max_pool

    def __init__(
        self,
        kernel_size: PerAxis,
        stride: PerAxis | None = None,
        padding: Any = 0,
        dilation: PerAxis = 1,
        ceil_mode: bool = False,
    ) -> None:
        self.options = {
            "kernel": kernel_size,
            "stride": stride,
            "padding": padding,
            "dilation": dilation,
            "ceil_mode": ceil_mode,
        }


class AvgPool(Pool):
    """The base class of average pooling (ops.avg_pool)."""

    function = ops.avg_pool

    def __init__(
        self,
        kernel_size: PerAxis,
        stride: PerAxis | None = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:
        self.options = {
            "kernel": kernel_size,
            "stride": stride,
            "padding": padding,
            "ceil_mode": ceil_mode,
            "count_include_pad": count_include_pad,
        }


class AdaptiveAvgPool(Pool):
    """The base class of adaptive average pooling (ops.adaptive_avg_pool)."""

    function = ops.adaptive_avg_pool

    def __init__(self, output_size: int | Sequence[int | None]) -> None:
        self.options = {"output_size": output_size}


class AdaptiveMaxPool(Pool):
    """The base class of adaptive maximum pooling (ops.adaptive_max_pool)."""

    function = ops.adaptive_max_pool

    def __init__(self, output_size: int | Sequence[int | None]) -> None:
        self.options = {"output_size": output_size}


class MaxPool1d(MaxPool):
    """The maximum of each window, over one axis.

    Parameters
    ----------
    kernel_size : int or sequence of ints
        The size of a window, for all axes or per axis.
    stride : int or sequence of ints, optional
        The distance between windows. The default is kernel_size.
    padding : int or sequence, default 0
        The number of elements added at both ends of each axis. An added element is never the
        maximum.
    dilation : int or sequence of ints, default 1
        The distance between elements of a window.
    ceil_mode : bool, default False
        Round the number of windows up instead of down.

    Notes
    -----
    Input: [batch, channels, length]. Output: [batch, channels, length_out], with
    length_out = floor((length + 2 * padding - dilation * (kernel_size - 1) - 1) / stride) + 1
    for ceil_mode=False.

    Examples
    --------
    >>> signals = ngd.placeholder("signals", (8, 3, 100))
    >>> nn.MaxPool1d(2)(signals).shape
    (8, 3, 50)
    """

    axes = 1


class MaxPool2d(MaxPool):
    """The maximum of each window, over two axes.

    Parameters
    ----------
    kernel_size : int or sequence of ints
        The size of a window, for all axes or per axis.
    stride : int or sequence of ints, optional
        The distance between windows. The default is kernel_size.
    padding : int or sequence, default 0
        The number of elements added at both ends of each axis. An added element is never the
        maximum.
    dilation : int or sequence of ints, default 1
        The distance between elements of a window.
    ceil_mode : bool, default False
        Round the number of windows up instead of down.

    Notes
    -----
    Input: [batch, channels, height, width]. Output: [batch, channels, height_out, width_out]. If
    height or width is n, the corresponding size of the output is
    floor((n + 2 * padding - dilation * (kernel_size - 1) - 1) / stride) + 1 for ceil_mode=False.

    Examples
    --------
    >>> images = ngd.placeholder("images", (8, 3, 32, 32))
    >>> nn.MaxPool2d(2)(images).shape
    (8, 3, 16, 16)
    """

    axes = 2


class MaxPool3d(MaxPool):
    """The maximum of each window, over three axes.

    Parameters
    ----------
    kernel_size : int or sequence of ints
        The size of a window, for all axes or per axis.
    stride : int or sequence of ints, optional
        The distance between windows. The default is kernel_size.
    padding : int or sequence, default 0
        The number of elements added at both ends of each axis. An added element is never the
        maximum.
    dilation : int or sequence of ints, default 1
        The distance between elements of a window.
    ceil_mode : bool, default False
        Round the number of windows up instead of down.

    Notes
    -----
    Input: [batch, channels, depth, height, width]. Output: [batch, channels, depth_out, height_out,
    width_out]. If depth, height or width is n, the corresponding size of the output is
    floor((n + 2 * padding - dilation * (kernel_size - 1) - 1) / stride) + 1 for ceil_mode=False.

    Examples
    --------
    >>> volumes = ngd.placeholder("volumes", (8, 3, 16, 16, 16))
    >>> nn.MaxPool3d(2)(volumes).shape
    (8, 3, 8, 8, 8)
    """

    axes = 3


class AvgPool1d(AvgPool):
    """The mean of each window, over one axis.

    Parameters
    ----------
    kernel_size : int or sequence of ints
        The size of a window, for all axes or per axis.
    stride : int or sequence of ints, optional
        The distance between windows. The default is kernel_size.
    padding : int or sequence, default 0
        The number of zeros that are added at both ends of each axis.
    ceil_mode : bool, default False
        Round the number of windows up instead of down.
    count_include_pad : bool, default True
        Count the zeros of the padding in the number of elements of a window.

    Notes
    -----
    Input: [batch, channels, length]. Output: [batch, channels, length_out], with
    length_out = floor((length + 2 * padding - kernel_size) / stride) + 1 for ceil_mode=False.

    Examples
    --------
    >>> signals = ngd.placeholder("signals", (8, 3, 100))
    >>> nn.AvgPool1d(2)(signals).shape
    (8, 3, 50)
    """

    axes = 1


class AvgPool2d(AvgPool):
    """The mean of each window, over two axes.

    Parameters
    ----------
    kernel_size : int or sequence of ints
        The size of a window, for all axes or per axis.
    stride : int or sequence of ints, optional
        The distance between windows. The default is kernel_size.
    padding : int or sequence, default 0
        The number of zeros that are added at both ends of each axis.
    ceil_mode : bool, default False
        Round the number of windows up instead of down.
    count_include_pad : bool, default True
        Count the zeros of the padding in the number of elements of a window.

    Notes
    -----
    Input: [batch, channels, height, width]. Output: [batch, channels, height_out, width_out]. If
    height or width is n, the corresponding size of the output is
    floor((n + 2 * padding - kernel_size) / stride) + 1 for ceil_mode=False.

    Examples
    --------
    >>> images = ngd.placeholder("images", (8, 3, 32, 32))
    >>> nn.AvgPool2d(2)(images).shape
    (8, 3, 16, 16)
    """

    axes = 2


class AvgPool3d(AvgPool):
    """The mean of each window, over three axes.

    Parameters
    ----------
    kernel_size : int or sequence of ints
        The size of a window, for all axes or per axis.
    stride : int or sequence of ints, optional
        The distance between windows. The default is kernel_size.
    padding : int or sequence, default 0
        The number of zeros that are added at both ends of each axis.
    ceil_mode : bool, default False
        Round the number of windows up instead of down.
    count_include_pad : bool, default True
        Count the zeros of the padding in the number of elements of a window.

    Notes
    -----
    Input: [batch, channels, depth, height, width]. Output: [batch, channels, depth_out, height_out,
    width_out]. If depth, height or width is n, the corresponding size of the output is
    floor((n + 2 * padding - kernel_size) / stride) + 1 for ceil_mode=False.

    Examples
    --------
    >>> volumes = ngd.placeholder("volumes", (8, 3, 16, 16, 16))
    >>> nn.AvgPool3d(2)(volumes).shape
    (8, 3, 8, 8, 8)
    """

    axes = 3


class AdaptiveAvgPool1d(AdaptiveAvgPool):
    """Average pooling over one axis, with a given size of the output.

    Each element of the output is the mean of one window of the input.

    Parameters
    ----------
    output_size : int or sequence of ints
        The size of the output, for all axes or per axis. None keeps the size of an axis.

    Notes
    -----
    Input: [batch, channels, length]. Output: [batch, channels, output_size...]. Along an axis of n
    elements with output size m, window i has the elements from floor(i * n / m) to
    ceil((i + 1) * n / m) - 1.

    Examples
    --------
    >>> signals = ngd.placeholder("signals", (8, 3, 100))
    >>> nn.AdaptiveAvgPool1d(1)(signals).shape
    (8, 3, 1)
    """

    axes = 1


class AdaptiveAvgPool2d(AdaptiveAvgPool):
    """Average pooling over two axes, with a given size of the output.

    Each element of the output is the mean of one window of the input.

    Parameters
    ----------
    output_size : int or sequence of ints
        The size of the output, for all axes or per axis. None keeps the size of an axis.

    Notes
    -----
    Input: [batch, channels, height, width]. Output: [batch, channels, output_size...]. Along an
    axis of n elements with output size m, window i has the elements from floor(i * n / m) to
    ceil((i + 1) * n / m) - 1.

    Examples
    --------
    >>> images = ngd.placeholder("images", (8, 3, 32, 32))
    >>> nn.AdaptiveAvgPool2d(1)(images).shape
    (8, 3, 1, 1)
    """

    axes = 2


class AdaptiveAvgPool3d(AdaptiveAvgPool):
    """Average pooling over three axes, with a given size of the output.

    Each element of the output is the mean of one window of the input.

    Parameters
    ----------
    output_size : int or sequence of ints
        The size of the output, for all axes or per axis. None keeps the size of an axis.

    Notes
    -----
    Input: [batch, channels, depth, height, width]. Output: [batch, channels, output_size...]. Along
    an axis of n elements with output size m, window i has the elements from floor(i * n / m) to
    ceil((i + 1) * n / m) - 1.

    Examples
    --------
    >>> volumes = ngd.placeholder("volumes", (8, 3, 16, 16, 16))
    >>> nn.AdaptiveAvgPool3d(1)(volumes).shape
    (8, 3, 1, 1, 1)
    """

    axes = 3


class AdaptiveMaxPool1d(AdaptiveMaxPool):
    """Maximum pooling over one axis, with a given size of the output.

    Each element of the output is the maximum of one window of the input.

    Parameters
    ----------
    output_size : int or sequence of ints
        The size of the output, for all axes or per axis. None keeps the size of an axis.

    Notes
    -----
    Input: [batch, channels, length]. Output: [batch, channels, output_size...]. Along an axis of n
    elements with output size m, window i has the elements from floor(i * n / m) to
    ceil((i + 1) * n / m) - 1.

    Examples
    --------
    >>> signals = ngd.placeholder("signals", (8, 3, 100))
    >>> nn.AdaptiveMaxPool1d(1)(signals).shape
    (8, 3, 1)
    """

    axes = 1


class AdaptiveMaxPool2d(AdaptiveMaxPool):
    """Maximum pooling over two axes, with a given size of the output.

    Each element of the output is the maximum of one window of the input.

    Parameters
    ----------
    output_size : int or sequence of ints
        The size of the output, for all axes or per axis. None keeps the size of an axis.

    Notes
    -----
    Input: [batch, channels, height, width]. Output: [batch, channels, output_size...]. Along an
    axis of n elements with output size m, window i has the elements from floor(i * n / m) to
    ceil((i + 1) * n / m) - 1.

    Examples
    --------
    >>> images = ngd.placeholder("images", (8, 3, 32, 32))
    >>> nn.AdaptiveMaxPool2d(1)(images).shape
    (8, 3, 1, 1)
    """

    axes = 2


class AdaptiveMaxPool3d(AdaptiveMaxPool):
    """Maximum pooling over three axes, with a given size of the output.

    Each element of the output is the maximum of one window of the input.

    Parameters
    ----------
    output_size : int or sequence of ints
        The size of the output, for all axes or per axis. None keeps the size of an axis.

    Notes
    -----
    Input: [batch, channels, depth, height, width]. Output: [batch, channels, output_size...]. Along
    an axis of n elements with output size m, window i has the elements from floor(i * n / m) to
    ceil((i + 1) * n / m) - 1.

    Examples
    --------
    >>> volumes = ngd.placeholder("volumes", (8, 3, 16, 16, 16))
    >>> nn.AdaptiveMaxPool3d(1)(volumes).shape
    (8, 3, 1, 1, 1)
    """

    axes = 3
