# SPDX-License-Identifier: Apache-2.0
"""Tests of nested structures of nodes and arrays, in all calls that take or return them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest

import ngd
from ngd import ops, trees

DEVICES = ("CPU", "INTERPRETER")


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@dataclass
class Batch:
    image: Any
    label: Any


class Pair(NamedTuple):
    first: Any
    second: Any


TREE = {"a": [1, (2, 3)], "b": Batch(Pair(4, 5), OrderedDict(z=6)), "c": {}, "d": None}
PATHS = "['a'][0] ['a'][1][0] ['a'][1][1] ['b'].image.first ['b'].image.second ['b'].label['z']"


def test_trees_are_flattened_and_rebuilt() -> None:
    leaves, structure = trees.flatten(TREE)
    assert leaves == [1, 2, 3, 4, 5, 6, None]
    assert structure.count == 7
    assert structure.paths("t") == [f"t{path}" for path in [*PATHS.split(), "['d']"]]
    assert structure.rebuild(leaves) == TREE
    assert trees.flatten(3) == ([3], trees.Structure())
    assert trees.map(lambda a, b: a + b, {"x": [1], "y": 2}, {"y": 20, "x": (10,)}) == {
        "x": [11],
        "y": 22,
    }


@pytest.mark.parametrize(
    ("tree", "says"),
    [
        ({"x": [1]}, r"t: expected a dict of x, y; got a dict of x\."),
        ({"x": 1, "y": 2}, r"t\['x'\]: expected a list of 1 part; got 1"),
        ({"x": [1, 2], "y": 2}, r"t\['x'\]: expected a list of 1 part; got a list of 2 parts"),
        ([1, 2], r"t: expected a dict of x, y; got a list of 2"),
        ({"x": Pair(1, 2), "y": 2}, r"t\['x'\]: .* got a Pair of first, second"),
    ],
)
def test_a_different_structure_raises_with_its_path(tree: Any, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        trees.flatten({"x": [1], "y": 2})[1].match(tree, "t")


def test_inputs_and_outputs_can_be_nested(device: str) -> None:
    x, y, z = (ngd.placeholder(name, (2,), "float64") for name in "xyz")
    step = ngd.compile(
        [{"left": x, "right": [y]}, z],
        {"sum": x + y, "parts": Batch((x, z), [y * z])},
        device=device,
    )
    a, b, c = np.array([1.0, 2.0]), np.array([3.0, 4.0]), np.array([5.0, 6.0])
    for result in (step({"right": [b], "left": a}, c), step({"left": a, "right": (b,)}, z=c)):
        np.testing.assert_array_equal(result["sum"], a + b)
        assert isinstance(result["parts"], Batch)
        assert isinstance(result["parts"].image, tuple)
        np.testing.assert_array_equal(result["parts"].image[1], c)
        np.testing.assert_array_equal(result["parts"].label[0], b * c)
    out = {"sum": np.empty(2), "parts": Batch([np.empty(2), np.empty(2)], [np.empty(2)])}
    assert step({"left": a, "right": [b]}, c, out=out)["sum"] is out["sum"]
    np.testing.assert_array_equal(out["parts"].label[0], b * c)


def test_a_dict_of_inputs_names_the_arguments(device: str) -> None:
    x, y = ngd.placeholder("x", (2,)), ngd.placeholder("y", (2,))
    step = ngd.compile({"image": x, "label": {"y": y}}, [x - y], device=device)
    a, b = np.float32([5, 6]), np.float32([1, 2])
    batch = {"label": {"y": b}, "image": a}
    for result in (step(**batch), step(a, {"y": b}), step(a, label={"y": b})):
        assert isinstance(result, list)
        np.testing.assert_array_equal(result[0], [4, 4])
    by_dataclass = ngd.compile(Batch(x, y), (x - y, x), device=device)
    assert isinstance(by_dataclass(image=a, label=b), tuple)


def test_calls_that_do_not_fit_raise() -> None:
    x, y = ngd.placeholder("x", (2,)), ngd.placeholder("y", (2,))
    step = ngd.compile([{"a": x}, y], {"s": x + y})
    zero = np.zeros(2, np.float32)
    calls: list[tuple[Callable[[], Any], str]] = [
        (lambda: step({"b": zero}, zero), r"input \[0\]: expected a dict of a; got a dict of b"),
        (lambda: step(zero, zero), r"input \[0\]: expected a dict of a; got array"),
        (lambda: step({"a": zero}), r"expected 2 arrays \(\[0\], y\); got 1"),
        (lambda: step({"a": zero}, zero, x=zero), r"got 'x'"),
        (lambda: step({"a": zero}, zero, out=[zero]), r"out: expected a dict of s; got a list of"),
        (lambda: ngd.compile(3, [x]), "inputs: expected a node, or a list, tuple or dict of nodes"),
        (lambda: ngd.compile([{"a": x + 1}], [x]), r"expected placeholders.*inputs\[0\]\['a'\]"),
        (lambda: ngd.compile([x], {"r": [x, 3]}), r"expected nodes; got 3 at outputs\['r'\]\[1\]"),
        (lambda: ngd.compile([x], [x], updates=([y], [x])), r"updates: expected \{variable: node"),
    ]
    for call, says in calls:
        with pytest.raises(TypeError, match=says):
            call()


def test_the_same_nodes_are_compiled_once_for_all_structures() -> None:
    x = ngd.placeholder("x", (2,))
    y = x * 2
    flat = ngd.compile([x], [y])
    nested = ngd.compile({"x": x}, {"y": y})
    assert nested.step is flat  # type: ignore[attr-defined]
    assert (nested.graph, nested.memory(), str(nested)) == (flat.graph, flat.memory(), str(flat))
    assert ngd.compile((x,), [y]) is flat


def test_gradients_have_the_structure_of_their_variables() -> None:
    w, b = ngd.variable("w", [2.0, 3.0]), ngd.variable("b", [1.0])
    loss = ops.sum(ops.square(w) * b)
    gradients = ngd.grad(loss, {"layer": {"w": w}, "rest": (b, [w])})
    step = ngd.compile([], gradients)()
    np.testing.assert_array_equal(step["layer"]["w"], [4, 6])
    np.testing.assert_array_equal(step["rest"][0], [13])
    np.testing.assert_array_equal(step["rest"][1][0], [4, 6])


def test_updates_can_be_dicts_or_pairs_of_structures(device: str) -> None:
    a, b, c = (ngd.variable(name, np.zeros(1)) for name in "abc")
    pair = ({"a": a, "b": [b]}, {"b": [b + 2], "a": a + 1})
    ngd.compile([], [], updates=[{c: c + 3}, pair], device=device)()
    assert [v.numpy()[0] for v in (a, b, c)] == [1, 2, 3]
    ngd.compile([], [], updates=pair, device=device)()
    assert [v.numpy()[0] for v in (a, b, c)] == [2, 4, 3]
    with pytest.raises(ValueError, match=r"next value of variable 'a'; got two.*trees.py:\d+"):
        ngd.compile([], [], updates=[{a: a + 1}, {a: a + 2}])
    with pytest.raises(TypeError, match=r"compile: updates\['b'\]: expected a list of 1"):
        ngd.compile([], [], updates=({"b": [b]}, {"b": b}))
