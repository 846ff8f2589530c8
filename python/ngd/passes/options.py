# SPDX-License-Identifier: Apache-2.0
"""The options of a compilation, which `ngd.compile` hands to the device and to the passes."""

from __future__ import annotations

from typing import NamedTuple

from ..dtypes import DType, float32


class CompileOptions(NamedTuple):
    """The arguments of `ngd.compile` that the passes need."""

    precision: DType = float32
    """The dtype of matrix multiplications and of stored activations."""
    shard: str = "none"
    """The sharded weight update. With "host", the ranks of a host share one copy of a variable that
    the step updates, and each rank updates its shard. With "world", the hosts also divide the
    optimizer state. With "none", each rank updates its own copy."""
    memory_limit: int | None = None
    """The largest number of bytes for the values of a call; None to set no limit."""

    @property
    def has_low_precision(self) -> bool:
        """True if the precision is a 16-bit dtype."""
        return self.precision != float32
