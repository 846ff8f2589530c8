# SPDX-License-Identifier: Apache-2.0
"""NGD_CHECK_FINITE=1: a step says where a value begins that is no finite number."""

from __future__ import annotations

import functools
import inspect
import random
import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ngd
from ngd import ops
from ngd.errors import NotFiniteError, PoisonedVariableError

HERE = Path(__file__).name


@pytest.fixture(params=["CPU", "INTERPRETER"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("NGD_CHECK_FINITE", "1")
    return str(request.param)


def compiled(device: str, made: Any, dtype: Any = np.float32) -> Any:
    x = ngd.placeholder("x", (3,), dtype)
    return ngd.compile([x], [made(x)], device=device)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
def test_the_op_is_named_where_it_begins(device: str, dtype: Any) -> None:
    # A sort is a kernel of its own, on either side of the logarithm.
    step = compiled(device, lambda x: ops.sort(ops.log(ops.sort(x))), dtype)
    step(np.array([1, 2, 3], dtype))
    words = rf"begins in the result of \w+, made at .*{re.escape(HERE)}:\d+"
    with pytest.raises(NotFiniteError, match=f"an infinity {words}"):
        step(np.array([1, 0, 3], dtype))
    with pytest.raises(NotFiniteError, match=f"a NaN {words}"):
        step(np.array([1, -1, 3], dtype))
    step(np.array([1, 2, 3], dtype))


def test_the_first_op_is_named_not_the_last(device: str) -> None:
    step = compiled(device, lambda x: ops.matmul(ops.sort(ops.log(x)), np.ones((3, 2), "f")))
    with pytest.raises(NotFiniteError) as raised:
        step(np.array([1, -1, 3], np.float32))
    assert "sort" not in str(raised.value)
    assert "matmul" not in str(raised.value)


def test_what_comes_in_is_told(device: str) -> None:
    step = compiled(device, lambda x: ops.sort(x))
    with pytest.raises(
        NotFiniteError, match=r"NGD_CHECK_FINITE: .* holds a NaN; it is read by \w+, made"
    ):
        step(np.array([1, np.nan, 3], np.float32))
    w = ngd.variable("w", np.array([1, np.nan], np.float32))
    reads = ngd.compile([], [ops.sort(w)], device=device)
    with pytest.raises(NotFiniteError, match="NaN"):
        reads()


def test_infinities_that_somebody_means_are_none(device: str) -> None:
    """A mask of infinities comes from outside, and what is masked is finite again."""

    def masked(x: Any) -> Any:
        return ops.softmax(ops.where(np.array([True, False, True]), x, -np.inf))

    (found,) = compiled(device, masked)(np.array([0, 5, 0], np.float32))
    np.testing.assert_allclose(found, [0.5, 0, 0.5])


def test_inside_a_loop(device: str) -> None:
    step = compiled(device, lambda x: ops.scan(lambda c, _: (ops.log(c), c), x, length=3)[0])
    with pytest.raises(NotFiniteError, match="begins in the result of"):
        step(np.array([2, 2, 2], np.float32))


def test_a_variable_that_was_written_is_poisoned() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NGD_CHECK_FINITE", "1")
        w = ngd.variable("w", np.ones(3, np.float32))
        step = ngd.compile([], [], {w: ops.log(w - 2)})
    with pytest.raises(NotFiniteError):
        step()
    with pytest.raises(PoisonedVariableError):
        w.numpy()


def test_without_the_switch_nothing_is_looked_at() -> None:
    (found,) = compiled("CPU", ops.log)(np.array([1, -1, 0], np.float32))
    np.testing.assert_array_equal(found, np.array([0, np.nan, -np.inf], np.float32))


def said_by(step: Any, *arguments: Any) -> str:
    """The message of the error that a call must raise."""
    with pytest.raises(NotFiniteError) as raised:
        step(*arguments)
    return str(raised.value)


def lines_of(function: Any) -> dict[str, int]:
    """The line number of each statement `name = ...` of a function."""
    lines, first = inspect.getsourcelines(function)
    return {line.split("=")[0].strip(): first + i for i, line in enumerate(lines) if "=" in line}


def test_the_op_of_a_fused_kernel_is_named(device: str) -> None:
    """The kernel runs again op by op: the first NaN or infinity is named, not the last op."""

    def made(x: Any) -> Any:
        b = x - 1
        c = ops.log(b)
        d = c * 0
        e = ops.exp(d)
        return ops.sum(e)

    said = said_by(compiled(device, made), np.ones(3, np.float32))
    assert f"an infinity begins in the result of log, made at {__file__}:" in said
    assert said.endswith(f":{lines_of(made)['c']}")


def test_a_kernel_that_overwrites_its_operand_is_run_again(device: str) -> None:
    """A variable is updated in place: what the kernel read is gone when it has run."""
    w = ngd.variable("w", np.full(3, 4, np.float32))
    step = ngd.compile([], [], {w: ops.exp(ops.sqrt(w - 3) * 2) - 7.5}, device=device)
    step()
    assert "a NaN begins in the result of sqrt, made at" in said_by(step)


def test_an_expanded_op_is_named_as_the_user_called_it(device: str) -> None:
    """log_softmax over an axis in the middle, and silu, are several ops in a kernel."""
    big = np.full((3,), 3e38, np.float32)

    def made(x: Any) -> Any:
        a = ops.silu(x)
        b = a * a
        return ops.gelu(b) + 1

    said = said_by(compiled(device, made), big)
    assert "an infinity begins in the result of multiply, made at" in said
    assert said.endswith(f":{lines_of(made)['b']}")
    variance = compiled(device, lambda x: ops.var(x) + 1)
    assert "begins in the result of var, made at" in said_by(
        variance, big * np.array([1, -1, 1], np.float32)
    )


def test_what_a_heavy_kernel_would_have_taken_is_told_apart(device: str) -> None:
    """A product, its bias and its activation are one kernel, but not with the check on."""
    big = np.full((3, 3), 3e38, np.float32)

    def product(x: Any) -> Any:
        a = ops.matmul(ops.reshape(x, (1, 3)), big)
        b = a + np.ones(3, np.float32)
        return ops.relu(b)

    def sum_(x: Any) -> Any:
        a = ops.matmul(ops.reshape(x, (1, 3)), np.eye(3, dtype=np.float32))
        b = a + big[0]
        return ops.relu(b)

    for made, name, op in ((product, "a", "matmul"), (sum_, "b", "add")):
        said = said_by(compiled(device, made), big[0])
        assert f"an infinity begins in the result of {op}, made at" in said
        assert said.endswith(f":{lines_of(made)[name]}")


def test_a_reduction_in_a_fused_kernel_is_named(device: str) -> None:
    x = ngd.placeholder("x", (64, 3))
    step = ngd.compile([x], [ops.sum(x * 2, 0) * 3], device=device)
    said = said_by(step, np.full((64, 3), 1e37, np.float32))
    assert "an infinity begins in the result of sum, made at" in said


def test_the_op_that_reads_a_nan_first_is_named(device: str) -> None:
    step = compiled(device, lambda x: ops.exp(ops.sin(x) * 2))
    said = said_by(step, np.array([1, np.nan, 3], np.float32))
    assert "holds a NaN; it is read by sin, made at" in said


SAFE: Any = (
    lambda a, b: ops.tanh(a),
    lambda a, b: ops.sin(a) * 0.5,
    lambda a, b: (a + b) * 0.5,
    lambda a, b: ops.sigmoid(a * b),
    lambda a, b: ops.gelu(a) * 0.5,
    lambda a, b: ops.relu(a - b) * 0.5,
    lambda a, b: ops.softmax(a, 1),
    lambda a, b: ops.mean(a, 0, keepdims=True) + b * 0.1,
    lambda a, b: ops.matmul(a, ops.transpose(b, (1, 0))) @ a * 0.03,
    lambda a, b: ops.log_softmax(a, 0) * 0.2,
    lambda a, b: ops.max(a, 1, keepdims=True) - b,
)
"""Ops of two bounded values [4, 5], which give one."""

FAULTY: Any = (
    lambda a: ops.log(-1 - ops.abs(a)),
    lambda a: ops.sqrt(-1 - ops.abs(a)),
    lambda a: ops.log1p(-3 - ops.square(a)),
    lambda a: (ops.abs(a) + 3) ** 0.5 / (a * 0) * 0,
)
"""Ops that make a NaN of any bounded value."""


@pytest.mark.parametrize("seed", range(25))
def test_both_devices_name_the_same_op(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In random programs with one op that makes a NaN, whatever is fused around it."""
    monkeypatch.setenv("NGD_CHECK_FINITE", "1")
    draw = random.Random(seed)
    x = ngd.placeholder("x", (4, 5))
    values = [x * 0.5]
    fault = draw.randrange(2, 10)
    for number in range(12):
        a, b = draw.choice(values[-3:]), draw.choice(values)
        values.append(draw.choice(SAFE)(a, b))
        if number == fault:
            values.append(draw.choice(FAULTY)(values[-1]))
    total = ops.sum(functools.reduce(lambda a, b: a + b, values))
    given = np.random.default_rng(seed).uniform(0.1, 1, (4, 5)).astype(np.float32)
    said = [
        said_by(ngd.compile([x], [total], device=device), given)
        for device in ("CPU", "INTERPRETER")
    ]
    assert said[0] == said[1]
