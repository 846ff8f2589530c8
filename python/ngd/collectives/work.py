# SPDX-License-Identifier: Apache-2.0
"""What a call has prepared, and the handle of a collective that goes on by itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import _core
from ..errors import BusyError
from ..local import BoundToProcess

if TYPE_CHECKING:
    from .group import Group


@dataclass(frozen=True, slots=True)
class Plan:
    """A call that no other rank has heard of."""

    pending: list[_core.Pending]
    """Not started, in the order in which they will be."""
    finish: Callable[[], Any]
    """Makes the result when they are over; may be called again where it was interrupted."""


class Work(BoundToProcess):
    """A collective on its way: what `async_op=True` returns.

    Its arrays belong to it until wait() has returned; nobody else reads or writes them. Works may
    be waited for in any order. Inside a host no thread moves them: each goes on in every call into
    its group that waits, and in done(). A Work that is dropped without wait() is reported through
    `sys.unraisablehook`.
    """

    instead = "wait() for it, and copy its result"

    def __init__(self, group: Group, what: str, plan: Plan) -> None:
        self._group, self._what = group, what
        self._plan: Plan | None = plan
        self._result: Any = None
        self._error: BaseException | None = None

    def __repr__(self) -> str:
        state = "on its way" if self._plan else "failed" if self._error else "done"
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

    def _start(self) -> None:
        """Let it begin. After an interrupt the caller has the Work, or the Work is dropped."""
        assert self._plan is not None
        _core.start(self._plan.pending)

    def _advance(self, seconds: float | None) -> bool:
        """Go on for so long; whether it has ended. An interrupt leaves it as it is."""
        plan = self._plan
        if plan is None:
            return True
        end = None if seconds is None else time.monotonic() + seconds
        try:
            # Another thread may be in here, too: what is done twice gives the same result.
            for each in plan.pending:
                if end is None:
                    each.wait(self._group.timeout)
                elif not each.wait_for(max(0.0, end - time.monotonic())):
                    return False
            self._result = plan.finish()
        except BusyError:
            raise  # another thread is in the group: nothing has happened to this Work
        except Exception as error:
            self._error = error
            self._plan = None
            raise
        self._plan = None
        return True

    def __del__(self) -> None:
        plan = getattr(self, "_plan", None)
        started = plan is not None and any(each.started for each in plan.pending)
        if started and not self._group.closed:
            raise RuntimeError(f"{self._what}: this ngd.Work was dropped without wait()")
