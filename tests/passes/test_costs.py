# SPDX-License-Identifier: Apache-2.0
"""Tests of the cost of steps, compared with counts by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import resnet50

import ngd
from ngd import ops
from ngd.graph.cost import Cost
from ngd.graph.leaves import PLACEHOLDER
from ngd.graph.node import Node
from ngd.graph.registry import OPS
from ngd.passes.op_costs import cost_of
from tests.ops.cases import all_cases, takes_two


def cost(inputs: list[Node], outputs: list[Node], device: str = "NULL", **more: Any) -> Cost:
    return ngd.compile(inputs, outputs, device=device, **more).cost()


def given(*shapes: tuple[int, ...], dtype: str = "float32") -> list[Node]:
    return [ngd.placeholder(f"x{i}", shape, dtype) for i, shape in enumerate(shapes)]


def test_a_matmul_has_the_cost_of_its_formula() -> None:
    a, b, bias = given((3, 5), (5, 7), (7,))
    assert cost([a, b], [a @ b]) == Cost(2 * 3 * 5 * 7, 4 * (15 + 35 + 21))
    fused = cost([a, b, bias], [ops.relu(a @ b + bias)])  # one kernel
    assert fused == Cost(2 * 3 * 5 * 7 + 2 * 21, 4 * (15 + 35 + 7 + 21))


def test_a_batched_matmul_with_a_transposed_operand_has_no_additional_cost() -> None:
    a, b = given((4, 5, 3), (5, 7), dtype="float64")
    made = ops.matmul(ops.transpose(a, (0, 2, 1)), b)
    assert cost([a, b], [made]).flops == 4 * 2 * 3 * 5 * 7


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("device", ["NULL", "INTERPRETER"])
def test_a_convolution_and_its_gradients_have_equal_costs(groups: int, device: str) -> None:
    x, w = given((2, 4, 9, 9), (6, 4 // groups, 3, 3))
    y = ops.conv(x, w, stride=2, padding=1, groups=groups)
    assert y.shape == (2, 6, 5, 5)
    forward = 2 * (2 * 6 * 5 * 5) * (4 // groups * 3 * 3)
    assert cost([x, w], [y], device).flops >= forward
    assert [cost_of(n) for n in (y, *ngd.grad(ops.sum(y), [x, w])) if n.op.is_heavy] == [
        Cost(forward, 4 * (x.type.count + w.type.count + y.type.count))
    ] * 3


def test_a_bias_of_a_convolution_is_counted() -> None:
    x, w, b = given((2, 4, 9), (6, 4, 3), (6,))
    made = ops.conv(x, w).op.node((x, w, b), ops.conv(x, w).attrs | {"post": ("gelu",)})
    count = 2 * 6 * 7
    assert cost_of(made) == Cost(2 * count * 4 * 3 + 2 * count, 4 * (72 + 72 + 6 + count))


def test_pools_are_counted_by_window() -> None:
    (x,) = given((2, 3, 8, 8))
    assert cost([x], [ops.max_pool(x, 3, 2)]).flops == 2 * 3 * 3 * 3 * 9
    assert cost([x], [ops.avg_pool(x, 2)]).flops == 2 * 3 * 4 * 4 * 4
    slopes = ngd.grad(ops.sum(ops.avg_pool(x, 2)), x)
    assert cost_of(slopes).flops == 2 * 3 * 4 * 4 * 4


def test_fused_elementwise_ops_add_flops_and_share_bytes() -> None:
    x, y = given((10, 10), (10, 10))
    outputs = [ops.exp(x) * y + 1.0]
    assert cost([x, y], outputs) == Cost(3 * 100, 4 * 300)
    assert cost([x, y], outputs, "INTERPRETER").flops == 3 * 100


def test_moves_read_no_more_than_they_write() -> None:
    table, rows = ngd.placeholder("t", (1000, 8)), ngd.placeholder("i", (3,), "int64")
    assert cost([table, rows], [ops.take(table, rows)]) == Cost(0, 2 * 3 * 8 * 4)
    assert cost([table], [table[::2]]) == Cost(0, 2 * 500 * 8 * 4)


def test_a_view_costs_nothing() -> None:
    (x,) = given((4, 6))
    assert cost([x], [ops.reshape(x, (24,))]) == Cost()


def test_an_expanded_op_has_the_flops_of_its_parts() -> None:
    (x,) = given((4, 6))
    silu = ops.silu(x)
    assert cost_of(silu) == Cost(2 * 24, 4 * 48)  # sigmoid and multiply
    assert cost([x], [silu]) == Cost(2 * 24, 4 * 48)


@pytest.mark.parametrize("device", ["NULL", "INTERPRETER"])
def test_a_loop_has_the_cost_of_all_iterations(device: str) -> None:
    x, w = given((5, 2, 3), (3, 3))
    start = ngd.constant(np.zeros((2, 3), np.float32))
    last, _ = ops.scan(lambda h, part: (h @ w, ops.sum(part)), start, x)
    assert cost([x, w], [last], device).flops >= 5 * 2 * 2 * 3 * 3
    assert cost([x, w], [last], device).flops < 6 * 2 * 2 * 3 * 3 + 5 * 6


def test_the_costlier_branch_is_counted() -> None:
    p, x = ngd.placeholder("p", (), "bool"), ngd.placeholder("x", (3, 3))
    made = ops.cond(p, lambda: x @ x, lambda: x + x)
    assert cost([p, x], [made]).flops == 2 * 3 * 3 * 3


def test_steps_with_nested_arguments_have_a_cost() -> None:
    x = ngd.placeholder("x", (2, 2))
    assert ngd.compile({"x": x}, {"y": x @ x}, device="NULL").cost() == Cost(16, 3 * 16)


def test_every_op_has_a_cost() -> None:
    cases = [case for case in all_cases() if not takes_two(case.op)]
    assert {case.op.name for case in cases} >= {"matmul", "softmax", "scan", "top_k"}
    for case in cases:
        inputs = [Node(PLACEHOLDER, (), {"name": "x", "uniform": True}, t) for t in case.types]
        found = cost_of(case.op.node(inputs, case.sample.attrs))
        assert found.flops >= 0, case
        assert found.bytes >= 0, case


def test_only_ops_whose_cost_grows_faster_than_their_operands_are_heavy() -> None:
    heavy = {name for name, op in OPS.items() if op.is_heavy}
    assert {"matmul", "conv", "conv_data_grad", "conv_channels_last", "scan"} <= heavy
    assert not heavy & {"add", "sum", "softmax", "concat", "take", "all_reduce"}


def test_resnet50_has_the_published_number_of_operations() -> None:
    """4.09e9 multiply-adds are 8.2 GFLOP."""
    network = resnet50.ResNet(50, 1000)
    x = ngd.placeholder("x", (1, 3, 224, 224))
    assert cost([x], [network(x)]).flops == pytest.approx(8.2e9, rel=0.02)
