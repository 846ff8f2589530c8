# SPDX-License-Identifier: Apache-2.0
"""Loaders, which return the batches of a source. Worker processes prefetch them."""

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
from typing import Any, Final

import numpy as np

from .._util.callsite import call_site, warn
from .._util.signature_errors import check_constructor, format_value
from ..errors import UnevenBatchWarning, WorkerError
from . import messages
from .images import Columns, Transforms, apply
from .sampler import IndexArray, Sampler, Shard

PROGRAM: Final = Path(__file__).with_name("worker.py")
"""The path of the program that a worker process runs."""
MAX_PREFETCH: Final = 64
"""The maximum prefetch_factor: the number of batches that a worker may prepare in advance.

A batch is one message in the socket between worker and loader. The socket holds about 270 messages,
so with at most 64 of them the sender never waits.
"""
POLL_SECONDS: Final = 1.0
"""The interval in seconds at which a loader checks if the worker that it waits for has ended."""


class WeightReads:
    """A flag that is True after the program has read `batch.weight` in this epoch.

    The batches of one epoch share it.
    """

    def __init__(self) -> None:
        self.has_read = False


class Batch(tuple[Any, ...]):
    """The samples that one rank has in one batch: a tuple of columns, with a weight.

    It unpacks as its columns: `for images, labels in loader`. If the ranks have different numbers
    of samples, weight the loss by `batch.weight`.

    Parameters
    ----------
    columns : tuple or list
        The result of the source and the transforms, for example images and labels.
    weight : float
        The number of this rank's samples.
    total : int
        The number of samples that all ranks have together.

    Attributes
    ----------
    columns : tuple or list
        The columns as the last transform returned them.
    weight : float
        The number of this rank's samples, which is the rank's weight in a mean over all ranks. It
        is 0.0 on a rank without a sample, which gets a copy of another rank's sample. The number is
        a float, so that an `@ngd.function` takes it as an input. An int would be a constant of the
        trace.
    total : int
        The number of samples that all ranks have together.

    Examples
    --------
    >>> from ngd import data
    >>> source = data.Arrays([[1.0], [2.0], [3.0]], [0, 1, 1])
    >>> loader = data.Loader(source, data.Sampler(3, batch_size=2, shuffle=False))
    >>> for batch in loader:
    ...     x, y = batch
    ...     print(x.shape, batch[1].tolist(), batch.weight, batch.total)
    (2, 1) [0, 1] 2.0 2
    (1, 1) [1] 1.0 1
    """

    columns: Any
    total: int

    def __new__(
        cls, columns: Any, weight: float, total: int, reads: WeightReads | None = None
    ) -> Batch:
        """Make a batch.

        `reads` is a flag that all batches of an epoch share. When a program reads the `weight` of
        one of them, the flag is set, and the loader does not warn that the weight is unused. With
        None, reads are not recorded.
        """
        batch = super().__new__(cls, columns)
        batch.columns, batch._weight, batch.total = columns, float(weight), total
        batch._reads = reads
        return batch

    @property
    def weight(self) -> float:
        """The number of this rank's samples, which is the rank's weight in a mean over ranks."""
        if self._reads is not None:
            self._reads.has_read = True
        return self._weight

    def __getnewargs__(self) -> tuple[Any, ...]:
        return self.columns, self._weight, self.total

    def __repr__(self) -> str:
        columns = ", ".join(format_value(column) for column in self)
        return f"<data.Batch of {columns}; weight {self._weight:g} of {self.total}>"

    _weight: float
    _reads: WeightReads | None


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The source, transform and seed with which a worker, or the loader, makes its batches."""

    source: Any
    transform: Transforms
    seed: int

    def make(self, indices: IndexArray, epoch: int) -> Columns:
        """Return the columns of the transformed samples at some indices.

        The random numbers of a sample depend on the seed, `epoch` and the index of the sample.
        """
        random = [np.random.default_rng((self.seed, epoch, int(i))) for i in indices]
        columns = apply(self.transform, self.source[indices], random)
        if not isinstance(columns, (tuple, list)):
            raise TypeError(
                "data.Loader: expected a tuple of columns from the source and its transforms; got "
                f"{format_value(columns)}. Return (x,) for one column."
            )
        return columns


SAMPLER_ARGUMENTS: Final = dict.fromkeys(
    ("batch_size", "shuffle", "seed", "drop_last", "replacement", "rank", "size", "mesh"),
    "data.Sampler",
)
"""The arguments that data.Sampler takes and data.Loader does not: {"seed": "data.Sampler", ...}.

A user may pass such an argument to data.Loader, because PyTorch's DataLoader takes some of them.
The error message then says that it is an argument of data.Sampler.
"""


class Loader:
    """The batches of a source in the order of a sampler, prefetched by worker processes.

    Iteration returns the rest of the epoch as `Batch` objects, which unpack as their columns. The
    batches are bitwise equal for any number of workers.

    Parameters
    ----------
    source : source
        An object with a length. For an array of indices, `source[indices]` is a tuple of columns.
        See Arrays, ImageFolder and Tokens.
    sampler : Sampler
        The order of the samples and this rank's shard. Its seed is the seed of the transforms.
    transform : callable or sequence of callables, optional
        Functions of the columns and of a list of NumPy generators, one per sample. They are applied
        in order, and each returns the new columns.
    num_workers : int, default 0
        The number of worker processes. With 0 this process makes each batch when it is needed.
    prefetch_factor : int, default 2
        The number of batches that each worker makes in advance, at most 64.
    timeout : float or None, default 300
        The time that a batch may take, in seconds. None means no limit.

    Raises
    ------
    TypeError
        The sampler is not a `Sampler`, the source has no length, the source or a transform cannot
        be pickled, or they do not return columns.
    ValueError
        A number is out of range, or the source and the sampler have different lengths.
    WorkerError
        A worker was killed, ended, or did not answer in `timeout` seconds. The message names it.

    Warns
    -----
    UnevenBatchWarning
        The ranks or the batches have different numbers of samples, and `batch.weight` was not read
        in an epoch. The warning is issued once per loader, at the end of the epoch.

    Notes
    -----
    An exception of a source or transform in a worker is raised in this process. Its cause has the
    traceback of the worker. After an exception, the position of the sampler is before the batch
    that failed, and the next iteration starts new workers.

    Workers are new processes, not forks. They unpickle the source and the transform. So the classes
    and functions that your program defines for them must not be inside
    `if __name__ == "__main__":`. Workers end after `close()`, when this process ends, or when the
    loader is garbage-collected.

    Examples
    --------
    >>> import numpy as np
    >>> from ngd import data
    >>> source = data.Arrays(np.arange(6.0).reshape(6, 1), np.arange(6))
    >>> with data.Loader(source, data.Sampler(len(source), batch_size=3)) as loader:
    ...     for x, y in loader:
    ...         print(x.shape, y.shape)
    (3, 1) (3,)
    (3, 1) (3,)
    """

    @check_constructor("data.Loader", SAMPLER_ARGUMENTS)
    def __init__(
        self,
        source: Any,
        sampler: Sampler,
        transform: Transforms = (),
        *,
        num_workers: int = 0,
        prefetch_factor: int = 2,
        timeout: float | None = 300.0,
    ) -> None:
        if not isinstance(sampler, Sampler):
            raise TypeError(
                f"data.Loader: sampler: expected a data.Sampler; got {type(sampler).__name__}. "
                "Write data.Loader(source, data.Sampler(len(source), batch_size=32))."
            )
        if not hasattr(source, "__len__"):
            raise TypeError(
                "data.Loader: source: expected an object with a length; got "
                f"{type(source).__name__}. Give it a __len__ method."
            )
        if num_workers < 0:
            raise ValueError(f"data.Loader: num_workers: expected 0 or more; got {num_workers}.")
        if not 1 <= prefetch_factor <= MAX_PREFETCH:
            raise ValueError(
                f"data.Loader: prefetch_factor: expected 1 to {MAX_PREFETCH} batches per worker; "
                f"got {prefetch_factor}."
            )
        if len(source) != sampler.num_samples:
            raise ValueError(
                "data.Loader: expected a source and a sampler of one length; got "
                f"{len(source)} samples in the source and {sampler.num_samples} in the sampler. "
                "Write data.Sampler(len(source), ...)."
            )
        self.sampler, self.timeout = sampler, timeout
        self.num_workers, self.prefetch_factor = num_workers, prefetch_factor
        self._recipe = Recipe(source, transform, sampler.seed)
        self._team: Team | None = None
        self._site = call_site()
        self._has_warned = False

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Batch]:
        reads, totals, size = WeightReads(), dict[int, None](), 1
        for shard in self.sampler:
            try:
                columns = self._load(shard)
            except BaseException:
                self.sampler.done = shard.number
                self.close()
                raise
            totals[shard.total], size = None, self.sampler.size
            yield Batch(columns, shard.weight, shard.total, reads)
        if not reads.has_read:
            self._warn_of_uneven(list(totals), size)

    def _warn_of_uneven(self, totals: list[int], size: int) -> None:
        """Warn, once per loader, if the batches of an epoch were uneven.

        The caller calls this after an epoch in which the program did not read `batch.weight`.
        `totals` has the different numbers of samples per batch, over all ranks. Batches are uneven
        if there are several such numbers, or if one of them is not a multiple of `size`, the number
        of ranks.
        """
        uneven = [total for total in totals if total % size]
        if self._has_warned or not (uneven or len(totals) > 1):
            return
        self._has_warned = True
        if uneven:
            reason = f"the {size} ranks share a batch of {uneven[0]} samples unevenly"
            fix = "A batch_size that is a multiple of the number of ranks, and drop_last=True,"
        else:
            counts = " and ".join(map(str, totals))
            reason = f"the batches have different numbers of samples, {counts}"
            fix = "drop_last=True"
        warn(
            f"data.Loader: expected batch.weight to be read, because {reason}; got an epoch that "
            f"did not read it (loader made at {self._site}). Write `for batch in loader:` and "
            f"optimizer.minimize(loss, parameters, weight=batch.weight). {fix} in data.Sampler "
            "makes the batches even.",
            UnevenBatchWarning,
        )

    def _load(self, shard: Shard) -> Columns:
        """Return this rank's columns of a batch.

        With workers, also send them the requests for the next batches.
        """
        if not self.num_workers:
            return self._recipe.make(shard.indices, shard.epoch)
        rank_and_size = self.sampler.rank_and_size()
        if self._team is not None and self._team.owner != os.getpid():
            self._team = None  # in a fork: the workers belong to the parent
        if self._team is not None and (self._team.next, self._team.rank_and_size) != (
            shard.number,
            rank_and_size,
        ):
            self.close()  # the position of the sampler, the rank or the size has changed
        if self._team is None:
            self._team = Team(
                self._recipe, self.num_workers, shard.number, self.timeout, rank_and_size
            )
        last_request = shard.number + self.num_workers * self.prefetch_factor
        while self._team.requested <= last_request:
            self._team.request(self.sampler.shard(self._team.requested))
        return self._team.receive()

    def close(self) -> None:
        """End the worker processes. The next iteration starts new ones.

        Examples
        --------
        >>> from ngd import data
        >>> loader = data.Loader(data.Arrays([1, 2]), data.Sampler(2, 1), num_workers=1)
        >>> loader.close()
        """
        if self._team is not None:
            self._team.close()
            self._team = None

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Worker:
    """A worker process, and the socket by which the loader is connected to it."""

    def __init__(self, name: str) -> None:
        main = sys.modules["__main__"]
        spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
        self.name = name
        self.link, worker_link = socket.socketpair()
        settings = {
            "link": worker_link.fileno(),
            "parent": os.getpid(),
            "path": sys.path,
            "arguments": sys.argv,
            "main": [spec and spec.name, file and os.path.abspath(file)],
        }
        # Ctrl-C interrupts the loader's process, which ends the worker. The worker ignores it.
        old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self.process = subprocess.Popen(
                [sys.executable, str(PROGRAM), json.dumps(settings)],
                stdin=subprocess.DEVNULL,
                pass_fds=[worker_link.fileno()],
                env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
            worker_link.close()

    def send(self, file: int) -> None:
        """Send a message, which is a file in memory, by sending its file descriptor.

        The caller closes the file.
        """
        try:
            messages.send(self.link, file)
        except ConnectionError:
            raise self.ended() from None

    def receive(self, timeout: float | None) -> Any:
        """Wait for the next answer of the worker, and return it."""
        poll = select.poll()
        poll.register(self.link, select.POLLIN)
        start = time.monotonic()
        while not poll.poll(POLL_SECONDS * 1000):
            if self.process.poll() is not None:
                raise self.ended()
            if timeout is not None and time.monotonic() - start > timeout:
                raise WorkerError(
                    f"data.Loader: expected an answer of {self}; got none for {timeout:g} s. Give "
                    "a longer "
                    "timeout, or find out what its source waits for."
                )
        try:
            file = messages.receive(self.link)
        except (EOFError, ConnectionError):
            raise self.ended() from None
        return messages.unpack(file, Unpickler)

    def ended(self) -> WorkerError:
        """Return the error for a worker process that has ended, with its signal or exit code."""
        try:
            code = self.process.wait(POLL_SECONDS)
        except subprocess.TimeoutExpired:
            return WorkerError(
                f"data.Loader: {self} closed its socket. num_workers=0 needs no worker."
            )
        if code < 0:
            return WorkerError(
                f"data.Loader: {self} was killed by {signal.Signals(-code).name}. If memory ran "
                "out, use fewer workers or a smaller prefetch_factor."
            )
        return WorkerError(
            f"data.Loader: {self} ended with exit code {code}. Its source or a transform ended it: "
            "num_workers=0 runs them in this process."
        )

    def __str__(self) -> str:
        return f"{self.name} (process {self.process.pid})"


class Unpickler(pickle.Unpickler):
    """An unpickler for answers of workers, which replaces module `__mp_main__` by `__main__`.

    The user's program is module `__mp_main__` in a worker, and `__main__` in this process.
    """

    def find_class(self, module: str, name: str) -> Any:
        """Return a class or function of a module; use `__main__` in place of `__mp_main__`."""
        return super().find_class("__main__" if module == "__mp_main__" else module, name)


class Team:
    """The worker processes of a loader.

    Worker n % num_workers makes batch n. A worker answers in the order of its requests.
    """

    def __init__(
        self,
        recipe: Recipe,
        num_workers: int,
        first: int,
        timeout: float | None,
        rank_and_size: tuple[int, int],
    ) -> None:
        self.next = self.requested = first
        self.timeout, self.owner, self.rank_and_size = timeout, os.getpid(), rank_and_size
        self.workers: list[Worker] = []
        self.close = weakref.finalize(self, stop, self.workers, self.owner)
        try:
            file = messages.pack(recipe)
        except (AttributeError, TypeError, pickle.PicklingError) as error:
            raise TypeError(
                "data.Loader: expected a source and a transform that can be pickled for the worker "
                f"processes; got an error: {error}. num_workers=0 needs no pickling."
            ) from error
        try:
            for number in range(num_workers):
                self.workers.append(Worker(f"worker {number} of {num_workers}"))
            for worker in self.workers:
                worker.send(file)
        except BaseException:
            self.close()
            raise
        finally:
            os.close(file)

    def request(self, shard: Shard) -> None:
        """Send the request for the next batch, `shard`, to the worker that makes this batch."""
        file = messages.pack((shard.indices, shard.epoch))
        try:
            self.workers[self.requested % len(self.workers)].send(file)
        finally:
            os.close(file)
        self.requested += 1

    def receive(self) -> Columns:
        """Wait for the next batch, and return its columns; raise the error if its worker failed."""
        worker = self.workers[self.next % len(self.workers)]
        kind, value, *traceback = worker.receive(self.timeout)
        if kind == "failure":
            cause = RemoteError(f"in {worker}:\n{traceback[0]}")
            error = WorkerError(f"data.Loader: {cause}") if value is None else value
            raise error from cause
        self.next += 1
        columns: Columns = value
        return columns


class RemoteError(Exception):
    """An exception whose text is a worker's traceback: the `__cause__` of the loader's error."""


def stop(workers: list[Worker], owner: int) -> None:
    """Kill the worker processes, and wait until they have ended.

    `owner` is the id of the process that started them. In a fork of it, do nothing.
    """
    if os.getpid() != owner:
        return
    for worker in workers:
        worker.link.close()
        worker.process.kill()
    for worker in workers:
        worker.process.wait()
    workers.clear()
