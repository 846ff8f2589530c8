# SPDX-License-Identifier: Apache-2.0
"""Collectives under way, and who may drive the engine.

On one host the engine has no thread of its own: to wait is to do my share. So:
- one thread at a time drives it. A thread that waits does so in short slices and lets others in
  between, because what it waits for may need what another thread has yet to submit
- a wait for one collective also progresses those of all other groups: ranks may wait for the
  collectives of several groups in different orders
- a Future is complete when get_future() returns: who waits for it cannot drive the engine
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from ..errors import CollectiveTimeoutError, Error

if TYPE_CHECKING:
    from .process_group import ProcessGroup

SLICE_SECONDS: Final = 5e-3
SHORT_SLICE_SECONDS: Final = 2e-4
"""Where another thread wants to get in, or another group has works to be progressed."""

LAST_SLICE_SECONDS: Final = 1e-3
MANY: Final = 64


class Turns:
    """A lock that a thread cannot take again before those that were waiting for it."""

    def __init__(self) -> None:
        self._next = threading.Lock()
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        with self._next:
            self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def wanted(self) -> bool:
        """Whether another thread waits."""
        return self._next.locked()


turns = Turns()
outstanding: dict[Work, None] = {}
"""What was submitted and is not known to be complete, oldest first. Keeps its tensors alive."""


def start_anew() -> None:
    """In a forked child: the parent's other threads are gone, and its collectives are its own."""
    global turns
    turns = Turns()
    outstanding.clear()


os.register_at_fork(after_in_child=start_anew)


class Work(torch.distributed.Work):
    """Collectives that were submitted together."""

    def __init__(
        self,
        group: ProcessGroup,
        sequences: list[int],
        outputs: list[Tensor],
        held: Sequence[object],
        copies: list[tuple[Tensor, Tensor]],
    ) -> None:
        super().__init__()
        self._group = group
        self._sequences = sequences
        self._outputs = outputs
        self._held = held
        self._copies = copies
        self._error: Exception | None = None
        self._over = False
        self._future: torch.futures.Future[list[Tensor]] | None = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return when the outputs hold the result; raise what went wrong, naming the rank."""
        if not self._over:
            asked = timeout.total_seconds() if timeout is not None else 0.0
            self._drive(asked if asked > 0 else self._group.seconds)
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
            self._future = torch.futures.Future()
            self._future.set_result(self._outputs)
        return self._future

    def _drive(self, seconds: float) -> None:
        """Wait in slices, and give others their turn."""
        begin = time.monotonic()
        while not self._over:
            with turns:
                if self._over:
                    return
                late = seconds > 0 and time.monotonic() - begin > seconds
                others = [work for work in outstanding if work._group is not self._group]
                short = others or turns.wanted()
                try:
                    if late:
                        self._give_up(seconds)
                    self._advance(SHORT_SLICE_SECONDS if short else SLICE_SECONDS)
                except Exception as error:
                    self._fail(error)
                    return
                except BaseException:  # Ctrl-C: it has closed the group.
                    self._end()
                    raise
                for work in others:
                    work._poll()

    def _advance(self, seconds: float) -> None:
        """Go on for so long."""
        communicator, sequences = self._group.communicator, self._sequences
        while sequences:
            if not communicator.wait_for(sequences[0], seconds):
                return
            del sequences[0]
        self._finish()

    def _poll(self) -> None:
        """Go on without waiting; an error is kept for whoever waits."""
        communicator, sequences = self._group.communicator, self._sequences
        try:
            while sequences:
                if not communicator.done(sequences[0]):
                    return
                del sequences[0]
            self._finish()
        except Error as error:
            self._fail(error)

    def _give_up(self, seconds: float) -> None:
        """Let the engine say who is missing."""
        try:
            for sequence in self._sequences:
                self._group.communicator.wait(sequence, LAST_SLICE_SECONDS)
        except CollectiveTimeoutError as error:
            text = str(error).replace(f"within {LAST_SLICE_SECONDS:g} s", f"within {seconds:g} s")
            raise CollectiveTimeoutError(text) from None

    def _finish(self) -> None:
        for to, received in self._copies:
            to.detach().copy_(received)
        self._end()

    def _fail(self, error: Exception) -> None:
        self._error = self._group.explained(error)
        self._end()

    def _end(self) -> None:
        self._over = True
        self._held = ()
        self._copies = []
        outstanding.pop(self, None)


def started(work: Work) -> Work:
    """Note a work under way. The caller has the turn."""
    outstanding[work] = None
    if len(outstanding) > MANY:  # Most were never waited for: only a look ends those.
        for each in list(outstanding):
            each._poll()
    return work


def wait_for_all_of(group: ProcessGroup) -> None:
    """Complete what a group has under way, errors apart."""
    for work in [work for work in outstanding if work._group is group]:
        try:
            work.wait()
        except Error:
            return
