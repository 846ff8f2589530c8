# SPDX-License-Identifier: Apache-2.0
"""Checks of the inputs of layers. An error names the layer, its argument and the input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from .._util.signature_errors import format_value
from ..errors import ShapeError
from ..graph.node import Node

SPATIAL: Final = {1: ", L", 2: ", H, W", 3: ", D, H, W"}
"""The names of the spatial axes in error messages, by the number of spatial axes."""


def format_input(x: Any) -> str:
    """Describe an input for an error message: its type, and for a node also its call site."""
    return f"{x.type} (made at {x.site})" if isinstance(x, Node) else format_value(x)


def input_error(layer: object, expected: str, x: Any, fix: str) -> ShapeError:
    """Return the error for an input x of the wrong shape.

    `expected` describes the right shape, and `fix` is the last sentence of the message.
    """
    name = f"nn.{type(layer).__name__}"
    return ShapeError(f"{name}: expected an input {expected}; got {format_input(x)}. {fix}")


def expect_last_axis(layer: object, x: Any, size: int, argument: str) -> None:
    """Raise a ShapeError if the size of the last axis of x is not `size`.

    `argument` is the name of the layer's argument that has this size.
    """
    if not x.ndim:
        raise input_error(layer, f"[..., {size}]", x, "Give it at least one axis.")
    if x.shape[-1] != size:
        fix = f"Set {argument}={x.shape[-1]}, or change the input."
        raise input_error(layer, f"whose last axis is {size} ({argument})", x, fix)


def expect_last_axes(layer: object, x: Any, shape: tuple[int, ...]) -> None:
    """Raise a ShapeError if the last axes of x do not have the shape `shape`.

    `shape` is the argument normalized_shape of the layer.
    """
    if x.shape[max(x.ndim - len(shape), 0) :] == shape:
        return
    sizes = f"{shape[0]}" if len(shape) == 1 else f"{shape}"
    needed = f"whose last {'axis is' if len(shape) == 1 else 'axes are'} {sizes} (normalized_shape)"
    actual = x.shape[-len(shape) :]
    shown = f"{actual[0]}" if len(actual) == 1 else f"{actual}"
    fix = f"Set normalized_shape={shown}, or change the input." if actual else "Give it more axes."
    raise input_error(layer, needed, x, fix)


def expect_axes(layer: object, x: Any, axes: int, channels: int | str = "C") -> None:
    """Raise a ShapeError if x is not [batch, channels, spatial...] with `axes` spatial axes.

    The number of channels is not checked. `channels` is its value or name in the message.
    """
    if x.ndim != axes + 2:
        fix = "Reshape it, or use the layer for this number of axes."
        if x.ndim == axes + 1:
            fix = "Add the axis of the batch: ops.expand_dims(x, 0)."
        raise input_error(layer, f"[N, {channels}{SPATIAL[axes]}]", x, fix)


def expect_channels(layer: object, x: Any, channels: int, argument: str) -> None:
    """Raise a ShapeError if the size of axis 1 of x is not `channels`.

    `argument` is the name of the layer's argument that has this size, such as "in_channels".
    """
    if x.ndim < 2 or x.shape[1] != channels:
        fix = f"Set {argument}={x.shape[1]}." if x.ndim > 1 else "Give it at least two axes."
        if x.ndim > 2 and x.shape[-1] == channels:
            fix = "Move the channels from the last axis: ops.moveaxis(x, -1, 1)."
        raise input_error(layer, f"with {channels} channels on axis 1 ({argument})", x, fix)


def expect_number_of_axes(layer: object, x: Any, numbers: Sequence[int]) -> None:
    """Raise a ShapeError if the number of axes of x is not among `numbers`."""
    if x.ndim not in numbers:
        expected = " or ".join(map(str, numbers))
        fix = "Reshape it, or use the layer for this number of axes."
        raise input_error(layer, f"of {expected} axes", x, fix)


def expect_sequence(layer: object, x: Any, size: int, *, batch_first: bool) -> None:
    """Raise a ShapeError if x is not a batch of sequences of vectors of the given size.

    x must be [batch, length, size] with batch_first, and [length, batch, size] otherwise.
    """
    form = f"[batch, length, {size}]" if batch_first else f"[length, batch, {size}]"
    if x.ndim != 3:
        fix = f"Add the axis of the batch: ops.expand_dims(x, {0 if batch_first else 1})."
        if x.ndim != 2:
            fix = f"Reshape it to {form}."
        raise input_error(layer, f"{form} (batch_first={batch_first})", x, fix)
    if x.shape[2] != size:
        fix = f"Set input_size={x.shape[2]}, or change the input."
        raise input_error(layer, f"{form} (input_size={size})", x, fix)


def expect_embedded(layer: object, x: Any, size: int) -> None:
    """Raise a ShapeError if x is not [batch, length, size]. `size` is the layer's embed_dim."""
    if x.ndim != 3:
        fix = "Reshape it to three axes."
        if x.ndim == 2:
            fix = "Add the axis of the batch: ops.expand_dims(x, 0)."
        raise input_error(layer, f"[batch, length, {size}]", x, fix)
    expect_last_axis(layer, x, size, "embed_dim")
