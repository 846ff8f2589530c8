# SPDX-License-Identifier: Apache-2.0
"""Keras optimizers that average the gradients over the ranks before they apply them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from .. import numpy as arrays
from ..calls import Average, expect_average, op_of
from ..world import ProcessSet, global_process_set


class Compression:
    """The dtypes in which floating-point gradients can be sent.

    `none` sends each gradient in its own dtype, `fp16` as float16, and `bf16` as bfloat16.

    Corresponds to `horovod.keras.Compression`.
    """

    none = None
    fp16 = "float16"
    bf16 = "bfloat16"


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool = True,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: Any = Compression.none,
) -> Any:
    """Return the mean, or another reduction, of a value over the ranks, in the value's dtype.

    Corresponds to `horovod.keras.allreduce`.

    Parameters
    ----------
    value : number, array or tensor
        The operand, of the same shape and dtype on all ranks.
    name : str, optional
        A name. All ranks must pass the same name.
    average : bool
        Average if True, Sum if False. It is ignored if `op` is given.
    prescale_factor, postscale_factor : float
        The factors by which the operand and the result are multiplied.
    op : int, optional
        Average, Sum, Adasum, Min, Max or Product.
    compression : Compression
        The dtype in which floats are sent: `Compression.none`, `.fp16` or `.bf16`.
    """
    op = op_of(op, None if op is not None else average)
    array, wire_dtype = keras.ops.convert_to_numpy(value), wire_dtype_of(compression)
    scales = {"prescale_factor": prescale_factor, "postscale_factor": postscale_factor}
    narrowed = array if wire_dtype is None else np.asarray(keras.ops.cast(array, wire_dtype))
    return arrays.allreduce(narrowed, name=name, op=op, **scales).astype(array.dtype)


def wire_dtype_of(compression: Any) -> str | None:
    """Return the dtype in which floats are sent; None means their own dtype."""
    classes = {"Narrowing": None, "FP16": "float16", "BF16": "bfloat16"}
    return classes.get(getattr(compression, "__name__", ""), compression)


def allgather(value: Any, name: str | None = None) -> Any:
    """Return the ranks' arrays, concatenated along the first axis.

    Corresponds to `horovod.keras.allgather`.

    Parameters
    ----------
    value : number, array or tensor
        The operand. The ranks' arrays may only differ in the length of the first axis.
    name : str, optional
        A name. All ranks must pass the same name.
    """
    return arrays.allgather(keras.ops.convert_to_numpy(value), name)


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """Return the array of rank `root_rank` on all ranks.

    Corresponds to `horovod.keras.broadcast`.

    Parameters
    ----------
    value : number, array or tensor
        The value to send. The other ranks pass one of the same shape and dtype.
    root_rank : int
        The rank of the world that sends.
    name : str, optional
        A name. All ranks must pass the same name.
    """
    return arrays.broadcast(keras.ops.convert_to_numpy(value), root_rank, name)


def reducescatter(value: Any, name: str | None = None, op: int = Average) -> Any:
    """Reduce an array over the ranks and return this rank's shard of the rows.

    Corresponds to `horovod.keras.reducescatter`.

    Parameters
    ----------
    value : array or tensor
        The operand, of the same shape and dtype on all ranks.
    name : str, optional
        A name. All ranks must pass the same name.
    op : int
        Average (the default) or Sum.
    """
    return arrays.reducescatter(keras.ops.convert_to_numpy(value), name, op)


def broadcast_variables(
    variables: Sequence[Any], root_rank: int, process_set: ProcessSet = global_process_set
) -> None:
    """Overwrite Keras variables on all ranks by those of rank `root_rank`.

    Corresponds to `horovod.tensorflow.broadcast_variables`.

    Parameters
    ----------
    variables : sequence of keras.Variable
        The variables, in the same order on all ranks.
    root_rank : int
        The rank of the world that sends.
    process_set : ProcessSet
        The ranks; by default the world.
    """
    for variable in variables:
        value = keras.ops.convert_to_numpy(variable)
        variable.assign(arrays.broadcast(value, root_rank, None, process_set))


def make_reducer(
    options: dict[str, Any], wire_dtype: str | None
) -> Callable[[list[Any]], list[Any]]:
    """Return a function that takes a list of gradients and returns their reductions over the ranks.

    `options` are keyword arguments of `grouped_allreduce`: op, scale factors and process set. If
    `wire_dtype` is not None, gradients are cast to it, reduced, and cast back. Raise
    NotImplementedError if Keras runs on a backend other than TensorFlow, PyTorch and JAX.
    """
    backend = keras.backend.backend()
    if backend not in BACKENDS:
        raise NotImplementedError(
            f"hvd.DistributedOptimizer: expected Keras on {', '.join(BACKENDS)}; got {backend}"
        )
    reduce = BACKENDS[backend]

    def reduced(gradients: list[Any]) -> list[Any]:
        compressed = [g if wire_dtype is None else keras.ops.cast(g, wire_dtype) for g in gradients]
        results = reduce(compressed, options)
        return [keras.ops.cast(r, g.dtype) for r, g in zip(results, gradients, strict=True)]

    return reduced


def reduce_by_tensorflow(gradients: list[Any], options: dict[str, Any]) -> list[Any]:
    """Reduce TensorFlow's gradients by one `grouped_allreduce`, in eager mode or a tf.function."""
    from ..tensorflow.operations import grouped_allreduce

    return grouped_allreduce(gradients, **options)


def reduce_by_torch(gradients: list[Any], options: dict[str, Any]) -> list[Any]:
    """Reduce PyTorch's gradients by one `grouped_allreduce`, which autograd does not record."""
    from ..torch.operations import grouped_allreduce

    return grouped_allreduce([gradient.detach() for gradient in gradients], **options)


def reduce_by_jax(gradients: list[Any], options: dict[str, Any]) -> list[Any]:
    """Reduce JAX's gradients by one `grouped_allreduce` in `io_callback(..., ordered=True)`.

    The callback to Python lets the reduction run in `jax.jit` too.
    """
    import jax
    from jax.experimental import io_callback

    def reduce(*operands: Any) -> Any:
        return tuple(arrays.grouped_allreduce([np.asarray(g) for g in operands], **options))

    shapes = tuple(jax.ShapeDtypeStruct(g.shape, g.dtype) for g in gradients)
    return list(io_callback(reduce, shapes, *gradients, ordered=True))


BACKENDS: dict[str, Callable[[list[Any], dict[str, Any]], list[Any]]] = {
    "tensorflow": reduce_by_tensorflow,
    "torch": reduce_by_torch,
    "jax": reduce_by_jax,
}


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:  # long because each argument is described
    """Return a copy of an optimizer that reduces the gradients before it applies them.

    Corresponds to `horovod.keras.DistributedOptimizer`.

    Parameters
    ----------
    optimizer : keras.optimizers.Optimizer
        An optimizer that has not been used, so it has no state to copy. Its options are copied.
    name : str, optional
        The name of the new optimizer; by default that of `optimizer`.
    compression : Compression
        The dtype in which gradients are sent: `Compression.none`, `.fp16` or `.bf16`.
    gradient_predivide_factor : float
        The gradients are divided by this number before they are averaged, and the average is
        multiplied by this number. A number other than 1 (the default) needs `op=Average`.
    op : int
        Average, Sum or Adasum.
    backward_passes_per_step : int
        It must be 1. To accumulate gradients, use `gradient_accumulation_steps` of Keras.
    process_set : ProcessSet
        The ranks; by default the world.
    device_dense, device_sparse, sparse_as_dense
        Ignored: the gradients are dense tensors on the CPU.
    num_groups, groups
        Ignored: all gradients are reduced in one call.
    average_aggregated_gradients, scale_local_gradients
        Ignored.
    """
    expect_fresh(optimizer, gradient_predivide_factor, op, backward_passes_per_step)
    options = {
        "op": op_of(op, None),
        "prescale_factor": 1.0 / gradient_predivide_factor,
        "postscale_factor": gradient_predivide_factor,
        "process_set": process_set,
    }
    wire_dtype = wire_dtype_of(compression)
    has_loss_scale = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    if keras.config.dtype_policy().name == "mixed_float16" and not has_loss_scale:
        # Otherwise model.compile() would wrap the new optimizer in a LossScaleOptimizer. Each rank
        # would then look for infinities in its own gradients, before they are reduced.
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    config = optimizer.get_config()
    wrapper_class = distributed_class(type(optimizer), options, wire_dtype)
    return wrapper_class.from_config({**config, "name": name or config["name"]})


def expect_fresh(optimizer: Any, predivide: float, op: int, passes: int) -> None:
    """Raise an error if DistributedOptimizer does not support the optimizer or an option.

    `optimizer` must be a Keras optimizer without variables. `passes` is the argument
    backward_passes_per_step, which must be 1. `predivide` is gradient_predivide_factor, which may
    differ from 1 only if `op` is Average.
    """
    where = "hvd.DistributedOptimizer"
    expect_average("DistributedOptimizer", predivide, op)
    if passes != 1:
        raise NotImplementedError(
            f"{where}: backward_passes_per_step: expected 1; got {passes}. Make the "
            "optimizer with gradient_accumulation_steps, which averages."
        )
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(
            f"{where}: expected a Keras optimizer; got {type(optimizer).__name__}. Give an "
            "instance of keras.optimizers.Optimizer."
        )
    if optimizer.built:
        raise ValueError(
            f"{where}: expected an optimizer that has not been used; got one with variables. Wrap "
            "it before the first step."
        )


def reduce_gradients(grads: Any, options: dict[str, Any], wire_dtype: str | None) -> list[Any]:
    """Return the gradients, reduced over the ranks. A gradient that is None stays None.

    The gradients are not reduced if the process set has one rank, or does not contain this rank.
    """
    gradients, ranks = list(grads), options["process_set"]
    indices = [i for i, gradient in enumerate(gradients) if gradient is not None]
    if ranks.size() > 1 and ranks.included() and indices:
        reduced = make_reducer(options, wire_dtype)([gradients[i] for i in indices])
        for i, gradient in zip(indices, reduced, strict=True):
            gradients[i] = gradient
    return gradients


def distributed_class(optimizer_class: Any, options: dict[str, Any], wire_dtype: str | None) -> Any:
    """Return a subclass of `optimizer_class`; it reduces gradients before it applies them.

    The subclass has the name of `optimizer_class`, so a saved model can be loaded without ngd.
    """

    class Distributed(optimizer_class):
        """The optimizer that reduces gradients before it applies them."""

        def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
            """Reduce the gradients over the ranks, and apply them."""
            return super().apply(reduce_gradients(grads, options, wire_dtype), trainable_variables)

        def stateless_apply(self, state: Any, grads: Any, trainable_variables: Any) -> Any:
            """Reduce the gradients over the ranks, and apply them, on Keras's JAX backend.

            For most optimizers, the base method calls the method `apply` of this class, which
            reduces the gradients. A LossScaleOptimizer looks for infinities and then calls its
            inner optimizer, not `apply`. So for a LossScaleOptimizer, this method reduces the
            gradients before it calls the base method.
            """
            if isinstance(self, keras.optimizers.LossScaleOptimizer):
                grads = reduce_gradients(grads, options, wire_dtype)
            return super().stateless_apply(state, grads, trainable_variables)

    Distributed.__name__ = optimizer_class.__name__
    Distributed.__qualname__ = optimizer_class.__qualname__
    Distributed.__module__ = optimizer_class.__module__
    return Distributed


def load_model(
    filepath: Any,
    custom_optimizers: Sequence[type] | None = None,
    custom_objects: dict[str, Any] | None = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """Load a Keras model, and wrap its optimizer by `DistributedOptimizer`.

    The optimizer keeps its options and its state. A model without an optimizer is returned as it
    is.

    Corresponds to `horovod.keras.load_model`.

    Parameters
    ----------
    filepath : path
        The file that `model.save` wrote.
    custom_optimizers : sequence of classes, optional
        Optimizer classes of the saved model that are not part of Keras.
    custom_objects : dict, optional
        Other classes and functions of the saved model that are not part of Keras, by name.
    compression : Compression
        The dtype in which gradients are sent: `Compression.none`, `.fp16` or `.bf16`.
    legacy_opts : bool
        Ignored: Keras 3 has no legacy optimizers.
    """
    custom = {each.__name__: each for each in custom_optimizers or ()}
    model = keras.models.load_model(filepath, custom_objects={**custom, **(custom_objects or {})})
    loaded = model.optimizer
    if loaded is None:
        return model
    fresh = type(loaded).from_config(loaded.get_config())
    distributed = DistributedOptimizer(fresh, compression=compression)
    if loaded.built:
        distributed.build(model.trainable_variables)
        for mine, theirs in zip(distributed.variables, loaded.variables, strict=True):
            mine.assign(theirs)
    model.optimizer = distributed
    return model


__all__ = [
    "Compression",
    "DistributedOptimizer",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_variables",
    "load_model",
    "reducescatter",
]
