# SPDX-License-Identifier: Apache-2.0
"""Einstein summation, composed of transpositions, sums, products and matmuls.

A *term* is the labels of one operand, one letter per axis. Operands are contracted two at a time,
in the order that numpy.einsum_path finds. A label of these two operands is *needed* if the result
or a third operand has it. There are four kinds of labels:

- in both operands and needed: a batch axis of the matmul;
- in both operands and not needed: the inner axis of the matmul, which sums over it;
- in one operand and needed: a row or column axis of the matmul;
- in one operand and not needed: summed over before the matmul.
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
from ._operands import FLOATS_16_BIT, Value, describe_types
from ._reductions import sum
from ._shape import reshape, transpose

__all__ = ["einsum"]

LabeledNode: TypeAlias = tuple[str, Node]
"""A tuple (labels, node). The labels are those of einsum: "ij" for a node with two axes."""


@public
def einsum(equation: str, *operands: Value) -> Node:  # long because each argument is described
    """Sum products of elements by labels of axes, as numpy.einsum.

    Parameters
    ----------
    equation
        The labels of each operand and of the result, such as "ij,jk->ik". The labels of the result
        may be left out: then they are "..." and the labels that occur once, in alphabetical order.
        "..." is any number of axes that broadcast. A label that occurs twice in one operand takes
        the diagonal of the two axes.
    operands
        Arrays of numbers: two for "ij,jk->ik". They are promoted to one dtype.

    Raises
    ------
    ShapeError
        The number of operands or of their axes does not fit the labels, or a label has two extents.
    ValueError
        The equation is malformed.

    Notes
    -----
    If the operands are 16-bit floats and the sum is a single matmul of two operands, the matmul
    rounds its result once. Otherwise 16-bit floats are cast to float32, the sum is computed in
    float32, and the result is cast back.

    Examples
    --------
    ::

        >>> a, b = np.arange(6.0).reshape(2, 3), np.ones((2, 3))
        >>> ngd.function(lambda a, b: ops.einsum("ij,kj->ik", a, b))(a, b)
        array([[ 3.,  3.],
               [12., 12.]])
    """
    if not operands:
        raise ShapeError(
            f"einsum: expected operands for {equation!r}; got none. Pass one per term."
        )
    nodes = align("einsum", *operands)
    terms, result = _parse(equation, [n.shape for n in nodes])
    extents = _extents(equation, terms, nodes)
    dtype = nodes[0].dtype
    is_one_matmul = len(nodes) == 2 and all(
        any(label in other for other in (result, *terms[:i], *terms[i + 1 :]))
        for i, term in enumerate(terms)
        for label in term
    )
    if dtype in FLOATS_16_BIT and not is_one_matmul:
        nodes = [cast(n, float32) for n in nodes]
    pending = [
        _simplify_term(equation, term, node, extents)
        for term, node in zip(terms, nodes, strict=True)
    ]
    for step in _contraction_path(pending, result):
        selected = [pending.pop(i) for i in sorted(step, reverse=True)]
        current = selected.pop()
        while selected:
            other = selected.pop()
            rest = result + "".join(labels for labels, _ in [*pending, *selected])
            current = _contract(current, other, rest)
        pending.append(current)
    labels, node = _sum_labels(*pending[0], keep=result)
    node = transpose(node, [labels.index(label) for label in result])
    return cast(node, dtype)


def _parse(equation: str, shapes: Sequence[Shape]) -> tuple[list[str], str]:
    """Return the labels of each operand and of the result of an einsum equation.

    "..." becomes letters that the equation does not use, one per axis.
    """
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
    unused = [letter for letter in string.ascii_letters if letter not in letters]
    num_ellipsis_axes = []
    for term, shape in zip(terms, shapes, strict=True):
        num_ellipsis_axes.append(len(shape) - len(term.replace("...", "")))
        if num_ellipsis_axes[-1] < 0 or (num_ellipsis_axes[-1] and "..." not in term):
            raise ShapeError(
                f"einsum: expected one label per axis in {equation!r}; got {term!r} for {shape}. "
                "Give the term one letter per axis, or an ellipsis."
            )
    max_ellipsis_axes = max(num_ellipsis_axes)
    shared = "".join(unused[:max_ellipsis_axes])
    terms = [
        t.replace("...", shared[max_ellipsis_axes - n :])
        for t, n in zip(terms, num_ellipsis_axes, strict=True)
    ]
    if arrow:
        result = result.replace("...", shared)
    else:
        single = sorted(label for label in set(letters) if letters.count(label) == 1)
        result = shared + "".join(single)
    if len(set(result)) != len(result) or not set(result) <= set("".join(terms)):
        raise ValueError(
            f"einsum: expected labels of operands in the result, each once; got {equation!r}. "
            "Remove the other labels from the result."
        )
    return terms, result


def _extents(equation: str, terms: Sequence[str], nodes: Sequence[Node]) -> dict[str, int]:
    """Return the extent of each label, from the shapes of the operands.

    An axis of size 1 broadcasts: if a label has the sizes 1 and 3 in two operands, its extent is 3.
    """
    extents: dict[str, int] = {}
    for term, node in zip(terms, nodes, strict=True):
        for label, n in zip(term, node.shape, strict=True):
            if extents.setdefault(label, n) == 1:
                extents[label] = n
            if n not in (1, extents[label]):
                types = describe_types(*(node.type for node in nodes))
                raise ShapeError(
                    f"einsum: expected one extent for {label!r} in {equation!r}; got {types}. "
                    "Transpose one."
                )
    return extents


def _simplify_term(equation: str, labels: str, x: Node, extents: dict[str, int]) -> LabeledNode:
    """Take the diagonals of labels that occur twice, and drop axes of size 1 that broadcast.

    `extents` is a dict from each label of the equation to its extent. An axis of size 1 broadcasts
    if the extent of its label is not 1. Return the labels of the remaining axes, each of which
    occurs once, and the node that has only these axes.
    """
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
            transposed = transpose(x, [*others, first, second])
            x = reshape(transposed, (*transposed.shape[:-2], n * n))[..., :: n + 1]
            labels = "".join(labels[axis] for axis in others) + label
    remaining = [(a, n) for a, n in zip(labels, x.shape, strict=True) if n == extents[a]]
    return "".join(label for label, _ in remaining), reshape(x, tuple(n for _, n in remaining))


def _contraction_path(operands: Sequence[LabeledNode], result: str) -> Iterable[Sequence[int]]:
    """Return the contractions in order, each as the indices of its operands in a list of operands.

    This list is `operands` at first. Each contraction removes its operands from it and appends its
    result, as in numpy.einsum_path. An example for three operands is [(0, 2), (0, 1)].
    """
    if len(operands) < 3:
        return [tuple(range(len(operands)))]
    equation = ",".join(labels for labels, _ in operands) + "->" + result
    shapes = [np.broadcast_to(np.float32(0), node.shape) for _, node in operands]
    return np.einsum_path(equation, *shapes, optimize="greedy")[0][1:]


def _sum_labels(labels: str, x: Node, keep: str) -> LabeledNode:
    """Sum x over the axes whose labels are not in `keep`. Return (remaining labels, sum)."""
    summed_axes = [axis for axis, label in enumerate(labels) if label not in keep]
    if not summed_axes:
        return labels, x
    total = cast(sum(x, summed_axes), x.dtype)  # `sum` widens small integers to 64 bits
    return "".join(label for label in labels if label in keep), total


def _contract(one: LabeledNode, other: LabeledNode, rest: str) -> LabeledNode:
    """Multiply two operands, and sum over each label that is not in `rest`.

    `rest` has the labels of the result and of all other operands.
    """
    a_labels, a = _sum_labels(*one, keep=rest + other[0])
    b_labels, b = _sum_labels(*other, keep=rest + one[0])
    batch = [label for label in a_labels if label in b_labels and label in rest]
    inner = [label for label in a_labels if label in b_labels and label not in rest]
    rows = [label for label in a_labels if label not in b_labels]
    columns = [label for label in b_labels if label not in a_labels]

    def arrange(labels: str, x: Node, *parts: list[str]) -> tuple[Node, list[Shape]]:
        """Transpose x so that its axes have the order of the labels in `parts`.

        `labels` names the axes of x, and each part is a list of labels, such as those of the batch
        axes. Return the transposed node, and for each part the extents of its axes.
        """
        order = [label for part in parts for label in part]
        transposed = transpose(x, [labels.index(label) for label in order])
        extents = dict(zip(order, transposed.shape, strict=True))
        return transposed, [tuple(extents[label] for label in part) for part in parts]

    left, (batches, left_rows, depth) = arrange(a_labels, a, batch, rows, inner)
    right, (_, _, right_columns) = arrange(b_labels, b, batch, inner, columns)
    shape = (*batches, *left_rows, *right_columns)
    m, k, n = (math.prod(part) for part in (left_rows, depth, right_columns))
    if inner:
        product = matmul(reshape(left, (*batches, m, k)), reshape(right, (*batches, k, n)))
    else:
        product = reshape(left, (*batches, m, 1)) * reshape(right, (*batches, 1, n))
    return "".join([*batch, *rows, *columns]), reshape(product, shape)
