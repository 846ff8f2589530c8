# SPDX-License-Identifier: Apache-2.0
"""Sums of products by labels of axes: made of transposes, sums, products and matrix products.

Operands are contracted two at a time, in an order that numpy.einsum_path finds. Of two, a label is
one of four kinds: of both and needed later (a batch axis), of both and not needed (summed over: the
inner axis of a matrix product), of one and needed (its rows or columns), of one and not needed
(summed over before).
"""

from __future__ import annotations

import math
import string
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np

from ..dtypes import Shape, float32
from ..errors import ShapeError
from ..graph.node import Node
from ..graph.registry import public
from ._casting import cast
from ._elementwise import align
from ._matmul import matmul
from ._operands import HALVES, Value, got
from ._reductions import sum
from ._shape import reshape, transpose

__all__ = ["einsum"]

Labelled: TypeAlias = tuple[str, Node]
"""A tensor, and a letter an axis."""


@public
def einsum(equation: str, *operands: Value) -> Node:
    """Sum products of elements by labels of axes: numpy.einsum.

    The result's labels may be left out; "..." stands for axes that broadcast; a label twice in one
    operand is its diagonal. Two-byte floats are rounded once where this is one matrix product, else
    computed in float32.
    """
    if not operands:
        raise ShapeError(
            f"einsum: expected operands for {equation!r}; got none. Pass one per term."
        )
    nodes = align("einsum", *operands)
    terms, result = _parse(equation, [n.shape for n in nodes])
    extents = _extents(equation, terms, nodes)
    dtype = nodes[0].dtype
    one_product = len(nodes) == 2 and all(
        any(label in other for other in (result, *terms[:i], *terms[i + 1 :]))
        for i, term in enumerate(terms)
        for label in term
    )
    if dtype in HALVES and not one_product:
        nodes = [cast(n, float32) for n in nodes]
    pending = [
        _simple(equation, term, node, extents) for term, node in zip(terms, nodes, strict=True)
    ]
    for step in _path(pending, result):
        chosen = [pending.pop(i) for i in sorted(step, reverse=True)]
        made = chosen.pop()
        while chosen:
            other = chosen.pop()
            rest = result + "".join(labels for labels, _ in [*pending, *chosen])
            made = _contract(made, other, rest)
        pending.append(made)
    labels, node = _summed(*pending[0], keep=result)
    node = transpose(node, [labels.index(label) for label in result])
    return cast(node, dtype)


def _parse(equation: str, shapes: Sequence[Shape]) -> tuple[list[str], str]:
    """Read the labels of each operand and of the result; "..." becomes letters nobody uses."""
    text, arrow, result = equation.replace(" ", "").partition("->")
    terms = text.split(",")
    letters = (text + result).replace("...", "").replace(",", "")
    if len(terms) != len(shapes):
        raise ShapeError(
            f"einsum: expected {len(terms)} operands for {equation!r}; got {len(shapes)}. Pass one "
            "per term."
        )
    if not set(letters) <= set(string.ascii_letters) or "," in result:
        raise ValueError(
            f"einsum: expected letters, commas, ... and one ->; got {equation!r}. Write for "
            "example 'ij,jk->ik'."
        )
    free = [letter for letter in string.ascii_letters if letter not in letters]
    skipped = []
    for term, shape in zip(terms, shapes, strict=True):
        skipped.append(len(shape) - len(term.replace("...", "")))
        if skipped[-1] < 0 or (skipped[-1] and "..." not in term):
            raise ShapeError(
                f"einsum: expected a label an axis in {equation!r}; got {term!r} for {shape}. Give "
                "the term one letter per axis, or an ellipsis."
            )
    most = max(skipped)
    shared = "".join(free[:most])
    terms = [t.replace("...", shared[most - n :]) for t, n in zip(terms, skipped, strict=True)]
    if arrow:
        result = result.replace("...", shared)
    else:
        once = sorted(label for label in set(letters) if letters.count(label) == 1)
        result = shared + "".join(once)
    if len(set(result)) != len(result) or not set(result) <= set("".join(terms)):
        raise ValueError(
            f"einsum: expected labels of operands in the result, each once; got {equation!r}. "
            "Remove the other labels from the result."
        )
    return terms, result


def _extents(equation: str, terms: Sequence[str], nodes: Sequence[Node]) -> dict[str, int]:
    """Find the extent of each label; 1 broadcasts."""
    extents: dict[str, int] = {}
    for term, node in zip(terms, nodes, strict=True):
        for label, n in zip(term, node.shape, strict=True):
            if extents.setdefault(label, n) == 1:
                extents[label] = n
            if n not in (1, extents[label]):
                types = got(*(node.type for node in nodes))
                raise ShapeError(
                    f"einsum: expected one extent for {label!r} in {equation!r}; got {types}. "
                    "Transpose one."
                )
    return extents


def _simple(equation: str, labels: str, x: Node, extents: dict[str, int]) -> Labelled:
    """Take diagonals, and leave axes out that broadcast: each label once, with its extent."""
    for label in dict.fromkeys(labels):
        while labels.count(label) > 1:
            first, second = labels.index(label), labels.rindex(label)
            n = x.shape[first]
            if x.shape[second] != n:
                raise ShapeError(
                    f"einsum: expected one extent for {label!r} in {equation!r}; got {x.type}. "
                    "Reshape it."
                )
            others = [axis for axis in range(x.ndim) if axis not in (first, second)]
            moved = transpose(x, [*others, first, second])
            x = reshape(moved, (*moved.shape[:-2], n * n))[..., :: n + 1]
            labels = "".join(labels[axis] for axis in others) + label
    kept = [(a, n) for a, n in zip(labels, x.shape, strict=True) if n == extents[a]]
    return "".join(label for label, _ in kept), reshape(x, tuple(n for _, n in kept))


def _path(operands: Sequence[Labelled], result: str) -> Iterable[Sequence[int]]:
    """Say which operands to contract, step by step; the product of them comes last."""
    if len(operands) < 3:
        return [tuple(range(len(operands)))]
    equation = ",".join(labels for labels, _ in operands) + "->" + result
    shapes = [np.broadcast_to(np.float32(0), node.shape) for _, node in operands]
    return np.einsum_path(equation, *shapes, optimize="greedy")[0][1:]


def _summed(labels: str, x: Node, keep: str) -> Labelled:
    """Sum over what nobody needs."""
    gone = [axis for axis, label in enumerate(labels) if label not in keep]
    if not gone:
        return labels, x
    total = cast(sum(x, gone), x.dtype)  # sums of small integers are larger ones
    return "".join(label for label in labels if label in keep), total


def _contract(one: Labelled, other: Labelled, rest: str) -> Labelled:
    """Multiply two operands and sum over the labels that only they have."""
    a_labels, a = _summed(*one, keep=rest + other[0])
    b_labels, b = _summed(*other, keep=rest + one[0])
    batch = [label for label in a_labels if label in b_labels and label in rest]
    inner = [label for label in a_labels if label in b_labels and label not in rest]
    rows = [label for label in a_labels if label not in b_labels]
    columns = [label for label in b_labels if label not in a_labels]

    def arranged(labels: str, x: Node, *parts: list[str]) -> tuple[Node, list[Shape]]:
        order = [label for part in parts for label in part]
        moved = transpose(x, [labels.index(label) for label in order])
        extents = dict(zip(order, moved.shape, strict=True))
        return moved, [tuple(extents[label] for label in part) for part in parts]

    left, (batches, left_rows, depth) = arranged(a_labels, a, batch, rows, inner)
    right, (_, _, right_columns) = arranged(b_labels, b, batch, inner, columns)
    shape = (*batches, *left_rows, *right_columns)
    m, k, n = (math.prod(part) for part in (left_rows, depth, right_columns))
    if inner:
        product = matmul(reshape(left, (*batches, m, k)), reshape(right, (*batches, k, n)))
    else:
        product = reshape(left, (*batches, m, 1)) * reshape(right, (*batches, 1, n))
    return "".join([*batch, *rows, *columns]), reshape(product, shape)
