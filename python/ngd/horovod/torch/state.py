# SPDX-License-Identifier: Apache-2.0
"""Making models and optimizers equal on all ranks."""

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
    """Overwrite tensors by those of one rank.

    Parameters
    ----------
    params
        `model.state_dict()`, `model.named_parameters()`, or tensors; what is no tensor is left.
    root_rank
        The rank of the world that has the values.
    process_set
        The ranks.
    """
    pairs = params.items() if isinstance(params, Mapping) else params
    tensors = [pair[1] if isinstance(pair, tuple) else pair for pair in pairs]
    with torch.no_grad():
        send_in_place([t for t in tensors if isinstance(t, Tensor)], root_rank, process_set)


def send_in_place(tensors: list[Tensor], root_rank: int, process_set: ProcessSet) -> None:
    """Broadcast them all at once; those that are not contiguous through a copy."""
    places = [t.data if t.is_contiguous() else t.data.contiguous() for t in tensors]
    handles = [broadcast_async_(place, root_rank, None, process_set) for place in places]
    handle_of_all("broadcast_parameters", handles).wait()
    for tensor, place in zip(tensors, places, strict=True):
        if not tensor.is_contiguous():
            tensor.data.copy_(place)


@dataclass(frozen=True)
class Place:
    """Stands for a tensor in what is pickled."""

    shape: tuple[int, ...]
    dtype: torch.dtype


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: torch.nn.Module | None = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Overwrite an optimizer's state and options by those of one rank.

    The others' state may be empty still. `model` is not needed.
    """
    mine = process_set.rank() == process_set.root(root_rank, "hvd.broadcast_optimizer_state")
    tensors: list[Tensor] = []
    described = emptied(optimizer.state_dict(), tensors) if mine else None
    described = broadcast_object(described, root_rank, process_set=process_set)
    if not mine:
        described = filled(described, tensors)
    send_in_place(tensors, root_rank, process_set)
    if not mine:
        put(described, optimizer)


def put(described: dict[str, Any], optimizer: torch.optim.Optimizer) -> None:
    """Overwrite a state in its place: schedulers, and other optimizers, may share it."""
    parameters: list[Tensor] = []
    for group, given in zip(optimizer.param_groups, described["param_groups"], strict=True):
        parameters += group["params"]
        group.update({key: value for key, value in given.items() if key != "params"})
    optimizer.state.clear()
    for number, state in described["state"].items():
        optimizer.state[parameters[number]] = state


def emptied(value: Any, tensors: list[Tensor]) -> Any:
    """A state with places for its tensors, which go to a list."""
    if isinstance(value, Tensor):
        tensors.append(value)
        return Place(tuple(value.shape), value.dtype)
    if isinstance(value, dict):
        return {key: emptied(each, tensors) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(emptied(each, tensors) for each in value)
    return value


def filled(value: Any, tensors: list[Tensor]) -> Any:
    """The other way: with new tensors, which go to the list too."""
    if isinstance(value, Place):
        tensors.append(torch.empty(value.shape, dtype=value.dtype))
        return tensors[-1]
    if isinstance(value, dict):
        return {key: filled(each, tensors) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(filled(each, tensors) for each in value)
    return value


__all__ = ["broadcast_optimizer_state", "broadcast_parameters"]
