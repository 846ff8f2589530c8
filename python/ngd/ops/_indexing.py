# SPDX-License-Identifier: Apache-2.0
"""Parts of tensors that a step chooses: made of take."""

from __future__ import annotations

from collections.abc import Sequence

from ..dtypes import INTEGERS, int64
from ..errors import DTypeError, ShapeError
from ..graph.node import Node
from ..graph.registry import public
from ._arithmetic import maximum, minimum
from ._casting import cast
from ._compare import equal, where
from ._creation import arange, ones
from ._gathering import as_indices, scatter_add, take
from ._operands import Value, as_node, as_shape
from ._reductions import sum
from ._searching import searchsorted
from ._shape import expand_dims, stop_gradient

__all__ = ["dynamic_slice", "embedding", "embedding_bag"]


@public
def embedding(indices: Value, weight: Value, padding_idx: int | None = None) -> Node:
    """Look up rows of a table: [...] integers and [rows, E] give [..., E].

    As torch.nn.functional.embedding: the row padding_idx gets no gradient. An index outside of
    [0, rows) is an OutOfRangeError, an IndexError and a ValueError, when the step runs. A negative
    index does not count from the end; `ops.take` and `weight[indices]` count so, as NumPy.
    """
    table, chosen = as_node(weight, where="embedding"), as_indices(indices, "embedding")
    return _rows("embedding", table, chosen, padding_idx)


def _rows(where_: str, table: Node, chosen: Node, padding_idx: int | None) -> Node:
    """Return the rows of a table; the padding row gets no gradient."""
    if table.ndim != 2:
        raise ShapeError(
            f"{where_}: expected a table [rows, E]; got {table.type}. Reshape the table."
        )
    attrs = {"axis": 0, "caller": where_, "negative": False}
    found = take.node((table, chosen), attrs)
    if padding_idx is None:
        return found
    rows = table.shape[0]
    if not -rows <= padding_idx < rows:
        raise ShapeError(f"{where_}: expected padding_idx in [{-rows}, {rows}); got {padding_idx}")
    of_padding = equal(chosen, padding_idx % rows)
    return where(expand_dims(of_padding, -1), stop_gradient(found), found)


@public
def embedding_bag(
    indices: Value,
    weight: Value,
    offsets: Value | None = None,
    mode: str = "mean",
    per_sample_weights: Value | None = None,
    padding_idx: int | None = None,
) -> Node:  # long because each argument is described
    """Return means or sums of rows of a table, as torch.nn.functional.embedding_bag.

    Parameters
    ----------
    indices
        Integers [bags, n]; or [n], with offsets.
    weight
        The table, [rows, E].
    offsets
        [bags]: the position in the indices where each bag begins, in ascending order from 0 on.
    mode
        "mean" or "sum". An empty bag gives zeros.
    per_sample_weights
        The factor of each row, as a tensor of the shape of the indices. Only mode "sum" takes it.
    padding_idx
        A row that counts for nothing, and gets no gradient.

    Returns
    -------
    Node
        [bags, E].

    Raises
    ------
    ShapeError
        The shapes do not fit.
    OutOfRangeError
        An index is outside of [0, rows), when the step runs.

    Examples
    --------
    ::

        >>> ngd.function(lambda t: ops.embedding_bag([[0, 1], [2, 2]], t))(np.eye(3))
        array([[0.5, 0.5, 0. ],
               [0. , 0. , 1. ]])
    """
    where_ = "embedding_bag"
    if mode not in ("mean", "sum"):
        raise ValueError(f'{where_}: expected mode "mean" or "sum"; got {mode!r}')
    table, chosen = as_node(weight, where=where_), as_indices(indices, where_)
    if (chosen.ndim, offsets is None) not in ((2, True), (1, False)):
        raise ShapeError(f"{where_}: expected [bags, n], or [n] and offsets; got {chosen.type}")
    rows = _rows(where_, table, chosen, padding_idx)
    factors = _factors(rows, chosen, mode, per_sample_weights)
    if padding_idx is not None:
        factors = where(equal(chosen, padding_idx % table.shape[0]), 0, factors)
    total, count = _bags(rows * expand_dims(factors, -1), factors, offsets)
    return total if mode == "sum" else total / expand_dims(maximum(count, 1), -1)


def _bags(rows: Node, factors: Node, offsets: Value | None) -> tuple[Node, Node]:
    """Return the sums of the rows of each bag, and of their factors."""
    if offsets is None:
        return sum(rows, 1), sum(factors, 1)
    starts = as_indices(offsets, "embedding_bag")
    places = arange(rows.shape[0], dtype=starts.dtype)
    bags = searchsorted(starts, places, "right") - 1
    total, count = (scatter_add(v, bags, 0, starts.shape[0]) for v in (rows, factors))
    return total, count


def _factors(rows: Node, chosen: Node, mode: str, weights: Value | None) -> Node:
    """Return the factor of each row of a bag."""
    if weights is None:
        return ones(chosen.shape, rows.dtype)
    factors = cast(as_node(weights, where="embedding_bag"), rows.dtype)
    if mode != "sum" or factors.shape != chosen.shape:
        raise ShapeError(
            f"embedding_bag: expected per_sample_weights of the shape of the indices, with mode "
            f'"sum"; got {factors.type} with {mode!r}. '
            "Reshape the weights, or set mode='sum'."
        )
    return factors


@public
def dynamic_slice(x: Value, starts: Sequence[Value], sizes: int | Sequence[int]) -> Node:
    """Take a part of this size, from places on that a step computes: a scalar an axis.

    A part that would lead out of the tensor begins so much earlier that it does not, as XLA's.
    """
    x, extents = as_node(x, where="dynamic_slice"), as_shape(sizes)
    firsts = [as_node(start, where="dynamic_slice") for start in starts]
    fits = len(firsts) == len(extents) == x.ndim
    if not fits or any(not 0 <= size <= n for size, n in zip(extents, x.shape, strict=True)):
        raise ShapeError(
            f"dynamic_slice: expected a start and a size for each axis of {x.type}; got "
            f"{len(firsts)} starts, sizes {extents}. Give one of both per axis."
        )
    for axis, (first, size, n) in enumerate(zip(firsts, extents, x.shape, strict=True)):
        if first.shape or first.dtype not in INTEGERS:
            raise DTypeError(
                f"dynamic_slice: expected integer scalars to start; got {first.type}. Cast it: "
                "start.astype('int64')."
            )
        if size < n:
            begin = minimum(maximum(cast(first, int64), 0), n - size)
            x = take(x, arange(size) + begin, axis)
    return x
