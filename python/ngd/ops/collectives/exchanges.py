# SPDX-License-Identifier: Apache-2.0
# The file is long because each argument is described.
"""Collectives that move blocks of rows between the ranks of a group.

A row is the part of a tensor that one index of axis 0 selects. If a collective works on another
axis, this axis is moved to the front before the collective and back afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from ...comm.kinds import KINDS
from ...comm.world import alone
from ...dtypes import Type, as_int
from ...errors import ShapeError
from ...graph.node import Node
from ...graph.registry import register
from ...graph.samples import Operand, Sample
from .._operands import Value, as_axis, as_node
from .._shape import reshape, transpose
from .checks import (
    as_counts,
    expect_counts,
    expect_reduction,
    expect_root,
    expect_rows,
    of_equal_blocks,
    with_rows,
)
from .groups import Ranks, ranks_of
from .reductions import Collective, no_gradient, reductions_to_test

__all__ = [
    "all_gather",
    "all_gather_v",
    "all_to_all",
    "all_to_all_v",
    "gather",
    "reduce_scatter",
    "scatter",
]


def row_elements(x: Type) -> int:
    """Return the number of elements of a row, the part of x at one index of axis 0."""
    return Type(x.dtype, x.shape[1:]).count


def move_axis(x: Node, source: int, destination: int) -> Node:
    """Move one axis to another index. The other axes keep their order."""
    order = [a for a in range(x.ndim) if a != source]
    order.insert(destination, source)
    return transpose(x, order)


def blocks_of(where: str, x: Node, axis: int, size: int) -> Node:
    """Split an axis of x into `size` equal blocks, and make the blocks the first axis.

    [..., n, ...] becomes [size, ..., n / size, ...].
    """
    n = x.shape[axis]
    if n % size:
        raise ShapeError(
            f"{where}: expected axis {axis} in {size} equal blocks; got {x.type}. Pad it."
        )
    blocks = reshape(x, (*x.shape[:axis], size, n // size, *x.shape[axis + 1 :]))
    return move_axis(blocks, axis, 0)


def concat_blocks(blocks: Node, axis: int) -> Node:
    """Concatenate blocks[0], blocks[1], ... along an axis, as the inverse of `blocks_of`."""
    size, *rest = blocks.shape
    shape = (*rest[:axis], size * rest[axis], *rest[axis + 1 :])
    return reshape(move_axis(blocks, 0, axis), shape)


class ReduceScatter(Collective):
    """Reduce an array over all ranks, element by element. Rank r gets block r of the result.

    Parameters
    ----------
    x : node or array
        An array of one shape on all ranks.
    op : str
        "sum", "mean", "min", "max" or "prod", as for ops.all_reduce.
    axis : int, default 0
        The axis that is split into one block per rank.
    counts : sequence of int, optional
        The sizes of the blocks, one number per rank, equal on all ranks. By default, the blocks
        have equal sizes.
    group : Group, optional
        The ranks. The default is the world.

    Returns
    -------
    Node
        The block of this rank.

    Raises
    ------
    ShapeError
        The axis cannot be split into equal blocks, or the counts do not fit.
    ValueError
        The op does not exist.

    Notes
    -----
    The adjoint of "sum" is ops.all_gather. The adjoint of "mean" is ops.all_gather divided by the
    number of ranks. The other reductions have no gradient.

    Examples
    --------
    The result of a single rank::

        >>> ngd.function(lambda x: ops.reduce_scatter(x, op="sum"))(np.arange(4.0))
        array([0., 1., 2., 3.])
    """

    # Attributes of a node: reduce_op, group, counts.
    kind = KINDS["reduce_scatter"]

    def __call__(
        self,
        x: Value,
        *,
        op: str,
        axis: int = 0,
        counts: Sequence[int] | None = None,
        group: Ranks | None = None,
    ) -> Node:
        x, ranks = as_node(x, where=self.name), ranks_of(self.name, group)
        split_axis = as_axis(self.name, axis, x.ndim, x.type)
        attrs: dict[str, Any] = {"reduce_op": op, "group": ranks}
        if counts is not None:
            own_block = self.node(
                (move_axis(x, split_axis, 0),), {**attrs, "counts": as_counts(counts)}
            )
            return move_axis(own_block, 0, split_axis)
        if split_axis == 0:
            return self.node((x,), attrs)
        own_block = self.node((blocks_of(self.name, x, split_axis, ranks.size),), attrs)
        return reshape(own_block, own_block.shape[1:])

    def infer(
        self, x: Type, *, reduce_op: str, group: Ranks, counts: tuple[int, ...] | None = None
    ) -> Type:
        expect_reduction(self.name, reduce_op, x)
        if counts is None:
            return of_equal_blocks(self.kind, x, group.size)
        expect_rows(self.name, x)
        expect_counts(self.name, counts, group.size, x.shape[0], "all")
        return with_rows(x, counts[group.rank])

    def submission(self, x: Type, **attrs: Any) -> dict[str, Any]:
        return {"reduce_op": attrs["reduce_op"], **block_counts(x, attrs)}

    def offset_in_operand(self, x: Type, **attrs: Any) -> int | None:
        rank, counts = int(attrs["group"].rank), attrs.get("counts")
        if counts is None:
            return rank * (x.count // int(attrs["group"].size))
        return int(sum(counts[:rank])) * row_elements(x)

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        kind, group = node.attrs["reduce_op"], node.attrs["group"]
        if kind not in ("sum", "mean"):
            raise no_gradient(node)
        counts = node.attrs.get("counts")
        dx = (
            all_gather(dy, group=group)
            if counts is None
            else all_gather_v(dy, counts=counts, group=group)
        )
        return (dx / group.size if kind == "mean" else dx,)

    def samples(self) -> Iterable[Sample]:
        for attrs, dtype in reductions_to_test():
            yield Sample((Operand((2, 3), dtype=dtype),), {**attrs, "group": alone()})
        attrs = {"reduce_op": "sum", "group": alone(), "counts": (2,)}
        yield Sample((Operand((2, 3)),), attrs)


def block_counts(x: Type, attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return a dict with the number of elements of each rank's block, for the communicator.

    If the blocks are equal, the key is "count", and the value is one number. Otherwise the key is
    "counts", and the value is a tuple with one number per rank.
    """
    if attrs.get("counts") is None:
        return {"count": x.count // attrs["group"].size}
    return {"counts": tuple(n * row_elements(x) for n in attrs["counts"])}


reduce_scatter: Final[ReduceScatter] = register(ReduceScatter())


class AllGather(Collective):
    """Concatenate the arrays of all ranks along an axis, in the order of ranks.

    Parameters
    ----------
    x : node or array
        An array of one shape on all ranks.
    axis : int, default 0
        The axis to concatenate along.
    group : Group, optional
        The ranks. The default is the world.

    Returns
    -------
    Node
        The arrays of all ranks, on every rank.

    Notes
    -----
    The adjoint is ops.reduce_scatter with op="sum".

    Examples
    --------
    The result of a single rank::

        >>> ngd.function(lambda x: ops.all_gather(x))(np.arange(4.0))
        array([0., 1., 2., 3.])
    """

    # Attribute of a node: group.
    kind = KINDS["all_gather"]

    def __call__(self, x: Value, *, axis: int = 0, group: Ranks | None = None) -> Node:
        x, ranks = as_node(x, where=self.name), ranks_of(self.name, group)
        concat_axis = as_axis(self.name, axis, x.ndim, x.type)
        if concat_axis == 0:
            return self.node((x,), {"group": ranks})
        return concat_blocks(self.node((reshape(x, (1, *x.shape)),), {"group": ranks}), concat_axis)

    def infer(self, x: Type, *, group: Ranks) -> Type:
        return of_equal_blocks(self.kind, x, group.size)

    def offset_in_result(self, x: Type, **attrs: Any) -> int | None:
        return int(attrs["group"].rank) * x.count

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (reduce_scatter(dy, op="sum", group=node.attrs["group"]),)

    def samples(self) -> Iterable[Sample]:
        for shape in ((2, 3), (0, 2)):
            yield Sample((Operand(shape),), {"group": alone()})


all_gather: Final[AllGather] = register(AllGather())


class AllGatherV(Collective):
    """Concatenate arrays of different sizes along an axis, in the order of ranks.

    Parameters
    ----------
    x : node or array
        An array. Along the axis, the array of rank r has size counts[r]. The other axes are equal
        on all ranks.
    counts : sequence of int
        One size per rank, equal on all ranks.
    axis : int, default 0
        The axis to concatenate along.
    group : Group, optional
        The ranks. The default is the world.

    Returns
    -------
    Node
        The arrays of all ranks, on every rank.

    Raises
    ------
    ShapeError
        The counts do not fit the ranks or x.

    Notes
    -----
    The adjoint is ops.reduce_scatter with op="sum" and these counts.

    Examples
    --------
    The result of a single rank::

        >>> ngd.function(lambda x: ops.all_gather_v(x, counts=[3]))(np.arange(3.0))
        array([0., 1., 2.])
    """

    # Attributes of a node: counts, group.
    kind = KINDS["all_gather_v"]

    def __call__(
        self, x: Value, *, counts: Sequence[int], axis: int = 0, group: Ranks | None = None
    ) -> Node:
        x, ranks = as_node(x, where=self.name), ranks_of(self.name, group)
        concat_axis = as_axis(self.name, axis, x.ndim, x.type)
        attrs = {"counts": as_counts(counts), "group": ranks}
        return move_axis(self.node((move_axis(x, concat_axis, 0),), attrs), 0, concat_axis)

    def infer(self, x: Type, *, counts: tuple[int, ...], group: Ranks) -> Type:
        expect_rows(self.name, x)
        expect_counts(self.name, counts, group.size, x.shape[0], str(group.rank))
        return with_rows(x, sum(counts))

    def submission(self, x: Type, **attrs: Any) -> dict[str, Any]:
        return block_counts(x, attrs)

    def offset_in_result(self, x: Type, **attrs: Any) -> int | None:
        return int(sum(attrs["counts"][: attrs["group"].rank])) * row_elements(x)

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (reduce_scatter(dy, op="sum", **node.attrs),)

    def samples(self) -> Iterable[Sample]:
        yield Sample((Operand((2, 3)),), {"counts": (2,), "group": alone()})


all_gather_v: Final[AllGatherV] = register(AllGatherV())


class AllToAll(Collective):
    """Send block r of x to rank r, and concatenate the received blocks in the order of ranks.

    Parameters
    ----------
    x : node or array
        An array of one shape on all ranks.
    split_axis : int, default 0
        The axis that is split into one equal block per rank.
    concat_axis : int, default 0
        The axis along which the received blocks are concatenated.
    group : Group, optional
        The ranks. The default is the world.

    Returns
    -------
    Node
        The blocks that this rank received.

    Raises
    ------
    ShapeError
        The axis cannot be split into equal blocks.

    Notes
    -----
    The adjoint is the same op with the two axes exchanged.

    Examples
    --------
    The result of a single rank::

        >>> ngd.function(lambda x: ops.all_to_all(x))(np.arange(4.0))
        array([0., 1., 2., 3.])
    """

    # Attribute of a node: group.
    kind = KINDS["all_to_all"]

    def __call__(
        self,
        x: Value,
        *,
        split_axis: int = 0,
        concat_axis: int = 0,
        group: Ranks | None = None,
    ) -> Node:
        x, ranks = as_node(x, where=self.name), ranks_of(self.name, group)
        split = as_axis(self.name, split_axis, x.ndim, x.type)
        concat = as_axis(self.name, concat_axis, x.ndim, x.type)
        if split == concat == 0:
            return self.node((x,), {"group": ranks})
        blocks = blocks_of(self.name, x, split, ranks.size)
        return concat_blocks(self.node((blocks,), {"group": ranks}), concat)

    def infer(self, x: Type, *, group: Ranks) -> Type:
        return of_equal_blocks(self.kind, x, group.size)

    def submission(self, x: Type, **attrs: Any) -> dict[str, Any]:
        return block_counts(x, attrs)

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (self.node((dy,), node.attrs),)

    def samples(self) -> Iterable[Sample]:
        for shape in ((2, 3), (0, 2)):
            yield Sample((Operand(shape),), {"group": alone()})


all_to_all: Final[AllToAll] = register(AllToAll())


class AllToAllV(Collective):
    """Send send_counts[r] rows of x to rank r, and receive receive_counts[r] rows from rank r.

    A row is the part of x at one index of axis 0.

    Parameters
    ----------
    x : node or array
        The rows to send, in the order of ranks.
    send_counts : sequence of int
        The number of rows for each rank.
    receive_counts : sequence of int
        The number of rows from each rank. For example, receive_counts[0] on rank 1 must equal
        send_counts[1] on rank 0.
    group : Group, optional
        The ranks. The default is the world.

    Returns
    -------
    Node
        The received rows, in the order of ranks.

    Raises
    ------
    ShapeError
        The counts do not fit the ranks or x, or send_counts and receive_counts have different
        entries for this rank itself.

    Notes
    -----
    The adjoint is the same op with the counts exchanged.

    Examples
    --------
    The result of a single rank::

        >>> ngd.function(lambda x: ops.all_to_all_v(x, [3], [3]))(np.arange(3.0))
        array([0., 1., 2.])
    """

    # Attributes of a node: counts, receive_counts, group.
    kind = KINDS["all_to_all_v"]

    def __call__(
        self,
        x: Value,
        send_counts: Sequence[int],
        receive_counts: Sequence[int],
        *,
        group: Ranks | None = None,
    ) -> Node:
        attrs = {
            "counts": as_counts(send_counts),
            "receive_counts": as_counts(receive_counts),
            "group": ranks_of(self.name, group),
        }
        return self.node((as_node(x, where=self.name),), attrs)

    def infer(
        self,
        x: Type,
        *,
        counts: tuple[int, ...],
        receive_counts: tuple[int, ...],
        group: Ranks,
    ) -> Type:
        expect_rows(self.name, x)
        expect_counts(self.name, counts, group.size, x.shape[0], "all")
        received = sum(receive_counts)
        expect_counts(self.name, receive_counts, group.size, received, "all")
        if counts[group.rank] != receive_counts[group.rank]:
            raise ShapeError(
                f"all_to_all_v: expected one number of rows from rank {group.rank} to itself; got "
                f"counts {counts[group.rank]} and receive_counts {receive_counts[group.rank]}. "
                "Give one number in both."
            )
        return with_rows(x, received)

    def submission(self, x: Type, **attrs: Any) -> dict[str, Any]:
        received = tuple(n * row_elements(x) for n in attrs["receive_counts"])
        return {**block_counts(x, attrs), "receive_counts": received}

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        attrs = dict(node.attrs)
        attrs["counts"], attrs["receive_counts"] = attrs["receive_counts"], attrs["counts"]
        return (self.node((dy,), attrs),)

    def samples(self) -> Iterable[Sample]:
        attrs = {"counts": (2,), "receive_counts": (2,), "group": alone()}
        yield Sample((Operand((2, 3)),), attrs)


all_to_all_v: Final[AllToAllV] = register(AllToAllV())


class Gather(Collective):
    """Concatenate the arrays of all ranks along an axis, on the root only.

    This is a collective. To read the elements of an array by index, use ops.take.

    Parameters
    ----------
    x : node or array
        An array of one shape on all ranks.
    root : int, default 0
        The rank that gets the result.
    axis : int, default 0
        The axis to concatenate along.
    group : Group, optional
        The ranks. The default is the world.

    Returns
    -------
    Node
        The arrays of all ranks on the root, and zeros of the same shape on the other ranks.

    Raises
    ------
    ValueError
        The root is not a rank of the group.
    TypeError
        The root is not an int.

    Notes
    -----
    The adjoint is ops.scatter.

    Examples
    --------
    The result of a single rank::

        >>> ngd.function(lambda x: ops.gather(x))(np.arange(4.0))
        array([0., 1., 2., 3.])
    """

    # Attributes of a node: root, group.
    kind = KINDS["gather"]

    def __call__(
        self, x: Value, root: int = 0, *, axis: int = 0, group: Ranks | None = None
    ) -> Node:
        if not isinstance(root, (int, np.integer)):
            raise TypeError(
                f"gather: expected the rank that receives as root; got {root!r}. "
                "Use ops.take(x, indices, axis) to take elements by index."
            )
        x, attrs = (
            as_node(x, where=self.name),
            {"root": as_int(root, self.name, "root"), "group": ranks_of(self.name, group)},
        )
        concat_axis = as_axis(self.name, axis, x.ndim, x.type)
        if concat_axis == 0:
            return self.node((x,), attrs)
        return concat_blocks(self.node((reshape(x, (1, *x.shape)),), attrs), concat_axis)

    def infer(self, x: Type, *, root: int, group: Ranks) -> Type:
        return of_equal_blocks(self.kind, expect_root(self.name, root, group, x), group.size)

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (scatter.node((dy,), node.attrs),)

    def samples(self) -> Iterable[Sample]:
        yield Sample((Operand((2, 3)),), {"root": 0, "group": alone()})


gather: Final[Gather] = register(Gather())


class Scatter(Collective):
    """Split the root's array along an axis. Rank r gets block r.

    Parameters
    ----------
    x : node or array
        An array of one shape on all ranks. Only the values on the root are read.
    root : int, default 0
        The rank whose array is split.
    axis : int, default 0
        The axis that is split into one equal block per rank.
    group : Group, optional
        The ranks. The default is the world.

    Returns
    -------
    Node
        The block of this rank.

    Raises
    ------
    ShapeError
        The axis cannot be split into equal blocks.
    ValueError
        The root is not a rank of the group.

    Notes
    -----
    The adjoint is ops.gather.

    Examples
    --------
    The result of a single rank::

        >>> ngd.function(lambda x: ops.scatter(x))(np.arange(4.0))
        array([0., 1., 2., 3.])
    """

    # Attributes of a node: root, group.
    kind = KINDS["scatter"]

    def __call__(
        self, x: Value, root: int = 0, *, axis: int = 0, group: Ranks | None = None
    ) -> Node:
        x, ranks = as_node(x, where=self.name), ranks_of(self.name, group)
        split_axis = as_axis(self.name, axis, x.ndim, x.type)
        attrs = {"root": as_int(root, self.name, "root"), "group": ranks}
        if split_axis == 0:
            return self.node((x,), attrs)
        own_block = self.node((blocks_of(self.name, x, split_axis, ranks.size),), attrs)
        return reshape(own_block, own_block.shape[1:])

    def infer(self, x: Type, *, root: int, group: Ranks) -> Type:
        return of_equal_blocks(self.kind, expect_root(self.name, root, group, x), group.size)

    def submission(self, x: Type, **attrs: Any) -> dict[str, Any]:
        return {"root": attrs["root"], **block_counts(x, attrs)}

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (gather.node((dy,), node.attrs),)

    def samples(self) -> Iterable[Sample]:
        yield Sample((Operand((2, 3)),), {"root": 0, "group": alone()})


scatter: Final[Scatter] = register(Scatter())
