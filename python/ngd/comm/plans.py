# SPDX-License-Identifier: Apache-2.0
"""Preparation of collectives on arrays: checks of the arguments, and arrays for the results.

Each function returns a Plan, which has not started. reduction.py prepares the all-reduce.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .. import _core
from .._util.callsite import call_site
from ..dtypes import Array, Shape, as_int
from .buffers import (
    check_disjoint,
    check_no_block_overlap,
    check_no_overlap,
    destination_along,
    destinations,
    is_list,
    operand,
    receive_buffer,
)
from .checks import (
    block_rows,
    check_op,
    check_out,
    check_own_rows,
    check_root,
    element_counts,
    normal_axis,
)
from .kinds import KINDS, Kind
from .work import Plan, RankGroup


def plan_one(
    group: RankGroup,
    kind: str,
    source: Array,
    buffer: Array,
    finish: Callable[[], Any],
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
) -> Plan:
    """Prepare one collective that reads `source` and writes `buffer`.

    `count` is the number of elements of a block, or of the whole array if the collective has no
    blocks. All ranks must give the same `shape`, apart from axes of length 1, and the same number
    `more`, such as the axis of the public call. Otherwise the collective fails. `finish` is a
    function without arguments. It is called after the collective, and returns the result that the
    public call returns to the user.
    """
    group.check_open(kind)
    call = _core.Call.on_array(
        group.communicator,
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
    return Plan([call], finish)


def plan_blocks(
    group: RankGroup,
    where: str,
    array: Any,
    out: Any,
    site: str | None,
    *,
    op: str = "none",
    root: int = 0,
    axis: int | None = None,
) -> Plan:
    """Prepare a collective on one array, with blocks of equal length.

    A block is the part of an array that one rank sends or receives. `where` is the name of the
    collective, such as "all_gather". `KINDS[where]` has the types of the operand and of the result:
    one block, a block per rank, or a whole array without blocks.
    """
    kind, gets_result = KINDS[where], True
    if kind.root_only:
        root = check_root(root, group.size, where)
        gets_result = kind.root_only != "result" or root == group.rank
    if kind.reduces:
        check_op(op, where)
    converted = operand(array, where)
    if kind.operand == "block":
        converted = np.atleast_1d(converted)
    along = 0 if axis is None else normal_axis(axis, converted.shape, where)
    source = np.ascontiguousarray(np.moveaxis(converted, along, 0)) if along else converted
    blocks = 1
    if kind.operand == "blocks":
        blocks = group.size
        block_rows(source.shape, blocks, where)
    if gets_result:
        buffer, finish = block_destination(group, kind, source, out, along)
    else:
        buffer, finish = np.empty(0, source.dtype), _nothing
    count, shape = source.size // blocks, converted.shape
    return plan_one(
        group,
        where,
        source,
        buffer,
        finish,
        site,
        op=op,
        root=root,
        count=count,
        shape=shape,
        more=along,
    )


def block_destination(
    group: RankGroup, kind: Kind, source: Array, out: Any, axis: int
) -> tuple[Array, Callable[[], Any]]:
    """Return (buffer, finish): the buffer that the collective writes, and a function.

    Call `finish()` after the collective. It returns the result of the public call: `out`, or a new
    array if `out` is None. If `axis` is 0, the buffer is the memory of the result. Otherwise
    `finish()` moves axis 0 of the buffer to position `axis`, and copies the data to the result.
    """
    shape = source.shape
    if kind.operand != kind.result:
        shape = (kind.rows(len(source), group.size), *shape[1:])
    buffer, finish = destination_along(out, source.dtype, shape, axis, kind.name)
    if axis == 0:
        check_no_block_overlap(kind, source, buffer, group.rank)
    return buffer, finish


def plan_all_gather_v(group: RankGroup, source: Array, rows: Array, out: Any, site: str) -> Plan:
    """Prepare an all_gather_v.

    `rows[r]` is the number of rows of rank r. All ranks pass the same array `rows`.
    """
    where, rank = "all_gather_v", group.rank
    check_own_rows(rows, rank, len(source), where)
    buffer = check_out(out, source.dtype, (int(rows.sum()), *source.shape[1:]), where)
    begin = int(rows[:rank].sum())
    check_no_overlap(source, buffer, where, buffer[begin : begin + len(source)])
    return plan_rows(group, where, source, buffer, out, site, element_counts(rows, source))


def plan_all_to_all_v(
    group: RankGroup, source: Array, sent_rows: Array, received_rows: Array, out: Any, site: str
) -> Plan:
    """Prepare an all_to_all_v.

    This rank sends `sent_rows[r]` rows to rank r, and gets `received_rows[r]` rows from it.
    """
    where = "all_to_all_v"
    buffer = check_out(out, source.dtype, (int(received_rows.sum()), *source.shape[1:]), where)
    check_disjoint(source, buffer, where)
    counts, receive_counts = (
        element_counts(sent_rows, source),
        element_counts(received_rows, source),
    )
    return plan_rows(group, where, source, buffer, out, site, counts, receive_counts)


def plan_rows(
    group: RankGroup,
    where: str,
    source: Array,
    buffer: Array,
    out: Any,
    site: str,
    counts: list[int],
    receive_counts: list[int] | None = None,
) -> Plan:
    """Prepare an all_gather_v or all_to_all_v, whose blocks have different lengths.

    `counts` and `receive_counts` have one number of elements (not of rows) per rank. For
    all_gather_v, `counts[r]` is the length of the block that rank r contributes, and
    `receive_counts` is None. For all_to_all_v, this rank sends a block of `counts[r]` elements to
    rank r, and receives a block of `receive_counts[r]` elements from it.
    """
    wire, shape = KINDS[where].wire, source.shape[1:]
    result = buffer if out is None else out
    return plan_one(
        group,
        wire,
        source,
        buffer,
        lambda: result,
        site,
        counts=counts,
        receive_counts=receive_counts,
        shape=shape,
    )


def plan_broadcast(group: RankGroup, x: Any, root: Any, out: Any, site: str | None) -> Plan:
    """Prepare the broadcast of an array or of a list of arrays."""
    where, is_sequence = "broadcast", is_list(x)
    root = as_int(root, where, "root")
    sources = [operand(a, where) for a in (x if is_sequence else [x])]
    buffers = destinations(out, sources, is_sequence, where)
    results = list(buffers) if out is None else list(out) if is_sequence else [out]
    if not is_sequence:
        return plan_one(
            group,
            where,
            sources[0],
            buffers[0],
            lambda: results[0],
            site,
            root=root,
            count=sources[0].size,
            shape=sources[0].shape,
        )
    group.check_open(where)
    call = _core.Call.on_list(
        group.communicator, where, "none", root, sources, buffers, site=site or call_site()
    )
    return Plan([call], lambda: results)


def plan_scatter(
    group: RankGroup, x: Any, root: Any, out: Any, shape: Shape | None, dtype: Any, site: str | None
) -> Plan:
    """Prepare a scatter. `x` may be None on all ranks except the root."""
    where = "scatter"
    root = check_root(root, group.size, where)
    if x is None:
        if root == group.rank:
            raise TypeError(
                f"{where}: expected an array on rank {root}, the root; got None. Give x there; "
                "the other ranks give None."
            )
        buffer = source = receive_buffer(out, shape, dtype, where)
    else:
        source = operand(x, where)
        rows = block_rows(source.shape, group.size, where)
        buffer = check_out(out, source.dtype, (rows, *source.shape[1:]), where)
        check_no_block_overlap(KINDS[where], source, buffer, group.rank)
    result = buffer if out is None else out
    return plan_one(
        group,
        where,
        source,
        buffer,
        lambda: result,
        site,
        root=root,
        count=buffer.size,
        shape=buffer.shape,
    )


def _nothing() -> None:
    """Return None: the result of a collective on a rank that gets no array."""
