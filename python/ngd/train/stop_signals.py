# SPDX-License-Identifier: Apache-2.0
"""Signals that stop a training on all ranks, such as SIGTERM of a scheduler."""

from __future__ import annotations

import contextlib
import signal
from types import FrameType
from typing import Any

import numpy as np

from ..comm.calls import all_reduce


class StopSignals:
    """A context manager that catches signals, so that all ranks stop at the same step.

    A scheduler sends a signal before it ends a job. The signal reaches the ranks at different
    times, or only some of them. Inside the context, a signal is recorded and has no other effect.
    At the end of the context the previous handlers are restored.

    Parameters
    ----------
    *signals : int
        The signals, the same on all ranks.
    group : Group, optional
        The ranks that stop together. The default is the world.

    Attributes
    ----------
    noted : int
        The number of the last signal that this rank received, or 0.

    Raises
    ------
    ValueError
        The context is entered outside of the main thread, where Python sets no handlers.
    OSError
        A signal cannot be caught, such as SIGKILL and SIGSTOP.

    Examples
    --------
    >>> import signal
    >>> from ngd import train
    >>> with train.StopSignals(signal.SIGTERM, signal.SIGUSR1) as stop:
    ...     for step in range(10):
    ...         if step == 3:
    ...             signal.raise_signal(signal.SIGUSR1)
    ...         if stop.asked():
    ...             break  # save here
    >>> step
    3
    """

    def __init__(self, *signals: int, group: Any = None) -> None:
        self.signals, self.group = [signal.Signals(number) for number in signals], group
        self.noted = 0
        self._handlers = contextlib.ExitStack()

    def __enter__(self) -> StopSignals:
        self.noted = 0
        with contextlib.ExitStack() as handlers:
            for number in self.signals:
                previous = signal.signal(number, self._note)
                handlers.callback(signal.signal, number, previous or signal.SIG_DFL)
            self._handlers = handlers.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._handlers.close()

    def _note(self, number: int, frame: FrameType | None) -> None:
        """Store the number of a received signal. This method is the handler of the signals."""
        self.noted = number

    def asked(self) -> signal.Signals | None:
        """Return the signal that any rank received, or None. All ranks must call it.

        Returns
        -------
        signal.Signals or None
            The signal with the highest number, equal on all ranks. None if no rank received one. If
            StopSignals was created without signals, return None without communication.

        Examples
        --------
        >>> from ngd import train
        >>> with train.StopSignals() as stop:
        ...     print(stop.asked())
        None
        """
        if not self.signals:
            return None
        number = int(all_reduce(np.array(self.noted), op="max", group=self.group))
        return signal.Signals(number) if number else None
