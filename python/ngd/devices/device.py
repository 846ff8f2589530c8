# SPDX-License-Identifier: Apache-2.0
"""The interface of a device to the compiler.

`Device.agree` lets the ranks choose the variables that they share: they keep one copy in common
instead of one copy per rank. It returns an object with a target, which gives passes the kernels
of the device and the ranks of the step. The compiler then compiles the graph for this target, and
`Device.load` returns the step.

`LoweredStep` is the base class of steps with a compiled program: those of the CPU device, which
runs the program, and those of the NULL device, which only compiles it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, TypeVar

from .. import _core
from ..comm import Group
from ..graph.cost import Cost
from ..graph.node import Node
from ..passes import Plan, Target
from .collective_sequence import CollectiveSequence
from .executable import CompiledStep, Executable, StepGraph
from .explanation import Explanation


@dataclass(frozen=True)
class Lowered:
    """A compiled graph: its plan (instructions and memory), and its program for the C++ core."""

    plan: Plan
    program: _core.ProgramBuilder
    sequence: CollectiveSequence


class LoweredStep(CompiledStep):
    """The base class of steps with a plan (instructions and memory) and a program in C++."""

    def __init__(
        self, source: StepGraph, target: Target, lowered: Lowered, plan_again: Callable[[], Plan]
    ) -> None:
        super().__init__(source)
        self.explanation = Explanation(plan_again, target)
        self.plan, self.sequence = lowered.plan, lowered.sequence
        self.program = str(lowered.program)

    def cost(self) -> Cost:
        """Return the FLOP of one run and the bytes that it reads and writes, after fusion."""
        return self.plan.cost

    def explain(self, node: Node) -> str:
        """Return a text that shows how a node is computed; see Executable.explain."""
        return self.explanation.of(self, node)

    def __str__(self) -> str:
        return self.program


class Agreement(Protocol):
    """The choice of variables to share, which ranks make together before they compile a step."""

    @property
    def target(self) -> Target | None:
        """The object that gives passes the kernels and the ranks; None on the INTERPRETER device.

        The INTERPRETER device evaluates graphs and compiles no program.
        """
        ...


AgreementType = TypeVar("AgreementType", bound=Agreement)


class Device(Protocol[AgreementType]):
    """A kind of device, such as CPU.

    ngd.compile calls `agree`, compiles for the `target` of the object that `agree` returned, and
    calls `load`.
    """

    name: str

    def compiling(self, group: Group) -> AbstractContextManager[None]:
        """Return a context that the compiler enters for the whole compilation of a step.

        On the CPU device, ranks that share variables check in this context that they all have the
        same shapes and dtypes in the step. The result is stored. If the compilation then fails on
        one rank only, this rank compiles again and uses the stored result, because the other ranks
        do not repeat the check. On other devices, the context does nothing.
        """
        ...

    def agree(self, source: StepGraph) -> AgreementType:
        """Decide with the other ranks which variables they share, and return the decision.

        Ranks share a variable if they keep one copy of it in common, such as in memory of the host.
        Only the CPU device has such copies. All ranks of the step's group call this.
        """
        ...

    def load(
        self,
        source: StepGraph,
        agreement: AgreementType,
        lowered: Lowered | None,
        plan_again: Callable[[], Plan],
    ) -> Executable:
        """Return the step. The CPU device also allocates its memory and constructs its kernels.

        `lowered` is the compiled graph, or None on the INTERPRETER device, which compiles none.
        `plan_again` is a function that compiles the step once more. `Executable.explain` calls it
        to follow a node through the compiler.
        """
        ...
