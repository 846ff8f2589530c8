# SPDX-License-Identifier: Apache-2.0
"""The arrays that collectives read and write: conversion, allocation, and overlap checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .._util.caller_arrays import view
from ..dtypes import SHORT_NAMES, Array, DType, Shape, as_dtype, parse_shape
from .checks import check_out
from .kinds import Kind


def operand(array: Any, where: str) -> Array:
    """Convert an array argument of a collective to a contiguous NumPy array in native byte order.

    The array is copied only if it is not contiguous, not aligned, or in another byte order. `where`
    is the name of the public call, which error messages show.
    """
    if type(array) is np.ndarray and array.dtype in SHORT_NAMES and array.flags.carray:
        return array
    converted = view(array, where)
    dtype = as_dtype(converted.dtype.newbyteorder("="), where)
    contiguous = np.ascontiguousarray(converted, dtype).reshape(converted.shape)
    return contiguous if contiguous.flags.aligned else contiguous.copy()


def is_list(array: Any) -> bool:
    """Return True for a list or tuple of arrays, and False for anything else.

    A list of numbers is not a list of arrays, but one array.
    """
    return isinstance(array, (list, tuple)) and all(
        isinstance(a, np.ndarray) or hasattr(a, "__dlpack__") for a in array
    )


def destinations(out: Any, sources: Sequence[Array], is_sequence: bool, where: str) -> list[Array]:
    """Return one array per source, for the results of a collective.

    Each array has the shape and dtype of its source. The arrays are those that the caller gave in
    `out`, or new arrays if `out` is None. If `is_sequence` is True, the caller gave a list of
    sources, and `out` must be None or a list with one array per source. Otherwise there is one
    source, and `out` is None or one array.
    """
    if not is_sequence:
        out = [out]
    elif out is None:
        out = [None] * len(sources)
    elif not isinstance(out, (list, tuple)) or len(out) != len(sources):
        got = f"{len(out)} of them" if isinstance(out, (list, tuple)) else type(out).__name__
        raise ValueError(
            f"{where}: out: expected a list of {len(sources)} arrays; got {got}. Give one array "
            "per input."
        )
    buffers = [check_out(o, s.dtype, s.shape, where) for o, s in zip(out, sources, strict=True)]
    for source, buffer in zip(sources, buffers, strict=True):
        check_no_overlap(source, buffer, where)
    return buffers


def check_no_overlap(part: Array, full: Array, where: str, own: Array | None = None) -> None:
    """Raise ValueError if the memory of `part` and `full` overlaps, except in one case.

    One of these arrays is the source of a collective, and the other is the destination. `own` is
    this rank's block of `full`, or None, which stands for all of `full`. `part` may have exactly
    the memory of `own`, for a collective in place.
    """
    if not np.may_share_memory(part, full):
        return
    region = full if own is None else own
    if region.nbytes != part.nbytes or region.ctypes.data != part.ctypes.data:
        allowed = "the same memory" if own is None else "this rank's own block"
        raise ValueError(
            f"{where}: out: expected memory that does not overlap the array, or {allowed}; got "
            "overlapping memory. Pass a copy."
        )


def check_no_block_overlap(kind: Kind, source: Array, buffer: Array, rank: int) -> None:
    """Raise ValueError if the source and the destination of a collective overlap.

    One overlap is allowed: the smaller array may be this rank's block of the larger one.
    """
    if kind.operand == kind.result:
        check_no_overlap(source, buffer, kind.name)
    elif kind.result == "blocks":
        rows = len(source)
        check_no_overlap(source, buffer, kind.name, buffer[rank * rows :][:rows])
    else:
        rows = len(buffer)
        check_no_overlap(buffer, source, kind.name, source[rank * rows :][:rows])


def check_disjoint(source: Array, buffer: Array, where: str) -> None:
    """Raise ValueError if the memory of the source and the destination overlaps."""
    if np.may_share_memory(source, buffer):
        raise ValueError(
            f"{where}: out: expected memory that does not overlap the array; got overlapping "
            "memory. Pass a copy."
        )


def destination_along(
    out: Any, dtype: DType, shape: Shape, axis: int, where: str
) -> tuple[Array, Callable[[], Any]]:
    """Return (buffer, finish): the buffer that the collective writes, and a function.

    `shape` is the shape of the buffer. Call `finish()` after the collective. It returns the result
    of the public call: `out`, or a new array if `out` is None.

    The user splits or concatenates along `axis`, but the collective always does so along axis 0.
    If `axis` is 0, the buffer is the memory of the result. Otherwise `finish()` moves axis 0 of the
    buffer to position `axis`, and copies the data to the result. For example, with `axis` 1 a
    buffer of shape (4, 2, 3) gives a result of shape (2, 4, 3).
    """
    if axis == 0:
        buffer = check_out(out, dtype, shape, where)
        result = buffer if out is None else out
        return buffer, lambda: result
    buffer = np.empty(shape, dtype)
    moved_view = np.moveaxis(buffer, 0, axis)
    if out is None:
        return buffer, lambda: np.ascontiguousarray(moved_view)
    destination = check_out(out, dtype, moved_view.shape, where)

    def put() -> Any:
        destination[...] = moved_view
        return out

    return buffer, put


def receive_buffer(out: Any, shape: Shape | None, dtype: Any, where: str) -> Array:
    """Return the array for received data: `out`, or a new one of the given shape and dtype."""
    if out is not None and shape is None and dtype is None:
        buffer = operand(out, f"{where}: out")
        return check_out(out, buffer.dtype, buffer.shape, where)
    if shape is None or dtype is None:
        raise TypeError(
            f"{where}: expected out, or shape and dtype, of the received array; got neither"
        )
    element_type = as_dtype(dtype, where)
    return check_out(out, element_type, parse_shape(shape, where, element_type.itemsize), where)
