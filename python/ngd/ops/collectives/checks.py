# SPDX-License-Identifier: Apache-2.0
"""Checks of collectives in a graph: reductions, ranks, and shapes of operands and results.

The method `infer` of each collective calls them. comm/checks.py has the checks of collectives that
are called on arrays. The communicator checks that all ranks call the same collective with operands
of the same shape (src/cpp/comm/shm/group.cpp).
"""

from __future__ import annotations

from collections.abc import Sequence

from ...comm.checks import check_op
from ...comm.kinds import REDUCTIONS, Kind
from ...dtypes import Type, as_int
from ...errors import ShapeError
from .._operands import expect_dtype
from .groups import Ranks


def expect_reduction(where: str, op: str, x: Type) -> None:
    """Raise an error if the reduction does not exist or does not accept the dtype of x."""
    check_op(op, where)
    expect_dtype(f'{where}(op="{op}")', (x,), REDUCTIONS[op])


def expect_root(where: str, root: int, group: Ranks | None, x: Type) -> Type:
    """Return x, the type of the operand; ValueError if the root is not a rank of the group.

    If the group is None, the number of ranks is not known before the step is compiled, so only a
    negative root raises.
    """
    if root < 0 or (group is not None and root >= group.size):
        wanted = ">= 0" if group is None else f"in [0, {group.size})"
        raise ValueError(
            f"{where}: expected a root {wanted}; got {root}. Give the number of a rank of the "
            "group."
        )
    return x


def expect_other(where: str, other: int, group: Ranks | None, x: Type) -> Type:
    """Return x; ValueError unless `other` is a rank of the group other than this rank.

    x is the type of the array that the two ranks exchange. If the group is None, the ranks are not
    known before the step is compiled, so only a negative `other` raises.
    """
    expect_root(where, other, group, x)
    if group is not None and other == group.rank:
        raise ValueError(
            f"{where}: expected another rank; got {other}, this one. Send to a rank other than "
            "this one."
        )
    return x


def expect_rows(where: str, x: Type) -> None:
    """Raise ShapeError for a scalar, because it has no axis 0 and so no rows."""
    if not x.shape:
        raise ShapeError(f"{where}: expected at least one axis; got {x}")


def of_equal_blocks(kind: Kind, x: Type, size: int) -> Type:
    """Return the result type of a collective with equal blocks of rows, one block per rank.

    `kind` is the entry of the collective in the table of comm/kinds.py, x the type of the operand,
    and `size` the number of ranks. For example, with 4 ranks, all_gather of float32[2, 3] returns
    float32[8, 3], and reduce_scatter of float32[8, 3] returns float32[2, 3]. Raise ShapeError if
    the rows of the operand cannot be divided into equal blocks.
    """
    expect_rows(kind.name, x)
    if kind.operand == "blocks" and x.shape[0] % size:
        raise ShapeError(f"{kind.name}: expected rows for {size} equal blocks; got {x}. Pad x.")
    return with_rows(x, kind.rows(x.shape[0], size))


def expect_counts(where: str, counts: Sequence[int], size: int, rows: int, what: str) -> None:
    """Raise ShapeError unless `counts` has one entry per rank, and `rows` fits the entries.

    counts[r] is the number of rows of rank r, `size` the number of ranks, and `rows` the number of
    rows of an array. If `what` is "all", the array has the rows of all ranks, and `rows` must be
    the sum of the counts. Otherwise `what` is the number of a rank, as a string, and `rows` must be
    the count of this rank.
    """
    row_counts = tuple(counts)
    if len(row_counts) != size or any(n < 0 for n in row_counts) or rows < 0:
        raise ShapeError(
            f"{where}: expected {size} numbers of rows >= 0, one per rank; got {row_counts}"
        )
    expected = sum(row_counts) if what == "all" else row_counts[int(what)]
    if rows != expected:
        raise ShapeError(
            f"{where}: expected {expected} rows by the counts {row_counts}; got {rows}"
        )


def as_counts(counts: Sequence[int]) -> tuple[int, ...]:
    """Return the user's numbers of rows per rank as a tuple of ints."""
    return tuple(as_int(n, "counts", f"number {i}", 64) for i, n in enumerate(counts))


def with_rows(x: Type, rows: int) -> Type:
    """Return the type x with axis 0 of size `rows`."""
    return Type(x.dtype, (rows, *x.shape[1:]))
