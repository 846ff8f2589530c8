# SPDX-License-Identifier: Apache-2.0
"""Pending collectives of torch.distributed, and the threads that make them progress.

A *work* (class Work) is the handle of collectives that were submitted together. On one host, ngd
has no thread of its own. A collective progresses only while a thread of the user is in a call of
the C++ core; this thread *drives* the core. The rules for threads are:

- One thread at a time drives the core, and holds the lock `turns`. A thread that waits for its
  collective drives for a few milliseconds (a *slice*), releases the lock, and takes it again. In
  between, another thread can submit its collective. Other ranks may have to complete this
  collective before they call the one for which the first thread waits.
- A wait for one collective also advances the pending collectives of all other groups, because ranks
  may wait for the collectives of several groups in different orders.
- A thread that calls ngd's own functions, and not torch.distributed, does not take the lock. While
  such a thread is in the core, the core refuses a submission by another thread: it raises
  BusyError. The work then stays in the Queue of its group. A later wait for a work in this Queue,
  or a poll of such a work, submits it.
- `get_future()` waits for the result and returns a complete Future. It never returns an incomplete
  Future: a thread that waits for a Future does not drive the core, so the wait might never end.

Ctrl-C, or an exception in a signal handler, can occur between any two bytecodes. The rules for such
interrupts are:

- A work is *outstanding*, and its tensors are kept alive, from before its first submission until
  the core reports that it is complete or that its group is closed.
- One call of the core both submits a collective and records the submission.
- An interrupt during a submission or a wait closes the group. The other ranks are notified, and do
  not match the interrupted call with a later call of this rank.
- An interrupt during a poll (a call that advances works without waiting) changes nothing.
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
from .untraced import exclude_from_tracing

SLICE_SECONDS: Final = 5e-3
"""The time, in seconds, that a waiting thread advances collectives in the C++ core before it
releases the lock `turns`. The period with the lock is called a slice."""
SHORT_SLICE_SECONDS: Final = 2e-4
"""The shorter time, in seconds, for which a thread advances collectives before it releases the lock
`turns`. It replaces SLICE_SECONDS if another thread waits for the lock, or another group has
pending collectives."""

BUSY_SLEEP_SECONDS: Final = 50e-6
"""The pause, in seconds, after a BusyError, before the core is called again. BusyError means that
another thread, which calls ngd directly and without the lock `turns`, is in the core. The call of
that thread has probably returned after this pause."""

LAST_SLICE_SECONDS: Final = 1e-3
"""The length in seconds of the last wait for a work that has not completed within its timeout. If
the work does not complete during this wait either, the core raises an error that names the missing
ranks: those that have not called the collective, or do not answer."""
MAX_OUTSTANDING: Final = 64
"""A limit for the works whose tensors the C++ core may still use. While there are more, each
submission advances all of these works without waiting. A work that is then complete releases its
tensors."""


class WorkGroup(Protocol):
    """The attributes and methods of a process group that the class Work uses.

    The class ProcessGroup implements this interface.
    """

    queue: Queue
    seconds: float
    """The timeout of a wait, in seconds."""

    def add_ranks(self, error: Exception) -> Exception:
        """Mark the group as failed, and return the error to raise in place of `error`.

        If the group is not the default group and `error` is a CollectiveError, return a new error
        whose message also lists the global ranks of the group. Otherwise return `error`.
        """
        ...

    def abort_interrupted(self, error: BaseException) -> None:
        """Close the group after `error`, an exception that interrupted one of its calls."""
        ...


turns = _core.FairLock()
"""The lock that a thread in a call of torch.distributed holds while it uses the C++ core."""
outstanding: dict[Work, None] = {}
"""The works whose tensors the C++ core may still use, oldest first."""


def reset_after_fork() -> None:
    """Replace `turns` and clear `outstanding` in a forked child, which has only one thread."""
    global turns
    turns = _core.FairLock()
    outstanding.clear()


os.register_at_fork(after_in_child=reset_after_fork)


class Queue:
    """A queue of the works of a group that are not submitted to the C++ core yet.

    A work is a handle of collectives. It stays in the queue if another thread was in a call of the
    core when the work was started. The caller of a method must hold `turns`, the lock for calls of
    the core.
    """

    def __init__(self) -> None:
        self._waiting: deque[Work] = deque()

    def start(self, work: Work) -> None:
        """Submit a work; raise if its submission fails.

        If another thread is in a call of the C++ core, or if this queue is not empty, append the
        work to the queue instead.
        """
        if not self._waiting:
            with contextlib.suppress(BusyError):
                self._submit(work)
        if not work._is_started():
            self._waiting.append(work)

    def flush(self) -> None:
        """Submit the works in the queue.

        If the submission of a work fails, store the error in the work, whose `wait` then raises it,
        and continue with the next work. If another thread is in a call of the C++ core, raise
        BusyError. Then the works that are not completely submitted stay in the queue.
        """
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
        """Submit the collectives of `work` that are not submitted yet.

        Raise BusyError if another thread is in a call of the C++ core.
        """
        for call in work._calls:
            if not call.started:
                call.start()


@exclude_from_tracing
class Work(torch.distributed.Work):
    """The handle of collectives that were submitted together.

    Corresponds to `torch.distributed.Work`.
    """

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
        """The longest time of a wait in seconds; None means the timeout of the group."""
        self._group = group
        self._kind = kind
        self._calls = list(calls)
        self._outputs = outputs
        self._held: Sequence[Tensor] = held
        self._copies = copies
        self._error: Exception | None = None
        self._is_over = False
        self._future: torch.futures.Future[list[Tensor]] | None = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until the outputs hold the result, or raise the error of the collectives.

        Parameters
        ----------
        timeout : datetime.timedelta, optional
            The longest time to wait. If it is None, zero or negative, the attribute `seconds` is
            used instead, or the timeout of the group if `seconds` is None.

        Returns
        -------
        bool
            Always True, because a failure raises an error.
        """
        timeout_seconds = timeout.total_seconds() if timeout is not None else 0.0
        if timeout_seconds <= 0:
            timeout_seconds = self._group.seconds if self.seconds is None else self.seconds
        if not self._is_over:
            if profiler._is_profiler_enabled:
                with profiler_range(f"{self._kind} (wait)", self._held):
                    self._complete(timeout_seconds)
            else:
                self._complete(timeout_seconds)
        if self._error is not None:
            raise self._error
        return True

    def synchronize(self) -> None:
        """Wait for the result, as `wait` does, because the CPU has no streams."""
        self.wait()

    def is_completed(self) -> bool:
        """Return True if the work has ended: its outputs hold the result, or it has failed.

        Return False if the work is still pending.
        """
        if not self._is_over:
            with turns:
                self._poll()
        return self._is_over

    def is_success(self) -> bool:
        """Return True if the outputs hold the result."""
        return self.is_completed() and self._error is None

    def exception(self) -> Exception | None:
        """Return the error of the work, or None."""
        return self._error

    def result(self) -> list[Tensor]:
        """Return the outputs without waiting. They hold the result once the work has completed."""
        return self._outputs

    def get_future(self) -> torch.futures.Future[list[Tensor]]:
        """Wait for the result and return a completed Future of the outputs."""
        if self._future is None:
            self.wait()
            future: torch.futures.Future[list[Tensor]] = torch.futures.Future()
            future.set_result(self._outputs)
            self._future = future
        return self._future

    def _is_started(self) -> bool:
        """Return True if all collectives have been submitted."""
        return all(call.started for call in self._calls)

    def _complete(self, seconds: float) -> None:
        """Wait until the work completes. If the wait is interrupted, close the group."""
        try:
            self._drive(seconds)
        except BaseException as error:
            self._group.abort_interrupted(error)
            raise

    def _drive(self, seconds: float) -> None:
        """Wait until the work completes, in slices of a few milliseconds.

        In a slice, this thread holds the lock `turns` and advances collectives in the C++ core.
        Between two slices, another thread can take the lock. `seconds` is the timeout.
        """
        start_time = time.monotonic()
        while not self._is_over:
            is_busy = False
            with turns:
                if self._is_over:
                    return
                is_late = seconds > 0 and time.monotonic() - start_time > seconds
                others = [work for work in outstanding if work._group is not self._group]
                needs_short_slice = others or turns.has_waiters()
                try:
                    if is_late:
                        self._give_up(seconds)
                    self._advance(SHORT_SLICE_SECONDS if needs_short_slice else SLICE_SECONDS)
                except BusyError:
                    is_busy = True
                except Error as error:
                    self._fail(error)
                    return
                for work in others:
                    work._poll()
            if is_busy:
                time.sleep(BUSY_SLEEP_SECONDS)

    def _advance(self, seconds: float) -> None:
        """Wait for the collectives of the work, one after the other, up to `seconds` for each.

        If all are complete, finish the work. Return at the first one that is not complete: `_drive`
        then calls this again. If the work is in the queue, first submit the works in the queue.
        """
        if not self._is_started():
            self._group.queue.flush()
        if self._is_over:  # the submission has failed
            return
        for call in self._calls:
            if not (call.started and call.wait_for(seconds)):
                return
        self._finish()

    def _poll(self) -> None:
        """Advance the collectives without waiting. Store an error, which `wait` then raises."""
        try:
            if not self._is_started():
                self._group.queue.flush()
            for call in self._calls:
                if not (call.started and call.wait_for(0.0)):
                    return
            if not self._is_over:
                self._finish()
        except BusyError:
            return
        except Error as error:
            self._fail(error)

    def _give_up(self, seconds: float) -> None:
        """Wait once more, and raise a CollectiveTimeoutError if the work is still not complete.

        The wait takes up to LAST_SLICE_SECONDS per collective. The message of the error names the
        ranks that have not called the collective, or do not answer. It gives `seconds`, the timeout
        of the user, as the time of the wait. If the work is complete now, return.
        """
        try:
            for call in self._calls:
                if call.started:
                    call.wait(LAST_SLICE_SECONDS)
        except CollectiveTimeoutError as error:
            text = str(error).replace(f"within {LAST_SLICE_SECONDS:g} s", f"within {seconds:g} s")
            words = f"{text}\nTimed out waiting {1000 * seconds:g}ms"  # the text of gloo
            timeout_error = CollectiveTimeoutError(words)
            timeout_error.ranks = error.ranks
            raise timeout_error from None

    def _finish(self) -> None:
        """Copy the received results to the user's tensors, and release the tensors."""
        for destination, received in self._copies:
            destination.detach().copy_(received)
        self._end()

    def _fail(self, error: Exception) -> None:
        """Store an error, which `wait` then raises, and release the tensors."""
        self._error = self._group.add_ranks(error)
        self._end()

    def _end(self) -> None:
        """Release the tensors: the core no longer uses them."""
        if self._error is not None:
            _core.keep_for_mpi((self._held, self._outputs, self._copies))
        outstanding.pop(self, None)
        self._calls = []
        self._held = ()
        self._copies = []
        # The last statement: after an interrupt before it, the next poll repeats `_end`.
        self._is_over = True


def profiler_range(name: str, tensors: Sequence[Tensor]) -> Any:
    """Return a context manager that records the range "ngd:NAME" in torch.profiler."""
    distinct = {id(tensor): tensor for tensor in tensors}
    return torch._C._profiler._RecordFunctionFast(f"ngd:{name}", list(distinct.values()))


def start_work(work: Work) -> Work:
    """Submit a work, or put it in its group's queue, and return it.

    The caller holds `turns`, the lock for calls of the C++ core.
    """
    try:
        outstanding[work] = None
        work._group.queue.start(work)
        if (
            len(outstanding) > MAX_OUTSTANDING
        ):  # a work that is never waited for ends only by a poll
            for each in list(outstanding):
                each._poll()
    except BaseException as error:
        if any(call.started for call in work._calls):
            work._group.abort_interrupted(error)
        else:
            work._end()  # an error before any collective was submitted
        raise
    return work


def wait_for_group(group: WorkGroup) -> None:
    """Wait for all pending works of a group, and ignore their errors."""
    for work in list(outstanding):
        if work._group is group:
            with contextlib.suppress(Error):
                work.wait()


def poll_group(group: WorkGroup) -> None:
    """Advance all pending collectives of a group, without waiting.

    If the group is closed, each incomplete Work stores the error of the core, and releases its
    tensors.
    """
    with turns:
        for work in list(outstanding):
            if work._group is group:
                work._poll()
