# SPDX-License-Identifier: Apache-2.0
"""The NULL device: the CPU's kernels, and nothing that runs them; the compiler alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..comm import Group
from ..dtypes import Array
from ..errors import CompileError
from ..graph.cost import Cost
from ..graph.graph import Graph
from ..graph.node import Node
from ..profiling import Report, report_of
from .cpu.sharing import shared_by
from .cpu.target import CpuTarget
from .executable import CompiledStep, Lower
from .explanation import Explanation


class NullExecutable(CompiledStep):
    """A step that was compiled for the CPU's kernels and cannot be called: the compiler alone."""

    device = "NULL"

    def __init__(self, graph: Graph, group: Group, lower: Lower) -> None:
        super().__init__(graph, group)
        target = CpuTarget(group, shared_by(graph, group, {}))
        self.explanation = Explanation(lower, target)
        lowered = lower(target)
        self.plan, self.ordering = lowered.plan, lowered.ordering
        self.program = str(lowered.program)

    def __call__(
        self, *arrays: Any, out: Sequence[Array] | None = None, **named: Any
    ) -> list[Array]:
        """Refuse."""
        raise CompileError(
            f"{self.title}: expected a device that runs steps; got NULL, which only compiles. "
            "Compile it with device='CPU' or 'INTERPRETER'."
        )

    def report(self) -> Report:
        """See Executable; without times."""
        return report_of(self.plan, None, None, self.ordering.site, self.device, self.memory())

    def cost(self) -> Cost:
        """See Executable."""
        return self.plan.cost

    def explain(self, node: Node) -> str:
        """See Executable."""
        return self.explanation.of(self, node)

    def __str__(self) -> str:
        return self.program
