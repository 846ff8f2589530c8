# SPDX-License-Identifier: Apache-2.0
"""The public functions on arrays: collectives over the world or a group, and `join`."""

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
        Of one shape and dtype on all ranks. The arrays of a list are sent together, small ones of
        one dtype as one message. NumPy arrays, DLPack tensors (PyTorch on the CPU) and buffers are
        read without a copy.
    op : str
        "sum", "mean", "min", "max" or "prod"; there is no default. A mean of integers is an error.
        NaN propagates through min and max, and 16-bit floats are accumulated in float32.
    out : array or list of arrays, optional
        The array for the result, which may be `x` itself. The default is a new NumPy array. A
        call with `out` and contiguous NumPy arrays is the fastest.
    weight : float, optional
        With op="mean": this rank's weight in the weighted mean. A rank of weight 0 contributes
        nothing, even if its values are NaN. If all weights are 0, so is the result.
    algorithm : {"auto", "flat", "ring"}
        The algorithm. The default is NGD_ALLREDUCE, or the one that was measured to be faster.
    compression : str or TopK, optional
        "bf16" sends float32 as bfloat16, accumulates in float32 and rounds once more. A TopK sends
        only the largest elements. Not with weight.
    async_op : bool, default False
        Return an ngd.Work at once; its wait() returns the result.
    group : Group, optional
        The ranks. The default is the world.

    Returns
    -------
    numpy.ndarray, `out`, or Work
        The shape and dtype of `x`; a list for a list. All ranks get the same bits in every run.

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
    ranks = (world.current or world.init()) if group is None else world.chosen(group)
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
        Of one shape and dtype on all ranks. Its size along `axis` is a multiple of the number of
        ranks.
    op : str
        "sum", "mean", "min", "max" or "prod", as in ngd.all_reduce.
    axis : int, default 0
        The axis that is split into blocks. Other axes than 0 cost copies.
    out : array, optional
        The array for the block. With axis 0 it may be this rank's block of `x`.
    async_op, group
        As in ngd.all_reduce.

    Returns
    -------
    numpy.ndarray, `out`, or Work
        The block: the shape of `x`, with its size along `axis` divided by the number of ranks.

    Examples
    --------
    With two ranks, each gets one half. Here a single rank gets all of it.

    >>> ngd.reduce_scatter(np.arange(4), op="sum")
    array([0, 1, 2, 3])
    """
    if surplus or op is REQUIRED:
        expect_op("ngd.reduce_scatter", reduce_scatter, (x, *surplus), op)
    ranks = (world.current or world.init()) if group is None else world.chosen(group)
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
        Of one shape and dtype on all ranks. A scalar counts as an array of shape (1,).
    axis : int, default 0
        The axis along which to concatenate. Other axes than 0 cost copies.
    out : array, optional
        The array for the result. With axis 0, `x` may be this rank's block of it.
    async_op, group
        As in ngd.all_reduce.

    Returns
    -------
    numpy.ndarray, `out`, or Work
        The shape of `x`, with its size along `axis` multiplied by the number of ranks.

    Examples
    --------
    On rank r of n, `ngd.rank()` is r, so that this returns 0 to n - 1.

    >>> ngd.all_gather(ngd.rank())
    array([0])
    """
    ranks = (world.current or world.init()) if group is None else world.chosen(group)
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
        Of one dtype on all ranks, and of one shape after the first axis.
    counts : sequence of ints, optional
        The length of each rank's array, the same list on all ranks. By default the ranks exchange
        the lengths first, which costs one more collective.
    out, async_op, group
        As in ngd.all_gather.

    Returns
    -------
    numpy.ndarray, `out`, or Work
        The rows of all ranks, in the order of ranks.

    Examples
    --------
    >>> ngd.all_gather_v(np.array([[1, 2], [3, 4]])).shape
    (2, 2)
    """
    return world.chosen(group).all_gather_v(
        x, counts=counts, out=out, async_op=async_op, site=call_site()
    )


def broadcast(
    x: Any, root: int = 0, *, out: Any = None, async_op: bool = False, group: Group | None = None
) -> Any:
    """Copy the array of rank `root` to all ranks.

    Parameters
    ----------
    x : array_like or list of arrays
        Of the same shape and dtype on all ranks. On other ranks than the root, the values are not
        read.
    root : int, default 0
        The rank whose array is sent.
    out : array or list of arrays, optional
        The array for the result, which may be `x` itself.
    async_op, group
        As in ngd.all_reduce.

    Returns
    -------
    numpy.ndarray, `out`, or Work
        The shape and dtype of `x`.

    Examples
    --------
    >>> ngd.broadcast(np.array([3, 1, 2]), root=0)
    array([3, 1, 2])
    """
    ranks = (world.current or world.init()) if group is None else world.chosen(group)
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
        Of one shape and dtype on all ranks.
    root : int, default 0
        The rank that gets the result.
    op : str
        "sum", "mean", "min", "max" or "prod", as in ngd.all_reduce.
    out : array, optional
        The array for the result on the root, where it may be `x` itself.
    async_op, group
        As in ngd.all_reduce.

    Returns
    -------
    numpy.ndarray, `out`, None, or Work
        The shape and dtype of `x` on the root, and None on the other ranks.

    Examples
    --------
    >>> ngd.reduce(np.array([1.0, 2.0]), root=0, op="sum")
    array([1., 2.])
    """
    return world.chosen(group).reduce(x, root, op=op, out=out, async_op=async_op, site=call_site())


def gather(
    x: Any, root: int = 0, *, out: Any = None, async_op: bool = False, group: Group | None = None
) -> Any:
    """Concatenate the arrays of all ranks along axis 0; only rank `root` gets the result.

    Parameters
    ----------
    x : array_like
        Of one shape and dtype on all ranks. A scalar counts as an array of shape (1,).
    root : int, default 0
        The rank that gets the result.
    out : array, optional
        The array for the result on the root. `x` may be the root's block of it.
    async_op, group
        As in ngd.all_reduce.

    Returns
    -------
    numpy.ndarray, `out`, None, or Work
        The blocks in the order of ranks on the root, and None on the other ranks.

    Examples
    --------
    >>> ngd.gather(np.array([1.0, 2.0]), root=0)
    array([1., 2.])
    """
    return world.chosen(group).gather(x, root, out=out, async_op=async_op, site=call_site())


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
        On the root: an array whose first axis is a multiple of the number of ranks. On the other
        ranks: None, or an array of the same shape and dtype, whose values are not read.
    root : int, default 0
        The rank whose array is sent.
    out : array, optional
        The array for the block. On the root it may be the root's block of `x`.
    shape, dtype : tuple of ints and dtype, optional
        Those of a block, for a rank that gives neither `x` nor `out`.
    async_op, group
        As in ngd.all_reduce.

    Returns
    -------
    numpy.ndarray, `out`, or Work
        The block of this rank.

    Examples
    --------
    >>> ngd.scatter(np.arange(4), root=0)
    array([0, 1, 2, 3])
    """
    return world.chosen(group).scatter(
        x, root, out=out, shape=shape, dtype=dtype, async_op=async_op, site=call_site()
    )


def all_to_all(
    x: Any, *, out: Any = None, async_op: bool = False, group: Group | None = None
) -> Any:
    """Exchange blocks: the r-th block of `x` along axis 0 is sent to rank r.

    Parameters
    ----------
    x : array_like
        Of one shape and dtype on all ranks. The first axis is a multiple of the number of ranks.
    out : array, optional
        The array for the result: `x` itself, or one that does not overlap it.
    async_op, group
        As in ngd.all_reduce.

    Returns
    -------
    numpy.ndarray, `out`, or Work
        The shape of `x`. Its r-th block is from rank r.

    Examples
    --------
    >>> ngd.all_to_all(np.arange(4))
    array([0, 1, 2, 3])
    """
    ranks = (world.current or world.init()) if group is None else world.chosen(group)
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
    """Exchange blocks of different lengths along axis 0.

    Parameters
    ----------
    x : array_like
        The block for rank 0, then the block for rank 1, and so on. The dtype, and the shape after
        the first axis, are the same on all ranks.
    send_counts : sequence of ints
        The number of rows of each block.
    receive_counts : sequence of ints, optional
        The number of rows from each rank. By default the ranks exchange the numbers first, which
        costs one more collective.
    out, async_op, group
        As in ngd.all_to_all.

    Returns
    -------
    numpy.ndarray, `out`, or Work
        The received rows, in the order of ranks.

    Examples
    --------
    >>> ngd.all_to_all_v(np.arange(4), send_counts=[4])
    array([0, 1, 2, 3])
    """
    return world.chosen(group).all_to_all_v(
        x, send_counts, receive_counts, out=out, async_op=async_op, site=call_site()
    )


def barrier(*, async_op: bool = False, group: Group | None = None) -> Any:
    """Wait until every rank has called it.

    Parameters
    ----------
    group : Group, optional
        The ranks. The default is the world.
    async_op : bool, default False
        Return an ngd.Work at once.

    Returns
    -------
    None or Work
        A Work with async_op=True.

    Examples
    --------
    >>> ngd.barrier()
    """
    ranks = (world.current or world.init()) if group is None else world.chosen(group)
    quick_barrier = ranks.quick_barrier
    if not async_op and quick_barrier():
        return None
    return ranks.barrier(async_op=async_op, site=call_site())


def join(
    batches: Iterable[Batch], *, empty: Batch | None = None, group: Group | None = None
) -> Iterator[tuple[Batch, float]]:
    """Iterate over batches until every rank has run out of them.

    The iterator yields pairs (batch, weight). The weight is 1.0. A rank that has run out before the
    other ranks gets its last batch again, with weight 0.0, and takes part in their collectives
    without changing the result. Each batch costs an all-reduce of one byte.

    Parameters
    ----------
    batches : iterable
        The batches of this rank, any number of them.
    empty : batch, optional
        The batch that a rank without any batch repeats. Without it, such a rank raises ValueError.
    group : Group, optional
        The ranks. The default is the world.

    Yields
    ------
    tuple of batch and float
        The batch and its weight. For batches of different sizes use `weight * len(batch)`.

    Examples
    --------
    >>> for batch, weight in ngd.join([np.ones(2), np.zeros(2)]):
    ...     mean = ngd.all_reduce(batch, op="mean", weight=weight)
    """
    return uneven.join(batches, world.chosen(group), empty)


def build_info() -> dict[str, str | None]:
    """Return the version, build mode and libraries of this installation.

    Returns
    -------
    dict from str to str or None
        Version, build mode, oneDNN version, SIMD level in use and MPI libraries.

    Examples
    --------
    >>> ngd.build_info()["version"] == ngd.__version__
    True
    """
    return _core.build_info()
