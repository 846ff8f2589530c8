# SPDX-License-Identifier: Apache-2.0
"""Tests of elementwise kernels with several results: which ops share one, and equal bits."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.testing as npt
import pytest

import ngd
from ngd import ops
from ngd.graph.graph import Graph
from ngd.graph.node import Node
from ngd.passes import CompileOptions
from ngd.passes.fusion import elementwise
from ngd.passes.fusion.elementwise import MAX_INPUTS, MAX_INSTRUCTIONS, fuse_elementwise
from ngd.passes.fusion.kernel_body import FusedKernel, body_of
from ngd.passes.simplification import simplify

NO_TARGET: Any = None


def kernels(step: Any) -> list[tuple[int, int, int]]:
    """Return the numbers of results, inputs and statements of each elementwise kernel."""
    found = re.findall(r"\d+: (.*) = elementwise\((.*)\) .* program=\"(.*)\"", str(step))
    return [(r.count("%"), i.count("%"), p.count(";") + 1) for r, i, p in found]


def instructions(step: Any) -> list[str]:
    """Return the kernels of a program's instructions."""
    return re.findall(r"^  \d+: (?:.* = )?(.*?)\(", str(step), re.MULTILINE)


def compile_unfused(compile_step: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the step with one statement per elementwise kernel."""
    with monkeypatch.context() as patch:
        patch.setattr(elementwise, "MAX_INSTRUCTIONS", 1)
        step = compile_step()
    assert all(count == 1 for *_, count in kernels(step))
    return step


class Optimizer:
    """A variable, its state, and its updates, in a graph and in NumPy."""

    shape = (33, 70)

    def __init__(self, dtype: Any = np.float32) -> None:
        rng = np.random.default_rng(1)
        self.start = rng.normal(size=self.shape).astype(dtype)
        self.w = ngd.variable("w", self.start)
        self.g = ngd.placeholder("g", self.shape, dtype)
        self.gradients = [rng.normal(size=self.shape).astype(dtype) for _ in range(4)]

    def state(self, name: str) -> Any:
        return ngd.variable(name, np.zeros(self.shape, self.start.dtype))


class Momentum(Optimizer):
    def updates(self) -> dict[Any, Node]:
        self.v = self.state("v")
        v = 0.9 * self.v + self.g
        return {self.v: v, self.w: self.w - 0.1 * v}

    def by_hand(self) -> np.ndarray[Any, Any]:
        w, v = self.start.astype(float), np.zeros(self.shape)
        for g in self.gradients:
            v = 0.9 * v + g
            w = w - 0.1 * v
        return w


class Decayed(Optimizer):
    """Nesterov momentum with weight decay. Two statements read the decayed gradient."""

    def updates(self) -> dict[Any, Node]:
        self.v = self.state("v")
        g = self.g + 0.01 * self.w
        v = 0.9 * self.v + g
        return {self.v: v, self.w: self.w - 0.1 * (g + 0.9 * v)}

    def by_hand(self) -> np.ndarray[Any, Any]:
        w, v = self.start.astype(float), np.zeros(self.shape)
        for g in self.gradients:
            g = g + 0.01 * w
            v = 0.9 * v + g
            w = w - 0.1 * (g + 0.9 * v)
        return w


class Adam(Optimizer):
    """Kingma and Ba 2015, algorithm 1, without bias correction."""

    def updates(self) -> dict[Any, Node]:
        self.m, self.s = self.state("m"), self.state("s")
        m = 0.9 * self.m + 0.1 * self.g
        s = 0.99 * self.s + 0.01 * ops.square(self.g)
        return {self.m: m, self.s: s, self.w: self.w - 0.1 * m / (ops.sqrt(s) + 1e-6)}

    def by_hand(self) -> np.ndarray[Any, Any]:
        w, m, s = self.start.astype(float), np.zeros(self.shape), np.zeros(self.shape)
        for g in self.gradients:
            m = 0.9 * m + 0.1 * g
            s = 0.99 * s + 0.01 * g.astype(float) ** 2
            w = w - 0.1 * m / (np.sqrt(s) + 1e-6)
        return w


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", [Momentum, Decayed, Adam])
def test_an_update_is_one_instruction(
    kind: type[Any], dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = kind(dtype), kind(dtype)
    updates, others = one.updates(), other.updates()
    step = ngd.compile([one.g], [], updates=updates)
    assert instructions(step) == ["elementwise"]
    results = 3 if kind is Adam else 2
    assert kernels(step)[0][:2] == (results, results + 1)
    assert re.search(r"private 0 bytes", str(step))  # every result is written into its variable
    slow = compile_unfused(lambda: ngd.compile([other.g], [], updates=others), monkeypatch)
    for gradient in one.gradients:
        step(gradient)
        slow(gradient)
    close = 1e-5 if dtype == np.float32 else 1e-13
    npt.assert_allclose(one.w.numpy(), one.by_hand(), rtol=close, atol=close)
    for mine, theirs in zip(updates, others, strict=True):
        assert mine.numpy().tobytes() == theirs.numpy().tobytes()


class Pair:
    """A stand-in for a group, with the attributes that the compiler reads."""

    rank, size = 0, 2


def test_updates_after_an_all_reduce_are_written_in_place() -> None:
    group: Any = Pair()
    optimizers = [Adam(), Adam()]
    updates: dict[Any, Node] = {}
    for i, one in enumerate(optimizers):
        x, one.g = one.g, ops.all_reduce(one.g, op="mean")
        for variable, value in one.updates().items():
            variable.attrs["name"] = f"{variable.name}{i}"
            updates[variable] = value
        one.g = x
    step = ngd.compile([o.g for o in optimizers], [], updates, device="NULL", group=group)
    found = instructions(step)
    assert found.count("elementwise") == 2
    assert "copy" not in found
    starts = [i for i, name in enumerate(found) if name == "start all_reduce"]
    waits = [i for i, name in enumerate(found) if name == "wait all_reduce"]
    assert len(starts) == len(waits) == 2
    assert max(waits) < found.index("elementwise")


def test_a_collective_does_not_wait_for_operands_of_a_later_one() -> None:
    """Two values use one gradient. One is sent first, and the other after a matmul."""
    group: Any = Pair()
    x, y = ngd.placeholder("x", (4, 4)), ngd.placeholder("y", (4, 4))
    first = ops.all_reduce(x * y, op="sum")
    later = ops.all_reduce((x + y) @ y, op="sum")
    text = str(ngd.compile([x, y], [first, later], device="NULL", group=group))
    assert kernels(text) == [(1, 2, 1), (1, 2, 1)]
    assert instructions(text)[:2] == ["elementwise", "start all_reduce"]


def test_a_value_that_is_read_late_is_computed_late() -> None:
    x = ngd.placeholder("x", (4, 4))
    y = ops.tanh(x)
    hidden = ops.exp(y @ y) @ y
    slope = 1 - y * y  # read twice, at the end
    outputs = [ops.sum(hidden @ slope), ops.sum(hidden @ ops.square(slope))]
    step = ngd.compile([x], outputs, device="NULL")
    assert instructions(step)[:4] == ["elementwise", "matmul", "elementwise", "matmul"]
    assert kernels(step) == [(1, 1, 1), (1, 1, 1), (2, 1, 3)]


def test_ops_that_read_the_same_values_share_a_kernel() -> None:
    x, y = ngd.placeholder("x", (40, 50)), ngd.placeholder("y", (40, 50))
    outputs = [ops.exp(x) * y, x - y, ops.sqrt(x)]
    step = ngd.compile([x, y], outputs)
    assert kernels(step) == [(3, 2, 4)]
    a, b = np.random.default_rng(0).uniform(1, 2, (2, 40, 50)).astype(np.float32)
    for found, wanted in zip(step(a, b), [np.exp(a) * b, a - b, np.sqrt(a)], strict=True):
        npt.assert_allclose(found, wanted, rtol=1e-6)


def test_ops_that_read_different_values_share_no_kernel() -> None:
    """The two updates share only the learning rate."""
    lr = ngd.placeholder("lr", (), uniform=True)
    given = [ngd.placeholder(f"g{i}", (7, 3)) for i in range(2)]
    variables = [ngd.variable(f"v{i}", np.zeros((7, 3), np.float32)) for i in range(2)]
    updates = {v: v - lr * g for v, g in zip(variables, given, strict=True)}
    assert kernels(ngd.compile([lr, *given], [], updates)) == [(1, 3, 2), (1, 3, 2)]


def test_a_broadcast_may_be_the_result_of_a_kernel() -> None:
    x, y = ngd.placeholder("x", (3,)), ngd.placeholder("y", (2, 3))
    wide = ops.broadcast_to(x, (2, 3))
    step = ngd.compile([x, y], [wide, wide + y])
    a, b = np.arange(3, dtype=np.float32), np.ones((2, 3), np.float32)
    found = step(a, b)
    npt.assert_array_equal(found[0], [a, a])
    npt.assert_array_equal(found[1], [a + 1, a + 1])


def test_kernels_keep_within_their_limits() -> None:
    x = ngd.placeholder("x", (5,))
    many = [x + float(i) for i in range(1, 3 * MAX_INSTRUCTIONS)]
    step = ngd.compile([x], many)
    assert max(count for *_, count in kernels(step)) == MAX_INSTRUCTIONS
    assert len(kernels(step)) == 3
    for i, found in enumerate(step(np.zeros(5, np.float32)), 1):
        npt.assert_array_equal(found, np.full(5, i))
    given = [ngd.placeholder(f"x{i}", (5,)) for i in range(3 * MAX_INPUTS)]
    pairs = [a * b for a, b in zip(given, [*given[1:], x], strict=True)]
    step = ngd.compile([*given, x], pairs)
    assert max(inputs for _, inputs, _ in kernels(step)) <= MAX_INPUTS
    arrays = [np.full(5, i + 2, np.float32) for i in range(len(given) + 1)]
    for i, found in enumerate(step(*arrays)):
        npt.assert_array_equal(found, np.full(5, (i + 2) * (i + 3)))


SHAPES = ((6, 5), (5,), (1, 5), (6, 1), ())
UNARY = (ops.tanh, ops.negative, ops.abs, ops.sigmoid, ops.relu)
BINARY = (ops.add, ops.subtract, ops.multiply, ops.maximum)


def random_graph(seed: int) -> tuple[list[Node], list[Node], dict[Any, Node]]:
    """Return a random graph of elementwise ops of several shapes and dtypes, matmuls and sums."""
    rng = random.Random(seed)
    inputs = [
        ngd.placeholder(f"x{i}", rng.choice(SHAPES), rng.choice(["float32", "float32", "bfloat16"]))
        for i in range(4)
    ]
    variables = [ngd.variable(f"v{i}", np.full((6, 5), 0.5 + i, np.float32)) for i in range(3)]
    values: list[Node] = [*inputs, *variables]

    def pick() -> Node:
        return values[-rng.randint(1, min(len(values), 12))]

    for _ in range(rng.randint(5, 60)):
        kind = rng.random()
        if kind < 0.3:
            made = rng.choice(UNARY)(pick())
        elif kind < 0.75:
            made = rng.choice(BINARY)(pick(), pick())
        elif kind < 0.82:
            made = ops.where(pick() > 0, pick(), pick())
        elif kind < 0.87:
            made = ops.cast(pick(), rng.choice(["float32", "bfloat16", "float64"]))
        elif kind < 0.92:
            made = ops.broadcast_to(ops.mean(pick()), (6, 5))
        elif kind < 0.96:
            square = ops.broadcast_to(ops.cast(pick(), "float32"), (6, 5))
            made = ops.tanh((square @ ops.transpose(square)) @ square)
        else:
            made = ops.top_k(ops.broadcast_to(pick(), (6, 5)), 5)[0]
        values.append(made)
    outputs = rng.sample(values, min(len(values), rng.randint(1, 8)))
    full = [n for n in values[7:] if n.shape == (6, 5)]
    updates = {
        v: ops.cast(rng.choice(full), "float32") for v in variables if full and rng.random() < 0.7
    }
    return inputs, outputs, updates


def run_twice(step: Any, inputs: Sequence[Node], updates: dict[Any, Node]) -> list[bytes]:
    """Return the results of two calls and the final variables, and restore the variables."""
    rng = np.random.default_rng(2)
    before = {v: v.numpy() for v in updates}
    found = []
    for _ in range(2):
        arrays = [np.asarray(rng.normal(size=n.shape)).astype(n.dtype) for n in inputs]
        found += [a.tobytes() for a in step(*arrays)]
    found += [v.numpy().tobytes() for v in updates]
    for v, value in before.items():
        v.assign(value)
    return found


@pytest.mark.parametrize("first", range(0, 240, 40))
def test_random_graphs_have_the_bits_of_unfused_kernels(
    first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NGD_CHECK", "1")
    several = 0
    for seed in range(first, first + 40):
        inputs, outputs, updates = random_graph(seed)
        fused = ngd.compile(inputs, outputs, updates)
        several += sum(results > 1 for results, *_ in kernels(fused))
        wanted = run_twice(fused, inputs, updates)
        del fused
        plain = compile_unfused(lambda: ngd.compile(inputs, outputs, updates), monkeypatch)  # noqa: B023
        assert run_twice(plain, inputs, updates) == wanted, f"seed {seed}"
    assert several > 40


def order_of(graph: Graph) -> list[Node]:
    """Return an order in which each op is after its inputs. A graph with a cycle has none."""
    done: set[Node] = set()
    order: list[Node] = []

    def visit(node: Node, above: frozenset[Node]) -> None:
        node = node.results[0]
        assert node not in above, "a circle"
        if node not in done:
            for operand in node.inputs:
                visit(operand, above | {node})
            done.add(node)
            order.append(node)

    for root in graph.roots:
        visit(root, frozenset())
    return order


def test_random_graphs_have_no_cycles_and_keep_all_ops() -> None:
    for seed in range(400):
        inputs, outputs, _ = random_graph(seed)
        graph = simplify(Graph(tuple(inputs), tuple(outputs)), NO_TARGET, CompileOptions())
        fused = fuse_elementwise(graph, NO_TARGET, CompileOptions())
        fused.verify()
        assert len(order_of(fused)) == len(fused.nodes)
        assert not any(n.op.kernel.is_elementwise for n in fused.nodes)
        others = [n.op.name for n in graph.nodes if not elementwise.is_elementwise(n)]
        constants = sum(name == "constant" for name in others)
        left = [n.op.name for n in fused.nodes if not isinstance(n.op, FusedKernel)]
        assert len(others) - constants == len(left) - sum(name == "constant" for name in left)
        for node in fused.nodes:
            if isinstance(node.op, FusedKernel):
                read = {o for n in fused.nodes for o in n.inputs} | set(fused.roots)
                assert read.issuperset(node.results)
                assert len(node.inputs) <= MAX_INPUTS
                assert body_of(node).text.count(";") < MAX_INSTRUCTIONS
