# SPDX-License-Identifier: Apache-2.0
"""Tests of einsum against NumPy, and of its gradients against PyTorch."""

from __future__ import annotations

import numpy as np
import numpy.testing as npt
import pytest

from ngd import ops
from ngd.dtypes import Type, bfloat16, float64
from ngd.errors import ShapeError
from ngd.graph.node import Node
from tests.ops.cases import placeholders
from tests.ops.conftest import Runner
from tests.ops.witness import Shape, agrees, drawn

EQUATIONS: list[tuple[str, list[Shape]]] = [
    ("ij->ji", [(2, 3)]),
    ("ij", [(2, 3)]),
    ("ba", [(2, 3)]),
    ("ij->", [(2, 3)]),
    ("ij->j", [(2, 3)]),
    ("ii", [(3, 3)]),
    ("ii->i", [(3, 3)]),
    ("iji->j", [(3, 2, 3)]),
    ("iiii->i", [(2, 2, 2, 2)]),
    ("i,i", [(4,), (4,)]),
    ("i,j", [(4,), (3,)]),
    ("i,j->ji", [(4,), (3,)]),
    ("ij,jk", [(2, 3), (3, 4)]),
    ("ij,kj->ki", [(2, 3), (4, 3)]),
    ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)]),
    ("bhqd,bhkd->bhqk", [(2, 3, 4, 5), (2, 3, 6, 5)]),
    ("bhqk,bhkd->bqhd", [(2, 3, 4, 5), (2, 3, 5, 6)]),
    ("abcd,cdef->abef", [(2, 3, 4, 2), (4, 2, 3, 2)]),
    ("abc,cba->b", [(2, 3, 4), (4, 3, 2)]),
    ("ij,k->i", [(2, 3), (4,)]),
    ("ij,ij->ij", [(2, 3), (2, 3)]),
    ("...i,...i->...", [(2, 3, 4), (3, 4)]),
    ("...ij,jk", [(2, 5, 3, 4), (4, 2)]),
    ("i...,i...", [(3, 2, 4), (3, 1, 4)]),
    ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)]),
    ("i,ij,j,jk->k", [(2,), (2, 3), (3,), (3, 4)]),
    ("ij,jk->ik", [(2, 1), (3, 4)]),
    ("ij,jk->ik", [(2, 0), (0, 4)]),
    (" i j , j k -> i k ", [(2, 3), (3, 4)]),
    (",i->i", [(), (3,)]),
]


@pytest.mark.parametrize(("equation", "shapes"), EQUATIONS, ids=str)
def test_einsum_equals_numpy(run: Runner, equation: str, shapes: list[Shape]) -> None:
    arrays = [np.random.default_rng(i).integers(-4, 5, s) for i, s in enumerate(shapes)]
    inputs = placeholders([Type(a.dtype, a.shape) for a in arrays])
    (found,) = run(inputs, [ops.einsum(equation, *inputs)], arrays)
    expected = np.einsum(equation, *arrays)
    assert found.dtype == expected.dtype
    npt.assert_array_equal(found, expected)


@pytest.mark.parametrize(("equation", "shapes"), EQUATIONS, ids=str)
def test_gradients_equal_pytorch(run: Runner, equation: str, shapes: list[Shape]) -> None:
    if equation == "ij,jk->ik" and shapes[0] == (2, 1):
        return  # PyTorch would broadcast the axis of size 1
    agrees(
        run,
        drawn(float64, *shapes),
        lambda *given: ops.einsum(equation, *given),
        lambda torch, *given: torch.einsum(equation, *given),
    )


def ops_of(node: Node) -> list[str]:
    found, pending = [], [node]
    while pending:
        node = pending.pop()
        found.append(node.op.name)
        pending += node.inputs
    return found


def test_a_matrix_product_is_one_matmul() -> None:
    """The matmul reads a transposed operand in place, and bfloat16 operands are not cast."""
    q, k = np.ones((2, 3, 4, 5), bfloat16), np.ones((2, 3, 6, 5), bfloat16)
    names = ops_of(ops.einsum("bhqd,bhkd->bhqk", q, k))
    assert sorted(names) == ["constant", "constant", "matmul"]
    many = ops.einsum("ij,jk,kl->il", *[np.ones((4, 4), bfloat16)] * 3)
    assert many.dtype == bfloat16
    assert ops_of(many).count("cast") == 4


def test_the_cheapest_order_of_matmuls_is_chosen() -> None:
    """A vector is multiplied by two matrices in turn, and the matrices are not multiplied."""
    shapes = [(50, 50), (50, 50), (50,)]
    node = ops.einsum("ij,jk,k->i", *map(np.ones, shapes))
    pending, sizes = [node], []
    while pending:
        node = pending.pop()
        sizes.append(node.type.count if node.op.name == "matmul" else 0)
        pending += node.inputs
    assert max(sizes) == 50


REFUSED = [
    ("i->i", [], ShapeError, "^einsum: expected operands"),
    ("ij,jk", [(2, 3)], ShapeError, "^einsum: expected 2 operands"),
    ("ij", [(2,)], ShapeError, "^einsum: expected one label per axis"),
    ("i", [(2, 3)], ShapeError, "^einsum: expected one label per axis"),
    ("ij,jk", [(2, 3), (4, 2)], ShapeError, "^einsum: expected one extent for 'j'"),
    ("ii", [(2, 3)], ShapeError, "^einsum: expected one extent for 'i'"),
    ("i->j", [(2,)], ValueError, "^einsum: expected labels of operands in the result"),
    ("i->ii", [(2,)], ValueError, "^einsum: expected labels of operands in the result"),
    ("i?->i", [(2, 3)], ValueError, "^einsum: expected letters"),
]


@pytest.mark.parametrize(("equation", "shapes", "error", "message"), REFUSED)
def test_bad_equations_are_rejected(
    equation: str, shapes: list[Shape], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        ops.einsum(equation, *map(np.ones, shapes))
