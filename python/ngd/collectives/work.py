# SPDX-License-Identifier: Apache-2.0
"""The handle of a collective that was started and goes on by itself."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from .. import _core
from ..errors import BusyError, CollectiveTimeoutError
from ..local import BoundToProcess

if TYPE_CHECKING:
    from .group import Group


Result = TypeVar("Result")

NAP: Final = 50e-6
LONGEST_NAP: Final = 1e-3
"""Seconds between two tries."""


def in_turn(group: Group, call: Callable[[], Result]) -> Result:
    """Make a call that belongs to a collective under way; retry while another thread is in there.

    Where that takes longer than NGD_TIMEOUT, or Ctrl-C comes meanwhile, this rank has left the
    common sequence: the group is closed, and the peers are told.
    """
    begin, nap = math.nan, NAP
    while True:
        try:
            return call()
        except BusyError:
            pass
        try:
            now = time.monotonic()
            begin = now if math.isnan(begin) else begin
            if 0 < group.timeout <= now - begin:
                raise CollectiveTimeoutError(
                    "another thread of this process has used the group for "
                    f"{group.timeout:g} s; this one has a collective under way and could not go "
                    "on with it"
                )
            time.sleep(nap)
        except BaseException as error:
            group.communicator.abort(f"{type(error).__name__}: {error}")
            raise
        nap = min(2 * nap, LONGEST_NAP)


class Pending(Protocol):
    """What the engine is at."""

    def wait(self, timeout: float) -> None:
        """Return when it is done; `timeout` is a deadline after which the group is closed."""

    def wait_for(self, seconds: float) -> bool:
        """Whether it is done after at most so many seconds."""


class Submitted:
    """One collective, by its number."""

    def __init__(self, communicator: _core.Communicator, sequence: int) -> None:
        self.communicator, self.sequence = communicator, sequence

    def wait(self, timeout: float) -> None:
        """As Pending."""
        self.communicator.wait(self.sequence, timeout)

    def wait_for(self, seconds: float) -> bool:
        """As Pending."""
        return self.communicator.wait_for(self.sequence, seconds)


class Work(BoundToProcess):
    """A collective on its way: what `async_op=True` returns.

    Its arrays belong to it until wait() has returned; nobody else reads or writes them. Works may
    be waited for in any order. Inside a host no thread moves them: each goes on in every call into
    its group that waits, and in done(). A Work that is dropped without wait() is reported through
    `sys.unraisablehook`.
    """

    instead = "wait() for it, and copy its result"

    def __init__(
        self,
        group: Group,
        what: str,
        pending: Sequence[Pending],
        finish: Callable[[], Any],
        keep: Any,
    ) -> None:
        self._group, self._what = group, what
        self._pending: list[Pending] = list(pending)
        self._finish: Callable[[], Any] | None = finish
        self._keep = keep
        self._result: Any = None
        self._error: BaseException | None = None

    def __repr__(self) -> str:
        state = "on its way" if self._finish else "failed" if self._error else "done"
        return f"<ngd.Work {self._what}: {state}>"

    def wait(self, timeout: float | None = None) -> Any:
        """Return the result when it is there.

        Parameters
        ----------
        timeout
            Seconds after which to give up with TimeoutError: nothing is wrong then, and wait() may
            be called again. By default the deadline is NGD_TIMEOUT, after which the group is
            closed, as in a call that is not asynchronous.
        """
        if not self._advance(timeout):
            raise TimeoutError(
                f"Work.wait: {self._what} was not there after {timeout} s; it goes on"
            )
        if self._error is not None:
            raise self._error
        return self._result

    def done(self) -> bool:
        """Whether wait() would return, or raise, at once. Moves all Works of the group forward."""
        try:
            return self._advance(0.0)
        except BusyError:
            return False
        except Exception:
            return True  # wait() raises it

    def exception(self) -> BaseException | None:
        """The error that wait() would raise now; None where it is on its way, or well."""
        self.done()
        return self._error

    @property
    def result(self) -> Any:
        """What wait() returns; waits."""
        return self.wait()

    def _advance(self, seconds: float | None) -> bool:
        """Go on for so long; whether it has ended."""
        finish, pending = self._finish, self._pending
        if finish is None:
            return True
        end = None if seconds is None else time.monotonic() + seconds
        try:
            # Another thread may be in here, too: what is done twice gives the same result.
            for each in pending:
                if end is None:
                    each.wait(self._group.timeout)
                elif not each.wait_for(max(0.0, end - time.monotonic())):
                    return False
            self._result = finish()
        except BusyError:
            raise  # another thread is in the group: nothing has happened to this Work
        except BaseException as error:
            self._error = error
            if self._pending:  # an interrupt may come between two calls of the engine
                self._group.abandon(self._pending, self._keep)
            self._let_go()
            raise
        self._let_go()
        return True

    def _let_go(self) -> None:
        self._finish = self._keep = None
        self._pending = []

    def __del__(self) -> None:
        if getattr(self, "_finish", None) is not None:
            self._group.abandon(self._pending, self._keep)
            if not self._group.closed:
                raise RuntimeError(f"{self._what}: this ngd.Work was dropped without wait()")
