# SPDX-License-Identifier: Apache-2.0
"""The sequence of collectives of a step, for each group.

When ranks start a collective, they compare the hashes of their sequences
(src/cpp/comm/shm/group.cpp; over MPI, src/cpp/comm/mpi/wire.hpp). So a rank with another sequence
is found at once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from .. import passes
from .._util.callsite import call_site
from ..comm import Group
from ..comm.kinds import KINDS
from ..dtypes import DType, Type
from ..graph.graph import Graph
from ..ops.collectives.groups import Ranks

Item = TypeVar("Item")

MESSAGES: Final = {kind.wire for kind in KINDS.values() if kind.is_point_to_point}
"""The kinds of messages between two ranks: sends and receives."""


class CollectiveSequence:
    """The groups in which a step communicates, and the sequence of its collectives in each of them.

    Each group has an index. Index 0 is the group of the step. The other groups follow in the order
    of their first collective. Messages between two ranks are not part of a sequence. Different
    steps may have the same sequence. So the ranks also compare a hash of the step's computation
    (passes/fingerprint.py).
    """

    def __init__(self, group: Ranks, graph: Graph, precision: DType) -> None:
        self.graph, self.precision, self.site = graph, precision, call_site()
        self.groups: list[Ranks] = [group]
        self.lines: list[list[tuple[str, str]]] = [[]]
        self.heads: list[tuple[str, str]] = []  # the first line of each body that is being added
        self.branches: list[dict[int, int]] = []
        """One dict per branch of `ops.cond` whose collectives are being added; the innermost branch
        is last. The dict maps the index of a group to the number of the branch in this group (see
        `counted`). A group is added at its first collective in the branch, outside of nested
        branches."""
        self.counted: dict[int, int] = {}
        """A dict from the index of a group to the number of branches of `ops.cond` that have had a
        collective of this group so far. The next such branch gets this count plus 1 as its number.
        """

    def number(self, group: Ranks | None) -> int:
        """Return the index of a group. A group without an index gets the next one.

        None is the group of the step, whose index is 0.
        """
        if group is None:
            return 0
        if group not in self.groups:
            self.groups.append(group)
            self.lines.append(list(self.heads))
        return self.groups.index(group)

    def add(self, kind: str, attrs: Mapping[str, Any], type: Type, number: int, site: str) -> int:
        """Add a collective to the sequence of the group with index `number`.

        Return the number of the innermost branch of an `ops.cond` that has the collective; 0 if
        none has it. Each group numbers only the branches that have its collectives, from 1. So the
        numbers are equal on all ranks of the group, even if one rank has an additional `ops.cond`
        without collectives of this group. A send or receive is not added, and the result is 0.
        """
        if kind in MESSAGES:
            return 0
        self.lines[number].append((collective_line(kind, attrs, type), site))
        if not self.branches:
            return 0
        numbers = self.branches[-1]
        if number not in numbers:
            self.counted[number] = numbers[number] = self.counted.get(number, 0) + 1
        return numbers[number]

    def inside(
        self, op: str, attrs: Mapping[str, Any], site: str, bodies: Sequence[Item]
    ) -> Iterator[Item]:
        """Yield the graphs that `op` runs: the body of a loop, or the branches of an `ops.cond`.

        The caller adds the collectives of each graph before it takes the next graph. The sequence
        of a group has one line of text per collective. If a graph has collectives of the group,
        this method adds a line such as "cond, graph 0, 1 times:" before them, and "end" after them.
        """
        for number, body in enumerate(bodies):
            head = (f"{op}, graph {number}, {attrs.get('length', 1)} times:", site)
            self.heads.append(head)
            self.branches += [{}] if len(bodies) > 1 else []
            for lines in self.lines:
                lines.append(head)
            yield body
            self.heads.pop()
            del self.branches[len(self.branches) - (len(bodies) > 1) :]
            for lines in self.lines:
                if lines[-1] is head:
                    lines.pop()
                else:
                    lines.append(("end", site))

    def hashes(self) -> list[int]:
        """Return for each group the hash of the sequence of its collectives; 0 if it has none."""
        return [hash for _, hash in map(digest, self.lines)]

    def sequences(self) -> list[tuple[str, int, int]]:
        """Return a tuple (text, hash, computation) for each group.

        `text` lists the collectives of the group in order, and `hash` is a hash of this sequence.
        `computation` is a hash of the computation of the whole step (passes/fingerprint.py). A
        group without collectives has ("", 0, 0).
        """
        computes = passes.computation(self.graph, self.precision) if any(self.lines) else 0
        description = f"\n\n{describe_step(self.graph)}, compiled at {self.site}"
        digests = map(digest, self.lines)
        return [
            (text + description, hash, computes) if hash else ("", 0, 0) for text, hash in digests
        ]


def collective_line(kind: str, attrs: Mapping[str, Any], type: Type) -> str:
    """Return the text that describes a collective in a sequence: kind, attributes and type.

    The text leaves out the values that may differ between ranks, such as the algorithm.
    """
    local = {"algorithm", "receive_counts", "counts" if "receive_counts" in attrs else "algorithm"}
    attrs_text = "".join(f" {k}={v}" for k, v in sorted(attrs.items()) if k not in local)
    return f"{kind}{attrs_text} {type.dtype.name if 'counts' in attrs else type}"


def describe_step(graph: Graph) -> str:
    """Return a short description of a step: its outputs and the variables that it updates."""
    outputs = [f"{n.op.name} {n.type}" for n in graph.outputs]
    updates = [str(v.attrs["name"]) for v, _ in graph.updates]
    parts = [("outputs", outputs), ("updates", updates)]
    texts = (f"{name} {', '.join(v[:3])}{', ...' if len(v) > 3 else ''}" for name, v in parts if v)
    return f"the step with {' and '.join(texts) or 'no output'}"


def digest(sequence: list[tuple[str, str]]) -> tuple[str, int]:
    """Return the text of a sequence, and a hash of the sequence, which is 0 if it is empty.

    `sequence` has pairs (line, call site). A line describes a collective, or marks the begin or end
    of a loop or branch. The text contains the call sites. The hash depends on the lines only.
    """
    text = "\n".join(f"{what} at {site}" for what, site in sequence)
    hashed = hashlib.sha256("\n".join(what for what, _ in sequence).encode()).digest()
    return text, (int.from_bytes(hashed[:8], "little") or 1) if sequence else 0


def open_groups(groups: Sequence[Ranks]) -> list[Group]:
    """Return the groups of a step, or raise an error if one of them cannot be used or is closed."""
    for group in groups:
        if not isinstance(group, Group):
            raise TypeError(
                f"compile: expected groups made by ngd; got {group!r}. Use ngd.init() or its "
                "split()."
            )
        group.check_open("step")
    return [g for g in groups if isinstance(g, Group)]
