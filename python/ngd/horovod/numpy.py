# SPDX-License-Identifier: Apache-2.0
"""Horovod's API for NumPy arrays, and for objects that NumPy can convert to arrays.

    import ngd.horovod.numpy as hvd

The functions have the names and arguments of `horovod.torch`. Their results are new arrays. A
`root_rank` is a rank of the world, even if a process set is given.
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
    """Start `allreduce` and return its handle.

    Corresponds to `horovod.torch.allreduce_async`.

    The arguments are those of `allreduce`.
    """
    options = average, name, op, prescale_factor, postscale_factor, process_set
    return ARRAYS.start("allreduce", tensor, *options)


def allreduce(tensor: Any, *args: Any, **kwargs: Any) -> Array:
    """Reduce an array over the ranks, element by element, and return the result.

    Corresponds to `horovod.torch.allreduce`.

    Parameters
    ----------
    tensor : array_like
        The operand, of the same shape and dtype on all ranks.
    average : bool, optional
        Horovod's old form of `op`: Average if True, Sum if False. It cannot be combined with `op`.
    name : str, optional
        A name. All ranks must pass the same name.
    op : int
        Average (the default), Sum, Adasum, Min, Max or Product. An average of integers is rounded
        towards zero.
    prescale_factor, postscale_factor : float
        The factors by which the operand and the result are multiplied; by default 1.
    process_set : ProcessSet
        The ranks; by default the world.

    Examples
    --------
    With one rank, the reduction returns the operand times the factors.

    >>> import numpy as np
    >>> import ngd.horovod.numpy as hvd
    >>> hvd.init()
    >>> hvd.allreduce(np.array([1.0, 2.0]), op=hvd.Sum, prescale_factor=3.0)
    array([3., 6.])
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
    """Reduce each tensor of a list, as `allreduce` does, and return the list of the results.

    All reductions run at the same time. Tensors of one dtype with less than 65,536 elements are
    reduced together, except with Adasum.

    Corresponds to `horovod.torch.grouped_allreduce`.

    The other arguments are those of `allreduce`.
    """
    options = average, name, op, prescale_factor, postscale_factor, process_set
    return list(ARRAYS.start("grouped_allreduce", tensors, *options).wait())


def allgather_async(
    tensor: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Start `allgather` and return its handle.

    Corresponds to `horovod.torch.allgather_async`.

    The arguments are those of `allgather`.
    """
    return ARRAYS.start("allgather", tensor, name, process_set)


def allgather(
    tensor: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Array:
    """Return the ranks' arrays, concatenated along the first axis. Their lengths may differ.

    Corresponds to `horovod.torch.allgather`.

    Parameters
    ----------
    tensor : array_like
        The operand. The tensors of the ranks may only differ in the length of the first axis.
    name : str, optional
        A name. All ranks must pass the same name.
    process_set : ProcessSet
        The ranks; by default the world.

    Examples
    --------
    With one rank, the result is the operand. A scalar becomes an array of one element.

    >>> import ngd.horovod.numpy as hvd
    >>> hvd.init()
    >>> hvd.allgather(2.5)
    array([2.5])
    """
    return np.asarray(allgather_async(tensor, name, process_set).wait())


def grouped_allgather(
    tensors: Tensors, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Array]:
    """Gather each tensor of a list, as `allgather` does, and return the list of the results.

    Corresponds to `horovod.torch.grouped_allgather`.

    The other arguments are those of `allgather`.
    """
    return list(ARRAYS.start_each("allgather", tensors, name, process_set).wait())


def broadcast_async(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start `broadcast` and return its handle.

    Corresponds to `horovod.torch.broadcast_async`.

    The arguments are those of `broadcast`.
    """
    return ARRAYS.start("broadcast", tensor, root_rank, name, process_set)


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """Return the array of rank `root_rank` on all ranks.

    Corresponds to `horovod.torch.broadcast`.

    Parameters
    ----------
    tensor : array_like
        The array to send. The other ranks pass an array of the same shape and dtype.
    root_rank : int
        The rank that sends: its rank in the world, not in `process_set`.
    name : str, optional
        A name. All ranks must pass the same name.
    process_set : ProcessSet
        The ranks; by default the world.
    """
    return np.asarray(broadcast_async(tensor, root_rank, name, process_set).wait())


def alltoall_async(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start `alltoall` and return its handle.

    The result of the handle is (received rows, number of rows from each rank), even without
    `splits`. Without `splits`, `alltoall` returns only the rows.

    Corresponds to `horovod.torch.alltoall_async`.

    The arguments are those of `alltoall`.
    """
    return ARRAYS.start("alltoall", tensor, splits, name, process_set)


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send `splits[r]` rows to each rank r, and return the rows that the ranks sent to this one.

    Corresponds to `horovod.torch.alltoall`.

    Parameters
    ----------
    tensor : array_like
        The rows to send, in the order of the ranks.
    splits : sequence of int, optional
        The number of rows for each rank; by default equal numbers.
    name : str, optional
        A name. All ranks must pass the same name.
    process_set : ProcessSet
        The ranks; by default the world.

    Returns
    -------
    numpy.ndarray, or a pair of arrays
        The received rows, in the order of the ranks. If `splits` is given: the rows, and the number
        of rows from each rank.

    Examples
    --------
    With one rank, the rank sends all rows to itself.

    >>> import ngd.horovod.numpy as hvd
    >>> hvd.init()
    >>> hvd.alltoall([1.0, 2.0], splits=[2])
    (array([1., 2.]), array([2]))
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
    """Start `reducescatter` and return its handle.

    Corresponds to `horovod.torch.reducescatter_async`.

    The arguments are those of `reducescatter`.
    """
    options = name, op, process_set, prescale_factor, postscale_factor
    return ARRAYS.start("reducescatter", tensor, *options)


def reducescatter(tensor: Any, *args: Any, **kwargs: Any) -> Array:
    """Reduce an array over the ranks and return this rank's shard of the rows.

    If the number of rows is not a multiple of the number of ranks, the first ranks get one row
    more.

    Corresponds to `horovod.torch.reducescatter`.

    Parameters
    ----------
    tensor : array_like
        The operand, of the same shape and dtype on all ranks.
    name : str, optional
        A name. All ranks must pass the same name.
    op : int
        Average (the default) or Sum.
    process_set : ProcessSet
        The ranks; by default the world.
    prescale_factor, postscale_factor : float
        The factors by which the operand and the result are multiplied; by default 1.
    """
    return np.asarray(reducescatter_async(tensor, *args, **kwargs).wait())


def grouped_reducescatter(tensors: Tensors, *args: Any, **kwargs: Any) -> list[Array]:
    """Reduce and scatter each tensor of a list, as `reducescatter` does; return the results.

    Corresponds to `horovod.torch.grouped_reducescatter`.

    The other arguments are those of `reducescatter`.
    """
    return list(ARRAYS.start_each("reducescatter", tensors, *args, **kwargs).wait())


def pickle_object(obj: Any) -> bytes:
    """Pickle an object, by cloudpickle if it is installed."""
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
    """Return the object of rank `root_rank` on all ranks.

    The object is pickled, by cloudpickle if it is installed.

    Corresponds to `horovod.torch.broadcast_object`.

    Parameters
    ----------
    obj : object
        The object to send. It is ignored on the other ranks.
    root_rank : int
        The rank that sends: its rank in the world, not in `process_set`.
    name : str, optional
        A name. All ranks must pass the same name.
    process_set : ProcessSet
        The ranks; by default the world.
    """
    is_root = process_set.rank() == process_set.root(root_rank, "hvd.broadcast_object")
    pickled = np.frombuffer(pickle_object(obj) if is_root else b"", np.uint8)
    num_bytes = int(broadcast(np.array([pickled.size]), root_rank, name, process_set)[0])
    if not is_root:
        pickled = np.empty(num_bytes, np.uint8)
    data = broadcast(pickled, root_rank, name, process_set)
    return obj if is_root else pickle.loads(data.tobytes())


def allgather_object(
    obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Return the list of the objects of all ranks, which are sent as pickles.

    Corresponds to `horovod.torch.allgather_object`.

    Parameters
    ----------
    obj : object
        The object of this rank.
    name : str, optional
        A name. All ranks must pass the same name.
    process_set : ProcessSet
        The ranks; by default the world.
    """
    pickled = np.frombuffer(pickle_object(obj), np.uint8)
    sizes = allgather(np.array([pickled.size]), name, process_set)
    all_bytes = allgather(pickled, name, process_set)
    return [pickle.loads(part.tobytes()) for part in np.split(all_bytes, np.cumsum(sizes)[:-1])]


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
