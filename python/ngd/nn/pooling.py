# SPDX-License-Identifier: Apache-2.0
"""Pools over one, two and three axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, TypeAlias

from .. import Node, ops
from .module import Module

PerAxis: TypeAlias = int | Sequence[int]


class Pool(Module):
    """What all of them share: their options, and how many spatial axes they take."""

    axes: ClassVar[int]
    options: dict[str, Any]

    def forward(self, x: Node) -> Node:
        """[N, C, ...] to [N, C, ...], of the dtype of x."""
        if x.ndim != self.axes + 2:
            raise ValueError(
                f"nn.{type(self).__name__}: expected [N, C, {self.axes} axes]; got {x!r}"
            )
        return self.pooled(x)

    def pooled(self, x: Node) -> Node:
        """The op's value."""
        raise NotImplementedError(type(self).__name__)

    def describe(self) -> str:
        """See Module."""
        return ", ".join(f"{key}={value!r}" for key, value in self.options.items())


class MaxPool(Pool):
    """ops.max_pool; the stride is by default the kernel_size."""

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

    def pooled(self, x: Node) -> Node:
        """The largest of each window."""
        y: Node = ops.max_pool(x, **self.options)
        return y


class AvgPool(Pool):
    """ops.avg_pool; the stride is by default the kernel_size."""

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

    def pooled(self, x: Node) -> Node:
        """The mean of each window."""
        y: Node = ops.avg_pool(x, **self.options)
        return y


class AdaptiveAvgPool(Pool):
    """ops.adaptive_avg_pool: as many windows as output_size says."""

    def __init__(self, output_size: int | Sequence[int | None]) -> None:
        self.options = {"output_size": output_size}

    def pooled(self, x: Node) -> Node:
        """The mean of each window."""
        y: Node = ops.adaptive_avg_pool(x, **self.options)
        return y


class AdaptiveMaxPool(Pool):
    """ops.adaptive_max_pool: as many windows as output_size says."""

    def __init__(self, output_size: int | Sequence[int | None]) -> None:
        self.options = {"output_size": output_size}

    def pooled(self, x: Node) -> Node:
        """The largest of each window."""
        y: Node = ops.adaptive_max_pool(x, **self.options)
        return y


class MaxPool1d(MaxPool):
    """MaxPool over [N, C, L]."""

    axes = 1


class MaxPool2d(MaxPool):
    """MaxPool over [N, C, H, W]."""

    axes = 2


class MaxPool3d(MaxPool):
    """MaxPool over [N, C, D, H, W]."""

    axes = 3


class AvgPool1d(AvgPool):
    """AvgPool over [N, C, L]."""

    axes = 1


class AvgPool2d(AvgPool):
    """AvgPool over [N, C, H, W]."""

    axes = 2


class AvgPool3d(AvgPool):
    """AvgPool over [N, C, D, H, W]."""

    axes = 3


class AdaptiveAvgPool1d(AdaptiveAvgPool):
    """AdaptiveAvgPool over [N, C, L]."""

    axes = 1


class AdaptiveAvgPool2d(AdaptiveAvgPool):
    """AdaptiveAvgPool over [N, C, H, W]."""

    axes = 2


class AdaptiveAvgPool3d(AdaptiveAvgPool):
    """AdaptiveAvgPool over [N, C, D, H, W]."""

    axes = 3


class AdaptiveMaxPool1d(AdaptiveMaxPool):
    """AdaptiveMaxPool over [N, C, L]."""

    axes = 1


class AdaptiveMaxPool2d(AdaptiveMaxPool):
    """AdaptiveMaxPool over [N, C, H, W]."""

    axes = 2


class AdaptiveMaxPool3d(AdaptiveMaxPool):
    """AdaptiveMaxPool over [N, C, D, H, W]."""

    axes = 3
