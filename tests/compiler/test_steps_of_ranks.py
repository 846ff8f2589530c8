# SPDX-License-Identifier: Apache-2.0
"""Tests of steps that differ between the ranks: in shards, constants, memory limits and errors."""

from __future__ import annotations

import signal
import time
from typing import Any

import numpy as np
import pytest

import ngd
from ngd import ops
from ngd.comm.world import alone
from tests.support import harness
from tests.support.harness import Job, caught
from tests.support.standing import run_in_world

over = pytest.mark.parametrize("communicator", harness.communicators())
DEVICES = ("CPU", "INTERPRETER")


def one_operand_many_collectives() -> None:
    """Run pending collectives over one operand. The last one could work in place."""
    world = ngd.init()
    x = ngd.placeholder("x", (70_000,), np.float64)
    y = x * 1.5
    outputs = [ops.all_reduce(y, op=op) for op in ("sum", "max", "min")]
    outputs += [
        ops.broadcast(y, root=world.size - 1),
        ops.all_reduce(y, op="sum", algorithm="ring"),
    ]
    outputs += [ops.all_reduce(x, op="sum"), ops.all_reduce(outputs[0], op="mean")]
    step = ngd.compile([x], outputs)
    for i in range(30):
        given = [np.arange(70_000.0) % 97 + r + i for r in range(world.size)]
        total = np.sum(given, axis=0) * 1.5
        got = step(given[world.rank])
        wants = [total, given[-1] * 1.5, given[0] * 1.5, given[-1] * 1.5, total, total / 1.5, total]
        for result, want in zip(got, wants, strict=True):
            np.testing.assert_array_equal(result, want)


@over
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_pending_collectives_may_share_an_operand(communicator: str, ranks: int) -> None:
    run_in_world(one_operand_many_collectives, communicator, ranks)


def constants_of_a_rank() -> None:
    """Reduce a value that is equal to another one on rank 0 only. It is merged on no rank."""
    world = ngd.init()
    x = ngd.placeholder("x", (3,), np.float64)
    factor = ngd.constant(np.float64(1 if world.rank == 0 else 2))
    step = ngd.compile(
        [x], [ops.all_reduce(x * factor, op="sum"), ops.all_reduce(x * 1.0, op="sum")]
    )
    scaled, plain = step(np.ones(3))
    np.testing.assert_array_equal(plain, world.size)
    np.testing.assert_array_equal(scaled, 2 * world.size - 1)


@over
@pytest.mark.parametrize("ranks", [2, 3])
def test_equal_operands_on_one_rank_only_are_not_merged(communicator: str, ranks: int) -> None:
    run_in_world(constants_of_a_rank, communicator, ranks)


def shards_that_broadcast() -> None:
    """Compare shards of 1, 2 and 3 rows, and biases of both shapes, with one process."""
    world = ngd.init()
    rng = np.random.default_rng(0)
    data = rng.standard_normal((6, 4))
    start = [0, 1, 3, 6]
    for bias_shape in ((3,), (1, 3)):
        variables = [
            ngd.variable("w0", rng.standard_normal((4, 3))),
            ngd.variable("b0", rng.standard_normal(bias_shape)),
            ngd.variable("w1", rng.standard_normal((3, 2))),
            ngd.variable("b1", rng.standard_normal((*bias_shape[:-1], 2))),
        ]

        def gradients(rows: int, group: Any, device: str, variables: Any = variables) -> Any:
            w0, b0, w1, b1 = variables
            x = ngd.placeholder("x", (rows, 4), np.float64)
            weight = ngd.placeholder("weight", (), np.float64)
            out = ops.tanh(x @ w0 + b0) @ w1 + b1
            grads = ngd.grad(ops.mean(out * out), variables)
            reduced = [ops.all_reduce(g, op="mean", weight=weight) for g in grads]
            return ngd.compile([x, weight], reduced, device=device, group=group)

        wants = gradients(start[world.size], alone(), "CPU")(data[: start[world.size]], 1.0)
        mine = data[start[world.rank] : start[world.rank + 1]]
        for device in DEVICES:
            got = gradients(len(mine), world, device)(mine, float(len(mine)))
            for result, want in zip(got, wants, strict=True):
                np.testing.assert_allclose(result, want, rtol=1e-12, atol=1e-14)


@over
@pytest.mark.parametrize("ranks", [2, 3])
def test_gradients_of_uneven_shards_equal_those_of_one_process(
    communicator: str, ranks: int
) -> None:
    run_in_world(shards_that_broadcast, communicator, ranks)


def fails_alone(device: str) -> dict[str, str]:
    """Give rank 0 a label out of range. It catches the error and continues."""
    world = ngd.init()
    logits = ngd.placeholder("logits", (2, 3), np.float64)
    labels = ngd.placeholder("labels", (2,), np.int64)
    loss = ops.all_reduce(ops.mean(ops.softmax_cross_entropy(logits, labels)), op="mean")
    step = ngd.compile([logits, labels], [loss], device=device)
    good, bad = np.array([0, 1]), np.array([0, 7])
    step(np.zeros((2, 3)), good)
    if world.rank == 0:
        with pytest.raises(ValueError, match="7"):
            step(np.zeros((2, 3)), bad)
    return caught(lambda: [step(np.zeros((2, 3)), good) for _ in range(3)])


@over
@pytest.mark.parametrize("device", DEVICES)
def test_a_rank_that_fails_alone_never_shifts_the_sequence(communicator: str, device: str) -> None:
    with Job(fails_alone, 2, **harness.over(communicator, arguments={"device": device})) as job:
        first, second = job.wait(60)
    assert first.value["error"] == "GroupClosedError", first
    assert second.value["error"] == "RemoteRankError", second
    assert "rank 0" in second.value["message"]
    assert "7" in second.value["message"]


def bytes_and_halves() -> None:
    """Reduce an array of the other byte order, and float16 with a weight beyond its range."""
    world = ngd.init()
    swapped = ngd.all_reduce(np.array([1, 2, 3], ">f4"), op="sum")
    np.testing.assert_array_equal(swapped, np.array([1, 2, 3]) * world.size)
    half = ngd.all_reduce(np.full(4, 3, np.float16), op="mean", weight=70000.0)
    assert half.dtype == np.float16
    np.testing.assert_array_equal(half, 3)


@over
@pytest.mark.parametrize("ranks", [1, 2])
def test_byte_orders_and_large_weights_of_float16_are_converted(
    communicator: str, ranks: int
) -> None:
    run_in_world(bytes_and_halves, communicator, ranks)


def held_variable(device: str) -> dict[str, Any]:
    """Let a signal handler use the variable of a step that waits for a late rank."""
    world = ngd.init()
    v = ngd.variable("weights", np.zeros(3))
    step = ngd.compile([], [], updates={v: ops.all_reduce(v + 1, op="sum")}, device=device)
    step()
    errors: dict[str, Any] = {}

    def ask(number: int, frame: Any) -> None:
        errors["numpy"] = caught(v.numpy)
        errors["assign"] = caught(lambda: v.assign(np.ones(3)))
        errors["step"] = caught(step)

    if world.rank == 0:
        signal.signal(signal.SIGALRM, ask)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
    else:
        time.sleep(1)
    step()
    step()  # the group is still open, and the variable is not locked
    return {**errors, "value": v.numpy().tolist()}


@over
@pytest.mark.parametrize("device", DEVICES)
def test_a_signal_handler_that_uses_the_variable_of_a_step_gets_busy_error(
    communicator: str, device: str
) -> None:
    job = harness.over(communicator, arguments={"device": device})
    first, second = harness.run(held_variable, 2, **job)
    for what in ("numpy", "assign", "step"):
        assert first.value[what]["error"] == "BusyError", first.value[what]
        assert "variable 'weights' is written by a step" in first.value[what]["message"]
    assert first.value["value"] == second.value["value"] == [14, 14, 14]


def train(precision: str, limits: tuple[float, ...]) -> dict[str, Any]:
    """Take ten data-parallel steps with another memory limit on each rank, or without one."""
    world = ngd.init()
    draw = np.random.default_rng(1)
    x = ngd.placeholder("x", (256, 64), np.float32)
    weights = [
        ngd.variable(f"w{n}", (draw.standard_normal((64, 64)) / 8).astype(np.float32))
        for n in range(8)
    ]
    before = [w.numpy() for w in weights]
    y = x
    for w in weights:
        y = ops.relu(ops.tanh(y @ w) * 2 + 0.1) * y
    slopes = ngd.grad(ops.mean(y * y), weights)
    updates = {
        w: w - 0.001 * ops.all_reduce(slope, op="mean")
        for w, slope in zip(weights, slopes, strict=True)
    }

    def final(limit: float) -> tuple[list[Any], int]:
        plain = ngd.compile([x], [], updates, precision=precision)
        arenas = plain.memory()["private"] + plain.memory()["shared"]
        most = int(limit * arenas) if limit else None
        step = ngd.compile([x], [], updates, precision=precision, memory_limit=most)
        for w, value in zip(weights, before, strict=True):
            w.assign(value)
        shards = np.random.default_rng(2)
        for _ in range(10):
            step(shards.standard_normal((world.size, 256, 64)).astype(np.float32)[world.rank])
        return [w.numpy() for w in weights], step.memory()["recomputed"]

    plain, _ = final(0)
    limited, recomputed = final(limits[world.rank])
    apart = max(float(np.abs(a - b).max()) for a, b in zip(plain, limited, strict=True))
    return {"apart": apart, "recomputed": recomputed, "sum": float(np.sum(limited, dtype=float))}


@over
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("limits", [(0.9,), (0.9, 0.8), (0.9, 0, 0.85)])
def test_ranks_may_have_different_memory_limits(
    communicator: str, limits: tuple[float, ...], precision: str
) -> None:
    ends = run_in_world(train, communicator, len(limits), precision=precision, limits=limits)
    outcomes = [end.value for end in ends]
    # In bfloat16, a rematerialised value is not rounded between its ops.
    assert max(outcome["apart"] for outcome in outcomes) <= (0 if precision == "float32" else 0.1)
    assert [outcome["recomputed"] > 0 for outcome in outcomes] == [limit > 0 for limit in limits]
    assert len({outcome["sum"] for outcome in outcomes}) == 1


def interrupted_in_a_step() -> dict[str, Any]:
    """Interrupt rank 0 between two matmuls, while rank 1 waits in its all-reduce."""
    world = ngd.init()
    a = np.ones((384, 384), np.float32)
    x = ngd.placeholder("x", a.shape)
    product = ops.scan(lambda c, _: (ops.matmul(c, c) * (1 / 384), None), x, length=1500)[0]
    w = ngd.variable("w", np.zeros(a.shape, np.float32))
    step = ngd.compile([x], [], {w: ops.all_reduce(product, op="sum")})
    begin = time.monotonic()
    if world.rank == 0:
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(KeyboardInterrupt):
            step(a)
    seconds = time.monotonic() - begin
    return {**caught(lambda: step(a)), "seconds": seconds, "sum": float(w.numpy().sum())}


@pytest.mark.long
@harness.needs_ranks
def test_ctrl_c_between_instructions_closes_the_group() -> None:
    with Job(interrupted_in_a_step, 2) as job:
        first, second = (outcome.value for outcome in job.wait(60))
    assert first["error"] == "GroupClosedError", first
    assert first["seconds"] < 1, first
    assert second["error"] == "RemoteRankError", second
    assert "interrupted between two instructions" in second["message"], second
    assert first["sum"] == second["sum"] == 0


def wrong_arguments_of_uneven_calls() -> float:
    """Check that arguments are checked before the ranks exchange their numbers of rows."""
    world, rows = ngd.init(), np.ones((2, 3), np.float32)
    for wrong in ([1, 2], np.ones((4, 3)), np.ones((4, 2), np.float32)):
        with pytest.raises((TypeError, ValueError), match="all_gather_v: out: expected"):
            world.all_gather_v(rows, out=wrong)
    with pytest.raises(TypeError, match="all_to_all_v: async_op: expected a bool; got list"):
        world.all_to_all_v(rows, [1] * world.size, async_op=[])
    with pytest.raises(TypeError, match="broadcast_variables: expected variables"):
        ngd.broadcast_variables([1])
    return float(world.all_reduce(rows, op="sum").sum())


@harness.needs_ranks
def test_wrong_arguments_of_uneven_calls_leave_the_group_open() -> None:
    outcomes = harness.run(wrong_arguments_of_uneven_calls, 2)
    assert [outcome.value for outcome in outcomes] == [12.0, 12.0]
