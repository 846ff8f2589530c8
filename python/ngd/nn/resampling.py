# SPDX-License-Identifier: Apache-2.0
"""Modules that resize images, exchange channels and space, and take windows apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from .. import Node, ops
from .module import Module

PerAxis: TypeAlias = int | Sequence[int]


class Resampling(Module):
    """An op of one image, with options."""

    options: dict[str, Any]

    def describe(self) -> str:
        """See Module."""
        return ", ".join(f"{key}={value!r}" for key, value in self.options.items())


class Upsample(Resampling):
    """Resize the spatial axes of [N, C, ...]: ops.interpolate.

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
        y: Node = ops.interpolate(x, **self.options)
        return y


class PixelShuffle(Resampling):
    """Map [..., C * r * r, H, W] to [..., C, H * r, W * r]: ops.pixel_shuffle."""

    def __init__(self, upscale_factor: int) -> None:
        self.options = {"upscale_factor": upscale_factor}

    def forward(self, x: Node) -> Node:
        """Return x with channels moved to space."""
        y: Node = ops.pixel_shuffle(x, **self.options)
        return y


class PixelUnshuffle(Resampling):
    """Map [..., C, H * r, W * r] to [..., C * r * r, H, W]: ops.pixel_unshuffle."""

    def __init__(self, downscale_factor: int) -> None:
        self.options = {"downscale_factor": downscale_factor}

    def forward(self, x: Node) -> Node:
        """Return x with space moved to channels."""
        y: Node = ops.pixel_unshuffle(x, **self.options)
        return y


class Unfold(Resampling):
    """Map [N, C, H, W] to its windows as columns, [N, C * elements, windows]: ops.unfold."""

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
        y: Node = ops.unfold(x, **self.options)
        return y


class Fold(Resampling):
    """Sum windows [N, C * elements, windows] into [N, C, *output_size]: ops.fold."""

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
        y: Node = ops.fold(x, **self.options)
        return y
