# SPDX-License-Identifier: Apache-2.0
"""Ranks on several hosts, which the test makes of network namespaces."""

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
    """What all_reduce and reduce_scatter make of random floats, whose order of summation shows."""
    world = ngd.init()
    bits = {}
    for dtype in DTYPES:
        for count in (5, 3_001, 600_007):
            for op in ("sum", "mean"):
                result = ngd.all_reduce(numbers(world.rank, count, dtype), op=op)
                bits[f"{dtype} {count} {op}"] = hashlib.sha256(result.tobytes()).hexdigest()
    bits["steps"] = hashlib.sha256(trained().tobytes()).hexdigest()
    share = ngd.reduce_scatter(numbers(world.rank, 1_200_000, "float32"), op="sum")
    bits["reduce_scatter"] = hashlib.sha256(ngd.all_gather(share).tobytes()).hexdigest()
    return bits


def trained(steps: int = 4) -> np.ndarray[Any, Any]:
    """A matrix after some steps whose gradients are averaged over the ranks, in the graph."""
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
    """Every kind on arrays of integers, compared with NumPy."""
    world = ngd.init()
    rank, size = world.rank, world.size
    everybody = [np.arange(count) * (r + 1) + r for r in range(size)]
    mine = everybody[rank]
    table = np.stack([np.arange(size * count).reshape(size, count) * (r + 2) for r in range(size)])

    def equal(got: Any, want: Any) -> None:
        np.testing.assert_array_equal(np.asarray(got).reshape(np.shape(want)), want)

    equal(ngd.all_reduce(mine, op="sum"), np.sum(everybody, axis=0))
    equal(ngd.all_reduce(mine, op="max"), np.max(everybody, axis=0))
    equal(ngd.all_gather(mine), np.concatenate(everybody))
    equal(ngd.reduce_scatter(table[rank], op="sum"), table.sum(axis=0)[rank])
    equal(ngd.all_to_all(table[rank]), table[:, rank])
    for root in {0, size - 1}:
        equal(ngd.broadcast(mine, root), everybody[root])
        gathered = ngd.gather(mine, root)
        total = ngd.reduce(mine, root, op="sum")
        if rank == root:
            equal(gathered, np.concatenate(everybody))
            equal(total, np.sum(everybody, axis=0))
        share = np.empty((1, count), table.dtype)
        ngd.scatter(table[0] if rank == root else None, root, out=share)
        equal(share, table[0][rank])
    ngd.barrier()


def everything(counts: list[int]) -> dict[str, Any]:
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
    """The bytes that this host sends for one all-reduce."""
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
            everything, ranks, arguments=arguments, launcher=hosts.launcher(per_host)
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


def test_uneven_hosts() -> None:
    with Hosts(2) as hosts:
        launcher = hosts.launcher([1, 2])
        outcomes = harness.run(uneven, 3, launcher=launcher)
    assert [outcome.value for outcome in outcomes] == [[0, 1], [0, 2], [1, 2]]


def uneven() -> list[int]:
    world = ngd.init()
    check_every_kind(5_000)
    group = world.split(0 if world.rank > 0 else 1)
    assert group.size == (2 if world.rank > 0 else 1)
    total = ngd.all_reduce(np.full(100_000, world.rank), op="sum", group=group)
    assert total[5] == (3 if world.rank > 0 else 0)
    group.close()
    return [world.local_rank, world.local_size]


def named(by_handle: bool) -> list[Any]:
    """Hosts by NGD_HOST alone, all of them here."""
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
def test_ngd_host_and_handles(by_handle: bool) -> None:
    arguments = {"by_handle": by_handle}
    outcomes = harness.run(named, 4, arguments=arguments, launcher="mpirun")
    order = [3, 2, 1, 0] if by_handle else [0, 1, 2, 3]
    assert [outcome.value for outcome in outcomes] == [
        ["hierarchical", rank, rank % 2, 2] for rank in order
    ]


# Links that are not what they should be.


def reduce_for_seconds(nbytes: int, timeout: float = 60) -> float:
    harness.hurried(timeout)
    data = np.ones(nbytes // 4, np.float32)
    start = time.monotonic()
    assert ngd.all_reduce(data, op="sum")[-1] == ngd.init().size
    return time.monotonic() - start


def test_slow_link_is_no_missing_rank() -> None:
    """A transfer may take longer than NGD_TIMEOUT: that is for ranks that do not move."""
    with Hosts(2) as hosts:
        hosts.slow_down("80mbit", burst="32k")
        outcomes = harness.run(
            reduce_for_seconds,
            4,
            arguments={"nbytes": 32 * MIB, "timeout": 2},
            launcher=hosts.launcher(2),
        )
    assert all(outcome.value > 2 for outcome in outcomes)


def test_lossy_link() -> None:
    with Hosts(2) as hosts:
        hosts.slow_down("200mbit", burst="20k", limit="30k")
        arguments = {"nbytes": 4 * MIB}
        harness.run(
            reduce_for_seconds, 4, arguments=arguments, launcher=hosts.launcher(2), seconds=60
        )
        assert hosts.lost(0) + hosts.lost(1) > 0


# Hosts and ranks that are gone.


def reduce_for_ever(timeout: float = 60) -> dict[str, Any]:
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
    # Over MPI the first one to exit ends the others, who have yet to say what they saw.
    atexit.register(time.sleep, 20)
    return {**error, "again": again, "seconds": time.monotonic() - start, "rank": rank}


def test_cut_link_is_a_timeout_on_every_rank() -> None:
    with Hosts(2) as hosts:
        arguments = {"timeout": 3}
        with Job(reduce_for_ever, 4, arguments=arguments, launcher=hosts.launcher(2)) as job:
            for rank in range(4):
                job.wait_for(rank, "training")
            hosts.cut_off(1)
            outcomes = job.values(range(4), 30)
    for rank, value in enumerate(outcomes):
        assert value["error"] == "CollectiveTimeoutError", value
        assert value["again"] == "GroupClosedError"
        assert 2.5 < value["seconds"] < 8, value
        # Who has all of its own from beyond the link waits for a neighbour that has not.
        others = [f"rank {other}" for other in range(4) if other != rank]
        assert any(other in value["message"] for other in others), value
    for here, beyond in (((0, 1), ("rank 2", "rank 3")), ((2, 3), ("rank 0", "rank 1"))):
        said = [outcomes[rank]["message"] for rank in here]
        assert any(peer in message for peer in beyond for message in said), said


def test_killed_rank_on_another_host_ends_the_job() -> None:
    with Hosts(2) as hosts, Job(reduce_for_ever, 4, launcher=hosts.launcher(2)) as job:
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
