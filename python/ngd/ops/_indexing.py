# SPDX-License-Identifier: Apache-2.0
"""Lookups and slices whose indices may be nodes of the graph: embedding and similar ops."""

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
    """Return rows of a table, as torch.nn.functional.embedding.

    Parameters
    ----------
    indices
        Integers of any shape, in [0, rows). A negative index raises an error; in `ops.take` and
        in `weight[indices]` it counts from the end, as in NumPy.
    weight
        The table [rows, E]: one vector of size E per row.
    padding_idx
        The index of a row that gets no gradient, or None. If negative, it counts from the end.

    Returns
    -------
    Node
        [..., E], where [...] is the shape of the indices.

    Raises
    ------
    ShapeError
        The table does not have two axes, or `padding_idx` is not a row.
    OutOfRangeError
        At run time: an index is outside of [0, rows). The error is also an
        IndexError and a ValueError.

    Examples
    --------
    ::

        >>> ngd.function(ops.embedding)(np.array([1, 0]), np.array([[1.0, 2.0], [3.0, 4.0]]))
        array([[3., 4.],
               [1., 2.]])
    """
    table, chosen = as_node(weight, where="embedding"), as_indices(indices, "embedding")
    return _rows("embedding", table, chosen, padding_idx)


def _rows(where_: str, table: Node, chosen: Node, padding_idx: int | None) -> Node:
    """Return the rows of a table at the indices `chosen`.

    The row `padding_idx` of the table gets no gradient.
    """
    if table.ndim != 2:
        raise ShapeError(
            f"{where_}: expected a table [rows, E]; got {table.type}. Reshape the table."
        )
    attrs = {"axis": 0, "caller": where_, "negative": False}
    result = take.node((table, chosen), attrs)
    if padding_idx is None:
        return result
    rows = table.shape[0]
    if not -rows <= padding_idx < rows:
        raise ShapeError(f"{where_}: expected padding_idx in [{-rows}, {rows}); got {padding_idx}")
    is_padding = equal(chosen, padding_idx % rows)
    return where(expand_dims(is_padding, -1), stop_gradient(result), result)


@public
def embedding_bag(
    indices: Value,
    weight: Value,
    offsets: Value | None = None,
    mode: str = "mean",
    per_sample_weights: Value | None = None,
    padding_idx: int | None = None,
) -> Node:  # long because each argument is described
    """Return the mean or the sum of the rows of each bag, as torch.nn.functional.embedding_bag.

    A bag is a list of indices of rows.

    Parameters
    ----------
    indices
        Integers: [bags, n], n indices per bag; or, with offsets, [n], the indices of all bags.
    weight
        The table [rows, E]: one vector of size E per row.
    offsets
        [bags]: the position in the indices at which each bag begins. The positions ascend, and the
        first one is 0.
    mode
        "mean" or "sum". An empty bag gives zeros.
    per_sample_weights
        The factor of each row, in the shape of the indices, or None. Only mode "sum" takes it.
    padding_idx
        The index of a row that sums and means leave out and that gets no gradient, or None.

    Returns
    -------
    Node
        [bags, E]: one vector per bag.

    Raises
    ------
    ShapeError
        The shapes do not fit.
    OutOfRangeError
        At run time: an index is outside of [0, rows).
    ValueError
        The mode is unknown.

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
        is_padding = equal(chosen, padding_idx % table.shape[0])
        factors = where(is_padding, 0, factors)
        rows = where(expand_dims(is_padding, -1), 0, rows)  # a NaN there must not reach the sum
    total, count = _bags(rows * expand_dims(factors, -1), factors, offsets)
    return total if mode == "sum" else total / expand_dims(maximum(count, 1), -1)


def _bags(rows: Node, factors: Node, offsets: Value | None) -> tuple[Node, Node]:
    """Return the sum of the rows of each bag, and the sum of the factors of these rows.

    A bag is a list of rows of a table (see `embedding_bag`). Without offsets, rows[i] has the rows
    of bag i. With offsets, bag i starts at row offsets[i]. `rows` are already multiplied by
    `factors`. A factor is the weight of a row, or 1 without weights. It is 0 for a row that
    `padding_idx` excludes.
    """
    if offsets is None:
        return sum(rows, 1), sum(factors, 1)
    starts = as_indices(offsets, "embedding_bag")
    positions = arange(rows.shape[0], dtype=starts.dtype)
    bags = searchsorted(starts, positions, "right") - 1
    total, count = (scatter_add(v, bags, 0, starts.shape[0]) for v in (rows, factors))
    return total, count


def _factors(rows: Node, chosen: Node, mode: str, weights: Value | None) -> Node:
    """Return the factors by which embedding_bag multiplies the rows of the table before it sums.

    They are `weights` in the dtype of `rows`, or ones if `weights` is None. They have the shape of
    the indices `chosen`.
    """
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
    """Return a slice of static size that begins at computed indices.

    Parameters
    ----------
    x
        An array of any dtype.
    starts
        The first index along each axis, integer scalars. They may be nodes. A negative start counts
        as 0. A slice that would exceed an axis begins earlier, so that it fits, as in XLA.
    sizes
        The extent of the slice along each axis, ints that are known when the graph is built.

    Raises
    ------
    ShapeError
        There is not one start and one size per axis, or a size exceeds the axis.
    DTypeError
        A start is not an integer scalar.

    Examples
    --------
    ::

        >>> step = ngd.function(lambda x, i: ops.dynamic_slice(x, [i], [2]))
        >>> step(np.arange(5.0), np.int64(1))
        array([1., 2.])
        >>> step(np.arange(5.0), np.int64(4))
        array([3., 4.])
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
