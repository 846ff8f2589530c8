# SPDX-License-Identifier: Apache-2.0
"""The sort key by which all ranks start the collectives of a step in one order.

passes/collective_order.py gives each collective its key. devices/collective_sequence.py writes the
resulting sequence as a text, and the ranks compare its hash when they start a collective.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class Stage(IntEnum):
    """The second part of the sort key, for collectives with the same `Order.number`.

    A sharded weight update replaces a collective of the user's graph by several, which all get its
    number. It also adds other collectives. Each of these gets the number of an earlier collective
    of the user's graph, after which it starts, or -1 if there is no earlier one. Collectives with
    the same number start in the order of these constants.
    """

    ITSELF = 0
    """The collective itself, or the first of its replacements, such as a reduction in each host."""
    OTHER_FACTOR = 1
    """The all-to-all of the matrix A, if a gradient is a matrix product A^T B and the ranks
    exchange its factors A and B instead of reducing the gradient. Before it comes the all-gather of
    B, with the stage `ITSELF`."""
    BETWEEN_HOSTS = 2
    """The reduction between ranks with the same index on each host, after `ITSELF` inside hosts."""
    TOTALS = 3
    """The reduction over ranks of totals, such as the norm of a gradient. Before it, each rank has
    computed the total of its own shard, for example of a gradient."""
    OWNED_RESULTS = 4
    """The broadcast of a product of matrices that one rank computes for all ranks of its host."""
    UPDATED_PARTS = 5
    """The gathering of the updated parts of a variable."""


class Order(NamedTuple):
    """A sort key for the collectives of a step, which start in ascending order."""

    number: int
    """The position in `collectives_in_order` of a collective of the user's graph, before the
    compiler replaces it."""
    stage: Stage = Stage.ITSELF
    position: int = 0
    """The position among the collectives with the same number and stage."""
