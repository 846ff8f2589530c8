# SPDX-License-Identifier: Apache-2.0
"""Checks of the arguments of collectives on arrays: ops, ranks, axes, numbers of rows, `out`.

These checks use only the arguments of this rank. The communicator checks that all ranks call the
same collective with operands of the same shape (src/cpp/comm/shm/group.cpp).
ops/collectives/checks.py has the checks of collectives in a graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from .._util.caller_arrays import view
from ..dtypes import Array, DType, Shape, as_int
from ..errors import ShapeError
from .kinds import REDUCTIONS

MOST_ROWS: Final = 2**48
"""The largest number of rows per rank in all_gather_v and all_to_all_v.

The limit is 2**48, so that the sum over up to 2**15 - 1 ranks is less than 2**63 and fits in int64.
"""

ALONE: Final = " The group has 1 rank: start the job by a launcher, such as ngd run -n 2 train.py."
"""The last sentence of the error message of send or recv in a group of one rank."""


def check_op(op: str, where: str) -> None:
    """Raise ValueError unless `op` is the name of a reduction."""
    if op not in REDUCTIONS:
        raise ValueError(f"{where}: expected op among {', '.join(REDUCTIONS)}; got {op!r}")


def check_root(root: int, size: int, where: str) -> int:
    """Return the root as an int; raise ValueError if it is not a rank of the group."""
    root = as_int(root, where, "root")
    if not 0 <= root < size:
        raise ValueError(f"{where}: expected root to be in [0, {size}); got {root}")
    return root


def position_of_world_rank(rank: int, ranks: Sequence[int], where: str, name: str) -> int:
    """Convert a rank of the world to a rank of a group: return the index of `rank` in `ranks`.

    `ranks` lists the ranks of the group by their numbers in the world. For example, with ranks =
    [2, 5], rank 5 of the world has the index 1. Raise ValueError if `rank` is not in the list.
    """
    rank = as_int(rank, where, name)
    if rank not in ranks:
        raise ValueError(
            f"{where}: {name}: expected a rank of the world among {list(ranks)}; got {rank!r}"
        )
    return ranks.index(rank)


def check_other_rank(other: int, rank: int, size: int, where: str, name: str) -> int:
    """Return `other` as an int; raise ValueError if it is `rank`, or not a rank of the group."""
    other = as_int(other, where, name)
    if not 0 <= other < size or other == rank:
        raise ValueError(
            f"{where}: {name}: expected another rank in [0, {size}); got {other} on rank "
            f"{rank}.{ALONE if size == 1 else ''}"
        )
    return other


def check_row_counts(counts: Sequence[int], size: int, where: str, name: str) -> Array:
    """Return `counts` as int64; raise ShapeError unless it has one number of rows per rank.

    The numbers must be integers from 0 to MOST_ROWS.
    """
    row_counts = np.asarray(counts)
    is_valid = row_counts.shape == (size,) and row_counts.dtype.kind in "iu"
    if not is_valid or (row_counts < 0).any() or (row_counts > MOST_ROWS).any():
        raise ShapeError(
            f"{where}: {name}: expected a number of rows for each of {size} ranks; got "
            f"{counts!r}. Give one per rank."
        )
    return row_counts.astype(np.int64)


def check_own_rows(counts: Array, rank: int, rows: int, where: str) -> None:
    """Raise ShapeError unless `counts[rank]` is `rows`, the number of rows of this rank's array."""
    if counts[rank] != rows:
        raise ShapeError(
            f"{where}: counts: expected {rows}, the rows of this rank's array, at index "
            f"{rank}; got {counts[rank]}. Give the rows of each rank."
        )


def check_sum_of_rows(counts: Array, rows: int, where: str, name: str) -> None:
    """Raise ShapeError unless the sum of `counts` is the number of rows of the array."""
    if counts.sum() != rows:
        raise ShapeError(
            f"{where}: {name}: expected numbers that add up to the {rows} rows of "
            f"the array; got {counts.tolist()}. Give one number per rank."
        )


def normal_axis(axis: int, shape: Shape, where: str) -> int:
    """Return an axis as a number >= 0; raise ShapeError if the array does not have it."""
    axis = as_int(axis, where, "axis")
    if not shape:
        raise ShapeError(
            f"{where}: expected an array of at least one axis; got a scalar. Reshape it to (1,)."
        )
    if not -len(shape) <= axis < len(shape):
        raise ShapeError(
            f"{where}: axis: expected an axis in [{-len(shape)}, {len(shape)}) of an array of "
            f"shape {shape}; got {axis}. Reshape the array."
        )
    return axis % len(shape)


def block_rows(shape: Shape, size: int, where: str) -> int:
    """Return the number of rows per block, if axis 0 is split into `size` blocks, one per rank.

    Raise ShapeError if there is no axis 0, or if its length is not a multiple of `size`.
    """
    if not shape or shape[0] % size:
        raise ShapeError(
            f"{where}: expected an array whose axis 0 divides evenly among {size} ranks; got one "
            f"of shape {shape}. Reshape or pad it."
        )
    return shape[0] // size


def element_counts(rows: Array, source: Array) -> list[int]:
    """Convert numbers of rows to numbers of elements: multiply by the size of a row of `source`."""
    row = int(np.prod(source.shape[1:], dtype=np.int64))
    return [int(n) * row for n in rows]


def check_out(out: Any, dtype: DType, shape: Shape, where: str, name: str = "out") -> Array:
    """Return `out` as an array, or a new array if it is None.

    Raise ShapeError if `out` has another dtype or shape, or is not contiguous and writable.
    """
    if type(out) is np.ndarray and out.shape == shape and out.dtype == dtype and out.flags.carray:
        return out
    if out is None:
        return np.empty(shape, dtype)
    if not isinstance(out, np.ndarray) and not hasattr(out, "__dlpack__"):
        try:
            memoryview(out)
        except TypeError:
            raise TypeError(
                f"{where}: {name}: expected an array (NumPy's, or with DLPack or the buffer "
                f"protocol); got {type(out).__name__}"
            ) from None
    array = view(out, f"{where}: {name}")
    flags = array.flags
    has_type = array.shape == shape and array.dtype == dtype
    if not (has_type and flags.c_contiguous and flags.aligned and flags.writeable):
        layout = "contiguous" if flags.c_contiguous else "strided"
        if not flags.aligned:
            layout = "misaligned"
        raise ShapeError(
            f"{where}: {name}: expected a contiguous, writable {dtype} array of shape {shape}; "
            f"got a {layout}{'' if flags.writeable else ', read-only'} {array.dtype} one of "
            f'{array.shape}. Make it by np.empty({shape}, "{dtype}").'
        )
    return array


def check_out_rows(out: Any, async_op: Any, dtype: DType, row: Shape, where: str) -> None:
    """Check that `async_op` is a bool, and that `out` has this dtype and rows of this shape.

    The number of rows of the result is not known yet, so `out` may have any number of rows. Call
    this before the ranks exchange their numbers of rows: if it raises an error, no collective has
    started, and the group stays usable.
    """
    if not isinstance(async_op, (bool, np.bool_)):
        raise TypeError(
            f"{where}: async_op: expected a bool; got {type(async_op).__name__}. Write "
            "async_op=True."
        )
    if out is not None:
        count = tuple(getattr(out, "shape", ()))[:1] or (0,)
        check_out(out, dtype, (*count, *row), where)
