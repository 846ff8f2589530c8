# SPDX-License-Identifier: Apache-2.0
"""Which bytes of an arena are free throughout a stretch of instructions.

The instructions are the leaves of a binary tree. A block that lives from one instruction to another
is the union of at most two spans a level of the tree, spans that are whole nodes. Each node keeps
two sets of bytes: those of the blocks that have it as such a span (`throughout`), and those of all
blocks that are alive anywhere in it (`during`). What is in use in a stretch is then `during` of its
own spans, and `throughout` of what lies above them: a number of sets that grows with the logarithm
of the number of instructions. A set is a list of runs of bytes, and runs that touch are one: where
blocks are packed without gaps, a set of thousands of them is one run.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right


class Runs:
    """A set of bytes: runs that neither overlap nor touch, in order."""

    __slots__ = ("ends", "starts")

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.ends: list[int] = []

    def add(self, start: int, end: int) -> None:
        """Add a run, which is not empty, and merge it with those that it meets."""
        starts, ends = self.starts, self.ends
        first = bisect_left(ends, start)
        last = bisect_right(starts, end, first)
        if first < last:
            if starts[first] <= start and end <= ends[first]:
                return
            start, end = min(start, starts[first]), max(end, ends[last - 1])
        starts[first:last] = [start]
        ends[first:last] = [end]

    def lowest(self, offset: int, size: int) -> int:
        """The lowest place from `offset` on where `size` bytes are not in the set."""
        starts, ends = self.starts, self.ends
        run = bisect_right(ends, offset)
        while run < len(starts) and starts[run] < offset + size:
            offset = ends[run]
            run += 1
        return offset


class FreeSpace:
    """An arena over a number of instructions, all of it free at first."""

    def __init__(self, instructions: int) -> None:
        self.leaves = 1 << max(instructions - 1, 0).bit_length()
        self.throughout: dict[int, Runs] = {}
        self.during: dict[int, Runs] = {}

    def take(self, first: int, last: int, size: int) -> int:
        """Take `size` bytes, at the lowest offset where they are free from `first` to `last`."""
        spans, above = self.cover(first, last)
        used = [self.during[n] for n in spans if n in self.during]
        used += [self.throughout[n] for n in above if n in self.throughout]
        offset, agreed = 0, 0
        while agreed < len(used):
            for runs in used:
                lowest = runs.lowest(offset, size)
                agreed = agreed + 1 if lowest == offset else 1
                offset = lowest
        for node in spans:
            self.throughout.setdefault(node, Runs()).add(offset, offset + size)
            self.during.setdefault(node, Runs()).add(offset, offset + size)
        for node in above:
            self.during.setdefault(node, Runs()).add(offset, offset + size)
        return offset

    def cover(self, first: int, last: int) -> tuple[list[int], set[int]]:
        """The nodes that together are these instructions, and all nodes above one of them."""
        spans: list[int] = []
        left, right = self.leaves + first, self.leaves + last + 1
        while left < right:
            if left & 1:
                spans.append(left)
                left += 1
            if right & 1:
                right -= 1
                spans.append(right)
            left >>= 1
            right >>= 1
        above: set[int] = set()
        for node in spans:
            node >>= 1
            while node and node not in above:
                above.add(node)
                node >>= 1
        return spans, above


__all__ = ["FreeSpace"]
