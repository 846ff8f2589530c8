# SPDX-License-Identifier: Apache-2.0
"""Rules that translate matrix multiplications and convolutions of PyTorch into ngd nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

from .... import ops
from ....graph.node import Node
from .registry import Call, Sample, T, as_node, as_optional_node, expect, rule

aten: Final = torch.ops.aten

IMAGE: Final = T((2, 4, 5, 6))
PerAxis = int | Sequence[int]


@rule(
    aten.matmul.default,
    samples=[
        Sample(T((2, 3)), T((3, 4))),
        Sample(T((2, 1, 2, 3)), T((5, 3, 4))),
        Sample(T((3,)), T((2, 3, 4))),
    ],
)
@rule(aten.mm.default, samples=[Sample(T((2, 3)), T((3, 4)))])
@rule(aten.bmm.default, samples=[Sample(T((5, 2, 3)), T((5, 3, 4)))])
@rule(aten.mv.default, samples=[Sample(T((2, 3)), T((3,)))])
@rule(aten.dot.default, samples=[Sample(T((3,)), T((3,)))])
def matmul(call: Call, a: Any, b: Any) -> Node:
    return ops.matmul(as_node(a), as_node(b))


@rule(
    aten.linear.default,
    samples=[Sample(T((2, 3, 4)), T((5, 4)), T((5,))), Sample(T((4,)), T((5, 4)))],
)
def linear(call: Call, x: Any, weight: Any, bias: Any = None) -> Node:
    y = ops.matmul(as_node(x), ops.swapaxes(as_node(weight), -1, -2))
    return y if bias is None else y + as_node(bias)


@rule(
    aten.addmm.default,
    samples=[
        Sample(T((4,)), T((2, 3)), T((3, 4))),
        Sample(T((2, 4)), T((2, 3)), T((3, 4)), beta=0.5, alpha=2),
    ],
)
@rule(aten.baddbmm.default, samples=[Sample(T((5, 2, 4)), T((5, 2, 3)), T((5, 3, 4)), beta=0.5)])
def add_matmul(call: Call, x: Any, a: Any, b: Any, beta: Any = 1, alpha: Any = 1) -> Node:
    product = ops.matmul(as_node(a), as_node(b))
    if alpha != 1:
        product = product * call.cast(alpha)
    if beta == 0:
        return product
    return (as_node(x) if beta == 1 else as_node(x) * call.cast(beta)) + product


@rule(aten.addcmul.default, samples=[Sample(T((2, 3)), T((2, 3)), T((3,)), value=0.5)])
@rule(aten.addcdiv.default, samples=[Sample(T((2, 3)), T((2, 3)), T((3,), low=1, high=2))])
def add_elementwise(call: Call, x: Any, a: Any, b: Any, value: Any = 1) -> Node:
    a, b = call.cast(a), call.cast(b)
    return call.cast(x) + call.cast(value) * (a * b if "addcmul" in call.name else a / b)


@rule(aten.einsum.default, samples=[Sample("bij,bjk->bik", [T((2, 3, 4)), T((2, 4, 5))])])
def einsum(call: Call, equation: str, operands: Sequence[Any], path: Any = None) -> Node:
    return ops.einsum(equation.replace(" ", ""), *map(as_node, operands))


@rule("aten._grouped_mm.default", "transformers.grouped_mm_fallback.default")
def grouped_matmul(
    call: Call, x: Any, weight: Any, offsets: Any, bias: Any = None, out_dtype: Any = None
) -> Node:
    x, weight = as_node(x), as_node(weight)
    is_plain = (x.ndim, weight.ndim) == (2, 3) and offsets is not None and bias is None
    expect(is_plain, f"{call.name} other than of rows [rows, k] by weights [groups, k, n]")
    return call.cast(ops.grouped_matmul(x, weight, as_node(offsets)))


@rule(aten.outer.default, samples=[Sample(T((3,)), T((4,)))])
def outer(call: Call, a: Any, b: Any) -> Node:
    return ops.outer(as_node(a), as_node(b))


def per_axis(value: PerAxis) -> Any:
    """Return an argument such as a stride or padding in the form that ngd takes.

    PyTorch passes an int for all axes, or a list of ints. A list of one int becomes an int, and a
    longer list becomes a tuple.
    """
    if isinstance(value, int):
        return value
    return value[0] if len(value) == 1 else tuple(value)


@rule(
    aten.conv2d.default,
    samples=[
        Sample(IMAGE, T((6, 4, 3, 3)), T((6,))),
        Sample(IMAGE, T((6, 2, 3, 3)), None, (2, 1), (1, 0), (1, 1), 2),
        Sample(IMAGE, T((4, 1, 3, 3)), T((4,)), [1, 1], [2, 2], [2, 2], 4),
    ],
)
@rule(aten.conv2d.padding, samples=[Sample(IMAGE, T((6, 4, 3, 3)), None, [1, 1], "same")])
@rule(aten.conv1d.default, samples=[Sample(T((2, 4, 7)), T((6, 4, 3)), T((6,)), (2,), (1,))])
@rule(aten.conv1d.padding, samples=[Sample(T((2, 4, 7)), T((6, 4, 3)), None, [1], "valid")])
@rule(aten.conv3d.default, samples=[Sample(T((1, 2, 3, 4, 4)), T((3, 2, 2, 2, 2)), T((3,)))])
@rule(
    aten.conv3d.padding,
    samples=[Sample(T((1, 2, 3, 4, 4)), T((3, 2, 3, 3, 3)), None, [1, 1, 1], "same")],
)
def convolution(
    call: Call,
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: PerAxis = 1,
    padding: PerAxis | str = 0,
    dilation: PerAxis = 1,
    groups: int = 1,
) -> Node:
    x, weight = as_node(x), as_node(weight)
    without_batch = x.ndim == weight.ndim - 1
    y = ops.conv(
        ops.expand_dims(x, 0) if without_batch else x,
        weight,
        as_optional_node(bias),
        per_axis(stride),
        padding if isinstance(padding, str) else per_axis(padding),
        per_axis(dilation),
        groups,
    )
    return ops.reshape(y, call.shape) if without_batch else y


@rule(
    aten.conv_transpose2d.input,
    samples=[
        Sample(IMAGE, T((4, 3, 3, 3)), T((3,)), (2, 2), (1, 1), (1, 1)),
        Sample(IMAGE, T((4, 3, 3, 3)), None, [1, 1], [0, 0], [0, 0], 2, [2, 2]),
    ],
)
@rule(aten.conv_transpose1d.default, samples=[Sample(T((2, 4, 7)), T((4, 3, 3)), T((3,)), (2,))])
@rule(aten.conv_transpose3d.input, samples=[Sample(T((1, 2, 3, 3, 3)), T((2, 3, 2, 2, 2)))])
def transposed_convolution(
    call: Call, x: Any, weight: Any, bias: Any = None, *options: PerAxis
) -> Node:
    x, weight, bias = as_node(x), as_node(weight), as_optional_node(bias)
    # PyTorch and ngd take the options in the same order.
    return ops.conv_transpose(x, weight, bias, *map(per_axis, options))
