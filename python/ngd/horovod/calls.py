# SPDX-License-Identifier: Apache-2.0
"""Horovod's collectives on NumPy arrays. `adapter.Adapter` runs them on a framework's tensors.

In Horovod, a coordinator matches the collectives of the ranks by their names. In ngd, all ranks
call the same collectives in the same order. Before each collective on the world, the ranks
all-gather an announcement: each rank sends a row of numbers that describes its call (see KIND). The
announcements have two uses:

- A rank that has joined (`join`) learns which collective the other ranks call, and takes part.
- All ranks raise HorovodInternalError if their names, shapes, ops or scale factors differ.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import numpy as np

from .._util.callsite import call_site
from ..comm import Group, Work
from ..comm.checks import block_rows, check_row_counts, check_sum_of_rows, normal_axis
from ..dtypes import ALL, Array, DType, Shape, bfloat16, float16, is_float
from ..errors import BusyError, CollectiveError, DTypeError
from ..profiling.recording import add_bridge_call, clock
from .world import HorovodInternalError, ProcessSet, global_process_set

Average: Final = 0
Sum: Final = 1
Adasum: Final = 2
Min: Final = 3
Max: Final = 4
Product: Final = 5
OPS: Final = {
    Average: "mean",
    Sum: "sum",
    Adasum: "adasum",
    Min: "min",
    Max: "max",
    Product: "prod",
}

SEPARATE_SIZE: Final = 1 << 16
"""`grouped_allreduce` reduces an array with at least this number of elements separately."""

JOIN, ALL_REDUCE, OTHER, BARRIER = range(4)
"""The kinds of calls. OTHER is any collective in which a joined rank cannot take part."""
KIND, CALLS, OP, DTYPE, SIZE, NAME, SHAPE, FACTORS, COLUMNS = range(9)
"""Columns of the row that announces a call: kind, number of calls that the rank has announced, op,
index in `dtypes.ALL`, number of elements, CRC-32s of name, shape and factors; the column count."""


class Handle:
    """The handle of a pending collective.

    Pass the handle to `poll` or `synchronize`, or call the handle to wait for the result.
    """

    def __init__(
        self, call: str, site: str, works: Sequence[Work | None], finish: Callable[[], Any]
    ) -> None:
        self.call, self.site, self.finish = call, site, finish
        self.works = [work for work in works if work is not None]
        self.start_time = clock()
        self.result: Any = None
        self.error: Exception | None = None
        self.is_done = False

    def __repr__(self) -> str:
        return f"<Handle of {self.call}: {'done' if self.is_done else 'pending'}>"

    def __call__(self) -> Any:
        """Wait for the collective and return its result."""
        return self.wait()

    def then(self, convert: Callable[[Any], Any]) -> Handle:
        """Convert the result by `convert` when the collective completes; return this handle."""
        finish = self.finish
        self.finish = lambda: convert(finish())
        return self

    def poll(self) -> bool:
        """Return True if the collective is over, so that `wait` returns or raises immediately."""
        if not self.is_done and all(work.done() for work in self.works):
            self.complete()
        return self.is_done

    def wait(self) -> Any:
        """Wait for the collective and return its result, or raise its error."""
        if not self.is_done:
            self.complete()
        if self.error is not None:
            raise self.error
        return self.result

    def complete(self) -> None:
        """Wait for the collective and store its result or its error.

        If another thread is using the collective's group, raise BusyError and stay pending.
        """
        try:
            with as_horovod():
                for work in self.works:
                    work.wait()
            self.result = self.finish()
            add_bridge_call(f"hvd.{self.call}", self.site, self.start_time)
        except BusyError:
            raise
        except Exception as error:
            self.error = error
        self.is_done = True


@contextmanager
def as_horovod() -> Iterator[None]:
    """Return a context that converts a CollectiveError raised in it to HorovodInternalError."""
    try:
        yield
    except CollectiveError as error:
        raise HorovodInternalError(str(error)) from error


def announce(
    kind: int,
    name: str | None,
    array: Array,
    op: int,
    ranks: ProcessSet,
    site: str,
    factors: tuple[float, float] = (1.0, 1.0),
) -> Any:
    """Start the all-gather that announces a call to all ranks of the world; return its handle.

    Start nothing and return None if `ranks` is not the world, or if the world has only one rank.
    """
    if ranks is not global_process_set or ranks.size() == 1:
        return None
    global_process_set.calls += 1
    row = np.zeros((1, COLUMNS), np.int64)
    row[0] = (
        kind,
        global_process_set.calls,
        op,
        ALL.index(array.dtype),
        array.size,
        zlib.crc32((name or "").encode()),
        zlib.crc32(repr(array.shape).encode()),
        zlib.crc32(repr(factors).encode()),
    )
    return ranks.group.all_gather(row, async_op=True, site=site)


def expect_one_call(announcement: Work | None, call: str, name: str | None, shape: Shape) -> None:
    """Raise HorovodInternalError if the ranks' names, shapes, ops or scale factors differ."""
    if announcement is None:
        return
    rows = announcement.wait()
    rows = rows[rows[:, KIND] != JOIN]
    words = ((NAME, "name"), (SHAPE, "shape"), (OP, "op"), (FACTORS, "pair of scale factors"))
    for column, word in words:
        if (rows[:, column] != rows[0, column]).any():
            raise HorovodInternalError(
                f"hvd.{call}: expected one {word} on all ranks; got {name!r} of shape {shape} on "
                f"rank {global_process_set.rank()}, and another on other ranks. Call it with the "
                "same arguments on all ranks."
            )


def expect_op(op: Any, where: str) -> int:
    """Return `op` if it is one of Horovod's reductions; raise ValueError if it is not."""
    if op not in OPS:
        names = ", ".join(("Average", "Sum", "Adasum", "Min", "Max", "Product"))
        raise ValueError(f"hvd.{where}: op: expected one of {names}; got {op!r}")
    return int(op)


def all_reduce(
    source: Array,
    out: Array,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start to reduce an array over the ranks.

    The result is written to `out`, which has the shape and dtype of `source`, and may be `source`.
    """
    call, site, group = "allreduce", call_site(), group_of(process_set, "allreduce")
    op = expect_op(op_of(op, average), call)
    if source.dtype == np.bool_ and op not in (Min, Max):
        raise DTypeError(
            f"hvd.allreduce: op: expected Min or Max for bools; got {OPS[op]}. Cast the tensor."
        )
    factors = prescale_factor, postscale_factor
    if prescale_factor != 1.0:
        source = multiply_into(source, prescale_factor, out)
    if op == Adasum:
        return adasum(source, out, name, process_set, site, factors)
    reduction, divisor = reduction_of(op, source.dtype, group.size)
    with as_horovod():
        announcement = announce(ALL_REDUCE, name, source, op, process_set, site, factors)
        work = group.all_reduce(
            source.reshape(-1), op=reduction, out=out.reshape(-1), async_op=True, site=site
        )

    def finish() -> Array:
        expect_one_call(announcement, call, name, source.shape)
        return divide_and_scale(out, divisor, postscale_factor)

    return Handle(call, site, [announcement, work], finish)


def all_reduce_many(
    sources: Sequence[Array],
    outs: Sequence[Array],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    *factors_and_set: Any,
    **keywords: Any,
) -> Handle:
    """Start to reduce each `sources[i]` over the ranks into `outs[i]`, and return one handle.

    `outs[i]` may be `sources[i]`. Arrays with less than SEPARATE_SIZE elements share one all-reduce
    per dtype, except with Adasum. The other arguments are those of `all_reduce`.
    """
    op = op_of(op, average)
    rest = None, name, op, *factors_and_set
    small: dict[DType, list[int]] = {}
    handles, packs = [], []
    for i, (source, out) in enumerate(zip(sources, outs, strict=True)):
        if source.size < SEPARATE_SIZE and op != Adasum:
            small.setdefault(source.dtype, []).append(i)
        else:
            handles.append(all_reduce(source, out, *rest, **keywords))
    for indices in small.values():
        flat = np.concatenate([sources[i].reshape(-1) for i in indices])
        packs.append((indices, flat))
        handles.append(all_reduce(flat, flat, *rest, **keywords))

    def unpack(_: list[Array]) -> list[Array]:
        for indices, flat in packs:
            offset = 0
            for i in indices:
                outs[i][...] = flat[offset : offset + outs[i].size].reshape(outs[i].shape)
                offset += outs[i].size
        return list(outs)

    return handle_of_all("grouped_allreduce", handles).then(unpack)


def handle_of_all(call: str, handles: Sequence[Handle]) -> Handle:
    """Return one handle for several handles. Its result is the list of the handles' results."""
    works = [work for each in handles for work in each.works]
    return Handle(call, call_site(), works, lambda: [each.wait() for each in handles])


def group_of(ranks: ProcessSet, where: str) -> Group:
    """Return the group of a process set; raise ValueError if this rank does not belong to it."""
    if not ranks.included():
        raise ValueError(
            f"hvd.{where}: process_set: expected one that includes this rank, "
            f"{global_process_set.rank()}; got {ranks!r}"
        )
    return ranks.group


def reduction_of(op: int, dtype: DType, size: int) -> tuple[str, int]:
    """Return ngd's op for a reduction, and the integer by which the caller divides the result.

    ngd has no mean of integers, so their Average gives ("sum", `size`). Otherwise the integer is 1.
    """
    if op == Average and not is_float(dtype):
        return "sum", size
    return OPS[op], 1


def divide_and_scale(out: Array, divisor: int, factor: float) -> Array:
    """Divide `out` by an integer, rounding towards zero, and multiply it by `factor`, in place."""
    if divisor != 1:
        quotient = out // out.dtype.type(divisor)  # rounds down; the next line adds 1 if it must
        quotient += ((out < 0) & (quotient * out.dtype.type(divisor) != out)).astype(out.dtype)
        out[...] = quotient
    return multiply_into(out, factor, out) if factor != 1.0 else out


def multiply_into(x: Array, factor: float, out: Array) -> Array:
    """Write `x * factor` to `out` and return it. 16-bit floats are multiplied in float32."""
    widened = x.astype(np.float32) if x.dtype in (float16, bfloat16) else x
    out[...] = np.multiply(widened, factor).astype(out.dtype)
    return out


def adasum(
    source: Array,
    out: Array,
    name: str | None,
    ranks: ProcessSet,
    site: str,
    factors: tuple[float, float],
) -> Handle:
    """Start an Adasum reduction, which averages parallel gradients and adds orthogonal gradients.

    For gradients a and b the result is `(1 - a.b / (2 a.a)) a + (1 - a.b / (2 b.b)) b`. More than
    two are combined in a binary tree, by pairs of neighbouring ranks. Every rank gathers all arrays
    and computes the result in float64.

    S. Maleki et al. 2020, Scaling Distributed Training with Adaptive Summation (arXiv:2006.02924),
    equation 3.
    """
    group = ranks.group
    if group.size & (group.size - 1):
        raise NotImplementedError(
            f"hvd.allreduce: op=Adasum: expected a power of two of ranks; got {group.size}"
        )
    if not is_float(source.dtype):
        raise DTypeError(f"hvd.allreduce: op=Adasum: expected floats; got {source.dtype}")
    with as_horovod():
        announcement = announce(OTHER, name, source, Adasum, ranks, site, factors)
        work = group.all_gather(source.reshape(1, -1), async_op=True, site=site)

    def finish() -> Array:
        expect_one_call(announcement, "allreduce", name, source.shape)
        rows = [row.astype(np.float64) for row in work.wait()]
        while len(rows) > 1:
            rows = [adasum_of(a, b) for a, b in zip(rows[::2], rows[1::2], strict=True)]
        out[...] = rows[0].reshape(out.shape)
        return divide_and_scale(out, 1, factors[1])

    return Handle("allreduce", site, [announcement, work], finish)


def adasum_of(a: Array, b: Array) -> Array:
    """Return the Adasum of two vectors; see `adasum`."""
    dot, squared_a, squared_b = a @ b, a @ a, b @ b
    scale_a = 1 - dot / (2 * squared_a) if squared_a else 1.0
    scale_b = 1 - dot / (2 * squared_b) if squared_b else 1.0
    return np.asarray(scale_a * a + scale_b * b)


def all_gather(
    source: Array, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Start to concatenate the ranks' arrays along axis 0, after an exchange of their lengths."""
    call, site, group = "allgather", call_site(), group_of(process_set, "allgather")
    source = np.atleast_1d(source)
    with as_horovod():
        announcement = announce(OTHER, name, source[:0], Sum, process_set, site)
        work = group.all_gather_v(source, async_op=True, site=site)

    def finish() -> Any:
        expect_one_call(announcement, call, name, source.shape)
        return work.wait()

    return Handle(call, site, [announcement, work], finish)


def broadcast(
    source: Array,
    out: Array,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start to copy `source` of one rank to `out` on all ranks of the process set.

    `root_rank` is the number of that rank in the world. `out` may be `source` itself.
    """
    call, site, group = "broadcast", call_site(), group_of(process_set, "broadcast")
    root = process_set.root(root_rank, "hvd.broadcast")
    with as_horovod():
        announcement = announce(OTHER, name, source, Sum, process_set, site)
        work = group.broadcast(source, root, out=out, async_op=True, site=site)

    def finish() -> Array:
        expect_one_call(announcement, call, name, source.shape)
        return out

    return Handle(call, site, [announcement, work], finish)


def all_to_all(
    source: Array,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start to send `splits[r]` rows to each rank r. The result is (received rows, `counts`).

    `counts[r]` is the number of rows from rank r. The counts are exchanged before this returns.
    """
    call, site, group = "alltoall", call_site(), group_of(process_set, "alltoall")
    source = np.atleast_1d(source)
    if splits is None:
        splits = [block_rows(source.shape, group.size, f"hvd.{call}")] * group.size
    send_counts = check_row_counts(np.asarray(splits).tolist(), group.size, f"hvd.{call}", "splits")
    check_sum_of_rows(send_counts, len(source), f"hvd.{call}", "splits")
    with as_horovod(), group.collectives_scope():
        announcement = announce(OTHER, name, source[:0], Sum, process_set, site)
        receive_counts = group.all_to_all(send_counts, site=site)
        work = group.all_to_all_v(
            source, send_counts.tolist(), receive_counts.tolist(), async_op=True, site=site
        )

    def finish() -> Any:
        expect_one_call(announcement, call, name, source.shape)
        return work.wait(), receive_counts

    return Handle(call, site, [announcement, work], finish)


def rows_per_rank(rows: int, size: int) -> list[int]:
    """Return the number of rows of each rank; the first `rows % size` ranks have one row more."""
    return [rows // size + (rank < rows % size) for rank in range(size)]


def reduce_scatter(
    source: Array,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """Start to reduce an array over the ranks; each rank gets its shard of the rows."""
    call, site, group = "reducescatter", call_site(), group_of(process_set, "reducescatter")
    if op not in (Average, Sum):
        raise ValueError(f"hvd.reducescatter: op: expected Average or Sum; got {op!r}")
    normal_axis(0, source.shape, f"hvd.{call}")
    factors = prescale_factor, postscale_factor
    if prescale_factor != 1.0:
        source = multiply_into(source, prescale_factor, np.empty_like(source))
    reduction, divisor = reduction_of(op, source.dtype, group.size)
    counts = rows_per_rank(len(source), group.size)
    begin = sum(counts[: group.rank])
    mine = slice(begin, begin + counts[group.rank])
    is_even = len(source) % group.size == 0
    with as_horovod():
        announcement = announce(OTHER, name, source, op, process_set, site, factors)
        how: dict[str, Any] = {"op": reduction, "async_op": True, "site": site}
        work = group.reduce_scatter(source, **how) if is_even else group.all_reduce(source, **how)

    def finish() -> Array:
        expect_one_call(announcement, call, name, source.shape)
        result = work.wait()
        return divide_and_scale(
            result if is_even else result[mine].copy(), divisor, postscale_factor
        )

    return Handle(call, site, [announcement, work], finish)


class Collective(NamedTuple):
    """A row of COLLECTIVES: the function that starts a collective, and which arguments it takes."""

    start: Callable[..., Handle]
    """The function that starts the collective. It takes arrays, then Horovod's other arguments."""
    fills: bool = False
    """True: the call is `start(source, out, ...)` and fills `out`. False: `start(source, ...)`."""
    takes_list: bool = False
    """True if the operand is a list of arrays."""


COLLECTIVES: Final = {
    "allreduce": Collective(all_reduce, fills=True),
    "grouped_allreduce": Collective(all_reduce_many, fills=True, takes_list=True),
    "allgather": Collective(all_gather),
    "broadcast": Collective(broadcast, fills=True),
    "alltoall": Collective(all_to_all),
    "reducescatter": Collective(reduce_scatter),
}
"""Horovod's collectives, by Horovod's names. `adapter.Adapter` runs them on tensors."""


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until every rank of the process set has called this function.

    Corresponds to `horovod.torch.barrier`.

    Parameters
    ----------
    process_set : ProcessSet
        The ranks; by default the world.
    """
    site, group = call_site(), group_of(process_set, "barrier")
    empty = np.zeros(0, np.uint8)
    with as_horovod():
        announcement = announce(BARRIER, None, empty, Sum, process_set, site)
        group.barrier(site=site)
        if announcement is not None:
            announcement.wait()


def join(device: int = -1) -> int:
    """Wait until every rank of the world has called this function.

    Use it if some ranks have fewer batches. Until the last rank joins, the joined ranks take part
    in the all-reduces and barriers of the other ranks. They give zeros for Sum and Average, and the
    neutral element for Min, Max and Product. Average still divides by the size of the world.

    Corresponds to `horovod.torch.join`.

    Parameters
    ----------
    device : int
        Ignored.

    Returns
    -------
    int
        The rank that joined last.

    Raises
    ------
    HorovodInternalError
        Another rank called allreduce with op=Adasum, or a call other than allreduce and barrier.
    """
    group, site = global_process_set.group, call_site()
    mine = np.zeros((1, COLUMNS), np.int64)
    mine[0, CALLS] = global_process_set.calls
    while group.size > 1:
        with as_horovod():
            rows = group.all_gather(mine, site=site)
            active_ranks = np.flatnonzero(rows[:, KIND] != JOIN)
            if not active_ranks.size:
                most_calls = int(rows[:, CALLS].max())
                # All ranks continue with this count, so that the next join can compare counts.
                global_process_set.calls = most_calls
                return int(np.flatnonzero(rows[:, CALLS] == most_calls)[-1])
            answer_call(group, rows[active_ranks[0]], int(active_ranks[0]), site)
    return 0


def answer_call(group: Group, row: Array, caller: int, site: str) -> None:
    """Run the call that rank `caller` announced by `row`; raise if `join` does not support it."""
    if row[KIND] == BARRIER:
        group.barrier(site=site)
        return
    if row[KIND] != ALL_REDUCE:
        raise HorovodInternalError(
            "hvd.join: expected only hvd.allreduce or hvd.barrier after a rank has joined; got "
            f"another call of rank {caller}, while rank {global_process_set.rank()} has joined. "
            "Make the other calls before hvd.join()."
        )
    dtype, op = ALL[row[DTYPE]], int(row[OP])
    reduction, _ = reduction_of(op, dtype, group.size)
    mine = np.full(row[SIZE], neutral_element(op, dtype), dtype)
    group.all_reduce(mine, op=reduction, out=mine, site=site)


def neutral_element(op: int, dtype: DType) -> Any:
    """Return the value that a rank waiting in `join` contributes to a reduction: 0 for Sum, ..."""
    if op == Product:
        return 1
    if op not in (Min, Max):
        return 0
    if is_float(dtype):
        return np.inf if op == Min else -np.inf
    if dtype == np.bool_:
        return op == Min
    return np.iinfo(dtype).max if op == Min else np.iinfo(dtype).min


def poll(handle: Any) -> bool:
    """Return True if the collective is over, so that `synchronize` returns or raises immediately.

    Corresponds to `horovod.torch.poll`.
    """
    return bool(handle.poll())


def synchronize(handle: Any) -> Any:
    """Wait for a pending collective and return its result.

    Corresponds to `horovod.torch.synchronize`.
    """
    return handle.wait()


def expect_average(where: str, predivide: float, op: int) -> None:
    """Raise ValueError if `gradient_predivide_factor` is used with an op other than Average."""
    if predivide != 1.0 and op != Average:
        raise ValueError(
            f"hvd.{where}: gradient_predivide_factor: expected op=Average with it; got another op. "
            "Remove one."
        )


def op_of(op: int | None, average: bool | None) -> int:
    """Return the reduction for the arguments `op` and `average` (Horovod's old form of `op`)."""
    if average is not None and op is not None:
        raise ValueError("hvd.allreduce: expected op or average; got both. Remove average.")
    if average is not None:
        return Average if average else Sum
    return Average if op is None else op
