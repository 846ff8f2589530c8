# SPDX-License-Identifier: Apache-2.0
"""Modules that resize images, exchange channels and space, and take windows apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from .. import ops
from .module import OpModule

PerAxis: TypeAlias = int | Sequence[int]


class Upsample(OpModule):
    """Resize the spatial axes of images; see ops.interpolate.

    Input: [N, C, ...]. Output: the spatial axes resized.

    Parameters
    ----------
    size : int or sequence of int, optional
        The extents of the result.
    scale_factor : float or sequence of float, optional
        Factors of the extents, instead of a size.
    mode : str
        "nearest", "linear", "bilinear", "trilinear", "bicubic" or another of ops.resize.
    align_corners : bool, optional
        As in ops.resize.

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
    """Move channels into blocks of r x r pixels; see ops.pixel_shuffle.

    Input: [..., C * r * r, H, W]. Output: [..., C, H * r, W * r].

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
    """Move blocks of r x r pixels into channels; see ops.pixel_unshuffle.

    Input: [..., C, H * r, W * r]. Output: [..., C * r * r, H, W].

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
    """Return the options of windows that ops.unfold and ops.fold take."""
    return {
        "kernel_size": kernel_size,
        "dilation": dilation,
        "padding": padding,
        "stride": stride,
    }


class Unfold(OpModule):
    """Return the windows of images as columns; see ops.unfold.

    Input: [N, C, H, W]. Output: [N, C * elements, windows].

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
    """Sum windows into images; see ops.fold.

    Input: [N, C * elements, windows]. Output: [N, C, *output_size].

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
