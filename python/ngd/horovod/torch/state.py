# SPDX-License-Identifier: Apache-2.0
"""Functions that make models and optimizers equal on all ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..calls import handle_of_all
from ..numpy import broadcast_object
from ..world import ProcessSet, global_process_set
from .operations import broadcast_async_


def broadcast_parameters(
    params: Mapping[str, Any] | Iterable[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Overwrite tensors on all ranks by those of rank `root_rank`.

    Corresponds to `horovod.torch.broadcast_parameters`.

    Parameters
    ----------
    params : mapping or iterable
        `model.state_dict()`, `model.named_parameters()`, or tensors. Other values are ignored.
    root_rank : int
        The rank whose values are copied: its rank in the world, not in `process_set`.
    process_set : ProcessSet
        The ranks; by default the world.
    """
    pairs = params.items() if isinstance(params, Mapping) else params
    tensors = [pair[1] if isinstance(pair, tuple) else pair for pair in pairs]
    with torch.no_grad():
        send_in_place([t for t in tensors if isinstance(t, Tensor)], root_rank, process_set)


def send_in_place(tensors: list[Tensor], root_rank: int, process_set: ProcessSet) -> None:
    """Overwrite tensors by those of rank `root_rank`, with all broadcasts at the same time.

    For a tensor that is not contiguous, a contiguous copy is broadcast, and the result is copied
    back.
    """
    buffers = [t.data if t.is_contiguous() else t.data.contiguous() for t in tensors]
    handles = [broadcast_async_(buffer, root_rank, None, process_set) for buffer in buffers]
    handle_of_all("broadcast_parameters", handles).wait()
    for tensor, buffer in zip(tensors, buffers, strict=True):
        if not tensor.is_contiguous():
            tensor.data.copy_(buffer)


@dataclass(frozen=True)
class TensorSpec:
    """The shape and dtype of a tensor, in place of the tensor in a pickled optimizer state.

    The tensor itself is broadcast separately.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: torch.nn.Module | None = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Overwrite the state and options of an optimizer on all ranks by those of rank `root_rank`.

    The other ranks' optimizers may have no state yet.

    Corresponds to `horovod.torch.broadcast_optimizer_state`.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        The optimizer.
    root_rank : int
        The rank whose state is copied: its rank in the world, not in `process_set`.
    model : torch.nn.Module, optional
        Ignored.
    process_set : ProcessSet
        The ranks; by default the world.
    """
    is_root = process_set.rank() == process_set.root(root_rank, "hvd.broadcast_optimizer_state")
    tensors: list[Tensor] = []
    description = extract_tensors(optimizer.state_dict(), tensors) if is_root else None
    description = broadcast_object(description, root_rank, process_set=process_set)
    if not is_root:
        description = insert_tensors(description, tensors)
    send_in_place(tensors, root_rank, process_set)
    if not is_root:
        load_in_place(description, optimizer)


def load_in_place(description: dict[str, Any], optimizer: torch.optim.Optimizer) -> None:
    """Load a state into an optimizer without replacing the dict objects in its `param_groups`.

    A learning rate scheduler may refer to these dicts, so only their entries are replaced.
    """
    parameters: list[Tensor] = []
    for group, options in zip(optimizer.param_groups, description["param_groups"], strict=True):
        parameters += group["params"]
        group.update({key: value for key, value in options.items() if key != "params"})
    optimizer.state.clear()
    for number, state in description["state"].items():
        optimizer.state[parameters[number]] = state


def extract_tensors(value: Any, tensors: list[Tensor]) -> Any:
    """Return a copy of a state in which a TensorSpec (shape and dtype) replaces each tensor.

    The state consists of nested dicts, lists and tuples. Append its tensors to `tensors`.
    """
    if isinstance(value, Tensor):
        tensors.append(value)
        return TensorSpec(tuple(value.shape), value.dtype)
    if isinstance(value, dict):
        return {key: extract_tensors(each, tensors) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(extract_tensors(each, tensors) for each in value)
    return value


def insert_tensors(value: Any, tensors: list[Tensor]) -> Any:
    """Return a copy of a state in which a new tensor replaces each TensorSpec (shape and dtype).

    The new tensors are uninitialized; the caller then receives their values by broadcasts. Append
    them to `tensors`, in the order in which `extract_tensors` appends tensors.
    """
    if isinstance(value, TensorSpec):
        tensors.append(torch.empty(value.shape, dtype=value.dtype))
        return tensors[-1]
    if isinstance(value, dict):
        return {key: insert_tensors(each, tensors) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(insert_tensors(each, tensors) for each in value)
    return value


__all__ = ["broadcast_optimizer_state", "broadcast_parameters"]
