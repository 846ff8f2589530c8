# SPDX-License-Identifier: Apache-2.0
"""Rules that translate pooling and image resizing of PyTorch into ngd nodes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch

from .... import ops
from ....graph.node import Node
from .products import PerAxis, per_axis
from .registry import Call, NodeOrNodes, Sample, T, as_node, expect, rule

aten: Final = torch.ops.aten

IMAGE: Final = T((2, 3, 6, 5))
SERIES: Final = T((2, 3, 7))
VOLUME: Final = T((1, 2, 4, 4, 4))


@rule(aten.max_pool1d.default, samples=[Sample(SERIES, (2,)), Sample(SERIES, (3,), (2,), (1,))])
@rule(
    aten.max_pool2d.default,
    samples=[Sample(IMAGE, (2, 2)), Sample(IMAGE, (3, 2), (2, 1), (1, 0), 1, True)],
)
@rule(aten.max_pool3d.default, samples=[Sample(VOLUME, (2, 2, 2))])
def max_pool(
    call: Call, x: Any, kernel: PerAxis, stride: PerAxis | None = None, *options: PerAxis
) -> Node:
    step = per_axis(stride) if stride else None
    rest = map(per_axis, options)  # padding, dilation, ceil_mode
    return ops.max_pool(as_node(x), per_axis(kernel), step, *rest)


@rule(aten.max_pool2d_with_indices.default, samples=[])
def max_pool_and_indices(call: Call, *args: Any) -> NodeOrNodes:
    return max_pool(call, *args), None


@rule(aten.avg_pool1d.default, samples=[Sample(SERIES, (2,)), Sample(SERIES, (3,), (2,), (1,))])
@rule(
    aten.avg_pool2d.default,
    samples=[
        Sample(IMAGE, (2, 2)),
        Sample(IMAGE, (3, 2), (2, 1), (1, 0), True, False),
        Sample(IMAGE, (2, 2), divisor_override=3),
    ],
)
@rule(aten.avg_pool3d.default, samples=[Sample(VOLUME, (2, 2, 2))])
def avg_pool(
    call: Call,
    x: Any,
    kernel: PerAxis,
    stride: PerAxis | None = None,
    padding: PerAxis = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Node:
    step = per_axis(stride) if stride else None
    expect(divisor_override is None or not ceil_mode, "avg_pool with a divisor and ceil_mode")
    y = ops.avg_pool(
        as_node(x), per_axis(kernel), step, per_axis(padding), ceil_mode, count_include_pad
    )
    if divisor_override is None:
        return y
    size = math.prod(np.broadcast_to(kernel, len(call.shape) - 2).tolist())
    return y * call.cast(size / divisor_override)


@rule(aten.adaptive_avg_pool1d.default, samples=[Sample(SERIES, (1,)), Sample(SERIES, (3,))])
@rule(aten.adaptive_avg_pool2d.default, samples=[Sample(IMAGE, (1, 1)), Sample(IMAGE, (4, 3))])
@rule(aten._adaptive_avg_pool2d.default, samples=[Sample(IMAGE, (4, 3))])
@rule(aten.adaptive_avg_pool3d.default, samples=[Sample(VOLUME, (2, 2, 3))])
def adaptive_avg_pool(call: Call, x: Any, size: PerAxis) -> Node:
    return ops.adaptive_avg_pool(as_node(x), per_axis(size))


@rule(aten.adaptive_max_pool1d.default, aten.adaptive_max_pool2d.default, samples=[])
def adaptive_max_pool(call: Call, x: Any, size: PerAxis) -> NodeOrNodes:
    return ops.adaptive_max_pool(as_node(x), per_axis(size)), None


@rule(
    aten.upsample_nearest2d.vec,
    samples=[Sample(IMAGE, (9, 4), None), Sample(IMAGE, None, (2.0, 2.0))],
)
def resize_nearest(
    call: Call, x: Any, size: Sequence[int] | None, scale: Sequence[float] | None = None
) -> Node:
    expect(
        _is_ratio(call, x, scale), "a nearest resize with a scale that is not the ratio of sizes"
    )
    return ops.resize(as_node(x), call.shape[2:], "nearest")


@rule(
    aten.upsample_bilinear2d.vec,
    samples=[
        Sample(IMAGE, (9, 4), False, None),
        Sample(IMAGE, (9, 4), True, None),
        Sample(IMAGE, None, False, (2.0, 2.0)),
    ],
)
@rule(aten.upsample_bicubic2d.vec, samples=[Sample(IMAGE, (9, 8), False, None)])
def resize_smoothly(
    call: Call,
    x: Any,
    size: Sequence[int] | None,
    align_corners: bool,
    scale: Sequence[float] | None = None,
) -> Node:
    expect(_is_ratio(call, x, scale), "a resize with a scale that is not the ratio of sizes")
    mode = "bilinear" if "bilinear" in call.name else "bicubic"
    return ops.resize(as_node(x), call.shape[2:], mode, align_corners)


def _is_ratio(call: Call, x: Any, scale: Sequence[float] | None) -> bool:
    """Return True if no scale is given, or if output size = input size * scale on each axis."""
    if scale is None:
        return True
    sizes = zip(call.shape[2:], as_node(x).shape[2:], scale, strict=True)
    return all(after == before * factor for after, before, factor in sizes)


@rule(
    aten.grid_sampler_2d.default,
    aten.grid_sampler.default,
    samples=[Sample(IMAGE, T((2, 4, 3, 2), low=-0.9, high=0.9), 0, 0, False)],
)
def grid_sample(
    call: Call, x: Any, grid: Any, mode: int, padding_mode: int, align_corners: bool
) -> Node:
    modes, paddings = ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection")
    return ops.grid_sample(
        as_node(x), as_node(grid), modes[mode], paddings[padding_mode], align_corners
    )
