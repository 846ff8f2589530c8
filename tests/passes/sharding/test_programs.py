# SPDX-License-Identifier: Apache-2.0
"""Tests that the programs of all ranks have the same collectives, for random sharded updates.

Each rank shards the graph separately, and the owner of a chain keeps matmuls that the other
ranks drop. This test runs the passes for all ranks in one process, without communication.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ngd
from ngd import ops
from ngd.graph.graph import Graph
from ngd.graph.node import Node
from ngd.graph.order import Order
from ngd.passes import CompileOptions, Sharing
from ngd.passes.collective_order import order_collectives, order_of
from ngd.passes.partition import Partition
from ngd.passes.sharding import matmul_owners as owners
from ngd.passes.sharding.equal_values import Equal
from ngd.passes.sharding.updates import shard_updates, shareable_variables
from ngd.passes.simplification import simplify
from tests.support.fake_group import FakeGroup

N = 32
"""The rows and columns of all matrices."""
LAYOUTS = ((1, 2, False), (1, 3, False), (2, 2, False), (2, 2, True), (2, 1, True))
"""The number of hosts, the ranks per host, and if moments are kept once over all hosts."""


@dataclass
class Rank:
    """A passes.Target, with the methods that these passes call."""

    sharing: Sharing

    @property
    def rank(self) -> int:
        return self.sharing.group.rank

    @property
    def size(self) -> int:
        return self.sharing.group.size


def rank_of(rank: int, hosts: int, per_host: int, apart: bool) -> Any:
    group = FakeGroup(rank, hosts * per_host)
    if hosts == 1:
        return Rank(Sharing(group, Partition(group)))
    here, there = FakeGroup(rank % per_host, per_host), FakeGroup(rank // per_host, hosts)
    return Rank(Sharing(group, Partition(here, there, apart)))


def random_step(seed: int) -> Graph:
    """Return updates computed from gradients, with collectives between the ops."""
    draw = random.Random(seed)
    zeros = np.zeros((N, N), np.float32)
    weights = [ngd.variable(f"w{i}", zeros) for i in range(draw.randint(1, 4))]
    x = ngd.placeholder("x", (N, N))
    gradients = [ops.all_reduce(x * w, op="mean") for w in weights]
    matrices, scalars = [*gradients, *weights], [ngd.constant(np.float32(2))]

    def any_of() -> Any:
        return draw.choice(matrices[-6:] if draw.random() < 0.7 else matrices)

    makers: dict[Any, int] = {
        lambda: any_of() @ any_of(): 18,
        lambda: any_of() @ any_of().T: 18,
        lambda: any_of() * 0.5 + any_of(): 24,
        lambda: any_of().T: 8,
        lambda: any_of() / (draw.choice(scalars) + 1): 16,
        lambda: ops.broadcast(any_of(), root=1): 4,
        lambda: ops.all_reduce(any_of() * x, op="sum"): 3,
        lambda: ops.all_reduce(any_of(), op="sum", algorithm="ring"): 2,
        lambda: ops.scan(lambda c, _: (c @ c.T * 0.5, None), any_of(), length=2)[0]: 2,
        lambda: ops.tanh(any_of()): 2,
        lambda: scalars.append(ops.sum(any_of() ** 2)): 10,
        lambda: scalars.append(ops.max(any_of())): 10,
        lambda: scalars.append(ops.all_reduce(ops.max(any_of()), op="max")): 3,
    }
    for _ in range(draw.randint(3, 16)):
        made = draw.choices(list(makers), list(makers.values()))[0]()
        if made is not None:
            matrices.append(made)
    outputs = [n for n in (any_of(), scalars[-1], x @ any_of()) if draw.random() < 0.3]
    updates = []
    for w in weights:
        value = draw.choice(matrices[-4:])
        if draw.random() < 0.7:
            value = w * 0.9 + value + draw.choice([0 * gradients[0], gradients[-1]])
        updates.append((w, value))
    return Graph((x,), tuple(outputs), tuple(updates))


def cut(graph: Graph, target: Any) -> Graph:
    """Return the graph of a rank after sharding."""
    options, sharing = CompileOptions(shard="host"), target.sharing
    equal = Equal(graph, sharing.group, lambda variable: False)
    shared = shareable_variables(graph, equal, sharing.partition.parts, set())
    target.sharing = sharing._replace(variables=frozenset(shared))
    graph = simplify(order_collectives(graph, target, options), target, options)
    return shard_updates(graph, target, options)


def collectives(graph: Graph) -> list[tuple[Any, ...]]:
    """Return the collectives of a graph in their order, with the properties that ranks compare."""
    nodes = sorted((n for n in graph.nodes if n.op.order is not None), key=order_of)
    kept = ("root", "reduce_op", "counts")
    return [
        (n.op.order, n.op.name, *map(n.attrs.get, kept), n.inputs[0].dtype, n.inputs[0].type.count)
        for n in nodes
    ]


def expect_causal(graph: Graph) -> None:
    """Check that every collective is after its operands, and that the sort keys are different."""
    first = Order(-1)
    latest: dict[Node, Order] = {}
    places = set()
    for node in graph.nodes:
        before = max([latest[i] for i in node.inputs], default=first)
        if node.op.order is not None:
            assert before < node.op.order not in places, node
            places.add(before := node.op.order)
        latest.update(dict.fromkeys(node.results, before))


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), layout=st.sampled_from(LAYOUTS))
def test_all_ranks_have_the_same_collectives(seed: int, layout: tuple[int, int, bool]) -> None:
    patch = pytest.MonkeyPatch()
    patch.setattr(owners, "MIN_FLOPS", 1)
    patch.setattr(owners, "MIN_FLOPS_PER_BYTE", 0)
    try:
        step, (hosts, per_host, _) = random_step(seed), layout
        programs = [cut(step, rank_of(r, *layout)) for r in range(hosts * per_host)]
    finally:
        patch.undo()
    for program in programs:
        program.verify()
        expect_causal(program)
        assert collectives(program) == collectives(programs[0])
