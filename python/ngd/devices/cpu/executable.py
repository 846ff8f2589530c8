# SPDX-License-Identifier: Apache-2.0
"""A compiled step on the CPU device: kernels in C++, called without the GIL."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from ... import _core
from ...comm import Group
from ...graph.node import Node
from ...graph.variable import Variable
from ...passes import Plan
from ...passes.sharding.equal_values import Equal
from ...profiling import Report, report_of
from ...profiling.recording import first_record
from ..collective_sequence import open_groups
from ..device import Lowered, LoweredStep
from ..executable import StepGraph
from .peaks import peak
from .shared_variables import (
    agree_on_sharing,
    comparing_once,
    expect_private,
    have_uniform_types,
    share,
    share_frozen,
)
from .storage import CpuStorage
from .target import DEVICE, CpuTarget


@dataclass(frozen=True)
class CpuAgreement:
    """The result of CpuDevice.agree: the variables that ranks share, and this rank's storages."""

    storages: dict[Node, CpuStorage]
    """The storage of each variable of the step on this rank."""
    equal: Equal
    """The nodes of the graph whose values are proved equal on all ranks."""
    target: CpuTarget
    """The object that the compiler's passes ask which CPU kernel runs an op. Its attribute
    `sharing` has the variables that the ranks share."""


class CpuDevice:
    """The device that runs C++ kernels. The ranks of a host can share its variables."""

    name = "CPU"

    def compiling(self, group: Group) -> AbstractContextManager[None]:
        """Return the context of a compilation, in which the ranks compare shapes and dtypes once.

        If this rank fails to compile the step and has to compile it again, it uses the result of
        the first comparison; see `comparing_once`.
        """
        return comparing_once(group)

    def agree(self, source: StepGraph) -> CpuAgreement:
        """Agree with the other ranks which variables the ranks of a host share."""
        graph, group = source.graph, source.group
        storages: dict[Node, CpuStorage] = {}
        for variable in graph.variables:
            if isinstance(variable, Variable):
                storage = variable.storage(self.name, CpuStorage)
                assert isinstance(storage, CpuStorage)
                storages[variable] = storage
        equal, sharing = agree_on_sharing(source, storages)
        if sharing.variables:
            sharing = sharing._replace(has_uniform_types=have_uniform_types(graph, group))
        return CpuAgreement(storages, equal, CpuTarget(group, sharing))

    def load(
        self,
        source: StepGraph,
        agreement: CpuAgreement,
        lowered: Lowered | None,
        plan_again: Callable[[], Plan],
    ) -> CpuExecutable:
        """Return the compiled step, and move the variables that its ranks share to shared memory.

        If all hosts together keep one copy of a variable, each rank keeps a part of it in private
        memory instead.
        """
        assert lowered is not None
        step = CpuExecutable(source, agreement, lowered, plan_again)
        step.share_variables(agreement)
        return step


class CpuExecutable(LoweredStep):
    """A step on the CPU device. A run is one call into C++, without the GIL."""

    device = DEVICE.name

    def __init__(
        self,
        source: StepGraph,
        agreement: CpuAgreement,
        lowered: Lowered,
        plan_again: Callable[[], Plan],
    ) -> None:
        super().__init__(source, agreement.target, lowered, plan_again)
        storages = agreement.storages
        whole = {v: storages[v] for v in self.plan.whole}
        read = [s for v, s in storages.items() if v not in self.plan.shared and v not in whole]
        for node, span in self.plan.shared.items():
            storages[node].expect_part(span)
        for storage in read:
            storage.expect_whole()
        expect_private(whole, agreement.equal, self.sequence.site)
        communicators = [g.communicator for g in open_groups(self.sequence.groups)]
        native_inputs, native_outputs = (
            [_core.ArrayType(t.dtype, t.shape) for t in types]
            for types in (self.input_types, self.output_types)
        )
        buffers = [storage.buffer for storage in storages.values()]
        checks = [s.own for s in whole.values()] + [s.expect_whole for s in read]
        self.native = _core.Executable(
            DEVICE, lowered.program, communicators, buffers, native_inputs, native_outputs, checks
        )
        self.storages = storages
        self.once_over_hosts: set[Node] = set()
        """The variables that have one copy over all hosts. Each rank of each host keeps a part."""

    def share_variables(self, agreement: CpuAgreement) -> None:
        """Move the variables to memory that the ranks of a host share; all ranks call this."""
        equal, sharing, site = agreement.equal, agreement.target.sharing, self.sequence.site
        if sharing.variables:
            share(self.plan.shared, equal, sharing, self.storages, site)
        if sharing.has_uniform_types:
            share_frozen(equal.graph, sharing, self.storages, site)
        self.once_over_hosts = {v for v in self.plan.shared if self.storages[v].part is not None}

    def checksum(self, variable: Node) -> tuple[int, int] | None:
        """Return a checksum of a variable's value; None if the ranks share the variable.

        Call this during a run of this step. The step then holds (locks) the variable, so no other
        step changes its value.
        """
        storage = self.storages[variable]
        return None if variable in self.plan.shared else storage.buffer.checksum()

    def __call__(self, *arrays: Any, out: Sequence[Any] | None = None, **named: Any) -> list[Any]:
        """Run the step once, and return its results: new arrays, or the arrays of `out`."""
        if out is None and not named:
            results = self.native.call(self.hold, arrays)
            if results is not None:
                return results
        inputs = self.prepare(arrays, named)
        outputs = self.results(out, inputs)
        self.hold.run(self.native, inputs, outputs)
        return outputs if out is None else list(out)

    def memory(self) -> dict[str, int]:
        """Return the bytes of the step's memory; see Executable.memory."""
        return super().memory() | {
            "private": self.plan.private_bytes,
            "shared": self.plan.shared_bytes,
            "unshared": self.plan.unshared_bytes,
            "recomputed": self.plan.recomputed.bytes,
            "sharded": sum(v.type.bytes for v in self.plan.shared if v not in self.once_over_hosts),
            "apart": sum(v.type.bytes for v in self.once_over_hosts),
        }

    def report(self) -> Report:
        """Return time, FLOP, bytes, layout and ops of each instruction."""
        site, record = self.sequence.site, self.native.record()
        first = first_record(self)
        return report_of(self.plan, record, peak, site, self.device, self.memory(), first)
