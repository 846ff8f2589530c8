# SPDX-License-Identifier: Apache-2.0
"""Tests of dist_async: asynchronous pushes, the limit of staleness, and lost ranks."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import numpy as np
import pytest

import ngd
from ngd import errors, kvstore
from tests.support import harness

F32 = np.float32


def ones(by: float = 1.0, shape: Any = (2, 3)) -> Any:
    return np.full(shape, by, F32)


def make_store(staleness: int | None = None, keys: int = 5) -> Any:
    store = kvstore.create("dist_async", staleness=staleness)
    store.init(list(range(keys)), [ones(store.rank + 1)] * keys)
    store.set_optimizer(ngd.optim.SGD(0.125))
    return store


def pull_values(store: Any, key: Any) -> list[Any]:
    out = np.zeros((2, 3), F32)
    store.pull(key, out=out)
    values: list[Any] = out.tolist()
    return values


def push_and_pull(count: int) -> list[Any]:
    """Push a different number of times per rank, and return the values. The sums are exact."""
    store = make_store()
    world = ngd.init()
    for i in range(count * (store.rank + 1)):
        store.push(list(range(5)), [[ones(1 / 16), ones(1 / 16)]] * 5)
        if i % 10 == 0:
            assert pull_values(store, 1)[0][0] <= 1
    store.barrier()
    values = [pull_values(store, key) for key in range(5)]
    assert float(world.all_reduce(ones(), op="sum")[0, 0]) == world.size
    return values


@pytest.mark.parametrize(("communicator", "ranks"), harness.worlds(1, 2, 4))
def test_every_push_is_applied_once(communicator: str, ranks: int) -> None:
    how = harness.over(communicator, ranks, arguments={"count": 20})
    pushes = 20 * ranks * (ranks + 1) // 2
    for outcome in harness.run(push_and_pull, ranks, **how):
        assert outcome.value == [ones(1 - pushes / 64).tolist()] * 5


def make_every_call() -> None:
    """Make every kind of call, for keys that this rank stores and for other keys."""
    store = kvstore.create("dist_async")
    values = np.arange(8, dtype=F32).reshape(4, 2)
    for key in ("a", "b", "c"):
        out = np.zeros((4, 2))
        store.broadcast(key, values + store.rank, out)
        np.testing.assert_array_equal(out, values)
        rows = [np.zeros((4, 2), F32), np.zeros((4, 2), F32)]
        store.row_sparse_pull(key, out=rows, row_ids=[np.array([3, 1]), np.arange(0)])
        assert rows[0].tolist() == [[0, 0], [2, 3], [0, 0], [6, 7]]
        assert not rows[1].any()
    with pytest.raises(ValueError, match="Call set_optimizer or set_updater first"):
        store.push("a", values)
    store.set_updater(lambda key, gradient, value: np.add(value, gradient, out=value))
    if store.rank == 1:
        for key in ("a", "b", "c"):
            out = np.zeros((4, 2), F32)
            store.pushpull(key, [values, values], out=out)
            np.testing.assert_array_equal(out, 3 * values)
    store.barrier()
    np.testing.assert_array_equal(values * 3, [pull(store, k, (4, 2)) for k in "abc"][2])
    for call in (store.save_optimizer_states, store.load_optimizer_states):
        with pytest.raises(ValueError, match="got dist_async"):
            call("file")
    with pytest.raises(ValueError, match="expected a dist_sync or device store"):
        store.set_gradient_compression({"type": "2bit"})
    store.close()
    store.close()
    with pytest.raises(errors.GroupClosedError, match="closed"):
        store.pull("a", out=np.zeros((4, 2), F32))


def pull(store: Any, key: Any, shape: Any) -> Any:
    out = np.zeros(shape, F32)
    store.pull(key, out=out)
    return out


@harness.needs_ranks
def test_every_call_works_for_keys_of_all_ranks() -> None:
    harness.run(make_every_call, ranks=2)


def times_of_pushes(staleness: int) -> list[float]:
    """Push late on rank 1, and return when each push of rank 0 returned."""
    store = make_store(staleness, keys=1)
    world, times = ngd.init(), []
    done = 0
    if store.rank == 1:
        for _ in range(3):
            time.sleep(0.4)
            store.push(0, ones(0))
        time.sleep(0.4)
    else:
        begin = time.monotonic()
        for _ in range(staleness + 3):
            store.push(0, ones(0))
            done += 1
            times.append(time.monotonic() - begin)
    world.barrier()
    return times


@harness.needs_ranks
@pytest.mark.parametrize("staleness", [0, 2])
def test_a_worker_waits_at_the_staleness_limit(staleness: int) -> None:
    """Push number staleness + n returns after the n-th push of the slow rank."""
    times = harness.run(times_of_pushes, ranks=2, arguments={"staleness": staleness})[0].value
    assert all(t < 0.35 for t in times[:staleness])
    for n, t in enumerate(times[staleness:], 1):
        assert 0.35 * n < t < 0.4 * n + 5


def wait_for_a_slow_rank() -> str:
    store = make_store(staleness=1, keys=1)
    if store.rank == 1:
        time.sleep(4)
        return ""
    store.push(0, ones())
    with pytest.raises(
        errors.CollectiveTimeoutError, match="expected at most 1 pushes more"
    ) as raised:
        store.push(0, ones())
    assert raised.value.ranks == (1,)
    return str(raised.value)


@harness.needs_ranks
def test_a_timeout_names_the_slow_rank() -> None:
    first, _ = harness.run(wait_for_a_slow_rank, ranks=2, env={"NGD_TIMEOUT": "2"})
    assert (
        "push: key 0: expected at most 1 pushes more on rank 0 than on rank 1; got more"
        in first.value
    )


def close_early() -> list[float]:
    """Close the store early on rank 0. It does not delay other ranks, and still serves its keys."""
    store = make_store(staleness=0, keys=3)
    if store.rank == 0:
        store.push(0, ones()) if store.num_workers == 1 else None
        store.close()
        return []
    for _ in range(10):
        store.push([0, 1, 2], [ones(1 / 16)] * 3)
    return [pull_values(store, key)[0][0] for key in range(3)]


@harness.needs_ranks
def test_a_closed_store_still_serves_its_keys() -> None:
    assert harness.run(close_early, ranks=2)[1].value == [1 - 10 / 128] * 3


def close_too_late(store: Any, late_rank: int) -> None:
    """Do not close the store on one rank of the world, and expect the error on the other ranks."""
    if ngd.init().rank == late_rank:
        time.sleep(6)
        os._exit(0)
    with pytest.raises(
        errors.CollectiveTimeoutError, match=f"rank {late_rank} has not closed the store"
    ) as raised:
        store.close()
    assert raised.value.ranks == (late_rank,)


def wait_for_close() -> None:
    close_too_late(make_store(keys=1), 1)


def wait_for_close_in_a_group() -> None:
    world = ngd.init()
    group = world.split(0 if world.rank else None)
    if world.rank > 0:
        close_too_late(kvstore.create("dist_async", group=group), 2)


@harness.needs_ranks
def test_close_names_the_world_rank() -> None:
    harness.run(wait_for_close_in_a_group, ranks=3, env={"NGD_TIMEOUT": "2"})


@harness.needs_ranks
def test_close_has_a_deadline() -> None:
    harness.run(wait_for_close, ranks=2, env={"NGD_TIMEOUT": "2"})


def close_before_a_busy_rank() -> float:
    """Close the store on ranks 0 and 1, and use it for two timeouts on rank 2."""
    store = make_store(keys=3)
    begin = time.monotonic()
    while store.rank == 2 and time.monotonic() - begin < 4:
        store.push([0, 1, 2], [ones()] * 3)
        time.sleep(0.05)
    store.close()
    return time.monotonic() - begin


@harness.needs_ranks
def test_closed_ranks_do_not_report_each_other() -> None:
    """They send nothing while the third rank still uses the store."""
    outcomes = harness.run(close_before_a_busy_rank, ranks=3, env={"NGD_TIMEOUT": "2"})
    assert all(outcome.value > 3.5 for outcome in outcomes)


def push_until_failure() -> None:
    store = make_store(keys=2)
    print("ready", flush=True)
    begin = time.monotonic()
    try:
        while time.monotonic() - begin < 30:
            store.push([0, 1], [ones(), ones()])
    except errors.CollectiveError as error:
        print(type(error).__name__, error.ranks, flush=True)
        os._exit(7)


@harness.needs_ranks
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_lost_rank_is_named(number: signal.Signals) -> None:
    with harness.Job(push_until_failure, 3) as job:
        for rank in range(3):
            job.wait_for(rank, "ready")
        job.kill(1, number)
        outcomes = job.wait(20, [0, 2])
        assert [each.code for each in outcomes] == [7, 7], job.everything
        for rank in (0, 2):
            assert "Error (1,)" in job.read(rank, "out")


def push_with_a_failing_updater() -> None:
    store = kvstore.create("dist_async")
    store.init([0, 1], [ones(), ones()])

    def fail(key: Any, gradient: Any, value: Any) -> None:
        raise ArithmeticError("no such update")

    store.set_updater(fail)
    ngd.barrier()
    with pytest.raises((ArithmeticError, errors.RemoteRankError), match="no such update"):
        store.push(0, ones())  # rank 0 stores this key
    with pytest.raises((ArithmeticError, errors.CollectiveError)):
        store.pull(1, out=ones())


@harness.needs_ranks
def test_an_updater_that_raises_fails_the_store_on_all_ranks() -> None:
    harness.run(push_with_a_failing_updater, ranks=2)


def num_threads_after_close() -> int:
    store = make_store()
    store.close()
    return sum("kvstore" in each.name for each in threading.enumerate())


@harness.needs_ranks
def test_close_ends_all_threads() -> None:
    assert [each.value for each in harness.run(num_threads_after_close, ranks=2)] == [0, 0]


def push_empty_and_integer_values() -> list[Any]:
    store = kvstore.create("dist_async")
    store.init("none", np.ones((0, 3), F32))
    store.init("count", np.arange(4, dtype=np.int32))
    try:
        store.set_optimizer(ngd.optim.SGD(0.125))
    except TypeError as error:
        message = str(error)
    store.set_updater(lambda key, gradient, value: None)
    out = np.empty((0, 3), F32)
    store.push("none", np.ones((0, 3), F32))
    store.pull("none", out=out)
    count = np.zeros(4, np.int32)
    store.pull("count", out=count)
    store.close()
    return [message, list(out.shape), count.tolist()]


@pytest.mark.parametrize(("communicator", "ranks"), harness.worlds(2, 3))
def test_empty_values_work_and_integers_have_no_optimizer(communicator: str, ranks: int) -> None:
    for outcome in harness.run(
        push_empty_and_integer_values, ranks, **harness.over(communicator, ranks)
    ):
        message, *rest = outcome.value
        assert "key 'count': expected floats, which an optimizer updates; got int32" in message
        assert rest == [[0, 3], [0, 1, 2, 3]]
