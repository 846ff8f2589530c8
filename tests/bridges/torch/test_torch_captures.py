# SPDX-License-Identifier: Apache-2.0
"""Tests of graphs that need no decompositions of PyTorch, and of graphs that need them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn  # noqa: E402
from torch.export import ExportedProgram  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from ngd.torch import compile_step  # noqa: E402


class Model(nn.Module):
    """A model that calls a function of itself. It has layers and buffers for the function."""

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.function = function
        self.linear, self.other = nn.Linear(4, 6), nn.Linear(6, 6)
        self.norm = nn.BatchNorm1d(6)
        self.conv, self.norm2 = nn.Conv1d(1, 6, 3, padding=1), nn.BatchNorm1d(6, affine=False)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("total", torch.zeros(6))
        self.register_buffer("table", torch.arange(6.0), persistent=False)

    def forward(self, x: Any) -> Any:
        """Return the function of the model and x."""
        return self.function(self, x)


def activate_in_place(m: Any, x: Any) -> Any:
    return F.relu(m.norm(m.linear(x)), inplace=True)


def add_residual(m: Any, x: Any) -> Any:
    y = m.norm(m.linear(x))
    z = m.norm2(m.other(y))
    z += y
    return F.silu(z, inplace=True).mul_(0.5)


def normalize_twice(m: Any, x: Any) -> Any:
    return m.norm(m.other(m.norm(m.linear(x))))


def count_in_buffers(m: Any, x: Any) -> Any:
    m.count.add_(1)
    before = m.total * 2
    m.total.mul_(0.5).add_(m.table)
    return m.linear(x) * m.total + before + m.count * 0.5


def read_before_write(m: Any, x: Any) -> Any:
    y = m.linear(x)
    z = y
    y.mul_(2)
    return y + z


def convolve(m: Any, x: Any) -> Any:
    return F.leaky_relu_(m.norm(m.conv(x.unsqueeze(1))).add_(1.0), 0.2)


def fill_by_mask(m: Any, x: Any) -> Any:
    return (torch.tanh_(m.linear(x)) * 2).masked_fill_(m.table > 3, 0.25)


SIMPLE = [
    activate_in_place,
    add_residual,
    normalize_twice,
    count_in_buffers,
    read_before_write,
    convolve,
    fill_by_mask,
]


def write_to_view(m: Any, x: Any) -> Any:
    y = m.linear(x)
    y[:, 0] = 0.5
    y.t().mul_(2)
    return y


def write_under_view(m: Any, x: Any) -> Any:
    y = m.linear(x)
    first = y[:, 0]
    y.mul_(3)
    return y.sum(1) * first


def add_other_dtype(m: Any, x: Any) -> Any:
    y = m.linear(x)
    y.add_(torch.arange(6, dtype=torch.float32))
    return y


def call_without_gradient(m: Any, x: Any) -> Any:
    with torch.no_grad():
        scale = m.linear(x).relu_().mean()
    return m.other(m.linear(x)) * scale


def add_to_constant(m: Any, x: Any) -> Any:
    return m.linear(x) * torch.ones(6, dtype=x.dtype).add_(1)


def drop(m: Any, x: Any) -> Any:
    return F.dropout(m.linear(x), 0.0).add_(1)


NEEDS_DECOMPOSITIONS = [
    write_to_view,
    write_under_view,
    add_other_dtype,
    call_without_gradient,
    drop,
    add_to_constant,
]


def train(function: Callable[[Any, Any], Any], steps: int = 3) -> None:
    """Train a model by ngd and by eager PyTorch, and compare losses and states."""
    torch.manual_seed(3)
    model = Model(function).double()
    eager = copy.deepcopy(model)
    mine = torch.optim.SGD(model.parameters(), lr=0.1)
    theirs = torch.optim.SGD(eager.parameters(), lr=0.1)
    step = compile_step(model, lambda m, x: m(x).square().mean(), mine)
    for _ in range(steps):
        x = torch.randn(5, 4, dtype=torch.float64)
        result = step(x.clone()).item()
        theirs.zero_grad()
        loss = eager(x).square().mean()
        loss.backward()
        theirs.step()
        assert result == pytest.approx(loss.item(), rel=1e-12)
    for (name, value), expected in zip(model.named_buffers(), eager.buffers(), strict=True):
        np.testing.assert_allclose(value, expected, 1e-12, 1e-13, err_msg=name)
    for value, expected in zip(model.parameters(), eager.parameters(), strict=True):
        np.testing.assert_allclose(value.detach(), expected.detach(), 1e-10, 1e-12)


@pytest.mark.parametrize("function", SIMPLE)
def test_a_simple_graph_needs_no_decompositions(
    function: Callable[[Any, Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("expected no decompositions")

    monkeypatch.setattr(ExportedProgram, "run_decompositions", refuse)
    train(function)


@pytest.mark.parametrize("function", NEEDS_DECOMPOSITIONS)
def test_other_graphs_use_decompositions(
    function: Callable[[Any, Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, real = [], ExportedProgram.run_decompositions
    monkeypatch.setattr(
        ExportedProgram, "run_decompositions", lambda *given: calls.append(given) or real(*given)
    )
    train(function)
    assert calls
