# SPDX-License-Identifier: Apache-2.0
"""Tests that errors, call sites and profiles name the layer of a node."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

import ngd
from ngd import errors, nn, ops
from ngd.graph.node import Node


def stack(*widths: int) -> nn.Sequential:
    return nn.Sequential(*[nn.Sequential(nn.Linear(a, b), nn.ReLU()) for a, b in pairwise(widths)])


class Net(nn.Module):
    def __init__(self) -> None:
        self.enc = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(17, 8)])

    def forward(self, x: Node) -> Node:
        for layer in self.enc:
            x = layer(x)
        return x


def test_a_shape_error_names_the_layer() -> None:
    x, layer = ngd.placeholder("x", (2, 8)), "enc.2: Linear(17, 8, bias=True)"
    with pytest.raises(
        errors.ShapeError, match=r"^nn\.Linear: expected .*17 .*; got float32\[2, 8\] "
    ) as raised:
        Net()(x)
    assert str(raised.value).endswith(f"(in {layer})")
    assert str(raised.value).count(layer) == 1  # only the innermost layer
    assert raised.value.layer == layer
    named = Net()
    named.name = "critic"
    with pytest.raises(errors.ShapeError, match=r"\(in critic\.enc\.2: Linear\(17, 8, bias=True\)"):
        named(x)
    with pytest.raises(errors.ShapeError, match=r"\(in Linear\(3, 4, bias=False\)\)$"):
        nn.Linear(3, 4, bias=False)(x)
    with pytest.raises(errors.ShapeError) as raised:
        ops.matmul(x, x)
    assert (raised.value.layer, "(in " in str(raised.value)) == ("", False)


def test_call_sites_name_the_layer() -> None:
    x = ngd.placeholder("x", (2, 8))
    y = stack(8, 4)(x)
    assert y.site.endswith(" in 0.1: ReLU()")
    assert y.inputs[0].site.endswith(" in 0.0: Linear(8, 4, bias=True)")
    assert " in " not in (y + 1).site.removeprefix(__file__)
    slope = ngd.grad(ops.sum(y), x)  # a gradient has the layer of its op
    assert " in 0.0: Linear" in slope.site
    with errors.in_layer("outer"), errors.in_layer("mine: Filter(3)"):
        assert ops.exp(x).site.endswith(" in mine: Filter(3)")


@pytest.mark.parametrize("device", ["CPU", "INTERPRETER"])
def test_a_not_finite_error_names_the_layer(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NGD_CHECK_FINITE", "1")
    net = stack(8, 8, 8, 8, 8)
    state = net.state_dict()
    state["2.0.weight"] = np.full((8, 8), 3e38, np.float32)
    net.load_state_dict(state)
    x = ngd.placeholder("x", (4, 8))
    step = ngd.compile([x], [net(x)], device=device)
    with pytest.raises(errors.NotFiniteError, match=r" in 2\.0: Linear\(8, 8, bias=True\)"):
        step(np.full((4, 8), 1e4, np.float32))


def test_rows_of_a_profile_name_the_layer() -> None:
    x = ngd.placeholder("x", (4, 8))
    step = ngd.compile([x], [stack(8, 8, 8, 8)(x)])
    with ngd.profile():
        step(np.ones((4, 8), np.float32))
    report = step.report()
    assert [row.site.partition(" in ")[2] for row in report.rows] == [
        f"{i}.0: Linear(8, 8, bias=True)" for i in range(3)
    ]
    line = f"{__file__.rpartition('/')[2]}:"
    assert all(f"{line}" in row and "/" not in row for row in str(report).splitlines()[-3:])


def test_repr_of_a_layer_creates_no_variable() -> None:
    layer = nn.Linear(2, 2)
    assert repr(layer) == layer.title == "Linear(2, 2, bias=True)"
    layer.name = "late"  # raises if a variable exists
    assert layer.weight.name == "late.weight"
