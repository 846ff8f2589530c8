# SPDX-License-Identifier: Apache-2.0
"""The kinds of collectives, a row each: what a rank gives, what it gets, and who gives or gets.

`ngd.NAME` is the function of the world, `ngd.Group.NAME` the method of a group, and `ngd.ops.NAME`
the op in the graph. src/cpp/comm/collective.hpp has the same rows for the core.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, TypeAlias

from ..dtypes import ALL, FLOATS, NUMBERS, DType

ALGORITHMS: Final = ("auto", "flat", "ring")
REDUCTIONS: Final[dict[str, tuple[DType, ...]]] = {
    "sum": NUMBERS,
    "mean": FLOATS,
    "min": ALL,
    "max": ALL,
    "prod": ALL,
}
"""The dtypes that each reduction accepts."""

Part: TypeAlias = Literal["nothing", "whole", "block", "blocks"]
"""What stands in an array of one rank.

whole: the same number of elements on all ranks; block: that of this rank; blocks: one of each rank,
end to end along the first axis. Strings, which are compared in every call: an Enum is slow there.
"""


class Kind(NamedTuple):
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

    @property
    def wire(self) -> str:
        """What the communicator calls it."""
        return self.told or self.name

    @property
    def in_place(self) -> bool:
        """Whether the result may lie over the operand: block by block they are of one size."""
        return self.gives == self.gets and not self.told

    @property
    def equal_results(self) -> bool:
        """Whether all ranks get the same."""
        everybody = self.rooted != "gets" and not self.between_two
        return everybody and self.gives != "blocks" and self.gets != "block"

    def rows(self, rows: int, ranks: int) -> int:
        """How many rows the result has, of an operand of so many; blocks are of one length."""
        if self.gives == self.gets:
            return rows
        return rows * ranks if self.gets == "blocks" else rows // ranks


_ROWS = (
    Kind("all_reduce", "whole", "whole", reduces=True),
    Kind("reduce_scatter", "blocks", "block", reduces=True),
    Kind("all_gather", "block", "blocks"),
    Kind("all_gather_v", "block", "blocks", told="all_gather"),
    Kind("broadcast", "whole", "whole", "gives"),
    Kind("reduce", "whole", "whole", "gets", reduces=True),
    Kind("gather", "block", "blocks", "gets"),
    Kind("scatter", "blocks", "block", "gives"),
    Kind("all_to_all", "blocks", "blocks"),
    Kind("all_to_all_v", "blocks", "blocks", told="all_to_all"),
    Kind("send", "whole", "nothing", between_two=True),
    Kind("recv", "nothing", "whole", between_two=True),
    Kind("barrier", "nothing", "nothing"),
)

KINDS: Final = {kind.name: kind for kind in _ROWS}
