# SPDX-License-Identifier: Apache-2.0
"""Tests of collectives of several groups in one step, and of send and receive."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ngd
from ngd import ops
from ngd.comm.world import alone
from tests.ops.collectives.test_kinds import differences, results
from tests.support import harness
from tests.support.fake_group import FakeGroup
from tests.support.harness import caught, run
from tests.support.standing import fail_in_world, run_in_world

over = pytest.mark.parametrize("communicator", harness.communicators())
devices = pytest.mark.parametrize("device", ["CPU", "INTERPRETER"])


def mesh() -> tuple[Any, Any]:
    """Return the row and the column of this rank in a mesh of 2 x 2."""
    square = ngd.make_mesh((2, 2), ("column", "row"))
    return square["row"], square["column"]


def two_groups(device: str) -> None:
    """Combine collectives of rows, columns and the world, for short and long arrays."""
    world = ngd.init()
    row, column = mesh()
    for count in (3, 40_000):
        x = ngd.placeholder("x", (count,), np.float64)
        y = ops.all_gather(ops.all_reduce(x * 2, op="sum", group=row), group=column)
        z = ops.all_to_all(ops.concat([x, x + 1]), group=column)
        outputs = [
            y,
            z,
            ops.all_reduce(x, op="max"),
            ops.reduce_scatter(y, op="sum", group=row),
            ops.broadcast(x, root=1, group=row),
        ]
        step = ngd.compile([x], outputs, device=device)
        for turn in range(5):
            given = [np.arange(count) % 7 + 10.0 * r + turn for r in range(4)]
            got = step(given[world.rank])
            sums = [2 * (given[0] + given[1]), 2 * (given[2] + given[3])]
            both = np.concatenate(sums)
            peers = [given[r] for r in (world.rank % 2, world.rank % 2 + 2)]
            wants = [
                both,
                np.concatenate([p + column.rank for p in peers]),
                given[3],
                np.split(2 * both, 2)[row.rank],
                given[world.rank // 2 * 2 + 1],
            ]
            for found, want in zip(got, wants, strict=True):
                np.testing.assert_array_equal(found, want)


@over
@devices
def test_collectives_of_two_groups_and_the_world_in_one_step(
    communicator: str, device: str
) -> None:
    run_in_world(two_groups, communicator, 4, device=device)


def gradients_of_groups(device: str) -> None:
    world = ngd.init()
    row, column = mesh()
    x = ngd.placeholder("x", (4,), np.float64)
    c = ngd.placeholder("c", (4,), np.float64)
    y = ops.tanh(ops.all_gather(ops.reduce_scatter(x * c, op="mean", group=row), group=column))
    loss = ops.sum(ops.all_reduce(ops.broadcast(y, root=1, group=row) * x, op="sum") * c)
    step = ngd.compile([x, c], [loss, *ngd.grad(loss, [x, c])], device=device)
    random = np.random.default_rng(world.rank)
    given = [random.uniform(-1, 1, 4) for _ in range(2)]
    _, *found = step(*given)
    for which, gradient in enumerate(found):
        slopes = differences(step, given, which)
        np.testing.assert_allclose(gradient, slopes, rtol=2e-5, atol=1e-7)


@over
@devices
def test_gradients_through_two_groups_equal_finite_differences(
    communicator: str, device: str
) -> None:
    run_in_world(gradients_of_groups, communicator, 4, device=device)


def tensor_parallel(device: str) -> None:
    """Divide a network along rows and the batch along columns, and compare with one rank."""
    world = ngd.init()
    row, column = mesh()
    random = np.random.default_rng(3)
    rows, target = random.standard_normal((2, 2, 4, 3))  # one half of the batch per column
    first, second, bias = (random.standard_normal(s) for s in ((3, 6), (6, 3), (3,)))
    shards = [np.split(first, 2, 1)[row.rank], np.split(second, 2, 0)[row.rank], bias]
    w0, w1, b = (ngd.placeholder(f"w{i}", a.shape, np.float64) for i, a in enumerate(shards))

    def loss_of(x: Any, y: Any, w0: Any, w1: Any, b: Any, group: Any) -> Any:
        h = ops.all_reduce(ops.tanh(x @ w0) @ w1, op="sum", group=group) + b
        return ops.mean(ops.square(h - y))

    loss = loss_of(rows[column.rank], target[column.rank], w0, w1, b, row) / row.size
    found = ngd.grad(loss, [w0, w1, b])
    step = ngd.compile([w0, w1, b], [loss, *found], device=device)
    gradients = step(*shards)[1:]
    for which, gradient in enumerate(gradients):
        slopes = differences(step, shards, which)
        np.testing.assert_allclose(gradient, slopes, rtol=2e-5, atol=1e-8)

    # One rank has the gradients of all parts of the matrices. Those of a bias are the sum of its
    # copies.
    all_weights = [ngd.constant(a) for a in (first, second, bias)]
    one = loss_of(np.concatenate(rows), np.concatenate(target), *all_weights, FakeGroup())
    wants = ngd.compile([], ngd.grad(one, all_weights), group=alone(), device=device)()
    parts = [np.split(wants[0], 2, 1)[row.rank], np.split(wants[1], 2, 0)[row.rank], wants[2]]
    gradients[2] = row.all_reduce(gradients[2], op="sum")
    for gradient, want in zip(gradients, parts, strict=True):
        mean = column.all_reduce(gradient, op="mean")
        np.testing.assert_allclose(mean, want, rtol=1e-12, atol=1e-14)
    assert world.size == 4


@over
@devices
def test_a_network_divided_among_ranks_has_the_gradients_of_one_rank(
    communicator: str, device: str
) -> None:
    run_in_world(tensor_parallel, communicator, 4, device=device)


def send_around(device: str) -> None:
    """Send to the next rank and receive from the previous one: short, long, and with three tags."""
    world = ngd.init()
    n, after, before = world.size, (world.rank + 1) % world.size, (world.rank - 1) % world.size
    for count in (1, 100_000):
        x = ngd.placeholder("x", (count,), np.float32)
        tokens = [ops.send(x * (tag + 1.0), after, tag=tag) for tag in range(3)]
        found = [ops.recv(before, tag, shape=(count,), dtype=np.float32) for tag in range(3)]
        total = ops.all_reduce(ops.sum(found[2]), op="sum")
        step = ngd.compile([x], [total, *found[::-1], *tokens], device=device)
        for turn in range(3):
            operand = np.full(count, world.rank + 1 + turn, np.float32)
            total_of_ranks, third, second, first, *zeros = step(operand)
            assert zeros == [0, 0, 0]
            for factor, array in ((3, third), (1, first), (2, second)):
                np.testing.assert_array_equal(array, factor * (before + 1 + turn))
            assert total_of_ranks == sum(3 * count * (r + 1 + turn) for r in range(n))


@over
@devices
@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_send_and_receive_in_a_ring(communicator: str, device: str, ranks: int) -> None:
    run_in_world(send_around, communicator, ranks, device=device)


def pipeline(device: str) -> None:
    """Run one layer per rank on three micro-batches, and compare losses and weights."""
    world = ngd.init()
    me, last = world.rank, world.size - 1
    random = np.random.default_rng(0)
    data, target = random.standard_normal((2, 12, 5))
    starts = [random.standard_normal((5, 5)) * 0.5 for _ in range(world.size)]

    def layer(h: Any, w: Any) -> Any:
        return ops.tanh(h @ w)

    weights_of_one = [ngd.variable(f"w{i}", a) for i, a in enumerate(starts)]
    h = ngd.constant(data)
    for w in weights_of_one:
        h = layer(h, w)
    loss = ops.sum(ops.square(h - target))
    updates = {
        w: w - 0.02 * g for w, g in zip(weights_of_one, ngd.grad(loss, weights_of_one), strict=True)
    }
    step_of_one = ngd.compile([], [loss], updates, device=device)

    w = ngd.variable(f"w{me}", starts[me])
    begin = ngd.placeholder("begin", (), np.float64)
    losses = []
    for tag, (x, y) in enumerate(zip(np.split(data, 3), np.split(target, 3), strict=True)):
        h = x
        if me > 0:
            h = ops.recv(me - 1, tag, shape=x.shape, dtype=np.float64, after=begin)
        h = layer(h, w)
        losses.append(ops.sum(ops.square(h - y)) if me == last else ops.send(h, me + 1, tag=tag))
    local = losses[0] + losses[1] + losses[2]
    gradient, back = ngd.grad(local, [w, begin], unused="zero")
    step = ngd.compile([begin], [local, back], {w: w - 0.02 * gradient}, device=device)
    for _ in range(5):
        (want,) = step_of_one()
        got, token = step(0.0)
        assert token == 0
        if me == last:
            assert np.isclose(got, want, rtol=1e-12)
        else:
            assert got == 0
        np.testing.assert_allclose(w.numpy(), weights_of_one[me].numpy(), rtol=1e-11, atol=1e-13)


@over
@devices
@pytest.mark.parametrize("ranks", [2, 3])
def test_a_pipeline_takes_the_steps_of_one_process(
    communicator: str, device: str, ranks: int
) -> None:
    run_in_world(pipeline, communicator, ranks, device=device)


def second_gradients_of_a_pair(device: str) -> None:
    """Send a value from rank 0 to rank 1, whose loss is differentiated twice."""
    world = ngd.init()
    x = ngd.placeholder("x", (3,), np.float64)
    begin = ngd.placeholder("begin", (), np.float64)
    factors = np.array([1.0, -2.0, 3.0])
    if world.rank == 0:
        token = ops.send(ops.sin(x), 1)
        total = ops.sum(ngd.grad(token, x) * factors)
        wrt = [x]
    else:
        y = ops.recv(0, shape=(3,), dtype=np.float64, after=begin)
        gradient, back = ngd.grad(ops.sum(ops.square(y) * ops.exp(x)), [x, begin])
        total = ops.sum(gradient * factors) + back
        wrt = [x, begin]
    step = ngd.compile([x, begin], [total, *ngd.grad(total, wrt)], device=device)
    given = [np.random.default_rng(world.rank).uniform(0.5, 1, 3), np.array(0.0)]
    slopes = differences(step, given, 0)
    np.testing.assert_allclose(step(*given)[1], slopes, rtol=2e-5, atol=1e-7)


@over
@devices
def test_second_gradients_through_send_and_receive(communicator: str, device: str) -> None:
    run_in_world(second_gradients_of_a_pair, communicator, 2, device=device)


TWO_RANKS_PER_HOST = 'NGD_HOST=host$((OMPI_COMM_WORLD_RANK / 2)) exec "$@"'
"""A shell command that gives two ranks to each host name."""


@pytest.mark.parametrize("communicator", harness.communicators()[1:])
@pytest.mark.parametrize(
    ("program", "ranks"), [(results, 4), (two_groups, 4), (tensor_parallel, 4), (pipeline, 3)]
)
def test_groups_over_hosts_of_two_ranks(communicator: str, program: Any, ranks: int) -> None:
    mpirun = harness.launcher_command("mpirun", ranks)
    arguments = {} if program is results else {"device": "CPU"}
    launcher = [*mpirun, "sh", "-c", TWO_RANKS_PER_HOST, "sh"]
    run(program, ranks, arguments=arguments, launcher=launcher)


def mismatched(what: str, device: str) -> dict[str, str]:
    """The last rank does something else, inside a group or to the other rank."""
    world = ngd.init()
    odd = world.rank == world.size - 1
    pair = world.split(world.rank // 2)
    v = ngd.variable("v", np.ones(4))
    x = ngd.placeholder("x", (4,), np.float64)
    if what == "group":
        y = ops.all_reduce(x * v, op="sum")
        y = y + ops.all_reduce(ops.exp(y), op="max" if odd else "min", group=pair)
    elif what == "order":
        first, second = ("max", "min") if odd else ("min", "max")
        y = ops.all_reduce(x * v, op=first, group=pair)
        y = ops.all_reduce(ops.exp(y), op=second, group=pair)
    elif odd:
        y = ops.recv(0, int(what == "tag"), shape=(4,), dtype=np.float64)
    else:
        y = x + ops.send(ops.concat([x, x]) if what == "count" else x, 1)
    step = ngd.compile([x], [y], {v: v + y}, device=device)
    # A short message is complete before the mismatch is detected.
    if what in ("tag", "count") and not odd:
        return caught(lambda: [step(np.ones(4)), ngd.barrier()])
    error = caught(lambda: step(np.ones(4)))
    assert v.numpy().tolist() == [1, 1, 1, 1]
    return error


@over
@devices
@pytest.mark.parametrize("what", ["group", "order", "tag", "count"])
def test_a_mismatch_in_a_group_names_both_lines(communicator: str, device: str, what: str) -> None:
    for outcome in fail_in_world(mismatched, communicator, 2, what=what, device=device):
        assert outcome.value["error"] == "CollectiveMismatchError", outcome
        assert outcome.value["message"].count("test_collectives_of_groups.py:") >= 2, outcome


def build_with_bad_arguments() -> None:
    world = ngd.init()
    x = ngd.placeholder("x", (3,), np.float32)
    me, n = world.rank, world.size
    for node, message in (
        (ops.send(x, n), rf"send \(made at .*of_groups.*expected a rank in \[0, {n}\)"),
        (ops.recv(me, shape=(3,), dtype=np.float32), f"recv.*expected another rank; got {me}"),
        (ops.reduce(x, op="sum", root=n), rf"reduce.*a root in \[0, {n}\)"),
    ):
        for device in ("CPU", "INTERPRETER", "NULL"):
            with pytest.raises(ngd.errors.CompileError, match=message):
                ngd.compile([x], [node], device=device)
    with pytest.raises(ngd.errors.ShapeError, match=rf"^all_to_all: .*{n} equal blocks"):
        ops.all_to_all(ngd.placeholder("y", (n + 1,), np.float32))
    with pytest.raises(ngd.errors.ShapeError, match=rf"^all_gather_v: expected {n} numbers"):
        ops.all_gather_v(x, counts=[3] * (n + 1))
    with pytest.raises(ValueError, match=r"^send: expected another rank"):
        ops.send(x, me, group=world)
    foreign_group: Any = FakeGroup(rank=0, size=2)
    for device in ("CPU", "INTERPRETER"):
        with pytest.raises(TypeError, match=r"^compile: expected groups made by ngd"):
            ngd.compile([x], [ops.all_reduce(x, op="sum", group=foreign_group)], device=device)


def uniform() -> None:
    """Check which values are proved equal on all ranks, and which only in a group."""
    world = ngd.init()
    x = ngd.placeholder("x", (2 * world.size,), np.float32)
    half = world.split(world.rank % 2)
    equal = [
        ops.all_reduce(x, op="max"),
        ops.all_gather(x),
        ops.broadcast(x),
        ops.all_gather_v(x, counts=[2 * world.size] * world.size),
        ops.all_reduce(ngd.constant(3.0), op="max", group=half),
        ops.broadcast(ngd.constant(3.0), group=half),
    ]
    assert [node.uniform for node in equal] == [True] * len(equal)
    varying = [
        ops.all_reduce(ngd.constant(3.0), op="sum", group=half),  # 6 on ranks 0 and 2, 3 on rank 1
        ops.all_reduce(ngd.constant(3.0), op="mean", group=half),
        ops.all_gather(ngd.constant([3.0]), group=half),
        ops.all_reduce(x, op="max", group=half),
        ops.all_gather(x, group=half),
        ops.reduce_scatter(equal[0], op="sum"),
        ops.reduce(equal[0], op="sum"),
        ops.all_to_all(equal[0]),
        ops.scatter(equal[0]),
        ops.gather(equal[0]),
    ]
    assert [node.uniform for node in varying] == [False] * len(varying)


@harness.needs_ranks
def test_a_value_that_is_uniform_in_a_group_varies_in_the_world() -> None:
    run_in_world(uniform, "shm", 3)


@harness.needs_ranks
@pytest.mark.parametrize("ranks", [2, 3])
def test_bad_roots_and_peers_are_rejected_when_the_step_is_built(ranks: int) -> None:
    run_in_world(build_with_bad_arguments, "shm", ranks)
