# SPDX-License-Identifier: Apache-2.0
"""Rules that translate PyTorch ops that only move elements into ngd nodes.

Such ops are views, slices, concatenation and padding.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch

from .... import ops
from ....graph.node import Node
from .registry import Call, NodeOrNodes, Sample, T, as_node, axes_of, expect, rule

aten: Final = torch.ops.aten

X: Final = T((2, 3, 4))
SQUARE: Final = T((4, 4))


@rule(operator.getitem)
def output_of(call: Call, outputs: Any, index: int) -> NodeOrNodes:
    return outputs[index]


@rule(aten.view.default, aten.reshape.default, samples=[Sample(X, (6, 4)), Sample(X, (-1,))])
@rule(aten._unsafe_view.default, samples=[Sample(X, (6, 4))])
@rule(aten.flatten.using_ints, samples=[Sample(X, 1), Sample(X, 0, 1)])
@rule(aten.unflatten.int, samples=[Sample(X, 2, (2, 2))])
@rule(aten.unsqueeze.default, samples=[Sample(X, 1), Sample(X, -1)])
@rule(aten.squeeze.dim, samples=[Sample(T((2, 1, 3)), 1), Sample(X, 1)])
@rule(aten.squeeze.dims, samples=[Sample(T((2, 1, 3, 1)), (1, 3))])
@rule(aten.squeeze.default, samples=[Sample(T((2, 1, 3)))])
@rule(aten.view_as.default, aten.reshape_as.default, samples=[Sample(X, T((6, 4)))])
def reshape(call: Call, x: Any, *shape: Any) -> Node:
    return ops.reshape(as_node(x), call.shape)


@rule(aten.permute.default, samples=[Sample(X, (2, 0, 1)), Sample(X, (0, -1, 1))])
def permute(call: Call, x: Any, dims: Sequence[int]) -> Node:
    return ops.transpose(as_node(x), [dim % len(dims) for dim in dims])


@rule(aten.transpose.int, samples=[Sample(X, 0, 2), Sample(X, -1, -2)])
def transpose(call: Call, x: Any, dim0: int, dim1: int) -> Node:
    x = as_node(x)
    return ops.swapaxes(x, dim0, dim1) if x.ndim else x


@rule(aten.t.default, samples=[Sample(SQUARE), Sample(T((3,)))])
@rule(aten.mT.default, aten.numpy_T.default, samples=[Sample(SQUARE)])
def matrix_transpose(call: Call, x: Any) -> Node:
    x = as_node(x)
    return ops.swapaxes(x, -1, -2) if x.ndim > 1 else x


@rule(aten.movedim.int, samples=[Sample(X, 0, 2), Sample(X, -1, 0)])
def move_axis(call: Call, x: Any, source: int, destination: int) -> Node:
    return ops.moveaxis(as_node(x), source, destination)


@rule(aten.expand.default, samples=[Sample(T((2, 1, 4)), (2, 3, -1)), Sample(T((3,)), (2, 3))])
@rule(aten.expand_as.default, samples=[Sample(T((3, 1)), X)])
@rule(aten.broadcast_to.default, samples=[Sample(T((3,)), (2, 3))])
def broadcast(call: Call, x: Any, *shape: Any, **options: Any) -> Node:
    return ops.broadcast_to(as_node(x), call.shape)


@rule(aten.broadcast_tensors.default, samples=[Sample([X, T((3, 1))])])
def broadcast_all(call: Call, tensors: Sequence[Any]) -> NodeOrNodes:
    shapes = (tuple(output.shape) for output in call.outputs)
    return tuple(
        ops.broadcast_to(as_node(x), shape) for x, shape in zip(tensors, shapes, strict=True)
    )


@rule(
    aten.slice.Tensor,
    samples=[Sample(X, 1, 1), Sample(X, -1, -3, 99), Sample(X, 2, 0, 4, 2), Sample(X)],
)
def slice_along(
    call: Call,
    x: Any,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Node:
    return as_node(x)[index_along(as_node(x), dim, slice(start, end, step))]


def index_along(x: Node, dim: int, index: Any) -> tuple[Any, ...]:
    """Return an index tuple that is `index` in dimension `dim` and a full slice in others."""
    index_: list[Any] = [slice(None)] * x.ndim
    index_[dim] = index
    return tuple(index_)


@rule(aten.select.int, samples=[Sample(X, 1, 2), Sample(X, -1, -1)])
def select(call: Call, x: Any, dim: int, index: int) -> Node:
    return as_node(x)[index_along(as_node(x), dim, index)]


@rule(aten.narrow.default, samples=[Sample(X, 1, 1, 2)])
def narrow(call: Call, x: Any, dim: int, start: int, length: int) -> Node:
    return as_node(x)[index_along(as_node(x), dim, slice(start, start + length))]


@rule(aten.slice_scatter.default, samples=[Sample(X, T((2, 1, 4)), 1, 1, 2)])
def slice_scatter(
    call: Call,
    x: Any,
    source: Any,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Node:
    x = as_node(x)
    return x.at[index_along(x, dim, slice(start, end, step))].set(call.cast(source))


@rule(aten.select_scatter.default, samples=[Sample(X, T((2, 4)), 1, 2)])
def select_scatter(call: Call, x: Any, source: Any, dim: int, index: int) -> Node:
    x = as_node(x)
    return x.at[index_along(x, dim, index)].set(call.cast(source))


@rule(aten.cat.default, samples=[Sample([X, X], 1), Sample([X, T((0,))], -1)])
def concat(call: Call, tensors: Sequence[Any], dim: int = 0) -> Node:
    nodes = [call.cast(x) for x in tensors]
    nodes = [x for x in nodes if x.shape != (0,)] or nodes[:1]  # PyTorch ignores empty vectors
    return nodes[0] if len(nodes) == 1 else ops.concat(nodes, dim)


@rule(aten.stack.default, samples=[Sample([X, X], 1), Sample([X, X], -1)])
def stack(call: Call, tensors: Sequence[Any], dim: int = 0) -> Node:
    return ops.stack([call.cast(x) for x in tensors], dim)


@rule(aten.split.Tensor, samples=[Sample(X, 2, 1), Sample(X, 3, 2)])
@rule(aten.split_with_sizes.default, samples=[Sample(X, (1, 3), 2)])
@rule(aten.chunk.default, samples=[Sample(X, 2, 2), Sample(X, 2, 1)])
@rule(aten.tensor_split.sections, samples=[Sample(X, 2, 1)])
def split(call: Call, x: Any, sections: Any, dim: int = 0) -> NodeOrNodes:
    sizes = [int(output.shape[dim]) for output in call.outputs]
    if len(sizes) == 1:
        return (as_node(x),)
    return ops.split(as_node(x), [int(end) for end in np.cumsum(sizes)[:-1]], dim)


@rule(aten.unbind.int, samples=[Sample(X), Sample(X, -1)])
def unbind(call: Call, x: Any, dim: int = 0) -> NodeOrNodes:
    return ops.unbind(as_node(x), dim)


@rule(aten.repeat.default, samples=[Sample(T((2, 3)), (2, 1, 2))])
def repeat(call: Call, x: Any, repeats: Sequence[int]) -> Node:
    x = as_node(x)
    x = ops.reshape(x, (1,) * (len(repeats) - x.ndim) + x.shape)
    return ops.tile(x, tuple(repeats))


@rule(aten.repeat_interleave.self_int, samples=[Sample(X, 2, 1), Sample(X, 2)])
def repeat_interleave(
    call: Call, x: Any, repeats: int, dim: int | None = None, output_size: int | None = None
) -> Node:
    return ops.repeat(as_node(x), repeats, dim)


@rule(
    aten.roll.default, samples=[Sample(X, (1,), (1,)), Sample(X, (1, 2), (0, 2)), Sample(X, (1,))]
)
def roll(call: Call, x: Any, shifts: Sequence[int], dims: Sequence[int] = ()) -> Node:
    x = as_node(x)
    return ops.roll(x, tuple(shifts), tuple(dims)) if dims else ops.roll(x, shifts[0])


@rule(aten.flip.default, samples=[Sample(X, (0, 2)), Sample(X, (-1,))])
def flip(call: Call, x: Any, dims: Sequence[int]) -> Node:
    x = as_node(x)
    return ops.flip(x, axes_of(dims, x.ndim))


PADDING_MODES: Final = {"constant": "constant", "reflect": "reflect", "replicate": "edge"}


@rule(
    aten.pad.default,
    samples=[
        Sample(X, (1, 2)),
        Sample(X, (0, 0, 1, -1), "constant", 1.5),
        Sample(X, (1, 2), "reflect"),
        Sample(X, (1, 2), "replicate"),
    ],
)
def pad(
    call: Call, x: Any, padding: Sequence[int], mode: str = "constant", value: float | None = None
) -> Node:
    expect(mode in PADDING_MODES, f"padding of mode {mode!r}")
    x = as_node(x)
    before_last = [(padding[i], padding[i + 1]) for i in range(0, len(padding), 2)]
    widths = [(0, 0)] * (x.ndim - len(before_last)) + before_last[::-1]
    x = x[
        tuple(slice(max(-a, 0), n - max(-b, 0)) for n, (a, b) in zip(x.shape, widths, strict=True))
    ]
    widths = [(max(a, 0), max(b, 0)) for a, b in widths]
    if not any(a or b for a, b in widths):
        return x
    if mode == "constant":
        return ops.pad(x, widths, "constant", as_node(value or 0, x.dtype))
    return ops.pad(x, widths, PADDING_MODES[mode])


@rule(aten.constant_pad_nd.default, samples=[Sample(X, (1, 2), 0.5)])
def constant_pad(call: Call, x: Any, padding: Sequence[int], value: float = 0) -> Node:
    return pad(call, x, padding, "constant", value)


@rule(aten.triu.default, aten.tril.default, samples=[Sample(SQUARE), Sample(X, -1), Sample(X, 1)])
def triangle(call: Call, x: Any, diagonal: int = 0) -> Node:
    function = ops.triu if "triu" in call.name else ops.tril
    return function(as_node(x), diagonal)


@rule(aten.diagonal.default, samples=[Sample(X), Sample(X, 1, 1, 2)])
def diagonal(call: Call, x: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Node:
    return ops.diagonal(as_node(x), offset, dim1, dim2)


@rule(aten.pixel_shuffle.default, samples=[Sample(T((1, 4, 2, 3)), 2)])
def pixel_shuffle(call: Call, x: Any, factor: int) -> Node:
    return ops.pixel_shuffle(as_node(x), factor)


@rule(aten.pixel_unshuffle.default, samples=[Sample(T((1, 1, 4, 6)), 2)])
def pixel_unshuffle(call: Call, x: Any, factor: int) -> Node:
    return ops.pixel_unshuffle(as_node(x), factor)


@rule(aten.diff.default, samples=[Sample(X), Sample(X, 2, 1)])
def diff(
    call: Call, x: Any, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None
) -> Node:
    expect(prepend is None and append is None, "diff with prepend or append")
    return ops.diff(as_node(x), n, dim)


@rule(aten.unfold.default, samples=[Sample(X, 2, 2, 1), Sample(X, 1, 2, 1)])
def sliding_windows(call: Call, x: Any, dim: int, size: int, step: int) -> Node:
    x = as_node(x)
    dim %= x.ndim
    starts = np.arange(0, x.shape[dim] - size + 1, step)
    windows = ops.take(x, starts[:, None] + np.arange(size), dim)
    return ops.moveaxis(windows, dim + 1, -1)


@rule(aten.im2col.default, samples=[Sample(T((2, 3, 5, 4)), (2, 2), (1, 1), (1, 0), (2, 1))])
def image_to_columns(
    call: Call,
    x: Any,
    kernel: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Node:
    return ops.unfold(as_node(x), tuple(kernel), tuple(dilation), tuple(padding), tuple(stride))


@rule(
    aten.col2im.default,
    samples=[Sample(T((2, 12, 12)), (5, 4), (2, 2), (1, 1), (0, 0), (1, 1))],
)
def columns_to_image(
    call: Call,
    x: Any,
    size: Sequence[int],
    kernel: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Node:
    pairs = (tuple(each) for each in (size, kernel, dilation, padding, stride))
    return ops.fold(as_node(x), *pairs)
