# SPDX-License-Identifier: Apache-2.0
"""The cost of a compilation, as a number of calls: it is linear in the size of the graph."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import ngd
from ngd import _core, ops
from ngd.devices.cpu import target as cpu
from ngd.dtypes import Type
from ngd.errors import CompileError
from ngd.graph.graph import Graph
from ngd.passes.memory.plan import Plan, Storage

DOUBLE = 2.2
"""The maximum ratio of the numbers of calls for graphs of 2 n and n layers."""


class Pair:
    """A stand-in for a group, with the attributes that the compiler reads."""

    rank, size = 0, 2


def layers(n: int, reduced: bool = False) -> dict[str, Any]:
    """Return layers, the gradients of all weights and biases, and their updates."""
    x = ngd.placeholder("x", (4, 4))
    variables, hidden = [], x
    for i in range(n):
        w = ngd.variable(f"W{i}", np.zeros((4, 4), np.float32))
        b = ngd.variable(f"b{i}", np.zeros(4, np.float32))
        variables += [w, b]
        hidden = ops.relu(hidden @ w + b)
    loss = ops.mean(hidden)
    gradients = ngd.grad(loss, variables)
    if reduced:
        gradients = [ops.all_reduce(g, op="mean") for g in gradients]
    updates = {v: v - 0.1 * g for v, g in zip(variables, gradients, strict=True)}
    return {"inputs": [x], "outputs": [loss], "updates": updates}


def all_reduces(n: int) -> dict[str, Any]:
    return layers(n, reduced=True)


def additions(n: int) -> dict[str, Any]:
    x = y = ngd.placeholder("x", (4,))
    for _ in range(n):
        y = y + x
    return {"inputs": [x], "outputs": [y]}


def variables(n: int) -> dict[str, Any]:
    x = ngd.placeholder("x", (4,))
    given = [ngd.variable(f"v{i}", np.zeros(4, np.float32)) for i in range(n)]
    return {"inputs": [x], "outputs": [], "updates": {v: v - 0.1 * x for v in given}}


def placeholders(n: int) -> dict[str, Any]:
    given = [ngd.placeholder(f"x{i}", (4,)) for i in range(n)]
    return {"inputs": given, "outputs": [ops.concat([a * b for a, b in pairwise(given)])]}


def expansions(n: int) -> dict[str, Any]:
    """Return ops that are expanded. Their gradients come from the expansions."""
    x = y = ngd.placeholder("x", (4, 4))
    for _ in range(n):
        y = ops.tanh(y - ops.mean(y, axis=0) + ops.logsumexp(y, axis=1, keepdims=True))
    return {"inputs": [x], "outputs": [y, ngd.grad(ops.sum(y), x)]}


def sizes_of_every_kind(n: int) -> dict[str, Any]:
    """Return long-lived values of different sizes, the worst case for the memory planner."""
    x = ngd.placeholder("x", (2, 4))
    tops = [ops.concat([x] * (1 + i * 7 % 13)) @ np.eye(4, dtype=np.float32) for i in range(n)]
    return {"inputs": [x], "outputs": [ops.sum(ops.concat(tops[::-1]))]}


def adam(n: int) -> dict[str, Any]:
    """Return updates that are kernels with three results."""
    x = ngd.placeholder("x", (4,))
    updates: dict[Any, Any] = {}
    for i in range(n):
        w, m, s = (ngd.variable(f"{name}{i}", np.zeros(4, np.float32)) for name in "wms")
        updates[m] = 0.9 * m + 0.1 * x
        updates[s] = 0.9 * s + 0.1 * ops.square(x)
        updates[w] = w - 0.1 * updates[m] / ops.sqrt(updates[s])
    return {"inputs": [x], "outputs": [], "updates": updates}


def siblings(n: int) -> dict[str, Any]:
    """Return many results computed from one operand, and one sum of them all."""
    x = ngd.placeholder("x", (4,))
    given = [ops.tanh(x * float(i)) for i in range(n)]
    return {"inputs": [x], "outputs": [*given, ops.sum(ops.concat(given))]}


def parts(n: int) -> dict[str, Any]:
    """Return ops with several results, some of them not read, and the gradients."""
    x = y = ngd.placeholder("x", (4,))
    for _ in range(n):
        a, b, _ = ops.split(ops.top_k(y, 4)[0], [1, 3])
        y = ops.concat([b, a, a])
    return {"inputs": [x], "outputs": [y, ngd.grad(ops.sum(y), x)]}


CASES: tuple[tuple[Callable[[int], dict[str, Any]], int], ...] = (
    (layers, 50),
    (all_reduces, 40),
    (additions, 1500),
    (variables, 250),
    (placeholders, 400),
    (expansions, 25),
    (sizes_of_every_kind, 200),
    (adam, 80),
    (siblings, 300),
    (parts, 60),
)


def calls(make: Callable[[int], dict[str, Any]], n: int) -> int:
    """Return the number of calls, of Python and C functions, that build and compile the graph."""
    count = 0

    def count_call(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += 1

    before = sys.getprofile()
    sys.setprofile(count_call)
    try:
        ngd.compile(**make(n), device="NULL", group=Pair())  # type: ignore[arg-type]
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize(("make", "n"), CASES, ids=[make.__name__ for make, _ in CASES])
@pytest.mark.parametrize("check", [False, True], ids=["plain", "checked"])
def test_twice_the_graph_needs_at_most_twice_the_calls(
    make: Callable[[int], dict[str, Any]], n: int, check: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NGD_CHECK", str(int(check)))
    calls(make, n)  # fills the caches that persist between compilations
    assert calls(make, 2 * n) <= DOUBLE * calls(make, n)


@pytest.fixture
def queries(monkeypatch: pytest.MonkeyPatch) -> Counter[Any]:
    """Count the queries of the kernel table by their arguments. The cache of answers is empty."""
    count: Counter[Any] = Counter()

    class CountingDevice(_core.Device):
        def query_kernel(self, op: str, inputs: Any, outputs: Any, attrs: dict[str, Any]) -> Any:
            count[op, tuple(inputs), tuple(outputs), tuple(sorted(attrs.items()))] += 1
            return super().query_kernel(op, inputs, outputs, attrs)

    monkeypatch.setattr(cpu, "DEVICE", CountingDevice("CPU"))
    cpu.ask.cache_clear()
    return count


def test_each_kernel_query_is_made_once(queries: Counter[Any]) -> None:
    ngd.compile(**layers(20))
    assert queries
    assert set(queries.values()) == {1}
    assert len(queries) < 30
    ngd.compile(**layers(40))  # another graph of the same layers
    assert set(queries.values()) == {1}
    assert len(queries) < 35  # whatever the number of layers


def test_kernel_queries_are_repeated_for_another_number_of_threads(
    queries: Counter[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for threads, times in ((1, 1), (2, 2), (1, 2)):
        monkeypatch.setattr(_core, "thread_count", lambda threads=threads: threads)
        ngd.compile(**layers(2), device="NULL")
        assert set(queries.values()) == {times}


def test_attributes_that_differ_in_type_are_different_kernel_queries(queries: Counter[Any]) -> None:
    target, type_ = cpu.CpuTarget(Pair()), Type(np.dtype("float32"), (2,))  # type: ignore[arg-type]
    first = [target.query("of", [type_], [type_], {"axes": value}) for value in (1, 1.0, True)]
    assert sum(queries.values()) == 3
    assert not any(verdict.accepted for verdict in first)


def test_a_graph_is_walked_once_per_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    walks: Counter[int] = Counter()
    original = Graph.nodes.func  # type: ignore[attr-defined]

    def counting_nodes(graph: Graph) -> Any:
        walks[id(graph)] += 1
        graphs.append(graph)
        return original(graph)

    graphs: list[Graph] = []
    monkeypatch.setattr(Graph.nodes, "func", counting_nodes)
    ngd.compile(**layers(3))
    assert graphs
    assert set(walks.values()) == {1}


@pytest.mark.long
def test_a_chain_of_100000_ops_compiles_and_runs() -> None:
    step = ngd.compile(**additions(100_000))
    (result,) = step(np.full(4, 0.5, np.float32))
    np.testing.assert_array_equal(result, 50_000.5)
    del step


@pytest.mark.long
def test_deep_gradients_and_deep_unfused_chains_compile() -> None:
    x = y = ngd.placeholder("x", (2, 2))
    for _ in range(4_000):
        y = ops.tanh(y @ x)
    gradient = ngd.grad(ops.sum(y), x)
    text = str(ngd.compile([x], [gradient], device="NULL"))
    assert text.count("matmul(") + text.count("elementwise_product(") >= 12_000


def slow_first_fit(lives: Sequence[tuple[int, int, int]]) -> list[int]:
    """Return the lowest free address of each storage, by comparing all pairs of storages."""
    placements: list[tuple[int, int, int, int]] = []
    for first, last, size in lives:
        occupied = [(at, at + n) for f, t, n, at in placements if f <= last and first <= t]
        candidates = [
            at
            for at in (0, *(end for _, end in occupied))
            if all(end <= at or at + size <= begin for begin, end in occupied)
        ]
        placements.append((first, last, size, min(candidates)))
    return [at for *_, at in placements]


def random_lives(seed: int) -> list[tuple[int, int, int]]:
    rng = random.Random(seed)
    steps, longest = rng.randint(1, 70), rng.choice([1, 5, 70])
    lives = []
    for _ in range(rng.randint(0, 60)):
        first = rng.randrange(steps)
        last = min(steps - 1, first + rng.randint(0, longest))
        lives.append((first, last, rng.choice([1, 2, 3, 64, 100])))
    return sorted(lives, key=lambda life: -life[2]) if seed % 2 else lives


def test_first_fit_equals_a_search_of_all_addresses() -> None:
    for seed in range(400):
        lives = random_lives(seed)
        assert _core.first_fit(lives) == slow_first_fit(lives), f"seed {seed}"


def test_verify_reports_live_storages_that_overlap() -> None:
    num_overlaps = 0
    for seed in range(400):
        lives = random_lives(seed)
        storages = [
            Storage("private", at, size, first, last)
            for (first, last, size), at in zip(lives, slow_first_fit(lives), strict=True)
        ]
        Plan(storages=storages).verify()
        for storage in storages[1:2]:
            storage.position = storages[0].position
            a, b = storages[:2]
            if a.first <= b.last and b.first <= a.last:
                num_overlaps += 1
                with pytest.raises(CompileError, match="are alive together"):
                    Plan(storages=storages).verify()
    assert num_overlaps > 20
