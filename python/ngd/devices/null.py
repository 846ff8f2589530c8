# SPDX-License-Identifier: Apache-2.0
"""The NULL device: the CPU's kernels, and nothing that runs them; the compiler alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

from ..comm import Group
from ..dtypes import Array
from ..errors import CompileError
from ..passes import Plan
from ..profiling import Report, report_of
from .cpu.shared_variables import agree_on_sharing
from .cpu.target import CpuTarget
from .device import Lowered, LoweredStep
from .executable import StepGraph


class NullAgreement(NamedTuple):
    """The target of a step that is not run."""

    target: CpuTarget


class NullDevice:
    """Compiles steps as the CPU does, and runs none."""

    name = "NULL"

    def compiling(self, group: Group) -> AbstractContextManager[None]:
        """Return a block without an effect."""
        return nullcontext()

    def agree(self, source: StepGraph) -> NullAgreement:
        """Return the target; no variable has a value here."""
        _, sharing = agree_on_sharing(source, {})
        return NullAgreement(CpuTarget(source.group, sharing))

    def load(
        self,
        source: StepGraph,
        agreement: NullAgreement,
        lowered: Lowered | None,
        plan_again: Callable[[], Plan],
    ) -> NullExecutable:
        """Return a step that has a program and no memory."""
        assert lowered is not None
        return NullExecutable(source, agreement.target, lowered, plan_again)


class NullExecutable(LoweredStep):
    """A step that was compiled for the CPU's kernels and cannot be called: the compiler alone."""

    device = "NULL"

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
        return report_of(self.plan, None, None, self.sequence.site, self.device, self.memory())
