# SPDX-License-Identifier: Apache-2.0
"""Several threads of one rank: while one waits in a collective, the others do what they like."""

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

over = pytest.mark.parametrize("communicator", harness.communicators())

PROMPT = 10.0
"""Seconds; NGD_TIMEOUT, for which a collective would wait, is 60."""


def waits(world: ngd.Group) -> dict[str, Callable[[], Any]]:
    """Calls of rank 0 that wait for another rank for ever."""
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


def left_alone(call: Callable[[], Any]) -> list[Any]:
    """How the same call ends on rank 1, when rank 0 has gone in the middle of it; and how soon."""
    begin = time.monotonic()
    for _ in range(2):  # rank 0 may have done its share of the first
        with contextlib.suppress(AssertionError):
            return [caught(call), time.monotonic() - begin]
    return [{}, time.monotonic() - begin]


def shut_down_by(closer: str, kind: str) -> list[Any]:
    """Rank 0 waits; another thread, or a handler of a signal on this one, ends the world."""
    world = ngd.init()
    call = waits(world)[kind]
    ngd.barrier()
    begin = time.monotonic()
    if world.rank == 1:
        time.sleep(1.5)
        return left_alone(ngd.barrier if kind == "recv" else call)
    if closer == "handler":
        signal.signal(signal.SIGALRM, lambda *_: ngd.shutdown())
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        return [caught(call), time.monotonic() - begin]
    ended: list[Any] = []

    def wait() -> None:
        ended.append(caught(call))

    if closer == "thread":  # ends it, and the main thread waits
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
    return [*ended, time.monotonic() - begin]


@pytest.mark.long
@over
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


def all_waits(closer: str) -> list[str]:
    """Every kind of wait is ended in a world of its own."""
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
    for outcome in run(all_waits, 2, arguments={"closer": closer}):
        assert outcome.value == []


def shut_down_amid_split(told: str) -> dict[str, str]:
    """Rank 0 has made its group, and a thread or a handler ends the world before split returns."""
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
    kept = []  # else the end of the group tells rank 1
    error = caught(lambda: kept.append(world.split(0)))
    end = time.monotonic() + PROMPT
    while not flag.exists() and time.monotonic() < end:
        time.sleep(0.01)
    return error if flag.exists() else {"error": "rank 1 was not told"}


@over
def test_the_end_of_a_world_amid_split_ends_the_new_group(
    communicator: str, tmp_path: Path
) -> None:
    arguments = {"told": str(tmp_path / "told")}
    first, second = run(
        shut_down_amid_split, 2, arguments=arguments, **harness.over(communicator, 2)
    )
    assert first.value["error"] == "GroupClosedError", first.value
    assert second.value["error"] == "RankLostError", second.value
    assert "rank 0" in second.value["message"]


def handler_calls() -> list[Any]:
    """A signal handler calls whatever there is, while its thread waits in a collective."""
    world = ngd.init()
    ngd.barrier()
    if world.rank == 1:
        time.sleep(1.0)
        return [None, float(ngd.all_reduce(2.0, op="sum"))]
    seen: list[Any] = []
    spare = [ngd.compile([], [ngd.constant(i)]) for i in range(3)]

    def handle(*_: Any) -> None:
        seen.append(caught(lambda: ngd.barrier()))
        seen.append(len(ngd.comm_stats()) > 0)
        spare.clear()
        gc.collect()

    signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    total = float(ngd.all_reduce(1.0, op="sum"))
    return [seen, total]


@over
def test_a_handler_may_call_while_its_thread_waits(communicator: str) -> None:
    first, second = run(handler_calls, 2, **harness.over(communicator, 2))
    (error, counted), total = first.value
    assert error["error"] == "BusyError"
    assert counted
    assert total == second.value[1] == 3.0


def drop_beside_a_wait() -> float:
    """While the main thread makes collectives, others drop groups and executables, and count."""
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


@over
def test_groups_and_steps_end_beside_a_wait(communicator: str) -> None:
    for outcome in run(drop_beside_a_wait, 2, **harness.over(communicator, 2)):
        assert outcome.value == 400.0


def collected() -> int:
    """An executable and its groups end together, in a cycle that the garbage collector finds."""
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


@over
def test_the_garbage_collector_ends_an_executable(communicator: str) -> None:
    for outcome in run(collected, 2, **harness.over(communicator, 2)):
        assert outcome.value == 2


def daemon_at_exit(kind: str, code: int) -> None:
    """Rank 0's daemon thread waits, or calls on and on, while the program ends."""
    world = ngd.init()
    if world.size == 1:
        calls: dict[str, Callable[[], Any]] = {}
    else:
        calls = waits(world)
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
    error, seconds = left_alone(call)
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


def many_then_send() -> float:
    """Rank 0: 200 all_reduces under way, then a send; rank 1: the receive first."""
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


@over
def test_a_send_overtakes_any_number_of_collectives(communicator: str) -> None:
    for outcome in run(many_then_send, 2, **harness.over(communicator, 2)):
        assert outcome.value < 30


def busy_step(device: str) -> list[Any]:
    """A step is called while another thread is in its group; then it is called again."""
    world = ngd.init()
    x = ngd.placeholder("x", (4,))
    w = ngd.variable("w", np.zeros(4, np.float32))
    first = ops.all_reduce(x, op="sum")
    second = ops.all_reduce(first * 2.0, op="mean")
    step = ngd.compile([x], [second], {w: w + second}, device=device)
    one = np.ones(4, np.float32)
    ngd.barrier()
    refused: list[Any] = []
    if world.rank == 0:
        waiter = threading.Thread(target=ngd.barrier)
        waiter.start()
        time.sleep(0.3)
        refused = [caught(lambda: step(one))["error"], w.numpy().tolist()]
        waiter.join(30)
    else:
        time.sleep(1.0)
        ngd.barrier()
    return [refused, step(one)[0].tolist(), w.numpy().tolist(), float(ngd.all_reduce(1, op="sum"))]


@over
@pytest.mark.parametrize("device", ["CPU", "INTERPRETER"])
def test_a_step_that_is_refused_has_done_nothing(device: str, communicator: str) -> None:
    how = harness.over(communicator, 2)
    first, second = run(busy_step, 2, arguments={"device": device}, **how)
    assert first.value == [["BusyError", [0.0] * 4], [4.0] * 4, [4.0] * 4, 2.0]
    assert second.value == [[], [4.0] * 4, [4.0] * 4, 2.0]


def turn_never_comes() -> list[Any]:
    """Rank 0's main thread has a collective under way, and another thread stays in the group."""
    world = harness.hurried(4.0)
    ngd.barrier()
    if world.rank == 1:
        time.sleep(1.2)  # a second after its failure rank 0 ends, and over MPI all with it
        return left_alone(ngd.barrier)
    ended: list[Any] = []
    nothing = np.empty(0, np.uint8)
    mine = _core.Call.on_array(world.communicator, "barrier", "none", nothing, nothing, 0)
    mine.start()
    waiter = threading.Thread(target=lambda: ended.append(caught(lambda: mine.wait(4.0))))
    waiter.start()
    time.sleep(0.3)
    begin = time.monotonic()
    first = caught(lambda: mine.finish(0.5))
    seconds = time.monotonic() - begin
    waiter.join(30)
    return [first, *ended, seconds]


@over
def test_a_turn_that_never_comes_has_a_deadline(communicator: str) -> None:
    first, second = run(turn_never_comes, 2, **harness.over(communicator, 2))
    mine, others, seconds = first.value
    assert mine["error"] == "CollectiveTimeoutError"
    assert "another thread of this process has used the group for 0.5 s" in mine["message"]
    assert others["error"] == "GroupClosedError"
    assert seconds < 2
    told, _ = second.value
    assert told["error"] == "RemoteRankError"
    assert "another thread" in told["message"]
