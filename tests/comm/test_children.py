# SPDX-License-Identifier: Apache-2.0
"""Tests of child processes of a rank, which are not ranks, and of ngd.init() in threads."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

import ngd
from tests.support import harness
from tests.support.harness import Job, caught, run, say

pytestmark = harness.needs_ranks

SUM = "import ngd; print(int(ngd.all_reduce(ngd.init().rank + 1, op='sum')))"


def in_child(queue: Any) -> None:
    since = time.monotonic()
    error = caught(lambda: ngd.all_reduce(1, op="sum"))
    queue.put({**error, "seconds": time.monotonic() - since})


def start_child(method: str, early: bool) -> dict[str, Any]:
    """Make a collective in a child of rank 1. If `early`, its server starts before the world."""
    context = multiprocessing.get_context(method)
    if early:
        context.Process(target=os.getpid).start()
    world = ngd.init()
    ngd.barrier()
    result: dict[str, Any] = {}
    if world.rank == 1:
        queue: Any = context.Queue()
        child = context.Process(target=in_child, args=(queue,))
        child.start()
        result = queue.get(timeout=60)
        child.join(60)
    result["sum"] = int(ngd.all_reduce(world.rank, op="sum"))
    return result


@pytest.mark.parametrize(
    ("method", "early"), [("spawn", False), ("forkserver", False), ("forkserver", True)]
)
def test_a_collective_in_a_child_raises(method: str, early: bool) -> None:
    outcomes = run(start_child, 2, arguments={"method": method, "early": early})
    assert [o.value["sum"] for o in outcomes] == [1, 1]
    result = outcomes[1].value
    assert result["error"] == "InitError"
    assert "rank 1 is process" in result["message"]
    assert "A child of a rank is not a rank" in result["message"]
    assert result["seconds"] < 5


def start_job(launcher: list[str]) -> list[str]:
    """Start a job in every rank, and return the sums that its ranks print."""
    world = ngd.init()
    ngd.barrier()
    done = subprocess.run(
        [*launcher, sys.executable, "-c", SUM], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(ngd.all_reduce(world.rank, op="sum")) == 1
    return sorted(word for line in done.stdout.split("\n") for word in line.split()[-1:])


@pytest.mark.long
@pytest.mark.parametrize("outer", ["plain", "ngd run", "mpirun"])
@pytest.mark.parametrize("inner", ["ngd run", "mpirun"])
def test_a_rank_can_start_a_job(outer: str, inner: str) -> None:
    if "mpirun" in (outer, inner) and not harness.HAS_OPEN_MPI:
        pytest.skip("needs Open MPI's mpirun")
    arguments = {"launcher": harness.launcher_command(inner, 2)}
    for outcome in run(start_job, 2, arguments=arguments, launcher=outer):
        assert outcome.value == ["3", "3"]


def leave_to_child() -> int:
    """Leave the world, and start a child that takes the rank's number."""
    ngd.init()
    ngd.shutdown()
    done = subprocess.run(
        [sys.executable, "-c", SUM], capture_output=True, text=True, timeout=60, check=True
    )
    return int(done.stdout)


def test_a_child_can_join_after_its_parent_has_left() -> None:
    assert [o.value for o in run(leave_to_child, 2)] == [3, 3]


def exec_itself() -> int:
    """Replace the program of a rank by exec."""
    if "AGAIN" not in os.environ:
        ngd.init()
        ngd.barrier()
        os.environ["AGAIN"] = "1"
        os.execv(sys.executable, sys.orig_argv)
    return int(ngd.all_reduce(1, op="sum"))


def test_a_rank_can_join_again_after_exec() -> None:
    with Job(exec_itself, 2) as job:
        assert [o.value for o in job.wait(60)] == [2, 2]


# Threads.


def init_in_threads(late: bool) -> dict[str, Any]:
    """Call ngd.init() in three threads per rank. If `late`, rank 1 comes after all of rank 0."""
    if late and os.environ["RANK"] == "1":
        time.sleep(0.5)
    worlds: list[Any] = []
    threads = [threading.Thread(target=lambda: worlds.append(ngd.init())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    since = time.monotonic()
    return {
        "worlds": len(worlds),
        "one": len({id(each) for each in worlds}),
        "sum": int(ngd.all_reduce(1, op="sum")),
        "seconds": time.monotonic() - since,
    }


@pytest.mark.parametrize("late", [False, True])
def test_threads_that_init_at_once_get_one_world(late: bool) -> None:
    for outcome in run(init_in_threads, 2, arguments={"late": late}):
        assert outcome.value["worlds"] == 3
        assert outcome.value["one"] == 1
        assert outcome.value["sum"] == 2


def fail_in_threads() -> dict[str, Any]:
    errors: list[dict[str, str]] = []
    threads = [threading.Thread(target=lambda: errors.append(caught(ngd.init))) for _ in range(3)]
    since = time.monotonic()
    say("coming")
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"errors": errors, "seconds": time.monotonic() - since}


def test_threads_in_a_failing_init_all_raise() -> None:
    with Job(fail_in_threads, 2, start=[0], env={"NGD_TIMEOUT": "2"}) as job:
        (outcome,) = job.wait(30)
    assert outcome.value["seconds"] < 3.5
    kinds = sorted(error["error"] for error in outcome.value["errors"])
    assert kinds == ["CollectiveTimeoutError", "InitError", "InitError"]
    assert all("rank 1 did not arrive" in error["message"] for error in outcome.value["errors"])


def init_in_a_handler() -> dict[str, str]:
    """Call ngd.init() in a signal handler while rank 0 waits for rank 1."""
    errors: list[dict[str, str]] = []
    if os.environ["RANK"] == "0":
        signal.signal(signal.SIGALRM, lambda *_: errors.append(caught(ngd.init)))
        signal.setitimer(signal.ITIMER_REAL, 0.3)
    else:
        time.sleep(1)
    assert int(ngd.all_reduce(1, op="sum")) == 2
    return errors[0] if errors else {}


def test_init_inside_init_raises() -> None:
    outcome = run(init_in_a_handler, 2)[0]
    assert outcome.value["error"] == "InitError"
    assert "signal handler" in outcome.value["message"]
