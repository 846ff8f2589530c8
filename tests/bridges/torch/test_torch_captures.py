# SPDX-License-Identifier: Apache-2.0
"""Graphs that become functional without PyTorch's decompositions, and those that need them."""

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
    """Layers and buffers for a function of them."""

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


def activated(m: Any, x: Any) -> Any:
    return F.relu(m.norm(m.linear(x)), inplace=True)


def residual(m: Any, x: Any) -> Any:
    y = m.norm(m.linear(x))
    z = m.norm2(m.other(y))
    z += y
    return F.silu(z, inplace=True).mul_(0.5)


def normalized_twice(m: Any, x: Any) -> Any:
    return m.norm(m.other(m.norm(m.linear(x))))


def counted(m: Any, x: Any) -> Any:
    m.count.add_(1)
    before = m.total * 2
    m.total.mul_(0.5).add_(m.table)
    return m.linear(x) * m.total + before + m.count * 0.5


def returned_before_the_write(m: Any, x: Any) -> Any:
    y = m.linear(x)
    z = y
    y.mul_(2)
    return y + z


def convolved(m: Any, x: Any) -> Any:
    return F.leaky_relu_(m.norm(m.conv(x.unsqueeze(1))).add_(1.0), 0.2)


def masked(m: Any, x: Any) -> Any:
    return (torch.tanh_(m.linear(x)) * 2).masked_fill_(m.table > 3, 0.25)


SIMPLE = [
    activated,
    residual,
    normalized_twice,
    counted,
    returned_before_the_write,
    convolved,
    masked,
]


def of_a_view(m: Any, x: Any) -> Any:
    y = m.linear(x)
    y[:, 0] = 0.5
    y.t().mul_(2)
    return y


def seen_by_a_view(m: Any, x: Any) -> Any:
    y = m.linear(x)
    first = y[:, 0]
    y.mul_(3)
    return y.sum(1) * first


def of_another_dtype(m: Any, x: Any) -> Any:
    y = m.linear(x)
    y.add_(torch.arange(6, dtype=torch.float32))
    return y


def without_gradient(m: Any, x: Any) -> Any:
    with torch.no_grad():
        scale = m.linear(x).relu_().mean()
    return m.other(m.linear(x)) * scale


def of_a_constant(m: Any, x: Any) -> Any:
    return m.linear(x) * torch.ones(6, dtype=x.dtype).add_(1)


def drawn(m: Any, x: Any) -> Any:
    return F.dropout(m.linear(x), 0.0).add_(1)


LEFT_TO_PYTORCH = [
    of_a_view,
    seen_by_a_view,
    of_another_dtype,
    without_gradient,
    drawn,
    of_a_constant,
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
        found = step(x.clone()).item()
        theirs.zero_grad()
        loss = eager(x).square().mean()
        loss.backward()
        theirs.step()
        assert found == pytest.approx(loss.item(), rel=1e-12)
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


@pytest.mark.parametrize("function", LEFT_TO_PYTORCH)
def test_other_graphs_are_left_to_pytorch(
    function: Callable[[Any, Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, real = [], ExportedProgram.run_decompositions
    monkeypatch.setattr(
        ExportedProgram, "run_decompositions", lambda *given: calls.append(given) or real(*given)
    )
    train(function)
    assert calls
