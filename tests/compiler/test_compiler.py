# SPDX-License-Identifier: Apache-2.0
"""Compiled steps: results of calls, changes of variables, and errors for bad arguments."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ngd
from ngd import ops
from ngd.dtypes import Type
from ngd.errors import BusyError, CompileError, PoisonedVariableError, ShapeError
from ngd.graph.graph import Graph
from ngd.graph.node import Node, Op
from ngd.passes import CompileOptions
from ngd.passes.fusion import elementwise
from ngd.passes.memory.plan import Instruction, Plan, Storage
from ngd.passes.simplification import simplify

DEVICES = ("CPU", "INTERPRETER")


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_call_returns_fresh_arrays(device: str) -> None:
    x = ngd.placeholder("x", (2, 3))
    step = ngd.compile([x], [x * 2, ops.reshape(x, (3, 2)), x], device=device)
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    first = step(a)
    second = step(a + 1)
    np.testing.assert_array_equal(first[0], a * 2)
    np.testing.assert_array_equal(first[1], a.reshape(3, 2))
    np.testing.assert_array_equal(first[2], a)
    np.testing.assert_array_equal(second[0], (a + 1) * 2)
    assert not any(np.shares_memory(r, a) for r in first)


class Wrong(Op):
    """An op whose rewrite has another type than the op. It is not in the registry."""

    name = "wrong"

    def __init__(self, method: str, rewrite: Callable[[Any], Any]) -> None:
        self.method, self.rewrite = method, rewrite

    def infer(self, x: Type) -> Type:
        return x

    def expand(self, x: Node) -> Node:
        return self.rewrite(x) if self.method == "expand" else x * 2

    def simplify(self, node: Node) -> Node | None:
        return self.rewrite(node.inputs[0]) if self.method == "simplify" else None

    def reference(self, x: np.ndarray) -> np.ndarray:
        return 2 * x


@pytest.mark.parametrize("method", ["expand", "simplify"])
@pytest.mark.parametrize(
    ("rewrite", "made"),
    [
        (lambda x: ops.where(x > 0, 1.0, 0.0), r"float64\[3\]"),
        (lambda x: ops.concat([x, x]), r"float32\[6\]"),
        (lambda x: ops.sum(x), r"float32\[\]"),
    ],
    ids=["dtype", "longer", "scalar"],
)
def test_a_rewrite_of_another_type_raises_compile_error(
    method: str, rewrite: Any, made: str
) -> None:
    x = ngd.placeholder("x", (3,))
    y = Wrong(method, rewrite).node((x,))
    message = (
        rf"^wrong: expected Wrong\.{method} to return float32\[3\], as infer does; got {made} "
        rf"\(made at .*test_compiler\.py:\d+\)\. Cast or reshape in {method}\.$"
    )
    if method == "expand":
        with pytest.raises(CompileError, match=message):
            ngd.compile([x], [y + 1, ops.sum(y)])
    else:  # the pipeline expands this op before it would simplify it, because it has no kernel
        with pytest.raises(CompileError, match=message):
            simplify(Graph((x,), (y + 1,)), None, CompileOptions())  # type: ignore[arg-type]


def test_a_node_may_be_several_outputs(device: str) -> None:
    x = ngd.placeholder("x", (3,))
    y = x + 1
    step = ngd.compile([x], [y, y, ops.exp(y)], device=device)
    first, again, third = step(np.zeros(3, np.float32))
    np.testing.assert_array_equal(first, [1, 1, 1])
    np.testing.assert_array_equal(again, [1, 1, 1])
    np.testing.assert_allclose(third, np.exp([1, 1, 1]), rtol=1e-6)
    assert not np.shares_memory(first, again)


def test_results_are_written_to_the_arrays_of_out(device: str) -> None:
    x = ngd.placeholder("x", (2,))
    step = ngd.compile([x], [x + 1], device=device)
    out_array = np.empty(2, np.float32)
    (result,) = step(np.zeros(2, np.float32), out=[out_array])
    assert result is out_array
    np.testing.assert_array_equal(out_array, [1, 1])
    with pytest.raises(ShapeError, match=r"out\[0\]"):
        step(np.zeros(2, np.float32), out=[np.empty(3, np.float32)])


def test_updates_are_written_after_all_reads(device: str) -> None:
    a = ngd.variable("a", np.array([1.0, 2.0]))
    b = ngd.variable("b", np.array([10.0, 20.0]))
    step = ngd.compile([], [a + b, a], updates={a: b, b: a}, device=device)
    total, old = step()
    np.testing.assert_array_equal(total, [11, 22])
    np.testing.assert_array_equal(old, [1, 2])
    np.testing.assert_array_equal(a.numpy(), [10, 20])
    np.testing.assert_array_equal(b.numpy(), [1, 2])
    step()
    np.testing.assert_array_equal(a.numpy(), [1, 2])


def test_an_update_may_read_a_variable_that_another_update_overwrites(device: str) -> None:
    # Momentum: both new values depend on both old values. The expected values are computed by hand.
    w = ngd.variable("w", np.array([1.0, 1.0]))
    v = ngd.variable("v", np.array([0.5, 0.5]))
    x = ngd.placeholder("x", (2,), "float64")
    v_next = v * 0.9 + x
    step = ngd.compile([x], [], updates={w: w - v_next * 0.1 + v, v: v_next}, device=device)
    step(np.array([1.0, 2.0]))
    np.testing.assert_allclose(v.numpy(), [1.45, 2.45], rtol=1e-15)
    np.testing.assert_allclose(w.numpy(), [1 - 0.145 + 0.5, 1 - 0.245 + 0.5], rtol=1e-15)


def test_an_update_may_read_a_transposed_variable_and_another_variable(device: str) -> None:
    a = ngd.variable("a", np.arange(4.0).reshape(2, 2))
    b = ngd.variable("b", np.ones((2, 2)))
    step = ngd.compile([], [], updates={a: ops.transpose(a) + b, b: a @ a}, device=device)
    step()
    old = np.arange(4.0).reshape(2, 2)
    np.testing.assert_array_equal(a.numpy(), old.T + 1)
    np.testing.assert_array_equal(b.numpy(), old @ old)


def test_executables_of_one_device_share_a_variable(device: str) -> None:
    v = ngd.variable("v", np.zeros(2, np.float32))
    add = ngd.compile([], [], updates={v: v + 1}, device=device)
    read = ngd.compile([], [v * 1], device=device)
    add()
    add()
    np.testing.assert_array_equal(read()[0], [2, 2])
    v.assign([5, 6])
    np.testing.assert_array_equal(read()[0], [5, 6])


def test_another_device_starts_from_the_newest_value_of_a_variable() -> None:
    v = ngd.variable("v", np.zeros(2, np.float32))
    ngd.compile([], [], updates={v: v + 3}, device="CPU")()
    (seen,) = ngd.compile([], [v + 0.5], device="INTERPRETER")()
    np.testing.assert_array_equal(seen, [3.5, 3.5])


def test_the_same_nodes_give_the_same_executable() -> None:
    x = ngd.placeholder("x", (2,))
    y = x + 1
    assert ngd.compile([x], [y]) is ngd.compile([x], [y])
    assert ngd.compile([x], [y]) is not ngd.compile([x], [y], device="INTERPRETER")


def test_bad_arguments_raise_errors_that_name_the_input() -> None:
    x = ngd.placeholder("images", (2, 3))
    step = ngd.compile([x], [x + 1])
    with pytest.raises(TypeError, match=r"expected 1 array \(images\); got 0"):
        step()
    with pytest.raises(ShapeError, match=r"input 0 \('images'\): expected shape \(2, 3\)"):
        step(np.zeros((3, 2), np.float32))
    with pytest.raises(TypeError, match="expected dtype float32; got float64"):
        step(np.zeros((2, 3)))
    strided = np.zeros((3, 2), np.float32).T
    np.testing.assert_array_equal(step(strided)[0], np.ones((2, 3)))


MASKED = np.ma.masked_array(np.ones(2, np.float32), [False, True])


def test_masked_arrays_are_rejected_wherever_arrays_are_accepted(device: str) -> None:
    x, v = ngd.placeholder("x", (2,)), ngd.variable("masked", np.zeros(2, np.float32))
    step = ngd.compile([x], [x + v], device=device)
    calls = [
        lambda: step(MASKED),
        lambda: step(np.ma.masked_array(np.ones(2, np.float32))),  # an empty mask is also rejected
        lambda: step([1.0, np.ma.masked]),
        lambda: ngd.variable("initial", MASKED),
        lambda: v.assign(MASKED),
        lambda: v.assign([np.ma.masked, 1.0]),
        lambda: ngd.constant(MASKED),
        lambda: ops.add(x, MASKED),
        lambda: ops.maximum([1.0, np.ma.masked], x),
        lambda: step(np.ones(2, np.float32), out=[MASKED.copy()]),
    ]
    for call in calls:
        with pytest.raises(
            TypeError, match=r"expected an array without a mask; got .*filled\(value\)"
        ):
            call()
    np.testing.assert_array_equal(step(MASKED.filled(5))[0], [1, 5])
    np.testing.assert_array_equal(step(np.ones(2, np.float32).view(np.ndarray))[0], [1, 1])


def test_assign_rejects_values_that_are_not_numbers() -> None:
    v = ngd.variable("numbers", np.zeros(2, np.float32))
    for value in (["1", "2"], [None, 1], [1j, 2], np.zeros(2, [("a", "f4")])):
        with pytest.raises(TypeError, match=r"variable 'numbers': assign: expected a dtype"):
            v.assign(value)
    v.assign([True, 2])
    np.testing.assert_array_equal(v.numpy(), [1, 2])


def test_values_out_of_range_and_overlapping_outputs_are_rejected(device: str) -> None:
    x, n = ngd.placeholder("x", (2,)), ngd.placeholder("n", (), "int8")
    step = ngd.compile([x, n], [x + 1, x * 2], device=device)
    a = np.zeros(2, np.float32)
    with pytest.raises(TypeError, match=r"input 1 \('n'\): expected a value of int8; got 300"):
        step(a, 300)
    with pytest.raises(TypeError, match="expected an array"):
        step(x, 3)
    with pytest.raises(ValueError, match=r"out\[0\]: .*overlaps"):
        step(a, 3, out=[a, np.empty(2, np.float32)])
    with pytest.raises(ValueError, match=r"out\[1\]: .*overlaps"):
        step(a, 3, out=[b := np.empty(2, np.float32), b])


def test_numpy_functions_return_nodes() -> None:
    x = ngd.placeholder("x", (3,))
    assert np.exp(x).op is ops.exp
    assert (np.ones(3, np.float32) - x).op is ops.subtract
    with pytest.raises(TypeError, match=r"numpy\.spacing: expected arrays; got a Node"):
        np.spacing(x)


def test_equality_of_nodes_is_elementwise(device: str) -> None:
    x, y = ngd.placeholder("x", (4,)), ngd.placeholder("y", (4,))
    outputs = [ops.where(x != 0, 1 / x, 0.0), x == y, x != y, x == 2]
    a, b = np.array([0, 1, 2, np.nan], np.float32), np.array([0, 3, 2, np.nan], np.float32)
    safe, equal, unequal, twos = ngd.compile([x, y], outputs, device=device)(a, b)
    np.testing.assert_array_equal(safe, np.array([0, 1, 0.5, np.nan], np.float32))
    np.testing.assert_array_equal(equal, a == b)
    np.testing.assert_array_equal(unequal, a != b)
    np.testing.assert_array_equal(twos, a == 2)


def test_equal_variables_with_equal_names_are_compiled_separately() -> None:
    a, b = ngd.variable("v", np.zeros(2)), ngd.variable("v", np.ones(2))
    first, second = ngd.compile([], [a * 1]), ngd.compile([], [b * 1])
    assert first is not second


def test_errors_of_bad_graphs_name_the_line() -> None:
    x, y = ngd.placeholder("x", (2,)), ngd.placeholder("y", (2,))
    with pytest.raises(CompileError, match=r"'y' \(made at .*test_compiler.py:\d+\), which"):
        ngd.compile([x], [x + y])
    a, b = ngd.variable("w", np.zeros(2, np.float32)), ngd.variable("w", np.ones(2, np.float32))
    with pytest.raises(CompileError, match="got two variables called 'w'"):
        ngd.compile([], [a + b])
    with pytest.raises(CompileError, match=r"updates: expected float32\[2\] .* variable 'w'; got"):
        ngd.compile([x], [], updates={a: ops.reshape(x, (2, 1))})
    with pytest.raises(CompileError, match="device: expected CPU, INTERPRETER or NULL"):
        ngd.compile([x], [x], device="TPU")
    with pytest.raises(TypeError, match="inputs: expected placeholders"):
        ngd.compile([x + 1], [x])


def test_the_null_device_only_compiles() -> None:
    x = ngd.placeholder("x", (2,))
    step = ngd.compile([x], [ops.exp(x)], device="NULL")
    assert "elementwise" in str(step)
    with pytest.raises(CompileError, match="got NULL, which only compiles"):
        step(np.zeros(2, np.float32))


def test_the_planner_reuses_memory() -> None:
    x = ngd.placeholder("x", (64, 64))
    y = x
    for _ in range(6):
        y = ops.relu(y @ y)
    step = ngd.compile([x], [ops.sum(y)], device="CPU")
    memory = step.memory()
    assert memory["private"] <= 3 * 64 * 64 * 4
    assert memory["unshared"] >= 6 * 64 * 64 * 4
    a = np.eye(64, dtype=np.float32)
    assert step(a)[0] == 64


class Pair:
    """A stand-in for a group, with the attributes that the compiler reads."""

    rank, size = 0, 2


@pytest.mark.parametrize("kind", ["all_to_all", "broadcast", "all_reduce"])
def test_a_collective_is_in_place_if_nothing_else_reads_its_operand(kind: str) -> None:
    group: Any = Pair()
    call: Callable[[Any], Any] = {
        "all_to_all": lambda x: ops.all_to_all(x, group=group),
        "broadcast": lambda x: ops.broadcast(x, group=group),
        "all_reduce": lambda x: ops.all_reduce(x, op="sum", group=group),
    }[kind]

    def operand_and_result(outputs: Callable[[Any], list[Any]]) -> tuple[str, ...]:
        """Return the addresses of the operand and the result of the collective."""
        x = ngd.placeholder("x", (4, 16))
        text = str(ngd.compile([x], outputs(x * 2), device="NULL", group=group))
        match = re.search(rf"(%\d+) = start {kind}\((%\d+)\)", text)
        assert match
        addresses = dict(re.findall(r"(%\d+) : \S+ @ (\S+)", text))
        return addresses[match[2]], addresses[match[1]]

    operand, result = operand_and_result(lambda y: [call(y)])
    assert operand == result
    operand, result = operand_and_result(lambda y: [call(y), y])
    assert operand != result
    operand, result = operand_and_result(lambda y: [call(y), ops.argmax(y, 0)])
    assert operand != result


def plan_of(*steps: Instruction) -> Plan:
    return Plan(steps=list(steps))


def test_verify_rejects_instructions_that_touch_a_pending_buffer() -> None:
    type_ = Type(ngd.float32, (4,))
    block, other = Storage("shared", 0, 16), Storage("shared", 64, 16)
    near = Storage("shared", 4, 16)

    def step(action: str, source: Storage, result: Storage, start: int = -1) -> Instruction:
        inputs = [] if action == "wait" else [(type_, source)]
        return Instruction(action, "all_to_all", inputs, [(type_, result)], {}, "here.py:1", start)

    start, wait = step("start", block, block), step("wait", block, block, 0)
    plan_of(start, wait).verify()
    plan_of(start, step("run", other, other), wait).verify()
    for touching in (step("run", block, other), step("run", other, block)):
        with pytest.raises(CompileError, match="uses the buffer of a pending all_to_all"):
            plan_of(start, touching, wait).verify()
    with pytest.raises(CompileError, match="overlaps its operand"):
        plan_of(step("start", near, block), wait).verify()


def test_a_failed_step_leaves_variables_unchanged_and_poisoned_ones_unreadable() -> None:
    table = ngd.variable("table", np.zeros((3, 2), np.float32))
    other = ngd.variable("other", np.zeros(2, np.float32))
    i = ngd.placeholder("i", (2,), "int64")
    rows = ops.take(ops.exp(table), i)
    step = ngd.compile(
        [i], [], updates={other: other + 1, table: table + ops.sum(rows, axis=0)}, device="CPU"
    )
    with pytest.raises(ValueError, match=r"9.*test_compiler.py"):
        step(np.array([0, 9]))
    np.testing.assert_array_equal(table.numpy(), 0)  # the step failed before its first update
    np.testing.assert_array_equal(other.numpy(), 0)
    table.cell.poisoned = True
    with pytest.raises(PoisonedVariableError, match="'table'"):
        table.numpy()
    with pytest.raises(PoisonedVariableError, match="'table'"):
        step(np.array([0, 1]))
    table.assign(np.ones((3, 2)))
    step(np.array([0, 1]))
    np.testing.assert_allclose(table.numpy(), 1 + 2 * np.e, rtol=1e-6)


def test_a_second_concurrent_call_raises_busy_error() -> None:
    x = ngd.placeholder("x", (700, 700), "float64")
    y = x
    for _ in range(4):
        y = y @ x
    step = ngd.compile([x], [y])
    a = np.eye(700)
    errors: list[str] = []

    def call() -> None:
        for _ in range(5):
            try:
                step(a)
            except BusyError as error:
                errors.append(str(error))

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors
    assert all("a second call while one runs" in e for e in errors)


def test_a_call_that_raises_busy_error_poisons_no_variable() -> None:
    v = ngd.variable("v", np.eye(600))
    step = ngd.compile([], [], updates={v: v @ v @ v @ v})
    refused: list[BusyError] = []

    def call() -> None:
        for _ in range(10):
            try:
                step()
            except BusyError as error:
                refused.append(error)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert refused
    np.testing.assert_array_equal(v.numpy(), np.eye(600))


def test_arrays_without_elements_are_computed(device: str) -> None:
    x = ngd.placeholder("x", (0, 3))
    w = ngd.variable("w", np.ones((3, 2), np.float32))
    step = ngd.compile([x], [ops.sum(x @ w), x @ w, ops.relu(x)], device=device)
    total, product, same = step(np.zeros((0, 3), np.float32))
    assert total == 0
    assert product.shape == (0, 2)
    assert same.shape == (0, 3)


def test_a_learning_rate_can_be_a_placeholder(device: str) -> None:
    w = ngd.variable("w", np.array([2.0, 3.0], np.float32))
    lr = ngd.placeholder("lr", (), uniform=True)
    (g,) = ngd.grad(ops.sum(w * w), [w])
    step = ngd.compile([lr], [], updates={w: w - lr * g}, device=device)
    step(0.25)
    np.testing.assert_array_equal(w.numpy(), [1, 1.5])


def test_fused_kernels_have_the_bits_of_unfused_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    for dtype in ("float32", "float64", "bfloat16", "float16"):
        x = ngd.placeholder("x", (7, 33), dtype)
        a = rng.normal(size=(7, 33)).astype(x.dtype)
        chain = [x * 3 + 1]
        for f in (ops.tanh, ops.square, ops.negative, ops.sigmoid):
            chain.append(f(chain[-1]) - x)
        fused = ngd.compile([x], [chain[-1]])(a)[0]
        with monkeypatch.context() as patch:
            patch.setattr(elementwise, "MAX_INSTRUCTIONS", 1)
            unfused = ngd.compile([x], [chain[-1]])
        assert str(unfused).count("elementwise") == 10
        assert fused.tobytes() == unfused(a)[0].tobytes()


@pytest.mark.parametrize("device", ["CPU", "INTERPRETER"])
def test_an_update_reads_the_old_value_of_a_variable_that_is_updated_too(
    device: str,
) -> None:
    first, second = ngd.variable("v0", np.full(4, 1.0)), ngd.variable("v1", np.full(4, 2.0))
    x = ngd.placeholder("x", (4,), np.float64)
    step = ngd.compile([x], [x * 3], {first: x + 1, second: first}, device=device)
    step(np.full(4, 10.0))
    assert first.numpy().tolist() == [11.0] * 4
    assert second.numpy().tolist() == [1.0] * 4


def test_outputs_have_the_structure_that_the_caller_gave(device: str) -> None:
    x = ngd.placeholder("x", (2, 3))
    x_value = np.arange(6, dtype=np.float32).reshape(2, 3)
    one = ngd.compile(x, ops.sum(x, axis=1), device=device)
    np.testing.assert_array_equal(one(x_value), [3, 12])
    np.testing.assert_array_equal(one(x=x_value), [3, 12])
    out = np.empty(2, np.float32)
    assert one(x_value, out=out) is out
    np.testing.assert_array_equal(out, [3, 12])
    (listed,) = ngd.compile((x,), [x + 1], device=device)(x_value)
    np.testing.assert_array_equal(listed, x_value + 1)
    pair = ngd.compile([x], (x * 2, {"a": x}), device=device)(x_value)
    assert type(pair) is tuple
    np.testing.assert_array_equal(pair[0], x_value * 2)
    np.testing.assert_array_equal(pair[1]["a"], x_value)


def test_repr_of_a_step_shows_its_call_site_and_sizes() -> None:
    x, w = ngd.placeholder("x", (2, 3)), ngd.variable("w", np.ones((3, 1024), np.float32))
    step = ngd.compile(x, [x @ w], {w: w * 2})
    assert re.fullmatch(
        r"<ngd step compiled at .*test_compiler\.py:\d+: 1 input, 1 output, 1 variable of 12\.0 "
        r"KiB, \d+ instructions, \S+ \w+ for values; CPU>",
        repr(step),
    )
    assert repr(ngd.compile(x, x @ w)).endswith("; CPU>")
    assert "instruction" not in repr(ngd.compile(x, x @ w, device="INTERPRETER"))


def test_a_variable_converts_to_a_number_and_to_an_array(device: str) -> None:
    w, n = ngd.variable("w", 2.5), ngd.variable("n", np.int64(3))
    ngd.compile([], [], {w: w * 2}, device=device)()
    assert float(w) == w.item() == 5.0
    assert (int(n), [*range(n)]) == (3, [0, 1, 2])
    assert np.asarray(w, np.float64).dtype == np.float64
    with pytest.raises(
        TypeError, match=r"expected an integer; got float32\[\] of the variable 'w'"
    ):
        range(w)
    for read in (float, int, np.asarray, lambda v: v.item()):
        with pytest.raises(TypeError, match=r"expected a variable outside of a traced function"):
            ngd.function(lambda x, read=read: x * read(w))(1.0)
