# SPDX-License-Identifier: Apache-2.0
"""The sort key by which all ranks start the collectives of a step in one order.

passes/collective_order.py gives each collective its key. devices/collective_sequence.py writes the
resulting sequence as a text, and the ranks compare its hash when they start a collective.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class Stage(IntEnum):
    """The collectives that replace one collective of the graph, in the order of their starts."""

    ITSELF = 0
    """The collective, or its part inside each host."""
    OTHER_FACTOR = 1
    """The exchange of the second gradient factor; `ITSELF` exchanges the first one."""
    BETWEEN_HOSTS = 2
    """The part between counterparts, after `ITSELF` inside each host."""
    TOTALS = 3
    """The reduction of totals, such as norms, which are computed from sums of the stages before."""
    OWNED_RESULTS = 4
    """The broadcast of a result that one rank of a host computes for all ranks of the host."""
    UPDATED_PARTS = 5
    """The gathering of the updated parts of a variable."""


class Order(NamedTuple):
    """A sort key for the collectives of a step, which start in ascending order."""

    number: int
    """The number of the collective in the graph."""
    stage: Stage = Stage.ITSELF
    position: int = 0
    """The position among the collectives of one number and stage."""
