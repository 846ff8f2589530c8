# SPDX-License-Identifier: Apache-2.0
"""The class `Report`: the time of each instruction of a compiled step."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from ..dtypes import DType, Type
from ..graph.cost import Cost
from ..passes import Plan
from . import pages
from .first_runs import Record, subtract_record
from .rows import NEVER, Peaks, Row, dtype_of, rows_of, steps_of

NUM_SHARES: Final = 10
"""The largest number of items of `Report.shares` that a summary lists."""


@dataclass(frozen=True)
class Report:
    """The time of each instruction of a compiled step, in the order of the program.

    `Executable.report()` returns it. print() shows a table of the longest instructions, and `rows`
    has all of them. The instructions of a loop or branch follow the instruction that runs them. The
    time of that instruction includes theirs.

    Attributes
    ----------
    rows : tuple of Row
        The instructions.
    runs : int
        The number of runs that were timed. If it is 0, no row has times.
    seconds : float
        The time of all runs, in seconds.
    peaks : Peaks
        The speed of the machine.
    site : str
        `file:line` of the code that compiled the step.
    device : str
        The name of the device.
    memory : mapping from str to int
        The sizes of memory in bytes, as `Executable.memory()` returns them.
    first_run_seconds : float
        The time of the first run in seconds if it was timed separately, as in `ngd profile`;
        otherwise 0.
    has_first_run : bool
        False if `ngd profile` has left the first run of the step out of `runs` and of all times. It
        leaves the first run out if the step has run more than once. Otherwise True.
    """

    rows: tuple[Row, ...]
    runs: int
    """The number of runs that were timed. If it is 0, no row has times."""
    seconds: float
    """The time of all runs, in seconds."""
    peaks: Peaks
    site: str
    """The `file:line` of the code that compiled the step."""
    device: str
    memory: Mapping[str, int]
    """The sizes of memory in bytes, as Executable.memory() returns them."""
    first_run_seconds: float = 0.0
    has_first_run: bool = True

    @property
    def overlap(self) -> float:
        """The overlap of collectives with other work of this rank, from 0 to 1.

        It is the part of the collectives' time, from start to the end of the wait, in which this
        rank did not wait.
        """
        waits = [row for row in self.rows if row.action == "wait"]
        flight = sum(row.flight for row in waits)
        return 1 - sum(row.seconds for row in waits) / flight if flight else 0.0

    @property
    def cost(self) -> Cost:
        """The FLOP and bytes of one run."""
        return sum((row.cost for row in self.rows if row.depth == 0), Cost())

    def shares(self) -> dict[str, float]:
        """Return the share of each op in the step's time, from 0 to 1, the largest share first.

        The start and the wait of a collective are separate items, such as "wait all_reduce".
        Instructions inside of a loop or branch count as part of the loop or branch.
        """
        totals: dict[str, float] = {}
        for row in self.rows:
            if row.depth == 0:
                totals[row.title] = totals.get(row.title, 0.0) + row.share
        return dict(sorted(totals.items(), key=lambda item: -item[1]))

    def to_dict(self) -> dict[str, Any]:
        """Return the report as dicts and lists, in seconds, bytes and FLOP."""
        rows = [fields_of(row) | {"mean": row.mean, "overlap": row.overlap} for row in self.rows]
        report_fields = fields_of(self) | {"peaks": fields_of(self.peaks), "cost": self.cost}
        report_fields |= {"overlap": self.overlap}
        result: dict[str, Any] = as_json_value(
            report_fields | {"rows": rows, "shares": self.shares()}
        )
        return result

    def to_json(self) -> str:
        """Return the report as a text in JSON, with the content of `to_dict`."""
        return json.dumps(self.to_dict(), indent=1)

    def to_html(self) -> str:
        """Return the report as an HTML page that needs no other file."""
        return pages.html(pages.short(self.site), summary(self), self.rows, self.memory)

    def __str__(self) -> str:
        return pages.text(summary(self), self.rows)


def fields_of(record: Any) -> dict[str, Any]:
    """Return the fields of a dataclass as a dict, without conversion of their values."""
    return {each.name: getattr(record, each.name) for each in fields(record)}


def report_of(
    plan: Plan,
    record: Record | None,
    measure: Callable[[DType | None], float] | None,
    site: str,
    device: str,
    memory: Mapping[str, int],
    first: Record | None = None,
) -> Report:
    """Return the report of a step.

    Parameters
    ----------
    plan : Plan
        The instructions of the step.
    record : Record or None
        The times of the runs, or None if nothing was recorded.
    measure : function or None
        A function that measures the machine. It returns the bytes per second of a copy for None,
        and the FLOP per second of a matmul for a dtype.
    site : str
        `file:line` of the code that compiled the step.
    device : str
        The name of the device.
    memory : mapping from str to int
        The sizes of memory in bytes, as `Executable.memory()` returns them.
    first : Record, optional
        The times of the first run, if it was timed separately. They are subtracted from `record` if
        the step has run more than once.
    """
    has_first_run = first is None or record is None or record[0][0] <= first[0][0]
    if first is not None and record is not None and not has_first_run:
        record = subtract_record(record, first)
    program_times = record[0] if record is not None else NEVER
    peaks = Peaks(0.0)
    if program_times[0] and measure:
        dtypes = {dtype_of(step) for step in steps_of(plan) if step.cost.flops} - {None}
        flops = {dtype.name: measure(dtype) for dtype in sorted(dtypes, key=str) if dtype}
        peaks = Peaks(measure(None), flops)
    rows = tuple(rows_of(plan, record, program_times[1], peaks, ""))
    first_seconds = first[0][1] / 1e9 if first is not None else 0.0
    return Report(
        *(rows, program_times[0], program_times[1] / 1e9, peaks, site, device, dict(memory)),
        first_run_seconds=first_seconds,
        has_first_run=has_first_run,
    )


def as_json_value(value: Any) -> Any:
    """Return a value in a form that JSON supports."""
    if isinstance(value, Type):
        return {"dtype": value.dtype.name, "shape": value.shape}
    if isinstance(value, Cost):
        return asdict(value)
    if isinstance(value, Mapping):
        return {str(key): as_json_value(each) for key, each in value.items()}
    if isinstance(value, (tuple, list)):
        return [as_json_value(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def summary(report: Report) -> str:
    """Return the lines about the whole step, before the table."""
    cost, instructions = report.cost, sum(row.depth == 0 for row in report.rows)
    where = f"step compiled at {pages.short(report.site)} for {report.device}"
    step = f"{where}: {instructions} instructions, {cost.flops / 1e9:.3g} GFLOP"
    if not report.runs:
        return f"{step}; not timed: run the step inside `with ngd.profile():`"
    mean = report.seconds / report.runs
    if not report.seconds:
        return f"{step}; {format_runs(report)}"
    waited = sum(row.seconds for row in report.rows if row.action == "wait" and row.depth == 0)
    peaks = [f"{value / 1e9:.0f} GFLOP/s {name}" for name, value in report.peaks.flops.items()]
    peaks.append(f"{report.peaks.bytes / 1e9:.1f} GB/s")
    shares = [f"{title} {100 * share:.1f} %" for title, share in report.shares().items()]
    overlap = f", overlap of all collectives {100 * report.overlap:.0f} %"
    return (
        f"{step}; {format_runs(report)} of {pages.micros(mean)} us{first_run(report)}, "
        f"{cost.flops / mean / 1e9:.3g} GFLOP/s, "
        f"{100 * waited / report.seconds:.1f} % waits for ranks"
        f"{overlap if any(row.flight for row in report.rows) else ''}\n"
        f"peaks measured here: {', '.join(peaks)}\n"
        f"{', '.join(shares[:NUM_SHARES])}{', ...' if len(shares) > NUM_SHARES else ''}"
    )


def format_runs(report: Report) -> str:
    """Return the text of the number of timed runs, such as "3 runs"."""
    return f"{report.runs} run{'s' * (report.runs != 1)}"


def first_run(report: Report) -> str:
    """Return the part of the summary about the first run of the step.

    `ngd profile` times the first run separately. If there are more runs, the report leaves the
    first run out, and the text gives its time. If there is only one run, the text says that it
    includes the warm-up. Without `ngd profile`, the text is empty.
    """
    if not report.has_first_run:
        return f" without the first run of {pages.micros(report.first_run_seconds)} us"
    return " (the first run, which includes the warm-up)" if report.first_run_seconds else ""
