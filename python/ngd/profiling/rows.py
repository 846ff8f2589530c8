# SPDX-License-Identifier: Apache-2.0
"""The rows of a report: the instructions of a compiled step, with their times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ..dtypes import DType, Type
from ..graph.cost import Cost
from ..passes import Instruction, Plan
from .collectives import variables_of
from .first_runs import Record, Times
from .recording import last_arrival_counts

NEVER: Final[Times] = (0, 0, 0, 0)
"""The times of an instruction that has not run: all are 0."""


@dataclass(frozen=True)
class Peaks:
    """The speed of this machine, measured by this process with the threads of its kernels.

    Attributes
    ----------
    bytes : float
        The memory bandwidth: bytes per second that a copy reads and writes. The copied array is
        larger than the caches.
    flops : mapping from str to float
        The FLOP per second of a large matmul, by the name of the dtype.
    """

    bytes: float
    """The bytes per second that a copy larger than the caches reads and writes."""
    flops: Mapping[str, float] = field(default_factory=dict)
    """The FLOP per second of a large matmul, by the name of the dtype."""

    def least_seconds(self, cost: Cost, dtype: str) -> float:
        """Return the least time in seconds that this machine needs for a computation.

        It is the longer of two times at the machine's peak speed: the time of the arithmetic, and
        the time of the memory traffic.

        Parameters
        ----------
        cost : Cost
            The FLOP and bytes of the computation.
        dtype : str
            The name of the dtype in which it computes.
        """
        peak = self.flops.get(dtype)
        traffic = cost.bytes / self.bytes if self.bytes else 0.0
        return max(traffic, cost.flops / peak if peak else 0.0)


@dataclass(frozen=True)
class Row:
    """One instruction of a compiled step.

    Attributes
    ----------
    number : str
        The number in the program. "4.1.0" is instruction 0 of body 1 of instruction 4, which is a
        loop or a branch.
    action : str
        "run" for a kernel or a copy, "start" or "wait" for a collective, "scan" for a loop, or
        "cond" for a branch.
    op : str
        The name of the op.
    site : str
        `file:line` of the user's code.
    made_of : tuple of pairs of str
        The ops that are fused in the instruction, as pairs (op, call site).
    operands, results : tuple of types
        The dtypes and shapes of the operands and results.
    attrs : mapping
        The attributes of the kernel or of the collective.
    layout : str
        The order of the axes in memory: "row-major" or "channels last".
    cost : Cost
        The FLOP and bytes of one call.
    calls : int
        The number of calls.
    seconds : float
        The time of all calls, in seconds. For a wait, the time that this rank waited.
    least : float
        The shortest call, in seconds.
    share : float
        The part of the step's time, 0 to 1.
    of_peak : float
        The speed relative to the machine's peak speed: `Peaks.least_seconds`, divided by the mean
        time of a call. It may exceed 1, because caches are faster than memory.
    flight : float
        For a wait: the time from the start of the collective to the end of the wait, in seconds.
    last : mapping from int to int
        For a wait: how often each rank arrived last, as a sum over all collectives of this op and
        call site. So rows of the same op and call site have the same counts. The sum is over all
        runs in the newest block of `ngd.profile`, including first runs that the times leave out.
    variables : tuple of str
        For a start or wait: the names of the variables that are updated from the result. For
        example, the all-reduce of a gradient has the name of the parameter.
    """

    number: str
    """The number in the program. "4.1.0" is instruction 0 of body 1 of instruction 4."""
    action: str
    """The action: "run" for a kernel or a copy, "start" or "wait" for a collective, "scan" for a
    loop, or "cond" for a branch."""
    op: str
    site: str
    """The `file:line` of the user's code."""
    made_of: tuple[tuple[str, str], ...]
    """The ops that are fused in the instruction, as pairs (op, call site)."""
    operands: tuple[Type, ...]
    results: tuple[Type, ...]
    attrs: Mapping[str, Any]
    """The attributes of the kernel or of the collective."""
    layout: str
    cost: Cost
    """The FLOP and bytes of one call."""
    calls: int
    seconds: float
    """The time of all calls, in seconds. For a wait, the time that this rank waited."""
    least: float
    """The shortest call, in seconds."""
    share: float
    """The share of the time of the step, 0 to 1."""
    of_peak: float
    """The speed relative to the machine's peak speed; 1 is the peak.

    It is `Peaks.least_seconds`, divided by the mean time of a call. It may exceed 1, because caches
    are faster than memory.
    """
    flight: float = 0.0
    """For a wait: the time from the collective's start to the end of the wait, in seconds."""
    last: Mapping[int, int] = field(default_factory=dict)
    """For a wait: how often each rank arrived last at collectives of this op and call site."""
    variables: tuple[str, ...] = ()
    """For a start or wait: the names of the variables that the collective's result updates."""

    @property
    def types(self) -> str:
        """The types of operands and results, such as "f32[2,3], f32[3] -> f32[2,3]"."""
        texts = (", ".join(t.short for t in types) for types in (self.operands, self.results))
        return " -> ".join(texts).strip()

    @property
    def title(self) -> str:
        """The action and the op, such as "wait all_reduce".

        The action is left out if it is "run", or if it is equal to the op, such as "scan".
        """
        return self.op if self.action in ("run", self.op) else f"{self.action} {self.op}"

    @property
    def depth(self) -> int:
        """The number of loops and branches that contain this instruction."""
        return self.number.count(".") // 2

    @property
    def mean(self) -> float:
        """The mean time of a call, in seconds."""
        return self.seconds / self.calls if self.calls else 0.0

    @property
    def overlap(self) -> float:
        """For a wait: the fraction of the collective's time in which this rank did not wait.

        The collective's time is `flight`, from its start to the end of the wait. The fraction is a
        number from 0 to 1. It is 0 for a row that is not a wait.
        """
        return 1 - self.seconds / self.flight if self.flight else 0.0


def steps_of(plan: Plan) -> Iterator[Instruction]:
    """Yield all instructions of a plan. The instructions inside of a loop or branch follow it."""
    for step in plan.steps:
        yield step
        for body in step.bodies:
            yield from steps_of(body)


def dtype_of(step: Instruction) -> DType | None:
    """Return the dtype in which an instruction computes: that of its first float operand.

    If no operand is a float, return the dtype of the first float result, or None without one.
    """
    types = [type for type, _ in (*step.inputs, *step.outputs)]
    return next((t.dtype for t in types if t.dtype.kind in "fV"), None)


def rows_of(
    plan: Plan, record: Record | None, whole_ns: int, peaks: Peaks, prefix: str
) -> Iterator[Row]:
    """Yield the rows of a plan. The rows of a loop or branch follow its own row."""
    instructions, bodies = (record[1], iter(record[2])) if record else ((), iter(()))
    variables = variables_of(plan)
    for number, step in enumerate(plan.steps):
        times = instructions[number] if instructions else NEVER
        name = f"{prefix}{number}"
        row = row_of(plan, step, name, times, whole_ns, peaks)
        yield replace(row, variables=variables.get(number, ()))
        for index, body in enumerate(step.bodies):
            yield from rows_of(body, next(bodies, None), whole_ns, peaks, f"{name}.{index}.")


def row_of(
    plan: Plan, step: Instruction, number: str, times: Times, whole_ns: int, peaks: Peaks
) -> Row:
    """Return the row of one instruction."""
    calls, ns, least, flight = times
    dtype, cost = dtype_of(step), step.cost
    op, start = step.op, plan.steps[step.start] if step.action == "wait" else step
    if step.action in ("start", "wait") and "reduce_op" in start.attrs:
        op = f"{op}({start.attrs['reduce_op']})"
    bound = peaks.least_seconds(cost, dtype.name if dtype else "") if calls else 0.0
    num_buffers = 2 if step.bodies else 0  # the last two outputs are working memory, not results
    return Row(
        number,
        step.action,
        op,
        step.site,
        step.made_of,
        tuple(type for type, _ in step.inputs),
        tuple(type for type, _ in step.outputs[: len(step.outputs) - num_buffers]),
        step.attrs,
        step.layout,
        cost,
        calls,
        ns / 1e9,
        least / 1e9,
        ns / whole_ns if whole_ns else 0.0,
        bound * calls / (ns / 1e9) if ns else 0.0,
        flight / 1e9,
        last_arrival_counts((op, step.site)) if step.action == "wait" and calls else {},
    )
