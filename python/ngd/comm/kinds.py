# SPDX-License-Identifier: Apache-2.0
"""The table of collectives: for each one, the operand and the result of a rank.

A collective has one name: `ngd.NAME` is the function for arrays, `ngd.Group.NAME` the method of a
group, and `ngd.ops.NAME` the op in a graph. src/cpp/comm/collective.hpp has the same table for the
core.
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
"""The content of a rank's operand or result, in relation to the other ranks' arrays.

"whole" is an array whose size, but not its content, is equal on all ranks. "block" is the block of
this rank, and "blocks" are the blocks of all ranks, concatenated along the first axis. "nothing" is
no array. These values are strings, because each call of a collective compares them, and comparing
Enum members is slower.
"""


class Kind(NamedTuple):
    """One collective: a row of the table of all collectives."""

    name: str
    operand: Part
    """The content of a rank's operand."""
    result: Part
    """The content of a rank's result."""
    root_only: Literal["", "operand", "result"] = ""
    """The array that only the root has: "operand" or "result"; empty for other collectives."""
    reduces: bool = False
    """True if the collective needs a reduction op."""
    is_point_to_point: bool = False
    """True for send and recv, which only two ranks of the group call."""
    variant_of: str = ""
    """The communicator's name for the collective, if it differs from `name`; else empty.

    It is all_gather for all_gather_v, because the communicator's all_gather also accepts blocks of
    different lengths. The same is true of all_to_all.
    """

    @property
    def wire(self) -> str:
        """The name of the communicator's collective: all_gather for all_gather_v, or `name`."""
        return self.variant_of or self.name

    @property
    def can_be_in_place(self) -> bool:
        """True if operand and result have equal sizes, so that they may be the same array."""
        return self.operand == self.result and not self.variant_of

    @property
    def has_equal_results(self) -> bool:
        """True if all ranks get the same result."""
        everybody = self.root_only != "result" and not self.is_point_to_point
        return everybody and self.operand != "blocks" and self.result != "block"

    def rows(self, rows: int, ranks: int) -> int:
        """Return the number of rows of the result for an operand with `rows` rows.

        This is valid only if the blocks of all ranks have the same length.
        """
        if self.operand == self.result:
            return rows
        return rows * ranks if self.result == "blocks" else rows // ranks


_ROWS = (
    Kind("all_reduce", "whole", "whole", reduces=True),
    Kind("reduce_scatter", "blocks", "block", reduces=True),
    Kind("all_gather", "block", "blocks"),
    Kind("all_gather_v", "block", "blocks", variant_of="all_gather"),
    Kind("broadcast", "whole", "whole", "operand"),
    Kind("reduce", "whole", "whole", "result", reduces=True),
    Kind("gather", "block", "blocks", "result"),
    Kind("scatter", "blocks", "block", "operand"),
    Kind("all_to_all", "blocks", "blocks"),
    Kind("all_to_all_v", "blocks", "blocks", variant_of="all_to_all"),
    Kind("send", "whole", "nothing", is_point_to_point=True),
    Kind("recv", "nothing", "whole", is_point_to_point=True),
    Kind("barrier", "nothing", "nothing"),
)

KINDS: Final = {kind.name: kind for kind in _ROWS}
"""The collectives by name."""
