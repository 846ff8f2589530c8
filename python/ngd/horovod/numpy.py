# SPDX-License-Identifier: Apache-2.0
"""Horovod's names for NumPy's arrays, and for whatever NumPy can read.

    import ngd.horovod.numpy as hvd

Results are new arrays. A rank number is one of the world, also where a process set is given.
"""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from ..dtypes import Array
from .adapter import Adapter
from .calls import Average, Handle, poll, synchronize
from .common import *  # noqa: F403
from .common import __all__ as _in_common
from .world import ProcessSet, global_process_set

Tensors = Sequence[Any]

ARRAYS: Final = Adapter(lambda array: array, lambda array: array)


def allreduce_async(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start `allreduce`, and return a handle."""
    how = average, name, op, prescale_factor, postscale_factor, process_set
    return ARRAYS.start("allreduce", tensor, *how)


def allreduce(tensor: Any, *args: Any, **kwargs: Any) -> Array:
    """Reduce over the ranks, element by element.

    Parameters
    ----------
    tensor
        Of one shape and dtype on all ranks.
    average
        Horovod's old argument: whether to average. Not with `op`.
    name
        Compared between ranks.
    op
        Average (the default), Sum, Adasum, Min, Max or Product. An average of integers is rounded
        towards zero.
    prescale_factor, postscale_factor
        Multiply before and after.
    process_set
        The ranks.
    """
    return np.asarray(allreduce_async(tensor, *args, **kwargs).wait())


def grouped_allreduce(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Array]:
    """Reduce each tensor of a list; see `allreduce`. They travel at once, small ones together."""
    how = average, name, op, prescale_factor, postscale_factor, process_set
    return list(ARRAYS.start("grouped_allreduce", tensors, *how).wait())


def allgather_async(
    tensor: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Start `allgather`, and return a handle."""
    return ARRAYS.start("allgather", tensor, name, process_set)


def allgather(
    tensor: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Array:
    """Join the ranks' tensors along the first axis; their lengths may differ."""
    return np.asarray(allgather_async(tensor, name, process_set).wait())


def grouped_allgather(
    tensors: Tensors, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Array]:
    """Gather each tensor of a list; see `allgather`."""
    return list(ARRAYS.start_each("allgather", tensors, name, process_set).wait())


def broadcast_async(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start `broadcast`, and return a handle."""
    return ARRAYS.start("broadcast", tensor, root_rank, name, process_set)


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """The tensor of one rank, on all of them; each gives one of its shape and dtype."""
    return np.asarray(broadcast_async(tensor, root_rank, name, process_set).wait())


def alltoall_async(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start `alltoall`, and return a handle, whose result is always a pair."""
    return ARRAYS.start("alltoall", tensor, splits, name, process_set)


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send rows to every rank, `splits[r]` of them to rank r, and receive theirs.

    Returns
    -------
    numpy.ndarray
        The rows from all ranks, in their order. With splits: this, and how many came from each.
    """
    rows, received = alltoall_async(tensor, splits, name, process_set).wait()
    return rows if splits is None else (rows, received)


def reducescatter_async(
    tensor: Any,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """Start `reducescatter`, and return a handle."""
    how = name, op, process_set, prescale_factor, postscale_factor
    return ARRAYS.start("reducescatter", tensor, *how)


def reducescatter(tensor: Any, *args: Any, **kwargs: Any) -> Array:
    """Reduce over the ranks, and return this rank's share of the rows.

    Where they cannot be shared evenly, the first ranks get one more. `op` is Average or Sum.
    """
    return np.asarray(reducescatter_async(tensor, *args, **kwargs).wait())


def grouped_reducescatter(tensors: Tensors, *args: Any, **kwargs: Any) -> list[Array]:
    """Reduce and scatter each tensor of a list; see `reducescatter`."""
    return list(ARRAYS.start_each("reducescatter", tensors, *args, **kwargs).wait())


def dumps(obj: Any) -> bytes:
    """The object as bytes."""
    try:
        pickler = importlib.import_module("cloudpickle")
    except ImportError:
        pickler = pickle
    return bytes(pickler.dumps(obj))


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The object of one rank, on all of them: pickled, by cloudpickle if it is installed."""
    mine = process_set.rank() == process_set.root(root_rank, "hvd.broadcast_object")
    packed = np.frombuffer(dumps(obj) if mine else b"", np.uint8)
    length = int(broadcast(np.array([packed.size]), root_rank, name, process_set)[0])
    if not mine:
        packed = np.empty(length, np.uint8)
    sent = broadcast(packed, root_rank, name, process_set)
    return obj if mine else pickle.loads(sent.tobytes())


def allgather_object(
    obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """The objects of all ranks: pickled."""
    mine = np.frombuffer(dumps(obj), np.uint8)
    lengths = allgather(np.array([mine.size]), name, process_set)
    joined = allgather(mine, name, process_set)
    return [pickle.loads(part.tobytes()) for part in np.split(joined, np.cumsum(lengths)[:-1])]


__all__ = [
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_async",
    "alltoall",
    "alltoall_async",
    "broadcast",
    "broadcast_async",
    "broadcast_object",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "poll",
    "reducescatter",
    "reducescatter_async",
    "synchronize",
    *_in_common,
]
