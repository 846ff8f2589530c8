# SPDX-License-Identifier: Apache-2.0
"""paddle.distributed's collectives on tensors.

`src`, `dst` and peers are ranks of the world, also where a group is given. A tensor is filled in
place, in its own memory where it is contiguous. With `sync_op=False` a call returns when it has
begun; its tensors belong to it until `wait()` of its task. A group that this rank is no member of
makes a warning, and the call does nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import paddle
from paddle.distributed import ReduceOp

from .._util.callsite import call_site
from ..comm import Work
from ..comm.checks import block_rows, check_row_counts, check_sum_of_rows
from ..comm.kinds import KINDS
from ..dtypes import Array
from ..errors import CollectiveError, NotMemberError
from .memory import (
    Finish,
    Tensor,
    blocks,
    elements,
    expect_size,
    joined,
    nothing,
    place,
    place_of_all,
    reduction,
)
from .world import Group, chosen, is_outside


class Task:
    """A collective that has begun."""

    def __init__(self, work: Work, tensors: Sequence[Tensor], finish: Finish) -> None:
        self.work, self.tensors, self.finish = work, tensors, finish
        self.over = False

    def wait(self, timeout: float | None = None) -> bool:
        """Return True when it is over, and its tensors are filled.

        Parameters
        ----------
        timeout
            Seconds, after which False comes back and it goes on; by default NGD_TIMEOUT, after
            which it has failed.
        """
        if self.over:
            return True
        try:
            self.work.wait(timeout)
        except TimeoutError:
            if self.work.exception() is not None:
                raise
            return False
        self.finish()
        self.over = True
        return True

    synchronize = wait

    def is_completed(self) -> bool:
        """Whether `wait` would return, or raise, at once."""
        return self.over or self.work.done()

    def is_sync(self) -> bool:
        """Whether nothing is left to wait for."""
        return self.over


_under_way: Final[list[Task]] = []
"""Tasks that nobody has waited for; `wait(tensor)` finds them here."""


def started(work: Work, tensors: Sequence[Tensor], finish: Finish, sync_op: bool) -> Task:
    """The task of a work, which is over where the caller waits."""
    task = Task(work, tensors, finish)
    if sync_op:
        task.wait()
        return task
    _under_way[:] = [each for each in _under_way if not is_settled(each)]
    _under_way.append(task)
    return task


def is_settled(task: Task) -> bool:
    """Whether a task is over; one that has failed is, and the group is closed."""
    with contextlib.suppress(CollectiveError):
        return task.over or (task.work.done() and task.wait())
    return True


def wait(tensor: Tensor, group: Group | None = None, use_calc_stream: bool = True) -> None:
    """Wait for the tasks that a tensor belongs to; there are no streams."""
    for task in [t for t in _under_way if any(each is tensor for each in t.tensors)]:
        _under_way.remove(task)
        task.wait()


class Staged(NamedTuple):
    """The operand of a collective, and the memory for its result."""

    source: Array | None
    out: Array | None
    finish: Finish
    """Puts the contents of `out` into the caller's tensors, if they are not the same memory."""
    tensors: list[Tensor]
    """The caller's tensors, which belong to the collective until it is over."""


def stage_whole(tensor: Tensor, where: str, gets_result: bool) -> Staged:
    """Stage a collective from a tensor to itself."""
    if not gets_result:
        return Staged(elements(tensor, where), None, nothing, [tensor])
    out, finish = place(tensor, where)
    source = out if finish is nothing else elements(tensor, where)
    return Staged(source, out, finish, [tensor])


def stage_gather(tensor: Tensor, given: Any, count: int, where: str, list_name: str) -> Staged:
    """Stage a collective from a tensor to `given`, a block per rank."""
    source = elements(tensor, where)
    out, finish, tensors = received(given, tensor, count, where, list_name)
    expect_size(out, count * source.size, where, list_name)
    return Staged(source, out, finish, [tensor, *tensors])


def stage_scatter(tensor: Tensor, given: Any, count: int, where: str, list_name: str) -> Staged:
    """Stage a collective from `given`, a block per rank, to a tensor."""
    out, finish = place(tensor, where)
    source, tensors = given_blocks(given, count, where, list_name)
    expect_size(source, count * out.size, where, list_name)
    return Staged(source, out, finish, [tensor, *tensors])


def received(
    given: Any, like: Tensor, count: int, where: str, name: str
) -> tuple[Array, Finish, list[Tensor]]:
    """Memory for a block from each rank: one tensor, or many, which an empty list gets."""
    if isinstance(given, paddle.Tensor):
        return *place(given, where), [given]
    if isinstance(given, list) and not given:
        given += [paddle.empty_like(like) for _ in range(count)]
    tensors = blocks(given, count, where, name)
    size = like.size
    for each in tensors:
        expect_size(elements(each, where), size * elements_each(like), where, name)
    return *place_of_all(tensors, where), tensors


def elements_each(tensor: Tensor) -> int:
    """Return the count of numbers that represent one element: two for a complex number."""
    return 2 if tensor.is_complex() else 1


def given_blocks(given: Any, count: int, where: str, name: str) -> tuple[Array, list[Tensor]]:
    """Return the blocks for all ranks as one array, from one tensor or many of one size."""
    if isinstance(given, paddle.Tensor):
        return elements(given, where), [given]
    tensors = blocks(given, count, where, name)
    whole = joined(tensors, where)
    for each in tensors:
        expect_size(elements(each, where), whole.size // count, where, name)
    return whole, tensors


def start_collective(
    name: str,
    ranks: Group,
    tensor: Tensor,
    given: Any = None,
    *,
    list_name: str = "tensor_list",
    op: Any = None,
    root: Any = None,
    sync_op: bool = True,
) -> Task:
    """Start a collective of equal blocks, by its row of the table `KINDS`.

    A rank gives and gets `tensor`, except where the row says "blocks": then it is `given`, one
    tensor for all ranks or a list of one per rank. `list_name` is the caller's name for it.
    """
    kind, site = KINDS[name], call_site()
    arguments: dict[str, Any] = {}
    if kind.rooted:
        arguments["root"] = ranks.place_of(root, name, "src" if kind.rooted == "gives" else "dst")
    if kind.reduces:
        arguments["op"] = reduction(op, tensor, name)
    is_root = arguments.get("root", ranks.rank) == ranks.rank
    if kind.gives == "blocks" and is_root:
        staged = stage_scatter(tensor, given, ranks.nranks, name, list_name)
    elif kind.gets == "blocks" and is_root:
        staged = stage_gather(tensor, given, ranks.nranks, name, list_name)
    elif kind.gives == "blocks":
        out, finish = place(tensor, name)
        staged = Staged(None, out, finish, [tensor])
    else:
        staged = stage_whole(tensor, name, gets_result=is_root or kind.rooted != "gets")
    call = getattr(ranks.group, name)
    work = call(staged.source, out=staged.out, async_op=True, site=site, **arguments)
    return started(work, staged.tensors, staged.finish, sync_op)


def run_collective(name: str, group: Group | None, *args: Any, **kwargs: Any) -> Task | None:
    """Start a collective, or warn and return None if this rank is not in the group."""
    ranks = chosen(group)
    if is_outside(ranks, stacklevel=4):
        return None
    return start_collective(name, ranks, *args, **kwargs)


def all_reduce(
    tensor: Tensor, op: int = ReduceOp.SUM, group: Group | None = None, sync_op: bool = True
) -> Task | None:
    """Reduce over the ranks, element by element, in place.

    Parameters
    ----------
    tensor
        Of one shape and dtype on all ranks.
    op
        ReduceOp.SUM, MAX, MIN, PROD, or AVG of floats. Of booleans SUM and MAX are an or, PROD and
        MIN an and; of complex numbers there are SUM and AVG.
    group
        The ranks: all by default.
    sync_op
        Whether to wait for the result.
    """
    return run_collective("all_reduce", group, tensor, op=op, sync_op=sync_op)


def reduce(
    tensor: Tensor,
    dst: int,
    op: int = ReduceOp.SUM,
    group: Group | None = None,
    sync_op: bool = True,
) -> Task | None:
    """Reduce as `all_reduce` does; only rank `dst` gets the result."""
    return run_collective("reduce", group, tensor, op=op, root=dst, sync_op=sync_op)


def broadcast(
    tensor: Tensor, src: int, group: Group | None = None, sync_op: bool = True
) -> Task | None:
    """Give every rank the tensor of rank `src`, in place."""
    return run_collective("broadcast", group, tensor, root=src, sync_op=sync_op)


def all_gather(
    tensor_list: Any, tensor: Tensor, group: Group | None = None, sync_op: bool = True
) -> Task:
    """Give every rank the tensors of all, which have one shape and dtype.

    Parameters
    ----------
    tensor_list
        A tensor for each rank, or an empty list, which gets new ones; or one tensor for all of
        them, end to end.
    tensor
        This rank's.
    """
    ranks = chosen(group)
    if not ranks.is_member():
        raise NotMemberError(f"all_gather: group: expected one that has this rank; got {ranks!r}")
    return start_collective("all_gather", ranks, tensor, tensor_list, sync_op=sync_op)


def reduce_scatter(
    tensor: Tensor,
    tensor_list: Any,
    op: int = ReduceOp.SUM,
    group: Group | None = None,
    sync_op: bool = True,
) -> Task | None:
    """Reduce over the ranks; rank r has the r-th part.

    Parameters
    ----------
    tensor
        Where this rank's part goes.
    tensor_list
        A tensor for each rank, of the part's shape and dtype; or one tensor of them, end to end.
    op
        As of `all_reduce`.
    """
    return run_collective("reduce_scatter", group, tensor, tensor_list, op=op, sync_op=sync_op)


def scatter(
    tensor: Tensor,
    tensor_list: Any = None,
    src: int = 0,
    group: Group | None = None,
    sync_op: bool = True,
) -> Task | None:
    """Give every rank its part of what rank `src` has.

    Parameters
    ----------
    tensor
        Where this rank's part goes.
    tensor_list
        On `src`: a tensor for each rank; or one tensor of them, end to end. Nobody else's is read.
    """
    return run_collective("scatter", group, tensor, tensor_list, root=src, sync_op=sync_op)


def gather(
    tensor: Tensor,
    gather_list: Any = None,
    dst: int = 0,
    group: Group | None = None,
    sync_op: bool = True,
) -> Task | None:
    """Give rank `dst` the tensors of all, which have one shape and dtype.

    Parameters
    ----------
    tensor
        This rank's.
    gather_list
        On `dst`: a tensor for each rank, or an empty list, which gets new ones.
    """
    how: dict[str, Any] = {"list_name": "gather_list", "root": dst, "sync_op": sync_op}
    return run_collective("gather", group, tensor, gather_list, **how)


def alltoall(
    out_tensor_list: Any, in_tensor_list: Any, group: Group | None = None, sync_op: bool = True
) -> Task | None:
    """Give every rank a tensor, and receive one from each.

    Parameters
    ----------
    out_tensor_list
        A tensor from each rank; an empty list gets new ones, of the shapes of those that are sent.
    in_tensor_list
        A tensor for each rank; their sizes may differ. Both may be one tensor instead, of parts of
        one size, end to end.
    """
    ranks, where = chosen(group), "alltoall"
    if is_outside(ranks):
        return None
    if isinstance(in_tensor_list, paddle.Tensor) and isinstance(out_tensor_list, paddle.Tensor):
        return alltoall_single(out_tensor_list, in_tensor_list, None, None, group, sync_op)
    sent = blocks(in_tensor_list, ranks.nranks, where, "in_tensor_list")
    if isinstance(out_tensor_list, list) and not out_tensor_list:
        out_tensor_list += [paddle.empty_like(each) for each in sent]
    filled = blocks(out_tensor_list, ranks.nranks, where, "out_tensor_list")
    source = joined(sent, where)
    array, finish = place_of_all(filled, where)
    work = ranks.group.all_to_all_v(
        source,
        [elements(each, where).size for each in sent],
        [elements(each, where).size for each in filled],
        out=array,
        async_op=True,
        site=call_site(),
    )
    return started(work, [*sent, *filled], finish, sync_op)


def alltoall_single(
    out_tensor: Tensor,
    in_tensor: Tensor,
    in_split_sizes: Sequence[int] | None = None,
    out_split_sizes: Sequence[int] | None = None,
    group: Group | None = None,
    sync_op: bool = True,
) -> Task | None:
    """As `alltoall`, with the parts of the first axis of one tensor.

    Parameters
    ----------
    out_tensor, in_tensor
        Apart in memory.
    in_split_sizes, out_split_sizes
        How many rows go to each rank, and come from each; by default equally many.
    """
    ranks, where, site = chosen(group), "alltoall_single", call_site()
    if is_outside(ranks):
        return None
    source = elements(in_tensor, where)
    array, finish = place(out_tensor, where)
    work = ranks.group.all_to_all_v(
        source,
        split(in_tensor, source, in_split_sizes, ranks.nranks, "in_split_sizes"),
        split(out_tensor, array, out_split_sizes, ranks.nranks, "out_split_sizes"),
        out=array,
        async_op=True,
        site=site,
    )
    return started(work, [out_tensor, in_tensor], finish, sync_op)


def split(
    tensor: Tensor, flat: Array, sizes: Sequence[int] | None, count: int, name: str
) -> list[int]:
    """Return the number of elements of each rank's rows."""
    shape, where = tuple(tensor.shape) or (1,), "alltoall_single"
    if not sizes:
        block_rows(shape, count, where)
        return [flat.size // count] * count
    counts = check_row_counts(sizes, count, where, name)
    check_sum_of_rows(counts, shape[0], where, name)
    return [int(each) * (flat.size // shape[0]) if shape[0] else 0 for each in counts]


def send(
    tensor: Tensor, dst: int = 0, group: Group | None = None, sync_op: bool = True
) -> Task | None:
    """Send to a rank, which receives in the order in which this one sends to it."""
    ranks, where, site = chosen(group), "send", call_site()
    if is_outside(ranks):
        return None
    to = ranks.place_of(dst, where, "dst")
    work = ranks.group.send(elements(tensor, where), to, async_op=True, site=site)
    return started(work, [tensor], nothing, sync_op)


def recv(
    tensor: Tensor, src: int | None = 0, group: Group | None = None, sync_op: bool = True
) -> Task | None:
    """Receive what a rank sends; the tensor has the shape and dtype of what comes."""
    ranks, where, site = chosen(group), "recv", call_site()
    if is_outside(ranks):
        return None
    if src is None:
        raise ValueError(f"{where}: src: expected a rank; got None. Give the rank that sends.")
    source = ranks.place_of(src, where, "src")
    array, finish = place(tensor, where)
    work = ranks.group.recv(source, out=array, async_op=True, site=site)
    return started(work, [tensor], finish, sync_op)


def isend(tensor: Tensor, dst: int, group: Group | None = None) -> Task | None:
    """As `send`, and return when it has begun."""
    return send(tensor, dst, group, sync_op=False)


def irecv(tensor: Tensor, src: int | None = None, group: Group | None = None) -> Task | None:
    """As `recv`, and return when it has begun."""
    return recv(tensor, src, group, sync_op=False)


class P2POp:
    """A call of `isend` or `irecv` for `batch_isend_irecv`."""

    def __init__(
        self, op: Callable[..., Any], tensor: Tensor, peer: int, group: Group | None = None
    ) -> None:
        if op not in (isend, irecv):
            raise ValueError(f"P2POp: op: expected isend or irecv of ngd.paddle; got {op!r}")
        self.op, self.tensor, self.peer, self.group = op, tensor, peer, group


def batch_isend_irecv(p2p_op_list: Sequence[P2POp]) -> list[Task]:
    """Begin many sends and receives, and return their tasks."""
    tasks = [each.op(each.tensor, each.peer, each.group) for each in p2p_op_list]
    return [task for task in tasks if task is not None]


def barrier(group: Group | None = None) -> None:
    """Return when every rank has come; at once where this rank is no member."""
    ranks = chosen(group)
    if ranks.is_member():
        ranks.group.barrier(site=call_site())
