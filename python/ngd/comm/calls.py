# SPDX-License-Identifier: Apache-2.0
"""The public functions for arrays: collectives over the world or a group, and `join`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Never, TypeVar

from .. import _core
from .._util.callsite import call_site
from .._util.signature_errors import REQUIRED, expect_op, with_signature
from ..dtypes import Shape
from . import uneven, world
from .group import Group

Batch = TypeVar("Batch")


@with_signature
def all_reduce(
    x: Any,
    *surplus: Never,
    op: str = REQUIRED,
    out: Any = None,
    weight: float | None = None,
    algorithm: str = "auto",
    compression: Any = None,
    async_op: bool = False,
    group: Group | None = None,
) -> Any:  # long because each argument is described
    """Reduce an array over all ranks, element by element; every rank gets the result.

    Parameters
    ----------
    x : array_like or list of arrays
        The array of this rank. Shape and dtype are the same on all ranks. The arrays of a list are
        sent together, and small arrays of the same dtype are sent as one message. NumPy arrays,
        DLPack tensors (PyTorch on the CPU) and buffers are read without a copy.
    op : str
        The reduction: "sum", "mean", "min", "max" or "prod". There is no default. The mean of
        integers is an error. NaN propagates through min and max. 16-bit floats are accumulated in
        float32.
    out : array or list of arrays, optional
        The array for the result, which may be `x` itself. The default is a new NumPy array. A
        call with `out` and contiguous NumPy arrays is the fastest.
    weight : float, optional
        The weight w of this rank, for op="mean" only. The result is sum(w * x) / sum(w), where both
        sums are over the ranks. A rank with weight 0 contributes nothing, even if its values are
        NaN. If all weights are 0, the result is 0. Without weights, the result is the plain mean.
    algorithm : {"auto", "flat", "ring"}
        The algorithm. "flat": the array has one block per rank. Each rank reduces its block over
        all ranks, and sends the result to all ranks. For a small array, each rank reduces the whole
        array. "ring": partial sums travel from rank to rank. "auto", the default, is the value of
        NGD_ALLREDUCE, or "flat" if NGD_ALLREDUCE is "auto" or not set.
    compression : str or TopK, optional
        The compression of the data that ranks send. "bf16" sends float32 arrays as bfloat16, adds
        them in float32, and rounds the result to the precision of bfloat16. A TopK sends only the
        elements of the largest magnitude. None, the default, sends all elements with the dtype of
        `x`. Compression cannot be combined with `weight`.
    async_op : bool, default False
        Start the collective and return an ngd.Work at once. Its wait() returns the result.
    group : Group, optional
        The ranks that take part. The default is the world.

    Returns
    -------
    numpy.ndarray, `out`, or Work
        The result, with the shape and dtype of `x`. For a list it is a list. All ranks get the
        same bits. A later run with the same placement of ranks on hosts gives these bits again.

    Notes
    -----
    With "bf16", the error of a sum S of values x is at most
    2**-8 * (sum(abs(x)) + abs(S)) * (1 + 2**-8).

    Examples
    --------
    Each rank contributes one array; here a single rank runs.

    >>> gradient = np.array([1.0, 2.0])
    >>> ngd.all_reduce(gradient, op="mean")
    array([1., 2.])
    """
    if surplus or op is REQUIRED:
        expect_op("ngd.all_reduce", all_reduce, (x, *surplus), op)
    ranks = (world.current or world.init()) if group is None else world.group_or_world(group)
    if weight is None and compression is None and algorithm == "auto" and not async_op:
        quick = ranks.quick  # not ranks.quick(...), which looks in the class first: 25 ns
        result = quick("all_reduce", x, out, op)
        if result is not None:
            return result
    return ranks.all_reduce(
        x,
        op=op,
        out=out,
        weight=weight,
        algorithm=algorithm,
        compression=compression,
        async_op=async_op,
        site=call_site(),
    )


@with_signature
def reduce_scatter(
    x: Any,
    *surplus: Never,
    op: str = REQUIRED,
    axis: int = 0,
    out: Any = None,
    async_op: bool = False,
    group: Group | None = None,
) -> Any:
    """Reduce an array over all ranks; rank r gets the r-th block of the result.

    Parameters
    ----------
    x : array_like
        The array of this rank. Shape and dtype are the same on all ranks. Its size along `axis` is
        a multiple of the number of ranks.
    op : str
        The reduction: "sum", "mean", "min", "max" or "prod", as in ngd.all_reduce.
    axis : int, default 0
        The axis that is split into blocks. An axis other than 0 costs copies.
    out : array, optional
        The array for the block. With axis 0 it may be this rank's block of `x`.
    async_op, group
        The same as in ngd.all_reduce.

    Returns
    -------
    numpy.ndarray, `out`, or Work
        The block of this rank. It has the shape of `x`, with the size along `axis` divided by the
        number of ranks.

    Examples
    --------
    With two ranks, each rank gets one half. Here a single rank gets the whole array.

    >>> ngd.reduce_scatter(np.arange(4), op="sum")
    array([0, 1, 2, 3])
    """
    if surplus or op is REQUIRED:
        expect_op("ngd.reduce_scatter", reduce_scatter, (x, *surplus), op)
    ranks = (world.current or world.init()) if group is None else world.group_or_world(group)
    if axis == 0 and not async_op:
        quick = ranks.quick
        result = quick("reduce_scatter", x, out, op)
        if result is not None:
            return result
    return ranks.reduce_scatter(x, op=op, axis=axis, out=out, async_op=async_op, site=call_site())


def all_gather(
    x: Any, *, axis: int = 0, out: Any = None, async_op: bool = False, group: Group | None = None
) -> Any:
    """Concatenate the arrays of all ranks in the order of ranks; every rank gets the result.

    Parameters
    ----------
    x : array_like
        The array of this rank. Shape and dtype are the same on all ranks. A scalar is treated as
        an array of shape (1,).
    axis : int, default 0
        The axis along which to concatenate. An axis other than 0 costs copies.
    out : array, optional
        The array for the result. With axis 0, `x` may be this rank's block of it.
    async_op, group
        The same as in ngd.all_reduce.

    Returns
    -------
    numpy.ndarray, `out`, or Work
        The arrays of all ranks. The result has the shape of `x`, with the size along `axis`
        multiplied by the number of ranks.

    Examples
    --------
    With n ranks, this returns the numbers 0 to n - 1. Here there is a single rank.

    >>> ngd.all_gather(ngd.rank())
    array([0])
    """
    ranks = (world.current or world.init()) if group is None else world.group_or_world(group)
    if axis == 0 and not async_op:
        quick = ranks.quick
        result = quick("all_gather", x, out, "none")
        if result is not None:
            return result
    return ranks.all_gather(x, axis=axis, out=out, async_op=async_op, site=call_site())


def all_gather_v(
    x: Any,
    *,
    counts: Sequence[int] | None = None,
    out: Any = None,
    async_op: bool = False,
    group: Group | None = None,
) -> Any:
    """Concatenate arrays of different lengths along axis 0; every rank gets the result.

    Parameters
    ----------
    x : array_like
        The array of this rank. The dtype, and the shape after the first axis, are the same on all
        ranks.
    counts : sequence of ints, optional
        The length of each rank's array. All ranks give the same list. By default the ranks
        exchange the lengths first, which costs one more collective.
    out, async_op, group
        The same as in ngd.all_gather.

    Returns
    -------
    numpy.ndarray, `out`, or Work
        The rows of all ranks, in the order of ranks.

    Examples
    --------
    >>> ngd.all_gather_v(np.array([[1, 2], [3, 4]])).shape
    (2, 2)
    """
    return world.group_or_world(group).all_gather_v(
        x, counts=counts, out=out, async_op=async_op, site=call_site()
    )


def broadcast(
    x: Any, root: int = 0, *, out: Any = None, async_op: bool = False, group: Group | None = None
) -> Any:
    """Copy the array of rank `root` to all ranks.

    Parameters
    ----------
    x : array_like or list of arrays
        The array to send, on the root. On the other ranks it has the same shape and dtype, and its
        values are not read.
    root : int, default 0
        The rank whose array is sent.
    out : array or list of arrays, optional
        The array for the result, which may be `x` itself.
    async_op, group
        The same as in ngd.all_reduce.

    Returns
    -------
    numpy.ndarray, `out`, or Work
        The array of the root, with the shape and dtype of `x`.

    Examples
    --------
    >>> ngd.broadcast(np.array([3, 1, 2]), root=0)
    array([3, 1, 2])
    """
    ranks = (world.current or world.init()) if group is None else world.group_or_world(group)
    if not async_op:
        quick = ranks.quick
        result = quick("broadcast", x, out, "none", root)
        if result is not None:
            return result
    return ranks.broadcast(x, root, out=out, async_op=async_op, site=call_site())


def reduce(
    x: Any,
    root: int = 0,
    *,
    op: str,
    out: Any = None,
    async_op: bool = False,
    group: Group | None = None,
) -> Any:
    """Reduce an array over all ranks, element by element; only rank `root` gets the result.

    Parameters
    ----------
    x : array_like
        The array of this rank. Shape and dtype are the same on all ranks.
    root : int, default 0
        The rank that gets the result.
    op : str
        The reduction: "sum", "mean", "min", "max" or "prod", as in ngd.all_reduce.
    out : array, optional
        The array for the result on the root. It may be `x` itself.
    async_op, group
        The same as in ngd.all_reduce.

    Returns
    -------
    numpy.ndarray, `out`, None, or Work
        On the root, the result with the shape and dtype of `x`. None on the other ranks.

    Examples
    --------
    >>> ngd.reduce(np.array([1.0, 2.0]), root=0, op="sum")
    array([1., 2.])
    """
    return world.group_or_world(group).reduce(
        x, root, op=op, out=out, async_op=async_op, site=call_site()
    )


def gather(
    x: Any, root: int = 0, *, out: Any = None, async_op: bool = False, group: Group | None = None
) -> Any:
    """Concatenate the arrays of all ranks along axis 0; only rank `root` gets the result.

    Parameters
    ----------
    x : array_like
        The array of this rank. Shape and dtype are the same on all ranks. A scalar is treated as
        an array of shape (1,).
    root : int, default 0
        The rank that gets the result.
    out : array, optional
        The array for the result on the root. `x` may be the root's block of it.
    async_op, group
        The same as in ngd.all_reduce.

    Returns
    -------
    numpy.ndarray, `out`, None, or Work
        On the root, the arrays in the order of ranks. None on the other ranks.

    Examples
    --------
    >>> ngd.gather(np.array([1.0, 2.0]), root=0)
    array([1., 2.])
    """
    return world.group_or_world(group).gather(x, root, out=out, async_op=async_op, site=call_site())


def scatter(
    x: Any = None,
    root: int = 0,
    *,
    out: Any = None,
    shape: Shape | None = None,
    dtype: Any = None,
    async_op: bool = False,
    group: Group | None = None,
) -> Any:
    """Split the array of rank `root` along axis 0; rank r gets the r-th block.

    Parameters
    ----------
    x : array_like, optional
        On the root: an array whose size along axis 0 is a multiple of the number of ranks. On the
        other ranks: None, or an array of the same shape and dtype, whose values are not read.
    root : int, default 0
        The rank whose array is sent.
    out : array, optional
        The array for the block. On the root it may be the root's block of `x`.
    shape, dtype : tuple of ints and dtype, optional
        The shape and dtype of a block. A rank that gives neither `x` nor `out` must give both.
    async_op, group
        The same as in ngd.all_reduce.

    Returns
    -------
    numpy.ndarray, `out`, or Work
        The block of this rank.

    Examples
    --------
    >>> ngd.scatter(np.arange(4), root=0)
    array([0, 1, 2, 3])
    """
    return world.group_or_world(group).scatter(
        x, root, out=out, shape=shape, dtype=dtype, async_op=async_op, site=call_site()
    )


def all_to_all(
    x: Any, *, out: Any = None, async_op: bool = False, group: Group | None = None
) -> Any:
    """Send the r-th block of `x` along axis 0 to rank r, and receive a block from each rank.

    Parameters
    ----------
    x : array_like
        The array of this rank. Shape and dtype are the same on all ranks. Its size along axis 0 is
        a multiple of the number of ranks.
    out : array, optional
        The array for the result. It may be `x` itself, whose blocks are then replaced. Otherwise
        its memory must not overlap that of `x`.
    async_op, group
        The same as in ngd.all_reduce.

    Returns
    -------
    numpy.ndarray, `out`, or Work
        The received blocks, with the shape of `x`. The r-th block is from rank r.

    Examples
    --------
    >>> ngd.all_to_all(np.arange(4))
    array([0, 1, 2, 3])
    """
    ranks = (world.current or world.init()) if group is None else world.group_or_world(group)
    if not async_op:
        quick = ranks.quick
        result = quick("all_to_all", x, out, "none")
        if result is not None:
            return result
    return ranks.all_to_all(x, out=out, async_op=async_op, site=call_site())


def all_to_all_v(
    x: Any,
    send_counts: Sequence[int],
    receive_counts: Sequence[int] | None = None,
    *,
    out: Any = None,
    async_op: bool = False,
    group: Group | None = None,
) -> Any:
    """Send rows to each rank and receive rows from each rank; the numbers of rows may differ.

    Parameters
    ----------
    x : array_like
        The rows for rank 0, then the rows for rank 1, and so on. The dtype, and the shape after
        the first axis, are the same on all ranks.
    send_counts : sequence of ints
        The number of rows to send to each rank.
    receive_counts : sequence of ints, optional
        The number of rows to receive from each rank. By default the ranks exchange the numbers
        first, which costs one more collective.
    out : array, optional
        The array for the result. Its memory must not overlap that of `x`.
    async_op, group
        The same as in ngd.all_reduce.

    Returns
    -------
    numpy.ndarray, `out`, or Work
        The received rows, in the order of the ranks that sent them.

    Examples
    --------
    >>> ngd.all_to_all_v(np.arange(4), send_counts=[4])
    array([0, 1, 2, 3])
    """
    return world.group_or_world(group).all_to_all_v(
        x, send_counts, receive_counts, out=out, async_op=async_op, site=call_site()
    )


def barrier(*, async_op: bool = False, group: Group | None = None) -> Any:
    """Wait until every rank of the group has called this function.

    Parameters
    ----------
    group : Group, optional
        The ranks that take part. The default is the world.
    async_op : bool, default False
        Return an ngd.Work at once. Its wait() waits for the other ranks.

    Returns
    -------
    None or Work
        A Work if `async_op` is True.

    Examples
    --------
    >>> ngd.barrier()
    """
    ranks = (world.current or world.init()) if group is None else world.group_or_world(group)
    quick_barrier = ranks.quick_barrier
    if not async_op and quick_barrier():
        return None
    return ranks.barrier(async_op=async_op, site=call_site())


def join(
    batches: Iterable[Batch], *, empty: Batch | None = None, group: Group | None = None
) -> Iterator[tuple[Batch, float]]:
    """Iterate over batches until every rank has run out of batches.

    The iterator yields pairs (batch, weight). The weight of a batch is 1.0. A rank that runs out
    before the other ranks gets its last batch again, with weight 0.0, until all ranks have run out.
    Pass the weight to `ngd.all_reduce(..., op="mean", weight=weight)`. Then such a rank takes part
    in the collectives of the other ranks and does not change the result. Before each batch, and
    once at the end, the ranks find out by an all-reduce of one byte if any rank has batches left.

    Parameters
    ----------
    batches : iterable
        The batches of this rank. Their number may differ between ranks.
    empty : batch, optional
        The batch that a rank without any batch repeats. Without it, such a rank raises ValueError.
    group : Group, optional
        The ranks that take part. The default is the world.

    Yields
    ------
    tuple of batch and float
        The batch and its weight. If the sizes of batches differ, pass `weight * len(batch)` as the
        weight.

    Examples
    --------
    >>> for batch, weight in ngd.join([np.ones(2), np.zeros(2)]):
    ...     mean = ngd.all_reduce(batch, op="mean", weight=weight)
    """
    return uneven.join(batches, world.group_or_world(group), empty)


def build_info() -> dict[str, str | None]:
    """Return the version, build mode and libraries of this installation.

    Returns
    -------
    dict from str to str or None
        "version": the version of ngd. "mode", the build mode: "MLSL" (ranks of one host), "OMPI"
        (ranks of one or several hosts) or "OFF" (a single rank). "onednn": the version of oneDNN,
        or None. "simd": the SIMD level in use. "mpi": the MPI libraries that the build supports,
        separated by spaces, or None for a build without MPI.

    Examples
    --------
    >>> ngd.build_info()["version"] == ngd.__version__
    True
    """
    return _core.build_info()
