# SPDX-License-Identifier: Apache-2.0
"""The sort key by which all ranks start the collectives of a step in one order.

passes/collective_order.py gives each collective its key. devices/collective_sequence.py writes the
resulting sequence as a text, and the ranks compare its hash when they start a collective.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class Stage(IntEnum):
    """The step of a collective's replacement that a collective belongs to.

    A sharded weight update replaces one collective of the graph by several. Those of one number
    start in the order of these constants.
    """

    ITSELF = 0
    """The collective itself, or the first of its replacements, such as the part inside hosts."""
    OTHER_FACTOR = 1
    """The exchange of A if a gradient is a matrix product A^T B, and the ranks exchange A and B
    instead of the gradient. `ITSELF` gathers B."""
    BETWEEN_HOSTS = 2
    """The reduction between ranks with the same index on each host, after `ITSELF` inside hosts."""
    TOTALS = 3
    """The reduction of totals over shards, such as norms of gradients, which earlier stages sum."""
    OWNED_RESULTS = 4
    """The broadcast of a product of matrices that one rank computes for all ranks of its host."""
    UPDATED_PARTS = 5
    """The gathering of the updated parts of a variable."""


class Order(NamedTuple):
    """A sort key for the collectives of a step, which start in ascending order."""

    number: int
    """The position in `collectives_in_order` of the collective that the user's graph has."""
    stage: Stage = Stage.ITSELF
    position: int = 0
    """The position among the collectives of one number and stage."""
