# SPDX-License-Identifier: Apache-2.0
"""Tests of NGD_CHECK_FINITE=1: the error names the op that computes the first NaN or infinity."""

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


def compiled(device: str, function: Any, dtype: Any = np.float32) -> Any:
    x = ngd.placeholder("x", (3,), dtype)
    return ngd.compile([x], [function(x)], device=device)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
def test_the_op_that_computes_the_first_nan_is_named(device: str, dtype: Any) -> None:
    # The two sorts are separate kernels, before and after the logarithm.
    step = compiled(device, lambda x: ops.sort(ops.log(ops.sort(x))), dtype)
    step(np.array([1, 2, 3], dtype))
    words = rf"first appears in the result of \w+, made at .*{re.escape(HERE)}:\d+"
    with pytest.raises(NotFiniteError, match=f"an infinity {words}"):
        step(np.array([1, 0, 3], dtype))
    with pytest.raises(NotFiniteError, match=f"a NaN {words}"):
        step(np.array([1, -1, 3], dtype))
    step(np.array([1, 2, 3], dtype))


def test_later_ops_that_read_a_nan_are_not_named(device: str) -> None:
    step = compiled(device, lambda x: ops.matmul(ops.sort(ops.log(x)), np.ones((3, 2), "f")))
    with pytest.raises(NotFiniteError) as raised:
        step(np.array([1, -1, 3], np.float32))
    assert "sort" not in str(raised.value)
    assert "matmul" not in str(raised.value)


def test_a_nan_in_an_input_or_a_variable_is_reported(device: str) -> None:
    step = compiled(device, lambda x: ops.sort(x))
    with pytest.raises(
        NotFiniteError, match=r"NGD_CHECK_FINITE: .* holds a NaN; it is read by \w+, made"
    ):
        step(np.array([1, np.nan, 3], np.float32))
    w = ngd.variable("w", np.array([1, np.nan], np.float32))
    reads = ngd.compile([], [ops.sort(w)], device=device)
    with pytest.raises(NotFiniteError, match="NaN"):
        reads()


def test_infinities_of_constants_are_allowed(device: str) -> None:
    """The mask contains infinities, and the masked softmax is finite."""

    def masked(x: Any) -> Any:
        return ops.softmax(ops.where(np.array([True, False, True]), x, -np.inf))

    (found,) = compiled(device, masked)(np.array([0, 5, 0], np.float32))
    np.testing.assert_allclose(found, [0.5, 0, 0.5])


def test_a_nan_inside_a_loop_is_reported(device: str) -> None:
    step = compiled(device, lambda x: ops.scan(lambda c, _: (ops.log(c), c), x, length=3)[0])
    with pytest.raises(NotFiniteError, match="first appears in the result of"):
        step(np.array([2, 2, 2], np.float32))


def test_a_written_variable_with_a_nan_is_poisoned() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NGD_CHECK_FINITE", "1")
        w = ngd.variable("w", np.ones(3, np.float32))
        step = ngd.compile([], [], {w: ops.log(w - 2)})
    with pytest.raises(NotFiniteError):
        step()
    with pytest.raises(PoisonedVariableError):
        w.numpy()


def test_without_the_setting_nothing_is_checked() -> None:
    (found,) = compiled("CPU", ops.log)(np.array([1, -1, 0], np.float32))
    np.testing.assert_array_equal(found, np.array([0, np.nan, -np.inf], np.float32))


def error_of(step: Any, *arguments: Any) -> str:
    """Return the message of the NotFiniteError that a call must raise."""
    with pytest.raises(NotFiniteError) as raised:
        step(*arguments)
    return str(raised.value)


def lines_of(function: Any) -> dict[str, int]:
    """Return the line number of each statement `name = ...` of a function."""
    lines, first = inspect.getsourcelines(function)
    return {line.split("=")[0].strip(): first + i for i, line in enumerate(lines) if "=" in line}


def test_an_op_inside_a_fused_kernel_is_named(device: str) -> None:
    """The kernel runs again op by op, to find the op that computes the first NaN or infinity."""

    def function(x: Any) -> Any:
        b = x - 1
        c = ops.log(b)
        d = c * 0
        e = ops.exp(d)
        return ops.sum(e)

    message = error_of(compiled(device, function), np.ones(3, np.float32))
    assert f"an infinity first appears in the result of log, made at {__file__}:" in message
    assert message.endswith(f":{lines_of(function)['c']}")


def test_a_kernel_that_overwrites_its_operand_can_be_repeated(device: str) -> None:
    """The variable is updated in place, so the kernel has overwritten the value that it read."""
    w = ngd.variable("w", np.full(3, 4, np.float32))
    step = ngd.compile([], [], {w: ops.exp(ops.sqrt(w - 3) * 2) - 7.5}, device=device)
    step()
    assert "a NaN first appears in the result of sqrt, made at" in error_of(step)


def test_an_expanded_op_is_named_as_the_user_called_it(device: str) -> None:
    """log_softmax over an axis in the middle, and silu, are several ops in one kernel."""
    big = np.full((3,), 3e38, np.float32)

    def function(x: Any) -> Any:
        a = ops.silu(x)
        b = a * a
        return ops.gelu(b) + 1

    message = error_of(compiled(device, function), big)
    assert "an infinity first appears in the result of multiply, made at" in message
    assert message.endswith(f":{lines_of(function)['b']}")
    variance = compiled(device, lambda x: ops.var(x) + 1)
    assert "first appears in the result of var, made at" in error_of(
        variance, big * np.array([1, -1, 1], np.float32)
    )


def test_ops_that_would_be_fused_into_a_matmul_are_distinguished(device: str) -> None:
    """A matmul, its bias and its activation are one kernel only if the check is off."""
    big = np.full((3, 3), 3e38, np.float32)

    def product(x: Any) -> Any:
        a = ops.matmul(ops.reshape(x, (1, 3)), big)
        b = a + np.ones(3, np.float32)
        return ops.relu(b)

    def sum_(x: Any) -> Any:
        a = ops.matmul(ops.reshape(x, (1, 3)), np.eye(3, dtype=np.float32))
        b = a + big[0]
        return ops.relu(b)

    for function, name, op in ((product, "a", "matmul"), (sum_, "b", "add")):
        message = error_of(compiled(device, function), big[0])
        assert f"an infinity first appears in the result of {op}, made at" in message
        assert message.endswith(f":{lines_of(function)[name]}")


def test_a_reduction_in_a_fused_kernel_is_named(device: str) -> None:
    x = ngd.placeholder("x", (64, 3))
    step = ngd.compile([x], [ops.sum(x * 2, 0) * 3], device=device)
    message = error_of(step, np.full((64, 3), 1e37, np.float32))
    assert "an infinity first appears in the result of sum, made at" in message


def test_the_op_that_reads_a_nan_first_is_named(device: str) -> None:
    step = compiled(device, lambda x: ops.exp(ops.sin(x) * 2))
    message = error_of(step, np.array([1, np.nan, 3], np.float32))
    assert "holds a NaN; it is read by sin, made at" in message


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
"""Functions of two bounded values [4, 5] that return a bounded value."""

FAULTY: Any = (
    lambda a: ops.log(-1 - ops.abs(a)),
    lambda a: ops.sqrt(-1 - ops.abs(a)),
    lambda a: ops.log1p(-3 - ops.square(a)),
    lambda a: (ops.abs(a) + 3) ** 0.5 / (a * 0) * 0,
)
"""Functions that return a NaN for any bounded value."""


@pytest.mark.parametrize("seed", range(25))
def test_both_devices_name_the_same_op(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Test random programs in which one op computes a NaN, with random fusions around it."""
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
    message = [
        error_of(ngd.compile([x], [total], device=device), given)
        for device in ("CPU", "INTERPRETER")
    ]
    assert message[0] == message[1]
