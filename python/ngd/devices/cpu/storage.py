# SPDX-License-Identifier: Apache-2.0
"""The value of a variable on the CPU device: private or shared memory, with reads and writes."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from ... import _core
from ..._util.callsite import call_site
from ...comm import Group
from ...dtypes import Array
from ...errors import CompileError, GroupClosedError
from ...graph.variable import Variable
from .rank_comparison import agree, digest_of
from .sharing_record import SharingRecord
from .target import DEVICE


class CpuStorage:
    """The value of a variable on the CPU device. Ranks may share its memory."""

    def __init__(self, variable: Variable, initial: Array) -> None:
        self.name, self.type, self.cell = variable.name, variable.type, variable.cell
        self.buffer = _core.Buffer(DEVICE, self.type.bytes)
        self.varies = ""
        """The call site of the first step that updates this variable by a value that is not proved
        equal on all ranks; "" if there is none. If there is one, steps compiled later assume that
        the value of the variable may differ between ranks."""
        self.part: tuple[int, int] | None = None
        """The bounds of the bytes that this rank keeps, if other ranks keep the rest; otherwise
        None."""
        self.differs = False
        """True after ranks had different values when they compiled a step that only reads the
        variable. Later steps that only read it do not try again to move it to shared memory."""
        self._sharing: SharingRecord | None = None
        self._readers: SharingRecord | None = None
        """The record of the ranks that keep one copy of the value per host and only read it; None
        until a step moves the value to such shared memory."""
        if self.type.bytes:
            self.memory()[...] = initial

    @property
    def sharing(self) -> SharingRecord | None:
        """The record of the ranks that share the variable, or that keep its value equal.

        None if no ranks do, or if their group is closed or has failed.
        """
        return None if self._sharing is None or self._sharing.is_over else self._sharing

    @property
    def is_shared(self) -> bool:
        """True if ranks share the variable, so that each of them writes only its shard.

        False if a write on this rank replaces the whole value. This is so if no ranks share the
        variable, if each rank has a private copy that the ranks keep equal, or if the ranks only
        read a shared copy (`is_frozen`).
        """
        mine = self.part is None and not self.buffer.is_common
        return not mine and self.sharing is not None

    @property
    def is_frozen(self) -> bool:
        """True if the ranks of this host share one copy of the value, which they only read.

        A write first moves the value to memory of this rank.
        """
        return self._sharing is None and self.buffer.is_common

    @property
    def kept_by(self) -> Group | None:
        """The group whose ranks keep a part of the value each; None if this rank has all of it."""
        sharing = self.sharing
        return None if self.part is None or sharing is None else sharing.group

    def read(self) -> Array:
        """Return a copy of the value, or raise an error if the variable cannot be read now."""
        if self.part is not None:
            return self.read_parts(*self.part)
        if self.buffer.is_common and self._sharing is not None:
            self._sharing.expect_process(self.name)
        value: Array = np.empty(self.type.shape, self.type.dtype)
        self.buffer.read(value, self.cell)
        return value

    def read_parts(self, begin: int, end: int) -> Array:
        """Return a copy of the whole value, gathered from the parts of all ranks, which call this.

        `begin` and `end` are the bounds of this rank's part, in bytes.
        """
        part: Array = np.empty((end - begin) // self.type.dtype.itemsize, self.type.dtype)
        self.buffer.read_part(part, self.cell)
        sharing = self.sharing
        if sharing is None:
            raise lost_parts_error(self.name)
        return sharing.gathered(part, self.type)

    def copy_held_value(self) -> Array:
        """Return a copy of the value. The caller holds (locks) the variable: no step uses it."""
        value: Array = np.empty(self.type.shape, self.type.dtype)
        self.buffer.copy_to(value)
        return value

    def view(self) -> Array:
        """Return the memory of the value as an array, to which the caller may write.

        If ranks share the value, a write changes it on all of them. A value that ranks only read
        (`is_frozen`) first moves to private memory.
        """
        if self.is_frozen:  # the caller may write: move it to private memory
            _core.while_held([self.cell], lambda: self.buffer.lie_in(None, 0))
        return self.memory()

    def memory(self) -> Array:
        """Return the memory of the value as an array, which the caller must not write to."""
        self.expect_whole()
        memory: Array = np.frombuffer(self.buffer.view(), self.type.dtype)
        return memory.reshape(self.type.shape)

    def private_view(self) -> Array:
        """Return the memory of the value as an array, copy on write if other ranks share it."""
        self.expect_whole()
        if self.buffer.common is None:
            return self.memory()
        sharing = self._sharing or self._readers
        assert sharing is not None
        sharing.map_privately(self.buffer.common[0])
        memory: Array = np.frombuffer(self.buffer.private_view(), self.type.dtype)
        return memory.reshape(self.type.shape)

    def join(self, sharing: SharingRecord, memory: _core.CommonMemory | None, offset: int) -> None:
        """Move the value to shared memory; if `memory` is None, keep it in private memory.

        If `memory` is None, the ranks keep their private values equal from now on. In both cases
        the record `sharing` is stored. The caller holds (locks) the variable, so no step uses it.
        """
        if memory is not None or self.is_frozen:
            self.buffer.lie_in(memory, offset)
        self._sharing = sharing

    def keep_frozen(
        self, readers: SharingRecord, memory: _core.CommonMemory | None, offset: int
    ) -> None:
        """Use the value at a byte offset of `memory`, which the ranks of the host share.

        The caller has written an equal value there. The ranks only read it. The record `readers`
        names the ranks. The caller holds (locks) the variable, so no step uses it.
        """
        self.buffer.lie_in(memory, offset)
        self._readers = readers

    def allocate_part(self, begin: int, end: int) -> _core.Buffer:
        """Return new memory for the bytes of the value from `begin` to `end`."""
        return _core.Buffer(DEVICE, end - begin)

    def keep(self, sharing: SharingRecord, part: tuple[int, int], memory: _core.Buffer) -> None:
        """Keep only the bytes from `part[0]` to `part[1]` of the value; other ranks keep the rest.

        The bytes are kept in `memory`. The caller holds (locks) the variable, so no step uses it.
        """
        if self.is_frozen:  # `keep` copies from private memory
            self.buffer.lie_in(None, 0)
        self.buffer.keep(memory, part[0])
        self.part, self._sharing = part, sharing

    def own(self) -> None:
        """Prepare the variable for a step of this rank that writes the whole value.

        Raises a CompileError if each rank writes only its shard (`is_shared`). If the ranks of the
        host only read a shared copy of the value, it moves to private memory. The caller holds
        (locks) the variable, so no other step uses it.
        """
        sharing = self.sharing
        if sharing is not None and self.is_shared:
            raise sharing_error(self, sharing)
        self.expect_whole()
        if self.buffer.is_common:
            self.buffer.lie_in(None, 0)

    def expect_whole(self) -> None:
        """Raise an error if this rank has only a part of the value."""
        if self.part is not None:
            sharing = self.sharing
            raise lost_parts_error(self.name) if sharing is None else sharing_error(self, sharing)

    def expect_part(self, part: tuple[int, int]) -> None:
        """Raise an error if this rank keeps another part of the value than `part`."""
        if self.part != part or self.sharing is None:
            self.expect_whole()

    def assigning(self) -> AbstractContextManager[Any]:
        """Return the context in which the caller assigns a value.

        If ranks share the variable, the assignment runs several collectives. An exception in the
        context then closes the group. Otherwise the context does nothing.
        """
        sharing = self.sharing
        return nullcontext() if sharing is None else sharing.group.collectives_scope()

    def refusal(self, value: Array) -> str | None:
        """Return the reason why a value cannot be assigned; None if it can be assigned.

        If ranks share the variable, or keep private copies of it equal, all of them call this. They
        compare the values that they assign, and different values are the only possible reason.
        Otherwise every value can be assigned.
        """
        sharing = self.sharing
        if sharing is None or agree(sharing.group, [digest_of(value)], call_site()):
            return None
        return (
            "expected one value on all ranks, because they share the variable or values computed "
            f"from it since the step compiled at {sharing.site}; got different ones"
        )

    def write(self, value: Array) -> None:
        """Replace the value.

        If the variable is shared, all ranks call this, and each of them writes its shard.
        """
        sharing = self.sharing
        if sharing is None or not self.is_shared:
            if self.part is not None or self.buffer.is_common:
                self.buffer.lie_in(None, 0)
            self.part = None
            self.buffer.write(value)
            return
        sharing.group.barrier(site=call_site())  # after it, ranks write
        self.buffer.write_part(value, *(self.part or sharing.span(self.type)))
        sharing.group.barrier(site=call_site())


def sharing_error(storage: CpuStorage, sharing: SharingRecord) -> CompileError:
    """Return the error for a step that would use a shared variable as if it were private.

    The step would write the whole value, but each rank may write only its shard. Or it would read
    the whole value, but this rank keeps only a part of it.
    """
    since = f"since the step compiled at {sharing.site}"
    if storage.part is None:
        return CompileError(
            f"compile: updates: the ranks share variable {storage.name!r} {since}. A later step "
            "that updates it needs shard='host' or 'world', and a next value that is proved equal "
            "on all ranks"
        )
    return CompileError(
        f"compile: variable {storage.name!r} is kept once over all hosts {since}. A later step "
        "that updates it needs shard='world', and a next value that is proved equal on all ranks. "
        "No step can read the whole value: call numpy() on all ranks, or compile with "
        "shard='host', which keeps the whole value on each host"
    )


def lost_parts_error(name: str) -> GroupClosedError:
    """Return the error for a variable of which this rank has only a part.

    The other ranks had the other parts, which are lost because the group has ended.
    """
    return GroupClosedError(
        f"variable {name!r}: it was kept once over all hosts (shard='world'), and the group whose "
        "ranks have its other parts was closed: assign() a value, or load a checkpoint. Before "
        "you close a group, numpy() returns the whole value"
    )
