# SPDX-License-Identifier: Apache-2.0
"""Tests of ranks on several hosts, which are network namespaces."""

from __future__ import annotations

import atexit
import hashlib
import os
import signal
import time
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ngd
from ngd import ops
from tests.support import harness
from tests.support.harness import Job, caught, say
from tests.support.hosts import Hosts, permitted, sent_bytes
from tests.support.standing import run_in_world

__all__ = ["permitted"]

pytestmark = pytest.mark.usefixtures("permitted")

MIB = 1 << 20
DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float64": np.float64}


def numbers(rank: int, count: int, dtype: str) -> np.ndarray[Any, Any]:
    return np.random.default_rng(rank + 10).standard_normal(count).astype(DTYPES[dtype])


def reduced_bits() -> dict[str, str]:
    """Return hashes of reductions of random floats. The bits depend on the order of summation."""
    world = ngd.init()
    bits = {}
    for dtype in DTYPES:
        for count in (5, 3_001, 600_007):
            for op in ("sum", "mean"):
                result = ngd.all_reduce(numbers(world.rank, count, dtype), op=op)
                bits[f"{dtype} {count} {op}"] = hashlib.sha256(result.tobytes()).hexdigest()
    bits["steps"] = hashlib.sha256(train_matrix().tobytes()).hexdigest()
    share = ngd.reduce_scatter(numbers(world.rank, 1_200_000, "float32"), op="sum")
    bits["reduce_scatter"] = hashlib.sha256(ngd.all_gather(share).tobytes()).hexdigest()
    return bits


def train_matrix(steps: int = 4) -> np.ndarray[Any, Any]:
    """Return a matrix after some steps that average gradients over the ranks in the graph."""
    rank = ngd.init().rank
    w = ngd.variable("w", numbers(99, 60_000, "float32").reshape(300, 200))
    x = ngd.placeholder("x", (20, 300), np.float32)
    loss = ops.mean(ops.tanh(x @ w) * ops.tanh(x @ w))
    (gradient,) = ngd.grad(loss, [w])
    step = ngd.compile([x], [loss], {w: w - 0.5 * ops.all_reduce(gradient, op="mean")})
    for number in range(steps):
        step(numbers(1000 * rank + number, 6_000, "float32").reshape(20, 300))
    return w.numpy()


def check_every_kind(count: int) -> None:
    """Compare every kind of collective on integers with NumPy."""
    world = ngd.init()
    rank, size = world.rank, world.size
    arrays = [np.arange(count) * (r + 1) + r for r in range(size)]
    mine = arrays[rank]
    table = np.stack([np.arange(size * count).reshape(size, count) * (r + 2) for r in range(size)])

    def equal(got: Any, want: Any) -> None:
        np.testing.assert_array_equal(np.asarray(got).reshape(np.shape(want)), want)

    equal(ngd.all_reduce(mine, op="sum"), np.sum(arrays, axis=0))
    equal(ngd.all_reduce(mine, op="max"), np.max(arrays, axis=0))
    equal(ngd.all_gather(mine), np.concatenate(arrays))
    equal(ngd.reduce_scatter(table[rank], op="sum"), table.sum(axis=0)[rank])
    equal(ngd.all_to_all(table[rank]), table[:, rank])
    for root in {0, size - 1}:
        equal(ngd.broadcast(mine, root), arrays[root])
        gathered = ngd.gather(mine, root)
        total = ngd.reduce(mine, root, op="sum")
        if rank == root:
            equal(gathered, np.concatenate(arrays))
            equal(total, np.sum(arrays, axis=0))
        share = np.empty((1, count), table.dtype)
        ngd.scatter(table[0] if rank == root else None, root, out=share)
        equal(share, table[0][rank])
    ngd.barrier()


def check_everything(counts: list[int]) -> dict[str, Any]:
    world = ngd.init()
    for count in counts:
        check_every_kind(count)
    return {
        "name": world.communicator.name,
        "local": [world.local_rank, world.local_size],
        "bits": reduced_bits(),
        "sent": {str(size): all_reduce_traffic(size) for size in (MIB, 8 * MIB)},
    }


def all_reduce_traffic(nbytes: int, calls: int = 4) -> float:
    """Return the number of bytes that this host sends per all-reduce."""
    data = np.ones(nbytes // 4, np.float32)
    ngd.all_reduce(data, op="sum")
    ngd.barrier()
    before = sent_bytes()
    for _ in range(calls):
        ngd.all_reduce(data, op="sum", out=data)
    ngd.barrier()
    return (sent_bytes() - before) / calls


@pytest.mark.parametrize(("count", "per_host"), [(2, 2), (3, 2), (3, 1)])
def test_every_kind_between_hosts(count: int, per_host: int) -> None:
    ranks = count * per_host
    with Hosts(count) as hosts:
        arguments = {"counts": [3, 60_000]}
        outcomes = harness.run(
            check_everything, ranks, arguments=arguments, launcher=hosts.launcher(per_host)
        )
    values = [outcome.value for outcome in outcomes]
    for rank, value in enumerate(values):
        assert value["name"] == ("hierarchical" if per_host > 1 else "mpi")
        assert value["local"] == [rank % per_host, per_host]
        assert value["bits"] == values[0]["bits"], f"rank {rank} has other bits than rank 0"
        for size, sent in value["sent"].items():
            assert sent <= 1.1 * 2 * int(size) * (count - 1) / count, f"rank {rank}: {size} bytes"
    one_host = run_in_world(reduced_bits, "shm", ranks)
    assert values[0]["bits"] == one_host[0].value


def test_hosts_with_different_numbers_of_ranks() -> None:
    with Hosts(2) as hosts:
        launcher = hosts.launcher([1, 2])
        outcomes = harness.run(check_uneven_hosts, 3, launcher=launcher)
    assert [outcome.value for outcome in outcomes] == [[0, 1], [0, 2], [1, 2]]


def check_uneven_hosts() -> list[int]:
    world = ngd.init()
    check_every_kind(5_000)
    group = world.split(0 if world.rank > 0 else 1)
    assert group.size == (2 if world.rank > 0 else 1)
    total = ngd.all_reduce(np.full(100_000, world.rank), op="sum", group=group)
    assert total[5] == (3 if world.rank > 0 else 0)
    group.close()
    return [world.local_rank, world.local_size]


def join_with_host_names(by_handle: bool) -> list[Any]:
    """Join a world of two hosts that differ only in NGD_HOST. All ranks run on this computer."""
    os.environ["NGD_HOST"] = f"host-{int(harness.own_rank()) // 2}"
    if by_handle:
        from mpi4py import MPI

        order = MPI.COMM_WORLD.Get_size() - MPI.COMM_WORLD.Get_rank()
        world = ngd.init(comm=MPI.COMM_WORLD.Split(0, order))
    else:
        world = ngd.init()
    check_every_kind(20_000)
    return [world.communicator.name, world.rank, world.local_rank, world.local_size]


@pytest.mark.parametrize("by_handle", [False, True])
def test_ngd_host_sets_the_hosts_of_a_communicator(by_handle: bool) -> None:
    arguments = {"by_handle": by_handle}
    outcomes = harness.run(join_with_host_names, 4, arguments=arguments, launcher="mpirun")
    order = [3, 2, 1, 0] if by_handle else [0, 1, 2, 3]
    assert [outcome.value for outcome in outcomes] == [
        ["hierarchical", rank, rank % 2, 2] for rank in order
    ]


# Slow links.


def reduce_for_seconds(nbytes: int, timeout: float = 60) -> float:
    harness.hurried(timeout)
    data = np.ones(nbytes // 4, np.float32)
    start = time.monotonic()
    assert ngd.all_reduce(data, op="sum")[-1] == ngd.init().size
    return time.monotonic() - start


def test_a_slow_link_is_not_a_timeout() -> None:
    """NGD_TIMEOUT limits the wait for a rank without progress, not the time of a transfer."""
    with Hosts(2) as hosts:
        hosts.slow_down("80mbit", burst="32k")
        outcomes = harness.run(
            reduce_for_seconds,
            4,
            arguments={"nbytes": 32 * MIB, "timeout": 2},
            launcher=hosts.launcher(2),
        )
    assert all(outcome.value > 2 for outcome in outcomes)


def test_a_link_that_loses_packets_works() -> None:
    with Hosts(2) as hosts:
        hosts.slow_down("200mbit", burst="20k", limit="30k")
        arguments = {"nbytes": 4 * MIB}
        harness.run(
            reduce_for_seconds, 4, arguments=arguments, launcher=hosts.launcher(2), seconds=60
        )
        assert hosts.lost(0) + hosts.lost(1) > 0


# Lost hosts and ranks.


def reduce_until_failure(timeout: float = 60) -> dict[str, Any]:
    rank = harness.hurried(timeout).rank
    data = np.ones(MIB)
    ngd.all_reduce(data, op="sum")
    say("training")
    start = time.monotonic()

    def step() -> None:
        nonlocal start
        while True:
            start = time.monotonic()
            ngd.all_reduce(data, op="max", out=data)

    error = caught(step)
    again = caught(ngd.barrier)["error"]
    # Over MPI the first exit ends the other ranks, which have not reported their errors yet.
    atexit.register(time.sleep, 20)
    return {**error, "again": again, "seconds": time.monotonic() - start, "rank": rank}


def test_cut_link_is_a_timeout_on_every_rank() -> None:
    with Hosts(2) as hosts:
        arguments = {"timeout": 3}
        with Job(reduce_until_failure, 4, arguments=arguments, launcher=hosts.launcher(2)) as job:
            for rank in range(4):
                job.wait_for(rank, "training")
            hosts.cut_off(1)
            outcomes = job.values(range(4), 30)
    for rank, value in enumerate(outcomes):
        assert value["error"] == "CollectiveTimeoutError", value
        assert value["again"] == "GroupClosedError"
        assert 2.5 < value["seconds"] < 8, value
        # A rank that has all data from the other host waits for a rank of its own host.
        others = [f"rank {other}" for other in range(4) if other != rank]
        assert any(other in value["message"] for other in others), value
    for ranks, remote_ranks in (((0, 1), ("rank 2", "rank 3")), ((2, 3), ("rank 0", "rank 1"))):
        messages = [outcomes[rank]["message"] for rank in ranks]
        assert any(peer in message for peer in remote_ranks for message in messages), messages


def test_killed_rank_on_another_host_ends_the_job() -> None:
    with Hosts(2) as hosts, Job(reduce_until_failure, 4, launcher=hosts.launcher(2)) as job:
        for rank in range(4):
            job.wait_for(rank, "training")
        victims = [
            pid
            for pid, environment in harness.environments()
            if f"{harness.MARKER}={job.marker}".encode() in environment.split(b"\0")
            and b"OMPI_COMM_WORLD_RANK=3" in environment.split(b"\0")
        ]
        assert victims
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        job.wait(20)
        assert job.launcher is not None
        assert job.launcher.returncode != 0
