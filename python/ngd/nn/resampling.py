# SPDX-License-Identifier: Apache-2.0
"""Modules that resize images, move channels to space and back, and extract and sum windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from .. import ops
from .module import OpModule

PerAxis: TypeAlias = int | Sequence[int]


class Upsample(OpModule):
    """A module that resizes the spatial axes of images; see ops.interpolate.

    Input: [batch, channels, spatial...]. Output: [batch, channels, size...], in the dtype of the
    input.

    Parameters
    ----------
    size : int or sequence of int, optional
        The sizes of the spatial axes of the result, for all axes or per axis.
    scale_factor : float or sequence of float, optional
        The factors of the sizes, instead of `size`. An axis of n elements gets floor(n * factor)
        elements.
    mode : str, default "nearest"
        "nearest", "nearest-exact", "area", "linear" (one spatial axis), "bilinear" (two),
        "trilinear" (three) or "bicubic" (two).
    align_corners : bool, optional
        If True, the centers of the corner elements of input and output coincide. If False, the
        outer corners of these elements coincide. None, the default, means False.

    Raises
    ------
    ValueError
        Both or none of `size` and `scale_factor` are given, or the mode is unknown. The call of the
        module raises this error. The constructor does not check its arguments.

    Examples
    --------
    >>> maps = ngd.placeholder("maps", (2, 3, 8, 8))
    >>> nn.Upsample(scale_factor=2)(maps).shape
    (2, 3, 16, 16)
    """

    function = ops.interpolate

    def __init__(
        self,
        size: PerAxis | None = None,
        scale_factor: float | Sequence[float] | None = None,
        mode: str = "nearest",
        align_corners: bool | None = None,
    ) -> None:
        self.options = {
            "size": size,
            "scale_factor": scale_factor,
            "mode": mode,
            "align_corners": align_corners,
        }


class PixelShuffle(OpModule):
    """A module that moves channels into tiles of r x r pixels; see ops.pixel_shuffle.

    Input: [..., channels * r * r, height, width]. Output: [..., channels, height * r, width * r].

    Parameters
    ----------
    upscale_factor : int
        The factor r of height and width.

    Notes
    -----
    Shi et al., 2016 (arXiv:1609.05158), equation 4.

    Examples
    --------
    >>> maps = ngd.placeholder("maps", (2, 12, 8, 8))
    >>> nn.PixelShuffle(2)(maps).shape
    (2, 3, 16, 16)
    """

    function = ops.pixel_shuffle

    def __init__(self, upscale_factor: int) -> None:
        self.options = {"upscale_factor": upscale_factor}


class PixelUnshuffle(OpModule):
    """A module that moves tiles of r x r pixels into channels; see ops.pixel_unshuffle.

    Input: [..., channels, height * r, width * r]. Output: [..., channels * r * r, height, width].

    Parameters
    ----------
    downscale_factor : int
        The divisor r of height and width.

    Examples
    --------
    >>> maps = ngd.placeholder("maps", (2, 3, 16, 16))
    >>> nn.PixelUnshuffle(2)(maps).shape
    (2, 12, 8, 8)
    """

    function = ops.pixel_unshuffle

    def __init__(self, downscale_factor: int) -> None:
        self.options = {"downscale_factor": downscale_factor}


def window_options(
    kernel_size: PerAxis, dilation: PerAxis, padding: PerAxis, stride: PerAxis
) -> dict[str, Any]:
    """Return a dict of the arguments, as keywords for both ops.unfold and ops.fold."""
    return {
        "kernel_size": kernel_size,
        "dilation": dilation,
        "padding": padding,
        "stride": stride,
    }


class Unfold(OpModule):
    """A module that returns the sliding windows of images as columns (im2col); see ops.unfold.

    Input: [batch, channels, height, width]. Output: [batch, channels * elements, windows], where
    `elements` is the number of elements of a window and `windows` the number of windows.

    Parameters
    ----------
    kernel_size : int or sequence of ints
        The size of a window, for both axes or per axis.
    dilation : int or sequence of ints, default 1
        The distance between elements of a window.
    padding : int or sequence of ints, default 0
        The number of zeros that are added at both ends of each axis.
    stride : int or sequence of ints, default 1
        The distance between windows.

    Examples
    --------
    >>> maps = ngd.placeholder("maps", (2, 3, 8, 8))
    >>> nn.Unfold(kernel_size=2, stride=2)(maps).shape
    (2, 12, 16)
    """

    function = ops.unfold

    def __init__(
        self,
        kernel_size: PerAxis,
        dilation: PerAxis = 1,
        padding: PerAxis = 0,
        stride: PerAxis = 1,
    ) -> None:
        self.options = window_options(kernel_size, dilation, padding, stride)


class Fold(OpModule):
    """A module that sums windows into images (col2im), the adjoint of Unfold; see ops.fold.

    Input: [batch, channels * elements, windows], as the output of Unfold. `elements` is the number
    of elements of a window, and `windows` the number of windows. Output: [batch, channels,
    *output_size].

    Parameters
    ----------
    output_size : int or sequence of ints
        The height and width of the output.
    kernel_size, dilation, padding, stride
        See `Unfold`.

    Examples
    --------
    >>> windows = ngd.placeholder("windows", (2, 12, 16))
    >>> nn.Fold(8, kernel_size=2, stride=2)(windows).shape
    (2, 3, 8, 8)
    """

    function = ops.fold

    def __init__(
        self,
        output_size: PerAxis,
        kernel_size: PerAxis,
        dilation: PerAxis = 1,
        padding: PerAxis = 0,
        stride: PerAxis = 1,
    ) -> None:
        windows = window_options(kernel_size, dilation, padding, stride)
        self.options = {"output_size": output_size, **windows}
