# SPDX-License-Identifier: Apache-2.0
"""Sources and transforms for tests of loaders, and a program that tests kill."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any, NamedTuple

import numpy as np

from ngd import data


class Numbers:
    """The numbers from 0. An index in `at` causes the failure `what`."""

    def __init__(self, count: int = 40, at: tuple[int, ...] = (), what: str = "") -> None:
        self.count, self.at, self.what = count, at, what

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, indices: Any) -> tuple[Any, ...]:
        if any(i in self.at for i in indices):
            if self.what == "raise":
                raise KeyError("an index that is in nobody's file")
            if self.what == "raise an empty error":
                raise EmptyError
            if self.what == "raise what cannot travel":
                raise UnpicklableError(1, 2)
            if self.what == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.what == "exit":
                os._exit(3)
            if self.what == "hang":
                time.sleep(1000)
        return (np.asarray(indices),)


class EmptyError(Exception):
    """An exception that is false, because it has no elements."""

    def __len__(self) -> int:
        return 0


class UnpicklableError(Exception):
    def __init__(self, a: int, b: int) -> None:
        super().__init__("made of two")


def noisy(columns: Any, random: Any) -> Any:
    """Return each number, a random draw for it, and the id of this process."""
    draws = np.array([r.integers(0, 10**6) for r in random])
    where = np.full(len(draws), os.getpid())
    return columns[0], draws, where


class Named(NamedTuple):
    half: Any


def named(columns: Any, random: Any) -> Any:
    """Return a column with a name."""
    return Named(columns[0] / 2)


def about_the_process(columns: Any, random: Any) -> Any:
    """Return if the C++ core is loaded, the number of threads, and if SIGINT is blocked."""
    with open("/proc/self/status") as file:
        status = dict(line.split(":\t") for line in file)
    blocked = bool(int(status["SigBlk"], 16) & 1 << signal.SIGINT - 1)
    return "ngd._core" in sys.modules, int(status["Threads"]), blocked


def asks_for_ngd(columns: Any, random: Any) -> Any:
    import ngd

    return ngd.float32, ngd.ops.relu.name


def large(columns: Any, random: Any) -> Any:
    """Return more bytes than the buffer of a socket holds."""
    return np.full((len(columns[0]), 10**6), columns[0][:, None], np.int32), {"empty": np.zeros(0)}


def forever() -> None:
    """Load with two processes and print their ids, until this program is killed."""
    loader = data.Loader(Numbers(), data.Sampler(40, 4), noisy, num_workers=2, prefetch_factor=3)
    while True:
        processes = set()
        for batch in loader:
            processes |= {int(p) for p in batch.columns[2]}
        print(*processes, flush=True)
        time.sleep(0.01)


if __name__ == "__main__":
    forever()
