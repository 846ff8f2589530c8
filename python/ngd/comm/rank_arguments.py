# SPDX-License-Identifier: Apache-2.0
"""Checks of arguments that name ranks, or that give a number of rows for each rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from ..dtypes import Array, whole

MOST_ROWS: Final = 2**48
"""The largest number of rows that a rank may give: the sum over ranks does not overflow."""

ALONE: Final = " The group has 1 rank: start the job by a launcher, such as ngd run -n 2 train.py."
"""The advice of an error for a message in a group of one rank."""


def check_root(root: int, size: int, where: str) -> int:
    """Return the root as an int; ValueError if it is not a rank of the group."""
    root = whole(root, where, "root")
    if not 0 <= root < size:
        raise ValueError(f"{where}: expected root to be in [0, {size}); got {root}")
    return root


def check_other_rank(other: int, rank: int, size: int, where: str, name: str) -> int:
    """Return the number of another rank as an int; ValueError if it is `rank` or not in a group."""
    other = whole(other, where, name)
    if not 0 <= other < size or other == rank:
        raise ValueError(
            f"{where}: {name}: expected another rank in [0, {size}); got {other} on rank "
            f"{rank}.{ALONE if size == 1 else ''}"
        )
    return other


def check_row_counts(counts: Sequence[int], size: int, where: str, name: str) -> Array:
    """Return the numbers of rows as an array; ValueError unless there is one for each rank."""
    numbers = np.asarray(counts)
    good = numbers.shape == (size,) and numbers.dtype.kind in "iu"
    if not good or (numbers < 0).any() or (numbers > MOST_ROWS).any():
        raise ValueError(
            f"{where}: {name}: expected a number of rows for each of {size} ranks; got "
            f"{counts!r}. Give one per rank."
        )
    return numbers.astype(np.int64)


def element_counts(rows: Array, source: Array) -> list[int]:
    """Return numbers of elements for numbers of rows of an array."""
    row = int(np.prod(source.shape[1:], dtype=np.int64))
    return [int(n) * row for n in rows]
