# SPDX-License-Identifier: Apache-2.0
"""Dtypes, and the type of a tensor: a dtype and a shape.

The dtypes are those of NumPy, and bfloat16 of ml_dtypes.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from .errors import DTypeError, ShapeError

Array: TypeAlias = NDArray[Any]
DType: TypeAlias = np.dtype[Any]
Shape: TypeAlias = tuple[int, ...]

bool_: Final = np.dtype(np.bool_)
int8: Final = np.dtype(np.int8)
int16: Final = np.dtype(np.int16)
int32: Final = np.dtype(np.int32)
int64: Final = np.dtype(np.int64)
uint8: Final = np.dtype(np.uint8)
uint16: Final = np.dtype(np.uint16)
uint32: Final = np.dtype(np.uint32)
uint64: Final = np.dtype(np.uint64)
float16: Final = np.dtype(np.float16)
bfloat16: Final = np.dtype(ml_dtypes.bfloat16)
float32: Final = np.dtype(np.float32)
float64: Final = np.dtype(np.float64)

SHORT_NAMES: Final[dict[np.dtype[Any], str]] = {
    bool_: "bool",
    int8: "i8",
    int16: "i16",
    int32: "i32",
    int64: "i64",
    uint8: "u8",
    uint16: "u16",
    uint32: "u32",
    uint64: "u64",
    float16: "f16",
    bfloat16: "bf16",
    float32: "f32",
    float64: "f64",
}
"""All dtypes of ngd, each with its name in printed graphs and programs."""

SIGNED: Final = (int8, int16, int32, int64)
UNSIGNED: Final = (uint8, uint16, uint32, uint64)
INTEGERS: Final = SIGNED + UNSIGNED
FLOATS: Final = (float16, bfloat16, float32, float64)
NUMBERS: Final = INTEGERS + FLOATS
ALL: Final = (bool_, *NUMBERS)


class Type:
    """A dtype and a static shape. Equal types are the same object.

    Parameters
    ----------
    dtype : dtype
        The dtype of the elements.
    shape : tuple of ints
        The size of each axis.
    """

    __slots__ = ("bytes", "count", "dtype", "shape")

    dtype: DType
    shape: Shape
    count: int
    """The number of elements."""
    bytes: int
    """The size of a dense tensor of this type, in bytes."""

    def __new__(cls, dtype: DType, shape: Shape) -> Type:
        """Return the existing type of this dtype and shape (in `_types`), or create it."""
        instance = _types.get((dtype, shape))
        if instance is None:
            instance, set_once = object.__new__(cls), object.__setattr__
            set_once(instance, "dtype", np.dtype(dtype))
            set_once(instance, "shape", tuple(map(int, shape)))
            set_once(instance, "count", math.prod(instance.shape))
            set_once(instance, "bytes", instance.count * instance.dtype.itemsize)
            instance = _types.setdefault((instance.dtype, instance.shape), instance)
        return instance

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(
            f"Type: expected no assignment, as a Type does not change; got {name} = {value!r}"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return Type, (self.dtype, self.shape)

    def __repr__(self) -> str:
        return f"Type({self})"

    def __str__(self) -> str:
        return f"{self.dtype.name}[{', '.join(map(str, self.shape))}]"

    @property
    def short(self) -> str:
        """The short form in printed graphs and programs, such as f32[2,3]."""
        return f"{SHORT_NAMES[self.dtype]}[{','.join(map(str, self.shape))}]"


_types: Final[dict[tuple[DType, Shape], Type]] = {}
"""All types that exist, by dtype and shape."""


FAMILIES: Final = (("numbers", NUMBERS), ("integers", INTEGERS), ("floats", FLOATS))
"""The groups of dtypes that error messages name by one word, larger groups first."""


def describe_dtypes(allowed: Sequence[DType]) -> str:
    """Describe dtypes for an error message, such as "float32 or integers" (all integer dtypes)."""
    if set(allowed) == set(ALL):
        return "any dtype"
    remaining, group_names = list(allowed), list[str]()
    for family, members in FAMILIES:
        if set(members) <= set(remaining):
            remaining = [dtype for dtype in remaining if dtype not in members]
            group_names.append(family)
    names = ["bools" if dtype == bool_ and group_names else dtype.name for dtype in remaining]
    *first, last = names + group_names
    return f"{', '.join(first)} or {last}" if first else last


def as_dtype(value: Any, where: str) -> np.dtype[Any]:
    """Return `value` as a dtype of ngd, or raise DTypeError.

    `where` is the name of the public function, for the error message.
    """
    dtype: np.dtype[Any] | None
    try:
        dtype = bfloat16 if value == "bfloat16" else np.dtype(value)
    except TypeError:
        dtype = None
    if dtype is None or dtype not in SHORT_NAMES:
        is_of_array = isinstance(value, np.dtype)
        fix = (
            "Convert the array: .astype(np.float32)."
            if is_of_array
            else 'Write its name: "float32".'
        )
        raise DTypeError(
            f"{where}: expected a dtype among bool, int8 to int64, uint8 to uint64, float16, "
            f"bfloat16, float32 and float64; got {value!r}. {fix}"
        )
    return dtype


def as_int(value: Any, where: str, name: str, bits: int = 32) -> int:
    """Return an integer argument as an int; raise ValueError if it does not fit into `bits` bits.

    Raise TypeError if it is not an integer. `where` and `name` are the names of the public function
    and of its argument, for the error message. The C++ core takes most integers with 32 bits.
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(
            f"{where}: {name}: expected a whole number; got {value!r}. Give an integer."
        ) from None
    if not -(2 ** (bits - 1)) <= number < 2 ** (bits - 1):
        raise ValueError(
            f"{where}: {name}: expected a number of {bits} bits; got {number}. Give a smaller "
            "number."
        )
    return number


def parse_shape(shape: Any, where: str, itemsize: int = 1) -> tuple[int, ...]:
    """Return a shape argument as a tuple; a single length is a shape with one axis.

    Raise ShapeError for a negative length, or if the array would have 2**63 bytes or more.
    """
    is_sequence = isinstance(shape, (tuple, list)) or getattr(shape, "ndim", 0) == 1
    extents = tuple(as_int(n, where, "shape", 64) for n in (shape if is_sequence else (shape,)))
    if any(n < 0 for n in extents):
        raise ShapeError(f"{where}: shape: expected lengths >= 0; got {shape}")
    if math.prod(extents) * itemsize >= 2**63:
        raise ShapeError(
            f"{where}: shape: expected fewer than 2**63 bytes; got {shape}. Make the array smaller."
        )
    return extents


def is_float(dtype: np.dtype[Any]) -> bool:
    """Return True if tensors of this dtype can have gradients."""
    return dtype in FLOATS


def promote(*operands: Any) -> np.dtype[Any]:
    """Return the dtype of the result of an operation, by the rules of NumPy 2.

    `operands` are dtypes and Python scalars. Python scalars are weak: they take the dtype of the
    other operands if their kind allows it. If NumPy has no common dtype, as for float16 with
    bfloat16, the result is float32.
    """
    if bfloat16 in operands:  # NumPy does not treat bfloat16 as a float with Python scalars
        operands = tuple(o for o in operands if not isinstance(o, (bool, int, float)))
    try:
        dtype = np.result_type(*operands)
    except TypeError:
        dtype = float32
    if dtype not in SHORT_NAMES:
        raise DTypeError(
            f"promote: expected dtypes that ngd has; got {', '.join(map(str, operands))}"
        )
    return dtype


ALIGNMENT: Final = 64
"""The alignment of every value in memory, in bytes."""


def align_up(size: int) -> int:
    """Return a size rounded up to ALIGNMENT."""
    return -(-size // ALIGNMENT) * ALIGNMENT
