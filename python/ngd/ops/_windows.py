# SPDX-License-Identifier: Apache-2.0
"""Where windows stand over the spatial axes of [N, C, spatial...]: convolutions and pools share it.

Along one axis, window number i reads the places i * stride - before + k * dilation, for k in
[0, kernel): those of them that are in the tensor. Attributes hold a number an axis (`kernel`,
`strides`, `dilations`), and `padding` the zeros before and after each axis in turn: before, after,
before, after, ...
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from ..dtypes import Array, Shape, Type
from ..errors import ShapeError

PerAxis: TypeAlias = int | Sequence[int]
"""One number for all spatial axes, or one an axis."""

Padding: TypeAlias = int | str | Sequence[int] | Sequence[Sequence[int]]
"""Zeros on both sides: as PerAxis, as pairs (before, after), as "valid" (none) or "same"."""

SPATIAL: Final = (1, 2, 3)
"""How many spatial axes kernels know."""


def first(ndim: int) -> Shape:
    """The order of axes that puts the channels, which come last, in front of the spatial axes."""
    return (0, ndim - 1, *range(1, ndim - 1))


def last(ndim: int) -> Shape:
    """The order of axes that puts the channels last."""
    return (0, *range(2, ndim), 1)


def ordered(shape: Shape, axes: Shape) -> Shape:
    """A shape with its axes in this order."""
    return tuple(shape[axis] for axis in axes)


def per_axis(where: str, what: str, given: Any, axes: int, lowest: int) -> Shape:
    """Give each spatial axis its number."""
    many = isinstance(given, (Sequence, np.ndarray)) and not isinstance(given, str)
    values = tuple(given) if many else (given,) * axes
    whole = all(isinstance(v, (int, np.integer)) for v in values)
    if not whole or len(values) != axes or not all(lowest <= v < 2**31 for v in values):
        raise ShapeError(
            f"{where}: expected {what} of one whole number or {axes}, each in [{lowest}, 2**31); "
            f"got {given!r}"
        )
    return tuple(int(v) for v in values)


def spatial_axes(where: str, x: Type) -> int:
    """Count the spatial axes of [N, C, spatial...]."""
    axes = len(x.shape) - 2
    if axes not in SPATIAL:
        raise ShapeError(
            f"{where}: expected [N, C, spatial...] of 1 to 3 spatial axes; got {x}. Reshape it."
        )
    return axes


def paddings(
    where: str, given: Padding, x: Shape, kernel: Shape, strides: Shape, dilations: Shape
) -> Shape:
    """Resolve what the user gave as padding: before and after each axis, in turn.

    "same" makes ceil(x / stride) windows; an odd zero goes behind.
    """
    axes = len(kernel)
    if isinstance(given, str):
        if given not in ("same", "valid"):
            raise ValueError(f'{where}: expected padding "same" or "valid"; got {given!r}')
        if given == "valid":
            return (0,) * (2 * axes)
        found: list[int] = []
        for n, k, stride, dilation in zip(x, kernel, strides, dilations, strict=True):
            zeros = max((-(-n // stride) - 1) * stride + reach(k, dilation) - n, 0)
            found += (zeros // 2, zeros - zeros // 2)
        return tuple(found)
    pairs = given if isinstance(given, Sequence) else (given,) * axes
    if len(pairs) == axes and any(isinstance(pair, Sequence) for pair in pairs):
        sides = [per_axis(where, "padding before and after", pair, 2, 0) for pair in pairs]
        return tuple(itertools.chain.from_iterable(sides))
    return tuple(n for n in per_axis(where, "padding", given, axes, 0) for _ in range(2))


def reach(kernel: int, dilation: int) -> int:
    """How many places a window spans."""
    return (kernel - 1) * dilation + 1


def sides(padding: Shape) -> tuple[tuple[int, int], ...]:
    """Read the padding as a pair an axis."""
    return tuple(zip(padding[::2], padding[1::2], strict=True))


def window_counts(
    where: str,
    x: Type,
    kernel: Shape,
    strides: Shape,
    padding: Shape,
    dilations: Shape,
    beyond: bool = False,
) -> Shape:
    """How many windows fit along each axis.

    With `beyond` the last one may end behind the padding, if it does not begin there.
    """
    counts = []
    for n, k, stride, (before, after), dilation in zip(
        x.shape[2:], kernel, strides, sides(padding), dilations, strict=True
    ):
        left = n + before + after - reach(k, dilation)
        count = left // stride + 1
        if beyond and left % stride and count * stride < n + before:
            count += 1
        if left < 0 or n < 1:
            raise ShapeError(
                f"{where}: expected a window of {reach(k, dilation)} places to fit into {n}, "
                f"padded by {before} and {after}; got {x}, kernel {kernel}, dilations {dilations}. "
                "Use a smaller kernel, or more padding."
            )
        counts.append(count)
    return tuple(counts)


def padded(x: Array, padding: Shape, value: Any = 0) -> Array:
    """Surround the spatial axes with a value."""
    return np.pad(x, ((0, 0), (0, 0), *sides(padding)), constant_values=value)


def offsets(kernel: Shape) -> Iterator[Shape]:
    """Every place of a window, row by row."""
    return iter(np.ndindex(*kernel))


def at(index: Iterable[Any]) -> tuple[Any, ...]:
    """Index the spatial axes."""
    return (slice(None), slice(None), *index)


def under(offset: Shape, counts: Shape, strides: Shape, dilations: Shape) -> tuple[Any, ...]:
    """Index, in a padded tensor, what all windows read at one place of theirs."""
    firsts = [o * dilation for o, dilation in zip(offset, dilations, strict=True)]
    return at(
        slice(first, first + (count - 1) * stride + 1, stride)
        for first, count, stride in zip(firsts, counts, strides, strict=True)
    )
