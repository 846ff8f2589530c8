# SPDX-License-Identifier: Apache-2.0
"""Tests of several threads of one rank, while one of them waits in a collective."""

from __future__ import annotations

import contextlib
import gc
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ngd
from ngd import _core, ops
from tests.support import harness
from tests.support.harness import Job, caught, run, say

each_communicator = pytest.mark.parametrize("communicator", harness.communicators())

PROMPT = 10.0
"""Seconds. NGD_TIMEOUT, the limit of a wait in a collective, is 60."""


def waiting_calls(world: ngd.Group) -> dict[str, Callable[[], Any]]:
    """Return calls of rank 0 that wait for another rank forever."""
    one, many = np.ones(1, np.float32), np.ones(70_000, np.float32)
    x = ngd.placeholder("x", (3,))
    total = ops.all_reduce(x, op="sum")
    step = ngd.compile([x], [total], device="CPU")
    slow = ngd.compile([x], [total], device="INTERPRETER")
    half = world.split(0)
    assert half is not None
    return {
        "barrier": ngd.barrier,
        "small": lambda: ngd.all_reduce(one, op="sum"),
        "large": lambda: ngd.all_reduce(many, op="sum"),
        "list": lambda: ngd.all_reduce([one, many], op="sum"),
        "work": lambda: ngd.all_reduce(many, op="sum", async_op=True).wait(),
        "patient": lambda: ngd.barrier(async_op=True).wait(timeout=50),
        "recv": lambda: ngd.recv(1, out=one),
        "group": half.barrier,
        "split": lambda: world.split(0),
        "step": lambda: step(np.ones(3, np.float32)),
        "interpreter": lambda: slow(np.ones(3, np.float32)),
    }


WAITS = (
    *("barrier", "small", "large", "list", "work", "patient", "recv", "group", "split"),
    *("step", "interpreter"),
)


def end_without_rank_0(call: Callable[[], Any]) -> list[Any]:
    """Return the error of the call on rank 1 after rank 0 has left, and the seconds until then."""
    begin = time.monotonic()
    for _ in range(2):  # rank 0 may have done its share of the first call
        with contextlib.suppress(AssertionError):
            return [caught(call), time.monotonic() - begin]
    return [{}, time.monotonic() - begin]


def shut_down_by(closer: str, kind: str) -> list[Any]:
    """Let rank 0 wait, and end the world in a thread, the main thread or a signal handler."""
    world = ngd.init()
    call = waiting_calls(world)[kind]
    ngd.barrier()
    begin = time.monotonic()
    if world.rank == 1:
        time.sleep(1.5)
        return end_without_rank_0(ngd.barrier if kind == "recv" else call)
    if closer == "handler":
        signal.signal(signal.SIGALRM, lambda *_: ngd.shutdown())
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        return [caught(call), time.monotonic() - begin]
    errors: list[Any] = []

    def wait() -> None:
        errors.append(caught(call))

    if closer == "thread":  # the thread ends the world while the main thread waits
        timer = threading.Timer(0.3, ngd.shutdown)
        timer.start()
        wait()
        timer.join()
    else:
        waiter = threading.Thread(target=wait)
        waiter.start()
        time.sleep(0.3)
        ngd.shutdown()
        waiter.join(PROMPT)
    return [*errors, time.monotonic() - begin]


@pytest.mark.long
@each_communicator
@pytest.mark.parametrize("closer", ["thread", "main", "handler"])
@pytest.mark.parametrize("kind", ["small", "step"])
def test_shutdown_ends_a_wait(closer: str, kind: str, communicator: str) -> None:
    how = harness.over(communicator, 2)
    first, second = run(shut_down_by, 2, arguments={"closer": closer, "kind": kind}, **how)
    error, seconds = first.value
    assert error["error"] == "GroupClosedError", error
    assert "shut down" in error["message"] or "closed" in error["message"], error
    assert seconds < PROMPT
    error, seconds = second.value
    assert error["error"] == "RankLostError", error
    assert "rank 0" in error["message"]
    assert seconds < PROMPT


def end_all_waits(closer: str) -> list[str]:
    """End every kind of wait, each in a new world, and return those that ended wrongly."""
    wrong = []
    for kind in WAITS:
        first, seconds = shut_down_by(closer, kind)
        want = (
            ("GroupClosedError",)
            if ngd.comm.launchers.detect.detect().rank == 0
            else ("RankLostError",)
        )
        if first.get("error") not in want or seconds > PROMPT:
            wrong.append(f"{kind}: {first} after {seconds:.1f} s")
        ngd.shutdown()
    return wrong


@pytest.mark.long
@harness.needs_ranks
@pytest.mark.parametrize("closer", ["thread", "handler"])
def test_shutdown_ends_every_kind_of_wait(closer: str) -> None:
    for outcome in run(end_all_waits, 2, arguments={"closer": closer}):
        assert outcome.value == []


def shut_down_in_split(told: str) -> dict[str, str]:
    """End the world on rank 0 before its split returns."""
    world, flag = ngd.init(), Path(told)
    if world.rank == 1:
        half = world.split(0)
        error = caught(half.barrier)
        flag.touch()
        return error
    make = ngd.Group.__init__

    def make_late(self: ngd.Group, *arguments: Any) -> None:
        make(self, *arguments)
        ngd.shutdown()

    ngd.Group.__init__ = make_late  # type: ignore[method-assign]
    groups = []  # keeps the group, whose end would notify rank 1
    error = caught(lambda: groups.append(world.split(0)))
    end = time.monotonic() + PROMPT
    while not flag.exists() and time.monotonic() < end:
        time.sleep(0.01)
    return error if flag.exists() else {"error": "rank 1 was not told"}


@each_communicator
def test_the_end_of_a_world_during_split_ends_the_new_group(
    communicator: str, tmp_path: Path
) -> None:
    arguments = {"told": str(tmp_path / "told")}
    first, second = run(shut_down_in_split, 2, arguments=arguments, **harness.over(communicator, 2))
    assert first.value["error"] == "GroupClosedError", first.value
    assert second.value["error"] == "RankLostError", second.value
    assert "rank 0" in second.value["message"]


def call_in_a_handler() -> list[Any]:
    """Call a barrier, statistics and garbage collection in a signal handler during a wait."""
    world = ngd.init()
    ngd.barrier()
    if world.rank == 1:
        time.sleep(1.0)
        return [None, float(ngd.all_reduce(2.0, op="sum"))]
    results: list[Any] = []
    spare = [ngd.compile([], [ngd.constant(i)]) for i in range(3)]

    def handle(*_: Any) -> None:
        results.append(caught(lambda: ngd.barrier()))
        results.append(len(ngd.comm_stats()) > 0)
        spare.clear()
        gc.collect()

    signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    total = float(ngd.all_reduce(1.0, op="sum"))
    return [results, total]


@each_communicator
def test_a_signal_handler_can_call_ngd_during_a_wait(communicator: str) -> None:
    first, second = run(call_in_a_handler, 2, **harness.over(communicator, 2))
    (error, has_counts), total = first.value
    assert error["error"] == "BusyError"
    assert has_counts
    assert total == second.value[1] == 3.0


def drop_beside_a_wait() -> float:
    """Drop groups and executables in threads while the main thread runs collectives."""
    world = ngd.init()
    x = ngd.placeholder("x", (1000,))
    groups = [world.split(0) for _ in range(20)]
    steps = [
        ngd.compile([x], [ops.all_reduce(x + float(i), op="sum")], group=groups[i])
        for i in range(20)
    ]
    for step in steps:
        step(np.ones(1000, np.float32))

    def drop() -> None:
        while groups:
            steps.pop()
            groups.pop()
            gc.collect()
            time.sleep(0.002)

    def compile_() -> None:
        for i in range(20):
            step = ngd.compile([x], [ops.all_reduce(x * float(i), op="mean")], group=world)
            ngd.comm_stats()
            del step

    threads = [threading.Thread(target=drop), threading.Thread(target=compile_)]
    for thread in threads:
        thread.start()
    total = 0.0
    for i in range(200):
        total += float(ngd.all_reduce(np.full(50_000, 1.0), op="sum")[i])
        if i % 10 == 0:
            world.split(0)
    for thread in threads:
        thread.join(60)
    return total


@each_communicator
def test_groups_and_steps_can_be_dropped_during_a_wait(communicator: str) -> None:
    for outcome in run(drop_beside_a_wait, 2, **harness.over(communicator, 2)):
        assert outcome.value == 400.0


def drop_a_cycle() -> int:
    """Drop an executable and its group in a cycle, which the garbage collector frees."""
    world = ngd.init()
    for _ in range(30):
        group = world.split(0)
        x = ngd.placeholder("x", (5000,))
        step = ngd.compile([x], [ops.all_reduce(x, op="sum")], group=group)
        step(np.ones(5000, np.float32))
        cycle: list[Any] = [step, group]
        cycle.append(cycle)
        del group, step, cycle, x
        gc.collect()
    return int(ngd.all_reduce(1, op="sum"))


@each_communicator
def test_the_garbage_collector_ends_an_executable(communicator: str) -> None:
    for outcome in run(drop_a_cycle, 2, **harness.over(communicator, 2)):
        assert outcome.value == 2


def daemon_at_exit(kind: str, code: int) -> None:
    """End the program of rank 0 while its daemon thread waits or repeats calls."""
    world = ngd.init()
    if world.size == 1:
        calls: dict[str, Callable[[], Any]] = {}
    else:
        calls = waiting_calls(world)
    call = calls.get(kind, ngd.barrier)
    ngd.barrier()

    def daemon() -> None:
        while True:
            call()

    if world.rank == 0:
        threading.Thread(target=daemon, daemon=True).start()
        time.sleep(0.4)
        if code:
            raise SystemExit(code)
        return
    time.sleep(2.0)
    error, seconds = end_without_rank_0(call)
    say(f"{error['error']} {error['message']}")
    assert seconds < PROMPT


@pytest.mark.long
@harness.needs_ranks
@pytest.mark.parametrize(
    ("kind", "ranks", "code"),
    [
        ("small", 1, 0),
        ("small", 2, 0),
        ("barrier", 3, 7),
        ("work", 2, 0),
        ("step", 2, 0),
        ("interpreter", 2, 5),
    ],
)
def test_a_daemon_thread_does_not_change_how_a_program_ends(
    kind: str, ranks: int, code: int
) -> None:
    with Job(daemon_at_exit, ranks, arguments={"kind": kind, "code": code}) as job:
        first, *others = job.wait(60)
    assert (first.code, first.err) == (code, ""), first
    for other in others:
        assert "RankLostError" in other.out, other
        assert "rank 0" in other.out


@harness.needs_mpi
def test_a_daemon_thread_over_mpi_does_not_change_how_a_program_ends() -> None:
    arguments = {"kind": "small", "code": 0}
    with Job(daemon_at_exit, 2, arguments=arguments, **harness.over("mpi", 2)) as job:
        first, second = job.wait(60)
    assert first.err == "", first
    assert "RankLostError" in second.out, second


def send_after_many_collectives() -> float:
    """Rank 0 sends after 200 pending all_reduces. Rank 1 receives before it starts them."""
    rank = ngd.init().rank
    begin = time.monotonic()

    def start() -> list[ngd.Work]:
        return [ngd.all_reduce(np.array([i]), op="sum", async_op=True) for i in range(200)]

    if rank == 0:
        works = start()
        ngd.send(np.arange(3.0), 1)
    else:
        assert ngd.recv(0, out=np.empty(3)).tolist() == [0.0, 1.0, 2.0]
        works = start()
    order = np.random.default_rng(rank).permutation(200)
    for i in order:
        assert works[i].wait()[0] == 2 * i
    return time.monotonic() - begin


@each_communicator
def test_a_send_overtakes_any_number_of_collectives(communicator: str) -> None:
    for outcome in run(send_after_many_collectives, 2, **harness.over(communicator, 2)):
        assert outcome.value < 30


def call_a_busy_step(device: str) -> list[Any]:
    """Call a step while another thread uses its group, and then again."""
    world = ngd.init()
    x = ngd.placeholder("x", (4,))
    w = ngd.variable("w", np.zeros(4, np.float32))
    first = ops.all_reduce(x, op="sum")
    second = ops.all_reduce(first * 2.0, op="mean")
    step = ngd.compile([x], [second], {w: w + second}, device=device)
    one = np.ones(4, np.float32)
    ngd.barrier()
    busy_result: list[Any] = []
    if world.rank == 0:
        waiter = threading.Thread(target=ngd.barrier)
        waiter.start()
        time.sleep(0.3)
        busy_result = [caught(lambda: step(one))["error"], w.numpy().tolist()]
        waiter.join(30)
    else:
        time.sleep(1.0)
        ngd.barrier()
    return [
        busy_result,
        step(one)[0].tolist(),
        w.numpy().tolist(),
        float(ngd.all_reduce(1, op="sum")),
    ]


@each_communicator
@pytest.mark.parametrize("device", ["CPU", "INTERPRETER"])
def test_a_step_that_raises_busy_error_has_no_effect(device: str, communicator: str) -> None:
    how = harness.over(communicator, 2)
    first, second = run(call_a_busy_step, 2, arguments={"device": device}, **how)
    assert first.value == [["BusyError", [0.0] * 4], [4.0] * 4, [4.0] * 4, 2.0]
    assert second.value == [[], [4.0] * 4, [4.0] * 4, 2.0]


def finish_while_busy() -> list[Any]:
    """Finish a collective on the main thread of rank 0 while another thread keeps the group."""
    world = harness.hurried(4.0)
    ngd.barrier()
    if world.rank == 1:
        time.sleep(1.2)  # a second after its failure rank 0 ends, and over MPI it ends all ranks
        return end_without_rank_0(ngd.barrier)
    errors: list[Any] = []
    nothing = np.empty(0, np.uint8)
    mine = _core.Call.on_array(world.communicator, "barrier", "none", nothing, nothing, 0)
    mine.start()
    waiter = threading.Thread(target=lambda: errors.append(caught(lambda: mine.wait(4.0))))
    waiter.start()
    time.sleep(0.3)
    begin = time.monotonic()
    first = caught(lambda: mine.finish(0.5))
    seconds = time.monotonic() - begin
    waiter.join(30)
    return [first, *errors, seconds]


@each_communicator
def test_a_wait_for_another_thread_has_a_deadline(communicator: str) -> None:
    first, second = run(finish_while_busy, 2, **harness.over(communicator, 2))
    mine, others, seconds = first.value
    assert mine["error"] == "CollectiveTimeoutError"
    assert "another thread of this process has used the group for 0.5 s" in mine["message"]
    assert others["error"] == "GroupClosedError"
    assert seconds < 2
    error, _ = second.value
    assert error["error"] == "RemoteRankError"
    assert "another thread" in error["message"]
