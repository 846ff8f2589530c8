# SPDX-License-Identifier: Apache-2.0
"""`ngd.Group`: a group of ranks, with a method for every collective on arrays.

A function such as ngd.all_reduce calls the method of the same name, Group.all_reduce, and documents
the parameters of both. The function also passes the file:line of its caller as `site`, for error
messages and statistics.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Never

import numpy as np

from .. import _core
from .._util.callsite import call_site
from .._util.process_local import BoundToProcess
from .._util.signature_errors import REQUIRED, expect_op, with_signature
from ..dtypes import Array, Shape, as_int
from ..errors import GroupClosedError, NotMemberError
from . import reduction
from .buffers import operand, receive_buffer
from .checks import check_other_rank, check_out_rows, check_row_counts, check_sum_of_rows
from .plans import (
    plan_all_gather_v,
    plan_all_to_all_v,
    plan_blocks,
    plan_broadcast,
    plan_one,
    plan_scatter,
)
from .work import Plan, Work

GROUPS: weakref.WeakSet[Group] = weakref.WeakSet()
"""All groups of this process. ngd.comm_stats reads them, and the end of the program closes them."""


def existing_groups(groups: weakref.WeakSet[Group]) -> list[Group]:
    """Return the groups of a WeakSet as a list, even if other threads change the set."""
    while True:
        try:
            return list(groups)
        except RuntimeError:  # another thread changed the set during the iteration
            continue


class Group(BoundToProcess):
    """A group of ranks that communicate.

    All ranks of a group call its collectives in the same order. ngd.init() returns the group of all
    ranks, the world.

    Attributes
    ----------
    rank : int
        The number of this rank in the group, from 0.
    size : int
        The number of ranks.
    local_rank, local_size : int
        The number of this rank among the ranks of its host, and the number of these ranks.
    name : str
        "world", or the name that was given to split(). Messages and statistics show it.
    is_member : bool
        True if this rank is in the group. split(None) returns a group without this rank: there,
        `is_member` is False, `rank` is -1, `size` is 0, and collectives raise NotMemberError.

    Notes
    -----
    Each collective is also a function of the same name in `ngd`, with a parameter `group`. That
    function documents the other parameters and the shapes.

    Examples
    --------
    >>> world = ngd.init()
    >>> world.all_reduce(np.ones(3), op="sum")
    array([1., 1., 1.])
    """

    instead = "another process calls ngd.init() or split() itself"
    is_member: ClassVar[bool] = True

    def __init__(self, communicator: _core.Communicator, name: str = "world") -> None:
        self.communicator = communicator
        self.name = name
        self.rank: int = communicator.rank
        self.size: int = communicator.size
        self.local_rank: int = communicator.local_rank
        self.local_size: int = communicator.local_size
        self.closed = False
        self.timeout = _core.timeout_seconds()
        self.quick = communicator.quick
        self.quick_barrier = communicator.quick_barrier
        self._children: weakref.WeakSet[Group] = weakref.WeakSet()
        GROUPS.add(self)

    def __repr__(self) -> str:
        return (
            f"<ngd.Group {self.name}: rank {self.rank} of {self.size} ({self.communicator.name})>"
        )

    def check_open(self, call: str) -> None:
        """Raise a GroupClosedError that names `call` if the group is closed."""
        if self.closed:
            _core.stay_if_ending()
            raise GroupClosedError(
                f"{call}: expected an open group; got {self.name!r}, which was closed by close() "
                "or ngd.shutdown(). ngd.init() returns an open world, and its split() makes new "
                "groups."
            )

    def split(self, color: int | None, key: int = 0, *, name: str | None = None) -> Group:
        """Split the group into smaller groups. Every rank of the group calls this method.

        When this group is closed, the new groups are closed too.

        Parameters
        ----------
        color : int or None
            A number >= 0, which selects the new group. Ranks with the same color form a group. A
            rank with color None joins no group.
        key : int, default 0
            The sort key of this rank. The ranks of a new group are numbered in ascending order of
            their keys. Ranks with equal keys keep their order.
        name : str, optional
            The name for messages and statistics.

        Returns
        -------
        Group
            The new group of this rank. If color is None, a group without this rank: its
            `is_member` is False, and its collectives raise NotMemberError.

        Examples
        --------
        Split the world into even and odd ranks.

        >>> world = ngd.init()
        >>> world.split(world.rank % 2, name="parity").size
        1
        """
        number = -1 if color is None else as_int(color, "split", "color")
        if color is not None and number < 0:
            raise ValueError(f"split: expected a color >= 0, or None; got {color}")
        self.check_open("split")
        communicator = self.communicator.split(number, as_int(key, "split", "key"))
        if communicator is None:
            return NonMember(name or f"{self.name}/None")
        return self._adopt(Group(communicator, name or f"{self.name}/{color}"))

    def group_of(self, members: Sequence[int], number: int, key: str, name: str) -> Group:
        """Make a new group of some ranks of this group, which must be the world and use MPI.

        Only the ranks of the new group call this method.

        Parameters
        ----------
        members : sequence of ints
            The ranks of the new group, as ranks of this group. The callers have agreed on the
            list.
        number : int
            The number of the new group, equal on all its ranks. It must be larger than the numbers
            of all other groups of these ranks. To find it, each of these ranks first calls
            `communicator.next_group_number()` of this group. Then the callers exchange the results,
            for example by an all-reduce, and pass the largest result as `number`.
        key : str
            A text that is equal on these ranks, and that no other group has. The ranks of one host
            find each other by it.
        name : str
            The name of the new group.

        Returns
        -------
        Group
            The new group. Its errors use the rank numbers of this group.
        """
        self.check_open("new_group")
        communicator = self.communicator.group_of(members, number, key, self.timeout)
        return self._adopt(Group(communicator, name))

    def _adopt(self, child: Group) -> Group:
        """Register a group that was split from this one, and return it.

        If another thread has closed this group, close the new group and raise GroupClosedError.
        """
        self._children.add(child)
        if self.closed:
            child.close()
        self.check_open("split")
        return child

    @with_signature
    def all_reduce(
        self,
        x: Any,
        *surplus: Never,
        op: str = REQUIRED,
        out: Any = None,
        weight: float | None = None,
        algorithm: str = "auto",
        compression: Any = None,
        async_op: bool = False,
        site: str | None = None,
    ) -> Any:
        """Reduce an array over the ranks of the group; see ngd.all_reduce."""
        if surplus or op is REQUIRED:
            expect_op("Group.all_reduce", self.all_reduce, (x, *surplus), op)
        plain = weight is None and compression is None and algorithm == "auto"
        if plain and site is None and not async_op:
            result = self.quick("all_reduce", x, out, op)
            if result is not None:
                return result
        self.check_open("all_reduce")
        options = reduction.Options(self, op, algorithm, site or call_site())
        if weight is None:
            plan = reduction.plan(options, x, out, weight, compression)
            return self._run_plan(f"all_reduce({op})", plan, async_op)
        with self.collectives_scope():  # an all-gather of the weights comes first
            plan = reduction.plan(options, x, out, weight, compression)
            return self._run_plan(f"all_reduce({op})", plan, async_op)

    @with_signature
    def reduce_scatter(
        self,
        x: Any,
        *surplus: Never,
        op: str = REQUIRED,
        axis: int = 0,
        out: Any = None,
        async_op: bool = False,
        site: str | None = None,
    ) -> Any:
        """Reduce an array over the ranks and return this rank's block; see ngd.reduce_scatter."""
        if surplus or op is REQUIRED:
            expect_op("Group.reduce_scatter", self.reduce_scatter, (x, *surplus), op)
        if axis == 0 and site is None and not async_op:
            result = self.quick("reduce_scatter", x, out, op)
            if result is not None:
                return result
        along = as_int(axis, "reduce_scatter", "axis")
        plan = plan_blocks(self, "reduce_scatter", x, out, site, op=op, axis=along)
        return self._run_plan("reduce_scatter", plan, async_op)

    def all_gather(
        self,
        x: Any,
        *,
        axis: int = 0,
        out: Any = None,
        async_op: bool = False,
        site: str | None = None,
    ) -> Any:
        """Concatenate the arrays of the ranks; see ngd.all_gather."""
        if axis == 0 and site is None and not async_op:
            result = self.quick("all_gather", x, out, "none")
            if result is not None:
                return result
        along = as_int(axis, "all_gather", "axis")
        plan = plan_blocks(self, "all_gather", x, out, site, axis=along)
        return self._run_plan("all_gather", plan, async_op)

    def all_gather_v(
        self,
        x: Any,
        *,
        counts: Sequence[int] | None = None,
        out: Any = None,
        async_op: bool = False,
        site: str | None = None,
    ) -> Any:
        """Concatenate arrays of different lengths; see ngd.all_gather_v."""
        source, site = np.atleast_1d(operand(x, "all_gather_v")), site or call_site()
        if counts is not None:
            rows = check_row_counts(counts, self.size, "all_gather_v", "counts")
            plan = plan_all_gather_v(self, source, rows, out, site)
            return self._run_plan("all_gather", plan, async_op)
        check_out_rows(out, async_op, source.dtype, source.shape[1:], "all_gather_v")
        with self.collectives_scope():
            rows = self.all_gather(np.array([len(source)]), site=f"all_gather_v() at {site}")
            plan = plan_all_gather_v(self, source, rows, out, site)
            return self._run_plan("all_gather", plan, async_op)

    def broadcast(
        self,
        x: Any,
        root: int = 0,
        *,
        out: Any = None,
        async_op: bool = False,
        site: str | None = None,
    ) -> Any:
        """Copy the array of the root to all ranks; see ngd.broadcast."""
        if site is None and not async_op:
            result = self.quick("broadcast", x, out, "none", root)
            if result is not None:
                return result
        plan = plan_broadcast(self, x, root, out, site)
        return self._run_plan("broadcast", plan, async_op)

    def reduce(
        self,
        x: Any,
        root: int = 0,
        *,
        op: str,
        out: Any = None,
        async_op: bool = False,
        site: str | None = None,
    ) -> Any:
        """Reduce an array over the ranks to the root; see ngd.reduce."""
        plan = plan_blocks(self, "reduce", x, out, site, op=op, root=root)
        return self._run_plan("reduce", plan, async_op)

    def gather(
        self,
        x: Any,
        root: int = 0,
        *,
        out: Any = None,
        async_op: bool = False,
        site: str | None = None,
    ) -> Any:
        """Concatenate the arrays of the ranks on the root; see ngd.gather."""
        plan = plan_blocks(self, "gather", x, out, site, root=root)
        return self._run_plan("gather", plan, async_op)

    def scatter(
        self,
        x: Any = None,
        root: int = 0,
        *,
        out: Any = None,
        shape: Shape | None = None,
        dtype: Any = None,
        async_op: bool = False,
        site: str | None = None,
    ) -> Any:
        """Send each rank its block of the root's array; see ngd.scatter."""
        plan = plan_scatter(self, x, root, out, shape, dtype, site)
        return self._run_plan("scatter", plan, async_op)

    def all_to_all(
        self, x: Any, *, out: Any = None, async_op: bool = False, site: str | None = None
    ) -> Any:
        """Send a block to each rank and receive one from each rank; see ngd.all_to_all."""
        if site is None and not async_op:
            result = self.quick("all_to_all", x, out, "none")
            if result is not None:
                return result
        plan = plan_blocks(self, "all_to_all", x, out, site)
        return self._run_plan("all_to_all", plan, async_op)

    def all_to_all_v(
        self,
        x: Any,
        send_counts: Sequence[int],
        receive_counts: Sequence[int] | None = None,
        *,
        out: Any = None,
        async_op: bool = False,
        site: str | None = None,
    ) -> Any:
        """Exchange blocks of different lengths with each rank; see ngd.all_to_all_v."""
        where, site = "all_to_all_v", site or call_site()
        source = np.atleast_1d(operand(x, where))
        sent_rows = check_row_counts(send_counts, self.size, where, "send_counts")
        check_sum_of_rows(sent_rows, len(source), where, "send_counts")
        if receive_counts is not None:
            received_rows = check_row_counts(receive_counts, self.size, where, "receive_counts")
            plan = plan_all_to_all_v(self, source, sent_rows, received_rows, out, site)
            return self._run_plan("all_to_all", plan, async_op)
        check_out_rows(out, async_op, source.dtype, source.shape[1:], where)
        with self.collectives_scope():
            received_rows = self.all_to_all(sent_rows, site=f"{where}() at {site}")
            plan = plan_all_to_all_v(self, source, sent_rows, received_rows, out, site)
            return self._run_plan("all_to_all", plan, async_op)

    def send(
        self, x: Any, to: int, tag: int = 0, *, async_op: bool = False, site: str | None = None
    ) -> Any:
        """Send an array to one rank; see ngd.send."""
        source = operand(x, "send")
        to = check_other_rank(to, self.rank, self.size, "send", "to")
        tag = as_int(tag, "send", "tag")
        plan = plan_one(
            self, "send", source, source, lambda: None, site, root=to, tag=tag, count=source.size
        )
        return self._run_plan("send", plan, async_op)

    def recv(
        self,
        source: int,
        tag: int = 0,
        *,
        out: Any = None,
        shape: Shape | None = None,
        dtype: Any = None,
        async_op: bool = False,
        site: str | None = None,
    ) -> Any:
        """Receive an array from one rank; see ngd.recv."""
        source = check_other_rank(source, self.rank, self.size, "recv", "source")
        tag = as_int(tag, "recv", "tag")
        buffer = receive_buffer(out, shape, dtype, "recv")
        result = buffer if out is None else out
        count = buffer.size
        plan = plan_one(
            self, "recv", buffer, buffer, lambda: result, site, root=source, tag=tag, count=count
        )
        return self._run_plan("recv", plan, async_op)

    def barrier(self, *, async_op: bool = False, site: str | None = None) -> Any:
        """Wait until every rank of the group has called this method; see ngd.barrier."""
        if site is None and not async_op and self.quick_barrier():
            return None
        nothing: Array = np.empty(0, np.uint8)
        plan = plan_one(self, "barrier", nothing, nothing, lambda: None, site)
        return self._run_plan("barrier", plan, async_op)

    def abort(self, traceback: str) -> None:
        """Notify the other ranks that this rank has failed, and close the group.

        The groups that were split from this one are aborted first.

        Parameters
        ----------
        traceback : str
            The text that the errors of the other ranks contain.
        """
        for child in existing_groups(self._children):
            child.abort(traceback)
        self.communicator.abort(traceback)

    def close(self) -> None:
        """Close the groups that were split from this one, then this one.

        Ranks that still wait for this rank are notified. A second call does nothing.
        """
        self.closed = True
        for child in existing_groups(self._children):
            child.close()
        self.communicator.close()

    def collectives_scope(self) -> _core.AbortOnError:
        """Return a context manager for the body of a method that runs several collectives.

        An exception after the first collective of the `with` block closes the group, because this
        rank has then not run the same collectives as the other ranks.
        """
        return _core.AbortOnError([self.communicator], [self.abort], False)

    def _run_plan(self, what: str, plan: Plan, async_op: bool) -> Any:
        """Start the collectives that `plan` has prepared.

        If `async_op` is True, return a Work at once. Otherwise wait for the collectives and return
        the result. `what` describes the collective in the Work, such as "all_reduce(sum)".

        Without `async_op`, Ctrl-C can raise KeyboardInterrupt at any time. If this happens while
        this rank waits for the collectives, the group is closed. If it happens before they start or
        after they are complete, the group stays open.
        """
        if async_op:
            work = Work(self, what, plan)
            work._start()
            return work
        _core.run_calls(plan.calls, self.timeout)
        return plan.finish()


class NonMember(Group):
    """The result of split() on a rank that joins no group.

    It is not None, because `group=None` means the world. Its collectives raise NotMemberError.
    """

    is_member = False

    def __init__(self, name: str) -> None:
        self.name = name
        self.rank = self.local_rank = -1
        self.size = self.local_size = 0
        self.closed = False

    def __repr__(self) -> str:
        return f"<ngd.Group {self.name}: this rank is not a member>"

    def refuse(self, call: str) -> Any:
        """Raise a NotMemberError that names the call."""
        raise NotMemberError(
            f"{call}: expected a group that includes this rank; got {self.name!r}: this rank is "
            "not "
            "a member, because its split() gave no color. Ask group.is_member before the call."
        )

    def check_open(self, call: str) -> None:
        """Raise a NotMemberError that names the call."""
        self.refuse(call)

    def quick(self, kind: str, *_: Any) -> Any:
        """Raise a NotMemberError that names the collective `kind`.

        In a group that includes this rank, `quick` is the fast path of a collective on arrays
        (_core.Communicator.quick). A public function such as ngd.all_reduce calls `quick` if the
        options of the call have their defaults.
        """
        self.refuse(kind)

    def quick_barrier(self) -> Any:
        """Raise a NotMemberError.

        In a group that includes this rank, `quick_barrier` runs a barrier.
        """
        self.refuse("barrier")

    def abort(self, traceback: str) -> None:
        """Do nothing, because this rank is not a member."""

    def close(self) -> None:
        """Set `closed` to True. Collectives raise NotMemberError before and after this call."""
        self.closed = True


def _refusal(call: str) -> Callable[..., Any]:
    """Return a method of NonMember that raises a NotMemberError, which names `call`."""

    def refuse(self: NonMember, *_: Any, **__: Any) -> Any:
        self.refuse(call)

    return refuse


for _call, _method in vars(Group).items():
    if callable(_method) and not _call.startswith("_") and _call not in vars(NonMember):
        setattr(NonMember, _call, _refusal(_call))
