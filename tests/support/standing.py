# SPDX-License-Identifier: Apache-2.0
"""Worlds of ranks that stay between tests, for the many programs that must simply succeed.

    outcomes = run_in_world(program, "shm", 3, count=5)

The processes are those of a `harness.Job`, started when the first test asks for that world; every
test is an `ngd.init()` of its own in them, which is what starting Python and MPI anew costs a
second for. A program that raises ends its world, and the next test gets another one. What is about
processes (their start, their environment, their end) has `harness.run` and `harness.Job`.

Where a group has failed, MPI cannot be finalized any more. So programs that make one fail, and
catch the error, have worlds of their own: `fail_in_world`.
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
    """Call a function on the ranks of a world; all of them must succeed."""
    return _call(program, communicator, ranks, False, arguments)


def fail_in_world(
    program: Callable[..., Any], communicator: str, ranks: int, **arguments: Any
) -> list[Outcome]:
    """Call a function that catches the error of a group."""
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
    """End all ranks at once, and look at what they leave."""
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
        """What the program returned and printed on every rank."""
        self.calls += 1
        ranks = range(self.job.ranks)
        file = program.__globals__["__file__"]
        call = json.dumps([self.calls, file, program.__name__, arguments]).encode() + b"\n"
        said = [(len(self.job.read(r, "out")), len(self.job.read(r, "err"))) for r in ranks]
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
                self.job.read(rank, "out")[said[rank][0] :],
                self.job.read(rank, "err")[said[rank][1] :],
                json.loads(results[rank].read_text()),
            )
            for rank in ranks
        ]

    def dismiss(self) -> None:
        """Let the ranks end: they find that nobody holds their pipes any more."""
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
    """What a rank does: call after call, each in a group of its own."""
    rank = harness.own_rank()
    with Path(folder, f"{rank}.calls").open() as calls:
        for line in calls:
            number, file, name, arguments = json.loads(line)
            value = getattr(import_file(file), name)(**arguments)
            ngd.shutdown()
            partial = Path(folder, f"{rank}.{number}.part")
            partial.write_text(json.dumps(value))
            partial.rename(Path(folder, f"{rank}.{number}.json"))
