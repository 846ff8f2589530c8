# SPDX-License-Identifier: Apache-2.0
"""The ops that the statements of a fused kernel compute.

With NGD_CHECK_FINITE=1, the error for a NaN or an infinity names the op that computed it. A fused
kernel computes several ops. A statement is one line of its body.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from .._util.callsite import ExpansionSite
from ..graph.registry import OPS
from ..passes import Instruction

Member: TypeAlias = tuple[str, str, int]
"""The name of an op that the user called, its call site, and a number.

If the compiler replaced the op by several other ops (its expansion), all of these have the same
number. The number is different for each call of the op, even for two calls in one line, which have
the same call site. The number is -1 if the op was not expanded.
"""


class StatementOps:
    """An object that returns the ops of an instruction, as the user called them.

    The compiler may have replaced an op that the user called by several ops. For each of them, this
    object returns the same `Member`: the user's op, its call site, and a number of this call.
    """

    def __init__(self) -> None:
        self.applications: dict[int, int] = {}

    def of_step(self, step: Instruction) -> list[Member]:
        """Return the `Member` of each op of an instruction: the user's op, call site and number.

        For a fused kernel, the list has one `Member` per statement of its body, then one per
        reduction.
        """
        op_members = [self.member(op, site) for op, site in step.made_of]
        if not op_members or "program" not in step.attrs:
            return op_members
        split = len(op_members) - len(step.attrs.get("reductions", ()))
        names = [op for op, _ in step.made_of[:split]]
        return [*ops_of_statements(step.attrs, names, op_members), *op_members[split:]]

    def member(self, op: str, site: str) -> Member:
        """Return the `Member` of an op: (name of the op that the user called, call site, number).

        If the compiler replaced the user's op by several ops, `op` is one of these. The number then
        identifies the call of the user's op, so it is the same for all of them. Otherwise `op` is
        the user's op, and the number is -1.
        """
        if not isinstance(site, ExpansionSite):
            return op, site, -1
        number = self.applications.setdefault(id(site), len(self.applications))
        return site.op, str(site), number


def ops_of_statements(
    attrs: dict[str, Any], names: Sequence[str], op_members: list[Member]
) -> list[Member]:
    """Return the `Member` of each statement of a kernel body: the op that the statement computes.

    `names` has the names of the ops in the body, in order. `op_members` has the `Member` of each of
    these ops, then of each reduction of the kernel. Passes insert copies and casts between the
    statements of these ops, and remove statements that nothing reads. An inserted statement gets
    the `Member` of the next statement that computes an op, or else the last of `op_members`.
    """
    from difflib import SequenceMatcher  # here, because it is slow to import

    opcodes = [OPS[name].kernel.opcode or name for name in names]
    statement_opcodes = [line.split(":")[0] for line in attrs["program"].split(";")]
    matcher = SequenceMatcher(None, statement_opcodes, opcodes, autojunk=False)
    members: list[Member | None] = [None] * len(statement_opcodes)
    for block in matcher.get_matching_blocks():
        for i in range(block.size):
            members[block.a + i] = op_members[block.b + i]
    filled, following = [], op_members[-1]
    for member in reversed(members):
        following = member or following
        filled.append(following)
    return filled[::-1]
