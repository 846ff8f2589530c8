# SPDX-License-Identifier: Apache-2.0
"""Tests of the cut of a graph into a forward and a backward program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import ngd
from ngd import ops
from ngd.graph.node import Node
from ngd.passes.residuals import choose_residuals, read_residuals
from ngd.transforms.gradient import pull_back

N, K = 6, 4


def input_of(name: str, *shape: int) -> Node:
    return ngd.placeholder(name, shape, "float64")


class Cut:
    """The forward and the backward program of outputs, with gradients of all inputs."""

    def __init__(
        self, inputs: Sequence[Node], outputs: Sequence[Node], overwritten: Sequence[Node] = ()
    ) -> None:
        adjoints = [input_of(f"dy{i}", *y.shape) for i, y in enumerate(outputs)]
        gradients = [g for g in pull_back(outputs, adjoints, inputs) if g is not None]
        self.residuals = choose_residuals(outputs, gradients, overwritten)
        stored = {
            value: ngd.placeholder(f"r{i}", value.shape, value.dtype)
            for i, value in enumerate(self.residuals)
        }
        self.forward = ngd.compile(list(inputs), [*outputs, *self.residuals])
        read = read_residuals(gradients, stored)
        lost = set(overwritten)
        given = [x for x in inputs if x not in lost]
        self.given = [x not in lost for x in inputs]
        self.backward = ngd.compile([*given, *adjoints, *stored.values()], read)
        self.whole = ngd.compile([*inputs, *adjoints], [*outputs, *gradients])

    def expect_equal_gradients(self) -> None:
        """Compare the two programs with one program that computes both."""
        random = np.random.default_rng(0)
        count = len(self.given)
        shapes = [node.shape for node in self.whole.graph.inputs]
        values = [random.normal(size=shape) for shape in shapes]
        results = self.forward(*values[:count])
        outputs = len(shapes) - count
        kept = [x for x, is_given in zip(values, self.given, strict=False) if is_given]
        gradients = self.backward(*kept, *values[count:], *results[outputs:])
        expected = self.whole(*values)
        for found, wanted in zip([*results[:outputs], *gradients], expected, strict=True):
            np.testing.assert_array_equal(found, wanted)


def names(cut: Cut) -> list[str]:
    return [value.op.name for value in cut.residuals]


def test_gradients_equal_numpy() -> None:
    x, w = input_of("x", N, K), input_of("w", K, K)
    cut = Cut([x, w], [ops.tanh(x @ w) @ w])
    random = np.random.default_rng(0)
    a, b, dy = random.normal(size=(N, K)), random.normal(size=(K, K)), random.normal(size=(N, K))
    y, *residuals = cut.forward(a, b)
    dx, dw = cut.backward(a, b, dy, *residuals)
    hidden = np.tanh(a @ b)
    inner = dy @ b.T * (1 - hidden**2)
    np.testing.assert_allclose(y, hidden @ b, 1e-12)
    np.testing.assert_allclose(dx, inner @ b.T, 1e-12)
    np.testing.assert_allclose(dw, hidden.T @ dy + a.T @ inner, 1e-12)


def test_inputs_and_constants_are_not_stored() -> None:
    x, w = input_of("x", N, K), input_of("w", K, K)
    cut = Cut([x, w], [(x * 2.0 + np.ones(K)) @ w])
    assert names(cut) == []
    cut.expect_equal_gradients()


def test_a_cheap_value_of_inputs_is_recomputed() -> None:
    x, w = input_of("x", N, K), input_of("w", K, K)
    cut = Cut([x, w], [ops.exp(ops.transpose(x)).reshape((N, K)) @ w])
    assert names(cut) == []
    cut.expect_equal_gradients()


def test_a_cheap_value_of_one_stored_value_replaces_it() -> None:
    x, w = input_of("x", N, K), input_of("w", K, K)
    cut = Cut([x, w], [ops.exp(x @ w) @ w])
    assert names(cut) == ["exp"]
    cut.expect_equal_gradients()


def test_a_value_is_stored_if_several_cheap_values_need_it() -> None:
    x, w = input_of("x", N, K), input_of("w", K, K)
    y = x @ w
    cut = Cut([x, w], [(ops.exp(y) @ w) * (ops.sin(y) @ w)])
    assert names(cut) == ["matmul"] * 3  # y, and the two operands of the multiplication
    cut.expect_equal_gradients()


def test_terms_of_a_long_sum_are_stored_separately() -> None:
    x, w = input_of("x", N, K), input_of("w", K, K)
    h = x
    for _ in range(4):
        h = h + ops.exp(h) @ w
    cut = Cut([x, w], [h])
    assert sum(value.type.bytes for value in cut.residuals) <= 3 * h.type.bytes
    cut.expect_equal_gradients()


def test_an_input_that_is_overwritten_is_stored() -> None:
    x, w = input_of("x", N, K), input_of("w", K, K)
    cut = Cut([x, w], [ops.exp(x) @ w], overwritten=[x])
    assert names(cut) == ["exp"]
    cut.expect_equal_gradients()


def test_results_of_one_op_are_stored_separately() -> None:
    x, w = input_of("x", N, K), input_of("w", K, K)
    values, _ = ops.top_k(x @ w, 2)
    cut = Cut([x, w], [ops.square(values)])
    assert [value.type.bytes for value in cut.residuals] == [N * 2 * 8] * 2
    cut.expect_equal_gradients()


def test_draws_of_the_forward_pass_are_repeated() -> None:
    x, w = input_of("x", N, K), input_of("w", K, K)
    cut = Cut([x, w], [ops.dropout(x @ w, 0.5, seed=1) @ w])
    cut.expect_equal_gradients()


@pytest.mark.parametrize("seed", range(8))
def test_random_graphs_have_equal_gradients(seed: int) -> None:
    random = np.random.default_rng(seed)
    x, w = input_of("x", K, K), input_of("w", K, K)
    values: list[Any] = [x, w]
    functions = [
        lambda a, b: a @ b / K,
        lambda a, b: ops.tanh(a) * b,
        lambda a, b: ops.softmax(a + b),
        lambda a, b: ops.concat([a[:2], b[2:]]),
        lambda a, b: ops.transpose(a) + ops.mean(b, 0),
    ]
    for _ in range(15):
        a, b = random.integers(len(values), size=2)
        values.append(functions[random.integers(len(functions))](values[a], values[b]))
    Cut([x, w], values[-3:]).expect_equal_gradients()
