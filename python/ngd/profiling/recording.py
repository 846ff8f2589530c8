# SPDX-License-Identifier: Apache-2.0
"""Recordings of a process: times of instructions, events, and the ranks that arrive last."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeAlias
from weakref import WeakKeyDictionary, WeakSet

from .. import _core
from ..comm import comm_stats
from ..passes import Plan
from .first_runs import FirstRun, Record

Call: TypeAlias = tuple[str, str]
"""A tuple of a collective, such as "all_reduce(sum)", and its call site, as texts."""


class Recording:
    """The value that the context managers ngd.profile and ngd.timeline yield.

    Attributes
    ----------
    steps : list of Executable
        The steps that were compiled in the block, in order.
    """

    def __init__(self) -> None:
        self.steps: list[Any] = []
        """The executables that were compiled in the block, in order. The list keeps them alive."""


class Latecomers:
    """Counts of how often each rank arrived last, per collective and call site, in a recording."""

    def __init__(self) -> None:
        self.before = count_last_arrivals()
        self.after: Counter[tuple[Call, int]] | None = None

    def end(self) -> None:
        """At the end of the recording, store how often each rank arrived last until now."""
        self.after = count_last_arrivals()

    def of(self, call: Call) -> dict[int, int]:
        """Return how often each rank arrived last at a collective, without ranks that never did."""
        counts = (self.after or count_last_arrivals()) - self.before
        return {rank: n for (each, rank), n in sorted(counts.items()) if each == call}


BridgeCall: TypeAlias = tuple[str, str, int, int]
"""A collective of a bridge, such as ngd.horovod: its name, call site, begin and end in ns."""

_on: Recording | None = None
"""The recording that is running; None outside of the blocks that record."""
_bridge_calls: list[BridgeCall] = []
"""The collectives of bridges, such as ngd.horovod, in the newest recording."""
_max_bridge_calls = 0
"""The largest length of the list `_bridge_calls`; 0 if the newest recording stores no events."""
_latecomers: Latecomers | None = None
_leaves_out_first_runs = False
"""True while `ngd profile` runs a script: the times then leave out the first run of each step."""
_first_records: WeakKeyDictionary[Any, Record] = WeakKeyDictionary()
"""The times of the first run of each step, if the newest recording does not count first runs."""
_steps: Final[WeakSet[Any]] = WeakSet()
"""All existing compiled steps of the process that have a plan (a list of instructions)."""
_recorded_steps: WeakSet[Any] = WeakSet()
"""The steps that can have run in the newest recording.

They existed when the recording began, or were compiled during it. If the recording stores no events
(ngd.profile), the set is empty.
"""


@contextmanager
def profile() -> Iterator[Recording]:
    """Time each instruction of every step that runs in the block, for `Executable.report()`.

    The times of a step are those of the last block in which it ran. A rank may enter a block
    without the other ranks. Measuring adds less than 0.1 us to the time of an instruction. Outside
    of blocks, nothing is measured.

    Yields
    ------
    Recording
        The steps that were compiled in the block.

    Raises
    ------
    BusyError
        The process is in a block of ngd.profile or ngd.timeline already.

    Examples
    --------
    >>> step = ngd.compile([x, y], [loss])
    >>> with ngd.profile():
    ...     outputs = step(images, labels)
    >>> report = step.report()
    >>> report.runs
    1
    """
    with record_block(0) as recording:
        yield recording


@contextmanager
def record_block(most_events: int) -> Iterator[Recording]:
    """Record the times of instructions in the block.

    Also record at most `most_events` events for a timeline. An event is one run of an instruction
    or of a step.
    """
    global \
        _on, \
        _latecomers, \
        _bridge_calls, \
        _max_bridge_calls, \
        _leaves_out_first_runs, \
        _first_records, \
        _recorded_steps
    _core.begin_recording(most_events)
    try:
        _on, _latecomers = Recording(), Latecomers()
        _bridge_calls, _max_bridge_calls = [], most_events
        _leaves_out_first_runs, _first_records = False, WeakKeyDictionary()
        _recorded_steps = WeakSet(_steps if most_events else ())
        yield _on
    finally:
        _on = None
        _core.end_recording()
        if _latecomers is not None:
            _latecomers.end()


def register_step(step: Any) -> None:
    """Add a step that was just compiled to the steps that recordings report."""
    has_plan = getattr(step, "plan", None) is not None
    if has_plan:
        _steps.add(step)
    if _on is None:
        return
    _on.steps.append(step)
    if has_plan and _max_bridge_calls:
        _recorded_steps.add(step)
    if _leaves_out_first_runs and hasattr(step, "native"):
        step.hold = FirstRun(step, _first_records)


def leave_out_first_runs() -> None:
    """Make the running recording ignore the first run of each step compiled from now on."""
    global _leaves_out_first_runs
    _leaves_out_first_runs = True


def first_record(step: Any) -> Record | None:
    """Return the times of a step's first run if the newest recording leaves it out, else None."""
    return _first_records.get(step)


def plans() -> list[Plan]:
    """Return the plans of the steps that can have run in the newest recording (`_recorded_steps`).

    Deleted steps are not included, because this module keeps only weak references to steps. A plan
    refers to the groups of its collectives, and so to their memory, which must be released when the
    step is deleted.
    """
    return [step.plan for step in _recorded_steps]


def clock() -> int:
    """Return the present time in the clock of recordings, in ns."""
    return _core.clock_ns()


def add_bridge_call(name: str, site: str, begin: int) -> None:
    """Record a collective that a bridge, such as ngd.horovod, has just completed.

    `begin` is the result of `clock` when the collective began. Outside of ngd.timeline, nothing is
    recorded.
    """
    if _on is not None and len(_bridge_calls) < _max_bridge_calls:
        _bridge_calls.append((name, site, begin, _core.clock_ns()))


def bridge_calls() -> list[BridgeCall]:
    """Return the collectives that `add_bridge_call` has added to the newest recording."""
    return _bridge_calls


def last_arrival_counts(call: Call) -> dict[int, int]:
    """Return how often each rank arrived last at a collective, in the newest recording."""
    return {} if _latecomers is None else _latecomers.of(call)


def count_last_arrivals() -> Counter[tuple[Call, int]]:
    """Return how often each rank has arrived last at each collective.

    The counts are those of all existing groups since each group was created.
    """
    counts: Counter[tuple[Call, int]] = Counter()
    for row in comm_stats():
        for rank, times in enumerate(row.last):
            counts[(row.op, row.site), rank] += times
    return counts
