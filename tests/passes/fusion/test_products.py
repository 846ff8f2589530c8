# SPDX-License-Identifier: Apache-2.0
"""Tests of matmuls inside elementwise kernels: which are fused, and equal values."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.testing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ngd
from ngd import ops, optim
from ngd.comm.summation import sum_in_order
from ngd.passes import pipeline
from ngd.passes.fusion.matmuls import fuse_products

RNG = np.random.default_rng(0)


def kinds(step: Any) -> Counter[str]:
    """Return how often a program runs each kernel."""
    return Counter(re.findall(r"^  \d+: (?:.* = )?(.*?)\(", str(step), re.MULTILINE))


def without_fused_matmuls(make: Callable[[], Any]) -> Any:
    """Return what `make` builds without the fusion of matmuls."""
    patch = pytest.MonkeyPatch()
    left = tuple(p for p in pipeline.FUSION if p is not fuse_products)
    patch.setattr(pipeline, "FUSION", left)
    try:
        return make()
    finally:
        patch.undo()


RULES: dict[str, Callable[[], Any]] = {
    "sgd": lambda: optim.SGD(0.1),
    "momentum": lambda: optim.SGD(0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": lambda: optim.AdamW(0.1),
}


def make_step(shape: tuple[int, int, int], dtype: str, rule: str, device: str = "CPU") -> Any:
    """Return a weight and its training step. The targets give gradients of both signs."""
    samples, rows, columns = shape
    w = ngd.variable("w", np.random.default_rng(1).normal(size=(rows, columns)).astype(dtype))
    x, t = (ngd.placeholder(n, (samples, m), dtype) for n, m in (("x", rows), ("t", columns)))
    loss = ops.mean((x @ w - t) ** 2)
    step = ngd.compile([x, t], [loss], RULES[rule]().minimize(loss, [w]), device=device)
    return w, step


def values(shape: tuple[int, int, int], dtype: str, w: Any, step: Any) -> Any:
    samples, rows, columns = shape
    random = np.random.default_rng(2)
    for _ in range(3):
        x, t = (random.normal(size=(samples, n)).astype(dtype) for n in (rows, columns))
        step(x, t)
    return w.numpy()


@settings(max_examples=40, deadline=None)
@given(
    st.tuples(
        st.sampled_from([1, 2, 7, 16, 64]),
        st.sampled_from([1, 3, 31, 64, 129, 300]),
        st.sampled_from([1, 5, 47, 100, 130, 1100]),
    ),
    st.sampled_from(["float32", "float64"]),
    st.sampled_from([*RULES]),
)
def test_fused_kernels_equal_separate_kernels(
    shape: tuple[int, int, int], dtype: str, rule: str
) -> None:
    found = values(shape, dtype, *make_step(shape, dtype, rule))
    wanted = values(shape, dtype, *without_fused_matmuls(lambda: make_step(shape, dtype, rule)))
    if dtype == "float64":  # one GEMM computes both
        assert found.tobytes() == wanted.tobytes()
    else:
        npt.assert_allclose(found, wanted, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("rule", RULES)
def test_fused_kernels_equal_the_references(rule: str) -> None:
    shape = (16, 65, 101)
    w, step = make_step(shape, "float64", rule)
    assert kinds(step)["elementwise_product"] == 1
    wanted = values(shape, "float64", *make_step(shape, "float64", rule, "INTERPRETER"))
    npt.assert_allclose(values(shape, "float64", w, step), wanted, rtol=1e-11, atol=1e-11)


def test_a_gradient_that_is_fused_into_the_update_needs_no_memory() -> None:
    shape = (16, 400, 500)
    _, step = make_step(shape, "float32", "adam")
    _, whole = without_fused_matmuls(lambda: make_step(shape, "float32", "adam"))
    assert whole.memory()["private"] - step.memory()["private"] >= 4 * 400 * 500 * 3 // 4
    assert step.cost().flops == whole.cost().flops
    assert step.cost().bytes <= whole.cost().bytes - 2 * 4 * 400 * 500


def test_gradients_of_many_samples_are_not_fused() -> None:
    assert kinds(make_step((300, 200, 200), "float32", "sgd")[1])["elementwise_product"] == 0
    assert kinds(make_step((257, 2000, 2000), "float32", "sgd")[1])["elementwise_product"] == 0
    assert kinds(make_step((100, 200, 200), "float32", "sgd")[1])["elementwise_product"] == 1


def test_deep_matmuls_are_not_fused() -> None:
    for dtype in ("float32", "float64"):
        x, y = (ngd.placeholder(n, (300, m), dtype) for n, m in (("x", 800), ("y", 900)))
        z = ngd.placeholder("z", (800, 900), dtype)
        step = ngd.compile([x, y, z], [ops.transpose(x, (1, 0)) @ y + z])
        assert kinds(step)["elementwise_product"] == 0
        assert kinds(step)["matmul"] == 1
        given_values = [RNG.normal(size=n.shape).astype(dtype) for n in (x, y, z)]
        a, b, c = (v.astype(np.float64) for v in given_values)
        npt.assert_allclose(step(*given_values)[0], a.T @ b + c, rtol=1e-4, atol=1e-4)


def test_a_gradient_with_other_readers_is_stored() -> None:
    w = ngd.variable("w", np.ones((30, 20), np.float32))
    x = ngd.placeholder("x", (4, 30))
    gradient = ngd.grad(ops.sum((x @ w) ** 2), w)
    for outputs in ([gradient], [ops.sum(gradient @ ops.transpose(gradient, (1, 0)))]):
        step = ngd.compile([x], outputs, {w: w - 0.1 * gradient})
        assert kinds(step)["elementwise_product"] == 0
        given_x = RNG.normal(size=(4, 30)).astype(np.float32)
        wanted = w.numpy() - np.float32(0.1) * (given_x.T @ (2 * given_x @ w.numpy()))
        step(given_x)
        npt.assert_allclose(w.numpy(), wanted, rtol=1e-4, atol=1e-4)


def test_a_kernel_adds_matmuls_of_one_shape() -> None:
    pairs = [
        [ngd.placeholder(f"{n}{i}", (5, m)) for n, m in (("a", 40), ("b", 30))] for i in range(4)
    ]
    products = [ops.transpose(a, (1, 0)) @ b for a, b in pairs]
    step = ngd.compile(
        [n for pair in pairs for n in pair], [ops.tanh(sum_in_order(products, ops.add))]
    )
    assert kinds(step) == {"elementwise_product": 1}
    given_values = [RNG.normal(size=n.shape).astype(np.float32) for pair in pairs for n in pair]
    a, b = given_values[::2], given_values[1::2]
    wanted = np.tanh(sum(x.T.astype(np.float64) @ y for x, y in zip(a, b, strict=True)))
    npt.assert_allclose(step(*given_values)[0], wanted, rtol=1e-5, atol=1e-5)


def test_a_kernel_contains_at_most_four_matmuls() -> None:
    pairs = [
        [ngd.placeholder(f"{n}{i}", (5, m)) for n, m in (("a", 40), ("b", 30))] for i in range(5)
    ]
    products = [ops.transpose(a, (1, 0)) @ b for a, b in pairs]
    step = ngd.compile([n for pair in pairs for n in pair], [sum_in_order(products, ops.add)])
    assert kinds(step) == {"elementwise_product": 1, "matmul": 1}
    given_values = [RNG.normal(size=n.shape).astype(np.float32) for pair in pairs for n in pair]
    wanted = sum(
        a.T.astype(np.float64) @ b
        for a, b in zip(given_values[::2], given_values[1::2], strict=True)
    )
    npt.assert_allclose(step(*given_values)[0], wanted, rtol=1e-5, atol=1e-5)


def test_terms_are_added_in_the_order_of_ranks() -> None:
    terms = [ngd.constant(np.float32(v)) for v in (1e8, 1, -1e8, 1, 3)]
    (found,) = ngd.compile([], [sum_in_order(terms, ops.add)])()
    one, far = np.float32(1), np.float32(1e8)
    assert found == ((far + one) + (-far + one)) + np.float32(3)


def test_a_nan_reaches_the_weights() -> None:
    w, step = make_step((8, 33, 50), "float32", "sgd")
    assert kinds(step)["elementwise_product"] == 1
    x, t = np.ones((8, 33), np.float32), np.ones((8, 50), np.float32)
    x[3, 7] = np.nan
    step(x, t)
    assert np.isnan(w.numpy()[7]).all()
