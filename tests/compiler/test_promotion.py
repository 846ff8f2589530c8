# SPDX-License-Identifier: Apache-2.0
"""Tests of PromotionWarning, for float64 values that promotion of float32 causes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ngd
from ngd import nn, ops, optim
from ngd.errors import PromotionWarning
from ngd.graph.node import Node

X = np.ones((4, 8), np.float32)
MASK = np.ones((4, 1), np.int64)


def call_site() -> str:
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return f"{__file__}:{frame.f_back.f_lineno}"


CASES: dict[str, tuple[Callable[[Node], Any], str]] = {
    "an integer mask": (
        lambda x: x * MASK,
        r"got float64 of multiply of float32\[4, 8\] and int64\[4, 1\] .* "
        r"operand int64\[4, 1\]: x\.astype",
    ),
    "a scalar of NumPy": (
        lambda x: x / np.sqrt(8),
        r"of divide of float32\[4, 8\] and float64\[\] .*a Python float, .*: "
        r"float\(np\.sqrt\(d\)\)",
    ),
    "a scalar of NumPy on the left": (
        lambda x: np.float64(2) * x,
        r"multiply of float64\[\] and float32",
    ),
    "data": (
        lambda x: nn.Linear(8, 2)(np.ones((4, 8)) + ops.cast(ops.arange(8), "float64")),
        r"matmul of float64\[4, 8\] and float32\[8, 2\] .* in Linear\(8, 2, bias=True\)\).* "
        r"operand float64",
    ),
    "a comparison": (lambda x: x > np.arange(8.0), r"greater of float32\[4, 8\] and float64\[8\]"),
    "two bytes": (lambda x: ops.cast(x, "float16") + MASK, r"add of float16\[4, 8\] and int64"),
    "a list": (
        lambda x: ops.concat([x, np.ones((1, 8))]),
        r"concat of float32\[4, 8\] and float64\[1, 8\]",
    ),
    "where": (
        lambda x: ops.where(x > 0, x, np.float64(0)),
        r"where of float32\[4, 8\] and float64\[\]",
    ),
    "einsum": (lambda x: ops.einsum("ij,ik->jk", x, MASK), r"einsum of float32\[4, 8\] and int64"),
    "positions": (
        lambda x: x + ops.exp(ops.arange(8) * -0.5),
        r"add of float32\[4, 8\] and float64\[8\] .* operand float64\[8\]",
    ),
    "after float64 of an integer mask": (
        lambda x: ops.exp(x * MASK) * x,
        r"multiply of float32\[4, 8\] and int64\[4, 1\]",
    ),
    "a loop": (
        lambda x: ops.scan(lambda c, t: (c, t * np.float64(2)), np.float32(0), x)[1],
        r"multiply of float32\[8\] and float64\[\]",
    ),
    "a branch": (
        lambda x: ops.cond(x[0, 0] > 0, lambda: x * MASK, lambda: ops.zeros((4, 8), "float64")),
        r"multiply of float32\[4, 8\] and int64",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_float64_by_promotion_warns_once_with_the_line(case: str) -> None:
    build, says = CASES[case]
    with pytest.warns(PromotionWarning, match=f"^compile: expected floats .*{says}") as caught:
        ngd.function(lambda x: build(x))(X)
    assert len(caught) == 1
    assert caught[0].filename == __file__


def test_the_first_line_is_named_once_per_step() -> None:
    @ngd.function
    def attend(x: Node) -> Node:
        lines.append(call_site())
        y = x @ ops.transpose(x) / np.sqrt(8)
        return ops.softmax(y * MASK) @ x

    lines: list[str] = []
    with pytest.warns(PromotionWarning) as caught:
        attend(X)
    attend(X)  # a second warning would be an error
    (warning,) = caught
    file, _, line = lines[0].rpartition(":")
    assert f"(made at {file}:{int(line) + 1})" in str(warning.message)
    x = ngd.placeholder("x", X.shape)
    with pytest.warns(PromotionWarning):
        step = ngd.compile([x], [x * MASK, x / np.float64(2)])
    assert step(X)[0].dtype == np.float64  # as in NumPy 2


def loss(x: Any) -> Node:
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 2))
    if x.dtype == np.float64:
        model.astype("float64")
    entropy: Node = ops.cross_entropy(model(x), np.array([0, 1, 1, 0]))
    return entropy * 0.5 + 2 * entropy / 3 + entropy**2 - np.float32(1)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_steps_of_one_dtype_do_not_warn(dtype: str) -> None:
    optimizer = optim.AdamW(optim.cosine(1e-3, 10), clip_norm=1.0)
    weights = ngd.variable("w", np.ones((8, 8), dtype))

    @ngd.function(updates=True)
    def step(x: Node, rate: float, mask: Node) -> Any:
        value = loss(x @ weights) * rate + ops.mean(x * ops.cast(mask, x.dtype))
        return value, optimizer.minimize(value, [weights])

    assert step(X.astype(dtype), 0.5, MASK).dtype == dtype


@pytest.mark.parametrize(
    "build",
    [
        lambda x: x / float(np.sqrt(8)),
        lambda x: ops.cast(x, "float64") * MASK,
        lambda x: x.astype("float64") / np.sqrt(8),
        lambda x: ops.sum(ops.exp(x.astype("float64")) * x),
        lambda x: x * MASK.astype("float32"),
        lambda x: x * (MASK != 0).astype("float32"),
        lambda x: ngd.constant(0.1) * ops.cast(x, "float64"),
        lambda x: ops.arange(4) / 2 + ops.arange(4) * np.float64(3),
        lambda x: ops.cast(x, "uint8") / 255,
        lambda x: (x * 2, 3 - x, x**2, ops.where(x > 0, x, 0.0), ops.maximum(x, 1)),
    ],
)
def test_explicit_casts_and_weak_scalars_do_not_warn(build: Callable[[Node], Any]) -> None:
    ngd.function(lambda x: build(x))(X)
