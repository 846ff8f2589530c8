# SPDX-License-Identifier: Apache-2.0
"""Steps whose groups are parts of random partitions of the ranks: uneven ones, and single ranks.

A collective of a group of one rank is compiled to its operand. That must not change which
collectives of other groups the rank starts, in which order, and in which branch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import pytest

import ngd
from ngd import ops
from tests.support import harness
from tests.support.standing import run_in_world

over = pytest.mark.parametrize("communicator", harness.communicators())
devices = pytest.mark.parametrize("device", ["CPU", "INTERPRETER"])

Partition: TypeAlias = Sequence[int]
"""The number of the group of each rank."""
Value: TypeAlias = list[np.ndarray]
"""The array of each rank."""
Line: TypeAlias = tuple[str, int, int, int]
"""A node: its kind, the number of its partition, and the numbers of its two operands."""

KINDS = ("sum", "sum", "sum", "max", "broadcast", "gather", "exchange", "add", "branch")


def members(partition: Partition, rank: int) -> list[int]:
    """Return the ranks in the group of a rank."""
    return [other for other, color in enumerate(partition) if color == partition[rank]]


def expected(line: Line, values: list[Value], partition: Partition, is_taken: bool) -> Value:
    """Return the value of a node on each rank, computed by NumPy."""
    kind, _, a, b = line
    results = []
    for rank in range(len(partition)):
        group = members(partition, rank)
        given = [values[a][other] for other in group]
        block = len(given[0]) // len(group)
        if kind in ("sum", "branch"):
            value = np.sum(given, axis=0)
            if kind == "branch" and not is_taken:
                value = values[b][rank]
        elif kind == "max":
            value = np.max(given, axis=0)
        elif kind == "broadcast":
            value = given[-1]
        elif kind == "gather":
            value = np.concatenate([each[:block] for each in given])
        elif kind == "exchange":
            position = group.index(rank)
            value = np.concatenate(
                [each[position * block : (position + 1) * block] for each in given]
            )
        else:
            value = values[a][rank] + values[b][rank]
        results.append(value % 1024)
    return results


def build_node(line: Line, nodes: list[Any], group: Any, which: Any) -> Any:
    """Return the node of a line."""
    kind, _, a, b = line
    x, y = nodes[a], nodes[b]
    if kind == "sum":
        result = ops.all_reduce(x, op="sum", group=group)
    elif kind == "branch":
        result = ops.cond(which, lambda: ops.all_reduce(x, op="sum", group=group), lambda: y)
    elif kind == "max":
        result = ops.all_reduce(x, op="max", group=group)
    elif kind == "broadcast":
        result = ops.broadcast(x, group.size - 1, group=group)
    elif kind == "gather":
        result = ops.all_gather(x[: x.shape[0] // group.size], group=group)
    elif kind == "exchange":
        result = ops.all_to_all(x, group=group)
    else:
        result = x + y
    return result - 1024.0 * ops.floor(result / 1024.0)


def draw_lines(draw: np.random.Generator, partitions: int) -> list[Line]:
    """Draw a graph. Nodes with equal operands are frequent, and the compiler merges them."""
    lines: list[Line] = []
    for number in range(int(draw.integers(3, 12))):
        a, b = (int(each) for each in draw.integers(max(0, number - 3), number + 1, 2))
        lines.append((str(draw.choice(KINDS)), int(draw.integers(partitions)), a, b))
    return lines


def random_graphs(device: str, seed: int, graphs: int) -> int:
    """Build graphs over random partitions, and compare their values with those of NumPy."""
    world = ngd.init()
    draw = np.random.default_rng([seed, world.size])
    compared = 0
    for number in range(graphs):
        partitions = [[0] * world.size, *draw.integers(0, world.size, (3, world.size)).tolist()]
        groups = [world, *(world.split(colors[world.rank]) for colors in partitions[1:])]
        sizes = {len(members(p, rank)) for p in partitions for rank in range(world.size)}
        count = int(np.lcm.reduce([*sizes])) * int(draw.choice([1, 30]))
        lines = draw_lines(draw, len(partitions))
        x, which = ngd.placeholder("x", (count,), "float64"), ngd.placeholder("which", (), "bool")
        which.uniform = True
        nodes = [x]
        for line in lines:
            nodes.append(build_node(line, nodes, groups[line[1]], which))
        step = ngd.compile([x, which], nodes[1:], device=device)
        for is_taken in (True, False):
            values = [list(draw.integers(0, 64, (world.size, count)).astype(np.float64))]
            for line in lines:
                values.append(expected(line, values, partitions[line[1]], is_taken))
            found = step(values[0][world.rank], np.array(is_taken))
            for index, (got, want) in enumerate(zip(found, values[1:], strict=True)):
                where = f"graph {number} of seed {seed}: node {index + 1} of {lines}: {partitions}"
                np.testing.assert_array_equal(got, want[world.rank], err_msg=where)
                compared += 1
        for group in groups[1:]:
            group.close()
    return compared


@over
@devices
@pytest.mark.parametrize("ranks", [3, 4])
def test_random_graphs_over_random_partitions(communicator: str, device: str, ranks: int) -> None:
    graphs = 25 if communicator == "shm" else 5
    how = {"device": device, "seed": ranks, "graphs": graphs}
    for outcome in run_in_world(random_graphs, communicator, ranks, **how):
        assert outcome.value >= graphs * 6, outcome  # at least 3 nodes, in two runs


def sums_that_meet(device: str) -> list[float]:
    """Sum over {0, 1}, {2} and over {0, 2}, {1}. On rank 2, two operands are the same node."""
    world = ngd.init()
    host = world.split([0, 0, 1][world.rank])
    cross = world.split([0, 1, 0][world.rank])
    x = ngd.placeholder("x", (42,), "float64")
    a = ops.all_reduce(x, op="sum", group=host)
    sums = [a, ops.all_reduce(x, op="sum", group=cross), ops.all_reduce(a, op="sum", group=cross)]
    step = ngd.compile([x], sums, device=device)
    return [float(each[0]) for each in step(np.full(42, world.rank + 1.0))]


@over
@devices
def test_operands_that_are_equal_on_one_rank_are_not_merged(communicator: str, device: str) -> None:
    found = [each.value for each in run_in_world(sums_that_meet, communicator, 3, device=device)]
    assert found == [[3, 4, 6], [3, 2, 3], [3, 4, 6]]


def branches_of_two_groups(device: str) -> list[float]:
    """Run two branches. On rank 2, the first one has a collective of a group of one rank."""
    world = ngd.init()
    host = world.split([0, 0, 1][world.rank])
    cross = world.split([0, 1, 0][world.rank])
    x = ngd.placeholder("x", (5,), "float64")
    which = ngd.placeholder("which", (), "bool", uniform=True)
    a = ops.cond(which, lambda: ops.all_reduce(x, op="sum", group=host), lambda: x)
    b = ops.cond(which, lambda: ops.all_reduce(x, op="max", group=cross), lambda: x)
    step = ngd.compile([x, which], [a, b], device=device)
    return [float(each[0]) for each in step(np.full(5, world.rank + 1.0), np.array(True))]


@over
@devices
def test_each_group_counts_its_own_branches(communicator: str, device: str) -> None:
    outcomes = run_in_world(branches_of_two_groups, communicator, 3, device=device)
    assert [each.value for each in outcomes] == [[3, 3], [3, 2], [3, 3]]


def count_merged() -> int:
    """Return how often the program of two equal chains of collectives contains all_reduce."""
    world = ngd.init()
    alone = world.split(world.rank)
    x = ngd.placeholder("x", (4,), "float64")
    pairs = []
    for _ in range(2):
        y = ops.all_reduce(ops.all_reduce(x, op="sum", group=alone), op="sum")
        pairs.append(ops.all_reduce(y, op="max"))
    return str(ngd.compile([x], pairs, device="CPU")).count("all_reduce")


@harness.needs_ranks
def test_equal_collectives_are_merged() -> None:
    starts_and_waits = 4
    for outcome in run_in_world(count_merged, "shm", 2):
        assert outcome.value == starts_and_waits, outcome
