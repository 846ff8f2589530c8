# SPDX-License-Identifier: Apache-2.0
"""Tests of ops with several results: graphs, gradients, passes and the memory planner."""

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
    """An op that computes sin and cos, and expands to other ops. It is not in the registry."""

    name = "sin_cos"

    def infer(self, x: Type) -> tuple[Type, ...]:
        return x, x

    def expand(self, x: Node) -> tuple[Node, ...]:
        return ops.sin(x), ops.cos(x)

    def reference(self, x: Array) -> tuple[Array, ...]:
        return np.sin(x), np.cos(x)


class WithRule(SinCos):
    """The same op with a gradient rule, which records the adjoints that it gets."""

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


def test_the_results_of_an_op_share_its_operands_and_attributes() -> None:
    x = x_of(2, 3)
    values, indices = ops.top_k(x, 2)
    assert values.results is indices.results
    assert values.results[0] is values
    assert values.results[1] is indices
    assert [values.number, indices.number, x.number] == [0, 1, 0]
    assert x.results[0] is x
    assert not x.has_several_results
    assert values.has_several_results
    assert values.attrs is indices.attrs
    assert values.site == indices.site
    assert values.inputs is indices.inputs
    assert [str(n.type) for n in (values, indices)] == ["float32[2, 2]", "int64[2, 2]"]
    assert repr(indices) == "<ngd.Node top_k, result 1: int64[2, 2]>"


def test_a_node_with_one_result_has_no_additional_fields() -> None:
    node = ops.exp(x_of(2))
    assert type(node) is Node
    assert not hasattr(node, "__dict__")
    assert set(Node.__slots__) == {
        "__weakref__", "attrs", "id", "inputs", "op", "site", "type", "uniform", "keeps_float32"
    }  # fmt: skip


def test_topological_order_contains_an_op_once_whichever_results_are_read() -> None:
    x = x_of(2, 3)
    values, indices = ops.top_k(x, 2)
    assert [n.op.name for n in topological([indices])] == ["placeholder", "top_k"]
    assert topological([indices])[-1] is values
    both = ops.cast(indices, float32) + values
    assert sum(n.op.name == "top_k" for n in topological([both, indices, values])) == 1
    assert topological([both], stop=[indices])[0].op.name == "cast"


def test_all_results_are_printed() -> None:
    x = x_of(2, 3)
    values, indices = ops.top_k(x, 2)
    assert str(Graph((x,), (indices, values))).splitlines()[2:] == [
        "  %1, %2 ~ top_k(%0) k=2 largest=True : f32[2,2], i64[2,2]",
        "  return %2, %1",
    ]


def test_verify_compares_the_types_of_all_results() -> None:
    x = x_of(3)
    wrong_types = Result.all_of(
        ops.top_k, (x,), {"k": 2, "largest": True}, (Type(float32, (2,)), Type(float32, (2,)))
    )
    message = (
        r"top_k at .*\.py:\d+ has type float32\[2\], float32\[2\], "
        r".* returns float32\[2\], int64\[2\]"
    )
    with pytest.raises(CompileError, match=message):
        Graph((x,), (wrong_types[0],)).verify()


def test_rewrite_replaces_results_by_another_op_or_by_a_tuple() -> None:
    x = x_of(3)
    pair = SinCos()
    sin, cos = pair.node((x,)).results
    graph = Graph((x,), (cos, sin + cos))
    replaced = graph.rewrite(
        lambda n, i: pair.node((ops.exp(x),)) if n is sin else n.with_inputs(i)
    )
    assert [n.number for n in replaced.outputs[1].inputs] == [0, 1]
    assert replaced.outputs[0] is replaced.outputs[1].inputs[1]
    swapped = graph.rewrite(lambda n, i: (ops.cos(x), ops.sin(x)) if n is sin else n.with_inputs(i))
    assert [n.op.name for n in swapped.outputs[1].inputs] == ["cos", "sin"]
    assert graph.rewrite(lambda n, i: n.with_inputs(i)) is graph
    with pytest.raises(ValueError, match="zip"):
        graph.rewrite(lambda n, i: (ops.cos(x),) if n is sin else n.with_inputs(i))


def test_the_interpreter_returns_all_results_and_checks_them() -> None:
    class WrongReference(SinCos):
        def reference(self, x: Array) -> tuple[Array, ...]:
            return np.sin(x), np.cos(x).astype(np.float64)

    x = x_of(2)
    _, cos = SinCos().node((x,)).results
    (found,), _ = evaluate(Graph((x,), (cos,)), [np.zeros(2, np.float32)], {})
    assert found.tolist() == [1, 1]
    wrong_dtype = WrongReference().node((x,)).results[1]
    with pytest.raises(Error, match=r"result 1: .* is float64"):
        evaluate(Graph((x,), (wrong_dtype,)), [np.zeros(2, np.float32)], {})


COPIERS: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda v: pickle.loads(pickle.dumps(v)),
    "old pickle": lambda v: pickle.loads(pickle.dumps(v, 0)),
}


@pytest.mark.parametrize("copier", COPIERS.values(), ids=COPIERS)
def test_copies_keep_results_of_one_op_together(copier: Callable[[Any], Any]) -> None:
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
    (copied,) = copier([ops.top_k(deep, 1)[1]])
    assert len(topological([copied])) == 2002


class TestGradients:
    def test_a_result_that_is_not_read_has_no_adjoint(self) -> None:
        x = x_of(3, dtype=float64)
        a = np.array([0.1, 0.5, 2.0])
        expected = {"sin": np.cos(a), "cos": -np.sin(a), "both": np.cos(a) - 2 * np.sin(a)}
        for op in (WithRule(), SinCos()):
            sin, cos = op.node((x,)).results
            losses = {"sin": ops.sum(sin), "cos": ops.sum(cos), "both": ops.sum(sin + 2 * cos)}
            for which, loss in losses.items():
                (found,), _ = evaluate(Graph((x,), (ngd.grad(loss, x),)), [a], {})
                npt.assert_allclose(found, expected[which], rtol=1e-15, err_msg=which)
            if isinstance(op, WithRule):
                read = [tuple(part is not None for part in dy) for dy in op.given]
                assert read == [(True, False), (False, True), (True, True)]

    def test_gradients_by_a_result_and_through_a_result(self) -> None:
        x = x_of(3, dtype=float64)
        a = np.array([0.1, 0.5, 2.0])
        sin, cos = SinCos().node((x,)).results
        loss = ops.sum(sin * cos)
        found, _ = evaluate(Graph((x,), tuple(ngd.grad(loss, [sin, cos, x]))), [a], {})
        npt.assert_allclose(found[0], np.cos(a))
        npt.assert_allclose(found[1], np.sin(a))
        npt.assert_allclose(found[2], np.cos(2 * a))

    def test_two_results_may_be_one_node_of_the_expansion(self) -> None:
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

    def test_an_expansion_with_another_number_of_results_raises_compile_error(self) -> None:
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

    def test_gradients_in_bfloat16_are_computed_in_float32(self) -> None:
        class Rounds(WithRule):
            numerics = Numerics(needs_float32_gradient=True)

            def grad(self, node: Node, dy: tuple[Node | None, ...]) -> Sequence[Node | None]:
                assert {n.dtype for n in (*node.results, *dy) if n is not None} == {float32}
                return super().grad(node, dy)

        x = x_of(3, dtype="bfloat16")
        _, cos = Rounds().node((x,)).results
        assert ngd.grad(ops.sum(cos), x).type == x.type
        assert [str(n.type) for n in expansion(cos.results[0])] == ["bfloat16[3]"] * 2

    def test_an_integer_result_has_no_gradient(self) -> None:
        x = x_of(2, 3)
        values, indices = ops.top_k(x, 2)
        loss = ops.sum(values * ops.cast(indices, float32))
        gradient = ngd.grad(loss, x)
        for device in DEVICES:
            (found,) = ngd.compile([x], [gradient], device=device)(A)
            npt.assert_array_equal(found, [[0, 0, 2], [0, 1, 2]])


class TestPasses:
    def test_an_expansion_may_have_several_results(self, device: str) -> None:
        x = x_of(2, 3)
        sin, cos = SinCos().node((x,)).results
        step = ngd.compile([x], [cos * 2, sin], device=device)
        found = step(A)
        npt.assert_allclose(found[0], 2 * np.cos(A), rtol=1e-5)
        npt.assert_allclose(found[1], np.sin(A), rtol=1e-5)

    def test_equal_ops_are_merged(self) -> None:
        x = x_of(2, 3)
        first, second = ops.top_k(x, 2), ops.top_k(x, 2)
        third = ops.top_k(x, 1)
        outputs = (first[0] + second[0], first[1] + second[1], third[1])
        simple = simplify(Graph((x,), outputs), None, CompileOptions())  # type: ignore[arg-type]
        assert sum(n.op.name == "top_k" for n in simple.nodes) == 2
        for output in simple.outputs[:2]:
            assert output.inputs[0] is output.inputs[1]
        assert [o.inputs[0].number for o in simple.outputs[:2]] == [0, 1]

    def test_a_simplification_may_keep_only_the_second_result(self, device: str) -> None:
        x = x_of(2, 3)
        _, indices = ops.top_k(x, 2)
        one = ops.cast(ops.negative(ops.negative(indices)), int64) * 1
        (found,) = ngd.compile([x], [one], device=device)(A)
        npt.assert_array_equal(found, [[0, 2], [1, 2]])

    def test_fingerprints_distinguish_the_results_of_an_op(self) -> None:
        x = x_of(2, 2)
        sin, cos = SinCos().node((x,)).results
        group: Any = None
        sums = [ops.all_reduce(n, op="sum", group=group) for n in (sin, cos)]
        numbers = {computation(Graph((x,), (n,))) for n in (*sums, sums[0])}
        assert len(numbers) == 2


class TestPlans:
    def test_a_result_that_is_not_read_needs_no_memory(self) -> None:
        x = x_of(64, 64)
        both, second = ops.top_k(x, 32), ops.top_k(x, 32)[1]
        both_read = ngd.compile([x], [ops.sum(n) for n in both])
        one_read = ngd.compile([x], [ops.sum(second)])
        text = str(one_read)
        assert " : f32[64,32] @ nowhere\n" in text
        assert "nowhere" not in str(both_read)
        assert both_read.memory()["unshared"] - one_read.memory()["unshared"] == 64 * 32 * 4 + 64
        a = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
        expected = np.argsort(-a, axis=1, kind="stable")[:, :32].sum()
        assert one_read(a)[0] == expected == both_read(a)[1]

    def test_any_result_may_be_an_output_or_an_update(self, device: str) -> None:
        x = x_of(2, 3)
        best = ngd.variable("best", np.zeros((2, 2), np.float32))
        where = ngd.variable("where", np.zeros((2, 2), np.int64))
        values, indices = ops.top_k(x, 2)
        step = ngd.compile([x], [], updates={best: values, where: indices}, device=device)
        step(A)
        npt.assert_array_equal(best.numpy(), [[3, 2], [9, 7]])
        npt.assert_array_equal(where.numpy(), [[0, 2], [1, 2]])
        if device == "CPU":
            assert str(step).endswith("\n  0: %1, %2 = top_k(%0) k=2 largest=1\n")
        outputs = ngd.compile([x], [indices, values, indices], device=device)(A)
        npt.assert_array_equal(outputs[0], outputs[2])
        npt.assert_array_equal(outputs[1], [[3, 2], [9, 7]])

    def test_an_update_by_an_op_with_several_results_is_computed_separately(self) -> None:
        v = ngd.variable("v", np.array([1.0, 3.0, 2.0], np.float32))
        indices = ngd.variable("places", np.zeros(3, np.int64))
        step = ngd.compile([], [], updates=dict(zip((v, indices), ops.top_k(v, 3), strict=True)))
        step()
        npt.assert_array_equal(v.numpy(), [3, 2, 1])
        npt.assert_array_equal(indices.numpy(), [1, 2, 0])
        assert str(step).count(" = copy(") == 1  # top_k may not write over its operand


class TestViews:
    """Parts that are contiguous in their operand are views: no bytes are copied."""

    def test_contiguous_slices_are_views(self) -> None:
        x = x_of(4, 1, 6)
        views = [x[1:3], x[2], x[1, 0, 2:5], x[3, :, :0], x[:0, :, ::2]]
        copies = [x[::2], x[:, :, 1:], x[::-1], x[1:3, 0, 2:5], x[0, 0, ::2]]
        for part in (*views, *copies):
            text = str(ngd.compile([x], [ops.top_k(part, part.shape[-1])[0]]))
            assert ("slice" in text) == any(part is c for c in copies), str(part.type)

    @pytest.mark.parametrize("axis", [0, 1, -1])
    def test_split_equals_numpy(self, axis: int, device: str) -> None:
        a = np.arange(48.0).reshape(4, 6, 2)
        x = x_of(4, 6, 2, dtype=float64)
        for sections in (1, 2, [1], [0, 1, 1], [-1], [1, 99]):
            parts = ops.split(x, sections, axis)
            assert isinstance(parts, tuple)
            expected = np.split(a, sections, axis)
            found = ngd.compile([x], [p * 2 for p in parts], device=device)(a)
            for value, numpy_value in zip(found, expected, strict=True):
                npt.assert_array_equal(value, 2 * numpy_value)

    def test_split_along_the_outermost_axis_copies_nothing(self) -> None:
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

    def test_a_part_may_be_an_output_and_an_update(self, device: str) -> None:
        a = np.arange(6, dtype=np.float32)
        x, v = x_of(6), ngd.variable("v", np.zeros(3, np.float32))
        first, second = ops.split(x, 2)
        step = ngd.compile([x], [second, first, x, second[1:]], updates={v: second}, device=device)
        for found, expected in zip(step(a), [a[3:], a[:3], a, a[4:]], strict=True):
            npt.assert_array_equal(found, expected)
        npt.assert_array_equal(v.numpy(), a[3:])

    def test_variables_are_written_after_their_parts_are_read(self, device: str) -> None:
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

    def test_an_update_may_read_a_part_of_its_variable(self) -> None:
        """A kernel may overwrite its operand, except if it reads only a part of it."""
        a = np.arange(4, dtype=np.float32)
        w = ngd.variable("w", a)
        step = ngd.compile([], [], updates={w: w + w[:1]})
        step()
        npt.assert_array_equal(w.numpy(), a)
        v = ngd.variable("v", a + 1)
        ngd.compile([], [], updates={v: v * v[1:2]})()
        npt.assert_array_equal(v.numpy(), (a + 1) * 2)

    def test_overlapping_parts_may_be_read_last_by_the_same_op(self) -> None:
        x = x_of(9)
        y = ops.cast(ops.top_k(x, 9)[0], float32)
        a = np.arange(9, dtype=np.float32)[::-1].copy()
        shifted = y[1:] + y[:-1]
        summed = ops.exp(y[:4] * 0) + y[4:8]
        found = ngd.compile([x], [shifted * 1, ops.sum(shifted), summed * 2])(a)
        npt.assert_array_equal(found[0], a[1:] + a[:-1])
        npt.assert_array_equal(found[2], 2 + 2 * a[4:8])
        (only,) = ngd.compile([x], [ops.sum(ops.square(y[1:] - 2 * y[:-1]))])(a)
        assert only == np.sum((a[1:] - 2 * a[:-1]) ** 2)

    def test_parts_may_be_operands_of_collectives(self) -> None:
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
    """Return a random graph of integers that are sliced, joined, ordered, viewed and added.

    The expected values are exact, because no op rounds.
    """
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
            new_values = [x + pick(x.shape)] if x.ndim == 2 else [-x]
        elif kind == 1:
            begin = rng.randrange(x.shape[0])
            new_values = [x[begin : rng.randint(begin, x.shape[0])]]
        elif kind == 2:
            indices = sorted(rng.randint(0, x.shape[0]) for _ in range(rng.randint(0, 3)))
            parts = ops.split(x, indices, 0)
            new_values = rng.sample(parts, rng.randint(1, len(parts)))
        elif kind == 3:
            new_values = [ops.split(x, [x.shape[-1] // 2], -1)[rng.randrange(2)]]
        elif kind == 4:
            new_values = [ops.concat([x, x[:1]] if rng.random() < 0.5 else [x[1:], x[:1]])]
        elif kind == 5:
            new_values = list(ops.top_k(x, rng.randint(0, x.shape[-1])))[:: rng.choice([1, -1, 2])]
        elif kind == 6:
            new_values = [ops.maximum(x[1:], x[:-1]), x[1:] - x[:-1]]
        else:
            new_values = [ops.reshape(x, (-1, rng.choice([1, x.shape[-1]])))]
        values += new_values
    outputs = rng.sample(values, min(len(values), rng.randint(1, 6)))
    full = [v for v in values[5:] if v.shape == (6, 4)] or inputs
    updates = {v: rng.choice(full) for v in variables if rng.random() < 0.6}
    return inputs, outputs, updates


@pytest.mark.parametrize("first", range(0, 300, 50))
def test_random_graphs_of_parts_and_results_are_equal_on_both_devices(
    first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
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
        for of_cpu, of_interpreter in zip(*found, strict=True):
            npt.assert_array_equal(of_cpu, of_interpreter, err_msg=f"seed {seed}")
