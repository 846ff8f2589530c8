# SPDX-License-Identifier: Apache-2.0
"""The first run of each step, which `ngd profile` leaves out of the times.

The first run fills caches, touches memory for the first time and compares the steps of the ranks.
It may take a hundred times as long as the later runs.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from .. import _core
from ..dtypes import Array
from ..errors import BusyError

Times: TypeAlias = tuple[int, int, int, int]
"""The times of an instruction or a program: (number of calls, ns of all calls, ns of the shortest
call, flight). For a wait, flight is the ns from the collective's start to the end of the wait."""
Record: TypeAlias = tuple[Times, Sequence[Times], Sequence[Any]]
"""The times of a program, the times of each instruction, and the records of the nested programs.

A nested program is the body of a loop or a branch.
"""


class FirstRun(_core.Hold):
    """An object that runs a step for the first time and stores the times of that run.

    A step runs by a call of `step.hold.run`. Usually `step.hold` is a _core.Hold, which locks the
    variables of the step during the run. Until the first run has ended, it is a FirstRun instead.

    Parameters
    ----------
    step : Executable
        The step.
    records : mapping from Executable to Record
        The mapping that gets the times of the first run.
    """

    def __init__(self, step: Any, records: MutableMapping[Any, Record]) -> None:
        super().__init__([], [], step.device)
        self.step, self.hold, self.records = step, step.hold, records

    def run(self, native: Any, inputs: list[Array], outputs: list[Array]) -> None:
        """Run native.run(inputs, outputs), and store its times."""
        try:
            self.hold.run(native, inputs, outputs)
        finally:
            if self.step.hold is self:
                self.step.hold = self.hold
            with suppress(BusyError):  # another thread runs the step too
                self.records[self.step] = native.record()


def subtract_record(record: Record, first: Record) -> Record:
    """Return the times of a step without its first run: `record` (all runs) minus `first`."""
    bodies = [subtract_record(*pair) for pair in zip(record[2], first[2], strict=True)]
    instructions = [subtract_times(*pair) for pair in zip(record[1], first[1], strict=True)]
    return subtract_times(record[0], first[0]), instructions, bodies


def subtract_times(times: Times, first: Times) -> Times:
    """Return the times without the first run: `times` (all runs) minus `first`.

    The shortest call is still that of all runs, which may be a call of the first run.
    """
    calls, ns, flight = (times[i] - first[i] for i in (0, 1, 3))
    return calls, ns, min(times[2], ns // calls) if calls else 0, flight
