# SPDX-License-Identifier: Apache-2.0
"""Collectives that return new tensors and through which gradients flow.

The gradients are those of the sum of the losses of all ranks, as in ngd's graphs
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
"""The reductions that support gradients in this module."""


def run(where: str, x: Tensor, ranks: Group, rows: float = 1, **options: Any) -> Tensor:
    """Run a collective of ngd on `x`, and return the result as a new tensor.

    `where` is the name of the collective, a method of ngd's group, for example "all_gather". The
    result has `rows` times as many rows as `x`; `rows` may be less than 1. `options` are further
    arguments of the method.
    """
    shape = [int(n * rows) if i == 0 else n for i, n in enumerate(x.shape)]
    result = paddle.empty(shape, dtype=x.dtype)
    call = getattr(ranks.group, where)
    call(elements(x, where), out=elements(result, where), site=call_site(), **options)
    return result


class AllReduce(PyLayer):
    """An all_reduce. For SUM and AVG, its gradient is the same reduction of the ranks' gradients.

    Other reductions have no gradient: `expect_gradient` raises an error for them.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, op: int, ranks: Group) -> Tensor:
        """Reduce the tensor over the ranks."""
        ctx.saved = op, ranks
        return run("all_reduce", x, ranks, op=reduction(op, x, "functional.all_reduce"))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Reduce the gradient over the ranks, by the op of `forward`."""
        return AllReduce.apply(gradient, *ctx.saved)


class AllGather(PyLayer):
    """An all_gather, whose gradient is a reduce_scatter."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Group) -> Tensor:
        """Concatenate the tensors of all ranks along the first axis."""
        ctx.ranks = ranks
        return run("all_gather", x, ranks, ranks.nranks)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Sum the gradients of all ranks, and return the rows that belong to this rank's tensor."""
        return ReduceScatter.apply(gradient, ReduceOp.SUM, ctx.ranks)


class ReduceScatter(PyLayer):
    """A reduce_scatter. For SUM, its gradient is an all_gather of the ranks' gradients.

    For AVG, the gradient is this all_gather divided by the number of ranks. Other reductions have
    no gradient.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, op: int, ranks: Group) -> Tensor:
        """Reduce over the ranks, and return the block of rows that belongs to this rank."""
        ctx.saved = op, ranks
        name = reduction(op, x, "functional.reduce_scatter")
        return run("reduce_scatter", x, ranks, 1 / ranks.nranks, op=name)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Concatenate the gradients of all ranks; for AVG, divide by the number of ranks."""
        op, ranks = ctx.saved
        gathered = AllGather.apply(gradient, ranks)
        return gathered / ranks.nranks if op == ReduceOp.AVG else gathered


class Broadcast(PyLayer):
    """A broadcast. Its gradient is the sum of all gradients on the root, and 0 on other ranks."""

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
    """An all_to_all, whose gradient is an all_to_all of the ranks' gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Group) -> Tensor:
        """Send each rank its block of rows, and concatenate the received blocks."""
        ctx.ranks = ranks
        return run("all_to_all", x, ranks)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Send the gradient of each received block back to the rank that sent the block."""
        return AllToAll.apply(gradient, ctx.ranks)


def expect_gradient(x: Tensor, op: int, where: str) -> None:
    """Raise GradientError if `x` needs a gradient and the reduction `op` is not SUM or AVG."""
    reduction(op, x, where)
    if op not in LINEAR and not x.stop_gradient and paddle.is_grad_enabled():
        raise GradientError(
            f"{where}: op: expected ReduceOp.SUM or AVG of a tensor that needs a gradient; got "
            f"ReduceOp.{NAMES[op]}. Pass x.detach() if it needs none."
        )


def expect_rows(x: Tensor, where: str, ranks: Group | None = None) -> None:
    """Raise ShapeError if `x` is a scalar.

    If `ranks` is given, also raise ShapeError if the number of rows of `x` is not a multiple of the
    number of ranks.
    """
    elements(x, where)
    shape = tuple(x.shape)
    normal_axis(0, shape, where)
    if ranks is not None:
        block_rows(shape, ranks.nranks, where)


def all_reduce(x: Tensor, op: int = ReduceOp.SUM, group: Group | None = None) -> Tensor:
    """Return the reduction of the ranks' tensors, element by element.

    The gradient is the same reduction of the ranks' gradients. MAX, MIN and PROD have no gradient.

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

    The ranks and the blocks are numbered from 0. For SUM, the gradient is an all_gather of the
    ranks' gradients, and for AVG it is this all_gather divided by the number of ranks. MAX, MIN and
    PROD have no gradient.

    Parameters
    ----------
    x : Tensor
        The operand, of the same shape and dtype on all ranks. Its number of rows must be a multiple
        of the number of ranks.
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
    """Return the tensors of all ranks, concatenated along the first axis.

    The gradient is a reduce_scatter: each rank gets the rows of its own tensor from the sum of the
    ranks' gradients.

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
    """Send the r-th block of the rows to rank r, and return the received blocks concatenated.

    The gradient is an all_to_all, which sends the gradient of each block back.

    Parameters
    ----------
    x : Tensor
        The operand, of the same shape and dtype on all ranks. Its number of rows must be a multiple
        of the number of ranks.
    group : Group, optional
        The ranks; by default the world.
    """
    ranks = group_or_world(group)
    expect_rows(x, "functional.all_to_all", ranks)
    return AllToAll.apply(x, ranks)
