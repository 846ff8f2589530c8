# SPDX-License-Identifier: Apache-2.0
"""Collectives under way, and who may drive the engine.

On one host the engine has no thread of its own: to wait is to do my share. So:
- one thread at a time drives it. A thread that waits does so in short slices and lets others in
  between, because what it waits for may need what another thread has yet to submit
- a wait for one collective also progresses those of all other groups: ranks may wait for the
  collectives of several groups in different orders
- a thread that takes no turns, because it calls ngd's own functions, may be in the engine: what is
  submitted meanwhile stays here, in a Queue, until somebody waits or submits
- a Future is complete when get_future() returns: who waits for it cannot drive the engine

Ctrl-C, or what the handler of a signal raises, comes between any two bytecodes. So:
- a work is outstanding, and its tensors are kept, from before its first submission until the engine
  has said that it is complete, or that its group is closed
- to submit, and to note that, is one call of the engine's
- an interrupt in a submission or in a wait closes the group: the peers are told, and no
  later call is taken for this one
- an interrupt in a mere look changes nothing
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final, Protocol

import torch
from torch import Tensor
from torch.autograd import profiler

from ... import _core
from ...errors import BusyError, CollectiveTimeoutError, Error
from .untraced import untraced

SLICE_SECONDS: Final = 5e-3
SHORT_SLICE_SECONDS: Final = 2e-4
"""Where another thread wants to get in, or another group has works to be progressed."""

NAP: Final = 50e-6
"""Until another thread, which does not take turns, is likely to have left the group."""

LAST_SLICE_SECONDS: Final = 1e-3
MANY: Final = 64


class WorkGroup(Protocol):
    """The part of a process group that a work needs (ProcessGroup in process_group.py)."""

    queue: Queue
    seconds: float
    """The timeout of a wait."""

    def explained(self, error: Exception) -> Exception:
        """Return an error that names the ranks of the group."""
        ...

    def interrupted(self, error: BaseException) -> None:
        """Leave the group after an exception that was raised during a call."""
        ...


turns = _core.FairLock()
outstanding: dict[Work, None] = {}
"""What the engine may not be done with, oldest first."""


def start_anew() -> None:
    """In a forked child: the parent's other threads are gone, and its collectives are its own."""
    global turns
    turns = _core.FairLock()
    outstanding.clear()


os.register_at_fork(after_in_child=start_anew)


class Queue:
    """A group's works that came while a thread that takes no turns was in the engine.

    The caller has the turn.
    """

    def __init__(self) -> None:
        self._waiting: deque[Work] = deque()

    def start(self, work: Work) -> None:
        """Submit a work, now or later; raise what is wrong with it."""
        if not self._waiting:
            with contextlib.suppress(BusyError):
                self._submit(work)
        if not work._is_started():
            self._waiting.append(work)

    def fill(self) -> None:
        """Submit what waits; works that fail keep their errors. May be Busy."""
        while self._waiting:
            work = self._waiting[0]
            try:
                self._submit(work)
            except BusyError:
                raise
            except Error as error:
                work._fail(error)
            self._waiting.popleft()

    def _submit(self, work: Work) -> None:
        for call in work._calls:
            if not call.started:
                call.start()


@untraced
class Work(torch.distributed.Work):
    """Collectives that were submitted together."""

    def __init__(
        self,
        group: WorkGroup,
        kind: str,
        calls: Sequence[_core.Call],
        outputs: list[Tensor],
        held: Sequence[Tensor],
        copies: list[tuple[Tensor, Tensor]],
    ) -> None:
        super().__init__()
        self.seconds: float | None = None
        """How long a wait may last; by default the group knows."""
        self._group = group
        self._kind = kind
        self._calls = list(calls)
        self._outputs = outputs
        self._held: Sequence[Tensor] = held
        self._copies = copies
        self._error: Exception | None = None
        self._over = False
        self._future: torch.futures.Future[list[Tensor]] | None = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return when the outputs hold the result; raise what went wrong, naming the rank."""
        asked = timeout.total_seconds() if timeout is not None else 0.0
        if asked <= 0:
            asked = self._group.seconds if self.seconds is None else self.seconds
        if not self._over:
            if profiler._is_profiler_enabled:
                with recorded(f"{self._kind} (wait)", self._held):
                    self._complete(asked)
            else:
                self._complete(asked)
        if self._error is not None:
            raise self._error
        return True

    def synchronize(self) -> None:
        """Wait: there is no stream to go on in meanwhile."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether the outputs hold the result, or something went wrong."""
        if not self._over:
            with turns:
                self._poll()
        return self._over

    def is_success(self) -> bool:
        """Whether the outputs hold the result."""
        return self.is_completed() and self._error is None

    def exception(self) -> Exception | None:
        """What went wrong."""
        return self._error

    def result(self) -> list[Tensor]:
        """The outputs."""
        return self._outputs

    def get_future(self) -> torch.futures.Future[list[Tensor]]:
        """Wait, and return a completed Future of the outputs."""
        if self._future is None:
            self.wait()
            future: torch.futures.Future[list[Tensor]] = torch.futures.Future()
            future.set_result(self._outputs)
            self._future = future
        return self._future

    def _is_started(self) -> bool:
        """Return whether all collectives were submitted."""
        return all(call.started for call in self._calls)

    def _complete(self, seconds: float) -> None:
        """Wait to the end, or close the group."""
        try:
            self._drive(seconds)
        except BaseException as error:
            self._group.interrupted(error)
            raise

    def _drive(self, seconds: float) -> None:
        """Wait in slices, and give others their turn."""
        begin = time.monotonic()
        while not self._over:
            busy = False
            with turns:
                if self._over:
                    return
                late = seconds > 0 and time.monotonic() - begin > seconds
                others = [work for work in outstanding if work._group is not self._group]
                short = others or turns.has_waiters()
                try:
                    if late:
                        self._give_up(seconds)
                    self._advance(SHORT_SLICE_SECONDS if short else SLICE_SECONDS)
                except BusyError:
                    busy = True
                except Error as error:
                    self._fail(error)
                    return
                for work in others:
                    work._poll()
            if busy:
                time.sleep(NAP)

    def _advance(self, seconds: float) -> None:
        """Go on for so long."""
        if not self._is_started():
            self._group.queue.fill()
        if self._over:  # it could not be submitted
            return
        for call in self._calls:
            if not (call.started and call.wait_for(seconds)):
                return
        self._finish()

    def _poll(self) -> None:
        """Go on without waiting; an error is kept for whoever waits."""
        try:
            if not self._is_started():
                self._group.queue.fill()
            for call in self._calls:
                if not (call.started and call.wait_for(0.0)):
                    return
            if not self._over:
                self._finish()
        except BusyError:
            return
        except Error as error:
            self._fail(error)

    def _give_up(self, seconds: float) -> None:
        """Let the engine say who is missing."""
        try:
            for call in self._calls:
                if call.started:
                    call.wait(LAST_SLICE_SECONDS)
        except CollectiveTimeoutError as error:
            text = str(error).replace(f"within {LAST_SLICE_SECONDS:g} s", f"within {seconds:g} s")
            words = f"{text}\nTimed out waiting {1000 * seconds:g}ms"  # as gloo says it
            late = CollectiveTimeoutError(words)
            late.ranks = error.ranks
            raise late from None

    def _finish(self) -> None:
        for to, received in self._copies:
            to.detach().copy_(received)
        self._end()

    def _fail(self, error: Exception) -> None:
        self._error = self._group.explained(error)
        self._end()

    def _end(self) -> None:
        """Let the tensors go: the engine is done with them."""
        if self._error is not None:
            _core.keep_for_mpi((self._held, self._outputs, self._copies))
        outstanding.pop(self, None)
        self._calls = []
        self._held = ()
        self._copies = []
        self._over = True  # last: who is interrupted before it comes here again


def recorded(name: str, tensors: Sequence[Tensor]) -> Any:
    """A range of torch.profiler's, named as gloo names its own."""
    distinct = {id(tensor): tensor for tensor in tensors}
    return torch._C._profiler._RecordFunctionFast(f"ngd:{name}", list(distinct.values()))


def started(work: Work) -> Work:
    """Start a work. The caller has the turn."""
    try:
        outstanding[work] = None
        work._group.queue.start(work)
        if len(outstanding) > MANY:  # Most were never waited for: only a look ends those.
            for each in list(outstanding):
                each._poll()
    except BaseException as error:
        if any(call.started for call in work._calls):
            work._group.interrupted(error)
        else:
            work._end()  # refused, before any of it was submitted
        raise
    return work


def complete_all_of(group: WorkGroup) -> None:
    """Complete what a group has under way, errors apart."""
    for work in list(outstanding):
        if work._group is group:
            with contextlib.suppress(Error):
                work.wait()


def look_at_all_of(group: WorkGroup) -> None:
    """Let go what a group that is closed had under way."""
    with turns:
        for work in list(outstanding):
            if work._group is group:
                work._poll()
