# SPDX-License-Identifier: Apache-2.0
"""Variables of which the ranks of a host keep one copy.

A step that updates variables in slices (passes/slices.py) shares them when it is made: the ranks
compare what they hold, and move to memory that all of them map. From then on every read of such a
variable, by whatever step, is one of that memory, and every write is one that all ranks make:

- A step writes between two meetings of the ranks. So nobody reads old and new values mixed, and
  between two calls of such a step a rank reads what all have written.
- `assign` is called by all ranks, with one value. They compare it, and each writes its slice.

The group keeps the ranks in step. When it is closed nobody writes any more: the next write takes
the variable to memory of this process again. What a failure found half written is poisoned.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _core
from ..collectives import Group
from ..dtype import Type
from ..errors import CompileError
from ..ir import Array, aligned
from ..passes.slices import cuts

if TYPE_CHECKING:
    from ..variable import Variable
    from .cpu import CpuStorage

NO_MEMORY = 2**64 - 1
"""The number of a block that could not be made."""


@dataclass(frozen=True)
class Sharing:
    """Who shares a variable, and since which step."""

    group: Group
    site: str

    @property
    def is_over(self) -> bool:
        """Whether the group is closed, or has failed."""
        return self.group.closed or self.group.communicator.is_over

    def span(self, of: Type) -> tuple[int, int]:
        """Where in the bytes of a variable this rank's slice begins and ends."""
        at = cuts(of.count, self.group.size)
        begin, end = at[self.group.rank], at[self.group.rank + 1]
        return begin * of.dtype.itemsize, end * of.dtype.itemsize


def share(storages: Mapping[Variable, CpuStorage], group: Group, site: str) -> None:
    """Keep one copy of these variables among the ranks of a group, which all call this.

    Raises
    ------
    CompileError
        A variable is shared with other ranks.
    ValueError
        The ranks hold different values of a variable; on all of them.
    MemoryError
        Rank 0 has no memory for them; on all ranks.
    """
    for variable, storage in storages.items():
        if storage.sharing is not None and storage.sharing.group is not group:
            raise CompileError(
                f"compile: shard: variable {variable.name!r} is shared with the ranks of "
                f"{storage.sharing.group!r} since the step compiled at {storage.sharing.site}; "
                f"this step runs over {group!r}"
            )
    fresh = {v: s for v, s in storages.items() if s.sharing is None}
    if not fresh:
        return
    for variable in fresh:
        variable.cell.expect_nobody()
    values = [storage.read() for storage in fresh.values()]
    with group.under_way():
        equal = agree(group, values, site)
        memory = common_memory(group, sum(aligned(v.type.bytes) for v in fresh), site)
        if memory is not None and all(equal):
            sharing, offset = Sharing(group, site), 0
            for variable, storage in fresh.items():
                storage.move(memory, offset, sharing)
                offset += aligned(variable.type.bytes)
            group.barrier(site=site)
    for variable, same in zip(fresh, equal, strict=True):
        if not same:
            raise ValueError(
                f"compile: shard: expected one value of variable {variable.name!r} on all ranks; "
                "they hold different ones: ngd.broadcast_variables makes them equal"
            )
    if memory is None:
        raise MemoryError(f"compile: shard: rank 0 has no memory for {names(fresh)}")


def names(variables: Iterable[Variable]) -> str:
    """Some of them, for messages."""
    few = [repr(v.name) for v in variables]
    return f"variables {', '.join(few[:3])}{', ...' if len(few) > 3 else ''}"


def common_memory(group: Group, size: int, site: str) -> _core.CommonMemory | None:
    """So many bytes that all ranks of a group map; None on all of them: rank 0 has none."""
    number = NO_MEMORY
    if group.rank == 0:
        with contextlib.suppress(MemoryError):
            number = group.communicator.make_common(size)
    (told,) = group.broadcast(np.array([number], np.uint64), site=site)
    return None if told == NO_MEMORY else group.communicator.open_common(0, int(told))


def agree(group: Group, values: list[Array], site: str) -> list[bool]:
    """Of each value, whether all ranks give the same bits."""
    digests = [hashlib.blake2b(bytes_of(value), digest_size=8).digest() for value in values]
    mine = np.frombuffer(b"".join(digests), np.uint64)
    everywhere = group.all_gather(mine[None], site=site)
    return [bool(same) for same in (everywhere == everywhere[0]).all(axis=0)]


def bytes_of(value: Array) -> Any:
    """The bytes of an array, of whatever dtype."""
    return np.ascontiguousarray(value).reshape(-1).view(np.uint8).data
