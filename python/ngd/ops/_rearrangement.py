# SPDX-License-Identifier: Apache-2.0
"""Ops that reorder, repeat or pad elements. They consist of other ops that move elements."""

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
"""A dict from a mode of torch.nn.functional.pad to NumPy's name of this mode."""


@public
def moveaxis(x: Value, source: int, destination: int) -> Node:
    """Move one axis to another index. The other axes keep their order.

    Parameters
    ----------
    x : node or array
        An array of any shape and dtype.
    source : int
        The axis to move.
    destination : int
        Its index in the result.

    Examples
    --------
    ::

        >>> ngd.function(lambda x: ops.moveaxis(x, 0, -1))(np.zeros((2, 3, 4))).shape
        (3, 4, 2)
    """
    x = as_node(x, where="moveaxis")
    first = as_axis("moveaxis", source, x.ndim, x.type)
    last = as_axis("moveaxis", destination, x.ndim, x.type)
    order = [axis for axis in range(x.ndim) if axis != first]
    order.insert(last, first)
    return transpose(x, order)


@public
def swapaxes(x: Value, axis1: int, axis2: int) -> Node:
    """Exchange two axes.

    Parameters
    ----------
    x : node or array
        An array of any shape and dtype.
    axis1, axis2 : int
        The axes.

    Examples
    --------
    ::

        >>> ngd.function(lambda x: ops.swapaxes(x, 0, 2))(np.zeros((2, 3, 4))).shape
        (4, 3, 2)
    """
    x = as_node(x, where="swapaxes")
    first, second = (as_axis("swapaxes", a, x.ndim, x.type) for a in (axis1, axis2))
    order = list(range(x.ndim))
    order[first], order[second] = second, first
    return transpose(x, order)


@public
def flip(x: Value, axis: Axis = None) -> Node:
    """Reverse the order of the elements along axes, as numpy.flip.

    Parameters
    ----------
    x : node or array
        An array of any shape and dtype.
    axis : int or sequence of int, optional
        The axis or axes to reverse. The default reverses all axes.

    Examples
    --------
    ::

        >>> ngd.function(lambda x: ops.flip(x, 1))(np.array([[1, 2, 3], [4, 5, 6]]))
        array([[3, 2, 1],
               [6, 5, 4]])
    """
    x = as_node(x, where="flip")
    axes = normalize_axes("flip", axis, x.type)
    return x[tuple(slice(None, None, -1 if a in axes else 1) for a in range(x.ndim))]


@public
def flipud(x: Value) -> Node:
    """Reverse the first axis, as numpy.flipud.

    Parameters
    ----------
    x : node or array
        An array of at least one axis.

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
    x : node or array
        An array of at least two axes.

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
    x : node or array
        An array of at least two axes.
    k : int, default 1
        The number of rotations by 90 degrees, from the first axis to the second. A negative number
        rotates in the opposite direction.
    axes : pair of int, default (0, 1)
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
    num_turns = operator.index(k) % 4
    if num_turns == 2:
        return flip(flip(x, first), second)
    if num_turns == 1:
        return swapaxes(flip(x, second), first, second)
    return flip(swapaxes(x, first, second), second) if num_turns else x


@public
def roll(x: Value, shift: int | Sequence[int], axis: int | Sequence[int] | None = None) -> Node:
    """Shift elements along axes, as numpy.roll. Elements beyond the end reappear at the beginning.

    Parameters
    ----------
    x : node or array
        An array of any shape and dtype.
    shift : int or sequence of int
        The number of positions, or one number per axis. A negative number shifts towards the
        beginning.
    axis : int or sequence of int, optional
        The axis or axes. The default shifts the flattened array.

    Raises
    ------
    ShapeError
        The numbers of shifts and axes differ.

    Examples
    --------
    ::

        >>> ngd.function(lambda x: ops.roll(x, 1))(np.arange(5))
        array([4, 0, 1, 2, 3])
    """
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
        roll_axis = as_axis("roll", a, x.ndim, x.type)
        split = -distance % max(x.shape[roll_axis], 1)
        leading = (slice(None),) * roll_axis
        if split:
            x = concat([x[(*leading, slice(split, None))], x[(*leading, slice(split))]], roll_axis)
    return x


@public
def tile(x: Value, reps: int | Sequence[int]) -> Node:
    """Repeat an array along each axis, as numpy.tile.

    Parameters
    ----------
    x : node or array
        An array of any shape and dtype.
    reps : int or sequence of int
        The number of repetitions, or one number per axis. The shorter one of x.shape and reps gets
        leading 1s.

    Raises
    ------
    ShapeError
        A number of repetitions is negative.

    Examples
    --------
    ::

        >>> ngd.function(lambda x: ops.tile(x, (2, 2)))(np.array([1, 2]))
        array([[1, 2, 1, 2],
               [1, 2, 1, 2]])
    """
    x = as_node(x, where="tile")
    counts = as_shape(reps)
    if any(n < 0 for n in counts):
        raise ShapeError(f"tile: expected counts >= 0; got {reps}")
    num_axes = max(x.ndim, len(counts))
    shape, counts = (1,) * (num_axes - x.ndim) + x.shape, (1,) * (num_axes - len(counts)) + counts
    pairs = list(zip(shape, counts, strict=True))
    interleaved = reshape(x, [extent for n, _ in pairs for extent in (1, n)])
    repeated = broadcast_to(interleaved, [extent for n, count in pairs for extent in (count, n)])
    return reshape(repeated, [n * count for n, count in pairs])


@public
def tri(rows: int, columns: int | None = None, k: int = 0) -> Node:
    """Return a matrix of bools, True on and below the k-th diagonal, as numpy.tri with dtype bool.

    Parameters
    ----------
    rows : int
        The number of rows.
    columns : int, optional
        The number of columns. The default is the number of rows.
    k : int, default 0
        The number of the diagonal: 0 is the main one, positive numbers are above it.

    Examples
    --------
    ::

        >>> ngd.function(lambda: ops.tri(3))()
        array([[ True, False, False],
               [ True,  True, False],
               [ True,  True,  True]])
    """
    column_numbers = arange(rows if columns is None else columns)
    return column_numbers <= expand_dims(arange(rows), 1) + operator.index(k)


def _matrices(where_: str, x: Value) -> Node:
    """Return x as a node; ShapeError if it has fewer than two axes."""
    node = as_node(x, where=where_)
    if node.ndim < 2:
        raise ShapeError(f"{where_}: expected at least two axes; got {node.type}")
    return node


@public
def tril(x: Value, k: int = 0) -> Node:
    """Keep the elements on and below the k-th diagonal of the last two axes; the others become 0.

    Parameters
    ----------
    x : node or array
        An array of at least two axes.
    k : int, default 0
        The number of the diagonal: 0 is the main one, positive numbers are above it.

    Raises
    ------
    ShapeError
        x has fewer than two axes.

    Examples
    --------
    ::

        >>> ngd.function(lambda x: ops.tril(x))(np.array([[1, 2], [3, 4]]))
        array([[1, 0],
               [3, 4]])
    """
    node = _matrices("tril", x)
    return where(tri(node.shape[-2], node.shape[-1], k), node, zero_like(node))


@public
def triu(x: Value, k: int = 0) -> Node:
    """Keep the elements on and above the k-th diagonal of the last two axes; the others become 0.

    Parameters
    ----------
    x : node or array
        An array of at least two axes.
    k : int, default 0
        The number of the diagonal: 0 is the main one, positive numbers are above it.

    Raises
    ------
    ShapeError
        x has fewer than two axes.

    Examples
    --------
    ::

        >>> ngd.function(lambda x: ops.triu(x))(np.array([[1, 2], [3, 4]]))
        array([[1, 2],
               [0, 4]])
    """
    node = _matrices("triu", x)
    return where(tri(node.shape[-2], node.shape[-1], k - 1), zero_like(node), node)


def _widths_per_axis(x: Node, widths: Any) -> list[tuple[int, int]]:
    """Return pairs (before, after) per axis: the numbers of elements that `pad` adds."""
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
    """Add elements before and after each axis, as numpy.pad.

    Parameters
    ----------
    x : node or array
        An array of any shape and dtype.
    widths : int or nested sequence of int
        The number of elements to add: one number for all sides, one pair (before, after) for all
        axes, or one pair per axis.
    mode : str, default "constant"
        "constant" adds the value. "edge" ("replicate" in PyTorch) repeats the outermost element.
        "reflect" mirrors at the outermost element without repeating it, and "symmetric" repeats it.
        "wrap" ("circular" in PyTorch) continues with the elements from the opposite end.
    value : node or array, default 0
        A scalar, for mode "constant".

    Raises
    ------
    ValueError
        The mode is unknown.
    ShapeError
        The widths are neither a number, nor a pair, nor a pair per axis of x, or a width is
        negative, or an axis without elements is padded in a mode other than "constant".

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
    """Pad x with `value`. `pairs` has the lengths (before, after) of the padding per axis."""
    if not any(map(any, pairs)):
        return x
    fill_value = cast(as_node(value, like=x, where="pad"), x.dtype)
    if fill_value.shape:
        raise ShapeError(f"pad: expected one value; got {fill_value.type}. Give a scalar.")
    shape = tuple(n + before + after for n, (before, after) in zip(x.shape, pairs, strict=True))
    starts, steps = tuple(before for before, _ in pairs), (1,) * x.ndim
    padded = pad_slice(x, shape, starts, steps)
    if scalar_value(fill_value) == 0:
        return padded
    return where(pad_slice(full(x.shape, True, bool_), shape, starts, steps), padded, fill_value)
