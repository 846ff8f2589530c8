# SPDX-License-Identifier: Apache-2.0
"""The NULL device. It compiles for the kernels of the CPU, and runs nothing."""

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
    """The result of NullDevice.agree.

    The compiler's passes ask `target` which kernels the CPU device has.
    """

    target: CpuTarget


class NullDevice:
    """The device that compiles steps as the CPU device does, and runs none."""

    name = "NULL"

    def compiling(self, group: Group) -> AbstractContextManager[None]:
        """Return a context that does nothing."""
        return nullcontext()

    def agree(self, source: StepGraph) -> NullAgreement:
        """Return an agreement with a `target` that knows the kernels of the CPU device.

        The attribute `sharing` of the target has the variables that the ranks would share on the
        CPU device: several ranks keep one copy. No values are compared, because variables have no
        value on this device.
        """
        _, sharing = agree_on_sharing(source, {})
        return NullAgreement(CpuTarget(source.group, sharing))

    def load(
        self,
        source: StepGraph,
        agreement: NullAgreement,
        lowered: Lowered | None,
        plan_again: Callable[[], Plan],
    ) -> NullExecutable:
        """Return a step that has a compiled program, but allocates no memory for it."""
        assert lowered is not None
        return NullExecutable(source, agreement.target, lowered, plan_again)


class NullExecutable(LoweredStep):
    """A step that was compiled for the kernels of the CPU and cannot be called."""

    device = "NULL"

    def __call__(
        self, *arrays: Any, out: Sequence[Array] | None = None, **named: Any
    ) -> list[Array]:
        """Raise a CompileError, because the device only compiles."""
        raise CompileError(
            f"{self.title}: expected a device that runs steps; got NULL, which only compiles. "
            "Compile it with device='CPU' or 'INTERPRETER'."
        )

    def report(self) -> Report:
        """Return the report of the instructions, without times."""
        return report_of(self.plan, None, None, self.sequence.site, self.device, self.memory())
