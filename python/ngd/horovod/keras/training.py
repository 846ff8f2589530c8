# SPDX-License-Identifier: Apache-2.0
"""Keras optimizers whose `apply` first reduces the gradients over the ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from .. import numpy as arrays
from ..calls import Average, expect_average, op_of
from ..world import ProcessSet, global_process_set


class Compression:
    """What gradients travel as: their own dtype, or a float of two bytes."""

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
    """The mean, or the sum, of a number or an array over the ranks, as an array of its dtype."""
    op = op_of(op, None if op is not None else average)
    given, wire = keras.ops.convert_to_numpy(value), wire_of(compression)
    scales = {"prescale_factor": prescale_factor, "postscale_factor": postscale_factor}
    sent = given if wire is None else np.asarray(keras.ops.cast(given, wire))
    return arrays.allreduce(sent, name=name, op=op, **scales).astype(given.dtype)


def wire_of(compression: Any) -> str | None:
    """What floats travel as; None: as they are."""
    classes = {"Narrowing": None, "FP16": "float16", "BF16": "bfloat16"}
    return classes.get(getattr(compression, "__name__", ""), compression)


def allgather(value: Any, name: str | None = None) -> Any:
    """The ranks' arrays, joined along the first axis."""
    return arrays.allgather(keras.ops.convert_to_numpy(value), name)


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """The array of one rank, on all of them."""
    return arrays.broadcast(keras.ops.convert_to_numpy(value), root_rank, name)


def reducescatter(value: Any, name: str | None = None, op: int = Average) -> Any:
    """The array, reduced over the ranks: this rank's share of its rows."""
    return arrays.reducescatter(keras.ops.convert_to_numpy(value), name, op)


def broadcast_variables(
    variables: Sequence[Any], root_rank: int, process_set: ProcessSet = global_process_set
) -> None:
    """Overwrite Keras variables by those of one rank."""
    for variable in variables:
        value = keras.ops.convert_to_numpy(variable)
        variable.assign(arrays.broadcast(value, root_rank, None, process_set))


def reducer(how: dict[str, Any], wire: str | None) -> Callable[[list[Any]], list[Any]]:
    """The function that reduces gradients of this backend."""
    backend = keras.backend.backend()
    if backend not in BACKENDS:
        raise NotImplementedError(
            f"hvd.DistributedOptimizer: expected Keras on {', '.join(BACKENDS)}; got {backend}"
        )
    reduce = BACKENDS[backend]

    def reduced(gradients: list[Any]) -> list[Any]:
        narrow = [g if wire is None else keras.ops.cast(g, wire) for g in gradients]
        results = reduce(narrow, how)
        return [keras.ops.cast(r, g.dtype) for r, g in zip(results, gradients, strict=True)]

    return reduced


def reduced_by_tensorflow(gradients: list[Any], how: dict[str, Any]) -> list[Any]:
    """In one call, eagerly or in a tf.function."""
    from ..tensorflow.operations import grouped_allreduce

    return grouped_allreduce(gradients, **how)


def reduced_by_torch(gradients: list[Any], how: dict[str, Any]) -> list[Any]:
    """Tensors of PyTorch, outside of its graph."""
    from ..torch.operations import grouped_allreduce

    return grouped_allreduce([gradient.detach() for gradient in gradients], **how)


def reduced_by_jax(gradients: list[Any], how: dict[str, Any]) -> list[Any]:
    """An ordered callback to the host, in a compiled step too."""
    import jax
    from jax.experimental import io_callback

    def reduce(*given: Any) -> Any:
        return tuple(arrays.grouped_allreduce([np.asarray(g) for g in given], **how))

    shapes = tuple(jax.ShapeDtypeStruct(g.shape, g.dtype) for g in gradients)
    return list(io_callback(reduce, shapes, *gradients, ordered=True))


BACKENDS: dict[str, Callable[[list[Any], dict[str, Any]], list[Any]]] = {
    "tensorflow": reduced_by_tensorflow,
    "torch": reduced_by_torch,
    "jax": reduced_by_jax,
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
    """An optimizer of the same class and options that reduces gradients before it applies them.

    Parameters
    ----------
    optimizer
        A Keras optimizer that has not been used: its options are taken, not its state.
    name
        Its name; by default the optimizer's.
    compression
        `Compression.none`, `.fp16` or `.bf16`.
    gradient_predivide_factor
        With Average: divide by it before the sum, and multiply by it after.
    op
        Average, Sum or Adasum.
    backward_passes_per_step
        1: Keras accumulates by an optimizer's own `gradient_accumulation_steps`.
    process_set
        The ranks.
    device_dense, device_sparse, num_groups, groups, scale_local_gradients
        Nothing: gradients are dense, on the CPU, and go in one call.
    """
    expect_fresh(optimizer, gradient_predivide_factor, op, backward_passes_per_step)
    how = {
        "op": op_of(op, None),
        "prescale_factor": 1.0 / gradient_predivide_factor,
        "postscale_factor": gradient_predivide_factor,
        "process_set": process_set,
    }
    wire = wire_of(compression)
    scaled = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    if keras.config.dtype_policy().name == "mixed_float16" and not scaled:
        # Else model.compile() would put it around this one, and each rank look for infinities in
        # gradients of its own.
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    config = optimizer.get_config()
    kind = reducing(type(optimizer), how, wire)
    return kind.from_config({**config, "name": name or config["name"]})


def expect_fresh(optimizer: Any, predivide: float, op: int, passes: int) -> None:
    """Refuse what cannot be wrapped, or not so."""
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


def of_all_ranks(grads: Any, how: dict[str, Any], wire: str | None) -> list[Any]:
    """The gradients, reduced; None stays None."""
    found, ranks = list(grads), how["process_set"]
    places = [i for i, gradient in enumerate(found) if gradient is not None]
    if ranks.size() > 1 and ranks.included() and places:
        reduced = reducer(how, wire)([found[i] for i in places])
        for i, gradient in zip(places, reduced, strict=True):
            found[i] = gradient
    return found


def reducing(own: Any, how: dict[str, Any], wire: str | None) -> Any:
    """A class derived from an optimizer's, under its name: so a saved model loads without ngd."""

    class Distributed(own):
        """Reduces gradients, and applies them."""

        def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
            """As of the optimizer, with the ranks' gradients."""
            return super().apply(of_all_ranks(grads, how, wire), trainable_variables)

        def stateless_apply(self, state: Any, grads: Any, trainable_variables: Any) -> Any:
            """The same on JAX; where a loss is scaled, it looks at the gradients before `apply`."""
            if isinstance(self, keras.optimizers.LossScaleOptimizer):
                grads = of_all_ranks(grads, how, wire)
            return super().stateless_apply(state, grads, trainable_variables)

    Distributed.__name__ = own.__name__
    Distributed.__qualname__ = own.__qualname__
    Distributed.__module__ = own.__module__
    return Distributed


def load_model(
    filepath: Any,
    custom_optimizers: Sequence[type] | None = None,
    custom_objects: dict[str, Any] | None = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """Load a Keras model with its optimizer, which then reduces gradients.

    Parameters
    ----------
    filepath
        What `model.save` wrote.
    custom_optimizers
        Classes of optimizers that are not Keras' own.
    custom_objects
        As of keras.models.load_model.
    compression
        As of `DistributedOptimizer`.
    legacy_opts
        Nothing: Keras 3 has no others.
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
