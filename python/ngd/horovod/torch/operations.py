# SPDX-License-Identifier: Apache-2.0
"""Collectives on PyTorch's tensors on the CPU, with gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ...dtypes import Array, bfloat16
from .. import calls
from ..calls import Average, Handle, Sum, op_of, poll, synchronize
from ..world import ProcessSet, global_process_set
from .compression import Compression, Compressor

Tensors: TypeAlias = Sequence[Tensor]


class TensorHandle:
    """A collective on its way, and how its result becomes tensors; to call it is to wait."""

    def __init__(self, handles: Sequence[Handle], finish: Callable[[list[Any]], Any]) -> None:
        self.handles, self.finish = list(handles), finish

    def __call__(self) -> Any:
        return self.wait()

    def poll(self) -> bool:
        """Whether `wait` would return at once."""
        return all(handle.poll() for handle in self.handles)

    def wait(self) -> Any:
        """The result."""
        return self.finish([handle.wait() for handle in self.handles])


def array_of(tensor: Tensor, where: str) -> Array:
    """The tensor's memory as NumPy sees it; a copy where it is not contiguous."""
    return calls.as_array(tensor.detach(), where)


def tensor_of(array: Array) -> Tensor:
    """An array's memory as PyTorch sees it."""
    if array.dtype == bfloat16:
        return torch.from_numpy(array.view("int16")).view(torch.bfloat16)
    return torch.from_numpy(array)


def reduced(
    source: Tensor, out: Tensor, op: int, name: str | None, scales: Any, ranks: ProcessSet
) -> Handle:
    """Begin to reduce a tensor into another, or itself."""
    array = array_of(source, "allreduce")
    place = calls.place(out.detach(), array, "allreduce")
    pre, post = scales
    return calls.all_reduce(
        array, place, op=op, name=name, prescale=pre, postscale=post, ranks=ranks
    )


def allreduce_async(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> TensorHandle:
    """As `allreduce`, without a gradient; returns a handle."""
    out = torch.empty(tensor.shape, dtype=tensor.dtype)
    scales = prescale_factor, postscale_factor
    handle = reduced(tensor, out, op_of(op, average), name, scales, process_set)
    return TensorHandle([handle], lambda _: out)


def allreduce_async_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> TensorHandle:
    """As `allreduce_`; returns a handle."""
    scales = prescale_factor, postscale_factor
    handle = reduced(tensor, tensor, op_of(op, average), name, scales, process_set)
    return TensorHandle([handle], lambda _: tensor)


def allreduce_(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """As `allreduce`, in the place of the tensor, which is contiguous."""
    result: Tensor = allreduce_async_(tensor, *args, **kwargs).wait()
    return result


def all_reduced(sources: Tensors, outs: Tensors, scales: Any, **how: Any) -> TensorHandle:
    """Begin to reduce tensors into others, or themselves; small ones travel together."""
    arrays = [array_of(source, "grouped_allreduce") for source in sources]
    pairs = zip(outs, arrays, strict=True)
    places = [calls.place(out.detach(), array, "grouped_allreduce") for out, array in pairs]
    pre, post = scales
    handle = calls.all_reduce_many(arrays, places, prescale=pre, postscale=post, **how)
    return TensorHandle([handle], lambda _: list(outs))


def grouped_allreduce_async(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> TensorHandle:
    """As `grouped_allreduce`, without a gradient; returns a handle."""
    outs = [torch.empty(tensor.shape, dtype=tensor.dtype) for tensor in tensors]
    scales = prescale_factor, postscale_factor
    how = {"op": op_of(op, average), "name": name, "ranks": process_set}
    return all_reduced(tensors, outs, scales, **how)


def grouped_allreduce_async_(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> TensorHandle:
    """As `grouped_allreduce_`; returns a handle."""
    scales = prescale_factor, postscale_factor
    how = {"op": op_of(op, average), "name": name, "ranks": process_set}
    return all_reduced(tensors, tensors, scales, **how)


def grouped_allreduce_(tensors: Tensors, *args: Any, **kwargs: Any) -> list[Tensor]:
    """As `grouped_allreduce`, in the place of the tensors."""
    result: list[Tensor] = grouped_allreduce_async_(tensors, *args, **kwargs).wait()
    return result


def all_of(handles: Sequence[TensorHandle]) -> TensorHandle:
    """One handle for many."""
    inner = [handle for each in handles for handle in each.handles]
    return TensorHandle(inner, lambda _: [each.wait() for each in handles])


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
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """Reduce many at once."""
    sent = [compression.compress(tensor) for tensor in tensors]
    how = average, name, op, prescale_factor, postscale_factor, process_set
    results = grouped_allreduce_async([tensor for tensor, _ in sent], *how).wait()
    pairs = zip(results, sent, strict=True)
    return [compression.decompress(result, ctx) for result, (_, ctx) in pairs]


def sparse_allreduce_async(
    tensor: Tensor, name: str | None, op: int, process_set: ProcessSet = global_process_set
) -> TensorHandle:
    """Sum or average sparse tensors: their indices and values are gathered.

    The result is not coalesced. `op` is Average or Sum.
    """
    if op not in (Average, Sum):
        raise ValueError(f"hvd.sparse_allreduce_async: op: expected Average or Sum; got {op!r}")
    handles = [
        allgather_async(tensor._indices().t().contiguous(), name, process_set),
        allgather_async(tensor._values(), name, process_set),
    ]

    def finish(_: Any) -> Tensor:
        indices, values = (handle.wait() for handle in handles)
        if op == Average:
            values = values / process_set.size()
        return torch.sparse_coo_tensor(indices.t(), values, tensor.shape)

    return TensorHandle([each for handle in handles for each in handle.handles], finish)


def allgather_async(
    tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> TensorHandle:
    """As `allgather`, without a gradient; returns a handle."""
    handle = calls.all_gather(array_of(tensor, "allgather"), name=name, ranks=process_set)
    return TensorHandle([handle], lambda found: tensor_of(found[0]))


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


def grouped_allgather_async(tensors: Tensors, *args: Any, **kwargs: Any) -> TensorHandle:
    """As `grouped_allgather`, without a gradient; returns a handle."""
    return all_of([allgather_async(tensor, *args, **kwargs) for tensor in tensors])


def grouped_allgather(tensors: Tensors, *args: Any, **kwargs: Any) -> list[Tensor]:
    """`allgather` of each of a list."""
    return [allgather(tensor, *args, **kwargs) for tensor in tensors]


def sent_from_root(
    source: Tensor, out: Tensor, root: int, name: str | None, ranks: ProcessSet
) -> TensorHandle:
    """Begin to broadcast a tensor into another, or itself."""
    array = array_of(source, "broadcast")
    place = calls.place(out.detach(), array, "broadcast")
    handle = calls.broadcast(array, place, root, name=name, ranks=ranks)
    return TensorHandle([handle], lambda _: out)


def broadcast_async(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> TensorHandle:
    """As `broadcast`, without a gradient; returns a handle."""
    out = torch.empty(tensor.shape, dtype=tensor.dtype)
    return sent_from_root(tensor, out, root_rank, name, process_set)


def broadcast_async_(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> TensorHandle:
    """As `broadcast_`; returns a handle."""
    return sent_from_root(tensor, tensor, root_rank, name, process_set)


def broadcast_(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """As `broadcast`, in the place of the tensor, which is contiguous."""
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


def exchanged(tensor: Tensor, splits: Any, name: str | None, ranks: ProcessSet) -> TensorHandle:
    """Begin an all-to-all; its result has the rows, and how many came from each rank."""
    array = array_of(tensor, "alltoall")
    handle = calls.all_to_all(
        array, None if splits is None else list(splits), name=name, ranks=ranks
    )
    return TensorHandle(
        [handle], lambda found: (tensor_of(found[0][0]), tensor_of(found[0][1]).to(torch.int32))
    )


def alltoall_async(
    tensor: Tensor,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> TensorHandle:
    """As `alltoall`, without a gradient; returns a handle."""
    handle = exchanged(tensor, splits, name, process_set)
    if splits is not None:
        return handle
    return TensorHandle(handle.handles, lambda _: handle.wait()[0])


class AllToAll(torch.autograd.Function):
    """Exchanges; a gradient goes back to where its rows came from."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, splits: Any, name: Any, ranks: Any) -> Any:
        """Send rows."""
        rows, received = exchanged(tensor, splits, name, ranks).wait()
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


def reducescatter_async(
    tensor: Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> TensorHandle:
    """As `reducescatter`, without a gradient; returns a handle."""
    handle = calls.reduce_scatter(
        array_of(tensor, "reducescatter"),
        op=op,
        name=name,
        prescale=prescale_factor,
        postscale=postscale_factor,
        ranks=process_set,
    )
    return TensorHandle([handle], lambda found: tensor_of(found[0]))


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


def grouped_reducescatter_async(tensors: Tensors, *args: Any, **kwargs: Any) -> TensorHandle:
    """As `grouped_reducescatter`, without a gradient; returns a handle."""
    return all_of([reducescatter_async(tensor, *args, **kwargs) for tensor in tensors])


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
