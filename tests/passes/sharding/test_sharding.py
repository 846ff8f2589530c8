# SPDX-License-Identifier: Apache-2.0
"""Tests of shard="host": the same training as with one copy per rank, and failures."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
import warnings
from typing import Any

import numpy as np
import pytest

import ngd
from ngd import ops, optim
from ngd.passes.partition import SMALL_BYTES, UNIT, is_divided, shard_bounds
from tests.support import harness
from tests.support.harness import Job, say
from tests.support.standing import run_in_world

pytestmark = harness.needs_ranks
several = pytest.mark.parametrize("ranks", [2, 3, 4])

OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda clip: optim.SGD(0.1, clip_norm=clip),
    "momentum": lambda clip: optim.SGD(0.1, momentum=0.9, nesterov=True, clip_norm=clip),
    "adamw": lambda clip: optim.AdamW(1e-2, clip_norm=clip),
    "lars": lambda clip: optim.LARS(1e-2, clip_norm=clip),
    "lamb": lambda clip: optim.LAMB(1e-2, clip_norm=clip),
}
ELEMENTWISE = ("sgd", "momentum", "adamw")


class Net:
    """A network of two layers, with sizes that no number of ranks divides."""

    def __init__(self, dtype: Any = np.float32, seed: int = 1) -> None:
        random = np.random.default_rng(seed)
        self.x, self.t = (
            ngd.placeholder(name, (8, n), dtype) for name, n in (("x", 61), ("t", 33))
        )
        shapes = {"w1": (61, 301), "b1": (301,), "w2": (301, 33), "b2": (33,)}
        initial = {name: random.normal(size=shape) * 0.1 for name, shape in shapes.items()}
        self.parameters = {k: ngd.variable(k, v.astype(dtype)) for k, v in initial.items()}
        p = self.parameters
        self.y = ops.relu(self.x @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"]
        self.loss = ops.mean((self.y - self.t) ** 2)

    def batch(self, random: np.random.Generator) -> list[Any]:
        return [random.normal(size=n.shape).astype(n.dtype) for n in (self.x, self.t)]


def trained(
    rule: str, clip: float | None, shard: str, dtype: Any, steps: int = 12
) -> tuple[list[Any], dict[str, Any], dict[str, int]]:
    """Return the losses, all variables, and the memory of the step."""
    net = Net(dtype)
    updates = OPTIMIZERS[rule](clip).minimize(net.loss, list(net.parameters.values()))
    step = ngd.compile([net.x, net.t], [net.loss], updates, shard=shard)
    random = np.random.default_rng(ngd.init().rank)
    losses = [step(*net.batch(random))[0] for _ in range(steps)]
    return losses, {v.name: v.numpy() for v in updates}, step.memory()


def same_training(rules: list[str], clip: float | None, dtype: str) -> None:
    """Compare one copy per host with one copy per rank: equal bits, except for norms."""
    for rule in rules:
        plain, variables, _ = trained(rule, clip, "none", np.dtype(dtype))
        losses, shared, memory = trained(rule, clip, "host", np.dtype(dtype))
        sizes = [np.dtype(dtype).itemsize * n for n in (61 * 301, 301, 301 * 33, 33)]
        kept = {"sgd": 1, "momentum": 2, "lars": 2}.get(rule, 3)
        assert memory["sharded"] == kept * sum(n for n in sizes if n > SMALL_BYTES), rule
        tolerance = 0.0
        if clip is not None or rule not in ELEMENTWISE:
            tolerance = 1e-5 if dtype == "float32" else 1e-13
        for name, value in variables.items():
            np.testing.assert_allclose(
                shared[name], value, rtol=tolerance, atol=tolerance, err_msg=f"{rule} {name}"
            )
        np.testing.assert_allclose(losses, plain, rtol=tolerance * 10)


@several
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_shared_copy_trains_like_private_copies(ranks: int, dtype: str) -> None:
    run_in_world(same_training, "shm", ranks, rules=list(OPTIMIZERS), clip=None, dtype=dtype)


@pytest.mark.parametrize("ranks", [2, 3])
def test_norms_of_sharded_gradients_train_alike(ranks: int) -> None:
    run_in_world(same_training, "shm", ranks, rules=list(OPTIMIZERS), clip=0.5, dtype="float32")


def test_shard_bounds_cover_the_variable() -> None:
    for ranks in (1, 2, 3, 5, 64):
        for count in (64 * ranks, 64 * ranks + 1, 1000 * ranks + 7, 12_345_678):
            at = shard_bounds(count, ranks)
            sizes = np.diff(at)
            assert (at[0], at[-1], len(at)) == (0, count, ranks + 1)
            assert all(b % UNIT == 0 for b in at[:-1])
            assert sizes.min() > 0
            assert sizes.max() - sizes.min() < 2 * UNIT
    assert not is_divided(ngd.constant(np.zeros(SMALL_BYTES // 4, np.float32)).type, 2)
    assert is_divided(ngd.constant(np.zeros(SMALL_BYTES // 4 + 1, np.float32)).type, 2)
    assert not is_divided(ngd.constant(np.zeros(SMALL_BYTES, np.float32)).type, 1)


def gradients_are_reduced_once() -> None:
    """Check that gradients of sharded updates are not all-reduced, and that norms share one."""
    net = Net()
    for rule, clip, totals in (("adamw", None, 0), ("adamw", 1.0, 1), ("lamb", 1.0, 2)):
        updates = OPTIMIZERS[rule](clip).minimize(net.loss, list(net.parameters.values()))
        program = str(ngd.compile([net.x, net.t], [net.loss], updates, shard="host"))
        starts = [
            line.split("= start ")[1].split("(")[0]
            for line in program.splitlines()
            if "= start " in line
        ]
        assert starts.count("reduce_scatter") == 2
        assert starts.count("all_reduce") == 2 + totals  # of the biases and of norms
        assert starts.count("barrier") == 2


def test_gradients_are_reduced_once() -> None:
    run_in_world(gradients_are_reduced_once, "shm", 2)


def other_programs_see_it() -> None:
    """Read a shared variable in steps built before and after, and read and assign its value."""
    world = ngd.init()
    net = Net()
    before = ngd.compile([net.x], [net.y])
    updates = optim.SGD(0.1).minimize(net.loss, list(net.parameters.values()))
    given = np.random.default_rng(3).normal(size=net.x.shape).astype(np.float32)
    (old,) = before(given)
    step = ngd.compile([net.x, net.t], [net.loss], updates, shard="host")
    np.testing.assert_array_equal(before(given)[0], old)
    random = np.random.default_rng(world.rank)
    step(*net.batch(random))
    p = {k: v.numpy().astype(np.float64) for k, v in net.parameters.items()}
    want = np.maximum(given @ p["w1"] + p["b1"], 0) @ p["w2"] + p["b2"]
    for program in (before, ngd.compile([net.x], [net.y * 1.0])):
        np.testing.assert_allclose(program(given)[0], want, rtol=1e-4, atol=1e-5)
    w1 = net.parameters["w1"]
    with pytest.raises(ValueError, match="one value on all ranks"):
        w1.assign(np.full(w1.shape, world.rank, np.float32))
    np.testing.assert_array_equal(w1.numpy(), p["w1"].astype(np.float32))
    w1.assign(np.ones(w1.shape, np.float32))
    np.testing.assert_array_equal(w1.numpy(), 1)
    want = np.maximum(given.astype(np.float64) @ np.ones(w1.shape) + p["b1"], 0) @ p["w2"] + p["b2"]
    np.testing.assert_allclose(before(given)[0], want, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("ranks", [2, 3])
def test_other_steps_read_and_write_shared_variables(ranks: int) -> None:
    run_in_world(other_programs_see_it, "shm", ranks)


def reads_of_old_values() -> None:
    """Return old values, copy a variable into another, and swap two. All read old values."""
    world = ngd.init()
    n = 5000
    a, b, c = (ngd.variable(name, np.full(n, i, np.float32)) for i, name in enumerate("abc"))
    x = ngd.placeholder("x", (n,))
    mean = ops.all_reduce(x, op="mean")
    total = ops.reshape(ops.sum(a), (1,))
    step = ngd.compile([x], [a, a + mean, total], {a: b, b: a, c: c + a * 10 + mean}, shard="host")
    want = [np.full(n, i, np.float32) for i in range(3)]
    for turn in range(4):
        given = np.full(n, world.rank + turn, np.float32)
        average = np.float32(turn + (world.size - 1) / 2)
        old, added, all_of_it = step(given)
        np.testing.assert_array_equal(old, want[0])
        np.testing.assert_array_equal(added, want[0] + average)
        np.testing.assert_array_equal(all_of_it, [want[0].sum()])
        want = [want[1], want[0], want[2] + want[0] * 10 + average]
        for variable, value in zip((a, b, c), want, strict=True):
            np.testing.assert_array_equal(variable.numpy(), value)


@several
def test_updates_read_old_values_of_shared_variables(ranks: int) -> None:
    run_in_world(reads_of_old_values, "shm", ranks)


def moving_averages() -> None:
    """Update shared variables in a step without gradients, on all ranks."""
    world = ngd.init()
    n = 3001
    w, average = (ngd.variable(k, np.zeros(n, np.float32)) for k in ("w", "average"))
    x = ngd.placeholder("x", (n,))
    train = ngd.compile([x], [], {w: w + ops.all_reduce(x, op="sum")}, shard="host")
    follow = ngd.compile([], [], {average: average * 0.5 + w * 0.5}, shard="host")
    want, value = np.zeros(n, np.float32), np.zeros(n, np.float32)
    for turn in range(5):
        train(np.full(n, turn, np.float32))
        follow()
        value = value + np.float32(turn * world.size)
        want = want * np.float32(0.5) + value * np.float32(0.5)
        np.testing.assert_array_equal(average.numpy(), want)


@several
def test_moving_averages_of_shared_variables(ranks: int) -> None:
    run_in_world(moving_averages, "shm", ranks)


def what_is_not_shared() -> None:
    """Small variables, and variables whose next values differ by rank, are not shared."""
    world = ngd.init()
    small, own, both = (
        ngd.variable(k, np.zeros(n)) for k, n in (("small", 100), ("own", 5000), ("both", 5000))
    )
    x = ngd.placeholder("x", (5000,), np.float64)
    mean = ops.all_reduce(x, op="mean")
    step = ngd.compile([x], [], {small: small + 1, own: own + x, both: both + mean}, shard="host")
    assert step.memory()["sharded"] == 5000 * 8
    with pytest.raises(ngd.errors.VariableMismatchError, match="for 'own'"):
        step(np.full(5000, world.rank))
    np.testing.assert_array_equal(small.numpy(), 1)
    np.testing.assert_array_equal(own.numpy(), world.rank)
    np.testing.assert_array_equal(both.numpy(), (world.size - 1) / 2)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_small_and_varying_variables_are_not_shared(ranks: int) -> None:
    if ranks > 1:
        run_in_world(what_is_not_shared, "shm", ranks)
    else:
        run_in_world(same_training, "shm", 1, rules=[], clip=None, dtype="float32")


def refusals() -> None:
    """Steps that would write a shared variable in another way are rejected, with both names."""
    world = ngd.init()
    w = ngd.variable("w", np.zeros(5000, np.float32))
    x = ngd.placeholder("x", (5000,))
    updates = {w: w + ops.all_reduce(x, op="sum")}
    plain = ngd.compile([x], [], updates)
    plain(np.ones(5000, np.float32))
    with pytest.raises(ValueError, match="shard: expected 'none', 'host' or 'world'; got 'hosts'"):
        ngd.compile([x], [], updates, shard="hosts")
    step = ngd.compile([x], [], updates, shard="host")
    with pytest.raises(ngd.errors.CompileError, match="the ranks share variable 'w' since"):
        plain(np.ones(5000, np.float32))
    with pytest.raises(ngd.errors.CompileError, match="needs shard='host' or 'world'"):
        ngd.compile([x], [], {w: w * 2})
    with pytest.raises(ngd.errors.CompileError, match="value that is proved equal on all ranks"):
        ngd.compile([x], [], {w: w + x}, shard="host")
    half = world.split(world.rank % 2)
    if half.size > 1:
        with pytest.raises(ngd.errors.CompileError, match="whose ranks share variable"):
            ngd.compile([x], [], {w: w * 3}, shard="host", group=half)
    step(np.ones(5000, np.float32))
    np.testing.assert_array_equal(w.numpy(), 2 * world.size)
    mean = ops.all_reduce(x, op="mean")
    different = ngd.variable("different", np.full(5000, world.rank, np.float32))
    with pytest.raises(ValueError, match="other values on rank"):
        ngd.compile([x], [], {different: different * mean}, shard="host")
    ngd.broadcast_variables([different], root=1)
    ngd.compile([x], [], {different: different * mean}, shard="host")(np.full(5000, 2, np.float32))
    np.testing.assert_array_equal(different.numpy(), 2)
    new = ngd.variable("new", np.zeros(5000, np.float32))
    with pytest.raises(ngd.errors.CompileError, match="expected one step on all ranks"):
        ngd.compile([x], [], {new: new + mean * (1.0 + world.rank)}, shard="host")
    ngd.compile([], [], {w: w}, shard="host")()
    ngd.compile([], [], {w: w * 1.0})()
    np.testing.assert_array_equal(w.numpy(), 2 * world.size)


@pytest.mark.parametrize("ranks", [2, 4])
def test_conflicting_steps_are_rejected(ranks: int) -> None:
    run_in_world(refusals, "shm", ranks)


def what_is_not_equal() -> None:
    """Variables that differ between the ranks are not shared, whatever the reason."""
    world = ngd.init()
    n, rank, size = 4000, world.rank, world.size
    x = ngd.placeholder("x", (n,))
    ones = np.ones(n, np.float32)
    mean = ops.all_reduce(x, op="mean")

    def check(update: Any, want: float, *, shared: bool = False, differs: str = "") -> None:
        w = ngd.variable("w", np.zeros(n, np.float32))
        step = ngd.compile([x], [], update(w), shard="host")
        assert (step.memory()["sharded"] > 0) == shared
        if differs:
            with pytest.raises(ngd.errors.VariableMismatchError, match=f"for '{differs}'"):
                step(ones)
        else:
            step(ones)
        np.testing.assert_array_equal(w.numpy(), np.float32(want))

    own = ngd.variable("own", np.zeros(3, np.float32))
    check(lambda w: {w: w + mean + own[0], own: own + x[:3] * (1.0 + rank)}, 1, differs="own")
    # By the value that another step has written.
    check(lambda w: {w: w + mean + own[0]}, 2 + rank, differs="w")
    check(lambda w: {w: w + mean + ops.cast(ops.own_rank(), "float32")}, 1 + rank, differs="w")
    half = world.split(rank % 2)
    c = ngd.variable("c", ones)
    check(lambda w: {w: w + mean + ops.all_reduce(c, op="sum", group=half)}, 1 + half.size)
    check(lambda w: {w: ops.broadcast(x * 2.0, root=size - 1)}, 2, shared=True)


@pytest.mark.parametrize("ranks", [2, 3])
def test_variables_with_different_values_are_not_shared(ranks: int) -> None:
    run_in_world(what_is_not_equal, "shm", ranks)


def what_is_kept_equal() -> None:
    """A small variable that shared ones depend on must be assigned equal values on all ranks."""
    world = ngd.init()
    rate = ngd.variable("rate", np.float32(1))
    w, x = ngd.variable("w", np.zeros(4000, np.float32)), ngd.placeholder("x", (4000,))
    mean = ops.all_reduce(x, op="mean")
    step = ngd.compile([x], [], {w: w + rate * mean}, shard="host")
    rate.assign(3.0)
    step(np.ones(4000, np.float32))
    np.testing.assert_array_equal(w.numpy(), 3)
    with pytest.raises(ValueError, match="one value on all ranks"):
        rate.assign(float(world.rank))
    with pytest.raises(
        ngd.errors.CompileError, match="'rate': expected a next value that is equal"
    ):
        ngd.compile([x], [], {rate: rate + x[0]})
    ngd.compile([], [], {rate: rate * 2.0})()
    step(np.ones(4000, np.float32))
    np.testing.assert_array_equal(w.numpy(), 9)


def test_variables_that_shared_ones_depend_on_stay_equal() -> None:
    run_in_world(what_is_kept_equal, "shm", 2)


def micro_batches() -> None:
    """A sum of gradients differs by rank, even if another step resets it to zeros."""
    world = ngd.init()
    for first in ("accumulate", "update"):
        results = []
        for shard in ("none", "host"):
            net = Net()
            parameters = list(net.parameters.values())
            rule = optim.SGD(0.1, momentum=0.9)
            updates = {
                "accumulate": rule.accumulate(net.loss, parameters),
                "update": rule.minimize(net.loss, parameters, micro_batches=2),
            }
            order = sorted(updates, key=lambda name: name != first)
            steps = {
                name: ngd.compile([net.x, net.t], [], updates[name], shard=shard) for name in order
            }
            assert (steps["update"].memory()["sharded"] > 0) == (shard == "host")
            random = np.random.default_rng(world.rank)
            for _ in range(3):
                steps["accumulate"](*net.batch(random))
                steps["update"](*net.batch(random))
            results.append([v.numpy() for v in parameters])
        for plain, once in zip(*results, strict=True):
            np.testing.assert_array_equal(once, plain)


def test_sums_of_micro_batches_are_not_shared() -> None:
    run_in_world(micro_batches, "shm", 2)


def threads_meanwhile() -> None:
    """Check that no thread reads a variable while it moves into shared memory."""
    world = ngd.init()
    n = 500_000
    w, x = ngd.variable("w", np.ones(n, np.float32)), ngd.placeholder("x", (n,))
    y = w * 0.0
    for _ in range(10):
        y = ops.exp(y) * 0.0
    evaluate = ngd.compile([], [ops.sum(y + w)])
    seen: set[float] = set()
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            with contextlib.suppress(ngd.errors.BusyError):
                seen.add(float(evaluate()[0]) / n)
            with contextlib.suppress(ngd.errors.BusyError):
                seen.add(float(w.numpy()[-1]))
            time.sleep(0.005)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        while True:
            try:
                step = ngd.compile([x], [], {w: w + ops.all_reduce(x, op="mean")}, shard="host")
                break
            except ngd.errors.BusyError:
                time.sleep(0.001)
        time.sleep(0.1)
        assert step.memory()["sharded"] == 4 * n
        world.barrier()
        ngd.shutdown()
        for _ in range(100):
            with contextlib.suppress(ngd.errors.BusyError):
                w.assign(np.ones(n, np.float32))
            time.sleep(0.001)
    finally:
        over.set()
        thread.join()
    assert seen == {1.0}


def test_threads_read_complete_values_during_the_first_build() -> None:
    harness.run(threads_meanwhile, 2)


def interrupted_assignment() -> None:
    """Interrupt a rank that waits in assign. The value that it reads then does not change."""
    world = ngd.init()
    n = 5_000_000
    w, x = ngd.variable("w", np.ones(n, np.float32)), ngd.placeholder("x", (n,))
    ngd.compile([x], [], {w: w + ops.all_reduce(x, op="mean")}, shard="host")
    if world.rank == 1:
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            w.assign(np.full(n, 3, np.float32))
    else:
        time.sleep(0.8)
        with pytest.raises(ngd.errors.CollectiveError):
            w.assign(np.full(n, 3, np.float32))
    time.sleep(0.3)
    with contextlib.suppress(ngd.errors.PoisonedVariableError):
        np.testing.assert_array_equal(w.numpy(), 1)


def test_an_interrupted_assignment_leaves_a_stable_value() -> None:
    harness.run(interrupted_assignment, 2)


def warned_before_the_ranks_agree() -> None:
    """A warning that is raised as an error is raised before the ranks communicate."""
    rank = ngd.init().rank
    weights = ngd.variable("weights", np.ones((128, 128), np.float32))
    mean_input = ngd.variable("mean_input", np.float32(0))

    def compile_for(batch: int) -> Any:
        x = ngd.placeholder("x", (batch, 128))
        gradient = ngd.grad(ops.mean((x @ weights) ** 2), weights)
        updates = {weights: weights - 0.1 * ops.all_reduce(gradient, op="mean")}
        updates[mean_input] = mean_input + ops.mean(x)  # differs between ranks
        return ngd.compile([x], [ops.sum(gradient)], updates, shard="host")

    with warnings.catch_warnings():
        warnings.simplefilter("error", ngd.errors.VaryingVariableWarning)
        with pytest.raises(ngd.errors.VaryingVariableWarning):
            compile_for(4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ngd.errors.VaryingVariableWarning)
        batch = 4 + 2 * rank  # the old batch on rank 0, and another one on rank 1
        assert np.isfinite(compile_for(batch)(np.ones((batch, 128), np.float32))[0])


def test_a_warning_raised_as_an_error_precedes_communication() -> None:
    harness.run(warned_before_the_ranks_agree, 2)


def in_a_child() -> None:
    """A forked child cannot read variables that its parent may be writing."""
    ngd.init()
    w, step = adding(5000)
    step(np.ones(5000, np.float32))
    child = os.fork()
    if child == 0:
        try:
            w.numpy()
        except ngd.errors.GroupClosedError as error:
            os._exit(0 if "got one by a forked child" in str(error) else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    np.testing.assert_array_equal(w.numpy(), 1)


def test_a_forked_child_cannot_read_shared_variables() -> None:
    harness.run(in_a_child, 2)


def after_shutdown() -> None:
    """After the group is closed, each rank has private values, and may share them again."""
    world = ngd.init()
    w = ngd.variable("w", np.zeros(5000, np.float32))
    x = ngd.placeholder("x", (5000,))
    updates = {w: w + ops.all_reduce(x, op="sum")}
    plain = ngd.compile([], [], {w: w * 2.0})
    step = ngd.compile([x], [], updates, shard="host")
    reader = ngd.compile([], [w + 0.0])
    step(np.ones(5000, np.float32))
    size, rank = world.size, world.rank
    ngd.shutdown()
    np.testing.assert_array_equal(w.numpy(), size)
    np.testing.assert_array_equal(reader()[0], size)
    plain()
    np.testing.assert_array_equal(w.numpy(), 2 * size)
    w.assign(np.full(5000, rank, np.float32))  # different values on each rank
    np.testing.assert_array_equal(reader()[0], rank)
    ngd.init()
    ngd.broadcast_variables([w], root=size - 1)
    again = ngd.compile([x], [], {w: w + ops.all_reduce(x, op="sum")}, shard="host")
    again(np.ones(5000, np.float32))
    np.testing.assert_array_equal(w.numpy(), 2 * size - 1)
    np.testing.assert_array_equal(reader()[0], 2 * size - 1)


@pytest.mark.parametrize("ranks", [2, 3])
def test_after_shutdown_each_rank_has_private_values(ranks: int) -> None:
    harness.run(after_shutdown, ranks)


def with_other_options() -> None:
    """Use bfloat16, and a memory limit. The bits are those of one copy per rank."""
    world = ngd.init()
    for how in ({"precision": "bfloat16"}, {"memory_limit": 10**6}):
        results = []
        for shard in ("none", "host"):
            net = Net()
            updates = optim.AdamW(1e-2).minimize(net.loss, list(net.parameters.values()))
            step = ngd.compile([net.x, net.t], [net.loss], updates, shard=shard, **how)
            random = np.random.default_rng(world.rank)
            for _ in range(5):
                step(*net.batch(random))
            results.append({v.name: v.numpy() for v in updates})
        for name, value in results[0].items():
            np.testing.assert_array_equal(results[1][name], value, err_msg=f"{how} {name}")


def test_sharding_works_with_other_options() -> None:
    run_in_world(with_other_options, "shm", 2)


def without_common_memory() -> None:
    """Over MPI only, each rank keeps a copy, with equal results."""
    losses, shared, memory = trained("adamw", 1.0, "host", np.float32)
    assert memory["sharded"] == 0
    plain, variables, _ = trained("adamw", 1.0, "none", np.float32)
    assert losses == plain
    for name, value in variables.items():
        np.testing.assert_array_equal(shared[name], value)


@harness.needs_mpi
def test_ranks_without_shared_memory_keep_copies() -> None:
    run_in_world(without_common_memory, "mpi", 2)


def on_the_interpreter() -> None:
    """On the INTERPRETER, each rank keeps a copy, with equal results."""
    net, results = Net(np.float64), []
    for device in ("CPU", "INTERPRETER"):
        net = Net(np.float64)
        updates = optim.AdamW(1e-2).minimize(net.loss, list(net.parameters.values()))
        how: dict[str, Any] = {"shard": "host", "device": device}
        step = ngd.compile([net.x, net.t], [net.loss], updates, **how)
        random = np.random.default_rng(ngd.init().rank)
        for _ in range(4):
            step(*net.batch(random))
        results.append({v.name: v.numpy() for v in updates})
    for name, value in results[0].items():
        np.testing.assert_allclose(results[1][name], value, rtol=1e-11, atol=1e-13)


def test_the_interpreter_keeps_copies() -> None:
    run_in_world(on_the_interpreter, "shm", 2)


def adding(n: int) -> tuple[ngd.Variable, Any]:
    """Return a variable of n elements, and a step that adds 1 to it."""
    w, x = ngd.variable("w", np.zeros(n, np.float32)), ngd.placeholder("x", (n,))
    return w, ngd.compile([x], [], {w: w + ops.all_reduce(x, op="mean")}, shard="host")


def loses_a_rank() -> None:
    """Let rank 1 die between two steps. No variable is half written, and rank 0 is notified."""
    world = ngd.init()
    w, step = adding(100_000)
    ones = np.ones(100_000, np.float32)
    for _ in range(3):
        step(ones)
    world.barrier()
    if world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(ngd.errors.RankLostError, match="rank 1"):
        step(ones)
    np.testing.assert_array_equal(w.numpy(), 3)
    w.assign(ones)
    np.testing.assert_array_equal(w.numpy(), 1)


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_rank_dies_between_two_steps(ranks: int) -> None:
    with Job(loses_a_rank, ranks) as job:
        for rank, outcome in enumerate(job.wait(60)):
            assert outcome.code == (-signal.SIGKILL if rank == 1 else 0), job.everything


def trains_until_a_death() -> str:
    """Read the variable after the death of a rank: it has the value of whole steps."""
    world = ngd.init()
    w, step = adding(100_000)
    ones, done = np.ones(100_000, np.float32), 0

    def train() -> None:
        nonlocal done
        while True:
            step(ones)
            done += 1
            if done == 20:
                say("ready")

    with pytest.raises(ngd.errors.RankLostError, match=f"rank {world.size - 1}"):
        train()
    try:
        value = w.numpy()
    except ngd.errors.PoisonedVariableError:
        w.assign(np.zeros(100_000, np.float32))
        np.testing.assert_array_equal(w.numpy(), 0)
        return "poisoned"
    np.testing.assert_array_equal(value, done)
    return "whole"


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.long)])
def test_a_rank_may_be_killed_at_any_time(ranks: int) -> None:
    for turn in range(4):
        with Job(trains_until_a_death, ranks) as job:
            job.wait_for(0, "ready")
            time.sleep(0.003 * turn + 0.0007)
            job.kill(ranks - 1)
            for outcome in job.wait(60)[:-1]:
                assert outcome.code == 0, job.everything
                assert outcome.value in ("poisoned", "whole"), job.everything


def fails_while_others_write() -> None:
    """Let a rank fail after the first collective. The variables are poisoned on all ranks."""
    world = ngd.init()
    n = 100_000
    w, x = ngd.variable("w", np.zeros(n, np.float32)), ngd.placeholder("x", (n,))
    # NGD_CHECK_FINITE lets rank 0 fail in its update, because only its shard becomes infinite.
    grown = (w + 1e38) + ops.all_reduce(x, op="mean")
    step = ngd.compile([x], [], {w: grown}, shard="host")
    given = np.zeros(n, np.float32)
    given[0] = 1e38
    error = ngd.errors.NotFiniteError if world.rank == 0 else ngd.errors.RemoteRankError

    def train() -> None:
        for _ in range(4):
            step(given)

    with pytest.raises(error, match="NGD_CHECK_FINITE"):
        train()
    with pytest.raises(ngd.errors.PoisonedVariableError, match="w"):
        w.numpy()
    w.assign(given)
    np.testing.assert_array_equal(w.numpy(), given)


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_rank_that_fails_during_the_update_poisons_the_variables(ranks: int) -> None:
    harness.run(fails_while_others_write, ranks, env={"NGD_CHECK_FINITE": "1"})
