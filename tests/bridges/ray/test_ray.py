# SPDX-License-Identifier: Apache-2.0
"""DiLoCo on Ray: two nodes on this machine, of which one is lost; workers that are killed."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import harness

pytest.importorskip("ray", reason="Ray is not installed: .ci/clusters installs it")

HERE = Path(__file__).parent
DEADLINE = 280.0
INNER = 3

pytestmark = pytest.mark.timeout(DEADLINE + 20)


def run(name: str, *arguments: str) -> tuple[Any, str]:
    """What came of a driver of ray_jobs.py, and its log; no process of it may be left."""
    marker = secrets.token_hex(8)
    kept = {k: v for k, v in os.environ.items() if not harness.LAUNCHED.fullmatch(k)}
    env = {**kept, harness.MARKER: marker, "NGD_TIMEOUT": "60", "PYTHONPATH": str(HERE)}
    env |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_COLOR_PREFIX": "0"}
    command = [sys.executable, str(HERE / "ray_jobs.py"), name, *arguments]
    job = subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        out, err = job.communicate(timeout=DEADLINE)
        limit = time.monotonic() + 20
        while (left := harness.marked_processes(marker)) and time.monotonic() < limit:
            time.sleep(0.1)
    except subprocess.TimeoutExpired:
        job.kill()
        pytest.fail(f"{name} did not end in {DEADLINE} s\n{job.communicate()}")
    finally:
        for pid in harness.marked_processes(marker):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert job.returncode == 0, err
    assert left == []
    (line,) = [line for line in out.splitlines() if line.startswith("{")]
    return json.loads(line), err


def test_workers_on_two_nodes_do_what_numpy_does() -> None:
    told, _ = run("undisturbed")
    moved, momentum, weight = INNER * np.mean([1, 2, 3]), 0.0, 0.0
    for _ in range(3):
        momentum = 0.9 * momentum + moved
        weight -= 0.7 * (moved + 0.9 * momentum)
    assert told.keys() == {"float32", "bfloat16", "int8"}
    for wire, made in told.items():
        near = 1e-6 if wire == "float32" else 5e-3
        assert made["nodes"] == 2
        assert made["weights"][1] == [pytest.approx(weight, rel=near)] * 2
        assert made["weights"][0] == [[pytest.approx(1 + weight, rel=near)] * 3] * 2


def test_a_lost_node_is_dropped_and_its_workers_are_replaced_and_healed() -> None:
    told, log = run("killed_node")
    assert len(told["lost"]) == 2
    stayed = [number for number in range(4) if number not in told["lost"]]
    assert told["numbers"][0] == [0, 1, 2, 3]
    assert told["numbers"][1] == stayed
    assert told["numbers"][-1] == [*stayed, 4, 5]
    # Rate 1: a round moves by the mean of those who are there.
    moved = [INNER * np.mean([1 + n for n in numbers]) for numbers in told["numbers"]]
    assert told["weights"] == pytest.approx([-sum(moved[:2]), -sum(moved)], rel=1e-5)
    # The new ones have as many inner steps behind them as their peers.
    assert set(told["inner"].values()) == {float(INNER * told["round"])}
    for number in told["lost"]:
        assert f"worker {number} is lost: " in log
    for words in ("worker 4 starts", "worker 4 healed by", "worker 5 healed by"):
        assert words in log


def test_a_killed_process_is_dropped() -> None:
    told, log = run("killed_process")
    assert told == {"numbers": [0], "weight": -INNER * 1.5 - INNER}
    assert "worker 1 is lost: ActorDiedError" in log


def test_who_does_not_answer_is_dropped_at_the_deadline() -> None:
    told, log = run("late")
    assert told["numbers"] == [[0, 1], [0, 1], [0], [0]]
    assert "worker 1 is lost: did not answer in 15 s" in log


def test_too_few_workers_are_an_error() -> None:
    told, _ = run("too_few")
    assert "expected 2 workers; got 1" in told["error"]


def test_who_finds_no_place_is_an_error_at_the_deadline() -> None:
    told, _ = run("no_place")
    words = r"expected 5 workers; got [0-4], and [1-5] that Ray has not placed.* in 15 s"
    assert re.search(words, told["error"])


def test_what_a_worker_raises_ends_the_training() -> None:
    told, log = run("faulty")
    assert len(told["errors"]) == 2
    assert all("as it happens" in error for error in told["errors"])
    assert "is lost" not in log


def test_workers_of_two_ranks_are_lost_as_a_whole() -> None:
    told, log = run("pairs")
    assert told["sizes"] == {"1": 2, "2": 2}
    assert told["numbers"][:2] == [[0, 1], [1]]
    assert told["numbers"][-1] == [1, 2]
    # Ranks 0 and 1 of worker n move by n and n + 2, together by n + 1.
    assert told["weights"] == [[-1.5] * 3, [-3.5] * 3]
    assert "worker 0 is lost: " in log
