# SPDX-License-Identifier: Apache-2.0
"""Ops of several results: through the graph, gradients, passes and the planner."""

from __future__ import annotations

import copy
import pickle
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.testing as npt
import pytest

import ngd
from ngd import ops
from ngd.devices.interpreter.evaluate import evaluate
from ngd.dtypes import Array, Type, float32, float64, int64
from ngd.errors import CompileError, Error
from ngd.graph.graph import Graph
from ngd.graph.node import Node, Op, Result, topological
from ngd.graph.traits import Numerics
from ngd.ops._precision import expansion
from ngd.passes import CompileOptions, computation
from ngd.passes.simplification import simplify

DEVICES = ("CPU", "INTERPRETER")
A = np.array([[3.0, 1.0, 2.0], [5.0, 9.0, 7.0]], np.float32)


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class SinCos(Op):
    """sin and cos at once, made of other ops; it is not in the registry."""

    name = "sin_cos"

    def infer(self, x: Type) -> tuple[Type, ...]:
        return x, x

    def expand(self, x: Node) -> tuple[Node, ...]:
        return ops.sin(x), ops.cos(x)

    def reference(self, x: Array) -> tuple[Array, ...]:
        return np.sin(x), np.cos(x)


class WithRule(SinCos):
    """The same with a rule, which notes what it is given."""

    def __init__(self) -> None:
        self.given: list[tuple[Node | None, ...]] = []

    def grad(self, node: Node, dy: tuple[Node | None, ...]) -> Sequence[Node | None]:
        self.given.append(dy)
        sin, cos = node.results
        parts = [
            d * slope
            for d, slope in zip(dy, (cos, ops.negative(sin)), strict=True)
            if d is not None
        ]
        return (parts[0] if len(parts) == 1 else parts[0] + parts[1],)


def x_of(*shape: int, dtype: Any = float32) -> Node:
    return ngd.placeholder("x", shape, dtype)


def test_results_share_one_application() -> None:
    x = x_of(2, 3)
    values, places = ops.top_k(x, 2)
    assert values.results is places.results
    assert values.results[0] is values
    assert values.results[1] is places
    assert [values.number, places.number, x.number] == [0, 1, 0]
    assert x.results[0] is x
    assert not x.has_several_results
    assert values.has_several_results
    assert values.attrs is places.attrs
    assert values.site == places.site
    assert values.inputs is places.inputs
    assert [str(n.type) for n in (values, places)] == ["float32[2, 2]", "int64[2, 2]"]
    assert repr(places) == "<ngd.Node top_k, result 1: int64[2, 2]>"


def test_a_node_of_one_result_has_no_more_than_before() -> None:
    node = ops.exp(x_of(2))
    assert type(node) is Node
    assert not hasattr(node, "__dict__")
    assert set(Node.__slots__) == {
        "__weakref__", "attrs", "id", "inputs", "op", "site", "type", "uniform", "keeps_float32"
    }  # fmt: skip


def test_a_walk_meets_an_application_once_whichever_results_are_read() -> None:
    x = x_of(2, 3)
    values, places = ops.top_k(x, 2)
    assert [n.op.name for n in topological([places])] == ["placeholder", "top_k"]
    assert topological([places])[-1] is values
    both = ops.cast(places, float32) + values
    assert sum(n.op.name == "top_k" for n in topological([both, places, values])) == 1
    assert topological([both], stop=[places])[0].op.name == "cast"


def test_printing() -> None:
    x = x_of(2, 3)
    values, places = ops.top_k(x, 2)
    assert str(Graph((x,), (places, values))).splitlines()[2:] == [
        "  %1, %2 ~ top_k(%0) k=2 largest=True : f32[2,2], i64[2,2]",
        "  return %2, %1",
    ]


def test_verify_compares_all_results() -> None:
    x = x_of(3)
    lying = Result.all_of(
        ops.top_k, (x,), {"k": 2, "largest": True}, (Type(float32, (2,)), Type(float32, (2,)))
    )
    message = (
        r"top_k at .*\.py:\d+ is typed float32\[2\], float32\[2\], .* make float32\[2\], int64\[2\]"
    )
    with pytest.raises(CompileError, match=message):
        Graph((x,), (lying[0],)).verify()


def test_rewrite_replaces_results_by_an_application_or_by_a_tuple() -> None:
    x = x_of(3)
    pair = SinCos()
    sin, cos = pair.node((x,)).results
    graph = Graph((x,), (cos, sin + cos))
    moved = graph.rewrite(lambda n, i: pair.node((ops.exp(x),)) if n is sin else n.with_inputs(i))
    assert [n.number for n in moved.outputs[1].inputs] == [0, 1]
    assert moved.outputs[0] is moved.outputs[1].inputs[1]
    swapped = graph.rewrite(lambda n, i: (ops.cos(x), ops.sin(x)) if n is sin else n.with_inputs(i))
    assert [n.op.name for n in swapped.outputs[1].inputs] == ["cos", "sin"]
    assert graph.rewrite(lambda n, i: n.with_inputs(i)) is graph
    with pytest.raises(ValueError, match="zip"):
        graph.rewrite(lambda n, i: (ops.cos(x),) if n is sin else n.with_inputs(i))


def test_the_interpreter_gives_all_results_and_checks_them() -> None:
    class Lying(SinCos):
        def reference(self, x: Array) -> tuple[Array, ...]:
            return np.sin(x), np.cos(x).astype(np.float64)

    x = x_of(2)
    _, cos = SinCos().node((x,)).results
    (found,), _ = evaluate(Graph((x,), (cos,)), [np.zeros(2, np.float32)], {})
    assert found.tolist() == [1, 1]
    lying = Lying().node((x,)).results[1]
    with pytest.raises(Error, match=r"result 1: .* is float64"):
        evaluate(Graph((x,), (lying,)), [np.zeros(2, np.float32)], {})


COPIERS: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda v: pickle.loads(pickle.dumps(v)),
    "old pickle": lambda v: pickle.loads(pickle.dumps(v, 0)),
}


@pytest.mark.parametrize("copier", COPIERS.values(), ids=COPIERS)
def test_copies_share_what_was_shared(copier: Callable[[Any], Any]) -> None:
    x = x_of(2, 3)
    values, places = ops.top_k(ops.all_reduce(x, op="sum"), 2)
    second, first, total = copier([places, values, ops.sum(values)])
    assert first.results[1] is second
    assert first.results[0] is first
    assert total.inputs[0] is first
    assert first.uniform
    assert second.uniform
    assert [second.number, str(second.type)] == [1, "int64[2, 2]"]
    deep = x
    for _ in range(2000):
        deep = ops.top_k(deep, 3)[0]
    (twin,) = copier([ops.top_k(deep, 1)[1]])
    assert len(topological([twin])) == 2002


class TestGradients:
    def test_what_is_not_read_has_no_adjoint(self) -> None:
        x = x_of(3, dtype=float64)
        a = np.array([0.1, 0.5, 2.0])
        wanted = {"sin": np.cos(a), "cos": -np.sin(a), "both": np.cos(a) - 2 * np.sin(a)}
        for op in (WithRule(), SinCos()):
            sin, cos = op.node((x,)).results
            losses = {"sin": ops.sum(sin), "cos": ops.sum(cos), "both": ops.sum(sin + 2 * cos)}
            for which, loss in losses.items():
                (found,), _ = evaluate(Graph((x,), (ngd.grad(loss, x),)), [a], {})
                npt.assert_allclose(found, wanted[which], rtol=1e-15, err_msg=which)
            if isinstance(op, WithRule):
                read = [tuple(part is not None for part in dy) for dy in op.given]
                assert read == [(True, False), (False, True), (True, True)]

    def test_by_a_result_and_through_it(self) -> None:
        x = x_of(3, dtype=float64)
        a = np.array([0.1, 0.5, 2.0])
        sin, cos = SinCos().node((x,)).results
        loss = ops.sum(sin * cos)
        found, _ = evaluate(Graph((x,), tuple(ngd.grad(loss, [sin, cos, x]))), [a], {})
        npt.assert_allclose(found[0], np.cos(a))
        npt.assert_allclose(found[1], np.sin(a))
        npt.assert_allclose(found[2], np.cos(2 * a))

    def test_two_results_that_are_one_node_of_the_expansion(self) -> None:
        class Twice(SinCos):
            def expand(self, x: Node) -> tuple[Node, ...]:
                y = x * x
                return y, y

        x = x_of(dtype=float64)
        first, second = Twice().node((x,)).results
        loss = first + 10 * second
        graph = Graph((), (ngd.grad(loss, x),))
        assert [n.op.name for n in graph.nodes].count("sin_cos") == 0
        (found,), _ = evaluate(Graph((x,), graph.outputs), [np.array(3.0)], {})
        assert found == 66

    def test_an_expansion_of_another_number_is_an_error(self) -> None:
        class One(SinCos):
            def expand(self, x: Node) -> tuple[Node, ...]:
                return (ops.sin(x),)

        x = x_of(3)
        message = (
            r"^sin_cos: expected One.expand to return float32\[3\], float32\[3\], as infer does; "
            r"got float32\[3\] \(made at .*test_results\.py:\d+\)\. Cast or reshape in expand\.$"
        )
        with pytest.raises(CompileError, match=message):
            ngd.compile([x], [*One().node((x,)).results])

    def test_in_two_bytes_they_are_computed_in_float32(self) -> None:
        class Rounds(WithRule):
            numerics = Numerics(needs_float32_gradient=True)

            def grad(self, node: Node, dy: tuple[Node | None, ...]) -> Sequence[Node | None]:
                assert {n.dtype for n in (*node.results, *dy) if n is not None} == {float32}
                return super().grad(node, dy)

        x = x_of(3, dtype="bfloat16")
        _, cos = Rounds().node((x,)).results
        assert ngd.grad(ops.sum(cos), x).type == x.type
        assert [str(n.type) for n in expansion(cos.results[0])] == ["bfloat16[3]"] * 2

    def test_an_integer_result_ends_the_path(self) -> None:
        x = x_of(2, 3)
        values, places = ops.top_k(x, 2)
        loss = ops.sum(values * ops.cast(places, float32))
        gradient = ngd.grad(loss, x)
        for device in DEVICES:
            (found,) = ngd.compile([x], [gradient], device=device)(A)
            npt.assert_array_equal(found, [[0, 0, 2], [0, 1, 2]])


class TestPasses:
    def test_an_expansion_of_several_results(self, device: str) -> None:
        x = x_of(2, 3)
        sin, cos = SinCos().node((x,)).results
        step = ngd.compile([x], [cos * 2, sin], device=device)
        found = step(A)
        npt.assert_allclose(found[0], 2 * np.cos(A), rtol=1e-5)
        npt.assert_allclose(found[1], np.sin(A), rtol=1e-5)

    def test_equal_applications_are_one(self) -> None:
        x = x_of(2, 3)
        first, second = ops.top_k(x, 2), ops.top_k(x, 2)
        third = ops.top_k(x, 1)
        outputs = (first[0] + second[0], first[1] + second[1], third[1])
        simple = simplify(Graph((x,), outputs), None, CompileOptions())  # type: ignore[arg-type]
        assert sum(n.op.name == "top_k" for n in simple.nodes) == 2
        for output in simple.outputs[:2]:
            assert output.inputs[0] is output.inputs[1]
        assert [o.inputs[0].number for o in simple.outputs[:2]] == [0, 1]

    def test_a_rule_may_leave_the_second_result(self, device: str) -> None:
        x = x_of(2, 3)
        _, places = ops.top_k(x, 2)
        one = ops.cast(ops.negative(ops.negative(places)), int64) * 1
        (found,) = ngd.compile([x], [one], device=device)(A)
        npt.assert_array_equal(found, [[0, 2], [1, 2]])

    def test_what_a_step_computes_tells_results_apart(self) -> None:
        x = x_of(2, 2)
        sin, cos = SinCos().node((x,)).results
        group: Any = None
        sums = [ops.all_reduce(n, op="sum", group=group) for n in (sin, cos)]
        numbers = {computation(Graph((x,), (n,))) for n in (*sums, sums[0])}
        assert len(numbers) == 2


class TestPlans:
    def test_what_nobody_reads_has_no_bytes(self) -> None:
        x = x_of(64, 64)
        both, second = ops.top_k(x, 32), ops.top_k(x, 32)[1]
        apart = ngd.compile([x], [ops.sum(n) for n in both])
        alone = ngd.compile([x], [ops.sum(second)])
        text = str(alone)
        assert " : f32[64,32] @ nowhere\n" in text
        assert "nowhere" not in str(apart)
        assert apart.memory()["unshared"] - alone.memory()["unshared"] == 64 * 32 * 4 + 64
        a = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
        wanted = np.argsort(-a, axis=1, kind="stable")[:, :32].sum()
        assert alone(a)[0] == wanted == apart(a)[1]

    def test_any_result_may_be_an_output_or_a_variables_value(self, device: str) -> None:
        x = x_of(2, 3)
        best = ngd.variable("best", np.zeros((2, 2), np.float32))
        where = ngd.variable("where", np.zeros((2, 2), np.int64))
        values, places = ops.top_k(x, 2)
        step = ngd.compile([x], [], updates={best: values, where: places}, device=device)
        step(A)
        npt.assert_array_equal(best.numpy(), [[3, 2], [9, 7]])
        npt.assert_array_equal(where.numpy(), [[0, 2], [1, 2]])
        if device == "CPU":
            assert str(step).endswith("\n  0: %1, %2 = top_k(%0) k=2 largest=1\n")
        outputs = ngd.compile([x], [places, values, places], device=device)(A)
        npt.assert_array_equal(outputs[0], outputs[2])
        npt.assert_array_equal(outputs[1], [[3, 2], [9, 7]])

    def test_an_update_that_reads_its_variable_is_made_apart(self) -> None:
        v = ngd.variable("v", np.array([1.0, 3.0, 2.0], np.float32))
        places = ngd.variable("places", np.zeros(3, np.int64))
        step = ngd.compile([], [], updates=dict(zip((v, places), ops.top_k(v, 3), strict=True)))
        step()
        npt.assert_array_equal(v.numpy(), [3, 2, 1])
        npt.assert_array_equal(places.numpy(), [1, 2, 0])
        assert str(step).count(" = copy(") == 1  # top_k may not write over what it reads


class TestViews:
    """Parts that stand side by side in what they are parts of: no bytes are moved."""

    def test_which_parts_are_views(self) -> None:
        x = x_of(4, 1, 6)
        views = [x[1:3], x[2], x[1, 0, 2:5], x[3, :, :0], x[:0, :, ::2]]
        copies = [x[::2], x[:, :, 1:], x[::-1], x[1:3, 0, 2:5], x[0, 0, ::2]]
        for part in (*views, *copies):
            text = str(ngd.compile([x], [ops.top_k(part, part.shape[-1])[0]]))
            assert ("slice" in text) == any(part is c for c in copies), str(part.type)

    @pytest.mark.parametrize("axis", [0, 1, -1])
    def test_split_is_numpys(self, axis: int, device: str) -> None:
        a = np.arange(48.0).reshape(4, 6, 2)
        x = x_of(4, 6, 2, dtype=float64)
        for sections in (1, 2, [1], [0, 1, 1], [-1], [1, 99]):
            parts = ops.split(x, sections, axis)
            assert isinstance(parts, tuple)
            wanted = np.split(a, sections, axis)
            found = ngd.compile([x], [p * 2 for p in parts], device=device)(a)
            for mine, theirs in zip(found, wanted, strict=True):
                npt.assert_array_equal(mine, 2 * theirs)

    def test_split_along_the_outermost_axis_moves_nothing(self) -> None:
        a = np.arange(240, dtype=np.float32).reshape(6, 40) / 100
        w = ngd.variable("w", a)
        x = x_of(6, 40)
        c = ngd.constant(a)
        sources: list[Any] = [x, w, c, ops.exp(x) @ np.eye(40, dtype="f")]
        for source in sources:
            upper, _, lower = ops.split(source, [2, 4])
            step = ngd.compile([x], [upper @ ops.transpose(lower)])
            assert not {"slice", "copy"} & set(str(step).replace("(", " ").split())
            values = np.exp(a) if source is sources[3] else a
            npt.assert_allclose(step(a)[0], values[:2] @ values[4:].T, rtol=1e-6)
        assert " @ variable 0+640\n" in str(
            ngd.compile([], [ops.split(w, [4])[1] @ ops.transpose(w)])
        )

    def test_a_part_is_a_result_and_a_variables_value(self, device: str) -> None:
        a = np.arange(6, dtype=np.float32)
        x, v = x_of(6), ngd.variable("v", np.zeros(3, np.float32))
        first, second = ops.split(x, 2)
        step = ngd.compile([x], [second, first, x, second[1:]], updates={v: second}, device=device)
        for found, wanted in zip(step(a), [a[3:], a[:3], a, a[4:]], strict=True):
            npt.assert_array_equal(found, wanted)
        npt.assert_array_equal(v.numpy(), a[3:])

    def test_variables_change_after_their_parts_are_read(self, device: str) -> None:
        a = np.arange(6, dtype=np.float32)
        w = ngd.variable("w", a)
        half = ngd.variable("half", np.zeros(3, np.float32))
        first, second = ops.split(w, 2)
        updates = {w: ops.concat([second, first]) + w, half: first + second}
        total = ops.sum(second)
        (found,) = ngd.compile([], [total], updates=updates, device=device)()
        assert found == 12
        npt.assert_array_equal(w.numpy(), a + np.roll(a, 3))
        npt.assert_array_equal(half.numpy(), a[:3] + a[3:])

    def test_an_update_from_a_part_of_its_variable(self) -> None:
        """The kernel may write over what it reads, but not where it reads only a part of it."""
        a = np.arange(4, dtype=np.float32)
        w = ngd.variable("w", a)
        step = ngd.compile([], [], updates={w: w + w[:1]})
        step()
        npt.assert_array_equal(w.numpy(), a)
        v = ngd.variable("v", a + 1)
        ngd.compile([], [], updates={v: v * v[1:2]})()
        npt.assert_array_equal(v.numpy(), (a + 1) * 2)

    def test_overlapping_parts_that_die_together(self) -> None:
        x = x_of(9)
        y = ops.cast(ops.top_k(x, 9)[0], float32)
        a = np.arange(9, dtype=np.float32)[::-1].copy()
        shifted = y[1:] + y[:-1]
        apart = ops.exp(y[:4] * 0) + y[4:8]
        found = ngd.compile([x], [shifted * 1, ops.sum(shifted), apart * 2])(a)
        npt.assert_array_equal(found[0], a[1:] + a[:-1])
        npt.assert_array_equal(found[2], 2 + 2 * a[4:8])
        (only,) = ngd.compile([x], [ops.sum(ops.square(y[1:] - 2 * y[:-1]))])(a)
        assert only == np.sum((a[1:] - 2 * a[:-1]) ** 2)

    def test_parts_feed_collectives(self) -> None:
        class Pair:
            rank, size = 0, 2

        group: Any = Pair()
        x = x_of(6, 2)
        y = ops.tanh(x)
        first, second = ops.split(y, 2)
        outputs = [
            ops.all_reduce(first, op="sum", group=group),
            ops.all_reduce(second, op="sum", group=group),
            ops.all_gather(ops.exp(x)[2:4], group=group),
        ]
        text = str(ngd.compile([x], outputs, device="NULL", group=group))
        assert text.count("start all_reduce") == 2
        assert "slice" not in text


def random_moves(seed: int) -> tuple[list[Node], list[Node], dict[Any, Node]]:
    """Integers that are cut, joined, ordered, sent through views and added: every bit is known."""
    rng = random.Random(seed)
    inputs = [ngd.placeholder(f"x{i}", (6, 4), int64) for i in range(2)]
    variables = [ngd.variable(f"v{i}", np.arange(24).reshape(6, 4) * (i + 3)) for i in range(3)]
    values: list[Node] = [*inputs, *variables, ngd.constant(np.arange(96).reshape(24, 4) * 7)]

    def pick(shape: Any = None) -> Node:
        fitting = [v for v in values[-15:] if v.type.count and shape in (None, v.shape)]
        return rng.choice(fitting or inputs)

    for _ in range(rng.randint(5, 40)):
        x = pick()
        kind = rng.randrange(8)
        if kind == 0:
            made = [x + pick(x.shape)] if x.ndim == 2 else [-x]
        elif kind == 1:
            begin = rng.randrange(x.shape[0])
            made = [x[begin : rng.randint(begin, x.shape[0])]]
        elif kind == 2:
            cuts = sorted(rng.randint(0, x.shape[0]) for _ in range(rng.randint(0, 3)))
            parts = ops.split(x, cuts, 0)
            made = rng.sample(parts, rng.randint(1, len(parts)))
        elif kind == 3:
            made = [ops.split(x, [x.shape[-1] // 2], -1)[rng.randrange(2)]]
        elif kind == 4:
            made = [ops.concat([x, x[:1]] if rng.random() < 0.5 else [x[1:], x[:1]])]
        elif kind == 5:
            made = list(ops.top_k(x, rng.randint(0, x.shape[-1])))[:: rng.choice([1, -1, 2])]
        elif kind == 6:
            made = [ops.maximum(x[1:], x[:-1]), x[1:] - x[:-1]]
        else:
            made = [ops.reshape(x, (-1, rng.choice([1, x.shape[-1]])))]
        values += made
    outputs = rng.sample(values, min(len(values), rng.randint(1, 6)))
    full = [v for v in values[5:] if v.shape == (6, 4)] or inputs
    updates = {v: rng.choice(full) for v in variables if rng.random() < 0.6}
    return inputs, outputs, updates


@pytest.mark.parametrize("first", range(0, 300, 50))
def test_random_parts_and_results(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NGD_CHECK", "1")
    for seed in range(first, first + 50):
        inputs, outputs, updates = random_moves(seed)
        found: list[list[Array]] = []
        for device in DEVICES:
            arrays = [
                np.random.default_rng(i).integers(0, 99, n.shape) for i, n in enumerate(inputs)
            ]
            before = {v: v.numpy() for v in updates}
            step = ngd.compile(inputs, outputs, updates, device=device)
            found.append([a for _ in range(2) for a in step(*arrays)])
            found[-1] += [v.numpy() for v in updates]
            for v, value in before.items():
                v.assign(value)
        for mine, theirs in zip(*found, strict=True):
            npt.assert_array_equal(mine, theirs, err_msg=f"seed {seed}")
