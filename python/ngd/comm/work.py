# SPDX-License-Identifier: Apache-2.0
"""Collectives that have not started (`Plan`), and handles of pending collectives (`Work`)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from .. import _core
from .._util.process_local import BoundToProcess
from ..errors import BusyError


class RankGroup(Protocol):
    """A protocol with the attributes of ngd.Group that this module, plans.py and reduction.py use.

    These modules cannot import ngd.Group for annotations, because its module, group.py, imports
    them.
    """

    communicator: _core.Communicator
    rank: int
    size: int
    closed: bool
    timeout: float

    def check_open(self, call: str) -> None:
        """Raise a GroupClosedError that names `call` if the group is closed."""

    def all_gather(self, x: Any, *, site: str | None = None) -> Any:
        """Concatenate the arrays of the ranks."""


class Plan(NamedTuple):
    """A collective that is prepared and has not started."""

    calls: list[_core.Call]
    """The calls of the communicator, in the order in which they will start."""
    finish: Callable[[], Any]
    """A function that returns the caller's result. Call it when all `calls` are complete.

    Two threads that wait for the same Work may both call it. The second call gives the same result.
    """


class Work(BoundToProcess):
    """The handle of a pending collective, which `async_op=True` returns.

    Do not read or write the arrays of the collective until wait() has returned. You may wait for
    several handles in any order. If a handle is deleted without wait(), an error is reported
    through `sys.unraisablehook`.

    Notes
    -----
    A pending collective makes progress in done(), and while this process waits in any collective or
    wait() of the same group. At other times, transfers inside a host make no progress. Transfers
    between hosts then make progress if this process has a progress thread. NGD_PROGRESS
    switches this thread on or off.

    The result has the shape that the function of the collective documents.

    Examples
    --------
    >>> work = ngd.all_reduce(np.ones(3), op="sum", async_op=True)
    >>> work.wait()
    array([1., 1., 1.])
    """

    instead = "call wait() and copy the result"

    def __init__(self, group: RankGroup, what: str, plan: Plan) -> None:
        self._group, self._what = group, what
        self._plan: Plan | None = plan
        self._result: Any = None
        self._error: BaseException | None = None

    def __repr__(self) -> str:
        state = "pending" if self._plan else "failed" if self._error else "done"
        return f"<ngd.Work {self._what}: {state}>"

    def wait(self, timeout: float | None = None) -> Any:
        """Wait for the collective and return its result.

        Parameters
        ----------
        timeout : float, optional
            The longest wait, in seconds. After it, TimeoutError is raised, the collective stays
            pending, and wait() may be called again. By default the limit is NGD_TIMEOUT, after
            which the group is closed.

        Returns
        -------
        numpy.ndarray, or the `out` of the call
            The result of the collective, as the collective documents it.

        Raises
        ------
        TimeoutError
            The collective is not complete after `timeout` seconds.
        CollectiveError
            The collective failed.
        """
        if not self._advance(timeout):
            raise TimeoutError(
                f"Work.wait: {self._what} did not complete in {timeout} s; it stays pending"
            )
        if self._error is not None:
            raise self._error
        return self._result

    def done(self) -> bool:
        """Return True if wait() would return or raise at once.

        The call also makes progress on all pending collectives of the group.
        """
        try:
            return self._advance(0.0)
        except BusyError:
            return False
        except Exception:
            return True  # wait() raises it

    def exception(self) -> BaseException | None:
        """Return the error of the collective if it has failed, and otherwise None.

        The call does not wait: it also returns None while the collective is pending.
        """
        self.done()
        return self._error

    @property
    def result(self) -> Any:
        """The result of the collective. Reading this attribute is the same as calling wait()."""
        return self.wait()

    def _start(self) -> None:
        """Start the collective.

        Ctrl-C may raise KeyboardInterrupt here, before or after the collective starts. In both
        cases the handle stays valid. Its deletion is safe too: `__del__` checks if the collective
        has started.
        """
        assert self._plan is not None
        _core.start_calls(self._plan.calls)

    def _advance(self, seconds: float | None) -> bool:
        """Make progress for at most `seconds`, and return True if the collective has ended.

        If the collective fails in this call, store its error and raise the error. Later calls then
        return True. If `seconds` is None, only NGD_TIMEOUT limits the wait. An interrupt, such as
        Ctrl-C, is raised to the caller, and the collective stays pending in this handle.
        """
        plan = self._plan
        if plan is None:
            return True
        end = None if seconds is None else time.monotonic() + seconds
        try:
            # Another thread may run this too. To do it twice gives the same result.
            for each in plan.calls:
                if end is None:
                    each.wait(self._group.timeout)
                elif not each.wait_for(max(0.0, end - time.monotonic())):
                    return False
            self._result = plan.finish()
        except BusyError:
            raise  # another thread uses the group; this handle has not changed
        except Exception as error:
            self._error = error
            self._plan = None
            raise
        self._plan = None
        return True

    def __del__(self) -> None:
        plan = getattr(self, "_plan", None)
        started = plan is not None and any(each.started for each in plan.calls)
        if started and not self._group.closed:
            raise RuntimeError(f"{self._what}: this ngd.Work was dropped without wait()")
