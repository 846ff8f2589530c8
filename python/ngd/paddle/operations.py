# SPDX-License-Identifier: Apache-2.0
# The file is long because each argument is described.
"""The collectives of `paddle.distributed` on tensors.

`src`, `dst` and `peer` are ranks of the world, even if a group is given. A tensor is filled in
place, without a copy if it is contiguous. With `sync_op=False` a call returns a task as soon as the
collective has started; do not use its tensors before `wait()` of the task. If this rank is not a
member of the group, a send, receive or collective warns and returns None, with two exceptions:
`all_gather` raises NotMemberError, and `barrier` returns without a warning.
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
    concatenate,
    destination_for,
    destination_for_all,
    elements,
    expect_size,
    no_copy,
    reduction,
)
from .world import Group, group_or_world, is_outside


class Task:
    """The handle of a pending collective, with the methods of Paddle's own tasks."""

    def __init__(self, work: Work, tensors: Sequence[Tensor], finish: Finish) -> None:
        self.work, self.tensors, self.finish = work, tensors, finish
        self.is_done = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the collective, fill its tensors and return True.

        Parameters
        ----------
        timeout : float, optional
            The longest time to wait, in seconds. When this time has passed, False is returned and
            the collective continues. If None, the collective fails after NGD_TIMEOUT.
        """
        if self.is_done:
            return True
        try:
            self.work.wait(timeout)
        except TimeoutError:
            if self.work.exception() is not None:
                raise
            return False
        self.finish()
        self.is_done = True
        return True

    synchronize = wait

    def is_completed(self) -> bool:
        """Return True if `wait` would return or raise immediately."""
        return self.is_done or self.work.done()

    def is_sync(self) -> bool:
        """Return True if a `wait` of this task has completed, so that its tensors are filled."""
        return self.is_done


_pending: Final[list[Task]] = []
"""The tasks that were returned with `sync_op=False`, which `wait(tensor)` searches.

`wait(tensor)` removes the tasks that it waits for. When another call with `sync_op=False` adds its
task, it first removes the tasks that have completed or failed.
"""


def start_task(work: Work, tensors: Sequence[Tensor], finish: Finish, sync_op: bool) -> Task:
    """Create and return the task of a collective that was started.

    If `sync_op` is True, wait for the collective. Otherwise add the task to `_pending`. `finish`
    copies the result to `tensors`.
    """
    task = Task(work, tensors, finish)
    if sync_op:
        task.wait()
        return task
    _pending[:] = [each for each in _pending if not is_settled(each)]
    _pending.append(task)
    return task


def is_settled(task: Task) -> bool:
    """Return True if a task has completed or failed. If it has completed, fill its tensors."""
    with contextlib.suppress(CollectiveError):
        return task.is_done or (task.work.done() and task.wait())
    return True


def wait(tensor: Tensor, group: Group | None = None, use_calc_stream: bool = True) -> None:
    """Wait for all pending tasks that use a tensor, and fill their tensors.

    Corresponds to `paddle.distributed.wait`.

    Parameters
    ----------
    tensor : Tensor
        The tensor.
    group : Group, optional
        Ignored.
    use_calc_stream : bool
        Ignored: the CPU has no streams.
    """
    for task in [t for t in _pending if any(each is tensor for each in t.tensors)]:
        _pending.remove(task)
        task.wait()


class Staged(NamedTuple):
    """The arrays that a collective sends and fills, and the tensors of the caller.

    The array of a contiguous tensor is the tensor's own memory. For other tensors, and for several
    tensors in one message, the array is usually a copy (staging buffer) that is sent or filled.
    """

    source: Array | None
    """The operand; None if this rank sends nothing."""
    out: Array | None
    """The array for the result; None if this rank gets no result."""
    finish: Finish
    """A function to call after the collective. It copies the result from `out` to the caller's
    tensors, or does nothing if `out` is their memory."""
    tensors: list[Tensor]
    """The caller's tensors, which the collective uses until it completes."""


def stage_whole(tensor: Tensor, where: str, gets_result: bool) -> Staged:
    """Return a Staged (source and result arrays) for a collective whose operand is `tensor`.

    If `gets_result` is True, the result overwrites `tensor`. Otherwise this rank gets no result.
    """
    if not gets_result:
        return Staged(elements(tensor, where), None, no_copy, [tensor])
    out, finish = destination_for(tensor, where)
    source = out if finish is no_copy else elements(tensor, where)
    return Staged(source, out, finish, [tensor])


def stage_gather(tensor: Tensor, given: Any, count: int, where: str, list_name: str) -> Staged:
    """Return a Staged (source and result arrays) to send `tensor` and get a block per rank.

    `given` is the caller's destination: one tensor for all blocks, or a list with one tensor per
    rank. If the list is empty, new tensors are appended to it. `count` is the number of ranks.
    """
    source = elements(tensor, where)
    out, finish, tensors = stage_outputs(given, tensor, count, where, list_name)
    expect_size(out, count * source.size, where, list_name)
    return Staged(source, out, finish, [tensor, *tensors])


def stage_scatter(tensor: Tensor, given: Any, count: int, where: str, list_name: str) -> Staged:
    """Return a Staged (source and result arrays) to send a block per rank and fill `tensor`.

    `given` is the operand: one tensor with all blocks, or a list with one tensor per rank. `count`
    is the number of ranks.
    """
    out, finish = destination_for(tensor, where)
    source, tensors = stage_inputs(given, count, where, list_name)
    expect_size(source, count * out.size, where, list_name)
    return Staged(source, out, finish, [tensor, *tensors])


def stage_outputs(
    given: Any, like: Tensor, count: int, where: str, name: str
) -> tuple[Array, Finish, list[Tensor]]:
    """Return (array to receive the blocks of all ranks, function, list of the caller's tensors).

    Call the function after the collective: it copies the array to the caller's tensors. `given` is
    one tensor for all blocks, or a list with one tensor per rank. If the list is empty, `count` new
    tensors with the shape and dtype of `like` are appended to it.
    """
    if isinstance(given, paddle.Tensor):
        return *destination_for(given, where), [given]
    if isinstance(given, list) and not given:
        given += [paddle.empty_like(like) for _ in range(count)]
    tensors = blocks(given, count, where, name)
    size = like.size
    for each in tensors:
        expect_size(elements(each, where), size * elements_each(like), where, name)
    return *destination_for_all(tensors, where), tensors


def elements_each(tensor: Tensor) -> int:
    """Return the number of real numbers per element: 2 for a complex tensor, 1 for others."""
    return 2 if tensor.is_complex() else 1


def stage_inputs(given: Any, count: int, where: str, name: str) -> tuple[Array, list[Tensor]]:
    """Return the blocks for all ranks as one array, and the list of the tensors in `given`.

    `given` is one tensor with all blocks, or a list with one tensor per rank. The tensors of a list
    are copied into the array. `count` is the number of ranks.
    """
    if isinstance(given, paddle.Tensor):
        return elements(given, where), [given]
    tensors = blocks(given, count, where, name)
    whole = concatenate(tensors, where)
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
    """Start the collective `name` and return its task.

    In a broadcast, reduce or all_reduce, `tensor` is the operand and the destination. In a gather
    or all_gather, `tensor` is the operand and `given` is the destination. In a scatter or
    reduce_scatter, `given` is the operand and `tensor` is the destination. `given` is a list with
    one tensor per rank, or one tensor that holds one block per rank, all of the same size. Error
    messages show `list_name` as the name of `given`. `root` is a rank of the world.
    """
    kind, site = KINDS[name], call_site()
    arguments: dict[str, Any] = {}
    if kind.root_only:
        arguments["root"] = ranks.group_rank_of(
            root, name, "src" if kind.root_only == "operand" else "dst"
        )
    if kind.reduces:
        arguments["op"] = reduction(op, tensor, name)
    is_root = arguments.get("root", ranks.rank) == ranks.rank
    if kind.operand == "blocks" and is_root:
        staged = stage_scatter(tensor, given, ranks.nranks, name, list_name)
    elif kind.result == "blocks" and is_root:
        staged = stage_gather(tensor, given, ranks.nranks, name, list_name)
    elif kind.operand == "blocks":
        out, finish = destination_for(tensor, name)
        staged = Staged(None, out, finish, [tensor])
    else:
        staged = stage_whole(tensor, name, gets_result=is_root or kind.root_only != "result")
    call = getattr(ranks.group, name)
    work = call(staged.source, out=staged.out, async_op=True, site=site, **arguments)
    return start_task(work, staged.tensors, staged.finish, sync_op)


def run_collective(name: str, group: Group | None, *args: Any, **kwargs: Any) -> Task | None:
    """Call `start_collective` if this rank is in the group, and return the task.

    If this rank is not in the group, warn and return None. The further arguments are those of
    `start_collective`; with `sync_op=True`, the collective is complete at the return.
    """
    ranks = group_or_world(group)
    if is_outside(ranks, stacklevel=4):
        return None
    return start_collective(name, ranks, *args, **kwargs)


def all_reduce(
    tensor: Tensor, op: int = ReduceOp.SUM, group: Group | None = None, sync_op: bool = True
) -> Task | None:
    """Reduce a tensor over the ranks, element by element, in place.

    Corresponds to `paddle.distributed.all_reduce`.

    Parameters
    ----------
    tensor : Tensor
        The operand and the result, of the same shape and dtype on all ranks.
    op : int
        ReduceOp.SUM, MAX, MIN, PROD or AVG. Integers and booleans do not support AVG. Complex
        numbers support only SUM and AVG. For booleans, SUM and MAX are a logical or, and PROD and
        MIN are a logical and.
    group : Group, optional
        The ranks; by default the world.
    sync_op : bool
        If True, the call returns when the operation is complete; if False, after its start.

    Returns
    -------
    Task or None
        The handle of the collective; None if this rank is not a member of the group.
    """
    return run_collective("all_reduce", group, tensor, op=op, sync_op=sync_op)


def reduce(
    tensor: Tensor,
    dst: int,
    op: int = ReduceOp.SUM,
    group: Group | None = None,
    sync_op: bool = True,
) -> Task | None:
    """Reduce a tensor as `all_reduce` does; only rank `dst` gets the result.

    Return the task of the operation, or None if this rank is not in the group.

    Corresponds to `paddle.distributed.reduce`.

    Parameters
    ----------
    tensor : Tensor
        The operand, of the same shape and dtype on all ranks, and the result on `dst`.
    dst : int
        The rank of the world that receives.
    op : int
        The reduction, as in `all_reduce`.
    group : Group, optional
        The ranks; by default the world.
    sync_op : bool
        If True, the call returns when the operation is complete; if False, after its start.
    """
    return run_collective("reduce", group, tensor, op=op, root=dst, sync_op=sync_op)


def broadcast(
    tensor: Tensor, src: int, group: Group | None = None, sync_op: bool = True
) -> Task | None:
    """Overwrite a tensor on all ranks by that of rank `src`.

    Return the task of the operation, or None if this rank is not in the group.

    Corresponds to `paddle.distributed.broadcast`.

    Parameters
    ----------
    tensor : Tensor
        The tensor to send, or to overwrite; of the same shape and dtype on all ranks.
    src : int
        The rank of the world that sends.
    group : Group, optional
        The ranks; by default the world.
    sync_op : bool
        If True, the call returns when the operation is complete; if False, after its start.
    """
    return run_collective("broadcast", group, tensor, root=src, sync_op=sync_op)


def all_gather(
    tensor_list: Any, tensor: Tensor, group: Group | None = None, sync_op: bool = True
) -> Task:
    """Give every rank the tensors of all ranks, which have the same shape and dtype.

    Corresponds to `paddle.distributed.all_gather`.

    Parameters
    ----------
    tensor_list : list of Tensor, or Tensor
        The destination. A list has one tensor per rank; if it is empty, new tensors are appended
        to it. A single tensor receives the tensors of all ranks one after the other.
    tensor : Tensor
        The tensor of this rank.
    group : Group, optional
        The ranks; by default the world.
    sync_op : bool
        If True, the call returns when the operation is complete; if False, after its start.

    Raises
    ------
    NotMemberError
        This rank is not a member of the group.
    """
    ranks = group_or_world(group)
    if not ranks.is_member():
        raise NotMemberError(
            f"all_gather: group: expected one that includes this rank; got {ranks!r}"
        )
    return start_collective("all_gather", ranks, tensor, tensor_list, sync_op=sync_op)


def reduce_scatter(
    tensor: Tensor,
    tensor_list: Any,
    op: int = ReduceOp.SUM,
    group: Group | None = None,
    sync_op: bool = True,
) -> Task | None:
    """Reduce tensors over the ranks; rank r gets the r-th block of the result.

    Return the task of the operation, or None if this rank is not in the group.

    Corresponds to `paddle.distributed.reduce_scatter`.

    Parameters
    ----------
    tensor : Tensor
        The destination of this rank's block.
    tensor_list : list of Tensor, or Tensor
        The operand: one tensor per rank, with the shape and dtype of the block, or one tensor that
        holds all blocks one after the other.
    op : int
        The reduction, as in `all_reduce`.
    group : Group, optional
        The ranks; by default the world.
    sync_op : bool
        If True, the call returns when the operation is complete; if False, after its start.
    """
    return run_collective("reduce_scatter", group, tensor, tensor_list, op=op, sync_op=sync_op)


def scatter(
    tensor: Tensor,
    tensor_list: Any = None,
    src: int = 0,
    group: Group | None = None,
    sync_op: bool = True,
) -> Task | None:
    """Send the r-th tensor or block of `tensor_list` on rank `src` to rank r of the group.

    Return the task of the operation, or None if this rank is not in the group.

    Corresponds to `paddle.distributed.scatter`.

    Parameters
    ----------
    tensor : Tensor
        The destination on this rank.
    tensor_list : list of Tensor, or Tensor
        On `src`: one tensor per rank, or one tensor that holds all blocks one after the other. It
        is ignored on the other ranks.
    src : int
        The rank of the world that sends.
    group : Group, optional
        The ranks; by default the world.
    sync_op : bool
        If True, the call returns when the operation is complete; if False, after its start.
    """
    return run_collective("scatter", group, tensor, tensor_list, root=src, sync_op=sync_op)


def gather(
    tensor: Tensor,
    gather_list: Any = None,
    dst: int = 0,
    group: Group | None = None,
    sync_op: bool = True,
) -> Task | None:
    """Give rank `dst` the tensors of all ranks, which have the same shape and dtype.

    Return the task of the operation, or None if this rank is not in the group.

    Corresponds to `paddle.distributed.gather`.

    Parameters
    ----------
    tensor : Tensor
        The tensor of this rank.
    gather_list : list of Tensor
        On `dst`: one tensor per rank, or an empty list, which gets new tensors. It is ignored on
        the other ranks.
    dst : int
        The rank of the world that receives.
    group : Group, optional
        The ranks; by default the world.
    sync_op : bool
        If True, the call returns when the operation is complete; if False, after its start.
    """
    how: dict[str, Any] = {"list_name": "gather_list", "root": dst, "sync_op": sync_op}
    return run_collective("gather", group, tensor, gather_list, **how)


def alltoall(
    out_tensor_list: Any, in_tensor_list: Any, group: Group | None = None, sync_op: bool = True
) -> Task | None:
    """Send one tensor to each rank, and receive one tensor from each rank.

    Return the task of the operation, or None if this rank is not in the group.

    Corresponds to `paddle.distributed.alltoall`.

    Parameters
    ----------
    out_tensor_list : list of Tensor, or Tensor
        A list with one destination per rank. An empty list gets new tensors, with the shapes of the
        sent tensors. It is a single tensor if `in_tensor_list` is a single tensor.
    in_tensor_list : list of Tensor, or Tensor
        A list with one tensor to send per rank, whose sizes may differ. Or a single tensor that
        holds one block of rows per rank, all of the same size, one after the other.
    group : Group, optional
        The ranks; by default the world.
    sync_op : bool
        If True, the call returns when the operation is complete; if False, after its start.
    """
    ranks, where = group_or_world(group), "alltoall"
    if is_outside(ranks):
        return None
    if isinstance(in_tensor_list, paddle.Tensor) and isinstance(out_tensor_list, paddle.Tensor):
        return alltoall_single(out_tensor_list, in_tensor_list, None, None, group, sync_op)
    sent = blocks(in_tensor_list, ranks.nranks, where, "in_tensor_list")
    if isinstance(out_tensor_list, list) and not out_tensor_list:
        out_tensor_list += [paddle.empty_like(each) for each in sent]
    filled = blocks(out_tensor_list, ranks.nranks, where, "out_tensor_list")
    source = concatenate(sent, where)
    array, finish = destination_for_all(filled, where)
    work = ranks.group.all_to_all_v(
        source,
        [elements(each, where).size for each in sent],
        [elements(each, where).size for each in filled],
        out=array,
        async_op=True,
        site=call_site(),
    )
    return start_task(work, [*sent, *filled], finish, sync_op)


def alltoall_single(
    out_tensor: Tensor,
    in_tensor: Tensor,
    in_split_sizes: Sequence[int] | None = None,
    out_split_sizes: Sequence[int] | None = None,
    group: Group | None = None,
    sync_op: bool = True,
) -> Task | None:
    """Send rows of one tensor to each rank, and receive rows of each rank into another tensor.

    Return the task of the operation, or None if this rank is not in the group.

    Corresponds to `paddle.distributed.alltoall_single`.

    Parameters
    ----------
    out_tensor, in_tensor : Tensor
        The destination and the operand, which must not overlap in memory.
    in_split_sizes, out_split_sizes : sequence of int, optional
        The numbers of rows to send to each rank, and to receive from each rank. By default, each
        tensor is divided equally among the ranks.
    group : Group, optional
        The ranks; by default the world.
    sync_op : bool
        If True, the call returns when the operation is complete; if False, after its start.
    """
    ranks, where, site = group_or_world(group), "alltoall_single", call_site()
    if is_outside(ranks):
        return None
    source = elements(in_tensor, where)
    array, finish = destination_for(out_tensor, where)
    work = ranks.group.all_to_all_v(
        source,
        split(in_tensor, source, in_split_sizes, ranks.nranks, "in_split_sizes"),
        split(out_tensor, array, out_split_sizes, ranks.nranks, "out_split_sizes"),
        out=array,
        async_op=True,
        site=site,
    )
    return start_task(work, [out_tensor, in_tensor], finish, sync_op)


def split(
    tensor: Tensor, flat: Array, sizes: Sequence[int] | None, count: int, name: str
) -> list[int]:
    """Return a list with the number of elements for each of the `count` ranks.

    `sizes` has the number of rows of `tensor` for each rank. If `sizes` is None or empty, all ranks
    have equal numbers of rows. `flat` has the elements of `tensor` as real numbers: two per
    complex number. Error messages show `name`, the name of the argument `sizes` in the public call.
    """
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
    """Send a tensor to rank `dst`. Rank `dst` receives tensors in the order of their sends.

    Return the task of the operation, or None if this rank is not in the group.

    Corresponds to `paddle.distributed.send`.

    Parameters
    ----------
    tensor : Tensor
        The tensor to send.
    dst : int
        The rank of the world that receives.
    group : Group, optional
        The ranks; by default the world.
    sync_op : bool
        If True, the call returns when the operation is complete; if False, after its start.
    """
    ranks, where, site = group_or_world(group), "send", call_site()
    if is_outside(ranks):
        return None
    to = ranks.group_rank_of(dst, where, "dst")
    work = ranks.group.send(elements(tensor, where), to, async_op=True, site=site)
    return start_task(work, [tensor], no_copy, sync_op)


def recv(
    tensor: Tensor, src: int | None = 0, group: Group | None = None, sync_op: bool = True
) -> Task | None:
    """Receive a tensor from rank `src`; the tensor must have the shape and dtype of the sent one.

    Return the task of the operation, or None if this rank is not in the group.

    Corresponds to `paddle.distributed.recv`.

    Parameters
    ----------
    tensor : Tensor
        The destination.
    src : int
        The rank of the world that sends. It must not be None.
    group : Group, optional
        The ranks; by default the world.
    sync_op : bool
        If True, the call returns when the operation is complete; if False, after its start.
    """
    ranks, where, site = group_or_world(group), "recv", call_site()
    if is_outside(ranks):
        return None
    if src is None:
        raise ValueError(f"{where}: src: expected a rank; got None. Give the rank that sends.")
    source = ranks.group_rank_of(src, where, "src")
    array, finish = destination_for(tensor, where)
    work = ranks.group.recv(source, out=array, async_op=True, site=site)
    return start_task(work, [tensor], finish, sync_op)


def isend(tensor: Tensor, dst: int, group: Group | None = None) -> Task | None:
    """Start to send a tensor to rank `dst`, and return the task.

    Return None if this rank is not in the group.

    Corresponds to `paddle.distributed.isend`.

    Parameters
    ----------
    tensor : Tensor
        The tensor to send.
    dst : int
        The rank of the world that receives.
    group : Group, optional
        The ranks; by default the world.
    """
    return send(tensor, dst, group, sync_op=False)


def irecv(tensor: Tensor, src: int | None = None, group: Group | None = None) -> Task | None:
    """Start to receive a tensor from rank `src`, and return the task.

    Return None if this rank is not in the group.

    Corresponds to `paddle.distributed.irecv`.

    Parameters
    ----------
    tensor : Tensor
        The destination.
    src : int
        The rank of the world that sends. It must not be None.
    group : Group, optional
        The ranks; by default the world.
    """
    return recv(tensor, src, group, sync_op=False)


class P2POp:
    """The description of a send or receive, which `batch_isend_irecv` starts.

    Corresponds to `paddle.distributed.P2POp`.

    Parameters
    ----------
    op : callable
        The function `isend` or `irecv` of ngd.paddle.
    tensor : Tensor
        The tensor to send, or the destination.
    peer : int
        The rank of the world that receives the tensor or sends it.
    group : Group, optional
        The ranks; by default the world.
    """

    def __init__(
        self, op: Callable[..., Any], tensor: Tensor, peer: int, group: Group | None = None
    ) -> None:
        if op not in (isend, irecv):
            raise ValueError(f"P2POp: op: expected isend or irecv of ngd.paddle; got {op!r}")
        self.op, self.tensor, self.peer, self.group = op, tensor, peer, group


def batch_isend_irecv(p2p_op_list: Sequence[P2POp]) -> list[Task]:
    """Start several sends and receives, and return their tasks.

    Corresponds to `paddle.distributed.batch_isend_irecv`.

    Parameters
    ----------
    p2p_op_list : sequence of P2POp
        The sends and receives, in the order in which they start.

    Returns
    -------
    list of Task
        One task per send or receive, except for those in groups without this rank: these are
        skipped.
    """
    tasks = [each.op(each.tensor, each.peer, each.group) for each in p2p_op_list]
    return [task for task in tasks if task is not None]


def barrier(group: Group | None = None) -> None:
    """Wait until every rank of the group has called this function.

    A rank that is not a member returns immediately.

    Corresponds to `paddle.distributed.barrier`.
    """
    ranks = group_or_world(group)
    if ranks.is_member():
        ranks.group.barrier(site=call_site())
