# SPDX-License-Identifier: Apache-2.0
"""Conversion of Paddle's tensors to the NumPy arrays that ngd's collectives send and fill.

A contiguous tensor is sent and filled in its own memory. Other tensors, and several tensors that
are sent in one message, are copied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import paddle

from ..dtypes import Array, bfloat16, is_float
from ..errors import DTypeError, ShapeError

Tensor: TypeAlias = Any
"""A dense paddle.Tensor on the CPU."""

Finish: TypeAlias = Callable[[], None]
"""A function that copies received data to its destination, or does nothing (`no_copy`)."""

REDUCTIONS: Final = {0: "sum", 1: "max", 2: "min", 3: "prod", 4: "mean"}
"""A map from the number of a paddle.distributed.ReduceOp to ngd's name of the reduction.

The numbers from 0 to 4 are SUM, MAX, MIN, PROD and AVG.
"""
BOOLEAN_REDUCTIONS: Final = {0: "max", 1: "max", 2: "min", 3: "min"}
"""A map from the number of a paddle.distributed.ReduceOp to ngd's reduction of booleans.

SUM and MAX are a logical or, which is "max". MIN and PROD are a logical and, which is "min". AVG is
absent, because booleans have no average.
"""
NAMES: Final = ("SUM", "MAX", "MIN", "PROD", "AVG")
"""The names of paddle.distributed.ReduceOp. The index is the number of the reduction."""


def view(tensor: Tensor, where: str) -> Array:
    """Return the memory of a tensor as an array with the shape and strides of the tensor."""
    if not isinstance(tensor, paddle.Tensor):
        raise TypeError(f"{where}: expected a paddle.Tensor; got {type(tensor).__name__}")
    if not tensor.is_dense() or not tensor.place.is_cpu_place():
        raise TypeError(f"{where}: expected a dense tensor on the CPU; got one on {tensor.place}")
    detached = tensor.detach()
    if detached.dtype == paddle.bfloat16:
        seen: Array = np.from_dlpack(detached.view(paddle.int16)).view(bfloat16)
        return seen
    try:
        return np.from_dlpack(detached)
    except (BufferError, RuntimeError, TypeError) as error:
        raise TypeError(
            f"{where}: expected a dtype that NumPy can read; got {detached.dtype} ({error}). "
            "Cast the tensor."
        ) from None


def elements(tensor: Tensor, where: str) -> Array:
    """Return the elements of a tensor as a one-dimensional array.

    If the tensor is contiguous, the array is the tensor's own memory. Otherwise the array is a
    view if NumPy can make one, and else a copy. A complex number becomes two real elements.
    """
    return as_numbers(view(tensor, where).reshape(-1))


def as_numbers(flat: Array) -> Array:
    """Return a real view of a flat complex array, or any other array as it is.

    The view is flat too, and has twice as many elements: real part, imaginary part, and so on.
    """
    return flat.view(flat.real.dtype) if flat.dtype.kind == "c" else flat


def destination_for(tensor: Tensor, where: str) -> tuple[Array, Finish]:
    """Return a contiguous array to receive into, and a function to call after the receive.

    If the tensor is contiguous, the array is the tensor's memory and the function does nothing.
    Otherwise the function copies the array to the tensor.
    """
    array = view(tensor, where)
    if array.flags.c_contiguous:
        return as_numbers(array.reshape(-1)), no_copy
    staging = np.empty(array.shape, array.dtype)

    def put() -> None:
        array[...] = staging

    return as_numbers(staging.reshape(-1)), put


def concatenate(tensors: Sequence[Tensor], where: str) -> Array:
    """Return one flat array with a copy of the elements of several tensors, in their order."""
    parts = [elements(tensor, where) for tensor in tensors]
    same_dtype(parts, where)
    return np.concatenate(parts)


def destination_for_all(tensors: Sequence[Tensor], where: str) -> tuple[Array, Finish]:
    """Return one flat array to receive several tensors into, and a function to call afterwards.

    The array has the elements of the tensors one after the other. The function copies the elements
    to the tensors.
    """
    destinations = [destination_for(tensor, where) for tensor in tensors]
    same_dtype([each for each, _ in destinations], where)
    whole = np.empty(sum(each.size for each, _ in destinations), destinations[0][0].dtype)

    def put() -> None:
        begin = 0
        for each, finish in destinations:
            each[...] = whole[begin : begin + each.size]
            begin += each.size
            finish()

    return whole, put


def no_copy() -> None:
    """Do nothing: the data is already at its destination."""


def same_dtype(arrays: Sequence[Array], where: str) -> None:
    """Raise DTypeError if the arrays have different dtypes; otherwise return None."""
    dtypes = sorted({str(each.dtype) for each in arrays})
    if len(dtypes) > 1:
        raise DTypeError(f"{where}: expected tensors of one dtype; got {' and '.join(dtypes)}")


def blocks(tensors: Any, count: int, where: str, name: str) -> list[Tensor]:
    """Return `tensors`, a list or tuple with one tensor per rank, as a list.

    Raise ValueError if `tensors` is not a list or tuple, or does not have `count` elements. `count`
    is the number of ranks. The message shows `where`, the public call, and `name`, the argument.
    """
    if not isinstance(tensors, (list, tuple)) or len(tensors) != count:
        got = len(tensors) if isinstance(tensors, (list, tuple)) else type(tensors).__name__
        raise ValueError(f"{where}: {name}: expected a list of {count}, one per rank; got {got}")
    return list(tensors)


def expect_size(array: Array, size: int, where: str, name: str) -> None:
    """Raise ShapeError if an array does not have `size` elements."""
    if array.size != size:
        raise ShapeError(f"{where}: {name}: expected {size} elements; got {array.size}")


def reduction(op: Any, tensor: Tensor, where: str) -> str:
    """Return the name of ngd's reduction for `op`, a number of paddle.distributed.ReduceOp.

    Raise ValueError for an unknown number, and DTypeError if the reduction does not support the
    dtype of the tensor.
    """
    if type(op) is not int or op not in REDUCTIONS:
        raise ValueError(f"{where}: op: expected a ReduceOp: {', '.join(NAMES)}; got {op!r}")
    dtype = view(tensor, where).dtype
    name = (BOOLEAN_REDUCTIONS if dtype == np.bool_ else REDUCTIONS).get(op)
    is_complex_unsupported = dtype.kind == "c" and name not in ("sum", "mean")
    is_integer_mean = name == "mean" and dtype.kind != "c" and not is_float(dtype)
    if name is None or is_complex_unsupported or is_integer_mean:
        raise DTypeError(
            f"{where}: op: expected a reduction of {dtype}; got ReduceOp.{NAMES[op]}, which does "
            "not take this dtype. Cast the tensor, or use another op."
        )
    return name
