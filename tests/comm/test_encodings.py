# SPDX-License-Identifier: Apache-2.0
"""Tests of paths, call sites and tracebacks that are not ASCII, or not valid UTF-8."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ngd
from tests.support import harness
from tests.support.harness import caught
from tests.support.standing import fail_in_world

pytestmark = harness.needs_ranks
each_communicator = pytest.mark.parametrize("communicator", harness.communicators())

CODE = "import numpy as np, ngd\ndef call(count): return ngd.all_reduce(np.ones(count), op='sum')"


def calls_from(file: str) -> Callable[[int], Any]:
    """Return a function that calls all_reduce in a file of that name."""
    names: dict[str, Any] = {}
    exec(compile(CODE, file, "exec"), names)
    return names["call"]  # type: ignore[no-any-return]


LETTERS = ["é", "字", "🎉", "é字"]  # 2, 3, 4 and several bytes, so that they are cut at every byte


def disagree_in(letters: list[str]) -> list[dict[str, str]]:
    errors = []
    for letter in letters:
        for ascii_bytes in range(4):
            world = ngd.init()
            call = calls_from("/data/" + letter * 40 + "x" * ascii_bytes + ".py")
            errors.append(caught(lambda call=call, n=3 + world.rank: call(n)))
            ngd.shutdown()
    return errors


@each_communicator
def test_a_truncated_path_stays_readable(communicator: str) -> None:
    for outcome in fail_in_world(disagree_in, communicator, 2, letters=LETTERS):
        for number, error in enumerate(outcome.value):
            letter, ascii_bytes = LETTERS[number // 4], number % 4
            assert error["error"] == "CollectiveMismatchError", error
            end = letter * 3 + "x" * ascii_bytes + ".py:2"
            assert error["message"].count(end) == 2, error
            assert "\\x" not in error["message"], error
            assert "\ufffd" not in error["message"], error


def fail_with(text: str) -> dict[str, str] | None:
    world = ngd.init()
    ngd.barrier()
    if world.rank == 1:
        world.abort(text)
        return None
    return caught(ngd.barrier)


@each_communicator
@pytest.mark.parametrize("ascii_bytes", range(3))
def test_a_truncated_traceback_stays_readable(communicator: str, ascii_bytes: int) -> None:
    text = "字" * 40_000 + "x" * ascii_bytes
    first = fail_in_world(fail_with, communicator, 2, text=text)[0]
    assert first.value["error"] == "RemoteRankError", first
    assert first.value["message"].endswith("字字" + "x" * ascii_bytes)
    assert "\\x" not in first.value["message"]
    assert len(first.value["message"]) > 5000


def run_from_a_non_utf8_path(file: str, device: str) -> list[str]:
    """Run collectives and steps from a file whose name is not valid UTF-8.

    The results are right, and every message can be printed.
    """
    world = ngd.init()
    call = calls_from(file)
    assert call(3).tolist() == [world.size] * 3
    assert ngd.all_reduce(1, op="sum") == world.size
    names: dict[str, Any] = {}
    code = "import ngd\nx = ngd.placeholder('x', (3,))\ny = ngd.ops.all_reduce(x, op='sum')"
    exec(compile(code, file, "exec"), names)
    step = ngd.compile([names["x"]], [names["y"]], device=device)
    assert step(np.ones(3, np.float32))[0].tolist() == [world.size] * 3
    reports = [str(ngd.comm_stats()), str(step), step.compare_ranks()]
    error = caught(lambda: call(3 + world.rank))
    assert error["error"] == "CollectiveMismatchError", error
    texts = [
        text.encode().decode() for text in (*reports, error["message"])
    ]  # raises if a text is not valid UTF-8
    return [texts[0], texts[-1]]


@each_communicator
@pytest.mark.parametrize("device", ["CPU", "INTERPRETER"])
@pytest.mark.parametrize("name", ["\udcff\udcfe", "\udce9t\udce9", "\ud800"])
def test_a_directory_that_is_not_utf8(communicator: str, device: str, name: str) -> None:
    file = f"/data/{name}/train.py"
    for outcome in fail_in_world(
        run_from_a_non_utf8_path, communicator, 2, file=file, device=device
    ):
        for text in outcome.value:
            assert "/train.py:2" in text
            assert "\\x" in text


def abort_with_a_non_utf8_traceback() -> dict[str, str] | None:
    world = ngd.init()
    ngd.barrier()
    if world.rank == 1:
        world.abort('File "/data/\udcff.py"\nbroken')
        return None
    return caught(ngd.barrier)


@each_communicator
def test_a_traceback_that_is_not_utf8(communicator: str) -> None:
    first = fail_in_world(abort_with_a_non_utf8_traceback, communicator, 2)[0]
    assert first.value["error"] == "RemoteRankError", first
    assert "/data/\\xff.py" in first.value["message"]
    assert first.value["message"].endswith("broken")
