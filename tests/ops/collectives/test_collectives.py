# SPDX-License-Identifier: Apache-2.0
"""Tests of collectives in a graph: results, gradients, order, and uneven shards."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ngd
from ngd import ops
from tests.support import harness
from tests.support.harness import caught, run, say
from tests.support.standing import fail_in_world, run_in_world

over = pytest.mark.parametrize("communicator", harness.communicators())
everywhere = pytest.mark.parametrize(("communicator", "ranks"), harness.worlds())
DEVICES = ("CPU", "INTERPRETER")


def contributions(size: int, shape: tuple[int, ...], dtype: Any) -> list[Any]:
    return [
        (np.random.default_rng(r).standard_normal(shape) * 5).astype(dtype) for r in range(size)
    ]


def results() -> None:
    world = ngd.init()
    numpys: dict[str, Callable[[Any], Any]] = {
        "sum": lambda a: a.sum(0, dtype=a.dtype),
        "mean": lambda a: a.mean(0),
        "min": lambda a: a.min(0),
        "max": lambda a: a.max(0),
        "prod": lambda a: a.prod(0, dtype=a.dtype),
    }
    for device in DEVICES:
        for dtype in (np.float64, np.float32, np.int64):
            for shape in [(), (0,), (3, 4), (30, 1000)]:
                given = contributions(world.size, shape, dtype)
                x = ngd.placeholder("x", shape, dtype)
                names = [n for n in numpys if n != "mean" or dtype is not np.int64]
                outputs: list[Any] = [ops.all_reduce(x, op=name) for name in names]
                outputs.append(ops.broadcast(x, root=world.size - 1))
                step = ngd.compile([x], outputs, device=device)
                for _ in range(2):
                    *reduced, last = step(given[world.rank])
                    for name, got in zip(names, reduced, strict=True):
                        want = numpys[name](np.stack(given))
                        assert got.dtype == dtype
                        # The tolerance is for sums of a few tens of values.
                        atol = 1e-4 if dtype is np.float32 else 1e-12
                        assert np.allclose(got, want, rtol=atol / 10, atol=atol)
                    assert last.tobytes() == given[-1].tobytes()


@everywhere
def test_all_reduce_and_broadcast_equal_numpy(communicator: str, ranks: int) -> None:
    run_in_world(results, communicator, ranks)


def gradients() -> None:
    """Compare gradients with differences of the sum of the losses of all ranks."""
    world = ngd.init()
    shapes: dict[str, Callable[[Any, Any], Any]] = {
        "sum": lambda y, s: ops.all_reduce(y, op="sum"),
        "mean": lambda y, s: ops.all_reduce(y, op="mean"),
        "ring": lambda y, s: ops.all_reduce(y, op="sum", algorithm="ring"),
        "weighted": lambda y, s: ops.all_reduce(y, op="mean", weight=s),
        "broadcast": lambda y, s: ops.broadcast(y, root=world.size - 1),
        "twice": lambda y, s: ops.all_reduce(ops.tanh(ops.all_reduce(y, op="mean")) * s, op="sum"),
    }
    random = np.random.default_rng(world.rank)
    at, other = random.standard_normal(3), random.standard_normal(3)
    scale = np.array(world.rank + 0.5)
    for device in DEVICES:
        for name, collective in shapes.items():
            w, c = (ngd.placeholder(n, (3,), np.float64) for n in "wc")
            s = ngd.placeholder("s", (), np.float64)
            loss = ops.sum(ops.tanh(collective(ops.exp(w * 0.5) * c, s)) * c)
            step = ngd.compile([w, c, s], [loss, *ngd.grad(loss, [w])], device=device)
            _, gradient = step(at, other, scale)
            for rank in range(world.size):
                for i in range(3):
                    totals = []
                    for change in (1e-5, -1e-5):
                        changed = at.copy()
                        changed[i] += change if world.rank == rank else 0
                        local, _ = step(changed, other, scale)
                        totals.append(float(ngd.all_reduce(local, op="sum")))
                    slope = (totals[0] - totals[1]) / 2e-5
                    if world.rank == rank:
                        assert np.isclose(gradient[i], slope, rtol=1e-6, atol=1e-8), (name, device)


@everywhere
def test_gradients_equal_finite_differences(communicator: str, ranks: int) -> None:
    run_in_world(gradients, communicator, ranks)


def parts() -> None:
    """Reduce parts of a value, and the results of one op, each in its own collective."""
    world = ngd.init()
    given = contributions(world.size, (6, 5), np.float64)
    for device in DEVICES:
        x = ngd.placeholder("x", (6, 5), np.float64)
        first, second, third = ops.split(x * 2, [1, 4])
        values, indices = ops.top_k(x, 3)
        middle = ops.split(ops.all_reduce(x * 3, op="sum"), 3)[1]
        outputs = [
            ops.all_reduce(first, op="sum"),
            ops.all_gather(second),
            ops.all_reduce(third + ops.sum(second), op="max"),
            ops.all_reduce(values, op="sum"),
            ops.all_gather(indices),
            ops.all_reduce(middle, op="mean"),
        ]
        step = ngd.compile([x], outputs, device=device)
        arrays = np.stack(given)
        order = np.argsort(-arrays, axis=2)[:, :, :3]
        wanted = [
            2 * arrays[:, :1].sum(0),
            2 * arrays[:, 1:4].reshape(-1, 5),
            np.max(2 * arrays[:, 4:] + 2 * arrays[:, 1:4].sum((1, 2))[:, None, None], 0),
            np.take_along_axis(arrays, order, 2).sum(0),
            order.reshape(-1, 3),
            3 * arrays[:, 2:4].sum(0),
        ]
        for _ in range(2):
            for got, want in zip(step(given[world.rank]), wanted, strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


@everywhere
def test_parts_and_results_of_one_op_are_reduced_separately(communicator: str, ranks: int) -> None:
    run_in_world(parts, communicator, ranks)


def adam() -> None:
    """Check that the update after an all-reduce is one kernel, and that its values are correct."""
    world = ngd.init()
    given = contributions(world.size, (30, 40), np.float32)
    x = ngd.placeholder("x", (30, 40))
    w, m, s = (ngd.variable(name, np.ones((30, 40), np.float32)) for name in "wms")
    g = ops.all_reduce(x, op="mean")
    updates = {m: 0.9 * m + 0.1 * g, s: 0.9 * s + 0.1 * ops.square(g)}
    updates[w] = w - 0.1 * updates[m] / (ops.sqrt(updates[s]) + 1e-6)
    step = ngd.compile([x], [], updates)
    if world.size > 1:
        assert str(step).count(" = elementwise(") == 1
        assert step.memory()["private"] == 0
    mean, values = np.mean(given, 0), {v: np.ones((30, 40)) for v in (w, m, s)}
    for _ in range(3):
        step(given[world.rank])
        values[m] = 0.9 * values[m] + 0.1 * mean
        values[s] = 0.9 * values[s] + 0.1 * mean**2
        values[w] = values[w] - 0.1 * values[m] / (np.sqrt(values[s]) + 1e-6)
    for variable, wanted in values.items():
        np.testing.assert_allclose(variable.numpy(), wanted, rtol=1e-4, atol=1e-5)


@everywhere
def test_an_update_of_three_variables_after_an_all_reduce_is_one_kernel(
    communicator: str, ranks: int
) -> None:
    run_in_world(adam, communicator, ranks)


def uneven() -> None:
    """Train on shards of different sizes, one of which is empty."""
    world = ngd.init()
    random = np.random.default_rng(1)
    rows, labels = random.standard_normal((11, 4)), random.integers(0, 3, 11)
    start = random.standard_normal((4, 3))

    def make_step(count: int, w: Any, parallel: bool, device: str) -> Any:
        x = ngd.placeholder("x", (count, 4), np.float64)
        y = ngd.placeholder("y", (count,), np.int64)
        weight = ngd.placeholder("weight", (), np.float64)
        loss = ops.mean(ops.softmax_cross_entropy(x @ w, y))
        (gradient,) = ngd.grad(loss, [w])
        if parallel:
            gradient = ops.all_reduce(gradient, op="mean", weight=weight)
            loss = ops.all_reduce(loss, op="mean", weight=weight)
        return ngd.compile([x, y, weight], [loss], {w: w - 0.3 * gradient}, device=device)

    num_shards = max(1, world.size - 1)  # the last of several ranks has an empty shard
    parts_of_ranks = [np.array_split(a, num_shards) for a in (rows, labels)]
    for device in DEVICES:
        weights_of_one, shared = (ngd.variable("w", start.copy()) for _ in range(2))
        step_of_one = make_step(11, weights_of_one, False, device)
        if world.rank < num_shards:
            x, y = (part[world.rank] for part in parts_of_ranks)
            weight = np.array(float(len(y)))
        else:
            x, y, weight = np.full((2, 4), np.nan), np.zeros(2, np.int64), np.array(0.0)
        step = make_step(len(y), shared, True, device)
        for _ in range(5):
            (want,) = step_of_one(rows, labels, np.array(11.0))
            (got,) = step(x, y, weight)
            assert np.isclose(got, want, rtol=1e-12)
            assert np.allclose(shared.numpy(), weights_of_one.numpy(), rtol=1e-12, atol=1e-14)
        same = ngd.broadcast(shared.numpy())
        assert same.tobytes() == shared.numpy().tobytes()
        before = shared.numpy()
        step(x, y, np.array(0.0))  # all weights are zero
        assert np.array_equal(shared.numpy(), before)


@everywhere
def test_uneven_shards_take_the_step_of_one_process(communicator: str, ranks: int) -> None:
    run_in_world(uneven, communicator, ranks)


def creation_order() -> None:
    """Create the same all-reduces in another order on each rank."""
    world = ngd.init()
    for device in DEVICES:
        inputs = [ngd.placeholder(f"x{i}", (10 + i,), np.float32) for i in range(6)]
        results_by_index: dict[int, Any] = {}
        for i in np.random.default_rng(world.rank).permutation(6):
            results_by_index[int(i)] = ops.all_reduce(ops.sqrt(inputs[i]) * (i + 1.0), op="sum")
        deeper = ops.all_reduce(
            ops.sum(results_by_index[0]) + ops.sum(results_by_index[5]), op="max"
        )
        step = ngd.compile(
            inputs, [results_by_index[i] for i in range(6)] + [deeper], device=device
        )
        for _ in range(3):
            *got, top = step(*[np.full(10 + i, 4.0, np.float32) for i in range(6)])
            for i, result in enumerate(got):
                assert (result == 2 * (i + 1) * world.size).all()
            assert top == (20 + 15 * 12) * world.size


@everywhere
def test_the_order_of_creation_may_differ_between_ranks(communicator: str, ranks: int) -> None:
    run(creation_order, ranks, **harness.over(communicator, ranks))


def mismatched(what: str, device: str) -> dict[str, str]:
    """Build a different sequence of collectives on the last rank."""
    world = ngd.init()
    odd = world.rank == world.size - 1
    v = ngd.variable("v", np.ones(4))
    x = ngd.placeholder("x", (4,), np.float64)
    if what == "op":
        y = ops.all_reduce(x * v, op="mean" if odd else "sum")
    elif what == "extra":
        y = ops.all_reduce(x * v, op="sum")
        if odd:
            y = y + ops.all_reduce(ops.exp(y), op="max")
    else:
        y = ops.broadcast(x * v) if odd else ops.all_reduce(x * v, op="sum")
    step = ngd.compile([x], [y], {v: v + y}, device=device)
    error = caught(lambda: step(np.ones(4)))
    assert v.numpy().tolist() == [1, 1, 1, 1]
    return error


@over
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("what", ["op", "extra", "kind"])
def test_mismatched_steps_raise_before_the_first_update(
    communicator: str, ranks: int, what: str
) -> None:
    for outcome in fail_in_world(mismatched, communicator, ranks, what=what, device="CPU"):
        assert outcome.value["error"] == "CollectiveMismatchError", outcome
        assert f"rank {ranks - 1}" in outcome.value["message"]
        assert f"rank {outcome.rank}" in outcome.value["message"]
        if what != "extra":  # without the additional collective there is no second line
            assert outcome.value["message"].count("test_collectives.py:") >= 2, outcome


@harness.needs_ranks
@pytest.mark.parametrize("what", ["op", "extra", "kind"])
def test_mismatched_steps_raise_on_the_interpreter(what: str) -> None:
    for outcome in fail_in_world(mismatched, "shm", 2, what=what, device="INTERPRETER"):
        assert outcome.value["error"] == "CollectiveMismatchError", outcome


def steps(device: str) -> dict[str, Any]:
    """Take fifty steps with different data on each rank."""
    world = ngd.init()
    random = np.random.default_rng(world.rank)
    w = ngd.variable("w", np.linspace(-1, 1, 40).reshape(20, 2).astype(np.float32))
    x = ngd.placeholder("x", (6 + world.rank, 20), np.float32)
    loss = ops.mean(ops.square(ops.tanh(x @ w)))
    (gradient,) = ngd.grad(loss, [w])
    update = w - 0.1 * ops.all_reduce(gradient, op="mean")
    step = ngd.compile([x], [loss], {w: update}, device=device)
    for _ in range(50):
        step(random.standard_normal(x.shape).astype(np.float32))
    say("done")
    return {"weights": w.numpy().tobytes().hex()}


@over
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("device", DEVICES)
def test_weights_stay_equal_on_all_ranks(communicator: str, ranks: int, device: str) -> None:
    outcomes = run_in_world(steps, communicator, ranks, device=device)
    assert len({o.value["weights"] for o in outcomes}) == 1


def leave_a_step_behind() -> int:
    """Return the number of shared mappings after the world is closed."""

    def step() -> None:
        x = ngd.placeholder("x", (3,), np.float32)
        ngd.compile([x], [ops.all_gather(x)])(np.ones(3, np.float32))

    step()
    ngd.shutdown()
    gc.collect()
    return Path("/proc/self/maps").read_text().count("memfd:ngd")


@harness.needs_ranks
def test_a_closed_world_keeps_no_shared_memory() -> None:
    assert [outcome.value for outcome in run(leave_a_step_behind, 2)] == [0, 0]


def ranks_inside() -> list[Any]:
    """Use the number of the rank in branches and loops, on both devices."""
    p, x = ngd.placeholder("p", (), "bool"), ngd.placeholder("x", (3,), "int64")
    chosen = ops.cond(p, lambda: x + ops.own_rank(), lambda: x)
    last, _ = ops.scan(lambda c, part: (c + part * ops.own_rank(), None), np.int64(0), x)
    found = []
    for device in ("CPU", "INTERPRETER"):
        step = ngd.compile([p, x], [chosen, last], device=device)
        found += [each.tolist() for each in step(np.bool_(True), np.array([10, 20, 30]))]
    return found


@over
def test_branches_and_loops_know_the_rank(communicator: str) -> None:
    for rank, outcome in enumerate(run_in_world(ranks_inside, communicator, 3)):
        assert outcome.value == [[10 + rank, 20 + rank, 30 + rank], 60 * rank] * 2
