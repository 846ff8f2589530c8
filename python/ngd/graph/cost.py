# SPDX-License-Identifier: Apache-2.0
"""What computing takes: arithmetic, and traffic."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol


class Sized(Protocol):
    """What has a size in bytes: a type."""

    @property
    def bytes(self) -> int:
        """The size."""
        ...


@dataclass(frozen=True, slots=True)
class Cost:
    """What an op, or a whole step, takes once."""

    flops: int = 0
    """Operations on one element each (FLOP): a product of m x k by k x n has 2 m n k."""
    bytes: int = 0
    """Read and written by kernels, whether a cache has them or not."""

    @classmethod
    def touching(cls, flops: int, types: Iterable[Sized]) -> Cost:
        """So many operations, and each of these values once read or written."""
        return cls(flops, sum([type.bytes for type in types]))

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.flops + other.flops, self.bytes + other.bytes)

    def times(self, rounds: int) -> Cost:
        """Of so many rounds."""
        return Cost(self.flops * rounds, self.bytes * rounds)
