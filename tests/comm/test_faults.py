# SPDX-License-Identifier: Apache-2.0
"""Faults between ranks, and the error of each rank (docs/failure-model.md)."""

from __future__ import annotations

import atexit
import ctypes
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ngd
from ngd import ops
from tests.support import harness
from tests.support.harness import Job, Outcome, caught, say
from tests.support.standing import run_in_world

pytestmark = harness.needs_ranks
each_communicator = pytest.mark.parametrize("communicator", harness.communicators())


def last_error(outcome: Outcome) -> str:
    """Return the error that ended a rank, at the end of its traceback, with its message."""
    _, name, message = outcome.err.rpartition("\nngd.errors.")
    assert name, outcome
    return f"ngd.errors.{message}"


# Death.


def train(device: str, count: int, timeout: float = 60) -> None:
    """Run steps with a collective until the process ends."""
    harness.hurried(timeout)
    w = ngd.variable("w", np.zeros(count))
    x = ngd.placeholder("x", (count,), np.float64)
    update = w + ops.all_reduce(ops.tanh(x + w), op="mean")
    step = ngd.compile([x], [], {w: update}, device=device)
    for number in range(1_000_000):
        step(np.ones(count))
        if number == 3:
            say("training")


def reduce_arrays(count: int) -> None:
    for number in range(1_000_000):
        ngd.all_reduce(np.ones(count), op="sum")
        if number == 3:
            say("training")


def check_survivors(job: Job, victim: int, survivors: list[int], since: float) -> None:
    for outcome in job.wait(10, survivors):
        seconds = time.monotonic() - since
        assert seconds < 2, f"too late: {seconds:.2f} s\n{outcome}"
        assert outcome.code not in (0, None), outcome
        assert last_error(outcome).startswith("ngd.errors.RankLostError"), outcome
        assert f"rank {victim}" in last_error(outcome), outcome


@pytest.mark.parametrize(
    ("ranks", "victim", "program", "arguments"),
    [
        (2, 0, "train", {"device": "CPU", "count": 1000}),
        (2, 1, "train", {"device": "INTERPRETER", "count": 1000}),
        (4, 2, "train", {"device": "CPU", "count": 1_000_000}),
        (4, 0, "reduce_arrays", {"count": 3}),
        (3, 1, "reduce_arrays", {"count": 400_000}),
    ],
)
def test_killed_rank_is_named_while_a_zombie(
    ranks: int, victim: int, program: str, arguments: dict[str, Any]
) -> None:
    with Job(globals()[program], ranks, arguments=arguments) as job:
        for rank in range(ranks):
            job.wait_for(rank, "training")
        job.kill(victim)
        since = time.monotonic()
        check_survivors(job, victim, [r for r in range(ranks) if r != victim], since)
        state = Path(f"/proc/{job.processes[victim].pid}/stat").read_text().rpartition(")")[2]
        assert state.split()[0] == "Z"


def test_killed_and_reaped_rank_is_named() -> None:
    with Job(train, 2, arguments={"device": "CPU", "count": 10}) as job:
        job.wait_for(0, "training")
        job.wait_for(1, "training")
        job.kill(1)
        job.processes[1].wait()
        check_survivors(job, 1, [0], time.monotonic())


def end_rank_1(how: str) -> None:
    rank = ngd.init().rank
    ngd.barrier()
    if rank == 1:
        if how == "os._exit":
            os._exit(0)
        if how == "SIGSEGV":
            ctypes.string_at(0)
        if how == "exit":
            sys.exit(0)
        return
    ngd.all_reduce(np.ones(5), op="sum")


@pytest.mark.parametrize("how", ["os._exit", "exit", "return", "SIGSEGV"])
def test_rank_that_ends_early_is_named(how: str) -> None:
    with Job(end_rank_1, 3, arguments={"how": how}) as job:
        check_survivors(job, 1, [0, 2], time.monotonic() + 10)
        code = -signal.SIGSEGV if how == "SIGSEGV" else 0
        assert job.wait(10, [1])[0].code == code


def raise_on_rank_1(caught_by_others: bool) -> Any:
    rank = ngd.init().rank
    ngd.barrier()
    if rank == 1:
        shard = ["broken shard"]
        raise ValueError(shard[0])
    if not caught_by_others:
        ngd.barrier()
    error = caught(ngd.barrier)
    error["again"] = caught(lambda: ngd.all_reduce(1, op="sum"))
    return error


def test_the_traceback_of_an_exception_reaches_other_ranks() -> None:
    with Job(raise_on_rank_1, 3, arguments={"caught_by_others": False}) as job:
        first, raised, third = job.wait(20)
    assert "ValueError: broken shard" in raised.err
    assert raised.code == first.code == third.code == 1
    for outcome in (first, third):
        message = outcome.err.split("ngd.errors.RemoteRankError", 1)[1]
        assert message.startswith(": rank 1 failed: Traceback")  # whichever rank reports it first
        assert message.endswith("ValueError: broken shard\n")  # the end of Python's report
        assert "ValueError: broken shard" in message
        assert "raise ValueError(shard[0])" in message


@each_communicator
def test_failure_closes_the_group(communicator: str) -> None:
    how = harness.over(communicator, arguments={"caught_by_others": True})
    with Job(raise_on_rank_1, 2, **how) as job:
        outcome = job.wait(20)[0]
    assert outcome.value["error"] == "RemoteRankError", outcome
    assert "ValueError: broken shard" in outcome.value["message"]
    assert outcome.value["message"].endswith("ValueError: broken shard")  # no empty line
    again = outcome.value["again"]
    assert again["error"] == "GroupClosedError"
    assert re.match(r"all_reduce\S* of 1 int64 at \S*test_faults\.py:\d+: ", again["message"]), (
        again
    )
    assert "an earlier failure closed this group" in again["message"]
    assert "ngd.shutdown() and then ngd.init() on all ranks" in again["message"]
    assert again["message"].endswith(f"\n{outcome.value['message']}")


def poll_a_work(dies: bool) -> dict[str, str]:
    world = ngd.init()
    ngd.barrier()
    if world.rank == 1 and dies:
        os.kill(os.getpid(), signal.SIGKILL)
    if world.rank == 1:
        raise ValueError("broken shard")
    work = ngd.all_reduce(np.ones(5), op="sum", async_op=True)
    while not work.done():
        pass
    return caught(work.wait)


@each_communicator
def test_a_polling_rank_gets_the_error_of_another_rank(communicator: str) -> None:
    with Job(poll_a_work, 2, **harness.over(communicator, arguments={"dies": False})) as job:
        outcome = job.wait(30)[0]
    assert outcome.value["error"] == "RemoteRankError", outcome
    assert "ValueError: broken shard" in outcome.value["message"]


@harness.needs_ranks
def test_a_polling_rank_gets_rank_lost() -> None:
    with Job(poll_a_work, 2, arguments={"dies": True}) as job:
        (outcome,) = job.wait(30, [0])
    assert outcome.value["error"] == "RankLostError", outcome
    assert "rank 1" in outcome.value["message"]


# Absence.


@pytest.mark.parametrize("count", [pytest.param(10, marks=pytest.mark.long), 1_000_000])
def test_stopped_rank_is_named_at_the_deadline(count: int) -> None:
    """Rank 1 is stopped for longer than NGD_TIMEOUT, and continues after the others have ended."""
    arguments = {"device": "CPU", "count": count, "timeout": 2.5}
    with Job(train, 3, arguments=arguments) as job:
        for rank in range(3):
            job.wait_for(rank, "training")
        job.kill(1, signal.SIGSTOP)
        since = time.monotonic()
        survivors = job.wait(10, [0, 2])
        assert 2.2 < time.monotonic() - since < 5
        assert job.processes[1].poll() is None
        job.kill(1, signal.SIGCONT)
        (stopped,) = job.wait(10, [1])
    for outcome in survivors:
        assert last_error(outcome).startswith("ngd.errors.CollectiveTimeoutError"), outcome
        assert "rank 1" in last_error(outcome)
        assert "all_reduce(mean)" in last_error(outcome)
        assert "rank 0" not in last_error(outcome)
    assert stopped.code != 0
    assert last_error(stopped), stopped


def test_a_rank_that_stops_briefly_is_awaited() -> None:
    with Job(sum_for_a_while, 3, env={"NGD_TIMEOUT": "20"}) as job:
        for rank in range(3):
            job.wait_for(rank, "summing")
        job.kill(1, signal.SIGSTOP)
        time.sleep(0.7)
        job.kill(1, signal.SIGCONT)
        for outcome in job.wait(30):
            assert outcome.value == 0, outcome


def sum_for_a_while() -> int:
    """Return the number of wrong sums."""
    world = ngd.init()
    num_wrong, end = 0, time.monotonic() + 1.0
    say("summing")
    is_running = True
    number = 0
    while is_running:
        number += 1
        values = ngd.all_reduce(np.full(5000, number + world.rank), op="sum")
        num_wrong += bool((values != 3 * number + 3).any())
        is_running = bool(ngd.all_reduce(time.monotonic() < end, op="max"))
    return num_wrong


def come_late_to_a_collective(eager: bool, timeout: float) -> dict[str, str]:
    world = harness.hurried(timeout)
    x = ngd.placeholder("x", (3,), np.float32)
    step = ngd.compile([x], [ops.all_reduce(x, op="max")])
    step(np.ones(3, np.float32))
    if world.rank == 1:
        time.sleep(timeout + 1.5)

    def call() -> None:
        if eager:
            ngd.all_reduce(np.ones(7), op="sum")
        else:
            step(np.ones(3, np.float32))
        ngd.barrier()  # the late rank may find all that it needs in the call before

    return caught(call)


@each_communicator
@pytest.mark.parametrize("eager", [True, pytest.param(False, marks=pytest.mark.long)])
def test_missing_rank_is_named_with_op_and_site(communicator: str, eager: bool) -> None:
    arguments = {"eager": eager, "timeout": 2}
    with Job(
        come_late_to_a_collective, 3, **harness.over(communicator, arguments=arguments)
    ) as job:
        outcomes = job.wait(30)
    for outcome in (outcomes[0], outcomes[2]):
        assert outcome.value["error"] == "CollectiveTimeoutError", outcome
        for word in ("rank 1", f"all_reduce({'sum' if eager else 'max'})", "test_faults.py:"):
            assert word in outcome.value["message"]
    if communicator == "mpi":
        return  # mpirun has ended the late rank
    late = outcomes[1]
    assert late.value["error"] in ("CollectiveTimeoutError", "RankLostError"), late


def miss_an_all_reduce(instead: str) -> dict[str, str]:
    """Let rank 0 wait in an all_reduce while rank 1 receives, computes, or has called nothing."""
    first = ngd.init().rank == 0
    world = harness.hurried(2 if first else 20)  # the short timeout makes rank 0 report first
    if instead == "a step":
        ngd.barrier()
    if world.rank == 1 and instead != "recv":
        time.sleep(4)
    if world.rank == 1 and instead == "recv":
        return caught(lambda: ngd.recv(0, out=np.empty(3)))
    return caught(lambda: (ngd.all_reduce(np.ones(4), op="sum"), ngd.barrier()))


@each_communicator
@pytest.mark.parametrize(
    ("instead", "words"),
    [
        ("recv", r"rank 1 \(process \d+\) waits in recv of 3 float64 from rank 0 at "),
        pytest.param(
            "a step",
            r"rank 1 \(process \d+\) is not in a collective\. Its last call in this group was "
            "barrier",
            marks=pytest.mark.long,
        ),
        pytest.param(
            "nothing",
            r"rank 1 \(process \d+\) is not in a collective\. It has called none since ngd\.init",
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_timeout_shows_the_call_of_the_missing_rank(
    communicator: str, instead: str, words: str
) -> None:
    with Job(
        miss_an_all_reduce, 2, **harness.over(communicator, arguments={"instead": instead})
    ) as job:
        first, second = job.wait(30)
    assert first.value["error"] in ("CollectiveTimeoutError", "RankLostError"), first
    messages = [first.value["message"], (second.value or {"message": ""})["message"]]
    if (
        communicator == "mpi"
    ):  # a receive has no counterpart; its rank is notified of the other call
        words = "recv of 3 float64 from rank 0 at " if instead == "recv" else ""
    call = "all_reduce(sum) of 4 float64 at "
    matches = [m for m in messages if re.search(words, m) and call in m]
    assert matches, messages
    next_step = "compare the call sites" if instead == "recv" else "py-spy dump --pid"
    assert communicator == "mpi" or next_step in matches[0], messages


def give_up_on_rank_1(receives: bool) -> dict[str, Any]:
    """Ranks 0 and 1 wait for rank 2, which is late. Rank 1 has the shortest timeout."""
    rank = ngd.init().rank
    harness.hurried(1 if rank == 1 else 50)
    ngd.barrier()
    if rank == 2:
        time.sleep(30)
    error = caught(lambda: ngd.recv(2, out=np.empty(3)) if receives else ngd.barrier())
    atexit.register(time.sleep, 20)  # over MPI the exit of the first rank ends the others
    return error


@each_communicator
@pytest.mark.parametrize("receives", [False, True])
def test_a_timeout_on_one_rank_reaches_waiting_ranks(communicator: str, receives: bool) -> None:
    how = harness.over(communicator, ranks=3, arguments={"receives": receives})
    with Job(give_up_on_rank_1, 3, **how) as job:
        first, second = job.values([0, 1], 10)
    for error in (first, second):
        assert error["error"] == "CollectiveTimeoutError", error
        assert "rank 2" in error["message"], error


def wait_in_two_groups() -> dict[str, Any] | None:
    """Run a step in which rank 0 receives from sleeping rank 1, then all-reduces with rank 2."""
    rank = ngd.init().rank
    world = harness.hurried(1 if rank == 2 else 50)
    first, second = world.split(int(rank == 2)), world.split(int(rank == 1))
    if rank == 1:
        time.sleep(30)
    x = ngd.placeholder("x", (3,), np.float64)
    y = ops.recv(1, shape=(3,), dtype="float64", group=first) if rank == 0 else x
    step = ngd.compile([x], [x + ops.all_reduce(y, op="sum", group=second)])
    error = caught(lambda: step(np.ones(3)))
    atexit.register(time.sleep, 20)
    return error


@each_communicator
def test_a_failure_in_one_group_ends_a_receive_in_another(communicator: str) -> None:
    with Job(wait_in_two_groups, 3, **harness.over(communicator, ranks=3)) as job:
        first, third = job.values([0, 2], 10)
    for error in (first, third):
        assert error["error"] == "CollectiveTimeoutError", error
        assert "rank 0 did not arrive" in error["message"], error


def fail_across_groups() -> dict[str, Any]:
    """Run a step in which rank 2 can be notified only by rank 3.

    Rank 0 is late, so rank 1 gives up. Rank 3 waits for rank 1. Rank 2 waits for rank 0, in a
    group without ranks 1 and 3.
    """
    rank = int(harness.own_rank())
    os.environ["NGD_HOST"] = f"host-{rank // 2}"
    world = harness.hurried(1 if rank == 1 else 50)
    host, counterparts = world.split(rank // 2), world.split(rank % 2)
    x = ngd.placeholder("x", (3,), np.float64)
    y = ops.all_reduce(x, op="sum", group=host)
    step = ngd.compile([x], [ops.all_reduce(y, op="max", group=counterparts)])
    if rank == 0:
        time.sleep(30)
    error = caught(lambda: step(np.ones(3)))
    atexit.register(time.sleep, 20)
    return error


@pytest.mark.parametrize(
    "communicator", [*harness.communicators(), pytest.param("auto", marks=harness.needs_mpi)]
)
def test_a_failure_is_passed_on_through_other_groups(communicator: str) -> None:
    how = harness.over("mpi" if communicator == "auto" else communicator, ranks=4)
    how["env"]["NGD_COMM"] = communicator
    with Job(fail_across_groups, 4, **how) as job:
        errors = job.values([1, 2, 3], 10)
    for error in errors:
        assert error["error"] in ("CollectiveTimeoutError", "RemoteRankError"), errors
        assert "rank 0 did not arrive" in error["message"], errors


# Forks, signals, groups.


def call_in_forked_children() -> None:
    world = ngd.init()
    step = ngd.compile([], [ops.all_reduce(ngd.constant(np.ones(3)), op="sum")])
    step()
    child = os.fork()
    if child == 0:
        try:
            for call in (ngd.barrier, step, lambda: ngd.all_reduce(1, op="sum")):
                error = caught(call)
                good = issubclass(getattr(ngd.errors, error["error"]), ngd.errors.CollectiveError)
                if not good or "fork" not in error["message"]:
                    os._exit(1)
            os._exit(0)
        except BaseException:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    child = os.fork()
    if child == 0:
        sys.exit(0)  # runs the exit handlers, which must not end the parent's group
    assert os.waitpid(child, 0)[1] == 0
    assert int(ngd.all_reduce(1, op="sum")) == world.size


@each_communicator
def test_a_forked_child_raises_and_leaves_the_group_open(communicator: str) -> None:
    harness.run(call_in_forked_children, 2, **harness.over(communicator))


def call_after_shutdown() -> list[Any]:
    """Call an old group and an old step after shutdown. ngd.all_reduce makes a new world."""
    world = ngd.init()
    step = ngd.compile([], [ops.all_reduce(ngd.constant(np.ones(3)), op="sum")])
    step()
    ngd.shutdown()
    errors = [caught(lambda: world.all_reduce(1, op="sum")), caught(step)]
    total = int(ngd.all_reduce(1, op="sum"))
    return [*errors, total, ngd.init() is world]


@each_communicator
def test_a_collective_after_shutdown_makes_a_new_world(communicator: str) -> None:
    for outcome in run_in_world(call_after_shutdown, communicator, 2):
        group, step, total, same = outcome.value
        assert group["error"] == step["error"] == "GroupClosedError"
        assert group["message"].startswith(
            "all_reduce: expected an open group; got 'world', which was closed by "
        ), group
        assert step["message"].startswith("all_reduce(sum) of 3 float64 at "), step
        assert ": this group was closed by close() or ngd.shutdown(). " in step["message"], step
        assert all("ngd.init() returns an open world" in e["message"] for e in (group, step))
        assert total == 2
        assert not same


def train_after_a_death(key: str) -> list[Any]:
    """Rank 1 dies. The other ranks make a world of two, and continue to train."""
    world = ngd.init()
    w = ngd.variable("w", np.zeros(3))
    step = ngd.compile([], [], {w: w + ops.all_reduce(ngd.constant(np.ones(3)), op="sum")})
    step()
    if world.rank == 1:
        os._exit(9)
    first = caught(step)
    closed = caught(step)
    ngd.shutdown()
    rank = str(world.rank // 2)
    os.environ |= {"RANK": rank, "WORLD_SIZE": "2", "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": "2"}
    os.environ["NGD_JOB"] = key
    ngd.init()
    step = ngd.compile([], [], {w: w + ops.all_reduce(ngd.constant(np.ones(3)), op="sum")})
    step()
    return [first["error"], closed["error"], w.numpy().tolist()]


def test_survivors_make_a_new_group() -> None:
    with Job(train_after_a_death, 3, arguments={"key": f"test-{os.getpid()}-new"}) as job:
        for outcome in job.wait(30, [0, 2]):
            assert outcome.value == ["RankLostError", "GroupClosedError", [5.0] * 3], outcome


def wait_in_two_threads(refused: str) -> int:
    """Call a barrier in a second thread of rank 0 while the first one waits for rank 1 in one."""
    rank = ngd.init().rank
    flag, errors = Path(refused), []
    if rank == 1:
        while not flag.exists():
            time.sleep(0.01)
        ngd.barrier()
        return 1

    def call() -> None:
        try:
            ngd.barrier()
        except ngd.errors.BusyError as error:
            errors.append(error)
            flag.touch()

    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return len(errors)


def repeat_busy_calls(calls: int) -> list[int]:
    """Poll a Work in a thread of rank 0, and repeat each call that raises BusyError."""
    world = ngd.init()
    other = 1 - world.rank
    small, large = np.full(4, 2.0), np.full(50_000, 3.0)
    pending = ngd.recv(other, out=np.empty(3), async_op=True)
    is_over = threading.Event()

    def poll() -> None:
        while not is_over.is_set():
            pending.done()

    poller = threading.Thread(target=poll)
    if world.rank == 0:
        poller.start()
    wrong = num_busy = 0
    kinds: list[Callable[[int], Any]] = [
        lambda n: ngd.all_reduce(small * n, op="sum")[0] == 4 * n,
        lambda n: world.all_reduce(large * n, op="sum", site="here")[-1] == 6 * n,
        lambda n: ngd.all_reduce([small * n, large], op="sum")[0][0] == 4 * n,
        lambda n: len(ngd.all_gather_v(small[: 1 + (world.rank + n) % 2])) == 3,
    ]
    for number in range(calls):
        is_done = False
        while not is_done:
            try:
                wrong += not kinds[number % 4](number)
                is_done = True
            except ngd.errors.BusyError:
                num_busy += 1
    is_over.set()
    if world.rank == 0:
        poller.join(60)
    ngd.send(np.zeros(3), other)
    pending.wait()
    return [wrong, num_busy]


@each_communicator
def test_a_second_thread_raises_busy_error(communicator: str, tmp_path: Path) -> None:
    outcomes = run_in_world(wait_in_two_threads, communicator, 2, refused=str(tmp_path / "refused"))
    assert [outcome.value for outcome in outcomes] == [1, 1]


@each_communicator
def test_a_call_that_raises_busy_error_has_no_effect(communicator: str) -> None:
    first, second = run_in_world(repeat_busy_calls, communicator, 2, calls=1200)
    # The number of BusyErrors on rank 0 depends on the machine; it is usually hundreds.
    assert (first.value[0], second.value) == (0, [0, 0])


def wait_in_barriers() -> None:
    rank = ngd.init().rank
    ngd.barrier()
    say("waiting")
    if rank == 0:
        ngd.barrier()
    time.sleep(1.5)
    ngd.barrier()  # rank 0 had arrived in this barrier
    ngd.barrier()


def test_ctrl_c_ends_a_wait() -> None:
    with Job(wait_in_barriers, 2) as job:
        job.wait_for(0, "waiting")
        job.wait_for(1, "waiting")
        time.sleep(0.2)
        job.kill(0, signal.SIGINT)
        since = time.monotonic()
        (first,) = job.wait(10, [0])
        assert time.monotonic() - since < 5
        assert "KeyboardInterrupt" in first.err
        assert first.code != 0
        (second,) = job.wait(10, [1])
        assert "rank 0" in second.err
        assert "ngd.errors." in second.err
        assert second.code != 0


def test_ctrl_c_to_all_ends_all_ranks() -> None:
    with Job(train, 3, arguments={"device": "CPU", "count": 100}) as job:
        for rank in range(3):
            job.wait_for(rank, "training")
        for rank in range(3):
            job.kill(rank, signal.SIGINT)
        for outcome in job.wait(5):
            assert outcome.code != 0
            assert "KeyboardInterrupt" in outcome.err or "ngd.errors." in outcome.err, outcome
