# SPDX-License-Identifier: Apache-2.0
"""Horovod's collectives on NumPy arrays; the frameworks' modules bring theirs to these.

Horovod's ranks negotiate: a coordinator waits until all of them have called a collective of one
name. ngd's ranks call in one order. Over the world each call goes behind an announcement, a row of
numbers from every rank. So a rank that has joined (`join`) learns what the others call and takes
part; and ranks whose names or shapes differ are told.
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
from ..profiling.recording import clock, note
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

SMALL: Final = 1 << 16
"""Elements of an array that travels alone, where many are reduced."""

JOIN, ALL_REDUCE, OTHER, BARRIER = range(4)
"""What a rank announces."""
KIND, CALLS, OP, DTYPE, COUNT, NAME, SHAPE, FACTORS, COLUMNS = range(9)
"""The numbers of an announcement, and how many there are."""


class Handle:
    """A collective that has started; `poll` and `synchronize` take it, and a call waits for it."""

    def __init__(
        self, what: str, site: str, works: Sequence[Work | None], finish: Callable[[], Any]
    ) -> None:
        self.what, self.site, self.finish = what, site, finish
        self.works = [work for work in works if work is not None]
        self.begun = clock()
        self.result: Any = None
        self.error: Exception | None = None
        self.over = False

    def __repr__(self) -> str:
        return f"<Handle of {self.what}: {'done' if self.over else 'on its way'}>"

    def __call__(self) -> Any:
        """Wait, and return the result."""
        return self.wait()

    def then(self, convert: Callable[[Any], Any]) -> Handle:
        """Convert the result, once the collective has finished; return this handle."""
        finish = self.finish
        self.finish = lambda: convert(finish())
        return self

    def poll(self) -> bool:
        """Whether `wait` would return, or raise, at once; the result is in its place then."""
        if not self.over and all(work.done() for work in self.works):
            self.complete()
        return self.over

    def wait(self) -> Any:
        """The result."""
        if not self.over:
            self.complete()
        if self.error is not None:
            raise self.error
        return self.result

    def complete(self) -> None:
        """Wait, and keep what comes of it; while another thread is in the group, nothing does."""
        try:
            with as_horovod():
                for work in self.works:
                    work.wait()
            self.result = self.finish()
            note(f"hvd.{self.what}", self.site, self.begun)
        except BusyError:
            raise
        except Exception as error:
            self.error = error
        self.over = True


@contextmanager
def as_horovod() -> Iterator[None]:
    """What goes wrong between ranks is Horovod's error."""
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
    """Tell the world what this rank is about to call; other sets do not join."""
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


def expect_one_call(announced: Work | None, what: str, name: str | None, shape: Shape) -> None:
    """Raise where ranks that have not joined give another name, shape, op or factor; on all."""
    if announced is None:
        return
    rows = announced.wait()
    rows = rows[rows[:, KIND] != JOIN]
    words = ((NAME, "name"), (SHAPE, "shape"), (OP, "op"), (FACTORS, "pair of scale factors"))
    for column, word in words:
        if (rows[:, column] != rows[0, column]).any():
            raise HorovodInternalError(
                f"hvd.{what}: expected one {word} on all ranks; got {name!r} of shape {shape} on "
                f"rank {global_process_set.rank()}, and another on other ranks. Call it with the "
                "same arguments on all ranks."
            )


def expect_op(op: Any, where: str) -> int:
    """One of Horovod's reductions."""
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
    """Reduce over the ranks; `out`, of the source's dtype and shape, may be its memory."""
    what, site, group = "allreduce", call_site(), member(process_set, "allreduce")
    op = expect_op(op_of(op, average), what)
    if source.dtype == np.bool_ and op not in (Min, Max):
        raise DTypeError(
            f"hvd.allreduce: op: expected Min or Max for bools; got {OPS[op]}. Cast the tensor."
        )
    factors = prescale_factor, postscale_factor
    if prescale_factor != 1.0:
        source = multiplied(source, prescale_factor, out)
    if op == Adasum:
        return adasum(source, out, name, process_set, site, factors)
    reduction, divisor = reduction_of(op, source.dtype, group.size)
    with as_horovod():
        announced = announce(ALL_REDUCE, name, source, op, process_set, site, factors)
        work = group.all_reduce(
            source.reshape(-1), op=reduction, out=out.reshape(-1), async_op=True, site=site
        )

    def finish() -> Array:
        expect_one_call(announced, what, name, source.shape)
        return scaled(out, divisor, postscale_factor)

    return Handle(what, site, [announced, work], finish)


def all_reduce_many(
    sources: Sequence[Array],
    outs: Sequence[Array],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    *factors_and_set: Any,
    **keywords: Any,
) -> Handle:
    """Reduce arrays, which may be their own destinations; small ones of a dtype travel together.

    The other arguments are those of `all_reduce`.
    """
    op = op_of(op, average)
    rest = None, name, op, *factors_and_set
    small: dict[DType, list[int]] = {}
    handles, packs = [], []
    for i, (source, out) in enumerate(zip(sources, outs, strict=True)):
        if source.size < SMALL and op != Adasum:
            small.setdefault(source.dtype, []).append(i)
        else:
            handles.append(all_reduce(source, out, *rest, **keywords))
    for places in small.values():
        flat = np.concatenate([sources[i].reshape(-1) for i in places])
        packs.append((places, flat))
        handles.append(all_reduce(flat, flat, *rest, **keywords))

    def unpack(_: list[Array]) -> list[Array]:
        for places, flat in packs:
            at = 0
            for i in places:
                outs[i][...] = flat[at : at + outs[i].size].reshape(outs[i].shape)
                at += outs[i].size
        return list(outs)

    return handle_of_all("grouped_allreduce", handles).then(unpack)


def handle_of_all(what: str, handles: Sequence[Handle]) -> Handle:
    """Return one handle for many, whose result is the list of their results."""
    works = [work for each in handles for work in each.works]
    return Handle(what, call_site(), works, lambda: [each.wait() for each in handles])


def member(ranks: ProcessSet, where: str) -> Group:
    """The group of a set that this rank belongs to."""
    if not ranks.included():
        raise ValueError(
            f"hvd.{where}: process_set: expected one that has rank {global_process_set.rank()}, "
            f"which is this one; got {ranks!r}"
        )
    return ranks.group


def reduction_of(op: int, dtype: DType, size: int) -> tuple[str, int]:
    """The engine's reduction, and what its result is to be divided by: integers have no mean."""
    if op == Average and not is_float(dtype):
        return "sum", size
    return OPS[op], 1


def scaled(out: Array, divisor: int, factor: float) -> Array:
    """The result of a reduction, divided (towards zero) and scaled in its place."""
    if divisor != 1:
        quotient = out // out.dtype.type(divisor)  # towards minus infinity
        quotient += ((out < 0) & (quotient * out.dtype.type(divisor) != out)).astype(out.dtype)
        out[...] = quotient
    return multiplied(out, factor, out) if factor != 1.0 else out


def multiplied(x: Array, factor: float, out: Array) -> Array:
    """The array times a number; floats of two bytes are multiplied in float32."""
    wide = x.astype(np.float32) if x.dtype in (float16, bfloat16) else x
    out[...] = np.multiply(wide, factor).astype(out.dtype)
    return out


def adasum(
    source: Array,
    out: Array,
    name: str | None,
    ranks: ProcessSet,
    site: str,
    factors: tuple[float, float],
) -> Handle:
    """Combine the ranks' gradients so that what they agree in counts once.

    S. Maleki et al. 2020, Scaling Distributed Training with Adaptive Summation (arXiv:2006.02924),
    equation 3, by pairs of neighbours in a binary tree. Every rank gathers all arrays.
    """
    group = ranks.group
    if group.size & (group.size - 1):
        raise NotImplementedError(
            f"hvd.allreduce: op=Adasum: expected a power of two of ranks; got {group.size}"
        )
    if not is_float(source.dtype):
        raise DTypeError(f"hvd.allreduce: op=Adasum: expected floats; got {source.dtype}")
    with as_horovod():
        announced = announce(OTHER, name, source, Adasum, ranks, site, factors)
        work = group.all_gather(source.reshape(1, -1), async_op=True, site=site)

    def finish() -> Array:
        expect_one_call(announced, "allreduce", name, source.shape)
        rows = [row.astype(np.float64) for row in work.wait()]
        while len(rows) > 1:
            rows = [adasum_of(a, b) for a, b in zip(rows[::2], rows[1::2], strict=True)]
        out[...] = rows[0].reshape(out.shape)
        return scaled(out, 1, factors[1])

    return Handle("allreduce", site, [announced, work], finish)


def adasum_of(a: Array, b: Array) -> Array:
    """Of two."""
    dot, of_a, of_b = a @ b, a @ a, b @ b
    left = 1 - dot / (2 * of_a) if of_a else 1.0
    right = 1 - dot / (2 * of_b) if of_b else 1.0
    return np.asarray(left * a + right * b)


def all_gather(
    source: Array, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Join the ranks' arrays along the first axis, where their lengths may differ.

    The lengths are exchanged before it returns.
    """
    what, site, group = "allgather", call_site(), member(process_set, "allgather")
    source = np.atleast_1d(source)
    with as_horovod():
        announced = announce(OTHER, name, source[:0], Sum, process_set, site)
        work = group.all_gather_v(source, async_op=True, site=site)

    def finish() -> Any:
        expect_one_call(announced, what, name, source.shape)
        return work.wait()

    return Handle(what, site, [announced, work], finish)


def broadcast(
    source: Array,
    out: Array,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Give every rank the array of a rank of the world; `out` may be the source's memory."""
    what, site, group = "broadcast", call_site(), member(process_set, "broadcast")
    root = process_set.root(root_rank, "hvd.broadcast")
    with as_horovod():
        announced = announce(OTHER, name, source, Sum, process_set, site)
        work = group.broadcast(source, root, out=out, async_op=True, site=site)

    def finish() -> Array:
        expect_one_call(announced, what, name, source.shape)
        return out

    return Handle(what, site, [announced, work], finish)


def all_to_all(
    source: Array,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Send rows to every rank, so many to each, and receive theirs; and how many came from each.

    The numbers are exchanged before it returns.
    """
    what, site, group = "alltoall", call_site(), member(process_set, "alltoall")
    source = np.atleast_1d(source)
    if splits is None:
        splits = [block_rows(source.shape, group.size, f"hvd.{what}")] * group.size
    sent = check_row_counts(np.asarray(splits).tolist(), group.size, f"hvd.{what}", "splits")
    check_sum_of_rows(sent, len(source), f"hvd.{what}", "splits")
    with as_horovod(), group.under_way():
        announced = announce(OTHER, name, source[:0], Sum, process_set, site)
        received = group.all_to_all(sent, site=site)
        work = group.all_to_all_v(
            source, sent.tolist(), received.tolist(), async_op=True, site=site
        )

    def finish() -> Any:
        expect_one_call(announced, what, name, source.shape)
        return work.wait(), received

    return Handle(what, site, [announced, work], finish)


def shares(rows: int, size: int) -> list[int]:
    """How many rows of a reduce-scatter each rank gets: the first ones have one more."""
    return [rows // size + (rank < rows % size) for rank in range(size)]


def reduce_scatter(
    source: Array,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """Reduce over the ranks, and give each its share of the rows."""
    what, site, group = "reducescatter", call_site(), member(process_set, "reducescatter")
    if op not in (Average, Sum):
        raise ValueError(f"hvd.reducescatter: op: expected Average or Sum; got {op!r}")
    normal_axis(0, source.shape, f"hvd.{what}")
    factors = prescale_factor, postscale_factor
    if prescale_factor != 1.0:
        source = multiplied(source, prescale_factor, np.empty_like(source))
    reduction, divisor = reduction_of(op, source.dtype, group.size)
    counts = shares(len(source), group.size)
    begin = sum(counts[: group.rank])
    mine = slice(begin, begin + counts[group.rank])
    even = len(source) % group.size == 0
    with as_horovod():
        announced = announce(OTHER, name, source, op, process_set, site, factors)
        how: dict[str, Any] = {"op": reduction, "async_op": True, "site": site}
        work = group.reduce_scatter(source, **how) if even else group.all_reduce(source, **how)

    def finish() -> Array:
        expect_one_call(announced, what, name, source.shape)
        result = work.wait()
        return scaled(result if even else result[mine].copy(), divisor, postscale_factor)

    return Handle(what, site, [announced, work], finish)


class Collective(NamedTuple):
    """A row of the table of Horovod's collectives."""

    start: Callable[..., Handle]
    """The function that starts it on arrays. Its arguments have Horovod's names and order."""
    fills: bool = False
    """True if the result has the operand's shape; then `start` takes the memory to fill as well."""
    takes_list: bool = False
    """True if the operand is a list."""


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
    """Return when every rank of the set has come."""
    site, group = call_site(), member(process_set, "barrier")
    nothing = np.zeros(0, np.uint8)
    with as_horovod():
        announced = announce(BARRIER, None, nothing, Sum, process_set, site)
        group.barrier(site=site)
        if announced is not None:
            announced.wait()


def join(device: int = -1) -> int:
    """Wait until every rank of the world has called this; it answers what the others call.

    For data of which some ranks have less: to an allreduce a rank that has joined contributes
    zeros (to Min, Max and Product, what changes nothing). Average divides by the size of the world.

    Returns
    -------
    int
        The rank that joined last.

    Raises
    ------
    HorovodInternalError
        A rank that has not joined calls something else than allreduce and barrier.
    """
    group, site = global_process_set.group, call_site()
    mine = np.zeros((1, COLUMNS), np.int64)
    mine[0, CALLS] = global_process_set.calls
    while group.size > 1:
        with as_horovod():
            rows = group.all_gather(mine, site=site)
            going_on = np.flatnonzero(rows[:, KIND] != JOIN)
            if not going_on.size:
                most = int(rows[:, CALLS].max())
                global_process_set.calls = most  # of all ranks, from here on
                return int(np.flatnonzero(rows[:, CALLS] == most)[-1])
            take_part(group, rows[going_on[0]], int(going_on[0]), site)
    return 0


def take_part(group: Group, row: Array, caller: int, site: str) -> None:
    """Answer a call of those that have not joined."""
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
    mine = np.full(row[COUNT], neutral(op, dtype), dtype)
    group.all_reduce(mine, op=reduction, out=mine, site=site)


def neutral(op: int, dtype: DType) -> Any:
    """What changes nothing in a reduction."""
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
    """Whether `synchronize` would return at once."""
    return bool(handle.poll())


def synchronize(handle: Any) -> Any:
    """Wait for a handle, and return its result."""
    return handle.wait()


def expect_average(where: str, predivide: float, op: int) -> None:
    """Check that a factor to divide by before the sum comes with Average."""
    if predivide != 1.0 and op != Average:
        raise ValueError(
            f"hvd.{where}: gradient_predivide_factor: expected op=Average with it; got another op. "
            "Remove one."
        )


def op_of(op: int | None, average: bool | None) -> int:
    """The reduction that a caller asks for, by the old argument or the new."""
    if average is not None and op is not None:
        raise ValueError("hvd.allreduce: expected op or average; got both. Remove average.")
    if average is not None:
        return Average if average else Sum
    return Average if op is None else op
