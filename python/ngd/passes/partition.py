# SPDX-License-Identifier: Apache-2.0
"""The division of a variable among ranks: nearly equal shards that begin on cache lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from ..dtypes import Type
from ..ops.collectives.groups import ONE_RANK, Ranks

SMALL_BYTES: Final = 2048
"""The largest size, in bytes, of a variable that is not divided among the ranks. An all-reduce of
at most this size is a single message (shm/inline.cpp)."""
UNIT: Final = 64
"""Each shard begins at a multiple of this number of elements. So the offset of a shard in bytes is
a multiple of 64, the size of a cache line, whatever the size of an element is."""


def shard_bounds(count: int, ranks: int) -> tuple[int, ...]:
    """Return where each of `ranks` shards of `count` elements begins, and where the last ends."""
    return (*(count * r // ranks // UNIT * UNIT for r in range(ranks)), count)


def is_divided(typed: Type, ranks: int) -> bool:
    """Return whether a variable of this type is divided into shards, one per rank.

    If it is divided, no shard is empty.
    """
    return ranks > 1 and typed.bytes > SMALL_BYTES and typed.count >= UNIT * ranks


def shard_lengths(bounds: Sequence[int]) -> tuple[int, ...]:
    """Return the lengths of the shards with these bounds."""
    return tuple(b - a for a, b in pairwise(bounds))


@dataclass(frozen=True)
class Partition:
    """The ranks among which variables are divided."""

    host_ranks: Ranks
    """The ranks of this host."""
    counterparts: Ranks = ONE_RANK
    """The ranks with this rank's local index: one on each host, in the order of the hosts."""
    is_once_over_hosts: bool = False
    """True if all hosts together have one copy of the optimizer state, such as momentum: variables
    that the step reads only to compute new values of variables. False if each host has a copy of
    every variable."""

    @property
    def parts(self) -> int:
        """The number of ranks that divide the elements of a variable among them.

        They are the ranks of one host if each host has its own copy of the variable, and the ranks
        of all hosts if there is only one copy (`is_once_over_hosts`).
        """
        return self.host_ranks.size * (self.counterparts.size if self.is_once_over_hosts else 1)

    def slice(self, count: int) -> tuple[int, int]:
        """Return the begin and end of this rank's shard of a variable with `count` elements.

        The ranks of one host divide the variable into shards. On several hosts, this rank may
        update only a part of its shard: see the method `part`.
        """
        offsets = shard_bounds(count, self.host_ranks.size)
        return offsets[self.host_ranks.rank], offsets[self.host_ranks.rank + 1]

    def part(self, count: int) -> tuple[int, int]:
        """Return the begin and end of the elements that this rank updates.

        A variable has one shard per rank of a host. If each host has a copy of all elements, this
        rank updates its shard in the copy of its host. If not (`is_once_over_hosts`), the shard is
        divided among the ranks with the same local index on all hosts, and this rank updates its
        part.
        """
        begin, end = self.slice(count)
        if not self.is_once_over_hosts:
            return begin, end
        offsets = shard_bounds(end - begin, self.counterparts.size)
        return begin + offsets[self.counterparts.rank], begin + offsets[self.counterparts.rank + 1]
