# SPDX-License-Identifier: Apache-2.0
"""Compare printed graphs and programs with golden files.

The difference shows what a change of the compiler does. After an intended change, run with
NGD_UPDATE_GOLDEN=1 and read the difference.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ngd
from ngd import ops

HERE = Path(__file__).parent


class Ranks:
    """A stand-in for a group, with the attributes that the compiler reads."""

    def __init__(self, size: int) -> None:
        self.rank, self.size = 0, size

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.size})"


def mlp() -> Any:
    x, t = ngd.placeholder("x", (4, 6)), ngd.placeholder("t", (4,), "int64")
    sizes = [6, 5, 3]
    variables = []
    for i, (m, n) in enumerate(pairwise(sizes)):
        variables.append(ngd.variable(f"W{i}", np.zeros((m, n), np.float32)))
        variables.append(ngd.variable(f"b{i}", np.zeros(n, np.float32)))
    w0, b0, w1, b1 = variables
    logits = ops.relu(x @ w0 + b0) @ w1 + b1
    loss = ops.mean(ops.softmax_cross_entropy(logits, t))
    grads = [ops.all_reduce(g, op="mean") for g in ngd.grad(loss, variables)]
    updates = {v: v - 0.1 * g for v, g in zip(variables, grads, strict=True)}
    return [x, t], [ops.all_reduce(loss, op="mean")], updates


def swap() -> Any:
    a, b = (ngd.variable(n, np.zeros(3, np.float32)) for n in "ab")
    return [], [a + b], {a: b, b: a}


def recurrent() -> Any:
    """A loop and its gradient, which carries the gradient of w and recomputes each iteration."""
    x, w = ngd.placeholder("x", (5, 2, 3)), ngd.variable("w", np.zeros((3, 3), np.float32))
    start = ngd.constant(np.zeros((2, 3), np.float32))
    last, made = ops.scan(lambda h, p: (ops.tanh(h @ w + p), ops.sum(h)), start, x)
    loss = ops.sum(last) + ops.sum(made)
    return [x], [loss], {w: w - 0.1 * ngd.grad(loss, w)}


def weighted() -> Any:
    x, w = ngd.placeholder("x", (3,)), ngd.placeholder("w", ())
    y = ops.all_reduce(x, op="mean", weight=w)
    z = ops.all_reduce(x * 2, op="mean", weight=w)
    return [x, w], [y, z], {}


def chain() -> Any:
    x = ngd.placeholder("x", (2, 3))
    row = ngd.placeholder("row", (3,))
    y = ops.tanh(x * row + 1.0)
    return [x, row], [ops.transpose(y) @ y, ops.sum(y * y, axis=0)], {}


def adam() -> Any:
    """A variable whose update is one kernel with three results, after the all-reduce."""
    x = ngd.placeholder("x", (8, 6))
    w, m, s = (ngd.variable(name, np.zeros((6, 4), np.float32)) for name in "wms")
    (g,) = ngd.grad(ops.mean(ops.square(x @ w)), [w])
    g = ops.all_reduce(g, op="mean")
    updates = {m: 0.9 * m + 0.1 * g, s: 0.99 * s + 0.01 * ops.square(g)}
    updates[w] = w - 0.001 * updates[m] / (ops.sqrt(updates[s]) + 1e-8)
    return [x], [], updates


def parts() -> Any:
    """Views of an input and of a variable, and a result that no op reads."""
    x, w = ngd.placeholder("x", (6, 4)), ngd.variable("w", np.zeros((6, 4), np.float32))
    first, second = ops.split(x, [4])
    _, places = ops.top_k(w[2:], 3)
    sums = ops.all_reduce(ops.split(ops.tanh(x), 3)[1], op="sum")
    return [x], [first @ ops.transpose(w[:2]), second, places, sums], {}


def exchange(group: Any, row: Any) -> Any:
    """Collectives of all kinds, in two groups. The largest is first, to show shared memory."""
    x = ngd.placeholder("x", (4, 3))
    y = ops.reduce_scatter(x * 2, op="mean", group=group)
    z = ops.all_gather(y + 1, axis=1, group=row)
    moved = ops.all_to_all_v(ops.all_to_all(x, group=row), [1, 3], [1, 2], group=row)
    rooted = ops.scatter(ops.gather(x, root=1, group=group), group=group)
    token = ops.send(ops.reduce(x, op="max"), 1, tag=7)
    back = ops.recv(1, shape=(2,), dtype="float32", after=token)
    spread = ops.broadcast(ops.all_gather_v(back, counts=[2, 1], group=row), root=1, group=group)
    return [x], [z, moved, rooted, spread], {}


class Row(Ranks):
    """A second group."""


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("case", [mlp, swap, weighted, chain, adam, parts, recurrent])
def test_printed_graphs_and_programs_equal_the_golden_files(
    case: Callable[[], Any], ranks: int
) -> None:
    compare(case.__name__, ranks, Ranks(ranks), case())


def test_printed_collectives_of_two_groups_equal_the_golden_file() -> None:
    group = Ranks(2)
    compare("exchange", 2, group, exchange(group, Row(2)))


def compare(name: str, ranks: int, group: Any, case: Any) -> None:
    inputs, outputs, updates = case
    step = ngd.compile(inputs, outputs, updates, device="NULL", group=group)
    text = f"{step.graph}\n\n{step}"
    path = HERE / f"{name}_{ranks}.txt"
    if os.environ.get("NGD_UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


def test_the_order_of_creation_does_not_change_the_program() -> None:
    def programs(reverse: bool) -> str:
        x = ngd.placeholder("x", (3,))
        variables = [ngd.variable(f"v{i}", np.zeros(3, np.float32)) for i in range(3)]
        indices = range(2, -1, -1) if reverse else range(3)
        reduced = {i: ops.all_reduce(x * (i + 2.0), op="sum") for i in indices}
        updates = {variables[i]: reduced[i] for i in indices}
        group: Any = Ranks(2)
        return str(ngd.compile([x], [], updates, device="NULL", group=group))

    assert programs(False) == programs(True)
