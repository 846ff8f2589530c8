# SPDX-License-Identifier: Apache-2.0
"""A compiled step on the CPU device: kernels in C++, called without the GIL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ... import _core
from ...comm import Group
from ...graph.cost import Cost
from ...graph.graph import Graph
from ...graph.node import Node
from ...profiling import Report, report_of
from ...profiling.recording import first_record
from ..collective_sequence import opened
from ..executable import CompiledStep, Lower
from ..explanation import Explanation
from .peaks import peak
from .sharing import are_alike, asked_once, expect_private, share, share_frozen, shared_by
from .storage import CpuStorage
from .target import DEVICE, CpuTarget


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
