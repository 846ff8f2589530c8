# SPDX-License-Identifier: Apache-2.0
"""Tests of weights that all iterations multiply by: the gradient is one matmul after the loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.testing as npt
import pytest

import ngd
from ngd import ops
from ngd.graph.graph import Graph
from ngd.graph.node import Node

LENGTH = 4
Body = Callable[[Any, Any, Any], Any]


def twice(c: Any, p: Any, w: Any) -> Any:
    return ops.tanh(c @ w + p @ w)


def also_scaled(c: Any, p: Any, w: Any) -> Any:
    return ops.tanh(c @ w + p) + ops.sum(w * ops.mean(c), 0)


ONLY_MULTIPLIED: dict[str, Body] = {
    "once": lambda c, p, w: ops.tanh(c @ w + p),
    "transposed": lambda c, p, w: ops.tanh(ops.sin(c) @ ops.transpose(w) + p),
    "twice": twice,
    "no carry": lambda c, p, w: c + ops.sin(p @ w),
    "kept": lambda c, p, w: ops.sin((c @ w) @ w) + p,
}


def looped(body: Body, h: Node, x: Node, w: Node, reverse: bool) -> Node:
    last, made = ops.scan(lambda c, p: (body(c, p, w), c * p), h, x, reverse=reverse)
    return ops.sum(ops.sin(last)) + ops.sum(made * made)


def unrolled(body: Body, h: Node, x: Node, w: Node, reverse: bool) -> Node:
    loss = 0.0
    for t in reversed(range(LENGTH)) if reverse else range(LENGTH):
        loss = loss + ops.sum((h * x[t]) ** 2)
        h = body(h, x[t], w)
    return ops.sum(ops.sin(h)) + loss


def sums_of_weights(gradient: Node) -> int:
    """Return the number of weight gradients that loops carry."""
    loops = [node for node in Graph((), (gradient,)).nodes if node.op.kernel.control_flow]
    shapes = [x.shape for loop in loops for x in loop.inputs[: loop.attrs["carries"]]]
    return shapes.count(gradient.shape)


def operands(*row: int) -> tuple[list[Node], list[np.ndarray[Any, Any]]]:
    rng = np.random.default_rng(5)
    arrays = [rng.normal(size=s) for s in ((*row, 3), (LENGTH, *row, 3), (3, 3))]
    return [
        ngd.placeholder(n, a.shape, a.dtype) for n, a in zip("hxw", arrays, strict=True)
    ], arrays


@pytest.mark.parametrize("device", ["CPU", "INTERPRETER"])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("row", [(2,), ()], ids=["matrix", "vector"])
@pytest.mark.parametrize("name", [*ONLY_MULTIPLIED, "also scaled"])
def test_gradients_equal_those_of_an_unrolled_loop(
    name: str, row: tuple[int, ...], reverse: bool, device: str
) -> None:
    """Compare first and second gradients."""
    body = ONLY_MULTIPLIED.get(name, also_scaled)
    given, arrays = operands(*row)
    gradients = []
    for loss_of in (looped, unrolled):
        first = ngd.grad(loss_of(body, *given, reverse), given)
        second = ngd.grad(ops.sum(ops.sin(first[2])), given)
        gradients.append(ngd.compile(given, [*first, *second], device=device)(*arrays))
    for of_loop, wanted in zip(*gradients, strict=True):
        npt.assert_allclose(of_loop, wanted, 1e-10, 1e-11)


@pytest.mark.parametrize("name", [*ONLY_MULTIPLIED, "also scaled"])
def test_the_loop_carries_no_sum_of_weight_gradients(name: str) -> None:
    body = ONLY_MULTIPLIED.get(name, also_scaled)
    given, _ = operands(2)
    (gradient,) = ngd.grad(looped(body, *given, reverse=False), [given[2]])
    assert sums_of_weights(gradient) == (name == "also scaled")


def test_an_outer_loop_does_not_store_the_values_of_an_inner_loop() -> None:
    """Users nest loops to store fewer values than all iterations of both loops have."""
    chunks, w = ngd.placeholder("x", (7, LENGTH, 2, 3)), ngd.placeholder("w", (3, 3))
    body = ONLY_MULTIPLIED["once"]

    def chunk(carry: Node, part: Node) -> tuple[Node, None]:
        return ops.scan(lambda c, p: (body(c, p, w), None), carry, part)[0], None

    last, _ = ops.scan(chunk, ngd.placeholder("h", (2, 3)), chunks)
    (gradient,) = ngd.grad(ops.sum(last), [w])
    assert sums_of_weights(gradient) == 1


def test_a_loop_without_iterations_gives_zeros() -> None:
    h, x, w = (ngd.placeholder(n, s) for n, s in (("h", (2, 3)), ("x", (0, 2, 3)), ("w", (3, 3))))
    gradient = ngd.grad(looped(ONLY_MULTIPLIED["once"], h, x, w, reverse=False), [w])
    given = [np.ones(node.shape, np.float32) for node in (h, x, w)]
    npt.assert_array_equal(ngd.compile([h, x, w], gradient)(*given)[0], np.zeros((3, 3)))
