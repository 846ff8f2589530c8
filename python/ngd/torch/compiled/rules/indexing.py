# SPDX-License-Identifier: Apache-2.0
"""Rules that translate PyTorch's reads and writes of elements by index into ngd nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch

from .... import ops
from ....graph.node import Node
from .registry import Call, Sample, T, UnsupportedOpError, as_array, as_node, expect, rule

aten: Final = torch.ops.aten

X: Final = T((4, 3))
ROWS: Final = T((5,), torch.int64, low=0, high=4)
INDICES: Final = T((2, 3), torch.int64, low=0, high=4)


@rule(
    aten.embedding.default,
    samples=[Sample(X, INDICES), Sample(X, INDICES, 1)],
)
def embedding(
    call: Call,
    weight: Any,
    indices: Any,
    padding_idx: int = -1,
    scale_by_frequency: bool = False,
    sparse: bool = False,
) -> Node:
    expect(not scale_by_frequency, "embedding with scale_grad_by_freq=True")
    padding = None if padding_idx is None or padding_idx < 0 else padding_idx
    return ops.embedding(as_node(indices), as_node(weight), padding)


def _is_computed_mask(index: Any) -> bool:
    """Return True if an index is a boolean mask that the step computes, not a constant one.

    The number of true elements of a computed mask is not known when the step is compiled.
    """
    return isinstance(index, Node) and index.dtype.kind == "b"


def _index(indices: Sequence[Any]) -> tuple[Any, ...]:
    """Return the index tuple for a node of ngd (`node[index]`) from PyTorch's list of indices.

    In the list, None means all elements of a dimension and becomes a full slice. A constant tensor
    becomes an array, and a node stays a node.
    """
    for index in indices:
        use = "an index by a computed mask, whose result has no fixed shape"
        expect(not _is_computed_mask(index), use)
    return tuple(
        slice(None)
        if index is None
        else as_array(index)
        if isinstance(index, torch.Tensor)
        else index
        for index in indices
    )


@rule(
    aten.index.Tensor,
    aten._unsafe_index.Tensor,
    samples=[Sample(X, [ROWS]), Sample(X, [None, T((2, 2), torch.int64, low=0, high=3)])],
)
def index(call: Call, x: Any, indices: Sequence[Any]) -> Node:
    return as_node(x)[_index(indices)]


@rule(
    aten.index_put.default,
    aten._unsafe_index_put.default,
    samples=[Sample(X, [T((2,), torch.int64, low=1, high=2)], T((2, 3)), True)],
)
def index_put(
    call: Call, x: Any, indices: Sequence[Any], values: Any, accumulate: bool = False
) -> Node:
    x, values = as_node(x), call.cast(values)
    if len(indices) == 1 and (_is_computed_mask(indices[0]) or values.size == 1):
        mask = as_node(indices[0])
        if mask.dtype.kind == "b":
            return _put_where(x, mask, values, accumulate)
    target = x.at[_index(indices)]
    return target.add(values) if accumulate else target.set(values)


def _put_where(x: Node, mask: Node, value: Node, accumulate: bool) -> Node:
    """Return `x` with new values of the elements where a mask is true.

    `value` is one number: the new value, or the increment if `accumulate` is True. If the mask has
    fewer axes than `x`, its axes are the first axes of `x`.
    """
    expect(value.size == 1, "an assignment of several values by a computed mask")
    mask = ops.reshape(mask, mask.shape + (1,) * (x.ndim - mask.ndim))
    value = ops.reshape(value, ())
    return ops.where(mask, x + value if accumulate else value, x)


@rule(
    aten.gather.default, samples=[Sample(X, 0, INDICES), Sample(X, 1, T((4, 2), torch.int64, 0, 3))]
)
def gather(call: Call, x: Any, dim: int, indices: Any, sparse_grad: bool = False) -> Node:
    x, indices = as_node(x), as_node(indices)
    if x.ndim == 0:
        return ops.broadcast_to(x, call.shape)
    dim %= x.ndim
    x = x[_corner(x, dim, indices)]
    return ops.take_along_axis(x, indices, dim)


def _corner(x: Node, dim: int, indices: Node) -> tuple[slice, ...]:
    """Return the index of the part of `x` that gather can read.

    In a dimension d other than `dim`, gather reads only the first `indices.shape[d]` positions, and
    `x` may be longer than that. In dimension `dim`, gather can read any position.
    """
    return tuple(
        slice(None) if axis == dim else slice(0, indices.shape[axis]) for axis in range(x.ndim)
    )


@rule(
    aten.index_select.default,
    samples=[Sample(X, 0, ROWS), Sample(X, 1, T((2,), torch.int64, 0, 3))],
)
def index_select(call: Call, x: Any, dim: int, indices: Any) -> Node:
    x = as_node(x)
    return ops.take(x, as_node(indices), dim) if x.ndim else x


def _full_index(indices: Node, dim: int) -> tuple[Any, ...]:
    """Return the index tuple of the elements that scatter writes to.

    For example, scatter with `dim` 0 writes `source[i, j]` to the element `[indices[i, j], j]`:
    the position in dimension `dim` is taken from `indices`, and the other positions are kept.
    """
    return tuple(
        indices
        if axis == dim
        else np.broadcast_to(
            np.arange(length).reshape([-1 if k == axis else 1 for k in range(indices.ndim)]),
            indices.shape,
        )
        for axis, length in enumerate(indices.shape)
    )


@rule(aten.scatter.value, samples=[Sample(X, 0, INDICES, 2.0)])
@rule(aten.scatter.src, samples=[Sample(X, 1, T((4, 1), torch.int64, 0, 3), T((4, 1)))])
@rule(aten.scatter_add.default, samples=[Sample(X, 0, INDICES, T((2, 3)))])
def scatter(call: Call, x: Any, dim: int, indices: Any, source: Any) -> Node:
    x, indices = as_node(x), as_node(indices)
    source = call.cast(source)
    if source.ndim:
        source = source[tuple(slice(0, length) for length in indices.shape)]
    target = x.at[_full_index(indices, dim % x.ndim)]
    return target.add(source) if "scatter_add" in call.name else target.set(source)


@rule(aten.index_add.default, samples=[Sample(X, 0, ROWS, T((5, 3)), alpha=0.5)])
def index_add(call: Call, x: Any, dim: int, indices: Any, source: Any, alpha: Any = 1) -> Node:
    x = as_node(x)
    index: list[Any] = [slice(None)] * x.ndim
    index[dim] = as_node(indices)
    source = call.cast(source)
    return x.at[tuple(index)].add(source if alpha == 1 else source * call.cast(alpha))


@rule(aten.take_along_dim.default, samples=[Sample(X, INDICES, 0)])
def take_along_dim(call: Call, x: Any, indices: Any, dim: int | None = None) -> Node:
    if dim is None:
        raise UnsupportedOpError("take_along_dim without a dimension")
    return ops.take_along_axis(as_node(x), as_node(indices), dim)


@rule(aten.one_hot.default, samples=[Sample(ROWS, 4)])
def one_hot(call: Call, x: Any, classes: int = -1) -> Node:
    expect(classes > 0, "one_hot without num_classes")
    return ops.one_hot(as_node(x), classes, call.dtype)
