# SPDX-License-Identifier: Apache-2.0
"""Worlds of ranks that stay between tests, for programs that must simply succeed.

    outcomes = run_in_world(program, "shm", 3, count=5)

The processes are those of a `harness.Job`, which starts when the first test needs that world. Every
test calls `ngd.init()` in them. To start Python and MPI again would cost one second per test. A
program that raises ends its world, and the next test gets another one. Tests of processes (their
start, their environment, their end) use `harness.run` and `harness.Job`.

After a failure of a group, MPI cannot be finalized. Therefore programs that cause a failure, and
catch the error, have separate worlds: `fail_in_world`.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ngd
from tests.support import harness
from tests.support.harness import Job, Outcome
from tests.support.paths import import_file

_worlds: dict[tuple[str, int, bool], World] = {}


def run_in_world(
    program: Callable[..., Any], communicator: str, ranks: int, **arguments: Any
) -> list[Outcome]:
    """Call a function on the ranks of a world. All ranks must succeed."""
    return _call(program, communicator, ranks, False, arguments)


def fail_in_world(
    program: Callable[..., Any], communicator: str, ranks: int, **arguments: Any
) -> list[Outcome]:
    """Call a function that catches the error of a failed group."""
    return _call(program, communicator, ranks, True, arguments)


def _call(
    program: Callable[..., Any],
    communicator: str,
    ranks: int,
    fails: bool,
    arguments: dict[str, Any],
) -> list[Outcome]:
    key = communicator, ranks, fails
    world = _worlds.pop(key, None) or World(communicator, ranks)
    try:
        outcomes = world.call(program, arguments)
    except BaseException:
        world.close(kill=True)
        raise
    _worlds[key] = world
    return outcomes


def close_worlds() -> None:
    """End all ranks at once, and check what they leave."""
    for world in _worlds.values():
        world.dismiss()
    while _worlds:
        _worlds.popitem()[1].close()


class World:
    """Ranks that wait for calls."""

    def __init__(self, communicator: str, ranks: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ngd-world-"))
        self.calls = 0
        pipes = [self.folder / f"{rank}.calls" for rank in range(ranks)]
        for pipe in pipes:
            os.mkfifo(pipe)
        self.pipes = [os.open(pipe, os.O_RDWR) for pipe in pipes]
        how = harness.over(communicator, ranks, arguments={"folder": str(self.folder)})
        self.job = Job(serve, ranks, **how)

    def call(self, program: Callable[..., Any], arguments: dict[str, Any]) -> list[Outcome]:
        """Return the outcome of the program on every rank, with its output."""
        self.calls += 1
        ranks = range(self.job.ranks)
        file = program.__globals__["__file__"]
        call = json.dumps([self.calls, file, program.__name__, arguments]).encode() + b"\n"
        offsets = [(len(self.job.read(r, "out")), len(self.job.read(r, "err"))) for r in ranks]
        results = [self.folder / f"{rank}.{self.calls}.json" for rank in ranks]
        for pipe in self.pipes:
            os.write(pipe, call)
        limit = time.monotonic() + 120
        while not all(result.exists() for result in results):
            if self.job.any_has_ended() or time.monotonic() > limit:
                everything = "\n".join(str(self.job.outcome(rank)) for rank in ranks)
                pytest.fail(f"{program.__name__} failed:\n{everything}\n{self.job.said}")
            time.sleep(0.001)
        return [
            Outcome(
                rank,
                None,
                self.job.read(rank, "out")[offsets[rank][0] :],
                self.job.read(rank, "err")[offsets[rank][1] :],
                json.loads(results[rank].read_text()),
            )
            for rank in ranks
        ]

    def dismiss(self) -> None:
        """Close the pipes of the ranks, which then end."""
        while self.pipes:
            os.close(self.pipes.pop())

    def close(self, kill: bool = False) -> None:
        """Wait for the ranks to end, or kill them."""
        with self.job:
            self.dismiss()
            shutil.rmtree(self.folder, ignore_errors=True)
            if not kill:
                for outcome in self.job.wait(30):
                    assert outcome.code in (0, None), outcome


def serve(folder: str) -> None:
    """Run calls on a rank, each in a new group."""
    rank = harness.own_rank()
    with Path(folder, f"{rank}.calls").open() as calls:
        for line in calls:
            number, file, name, arguments = json.loads(line)
            value = getattr(import_file(file), name)(**arguments)
            ngd.shutdown()
            partial = Path(folder, f"{rank}.{number}.part")
            partial.write_text(json.dumps(value))
            partial.rename(Path(folder, f"{rank}.{number}.json"))
