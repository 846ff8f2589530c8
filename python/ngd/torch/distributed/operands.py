# SPDX-License-Identifier: Apache-2.0
"""Functions that prepare tensors and reductions of PyTorch for the collectives of ngd's core.

The core reads and writes contiguous memory. So a tensor that is not contiguous is replaced by a
contiguous copy. A list of tensors that do not directly follow each other in memory is replaced by
one copy of all of them. After the core has received into such memory, the class Work copies the
data to the user's tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor
from torch.distributed import ReduceOp

from ... import dtypes

DTYPES: Final = {getattr(torch, dtype.name): dtype.name for dtype in dtypes.ALL}
"""The names of ngd's dtypes, by dtype of PyTorch."""

REDUCTIONS: Final = {
    "SUM": "sum",
    "AVG": "mean",
    "MIN": "min",
    "MAX": "max",
    "PRODUCT": "prod",
    "PREMUL_SUM": "sum",  # scale_operand() multiplies the operand by the factor
}
"""ngd's reductions, by the name in torch.distributed.ReduceOp."""
BOOLEAN_REDUCTIONS: Final = {
    "SUM": "max",
    "MAX": "max",
    "BOR": "max",
    "PRODUCT": "min",
    "MIN": "min",
    "BAND": "min",
}
"""ngd's reductions of booleans, by the name in torch.distributed.ReduceOp. For booleans, a sum is a
logical or (max), and a product is a logical and (min)."""

COMPLEX_REDUCTIONS: Final = {name: REDUCTIONS[name] for name in ("SUM", "AVG", "PREMUL_SUM")}
"""The reductions of complex numbers, which are sent as pairs of real numbers."""


def check(tensor: Tensor, where: str) -> None:
    """Raise TypeError unless the tensor is on the CPU and not sparse (its layout is strided)."""
    if not tensor.is_cpu or tensor.layout is not torch.strided:
        raise TypeError(
            f"{where}: expected a dense tensor on the CPU; got a {tensor.layout} tensor on "
            f"{tensor.device}. Convert it: tensor.cpu(), tensor.to_dense()."
        )


def reduction(op: ReduceOp, dtype: torch.dtype, where: str) -> str:
    """Return the name of ngd's reduction for `op`; ValueError if `dtype` does not support it."""
    table = (
        BOOLEAN_REDUCTIONS
        if dtype is torch.bool
        else COMPLEX_REDUCTIONS
        if dtype.is_complex
        else REDUCTIONS
    )
    for name_in_torch, name in table.items():
        if op == getattr(ReduceOp, name_in_torch):
            return name
    others = (*REDUCTIONS, "BAND", "BOR", "BXOR")
    got = next((name for name in others if op == getattr(ReduceOp, name)), op)
    raise ValueError(f"{where}: expected one of {', '.join(table)} for {dtype}; got {got}")


def scale_operand(op: ReduceOp, tensor: Tensor) -> Tensor:
    """Return the operand of a reduction.

    For PREMUL_SUM, this is a new tensor: `tensor` times the factor of the op. For any other op, it
    is `tensor` itself.
    """
    if op != ReduceOp.PREMUL_SUM:
        return tensor
    return tensor.detach() * op.__getstate__()[1]


def is_plain(tensor: Tensor) -> bool:
    """Return True if a tensor is contiguous, and not lazily conjugated or negated."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def contiguous(tensor: Tensor) -> Tensor:
    """Return the tensor itself, or a contiguous copy.

    A tensor is copied if it is not contiguous, or if it is lazily conjugated or negated.
    """
    if is_plain(tensor):
        return tensor
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def destination_for(tensor: Tensor) -> Tensor:
    """Return contiguous memory to receive into: the tensor itself, or a new tensor.

    A new tensor is needed if the tensor is not contiguous, or lazily conjugated or negated.
    """
    if is_plain(tensor):
        return tensor
    return torch.empty(tensor.shape, dtype=tensor.dtype)


def first_if_adjacent(tensors: Sequence[Tensor]) -> Tensor | None:
    """Return the first tensor if the others follow it directly in memory; otherwise None."""
    address = tensors[0].data_ptr()
    for tensor in tensors:
        if tensor.data_ptr() != address or not is_plain(tensor):
            return None
        address += tensor.numel() * tensor.element_size()
    return tensors[0]


def pack(tensors: Sequence[Tensor]) -> Tensor:
    """Return memory with the elements of all tensors: their own if they are adjacent, or a copy."""
    adjacent = first_if_adjacent(tensors)
    return (
        adjacent if adjacent is not None else torch.cat([t.detach().reshape(-1) for t in tensors])
    )


def destination_for_all(tensors: Sequence[Tensor]) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """Return memory to receive all tensors into, and a list of pairs (tensor, part of the memory).

    After the receive, the caller copies each part to the tensor of its pair. If the tensors are
    adjacent in memory, their own memory is returned, and the list is empty.
    """
    adjacent = first_if_adjacent(tensors)
    if adjacent is not None:
        return adjacent, []
    sizes = [tensor.numel() for tensor in tensors]
    buffer = torch.empty(sum(sizes), dtype=tensors[0].dtype)
    parts = zip(tensors, buffer.split(sizes), strict=True)
    return buffer, [(tensor, part.view(tensor.shape)) for tensor, part in parts]


def wire(tensor: Tensor) -> tuple[str, int]:
    """Return the dtype in which a tensor is sent, and the number of values per element.

    A complex number is sent as two real numbers. If ngd does not have the dtype, the tensor is sent
    as bytes: the dtype is uint8, and the number of values is the size of an element in bytes.
    """
    name = DTYPES.get(tensor.dtype)
    if name is not None:
        return name, 1
    part = tensor.dtype.to_real() if tensor.dtype.is_complex else None
    if part in DTYPES:
        return DTYPES[part], 2
    return "uint8", tensor.element_size()
