# SPDX-License-Identifier: Apache-2.0
"""The arguments of a compiled step: arrays by position or by name, checked and converted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from .._util.caller_arrays import view
from ..dtypes import Array, DType, Type, bfloat16, is_float
from ..errors import ShapeError
from ..graph.node import Node

STATIC: Final = (
    "Shapes are static: compile another step for this shape, or use @ngd.function, which compiles "
    "one per shape."
)


def order_arguments(
    where: str, names: Sequence[str], given: Sequence[Any], named: Mapping[str, Any]
) -> list[Any]:
    """Return all arguments in the order of the inputs, or raise a TypeError.

    `given` has the arguments by position, which come first. `named` has those by name.
    """
    listing = ", ".join(names)
    for name in named:
        if names.count(name) != 1:
            got_text = f"{name!r}, the name of {names.count(name)} inputs: give those by position"
            got_text = got_text if name in names else f"{name!r}"
            raise TypeError(f"{where}: expected inputs by name among ({listing}); got {got_text}.")
        if names.index(name) < len(given):
            raise TypeError(
                f"{where}: expected input {name!r} once; got it by position and by name. "
                "Give it once."
            )
    missing = [name for name in names[len(given) :] if name not in named]
    if missing or len(given) > len(names):
        count = len(given) + len(named)
        number = "1 array" if len(names) == 1 else f"{len(names)} arrays"
        lacking = f", without {', '.join(missing)}" if missing else ""
        raise TypeError(
            f"{where}: expected {number} ({listing}); got {count}{lacking}. Give one per input."
        )
    return [*given, *(named[name] for name in names[len(given) :])]


def convert(value: Any, target: Type, where: str) -> Array:
    """Return an argument as an array of a type, or raise an error if the conversion loses values.

    `where` is the beginning of the error message. It names the step and the input.
    """
    if isinstance(value, Node):
        raise TypeError(
            f"{where}: expected an array {target}; got {value!r}. A step takes arrays; call the "
            "Python function that builds the graph to apply it to a node."
        )
    try:
        array = view(value, where)
    except ValueError as error:
        got = "lists of different lengths" if isinstance(value, (list, tuple)) else error
        raise ShapeError(f"{where}: expected {target}; got {got}") from None
    if array.dtype.kind in "OSU":
        got = "Python's objects" if isinstance(value, np.ndarray) else type(value).__name__
        got = "text" if array.dtype.kind in "SU" else got
        raise TypeError(
            f"{where}: expected an array {target}; got {got}. Give an array or numbers."
        )
    if array.shape != target.shape:
        raise ShapeError(f"{where}: expected shape {target.shape}; got {array.shape}. {STATIC}")
    if not is_python(value):
        if not np.can_cast(array.dtype, target.dtype, "safe"):
            name = "ngd.bfloat16" if target.dtype == bfloat16 else f"np.{target.dtype.name}"
            raise TypeError(
                f"{where}: expected dtype {target.dtype}; got {array.dtype}, which can "
                f"hold values that {target.dtype} cannot. Convert it: .astype({name})."
            )
        return np.ascontiguousarray(array, target.dtype).reshape(target.shape)
    with np.errstate(over="ignore"):
        converted = array.astype(target.dtype) if is_kind_allowed(array, target.dtype) else None
    if converted is None or loses_values(array, converted):
        raise TypeError(f"{where}: expected a value of {target.dtype}; got {value!r}")
    return np.ascontiguousarray(converted).reshape(target.shape)


def is_python(value: Any) -> bool:
    """Return whether an argument is a Python number, or a list or tuple of Python numbers.

    `convert` casts Python numbers to the dtype of the step's input if their values allow it: 1.0
    becomes a float16. An array is cast only if its dtype allows it (NumPy's "safe" casting): a
    float64 array never becomes a float16 array.
    """
    if isinstance(value, (list, tuple)):
        return all(map(is_python, value))
    return isinstance(value, (bool, int, float))


def is_kind_allowed(array: Array, dtype: DType) -> bool:
    """Return whether a dtype accepts Python numbers that NumPy has read as `array`.

    All dtypes accept bools, all except bool accept integers, and only floats accept floats.
    """
    if array.size == 0 or array.dtype.kind == "b":
        return True
    if array.dtype.kind in "iu":
        return dtype.kind != "b"
    return array.dtype.kind == "f" and is_float(dtype)


def loses_values(array: Array, converted: Array) -> bool:
    """Return whether a conversion has changed an integer, or has made a finite float infinite.

    The rounding of a float does not count as a loss.
    """
    if array.dtype.kind == "f":
        return bool((np.isinf(converted) != np.isinf(array)).any())
    return bool((converted.astype(object) != array.astype(object)).any())
