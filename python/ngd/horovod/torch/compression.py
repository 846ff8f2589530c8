# SPDX-License-Identifier: Apache-2.0
"""Compressors, which choose the dtype in which gradients are sent."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor


class Compressor:
    """The base class of compressors, with the functions `compress` and `decompress`.

    The functions of the base class return the tensor unchanged.

    Derive your own compressor from this class. Corresponds to
    `horovod.torch.compression.Compressor`.
    """

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, Any]:
        """Return the tensor to send, and the context that `decompress` needs."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Tensor, ctx: Any) -> Tensor:
        """Return the reduced tensor in the form that it had before `compress`."""
        return tensor


class NoneCompressor(Compressor):
    """The compressor that sends tensors as they are."""


class Narrowing(Compressor):
    """A compressor that sends float32 and float64 tensors as `dtype`, a 16-bit float.

    The all-reduce adds 16-bit floats in float32 and rounds the sum to 16 bits.
    """

    dtype: ClassVar[torch.dtype]

    @classmethod
    def compress(cls, tensor: Tensor) -> tuple[Tensor, Any]:
        """Convert float32 and float64 to 16-bit floats. Return (result, original dtype)."""
        is_narrowed = tensor.dtype in (torch.float32, torch.float64)
        return (tensor.to(cls.dtype) if is_narrowed else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: Tensor, ctx: Any) -> Tensor:
        """Return the tensor in the dtype that it had before `compress`."""
        return tensor.to(ctx)


class FP16Compressor(Narrowing):
    """The compressor that sends float16."""

    dtype = torch.float16


class BF16Compressor(Narrowing):
    """The compressor that sends bfloat16."""

    dtype = torch.bfloat16


class Compression:
    """The compressors that the argument `compression` takes.

    Corresponds to `horovod.torch.Compression`.
    """

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
