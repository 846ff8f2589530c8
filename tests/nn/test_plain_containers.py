# SPDX-License-Identifier: Apache-2.0
"""Tests that modules in plain lists and dicts, and names that are set too late, raise errors."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ngd
from ngd import nn


def two_layers() -> list[nn.Linear]:
    return [nn.Linear(4, 4), nn.Linear(4, 3)]


PLAIN: dict[str, tuple[Callable[[], Any], str]] = {
    "list": (
        two_layers,
        r"Net\.layers: expected modules in an nn\.ModuleList; got a plain list .* at la",
    ),
    "tuple": (
        lambda: tuple(two_layers()),
        r"ModuleList; got a plain tuple with Linear\(4, 4, bias=True",
    ),
    "dict": (lambda: {"a": nn.ReLU()}, r"nn\.ModuleDict; got a plain dict .* at layers\['a'\]"),
    "ordered": (lambda: OrderedDict(a=nn.ReLU()), r"nn\.ModuleDict; got a plain OrderedDict"),
    "set": (lambda: {nn.ReLU()}, r"nn\.ModuleList; got a plain set"),
    "deque": (lambda: deque(two_layers()), r"nn\.ModuleList; got a plain deque"),
    "nested": (
        lambda: {"a": [1, ("b", two_layers())]},
        r"at layers\['a'\]\[1\]\[1\]\[0\], which .* do not",
    ),
    "later": (lambda: [1, 2, nn.ReLU()], r"ReLU\(\) at layers\[2\]"),
    "declaration": (lambda: [nn.Parameter(3)], r"got a plain list with Parameter\(\(3,\), float32"),
    "variable": (lambda: [ngd.variable("v", 1.0)], r"got a plain list with <ngd\.Node variable 'v"),
}


class Net(nn.Module):
    def __init__(self, layers: Any = None) -> None:
        self.first = nn.Linear(4, 4)
        self.layers = layers

    def forward(self, x: ngd.Node) -> ngd.Node:
        y: ngd.Node = self.first(x)
        return y


@pytest.mark.parametrize("case", PLAIN)
def test_a_plain_container_of_modules_is_rejected(case: str) -> None:
    make, says = PLAIN[case]
    with pytest.raises(TypeError, match=says):
        Net(make())
    net = Net()
    with pytest.raises(TypeError, match=says):
        net.layers = make()
    assert list(net.parameters()) == ["first.weight", "first.bias"]


USES: dict[str, Callable[[nn.Module], Any]] = {
    "parameters": lambda net: net.parameters(),
    "variables": lambda net: net.variables(),
    "buffers": lambda net: net.buffers(),
    "state_dict": lambda net: net.state_dict(),
    "load_state_dict": lambda net: net.load_state_dict({}, strict=False),
    "astype": lambda net: net.astype("float64"),
    "initialize": lambda net: net.initialize(1),
    "call": lambda net: net(np.ones((1, 4), np.float32)),
}


@pytest.mark.parametrize("use", USES)
def test_a_container_that_is_filled_later_is_rejected_at_the_first_use(use: str) -> None:
    layers: list[Any] = []
    net = Net({"a": layers})
    layers += two_layers()
    with pytest.raises(TypeError, match=r"ModuleDict; got a plain dict with .* layers\['a'\]\[0\]"):
        USES[use](net)
    outer = nn.Sequential(net)
    with pytest.raises(TypeError, match=r"^Net\.layers: "):
        USES[use](outer)


def test_a_container_of_modules_that_the_model_has_is_allowed() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
            self.order = [self.b, self.a]
            self.own = {"me": self}
            self.read = [self.a.weight]
            self.numbers = [[1, 2], {"x": (3, None)}]

        def forward(self, x: ngd.Node) -> ngd.Node:
            for layer in self.order:
                x = layer(x)
            return x

    net = nn.Sequential(Tied())
    assert len(net.parameters()) == 4
    net(np.ones((1, 4), np.float32))
    net[0].order.append(net[0].order)  # a list that contains itself
    assert len(net.parameters()) == 4


def test_a_container_of_modules_of_another_model_is_rejected_at_the_first_use() -> None:
    other = nn.Sequential(nn.Linear(4, 4))
    net = Net([other[0]])  # `other` may still become a part of this model
    with pytest.raises(TypeError, match=r"^Net\.layers: expected modules in an nn\.ModuleList"):
        net.parameters()
    net.other = other
    assert len(net.parameters()) == 4


def test_module_lists_and_dicts_find_the_modules() -> None:
    net = Net(nn.ModuleDict({"a": nn.ModuleList(two_layers())}))
    assert list(net.parameters())[2:] == [
        f"layers.a.{i}.{name}" for i in range(2) for name in ("weight", "bias")
    ]
    blocks = nn.ModuleDict()
    blocks.update({"x": nn.ReLU(), "items": nn.Linear(2, 2)})
    assert list(blocks) == list(blocks.keys()) == ["x", "items"]
    assert [*blocks.values()] == [blocks["x"], blocks["items"]]
    assert dict(blocks.items()) == {"x": blocks["x"], "items": blocks["items"]}
    assert ("x" in blocks, "y" in blocks) == (True, False)
    layers = nn.ModuleList()
    layers.extend(two_layers())
    assert len(layers) == 2
    with pytest.raises(TypeError, match="ModuleList: expected modules; got 3"):
        layers.extend([3])  # type: ignore[list-item]


@pytest.mark.parametrize("use", ["parameters", "call", "state_dict", "initialize"])
def test_a_name_after_the_first_use_is_rejected(use: str) -> None:
    net = Net()
    net.name = "early"
    net.name = "critic"
    USES[use](net)
    with pytest.raises(RuntimeError, match=r"^Net\.name: expected a name before .*critic\.first"):
        net.name = "late"
    net.name = "critic"  # the same name is allowed
    assert net.first.weight.name == "critic.first.weight"


def test_a_model_that_shares_a_variable_can_be_named() -> None:
    first, second = Net(), Net()
    first.name = "one"
    second.first.weight = first.first.parameter("weight")
    first.parameters()
    second.name = "two"
    assert [v.name for v in second.parameters().values()] == ["one.first.weight", "two.first.bias"]
