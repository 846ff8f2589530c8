# SPDX-License-Identifier: Apache-2.0
"""The CPU device: kernels in C++, and memory that the ranks of a host may share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, lru_cache
from typing import Any, Final

import numpy as np

from ... import _core
from ..._util.callsite import call_site
from ...comm import Group
from ...dtypes import Array, DType, Type, uint8
from ...graph.cost import Cost
from ...graph.graph import Graph
from ...graph.node import Node
from ...graph.variable import Variable, placeholder
from ...passes import Verdict
from ...passes.partition import Partition
from ...profiling import Report, report_of
from ...profiling.recording import first_record
from ..collective_sequence import opened
from ..executable import CompiledStep, Lower
from ..explanation import Explanation
from ..native import native_attrs, spec
from .sharing import (
    Shares,
    Sharing,
    agree,
    are_alike,
    asked_once,
    digest_of,
    expect_private,
    lost,
    refused,
    share,
    share_frozen,
    shared_by,
)

DEVICE: Final = _core.Device("CPU")


class CpuTarget:
    """What the passes may ask of the CPU device and the group."""

    def __init__(self, group: Group, shares: Shares | None = None, *, alike: bool = False) -> None:
        self.group, self.rank, self.size = group, group.rank, group.size
        self.shared, self.once = (shares.variables, shares.once) if shares else (frozenset(),) * 2
        self.places, self.alike = shares.places if shares else Partition(group), alike
        self.threads = _core.thread_count()

    def query(
        self, op: str, inputs: Sequence[Type], outputs: Sequence[Type], attrs: Mapping[str, Any]
    ) -> Verdict:
        """Ask the kernel table, once a question in the life of the process."""
        given = tuple([(k, type(v), v) for k, v in attrs.items()])
        return ask(self.threads, op, tuple(inputs), tuple(outputs), given)

    def first_fit(self, lives: list[tuple[int, int, int]]) -> list[int]:
        """Place blocks in an arena: one walk in C++."""
        return _core.first_fit(lives)


@lru_cache(maxsize=1 << 16)
def ask(
    threads: int,
    op: str,
    inputs: tuple[Type, ...],
    outputs: tuple[Type, ...],
    attrs: tuple[tuple[str, type, Any], ...],
) -> Verdict:
    """What the kernel table says where kernels have so many threads.

    A step is made of the same layers again and again, and the one for evaluation of those of the
    one for training. 1, 1.0 and True are one key but several attributes; so types are keys too.
    """
    name, reasons, _, in_place = DEVICE.query_kernel(
        op,
        [spec(t) for t in inputs],
        [spec(t) for t in outputs],
        native_attrs({name: value for name, _, value in attrs}),
    )
    return Verdict(name is not None, name or reasons, frozenset(in_place))


@cache
def peak(dtype: DType | None) -> float:
    """FLOP a second of a large product of a dtype; for None, the bytes a second of a copy."""
    if dtype is None:
        size = 1 << 26
        return 2 * size / seconds_of("copy", {}, [Type(uint8, (size,))], Type(uint8, (size,)))
    node = placeholder("a", (1024, 1024), dtype) @ placeholder("b", (1024, 1024), dtype)
    operands = [operand.type for operand in node.inputs]
    name, attrs = node.op.lower(**node.attrs)
    flops = node.op.cost(operands, [node.type], **node.attrs).flops
    return flops / seconds_of(name, attrs, operands, node.type)


def seconds_of(
    kernel: str, attrs: Mapping[str, Any], operands: Sequence[Type], result: Type
) -> float:
    """The shortest of 5 runs of a kernel on zeros."""
    builder = _core.ProgramBuilder()
    inputs = [builder.add_value(*spec(t), "input", i, 0) for i, t in enumerate(operands)]
    output = builder.add_value(*spec(result), "output", 0, 0)
    native = native_attrs(attrs)
    builder.add_instruction("run", kernel, inputs, [output], native, -1, 0, "ngd", [])
    builder.set_sizes(len(operands), 1, 0)
    run = _core.Executable(DEVICE, builder, [], [], [], []).run
    given = [np.zeros(t.shape, t.dtype) for t in operands], [np.zeros(result.shape, result.dtype)]
    run(*given)
    taken = []
    for _ in range(5):
        begin = _core.clock_ns()
        run(*given)
        taken.append(_core.clock_ns() - begin)
    return min(taken) / 1e9


class CpuStorage:
    """A variable's value in the CPU device's memory; sharing.py says who else may write there."""

    def __init__(self, variable: Variable, initial: Array) -> None:
        self.name, self.type, self.cell = variable.name, variable.type, variable.cell
        self.buffer = _core.Buffer(DEVICE, self.type.bytes)
        self.varies = ""
        """Where a step was compiled that writes to it what is not equal on all ranks."""
        self.part: tuple[int, int] | None = None
        """Where the bytes that this rank keeps begin and end, where others keep the rest."""
        self.differs = False
        """True if it is only read, and was found to have other values on other ranks."""
        self._sharing: Sharing | None = None
        self._readers: Sharing | None = None
        """The ranks of the host that keep one copy of it, which all of them only read."""
        if self.type.bytes:
            self.memory()[...] = initial

    @property
    def sharing(self) -> Sharing | None:
        """The ranks that share it, or keep it equal on all of them; None: it is this rank's."""
        return None if self._sharing is None or self._sharing.is_over else self._sharing

    @property
    def is_shared(self) -> bool:
        """Whether other ranks write a part of it."""
        mine = self.part is None and not self.buffer.is_common
        return not mine and self.sharing is not None

    @property
    def is_frozen(self) -> bool:
        """True if it is in memory of the host that no rank writes to."""
        return self._sharing is None and self.buffer.is_common

    @property
    def kept_by(self) -> Group | None:
        """See Storage."""
        sharing = self.sharing
        return None if self.part is None or sharing is None else sharing.group

    def read(self) -> Array:
        """A copy of the value, where the variable may be read now."""
        if self.part is not None:
            return self.read_parts(*self.part)
        if self.buffer.is_common and self._sharing is not None:
            self._sharing.expect_process(self.name)
        value: Array = np.empty(self.type.shape, self.type.dtype)
        self.buffer.read(value, self.cell)
        return value

    def read_parts(self, begin: int, end: int) -> Array:
        """The same where each rank has a part; all of them call this."""
        part: Array = np.empty((end - begin) // self.type.dtype.itemsize, self.type.dtype)
        self.buffer.read_part(part, self.cell)
        sharing = self.sharing
        if sharing is None:
            raise lost(self.name)
        return sharing.gathered(part, self.type)

    def held(self) -> Array:
        """The same for who holds the variable."""
        value: Array = np.empty(self.type.shape, self.type.dtype)
        self.buffer.copy_to(value)
        return value

    def view(self) -> Array:
        """Return the memory of the value as an array, which the ranks that share it write, too."""
        if self.is_frozen:  # the caller may write to it
            _core.while_held([self.cell], lambda: self.buffer.lie_in(None, 0))
        return self.memory()

    def memory(self) -> Array:
        """Return the memory of the value as an array, to read."""
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

    def join(self, sharing: Sharing, memory: _core.CommonMemory | None, offset: int) -> None:
        """Be shared, and lie there, or be kept equal; for who holds the variable."""
        if memory is not None or self.is_frozen:
            self.buffer.lie_in(memory, offset)
        self._sharing = sharing

    def keep_frozen(self, readers: Sharing, memory: _core.CommonMemory | None, offset: int) -> None:
        """Be in memory of the host that its ranks only read. The caller holds the variable."""
        self.buffer.lie_in(memory, offset)
        self._readers = readers

    def room(self, begin: int, end: int) -> _core.Buffer:
        """Memory for a part of it."""
        return _core.Buffer(DEVICE, end - begin)

    def keep(self, sharing: Sharing, part: tuple[int, int], room: _core.Buffer) -> None:
        """Be kept by all ranks, a part each, and this one there; for who holds the variable."""
        self.buffer.keep(room, part[0])
        self.part, self._sharing = part, sharing

    def own(self) -> None:
        """Let this process write all of it, which holds it; CompileError while it is shared."""
        sharing = self.sharing
        if sharing is not None and self.is_shared:
            raise refused(self, sharing)
        self.expect_whole()
        if self.buffer.is_common:
            self.buffer.lie_in(None, 0)

    def expect_whole(self) -> None:
        """Refuse a step that would read what only other ranks have."""
        if self.part is not None:
            sharing = self.sharing
            raise lost(self.name) if sharing is None else refused(self, sharing)

    def expect_part(self, part: tuple[int, int]) -> None:
        """The same of a step that reads and writes these bytes alone."""
        if self.part != part or self.sharing is None:
            self.expect_whole()

    def assigning(self) -> AbstractContextManager[Any]:
        """Where it is shared, a call of several collectives."""
        sharing = self.sharing
        return nullcontext() if sharing is None else sharing.group.under_way()

    def refusal(self, value: Array) -> str | None:
        """Not all ranks that share it assign the same; all of them call this."""
        sharing = self.sharing
        if sharing is None or agree(sharing.group, [digest_of(value)], call_site()):
            return None
        return (
            "expected one value on all ranks, which share the variable, or what is computed of it, "
            f"since the step compiled at {sharing.site}; they give different ones"
        )

    def write(self, value: Array) -> None:
        """Replace the value; where it is shared all ranks do, a slice each."""
        sharing = self.sharing
        if sharing is None or not self.is_shared:
            if self.part is not None or self.buffer.is_common:
                self.buffer.lie_in(None, 0)
            self.part = None
            self.buffer.write(value)
            return
        sharing.group.barrier(site=call_site())  # from here on others write
        self.buffer.write_part(value, *(self.part or sharing.span(self.type)))
        sharing.group.barrier(site=call_site())


class CpuExecutable(CompiledStep):
    """A step on the CPU device: one call into C++, without the GIL."""

    device = DEVICE.name

    def __init__(self, graph: Graph, group: Group, lower: Lower) -> None:
        super().__init__(graph, group)
        storages: dict[Node, CpuStorage] = {}
        for variable in self.variables:
            storage = variable.storage(self.device, CpuStorage)
            assert isinstance(storage, CpuStorage)
            storages[variable] = storage
        with asked_once(group):
            self.make(graph, group, lower, storages)

    def make(
        self, graph: Graph, group: Group, lower: Lower, storages: Mapping[Node, CpuStorage]
    ) -> None:
        """Compile, and share variables, where the ranks agree."""
        shares = shared_by(graph, group, storages)
        alike = bool(shares.variables) and are_alike(graph, group)
        target = CpuTarget(group, shares, alike=alike)
        self.explanation = Explanation(lower, target)
        lowered = lower(target)
        self.plan, self.ordering = lowered.plan, lowered.ordering
        whole = {v: storages[v] for v in self.plan.whole}
        read = [s for v, s in storages.items() if v not in self.plan.shared and v not in whole]
        for node, span in self.plan.shared.items():
            storages[node].expect_part(span)
        for storage in read:
            storage.expect_whole()
        expect_private(whole, shares.equal, self.ordering.site)
        self.program = str(lowered.program)
        communicators = [g.communicator for g in opened(self.ordering.groups)]
        given, made = (
            [_core.ArrayType(t.dtype, t.shape) for t in types]
            for types in (self.input_types, self.output_types)
        )
        buffers = [storage.buffer for storage in storages.values()]
        checks = [s.own for s in whole.values()] + [s.expect_whole for s in read]
        self.native = _core.Executable(
            DEVICE, lowered.program, communicators, buffers, given, made, checks
        )
        if shares.variables:
            share(self.plan.shared, shares, storages, group, self.ordering.site)
        if alike:
            share_frozen(graph, shares.places, storages, group, self.ordering.site)
        self.apart = {v for v in self.plan.shared if storages[v].part is not None}
        self.storages = storages

    def checksum(self, variable: Node) -> tuple[int, int] | None:
        """See CompiledStep."""
        storage = self.storages[variable]
        return None if variable in self.plan.shared else storage.buffer.checksum()

    def __call__(self, *arrays: Any, out: Sequence[Any] | None = None, **named: Any) -> list[Any]:
        """Run once."""
        if out is None and not named:
            results = self.native.call(self.hold, arrays)
            if results is not None:
                return results
        inputs = self.prepare(arrays, named)
        outputs = self.results(out, inputs)
        self.hold.run(self.native, inputs, outputs)
        return outputs if out is None else list(out)

    def memory(self) -> dict[str, int]:
        """See Executable."""
        return super().memory() | {
            "private": self.plan.private_bytes,
            "shared": self.plan.shared_bytes,
            "unshared": self.plan.unshared_bytes,
            "recomputed": self.plan.recomputed.bytes,
            "sharded": sum(v.type.bytes for v in self.plan.shared if v not in self.apart),
            "apart": sum(v.type.bytes for v in self.apart),
        }

    def report(self) -> Report:
        """See Executable."""
        site, record = self.ordering.site, self.native.record()
        first = first_record(self)
        return report_of(self.plan, record, peak, site, self.device, self.memory(), first)

    def cost(self) -> Cost:
        """See Executable."""
        return self.plan.cost

    def explain(self, node: Node) -> str:
        """See Executable."""
        return self.explanation.of(self, node)

    def __str__(self) -> str:
        return self.program
