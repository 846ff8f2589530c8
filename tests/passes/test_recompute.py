# SPDX-License-Identifier: Apache-2.0
"""Tests of `memory_limit`: steps recompute cheap values to use less memory."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.testing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ngd
from ngd import ops
from ngd.errors import CompileError
from tests.passes.layers import block, multiplies, needs_bfloat16

random = np.random.default_rng(5)


def network(layers: int, rows: int = 64, width: int = 64) -> tuple[list[Any], list[Any]]:
    """Return the inputs, and the loss and gradients of a network with several ops per layer."""
    x = ngd.placeholder("x", (rows, width), "float32")
    weights = [
        ngd.variable(f"w{n}", (random.standard_normal((width, width)) / 8).astype("f"))
        for n in range(layers)
    ]
    y = x
    for w in weights:
        y = ops.relu(ops.layer_norm(ops.tanh(y @ w) * 2, width) + y)
    return [x], [ops.mean(y * y), *ngd.grad(ops.mean(y * y), weights)]


def used_bytes(step: Any) -> int:
    return int(step.memory()["private"] + step.memory()["shared"])


def test_a_step_keeps_its_limit_and_its_bits() -> None:
    given_, wanted = network(12)
    plain = ngd.compile(given_, wanted, device="CPU")
    batch = random.standard_normal((64, 64)).astype("f")
    expected = plain(batch)
    for part in (0.9, 0.8, 0.7):
        step = ngd.compile(given_, wanted, device="CPU", memory_limit=int(part * used_bytes(plain)))
        assert used_bytes(step) <= part * used_bytes(plain)
        assert step.memory()["recomputed"] > 0
        assert step.cost().bytes > plain.cost().bytes
        for found, exact in zip(step(batch), expected, strict=True):
            npt.assert_array_equal(found, exact)
    assert plain.memory()["recomputed"] == 0


def test_a_limit_that_is_met_anyway_changes_nothing() -> None:
    given_, wanted = network(3)
    plain = ngd.compile(given_, wanted, device="CPU")
    step = ngd.compile(given_, wanted, device="CPU", memory_limit=used_bytes(plain))
    assert str(step) == str(plain)
    assert step is ngd.compile(given_, wanted, device="CPU", memory_limit=used_bytes(plain))
    assert step is not plain


def test_an_impossible_limit_raises_an_error_with_the_smallest_possible_one() -> None:
    given_, wanted = network(12)
    with pytest.raises(
        CompileError, match=r"memory_limit: expected at least \d+ .*; got 1\. "
    ) as e:
        ngd.compile(given_, wanted, device="CPU", memory_limit=1)
    least = int(re.findall(r"least (\d+)", str(e.value))[0])
    step = ngd.compile(given_, wanted, device="CPU", memory_limit=least)
    assert used_bytes(step) <= least


def test_matmuls_and_collectives_are_not_recomputed() -> None:
    x = ngd.placeholder("x", (48, 32), "float32")
    weights = [ngd.variable(f"w{n}", np.eye(32, dtype="f") * 0.9) for n in range(8)]
    y: Any = x
    for w in weights:
        y = ops.relu(ops.layer_norm(ops.gelu(ngd.remat(lambda y, w=w: ops.tanh(y @ w))(y)), 32)) + y
        y = ops.transpose(ops.relu(ops.transpose(y) * 2 + 1))
    wanted = [ops.mean(y * y), *ngd.grad(ops.mean(y * y), weights)]
    plain = ngd.compile([x], wanted, device="CPU")
    with pytest.raises(CompileError) as e:
        ngd.compile([x], wanted, device="CPU", memory_limit=1)
    least = int(re.findall(r"least (\d+)", str(e.value))[0])
    step = ngd.compile([x], wanted, device="CPU", memory_limit=least)
    assert str(step).count("= matmul(") == str(plain).count("= matmul(")
    assert used_bytes(step) < 0.8 * used_bytes(plain)


def test_results_do_not_count_as_values_that_wait() -> None:
    given_, wanted = network(12, rows=32, width=256)
    whole = used_bytes(ngd.compile(given_, wanted, device="CPU"))
    step = ngd.compile(given_, wanted, device="CPU", memory_limit=whole // 2)
    assert used_bytes(step) <= whole // 2


@needs_bfloat16
def test_a_float32_block_stays_float32_in_recomputed_values() -> None:
    weights = [
        ngd.variable(f"w{n}", (random.standard_normal((64, 64)) / 8).astype("f")) for n in range(6)
    ]
    x = y = ngd.placeholder("x", (256, 64), "float32")
    for w in weights:
        h = y @ w
        with ngd.full_precision():
            p = (ops.layer_norm(h, 64) + 100) @ ngd.constant(np.eye(64, dtype="f"))
            s = (p - 100) * 2
            t = ops.tanh(s)
        y = ops.relu(t) * ops.tanh(s) + p * p * 1e-6
    slopes, batch = ngd.grad(ops.mean(y * y), weights), random.standard_normal((256, 64))
    plain = ngd.compile([x], slopes, device="CPU", precision="bfloat16")
    how: dict[str, Any] = {"device": "CPU", "precision": "bfloat16"}
    step = ngd.compile([x], slopes, **how, memory_limit=int(0.9 * used_bytes(plain)))
    for found, exact in zip(step(batch.astype("f")), plain(batch.astype("f")), strict=True):
        npt.assert_allclose(found, exact, rtol=0, atol=0.01 * np.abs(exact).max())


def test_a_limit_must_be_an_integer() -> None:
    x = ngd.placeholder("x", (2,))
    with pytest.raises(
        TypeError, match=r"compile: memory_limit: expected a whole number; got 1\.5"
    ):
        ngd.compile([x], [x + 1], memory_limit=1.5)  # type: ignore[arg-type]
    (found,) = ngd.compile([x], [x + 1], memory_limit=0, device="CPU")(np.zeros(2, "f"))
    npt.assert_array_equal(found, [1, 1])


def test_devices_without_a_planner_accept_a_limit() -> None:
    given_, wanted = network(1)
    batch = np.ones((64, 64), "f")
    slow = ngd.compile(given_, wanted, device="INTERPRETER", memory_limit=1)(batch)
    npt.assert_allclose(slow[0], ngd.compile(given_, wanted, device="CPU")(batch)[0], rtol=1e-4)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, 6), min_size=3, max_size=9),
    st.sampled_from(["float32", "bfloat16"] if multiplies("bfloat16") else ["float32"]),
    st.floats(0.5, 0.95),
    st.integers(0, 2**32 - 1),
)
def test_any_network_gives_the_same_results_within_a_limit(
    kinds: list[int], precision: str, part: float, seed: int
) -> None:
    draw, width = np.random.default_rng(seed), 16
    x = ngd.placeholder("x", (24, width), "float32")
    weights = [
        ngd.variable(f"w{n}", (draw.standard_normal((width, width)) / 4).astype("f"))
        for n in range(3)
    ]
    y = x
    for number, kind in enumerate(kinds):
        y = block(y, weights[number % 3], kind)
    loss = ops.mean(y * y)
    wanted = [loss, y, *ngd.grad(loss, weights, unused="zero")]
    plain = ngd.compile([x], wanted, device="CPU", precision=precision)
    limit = int(part * used_bytes(plain))
    batch = draw.standard_normal((24, width)).astype("f")
    try:
        step = ngd.compile([x], wanted, device="CPU", precision=precision, memory_limit=limit)
    except CompileError as error:
        least = int(re.findall(r"least (\d+)", str(error))[0])
        assert limit < least <= used_bytes(plain)
        step = ngd.compile([x], wanted, device="CPU", precision=precision, memory_limit=least)
    else:
        assert used_bytes(step) <= limit
    tolerance = 1e-5 if precision == "float32" else 0.05
    for found, exact in zip(step(batch), plain(batch), strict=True):
        scale = np.abs(exact).max() + 1e-3
        npt.assert_allclose(found, exact, rtol=0, atol=tolerance * scale)
