# SPDX-License-Identifier: Apache-2.0
"""Tests of `Variable.view`, which returns the memory of a value without a copy."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import ngd


def counter() -> tuple[ngd.Variable, ngd.Executable]:
    v = ngd.variable("v", np.arange(3, dtype=np.float32))
    return v, ngd.compile([], v * 2, {v: v + 1})


def test_a_view_shows_each_update_and_writes_the_variable() -> None:
    v, step = counter()
    view = v.view()
    assert view.tolist() == [0, 1, 2]
    step()
    assert view.tolist() == [1, 2, 3]
    view[:] = 5
    assert v.numpy().tolist() == [5, 5, 5]
    assert step().tolist() == [10, 10, 10]
    v.assign([7, 8, 9])
    assert view.tolist() == [7, 8, 9]


def test_a_view_keeps_the_memory_alive() -> None:
    v, step = counter()
    view = v.view()
    del v, step
    gc.collect()
    np.zeros(1 << 20)
    assert view.tolist() == [0, 1, 2]


def test_a_scalar_has_a_view() -> None:
    v = ngd.variable("v", np.int64(3))
    step = ngd.compile([], v, {v: v + 1})
    view = v.view()
    step()
    assert view.shape == ()
    assert view == 4


def test_a_variable_without_a_step_has_no_view() -> None:
    v = ngd.variable("v", np.zeros(3))
    with pytest.raises(ValueError, match="'v': expected a variable of a step on the CPU device"):
        v.view()
