# SPDX-License-Identifier: Apache-2.0
"""Rules that translate reductions, cumulative ops and sorting of PyTorch into ngd nodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from .... import ops
from ....graph.node import Node
from .registry import Call, NodeOrNodes, Sample, T, as_flags, as_node, axes_of, expect, rule

aten: Final = torch.ops.aten

X: Final = T((2, 3, 4))
INTEGERS: Final = T((2, 3), torch.int64, low=-5, high=6)
Dim = int | Sequence[int] | None

REDUCTIONS: Final[dict[str, tuple[Callable[..., Node], list[Any], list[Any]]]] = {
    "mean": (ops.mean, [aten.mean.default], [aten.mean.dim]),
    "prod": (ops.prod, [aten.prod.default], [aten.prod.dim_int]),
    "sum": (ops.sum, [aten.sum.default], [aten.sum.dim_IntList]),
}
"""The reductions whose aten ops have an argument `dtype`, the dtype in which PyTorch computes the
reduction and returns the result."""


def _register_reduction(function: Callable[..., Node], whole: Any, along: Any) -> None:
    @rule(whole, samples=[Sample(X), Sample(X, dtype=torch.float32)])
    def reduce_all(call: Call, x: Any, dtype: Any = None) -> Node:
        return function(call.cast(x))

    dim = 1 if "int" in along._overloadname else (0, -1)

    @rule(along, samples=[Sample(X, dim), Sample(X, dim, True)])
    def reduce_along(
        call: Call, x: Any, dim: Dim = None, keepdim: bool = False, dtype: Any = None
    ) -> Node:
        x = call.cast(x)
        return ops.reshape(function(x, axes_of(dim, x.ndim)), call.shape)


for _function, (_whole,), (_along,) in REDUCTIONS.values():
    _register_reduction(_function, _whole, _along)


@rule(aten.amax.default, aten.amin.default, samples=[Sample(X, (1,)), Sample(X, (0, 2), True)])
def extremes(call: Call, x: Any, dim: Dim = None, keepdim: bool = False) -> Node:
    x = as_node(x)
    function = ops.max if "amax" in call.name else ops.min
    return ops.reshape(function(x, axes_of(dim, x.ndim)), call.shape)


@rule(aten.max.default, aten.min.default, samples=[Sample(X)])
def extreme(call: Call, x: Any) -> Node:
    return (ops.max if "max" in call.name else ops.min)(as_node(x))


@rule(aten.max.dim, aten.min.dim, samples=[Sample(X, 1), Sample(X, -1, True)])
def extreme_and_index(call: Call, x: Any, dim: int, keepdim: bool = False) -> NodeOrNodes:
    x = as_node(x)
    indices = (ops.argmax if "max" in call.name else ops.argmin)(x, dim, keepdims=True)
    values = ops.take_along_axis(x, indices, dim)
    return ops.reshape(values, call.shape), ops.reshape(indices, call.shape)


@rule(
    aten.argmax.default, aten.argmin.default, samples=[Sample(X), Sample(X, 1), Sample(X, 1, True)]
)
def index_of_extreme(call: Call, x: Any, dim: int | None = None, keepdim: bool = False) -> Node:
    function = ops.argmax if "argmax" in call.name else ops.argmin
    return ops.reshape(function(as_node(x), dim), call.shape)


@rule(aten.any.default, aten.all.default, samples=[Sample(INTEGERS)])
@rule(aten.any.dim, aten.all.dim, samples=[Sample(INTEGERS, 1), Sample(INTEGERS, -1, True)])
@rule(
    aten.any.dims, aten.all.dims, samples=[Sample(INTEGERS, (0, 1)), Sample(INTEGERS, (1,), True)]
)
def any_or_all(call: Call, x: Any, dim: Dim = None, keepdim: bool = False) -> Node:
    flags = as_flags(x)
    function = ops.any if "any" in call.name else ops.all
    return ops.reshape(function(flags, axes_of(dim, flags.ndim)), call.shape)


@rule(aten.logsumexp.default, samples=[Sample(X, (1,)), Sample(X, (0, 2), True)])
def logsumexp(call: Call, x: Any, dim: Dim, keepdim: bool = False) -> Node:
    x = call.cast(x)
    return ops.reshape(ops.logsumexp(x, axes_of(dim, x.ndim)), call.shape)


@rule(
    aten.var.correction,
    aten.std.correction,
    samples=[Sample(X), Sample(X, (1,), correction=0), Sample(X, (0, 2), keepdim=True)],
)
@rule(aten.var_mean.correction, samples=[Sample(X, (1,)), Sample(X, (0, 2), keepdim=True)])
def variance(
    call: Call, x: Any, dim: Dim = None, correction: Any = 1, keepdim: bool = False
) -> NodeOrNodes:
    x = as_node(x)
    axes, ddof = axes_of(dim, x.ndim), 1 if correction is None else correction
    function = ops.std if "std" in call.name else ops.var
    count = math.prod(x.shape[axis] for axis in (axes or range(x.ndim)))
    use = f"a variance of {count} elements with correction={correction}, which is not finite"
    expect(ddof < count, use)
    result = function(x, axes, ddof=ddof)
    result = ops.reshape(result, call.shape)
    if "var_mean" not in call.name:
        return result
    return result, ops.reshape(ops.mean(x, axes), call.shape)


@rule(
    aten.cumsum.default,
    samples=[Sample(X, 1), Sample(INTEGERS, -1), Sample(X, 0, dtype=torch.float32)],
)
@rule(aten.cumprod.default, samples=[Sample(X, 1)])
def cumulate(call: Call, x: Any, dim: int, dtype: Any = None) -> Node:
    x = call.cast(x)
    function = ops.cumsum if "cumsum" in call.name else ops.cumprod
    return call.cast(function(x, dim)) if x.ndim else x


@rule(aten.logcumsumexp.default, samples=[Sample(X, 1)])
def logcumsumexp(call: Call, x: Any, dim: int) -> Node:
    return ops.logcumsumexp(as_node(x), dim)


@rule(aten.topk.default, samples=[Sample(X, 2), Sample(X, 2, 1), Sample(X, 2, 1, False)])
def top_k(
    call: Call, x: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> NodeOrNodes:
    return ops.top_k(as_node(x), k, dim, largest)


@rule(aten.sort.default, samples=[Sample(X), Sample(X, 1, True)])
@rule(aten.sort.stable, samples=[Sample(X, stable=True, dim=1, descending=True)])
def sort(
    call: Call, x: Any, dim: int = -1, descending: bool = False, stable: bool | None = None
) -> NodeOrNodes:
    x = as_node(x)
    indices = ops.argsort(x, dim, descending)
    return ops.take_along_axis(x, indices, dim), indices


@rule(aten.argsort.default, samples=[Sample(X), Sample(X, 1, True)])
def argsort(call: Call, x: Any, dim: int = -1, descending: bool = False) -> Node:
    return ops.argsort(as_node(x), dim, descending)


@rule(
    aten.linalg_vector_norm.default,
    samples=[Sample(X), Sample(X, 1, (1,)), Sample(X, float("inf"), (0, 2), True)],
)
def vector_norm(
    call: Call, x: Any, ord: float = 2, dim: Dim = None, keepdim: bool = False, dtype: Any = None
) -> Node:
    x = call.cast(x)
    return ops.reshape(ops.vector_norm(x, axes_of(dim, x.ndim), ord=ord), call.shape)


@rule(aten.norm.ScalarOpt_dim, samples=[Sample(X, 2, (1,)), Sample(X, 1, (0, 2), True)])
def norm(call: Call, x: Any, ord: float | None, dim: Dim, keepdim: bool = False) -> Node:
    return vector_norm(call, x, 2 if ord is None else ord, dim)


@rule(aten.histc.default, samples=[Sample(T((7,), low=0, high=4, has_grad=False), 4, 0, 4)])
def histogram(call: Call, x: Any, bins: int = 100, low: float = 0, high: float = 0) -> Node:
    expect(low < high, "histc without min and max")
    counts, _ = ops.histogram(as_node(x), bins, (float(low), float(high)))
    return call.cast(counts)
