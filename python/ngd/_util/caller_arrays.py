# SPDX-License-Identifier: Apache-2.0
"""Arrays of the caller: operands that are read, and `out`, which is written.

They are arrays and array-likes of NumPy, tensors with DLPack (PyTorch, JAX, CuPy on the host), or
objects with the buffer protocol. Their memory is used without a copy if possible.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from ..dtypes import Array, DType, Shape, bfloat16
from ..errors import ShapeError


def view(array: Any, where: str) -> Array:
    """The array as NumPy sees it; `where` is the public call, for the message.

    A mask would be lost: NumPy's own functions would give the values under it.
    """
    if not isinstance(array, np.ndarray) and hasattr(array, "__dlpack__"):
        return _from_dlpack(array, where)
    if has_mask(array):
        raise TypeError(
            f"{where}: expected an array without a mask; got a masked array. Pass x.filled(value)."
        )
    try:
        return np.asarray(memoryview(array) if isinstance(array, bytes) else array)
    except ValueError as error:
        if not isinstance(array, (list, tuple)):
            raise
        raise ValueError(
            f"{where}: expected an array; got nested lists of different lengths. Make them "
            "equally long."
        ) from error


def has_mask(value: Any) -> bool:
    """Whether this is a masked array, or holds one."""
    if isinstance(value, (list, tuple)):
        return any(map(has_mask, value))
    masked = sys.modules.get("numpy.ma")  # NumPy imports it when it is first asked for
    return masked is not None and isinstance(value, masked.MaskedArray)


def _from_dlpack(array: Any, where: str) -> Array:
    """NumPy has no bfloat16 of its own and refuses it: as integers it gets through."""
    try:
        if getattr(array, "is_neg", bool)():  # PyTorch would export what is stored
            raise BufferError("its negative bit is set; resolve_neg() gives one without")
        if str(getattr(array, "dtype", "")) == "torch.bfloat16":
            return np.from_dlpack(array.view(sys.modules["torch"].int16)).view(bfloat16)
        return np.from_dlpack(array)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        if str(getattr(array, "dtype", "")) == "bfloat16":
            return np.asarray(array)
        raise TypeError(
            f"{where}: expected an array in the CPU's memory; got a {type(array).__name__} that "
            f"NumPy cannot read: {error}. Copy it to the CPU."
        ) from None


def expect_rows(out: Any, async_op: Any, dtype: DType, row: Shape, where: str) -> None:
    """Raise the error of `check_out` for an `out` that fits no number of rows.

    A call that exchanges the numbers of rows first checks its other arguments before that, so that
    a wrong one leaves the group as it was.
    """
    if not isinstance(async_op, (bool, np.bool_)):
        raise TypeError(
            f"{where}: async_op: expected a bool; got {type(async_op).__name__}. Write "
            "async_op=True."
        )
    if out is not None:
        count = tuple(getattr(out, "shape", ()))[:1] or (0,)
        check_out(out, dtype, (*count, *row), where)


def check_out(out: Any, dtype: DType, shape: Shape, where: str, name: str = "out") -> Array:
    """Return `out` as an array, or a new one for None; ShapeError if dtype or shape is another."""
    if type(out) is np.ndarray and out.shape == shape and out.dtype == dtype and out.flags.carray:
        return out
    if out is None:
        return np.empty(shape, dtype)
    if not isinstance(out, np.ndarray) and not hasattr(out, "__dlpack__"):
        try:
            memoryview(out)
        except TypeError:
            raise TypeError(
                f"{where}: {name}: expected an array (NumPy's, or with DLPack or the buffer "
                f"protocol); got {type(out).__name__}"
            ) from None
    seen = view(out, f"{where}: {name}")
    flags = seen.flags
    fits = seen.shape == shape and seen.dtype == dtype
    if not (fits and flags.c_contiguous and flags.aligned and flags.writeable):
        contiguous = "contiguous" if flags.c_contiguous else "strided"
        if not flags.aligned:
            contiguous = "misaligned"
        raise ShapeError(
            f"{where}: {name}: expected a contiguous, writable {dtype} array of shape {shape}; "
            f"got a {contiguous}{'' if flags.writeable else ', read-only'} {seen.dtype} one of "
            f'{seen.shape}. Make it by np.empty({shape}, "{dtype}").'
        )
    return seen
