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

    In a sharded weight update, each rank updates its shard of a variable. For this, the compiler
    replaces a collective of the user's graph by several collectives, which keep its number. The
    compiler also adds collectives. An added collective has the number of a collective of the user's
    graph after which it starts, or -1 if it starts before all of them. Collectives with the same
    number start in the order of these constants.
    """

    ITSELF = 0
    """The collective itself. If the compiler replaces it by several collectives, this is the stage
    of the first one, such as the reduction over the ranks of each host."""
    OTHER_FACTOR = 1
    """The second of two collectives that replace the reduction of a gradient A^T B (a matmul). The
    first is an all-gather of B, with the stage `ITSELF`; the second is an all-to-all of the columns
    of A. From their results, each rank computes its rows of the reduced gradient."""
    BETWEEN_HOSTS = 2
    """The reduction over the ranks that have the same local index on each host. The reduction over
    the ranks of each host comes first, with the stage `ITSELF`."""
    TOTALS = 3
    """The all-reduce of totals. A total is a reduction to one element, such as the norm of a
    gradient. Before the all-reduce, each rank reduces its own shard to one element."""
    OWNED_RESULTS = 4
    """The broadcast of the result of matmuls to the ranks of a host. Only one rank of the host, the
    owner, computes these matmuls."""
    UPDATED_PARTS = 5
    """The all-gather of the updated shards of a variable. It runs over the ranks that have the same
    local index on each host; each of these ranks has updated one of the shards."""


class Order(NamedTuple):
    """A sort key for the collectives of a step, which start in ascending order."""

    number: int
    """The index, from 0, of a collective of the user's graph in the order in which all ranks start
    these collectives. A collective that the compiler makes has the number of one of them, or -1;
    see `Stage`."""
    stage: Stage = Stage.ITSELF
    position: int = 0
    """The third part of the key. It orders collectives with the same `number` and `stage`."""
