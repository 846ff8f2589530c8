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

    A sharded weight update replaces a collective of the user's graph by several collectives, which
    all have the number of the replaced one. It also adds collectives. An added collective starts
    after some collective of the user's graph and has the same number, or -1 if it starts before all
    of them. Collectives with the same number start in the order of these constants.
    """

    ITSELF = 0
    """The collective itself. If the compiler replaces it by several collectives, this is the stage
    of the first one, such as the reduction over the ranks of each host."""
    OTHER_FACTOR = 1
    """The second of two collectives that replace the reduction of a gradient A^T B, a matrix
    product. First the ranks all-gather B, with the stage `ITSELF`. Then they exchange the columns
    of A by an all-to-all, with this stage."""
    BETWEEN_HOSTS = 2
    """The reduction over the ranks that have the same local index on each host. The reduction over
    the ranks of each host comes first, with the stage `ITSELF`."""
    TOTALS = 3
    """The all-reduce of totals. A total is a reduction to one element, such as the norm of a
    gradient. Each rank has computed the total of its own shard before."""
    OWNED_RESULTS = 4
    """The broadcast of a product of matrices that one rank computes for all ranks of its host."""
    UPDATED_PARTS = 5
    """The all-gather of a variable's updated shards over the ranks that have the same local index
    on each host. Each rank has updated one shard."""


class Order(NamedTuple):
    """A sort key for the collectives of a step, which start in ascending order."""

    number: int
    """The index, from 0, of a collective of the user's graph in the order in which all ranks start
    these collectives. A collective that the compiler makes has the number of one of them, or -1;
    see `Stage`."""
    stage: Stage = Stage.ITSELF
    position: int = 0
    """The third part of the key. It orders collectives with the same `number` and `stage`."""
