# SPDX-License-Identifier: Apache-2.0
"""What each instruction of a compiled step takes: `Executable.report()`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, TypeAlias

from ..cost import Cost
from ..dtype import DType, Type
from ..passes import Plan, Step
from . import pages
from .recording import last_to_come

Times: TypeAlias = tuple[int, int, int, int]
"""Calls, ns in all, ns at least; of a wait, ns from where its start began to where it ended."""
Record: TypeAlias = tuple[Times, Sequence[Times], Sequence[Any]]
"""Of a program: whole runs, its instructions, and the records of the programs that these run."""

NEVER: Final[Times] = (0, 0, 0, 0)


@dataclass(frozen=True)
class Peaks:
    """What this process measured of its machine, with as many threads as its kernels use."""

    bytes: float
    """A second, read and written by a copy that no cache holds."""
    flops: Mapping[str, float] = field(default_factory=dict)
    """FLOP a second of a large matrix product, by dtype."""

    def least_seconds(self, cost: Cost, dtype: str) -> float:
        """What something would take at the peaks: of arithmetic or of traffic, the longer."""
        peak = self.flops.get(dtype)
        traffic = cost.bytes / self.bytes if self.bytes else 0.0
        return max(traffic, cost.flops / peak if peak else 0.0)


@dataclass(frozen=True)
class Row:
    """An instruction of a compiled step."""

    number: str
    """In the program; "4.1.0" is instruction 0 of program 1 that instruction 4 runs."""
    action: str
    """ "run", "start" or "wait" of a collective, "scan", "cond"."""
    op: str
    site: str
    """`file:line` of the user's code."""
    made_of: tuple[tuple[str, str], ...]
    """The ops that it computes in one, with their call sites."""
    operands: tuple[Type, ...]
    results: tuple[Type, ...]
    attrs: Mapping[str, Any]
    """The attributes of the kernel or of the collective."""
    layout: str
    cost: Cost
    """Of one call: FLOP, bytes."""
    calls: int
    seconds: float
    """Of all calls together; a wait's is what this rank waited."""
    least: float
    """The shortest call, in seconds."""
    share: float
    """Of the time of the step, 0 to 1."""
    of_peak: float
    """What this machine's peaks allow, as a part of what a call took, 0 to 1.

    Above 1 where caches are faster than memory.
    """
    flight: float = 0.0
    """Of a wait: seconds from where the collective was started to where it was waited for."""
    last: Mapping[int, int] = field(default_factory=dict)
    """Of a wait: by rank, how often it was the last to come."""

    @property
    def types(self) -> str:
        """Operands and results, as graphs print them."""
        both = (", ".join(map(str, types)) for types in (self.operands, self.results))
        return " -> ".join(both).strip()

    @property
    def title(self) -> str:
        """The op, behind "start" or "wait" where it is one of a collective."""
        return self.op if self.action == "run" else f"{self.action} {self.op}"

    @property
    def depth(self) -> int:
        """How many instructions it lies in."""
        return self.number.count(".") // 2

    @property
    def mean(self) -> float:
        """Seconds a call."""
        return self.seconds / self.calls if self.calls else 0.0

    @property
    def overlap(self) -> float:
        """Of a wait: the part of the collective's flight in which this rank did something else."""
        return 1 - self.seconds / self.flight if self.flight else 0.0


@dataclass(frozen=True)
class Report:
    """What each instruction of a compiled step takes, in the order of the program.

    str() is a table of the longest ones. `rows` has all; those of loops and branches stand behind
    the instruction that runs them, whose time has theirs.
    """

    rows: tuple[Row, ...]
    runs: int
    """How many were timed; 0: none, and no row has times."""
    seconds: float
    """Of all runs together."""
    peaks: Peaks
    site: str
    """`file:line` of what has compiled the step."""
    device: str
    memory: Mapping[str, int]
    """As Executable.memory(): bytes."""

    @property
    def cost(self) -> Cost:
        """Of one run."""
        return sum((row.cost for row in self.rows if row.depth == 0), Cost())

    def shares(self) -> dict[str, float]:
        """Of the time of the step, the share of each kind of instruction, the largest first."""
        found: dict[str, float] = {}
        for row in self.rows:
            if row.depth == 0:
                found[row.title] = found.get(row.title, 0.0) + row.share
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def to_dict(self) -> dict[str, Any]:
        """What JSON can say, in seconds, bytes and FLOP."""
        rows = [named(row) | {"mean": row.mean, "overlap": row.overlap} for row in self.rows]
        own = named(self) | {"peaks": named(self.peaks), "cost": self.cost}
        made: dict[str, Any] = plain(own | {"rows": rows, "shares": self.shares()})
        return made

    def to_json(self) -> str:
        """As to_dict, as text."""
        return json.dumps(self.to_dict(), indent=1)

    def to_html(self) -> str:
        """One page that needs nothing else."""
        return pages.html(self)

    def __str__(self) -> str:
        return pages.text(self)


def named(record: Any) -> dict[str, Any]:
    """The fields of a dataclass."""
    return {each.name: getattr(record, each.name) for each in fields(record)}


def report_of(
    plan: Plan,
    record: Record | None,
    measure: Callable[[DType | None], float] | None,
    site: str,
    device: str,
    memory: Mapping[str, int],
) -> Report:
    """Put a report together.

    `measure` gives the bytes a second of a copy for None, and the FLOP a second of a product of a
    dtype.
    """
    whole = record[0] if record is not None else NEVER
    peaks = Peaks(0.0)
    if whole[0] and measure:
        dtypes = {dtype_of(step) for step in steps_of(plan) if step.cost.flops} - {None}
        known = {dtype.name: measure(dtype) for dtype in sorted(dtypes, key=str) if dtype}
        peaks = Peaks(measure(None), known)
    rows = tuple(rows_of(plan, record, whole[1], peaks, ""))
    return Report(rows, whole[0], whole[1] / 1e9, peaks, site, device, dict(memory))


def steps_of(plan: Plan) -> Iterator[Step]:
    """All steps of a plan, and of the plans in it."""
    for step in plan.steps:
        yield step
        for body in step.bodies:
            yield from steps_of(body)


def dtype_of(step: Step) -> DType | None:
    """The dtype that a step computes in: that of its first operand of floats."""
    types = [type for type, _ in (*step.inputs, *step.outputs)]
    return next((t.dtype for t in types if t.dtype.kind in "fV"), None)


def rows_of(
    plan: Plan, record: Record | None, whole_ns: int, peaks: Peaks, prefix: str
) -> Iterator[Row]:
    """The rows of a plan: each step's, then those of what it runs."""
    instructions, bodies = (record[1], iter(record[2])) if record else ((), iter(()))
    for number, step in enumerate(plan.steps):
        times = instructions[number] if instructions else NEVER
        name = f"{prefix}{number}"
        yield row_of(plan, step, name, times, whole_ns, peaks)
        for place, body in enumerate(step.bodies):
            yield from rows_of(body, next(bodies, None), whole_ns, peaks, f"{name}.{place}.")


def row_of(plan: Plan, step: Step, number: str, times: Times, whole_ns: int, peaks: Peaks) -> Row:
    """The row of one step."""
    calls, ns, least, flight = times
    dtype, cost = dtype_of(step), step.cost
    op, begun = step.op, plan.steps[step.start] if step.action == "wait" else step
    if step.action in ("start", "wait") and "reduce_op" in begun.attrs:
        op = f"{op}({begun.attrs['reduce_op']})"
    bound = peaks.least_seconds(cost, dtype.name if dtype else "") if calls else 0.0
    lent = 2 if step.bodies else 0  # the last outputs are memory, no values
    return Row(
        number,
        step.action,
        op,
        step.site,
        step.made_of,
        tuple(type for type, _ in step.inputs),
        tuple(type for type, _ in step.outputs[: len(step.outputs) - lent]),
        step.attrs,
        step.layout,
        cost,
        calls,
        ns / 1e9,
        least / 1e9,
        ns / whole_ns if whole_ns else 0.0,
        bound * calls / (ns / 1e9) if ns else 0.0,
        flight / 1e9,
        last_to_come((op, step.site)) if step.action == "wait" and calls else {},
    )


def plain(value: Any) -> Any:
    """What JSON can say of a value."""
    if isinstance(value, Type):
        return {"dtype": value.dtype.name, "shape": value.shape}
    if isinstance(value, Cost):
        return asdict(value)
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
