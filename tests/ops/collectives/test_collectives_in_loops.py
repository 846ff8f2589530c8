# SPDX-License-Identifier: Apache-2.0
"""Collectives in the rounds of loops and in branches."""

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
    """What a rank has of each layer: columns of the first matrix, rows of the second."""
    return (
        numbers(10 + rank, LAYERS, WIDTH, HIDDEN) * 0.5,
        numbers(20 + rank, LAYERS, HIDDEN, WIDTH) * 0.5,
    )


def network(x: Array, weights: list[tuple[Array, Array]]) -> Array:
    """What all ranks compute together, in NumPy."""
    for layer in range(LAYERS):
        x = x + sum(np.tanh(x @ a[layer]) @ b[layer] for a, b in weights)
    return x


def tensor_parallel() -> None:
    """A scan over layers of which each rank has a part: values, and gradients as differences."""
    world = ngd.init()
    x, (a, b) = numbers(1, 3, WIDTH), layers_of(world.rank)
    places = [
        ngd.placeholder(n, v.shape, np.float64) for n, v in zip("xab", (x, a, b), strict=True)
    ]

    def layer(carry: Node, weights: tuple[Node, Node]) -> tuple[Node, None]:
        first, second = weights
        return carry + ops.all_reduce(ops.tanh(carry @ first) @ second, op="sum"), None

    last, _ = ops.scan(layer, places[0], (places[1], places[2]))
    loss = ops.sum(ops.square(last)) / world.size  # of which all ranks have the same share
    for device in DEVICES:
        step = ngd.compile(places, [last, loss, *ngd.grad(loss, places[1:])], device=device)
        found, _, da, db = step(x, a, b)
        weights = [layers_of(rank) for rank in range(world.size)]
        npt.assert_allclose(found, network(x, weights), rtol=1e-12)
        for mine, gradient in zip(weights[world.rank], (da, db), strict=True):
            for where in ((0, 1, 2), (LAYERS - 1, 3, 4), (1, 0, 0)):
                sums, before = [], mine[where]
                for change in (1e-6, -1e-6):
                    mine[where] = before + change
                    sums.append(float(np.square(network(x, weights)).sum()))
                mine[where] = before
                npt.assert_allclose(gradient[where], (sums[0] - sums[1]) / 2e-6, rtol=1e-6)


@everywhere
def test_layers_of_which_each_rank_has_a_part(communicator: str, ranks: int) -> None:
    run_in_world(tensor_parallel, communicator, ranks)


def many_kinds() -> None:
    """Several collectives a round, beside others that are under way around the loop."""
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

    around = ops.all_reduce(long * 2, op="sum")
    last, made = ops.scan(body, ops.zeros((size, 2), np.float32), x)
    behind = ops.all_reduce(ops.sum(last), op="sum")
    given = [numbers(r, 3, size, 2).astype(np.float32) for r in range(size)]
    carry, wanted = np.zeros((size, 2), np.float32), []
    for now in range(3):
        sent = [given[r][now] + carry for r in range(size)]
        got = [np.stack([sent[p][r] for p in range(size)]) for r in range(size)]
        total = np.sum(got, axis=0, dtype=np.float32)  # of which rank r keeps block r
        wanted.append((total[rank : rank + 1], total.max(), given[-1][now]))
        carry = total * np.float32(0.5)
    for device in DEVICES:
        step = ngd.compile([x, long], [around, last, behind, *made], device=device)
        for factor in (1, 2):
            ones = np.full(5000, rank + factor, np.float32)
            found = step(given[rank], ones)
            assert (found[0] == 2 * (size * (size - 1) / 2 + size * factor)).all()
            npt.assert_allclose(found[1], carry, rtol=1e-5, atol=1e-6)
            npt.assert_allclose(found[2], carry.sum() * size, rtol=1e-4, atol=1e-5)
            for now, each in enumerate(wanted):
                for result, value in zip(found[3:], each, strict=True):
                    npt.assert_allclose(result[now], value, rtol=1e-5, atol=1e-6)


@everywhere
def test_kinds_in_rounds_and_around_them(communicator: str, ranks: int) -> None:
    run_in_world(many_kinds, communicator, ranks)


def branches() -> None:
    """Only where some rank wants it, they sum; in a loop, and with a gradient."""
    world = ngd.init()
    x, wants = ngd.placeholder("x", (5, 3), np.float64), ngd.placeholder("wants", (5,), "bool")

    def body(carry: Node, given: tuple[Node, Node]) -> tuple[Node, Node]:
        part, mine = given
        anybody = ops.all_reduce(mine, op="max")
        summed = ops.cond(
            anybody, lambda: ops.all_reduce(part * carry, op="sum"), lambda: part + carry
        )
        return summed, anybody

    start = ngd.constant(np.ones(3))
    last, when = ops.scan(body, start, (x, wants))
    (gradient,) = ngd.grad(ops.sum(last), [x])
    given = [numbers(r, 5, 3) for r in range(world.size)]
    wanted = [[False, False, r == 1, True, False] for r in range(world.size)]
    any_of = np.any(wanted, axis=0)
    carries = [np.ones(3)] * world.size
    for now in range(5):
        own = [given[r][now] * carries[r] for r in range(world.size)]
        plus = [given[r][now] + carries[r] for r in range(world.size)]
        carries = [np.sum(own, axis=0)] * world.size if any_of[now] else plus
    # Of the sum of all ranks' losses: round 3 hands on `size` times what all ranks got.
    for device in DEVICES:
        step = ngd.compile([x, wants], [last, when, gradient], device=device)
        found, flags, slope = step(given[world.rank], np.array(wanted[world.rank]))
        npt.assert_allclose(found, carries[world.rank], rtol=1e-12)
        assert (flags == any_of).all()
        npt.assert_allclose(slope[4], np.ones(3))
        before = slope_of_round_three(given, any_of, world.rank)
        npt.assert_allclose(slope[3], before * world.size, rtol=1e-12)


def slope_of_round_three(given: list[Array], any_of: Array, rank: int) -> Array:
    """What round 3 multiplies this rank's part by: its carry."""
    carries = [np.ones(3)] * len(given)
    for now in range(3):
        own = [given[r][now] * carries[r] for r in range(len(given))]
        plus = [given[r][now] + carries[r] for r in range(len(given))]
        carries = [np.sum(own, axis=0)] * len(given) if any_of[now] else plus
    return carries[rank]


@everywhere
def test_branches_that_all_ranks_take(communicator: str, ranks: int) -> None:
    run_in_world(branches, communicator, ranks)


def jacobians() -> None:
    """Of y = tanh(the sum of all ranks' x * (rank + 1)): rows of the sum of all ranks' results."""
    world = ngd.init()
    given = [numbers(r, 3) for r in range(world.size)]
    total = np.sum([x * (r + 1) for r, x in enumerate(given)], axis=0)

    def f(x: Node) -> Node:
        made: Node = ops.tanh(ops.all_reduce(x * (world.rank + 1.0), op="sum"))
        return made

    wanted = np.diag((1 - np.tanh(total) ** 2) * (world.rank + 1) * world.size)
    for device in DEVICES:
        x = ngd.placeholder("x", (3,), np.float64)
        (found,) = ngd.compile([x], [ngd.jacobian(f)(x)], device=device)(given[world.rank])
        npt.assert_allclose(found, wanted, rtol=1e-12)


@everywhere
def test_a_jacobian_through_a_collective(communicator: str, ranks: int) -> None:
    run_in_world(jacobians, communicator, ranks)


def constant_shards() -> None:
    """Shards that are constants, a small and a large one, of which nobody wants the gradient."""
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
def test_shards_that_are_constants_of_different_size(communicator: str) -> None:
    run_in_world(constant_shards, communicator, 2)


def equal_constants() -> None:
    """A branch sums two constants, which are equal on the last rank alone."""
    world = ngd.init()
    taken = ngd.placeholder("taken", (), np.bool_)
    one = np.array([1.0, 2.0])
    shards = [ngd.constant(one), ngd.constant(one + (world.rank < world.size - 1))]
    (made,) = ops.cond(
        ops.all_reduce(taken.astype("int32"), op="max") > 0,
        lambda: [ops.add(*(ops.all_reduce(shard, op="sum") for shard in shards))],
        lambda: [ops.zeros((2,), "float64")],
    )
    wanted = 2 * world.size * one + world.size - 1
    for device in DEVICES:
        (found,) = ngd.compile([taken], [made], device=device)(np.bool_(True))
        npt.assert_allclose(found, wanted, rtol=1e-12)


@over
def test_constants_that_are_equal_on_one_rank_alone(communicator: str) -> None:
    run_in_world(equal_constants, communicator, 2)


def in_a_group() -> None:
    """A loop of collectives of a part of the ranks."""
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
def test_groups_in_a_loop(communicator: str, ranks: int) -> None:
    run_in_world(in_a_group, communicator, ranks)


def unequal_variable(device: str) -> dict[str, str]:
    """A variable that differs takes one rank into a branch; outside stands a like collective."""
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
def test_a_rank_that_takes_another_branch_is_told(communicator: str, device: str) -> None:
    for outcome in fail_in_world(unequal_variable, communicator, 2, device=device):
        assert outcome.value["error"] == "CollectiveMismatchError", outcome


def different_rounds(what: str, device: str) -> dict[str, str]:
    """The last rank goes around more often, or has its collective in another loop."""
    world = ngd.init()
    odd = world.rank == world.size - 1
    v = ngd.variable("v", np.ones(4))

    def body(carry: Node, part: Any) -> tuple[Node, None]:
        return ops.all_reduce(carry, op="mean"), None

    rounds = 4 if odd and what == "length" else 3
    y, _ = ops.scan(body, v + 1, length=rounds)
    if what == "outside":
        y = body(v + 1, None)[0] if odd else y
    step = ngd.compile([], [y], {v: v + y}, device=device)
    error = caught(lambda: step())
    assert v.numpy().tolist() == [1, 1, 1, 1]
    return error


@over
@pytest.mark.parametrize("what", ["length", "outside"])
@pytest.mark.parametrize("device", DEVICES)
def test_ranks_that_go_around_differently_are_told(
    communicator: str, what: str, device: str
) -> None:
    for outcome in fail_in_world(different_rounds, communicator, 2, what=what, device=device):
        assert outcome.value["error"] == "CollectiveMismatchError", outcome
        assert "3 times" in outcome.value["message"], outcome
        assert outcome.value["message"].count("test_collectives_in_loops.py:") >= 2, outcome
