# SPDX-License-Identifier: Apache-2.0
"""The table of collectives: for each one, the operand and the result of a rank.

A collective has one name: `ngd.NAME` is the function for arrays, `ngd.Group.NAME` the method of a
group, and `ngd.ops.NAME` the op in a graph. The table of the C++ runtime is `kKinds` in
src/cpp/comm/collective.hpp.
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
"""A dict from the name of each reduction to the dtypes that the reduction accepts."""

Part: TypeAlias = Literal["nothing", "whole", "block", "blocks"]
"""The type of the operand or of the result of a collective on one rank.

"whole" is an array that is not divided into blocks and has the same size on all ranks. "block" is
the block of this rank. "blocks" has one block per rank, concatenated along the first axis.
"nothing" means that the collective does not have this array. The type is a string and not an Enum,
because each call of a collective compares types, and comparing Enum members is slower.
"""


class Kind(NamedTuple):
    """One collective: a row of the table of all collectives."""

    name: str
    operand: Part
    """The operand of a rank: a whole array, one block, a block per rank, or nothing (`Part`)."""
    result: Part
    """The result of a rank: a whole array, one block, a block per rank, or nothing (`Part`)."""
    root_only: Literal["", "operand", "result"] = ""
    """The array that is used only on the root: "operand" or "result"; empty if there is no root.

    "operand" means that only the root's array is sent, as in broadcast. "result" means that only
    the root gets a result, as in reduce.
    """
    reduces: bool = False
    """True if the collective needs a reduction op."""
    is_point_to_point: bool = False
    """True for send and recv, which only two ranks of the group call."""
    variant_of: str = ""
    """The collective without "_v", if this is all_gather_v or all_to_all_v; else empty.

    The communicator has only all_gather and all_to_all, and these also accept blocks of different
    lengths.
    """

    @property
    def wire(self) -> str:
        """The collective that the communicator runs.

        It is all_gather for all_gather_v, all_to_all for all_to_all_v, and otherwise `name`.
        """
        return self.variant_of or self.name

    @property
    def can_be_in_place(self) -> bool:
        """True if operand and result always have the same size, so that one array may be both."""
        return self.operand == self.result and not self.variant_of

    @property
    def has_equal_results(self) -> bool:
        """True if all ranks get the same result."""
        everybody = self.root_only != "result" and not self.is_point_to_point
        return everybody and self.operand != "blocks" and self.result != "block"

    def rows(self, rows: int, ranks: int) -> int:
        """Return the number of rows of a rank's result, if all blocks have the same length.

        `rows` is the number of rows of the rank's operand, and `ranks` the number of ranks. For
        example, with 4 ranks, a reduce_scatter of 8 rows returns 2, and an all_gather of 2 rows
        returns 8.
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
