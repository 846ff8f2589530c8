# SPDX-License-Identifier: Apache-2.0
"""NGD_CHECK_FINITE=1: a step says where a value begins that is no finite number."""

from __future__ import annotations

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
