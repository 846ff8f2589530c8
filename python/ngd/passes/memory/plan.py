# SPDX-License-Identifier: Apache-2.0
"""The memory plan of a step: its instructions, the storages of its values, and their checks.

An *instruction* is one entry of a program: a kernel, the start or the wait of a collective, or a
copy. A *storage* is a range of bytes for one or more values. An *arena* is memory that the storages
of a step share: the private arena belongs to one rank, and the ranks of a host map the shared
arena. The *lifetime* of a storage reaches from the first instruction that writes it to the last one
that uses it. A collective is *pending* from its start to its wait.

`Plan.verify` proves two things. Storages whose lifetimes overlap do not share bytes. And while a
collective is pending, no instruction writes to its operand or touches its result.

The second proof is needed because other ranks read the operand of a pending collective. If the
collective works in place, the other ranks may also write to the operand. The bytes of the operand
and the result are safe at all times:

1. Before the start, other ranks do not access the bytes: they wait until this rank has started the
   collective. This rank starts it after all earlier instructions that use the bytes.
2. From the start to the wait, no instruction of this rank accesses the result or writes to the
   operand (`verify`).
3. After the wait, only this rank accesses the bytes, because the wait returns when every rank has
   reported its last access (src/cpp/comm/communicator.hpp). This lasts until the rank starts
   another collective that uses the bytes, in this call, in the next call or in another executable.

Each rank decides by itself which collectives work in place; the ranks need not agree.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

from ...dtypes import Array, Type
from ...errors import CompileError
from ...graph.cost import Cost
from ...graph.node import Node
from ...ops.collectives.groups import Ranks


@dataclass
class Storage:
    """A range of bytes in a memory space, alive from instruction `first` to `last`.

    The spaces "input", "output", "variable" and "constant" are lists of arrays; a storage in them
    is one array, or a part of it. The spaces "private" and "shared" are arenas. A result that no
    instruction reads is in the space "nowhere", which has no bytes.
    """

    space: str
    position: int = 0
    """The byte offset if the space is an arena. Another space is a list of arrays, such as
    the inputs of a call: then this is the number of the array."""
    bytes: int = 0
    first: int = 0
    last: int = 0
    whole: Storage | None = None
    """The storage that contains this one, or None if this one is not a part of another. There is
    only one level: the containing storage is not a part of a third one."""
    offset: int = 0
    """The offset of a part in the storage `whole`, in bytes; 0 if `whole` is None. In an arena,
    `position` is the sum of this offset and the position of `whole`."""

    def keep(self, until: int) -> None:
        """Extend the lifetime to instruction number `until`, if the lifetime ends before it."""
        self.last = max(self.last, until)
        if self.whole is not None:
            self.whole.keep(until)

    @property
    def is_planned(self) -> bool:
        """True if the planner chooses the offset: the space is an arena."""
        return self.space in ("private", "shared")

    @property
    def address(self) -> tuple[str, int, int]:
        """The address as (space, position, byte offset).

        In a space that is a list of arrays, these are the number of the array and the offset in it.
        In an arena, these are the byte offset in the arena and 0.
        """
        return self.space, self.position, 0 if self.is_planned else self.offset

    def overlaps(self, other: Storage) -> bool:
        """Return whether two storages are the same, or are overlapping parts of one storage."""
        same_storage = (self.whole or self) is (other.whole or other)
        ends = self.offset + self.bytes, other.offset + other.bytes
        return self is other or (same_storage and max(self.offset, other.offset) < min(ends))

    @property
    def span(self) -> tuple[str, int, int]:
        """The arena, and where the storage begins and ends in it, in bytes."""
        return self.space, self.position, self.position + self.bytes


@dataclass
class Instruction:
    """One instruction: a kernel, the start or the wait of a collective, or a copy."""

    action: str
    op: str
    inputs: list[tuple[Type, Storage]]
    outputs: list[tuple[Type, Storage]]
    attrs: dict[str, Any]
    site: str
    start: int = -1
    group: Ranks | None = None
    """The ranks of the collective that is started; None for all ranks that run the step."""
    bodies: list[Plan] = field(default_factory=list)
    """The plans of the graphs that a loop or branch runs; empty for another instruction. The outer
    plan provides the memory of these plans. So the last two `outputs` of a loop or branch are not
    results. They are memory for the inner plans: one that only this rank uses, and one that the
    ranks of a host share."""
    cost: Cost = field(default_factory=Cost)
    made_of: tuple[tuple[str, str], ...] = ()
    """The names of the ops that a kernel computes, each with its call site."""
    layout: str = "row-major"


@dataclass(eq=False)
class Plan:
    """The instructions and storages of a graph, from which the compiler makes a program."""

    inputs: int = 0
    outputs: int = 0
    """The number of results of a call; the field `inputs` is the number of arguments."""
    steps: list[Instruction] = field(default_factory=list)
    storages: list[Storage] = field(default_factory=list)
    variables: list[Node] = field(default_factory=list)
    constants: list[Array] = field(default_factory=list)
    shared: dict[Node, tuple[int, int]] = field(default_factory=dict)
    """The updated variables that the ranks of a host share. Each has the pair (begin, end) of the
    bytes of the variable that this rank writes."""
    whole: list[Node] = field(default_factory=list)
    """The updated variables of which each rank has a copy. Each rank writes its whole copy."""
    private_bytes: int = 0
    shared_bytes: int = 0
    unshared_bytes: int = 0
    """The size of the arenas if every value had bytes of its own."""
    recomputed: Cost = field(default_factory=Cost)
    """The operations and bytes for recomputing values (recompute.py). `cost` includes them."""

    @property
    def cost(self) -> Cost:
        """The sum of the costs of all instructions: operations, and bytes read and written."""
        return sum((step.cost for step in self.steps), Cost())

    def verify(self) -> None:
        """Raise a CompileError if the plan breaks a rule about lifetimes or pending collectives."""
        self.verify_lives()
        self.verify_pending()

    def verify_start(self, step: Instruction) -> None:
        """Raise an error if operand and result of a collective overlap, but are in two storages.

        `step` starts the collective. An overlap within one storage is legal: the collective works
        in place. Two storages with common bytes are a mistake of the planner.
        """
        operand, result = step.inputs[0], step.outputs[0]
        same_storage = (operand[1].whole or operand[1]) is (result[1].whole or result[1])
        if overlap(operand, result) and not same_storage:
            raise CompileError(
                f"plan_memory: the result of {step.op} (made at {step.site}) overlaps its operand"
            )

    def verify_pending(self) -> None:
        """Raise an error if an instruction misuses the memory of a pending collective.

        A collective is pending from its start to its wait. Until the wait, no instruction may read
        or write its result, or write to its operand. If the operand is a part of a storage, no
        instruction may write to any part of this storage. Instructions and other collectives may
        read the operand.
        """
        operands, results = Spans(), Spans()
        for number, step in enumerate(self.steps):
            if step.action == "wait":
                started = self.steps[step.start]
                operands.remove(*extent_of_whole(started.inputs[0]), step.start)
                results.remove(*extent(started.outputs[0]), step.start)
                continue
            touched = [
                results.overlapping(*extent(value)) for value in (*step.inputs, *step.outputs)
            ]
            touched += [operands.overlapping(*extent(value)) for value in step.outputs]
            pending = [start for start in touched if start is not None]
            if pending:
                started = self.steps[min(pending)]
                raise CompileError(
                    f"plan_memory: {step.op} (made at {step.site}) uses the buffer of a pending "
                    f"{started.op} (made at {started.site})"
                )
            if step.action == "start":
                self.verify_start(step)
                operands.add(*extent_of_whole(step.inputs[0]), number)
                results.add(*extent(step.outputs[0]), number)

    def verify_lives(self) -> None:
        """Raise an error if two storages in an arena share a byte during a common lifetime."""
        planned = [s for s in self.storages if s.is_planned]
        order = sorted(range(len(planned)), key=lambda i: planned[i].first)
        ends: list[tuple[int, int]] = []  # a heap of the ends of the lifetimes in `alive`
        alive = Spans()
        for number in order:
            storage = planned[number]
            while ends and ends[0][0] < storage.first:
                _, dead = heappop(ends)
                alive.remove(*planned[dead].span, dead)
            other = alive.overlapping(*storage.span)
            if other is not None:
                raise CompileError(
                    f"plan_memory: {planned[other]} and {storage} overlap and are alive together"
                )
            alive.add(*storage.span, number)
            heappush(ends, (storage.last, number))


class Spans:
    """A set of spans in several spaces (kinds of memory), each with a number from the caller.

    A span is a range of bytes in an arena, or of arrays in another space. Any two spans of the set
    are disjoint or equal. Equal spans may have different numbers.
    """

    def __init__(self) -> None:
        self.spaces: dict[str, list[tuple[int, int, int]]] = {}

    def add(self, space: str, begin: int, end: int, number: int) -> None:
        """Add the span from `begin` to `end` of the memory `space`, with the caller's `number`."""
        if begin < end:
            insort(self.spaces.setdefault(space, []), (begin, end, number))

    def remove(self, space: str, begin: int, end: int, number: int) -> None:
        """Remove a span (a range in `space`). An earlier call of `add` had the same arguments."""
        if begin < end:
            runs = self.spaces[space]
            del runs[bisect_left(runs, (begin, end, number))]

    def overlapping(self, space: str, begin: int, end: int) -> int | None:
        """Return the number of a span of the set that overlaps a range in `space`, or None.

        The range is from `begin` to `end`. The number is the argument `number` of `add`.
        """
        runs = self.spaces.get(space, ())
        last = bisect_left(runs, (end,)) - 1
        return runs[last][2] if begin < end and last >= 0 and runs[last][1] > begin else None


def extent(value: tuple[Type, Storage]) -> tuple[str, int, int]:
    """Return where a value is, as (space, begin, end).

    If the space is an arena, `begin` and `end` are byte offsets. Another space is a list of arrays:
    they are n and n + 1 for a value in array n.
    """
    type_, storage = value
    size = type_.bytes if storage.is_planned else bool(type_.bytes)
    return storage.space, storage.position, storage.position + size


def extent_of_whole(value: tuple[Type, Storage]) -> tuple[str, int, int]:
    """Return where the storage of a value is, as (space, begin, end).

    If the value is in a part of a larger storage in an arena, the tuple is that of the larger
    storage. Otherwise it is the result of `extent`.
    """
    whole = value[1].whole
    return whole.span if whole is not None and whole.is_planned else extent(value)


def overlap(a: tuple[Type, Storage], b: tuple[Type, Storage]) -> bool:
    """Return whether two values share a byte."""
    (a_space, a_begin, a_end), (b_space, b_begin, b_end) = extent(a), extent(b)
    return a_space == b_space and max(a_begin, b_begin) < min(a_end, b_end)


__all__ = ["Instruction", "Plan", "Storage"]
