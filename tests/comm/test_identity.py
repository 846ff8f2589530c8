# SPDX-License-Identifier: Apache-2.0
"""Tests of mismatches between calls of equal size: lists, shapes, and steps."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ngd
from ngd import nn, ops, optim
from tests.support import harness
from tests.support.harness import caught
from tests.support.standing import fail_in_world, run_in_world

pytestmark = harness.needs_ranks
each_communicator = pytest.mark.parametrize("communicator", harness.communicators())


def arrays(*shapes: Any, dtype: str = "f4") -> list[Any]:
    return [np.ones(shape, dtype) for shape in shapes]


LONG = [5] * 40

# The call of rank 0, the call of the other ranks, and words of the error.
DISAGREEMENTS: dict[str, tuple[Callable[[], Any], Callable[[], Any], list[str]]] = {
    "sizes": (
        lambda: ngd.all_reduce(arrays(2, 3), op="sum"),
        lambda: ngd.all_reduce(arrays(3, 2), op="sum"),
        ["a list of 2 float32, 3 float32", "a list of 3 float32, 2 float32"],
    ),
    "asynchronous sizes": (
        lambda: ngd.all_reduce(arrays(2, 3), op="sum", async_op=True).wait(),
        lambda: ngd.all_reduce(arrays(3, 2), op="sum", async_op=True).wait(),
        ["a list of 2 float32", "a list of 3 float32"],
    ),
    "long lists": (
        lambda: ngd.all_reduce(arrays(*LONG, 2, 3), op="sum"),
        lambda: ngd.all_reduce(arrays(*LONG, 3, 2), op="sum"),
        ["a list of 42 arrays, number 40 of 2 float32", "number 40 of 3 float32"],
    ),
    "very long lists": (
        lambda: ngd.all_reduce(arrays(*LONG, *LONG, 2, 3), op="sum"),
        lambda: ngd.all_reduce(arrays(*LONG, *LONG, 3, 2), op="sum"),
        ["a list of 82 arrays"],
    ),
    "lengths of lists": (
        lambda: ngd.all_reduce(arrays(2, 2, 2), op="sum"),
        lambda: ngd.all_reduce(arrays(3, 3), op="sum"),
        ["a list of 2 float32, 2 float32, 2 float32", "a list of 3 float32, 3 float32"],
    ),
    "broadcast": (
        lambda: ngd.broadcast(arrays(2, 3)),
        lambda: ngd.broadcast(arrays(3, 2)),
        ["a list of 2 float32", "a list of 3 float32"],
    ),
    "dtypes in order": (
        lambda: ngd.all_reduce([*arrays(2), *arrays(2, dtype="f8"), *arrays(3)], op="sum"),
        lambda: ngd.all_reduce([*arrays(2, 3), *arrays(2, dtype="f8")], op="sum"),
        ["2 float32, 2 float64, 3 float32", "2 float32, 3 float32, 2 float64"],
    ),
    "weighted": (
        lambda: ngd.all_reduce(arrays(2, 3), op="mean", weight=1.0),
        lambda: ngd.all_reduce(arrays(3, 2), op="mean", weight=1.0),
        ["a list of 2 float32", "a list of 3 float32"],
    ),
    "bf16": (
        lambda: ngd.all_reduce(arrays(2, 3), op="sum", compression="bf16"),
        lambda: ngd.all_reduce(arrays(3, 2), op="sum", compression="bf16"),
        ["a list of 2 bfloat16", "a list of 3 bfloat16"],
    ),
    "top k": (
        lambda: ngd.all_reduce(np.ones(10), op="sum", compression=ngd.TopK(0.1)),
        lambda: ngd.all_reduce(np.ones(9), op="sum", compression=ngd.TopK(0.1)),
        ["shape (10)", "shape (9)"],
    ),
    "top k op": (
        lambda: ngd.all_reduce(np.ones(10), op="sum", compression=ngd.TopK(0.1)),
        lambda: ngd.all_reduce(np.ones(10), op="mean", compression=ngd.TopK(0.1)),
        ["with other options"],
    ),
    "shapes": (
        lambda: ngd.all_reduce(np.ones((2, 3)), op="sum"),
        lambda: ngd.all_reduce(np.ones((3, 2)), op="sum"),
        ["shape (2, 3)", "shape (3, 2)"],
    ),
    "a row": (
        lambda: ngd.all_reduce(np.ones((2, 3)), op="sum"),
        lambda: ngd.all_reduce(np.ones(6), op="sum"),
        ["shape (2, 3)", "an array of one axis"],
    ),
    "large": (
        lambda: ngd.all_reduce(np.ones((200, 300)), op="sum"),
        lambda: ngd.all_reduce(np.ones((300, 200)), op="sum", async_op=True).wait(),
        ["shape (200, 300)", "shape (300, 200)"],
    ),
    "axes": (
        lambda: ngd.all_gather(np.ones((2, 2)), axis=0),
        lambda: ngd.all_gather(np.ones((2, 2)), axis=1),
        ["along another axis"],
    ),
    "rows": (
        lambda: ngd.all_gather_v(np.ones((2, 2, 3)), counts=[2] * ngd.init().size),
        lambda: ngd.all_gather_v(np.ones((2, 3, 2)), counts=[2] * ngd.init().size),
        ["shape (2, 3)", "shape (3, 2)"],
    ),
    "scatter": (
        lambda: ngd.scatter(np.ones((ngd.init().size, 2, 3))),
        lambda: ngd.scatter(shape=(1, 3, 2), dtype="f8"),
        ["shape (2, 3)", "shape (3, 2)"],
    ),
}


def disagree(names: list[str]) -> list[dict[str, str]]:
    errors = []
    for name in names:
        world = ngd.init()
        call = DISAGREEMENTS[name][min(world.rank, 1)]
        errors.append(caught(lambda call=call: (call(), ngd.barrier())))
        ngd.shutdown()
    return errors


@each_communicator
@pytest.mark.parametrize("ranks", [2, 3])
def test_different_lists_and_shapes_are_a_mismatch(communicator: str, ranks: int) -> None:
    names = list(DISAGREEMENTS)
    for outcome in fail_in_world(disagree, communicator, ranks, names=names):
        for name, error in zip(names, outcome.value, strict=True):
            assert error["error"] == "CollectiveMismatchError", (name, error)
            for word in DISAGREEMENTS[name][2]:
                assert word in error["message"], (name, error)
            assert error["message"].count("test_identity.py:") >= 2, (name, error)


def call_equal_collectives() -> None:
    """Make calls that mean the same: axes of length 1, and lists of one array."""
    world = ngd.init()
    n, r = world.size, world.rank
    shapes: list[Any] = [(6,), (1, 6), (6, 1), (1, 6, 1)]
    assert ngd.all_reduce(np.ones(shapes[r % 4]), op="sum").sum() == 6 * n
    assert ngd.all_reduce(np.ones((1,)) if r else 1.0, op="sum").sum() == n
    one = np.ones((2, 3))
    result = ngd.all_reduce([one] if r else one, op="sum")
    assert np.ravel(result).tolist() == [n] * 6
    lists = ngd.all_reduce([np.ones((2, 1, 3)) if r else one, np.ones(0)], op="sum")
    assert lists[0].sum() == 6 * n
    rows = ngd.all_gather_v(np.ones((r + 1, 2, 3)))
    assert rows.shape == (n * (n + 1) // 2, 2, 3)
    other = np.empty((3, 2))  # a message has only a number of elements; the receiver shapes it
    if r == 0:
        ngd.send(one, 1)
    elif r == 1:
        assert ngd.recv(0, out=other) is other


@pytest.mark.parametrize(("communicator", "ranks"), harness.worlds(2, 3, 4))
def test_equal_calls_in_different_forms_agree(communicator: str, ranks: int) -> None:
    run_in_world(call_equal_collectives, communicator, ranks)


# Steps.


def steps_of(device: str) -> tuple[Any, Any]:
    """Return two steps from two lines with equal collectives and different computations."""
    x = ngd.placeholder("x", (3,))
    twice = ngd.compile([x], [ops.all_reduce(x * 2, op="sum")], device=device)
    thrice = ngd.compile([x], [ops.all_reduce(x * 3, op="sum")], device=device)
    return twice, thrice


def call_steps_in_another_order(devices: list[str], what: str) -> dict[str, str]:
    world = ngd.init()
    device = devices[world.rank]
    x = ngd.placeholder("x", (3,))
    first, second = steps_of(device)
    if what == "outputs":
        y = ops.all_reduce(x, op="sum")
        first, second = (ngd.compile([x], [y * k], device=device) for k in (1.5, 2.5))
    if what == "updates":
        v, w = (ngd.variable(name, np.zeros(3, np.float32)) for name in "vw")
        y = ops.all_reduce(x, op="sum")
        first, second = (ngd.compile([x], [y], {each: y}, device=device) for each in (v, w))
    order = [first, second] if world.rank else [second, first]
    return caught(lambda: [step(np.ones(3, np.float32)) for step in order] and None)


@each_communicator
@pytest.mark.parametrize("what", ["operands", "outputs", "updates"])
@pytest.mark.parametrize(
    "devices", [["CPU"] * 3, ["INTERPRETER"] * 3, ["CPU", "INTERPRETER", "CPU"]]
)
def test_steps_in_another_order_are_a_mismatch(
    communicator: str, devices: list[str], what: str
) -> None:
    for outcome in fail_in_world(
        call_steps_in_another_order, communicator, 3, devices=devices, what=what
    ):
        error = outcome.value
        assert error["error"] == "CollectiveMismatchError", error
        assert "rank 0: the step with " in error["message"], error
        assert "All ranks must call the same steps in the same order" in error["message"], error
        assert "whose collectives are the same" in error["message"], error
        assert error["message"].count("compiled at ") == 2, error
        assert error["message"].count("test_identity.py:") >= 4, error


def call_different_steps() -> None:
    """Call steps that legitimately differ between ranks."""
    world = ngd.init()
    n, r = world.size, world.rank
    ones = np.ones(3, np.float32)
    for device in ("CPU", "INTERPRETER"):
        x = ngd.placeholder("x", (3,))
        y = ops.all_reduce(x, op="sum")
        own = {"constant": x * float(r + 1), "branch": x if r else ops.tanh(x) + x * 2}
        for operand in own.values():
            ngd.compile([x], [ops.all_reduce(operand, op="sum")], device=device)(ones)
        ngd.compile([x], [y, y + 1] if r == 0 else [y], device=device)(ones)
        mine = ngd.variable(f"shard{r}", ones, per_rank=True)
        ngd.compile([x], [ops.all_reduce(mine * x, op="sum")], {mine: mine + x}, device=device)(
            ones
        )
        kind = ["CPU", "INTERPRETER"][r % 2]
        assert ngd.compile([x], [y * 3], device=kind)(ones)[0].tolist() == [3 * n] * 3
        w = ngd.variable("w", ones)
        update = {w: w - 0.1 * y}
        step = ngd.compile([x], [], update, device=device)
        verbose = ngd.compile([x], [y, w * 2], update, device=device)  # compiled on all ranks
        for number in range(4):
            (verbose if number % n == r else step)(
                ones
            )  # one rank at a time calls the verbose step
        for rows in (r + 1, 1 if r == 0 else 5):
            batch = ngd.placeholder("batch", (rows, 3))
            loss = ops.mean(
                ops.square(batch @ np.ones((3, 2), np.float32) + np.ones(rows)[:, None])
            )
            steps = [
                ngd.compile([batch], [ops.all_reduce(loss, op=op)], device=device)
                for op in ("sum", "mean")
            ]
            for each in steps:
                each(np.ones((rows, 3), np.float32))
        if n > 1:
            half = world.split(r % 2)
            z = ops.all_reduce(x, op="sum", group=half)
            step = ngd.compile([x], [z, ops.reduce(x, op="mean", root=0)], device=device)
            step(ones)
            token = (
                ops.send(x, 1)
                if r == 0
                else ops.recv(0, shape=(3,), dtype="float32")
                if r == 1
                else x
            )
            ngd.compile([x], [token, y], device=device)(ones)
        assert step.compare_ranks()


@pytest.mark.parametrize(("communicator", "ranks"), harness.worlds(1, 2, 3))
def test_steps_may_compute_different_things_around_equal_collectives(
    communicator: str, ranks: int
) -> None:
    run_in_world(call_different_steps, communicator, ranks)


def batch_norm_loss(x: Any, w: Any) -> Any:
    norm = nn.BatchNorm1d(2)
    with nn.training() as state:
        y = norm(x * w)
    return ops.sum(y * x) + sum(ops.sum(v) for v in state.updates.values())


# Losses of x[rows, 2]. Their graphs contain numbers that depend on the number of rows.
LOSSES: dict[str, Callable[[Any, Any], Any]] = {
    "mean": lambda x, w: ops.mean(ops.square(x @ w)),
    "var": lambda x, w: ops.var(x * w, 0, ddof=1)[0],
    "std": lambda x, w: ops.std(x @ w),
    "cov": lambda x, w: ops.sum(ops.cov(x * w, rowvar=False)),
    "batchmean": lambda x, w: ops.kl_div(x * w, ops.abs(x), reduction="batchmean"),
    "cross_entropy": lambda x, w: ops.mean(ops.softmax_cross_entropy(x * w, ops.argmax(x, 1))),
    "batch_norm": batch_norm_loss,
    "take": lambda x, w: ops.sum(ops.take(x * w, np.array([0]), 0)),
    "scan": lambda x, w: ops.scan(lambda total, row: (total + row @ w, total), 0.0, x)[0],
}
# The same only for ngd.function: plain Python numbers, and positions from the end.
LOSSES_OF_FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    **LOSSES,
    "len": lambda x, w: ops.sum(x @ w) / x.shape[0],
    "positions": lambda x, w: ops.sum((x @ w) * np.arange(x.shape[0], dtype=np.float32)),
    "last": lambda x, w: ops.sum(ops.square(x[1:] @ w - x[:-1] @ w)) + x[-1] @ w,
}
ROWS = ((3, 3, 3), (3, 2, 4), (4, 3, 3), (2, 2, 2), (2, 4, 3))


def train_on_different_lengths(names: list[str]) -> None:
    """Train on batches of different lengths per rank. Some lengths are new, some are not."""
    world = ngd.init()
    for name in names:
        w = ngd.variable(f"{name}.w", np.ones(2, np.float32))
        optimizer = optim.SGD(0.1)

        def train(x: Any, name: str = name, w: Any = w, optimizer: Any = optimizer) -> Any:
            loss = ops.reshape(LOSSES_OF_FUNCTIONS[name](x, w), ())
            return loss, optimizer.minimize(loss, [w])

        def compiled(rows: int, train: Any = train) -> Any:
            x = ngd.placeholder("x", (rows, 2))
            return ngd.compile([x], *train(x))

        steps = {rows: compiled(rows) for rows in range(1, 5)} if name in LOSSES else {}
        function = ngd.function(train, updates=True)
        for rows in ROWS:
            batch = np.arange(8, dtype=np.float32).reshape(4, 2)[: rows[world.rank]]
            function(batch)
            if steps:
                steps[len(batch)](batch)
        equal = ngd.all_gather(w.numpy()[None])
        assert (equal == equal[0]).all(), name


@pytest.mark.long
@pytest.mark.parametrize("name", list(LOSSES_OF_FUNCTIONS))
@pytest.mark.parametrize(("communicator", "ranks"), harness.worlds(2, 3))
def test_batches_of_different_lengths_are_not_a_mismatch(
    communicator: str, ranks: int, name: str
) -> None:
    run_in_world(train_on_different_lengths, communicator, ranks, names=[name])


def call_functions_in_another_order(what: str) -> dict[str, str]:
    world = ngd.init()

    def scaled(x: Any, factor: int) -> Any:
        return ops.all_reduce(x * factor, op="sum")

    one, other = ngd.function(scaled), ngd.function(scaled)
    first = functools.partial(one, factor=2)
    second = functools.partial(other if what == "functions" else one, factor=3)
    x = np.ones(3, np.float32)
    both = [first, second]

    def call() -> None:
        for step in [*both, *(both[::-1] if world.rank else both)]:
            step(x)

    return caught(call)


@each_communicator
@pytest.mark.parametrize("what", ["functions", "fixed arguments"])
def test_functions_in_another_order_are_a_mismatch(communicator: str, what: str) -> None:
    for outcome in fail_in_world(call_functions_in_another_order, communicator, 2, what=what):
        error = outcome.value
        assert error["error"] == "CollectiveMismatchError", error
        assert "whose collectives are the same" in error["message"], error


def compare_computations() -> list[str]:
    world = ngd.init()
    first, second = steps_of("CPU")
    return [first.compare_ranks(), (first if world.rank else second).compare_ranks()]


@each_communicator
def test_compare_ranks_shows_another_computation(communicator: str) -> None:
    for outcome in run_in_world(compare_computations, communicator, 2):
        same, other = outcome.value
        assert same == "world: all 2 ranks agree, 1 collectives"
        assert other.startswith(f"{same}; rank 1 has other computations than rank 0:"), other
        assert other.count("compiled at ") == 2
        assert other.count("test_identity.py:") == 2
