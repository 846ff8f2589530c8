# SPDX-License-Identifier: Apache-2.0
"""What collectives have cost, and what the ranks say that they call."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .group import GROUPS, Group, living


@dataclass(frozen=True, slots=True)
class CallStats:
    """What a collective at a call site has cost this rank so far.

    Attributes
    ----------
    group
        The name of the group.
    op
        "all_reduce(sum)", for instance.
    site
        `file:line` of the call.
    calls, bytes
        How many, and how much in all: of this rank's source or destination, the larger.
    seconds, waited
        From start to completion, and what of it was spent waiting, in seconds.
    last
        By rank: how often it was the last to come. A rank that leads here holds the others up.
    """

    group: str
    op: str
    site: str
    calls: int
    bytes: int
    seconds: float
    waited: float
    last: tuple[int, ...]


class CommStats(list[CallStats]):
    """The rows of ngd.comm_stats(), the longest waits first; str() makes a table of them."""

    def __str__(self) -> str:
        head = ("group", "op", "calls", "MB", "ms", "ms waited", "last to come", "call site")
        table = [head]
        for row in self:
            last = " ".join(f"{rank}:{n}" for rank, n in enumerate(row.last) if n)
            table.append(
                (
                    row.group,
                    row.op,
                    str(row.calls),
                    f"{row.bytes / 1e6:.3f}",
                    f"{row.seconds * 1e3:.3f}",
                    f"{row.waited * 1e3:.3f}",
                    last,
                    row.site,
                )
            )
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        numbers = range(2, 6)
        return "\n".join(
            "  ".join(
                cell.rjust(width) if i in numbers else cell.ljust(width)
                for i, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in table
        )


def comm_stats() -> CommStats:
    """What each collective of each call site has cost this rank, over all groups of the process.

    Returns
    -------
    CommStats
        A list of CallStats, the longest waits first; print it for a table. Empty where nothing is
        counted (in a group of one). Groups that are closed and forgotten are not in it.
    """
    rows = [row for group in living(GROUPS) for row in stats_of(group)]
    return CommStats(sorted(rows, key=lambda row: (-row.waited, row.group, row.op, row.site)))


def stats_of(group: Group) -> list[CallStats]:
    """The rows of one group."""
    rows = []
    for kind, op, site, calls, moved, seconds, waited, last in group.communicator.stats():
        name = kind if op == "none" else f"{kind}({op})"
        rows.append(CallStats(group.name, name, site, calls, moved, seconds, waited, tuple(last)))
    return rows


def compare_ranks(group: Group, text: str, computation: int, site: str) -> str:
    """The first difference between the ranks' sequences of collectives, in words.

    `text` has one collective a line, ending in " at FILE:LINE", then an empty line and which step
    it is; `computation` tells what that computes. Every rank calls this, and gets the same answer.
    """
    mine = np.frombuffer(text.encode(errors="backslashreplace"), np.uint8)
    with group.under_way():
        lengths = group.all_gather(np.array([len(mine)]), site=site)
        everything = group.all_gather_v(mine, counts=lengths, site=site).tobytes()
        computations = group.all_gather(np.uint64(computation), site=site)
    ends = np.cumsum(lengths)
    texts = [
        everything[end - length : end].decode().partition("\n\n")
        for end, length in zip(ends, lengths, strict=True)
    ]
    lines = [each[0].splitlines() for each in texts]
    longest = max(map(len, lines))
    for number in range(longest):
        calls = [each[number] if number < len(each) else "nothing more" for each in lines]
        whats = [call.partition(" at ")[0] for call in calls]
        other = next((rank for rank, what in enumerate(whats) if what != whats[0]), None)
        if other is not None:
            return (
                f"{group.name}: rank {other} differs from rank 0 in collective {number + 1}:\n"
                f"  rank 0: {calls[0]}\n  rank {other}: {calls[other]}"
            )
    agreed = f"{group.name}: all {group.size} ranks agree, {longest} collectives"
    others = np.flatnonzero(computations != computations[0])
    if len(others):
        agreed += (
            f"; rank {others[0]} computes something else than rank 0:\n  rank 0: {texts[0][2]}\n"
            f"  rank {others[0]}: {texts[others[0]][2]}"
        )
    return agreed
