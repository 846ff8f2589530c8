# SPDX-License-Identifier: Apache-2.0
"""A sparse all-reduce with error feedback, in other ops."""

from __future__ import annotations

import math

from ..dtype import float32, float64, int32, int64
from ..errors import ShapeError
from ..ir import Node, public
from .arithmetic import abs
from .casting import cast
from .collective import Ranks, ranks_of
from .compare import where
from .exchange import all_gather
from .operands import Value, as_node, expect_dtype
from .ordering import top_k
from .shape import reshape, scatter_add, take


@public
def sparse_all_reduce(
    x: Value, residual: Value, *, ratio: float, op: str, group: Ranks | None = None
) -> tuple[Node, Node]:
    """Combine over the ranks only the elements of the largest magnitude; return it, and the rest.

    What is not sent is the next residual (error feedback), to be added to the next x, so that over
    many steps nothing is lost: Stich, Cordonnier, Jaggi, "Sparsified SGD with Memory" (NeurIPS
    2018), Algorithm 1. ngd.TopK is the same for arrays. A variable keeps the residual of each rank:

        left = ngd.variable("left", np.zeros(w.shape, "float32"), per_rank=True)
        mean, rest = ops.sparse_all_reduce(gradient, left, ratio=0.01, op="mean")
        step = ngd.compile(inputs, [loss], updates={w: w - 0.1 * mean, left: rest})

    Parameters
    ----------
    x, residual
        float32 or float64, of one shape.
    ratio
        The fraction of the elements that a rank sends, in (0, 1]; at least one is sent. An element
        costs its value and 4 bytes (8 in tensors of 2**31 elements and more) for its place.
    op
        "sum" or "mean", added in the order of ranks.
    """
    x, residual = (as_node(v, where="sparse_all_reduce") for v in (x, residual))
    expect_dtype("sparse_all_reduce", (x.type, residual.type), (float32, float64))
    if x.shape != residual.shape:
        raise ShapeError(
            f"sparse_all_reduce: expected x and residual of one shape; got {x.type} and "
            f"{residual.type}"
        )
    if not 0 < ratio <= 1:
        raise ValueError(f"sparse_all_reduce: expected a ratio in (0, 1]; got {ratio}")
    if op not in ("sum", "mean"):
        raise ValueError(f"sparse_all_reduce: expected op among sum, mean; got {op!r}")
    ranks, size = ranks_of("sparse_all_reduce", group), x.type.count
    held = reshape(x + residual, (size,))
    _, largest = top_k(abs(held), min(size, max(1, math.ceil(ratio * size))))
    places = cast(largest, int32 if size < 2**31 else int64)
    values = take(held, places)
    sent = scatter_add(cast(places * 0 + 1, int32), places, 0, size) > 0
    total = scatter_add(all_gather(values, group=ranks), all_gather(places, group=ranks), 0, size)
    result = total / ranks.size if op == "mean" else total
    return reshape(result, x.shape), reshape(where(sent, 0, held), x.shape)
