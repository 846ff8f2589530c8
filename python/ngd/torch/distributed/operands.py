# SPDX-License-Identifier: Apache-2.0
"""Tensors as the engine wants them: an address, a dtype's name, a number of elements.

A tensor that is not contiguous travels as a contiguous copy, and so does a list of tensors that do
not lie end to end; what was received is copied back by Work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor
from torch.distributed import ReduceOp

from ... import dtypes

DTYPES: Final = {getattr(torch, dtype.name): dtype.name for dtype in dtypes.ALL}

REDUCTIONS: Final = {
    "SUM": "sum",
    "AVG": "mean",
    "MIN": "min",
    "MAX": "max",
    "PRODUCT": "prod",
    "PREMUL_SUM": "sum",  # of what premultiplied() has scaled
}
OF_TRUTHS: Final = {
    "SUM": "max",
    "MAX": "max",
    "BOR": "max",
    "PRODUCT": "min",
    "MIN": "min",
    "BAND": "min",
}
"""Reductions of booleans."""

OF_PAIRS: Final = {name: REDUCTIONS[name] for name in ("SUM", "AVG", "PREMUL_SUM")}
"""Reductions of complex numbers, whose two parts travel as two numbers."""


def check(tensor: Tensor, where: str) -> None:
    """Refuse what is no dense tensor of the CPU."""
    if not tensor.is_cpu or tensor.layout is not torch.strided:
        raise TypeError(
            f"{where}: expected a dense tensor on the CPU; got a {tensor.layout} tensor on "
            f"{tensor.device}. Convert it: tensor.cpu(), tensor.to_dense()."
        )


def reduction(op: ReduceOp, dtype: torch.dtype, where: str) -> str:
    """The engine's name of a reduction."""
    table = OF_TRUTHS if dtype is torch.bool else OF_PAIRS if dtype.is_complex else REDUCTIONS
    for known, name in table.items():
        if op == getattr(ReduceOp, known):
            return name
    others = (*REDUCTIONS, "BAND", "BOR", "BXOR")
    got = next((name for name in others if op == getattr(ReduceOp, name)), op)
    raise ValueError(f"{where}: expected one of {', '.join(table)} for {dtype}; got {got}")


def premultiplied(op: ReduceOp, tensor: Tensor) -> Tensor:
    """What is to be summed: for ReduceOp.PREMUL_SUM, the tensor times the factor."""
    if op != ReduceOp.PREMUL_SUM:
        return tensor
    return tensor.detach() * op.__getstate__()[1]


def is_plain(tensor: Tensor) -> bool:
    """Whether its memory is its elements, end to end: not conjugated or negated when it is read."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def contiguous(tensor: Tensor) -> Tensor:
    """The tensor, or a contiguous copy."""
    if is_plain(tensor):
        return tensor
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def place_for(tensor: Tensor) -> Tensor:
    """Contiguous memory for what is to be received: the tensor's own, if it can be."""
    if is_plain(tensor):
        return tensor
    return torch.empty(tensor.shape, dtype=tensor.dtype)


def joined(tensors: Sequence[Tensor]) -> Tensor | None:
    """The first tensor if all lie end to end behind it."""
    address = tensors[0].data_ptr()
    for tensor in tensors:
        if tensor.data_ptr() != address or not is_plain(tensor):
            return None
        address += tensor.numel() * tensor.element_size()
    return tensors[0]


def packed(tensors: Sequence[Tensor]) -> Tensor:
    """Memory that holds the tensors' elements end to end: their own, or a copy."""
    there = joined(tensors)
    return there if there is not None else torch.cat([t.detach().reshape(-1) for t in tensors])


def place_for_all(tensors: Sequence[Tensor]) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """Memory for blocks end to end, and what is to be copied from it afterwards: (to, from)."""
    there = joined(tensors)
    if there is not None:
        return there, []
    sizes = [tensor.numel() for tensor in tensors]
    place = torch.empty(sum(sizes), dtype=tensors[0].dtype)
    parts = zip(tensors, place.split(sizes), strict=True)
    return place, [(tensor, part.view(tensor.shape)) for tensor, part in parts]


def wire(tensor: Tensor) -> tuple[str, int]:
    """How an element travels: as so many numbers of a dtype."""
    name = DTYPES.get(tensor.dtype)
    if name is not None:
        return name, 1
    part = tensor.dtype.to_real() if tensor.dtype.is_complex else None
    if part in DTYPES:
        return DTYPES[part], 2
    return "uint8", tensor.element_size()
