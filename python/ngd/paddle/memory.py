# SPDX-License-Identifier: Apache-2.0
"""Tensors as the engine wants them: their elements end to end, as NumPy sees them.

A tensor that is not contiguous travels as a copy, and so do several that go as one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import paddle

from ..dtypes import Array, bfloat16, is_float
from ..errors import DTypeError, ShapeError

Tensor: TypeAlias = Any
"""A paddle.Tensor, dense and on the CPU."""

Finish: TypeAlias = Callable[[], None]

REDUCTIONS: Final = {0: "sum", 1: "max", 2: "min", 3: "prod", 4: "mean"}
"""By paddle.distributed.ReduceOp: SUM, MAX, MIN, PROD, AVG."""
OF_TRUTHS: Final = {0: "max", 1: "max", 2: "min", 3: "min"}
"""Of booleans a sum is an or, a product an and."""
NAMES: Final = ("SUM", "MAX", "MIN", "PROD", "AVG")


def view(tensor: Tensor, where: str) -> Array:
    """A tensor's own memory, in its shape and strides."""
    if not isinstance(tensor, paddle.Tensor):
        raise TypeError(f"{where}: expected a paddle.Tensor; got {type(tensor).__name__}")
    if not tensor.is_dense() or not tensor.place.is_cpu_place():
        raise TypeError(f"{where}: expected a dense tensor on the CPU; got one on {tensor.place}")
    own = tensor.detach()
    if own.dtype == paddle.bfloat16:
        seen: Array = np.from_dlpack(own.view(paddle.int16)).view(bfloat16)
        return seen
    try:
        return np.from_dlpack(own)
    except (BufferError, RuntimeError, TypeError) as error:
        raise TypeError(
            f"{where}: expected a dtype that NumPy can read; got {own.dtype} ({error}). Cast the "
            "tensor."
        ) from None


def elements(tensor: Tensor, where: str) -> Array:
    """What a tensor holds, end to end: its own memory where it is contiguous."""
    return as_numbers(view(tensor, where).reshape(-1))


def as_numbers(flat: Array) -> Array:
    """Complex numbers as pairs."""
    return flat.view(flat.real.dtype) if flat.dtype.kind == "c" else flat


def place(tensor: Tensor, where: str) -> tuple[Array, Finish]:
    """Memory that becomes what a tensor holds, and what puts it there."""
    seen = view(tensor, where)
    if seen.flags.c_contiguous:
        return as_numbers(seen.reshape(-1)), nothing
    held = np.empty(seen.shape, seen.dtype)

    def put() -> None:
        seen[...] = held

    return as_numbers(held.reshape(-1)), put


def joined(tensors: Sequence[Tensor], where: str) -> Array:
    """A copy of what tensors hold, end to end."""
    parts = [elements(tensor, where) for tensor in tensors]
    same_dtype(parts, where)
    return np.concatenate(parts)


def place_of_all(tensors: Sequence[Tensor], where: str) -> tuple[Array, Finish]:
    """Memory that becomes what tensors hold, end to end, and what puts it there."""
    places = [place(tensor, where) for tensor in tensors]
    same_dtype([each for each, _ in places], where)
    whole = np.empty(sum(each.size for each, _ in places), places[0][0].dtype)

    def put() -> None:
        begin = 0
        for each, finish in places:
            each[...] = whole[begin : begin + each.size]
            begin += each.size
            finish()

    return whole, put


def nothing() -> None:
    """There is nothing to put."""


def same_dtype(arrays: Sequence[Array], where: str) -> None:
    """Raise DTypeError for tensors of several dtypes."""
    dtypes = sorted({str(each.dtype) for each in arrays})
    if len(dtypes) > 1:
        raise DTypeError(f"{where}: expected tensors of one dtype; got {' and '.join(dtypes)}")


def blocks(tensors: Any, count: int, where: str, name: str) -> list[Tensor]:
    """A tensor, or an object, for each rank."""
    if not isinstance(tensors, (list, tuple)) or len(tensors) != count:
        got = len(tensors) if isinstance(tensors, (list, tuple)) else type(tensors).__name__
        raise ValueError(f"{where}: {name}: expected a list of {count}, one a rank; got {got}")
    return list(tensors)


def expect_size(array: Array, size: int, where: str, name: str) -> None:
    """Raise ShapeError for a tensor of another number of elements."""
    if array.size != size:
        raise ShapeError(f"{where}: {name}: expected {size} elements; got {array.size}")


def reduction(op: Any, tensor: Tensor, where: str) -> str:
    """The engine's name of a reduction."""
    if type(op) is not int or op not in REDUCTIONS:
        raise ValueError(f"{where}: op: expected a ReduceOp: {', '.join(NAMES)}; got {op!r}")
    seen = view(tensor, where).dtype
    name = (OF_TRUTHS if seen == np.bool_ else REDUCTIONS).get(op)
    of_pairs = seen.kind == "c" and name not in ("sum", "mean")
    of_integers = name == "mean" and seen.kind != "c" and not is_float(seen)
    if name is None or of_pairs or of_integers:
        raise DTypeError(
            f"{where}: op: expected a reduction of {seen}; got ReduceOp.{NAMES[op]}, which does "
            "not take this dtype. Cast the tensor, or use another op."
        )
    return name
