# SPDX-License-Identifier: Apache-2.0
"""Batches, made ahead of time by other processes."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from ..errors import WorkerError
from . import messages
from .images import Columns, Transforms, apply
from .sampler import IndexArray, Part, Sampler

PROGRAM: Final = Path(__file__).with_name("worker.py")
MOST_AHEAD: Final = 64
"""Batches of a worker; a socket holds some 270 messages before its sender waits."""
LOOK: Final = 1.0
"""How many seconds pass between two looks at a process that does not answer."""


class Batch(NamedTuple):
    """What a rank has of one batch."""

    columns: Any
    """What the source and the transforms give: a tuple, of images and labels say."""
    weight: int
    """How many of its samples count."""
    total: int
    """How many samples all ranks have together."""


@dataclasses.dataclass(frozen=True)
class Recipe:
    """All that a process needs to make a batch of some indices."""

    source: Any
    transform: Transforms
    seed: int

    def make(self, indices: IndexArray, epoch: int) -> Columns:
        """Take the samples, and transform them."""
        random = [np.random.default_rng((self.seed, epoch, int(i))) for i in indices]
        return apply(self.transform, self.source[indices], random)


class Loader:
    """The batches of a source in a sampler's order, which `workers` processes make ahead of time.

    To iterate gives the rest of the epoch, as Batch. The sampler's state counts what was given,
    not what was made ahead. The batches are the same, bit for bit, for any number of workers; 0
    makes them in this process, when they are asked for.

    What a source or a transform raises is raised here, with its traceback there as the cause. A
    process that was killed, or does not answer in `timeout` seconds, is a WorkerError that names
    it. After either the sampler stands before the batch that failed, and to iterate again begins
    with new processes. They end with `close`, with this process however it ends, or when the
    loader is no longer in use.

    The processes are new ones, in which source and transform are unpickled: what is defined in the
    program that is run must not stand behind `if __name__ == "__main__"`.

    Parameters
    ----------
    source
        What has a length, and gives columns for an array of indices.
    sampler
        Whose turn it is; its seed is that of the transforms, too.
    transform
        One, or several one behind the other: functions of columns and of a generator a sample.
    workers
        How many processes.
    ahead
        How many batches each of them makes before they are asked for, at most 64.
    timeout
        How many seconds a batch may take; None for any number.
    """

    def __init__(
        self,
        source: Any,
        sampler: Sampler,
        transform: Transforms = (),
        *,
        workers: int = 0,
        ahead: int = 2,
        timeout: float | None = 300.0,
    ) -> None:
        if not isinstance(sampler, Sampler) or not hasattr(source, "__len__"):
            raise TypeError(
                "data.Loader: expected a source with a length, and a data.Sampler; got "
                f"{type(source).__name__} and {type(sampler).__name__}"
            )
        if workers < 0 or not 1 <= ahead <= MOST_AHEAD:
            raise ValueError(
                f"data.Loader: expected workers >= 0 and ahead in [1, {MOST_AHEAD}]; got "
                f"{workers}, {ahead}"
            )
        if len(source) != sampler.count:
            raise ValueError(
                f"data.Loader: the source has {len(source)} samples, the sampler {sampler.count}"
            )
        self.sampler, self.workers, self.ahead, self.timeout = sampler, workers, ahead, timeout
        self._recipe = Recipe(source, transform, sampler.seed)
        self._team: Team | None = None

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Batch]:
        for part in self.sampler:
            try:
                columns = self._load(part)
            except BaseException:
                self.sampler.done = part.number
                self.close()
                raise
            yield Batch(columns, part.weight, part.total)

    def _load(self, part: Part) -> Columns:
        if not self.workers:
            return self._recipe.make(part.indices, part.epoch)
        if self._team is not None and self._team.owner != os.getpid():
            self._team = None  # it is the parent's, of which this is a fork
        if self._team is not None and self._team.next != part.number:
            self.close()  # the sampler was put elsewhere
        if self._team is None:
            self._team = Team(self._recipe, self.workers, part.number, self.timeout)
        last = part.number + self.workers * self.ahead
        while self._team.requested <= last:
            self._team.request(self.sampler.part(self._team.requested))
        return self._team.receive()

    def close(self) -> None:
        """End the processes."""
        if self._team is not None:
            self._team.close()
            self._team = None

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Worker:
    """A process, and the link to it."""

    def __init__(self, name: str) -> None:
        main = sys.modules["__main__"]
        spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
        self.name = name
        self.link, theirs = socket.socketpair()
        said = {
            "link": theirs.fileno(),
            "parent": os.getpid(),
            "path": sys.path,
            "arguments": sys.argv,
            "main": [spec and spec.name, file and os.path.abspath(file)],
        }
        # The loader's process hears Ctrl-C, and ends this one: it is deaf from its first moment.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self.process = subprocess.Popen(
                [sys.executable, str(PROGRAM), json.dumps(said)],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            theirs.close()

    def send(self, file: int) -> None:
        """Hand a message over."""
        try:
            messages.send(self.link, file)
        except ConnectionError:
            raise self.ended() from None

    def receive(self, timeout: float | None) -> Any:
        """Wait for the next answer."""
        poll = select.poll()
        poll.register(self.link, select.POLLIN)
        begin = time.monotonic()
        while not poll.poll(LOOK * 1000):
            if self.process.poll() is not None:
                raise self.ended()
            if timeout is not None and time.monotonic() - begin > timeout:
                raise WorkerError(f"data.Loader: {self} has not answered for {timeout:g} s")
        try:
            file = messages.receive(self.link)
        except (EOFError, ConnectionError):
            raise self.ended() from None
        return messages.unpack(file, Unpickler)

    def ended(self) -> WorkerError:
        """How the process ended."""
        try:
            code = self.process.wait(LOOK)
        except subprocess.TimeoutExpired:
            return WorkerError(f"data.Loader: {self} closed its link")
        if code < 0:
            return WorkerError(f"data.Loader: {self} was killed by {signal.Signals(-code).name}")
        return WorkerError(f"data.Loader: {self} ended with exit code {code}")

    def __str__(self) -> str:
        return f"{self.name} (process {self.process.pid})"


class Unpickler(pickle.Unpickler):
    """Finds here what the processes know as a part of the user's program."""

    def find_class(self, module: str, name: str) -> Any:
        """See pickle."""
        return super().find_class("__main__" if module == "__mp_main__" else module, name)


class Team:
    """Processes that take turns: batch n is made by the n-th of them, and they begin again.

    So the order of requests is that of answers, and nothing has to be sorted.
    """

    def __init__(self, recipe: Recipe, count: int, first: int, timeout: float | None) -> None:
        self.next = self.requested = first
        self.timeout, self.owner = timeout, os.getpid()
        self.workers: list[Worker] = []
        self.close = weakref.finalize(self, stop, self.workers, self.owner)
        try:
            file = messages.pack(recipe)
        except (AttributeError, TypeError, pickle.PicklingError) as error:
            raise TypeError(
                "data.Loader: source and transform go to other processes, for which they have to "
                f"be picklable: {error}. workers=0 takes any"
            ) from error
        try:
            for number in range(count):
                self.workers.append(Worker(f"worker {number} of {count}"))
            for worker in self.workers:
                worker.send(file)
        except BaseException:
            self.close()
            raise
        finally:
            os.close(file)

    def request(self, part: Part) -> None:
        """Ask for a batch."""
        file = messages.pack((part.indices, part.epoch))
        try:
            self.workers[self.requested % len(self.workers)].send(file)
        finally:
            os.close(file)
        self.requested += 1

    def receive(self) -> Columns:
        """Wait for the next batch."""
        worker = self.workers[self.next % len(self.workers)]
        kind, value, *traceback = worker.receive(self.timeout)
        if kind == "failure":
            cause = RemoteError(f"in {worker}:\n{traceback[0]}")
            raise value or WorkerError(f"data.Loader: {cause}") from cause
        self.next += 1
        columns: Columns = value
        return columns


class RemoteError(Exception):
    """What was raised in another process: its traceback, as the cause of what is raised here."""


def stop(workers: list[Worker], owner: int) -> None:
    """End processes at once; a forked child leaves its parent's alone."""
    if os.getpid() != owner:
        return
    for worker in workers:
        worker.link.close()
        worker.process.kill()
    for worker in workers:
        worker.process.wait()
    workers.clear()
