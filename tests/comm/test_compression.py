# SPDX-License-Identifier: Apache-2.0
"""Tests of compressed all-reduces, and of ranks with different numbers of batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ngd
from ngd import ops
from tests.support import harness
from tests.support.standing import run_in_world

each_world = pytest.mark.parametrize(("communicator", "ranks"), harness.worlds())
each_communicator = pytest.mark.parametrize("communicator", harness.communicators())


def check_rounding() -> None:
    """Check the error bound that ngd.all_reduce documents, and that all ranks get one result."""
    world = ngd.init()
    n, r = world.size, world.rank
    for seed in range(5):
        values = np.random.default_rng(seed).standard_normal((n, 5000)) * 10.0**seed
        values = values.astype(np.float32)
        exact = values.astype(np.float64)
        out = np.empty(5000, np.float32)
        for op, divisor in (("sum", 1), ("mean", n)):
            got = ngd.all_reduce(values[r], op=op, compression="bf16", out=out)
            assert got is out
            total = exact.sum(0) / divisor
            u = 2.0**-8
            bound = u * (np.abs(exact).sum(0) / divisor + np.abs(total)) * (1 + u)
            assert (np.abs(got - total) <= bound * 1.0001).all()
            assert n == 1 or np.abs(got - total).max() > 0
            assert (ngd.all_gather(got[None]) == got).all()
    both = ngd.all_reduce([values[r], values[r, :7]], op="sum", compression="bf16")
    assert (both[0][:7] == both[1]).all()
    work = ngd.all_reduce(values[r], op="sum", compression="bf16", async_op=True)
    assert (work.wait() == both[0]).all()


@each_world
def test_bf16_compression_stays_within_its_bound(communicator: str, ranks: int) -> None:
    run_in_world(check_rounding, communicator, ranks)


def check_top_k() -> None:
    """Check that calls sum the largest elements of each rank, and lose nothing over time."""
    world = ngd.init()
    n, r = world.size, world.rank
    random = np.random.default_rng(3)
    top = ngd.TopK(0.1)
    memories = np.zeros((n, 57))
    sent_in_all, given_in_all = np.zeros(57), np.zeros(57)
    for _ in range(30):
        values = random.standard_normal((n, 57))
        memories += values
        want = np.zeros(57)
        for memory in memories:
            largest = np.argsort(-np.abs(memory))[:6]
            want[largest] += memory[largest]
            memory[largest] = 0
        before = values[r].copy()
        got = ngd.all_reduce(values[r].reshape(3, 19), op="sum", compression=top["w"])
        assert np.allclose(got.ravel(), want, rtol=1e-12, atol=1e-12)
        assert (values[r] == before).all()
        assert (ngd.all_gather(got[None]) == got).all()
        sent_in_all += got.ravel()
        given_in_all += values.sum(0)
    residual = top["w"].residual
    assert np.allclose(residual.ravel(), memories[r])
    own_residual = ngd.all_reduce(residual, op="sum")
    assert np.allclose(sent_in_all + own_residual.ravel(), given_in_all)
    assert top.residual is None


@each_world
def test_top_k_loses_nothing_in_the_long_run(communicator: str, ranks: int) -> None:
    run_in_world(check_top_k, communicator, ranks)


def check_top_k_of_lists() -> None:
    world = ngd.init()
    top = ngd.TopK(1.0)
    arrays = [np.full((2, 3), world.rank + 1, np.float32), np.arange(4.0), np.empty(0)]
    outs = [np.empty_like(a) for a in arrays]
    work = ngd.all_reduce(arrays, op="mean", compression=top, out=outs, async_op=True)
    work.wait()
    for got, operands in zip(outs, arrays, strict=True):
        assert np.allclose(got, ngd.all_reduce(operands, op="mean"))
    error = harness.caught(lambda: ngd.all_reduce(arrays[1], op="sum", compression=top[0]))
    assert "for this ngd.TopK, a float32 array of shape (2, 3)" in error["message"]
    top.reset()
    assert top[0].residual is None


@each_communicator
def test_top_k_of_lists(communicator: str) -> None:
    run_in_world(check_top_k_of_lists, communicator, 2)


def check_compression_in_a_graph(device: str) -> None:
    """Check that the ops in a graph give the same bits as the calls on arrays."""
    world = ngd.init()
    random = np.random.default_rng(5 + world.rank)
    x = ngd.placeholder("x", (3, 19), "float32")
    residual = ngd.variable("left", np.zeros((3, 19), "f"), per_rank=True)
    total, rest = ops.sparse_all_reduce(x, residual, ratio=0.1, op="sum")
    mean, _ = ops.sparse_all_reduce(x, np.zeros((3, 19), "f"), ratio=1, op="mean")
    rounded = ops.all_reduce(x, op="mean", compression="bf16")
    step = ngd.compile([x], [total, mean, rounded], updates={residual: rest}, device=device)
    top = ngd.TopK(0.1)
    for _ in range(10):
        values = random.standard_normal((3, 19)).astype("f")
        values[0, 0] = np.inf  # is sent, so the residual does not contain it
        got = step(values)
        assert (got[0] == ngd.all_reduce(values, op="sum", compression=top)).all()
        dense = ngd.all_reduce(values, op="mean")
        assert np.allclose(got[1], dense, atol=1e-6)
        assert (got[2] == ngd.all_reduce(values, op="mean", compression="bf16")).all()
        assert (residual.numpy() == top.residual).all()


@each_world
@pytest.mark.parametrize("device", ["CPU", "INTERPRETER"])
def test_compression_in_a_graph_gives_the_same_bits(
    communicator: str, ranks: int, device: str
) -> None:
    run_in_world(check_compression_in_a_graph, communicator, ranks, device=device)


def check_gradient_of_compressed() -> None:
    world = ngd.init()
    x = ngd.placeholder("x", (2,), "float32")
    y = ops.all_reduce(x, op="sum", compression="bf16")
    (dx,) = ngd.grad(ops.sum(y * np.array([1 + 2.0**-9, 3], "f")), [x])
    (got,) = ngd.compile([x], [dx])(np.ones(2, "f"))
    assert got.tolist() == [world.size * 1.0, world.size * 3.0]  # 1 + 2**-9 is 1 in bfloat16


@harness.needs_ranks
def test_the_gradient_is_compressed_too() -> None:
    run_in_world(check_gradient_of_compressed, "shm", 2)


ONES = np.ones(4, "f")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: ops.all_reduce(ONES, op="sum", compression="zip"), ValueError, "expected 'bf16'"),
        (
            lambda: ops.all_reduce(ONES.astype("f8"), op="sum", compression="bf16"),
            ngd.errors.DTypeError,
            r"expected float32 for compression='bf16'; got float64\[4\]",
        ),
        (
            lambda: ops.all_reduce(ONES, op="mean", weight=1.0, compression="bf16"),
            ValueError,
            "expected weight or compression; got both",
        ),
        (
            lambda: ops.sparse_all_reduce(ONES, ONES[:2], ratio=0.5, op="sum"),
            ngd.errors.ShapeError,
            r"one shape; got float32\[4\] and float32\[2\]",
        ),
        (
            lambda: ops.sparse_all_reduce(ONES, ONES, ratio=0, op="sum"),
            ValueError,
            r"a ratio in \(0, 1\]; got 0",
        ),
        (
            lambda: ops.sparse_all_reduce(ONES, ONES, ratio=0.5, op="max"),
            ValueError,
            "op among sum, mean; got 'max'",
        ),
    ],
)
def test_bad_compression_in_a_graph_raises(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def descend_with_top_k() -> None:
    """Check that descent with a tenth of the gradient reaches the solution of full descent."""
    world = ngd.init()
    random = np.random.default_rng(1)
    a = random.standard_normal((world.size, 40, 20))
    truth = random.standard_normal(20)
    top, x = ngd.TopK(0.1), np.zeros(20)
    for _ in range(1500):
        gradient = a[world.rank].T @ (a[world.rank] @ (x - truth)) / 40
        x -= 0.05 * ngd.all_reduce(gradient, op="mean", compression=top["x"])
    assert np.abs(x - truth).max() < 1e-6


@harness.needs_ranks
def test_descent_with_top_k_converges() -> None:
    run_in_world(descend_with_top_k, "shm", 2)


def join_with_batches(batches: list[int]) -> list[list[float]]:
    """Check that the mean of each step is over the ranks that have a batch."""
    world = ngd.init()
    mine = range(10, 10 + batches[world.rank])
    means = []
    for step, (batch, weight) in enumerate(ngd.join(mine, empty=-1)):
        mean = ngd.all_reduce(np.full(3, batch, np.float64), op="mean", weight=weight)
        assert mean.tolist() == [10.0 + step] * 3
        means.append([batch, weight])
    ngd.barrier()
    return means


@each_world
def test_join_averages_over_ranks_with_a_batch(communicator: str, ranks: int) -> None:
    batches = [3, 0, 5, 1][:ranks]
    outcomes = run_in_world(join_with_batches, communicator, ranks, batches=batches)
    for count, outcome in zip(batches, outcomes, strict=True):
        last = [10 + count - 1 if count else -1, 0.0]
        own = [[10 + i, 1.0] for i in range(count)]
        assert outcome.value == own + [last] * (max(batches) - count)


def join_without_batches() -> None:
    world = ngd.init()
    for _ in ngd.join([1.0] * world.rank):
        ngd.barrier()


@harness.needs_ranks
def test_join_without_any_batch() -> None:
    with harness.Job(join_without_batches, 2, **harness.over("shm", 2)) as job:
        outcomes = job.wait(60)
        assert (
            "join: expected at least one batch, or empty=, on each rank; got none on rank 0"
            in outcomes[0].err
        )
        assert "RemoteRankError" in outcomes[1].err
        assert "got none on rank 0" in outcomes[1].err
