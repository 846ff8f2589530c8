# SPDX-License-Identifier: Apache-2.0
"""Collectives whose results are new tensors, through which gradients flow.

They are those of the sum of all ranks' results, as in ngd's graphs (docs/adr/0003). All ranks call
them in one order, and go back through them in one order.
"""

from __future__ import annotations

from typing import Any

import paddle
from paddle.autograd import PyLayer
from paddle.distributed import ReduceOp

from .._util.callsite import call_site
from ..comm.checks import block_rows, normal_axis
from ..errors import GradientError
from .memory import NAMES, Tensor, elements, reduction
from .world import Group, chosen

LINEAR = (ReduceOp.SUM, ReduceOp.AVG)
"""The reductions that have a gradient."""


def run(where: str, x: Tensor, ranks: Group, rows: float = 1, **how: Any) -> Tensor:
    """One call of ngd's group; the result has so many times the rows of the operand."""
    shape = [int(n * rows) if i == 0 else n for i, n in enumerate(x.shape)]
    result = paddle.empty(shape, dtype=x.dtype)
    call = getattr(ranks.group, where)
    call(elements(x, where), out=elements(result, where), site=call_site(), **how)
    return result


class AllReduce(PyLayer):
    """The gradient of a sum or mean is the same of gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, op: int, ranks: Group) -> Tensor:
        """Reduce."""
        ctx.how = op, ranks
        return run("all_reduce", x, ranks, op=reduction(op, x, "functional.all_reduce"))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Reduce the gradient."""
        return AllReduce.apply(gradient, *ctx.how)


class AllGather(PyLayer):
    """The gradient is a reduce_scatter."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Group) -> Tensor:
        """Join."""
        ctx.ranks = ranks
        return run("all_gather", x, ranks, ranks.nranks)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Sum, and take my rows."""
        return ReduceScatter.apply(gradient, ReduceOp.SUM, ctx.ranks)


class ReduceScatter(PyLayer):
    """The gradient is an all_gather; that of a mean has a factor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, op: int, ranks: Group) -> Tensor:
        """Reduce, and take my rows."""
        ctx.how = op, ranks
        name = reduction(op, x, "functional.reduce_scatter")
        return run("reduce_scatter", x, ranks, 1 / ranks.nranks, op=name)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Join the gradients."""
        op, ranks = ctx.how
        joined = AllGather.apply(gradient, ranks)
        return joined / ranks.nranks if op == ReduceOp.AVG else joined


class Broadcast(PyLayer):
    """The gradient is the sum, for the root."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, root: int, ranks: Group) -> Tensor:
        """Send."""
        ctx.how = root, ranks
        return run("broadcast", x, ranks, root=root)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Sum for the root."""
        root, ranks = ctx.how
        total = AllReduce.apply(gradient, ReduceOp.SUM, ranks)
        return total if ranks.rank == root else paddle.zeros_like(total)


class AllToAll(PyLayer):
    """The gradient is an all_to_all."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Group) -> Tensor:
        """Exchange."""
        ctx.ranks = ranks
        return run("all_to_all", x, ranks)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Send it back."""
        return AllToAll.apply(gradient, ctx.ranks)


def expect_gradient(x: Tensor, op: int, where: str) -> None:
    """Refuse a gradient that there is not."""
    reduction(op, x, where)
    if op not in LINEAR and not x.stop_gradient and paddle.is_grad_enabled():
        raise GradientError(
            f"{where}: op: expected ReduceOp.SUM or AVG of a tensor that needs a gradient; got "
            f"ReduceOp.{NAMES[op]}. Pass x.detach() if it needs none."
        )


def expect_rows(x: Tensor, where: str, ranks: Group | None = None) -> None:
    """Raise ShapeError for a scalar, or for rows that the ranks cannot share evenly."""
    elements(x, where)
    shape = tuple(x.shape)
    normal_axis(0, shape, where)
    if ranks is not None:
        block_rows(shape, ranks.nranks, where)


def all_reduce(x: Tensor, op: int = ReduceOp.SUM, group: Group | None = None) -> Tensor:
    """The reduction over the ranks; its gradient is the same one. MAX, MIN and PROD have none."""
    expect_gradient(x, op, "functional.all_reduce")
    return AllReduce.apply(x, op, chosen(group))


def reduce_scatter(x: Tensor, op: int = ReduceOp.SUM, group: Group | None = None) -> Tensor:
    """The r-th part of the rows of the reduction, on rank r; its gradient is an all_gather."""
    where, ranks = "functional.reduce_scatter", chosen(group)
    expect_rows(x, where, ranks)
    expect_gradient(x, op, where)
    return ReduceScatter.apply(x, op, ranks)


def all_gather(x: Tensor, group: Group | None = None) -> Tensor:
    """The rows of all ranks, equally many of each; its gradient is a reduce_scatter."""
    expect_rows(x, "functional.all_gather")
    return AllGather.apply(x, chosen(group))


def broadcast(x: Tensor, src: int, group: Group | None = None) -> Tensor:
    """The tensor of rank `src` of the world; its gradient is the sum, on that rank."""
    where, ranks = "functional.broadcast", chosen(group)
    elements(x, where)
    return Broadcast.apply(x, ranks.place_of(src, where, "src"), ranks)


def all_to_all(x: Tensor, group: Group | None = None) -> Tensor:
    """The parts of the rows that all ranks have for this one; its gradient is an all_to_all."""
    ranks = chosen(group)
    expect_rows(x, "functional.all_to_all", ranks)
    return AllToAll.apply(x, ranks)
