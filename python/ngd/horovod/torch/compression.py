# SPDX-License-Identifier: Apache-2.0
"""What gradients travel as."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor


class Compressor:
    """A pair of functions; to make one's own, derive from this."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, Any]:
        """What to send for the tensor, and what `decompress` needs to know."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Tensor, ctx: Any) -> Tensor:
        """What was meant by what was received."""
        return tensor


class NoneCompressor(Compressor):
    """Send tensors as they are."""


class Narrowing(Compressor):
    """Send float32 and float64 as floats of two bytes; sums are accumulated in float32."""

    dtype: ClassVar[torch.dtype]

    @classmethod
    def compress(cls, tensor: Tensor) -> tuple[Tensor, Any]:
        """The tensor in two bytes, and its dtype."""
        wide = tensor.dtype in (torch.float32, torch.float64)
        return (tensor.to(cls.dtype) if wide else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: Tensor, ctx: Any) -> Tensor:
        """The tensor in the dtype that it had."""
        return tensor.to(ctx)


class FP16Compressor(Narrowing):
    """By float16."""

    dtype = torch.float16


class BF16Compressor(Narrowing):
    """By bfloat16."""

    dtype = torch.bfloat16


class Compression:
    """What `compression=` takes."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
