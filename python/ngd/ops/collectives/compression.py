# SPDX-License-Identifier: Apache-2.0
"""A sparse all-reduce with error feedback, composed of other ops."""

from __future__ import annotations

import math

from ...dtypes import float32, float64, int32, int64
from ...errors import ShapeError
from ...graph.node import Node
from ...graph.registry import public
from .._arithmetic import abs
from .._casting import cast
from .._compare import where
from .._gathering import scatter_add, take
from .._operands import Value, as_node, expect_dtype
from .._shape import reshape
from .._sorting import top_k
from .exchanges import all_gather
from .groups import Ranks, ranks_of

__all__ = ["sparse_all_reduce"]


@public
def sparse_all_reduce(
    x: Value, residual: Value, *, ratio: float, op: str, group: Ranks | None = None
) -> tuple[Node, Node]:  # long because each argument is described
    """Reduce over all ranks only the elements of largest magnitude of each rank.

    Each rank adds its residual to its x, and sends the elements of largest magnitude of this sum.
    The elements that it does not send are the residual for the next call, so they are sent later
    (error feedback). ngd.TopK does the same for ngd.all_reduce, outside of a compiled step.

    Parameters
    ----------
    x, residual : node or array
        float32 or float64, of one shape.
    ratio : float
        The fraction of the elements that a rank sends, in (0, 1]. At least one element is sent. An
        element costs the bytes of its value, and 4 bytes for its index. In tensors of 2**31
        elements and more, an index has 8 bytes.
    op : str
        "sum" or "mean". The elements are added in the order of ranks.
    group : Group, optional
        The ranks. The default is the world.

    Returns
    -------
    tuple of two nodes
        The reduced array, and the next residual. Both have the shape of x.

    Raises
    ------
    ShapeError, DTypeError
        The operands have different shapes, or other dtypes.
    ValueError
        The ratio is not in (0, 1], or op is neither "sum" nor "mean".

    Notes
    -----
    Stich, Cordonnier and Jaggi, "Sparsified SGD with Memory" (NeurIPS 2018), Algorithm 1.

    In a compiled step, a variable with `per_rank=True` can store the residual of each rank.

    ::

        left = ngd.variable("left", np.zeros(w.shape, "float32"), per_rank=True)
        mean, rest = ops.sparse_all_reduce(gradient, left, ratio=0.01, op="mean")
        step = ngd.compile(inputs, [loss], updates={w: w - 0.1 * mean, left: rest})

    Examples
    --------
    The result of a single rank::

        >>> f = ngd.function(lambda x, r: ops.sparse_all_reduce(x, r, ratio=0.5, op="mean"))
        >>> f(np.float32([1.0, 3.0]), np.zeros(2, np.float32))
        (array([0., 3.], dtype=float32), array([1., 0.], dtype=float32))
    """
    x, residual = (as_node(v, where="sparse_all_reduce") for v in (x, residual))
    _check(x, residual, ratio, op)
    ranks, size = ranks_of("sparse_all_reduce", group), x.type.count
    accumulated = reshape(x + residual, (size,))
    _, largest = top_k(abs(accumulated), min(size, max(1, math.ceil(ratio * size))))
    indices = cast(largest, int32 if size < 2**31 else int64)
    values = take(accumulated, indices)
    sent = scatter_add(cast(indices * 0 + 1, int32), indices, 0, size) > 0
    total = scatter_add(all_gather(values, group=ranks), all_gather(indices, group=ranks), 0, size)
    result = total / ranks.size if op == "mean" else total
    return reshape(result, x.shape), reshape(where(sent, 0, accumulated), x.shape)


def _check(x: Node, residual: Node, ratio: float, op: str) -> None:
    """Raise an error if the arguments of sparse_all_reduce are wrong or do not fit each other."""
    expect_dtype("sparse_all_reduce", (x.type, residual.type), (float32, float64))
    if x.shape != residual.shape:
        raise ShapeError(
            f"sparse_all_reduce: expected x and residual of one shape; got {x.type} and "
            f"{residual.type}. Make the residual by ops.zeros(x.shape)."
        )
    if not 0 < ratio <= 1:
        raise ValueError(
            f"sparse_all_reduce: expected a ratio in (0, 1]; got {ratio}. Write 0.01 for 1 % of "
            "the elements."
        )
    if op not in ("sum", "mean"):
        raise ValueError(f"sparse_all_reduce: expected op among sum, mean; got {op!r}")
