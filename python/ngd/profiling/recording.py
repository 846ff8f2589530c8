# SPDX-License-Identifier: Apache-2.0
"""The recording of a process: times of instructions, and the last ranks at collectives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from .. import _core
from ..collectives import comm_stats

Call: TypeAlias = tuple[str, str]
"""A collective, as "all_reduce(sum)", and its call site."""


class Recording:
    """The result of `with ngd.profile()` and `with ngd.timeline()`.

    Attributes
    ----------
    steps : list of Executable
        The steps that were compiled in the block, in order.
    """

    def __init__(self) -> None:
        self.steps: list[Any] = []
        """The executables that were compiled in the block, in order; this keeps them alive."""


class Latecomers:
    """How often each rank was the last to come to a collective, in a recording."""

    def __init__(self) -> None:
        self.before = counted()
        self.after: Counter[tuple[Call, int]] | None = None

    def end(self) -> None:
        """The recording is over."""
        self.after = counted()

    def of(self, call: Call) -> dict[int, int]:
        """By rank, how often; of the ranks that ever were."""
        seen = (self.after or counted()) - self.before
        return {rank: n for (each, rank), n in sorted(seen.items()) if each == call}


Noted: TypeAlias = tuple[str, str, int, int]
"""A collective on arrays that a bridge has noted: its name and call site, begin and end in ns."""

_on: Recording | None = None
_noted: list[Noted] = []
"""Of the newest recording."""
_most_noted = 0
_latecomers: Latecomers | None = None


@contextmanager
def profile() -> Iterator[Recording]:
    """Time each instruction of every step that runs in the block, for `Executable.report()`.

    A step forgets its times when it runs in a new block. Each rank has a block of its own and needs
    no other rank to enter one. In the block an instruction takes less than 0.1 us longer, and
    outside nothing is measured.

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
    with recorded(0) as recording:
        yield recording


@contextmanager
def recorded(most_events: int) -> Iterator[Recording]:
    """A recording, of so many events beside the times."""
    global _on, _latecomers, _noted, _most_noted
    _core.begin_recording(most_events)
    try:
        _on, _latecomers = Recording(), Latecomers()
        _noted, _most_noted = [], most_events
        yield _on
    finally:
        _on = None
        _core.end_recording()
        if _latecomers is not None:
            _latecomers.end()


def made(step: Any) -> None:
    """Note that a step was compiled."""
    if _on is not None:
        _on.steps.append(step)


def clock() -> int:
    """The clock of recordings, in ns."""
    return _core.clock_ns()


def note(name: str, site: str, begin: int) -> None:
    """Note a collective on arrays that is over, for the file of a trace, if one is recorded."""
    if _on is not None and len(_noted) < _most_noted:
        _noted.append((name, site, begin, _core.clock_ns()))


def noted() -> list[Noted]:
    """What was noted in the newest recording."""
    return _noted


def last_to_come(call: Call) -> dict[int, int]:
    """By rank, how often it was the last to come to a collective, in the newest recording."""
    return {} if _latecomers is None else _latecomers.of(call)


def counted() -> Counter[tuple[Call, int]]:
    """How often each rank was the last to come to each collective so far."""
    found: Counter[tuple[Call, int]] = Counter()
    for row in comm_stats():
        for rank, times in enumerate(row.last):
            found[(row.op, row.site), rank] += times
    return found
