# SPDX-License-Identifier: Apache-2.0
"""Tests of models that a naive capture gets wrong: steps equal eager, or an error is raised."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from ngd.errors import CompileError  # noqa: E402
from ngd.torch.compiled.step import compile_step  # noqa: E402
from tests.bridges.torch.trap_models import (  # noqa: E402
    EQUAL,
    HIDDEN_WRITES,
    Model,
    Tripled,
    X,
    autocast,
    counted,
    doubled,
    refused_models,
    write_to_statistics,
)


def step_of(model: Any) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    return compile_step(model, lambda m, x: m(x), optimizer)


def expect_equal_steps(model: Any, steps: int = 2) -> None:
    """Compare losses, parameters and buffers after steps with eager."""
    eager = copy.deepcopy(model)
    optimizer = torch.optim.SGD(eager.parameters(), lr=1.0)
    step = step_of(model)
    for number in range(steps):
        optimizer.zero_grad()
        expected = eager(X + number)
        expected.backward()
        optimizer.step()
        loss = step(X + number)
        np.testing.assert_allclose(loss.item(), expected.item(), 1e-12, 1e-12)
    for key, value in eager.state_dict().items():
        np.testing.assert_allclose(model.state_dict()[key], value, 1e-11, 1e-11, err_msg=key)


@pytest.mark.parametrize("name", EQUAL)
def test_a_step_equals_eager(name: str) -> None:
    expect_equal_steps(Model(EQUAL[name]))


def test_a_buffer_counts() -> None:
    expect_equal_steps(Model(counted, count=torch.zeros((), dtype=torch.int64)), steps=3)


def test_autocast_is_bfloat16() -> None:
    model = Model(autocast)
    eager = autocast(model, X)
    assert step_of(model)(X).item() == pytest.approx(eager.item(), rel=2e-2)


def test_tied_parameters_are_one_variable() -> None:
    model = Model(lambda m, x: (x @ m.w @ m.tied.T * m.v).sum())
    model.tied = model.w
    expect_equal_steps(model)
    assert model.tied.data_ptr() == model.w.data_ptr()


def test_frozen_parameters_do_not_change() -> None:
    model = Model(lambda m, x: (x @ m.w * m.v).sum())
    model.w.requires_grad_(False)
    before = model.w.detach().clone()
    expect_equal_steps(model)
    assert torch.equal(model.w, before)


def test_a_parameter_is_frozen_between_steps() -> None:
    model = Model(lambda m, x: (x @ m.w * m.v).sum())
    step = step_of(model)
    step(X)
    model.w.requires_grad_(False)
    before = model.w.detach().clone()
    step(X)
    assert torch.equal(model.w, before)


def test_a_forward_hook_is_part_of_the_step() -> None:
    model = Model(lambda m, x: (x @ m.w).sum())
    model.register_forward_hook(lambda module, inputs, output: output * 2)
    expect_equal_steps(model)


@pytest.mark.parametrize("name", ["unused-parameter", "detach", "no_grad"])
def test_a_parameter_without_gradient_does_not_decay(name: str) -> None:
    model = Model(EQUAL[name])
    before = model.w.detach().clone()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
    compile_step(model, lambda m, x: m(x), optimizer)(X)
    assert torch.equal(model.w, before)


@pytest.mark.parametrize("name", refused_models())
def test_a_gradient_in_python_is_refused(name: str) -> None:
    model, message = refused_models()[name]
    with pytest.raises(CompileError, match=f"expected a model whose gradient .*; got {message}"):
        step_of(model)(X)
    y = torch.ones(2, requires_grad=True)
    y.register_hook(doubled)  # PyTorch is unchanged
    Tripled.apply(y).sum().backward()
    assert y.grad.tolist() == [6, 6]


@pytest.mark.parametrize("name", HIDDEN_WRITES)
def test_a_write_that_autograd_does_not_see_is_refused(name: str) -> None:
    message = r"a write without gradient to a tensor that requires one \(called at .*\.py:\d+"
    if name == "write_to_data":  # torch.export raises an error for it
        message = r"expected a model that torch\.export can capture"
    with pytest.raises(CompileError, match=message):
        step_of(Model(HIDDEN_WRITES[name]))(X)


def test_statistics_may_be_written_without_gradient() -> None:
    expect_equal_steps(Model(write_to_statistics, mean=torch.ones(4, dtype=torch.float64)))


def branch_on_value(m: Any, x: Any) -> Any:
    y = x @ m.w
    return y.sum() if y.sum() > 0 else y.mean()


def test_a_branch_on_a_value_is_refused_with_its_line() -> None:
    message = r"got GuardOnDataDependent.*\(at .*test_torch_traps\.py:\d+\).*torch\.compile"
    with pytest.raises(CompileError, match=message):
        step_of(Model(branch_on_value))(X)
