# SPDX-License-Identifier: Apache-2.0
"""Elements in another order, repeated, or with others around them: made of ops that move them."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..dtypes import bool_
from ..errors import ShapeError
from ..graph.node import Node
from ..graph.registry import public
from ._casting import cast
from ._compare import where
from ._concatenation import concat
from ._creation import arange, full
from ._elementwise import zero_like
from ._gathering import take
from ._operands import (
    Axis,
    Value,
    as_axis,
    as_node,
    as_shape,
    node_of_axes,
    normalize_axes,
    scalar_value,
)
from ._shape import broadcast_to, expand_dims, reshape, transpose
from ._slicing import pad_slice

__all__ = [
    "flip",
    "fliplr",
    "flipud",
    "moveaxis",
    "pad",
    "roll",
    "rot90",
    "swapaxes",
    "tile",
    "tri",
    "tril",
    "triu",
]

PAD_MODES = ("constant", "edge", "reflect", "symmetric", "wrap")
TORCH_MODES = {"replicate": "edge", "circular": "wrap"}
"""Names of torch.nn.functional.pad, and what NumPy calls the mode."""


@public
def moveaxis(x: Value, source: int, destination: int) -> Node:
    """Take one axis to another place; the others keep their order."""
    x = as_node(x, where="moveaxis")
    first = as_axis("moveaxis", source, x.ndim, x.type)
    last = as_axis("moveaxis", destination, x.ndim, x.type)
    order = [axis for axis in range(x.ndim) if axis != first]
    order.insert(last, first)
    return transpose(x, order)


@public
def swapaxes(x: Value, axis1: int, axis2: int) -> Node:
    """Exchange two axes."""
    x = as_node(x, where="swapaxes")
    first, second = (as_axis("swapaxes", a, x.ndim, x.type) for a in (axis1, axis2))
    order = list(range(x.ndim))
    order[first], order[second] = second, first
    return transpose(x, order)


@public
def flip(x: Value, axis: Axis = None) -> Node:
    """Reverse the order of the elements along these axes, or all."""
    x = as_node(x, where="flip")
    axes = normalize_axes("flip", axis, x.type)
    return x[tuple(slice(None, None, -1 if a in axes else 1) for a in range(x.ndim))]


@public
def flipud(x: Value) -> Node:
    """Reverse the first axis, as numpy.flipud.

    Parameters
    ----------
    x
        A tensor of at least one axis.

    Examples
    --------
    ::

        >>> ngd.function(lambda: ops.flipud([[1, 2], [3, 4]]))()
        array([[3, 4],
               [1, 2]])
    """
    return flip(node_of_axes("flipud", x, 1), 0)


@public
def fliplr(x: Value) -> Node:
    """Reverse the second axis, as numpy.fliplr.

    Parameters
    ----------
    x
        A tensor of at least two axes.

    Examples
    --------
    ::

        >>> ngd.function(lambda: ops.fliplr([[1, 2], [3, 4]]))()
        array([[2, 1],
               [4, 3]])
    """
    return flip(node_of_axes("fliplr", x, 2), 1)


@public
def rot90(x: Value, k: int = 1, axes: tuple[int, int] = (0, 1)) -> Node:
    """Rotate by k times 90 degrees in the plane of two axes, as numpy.rot90.

    Parameters
    ----------
    x
        A tensor of at least two axes.
    k
        The number of rotations by 90 degrees, from the first axis to the second. A negative number
        rotates in the opposite direction.
    axes
        Two axes that differ.

    Raises
    ------
    ShapeError
        The axes are equal, or one does not exist.

    Examples
    --------
    ::

        >>> ngd.function(lambda: ops.rot90([[1, 2], [3, 4]]))()
        array([[2, 4],
               [1, 3]])
    """
    x = as_node(x, where="rot90")
    first, second = (as_axis("rot90", a, x.ndim, x.type) for a in axes)
    if first == second:
        raise ShapeError(
            f"rot90: expected two axes that differ; got {axes}. Give two different axes."
        )
    turns = operator.index(k) % 4
    if turns == 2:
        return flip(flip(x, first), second)
    if turns == 1:
        return swapaxes(flip(x, second), first, second)
    return flip(swapaxes(x, first, second), second) if turns else x


@public
def roll(x: Value, shift: int | Sequence[int], axis: int | Sequence[int] | None = None) -> Node:
    """Shift elements along axes; what leaves at one end comes in at the other: numpy.roll."""
    x = as_node(x, where="roll")
    if axis is None:
        return reshape(roll(reshape(x, -1), shift, 0), x.shape)
    axes, shifts = as_shape(axis), as_shape(shift)
    if len(shifts) == 1:
        shifts *= len(axes)
    if len(shifts) != len(axes):
        raise ShapeError(
            f"roll: expected a shift for each of the axes {axis}; got {shift}. Give one shift per "
            "axis."
        )
    for a, distance in zip(axes, shifts, strict=True):
        along = as_axis("roll", a, x.ndim, x.type)
        cut = -distance % max(x.shape[along], 1)
        ahead = (slice(None),) * along
        if cut:
            x = concat([x[(*ahead, slice(cut, None))], x[(*ahead, slice(cut))]], along)
    return x


@public
def tile(x: Value, reps: int | Sequence[int]) -> Node:
    """Repeat a tensor along each axis: numpy.tile."""
    x = as_node(x, where="tile")
    counts = as_shape(reps)
    if any(n < 0 for n in counts):
        raise ShapeError(f"tile: expected counts >= 0; got {reps}")
    rank = max(x.ndim, len(counts))
    shape, counts = (1,) * (rank - x.ndim) + x.shape, (1,) * (rank - len(counts)) + counts
    pairs = list(zip(shape, counts, strict=True))
    apart = reshape(x, [extent for n, _ in pairs for extent in (1, n)])
    repeated = broadcast_to(apart, [extent for n, count in pairs for extent in (count, n)])
    return reshape(repeated, [n * count for n, count in pairs])


@public
def tri(rows: int, columns: int | None = None, k: int = 0) -> Node:
    """A matrix of bools: True on the diagonal number k, and below it."""
    line = arange(rows if columns is None else columns)
    return line <= expand_dims(arange(rows), 1) + operator.index(k)


def _matrices(where_: str, x: Value) -> Node:
    node = as_node(x, where=where_)
    if node.ndim < 2:
        raise ShapeError(f"{where_}: expected at least two axes; got {node.type}")
    return node


@public
def tril(x: Value, k: int = 0) -> Node:
    """Keep what is on and below the diagonal number k of the last two axes; 0 elsewhere."""
    node = _matrices("tril", x)
    return where(tri(node.shape[-2], node.shape[-1], k), node, zero_like(node))


@public
def triu(x: Value, k: int = 0) -> Node:
    """Keep what is on and above the diagonal number k of the last two axes; 0 elsewhere."""
    node = _matrices("triu", x)
    return where(tri(node.shape[-2], node.shape[-1], k - 1), zero_like(node), node)


def _widths_per_axis(x: Node, widths: Any) -> list[tuple[int, int]]:
    """Return how many elements to put before and after each axis."""
    try:
        sides = np.broadcast_to(np.asarray(widths), (x.ndim, 2))
        if sides.dtype.kind not in "iu" or (sides < 0).any():
            raise ValueError
    except ValueError:
        raise ShapeError(
            f"pad: expected widths >= 0: a number, a pair, or a pair per axis of {x.type}; "
            f"got {widths}. Remove elements by a slice instead."
        ) from None
    return [(int(before), int(after)) for before, after in sides]


@public
def pad(x: Value, widths: Any, mode: str = "constant", value: Value = 0) -> Node:
    """Put elements before and after each axis, as numpy.pad.

    Parameters
    ----------
    x
        A tensor of any dtype.
    widths
        The number of elements: one for all sides, a pair (before, after) for all axes, or a pair
        per axis.
    mode
        "constant": the value. "edge", which torch calls "replicate": the nearest element.
        "reflect": mirrored at the outermost element. "symmetric": mirrored, with the outermost
        element repeated. "wrap", which torch calls "circular": from the other end.
    value
        A scalar, for mode "constant".

    Raises
    ------
    ValueError
        The mode is unknown.
    ShapeError
        The widths do not fit, or an axis without elements is padded in another mode.

    Examples
    --------
    ::

        >>> ngd.function(lambda: ops.pad([1, 2, 3], (2, 1), "reflect"))()
        array([3, 2, 1, 2, 3, 2])
    """
    x = as_node(x, where="pad")
    if mode not in PAD_MODES and mode not in TORCH_MODES:
        known = ", ".join([*PAD_MODES, *TORCH_MODES])
        raise ValueError(f"pad: expected a mode among {known}; got {mode!r}")
    mode = TORCH_MODES.get(mode, mode)
    pairs = _widths_per_axis(x, widths)
    if mode == "constant":
        return _surrounded(x, pairs, value)
    for axis, (n, pair) in enumerate(zip(x.shape, pairs, strict=True)):
        if n == 0 and any(pair):
            raise ShapeError(
                f"pad: expected elements along axis {axis} for {mode!r}; got {x.type}. Use "
                "mode='constant'."
            )
        if any(pair):
            x = take(x, np.pad(np.arange(n), pair, mode), axis)  # type: ignore[call-overload]
    return x


def _surrounded(x: Node, pairs: Sequence[tuple[int, int]], value: Value) -> Node:
    if not any(map(any, pairs)):
        return x
    around = cast(as_node(value, like=x, where="pad"), x.dtype)
    if around.shape:
        raise ShapeError(f"pad: expected one value; got {around.type}. Give a scalar.")
    shape = tuple(n + before + after for n, (before, after) in zip(x.shape, pairs, strict=True))
    firsts, steps = tuple(before for before, _ in pairs), (1,) * x.ndim
    moved = pad_slice(x, shape, firsts, steps)
    if scalar_value(around) == 0:
        return moved
    return where(pad_slice(full(x.shape, True, bool_), shape, firsts, steps), moved, around)
