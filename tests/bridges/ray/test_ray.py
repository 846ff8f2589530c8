# SPDX-License-Identifier: Apache-2.0
"""Tests of DiLoCo on Ray, with two nodes on this machine: lost nodes and killed workers."""

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
    """Return the result and the log of a driver of ray_jobs.py. No process of it may remain."""
    marker = secrets.token_hex(8)
    inherited = {k: v for k, v in os.environ.items() if not harness.LAUNCHED.fullmatch(k)}
    env = {**inherited, harness.MARKER: marker, "NGD_TIMEOUT": "60", "PYTHONPATH": str(HERE)}
    env |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_COLOR_PREFIX": "0"}
    command = [sys.executable, str(HERE / "ray_jobs.py"), name, *arguments]
    job = subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        out, err = job.communicate(timeout=DEADLINE)
        limit = time.monotonic() + 20
        while (remaining := harness.marked_processes(marker)) and time.monotonic() < limit:
            time.sleep(0.1)
    except subprocess.TimeoutExpired:
        job.kill()
        pytest.fail(f"{name} did not end in {DEADLINE} s\n{job.communicate()}")
    finally:
        for pid in harness.marked_processes(marker):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert job.returncode == 0, err
    assert remaining == []
    (line,) = [line for line in out.splitlines() if line.startswith("{")]
    return json.loads(line), err


def test_workers_on_two_nodes_equal_numpy() -> None:
    result, _ = run("undisturbed")
    move, momentum, weight = INNER * np.mean([1, 2, 3]), 0.0, 0.0
    for _ in range(3):
        momentum = 0.9 * momentum + move
        weight -= 0.7 * (move + 0.9 * momentum)
    assert result.keys() == {"float32", "bfloat16", "int8"}
    for wire, report in result.items():
        tolerance = 1e-6 if wire == "float32" else 5e-3
        assert report["nodes"] == 2
        assert report["weights"][1] == [pytest.approx(weight, rel=tolerance)] * 2
        assert report["weights"][0] == [[pytest.approx(1 + weight, rel=tolerance)] * 3] * 2


def test_workers_of_a_lost_node_are_replaced() -> None:
    result, log = run("killed_node")
    assert len(result["lost"]) == 2
    survivors = [number for number in range(4) if number not in result["lost"]]
    assert result["numbers"][0] == [0, 1, 2, 3]
    assert result["numbers"][1] == survivors
    assert result["numbers"][-1] == [*survivors, 4, 5]
    # With rate 1, a round moves by the mean over the present workers.
    moves = [INNER * np.mean([1 + n for n in numbers]) for numbers in result["numbers"]]
    assert result["weights"] == pytest.approx([-sum(moves[:2]), -sum(moves)], rel=1e-5)
    # The new workers have the same number of inner steps as the others.
    assert set(result["inner"].values()) == {float(INNER * result["round"])}
    for number in result["lost"]:
        assert f"worker {number} is lost: " in log
    for words in ("worker 4 starts", "worker 4 got the state", "worker 5 got the state"):
        assert words in log


def test_a_killed_process_is_dropped() -> None:
    result, log = run("killed_process")
    assert result == {"numbers": [0], "weight": -INNER * 1.5 - INNER}
    assert "worker 1 is lost: ActorDiedError" in log


def test_a_worker_without_answer_is_dropped_at_the_deadline() -> None:
    result, log = run("late")
    assert result["numbers"] == [[0, 1], [0, 1], [0], [0]]
    assert "worker 1 is lost: did not answer in 15 s" in log


def test_too_few_workers_raise() -> None:
    result, _ = run("too_few")
    assert "expected 2 workers; got 1" in result["error"]


def test_too_few_free_cpus_raise_at_the_deadline() -> None:
    result, _ = run("no_place")
    words = r"expected 5 workers; got [0-4], and [1-5] that Ray has not placed.* in 15 s"
    assert re.search(words, result["error"])


def test_an_exception_of_a_worker_ends_the_training() -> None:
    result, log = run("faulty")
    assert len(result["errors"]) == 2
    assert all("as it happens" in error for error in result["errors"])
    assert "is lost" not in log


def test_a_killed_rank_drops_its_whole_worker() -> None:
    result, log = run("pairs")
    assert result["sizes"] == {"1": 2, "2": 2}
    assert result["numbers"][:2] == [[0, 1], [1]]
    assert result["numbers"][-1] == [1, 2]
    # Ranks 0 and 1 of worker n move by n and n + 2, on average by n + 1.
    assert result["weights"] == [[-1.5] * 3, [-3.5] * 3]
    assert "worker 0 is lost: " in log
