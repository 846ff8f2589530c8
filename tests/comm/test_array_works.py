# SPDX-License-Identifier: Apache-2.0
"""Tests of asynchronous collectives, and of collectives on lists of arrays."""

from __future__ import annotations

import gc
import os
import sys
import time
import weakref
from typing import Any

import numpy as np
import pytest

import ngd
from ngd import _core
from tests.support import harness
from tests.support.harness import caught, run
from tests.support.standing import fail_in_world, run_in_world

MIB = 1 << 20
each_communicator = pytest.mark.parametrize("communicator", harness.communicators())
each_world = pytest.mark.parametrize(("communicator", "ranks"), harness.worlds())


def wait_in_random_order() -> None:
    """Wait for works in a random order per rank. Some works are polled with done() first."""
    world = ngd.init()
    n, r = world.size, world.rank
    random = np.random.default_rng(r)
    for count in (1, 900, 60_000):
        base = np.arange(count, dtype=np.float32)
        out = np.empty(count, np.float32)
        works = [ngd.all_reduce(base + i + r, op="max", async_op=True) for i in range(6)]
        works.append(ngd.all_reduce(base, op="sum", out=out, async_op=True))
        works.append(ngd.all_gather(base, async_op=True))
        works.append(ngd.all_gather_v(base[: r + 1], async_op=True))
        works.append(ngd.broadcast([base + r, base - r], n - 1, async_op=True))
        works.append(ngd.barrier(async_op=True))
        want: list[Any] = [base + i + n - 1 for i in range(6)]
        want += [base * n, np.tile(base, n)]
        want += [np.concatenate([base[: k + 1] for k in range(n)])]
        want += [[base + n - 1, base - n + 1], None]
        for i in random.permutation(len(works)):
            if random.random() < 0.5:
                limit = time.monotonic() + 30
                while not works[i].done():
                    assert time.monotonic() < limit
            got = works[i].wait()
            assert works[i].wait() is got
            assert works[i].result is got
            assert works[i].exception() is None
            if want[i] is None:
                assert got is None
            else:
                assert np.array_equal(got, want[i]), i
        assert works[6].result is out


@each_world
def test_works_are_waited_for_in_any_order(communicator: str, ranks: int) -> None:
    run_in_world(wait_in_random_order, communicator, ranks)


def wait_with_a_timeout() -> None:
    """Check that a wait with a timeout changes nothing: the work stays pending."""
    world = ngd.init()
    if world.rank == 0:
        work = ngd.all_reduce(np.full(3, 1.0), op="sum", async_op=True)
        begin = time.monotonic()
        with pytest.raises(TimeoutError, match=r"all_reduce.*did not complete in 0\.2 s"):
            work.wait(0.2)
        assert time.monotonic() - begin >= 0.2
        assert not work.done()
        assert work.exception() is None
        assert "pending" in repr(work)
    else:
        time.sleep(0.6)
        work = ngd.all_reduce(np.full(3, 2.0), op="sum", async_op=True)
    assert work.wait().tolist() == [3.0] * 3
    assert "done" in repr(work)


@each_communicator
def test_a_wait_that_timed_out_can_be_repeated(communicator: str) -> None:
    run_in_world(wait_with_a_timeout, communicator, 2)


def call_different_shapes() -> dict[str, Any]:
    """Check that a work keeps its error and raises it in every call."""
    world = ngd.init()
    work = ngd.all_reduce(np.ones(3 + world.rank), op="sum", async_op=True)
    limit = time.monotonic() + 30
    while not work.done():
        assert time.monotonic() < limit
    first, second = caught(work.wait), caught(lambda: work.result)
    assert first == second
    assert type(work.exception()).__name__ == first["error"]
    return first


@each_communicator
def test_a_work_keeps_its_error(communicator: str) -> None:
    for outcome in fail_in_world(call_different_shapes, communicator, 2):
        assert outcome.value["error"] == "CollectiveMismatchError"
        assert "test_array_works.py" in outcome.value["message"]


def drop_a_work() -> None:
    """Check that a dropped work is reported, and that its memory stays until it is complete."""
    world = ngd.init()
    reports: list[str] = []
    sys.unraisablehook = lambda args: reports.append(str(args.exc_value))
    array = np.full(200_000, 1.0)
    alive = weakref.ref(array)
    if world.rank == 0:
        work = ngd.all_reduce(array, op="sum", out=array, async_op=True)
        del work, array
        gc.collect()
        assert alive() is not None
        assert len(reports) == 1
        assert "all_reduce(sum)" in reports[0]
        assert "without wait()" in reports[0]
    else:
        time.sleep(0.2)
        assert (ngd.all_reduce(array, op="sum", out=array) == world.size).all()
    assert ngd.all_reduce(np.ones(200_000), op="sum")[0] == world.size
    ngd.barrier(async_op=True).wait()
    if world.rank == 0:
        assert alive() is None


@each_communicator
def test_a_dropped_work_is_reported(communicator: str) -> None:
    run(drop_a_work, 2, **harness.over(communicator, 2))


def compare_lists_with_arrays() -> None:
    """Check that a list of arrays of all sizes and dtypes gets the same bits as single arrays."""
    world = ngd.init()
    n, r = world.size, world.rank
    random = np.random.default_rng(11)
    counts = [0, 1, 3, 70, 1000, 5000, 70_000, 300_000, 2, 900]
    for dtype in (np.float32, np.float64, np.int32):
        arrays = [
            (random.standard_normal((n, c)) * 50).astype(dtype)[r].reshape(-1, 1) for c in counts
        ]
        arrays.insert(4, np.array(r, np.float64))
        single = [ngd.all_reduce(a, op="sum") for a in arrays]
        many = ngd.all_reduce(arrays, op="sum")
        assert isinstance(many, list)
        for one, other in zip(single, many, strict=True):
            assert one.tobytes() == other.tobytes()
            assert one.shape == other.shape
        outs = tuple(np.empty_like(a) for a in arrays)
        back = ngd.all_reduce(tuple(arrays), op="max", out=outs)
        assert all(x is y for x, y in zip(back, outs, strict=True))
        for x, y in zip(outs, arrays, strict=True):
            assert x.tobytes() == ngd.all_reduce(y, op="max").tobytes()
        for x, y in zip(ngd.broadcast(arrays, n - 1), arrays, strict=True):
            assert x.tobytes() == ngd.broadcast(y, n - 1).tobytes()
        work = ngd.all_reduce(arrays, op="sum", out=arrays, async_op=True)
        assert all(x is y for x, y in zip(work.wait(), arrays, strict=True))
        assert all(x.tobytes() == y.tobytes() for x, y in zip(arrays, single, strict=True))
    means = ngd.all_reduce([np.full(3, r + 1.0), np.ones((2, 2))], op="mean", weight=r)
    weights = np.arange(n)
    expected = (weights * (weights + 1)).sum() / max(1, weights.sum())
    assert np.allclose(means[0], expected)
    assert np.allclose(means[1], 1.0 if n > 1 else 0.0)
    assert ngd.all_reduce([], op="sum") == []
    assert ngd.all_reduce([1.5, 2], op="sum").tolist() == [1.5 * n, 2 * n]


@each_world
def test_lists_give_the_bits_of_single_arrays(communicator: str, ranks: int) -> None:
    run_in_world(compare_lists_with_arrays, communicator, ranks)


def count_calls_of_lists() -> int:
    """Return the number of all-reduces that two lists of 50 small arrays need."""
    world = ngd.init()
    arrays = [np.full(100, i + 0.0, np.float32) for i in range(50)]
    ngd.all_reduce(arrays, op="sum")
    assert (ngd.all_reduce(arrays, op="sum")[7] == 7 * world.size).all()
    return sum(row.calls for row in ngd.comm_stats() if row.op == "all_reduce(sum)")


@harness.needs_ranks
def test_a_list_of_small_arrays_is_one_collective() -> None:
    calls = [outcome.value for outcome in run_in_world(count_calls_of_lists, "shm", 2)]
    assert calls[0] == calls[1]
    assert 2 <= calls[0] <= 3  # `ngd.init()` makes one more


def call_in_a_forked_child() -> None:
    """Check that every kind raises in a forked child, and that the parent's group stays usable."""
    world = ngd.init()
    ones, other = np.ones(4 * world.size), (world.rank + 1) % world.size
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        calls = [
            lambda: ngd.all_reduce(ones, op="sum", out=ones),
            lambda: ngd.all_reduce([ones, ones], op="sum"),
            lambda: ngd.all_gather(ones),
            lambda: ngd.all_to_all(ones, async_op=True),
            lambda: ngd.send(ones, other),
            lambda: world.split(0),
            ngd.barrier,
        ]
        good = all("forked child" in caught(call)["message"] for call in calls)
        os.write(writing, b"y" if good else b"n")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 1) == b"y"
    assert (ngd.all_reduce(ones, op="sum") == world.size).all()


@each_communicator
def test_collectives_in_a_forked_child_raise(communicator: str) -> None:
    run(call_in_a_forked_child, 2, **harness.over(communicator, 2))


def transfer_ends_without_calls() -> bool:
    """Return if a long transfer has ended while this rank called nothing."""
    world = ngd.init()
    ngd.barrier()
    work = ngd.all_reduce(np.ones(4_000_000, np.float32), op="sum", async_op=True)
    time.sleep(1.5)
    is_done = work.done()
    assert (work.wait() == world.size).all()
    assert ngd.all_reduce(1, op="sum", async_op=True).wait() == world.size
    return is_done


@harness.needs_mpi
@pytest.mark.parametrize("progress", ["on", "off"])
def test_the_progress_thread_completes_transfers_over_mpi(progress: str) -> None:
    how = harness.over("mpi", 2, env={"NGD_PROGRESS": progress})
    assert [o.value for o in run(transfer_ends_without_calls, 2, **how)] == [progress == "on"] * 2


def drop_without_memory() -> list[bool]:
    """Drop a pending collective while Python cannot allocate memory."""
    memory = pytest.importorskip("_testcapi", reason="needs CPython's own tests")
    world = ngd.init()
    x, out = np.full(MIB, world.rank + 1.0), np.zeros(MIB)
    if world.rank == 1:
        time.sleep(1)
        ngd.all_reduce(x, op="sum")
        ngd.barrier()
        return []
    call = _core.Call.on_array(world.communicator, "all_reduce", "sum", x, out, MIB, shape=(MIB,))
    call.start()
    arrays = [weakref.ref(x), weakref.ref(out)]
    del x, out
    memory.set_nomemory(0, 0)
    del call
    memory.remove_mem_hooks()
    are_alive = [each() is not None for each in arrays]
    ngd.barrier()
    return are_alive


@harness.needs_ranks
def test_a_dropped_collective_keeps_its_arrays_without_memory() -> None:
    assert run(drop_without_memory, 2)[0].value == [True, True]
