# SPDX-License-Identifier: Apache-2.0
"""Collectives that return new tensors and through which gradients flow.

The gradients are those of the sum of all ranks' results, as in ngd's graphs
(docs/adr/0003-gradient-of-all-reduce.md). All ranks call the functions in the same order, and run
the backward passes of these calls in the same order.
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
from .world import Group, group_or_world

LINEAR = (ReduceOp.SUM, ReduceOp.AVG)
"""The reductions that have a gradient."""


def run(where: str, x: Tensor, ranks: Group, rows: float = 1, **options: Any) -> Tensor:
    """Run the method `where` of ngd's group on `x`, and return the result.

    `rows` is the ratio of the numbers of rows of the result and of `x`.
    """
    shape = [int(n * rows) if i == 0 else n for i, n in enumerate(x.shape)]
    result = paddle.empty(shape, dtype=x.dtype)
    call = getattr(ranks.group, where)
    call(elements(x, where), out=elements(result, where), site=call_site(), **options)
    return result


class AllReduce(PyLayer):
    """An all_reduce. The gradient of a sum or a mean is the same reduction of the gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, op: int, ranks: Group) -> Tensor:
        """Reduce the tensor."""
        ctx.saved = op, ranks
        return run("all_reduce", x, ranks, op=reduction(op, x, "functional.all_reduce"))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Reduce the gradient."""
        return AllReduce.apply(gradient, *ctx.saved)


class AllGather(PyLayer):
    """An all_gather, whose gradient is a reduce_scatter."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Group) -> Tensor:
        """Concatenate the ranks' tensors."""
        ctx.ranks = ranks
        return run("all_gather", x, ranks, ranks.nranks)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Sum the gradients and return this rank's rows."""
        return ReduceScatter.apply(gradient, ReduceOp.SUM, ctx.ranks)


class ReduceScatter(PyLayer):
    """A reduce_scatter, whose gradient is an all_gather.

    The gradient of a mean is divided by the number of ranks.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, op: int, ranks: Group) -> Tensor:
        """Reduce, and return this rank's rows."""
        ctx.saved = op, ranks
        name = reduction(op, x, "functional.reduce_scatter")
        return run("reduce_scatter", x, ranks, 1 / ranks.nranks, op=name)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Concatenate the ranks' gradients."""
        op, ranks = ctx.saved
        gathered = AllGather.apply(gradient, ranks)
        return gathered / ranks.nranks if op == ReduceOp.AVG else gathered


class Broadcast(PyLayer):
    """A broadcast, whose gradient is the sum of the ranks' gradients on the root."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, root: int, ranks: Group) -> Tensor:
        """Return the tensor of the root."""
        ctx.saved = root, ranks
        return run("broadcast", x, ranks, root=root)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Return the sum of the gradients on the root, and zeros on the other ranks."""
        root, ranks = ctx.saved
        total = AllReduce.apply(gradient, ReduceOp.SUM, ranks)
        return total if ranks.rank == root else paddle.zeros_like(total)


class AllToAll(PyLayer):
    """An all_to_all, whose gradient is an all_to_all."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Group) -> Tensor:
        """Exchange the blocks."""
        ctx.ranks = ranks
        return run("all_to_all", x, ranks)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Send the gradient of each block back."""
        return AllToAll.apply(gradient, ctx.ranks)


def expect_gradient(x: Tensor, op: int, where: str) -> None:
    """Raise GradientError if a tensor needs a gradient that the reduction does not have."""
    reduction(op, x, where)
    if op not in LINEAR and not x.stop_gradient and paddle.is_grad_enabled():
        raise GradientError(
            f"{where}: op: expected ReduceOp.SUM or AVG of a tensor that needs a gradient; got "
            f"ReduceOp.{NAMES[op]}. Pass x.detach() if it needs none."
        )


def expect_rows(x: Tensor, where: str, ranks: Group | None = None) -> None:
    """Raise ShapeError for a scalar, or if the ranks cannot divide the rows evenly."""
    elements(x, where)
    shape = tuple(x.shape)
    normal_axis(0, shape, where)
    if ranks is not None:
        block_rows(shape, ranks.nranks, where)


def all_reduce(x: Tensor, op: int = ReduceOp.SUM, group: Group | None = None) -> Tensor:
    """Return the reduction over the ranks.

    The gradient is the same reduction. MAX, MIN and PROD have no gradient.

    Parameters
    ----------
    x : Tensor
        The operand, of the same shape and dtype on all ranks.
    op : int
        ReduceOp.SUM (the default), AVG, MAX, MIN or PROD.
    group : Group, optional
        The ranks; by default the world.
    """
    expect_gradient(x, op, "functional.all_reduce")
    return AllReduce.apply(x, op, group_or_world(group))


def reduce_scatter(x: Tensor, op: int = ReduceOp.SUM, group: Group | None = None) -> Tensor:
    """Reduce over the ranks, and return the r-th block of the rows of the result on rank r.

    The gradient is an all_gather.

    Parameters
    ----------
    x : Tensor
        The operand, of the same shape and dtype on all ranks. The number of ranks must divide the
        rows.
    op : int
        ReduceOp.SUM (the default), AVG, MAX, MIN or PROD.
    group : Group, optional
        The ranks; by default the world.
    """
    where, ranks = "functional.reduce_scatter", group_or_world(group)
    expect_rows(x, where, ranks)
    expect_gradient(x, op, where)
    return ReduceScatter.apply(x, op, ranks)


def all_gather(x: Tensor, group: Group | None = None) -> Tensor:
    """Concatenate the tensors of all ranks along the first axis. All have the same shape.

    The gradient is a reduce_scatter.

    Parameters
    ----------
    x : Tensor
        The operand, of the same shape and dtype on all ranks.
    group : Group, optional
        The ranks; by default the world.
    """
    expect_rows(x, "functional.all_gather")
    return AllGather.apply(x, group_or_world(group))


def broadcast(x: Tensor, src: int, group: Group | None = None) -> Tensor:
    """Return the tensor of rank `src` of the world.

    The gradient is the sum of all ranks' gradients on rank `src`, and zero on the other ranks.

    Parameters
    ----------
    x : Tensor
        The tensor to send. The other ranks pass a tensor of the same shape and dtype.
    src : int
        The rank of the world that sends.
    group : Group, optional
        The ranks; by default the world.
    """
    where, ranks = "functional.broadcast", group_or_world(group)
    elements(x, where)
    return Broadcast.apply(x, ranks.group_rank_of(src, where, "src"), ranks)


def all_to_all(x: Tensor, group: Group | None = None) -> Tensor:
    """Send rank r the r-th block of the rows, and concatenate the received blocks.

    The gradient is an all_to_all.

    Parameters
    ----------
    x : Tensor
        The operand, of the same shape and dtype on all ranks. The number of ranks must divide the
        rows.
    group : Group, optional
        The ranks; by default the world.
    """
    ranks = group_or_world(group)
    expect_rows(x, "functional.all_to_all", ranks)
    return AllToAll.apply(x, ranks)
