# SPDX-License-Identifier: Apache-2.0
"""Tests of `Executable.explain`: the instruction of a node, and the other ops of its kernel."""

from __future__ import annotations

import re
import weakref
from typing import Any

import numpy as np
import pytest

import ngd
from ngd import nn, ops

X = np.ones((4, 8), np.float32)


def line_of(text: str) -> str:
    """Return a pattern for a line of this file, followed by a text."""
    return rf"{re.escape(__file__)}:\d+{text}"


def number_in(text: str) -> int:
    found = re.search(r"^instruction (\d+):", text, re.MULTILINE)
    assert found, text
    return int(found[1])


def test_an_op_with_its_own_kernel_is_explained_by_its_instruction() -> None:
    x = ngd.placeholder("x", (4, 8))
    y = ops.softmax(x)
    lines = ngd.compile(x, y).explain(y).splitlines()
    assert re.fullmatch(rf"softmax f32\[4,8\], made at {line_of('')}", lines[0])
    assert lines[1:] == ["instruction 0: softmax (kernel fused), f32[4,8] -> f32[4,8]"]


def test_fused_elementwise_ops_are_listed_together() -> None:
    x = ngd.placeholder("x", (4, 8))
    scaled = x * 2.0
    y = ops.exp(scaled)
    step = ngd.compile(x, y)
    for node in (scaled, y):
        lines = step.explain(node).splitlines()
        assert lines[1] == "instruction 0: elementwise (kernel fused), f32[4,8] -> f32[4,8]"
        assert lines[2] == "  computes together:"
        assert [
            re.fullmatch(rf"    (\w+) \(made at {line_of('')}\)", each)[1] for each in lines[3:]
        ] == [  # type: ignore[index]
            "multiply",
            "exp",
        ]


def test_nodes_made_at_the_same_line_have_different_instructions() -> None:
    x = ngd.placeholder("x", (4, 8))
    first, second = (
        ops.sum(ops.exp(x * factor), axis=axis) for factor, axis in ((2.0, 0), (3.0, 1))
    )
    step = ngd.compile(x, [first, second])
    number = [number_in(step.explain(node)) for node in (first, second)]
    shapes = [step.report().rows[each].results[-1].shape for each in number]
    assert shapes == [(8,), (4,)]


def test_layers_and_post_operations_of_a_matmul_are_named() -> None:
    x = ngd.placeholder("x", (4, 8))
    net = nn.Sequential(nn.Linear(8, 3), nn.ReLU())
    y = net(x)
    step = ngd.compile(x, y)
    text = step.explain(y)
    assert re.match(rf"relu f32\[4,3\], made at {line_of(re.escape(' in 1: ReLU()'))}\n", text)
    assert "\ninstruction 0: matmul (kernel " in text
    assert re.search(line_of(re.escape(" in 0: Linear(8, 3, bias=True)")), text)
    assert text.endswith("\n    then relu")
    assert step.explain(y.inputs[0]).splitlines()[1:] == text.splitlines()[1:]  # the bias


def test_gradients_updates_variables_and_inputs_are_explained() -> None:
    x, w = ngd.placeholder("x", (4, 8)), ngd.variable("w", np.ones((8, 3), np.float32))
    loss = ops.mean(ops.gelu(x @ w))
    slope = ngd.grad(loss, w)
    step = ngd.compile(x, loss, {w: w - 0.1 * slope})
    rows = step.report().rows
    assert "matmul" in [op for op, _ in rows[number_in(step.explain(slope))].made_of]
    (update,) = [value for _, value in step.graph.updates]
    assert rows[number_in(step.explain(update))].results[0].shape == (8, 3)
    assert step.explain(w).endswith("\na variable: the step reads its value")
    assert step.explain(x).endswith("\nan input of the step: each call gives its value")


def test_views_constants_and_broadcasts_without_an_instruction_are_explained() -> None:
    x = ngd.placeholder("x", (4, 8))
    exp = ops.exp(x)
    view = ops.reshape(exp, (32,))
    one = ops.exp(ops.zeros((2,)))
    wide = ops.broadcast_to(exp[:1], (4, 8))
    step = ngd.compile(x, [ops.sort(view), one + x[0, :2], wide * exp])
    text = step.explain(view)
    assert re.search(rf"a view of f32\[4,8\], made at {line_of('')}\n", text)
    assert text.splitlines()[2].startswith("instruction ")
    assert "a constant: its value is known" in step.explain(one)
    assert "repeat the elements of its operand" in step.explain(wide)


def test_loops_and_nodes_of_steps_with_memory_limits_are_explained() -> None:
    x = ngd.placeholder("x", (4, 8))
    total, _ = ops.scan(lambda c, t: (c + t, None), ops.zeros((8,)), x)
    assert "\ninstruction 0: scan, " in ngd.compile(x, total).explain(total)
    w = ngd.variable("w", np.ones((8, 8), np.float32))
    y = ops.tanh(x @ w) @ w
    step = ngd.compile(x, y, memory_limit=1 << 20)
    assert step.report().rows[number_in(step.explain(y))].op == "matmul"


@pytest.mark.parametrize("check", ["0", "1"])
def test_nodes_are_explained_with_and_without_checks_for_nan(
    check: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NGD_CHECK_FINITE", check)
    x = ngd.placeholder("x", (4, 8))
    y = ops.gelu(x)
    assert "instruction 0: elementwise" in ngd.compile(x, y).explain(y)


def test_nodes_are_explained_on_other_devices() -> None:
    x = ngd.placeholder("x", (4, 8))
    y = ops.exp(x)
    assert "instruction 0: elementwise" in ngd.compile(x, y, device="NULL").explain(y)
    for precision in ("float32", "bfloat16"):
        step = ngd.compile(x, y, device="INTERPRETER", precision=precision)
        assert step.explain(y).endswith("\ncomputed by the NumPy reference of exp")


def test_explain_changes_neither_the_step_nor_the_nodes() -> None:
    nodes: list[Any] = []

    @ngd.function
    def f(x: Any) -> Any:
        nodes.append(ops.exp(x))
        return nodes[0] * 2.0

    before = f(X)
    step = f.trace(X)
    site, program = nodes[0].site, str(step)
    assert "instruction 0: " in step.explain(nodes[0])
    assert type(nodes[0].site) is str
    assert (nodes[0].site, str(step)) == (site, program)
    np.testing.assert_array_equal(f(X), before)


def test_explain_keeps_no_reference_to_the_step() -> None:
    x = ngd.placeholder("x", (4, 8))
    y = ops.exp(x)
    step = ngd.compile([x], [y])
    step.explain(y)
    alive = weakref.ref(step)
    del step
    assert alive() is None  # freed without the garbage collector


def test_nodes_of_other_steps_are_rejected() -> None:
    x = ngd.placeholder("x", (4, 8))
    y, other = ops.exp(x), ops.log(x)
    step = ngd.compile(x, y)
    says = (
        rf"^Executable\.explain: expected a node that the step compiled at {line_of('')} computes; "
    )
    with pytest.raises(
        ValueError, match=says + rf"got <ngd\.Node log float32\[4, 8\]> \(made at {line_of('')}\)"
    ):
        step.explain(other)
    with pytest.raises(TypeError, match=r"^Executable\.explain: expected a node .*; got 'y'"):
        step.explain("y")  # type: ignore[arg-type]
