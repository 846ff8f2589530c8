# SPDX-License-Identifier: Apache-2.0
"""Variables of which the ranks of a host keep one copy.

A step that updates variables in slices (passes/slices.py) shares them when it is made: the ranks
compare what they hold and how they compute it, and move to memory that all of them map. From then
on every read of such a variable, by whatever step, is one of that memory, and every write is one
that all ranks make:

- A step writes between two meetings of the ranks. So nobody reads old and new values mixed, and
  between two calls of such a step a rank reads what all have written.
- `assign` is called by all ranks, with one value. They compare it, meet, and each writes its slice.

Other variables that the new values are computed of stay where they are, but are kept equal: no step
may write to them what is not, and all ranks assign alike.

The group keeps the ranks in step. When it is closed nobody writes any more: the next write takes
the variable to memory of this process again. What a failure found half written is poisoned.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from .. import _core
from ..collectives import Group
from ..dtype import Type
from ..errors import CompileError, GroupClosedError
from ..ir import VARIABLE, Array, Graph, Node, aligned
from ..passes.equal import Equal
from ..passes.slices import cuts, to_share
from ..sites import call_site

if TYPE_CHECKING:
    from .cpu import CpuStorage

NO_MEMORY = 2**64 - 1
"""The number of a block that could not be made."""


@dataclass(frozen=True)
class Sharing:
    """Who shares a variable, and since which step."""

    group: Group
    site: str
    process: int = field(default_factory=os.getpid)

    @property
    def is_over(self) -> bool:
        """Whether the group is closed, or has failed."""
        return self.group.closed or self.group.communicator.is_over

    def span(self, of: Type) -> tuple[int, int]:
        """Where in the bytes of a variable this rank's slice begins and ends."""
        at = cuts(of.count, self.group.size)
        begin, end = at[self.group.rank], at[self.group.rank + 1]
        return begin * of.dtype.itemsize, end * of.dtype.itemsize

    def expect_process(self, name: str) -> None:
        """Refuse a forked child, whose parent may be writing."""
        if os.getpid() != self.process:
            raise GroupClosedError(
                f"variable {name!r}: the ranks share it since the step compiled at {self.site}; a "
                "forked child cannot read it: read it before, or start a new program (spawn)"
            )


def shared_by(
    graph: Graph, group: Any, storages: Mapping[Node, CpuStorage]
) -> tuple[set[Node], Equal]:
    """The variables that a step over these ranks shares, and what is equal on all of them."""

    def varies(variable: Node) -> bool:
        return variable in storages and storages[variable].varies != ""

    equal = Equal(graph, group, varies)
    if graph.shard == "none" or not has_common_memory(group):
        return set(), equal
    shared = {v for v, s in storages.items() if s.sharing is not None and s.buffer.is_common}
    return to_share(graph, equal, group.size, shared), equal


def has_common_memory(group: Any) -> bool:
    """Whether the ranks may share variables: real ones, on one host."""
    return isinstance(group, Group) and group.communicator.has_common_memory


def refused(name: str, sharing: Sharing) -> CompileError:
    """The error of a step that would write all of a shared variable."""
    return CompileError(
        f"compile: updates: the ranks share variable {name!r} since the step compiled at "
        f"{sharing.site}: a step that updates it has to be compiled since, with shard='host', and "
        "by a next value that is proved equal on all ranks"
    )


def expect_private(whole: Mapping[Node, CpuStorage], equal: Equal, site: str) -> None:
    """Refuse to write whole what ranks share, and to write what differs to what they keep equal.

    What a step writes that is not proved equal is remembered: it cannot be shared.
    """
    values = dict(equal.graph.updates)
    for variable, storage in whole.items():
        sharing, differs = storage.sharing, values[variable] not in equal.nodes
        if sharing is not None and storage.buffer.is_common:
            raise refused(storage.name, sharing)
        if sharing is not None and differs:
            raise CompileError(
                f"compile: updates: what the ranks share since the step compiled at {sharing.site} "
                f"is computed of variable {storage.name!r}: expected a next value that is proved "
                "equal on all ranks"
            )
    for variable, storage in whole.items():
        if values[variable] not in equal.nodes:
            storage.varies = storage.varies or site


def share(
    shared: list[Node], equal: Equal, storages: Mapping[Node, CpuStorage], group: Group, site: str
) -> None:
    """Keep one copy of these variables among the ranks of a group, which all call this.

    Raises
    ------
    CompileError
        A variable is shared with other ranks; or the ranks compile different steps: on all of them.
    ValueError
        The ranks hold different values of a variable; on all of them.
    BusyError
        Another thread uses one of them; the group is closed then.
    MemoryError
        Rank 0 has no memory for them; on all ranks.
    """
    values = [value for v, value in equal.graph.updates if v in set(shared)]
    read = [n for n in equal.below(values) if n.op is VARIABLE and n not in set(shared)]
    for variable in (*shared, *read):
        sharing = storages[variable].sharing
        if sharing is not None and sharing.group is not group:
            raise CompileError(
                f"compile: shard: variable {storages[variable].name!r} is shared with the ranks of "
                f"{sharing.group!r} since the step compiled at {sharing.site}; this step runs over "
                f"{group!r}"
            )
    moving = [storages[v] for v in shared if storages[v].sharing is None]
    moving += [
        storages[v] for v in shared if storages[v].sharing and not storages[v].buffer.is_common
    ]
    staying = [storages[v] for v in read if storages[v].sharing is None]
    if not moving and not staying:
        return
    found: list[bool] = []
    steps = equal.digest(values)
    with group.under_way():
        cells = [storage.cell for storage in (*moving, *staying)]
        _core.while_held(
            cells, lambda: found.extend(shared_now(moving, staying, Sharing(group, site), steps))
        )
    expect_agreement(found, [*moving, *staying])


def shared_now(
    moving: list[CpuStorage], staying: list[CpuStorage], sharing: Sharing, steps: bytes
) -> list[bool]:
    """Share variables that are held; else say what the ranks do not agree in, or have not.

    That is: which step they compile, their memory, and each variable.
    """
    group, site = sharing.group, sharing.site
    values = [storage.held() for storage in (*moving, *staying)]
    same = agree(group, [steps, *map(digest_of, values)], site)
    size = sum(aligned(storage.type.bytes) for storage in moving)
    memory = common_memory(group, size, site) if moving and all(same) else None
    same.insert(1, memory is not None or not moving or not all(same))
    if not all(same):
        return same
    offset, places = 0, []
    for storage, value in zip(moving, values, strict=False):
        assert memory is not None
        memory.write(offset, value, *sharing.span(storage.type))
        places.append(offset)
        offset += aligned(storage.type.bytes)
    group.barrier(site=site)  # all is written: from here on nothing fails
    for storage, place in zip(moving, places, strict=True):
        storage.join(sharing, memory, place)
    for storage in staying:
        storage.join(sharing, None, 0)
    return same


def expect_agreement(found: list[bool], storages: list[CpuStorage]) -> None:
    """Raise what the ranks have found, the same on all of them."""
    steps, memory, *values = found
    if not steps:
        raise CompileError(
            "compile: shard: expected one step on all ranks; they compute the variables "
            f"{names(storages)} in different ways, or from different constants"
        )
    for storage, same in zip(storages, values, strict=True):
        if not same:
            raise ValueError(
                f"compile: shard: expected one value of variable {storage.name!r} on all ranks; "
                "they hold different ones: ngd.broadcast_variables makes them equal"
            )
    if not memory:
        raise MemoryError(f"compile: shard: rank 0 has no memory for {names(storages)}")


def names(storages: Iterable[CpuStorage]) -> str:
    """Some of them, for messages."""
    few = [repr(storage.name) for storage in storages]
    return f"{', '.join(few[:3])}{', ...' if len(few) > 3 else ''}"


def common_memory(group: Group, size: int, site: str) -> _core.CommonMemory | None:
    """So many bytes that all ranks of a group map; None on all of them: rank 0 has none."""
    number = NO_MEMORY
    if group.rank == 0:
        with suppress(MemoryError):
            number = group.communicator.make_common(size)
    (told,) = group.broadcast(np.array([number], np.uint64), site=site)
    return None if told == NO_MEMORY else group.communicator.open_common(0, int(told))


def agree(group: Group, digests: list[bytes], site: str) -> list[bool]:
    """Of each digest, whether all ranks give the same."""
    mine = np.frombuffer(b"".join(digests), np.uint64)
    everywhere = group.all_gather(mine[None], site=site)
    return [bool(same) for same in (everywhere == everywhere[0]).all(axis=0)]


def have_same_inputs(graph: Graph, group: Group) -> bool:
    """Whether a step's inputs have the same types on all ranks, which all call this.

    A rank that finds a variable held later compiles the step again. It must not ask again, so what
    it has found is kept until the step is made (`forget_inputs`).
    """
    types = repr([str(node.type) for node in graph.inputs]).encode()
    digest = hashlib.blake2b(types, digest_size=8).digest()
    known, same = _inputs.get(group, (b"", False))
    if known != digest:
        with group.under_way():
            same = all(agree(group, [digest], call_site()))
        _inputs[group] = digest, same
    return same


def forget_inputs(group: Group) -> None:
    """The step is made; the next one asks for itself."""
    _inputs.pop(group, None)


_inputs: WeakKeyDictionary[Group, tuple[bytes, bool]] = WeakKeyDictionary()
"""Of a step that is being compiled: a digest of its inputs' types, and whether all have these."""


def digest_of(value: Array) -> bytes:
    """Of the bits of an array, of whatever dtype."""
    row = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    return hashlib.blake2b(row.data, digest_size=8).digest()
