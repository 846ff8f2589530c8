# SPDX-License-Identifier: Apache-2.0
"""Tests of LSTM and GRU against PyTorch: a cell, and a layer in both directions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ngd import grad, ops
from ngd.dtypes import DType, Type, float32, float64
from ngd.errors import ShapeError
from ngd.graph.graph import Graph
from tests.ops.cases import placeholders
from tests.ops.conftest import Runner
from tests.ops.witness import Shape, agrees, drawn

BOTH = pytest.mark.parametrize("dtype", [float32, float64], ids=str)
LENGTH, BATCH, INPUTS, SIZE = 5, 2, 3, 4
KINDS = pytest.mark.parametrize(("kind", "gates", "states"), [("lstm", 4, 2), ("gru", 3, 1)])


def weights(gates: int) -> list[Shape]:
    return [(gates * SIZE, INPUTS), (gates * SIZE, SIZE), (gates * SIZE,), (gates * SIZE,)]


def all_of(results: Any, join: Any) -> Any:
    """Join several results into one array, so that a difference in any of them is found."""
    parts = results if isinstance(results, tuple) else (results,)
    return join([part.reshape(-1) for part in parts])


@BOTH
@KINDS
@pytest.mark.parametrize("bias", [False, True])
def test_a_cell_equals_pytorch(
    run: Runner, dtype: DType, kind: str, gates: int, states: int, bias: bool
) -> None:
    shapes = [(BATCH, INPUTS), *[(BATCH, SIZE)] * states, *weights(gates)[: 4 if bias else 2]]

    def witness(torch: Any, x: Any, *rest: Any) -> Any:
        given, parameters = rest[:states], [*rest[states:], *[None] * (0 if bias else 2)]
        cell = getattr(torch, f"{kind}_cell")
        return all_of(cell(x, given if states > 1 else given[0], *parameters), torch.cat)

    agrees(
        run,
        drawn(dtype, *shapes),
        lambda *given: all_of(getattr(ops, f"{kind}_cell")(*given), ops.concat),
        witness,
    )


@BOTH
@KINDS
@pytest.mark.parametrize("reverse", [False, True])
def test_a_layer_equals_pytorch(
    run: Runner, dtype: DType, kind: str, gates: int, states: int, reverse: bool
) -> None:
    shapes = [(LENGTH, BATCH, INPUTS), *[(BATCH, SIZE)] * states, *weights(gates)]

    def witness(torch: Any, x: Any, *rest: Any) -> Any:
        given = tuple(state[None] for state in rest[:states])
        layer = getattr(torch, kind)
        data = x.flip(0) if reverse else x
        options = (True, 1, 0.0, False, False, False)
        result = layer(data, given if states > 1 else given[0], list(rest[states:]), *options)
        return all_of((result[0].flip(0) if reverse else result[0], *result[1:]), torch.cat)

    agrees(
        run,
        drawn(dtype, *shapes),
        lambda *given: all_of(getattr(ops, kind)(*given, reverse=reverse), ops.concat),
        witness,
    )


@KINDS
def test_bad_shapes_raise_shape_error(kind: str, gates: int, states: int) -> None:
    good = [(LENGTH, BATCH, INPUTS), *[(BATCH, SIZE)] * states, *weights(gates)]
    for wrong in range(len(good)):
        shapes = [(*shape, 9) if i == wrong else shape for i, shape in enumerate(good)]
        with pytest.raises(ShapeError, match=rf"^{kind}: expected x \[places, .*; got float64"):
            getattr(ops, kind)(*map(np.ones, shapes))


@KINDS
def test_the_graph_of_a_layer_does_not_grow_with_the_length(
    kind: str, gates: int, states: int
) -> None:
    sizes = []
    for length in (2, 200):
        shapes = [(length, BATCH, INPUTS), *[(BATCH, SIZE)] * states, *weights(gates)]
        inputs = placeholders([Type(float64, shape) for shape in shapes])
        outputs, *_ = getattr(ops, kind)(*inputs)
        gradients = grad(ops.sum(outputs), inputs)
        sizes.append(len(Graph(tuple(inputs), tuple(gradients)).nodes))
    assert sizes[0] == sizes[1]
