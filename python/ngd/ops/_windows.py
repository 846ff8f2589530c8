# SPDX-License-Identifier: Apache-2.0
"""The positions of the windows of convolutions and pooling over the axes of [N, C, spatial...].

`before` and `after` are the numbers of padding elements at the start and at the end of one axis.
Window i reads the elements at i * stride - before + k * dilation, for k in [0, kernel), if they are
inside the array. The attributes `kernel`, `strides` and `dilations` have one number per axis.
`padding` has two numbers per axis: before, after, before, after, ...
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from ..dtypes import Array, Shape, Type
from ..errors import ShapeError

PerAxis: TypeAlias = int | Sequence[int]
"""The type of arguments such as `kernel`: one number for all spatial axes, or one per axis."""

Padding: TypeAlias = int | str | Sequence[int] | Sequence[Sequence[int]]
"""The type of the argument `padding`: the zeros before and after each spatial axis.

The argument is one of these: an int for both sides of all axes; one int per axis for both sides;
one pair (before, after) per axis; "valid" for no zeros; "same" for the number of zeros with which
an axis of n elements has ceil(n / stride) windows.
"""

SPATIAL: Final = (1, 2, 3)
"""The numbers of spatial axes that convolutions and pooling support."""


def channels_first_order(ndim: int) -> Shape:
    """Return the permutation from [N, spatial..., C] to [N, C, spatial...] for `ndim` axes."""
    return (0, ndim - 1, *range(1, ndim - 1))


def channels_last_order(ndim: int) -> Shape:
    """Return the permutation from [N, C, spatial...] to [N, spatial..., C] for `ndim` axes."""
    return (0, *range(2, ndim), 1)


def permute_shape(shape: Shape, axes: Shape) -> Shape:
    """Return the extents of `shape` in the order of `axes`."""
    return tuple(shape[axis] for axis in axes)


def per_axis(where: str, what: str, number: Any, axes: int, lowest: int) -> Shape:
    """Return a tuple with one number per spatial axis.

    `number` is the user's argument: one number for all axes, or a sequence with one per axis. Raise
    a ShapeError for anything else, or for a number less than `lowest`. `what` names the argument in
    the message.
    """
    is_sequence = isinstance(number, (Sequence, np.ndarray)) and not isinstance(number, str)
    values = tuple(number) if is_sequence else (number,) * axes
    is_integer = all(isinstance(v, (int, np.integer)) for v in values)
    if not is_integer or len(values) != axes or not all(lowest <= v < 2**31 for v in values):
        raise ShapeError(
            f"{where}: expected {what} of one whole number or {axes}, each in [{lowest}, 2**31); "
            f"got {number!r}"
        )
    return tuple(int(v) for v in values)


def spatial_axes(where: str, x: Type) -> int:
    """Return the number of spatial axes of [N, C, spatial...]."""
    axes = len(x.shape) - 2
    if axes not in SPATIAL:
        raise ShapeError(
            f"{where}: expected [N, C, spatial...] of 1 to 3 spatial axes; got {x}. Reshape it."
        )
    return axes


def paddings(
    where: str, padding: Padding, x: Shape, kernel: Shape, strides: Shape, dilations: Shape
) -> Shape:
    """Return the amount of padding at the ends of each axis: (before, after, before, after, ...).

    With padding "same" there are ceil(n / stride) windows along an axis of n elements. If an axis
    needs an odd amount of padding, there is one more after the axis than before it.
    """
    axes = len(kernel)
    if isinstance(padding, str):
        if padding not in ("same", "valid"):
            raise ValueError(f'{where}: expected padding "same" or "valid"; got {padding!r}')
        if padding == "valid":
            return (0,) * (2 * axes)
        zeros_per_side: list[int] = []
        for n, k, stride, dilation in zip(x, kernel, strides, dilations, strict=True):
            zeros = max((-(-n // stride) - 1) * stride + window_extent(k, dilation) - n, 0)
            zeros_per_side += (zeros // 2, zeros - zeros // 2)
        return tuple(zeros_per_side)
    pairs = padding if isinstance(padding, Sequence) else (padding,) * axes
    if len(pairs) == axes and any(isinstance(pair, Sequence) for pair in pairs):
        sides = [per_axis(where, "padding before and after", pair, 2, 0) for pair in pairs]
        return tuple(itertools.chain.from_iterable(sides))
    return tuple(n for n in per_axis(where, "padding", padding, axes, 0) for _ in range(2))


def window_extent(kernel: int, dilation: int) -> int:
    """Return the extent of a window with dilation, from its first to its last element."""
    return (kernel - 1) * dilation + 1


def sides(padding: Shape) -> tuple[tuple[int, int], ...]:
    """Return the padding as one pair (before, after) per axis."""
    return tuple(zip(padding[::2], padding[1::2], strict=True))


def window_counts(
    where: str,
    x: Type,
    kernel: Shape,
    strides: Shape,
    padding: Shape,
    dilations: Shape,
    ceil_mode: bool = False,
) -> Shape:
    """Return the number of windows along each spatial axis.

    If `ceil_mode` is True, elements that are left over at the end of an axis get one more window.
    This window must start before the end of x, but it ends after the end of the padded axis.
    """
    counts = []
    for n, k, stride, (before, after), dilation in zip(
        x.shape[2:], kernel, strides, sides(padding), dilations, strict=True
    ):
        room = n + before + after - window_extent(k, dilation)
        count = room // stride + 1
        if ceil_mode and room % stride and count * stride < n + before:
            count += 1
        if room < 0 or n < 1:
            raise ShapeError(
                f"{where}: expected a window of {window_extent(k, dilation)} elements to fit into "
                f"{n} elements, padded by {before} and {after}; got {x}, kernel {kernel}, "
                f"dilations {dilations}. Use a smaller kernel, or more padding."
            )
        counts.append(count)
    return tuple(counts)


def pad_spatial(x: Array, padding: Shape, value: Any = 0) -> Array:
    """Pad the spatial axes of x with a value. `padding` is (before, after, before, after, ...)."""
    return np.pad(x, ((0, 0), (0, 0), *sides(padding)), constant_values=value)


def offsets(kernel: Shape) -> Iterator[Shape]:
    """Yield each index in the kernel, in row-major order: (0, 0), (0, 1), ... in two dimensions."""
    return iter(np.ndindex(*kernel))


def spatial_index(index: Iterable[Any]) -> tuple[Any, ...]:
    """Return an index of [N, C, spatial...]: all of N and C, and `index` for the spatial axes."""
    return (slice(None), slice(None), *index)


def elements_at_offset(
    offset: Shape, counts: Shape, strides: Shape, dilations: Shape
) -> tuple[Any, ...]:
    """Return an index (a tuple of slices) that selects one element of every window.

    `offset` is the index of the element in the kernel: (0, 1) is in row 0 and column 1. The tuple
    indexes a padded array [N, C, spatial...], and selects an array [N, C, *counts].
    """
    starts = [o * dilation for o, dilation in zip(offset, dilations, strict=True)]
    return spatial_index(
        slice(first, first + (count - 1) * stride + 1, stride)
        for first, count, stride in zip(starts, counts, strides, strict=True)
    )
