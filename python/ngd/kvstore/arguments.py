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
    items = list(key) if isinstance(key, (list, tuple)) else [key]
    for each in items:
        if isinstance(each, bool) or not isinstance(each, (int, str, np.integer)):
            raise TypeError(
                f"{where}: expected a key to be an integer or a string; got {type(each).__name__}"
            )
    keys = [each if isinstance(each, str) else int(each) for each in items]
    if len({type(each) for each in keys}) > 1:
        raise TypeError(f"{where}: expected keys of one type, integers or strings; got {keys}")
    return keys


def by_key(where: str, what: str, key: Any, values: Any) -> dict[Key, list[Any]]:
    """Return a dict of each key's list of values. The values are not converted or copied.

    `key` is one key and `values` is its value, or `key` is a list of keys and `values` is a list
    with one value per key. A value may be a list itself: then all its elements are values of the
    key. If a key occurs twice in `key`, its list has the values of both occurrences. Error messages
    show `where`, the public call, and `what`, the name of the argument `values`.
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
    values_of_key: dict[Key, list[Any]] = {}
    for name, value in zip(keys, per_key, strict=True):
        arrays = list(value) if isinstance(value, (list, tuple)) else [value]
        if not arrays:
            raise ValueError(f"{where}: {what}: expected an array for key {name!r}; got none")
        values_of_key.setdefault(name, []).extend(arrays)
    return values_of_key


def read(where: str, value: Any) -> Array:
    """Return an array argument of the public call `where` as a contiguous NumPy array.

    An array that is contiguous already is not copied. Raise DTypeError if ngd does not support the
    dtype. Error messages show `where`.
    """
    array = view(value, where)
    as_dtype(array.dtype, where)
    return np.ascontiguousarray(array).reshape(array.shape)


def expect_like(where: str, key: Key, array: Array, stored: Array) -> None:
    """Raise ShapeError or DTypeError if `array` has another shape or dtype than `stored`."""
    if array.shape != stored.shape:
        raise ShapeError(
            f"{where}: key {key!r}: expected shape {stored.shape}, as it was initialized with; "
            f"got {array.shape}"
        )
    if array.dtype != stored.dtype:
        raise DTypeError(
            f"{where}: key {key!r}: expected {stored.dtype}, as it was initialized with; "
            f"got {array.dtype}"
        )


def target(where: str, key: Key, out: Any, shape: tuple[int, ...]) -> Array:
    """Return the caller's `out` for a key as a NumPy array.

    Raise ShapeError unless it is writable and has the shape of the value. Its dtype may differ from
    that of the value.
    """
    if isinstance(out, np.ndarray):
        array = out
    elif hasattr(out, "__dlpack__") or hasattr(out, "__buffer__"):
        array = view(out, f"{where}: out")
    else:
        raise TypeError(
            f"{where}: out: expected an array for key {key!r}; got {type(out).__name__}"
        )
    if array.shape != shape or not array.flags.writeable:
        writable = "" if array.flags.writeable else "read-only "
        raise ShapeError(
            f"{where}: out: expected a writable array of shape {shape} for key {key!r}; got a "
            f"{writable}one of {array.shape}"
        )
    return array


def total(values: list[Array]) -> Array:
    """Return the sum of the arrays that this rank pushed for one key, added in order.

    A rank may push several arrays for a key, for example one array per device. If `values` has only
    one array, the result is that array itself. Otherwise the result is a new array.
    """
    if len(values) == 1:
        return values[0]
    result = values[0].copy()
    for each in values[1:]:
        result += each
    return result


def rows_of(where: str, row_ids: Any, rows: int) -> Array:
    """Return the distinct indices of `row_ids` in ascending order, as int64.

    `rows` is the number of rows of the value that is indexed. Raise ValueError unless `row_ids` has
    one dimension and whole numbers. Raise IndexError if an index is negative or not less than
    `rows`.
    """
    array = view(row_ids, f"{where}: row_ids")
    indices = array.astype(np.int64)
    if array.ndim != 1 or (indices != array).any():
        raise ValueError(
            f"{where}: row_ids: expected whole numbers along one axis; got {array.dtype} of shape "
            f"{array.shape}"
        )
    if len(indices) and not (indices.min() >= 0 and indices.max() < rows):
        raise IndexError(
            f"{where}: row_ids: expected numbers in [0, {rows}); got {indices.min()} to "
            f"{indices.max()}"
        )
    return np.unique(indices)
