# SPDX-License-Identifier: Apache-2.0
"""Checks and conversions of the arguments of a store: keys, and the arrays of each key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from .._util.caller_arrays import view
from ..dtypes import Array, as_dtype
from ..errors import DTypeError, ShapeError

Key: TypeAlias = int | str


def keys_of(where: str, key: Any) -> list[Key]:
    """Return one key or a list of keys as a list; raise TypeError for keys of different types."""
    many = list(key) if isinstance(key, (list, tuple)) else [key]
    for each in many:
        if isinstance(each, bool) or not isinstance(each, (int, str, np.integer)):
            raise TypeError(
                f"{where}: expected a key to be an integer or a string; got {type(each).__name__}"
            )
    keys = [each if isinstance(each, str) else int(each) for each in many]
    if len({type(each) for each in keys}) > 1:
        raise TypeError(f"{where}: expected keys of one type, integers or strings; got {keys}")
    return keys


def by_key(where: str, what: str, key: Any, values: Any) -> dict[Key, list[Any]]:
    """Return the list of values of each key, unconverted.

    If a key occurs twice, its values are in one list. `where` and `what` are the call and the
    argument, for error messages.
    """
    keys = keys_of(where, key)
    per_key: Sequence[Any] = [values]
    if isinstance(key, (list, tuple)):
        if not isinstance(values, (list, tuple)) or len(values) != len(keys):
            got = len(values) if isinstance(values, (list, tuple)) else type(values).__name__
            raise ValueError(
                f"{where}: {what}: expected a list of {len(keys)}, one for each key; got {got}"
            )
        per_key = values
    found: dict[Key, list[Any]] = {}
    for name, given in zip(keys, per_key, strict=True):
        several = list(given) if isinstance(given, (list, tuple)) else [given]
        if not several:
            raise ValueError(f"{where}: {what}: expected an array for key {name!r}; got none")
        found.setdefault(name, []).extend(several)
    return found


def read(where: str, value: Any) -> Array:
    """Return a value of the caller as a contiguous array; raise an error for another dtype."""
    seen = view(value, where)
    as_dtype(seen.dtype, where)
    return np.ascontiguousarray(seen).reshape(seen.shape)


def expect_like(where: str, key: Key, given: Array, stored: Array) -> None:
    """Raise an error if a value differs from the stored one in shape or dtype."""
    if given.shape != stored.shape:
        raise ShapeError(
            f"{where}: key {key!r}: expected shape {stored.shape}, as it was initialized with; "
            f"got {given.shape}"
        )
    if given.dtype != stored.dtype:
        raise DTypeError(
            f"{where}: key {key!r}: expected {stored.dtype}, as it was initialized with; "
            f"got {given.dtype}"
        )


def target(where: str, key: Key, out: Any, shape: tuple[int, ...]) -> Array:
    """Return an `out` of the caller as an array; raise ShapeError unless a value fits into it.

    Its dtype may differ from that of the value.
    """
    if isinstance(out, np.ndarray):
        seen = out
    elif hasattr(out, "__dlpack__") or hasattr(out, "__buffer__"):
        seen = view(out, f"{where}: out")
    else:
        raise TypeError(
            f"{where}: out: expected an array for key {key!r}; got {type(out).__name__}"
        )
    if seen.shape != shape or not seen.flags.writeable:
        writable = "" if seen.flags.writeable else "read-only "
        raise ShapeError(
            f"{where}: out: expected a writable array of shape {shape} for key {key!r}; got a "
            f"{writable}one of {seen.shape}"
        )
    return seen


def total(values: list[Array]) -> Array:
    """Return the sum of a key's values, added in order.

    The result is a new array, or the array of the caller if there is only one.
    """
    if len(values) == 1:
        return values[0]
    result = values[0].copy()
    for each in values[1:]:
        result += each
    return result


def rows_of(where: str, row_ids: Any, rows: int) -> Array:
    """Return distinct row indices in ascending order; raise an error if one is not in range."""
    given = view(row_ids, f"{where}: row_ids")
    numbers = given.astype(np.int64)
    if given.ndim != 1 or (numbers != given).any():
        raise ValueError(
            f"{where}: row_ids: expected whole numbers along one axis; got {given.dtype} of shape "
            f"{given.shape}"
        )
    if len(numbers) and not (numbers.min() >= 0 and numbers.max() < rows):
        raise IndexError(
            f"{where}: row_ids: expected numbers in [0, {rows}); got {numbers.min()} to "
            f"{numbers.max()}"
        )
    return np.unique(numbers)
