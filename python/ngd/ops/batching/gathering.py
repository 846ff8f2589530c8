# SPDX-License-Identifier: Apache-2.0
"""Batching rules of ops that read and write by index."""

from __future__ import annotations

from collections.abc import Sequence

from ...dtypes import int64
from ...graph.node import Node
from .._casting import cast
from .._creation import arange
from .._gathering import ScatterAdd, Take, scatter_add, take
from .._rearrangement import moveaxis
from .._rows import row_number
from .._shape import broadcast_to, reshape, transpose
from .rewrite import Batched, Batching, Results, batches


def rows_of_examples(batching: Batching, node: Node, indices: Node, extent: int) -> Node:
    """Convert the row indices of each example to indices into the rows of all examples.

    The rows of example 0 come first, then those of example 1, and so on. Each example has `extent`
    rows, so index i of example b becomes b * extent + i. `indices` and the result have the batch
    axis. An index that is out of range for its example raises an error at run time, as without
    vmap.
    """
    caller = node.attrs.get("caller") or node.op.name
    if not node.attrs.get("negative", True):
        attrs = {"axis": 0, "caller": caller, "negative": False}
        indices = take.node((arange(extent), indices), attrs)
    indices = cast(indices, int64)
    examples = reshape(arange(batching.size), (batching.size, *(1,) * (indices.ndim - 1)))
    operands = (broadcast_to(examples, indices.shape), indices)
    axes = (0, node.attrs["axis"])
    attrs = {"extents": (batching.size, extent), "axes": axes, "caller": caller}
    return row_number.node(operands, attrs)


@batches(Take)
def batch_take(batching: Batching, node: Node, operands: Sequence[Batched]) -> Results:
    """Take elements of each example along the attribute `axis` of a node of the op `take`.

    An operand is mapped if it has the batch axis, as axis 0. If only the array is mapped, the
    elements are taken along axis + 1. If only the indices are mapped, one `take` with the indices
    of all examples is enough. If both are mapped, the arrays of all examples are concatenated along
    `axis`. If each array has size n along `axis`, i * n is added to the indices of example i.
    """
    (x, indices), axis = operands, node.attrs["axis"]
    if not indices.is_mapped:
        return node.op.node((x.node, indices.node), {**node.attrs, "axis": axis + 1})
    if not x.is_mapped:
        return moveaxis(node.op.node((x.node, indices.node), node.attrs), axis, 0)
    first = moveaxis(x.node, axis + 1, 1)
    extent, *others = first.shape[1:]
    rows = reshape(first, (batching.size * extent, *others))
    taken_rows = take(rows, rows_of_examples(batching, node, indices.node, extent), 0)
    num_index_axes = indices.node.ndim
    order = [
        *range(num_index_axes, num_index_axes + axis),
        *range(1, num_index_axes),
        *range(num_index_axes + axis, taken_rows.ndim),
    ]
    return transpose(taken_rows, [0, *order])


@batches(ScatterAdd)
def batch_scatter_add(batching: Batching, node: Node, operands: Sequence[Batched]) -> Results:
    """Add the updates of each example along the attribute `axis` of a node of `scatter_add`.

    An operand is mapped if it has the batch axis, as axis 0. If the indices are not mapped, the
    updates are added along axis + 1. If they are mapped, one `scatter_add` computes the results
    of all examples, concatenated along `axis`. If each result has size n along `axis`, i * n is
    added to the indices of example i.
    """
    (updates, indices), axis, size = operands, node.attrs["axis"], node.attrs["size"]
    if not indices.is_mapped:
        return node.op.node((updates.node, indices.node), {**node.attrs, "axis": axis + 1})
    batched_updates, end = batching.with_batch_axis(updates), axis + indices.node.ndim
    others = [*range(1, axis + 1), *range(end, batched_updates.ndim)]
    batched_updates = transpose(batched_updates, [0, *range(axis + 1, end), *others])
    rows = rows_of_examples(batching, node, indices.node, size)
    total = scatter_add(batched_updates, rows, 0, batching.size * size)
    total = reshape(total, (batching.size, size, *total.shape[1:]))
    return moveaxis(total, 1, axis + 1)
