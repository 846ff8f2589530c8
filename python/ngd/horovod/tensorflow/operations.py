# SPDX-License-Identifier: Apache-2.0
# The file is long because each argument is described.
"""Collectives on TensorFlow's CPU tensors, with gradients, in eager mode and in tf.function.

Each collective is one tf.numpy_function, which gives NumPy the memory of the tensors without a
copy. In a tf.function these calls run in the order of the program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import tensorflow as tf

from .. import numpy as arrays
from ..calls import Average, Sum, expect_average, op_of
from ..world import ProcessSet, global_process_set, local_rank, local_size, rank

Tensor: TypeAlias = Any
"""A tf.Tensor, or a value that TensorFlow converts to one."""


LATEST: Final = "_ngd_latest"
"""The name of the attribute of a tf.Graph that holds an output of the graph's last collective.

`call_numpy` makes each new collective of the graph run after that output. Otherwise the collectives
of a backward pass could run in different orders on different ranks.
"""


class Narrowing:
    """A compressor that sends float32 and float64 tensors in the dtype `dtype`.

    Tensors of other dtypes are sent as they are. In this class, `dtype` is None, and all tensors
    are sent as they are. The derived classes FP16 and BF16 set `dtype` to a 16-bit float.
    """

    dtype: Any = None

    @classmethod
    def compress(cls, tensor: Tensor) -> tuple[Tensor, Any]:
        """Convert a tensor to the dtype in which it is sent. Return (result, original dtype)."""
        is_narrowed = cls.dtype is not None and tensor.dtype in (tf.float32, tf.float64)
        return (tf.cast(tensor, cls.dtype) if is_narrowed else tensor), tensor.dtype

    @classmethod
    def decompress(cls, tensor: Tensor, ctx: Any) -> Tensor:
        """Return the tensor in the dtype `ctx`, the second result of `compress`."""
        return tf.cast(tensor, ctx)


class FP16(Narrowing):
    """The compressor that sends float16."""

    dtype = tf.float16


class BF16(Narrowing):
    """The compressor that sends bfloat16."""

    dtype = tf.bfloat16


class Compression:
    """The compressors that the argument `compression` takes.

    Corresponds to `horovod.tensorflow.Compression`.
    """

    none = Narrowing
    fp16 = FP16
    bf16 = BF16


def call_numpy(
    function: Callable[..., Any], tensors: Sequence[Tensor], shapes: Sequence[Any]
) -> list[Tensor]:
    """Call a function with the tensors as NumPy arrays, and return its results as tensors.

    In eager mode, the call runs now. Otherwise it becomes an op of the current graph. `function`
    returns one array for each tensor in `tensors`, with the dtype of that tensor. `shapes` has the
    static shape of each result; None in a shape is an unknown length.
    """
    dtypes = [t.dtype for t in tensors]
    if tf.executing_eagerly():
        outputs = tf.numpy_function(function, list(tensors), dtypes)
    else:
        graph = tf.compat.v1.get_default_graph()
        with tf.control_dependencies(getattr(graph, LATEST, [])):
            outputs = tf.numpy_function(function, list(tensors), dtypes)
        setattr(graph, LATEST, [outputs[0] if isinstance(outputs, (list, tuple)) else outputs])
    # In eager mode, numpy_function returns a single result without a list.
    results = outputs if isinstance(outputs, (list, tuple)) else [outputs]
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
    """Reduce each tensor of a list, as `allreduce` does, and return the list of the results.

    Tensors of one dtype with less than 65,536 elements are reduced together, except with Adasum.
    The other arguments are those of `allreduce`.

    Corresponds to `horovod.tensorflow.grouped_allreduce`.
    """
    op = op_of(op, average)
    scales: dict[str, Any] = {
        "prescale_factor": prescale_factor,
        "postscale_factor": postscale_factor,
    }

    def reduce(*operand: Any) -> Any:
        return arrays.grouped_allreduce(
            operand, op=op, name=name, process_set=process_set, **scales
        )

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def reduce_with_gradient(*operand: Tensor) -> Any:
        results = call_numpy(reduce, operand, [tensor.shape for tensor in operand])

        def gradient(*upstream: Tensor) -> Any:
            return grouped_allreduce(upstream, op=op, process_set=process_set, **scales)

        return results, gradient

    pairs = [compression.compress(tf.convert_to_tensor(tensor)) for tensor in tensors]
    if not pairs:
        return []
    results = reduce_with_gradient(*(tensor for tensor, _ in pairs))
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
    """Reduce a tensor over the ranks, element by element. Gradients flow through the call.

    Corresponds to `horovod.tensorflow.allreduce`.

    Parameters
    ----------
    tensor : tf.Tensor or tf.IndexedSlices
        A tensor of the same shape and dtype on all ranks. IndexedSlices need Average or Sum, and
        may have different rows on the ranks. Their result is IndexedSlices with the rows of all
        ranks. For IndexedSlices, `compression`, `name` and the factors are ignored.
    average : bool, optional
        Horovod's old form of `op`: Average if True, Sum if False. It cannot be combined with `op`.
    device_dense, device_sparse, ignore_name_scope
        Ignored: the operands are on the CPU, and names are used as the caller gives them.
    compression : class
        The dtype in which floats are sent: `Compression.none`, `.fp16` or `.bf16`.
    op : int
        Average (the default), Sum, Adasum, Min, Max or Product. An average of integers is rounded
        towards zero. The backward pass applies the same op to the gradients, which is correct only
        for Average and Sum.
    prescale_factor, postscale_factor : float
        The factors by which the operand and the result are multiplied; by default 1.
    name : str, optional
        A name. All ranks must pass the same name.
    process_set : ProcessSet
        The ranks; by default the world.
    """
    if isinstance(tensor, tf.IndexedSlices):
        return gather_slices(tensor, op_of(op, average), process_set)
    options: dict[str, Any] = {
        "prescale_factor": prescale_factor,
        "postscale_factor": postscale_factor,
    }
    return grouped_allreduce(
        [tensor], average, "", "", compression, op, name=name, process_set=process_set, **options
    )[0]


def gather_slices(slices: Any, op: int, ranks: ProcessSet) -> Any:
    """Return the sum or average of the ranks' IndexedSlices, as IndexedSlices.

    The result has the rows and indices of all ranks, one rank after the other. Its rows with the
    same index are not added: repeated indices of IndexedSlices mean a sum. For Average, the rows
    are divided by the number of ranks. For other ops, raise ValueError.
    """
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
    """Concatenate the ranks' tensors along the first axis. Their lengths may differ.

    The gradient is averaged over the ranks, as in Horovod.

    Corresponds to `horovod.tensorflow.allgather`.

    Parameters
    ----------
    tensor : tf.Tensor
        The operand. The tensors of the ranks may only differ in the length of the first axis.
    name : str, optional
        A name. All ranks must pass the same name.
    ignore_name_scope : bool
        Ignored.
    process_set : ProcessSet
        The ranks; by default the world.
    """

    def gather(operand: Any) -> Any:
        return [arrays.allgather(operand, name, process_set)]

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def gather_with_gradient(operand: Tensor) -> Any:
        (result,) = call_numpy(gather, [operand], [(None, *operand.shape[1:])])

        def gradient(upstream: Tensor) -> Tensor:
            total = allreduce(upstream, process_set=process_set)  # Horovod averages, too
            rows = tf.shape(operand)[:1]
            all_rows = allgather(rows, process_set=process_set)
            begin = tf.reduce_sum(all_rows[: process_set.rank()])
            return total[begin : begin + rows[0]]

        return result, gradient

    return gather_with_gradient(tf.convert_to_tensor(tensor))


def grouped_allgather(
    tensors: Sequence[Tensor],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """Gather each tensor of a list, as `allgather` does, and return the list of the results.

    Corresponds to `horovod.tensorflow.grouped_allgather`.

    The other arguments are those of `allgather`.
    """
    return [allgather(tensor, name, process_set=process_set) for tensor in tensors]


def broadcast(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Return the tensor of rank `root_rank` on all ranks.

    All ranks pass a tensor of the same shape and dtype. On rank `root_rank`, the gradient is the
    average of the ranks' gradients, as in Horovod. On the other ranks it is zero.

    Corresponds to `horovod.tensorflow.broadcast`.

    Parameters
    ----------
    tensor : tf.Tensor
        The tensor to send. The other ranks pass a tensor of the same shape and dtype.
    root_rank : int
        The rank that sends: its rank in the world, not in `process_set`.
    name : str, optional
        A name. All ranks must pass the same name.
    ignore_name_scope : bool
        Ignored.
    process_set : ProcessSet
        The ranks; by default the world.
    """
    is_root = process_set.rank() == process_set.root(root_rank, "hvd.broadcast")

    def send(operand: Any) -> Any:
        return [arrays.broadcast(operand, root_rank, name, process_set)]

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def broadcast_with_gradient(operand: Tensor) -> Any:
        (result,) = call_numpy(send, [operand], [operand.shape])

        def gradient(upstream: Tensor) -> Tensor:
            total = allreduce(upstream, process_set=process_set)  # Horovod averages, too
            # All ranks must run the all-reduce, including those that return zeros.
            with tf.control_dependencies([total]):
                return total if is_root else tf.zeros_like(total)

        return result, gradient

    return broadcast_with_gradient(tf.convert_to_tensor(tensor))


def alltoall(
    tensor: Tensor,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:  # long because each argument is described
    """Send `splits[r]` rows to each rank r, and return the rows that the ranks sent to this one.

    Corresponds to `horovod.tensorflow.alltoall`.

    Parameters
    ----------
    tensor : tf.Tensor
        The rows to send, in the order of the ranks.
    splits : tensor of integers, optional
        The number of rows for each rank; by default equal numbers.
    name : str, optional
        A name. All ranks must pass the same name.
    ignore_name_scope : bool
        Ignored.
    process_set : ProcessSet
        The ranks; by default the world.

    Returns
    -------
    tf.Tensor, or a pair of tensors
        The received rows, in the order of the ranks. If `splits` is given: the rows, and the number
        of rows from each rank, int32.
    """
    tensor = tf.convert_to_tensor(tensor)
    if splits is None:
        rows_per_rank = tf.shape(tensor, tf.int64)[:1] // process_set.size()
        send_counts = tf.repeat(rows_per_rank, process_set.size())
    else:
        send_counts = tf.cast(tf.convert_to_tensor(splits), tf.int64)

    def exchange(operand: Any, counts: Any) -> Any:
        return list(arrays.alltoall(operand, counts, name, process_set))

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def exchange_with_gradient(operand: Tensor, counts: Tensor) -> Any:
        shapes = [(None, *operand.shape[1:]), (process_set.size(),)]
        rows, receive_counts = call_numpy(exchange, [operand, counts], shapes)

        def gradient(upstream: Tensor, _: Tensor) -> Any:
            return alltoall(upstream, receive_counts, process_set=process_set)[0], None

        return (rows, receive_counts), gradient

    rows, receive_counts = exchange_with_gradient(tensor, send_counts)
    return rows if splits is None else (rows, tf.cast(receive_counts, tf.int32))


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
) -> Tensor:  # long because each argument is described
    """Reduce a tensor over the ranks and return this rank's shard of the rows.

    Gradients flow through the call. If the number of rows is not a multiple of the number of ranks,
    the first ranks get one row more.

    Corresponds to `horovod.tensorflow.reducescatter`.

    Parameters
    ----------
    tensor : tf.Tensor
        The operand, of the same shape and dtype on all ranks.
    device_dense : str
        Ignored.
    compression : class
        The dtype in which floats are sent: `Compression.none`, `.fp16` or `.bf16`.
    op : int
        Average (the default) or Sum.
    name : str, optional
        A name. All ranks must pass the same name.
    process_set : ProcessSet
        The ranks; by default the world.
    ignore_name_scope : bool
        Ignored.
    prescale_factor, postscale_factor : float
        The factors by which the operand and the result are multiplied; by default 1.
    """
    factor = prescale_factor * postscale_factor * (process_set.size() if op == Sum else 1)

    def reduce(operand: Any) -> Any:
        options = name, op, process_set, prescale_factor, postscale_factor
        return [arrays.reducescatter(operand, *options)]

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def reduce_with_gradient(operand: Tensor) -> Any:
        (result,) = call_numpy(reduce, [operand], [(None, *operand.shape[1:])])

        def gradient(upstream: Tensor) -> Tensor:
            return allgather(upstream, process_set=process_set) * tf.cast(factor, upstream.dtype)

        return result, gradient

    narrowed, ctx = compression.compress(tf.convert_to_tensor(tensor))
    return compression.decompress(reduce_with_gradient(narrowed), ctx)


def grouped_reducescatter(tensors: Sequence[Tensor], *args: Any, **kwargs: Any) -> list[Tensor]:
    """Reduce and scatter each tensor of a list, as `reducescatter` does; return the results.

    Corresponds to `horovod.tensorflow.grouped_reducescatter`.

    The other arguments are those of `reducescatter`.
    """
    return [reducescatter(tensor, *args, **kwargs) for tensor in tensors]


def broadcast_variables(
    variables: Sequence[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> None:
    """Overwrite variables on all ranks by those of rank `root_rank`.

    Corresponds to `horovod.tensorflow.broadcast_variables`.

    Parameters
    ----------
    variables : sequence
        The variables, in the same order on all ranks.
    root_rank : int
        The rank that sends: its rank in the world, not in `process_set`.
    process_set : ProcessSet
        The ranks; by default the world.
    inplace : bool
        Ignored.
    """
    for variable in variables:
        variable.assign(broadcast(variable, root_rank, process_set=process_set))


def broadcast_global_variables(root_rank: int) -> None:
    """Raise RuntimeError: TensorFlow 2 has no global variables."""
    raise RuntimeError(
        "hvd.broadcast_global_variables: expected TensorFlow 1's graphs; got TensorFlow 2. Call "
        "hvd.broadcast_variables(variables, root_rank)."
    )


def rank_op(name: str | None = None) -> Tensor:
    """Return the rank of this process in the world, as a tensor.

    Corresponds to `horovod.tensorflow.rank_op`.
    """
    return tf.constant(rank(), name=name or "rank")


def size_op(process_set_id: int = 0, name: str | None = None) -> Tensor:
    """Return the number of ranks of a process set, as a tensor.

    Corresponds to `horovod.tensorflow.size_op`.
    """
    return tf.constant(global_process_set.sets[process_set_id].size(), name=name or "size")


def local_rank_op(name: str | None = None) -> Tensor:
    """Return the rank of this process among those of its host, as a tensor.

    Corresponds to `horovod.tensorflow.local_rank_op`.
    """
    return tf.constant(local_rank(), name=name or "local_rank")


def local_size_op(name: str | None = None) -> Tensor:
    """Return the number of ranks of this host, as a tensor.

    Corresponds to `horovod.tensorflow.local_size_op`.
    """
    return tf.constant(local_size(), name=name or "local_size")


def reduced_gradients(gradients: Sequence[Any], options: dict[str, Any], dense: bool) -> list[Any]:
    """Return the gradients, reduced over the ranks. A gradient that is None stays None.

    If `dense` is True, IndexedSlices are first converted to dense tensors. The gradients are not
    reduced if the process set has one rank, or does not contain this rank.
    """
    reduced_list = [
        tf.convert_to_tensor(g) if dense and isinstance(g, tf.IndexedSlices) else g
        for g in gradients
    ]
    if options["process_set"].size() == 1 or not options["process_set"].included():
        return reduced_list
    positions = [
        i
        for i, g in enumerate(reduced_list)
        if g is not None and not isinstance(g, tf.IndexedSlices)
    ]
    results = grouped_allreduce([reduced_list[i] for i in positions], **options)
    for i, g in zip(positions, results, strict=True):
        reduced_list[i] = g
    for i, g in enumerate(reduced_list):
        if isinstance(g, tf.IndexedSlices):
            reduced_list[i] = gather_slices(g, options["op"], options["process_set"])
    return reduced_list


class ReducedTape:
    """A gradient tape that reduces its gradients over the ranks."""

    def __init__(self, tape: Any, dense: bool, options: dict[str, Any]) -> None:
        self._tape, self._dense, self._options = tape, dense, options

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
        """Return the gradients of `target` with respect to `sources`, reduced over the ranks.

        The result has the structure of `sources`, which is a variable or tensor, or a nest of them.
        """
        mine = self._tape.gradient(target, sources, output_gradients)
        flat = tf.nest.flatten(mine)
        return tf.nest.pack_sequence_as(mine, reduced_gradients(flat, self._options, self._dense))


def reduce_options(
    compression: Any, op: int, predivide: float, ranks: ProcessSet, where: str
) -> dict[str, Any]:
    """Return a dict of the arguments with which a gradient tape calls `grouped_allreduce`.

    Gradients are divided by `predivide` before the reduction and multiplied by it afterwards. Raise
    ValueError if `predivide` is not 1 and `op` is not Average.
    """
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
    """Return a gradient tape whose `gradient` method reduces the gradients over the ranks.

    Corresponds to `horovod.tensorflow.DistributedGradientTape`.

    Parameters
    ----------
    gradtape : tf.GradientTape
        The tape that computes the gradients.
    compression : class
        The dtype in which floats are sent: `Compression.none`, `.fp16` or `.bf16`.
    op : int
        Average, Sum or Adasum.
    gradient_predivide_factor : float
        The gradients are divided by this number before they are averaged, and the average is
        multiplied by this number. A number other than 1 (the default) needs `op=Average`.
    process_set : ProcessSet
        The ranks; by default the world.
    sparse_as_dense : bool
        If True, IndexedSlices are converted to dense tensors and reduced. If False, the rows of all
        ranks are gathered.
    device_dense, device_sparse, num_groups, groups, scale_local_gradients
        Ignored.
    """
    options = reduce_options(
        compression, op, gradient_predivide_factor, process_set, "DistributedGradientTape"
    )
    return ReducedTape(gradtape, sparse_as_dense, options)


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
