# SPDX-License-Identifier: Apache-2.0
"""Sampling of images at given positions, as in torch.nn.functional."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ..errors import ShapeError
from ..graph.node import Node
from ..graph.registry import public
from ._along_axis import take_along_axis
from ._arithmetic import abs, clip, floor, round
from ._casting import cast
from ._compare import equal, logical_and, where
from ._composite import as_compute_dtype
from ._numeric import fmod
from ._operands import Value, as_node, describe_types
from ._shape import broadcast_to, reshape

__all__ = ["grid_sample"]

GRID_MODES: Final = ("bilinear", "nearest")
PADDING_MODES: Final = ("zeros", "border", "reflection")


def expect_one_of(name: str, value: str, known: Sequence[str]) -> None:
    """Raise a ValueError unless an option has one of the allowed values."""
    if value not in known:
        listed = ", ".join(f'"{each}"' for each in known)
        raise ValueError(f"grid_sample: {name}: expected one of {listed}; got {value!r}")


def pixel_position(coordinate: Node, size: int, align_corners: bool) -> Node:
    """Convert a coordinate of the argument `grid` of grid_sample to a position in pixels.

    The image has the coordinates [-1, 1] along each axis. With align_corners, -1 and 1 are the
    centers of the first and the last pixel; without, they are the outer edges of these pixels.
    """
    if align_corners:
        return (coordinate + 1) * ((size - 1) / 2)
    return ((coordinate + 1) * size - 1) / 2


def reflect(position: Node, size: int, align_corners: bool) -> Node:
    """Reflect a position at the borders of the image until it is inside."""
    low, high = (0.0, size - 1.0) if align_corners else (-0.5, size - 0.5)
    span = high - low
    if span == 0:
        return position * 0
    distance = abs(position - low)
    rest, flips = fmod(distance, span), floor(distance / span)
    return where(equal(fmod(flips, 2.0), 0), rest + low, span - rest + low)


def move_inside(position: Node, size: int, padding_mode: str, align_corners: bool) -> Node:
    """Move positions that are outside of the image to its border, or reflect them into the image.

    `padding_mode` decides. In mode "zeros" the position is returned unchanged, because `pixels_at`
    returns 0 outside of the image.
    """
    if padding_mode == "zeros":
        return position
    if padding_mode == "reflection":
        position = reflect(position, size, align_corners)
    return clip(position, 0, size - 1)


def pixels_at(x: Node, row: Node, column: Node) -> Node:
    """Return the pixels [N, C, h, w] at integer positions [N, h, w], and 0 outside of the image."""
    (n, channels, height, width), grid_shape = x.shape, row.shape
    is_inside = logical_and(
        logical_and(row >= 0, row <= height - 1), logical_and(column >= 0, column <= width - 1)
    )
    index = clip(row, 0, height - 1) * width + clip(column, 0, width - 1)
    flat = reshape(cast(index, "int64"), (n, 1, -1))
    pixels = take_along_axis(
        reshape(x, (n, channels, -1)), broadcast_to(flat, (n, channels, flat.shape[2])), 2
    )
    pixels = reshape(pixels, (n, channels, *grid_shape[1:]))
    return where(reshape(is_inside, (n, 1, *grid_shape[1:])), pixels, 0)


def expect_images_and_grid(images: Node, points: Node) -> None:
    """Raise a ShapeError unless the shapes are [N, C, H, W], with H, W > 0, and [N, h, w, 2]."""
    fits = images.ndim == points.ndim == 4 and points.shape[3] == 2
    if not fits or images.shape[0] != points.shape[0] or 0 in images.shape[2:]:
        raise ShapeError(
            "grid_sample: expected images [N, C, H, W] and a grid [N, h, w, 2]; got "
            f"{describe_types(images.type, points.type)}. Transpose or reshape them."
        )


@public
def grid_sample(
    x: Value,
    grid: Value,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool = False,
) -> Node:  # long because each argument is described
    """Return the pixels of images at given positions, as torch.nn.functional.grid_sample.

    Parameters
    ----------
    x
        Images [N, C, H, W]: N images of C channels, with the height H and the width W.
    grid
        [N, h, w, 2]: for each pixel of the result, a column and a row in the image. -1 is the left
        or upper border, and 1 the right or lower border; `align_corners` defines the border.
    mode
        "bilinear" interpolates between four pixels, and "nearest" takes the nearest one.
    padding_mode
        The value outside of the image: "zeros", the "border" pixel, or the "reflection" at the
        border.
    align_corners
        If True, -1 and 1 are the centers of the pixels at the corners. If False, they are the
        outer edges of these pixels.

    Returns
    -------
    Node
        [N, C, h, w]: images of the height h and the width w of the grid.

    Raises
    ------
    ShapeError
        The shapes do not fit.

    Examples
    --------
    ::

        >>> image = np.array([[[[1.0, 2.0], [3.0, 4.0]]]])
        >>> ngd.function(ops.grid_sample)(image, np.zeros((1, 1, 1, 2)))
        array([[[[2.5]]]])
    """
    expect_one_of("mode", mode, GRID_MODES)
    expect_one_of("padding_mode", padding_mode, PADDING_MODES)
    images, points = as_node(x, where="grid_sample"), as_node(grid, where="grid_sample")
    expect_images_and_grid(images, points)
    images, dtype = as_compute_dtype("grid_sample", images)
    points = cast(points, images.dtype)
    column, row = (
        move_inside(
            pixel_position(points[..., axis], size, align_corners),
            size,
            padding_mode,
            align_corners,
        )
        for axis, size in ((0, images.shape[3]), (1, images.shape[2]))
    )
    if mode == "nearest":
        return cast(pixels_at(images, round(row), round(column)), dtype)
    return cast(bilinear(images, row, column), dtype)


def bilinear(x: Node, row: Node, column: Node) -> Node:
    """Interpolate between the four pixels around each position."""
    top, left = floor(row), floor(column)
    total: Node | None = None
    for down in (0, 1):
        for right in (0, 1):
            vertical = row - top if down else 1 - (row - top)
            horizontal = column - left if right else 1 - (column - left)
            weight = reshape(vertical * horizontal, (x.shape[0], 1, *row.shape[1:]))
            part = pixels_at(x, top + down, left + right) * weight
            total = part if total is None else total + part
    assert total is not None
    return total
