# SPDX-License-Identifier: Apache-2.0
"""Modules that resize images, exchange channels and space, and take windows apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from .. import ops
from ..graph.node import Node
from .module import Module

PerAxis: TypeAlias = int | Sequence[int]


class Resampling(Module):
    """An op of one image, with options."""

    options: dict[str, Any]

    def describe(self) -> str:
        """See Module."""
        return ", ".join(f"{key}={value!r}" for key, value in self.options.items())


class Upsample(Resampling):
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

    def forward(self, x: Node) -> Node:
        """Map [N, C, ...] to [N, C, ...], of the dtype of x."""
        return ops.interpolate(x, **self.options)


class PixelShuffle(Resampling):
    """Move channels into blocks of r x r pixels; see ops.pixel_shuffle.

    Input: [..., C * r * r, H, W]. Output: [..., C, H * r, W * r].

    Examples
    --------
    >>> maps = ngd.placeholder("maps", (2, 12, 8, 8))
    >>> nn.PixelShuffle(2)(maps).shape
    (2, 3, 16, 16)
    """

    def __init__(self, upscale_factor: int) -> None:
        self.options = {"upscale_factor": upscale_factor}

    def forward(self, x: Node) -> Node:
        """Return x with channels moved to space."""
        return ops.pixel_shuffle(x, **self.options)


class PixelUnshuffle(Resampling):
    """Move blocks of r x r pixels into channels; see ops.pixel_unshuffle.

    Input: [..., C, H * r, W * r]. Output: [..., C * r * r, H, W].

    Examples
    --------
    >>> maps = ngd.placeholder("maps", (2, 3, 16, 16))
    >>> nn.PixelUnshuffle(2)(maps).shape
    (2, 12, 8, 8)
    """

    def __init__(self, downscale_factor: int) -> None:
        self.options = {"downscale_factor": downscale_factor}

    def forward(self, x: Node) -> Node:
        """Return x with space moved to channels."""
        return ops.pixel_unshuffle(x, **self.options)


class Unfold(Resampling):
    """Return the windows of images as columns; see ops.unfold.

    Input: [N, C, H, W]. Output: [N, C * elements, windows].

    Examples
    --------
    >>> maps = ngd.placeholder("maps", (2, 3, 8, 8))
    >>> nn.Unfold(kernel_size=2, stride=2)(maps).shape
    (2, 12, 16)
    """

    def __init__(
        self,
        kernel_size: PerAxis,
        dilation: PerAxis = 1,
        padding: PerAxis = 0,
        stride: PerAxis = 1,
    ) -> None:
        self.options = {
            "kernel_size": kernel_size,
            "dilation": dilation,
            "padding": padding,
            "stride": stride,
        }

    def forward(self, x: Node) -> Node:
        """Return the windows of x."""
        return ops.unfold(x, **self.options)


class Fold(Resampling):
    """Sum windows into images; see ops.fold.

    Input: [N, C * elements, windows]. Output: [N, C, *output_size].

    Examples
    --------
    >>> windows = ngd.placeholder("windows", (2, 12, 16))
    >>> nn.Fold(8, kernel_size=2, stride=2)(windows).shape
    (2, 3, 8, 8)
    """

    def __init__(
        self,
        output_size: PerAxis,
        kernel_size: PerAxis,
        dilation: PerAxis = 1,
        padding: PerAxis = 0,
        stride: PerAxis = 1,
    ) -> None:
        self.options = {
            "output_size": output_size,
            "kernel_size": kernel_size,
            "dilation": dilation,
            "padding": padding,
            "stride": stride,
        }

    def forward(self, x: Node) -> Node:
        """Return the sum of the windows."""
        return ops.fold(x, **self.options)
