# SPDX-License-Identifier: Apache-2.0
"""A group of ranks, with every collective on arrays as a method.

The functions of the same names in `ngd` document the methods. They pass `site`, the call site that
messages show.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final, Never

import numpy as np

from .. import _core
from .._util.callsite import call_site
from .._util.numpy_io import destination, expect_rows
from .._util.process_local import BoundToProcess
from .._util.signature_errors import REQUIRED, expect_op, with_signature
from ..dtypes import Array, DType, Shape, as_dtype, lengths, whole
from ..errors import GroupClosedError, NotMemberError, ShapeError
from . import reduction
from .buffers import block_rows, check_apart, destinations, is_list, normal_axis, operand
from .kinds import KINDS, Kind
from .work import Plan, Work

GROUPS: weakref.WeakSet[Group] = weakref.WeakSet()
"""The groups of this process, for their statistics."""


def living(groups: weakref.WeakSet[Group]) -> list[Group]:
    """Return the groups that exist now, even if other threads add some."""
    while True:
        try:
            return list(groups)
        except RuntimeError:  # another thread has changed the set meanwhile
            continue


MOST_ROWS = 2**48
"""The largest number of rows that a rank may give: the sum over ranks does not overflow."""


ALONE: Final = " The group has 1 rank: start the job by a launcher, such as ngd run -n 2 train.py."
"""The advice of an error for a message in a group of one rank."""


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
        The same among the ranks of this host.
    name : str
        "world", or a name that messages and statistics show.
    is_member : bool
        False only for the result of split(None), which has rank -1 and size 0. Its collectives
        raise NotMemberError.

    Notes
    -----
    Each collective is also a function of the same name in `ngd`, which documents parameters and
    shapes. There, `group` is a parameter.

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
        """Raise the GroupClosedError of a call if the group is closed."""
        if self.closed:
            _core.stay_if_ending()
            raise GroupClosedError(
                f"{call}: expected an open group; got {self.name!r}, which was closed by close() "
                "or ngd.shutdown(). ngd.init() returns an open world, and its split() makes new "
                "groups."
            )

    def split(self, color: int | None, key: int = 0, *, name: str | None = None) -> Group:
        """Split the group into smaller groups. Every rank of the group calls it.

        Parameters
        ----------
        color : int or None
            Ranks that give the same number >= 0 form a group. None: this rank joins no group.
        key : int, default 0
            The ranks of a group are numbered in the order of their keys. Ranks of equal keys keep
            the order of this group.
        name : str, optional
            The name for messages and statistics.

        Returns
        -------
        Group
            The group of this rank. If color is None, a group without this rank (`is_member` is
            False). Closing a group closes the groups that were split from it.

        Examples
        --------
        Split the world into even and odd ranks.

        >>> world = ngd.init()
        >>> world.split(world.rank % 2, name="parity").size
        1
        """
        number = -1 if color is None else whole(color, "split", "color")
        if color is not None and number < 0:
            raise ValueError(f"split: expected a color >= 0, or None; got {color}")
        self.check_open("split")
        made = self.communicator.split(number, whole(key, "split", "key"))
        if made is None:
            return NonMember(name or f"{self.name}/None")
        return self._adopt(Group(made, name or f"{self.name}/{color}"))

    def group_of(self, members: Sequence[int], number: int, key: str, name: str) -> Group:
        """Make a group of some ranks of a world over MPI; only these ranks call it.

        They have agreed on the list, on a key of their own, and on the largest of their
        next_group_number()s. Errors use the rank numbers of this group.
        """
        self.check_open("new_group")
        made = self.communicator.group_of(members, number, key, self.timeout)
        return self._adopt(Group(made, name))

    def _adopt(self, child: Group) -> Group:
        """Add a new group to the children, and close it if another thread has closed this group."""
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
        """Reduce an array over the ranks; see ngd.all_reduce."""
        if surplus or op is REQUIRED:
            expect_op("Group.all_reduce", self.all_reduce, (x, *surplus), op)
        plain = weight is None and compression is None and algorithm == "auto"
        if plain and site is None and not async_op:
            result = self.quick("all_reduce", x, out, op)
            if result is not None:
                return result
        self.check_open("all_reduce")
        call = reduction.Call(self, op, algorithm, site or call_site())
        if weight is None:
            plan = reduction.plan(call, x, out, weight, compression)
            return self._run_plan(f"all_reduce({op})", plan, async_op)
        with self.under_way():  # the weights are told first
            plan = reduction.plan(call, x, out, weight, compression)
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
        """Reduce an array over the ranks, and return this rank's block; see ngd.reduce_scatter."""
        if surplus or op is REQUIRED:
            expect_op("Group.reduce_scatter", self.reduce_scatter, (x, *surplus), op)
        if axis == 0 and site is None and not async_op:
            result = self.quick("reduce_scatter", x, out, op)
            if result is not None:
                return result
        where, along = "reduce_scatter", whole(axis, "reduce_scatter", "axis")
        return self._run_kind(where, x, out, async_op, site, op=op, axis=along)

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
        where, along = "all_gather", whole(axis, "all_gather", "axis")
        return self._run_kind(where, x, out, async_op, site, axis=along)

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
            rows = self._counts(counts, "all_gather_v", "counts")
            return self._gather_uneven(source, rows, out, async_op, site)
        expect_rows(out, async_op, source.dtype, source.shape[1:], "all_gather_v")
        with self.under_way():
            rows = self.all_gather(np.array([len(source)]), site=f"all_gather_v() at {site}")
            return self._gather_uneven(source, rows, out, async_op, site)

    def _gather_uneven(
        self, source: Array, rows: Array, out: Any, async_op: bool, site: str
    ) -> Any:
        where = "all_gather_v"
        if rows[self.rank] != len(source):
            raise ShapeError(
                f"{where}: counts: expected {len(source)}, the rows of this rank's array, at place "
                f"{self.rank}; got {rows[self.rank]}. Give the rows of each rank."
            )
        buffer = destination(out, source.dtype, (int(rows.sum()), *source.shape[1:]), where)
        begin = int(rows[: self.rank].sum())
        check_apart(source, buffer, where, buffer[begin : begin + len(source)])
        elements = self._elements(rows, source)
        given = buffer if out is None else out
        return self._run(
            KINDS[where].wire,
            source,
            buffer,
            lambda: given,
            async_op,
            site,
            counts=elements,
            shape=source.shape[1:],
        )

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
        where, many = "broadcast", is_list(x)
        root = whole(root, where, "root")
        sources = [operand(a, where) for a in (x if many else [x])]
        buffers = destinations(out, sources, many, where)
        given = list(buffers) if out is None else list(out) if many else [out]
        if not many:
            return self._run(
                where,
                sources[0],
                buffers[0],
                lambda: given[0],
                async_op,
                site,
                root=root,
                count=sources[0].size,
                shape=sources[0].shape,
            )
        self.check_open(where)
        pending = _core.Pending.each(
            self.communicator, where, "none", root, sources, buffers, site=site or call_site()
        )
        return self._run_plan(where, Plan([pending], lambda: given), async_op)

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
        return self._run_kind("reduce", x, out, async_op, site, op=op, root=root)

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
        return self._run_kind("gather", x, out, async_op, site, root=root)

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
        where = "scatter"
        root, here = self._root(root, where)
        if x is None:
            if here:
                raise TypeError(
                    f"{where}: expected an array on rank {root}, the root; got None. Give x there; "
                    "the other ranks give None."
                )
            buffer = source = self._received(out, shape, dtype, where)
        else:
            source = operand(x, where)
            rows = block_rows(source.shape, self.size, where)
            buffer = destination(out, source.dtype, (rows, *source.shape[1:]), where)
            self._check_apart(KINDS[where], source, buffer)
        given = buffer if out is None else out
        return self._run(
            where,
            source,
            buffer,
            lambda: given,
            async_op,
            site,
            root=root,
            count=buffer.size,
            shape=buffer.shape,
        )

    def all_to_all(
        self,
        x: Any,
        *,
        out: Any = None,
        async_op: bool = False,
        site: str | None = None,
    ) -> Any:
        """Exchange blocks between all ranks; see ngd.all_to_all."""
        if site is None and not async_op:
            result = self.quick("all_to_all", x, out, "none")
            if result is not None:
                return result
        return self._run_kind("all_to_all", x, out, async_op, site)

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
        """Exchange blocks of different lengths; see ngd.all_to_all_v."""
        where, site = "all_to_all_v", site or call_site()
        source = np.atleast_1d(operand(x, where))
        sent = self._counts(send_counts, where, "send_counts")
        if sent.sum() != len(source):
            raise ShapeError(
                f"{where}: send_counts: expected numbers that add up to the {len(source)} rows of "
                f"the array; got {sent.tolist()}. Give one number per rank."
            )
        if receive_counts is not None:
            received = self._counts(receive_counts, where, "receive_counts")
            return self._exchange_uneven(source, sent, received, out, async_op, site)
        expect_rows(out, async_op, source.dtype, source.shape[1:], where)
        with self.under_way():
            received = self.all_to_all(sent, site=f"{where}() at {site}")
            return self._exchange_uneven(source, sent, received, out, async_op, site)

    def _exchange_uneven(
        self, source: Array, sent: Array, received: Array, out: Any, async_op: bool, site: str
    ) -> Any:
        where = "all_to_all_v"
        buffer = destination(out, source.dtype, (int(received.sum()), *source.shape[1:]), where)
        self._check_disjoint(source, buffer, where)
        given = buffer if out is None else out
        return self._run(
            KINDS[where].wire,
            source,
            buffer,
            lambda: given,
            async_op,
            site,
            counts=self._elements(sent, source),
            receive_counts=self._elements(received, source),
            shape=source.shape[1:],
        )

    def send(
        self, x: Any, to: int, tag: int = 0, *, async_op: bool = False, site: str | None = None
    ) -> Any:
        """Send an array to one rank; see ngd.send."""
        source = operand(x, "send")
        to, tag = self._other(to, "send", "to"), whole(tag, "send", "tag")
        return self._run(
            "send",
            source,
            source,
            lambda: None,
            async_op,
            site,
            root=to,
            tag=tag,
            count=source.size,
        )

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
        source, tag = self._other(source, "recv", "source"), whole(tag, "recv", "tag")
        buffer = self._received(out, shape, dtype, "recv")
        given = buffer if out is None else out
        return self._run(
            "recv",
            buffer,
            buffer,
            lambda: given,
            async_op,
            site,
            root=source,
            tag=tag,
            count=buffer.size,
        )

    def barrier(self, *, async_op: bool = False, site: str | None = None) -> Any:
        """Wait until every rank has called it; see ngd.barrier."""
        if site is None and not async_op and self.quick_barrier():
            return None
        nothing: Array = np.empty(0, np.uint8)
        return self._run("barrier", nothing, nothing, lambda: None, async_op, site, count=0)

    def abort(self, traceback: str) -> None:
        """Notify the other ranks that this rank has failed, and close the group.

        Groups that were split from this one are notified first.
        """
        for child in living(self._children):
            child.abort(traceback)
        self.communicator.abort(traceback)

    def close(self) -> None:
        """Leave the group, after the groups that were split from it. A second call does nothing."""
        self.closed = True
        for child in living(self._children):
            child.close()
        self.communicator.close()

    def under_way(self) -> _core.UnderWay:
        """Return a context for several collectives; an exception inside closes the group."""
        return _core.UnderWay([self.communicator], [self.abort], False)

    def _run_kind(
        self,
        where: str,
        array: Any,
        out: Any,
        async_op: bool,
        site: str | None,
        *,
        op: str = "none",
        root: int = 0,
        axis: int | None = None,
    ) -> Any:
        """A collective from one array to another, of blocks of one length: by its kind's row."""
        kind, here = KINDS[where], True
        if kind.rooted:
            root, here = self._root(root, where)
        if kind.reduces:
            reduction.check_op(op, where)
        given = operand(array, where)
        if kind.gives == "block":
            given = np.atleast_1d(given)
        along = 0 if axis is None else normal_axis(axis, given.shape, where)
        source = np.ascontiguousarray(np.moveaxis(given, along, 0)) if along else given
        blocks = 1
        if kind.gives == "blocks":
            blocks = self.size
            block_rows(source.shape, blocks, where)
        if here or kind.rooted != "gets":
            shape = source.shape
            if kind.gives != kind.gets:
                shape = (kind.rows(len(source), self.size), *shape[1:])
            buffer, finish = self._destination(out, source.dtype, shape, along, where)
            if along == 0:
                self._check_apart(kind, source, buffer)
        else:
            buffer, finish = np.empty(0, source.dtype), _nothing
        return self._run(
            where,
            source,
            buffer,
            finish,
            async_op,
            site,
            op=op,
            root=root,
            count=source.size // blocks,
            shape=given.shape,
            more=along,
        )

    def _run(
        self,
        kind: str,
        source: Array,
        buffer: Array,
        finish: Callable[[], Any],
        async_op: bool,
        site: str | None,
        *,
        op: str = "none",
        root: int = 0,
        count: int = 0,
        tag: int = 0,
        counts: list[int] | None = None,
        receive_counts: list[int] | None = None,
        shape: Shape = (),
        more: int = 0,
    ) -> Any:
        """One collective on arrays."""
        self.check_open(kind)
        pending = _core.Pending.one(
            self.communicator,
            kind,
            op,
            source,
            buffer,
            count,
            root,
            site=site or call_site(),
            tag=tag,
            counts=counts,
            receive_counts=receive_counts,
            shape=shape,
            more=more,
        )
        return self._run_plan(kind, Plan([pending], finish), async_op)

    def _run_plan(self, what: str, plan: Plan, async_op: bool) -> Any:
        """Start, and wait or leave that to the caller.

        An interrupt comes before it has begun, or closes the group in a wait, or after it is over.
        """
        if async_op:
            work = Work(self, what, plan)
            work._start()
            return work
        _core.run(plan.pending, self.timeout)
        return plan.finish()

    def _destination(
        self, out: Any, dtype: DType, shape: Shape, axis: int, where: str
    ) -> tuple[Array, Callable[[], Any]]:
        """A buffer of that shape, whose first axis is the caller's `axis`."""
        if axis == 0:
            buffer = destination(out, dtype, shape, where)
            given = buffer if out is None else out
            return buffer, lambda: given
        buffer = np.empty(shape, dtype)
        turned = np.moveaxis(buffer, 0, axis)
        if out is None:
            return buffer, lambda: np.ascontiguousarray(turned)
        final = destination(out, dtype, turned.shape, where)

        def put() -> Any:
            final[...] = turned
            return out

        return buffer, put

    def _check_apart(self, kind: Kind, source: Array, buffer: Array) -> None:
        """Refuse memory that is given and got, but where a block lies in its own place."""
        if kind.gives == kind.gets:
            check_apart(source, buffer, kind.name)
        elif kind.gets == "blocks":
            rows = len(source)
            check_apart(source, buffer, kind.name, buffer[self.rank * rows :][:rows])
        else:
            rows = len(buffer)
            check_apart(buffer, source, kind.name, source[self.rank * rows :][:rows])

    def _received(self, out: Any, shape: Shape | None, dtype: Any, where: str) -> Array:
        """What is received, as `out` or as shape and dtype say."""
        if out is not None and shape is None and dtype is None:
            seen = operand(out, f"{where}: out")
            return destination(out, seen.dtype, seen.shape, where)
        if shape is None or dtype is None:
            raise TypeError(
                f"{where}: expected out, or shape and dtype, of the received array; got neither"
            )
        wanted = as_dtype(dtype, where)
        return destination(out, wanted, lengths(shape, where, wanted.itemsize), where)

    def _root(self, root: int, where: str) -> tuple[int, bool]:
        """The root, and whether that is this rank."""
        root = whole(root, where, "root")
        if not 0 <= root < self.size:
            raise ValueError(f"{where}: expected root to be in [0, {self.size}); got {root}")
        return root, root == self.rank

    def _other(self, rank: int, where: str, name: str) -> int:
        rank = whole(rank, where, name)
        if not 0 <= rank < self.size or rank == self.rank:
            raise ValueError(
                f"{where}: {name}: expected another rank in [0, {self.size}); got {rank} on rank "
                f"{self.rank}.{ALONE if self.size == 1 else ''}"
            )
        return rank

    def _check_disjoint(self, source: Array, buffer: Array, where: str) -> None:
        if np.may_share_memory(source, buffer):
            raise ValueError(
                f"{where}: out: expected memory apart from the array's; got overlapping memory. "
                "Pass a copy."
            )

    def _counts(self, counts: Sequence[int], where: str, name: str) -> Array:
        numbers = np.asarray(counts)
        good = numbers.shape == (self.size,) and numbers.dtype.kind in "iu"
        if not good or (numbers < 0).any() or (numbers > MOST_ROWS).any():
            raise ValueError(
                f"{where}: {name}: expected a number of rows for each of {self.size} ranks; got "
                f"{counts!r}. Give one per rank."
            )
        return numbers.astype(np.int64)

    def _elements(self, rows: Array, source: Array) -> list[int]:
        row = int(np.prod(source.shape[1:], dtype=np.int64))
        return [int(n) * row for n in rows]


def _nothing() -> None:
    """The result on a rank that gets none."""


class NonMember(Group):
    """The result of split() on a rank that joins no group. `group=None` would mean the world."""

    is_member = False

    def __init__(self, name: str) -> None:
        self.name = name
        self.rank = self.local_rank = -1
        self.size = self.local_size = 0
        self.closed = False

    def __repr__(self) -> str:
        return f"<ngd.Group {self.name}: this rank is no member>"

    def refuse(self, call: str) -> Any:
        """Raise the error of a call."""
        raise NotMemberError(
            f"{call}: expected a group that includes this rank; got {self.name!r}: this rank is "
            "not "
            "a member, because its split() gave no color. Ask group.is_member before the call."
        )

    def check_open(self, call: str) -> None:
        """Raise the error of a call."""
        self.refuse(call)

    def quick(self, kind: str, *_: Any) -> Any:
        """Raise the error of a collective."""
        self.refuse(kind)

    def quick_barrier(self) -> Any:
        """Raise the error of a barrier."""
        self.refuse("barrier")

    def abort(self, traceback: str) -> None:
        """Do nothing, because this rank is not a member."""

    def close(self) -> None:
        """Mark the group as closed."""
        self.closed = True


def _refusal(call: str) -> Callable[..., Any]:
    def refuse(self: NonMember, *_: Any, **__: Any) -> Any:
        self.refuse(call)

    return refuse


for _call, _method in vars(Group).items():
    if callable(_method) and not _call.startswith("_") and _call not in vars(NonMember):
        setattr(NonMember, _call, _refusal(_call))
