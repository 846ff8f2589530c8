# SPDX-License-Identifier: Apache-2.0
"""The cost of a computation: arithmetic operations and memory traffic."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol


class Sized(Protocol):
    """A type with a size in bytes."""

    @property
    def bytes(self) -> int:
        """The size in bytes."""
        ...


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one run of an op, or of a whole step."""

    flops: int = 0
    """The operations on single elements (FLOP). A matmul of m x k by k x n has 2 m n k."""
    bytes: int = 0
    """The bytes that kernels read and write. Accesses that a CPU cache serves count, too."""

    @classmethod
    def touching(cls, flops: int, types: Iterable[Sized]) -> Cost:
        """Return the cost of an op with `flops` operations that accesses some values once.

        `types` has the types of the values that the op reads or writes.
        """
        return cls(flops, sum([type.bytes for type in types]))

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.flops + other.flops, self.bytes + other.bytes)

    def times(self, rounds: int) -> Cost:
        """Return the cost of `rounds` runs."""
        return Cost(self.flops * rounds, self.bytes * rounds)
