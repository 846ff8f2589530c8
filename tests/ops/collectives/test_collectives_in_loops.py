# SPDX-License-Identifier: Apache-2.0
"""Tests of collectives in loops and branches."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.testing as npt
import pytest

import ngd
from ngd import ops
from ngd.dtypes import Array
from ngd.graph.node import Node
from tests.support import harness
from tests.support.harness import caught
from tests.support.standing import fail_in_world, run_in_world

over = pytest.mark.parametrize("communicator", harness.communicators())
everywhere = pytest.mark.parametrize(("communicator", "ranks"), harness.worlds())
DEVICES = ("CPU", "INTERPRETER")
LAYERS, WIDTH, HIDDEN = 4, 6, 5


def numbers(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


def layers_of(rank: int) -> tuple[Array, Array]:
    """Return the shards of a rank: columns of each first matrix, and rows of each second matrix."""
    return (
        numbers(10 + rank, LAYERS, WIDTH, HIDDEN) * 0.5,
        numbers(20 + rank, LAYERS, HIDDEN, WIDTH) * 0.5,
    )


def network(x: Array, weights: list[tuple[Array, Array]]) -> Array:
    """Return the result of all ranks together, computed by NumPy."""
    for layer in range(LAYERS):
        x = x + sum(np.tanh(x @ a[layer]) @ b[layer] for a, b in weights)
    return x


def tensor_parallel() -> None:
    """Scan over layers that are divided among the ranks, and compare values and gradients."""
    world = ngd.init()
    x, (a, b) = numbers(1, 3, WIDTH), layers_of(world.rank)
    placeholders = [
        ngd.placeholder(n, v.shape, np.float64) for n, v in zip("xab", (x, a, b), strict=True)
    ]

    def layer(carry: Node, weights: tuple[Node, Node]) -> tuple[Node, None]:
        first, second = weights
        return carry + ops.all_reduce(ops.tanh(carry @ first) @ second, op="sum"), None

    last, _ = ops.scan(layer, placeholders[0], (placeholders[1], placeholders[2]))
    loss = ops.sum(ops.square(last)) / world.size  # all ranks have the same loss
    for device in DEVICES:
        step = ngd.compile(
            placeholders, [last, loss, *ngd.grad(loss, placeholders[1:])], device=device
        )
        found, _, da, db = step(x, a, b)
        weights = [layers_of(rank) for rank in range(world.size)]
        npt.assert_allclose(found, network(x, weights), rtol=1e-12)
        for own_weights, gradient in zip(weights[world.rank], (da, db), strict=True):
            for index in ((0, 1, 2), (LAYERS - 1, 3, 4), (1, 0, 0)):
                sums, before = [], own_weights[index]
                for change in (1e-6, -1e-6):
                    own_weights[index] = before + change
                    sums.append(float(np.square(network(x, weights)).sum()))
                own_weights[index] = before
                npt.assert_allclose(gradient[index], (sums[0] - sums[1]) / 2e-6, rtol=1e-6)


@everywhere
def test_a_loop_over_layers_divided_among_ranks_equals_numpy(communicator: str, ranks: int) -> None:
    run_in_world(tensor_parallel, communicator, ranks)


def many_kinds() -> None:
    """Run several collectives per iteration, while others are pending around the loop."""
    world = ngd.init()
    rank, size = world.rank, world.size
    x = ngd.placeholder("x", (3, size, 2), np.float32)
    long = ngd.placeholder("long", (5000,), np.float32)

    def body(carry: Node, part: Node) -> tuple[Node, list[Node]]:
        blocks = ops.all_to_all(part + carry)
        summed = ops.reduce_scatter(blocks, op="sum")
        gathered = ops.all_gather(summed)
        most = ops.all_reduce(ops.max(gathered), op="max")
        return gathered * 0.5, [summed, most, ops.broadcast(part, root=size - 1)]

    before_loop = ops.all_reduce(long * 2, op="sum")
    last, made = ops.scan(body, ops.zeros((size, 2), np.float32), x)
    after_loop = ops.all_reduce(ops.sum(last), op="sum")
    given = [numbers(r, 3, size, 2).astype(np.float32) for r in range(size)]
    carry, wanted = np.zeros((size, 2), np.float32), []
    for step_index in range(3):
        sent = [given[r][step_index] + carry for r in range(size)]
        got = [np.stack([sent[p][r] for p in range(size)]) for r in range(size)]
        total = np.sum(got, axis=0, dtype=np.float32)  # rank r gets block r of the sum
        wanted.append((total[rank : rank + 1], total.max(), given[-1][step_index]))
        carry = total * np.float32(0.5)
    for device in DEVICES:
        step = ngd.compile([x, long], [before_loop, last, after_loop, *made], device=device)
        for factor in (1, 2):
            ones = np.full(5000, rank + factor, np.float32)
            found = step(given[rank], ones)
            assert (found[0] == 2 * (size * (size - 1) / 2 + size * factor)).all()
            npt.assert_allclose(found[1], carry, rtol=1e-5, atol=1e-6)
            npt.assert_allclose(found[2], carry.sum() * size, rtol=1e-4, atol=1e-5)
            for step_index, each in enumerate(wanted):
                for result, value in zip(found[3:], each, strict=True):
                    npt.assert_allclose(result[step_index], value, rtol=1e-5, atol=1e-6)


@everywhere
def test_collectives_of_all_kinds_inside_and_around_a_loop(communicator: str, ranks: int) -> None:
    run_in_world(many_kinds, communicator, ranks)


def branches() -> None:
    """Sum in the iterations in which a rank asks for it, and compare values and gradients."""
    world = ngd.init()
    x, wants = ngd.placeholder("x", (5, 3), np.float64), ngd.placeholder("wants", (5,), "bool")

    def body(carry: Node, given: tuple[Node, Node]) -> tuple[Node, Node]:
        part, mine = given
        any_wants = ops.all_reduce(mine, op="max")
        summed = ops.cond(
            any_wants, lambda: ops.all_reduce(part * carry, op="sum"), lambda: part + carry
        )
        return summed, any_wants

    start = ngd.constant(np.ones(3))
    last, when = ops.scan(body, start, (x, wants))
    (gradient,) = ngd.grad(ops.sum(last), [x])
    given = [numbers(r, 5, 3) for r in range(world.size)]
    wanted = [[False, False, r == 1, True, False] for r in range(world.size)]
    any_of = np.any(wanted, axis=0)
    carries = [np.ones(3)] * world.size
    for step_index in range(5):
        own = [given[r][step_index] * carries[r] for r in range(world.size)]
        plus = [given[r][step_index] + carries[r] for r in range(world.size)]
        carries = [np.sum(own, axis=0)] * world.size if any_of[step_index] else plus
    # The gradient is that of the sum of all losses: the sum in iteration 3 multiplies it by `size`.
    for device in DEVICES:
        step = ngd.compile([x, wants], [last, when, gradient], device=device)
        found, flags, slope = step(given[world.rank], np.array(wanted[world.rank]))
        npt.assert_allclose(found, carries[world.rank], rtol=1e-12)
        assert (flags == any_of).all()
        npt.assert_allclose(slope[4], np.ones(3))
        before = slope_of_iteration_three(given, any_of, world.rank)
        npt.assert_allclose(slope[3], before * world.size, rtol=1e-12)


def slope_of_iteration_three(given: list[Array], any_of: Array, rank: int) -> Array:
    """Return the factor of this rank's slice in iteration 3, which is the carry."""
    carries = [np.ones(3)] * len(given)
    for step_index in range(3):
        own = [given[r][step_index] * carries[r] for r in range(len(given))]
        plus = [given[r][step_index] + carries[r] for r in range(len(given))]
        carries = [np.sum(own, axis=0)] * len(given) if any_of[step_index] else plus
    return carries[rank]


@everywhere
def test_branches_that_all_ranks_take_together(communicator: str, ranks: int) -> None:
    run_in_world(branches, communicator, ranks)


def jacobians() -> None:
    """Compare the Jacobian of tanh(sum over ranks of x * (rank + 1)), summed over all ranks."""
    world = ngd.init()
    given = [numbers(r, 3) for r in range(world.size)]
    total = np.sum([x * (r + 1) for r, x in enumerate(given)], axis=0)

    def f(x: Node) -> Node:
        result: Node = ops.tanh(ops.all_reduce(x * (world.rank + 1.0), op="sum"))
        return result

    wanted = np.diag((1 - np.tanh(total) ** 2) * (world.rank + 1) * world.size)
    for device in DEVICES:
        x = ngd.placeholder("x", (3,), np.float64)
        (found,) = ngd.compile([x], [ngd.jacobian(f)(x)], device=device)(given[world.rank])
        npt.assert_allclose(found, wanted, rtol=1e-12)


@everywhere
def test_a_jacobian_through_a_collective_equals_the_formula(communicator: str, ranks: int) -> None:
    run_in_world(jacobians, communicator, ranks)


def constant_shards() -> None:
    """Sum constants of different sizes, whose gradients are not needed."""
    world = ngd.init()
    shard = np.arange(60.0 + 10 * world.rank) / 100
    w = ngd.placeholder("w", (), np.float64)

    def body(carry: Node, now: Node) -> tuple[Node, None]:
        return carry + ops.all_reduce(ops.sum(ngd.constant(shard) * now), op="sum") * w, None

    last, _ = ops.scan(body, ops.zeros((), "float64"), np.arange(1.0, 4.0))
    (slope,) = ngd.grad(last, [w])
    wanted = 6 * world.size * sum((np.arange(60.0 + 10 * r) / 100).sum() for r in range(world.size))
    for device in DEVICES:
        (found,) = ngd.compile([w], [slope], device=device)(np.float64(2))
        npt.assert_allclose(found, wanted / world.size, rtol=1e-12)


@over
def test_constant_shards_of_different_sizes(communicator: str) -> None:
    run_in_world(constant_shards, communicator, 2)


def equal_constants() -> None:
    """Sum two constants in a branch. They are equal on the last rank only."""
    world = ngd.init()
    condition = ngd.placeholder("taken", (), np.bool_)
    one = np.array([1.0, 2.0])
    shards = [ngd.constant(one), ngd.constant(one + (world.rank < world.size - 1))]
    (result,) = ops.cond(
        ops.all_reduce(condition.astype("int32"), op="max") > 0,
        lambda: [ops.add(*(ops.all_reduce(shard, op="sum") for shard in shards))],
        lambda: [ops.zeros((2,), "float64")],
    )
    wanted = 2 * world.size * one + world.size - 1
    for device in DEVICES:
        (found,) = ngd.compile([condition], [result], device=device)(np.bool_(True))
        npt.assert_allclose(found, wanted, rtol=1e-12)


@over
def test_constants_that_are_equal_on_one_rank_are_not_merged(communicator: str) -> None:
    run_in_world(equal_constants, communicator, 2)


def in_a_group() -> None:
    """Run collectives of a group in a loop."""
    world = ngd.init()
    rank, size = world.rank, world.size
    part = world.split(color=rank % 2)
    x = ngd.placeholder("x", (2,), np.int64)

    def body(carry: Node, now: Any) -> tuple[Node, Node]:
        return ops.all_reduce(carry, op="sum", group=part), ops.all_reduce(carry, op="max")

    last, most = ops.scan(body, x, length=3)
    members = range(rank % 2, size, 2)
    parts = [len(range(parity, size, 2)) for parity in range(2)]
    sums = [sum(range(parity, size, 2)) for parity in range(2)]
    for device in DEVICES:
        step = ngd.compile([x], [last, most], device=device)
        found, tops = step(np.array([rank, 1]))
        assert found.tolist() == [sum(members) * len(members) ** 2, len(members) ** 3]
        wanted = [
            size - 1,
            *(max(s * n**i for s, n in zip(sums, parts, strict=True)) for i in (0, 1)),
        ]
        assert tops[:, 0].tolist() == wanted


@over
@pytest.mark.parametrize("ranks", [2, 3])
def test_a_loop_of_collectives_of_a_group(communicator: str, ranks: int) -> None:
    run_in_world(in_a_group, communicator, ranks)


def unequal_variable(device: str) -> dict[str, str]:
    """Take a branch with a collective on one rank only, before a collective of both ranks."""
    world = ngd.init()
    x, u = (ngd.placeholder(name, (3,), np.float32) for name in "xu")
    v = ngd.variable("v", np.zeros((), np.float32))
    y = ops.cond(v > 0.5, lambda: ops.all_reduce(x, op="sum"), lambda: x * 2)
    z = ops.all_reduce(ops.tanh(y * 0) + u, op="sum")
    step = ngd.compile([x, u], [y, z], device=device)
    given = np.full(3, world.rank, np.float32), np.full(3, 100 + world.rank, np.float32)
    step(*given)
    v.assign(float(world.rank))
    return caught(lambda: step(*given))


@over
@pytest.mark.parametrize("device", DEVICES)
def test_different_branches_raise_collective_mismatch_error(communicator: str, device: str) -> None:
    for outcome in fail_in_world(unequal_variable, communicator, 2, device=device):
        assert outcome.value["error"] == "CollectiveMismatchError", outcome


def different_iterations(what: str, device: str) -> dict[str, str]:
    """Run more iterations on the last rank, or a collective outside of the loop."""
    world = ngd.init()
    odd = world.rank == world.size - 1
    v = ngd.variable("v", np.ones(4))

    def body(carry: Node, part: Any) -> tuple[Node, None]:
        return ops.all_reduce(carry, op="mean"), None

    length = 4 if odd and what == "length" else 3
    y, _ = ops.scan(body, v + 1, length=length)
    if what == "outside":
        y = body(v + 1, None)[0] if odd else y
    step = ngd.compile([], [y], {v: v + y}, device=device)
    error = caught(lambda: step())
    assert v.numpy().tolist() == [1, 1, 1, 1]
    return error


@over
@pytest.mark.parametrize("what", ["length", "outside"])
@pytest.mark.parametrize("device", DEVICES)
def test_different_numbers_of_iterations_raise_collective_mismatch_error(
    communicator: str, what: str, device: str
) -> None:
    for outcome in fail_in_world(different_iterations, communicator, 2, what=what, device=device):
        assert outcome.value["error"] == "CollectiveMismatchError", outcome
        assert "3 times" in outcome.value["message"], outcome
        assert outcome.value["message"].count("test_collectives_in_loops.py:") >= 2, outcome
