# SPDX-License-Identifier: Apache-2.0
"""Collectives on PyTorch's CPU tensors, with gradients."""

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
    """Return a tensor that shares the memory of an array."""
    if array.dtype == bfloat16:
        return torch.from_numpy(array.view("int16")).view(torch.bfloat16)
    return torch.from_numpy(array)


TENSORS: Final = Adapter(torch.Tensor.detach, tensor_of)


@with_parameters_of(arrays.allreduce_async)
def allreduce_async(tensor: Tensor, *args: Any, **kwargs: Any) -> Handle:
    """Start `allreduce` and return its handle. Gradients do not flow through it.

    Corresponds to `horovod.torch.allreduce_async`.

    The arguments are those of `allreduce`, without `compression`.
    """
    return TENSORS.start("allreduce", tensor, *args, **kwargs)


@with_parameters_of(arrays.allreduce_async)
def allreduce_async_(tensor: Tensor, *args: Any, **kwargs: Any) -> Handle:
    """Start `allreduce_` and return its handle.

    Corresponds to `horovod.torch.allreduce_async_`.

    The arguments are those of `allreduce`, without `compression`.
    """
    return TENSORS.start_in_place("allreduce", tensor, *args, **kwargs)


def allreduce_(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Reduce a contiguous tensor in place, as `allreduce` does, and return it.

    Corresponds to `horovod.torch.allreduce_`.

    The arguments are those of `allreduce`, without `compression`.
    """
    result: Tensor = allreduce_async_(tensor, *args, **kwargs).wait()
    return result


@with_parameters_of(arrays.grouped_allreduce)
def grouped_allreduce_async(tensors: Tensors, *args: Any, **kwargs: Any) -> Handle:
    """Start `grouped_allreduce` and return its handle. Gradients do not flow through it.

    Corresponds to `horovod.torch.grouped_allreduce_async`.

    The other arguments are those of `allreduce`, without `compression`.
    """
    return TENSORS.start("grouped_allreduce", tensors, *args, **kwargs)


@with_parameters_of(arrays.grouped_allreduce)
def grouped_allreduce_async_(tensors: Tensors, *args: Any, **kwargs: Any) -> Handle:
    """Start `grouped_allreduce_` and return its handle.

    Corresponds to `horovod.torch.grouped_allreduce_async_`.

    The other arguments are those of `allreduce`, without `compression`.
    """
    return TENSORS.start_in_place("grouped_allreduce", tensors, *args, **kwargs)


def grouped_allreduce_(tensors: Tensors, *args: Any, **kwargs: Any) -> list[Tensor]:
    """Reduce contiguous tensors in place, as `grouped_allreduce` does, and return their list.

    Corresponds to `horovod.torch.grouped_allreduce_`.

    The other arguments are those of `allreduce`, without `compression`.
    """
    result: list[Tensor] = grouped_allreduce_async_(tensors, *args, **kwargs).wait()
    return result


class AllReduce(torch.autograd.Function):
    """A reduction over the ranks. The backward pass reduces the gradient by the same op.

    The backward pass also multiplies the gradient by the same scale factors. The gradient is
    correct only for the ops Average and Sum.
    """

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, name: Any, op: int, scales: Any, ranks: Any) -> Any:
        """Reduce the tensor over the ranks."""
        ctx.saved = op, scales, ranks
        pre, post = scales
        return allreduce_async(tensor, None, name, op, pre, post, ranks).wait()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Reduce the gradient over the ranks, as `forward` reduces the tensor."""
        op, scales, ranks = ctx.saved
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
    """Reduce a tensor over the ranks, element by element. Gradients flow through the call.

    Corresponds to `horovod.torch.allreduce`.

    Parameters
    ----------
    tensor : Tensor
        A dense tensor on the CPU, of the same shape and dtype on all ranks.
    average : bool, optional
        Horovod's old form of `op`: Average if True, Sum if False. It cannot be combined with `op`.
    name : str, optional
        A name. All ranks must pass the same name.
    compression : class
        The dtype in which floats are sent: `Compression.none`, `.fp16` or `.bf16`.
    op : int
        Average (the default), Sum, Adasum, Min, Max or Product. An average of integers is rounded
        towards zero. The backward pass applies the same op to the gradients, which is correct only
        for Average and Sum.
    prescale_factor, postscale_factor : float
        The factors by which the operand and the result are multiplied; by default 1.
    process_set : ProcessSet
        The ranks; by default the world.
    """
    sent, ctx = compression.compress(tensor)
    scales = prescale_factor, postscale_factor
    result = AllReduce.apply(sent, name, op_of(op, average), scales, process_set)
    return compression.decompress(result, ctx)


def grouped_allreduce(tensors: Tensors, *args: Any, **kwargs: Any) -> list[Tensor]:
    """Reduce each tensor of a list, as `allreduce` does, and return the list of the results.

    If no tensor requires a gradient, all reductions run at the same time, and small tensors are
    reduced together.

    Corresponds to `horovod.torch.grouped_allreduce`.

    The other arguments are those of `allreduce`.
    """
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return [allreduce(tensor, *args, **kwargs) for tensor in tensors]
    return grouped_allreduce_compressed(tensors, *args, **kwargs)


def grouped_allreduce_compressed(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    *args: Any,
    **kwargs: Any,
) -> list[Tensor]:
    """Reduce each tensor of a list, all at the same time, and return the list of the results.

    Autograd does not record the call: no gradients flow through the results.

    `compression` compresses each tensor before it is sent, and decompresses each result. The other
    arguments are those of `allreduce`.
    """
    sent = [compression.compress(tensor) for tensor in tensors]
    handle = grouped_allreduce_async([tensor for tensor, _ in sent], average, name, *args, **kwargs)
    pairs = zip(handle.wait(), sent, strict=True)
    return [compression.decompress(result, ctx) for result, (_, ctx) in pairs]


def sparse_allreduce_async(
    tensor: Tensor, name: str | None, op: int, process_set: ProcessSet = global_process_set
) -> Handle:
    """Start to sum or average sparse tensors over the ranks, and return a handle.

    The result is a sparse tensor with the indices and values of all ranks. It is not coalesced: an
    index that several ranks have occurs several times. For Average, the values are divided by the
    number of ranks.

    Corresponds to `horovod.torch.sparse_allreduce_async`.

    Parameters
    ----------
    tensor : Tensor
        A sparse tensor, of the same shape and dtype on all ranks.
    name : str, optional
        A name. All ranks must pass the same name.
    op : int
        Average or Sum.
    process_set : ProcessSet
        The ranks; by default the world.
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
    """Start `allgather` and return its handle. Gradients do not flow through it.

    Corresponds to `horovod.torch.allgather_async`.

    The arguments are those of `allgather`.
    """
    return TENSORS.start("allgather", tensor, *args, **kwargs)


class AllGather(torch.autograd.Function):
    """A concatenation of the ranks' tensors.

    The gradient is averaged over the ranks, as in Horovod, and each rank gets its own rows of it.
    """

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, name: Any, ranks: Any) -> Any:
        """Concatenate the ranks' tensors."""
        ctx.rows, ctx.shape, ctx.ranks = len(torch.atleast_1d(tensor)), tensor.shape, ranks
        return allgather_async(tensor, name, ranks).wait()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Average the gradient over the ranks, and return the rows that belong to this rank."""
        total = allreduce(gradient.contiguous(), process_set=ctx.ranks)
        rows = allgather_async(torch.tensor([ctx.rows]), None, ctx.ranks).wait()
        begin = int(rows[: ctx.ranks.rank()].sum())
        return total[begin : begin + ctx.rows].reshape(ctx.shape), None, None


def allgather(
    tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """Concatenate the ranks' tensors along the first axis. Their lengths may differ.

    The gradient is averaged over the ranks, as in Horovod.

    Corresponds to `horovod.torch.allgather`.

    Parameters
    ----------
    tensor : Tensor
        The operand. The tensors of the ranks may only differ in the length of the first axis.
    name : str, optional
        A name. All ranks must pass the same name.
    process_set : ProcessSet
        The ranks; by default the world.
    """
    result: Tensor = AllGather.apply(tensor, name, process_set)
    return result


def grouped_allgather_async(tensors: Tensors, *args: Any, **kwargs: Any) -> Handle:
    """Start `grouped_allgather` and return its handle. Gradients do not flow through it.

    Corresponds to `horovod.torch.grouped_allgather_async`.

    The other arguments are those of `allgather`.
    """
    return TENSORS.start_each("allgather", tensors, *args, **kwargs)


def grouped_allgather(tensors: Tensors, *args: Any, **kwargs: Any) -> list[Tensor]:
    """Gather each tensor of a list, as `allgather` does, and return the list of the results.

    Corresponds to `horovod.torch.grouped_allgather`.

    The other arguments are those of `allgather`.
    """
    return [allgather(tensor, *args, **kwargs) for tensor in tensors]


@with_parameters_of(arrays.broadcast_async)
def broadcast_async(tensor: Tensor, *args: Any, **kwargs: Any) -> Handle:
    """Start `broadcast` and return its handle. Gradients do not flow through it.

    Corresponds to `horovod.torch.broadcast_async`.

    The arguments are those of `broadcast`.
    """
    return TENSORS.start("broadcast", tensor, *args, **kwargs)


@with_parameters_of(arrays.broadcast_async)
def broadcast_async_(tensor: Tensor, *args: Any, **kwargs: Any) -> Handle:
    """Start `broadcast_` and return its handle.

    Corresponds to `horovod.torch.broadcast_async_`.

    The arguments are those of `broadcast`.
    """
    return TENSORS.start_in_place("broadcast", tensor, *args, **kwargs)


def broadcast_(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Overwrite a contiguous tensor by that of rank `root_rank`, and return it.

    Corresponds to `horovod.torch.broadcast_`.

    The arguments are those of `broadcast`.
    """
    result: Tensor = broadcast_async_(tensor, *args, **kwargs).wait()
    return result


class Broadcast(torch.autograd.Function):
    """A broadcast from one rank.

    On the root, the gradient is the average of the ranks' gradients, as in Horovod. On the other
    ranks it is zero.
    """

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, root: int, name: Any, ranks: Any) -> Any:
        """Broadcast the tensor of the root."""
        ctx.saved = root, ranks
        return broadcast_async(tensor, root, name, ranks).wait()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Return the average of the gradients on the root, and zeros on the other ranks."""
        root, ranks = ctx.saved
        total = allreduce(gradient, process_set=ranks)
        is_root = ranks.rank() == ranks.root(root, "hvd.broadcast")
        return (total if is_root else torch.zeros_like(total)), None, None, None


def broadcast(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Return the tensor of rank `root_rank` on all ranks.

    All ranks pass a tensor of the same shape and dtype. On rank `root_rank`, the gradient is the
    average of the ranks' gradients, as in Horovod. On the other ranks it is zero.

    Corresponds to `horovod.torch.broadcast`.

    Parameters
    ----------
    tensor : Tensor
        The tensor to send. The other ranks pass a tensor of the same shape and dtype.
    root_rank : int
        The rank that sends: its rank in the world, not in `process_set`.
    name : str, optional
        A name. All ranks must pass the same name.
    process_set : ProcessSet
        The ranks; by default the world.
    """
    result: Tensor = Broadcast.apply(tensor, root_rank, name, process_set)
    return result


def alltoall_pair_async(tensor: Tensor, *args: Any, **kwargs: Any) -> Handle:
    """Start an all-to-all. The result of the handle is (rows, number of rows from each rank)."""
    handle = TENSORS.start("alltoall", tensor, *args, **kwargs)
    return handle.then(lambda pair: (pair[0], pair[1].to(torch.int32)))


@with_parameters_of(arrays.alltoall_async)
def alltoall_async(tensor: Tensor, splits: Any = None, *args: Any, **kwargs: Any) -> Handle:
    """Start `alltoall` and return its handle. Gradients do not flow through it.

    Corresponds to `horovod.torch.alltoall_async`.

    The arguments are those of `alltoall`.
    """
    handle = alltoall_pair_async(tensor, splits, *args, **kwargs)
    return handle if splits is not None else handle.then(lambda pair: pair[0])


class AllToAll(torch.autograd.Function):
    """An exchange of rows. Each row of the gradient returns to the rank that sent the row."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, splits: Any, name: Any, ranks: Any) -> Any:
        """Send `splits[r]` rows to each rank r. Return (received rows, their number per rank)."""
        rows, received = alltoall_pair_async(tensor, splits, name, ranks).wait()
        ctx.saved = received, ranks
        ctx.mark_non_differentiable(received)
        return rows, received

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Any) -> Any:
        """Send each row of the gradient back to the rank that sent the row in `forward`."""
        received, ranks = ctx.saved
        rows = alltoall(gradient.contiguous(), received, process_set=ranks)[0]
        return rows, None, None, None


def alltoall(
    tensor: Tensor,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send `splits[r]` rows to each rank r, and return the rows that the ranks sent to this one.

    Corresponds to `horovod.torch.alltoall`.

    Parameters
    ----------
    tensor : Tensor
        The rows to send, in the order of the ranks.
    splits : tensor or sequence of int, optional
        The number of rows for each rank; by default equal numbers.
    name : str, optional
        A name. All ranks must pass the same name.
    process_set : ProcessSet
        The ranks; by default the world.

    Returns
    -------
    Tensor, or a pair of tensors
        The received rows, in the order of the ranks. If `splits` is given: the rows, and the number
        of rows from each rank, int32.
    """
    rows, received = AllToAll.apply(tensor, splits, name, process_set)
    return rows if splits is None else (rows, received)


@with_parameters_of(arrays.reducescatter_async)
def reducescatter_async(tensor: Tensor, *args: Any, **kwargs: Any) -> Handle:
    """Start `reducescatter` and return its handle. Gradients do not flow through it.

    Corresponds to `horovod.torch.reducescatter_async`.

    The arguments are those of `reducescatter`, without `compression`.
    """
    return TENSORS.start("reducescatter", tensor, *args, **kwargs)


class ReduceScatter(torch.autograd.Function):
    """A reduction over the ranks. Each rank gets its shard of the rows of the result.

    The backward pass concatenates the gradients of all ranks, and multiplies them by the scale
    factors. For Sum, it also multiplies them by the number of ranks, as Horovod does.
    """

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, name: Any, op: int, ranks: Any, scales: Any) -> Any:
        """Reduce the tensor over the ranks, and return this rank's shard of the rows."""
        ctx.factor = scales[0] * scales[1] * (ranks.size() if op == Sum else 1)
        ctx.ranks = ranks
        return reducescatter_async(tensor, name, op, ranks, *scales).wait()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Concatenate the gradients of all ranks, and multiply them by the scale factors.

        For Sum, also multiply them by the number of ranks.
        """
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
    """Reduce a tensor over the ranks and return this rank's shard of the rows.

    Gradients flow through the call. If the number of rows is not a multiple of the number of ranks,
    the first ranks get one row more.

    Corresponds to `horovod.torch.reducescatter`.

    Parameters
    ----------
    tensor : Tensor
        The operand, of the same shape and dtype on all ranks.
    name : str, optional
        A name. All ranks must pass the same name.
    compression : class
        The dtype in which floats are sent: `Compression.none`, `.fp16` or `.bf16`.
    op : int
        Average (the default) or Sum.
    process_set : ProcessSet
        The ranks; by default the world.
    prescale_factor, postscale_factor : float
        The factors by which the operand and the result are multiplied; by default 1.
    """
    sent, ctx = compression.compress(tensor)
    scales = prescale_factor, postscale_factor
    return compression.decompress(ReduceScatter.apply(sent, name, op, process_set, scales), ctx)


def grouped_reducescatter_async(tensors: Tensors, *args: Any, **kwargs: Any) -> Handle:
    """Start `grouped_reducescatter` and return its handle. Gradients do not flow through it.

    Corresponds to `horovod.torch.grouped_reducescatter_async`.

    The other arguments are those of `reducescatter`, without `compression`.
    """
    return TENSORS.start_each("reducescatter", tensors, *args, **kwargs)


def grouped_reducescatter(tensors: Tensors, *args: Any, **kwargs: Any) -> list[Tensor]:
    """Reduce and scatter each tensor of a list, as `reducescatter` does; return the results.

    Corresponds to `horovod.torch.grouped_reducescatter`.

    The other arguments are those of `reducescatter`.
    """
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
