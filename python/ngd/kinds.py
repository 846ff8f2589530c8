# SPDX-License-Identifier: Apache-2.0
"""The kinds of collectives, a row each: what a rank gives, what it gets, and who gives or gets.

`ngd.NAME` is the function of the world, `ngd.Group.NAME` the method of a group, `ngd.ops.OP` the op
in the graph. What they share is here; src/cpp/comm/collective.hpp has the same rows for the core.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal


class Part(Enum):
    """What stands in an array of one rank."""

    NOTHING = 0
    WHOLE = 1
    """The same number of elements on all ranks."""
    BLOCK = 2
    """The block of this rank."""
    BLOCKS = 3
    """A block of each rank, end to end along the first axis."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A row of the table."""

    name: str
    gives: Part
    gets: Part
    rooted: Literal["", "gives", "gets"] = ""
    """What the root alone does."""
    reduces: bool = False
    between_two: bool = False
    """Two ranks alone, outside of the sequence that all share."""
    told: str = ""
    """Of blocks that differ in length: what the communicator calls it, which takes their counts."""
    as_op: str = ""
    """The op's name, where it is another: what a rank is given nothing for is zero there."""

    @property
    def wire(self) -> str:
        """What the communicator calls it."""
        return self.told or self.name

    @property
    def op(self) -> str:
        """The name of the op in the graph."""
        return self.as_op or self.name

    @property
    def in_place(self) -> bool:
        """Whether the result may lie over the operand: block by block they are of one size."""
        return self.gives is self.gets and not self.told

    @property
    def equal_results(self) -> bool:
        """Whether all ranks get the same."""
        everybody = self.rooted != "gets" and not self.between_two
        return everybody and self.gives is not Part.BLOCKS and self.gets is not Part.BLOCK

    def rows(self, rows: int, ranks: int) -> int:
        """How many rows the result has, of an operand of so many; blocks are of one length."""
        if self.gives is self.gets:
            return rows
        return rows * ranks if self.gets is Part.BLOCKS else rows // ranks


_ROWS = (
    Kind("all_reduce", Part.WHOLE, Part.WHOLE, reduces=True),
    Kind("reduce_scatter", Part.BLOCKS, Part.BLOCK, reduces=True),
    Kind("all_gather", Part.BLOCK, Part.BLOCKS),
    Kind("all_gather_v", Part.BLOCK, Part.BLOCKS, told="all_gather"),
    Kind("broadcast", Part.WHOLE, Part.WHOLE, "gives"),
    Kind("reduce", Part.WHOLE, Part.WHOLE, "gets", reduces=True, as_op="reduce_to"),
    Kind("gather", Part.BLOCK, Part.BLOCKS, "gets", as_op="gather_to"),
    Kind("scatter", Part.BLOCKS, Part.BLOCK, "gives"),
    Kind("all_to_all", Part.BLOCKS, Part.BLOCKS),
    Kind("all_to_all_v", Part.BLOCKS, Part.BLOCKS, told="all_to_all"),
    Kind("send", Part.WHOLE, Part.NOTHING, between_two=True),
    Kind("recv", Part.NOTHING, Part.WHOLE, between_two=True),
    Kind("barrier", Part.NOTHING, Part.NOTHING),
)

KINDS: Final = {kind.name: kind for kind in _ROWS}
