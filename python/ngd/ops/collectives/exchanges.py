# SPDX-License-Identifier: Apache-2.0
"""Collectives that move blocks of rows between the ranks of a group.

A row is the part of a tensor that one index of axis 0 selects. Before the collective, another axis
is moved to the front, and afterwards it is moved back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from ...comm.kinds import KINDS
from ...comm.world import alone
from ...dtypes import Type, whole
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
    """How many elements a row has."""
    return Type(x.dtype, x.shape[1:]).count


def moved_axis(x: Node, source: int, destination: int) -> Node:
    """One axis in another place, the others in their order."""
    order = [a for a in range(x.ndim) if a != source]
    order.insert(destination, source)
    return transpose(x, order)


def blocks_of(where: str, x: Node, axis: int, size: int) -> Node:
    """The equal parts of an axis along a new first axis: (size, ..., n / size, ...)."""
    n = x.shape[axis]
    if n % size:
        raise ShapeError(
            f"{where}: expected axis {axis} in {size} equal blocks; got {x.type}. Pad it."
        )
    parts = reshape(x, (*x.shape[:axis], size, n // size, *x.shape[axis + 1 :]))
    return moved_axis(parts, axis, 0)


def joined(parts: Node, axis: int) -> Node:
    """The parts along the first axis one behind the other along `axis` of the rest."""
    size, *rest = parts.shape
    merged = (*rest[:axis], size * rest[axis], *rest[axis + 1 :])
    return reshape(moved_axis(parts, 0, axis), merged)


class ReduceScatter(Collective):
    """reduce_scatter(x, op=, axis=0, counts=None, group=None): my block of the combined x.

    The axis is cut in as many equal blocks as there are ranks, or in blocks of counts[r], equal on
    all ranks; rank r gets block r, reduced. op as in all_reduce. Attrs: reduce_op, group, counts.
    The adjoint of sum is all_gather, that of mean its share; the others have no gradient.
    """

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
        along = as_axis(self.name, axis, x.ndim, x.type)
        attrs: dict[str, Any] = {"reduce_op": op, "group": ranks}
        if counts is not None:
            mine = self.node((moved_axis(x, along, 0),), {**attrs, "counts": as_counts(counts)})
            return moved_axis(mine, 0, along)
        if along == 0:
            return self.node((x,), attrs)
        mine = self.node((blocks_of(self.name, x, along, ranks.size),), attrs)
        return reshape(mine, mine.shape[1:])

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

    def place_in_operand(self, x: Type, **attrs: Any) -> int | None:
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
    """The blocks of an operand that has one for each rank, in elements."""
    if attrs.get("counts") is None:
        return {"count": x.count // attrs["group"].size}
    return {"counts": tuple(n * row_elements(x) for n in attrs["counts"])}


reduce_scatter: Final[ReduceScatter] = register(ReduceScatter())


class AllGather(Collective):
    """all_gather(x, axis=0, group=None): all ranks' x, in their order along the axis; attrs: group.

    x has one shape on all ranks. The adjoint is reduce_scatter(op="sum").
    """

    kind = KINDS["all_gather"]

    def __call__(self, x: Value, *, axis: int = 0, group: Ranks | None = None) -> Node:
        x, ranks = as_node(x, where=self.name), ranks_of(self.name, group)
        along = as_axis(self.name, axis, x.ndim, x.type)
        if along == 0:
            return self.node((x,), {"group": ranks})
        return joined(self.node((reshape(x, (1, *x.shape)),), {"group": ranks}), along)

    def infer(self, x: Type, *, group: Ranks) -> Type:
        return of_equal_blocks(self.kind, x, group.size)

    def place_in_result(self, x: Type, **attrs: Any) -> int | None:
        return int(attrs["group"].rank) * x.count

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (reduce_scatter(dy, op="sum", group=node.attrs["group"]),)

    def samples(self) -> Iterable[Sample]:
        for shape in ((2, 3), (0, 2)):
            yield Sample((Operand(shape),), {"group": alone()})


all_gather: Final[AllGather] = register(AllGather())


class AllGatherV(Collective):
    """all_gather_v(x, counts=, axis=0, group=None): all ranks' x of counts[r] rows each.

    Along `axis` rank r's x has counts[r]; all else is one shape on all ranks, and so are the
    counts. Attrs: counts, group. The adjoint is reduce_scatter(op="sum", counts=counts).
    """

    kind = KINDS["all_gather_v"]

    def __call__(
        self, x: Value, *, counts: Sequence[int], axis: int = 0, group: Ranks | None = None
    ) -> Node:
        x, ranks = as_node(x, where=self.name), ranks_of(self.name, group)
        along = as_axis(self.name, axis, x.ndim, x.type)
        attrs = {"counts": as_counts(counts), "group": ranks}
        return moved_axis(self.node((moved_axis(x, along, 0),), attrs), 0, along)

    def infer(self, x: Type, *, counts: tuple[int, ...], group: Ranks) -> Type:
        expect_rows(self.name, x)
        expect_counts(self.name, counts, group.size, x.shape[0], str(group.rank))
        return with_rows(x, sum(counts))

    def submission(self, x: Type, **attrs: Any) -> dict[str, Any]:
        return block_counts(x, attrs)

    def place_in_result(self, x: Type, **attrs: Any) -> int | None:
        return int(sum(attrs["counts"][: attrs["group"].rank])) * row_elements(x)

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (reduce_scatter(dy, op="sum", **node.attrs),)

    def samples(self) -> Iterable[Sample]:
        yield Sample((Operand((2, 3)),), {"counts": (2,), "group": alone()})


all_gather_v: Final[AllGatherV] = register(AllGatherV())


class AllToAll(Collective):
    """all_to_all(x, split_axis=0, concat_axis=0, group=None): block s of my x goes to rank s.

    split_axis is cut in as many equal blocks as there are ranks; what comes from rank r stands at
    place r along concat_axis. x has one shape on all ranks. Attrs: group. The adjoint sends
    everything back: the same with the axes exchanged.
    """

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
        apart = as_axis(self.name, split_axis, x.ndim, x.type)
        together = as_axis(self.name, concat_axis, x.ndim, x.type)
        if apart == together == 0:
            return self.node((x,), {"group": ranks})
        blocks = blocks_of(self.name, x, apart, ranks.size)
        return joined(self.node((blocks,), {"group": ranks}), together)

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
    """all_to_all_v(x, send_counts, receive_counts, group=None): send_counts[s] rows go to rank s.

    The rows of x are in the order of the ranks. receive_counts[r] rows come from rank r, which is
    rank r's send count for this rank. Attrs: counts, receive_counts, group. The adjoint is the same
    with the counts exchanged.
    """

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
    """gather(x, root=0, axis=0, group=None): all ranks' x along the axis on the root.

    Elsewhere the result is zero. x has one shape on all ranks. `ops.take` takes elements by index.
    Attrs: root, group. The adjoint is scatter.
    """

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
            {"root": whole(root, self.name, "root"), "group": ranks_of(self.name, group)},
        )
        along = as_axis(self.name, axis, x.ndim, x.type)
        if along == 0:
            return self.node((x,), attrs)
        return joined(self.node((reshape(x, (1, *x.shape)),), attrs), along)

    def infer(self, x: Type, *, root: int, group: Ranks) -> Type:
        return of_equal_blocks(self.kind, expect_root(self.name, root, group, x), group.size)

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (scatter.node((dy,), node.attrs),)

    def samples(self) -> Iterable[Sample]:
        yield Sample((Operand((2, 3)),), {"root": 0, "group": alone()})


gather: Final[Gather] = register(Gather())


class Scatter(Collective):
    """scatter(x, root=0, axis=0, group=None): block r of the root's x on rank r.

    The axis is cut in as many equal blocks as there are ranks. x has one shape on all ranks; what
    it holds elsewhere than on the root is not looked at. Attrs: root, group. The adjoint is
    gather.
    """

    kind = KINDS["scatter"]

    def __call__(
        self, x: Value, root: int = 0, *, axis: int = 0, group: Ranks | None = None
    ) -> Node:
        x, ranks = as_node(x, where=self.name), ranks_of(self.name, group)
        along = as_axis(self.name, axis, x.ndim, x.type)
        attrs = {"root": whole(root, self.name, "root"), "group": ranks}
        if along == 0:
            return self.node((x,), attrs)
        mine = self.node((blocks_of(self.name, x, along, ranks.size),), attrs)
        return reshape(mine, mine.shape[1:])

    def infer(self, x: Type, *, root: int, group: Ranks) -> Type:
        return of_equal_blocks(self.kind, expect_root(self.name, root, group, x), group.size)

    def submission(self, x: Type, **attrs: Any) -> dict[str, Any]:
        return {"root": attrs["root"], **block_counts(x, attrs)}

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (gather.node((dy,), node.attrs),)

    def samples(self) -> Iterable[Sample]:
        yield Sample((Operand((2, 3)),), {"root": 0, "group": alone()})


scatter: Final[Scatter] = register(Scatter())
