# SPDX-License-Identifier: Apache-2.0
"""Rules that translate random ops of PyTorch into ngd nodes.

ngd draws other random numbers than PyTorch, even with the same seed.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from .... import ops
from ....graph.node import Node
from .registry import Call, NodeOrNodes, as_node, rule

aten: Final = torch.ops.aten


@rule(aten.native_dropout.default, is_random=True)
def dropout_and_mask(call: Call, x: Any, rate: float, training: bool | None = True) -> NodeOrNodes:
    return dropout(call, x, rate, training is not False), None


@rule(aten.dropout.default, is_random=True)
def dropout(call: Call, x: Any, rate: float, training: bool) -> Node:
    if rate == 0 or not training:
        return as_node(x)
    if rate == 1:
        return as_node(x) * call.cast(0)
    return ops.dropout(as_node(x), rate, **call.draws.next())


@rule(aten.rand.default, aten.rand_like.default, is_random=True)
def uniform(call: Call, *args: Any, **options: Any) -> Node:
    return ops.random_uniform(call.shape, call.dtype, **call.draws.next())


@rule(aten.randn.default, aten.randn_like.default, is_random=True)
def normal(call: Call, *args: Any, **options: Any) -> Node:
    return ops.random_normal(call.shape, call.dtype, **call.draws.next())


@rule(aten.randint.default, is_random=True)
def integers_below(call: Call, high: int, *args: Any, **options: Any) -> Node:
    return ops.randint(call.shape, 0, high, call.dtype, **call.draws.next())


@rule(aten.randint.low, is_random=True)
def integers(call: Call, low: int, high: int, *args: Any, **options: Any) -> Node:
    return ops.randint(call.shape, low, high, call.dtype, **call.draws.next())


@rule(aten.bernoulli.p, is_random=True)
def bernoulli(call: Call, x: Any, p: float = 0.5, **options: Any) -> Node:
    return call.cast(ops.bernoulli(p, call.shape, **call.draws.next()))


@rule(aten.bernoulli.default, is_random=True)
def bernoulli_of_each(call: Call, p: Any, **options: Any) -> Node:
    return call.cast(ops.bernoulli(as_node(p), **call.draws.next()))


@rule(aten.randperm.default, is_random=True)
def permutation(call: Call, n: int, **options: Any) -> Node:
    return call.cast(ops.permutation(n, **call.draws.next()))
