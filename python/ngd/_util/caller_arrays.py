# SPDX-License-Identifier: Apache-2.0
"""Conversion of the caller's arrays to NumPy arrays, without a copy if possible.

The caller may give NumPy arrays and array-likes, tensors in host memory that support DLPack (of
PyTorch, JAX or CuPy), or objects with the buffer protocol.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from ..dtypes import Array, bfloat16


def view(array: Any, where: str) -> Array:
    """Return an array of the caller as a NumPy array.

    Raise TypeError for a masked array, because the mask would be lost. `where` is the name of the
    public call, which error messages show.
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
    """Return True if a value is a masked array, or a list or tuple that contains one."""
    if isinstance(value, (list, tuple)):
        return any(map(has_mask, value))
    masked = sys.modules.get("numpy.ma")  # NumPy imports it at its first use
    return masked is not None and isinstance(value, masked.MaskedArray)


def _from_dlpack(array: Any, where: str) -> Array:
    """Return a DLPack tensor as an array. A bfloat16 tensor becomes an array of dtype bfloat16."""
    try:
        if getattr(array, "is_neg", bool)():  # PyTorch would export the stored values
            raise BufferError("its negative bit is set; call resolve_neg()")
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
