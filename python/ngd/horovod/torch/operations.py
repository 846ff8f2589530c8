# SPDX-License-Identifier: Apache-2.0
"""Collectives on PyTorch's tensors on the CPU, with gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor

from ...dtypes import Array, bfloat16
from .. import numpy as arrays
from ..adapter import Adapter, with_parameters_of
from ..calls import Average, Handle, Sum, handle_of_all, op_of, poll, synchronize
from ..world import ProcessSet, global_process_set
from .compression import Compression, Compressor

Tensors: TypeAlias = Sequence[Tensor]


def tensor_of(array: Array) -> Tensor:
    """Return an array's memory as a tensor."""
    if array.dtype == bfloat16:
        return torch.from_numpy(array.view("int16")).view(torch.bfloat16)
    return torch.from_numpy(array)


TENSORS: Final = Adapter(torch.Tensor.detach, tensor_of)


@with_parameters_of(arrays.allreduce_async)
def allreduce_async(tensor: Tensor, *args: Any, **kwargs: Any) -> Handle:
    """Start `allreduce`, without a gradient, and return a handle."""
    return TENSORS.start("allreduce", tensor, *args, **kwargs)


@with_parameters_of(arrays.allreduce_async)
def allreduce_async_(tensor: Tensor, *args: Any, **kwargs: Any) -> Handle:
    """Start `allreduce_`, and return a handle."""
    return TENSORS.start_in_place("allreduce", tensor, *args, **kwargs)


def allreduce_(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Reduce a contiguous tensor in place; see `allreduce`."""
    result: Tensor = allreduce_async_(tensor, *args, **kwargs).wait()
    return result


@with_parameters_of(arrays.grouped_allreduce)
def grouped_allreduce_async(tensors: Tensors, *args: Any, **kwargs: Any) -> Handle:
    """Start `grouped_allreduce`, without a gradient, and return a handle."""
    return TENSORS.start("grouped_allreduce", tensors, *args, **kwargs)


@with_parameters_of(arrays.grouped_allreduce)
def grouped_allreduce_async_(tensors: Tensors, *args: Any, **kwargs: Any) -> Handle:
    """Start `grouped_allreduce_`, and return a handle."""
    return TENSORS.start_in_place("grouped_allreduce", tensors, *args, **kwargs)


def grouped_allreduce_(tensors: Tensors, *args: Any, **kwargs: Any) -> list[Tensor]:
    """Reduce contiguous tensors in place; see `grouped_allreduce`."""
    result: list[Tensor] = grouped_allreduce_async_(tensors, *args, **kwargs).wait()
    return result


class AllReduce(torch.autograd.Function):
    """The gradient of a reduction is the same reduction of gradients."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, name: Any, op: int, scales: Any, ranks: Any) -> Any:
        """Reduce."""
        ctx.how = op, scales, ranks
        pre, post = scales
        return allreduce_async(tensor, None, name, op, pre, post, ranks).wait()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Reduce the gradient."""
        op, scales, ranks = ctx.how
        return AllReduce.apply(gradient, None, op, scales, ranks), None, None, None, None


def allreduce(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Reduce over the ranks, element by element; gradients flow through.

    Parameters
    ----------
    tensor
        A dense tensor on the CPU, of one shape and dtype on all ranks.
    average
        Horovod's old argument: whether to average. Not with `op`.
    name
        Compared between ranks.
    compression
        `Compression.none`, `.fp16` or `.bf16`.
    op
        Average (the default), Sum, Adasum, Min, Max or Product. An average of integers is rounded
        towards zero. Gradients are right for Average and Sum.
    prescale_factor, postscale_factor
        Multiply before and after.
    process_set
        The ranks.
    """
    sent, ctx = compression.compress(tensor)
    scales = prescale_factor, postscale_factor
    result = AllReduce.apply(sent, name, op_of(op, average), scales, process_set)
    return compression.decompress(result, ctx)


def grouped_allreduce(tensors: Tensors, *args: Any, **kwargs: Any) -> list[Tensor]:
    """`allreduce` of each of a list; all are under way at once where no gradient is needed."""
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return [allreduce(tensor, *args, **kwargs) for tensor in tensors]
    return grouped_compressed(tensors, *args, **kwargs)


def grouped_compressed(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    *args: Any,
    **kwargs: Any,
) -> list[Tensor]:
    """Reduce many at once; the other arguments are those of `allreduce` after `compression`."""
    sent = [compression.compress(tensor) for tensor in tensors]
    handle = grouped_allreduce_async([tensor for tensor, _ in sent], average, name, *args, **kwargs)
    pairs = zip(handle.wait(), sent, strict=True)
    return [compression.decompress(result, ctx) for result, (_, ctx) in pairs]


def sparse_allreduce_async(
    tensor: Tensor, name: str | None, op: int, process_set: ProcessSet = global_process_set
) -> Handle:
    """Sum or average sparse tensors: their indices and values are gathered.

    The result is not coalesced. `op` is Average or Sum.
    """
    if op not in (Average, Sum):
        raise ValueError(f"hvd.sparse_allreduce_async: op: expected Average or Sum; got {op!r}")
    handles = [
        allgather_async(tensor._indices().t().contiguous(), name, process_set),
        allgather_async(tensor._values(), name, process_set),
    ]

    def join(parts: list[Tensor]) -> Tensor:
        indices, values = parts
        if op == Average:
            values = values / process_set.size()
        return torch.sparse_coo_tensor(indices.t(), values, tensor.shape)

    return handle_of_all("sparse_allreduce", handles).then(join)


@with_parameters_of(arrays.allgather_async)
def allgather_async(tensor: Tensor, *args: Any, **kwargs: Any) -> Handle:
    """Start `allgather`, without a gradient, and return a handle."""
    return TENSORS.start("allgather", tensor, *args, **kwargs)


class AllGather(torch.autograd.Function):
    """Joins; a gradient is averaged over the ranks, as Horovod does, and each gets its rows."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, name: Any, ranks: Any) -> Any:
        """Gather."""
        ctx.rows, ctx.shape, ctx.ranks = len(torch.atleast_1d(tensor)), tensor.shape, ranks
        return allgather_async(tensor, name, ranks).wait()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Average, and take my rows."""
        total = allreduce(gradient.contiguous(), process_set=ctx.ranks)
        rows = allgather_async(torch.tensor([ctx.rows]), None, ctx.ranks).wait()
        begin = int(rows[: ctx.ranks.rank()].sum())
        return total[begin : begin + ctx.rows].reshape(ctx.shape), None, None


def allgather(
    tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """Join the ranks' tensors along the first axis, where their lengths may differ."""
    result: Tensor = AllGather.apply(tensor, name, process_set)
    return result


def grouped_allgather_async(tensors: Tensors, *args: Any, **kwargs: Any) -> Handle:
    """Start `grouped_allgather`, without a gradient, and return a handle."""
    return TENSORS.start_each("allgather", tensors, *args, **kwargs)


def grouped_allgather(tensors: Tensors, *args: Any, **kwargs: Any) -> list[Tensor]:
    """`allgather` of each of a list."""
    return [allgather(tensor, *args, **kwargs) for tensor in tensors]


@with_parameters_of(arrays.broadcast_async)
def broadcast_async(tensor: Tensor, *args: Any, **kwargs: Any) -> Handle:
    """Start `broadcast`, without a gradient, and return a handle."""
    return TENSORS.start("broadcast", tensor, *args, **kwargs)


@with_parameters_of(arrays.broadcast_async)
def broadcast_async_(tensor: Tensor, *args: Any, **kwargs: Any) -> Handle:
    """Start `broadcast_`, and return a handle."""
    return TENSORS.start_in_place("broadcast", tensor, *args, **kwargs)


def broadcast_(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Overwrite a contiguous tensor by that of a rank; see `broadcast`."""
    result: Tensor = broadcast_async_(tensor, *args, **kwargs).wait()
    return result


class Broadcast(torch.autograd.Function):
    """Sends; gradients are averaged, as Horovod does: for the root. The others have zeros."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, root: int, name: Any, ranks: Any) -> Any:
        """Send."""
        ctx.how = root, ranks
        return broadcast_async(tensor, root, name, ranks).wait()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Average for the root."""
        root, ranks = ctx.how
        total = allreduce(gradient, process_set=ranks)
        mine = ranks.rank() == ranks.root(root, "hvd.broadcast")
        return (total if mine else torch.zeros_like(total)), None, None, None


def broadcast(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """The tensor of a rank of the world, on all ranks; each gives one of its shape and dtype."""
    result: Tensor = Broadcast.apply(tensor, root_rank, name, process_set)
    return result


def exchange_async(tensor: Tensor, *args: Any, **kwargs: Any) -> Handle:
    """Start an all-to-all; its result has the rows, and the number of rows from each rank."""
    handle = TENSORS.start("alltoall", tensor, *args, **kwargs)
    return handle.then(lambda pair: (pair[0], pair[1].to(torch.int32)))


@with_parameters_of(arrays.alltoall_async)
def alltoall_async(tensor: Tensor, splits: Any = None, *args: Any, **kwargs: Any) -> Handle:
    """Start `alltoall`, without a gradient, and return a handle."""
    handle = exchange_async(tensor, splits, *args, **kwargs)
    return handle if splits is not None else handle.then(lambda pair: pair[0])


class AllToAll(torch.autograd.Function):
    """Exchanges; a gradient goes back to where its rows came from."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, splits: Any, name: Any, ranks: Any) -> Any:
        """Send rows."""
        rows, received = exchange_async(tensor, splits, name, ranks).wait()
        ctx.how = received, ranks
        ctx.mark_non_differentiable(received)
        return rows, received

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Any) -> Any:
        """Send them back."""
        received, ranks = ctx.how
        rows = alltoall(gradient.contiguous(), received, process_set=ranks)[0]
        return rows, None, None, None


def alltoall(
    tensor: Tensor,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send rows to every rank, `splits[r]` of them to rank r, and receive theirs.

    Returns
    -------
    torch.Tensor
        The rows from all ranks, in their order. With splits: this, and how many came from each,
        int32.
    """
    rows, received = AllToAll.apply(tensor, splits, name, process_set)
    return rows if splits is None else (rows, received)


@with_parameters_of(arrays.reducescatter_async)
def reducescatter_async(tensor: Tensor, *args: Any, **kwargs: Any) -> Handle:
    """Start `reducescatter`, without a gradient, and return a handle."""
    return TENSORS.start("reducescatter", tensor, *args, **kwargs)


class ReduceScatter(torch.autograd.Function):
    """Reduces, and shares out; gradients are gathered, of a sum times the ranks, as Horovod's."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, name: Any, op: int, ranks: Any, scales: Any) -> Any:
        """Reduce."""
        ctx.factor = scales[0] * scales[1] * (ranks.size() if op == Sum else 1)
        ctx.ranks = ranks
        return reducescatter_async(tensor, name, op, ranks, *scales).wait()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Gather."""
        gathered = allgather(gradient.contiguous(), process_set=ctx.ranks)
        return gathered * ctx.factor, None, None, None, None


def reducescatter(
    tensor: Tensor,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """Reduce over the ranks, and return this rank's share of the rows; gradients flow through.

    Where they cannot be shared evenly, the first ranks get one more. `op` is Average or Sum.
    """
    sent, ctx = compression.compress(tensor)
    scales = prescale_factor, postscale_factor
    return compression.decompress(ReduceScatter.apply(sent, name, op, process_set, scales), ctx)


def grouped_reducescatter_async(tensors: Tensors, *args: Any, **kwargs: Any) -> Handle:
    """Start `grouped_reducescatter`, without a gradient, and return a handle."""
    return TENSORS.start_each("reducescatter", tensors, *args, **kwargs)


def grouped_reducescatter(tensors: Tensors, *args: Any, **kwargs: Any) -> list[Tensor]:
    """`reducescatter` of each of a list."""
    return [reducescatter(tensor, *args, **kwargs) for tensor in tensors]


__all__ = [
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "poll",
    "reducescatter",
    "reducescatter_async",
    "sparse_allreduce_async",
    "synchronize",
]
