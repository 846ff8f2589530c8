# SPDX-License-Identifier: Apache-2.0
"""The iterator of `ngd.join`, for ranks with different numbers of batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

import numpy as np

from .._util.callsite import call_site
from .group import Group

Batch = TypeVar("Batch")


def join(
    batches: Iterable[Batch], group: Group, empty: Batch | None = None
) -> Iterator[tuple[Batch, float]]:
    """Yield pairs (batch, weight) until every rank has run out of batches; see ngd.join.

    The weight is 1.0 for a batch of this rank, and 0.0 if this rank has no more batches.
    """
    site, source, batch = f"join() at {call_site()}", iter(batches), empty
    flag = np.empty(1, np.uint8)
    has_more = True
    while True:
        if has_more:
            try:
                batch = next(source)
            except StopIteration:
                has_more = False
        flag[0] = has_more
        group.all_reduce(flag, op="max", out=flag, site=site)
        if not flag[0]:
            return
        if batch is None:
            raise ValueError(
                f"join: expected at least one batch, or empty=, on each rank; got none on rank "
                f"{group.rank} while other ranks have batches. Give empty=, a batch of the right "
                "shape."
            )
        yield batch, float(has_more)
