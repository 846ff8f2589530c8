# SPDX-License-Identifier: Apache-2.0
"""all_reduce of ranks on several NUMA nodes gives the bits of ranks on one node.

NGD_NUMA_NODE sets the node of each rank.
"""

from __future__ import annotations

import os

import numpy as np
import pytest

import ngd
from ngd import dtypes, ops
from tests.comm.test_all_reduce import COMBINE, Example, canonical_result, check_flat, contribution
from tests.support import harness
from tests.support.harness import run

COUNTS = (0, 1, 7, 2049, 33_333, 300_001)
"""Numbers of elements: none, beside the flag, in one chunk, in several, and in uneven blocks."""


def examples() -> list[Example]:
    """Return examples of every dtype with every reduction, each with two counts."""
    legal = [
        (dtype, op)
        for dtype in dtypes.ALL
        for op in COMBINE
        if (dtype.name, op) != ("bool", "sum") and (op != "mean" or dtype in dtypes.FLOATS)
    ]
    return [
        Example(count, dtype.name, op, "flat", "special" if i % 2 else "wide", i % 3 == 0, seed=i)
        for i, (dtype, op) in enumerate(legal)
        for count in (COUNTS[i % 3], COUNTS[3 + i % 3])
    ]


def reduce_arrays_on_nodes(nodes: list[int]) -> int:
    """Reduce arrays of private memory, which go through staging buffers."""
    os.environ["NGD_NUMA_NODE"] = str(nodes[int(os.environ["RANK"])])
    world = ngd.init()
    for example in examples():
        mine = contribution(example, world.rank)
        out = mine if example.in_place else None
        result = ngd.all_reduce(mine, op=example.op, out=out, algorithm="flat")
        terms = [contribution(example, r) for r in range(world.size)]
        check_flat(example, result, canonical_result(example, terms))
    return len(examples())


def run_steps_on_nodes(nodes: list[int]) -> list[str]:
    """Reduce in a step, in the shared arena: in the world, in a group, and both at once."""
    os.environ["NGD_NUMA_NODE"] = str(nodes[int(os.environ["RANK"])])
    world = ngd.init()
    pair = world.split(world.rank // 2)
    names = []
    for dtype in ("float32", "float64", "int32", "uint8"):
        example = Example(100_003, dtype, "sum", "flat", "wide", False, seed=5)
        x = ngd.placeholder("x", (example.count,), dtype)
        both = [ops.all_reduce(x, op="sum"), ops.all_reduce(x, op="max")]
        step = ngd.compile([x], [*both, ops.all_reduce(x, op="sum", group=pair)])
        terms = [contribution(example, r) for r in range(world.size)]
        first = world.rank // 2 * 2
        wants = [
            canonical_result(example, terms),
            np.maximum.reduce(terms),
            canonical_result(example, terms[first : first + 2]),
        ]
        for _ in range(5):
            for got, want in zip(step(terms[world.rank]), wants, strict=True):
                check_flat(example, got, want)
        names.append(dtype)
    return names


# 2 nodes of 2 ranks, 3 of 2, 2 of 3 (not a power of two), and ranks that are not consecutive.
PLACEMENTS = {
    "2x2": [0, 0, 1, 1],
    "3x2": [4, 4, 0, 0, 2, 2],
    "2x3": [0, 0, 0, 1, 1, 1],
    "interleaved": [0, 1, 0, 1],
}


@pytest.mark.long
@harness.needs_ranks
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_arrays_have_the_bits_of_one_node(placement: str) -> None:
    nodes = PLACEMENTS[placement]
    outcomes = run(reduce_arrays_on_nodes, len(nodes), arguments={"nodes": nodes})
    assert all(outcome.value > 80 for outcome in outcomes)


@harness.needs_ranks
def test_steps_have_the_bits_of_one_node() -> None:
    nodes = PLACEMENTS["2x2"]
    outcomes = run(run_steps_on_nodes, len(nodes), arguments={"nodes": nodes})
    assert all(len(outcome.value) == 4 for outcome in outcomes)
