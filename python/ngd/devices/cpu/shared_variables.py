# SPDX-License-Identifier: Apache-2.0
"""Variables that ranks share: the ranks of a host, or all ranks together, keep one copy.

When a step with a sharded weight update (passes/sharding/updates.py) is compiled, the ranks share
the variables that it updates in shards. The ranks compare the values of these variables, and the
computations of the new values. Then they move the values to common memory, a memory of the host
that all its ranks map. From then on, every step reads such a variable from that memory, and all
ranks take part in every write:

- A step writes between two barriers of the ranks. Outside of the step, a rank reads only complete
  new values: the other ranks cannot write again before this rank takes part in the next write.
- All ranks call `assign` with equal values. They compare the values and wait at a barrier. Then
  each rank writes its shard.

Over several hosts, each host keeps a copy. There is an exception for variables that are read only
to compute new values, such as optimizer state: all hosts together may keep one copy. Then each
rank has a part of the variable, in its own memory. All ranks have to read the variable together,
because a read gathers the parts.

The new values of shared variables may be computed from other variables. Each rank keeps its own
copy of these other variables, in private memory, and all copies stay equal. A step that updates
them is compiled only if their new values are proved equal on all ranks. `assign` raises an error
if the ranks assign different values to them.

A step may also only read a variable (frozen weights). If the variable is equal on all ranks, it
moves to common memory, too. No rank writes to this memory: a rank that writes the variable first
copies it to its own private memory.

After the group of the ranks is closed, no rank writes to common memory. The next write on a rank
moves the variable back to the private memory of this rank. A variable that a failure has left half
written is poisoned: reading it raises an error. If the group is closed while all hosts together
keep one copy of a variable, the variable is lost, because each rank has only a part of it. Only a
new value, by `assign` or a checkpoint, makes it usable.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np

from ... import _core
from ..._util.callsite import call_site
from ...comm import Group
from ...dtypes import Array, align_up
from ...errors import BusyError, CompileError, PoisonedVariableError, VariableMismatchError
from ...graph.graph import Graph
from ...graph.node import Node
from ...passes import Sharing
from ...passes.partition import Partition, is_divided
from ...passes.sharding.equal_values import Equal
from ...passes.sharding.uniform import is_per_rank
from ...passes.sharding.updates import shareable_variables
from ..executable import StepGraph
from .rank_comparison import agree, differing_ranks, digest_of, ranks_text
from .sharing_record import SharingRecord
from .storage import CpuStorage, sharing_error

NO_MEMORY = 2**64 - 1
"""The number that rank 0 broadcasts if it could not allocate common memory.

Otherwise rank 0 broadcasts an id of the new memory, with which all ranks map it; see
`common_memory`."""
UNABLE: Final = -1
"""The number that a rank sends in `share_frozen`, once per variable, if it cannot lock all of them.

A rank cannot lock a variable that another thread uses, or whose update failed half-way. Then no
rank moves variables to common memory. A rank that has locked all variables instead sends 1 for a
variable that is in common memory already, and 0 for any other variable."""


def agree_on_sharing(
    source: StepGraph, storages: Mapping[Node, CpuStorage]
) -> tuple[Equal, Sharing]:
    """Return the nodes that are proved equal on all ranks, and the variables that a step shares.

    They are in an `Equal` (its attribute `nodes`) and in a `Sharing` (its attribute `variables`).

    All ranks of the step's group call this. With the option shard="none" no variable is shared.
    """
    graph, group, shard = source.graph, source.group, source.options.shard

    def varies(variable: Node) -> bool:
        return variable in storages and storages[variable].varies != ""

    equal = Equal(graph, group, varies)
    partition = None if shard == "none" else partition_of(group, shard == "world")
    if partition is None:
        return equal, Sharing(group, Partition(group))
    shared = {v for v, s in storages.items() if s.is_shared}
    once = {v for v, s in storages.items() if s.sharing is not None and s.part is None}
    variables = shareable_variables(graph, equal, partition.parts, shared)
    return equal, Sharing(group, partition, frozenset(variables), frozenset(once))


_HOSTS: Final[WeakKeyDictionary[Group, tuple[Group, Group] | None]] = WeakKeyDictionary()
"""A dict from a group over several hosts to a pair of groups that were split from it.

The first group of the pair has the ranks of this host. The second has the counterparts: the ranks
that have this rank's index on their hosts. Instead of a pair, the dict has None for a group whose
ranks cannot share variables."""


def partition_of(group: Any, is_once_over_hosts: bool) -> Partition | None:
    """Return how the ranks of a group divide variables, or None if they cannot share memory.

    All ranks call this. `is_once_over_hosts` is True for `shard="world"`: all hosts together keep
    one copy of a variable. Otherwise each host keeps one copy.
    """
    if not isinstance(group, Group):
        return None
    if group.communicator.has_common_memory:
        return Partition(group)
    if group.local_size == group.size:
        return None
    if group not in _HOSTS:
        _HOSTS[group] = split_by_host(group)
    hosts = _HOSTS[group]
    return None if hosts is None else Partition(*hosts, is_once_over_hosts)


def split_by_host(group: Group) -> tuple[Group, Group] | None:
    """Return the group of this host's ranks, and the group of counterparts, or None.

    Counterparts are the ranks that have the same index on their hosts. The result is None
    on all ranks if hosts have different numbers of ranks, if the ranks of a host are not
    consecutive, or if a host has no common memory. All ranks call this.
    """
    per_host = group.local_size
    with group.collectives_scope():
        own_row = np.array([[group.local_rank, per_host]])
        all_ranks = group.all_gather(own_row, site=call_site())
        ranks = np.arange(group.size)
        if not (all_ranks == np.stack([ranks % per_host, 0 * ranks + per_host], 1)).all():
            return None
        host, index_in_host = divmod(group.rank, per_host)
        here = group.split(host, name=f"{group.name}/host")
        there = group.split(index_in_host, name=f"{group.name}/counterparts")
        able = per_host == 1 or here.communicator.has_common_memory
        if group.all_gather(np.array([able]), site=call_site()).all():
            return here, there
        here.close()  # a host has no common memory
        there.close()
        return None


def expect_private(whole: Mapping[Node, CpuStorage], equal: Equal, site: str) -> None:
    """Raise a CompileError for an update that would break the sharing of a variable among ranks.

    `whole` has the variables that the step updates as a whole on each rank. `equal.nodes` has the
    nodes whose values are proved equal on all ranks. For each variable there are three cases:

    - The ranks share it since an earlier step: this is an error.
    - Each rank has a private copy of it, and the copies are equal since an earlier step: the new
      value that this step computes must be in `equal.nodes`, or it is an error.
    - Otherwise any new value is allowed. If it is not in `equal.nodes`, the storage's `varies` is
      set to the call site `site`. Steps compiled later then assume that its values may differ.
    """
    values = dict(equal.graph.updates)
    for variable, storage in whole.items():
        sharing, differs = storage.sharing, values[variable] not in equal.nodes
        if sharing is not None and storage.is_shared:
            raise sharing_error(storage, sharing)
        if sharing is not None and differs:
            raise CompileError(
                f"compile: updates: variable {storage.name!r}: expected a next value that is equal "
                "on all ranks, because the step compiled at "
                f"{sharing.site} computes shared variables from it; got one that may differ. Take "
                'its mean: ops.all_reduce(value, op="mean").'
            )
    for variable, storage in whole.items():
        if values[variable] not in equal.nodes:
            storage.varies = storage.varies or site


def share(
    shared: Mapping[Node, tuple[int, int]],
    equal: Equal,
    sharing: Sharing,
    storages: Mapping[Node, CpuStorage],
    site: str,
) -> None:
    """Share variables among the ranks of a group, which all call this.

    `shared` has a range of bytes per variable. If each host keeps a copy of the variable, the range
    is the shard of that copy that this rank writes. If all hosts together keep one copy, the range
    is the part of the value that this rank keeps.

    Raises
    ------
    CompileError
        On all ranks: a variable is already shared in another group, or the ranks compile different
        steps.
    VariableMismatchError
        On all ranks: the ranks hold different values of a variable.
    BusyError
        Another thread uses one of the variables. The group is closed then.
    MemoryError
        On all ranks: a rank has no memory for the variables.
    """
    group: Group = sharing.group
    values = [value for v, value in equal.graph.updates if v in sharing.variables]
    below = {*equal.dependencies_of(values), *sharing.variables}
    read = [v for v in equal.graph.variables if v in below and v not in shared]
    for variable in (*shared, *read):
        record = storages[variable].sharing
        if record is not None and record.group is not group:
            raise CompileError(
                f"compile: shard: expected a step over {record.group!r}, whose ranks share "
                f"variable {storages[variable].name!r} since the step compiled at {record.site}; "
                f"got one over {group!r}. Compile both steps with one group."
            )
    moving = {storages[v]: span for v, span in shared.items() if not storages[v].is_shared}
    staying = [storages[v] for v in read if storages[v].sharing is None]
    if not moving and not staying:
        return
    found: list[Agreement] = []
    steps = equal.digest(values)
    with group.collectives_scope():
        cells = [storage.cell for storage in (*moving, *staying)]
        record = SharingRecord(group, sharing.partition, site)
        _core.while_held(
            cells, lambda: found.append(share_if_equal(moving, staying, record, steps))
        )
    expect_agreement(found[0], [*moving, *staying])


def share_if_equal(
    moving: Mapping[CpuStorage, tuple[int, int]],
    staying: list[CpuStorage],
    record: SharingRecord,
    steps: bytes,
) -> Agreement:
    """Share variables if they are equal on all ranks, and return the outcome of the comparison.

    The ranks compare the values of the variables. They also compare `steps`, a digest of the
    operations that compute the new values. If a value or the digest differs between ranks, or if a
    rank has too little memory, no variable changes.

    `moving` has the variables to share, each with (begin, end) of the bytes that this rank updates.
    These variables move to common memory of the host. If all hosts together keep one copy of a
    variable, this rank instead keeps only the bytes from begin to end, in its own memory. The
    variables in `staying` stay in private memory on each rank, and from now on the ranks keep their
    values equal. The caller holds (locks) all these variables, so no step uses them.
    """
    group, site = record.group, record.site
    values = [storage.copy_held_value() for storage in (*moving, *staying)]
    odd_steps, *odd_values = differing_ranks(group, [steps, *map(digest_of, values)], site)
    if odd_steps or any(odd_values):
        return Agreement(odd_steps, odd_values)
    held = dict(zip(moving, values, strict=False))
    once_over_hosts = {s: span for s, span in moving.items() if span != record.span(s.type)}
    once = {s: value for s, value in held.items() if s not in once_over_hosts}
    allocated = allocate(once, once_over_hosts, record)
    if not group.all_gather(np.array([allocated is not None]), site=site).all():
        return Agreement(has_memory=False)
    assert allocated is not None
    memory, parts = allocated
    offsets = write_slices(memory, once, record)
    group.barrier(site=site)  # all ranks have written, and nothing below can fail
    for storage, offset in offsets.items():
        storage.join(record, memory, offset)
    for (storage, span), part in zip(once_over_hosts.items(), parts, strict=True):
        storage.keep(record, span, part)
    for storage in staying:
        storage.join(record, None, 0)
    return Agreement()


def allocate(
    once: Iterable[CpuStorage],
    once_over_hosts: Mapping[CpuStorage, tuple[int, int]],
    record: SharingRecord,
) -> tuple[_core.CommonMemory | None, list[_core.Buffer]] | None:
    """Allocate memory for variables that ranks share. All ranks of the host call this.

    Return (memory, buffers), or None if there is too little memory. `memory` is common memory of
    the host for `once`, the variables with one copy per host. `once_over_hosts` has the variables
    with one copy over all hosts, each with (begin, end) of the bytes that this rank keeps.
    `buffers` has one private buffer for each of these ranges.
    """
    memory, parts = None, []
    with suppress(MemoryError):
        parts = [storage.allocate_part(*span) for storage, span in once_over_hosts.items()]
    sizes = [align_up(storage.type.bytes) for storage in once]
    if sizes:
        memory = common_memory(record.partition.host_ranks, sum(sizes), record.site)
    is_complete = len(parts) == len(once_over_hosts) and (memory is not None or not sizes)
    return (memory, parts) if is_complete else None


def write_slices(
    memory: _core.CommonMemory | None, values: Mapping[CpuStorage, Array], record: SharingRecord
) -> dict[CpuStorage, int]:
    """Write this rank's shard of each variable's value to common memory of the host.

    Return the byte offset of each variable in that memory.
    """
    offset, offsets = 0, {}
    for storage, value in values.items():
        assert memory is not None
        memory.write(offset, value, *record.span(storage.type))
        offsets[storage] = offset
        offset += align_up(storage.type.bytes)
    return offsets


def share_frozen(
    graph: Graph, sharing: Sharing, storages: Mapping[Node, CpuStorage], site: str
) -> None:
    """Keep one copy per host of variables that a step only reads and that are equal on all ranks.

    All ranks call this if the nodes of the step have the same shapes and dtypes on all ranks
    (`have_uniform_types`). The variables stay in private memory if a thread uses one of them, if an
    update of one failed half-way, or if a rank has no memory for them.
    """
    group: Group = sharing.group
    partition = sharing.partition
    updated = {variable for variable, _ in graph.updates}
    frozen = [
        storages[v]
        for v in graph.variables
        if v not in updated and not is_per_rank(v) and is_divided(v.type, partition.parts)
    ]
    frozen = [each for each in frozen if each.sharing is None]
    if partition.host_ranks.size == 1 or not frozen:
        return
    has_begun = []

    def compare() -> None:
        has_begun.append(True)
        share_equal(frozen, SharingRecord(group, partition, site))

    with group.collectives_scope():
        try:
            _core.while_held([storage.cell for storage in frozen], compare)
        except (BusyError, PoisonedVariableError):
            if has_begun:
                raise
            group.all_gather(np.full((1, len(frozen)), UNABLE, np.int8), site=site)


def share_equal(frozen: Sequence[CpuStorage], record: SharingRecord) -> None:
    """Move the variables that are equal on all ranks to memory of the host.

    The caller holds (locks) the variables, so no step uses them.
    """
    group, site = record.group, record.site
    is_there = np.array([[storage.buffer.is_common for storage in frozen]], np.int8)
    everywhere = group.all_gather(is_there, site=site)
    if (everywhere == UNABLE).any():
        return
    pairs = zip(frozen, everywhere.all(axis=0), strict=True)
    moving = [each for each, is_common in pairs if not is_common and not each.differs]
    if not moving:
        return
    values = [storage.memory() for storage in moving]
    digests = [digest_of(value) for value in values]
    for storage, differing in zip(moving, differing_ranks(group, digests, site), strict=True):
        storage.differs = bool(differing)
    equal = {s: value for s, value in zip(moving, values, strict=True) if not s.differs}
    if not equal:
        return
    size = sum(align_up(storage.type.bytes) for storage in equal)
    memory = common_memory(record.partition.host_ranks, size, site)
    if not group.all_gather(np.array([memory is not None]), site=site).all():
        return
    offsets = write_slices(memory, equal, record)
    group.barrier(site=site)
    for storage, offset in offsets.items():
        storage.keep_frozen(record, memory, offset)


@dataclass(frozen=True)
class Agreement:
    """The outcome of the comparison that ranks make before they share variables.

    All ranks get the same outcome.
    """

    steps: tuple[int, ...] = ()
    """The ranks whose step computes new values of the variables by other operations or constants
    than the step of most ranks."""
    values: Sequence[tuple[int, ...]] = ()
    """For each variable, the ranks that hold another value than most ranks."""
    has_memory: bool = True
    """False if a rank could not allocate memory for the variables."""


def expect_agreement(found: Agreement, storages: list[CpuStorage]) -> None:
    """Raise the same error on all ranks if the steps or values differ, or a rank has no memory."""
    if found.steps:
        raise CompileError(
            "compile: shard: expected one step on all ranks; got other computations of the "
            f"variables {names(storages)}, or other constants, on {ranks_text(found.steps)} than "
            "on the other ranks. Let all ranks build the same model and optimizer."
        )
    for storage, differing in zip(storages, found.values, strict=False):
        if differing:
            raise VariableMismatchError(
                f"compile: shard: expected one value of variable {storage.name!r} on all ranks; "
                f"got other values on {ranks_text(differing)} than on the other ranks. Call "
                "ngd.broadcast_variables(variables) before."
            )
    if not found.has_memory:
        raise MemoryError(
            f"compile: shard: expected memory for {names(storages)} on all ranks; got too "
            "little on one of them. Give the job more memory, or start fewer ranks per host."
        )


def names(storages: Iterable[CpuStorage]) -> str:
    """Return a text for a message with the names of the first three variables."""
    quoted = [repr(storage.name) for storage in storages]
    return f"{', '.join(quoted[:3])}{', ...' if len(quoted) > 3 else ''}"


def common_memory(group: Any, size: int, site: str) -> _core.CommonMemory | None:
    """Return new memory that all ranks of a host map; None on all ranks if allocation fails.

    Only rank 0 of `group` allocates the memory. `group` has the ranks of the host, and all of them
    call this.
    """
    number = NO_MEMORY
    if group.rank == 0:
        with suppress(MemoryError):
            number = group.communicator.make_common(size)
    (received,) = group.broadcast(np.array([number], np.uint64), site=site)
    return None if received == NO_MEMORY else group.communicator.open_common(0, int(received), size)


def have_uniform_types(graph: Graph, group: Group) -> bool:
    """Return whether all nodes of a step have the same shapes and dtypes on all ranks.

    All ranks call this in the context `comparing_once`, which keeps the result. If the compilation
    then fails on this rank only, this rank compiles the step again. Its second call returns the
    kept result, and does not communicate.
    """
    types = repr([str(result.type) for node in graph.nodes for result in node.results]).encode()
    digest = hashlib.blake2b(types, digest_size=8).digest()
    known_digest, same = _type_digests.get(group, (b"", False))
    if known_digest != digest:
        with group.collectives_scope():
            same = agree(group, [digest], call_site())
        _type_digests[group] = digest, same
    return same


@contextmanager
def comparing_once(group: Group) -> Iterator[None]:
    """Keep the result of `have_uniform_types` for a second try to compile the step.

    `have_uniform_types` compares the shapes and dtypes of the step between the ranks. Its result is
    removed if the compilation succeeds, or raises a CompileError or another ValueError. Any other
    error may be raised on one rank only, for example if another thread uses a variable or memory is
    short. This rank then compiles the step again. It uses the kept result, because the other ranks
    do not take part in another comparison.
    """
    try:
        yield
    except (CompileError, ValueError):
        _type_digests.pop(group, None)
        raise
    _type_digests.pop(group, None)


_type_digests: WeakKeyDictionary[Group, tuple[bytes, bool]] = WeakKeyDictionary()
"""A dict from the group of a step that is being compiled to a pair: a digest of the step's shapes
and dtypes, and True if all ranks have the same digest."""
