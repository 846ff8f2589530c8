# SPDX-License-Identifier: Apache-2.0
"""The time and bytes of collectives, and a comparison of the ranks' collectives."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .group import GROUPS, Group, existing_groups


@dataclass(frozen=True, slots=True)
class CallStats:
    """The cost of a collective at one call site on this rank.

    Attributes
    ----------
    group : str
        The name of the group.
    op : str
        The collective, such as "all_reduce(sum)".
    site : str
        `file:line` of the call.
    calls : int
        The number of calls.
    bytes : int
        The sum over the calls. The bytes of a call are those of its source or of its destination on
        this rank, whichever is larger.
    seconds : float
        The sum over the calls of the time from the start to the completion of a call, in seconds.
    waited : float
        The part of `seconds` in which this rank waited for the completion of a call, in seconds.
    last : tuple of ints
        For each rank of the group, the number of calls in which it arrived last. A rank with a
        large number delays the other ranks.
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
    """The result of ngd.comm_stats(): a list of CallStats, with the longest waits first.

    print() shows it as a table.
    """

    def __str__(self) -> str:
        head = ("group", "op", "calls", "MB", "ms", "ms waited", "last to arrive", "call site")
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
    """Return the cost of the collectives on this rank, for each group and call site.

    Returns
    -------
    CommStats
        A list of CallStats, with the longest waits first. print() shows it as a table. Groups of
        one rank are not counted. Groups that are closed and deleted are not in the list.

    Examples
    --------
    >>> stats = ngd.comm_stats()
    >>> waited = sum(row.waited for row in stats)
    """
    rows = [row for group in existing_groups(GROUPS) for row in stats_of(group)]
    return CommStats(sorted(rows, key=lambda row: (-row.waited, row.group, row.op, row.site)))


def stats_of(group: Group) -> list[CallStats]:
    """Return the cost of the collectives of one group, one entry per call site."""
    rows = []
    for kind, op, site, calls, num_bytes, seconds, waited, last in group.communicator.stats():
        name = kind if op == "none" else f"{kind}({op})"
        rows.append(
            CallStats(group.name, name, site, calls, num_bytes, seconds, waited, tuple(last))
        )
    return rows


def compare_ranks(group: Group, text: str, computation: int, site: str) -> str:
    """Compare a compiled step (graph) of each rank with that of rank 0; return a report as text.

    All ranks of the group call this function, and all get the same report. If the collectives of
    the ranks differ, the report shows the first collective that is not the same as on rank 0.
    Otherwise the report states that the collectives are equal. Then it also names the first rank
    whose `computation` differs from that of rank 0, if any.

    `text` lists the collectives of this rank in order, one per line, each with " at FILE:LINE" at
    its end. An empty line and the name of the step follow. The report shows the name if
    `computation` differs. `computation` is a hash of all computations of the step. `site` is the
    call site of the comparison.
    """
    own_text = np.frombuffer(text.encode(errors="backslashreplace"), np.uint8)
    site = f"compare_ranks() at {site}"
    with group.collectives_scope():
        num_bytes = group.all_gather(np.array([len(own_text)]), site=site)
        gathered = group.all_gather_v(own_text, counts=num_bytes, site=site).tobytes()
        computations = group.all_gather(np.uint64(computation), site=site)
    ends = np.cumsum(num_bytes)
    texts = [
        gathered[end - length : end].decode().partition("\n\n")
        for end, length in zip(ends, num_bytes, strict=True)
    ]
    lines = [each[0].splitlines() for each in texts]
    longest = max(map(len, lines))
    for number in range(longest):
        calls = [each[number] if number < len(each) else "no more collectives" for each in lines]
        descriptions = [call.partition(" at ")[0] for call in calls]
        other = next(
            (
                rank
                for rank, description in enumerate(descriptions)
                if description != descriptions[0]
            ),
            None,
        )
        if other is not None:
            return (
                f"{group.name}: rank {other} differs from rank 0 in collective {number + 1}:\n"
                f"  rank 0: {calls[0]}\n  rank {other}: {calls[other]}"
            )
    agreed = f"{group.name}: all {group.size} ranks agree, {longest} collectives"
    others = np.flatnonzero(computations != computations[0])
    if len(others):
        agreed += (
            f"; rank {others[0]} has other computations than rank 0:\n  rank 0: {texts[0][2]}\n"
            f"  rank {others[0]}: {texts[others[0]][2]}"
        )
    return agreed
