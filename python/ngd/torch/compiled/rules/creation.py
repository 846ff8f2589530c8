# SPDX-License-Identifier: Apache-2.0
"""Rules that translate PyTorch ops that make tensors, such as zeros_like, into ngd nodes.

If no argument of a call is an ngd node, no rule is used. PyTorch then computes the call once, when
the step is compiled, and the result is a constant.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from .... import ops
from ....graph.node import Node
from .registry import Call, Sample, T, rule

aten: Final = torch.ops.aten

X: Final = T((2, 3), has_grad=False)


@rule(
    aten.zeros_like.default,
    aten.empty_like.default,
    aten.new_zeros.default,
    aten.new_empty.default,
    aten.zero.default,
    samples=[],
)
def zeros(call: Call, *args: Any, **options: Any) -> Node:
    return ops.zeros(call.shape, call.dtype)


@rule(aten.ones_like.default, samples=[Sample(X), Sample(X, dtype=torch.int64)])
@rule(aten.new_ones.default, samples=[Sample(X, (4,))])
def ones(call: Call, *args: Any, **options: Any) -> Node:
    return ops.ones(call.shape, call.dtype)


@rule(aten.full_like.default, samples=[Sample(X, 2.5)])
def full_like(call: Call, x: Any, value: Any, **options: Any) -> Node:
    return ops.broadcast_to(call.cast(value), call.shape)


@rule(aten.new_full.default, samples=[Sample(X, (4, 2), 2.5)])
def new_full(call: Call, x: Any, size: Any, value: Any, **options: Any) -> Node:
    return ops.broadcast_to(call.cast(value), call.shape)


@rule(aten.full.default, samples=[])
def full(call: Call, size: Any, value: Any, **options: Any) -> Node:
    return ops.broadcast_to(call.cast(value), call.shape)
