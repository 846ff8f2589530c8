# SPDX-License-Identifier: Apache-2.0
"""Tests of reductions in elementwise kernels: which are fused, equal bits, and shared sums."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.testing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ngd
from ngd import ops
from ngd.passes import pipeline
from ngd.passes.fusion.reductions import fuse_reductions, share_sums

Graph = Callable[[Any], list[Any]]


def kinds(step: Any) -> Counter[str]:
    """Return how often a program runs each kernel."""
    return Counter(re.findall(r"^  \d+: (?:.* = )?(.*?)\(", str(step), re.MULTILINE))


def without(*left_out: Any) -> pytest.MonkeyPatch:
    """Remove some passes during a block."""
    patch = pytest.MonkeyPatch()
    patch.setattr(pipeline, "FUSION", tuple(p for p in pipeline.FUSION if p not in left_out))
    return patch


def compile_outputs(shape: tuple[int, ...], dtype: Any, graph: Graph) -> Any:
    x = ngd.placeholder("x", shape, dtype)
    return ngd.compile([x], graph(x))


@st.composite
def cases(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], Any, Graph]:
    """Draw a shape, axes, a dtype, and functions to compute and reduce."""
    shape = tuple(draw(st.lists(st.sampled_from([1, 2, 3, 7, 33, 130]), min_size=1, max_size=4)))
    shape = shape[: next((i for i in range(1, 5) if np.prod(shape[:i]) > 40000), 4)]
    axes = tuple(draw(st.lists(st.sampled_from(range(len(shape))), unique=True, min_size=1)))
    dtypes = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int32]
    kept = draw(st.booleans())
    names = draw(st.lists(st.sampled_from(["sum", "max", "mean"]), min_size=1, max_size=3))
    stored = draw(st.booleans())
    dtype = draw(st.sampled_from(dtypes))
    vector = draw(st.booleans())

    def graph(x: Any) -> list[Any]:
        w = np.arange(shape[-1] if vector else 1).astype(dtype)
        y = x * w + x
        z = ops.maximum(y, x) - w
        reduced = [getattr(ops, name)(v, axes, kept) for name in names for v in (y, z, x)]
        return [*reduced, z] if stored else reduced

    return shape, axes, dtype, graph


@settings(max_examples=60, deadline=None)
@given(cases())
def test_fused_reductions_have_the_bits_of_separate_kernels(case: Any) -> None:
    shape, _, dtype, graph = case
    step = compile_outputs(shape, dtype, graph)
    patch = without(fuse_reductions, share_sums)
    try:
        apart = compile_outputs(shape, dtype, graph)
    finally:
        patch.undo()
    assert kinds(apart)["elementwise_reduce"] == 0
    x = (np.random.default_rng(0).normal(size=shape) * 4).astype(dtype)
    for found, expected in zip(step(x), apart(x), strict=True):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert found.tobytes() == expected.tobytes()


def test_reductions_over_the_same_axes_share_one_kernel() -> None:
    step = compile_outputs((64, 40), np.float32, lambda x: [
        ops.sum(ops.abs(x), 0), ops.max(x * x, 0), ops.mean(x, 0), ops.sum(ops.exp(x), 1)
    ])  # fmt: skip
    assert kinds(step) == {"elementwise_reduce": 1, "reduce": 1}
    x = np.random.default_rng(0).normal(size=(64, 40)).astype(np.float32)
    expected = abs(x).sum(0), (x * x).max(0), x.mean(0), np.exp(x).sum(1)
    for found, value in zip(step(x), expected, strict=True):
        npt.assert_allclose(found, value, rtol=1e-5, atol=1e-5)


def test_values_that_only_reductions_read_are_not_stored() -> None:
    def graph(x: Any) -> list[Any]:
        return [ops.sum(ops.tanh(x * 3)), ops.max(ops.tanh(x * 3))]

    shape = (1000, 1000)
    step = compile_outputs(shape, np.float32, graph)
    assert step.memory()["private"] < 1 << 16
    patch = without(fuse_reductions)
    try:
        assert compile_outputs(shape, np.float32, graph).memory()["private"] >= 4_000_000
    finally:
        patch.undo()


def test_a_reduction_that_the_kernel_reads_is_not_fused() -> None:
    def graph(x: Any) -> list[Any]:
        return [x - ops.mean(x, 1, keepdims=True), ops.max(x, 1)]

    x = np.random.default_rng(0).normal(size=(9, 33))
    step = compile_outputs(x.shape, np.float64, graph)
    assert kinds(step)["reduce"] == 2
    for found, value in zip(step(x), (x - x.mean(1, keepdims=True), x.max(1)), strict=True):
        npt.assert_allclose(found, value, rtol=1e-12)


def test_a_factor_is_moved_out_of_a_sum_that_exists_anyway() -> None:
    rng = np.random.default_rng(0)
    w, x = rng.normal(size=5), rng.normal(size=(4, 5, 3))

    def graph(x: Any) -> list[Any]:
        scale = ops.reshape(ngd.placeholder("w", (5,), np.float64), (5, 1))
        y = ops.tanh(x)
        return [scale, ops.sum(x * y, (0, 2)), ops.mean(x * scale * y, (0, 2), True)]

    node = ngd.placeholder("x", x.shape, np.float64)
    scale, *outputs = graph(node)
    step = ngd.compile([scale.inputs[0], node], outputs)
    assert kinds(step)["elementwise_reduce"] == 1
    program = re.search(r'elementwise_reduce.*program="([^"]*)"', str(step))
    assert program is not None
    assert program[1].count("multiply") == 1
    total, mean = step(w, x)
    npt.assert_allclose(total, (x * np.tanh(x)).sum((0, 2)), rtol=1e-12)
    expected = (x * np.tanh(x) * w[:, None]).mean((0, 2), keepdims=True)
    npt.assert_allclose(mean, expected, rtol=1e-12)


def check(inputs: dict[str, Any], graph: Callable[..., list[Any]], rtol: float = 1e-12) -> Any:
    """Run a function of ops on nodes, and on arrays in NumPy in float64. Return the step."""
    nodes = [ngd.placeholder(name, x.shape, x.dtype) for name, x in inputs.items()]
    step = ngd.compile(nodes, graph(ops, *nodes))
    for found, wanted in zip(step(*inputs.values()), graph(np, *inputs.values()), strict=True):
        npt.assert_allclose(found, wanted, rtol=rtol, atol=rtol)
    return step


def random_array(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).normal(size=shape)


@pytest.mark.parametrize("shape", [(3, 3), (40, 3), (1, 3)])
def test_axes_are_counted_from_the_front_and_factors_align_at_the_end(
    shape: tuple[int, ...],
) -> None:
    inputs = {"a": random_array(*shape), "c": random_array(2, 1, 1), "w": random_array(3)}
    check(inputs, lambda np, a, c, w: [np.sum(a, 1), np.sum(a * c, 1), np.mean(a * w * c, 2)])
    check(inputs, lambda np, a, c, w: [np.sum(a * w, 0), np.sum(a * w * c, (0, 1)), np.sum(a, 0)])


def test_sums_of_broadcast_factors_count_all_elements() -> None:
    inputs = {
        "a": random_array(1, 3),
        "b": random_array(4, 1),
        "c": random_array(9, 1),
        "w": random_array(1, 3),
    }

    def graph(np: Any, a: Any, b: Any, c: Any, w: Any) -> list[Any]:
        wide = [np.broadcast_to(a, (n, 3)) for n in (4, 9)]
        return [np.sum(x, 0) for x in wide] + [np.sum(x * w, 0) for x in wide]

    check(inputs, graph)


class Pair:
    rank, size = 0, 2


def starts(inputs: list[Any], outputs: list[Any]) -> list[str]:
    """Return the reductions of a program's collectives, in the order of their starts."""
    group: Any = Pair()
    text = str(ngd.compile(inputs, outputs, device="NULL", group=group))
    return re.findall(r" start all_reduce.*? op=\"?(\w+)", text.replace("reduce_op", " op"))


@pytest.mark.parametrize("rows", [1, 8])
def test_a_collective_does_not_wait_for_another_one(rows: int) -> None:
    """The kernel is accepted for the shapes of any rank."""
    p, w = ngd.placeholder("p", (rows, 3)), ngd.placeholder("w", (rows, 1))
    m, q = ngd.placeholder("m", (4, 5)), ngd.placeholder("q", (5, 3))
    x = p
    for _ in range(4):
        x = ops.cumsum(x, 0)
    c = ops.all_reduce(ops.sum(x), op="min")
    y = ops.sum(ops.all_reduce(m @ q, op="max"), 0)
    k = ops.tanh((x + y) * w)
    assert starts([p, w, m, q], [c, k]) == ["min", "max"]


@pytest.mark.parametrize("rows", [1, 8])
def test_a_sum_of_the_result_of_another_sum_is_computed_once(rows: int) -> None:
    a, w, b, v, y = (
        ngd.placeholder(name, shape)
        for name, shape in zip("awbvy", ((rows, 3), (3,), (rows, 3), (3,), (rows, 3)), strict=True)
    )
    g = ops.all_reduce(ops.sum(a * w, 0), op="sum")
    bg = b * (b + g)
    s1 = ops.sum(bg * v, 0)
    sums = [ops.sum(a, 0), ops.sum(bg, 0), ops.sum(y, 0), ops.sum(y * s1, 0)]
    assert starts([a, w, b, v, y], sums) == ["sum"]


def test_an_update_stays_in_place_with_a_sum_of_its_variable() -> None:
    w = ngd.variable("w", np.ones((300, 300), np.float32))
    step = ngd.compile([], [ops.sum(w)], {w: w * 0.5 + 1})
    assert step.memory()["private"] == 0
    assert kinds(step) == {"elementwise_reduce": 1}
    assert step()[0] == 90000
    assert (w.numpy() == 1.5).all()


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_factors_stay_in_sums_of_16_bit_floats(dtype: Any) -> None:
    # sum(x) exceeds the largest float16, sum(x / 1000) does not.
    step = compile_outputs((100,), dtype, lambda x: [ops.sum(x), ops.sum(x * dtype(1e-3))])
    found = step(np.full(100, 1000, dtype))[1]
    npt.assert_allclose(found.astype(np.float64), 100, rtol=1e-2)


def test_the_backward_pass_of_batch_norm_reads_its_operands_once() -> None:
    x = ngd.placeholder("x", (8, 6, 5, 5))
    t = ngd.placeholder("t", x.shape)
    w, b = ngd.placeholder("w", (6,)), ngd.placeholder("b", (6,))
    loss = ops.sum(ops.relu(ops.batch_norm(x, w, b)[0]) * t)
    step = ngd.compile([x, t, w, b], ngd.grad(loss, [x, w, b]))
    found = kinds(step)
    assert (found["elementwise_reduce"], found["reduce"]) == (1, 0)
    stored = re.search(r"(.*) = elementwise_reduce.*reductions=\((.*?)\)", str(step))
    assert stored is not None
    assert stored[2].count(",") == 3
    assert stored[1].count("%") == 2 + 4  # the value and dy after the relu, and the sums
