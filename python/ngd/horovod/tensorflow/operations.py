# SPDX-License-Identifier: Apache-2.0
"""Collectives on TensorFlow's tensors on the CPU, with gradients, eagerly and in tf.function.

Each is one tf.numpy_function, which hands NumPy the tensors' own memory. In a tf.function such
calls run in the order of the program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import tensorflow as tf

from .. import numpy as arrays
from ..calls import Average, Sum, expect_average, op_of
from ..world import ProcessSet, global_process_set, local_rank, local_size, rank

Tensor: TypeAlias = Any
"""tf.Tensor, or what TensorFlow makes one of."""


LATEST: Final = "_ngd_latest"
"""What holds the last collective of a graph: the next one waits for it. In backward passes nothing
else would keep their order, which has to be one on all ranks."""


class Narrowing:
    """Send float32 and float64 as floats of two bytes, or as they are."""

    dtype: Any = None

    @classmethod
    def compress(cls, tensor: Tensor) -> tuple[Tensor, Any]:
        """The tensor as it travels, and its dtype."""
        narrows = cls.dtype is not None and tensor.dtype in (tf.float32, tf.float64)
        return (tf.cast(tensor, cls.dtype) if narrows else tensor), tensor.dtype

    @classmethod
    def decompress(cls, tensor: Tensor, ctx: Any) -> Tensor:
        """The tensor in the dtype that it had."""
        return tf.cast(tensor, ctx)


class FP16(Narrowing):
    """By float16."""

    dtype = tf.float16


class BF16(Narrowing):
    """By bfloat16."""

    dtype = tf.bfloat16


class Compression:
    """What `compression=` takes."""

    none = Narrowing
    fp16 = FP16
    bf16 = BF16


def called(
    function: Callable[..., Any], tensors: Sequence[Tensor], shapes: Sequence[Any]
) -> list[Tensor]:
    """What a function of arrays gives for tensors; of their dtypes."""
    dtypes = [t.dtype for t in tensors]
    if tf.executing_eagerly():
        made = tf.numpy_function(function, list(tensors), dtypes)
    else:
        graph = tf.compat.v1.get_default_graph()
        with tf.control_dependencies(getattr(graph, LATEST, [])):
            made = tf.numpy_function(function, list(tensors), dtypes)
        setattr(graph, LATEST, [made[0] if isinstance(made, (list, tuple)) else made])
    results = (
        made if isinstance(made, (list, tuple)) else [made]
    )  # eagerly, of one there is no list
    for result, shape in zip(results, shapes, strict=True):
        result.set_shape(shape)
    return list(results)


def grouped_allreduce(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Tensor]:
    """Reduce each of a list, in one call; see `allreduce`."""
    op = op_of(op, average)
    scales: dict[str, Any] = {
        "prescale_factor": prescale_factor,
        "postscale_factor": postscale_factor,
    }

    def reduce(*given: Any) -> Any:
        return arrays.grouped_allreduce(given, op=op, name=name, process_set=process_set, **scales)

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def reduced(*given: Tensor) -> Any:
        results = called(reduce, given, [tensor.shape for tensor in given])

        def gradient(*upstream: Tensor) -> Any:
            return grouped_allreduce(upstream, op=op, process_set=process_set, **scales)

        return results, gradient

    pairs = [compression.compress(tf.convert_to_tensor(tensor)) for tensor in tensors]
    if not pairs:
        return []
    results = reduced(*(tensor for tensor, _ in pairs))
    return [compression.decompress(r, ctx) for r, (_, ctx) in zip(results, pairs, strict=True)]


def allreduce(
    tensor: Tensor,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Tensor:
    """Reduce over the ranks, element by element; gradients flow through.

    Parameters
    ----------
    tensor
        Of one shape and dtype on all ranks; or tf.IndexedSlices, whose rows are gathered.
    average
        Horovod's old argument: whether to average. Not with `op`.
    device_dense, device_sparse, ignore_name_scope
        Nothing: all is done on the CPU, and names are what the caller gives.
    compression
        `Compression.none`, `.fp16` or `.bf16`.
    op
        Average (the default), Sum, Adasum, Min, Max or Product. An average of integers is rounded
        towards zero. Gradients are right for Average and Sum.
    prescale_factor, postscale_factor
        Multiply before and after.
    name
        Compared between ranks.
    process_set
        The ranks.
    """
    if isinstance(tensor, tf.IndexedSlices):
        return gathered_slices(tensor, op_of(op, average), process_set)
    how: dict[str, Any] = {"prescale_factor": prescale_factor, "postscale_factor": postscale_factor}
    return grouped_allreduce(
        [tensor], average, "", "", compression, op, name=name, process_set=process_set, **how
    )[0]


def gathered_slices(slices: Any, op: int, ranks: ProcessSet) -> Any:
    """The sum, or average, of tensors of which some rows are given."""
    if op not in (Average, Sum):
        raise ValueError(f"hvd.allreduce: op: expected Average or Sum of IndexedSlices; got {op!r}")
    values = allgather(slices.values, process_set=ranks)
    if op == Average:
        values /= tf.cast(ranks.size(), values.dtype)
    indices = allgather(slices.indices, process_set=ranks)
    return tf.IndexedSlices(values, indices, slices.dense_shape)


def allgather(
    tensor: Tensor,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Join the ranks' tensors along the first axis, where their lengths may differ."""

    def gather(given: Any) -> Any:
        return [arrays.allgather(given, name, process_set)]

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def gathered(given: Tensor) -> Any:
        (result,) = called(gather, [given], [(None, *given.shape[1:])])

        def gradient(upstream: Tensor) -> Tensor:
            total = allreduce(upstream, process_set=process_set)  # averages, as Horovod does
            rows = tf.shape(given)[:1]
            all_rows = allgather(rows, process_set=process_set)
            begin = tf.reduce_sum(all_rows[: process_set.rank()])
            return total[begin : begin + rows[0]]

        return result, gradient

    return gathered(tf.convert_to_tensor(tensor))


def grouped_allgather(
    tensors: Sequence[Tensor],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """`allgather` of each of a list."""
    return [allgather(tensor, name, process_set=process_set) for tensor in tensors]


def broadcast(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """The tensor of a rank of the world, on all ranks; each gives one of its shape and dtype."""
    mine = process_set.rank() == process_set.root(root_rank, "hvd.broadcast")

    def send(given: Any) -> Any:
        return [arrays.broadcast(given, root_rank, name, process_set)]

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def sent(given: Tensor) -> Any:
        (result,) = called(send, [given], [given.shape])

        def gradient(upstream: Tensor) -> Tensor:
            total = allreduce(upstream, process_set=process_set)  # averages, as Horovod does
            with tf.control_dependencies([total]):  # else nobody would call it
                return total if mine else tf.zeros_like(total)

        return result, gradient

    return sent(tf.convert_to_tensor(tensor))


def alltoall(
    tensor: Tensor,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send rows to every rank, `splits[r]` of them to rank r, and receive theirs.

    Returns
    -------
    tf.Tensor
        The rows from all ranks, in their order. With splits: this, and how many came from each,
        int32.
    """
    tensor = tf.convert_to_tensor(tensor)
    if splits is None:
        share = tf.shape(tensor, tf.int64)[:1] // process_set.size()
        wanted = tf.repeat(share, process_set.size())
    else:
        wanted = tf.cast(tf.convert_to_tensor(splits), tf.int64)

    def exchange(given: Any, counts: Any) -> Any:
        return list(arrays.alltoall(given, counts, name, process_set))

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def exchanged(given: Tensor, counts: Tensor) -> Any:
        shapes = [(None, *given.shape[1:]), (process_set.size(),)]
        rows, received = called(exchange, [given, counts], shapes)

        def gradient(upstream: Tensor, _: Tensor) -> Any:
            return alltoall(upstream, received, process_set=process_set)[0], None

        return (rows, received), gradient

    rows, received = exchanged(tensor, wanted)
    return rows if splits is None else (rows, tf.cast(received, tf.int32))


def reducescatter(
    tensor: Tensor,
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """Reduce over the ranks, and return this rank's share of the rows; gradients flow through.

    Where they cannot be shared evenly, the first ranks get one more. `op` is Average or Sum.
    """
    factor = prescale_factor * postscale_factor * (process_set.size() if op == Sum else 1)

    def reduce(given: Any) -> Any:
        how = name, op, process_set, prescale_factor, postscale_factor
        return [arrays.reducescatter(given, *how)]

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def reduced(given: Tensor) -> Any:
        (result,) = called(reduce, [given], [(None, *given.shape[1:])])

        def gradient(upstream: Tensor) -> Tensor:
            return allgather(upstream, process_set=process_set) * tf.cast(factor, upstream.dtype)

        return result, gradient

    sent, ctx = compression.compress(tf.convert_to_tensor(tensor))
    return compression.decompress(reduced(sent), ctx)


def grouped_reducescatter(tensors: Sequence[Tensor], *args: Any, **kwargs: Any) -> list[Tensor]:
    """`reducescatter` of each of a list."""
    return [reducescatter(tensor, *args, **kwargs) for tensor in tensors]


def broadcast_variables(
    variables: Sequence[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> None:
    """Overwrite variables by those of one rank."""
    for variable in variables:
        variable.assign(broadcast(variable, root_rank, process_set=process_set))


def broadcast_global_variables(root_rank: int) -> None:
    """Refuse: TensorFlow 2 knows no global variables."""
    raise RuntimeError(
        "hvd.broadcast_global_variables: expected TensorFlow 1's graphs; got TensorFlow 2. Call "
        "hvd.broadcast_variables(variables, root_rank)."
    )


def rank_op(name: str | None = None) -> Tensor:
    """The number of this process, as a tensor."""
    return tf.constant(rank(), name=name or "rank")


def size_op(process_set_id: int = 0, name: str | None = None) -> Tensor:
    """How many ranks a set has, as a tensor."""
    return tf.constant(global_process_set.sets[process_set_id].size(), name=name or "size")


def local_rank_op(name: str | None = None) -> Tensor:
    """The number of this process on its host, as a tensor."""
    return tf.constant(local_rank(), name=name or "local_rank")


def local_size_op(name: str | None = None) -> Tensor:
    """How many ranks this host has, as a tensor."""
    return tf.constant(local_size(), name=name or "local_size")


def reduced_gradients(gradients: Sequence[Any], how: dict[str, Any], dense: bool) -> list[Any]:
    """What a step uses instead of this rank's gradients; None stays None."""
    found = [
        tf.convert_to_tensor(g) if dense and isinstance(g, tf.IndexedSlices) else g
        for g in gradients
    ]
    if how["process_set"].size() == 1 or not how["process_set"].included():
        return found
    places = [
        i for i, g in enumerate(found) if g is not None and not isinstance(g, tf.IndexedSlices)
    ]
    reduced = grouped_allreduce([found[i] for i in places], **how)
    for i, g in zip(places, reduced, strict=True):
        found[i] = g
    for i, g in enumerate(found):
        if isinstance(g, tf.IndexedSlices):
            found[i] = gathered_slices(g, how["op"], how["process_set"])
    return found


class ReducedTape:
    """A gradient tape whose gradients are reduced over the ranks."""

    def __init__(self, tape: Any, dense: bool, how: dict[str, Any]) -> None:
        self._tape, self._dense, self._how = tape, dense, how

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tape, name)

    def __enter__(self) -> ReducedTape:
        self._tape.__enter__()
        return self

    def __exit__(self, *error: Any) -> Any:
        return self._tape.__exit__(*error)

    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
    ) -> Any:
        """The gradients, reduced; in the structure of the sources."""
        mine = self._tape.gradient(target, sources, output_gradients)
        flat = tf.nest.flatten(mine)
        return tf.nest.pack_sequence_as(mine, reduced_gradients(flat, self._how, self._dense))


def how_to_reduce(
    compression: Any, op: int, predivide: float, ranks: ProcessSet, where: str
) -> dict[str, Any]:
    """The arguments of `grouped_allreduce`."""
    expect_average(where, predivide, op)
    return {
        "compression": compression,
        "op": op_of(op, None),
        "prescale_factor": 1.0 / predivide,
        "postscale_factor": predivide,
        "process_set": ranks,
    }


def DistributedGradientTape(
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> ReducedTape:
    """The tape, whose `gradient` reduces over the ranks; all gradients go in one call.

    Parameters
    ----------
    gradtape
        A tf.GradientTape.
    compression, op, gradient_predivide_factor, process_set
        As for `allreduce`.
    sparse_as_dense
        Reduce IndexedSlices as dense tensors.
    device_dense, device_sparse, num_groups, groups, scale_local_gradients
        Nothing.
    """
    how = how_to_reduce(
        compression, op, gradient_predivide_factor, process_set, "DistributedGradientTape"
    )
    return ReducedTape(gradtape, sparse_as_dense, how)


__all__ = [
    "Compression",
    "DistributedGradientTape",
    "allgather",
    "allreduce",
    "alltoall",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_variables",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "local_rank_op",
    "local_size_op",
    "rank_op",
    "reducescatter",
    "size_op",
]
