# SPDX-License-Identifier: Apache-2.0
"""Tests of `ngd.call_host`, which calls NumPy functions inside a step."""

from __future__ import annotations

import gc
import math
from typing import Any

import numpy as np
import pytest

import ngd
from ngd import ops
from ngd.errors import GradientError

F64 = "float64"


@pytest.fixture(params=("CPU", "INTERPRETER"))
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_numpy_function_runs_in_a_step(device: str) -> None:
    x = ngd.placeholder("x", (3,), F64)
    gamma = ngd.call_host(np.vectorize(math.gamma), x, x * 2)
    step = ngd.compile(x, gamma + 1, device=device)
    np.testing.assert_allclose(step(np.array([0.5, 2.0, 2.5])), [2.0, 7.0, 25.0])


def test_results_may_have_a_structure_and_several_dtypes(device: str) -> None:
    x, n = ngd.placeholder("x", (4,), F64), ngd.placeholder("n", (), "int64")

    def parts(values: Any, count: Any) -> Any:
        return values[:2] * count, np.array([True, False]), np.full((0, 3), 1.0)

    types = {"a": ((2,), F64), "b": [((2,), "bool")], "c": ((0, 3), "float32")}
    made = ngd.call_host(parts, types, x, n)
    found = ngd.compile([x, n], made, device=device)(np.arange(4.0), 3)
    np.testing.assert_array_equal(found["a"], [0, 3])
    np.testing.assert_array_equal(found["b"][0], [True, False])
    assert (found["c"].shape, found["c"].dtype) == ((0, 3), np.float32)


def test_a_result_may_be_unread(device: str) -> None:
    x = ngd.placeholder("x", (2,), F64)
    _, second = ngd.call_host(lambda v: (v, v * 3), [x, x], x)
    np.testing.assert_array_equal(ngd.compile(x, second, device=device)(np.ones(2)), 3)


def test_the_gradient_function_of_the_caller_is_used(device: str) -> None:
    x, y = ngd.placeholder("x", (3,), F64), ngd.placeholder("y", (3,), F64)
    product = ngd.call_host(np.multiply, x, x, y, gradient=lambda a, b, dy: (dy * b, dy * a))
    gradients = ngd.grad(ops.sum(product * product), [x, y])
    a, b = np.array([1.0, 2.0, 3.0]), np.array([4.0, 5.0, 6.0])
    found = ngd.compile([x, y], gradients, device=device)(a, b)
    np.testing.assert_allclose(found, [2 * a * b * b, 2 * a * b * a])


def test_a_call_without_a_gradient_function_raises_gradient_error() -> None:
    x = ngd.placeholder("x", (3,), F64)
    with pytest.raises(GradientError, match=r"call_host: expected a gradient of .*; got none"):
        ngd.grad(ops.sum(ngd.call_host(np.sin, x, x)), x)


def test_an_exception_in_the_function_ends_the_step_without_updates(device: str) -> None:
    x, w = ngd.placeholder("x", (2,), F64), ngd.variable("w", np.zeros(2))

    def fails_for_negatives(values: Any) -> Any:
        if values.min() < 0:
            raise ArithmeticError("a negative value")
        return values

    value = ngd.call_host(fails_for_negatives, x, x)
    step = ngd.compile(x, value, {w: w + value}, device=device)
    step(np.ones(2))
    with pytest.raises(ArithmeticError, match="a negative value"):
        step(-np.ones(2))
    np.testing.assert_array_equal(w.numpy(), 1)
    np.testing.assert_array_equal(step(np.full(2, 2.0)), 2)
    np.testing.assert_array_equal(w.numpy(), 3)


def test_the_function_gets_read_only_arrays(device: str) -> None:
    x = ngd.placeholder("x", (2,), F64)

    def writes(values: Any) -> Any:
        values[0] = 5.0
        return values

    with pytest.raises(ValueError, match="read-only"):
        ngd.compile(x, ngd.call_host(writes, x, x), device=device)(np.ones(2))


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        (np.ones(3), r"to return float64\[2\]; got float64\[3\] as result 0"),
        (np.ones(2, complex), r"got complex128\[2\] as result 0 .*Convert it"),
        ("text", r"to return float64\[2\]; got "),
    ],
)
def test_a_result_of_another_type_raises_type_error(returned: Any, says: str, device: str) -> None:
    x = ngd.placeholder("x", (2,), F64)
    step = ngd.compile(x, ngd.call_host(lambda v: returned, x, x), device=device)
    with pytest.raises(TypeError, match=says):
        step(np.ones(2))


def test_bad_functions_and_types_are_rejected() -> None:
    x = ngd.placeholder("x", (2,), F64)
    with pytest.raises(TypeError, match="call_host: expected a function first; got 3"):
        ngd.call_host(3, x, x)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"expected types as \(shape, dtype\) or nodes; got 'f'"):
        ngd.call_host(np.sin, "f", x)
    with pytest.raises(TypeError, match="expected the types of the results"):
        ngd.call_host(np.sin, [], x)


def test_bad_arguments_of_print_are_rejected() -> None:
    x = ngd.placeholder("x", (2,), F64)
    with pytest.raises(TypeError, match="print: name: expected a text; got 3"):
        ngd.print(x, 3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="print: first_only: expected True or False; got 1"):
        ngd.print(x, first_only=1)  # type: ignore[arg-type]
    with pytest.raises((TypeError, ValueError), match="print: rank"):
        ngd.print(x, rank="0")  # type: ignore[arg-type]


def test_the_step_keeps_the_function_alive() -> None:
    x = ngd.placeholder("x", (2,), F64)
    step = ngd.compile(x, ngd.call_host(lambda v: v + 7, x, x))
    gc.collect()
    np.testing.assert_array_equal(step(np.zeros(2)), 7)


def test_calls_work_in_loops_and_traced_functions(device: str) -> None:
    def body(carry: Any, row: Any) -> Any:
        total = ngd.call_host(np.add, carry, carry, row)
        return total, total

    @ngd.function(device=device)
    def sums(x: Any) -> Any:
        return ops.scan(body, ops.zeros((2,), F64), x)[1]

    x = np.arange(6.0).reshape(3, 2)
    np.testing.assert_allclose(sums(x), np.cumsum(x, axis=0))


def test_print_shows_the_value_in_each_call(
    device: str, capsys: pytest.CaptureFixture[str]
) -> None:
    x = ngd.placeholder("x", (2,), F64)
    doubled = x * 2
    assert ngd.print(doubled, "twice") is not doubled
    ngd.print(x, "first", first_only=True)
    ngd.print(x, "other rank", rank=1)
    step = ngd.compile(x, doubled + 1, device=device)
    np.testing.assert_array_equal(step(np.array([1.0, 2.0])), [3, 5])
    out = np.empty(2)
    assert step(np.array([3.0, 4.0]), out=out) is out
    np.testing.assert_array_equal(out, [7, 9])
    lines = capsys.readouterr().out.splitlines()
    assert sorted(lines) == ["first = [1. 2.]", "twice = [2. 4.]", "twice = [6. 8.]"]


def test_print_has_a_gradient_and_works_in_loops(
    device: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def body(carry: Any, row: Any) -> Any:
        carry = ngd.print(carry + row, "carry")
        return carry, carry

    @ngd.function(device=device)
    def total(x: Any) -> Any:
        shown = ngd.print(x, "x")
        last, _ = ops.scan(body, ops.zeros((), F64), shown * shown)
        return last, ngd.grad(last, x)

    last, gradient = total(np.array([1.0, 2.0]))
    assert last == 5.0
    np.testing.assert_allclose(gradient, [2, 4])
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if "carry" in line] == ["carry = 1.", "carry = 5."]
    assert "x = [1. 2.]" in lines
