# SPDX-License-Identifier: Apache-2.0
"""Tests of loops and branches that are built from scan and cond."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.testing as npt
import pytest

import ngd
from ngd import ops

DEVICES = pytest.mark.parametrize("device", ["INTERPRETER", "CPU"])
X = np.array([1.0, 2.0])


@DEVICES
def test_fori_loop_equals_numpy(device: str) -> None:
    def f(x: Any) -> Any:
        return ops.fori_loop(2, 5, lambda i, c: (c[0] * x, c[1] + i), (x, np.int64(0)))

    product, total = ngd.function(f, device=device)(X)
    npt.assert_allclose(product, X**4)
    assert total == 9
    slope = ngd.function(lambda x: ngd.grad(ops.sum(f(x)[0]), x), device=device)(X)
    npt.assert_allclose(slope, 4 * X**3)
    same = ngd.function(lambda x: ops.fori_loop(3, 1, lambda i, c: c * 2, x), device=device)(X)
    npt.assert_allclose(same, X)


@DEVICES
def test_while_loop_equals_numpy(device: str) -> None:
    def f(x: Any) -> Any:
        return ops.while_loop(lambda c: ops.sum(c) < 20, lambda c: c * x, x, max_iterations=10)

    for x, power in ((X, 5), (X * 3, 2), (X * 30, 1)):
        npt.assert_allclose(ngd.function(f, device=device)(x), x**power)
        slope = ngd.function(lambda x: ngd.grad(ops.sum(f(x)), x), device=device)(x)
        npt.assert_allclose(slope, power * x ** (power - 1))
    bounded = ngd.function(
        lambda x: ops.while_loop(lambda c: ops.sum(c) > 0, lambda c: c * x, x, max_iterations=2),
        device=device,
    )
    npt.assert_allclose(bounded(X), X**3)


@DEVICES
def test_map_equals_numpy(device: str) -> None:
    x = np.arange(6.0).reshape(3, 2)
    found = ngd.function(
        lambda x, y: ops.map(lambda s: {"sum": s[0] + s[1], "square": s[0] ** 2}, (x, y)),
        device=device,
    )(x, x + 1)
    npt.assert_allclose(found["sum"], 2 * x + 1)
    npt.assert_allclose(found["square"], x**2)


@DEVICES
@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_switch_clamps_its_index(device: str, count: int) -> None:
    def f(i: Any, x: Any) -> Any:
        return ops.switch(i, [lambda x, k=k: x * (k + 1) for k in range(count)], x)

    step = ngd.function(f, device=device)
    slope = ngd.function(lambda i, x: ngd.grad(ops.sum(f(i, x)), x), device=device)
    for i in range(-1, count + 1):
        factor = min(max(i, 0), count - 1) + 1
        npt.assert_allclose(step(np.int32(i), X), X * factor)
        npt.assert_allclose(slope(np.int32(i), X), [factor] * 2)


def test_bad_arguments_raise_errors() -> None:
    with pytest.raises(TypeError, match=r"fori_loop: expected ints .* ops.while_loop repeats"):
        ops.fori_loop(0, ops.as_node(3), lambda i, c: c, X)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^switch: expected at least one branch"):
        ops.switch(0, [])
    with pytest.raises(ngd.errors.DTypeError, match=r"^switch: expected an integer scalar"):
        ops.switch(0.5, [lambda: X])
    with pytest.raises(ngd.errors.ShapeError, match=r"the body to return carry of the given type"):
        ops.fori_loop(0, 2, lambda i, c: ops.sum(c), ops.as_node(X))
