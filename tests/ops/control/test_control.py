# SPDX-License-Identifier: Apache-2.0
"""Tests of loops and branches in graphs: against NumPy, finite differences and unrolled loops."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.testing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ngd
from ngd import ops
from ngd.dtypes import Array, bfloat16
from ngd.errors import CompileError, DTypeError, ShapeError
from ngd.graph.graph import Graph, bodies_of
from ngd.graph.node import Node
from ngd.passes import computation

DEVICES = ("CPU", "INTERPRETER")


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(3)


def run(outputs: Sequence[Node], device: str, **arrays: Array) -> list[Array]:
    """Compile and run outputs on arrays by name. The placeholders have the same names."""
    inputs = [node for name, node in NODES.items() if name in arrays]
    return ngd.compile(inputs, list(outputs), device=device)(
        *(arrays[n] for n in NODES if n in arrays)
    )


NODES: dict[str, Node] = {}


def nodes(**arrays: Array) -> list[Node]:
    NODES.clear()
    for name, array in arrays.items():
        NODES[name] = ngd.placeholder(name, array.shape, array.dtype)
    return list(NODES.values())


def differences(
    f: Callable[..., float], arrays: Sequence[Array], step: float = 1e-5
) -> list[Array]:
    """Return the gradient of a function of float64 arrays by central differences."""
    gradients = []
    for array in arrays:
        gradient = np.zeros_like(array)
        for index in np.ndindex(array.shape):
            original = array[index]
            array[index] = original + step
            above = f(*arrays)
            array[index] = original - step
            below = f(*arrays)
            array[index] = original
            gradient[index] = (above - below) / (2 * step)
        gradients.append(gradient)
    return gradients


def rnn(h: Any, x: Any, w: Any, tanh: Callable[[Any], Any]) -> Any:
    return tanh(h @ w + x)


def rnn_in_numpy(h: Array, xs: Array, w: Array, reverse: bool) -> tuple[Array, Array]:
    outputs = np.empty((len(xs), *h.shape), h.dtype)
    for t in range(len(xs))[:: -1 if reverse else 1]:
        h = np.tanh(h @ w + xs[t])
        outputs[t] = 2 * h
    return h, outputs


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [0, 1, 2, 7])
def test_a_scan_equals_a_loop_in_numpy(
    device: str, length: int, reverse: bool, rng: np.random.Generator
) -> None:
    arrays = {
        "h": rng.normal(size=(2, 3)),
        "x": rng.normal(size=(length, 2, 3)),
        "w": rng.normal(size=(3, 3)),
    }
    h, x, w = nodes(**arrays)

    def body(carry: Node, part: Node) -> tuple[Node, Node]:
        carry = ops.tanh(carry @ w + part)
        return carry, 2.0 * carry

    last, made = ops.scan(body, h, x, reverse=reverse)
    got = run([last, made], device, **arrays)
    wanted = rnn_in_numpy(arrays["h"], arrays["x"], arrays["w"], reverse)
    for a, b in zip(got, wanted, strict=True):
        npt.assert_allclose(a, b, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("reverse", [False, True])
def test_gradients_equal_finite_differences(
    device: str, reverse: bool, rng: np.random.Generator
) -> None:
    arrays = {
        "h": rng.normal(size=(3,)),
        "x": rng.normal(size=(4, 3)),
        "w": rng.normal(size=(3, 3)),
    }
    h, x, w = nodes(**arrays)

    def body(carry: Node, part: Node) -> tuple[Node, Node]:
        carry = ops.tanh(carry @ w + part)
        return carry, 2.0 * carry

    last, made = ops.scan(body, h, x, reverse=reverse)
    loss = ops.sum(ops.sin(last)) + ops.sum(made * made * x)
    got = run(ngd.grad(loss, [h, x, w]), device, **arrays)

    def in_numpy(h: Array, x: Array, w: Array) -> float:
        last, made = rnn_in_numpy(h, x, w, reverse)
        return float(np.sin(last).sum() + (made * made * x).sum())

    for a, b in zip(got, differences(in_numpy, list(arrays.values())), strict=True):
        npt.assert_allclose(a, b, rtol=1e-6, atol=1e-8)


def test_second_gradients_equal_finite_differences(device: str, rng: np.random.Generator) -> None:
    arrays = {
        "h": rng.normal(size=(2,)),
        "x": rng.normal(size=(3, 2)),
        "w": rng.normal(size=(2, 2)),
    }
    h, x, w = nodes(**arrays)
    last, made = ops.scan(lambda c, p: (ops.tanh(c @ w + p), c * p), h, x)
    loss = ops.sum(last) + ops.sum(made * made)
    first = ngd.grad(loss, [h, x, w])
    weight = sum((ops.sum(ops.sin(g)) for g in first), ngd.constant(0.0, "float64"))
    got = run(ngd.grad(weight, [h, x, w]), device, **arrays)
    step = ngd.compile([h, x, w], first, device=device)

    def in_numpy(*given: Array) -> float:
        return float(sum(np.sin(g).sum() for g in step(*given)))

    for a, b in zip(got, differences(in_numpy, list(arrays.values())), strict=True):
        npt.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


@settings(max_examples=25, deadline=None)
@given(
    length=st.integers(0, 5),
    size=st.integers(0, 4),
    reverse=st.booleans(),
    dtype=st.sampled_from(["float32", "float64", "bfloat16"]),
    choices=st.lists(
        st.sampled_from(["tanh", "add", "multiply", "sum", "where", "product", "residual"]),
        min_size=1,
        max_size=4,
    ),
    seed=st.integers(0, 2**20),
)
def test_a_loop_is_the_unrolled_one(
    length: int, size: int, reverse: bool, dtype: str, choices: list[str], seed: int
) -> None:
    """Also its gradients: of two carried values, one of which may not be read."""
    rng = np.random.default_rng(seed)
    kind = bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    shapes = {"a": (size,), "b": (), "x": (length, size), "w": (size,), "m": (size, size)}
    arrays = {n: rng.normal(size=s).astype(kind) for n, s in shapes.items()}
    a, b, x, w, m = nodes(**arrays)

    def round(carry: Any, part: Node) -> tuple[Any, Any]:
        one, two = carry["one"], carry["two"]
        for choice in choices:
            if choice == "tanh":
                one = ops.tanh(one + part)
            elif choice == "add":
                one = one + w * two
            elif choice == "multiply":
                one = one * part
            elif choice == "sum":
                two = two * 0.5 + ops.sum(one) * 0.125
            elif choice == "product":
                one = ops.tanh(one @ m)
            elif choice == "residual":  # the products of both sums are kept
                one = (one @ m + w) * 0.25 + (part @ ops.transpose(m) + one)
            else:
                one = ops.where(part > 0, one, w)
        return {"one": one, "two": two}, (one + part, two)

    carry: Any = {"one": a, "two": b}
    last, made = ops.scan(round, carry, x, reverse=reverse)
    singles: list[Any] = [None] * length
    for t in reversed(range(length)) if reverse else range(length):
        carry, singles[t] = round(carry, x[t])
    stacked = [
        ops.concat([ops.reshape(s[i], (1, *s[i].shape)) for s in singles], 0) if length else None
        for i in range(2)
    ]
    results = []
    for one, two, parts in (
        (last["one"], last["two"], made),
        (carry["one"], carry["two"], stacked),
    ):
        loss = ops.sum(one * one) + two * two
        for part in parts:
            if part is not None and length:
                loss = loss + ops.sum(part * part)
        gradients = ngd.grad(loss, [a, b, x, w, m], unused="zero")
        results.append([one, two, *(p for p in parts if p is not None and length), *gradients])
    tolerance = {"float32": 2e-4, "float64": 1e-11, "bfloat16": 0.1}[dtype]
    for device in DEVICES:
        looped, unrolled = (run(r, device, **arrays) for r in results)
        # What is small may be a difference of what is large.
        largest = max(float(np.abs(u.astype(float)).max(initial=1)) for u in unrolled)
        for got, wanted in zip(looped, unrolled, strict=True):
            assert got.dtype == wanted.dtype
            npt.assert_allclose(
                got.astype(float), wanted.astype(float), rtol=0, atol=tolerance * largest
            )


def test_carries_may_be_nested_and_have_any_dtype(device: str) -> None:
    """Carry a counter, a flag, and the last two Fibonacci numbers. Mark the even ones."""

    def body(carry: Any, _: None) -> tuple[Any, Any]:
        (before, now), count, big = carry["pair"], carry["count"], carry["big"]
        after = before + now
        new = {"pair": (now, after), "count": count + 1, "big": ops.logical_or(big, after > 50)}
        return new, {"value": after, "even": after % 2 == 0}

    start = {"pair": (np.int64(0), np.int64(1)), "count": np.int32(0), "big": np.bool_(False)}
    last, made = ops.scan(body, start, length=9)
    got = ngd.compile(
        [], [*last["pair"], last["count"], last["big"], made["value"], made["even"]], device=device
    )()
    assert [int(g) for g in got[:3]] == [34, 55, 9]
    assert bool(got[3])
    assert got[4].tolist() == [1, 2, 3, 5, 8, 13, 21, 34, 55]
    assert got[5].tolist() == [False, True, False, False, True, False, False, True, False]


def test_results_that_are_not_read_need_no_memory() -> None:
    x = ngd.placeholder("x", (1000, 64))
    last, _ = ops.scan(lambda c, p: (c + p, c * p), ngd.constant(np.zeros(64, np.float32)), x)
    step = ngd.compile([x], [last])
    assert step.memory()["private"] < 4096
    rows = np.ones((1000, 64), np.float32)
    assert step(rows)[0].tolist() == [1000.0] * 64


def products(*outputs: Node) -> list[int]:
    """Return the number of matmuls in each loop body that the outputs need."""
    loops = [node for node in Graph((), outputs).nodes if node.op.kernel.control_flow]
    return [sum(n.op.is_heavy for n in body.nodes) for loop in loops for body in bodies_of(loop)]


def test_the_backward_pass_of_a_loop_repeats_no_matmul(
    device: str, rng: np.random.Generator
) -> None:
    arrays = {
        "h": rng.normal(size=(2, 3)),
        "x": rng.normal(size=(4, 2, 3)),
        "w": rng.normal(size=(3, 3)),
    }
    h, x, w = nodes(**arrays)

    def body(carry: Node, part: Node) -> tuple[Node, None]:
        return ops.tanh(part + carry @ w), None

    found = []
    for each in (body, ngd.remat(body)):
        last, _ = ops.scan(each, h, x)
        gradients = ngd.grad(ops.sum(last), [h, x, w])
        backward = products(*gradients)
        found.append((max(backward), run([last, *gradients], device, **arrays)))
    assert [count for count, _ in found] == [1, 2]  # one for the carry; remat computes it once more
    for saved, computed in zip(found[0][1], found[1][1], strict=True):
        npt.assert_allclose(saved, computed, rtol=1e-13, atol=1e-14)


def test_second_gradients_of_a_body_with_a_custom_gradient(
    device: str, rng: np.random.Generator
) -> None:
    """The gradient rule refers to nodes of the body, which the second gradient needs."""
    sine = ngd.custom_gradient(lambda x: (ops.sin(x), lambda dy: dy * ops.cos(x)))
    arrays = {"h": rng.normal(size=(3, 3)), "x": rng.normal(size=(2, 3, 3))}
    h, x = nodes(**arrays)
    found = []
    for f in (sine, ops.sin):

        def body(c: Node, p: Node, f: Callable[[Node], Node] = f) -> tuple[Node, None]:
            return ops.tanh(f(p @ ops.transpose(p) + c)), None

        last, _ = ops.scan(body, h, x)
        first = ngd.grad(ops.sum(last), h)
        found.append(run([first, ngd.grad(ops.sum(ops.sin(first)), h)], device, **arrays))
    for ruled, plain in zip(*found, strict=True):
        npt.assert_allclose(ruled, plain, rtol=1e-12, atol=1e-13)


def test_gradients_of_attention_in_a_loop_equal_the_unrolled_loop(
    device: str, rng: np.random.Generator
) -> None:
    arrays = {"h": rng.normal(size=(1, 3, 4)), "x": rng.normal(size=(5, 1, 3, 4))}
    h, x = nodes(**arrays)

    def body(carry: Node, part: Node) -> tuple[Node, None]:
        return ops.attention(carry, carry + part, part, causal=True) + carry, None

    last, _ = ops.scan(body, h, x)
    unrolled = h
    for t in range(5):
        unrolled, _ = body(unrolled, x[t])
    looped = run(ngd.grad(ops.sum(ops.sin(last)), [h, x]), device, **arrays)
    wanted = run(ngd.grad(ops.sum(ops.sin(unrolled)), [h, x]), device, **arrays)
    for a, b in zip(looped, wanted, strict=True):
        npt.assert_allclose(a, b, rtol=1e-11, atol=1e-12)


def test_values_for_the_backward_pass_need_no_memory_without_one() -> None:
    h, x = ngd.placeholder("h", (64,)), ngd.placeholder("x", (1000, 64))
    w = ngd.placeholder("w", (64, 64))
    last, _ = ops.scan(lambda c, p: (ops.tanh(c @ w + p), None), h, x)
    assert ngd.compile([h, x, w], [last]).memory()["private"] < 8192
    gradients = ngd.grad(ops.sum(last), [w])
    trained = ngd.compile([h, x, w], [last, *gradients]).memory()["private"]
    assert 3 * 256_000 <= trained < 3.1 * 256_000  # carries, matmuls and adjoints


def test_the_size_of_a_program_does_not_depend_on_the_length() -> None:
    def lines(length: int) -> int:
        x, w = ngd.placeholder("x", (length, 3)), ngd.placeholder("w", (3, 3))
        last, made = ops.scan(
            lambda c, p: (ops.tanh(c @ w + p), c), ngd.constant(np.zeros(3)).astype("float32"), x
        )
        loss = ops.sum(last) + ops.sum(made)
        return len(str(ngd.compile([x, w], ngd.grad(loss, [x, w]))).splitlines())

    assert lines(100) == lines(4000)


def test_values_that_no_iteration_changes_are_computed_once() -> None:
    x, w = ngd.placeholder("x", (50, 3)), ngd.placeholder("w", (3, 3))
    last, _ = ops.scan(
        lambda c, p: (c + p @ ops.exp(w), None), ngd.constant(np.zeros(3, np.float32)), x
    )
    text = str(ngd.compile([x, w], [last]))
    inner = [line for line in text.splitlines() if line.startswith("     ")]
    assert "exp:" in text
    assert not any("exp:" in line for line in inner)


def test_a_loop_reads_and_updates_variables(device: str) -> None:
    w = ngd.variable("w", np.array([2.0, 3.0]))
    last, _ = ops.scan(lambda c, _: (c * w, None), w, length=3)
    step = ngd.compile([], [last], {w: last}, device=device)
    assert step()[0].tolist() == [16.0, 81.0]
    assert w.numpy().tolist() == [16.0, 81.0]
    assert step()[0].tolist() == [16.0**4, 81.0**4]


def test_loops_and_branches_may_be_nested(device: str, rng: np.random.Generator) -> None:
    arrays = {"x": rng.normal(size=(4, 3, 2)), "w": rng.normal(size=(2,))}
    x, w = nodes(**arrays)

    def inner(c: Node, p: Node) -> tuple[Node, None]:
        chosen = ops.cond(ops.sum(p) > 0, lambda v: v * w, lambda v: v - w, p)
        return c + chosen, None

    def outer(c: Node, p: Node) -> tuple[Node, Node]:
        total, _ = ops.scan(inner, c, p)
        return total * 0.5, total

    last, made = ops.scan(outer, ngd.constant(np.zeros(2)).astype("float64"), x)
    loss = ops.sum(last * last) + ops.sum(made)
    got = run([loss, *ngd.grad(loss, [x, w])], device, **arrays)

    def in_numpy(x: Array, w: Array) -> float:
        c, loss = np.zeros(2), 0.0
        for part in x:
            for p in part:
                c = c + (p * w if p.sum() > 0 else p - w)
            loss += c.sum()
            c = c * 0.5
        return float((c * c).sum() + loss)

    npt.assert_allclose(got[0], in_numpy(**arrays), rtol=1e-13)
    for a, b in zip(got[1:], differences(in_numpy, list(arrays.values())), strict=True):
        npt.assert_allclose(a, b, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("chosen", [True, False])
def test_a_branch_and_its_gradient_are_correct(device: str, chosen: bool) -> None:
    """Only the branch that is taken counts. The other one would compute NaN."""
    p, x, y = (
        ngd.placeholder("p", (), "bool"),
        ngd.placeholder("x", (3,), "float64"),
        ngd.placeholder("y", (3,), "float64"),
    )
    one, two = ops.cond(p, lambda a: (a * y, a), lambda a: (ops.log(-a), a + 1.0), x)
    loss = ops.sum(one) + ops.sum(two)
    step = ngd.compile([p, x, y], [one, *ngd.grad(loss, [x, y])], device=device)
    a, b = np.array([1.0, 2.0, 4.0]), np.array([3.0, 5.0, 7.0])
    if chosen:
        value, dx, dy = step(np.bool_(True), a, b)
        assert value.tolist() == [3.0, 10.0, 28.0]
        assert dx.tolist() == [4.0, 6.0, 8.0]
        assert dy.tolist() == a.tolist()
    else:
        value, dx, dy = step(np.bool_(False), -a, b)
        npt.assert_allclose(value, np.log(a))
        assert dx.tolist() == [0.0, 0.5, 0.75]
        assert dy.tolist() == [0.0] * 3


def test_only_the_branch_that_is_taken_runs() -> None:
    p, x = ngd.placeholder("p", (), "bool"), ngd.placeholder("x", (2,))
    big = ngd.variable("big", np.ones((2, 2), np.float32))
    y = ops.cond(p, lambda: ops.exp(x @ big), lambda: x)
    outer = [
        line for line in str(ngd.compile([p, x], [y])).splitlines() if not line.startswith("     ")
    ]
    assert not any("matmul" in line or "exp:" in line for line in outer)
    assert any("cond" in line for line in outer)


def test_copies_compute_the_same(rng: np.random.Generator) -> None:
    x = ngd.placeholder("x", (4, 2), "float64")
    last, made = ops.scan(lambda c, p: (c * 0.5 + p, c), np.zeros(2), x)
    rows = rng.normal(size=(4, 2))
    wanted = ngd.compile([x], [last, made])(rows)
    for make_copy in (copy.deepcopy, lambda thing: pickle.loads(pickle.dumps(thing))):
        inputs, outputs = make_copy(([x], [last, made]))
        got = ngd.compile(inputs, outputs)(rows)
        assert [g.tolist() for g in got] == [w.tolist() for w in wanted]
        loss = ops.sum(outputs[0])
        assert ngd.compile(inputs, [ngd.grad(loss, inputs[0])])(rows)[0].shape == (4, 2)


def test_the_fingerprint_of_a_step_depends_on_loop_bodies() -> None:
    x = ngd.placeholder("x", (4, 2))

    def number(body: Callable[[Node, Node], Node]) -> int:
        last, _ = ops.scan(
            lambda c, p: (body(c, p), None), ngd.constant(np.zeros(2, np.float32)), x
        )
        return computation(Graph((x,), (last,)))

    assert number(lambda c, p: c - p) == number(lambda c, p: c - p)
    assert number(lambda c, p: c - p) != number(lambda c, p: p - c)
    assert number(lambda c, p: c - p) != number(lambda c, p: c + p)


def test_printed_graphs_show_bodies() -> None:
    x = ngd.placeholder("x", (4, 2))
    last, _ = ops.scan(lambda c, p: (c * p, None), ngd.constant(np.zeros(2, np.float32)), x)
    lines = str(Graph((x,), (last,))).splitlines()
    assert any(line.startswith("    graph(") for line in lines)
    assert any("multiply" in line for line in lines)


def sum_over_ranks(x: ngd.Node) -> ngd.Node:
    return ops.all_reduce(x, op="sum")


@pytest.mark.parametrize("device", ["CPU", "INTERPRETER", "NULL"])
def test_a_branch_with_a_collective_needs_a_uniform_condition(device: str) -> None:
    y, uniform_flag = ngd.placeholder("y", (2,)), ngd.placeholder("told", (), "bool", uniform=True)
    unequal = r"cond \(made at .*\): expected branches .*; got all_reduce \(made at .*\)"

    def chosen(predicate: ngd.Node) -> ngd.Node:
        made: ngd.Node = ops.cond(predicate, lambda: sum_over_ranks(y), lambda: y)
        return made

    def after_iterations(carry: ngd.Node) -> ngd.Node:
        def body(carry: ngd.Node, part: ngd.Node) -> tuple[ngd.Node, None]:
            return ops.where(chosen(carry)[0] > 0, ops.logical_not(carry), carry), None

        last, _ = ops.scan(body, carry, length=3)
        return last

    def becomes_unequal(first: ngd.Node, second: ngd.Node) -> ngd.Node:
        def body(carry: list[ngd.Node], part: ngd.Node) -> tuple[list[ngd.Node], None]:
            return [carry[1], carry[1], chosen(carry[0])], None

        last, _ = ops.scan(body, [first, second, y], length=3)
        return last[2]

    varying_flag = ops.sum(y) > 0
    for bad_node in (
        chosen(varying_flag),
        chosen(ops.equal(ops.own_rank(), 0)),
        after_iterations(uniform_flag),  # in the second iteration
        becomes_unequal(uniform_flag, varying_flag),  # in the second iteration
        ops.cond(uniform_flag, lambda: chosen(varying_flag), lambda: y),
    ):
        with pytest.raises(CompileError, match=unequal):
            ngd.compile([y, uniform_flag], [bad_node], device=device)
    for fine in (
        chosen(uniform_flag),
        chosen(ops.all_reduce(varying_flag, op="max")),
        becomes_unequal(uniform_flag, ops.logical_not(uniform_flag)),
        ops.cond(varying_flag, lambda: ops.cond(uniform_flag, lambda: y, lambda: -y), lambda: y),
    ):
        ngd.compile([y, uniform_flag], [fine], device=device, group=ngd.comm.world.alone())


def test_the_gradient_of_a_loop_carries_only_what_it_needs() -> None:
    x, w, h = ngd.placeholder("x", (4, 2)), ngd.placeholder("w", (2,)), ngd.placeholder("h", (2,))

    def body(carry: list[Node], part: Node) -> tuple[list[Node], None]:
        first, second = carry
        return [ops.tanh(first * w + part), second + part * x[0]], None

    (last, other), _ = ops.scan(body, [h, h * 2], x)
    loss = ops.sum(last) + ops.sum(other)

    def carried(wrt: Node) -> int:
        gradient = ngd.grad(loss, wrt)
        made = Graph((x, w, h), (gradient,)).nodes
        loops = [n for n in made if n.op.kernel.control_flow]
        return max(n.attrs["carries"] for n in loops if n.attrs["reverse"])

    assert carried(w) == 2  # the adjoint of the first carry, and the sum for w
    assert carried(h) == 2  # the adjoints of both carries


@pytest.mark.parametrize("count", [3, 100])
def test_a_constant_that_a_body_reads_has_a_gradient(count: int, device: str) -> None:
    c, x = ngd.constant(np.full(count, 3.0)), ngd.constant(np.arange(2.0 * count).reshape(2, count))
    looped, _ = ops.scan(lambda a, p: (a + p * c, None), ops.zeros(count, "float64"), x)
    chosen = ops.cond(ops.sum(looped) > 0, lambda: looped * c, lambda: looped)
    gradient = ngd.grad(ops.sum(chosen), c)
    step = ngd.compile([], [gradient], device=device)
    npt.assert_allclose(step()[0], 2 * 3.0 * np.arange(2.0 * count).reshape(2, count).sum(0))


def test_small_constants_are_part_of_the_kernels_of_a_body() -> None:
    x = ngd.placeholder("x", (4, 2))
    last, _ = ops.scan(lambda a, p: (a * 0.5 + p, None), ops.zeros(2, "float32"), x)
    text = str(ngd.compile([x], [last], device="CPU"))
    assert "#0.5" in text
    assert " scan(%0, %1) " in text


def test_send_and_receive_are_rejected_in_loops_and_branches() -> None:
    x = ngd.placeholder("x", (2,))
    with pytest.raises(CompileError, match=r"send \(made at .*\): expected no messages"):
        ops.scan(lambda c, p: (c + ops.send(c, 1), None), x, length=3)
    with pytest.raises(
        CompileError, match=r"recv \(made at .*\): expected no messages between two"
    ):
        ops.cond(ops.sum(x) > 0, lambda: ops.recv(1, shape=(2,), dtype="float32"), lambda: x)


def test_a_collective_of_an_invariant_value_is_moved_out_of_the_loop() -> None:
    x, y = ngd.placeholder("x", (4, 2)), ngd.placeholder("y", (2,))
    start = ngd.constant(np.zeros(2, np.float32))
    moving, _ = ops.scan(lambda c, p: (sum_over_ranks(c + p), None), start, x)
    standing, _ = ops.scan(lambda c, p: (c + sum_over_ranks(y), None), start, x)
    inside, outside = (
        [node.op.name for node in bodies_of(scan)[0].nodes] for scan in (moving, standing)
    )
    assert "all_reduce" in inside
    assert "all_reduce" not in outside


X = np.zeros((4, 2), np.float32)
BAD: dict[str, tuple[type[Exception], str, Callable[[], Any]]] = {
    "another dtype": (
        DTypeError,
        r"expected the body to return carry of the given type, float64\[2\]; got float32\[2\]",
        lambda: ops.scan(lambda c, p: (p, None), np.zeros(2), X),
    ),
    "another shape": (
        ShapeError,
        r"return carry\['a'\] of the given type, float32\[\]; got float32\[2\]",
        lambda: ops.scan(lambda c, p: ({"a": p}, None), {"a": np.float32(0)}, X),
    ),
    "another structure": (
        TypeError,
        "the carry that the body returns: expected a dict of a; got a list of 1 part",
        lambda: ops.scan(lambda c, p: ([p], None), {"a": np.float32(0)}, X),
    ),
    "no pair": (
        TypeError,
        "expected the body to return a pair; got",
        lambda: ops.scan(lambda c, p: c, np.zeros(2), X),
    ),
    "no length": (
        ShapeError,
        "expected a length, or xs with an axis",
        lambda: ops.scan(lambda c, p: (c, None), np.zeros(2)),
    ),
    "a scalar to slice": (
        ShapeError,
        "expected a length, or xs with an axis to loop over; got a scalar",
        lambda: ops.scan(lambda c, p: (c, None), np.zeros(2), np.float32(1)),
    ),
    "a later scalar to slice": (
        ShapeError,
        r"expected xs with an axis to loop over; got float32\[\] \(made at",
        lambda: ops.scan(lambda c, p: (c, None), np.zeros(2), [X, np.float32(1)]),
    ),
    "extents that differ": (
        ShapeError,
        r"expected xs of 4 slices each; got float32\[3\]",
        lambda: ops.scan(lambda c, p: (c, None), np.zeros(2), [X, np.zeros(3, np.float32)]),
    ),
    "a negative length": (
        ShapeError,
        "expected a length >= 0; got -1",
        lambda: ops.scan(lambda c, p: (c, None), np.zeros(2), length=-1),
    ),
    "a condition of numbers": (
        DTypeError,
        r"cond: expected a bool scalar to choose by; got float32\[\]",
        lambda: ops.cond(np.float32(1), lambda: np.zeros(2), lambda: np.zeros(2)),
    ),
    "branches of other types": (
        ShapeError,
        r"return result of one type; got float64\[2\] .* and float64\[3\]",
        lambda: ops.cond(np.bool_(True), lambda: np.zeros(2), lambda: np.zeros(3)),
    ),
    "branches of other structures": (
        TypeError,
        "cond: the result of on_false: expected a list of 1 part; got <ngd.Node constant",
        lambda: ops.cond(np.bool_(True), lambda: [np.zeros(2)], lambda: np.zeros(2)),
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_bodies_raise_errors(case: str) -> None:
    error, words, call = BAD[case]
    with pytest.raises(error, match=words):
        call()


def test_a_value_of_a_body_cannot_be_used_outside() -> None:
    nodes: list[Node] = []

    def body(c: Node, p: Node) -> tuple[Node, None]:
        nodes.append(c + p)
        return nodes[0], None

    ops.scan(body, np.zeros(2, np.float32), X)
    with pytest.raises(
        CompileError, match=r"inputs: expected placeholder .*; got inputs without it"
    ):
        ngd.compile([], nodes)
