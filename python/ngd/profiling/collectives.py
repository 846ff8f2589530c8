# SPDX-License-Identifier: Apache-2.0
"""The variables that a compiled step updates from each collective's result, for reports."""

from __future__ import annotations

from collections import defaultdict

from ..passes import Plan
from ..passes.memory.plan import Storage

NAMED = 2
"""The largest number of names in a text of `shown_names`, such as "w1, w2 and 3 more"."""


def variables_of(plan: Plan) -> dict[int, tuple[str, ...]]:
    """Return the names of the variables that are updated from each collective.

    The keys of the dict are the numbers of the instructions that start a collective or wait for it,
    and the values are the names. A variable is updated from a collective if an instruction reads
    the result of the collective and writes the variable, or if the result is written into the
    variable itself. Optimizer state is named only if no other variable is updated.
    """
    readers = updating_reads(plan)
    names: dict[int, tuple[str, ...]] = {}
    for number, step in enumerate(plan.steps):
        if step.action not in ("start", "wait"):
            continue
        type, result = step.outputs[0]
        positions = [result.position] if result.space == "variable" and type.bytes else []
        for reader, operand, written in readers[id(result.whole or result)]:
            if reader > number and type.bytes and operand.overlaps(result):
                positions += written
        names[number] = names_of(plan, positions)
    return names


def updating_reads(plan: Plan) -> defaultdict[int, list[tuple[int, Storage, list[int]]]]:
    """Return the inputs of all instructions that write variables, grouped by storage.

    A storage is the memory of a value. A storage that is a part of a larger one is listed under the
    larger one. The keys of the result are id() of the storages. Each item is a tuple: the number of
    the instruction, the storage that it reads, and the indices in `plan.variables` of the variables
    that it writes. `plan` is the list of instructions of a compiled step.
    """
    reads: defaultdict[int, list[tuple[int, Storage, list[int]]]] = defaultdict(list)
    for number, step in enumerate(plan.steps):
        written = [storage.position for _, storage in step.outputs if storage.space == "variable"]
        for _, storage in step.inputs if written else ():
            reads[id(storage.whole or storage)].append((number, storage, written))
    return reads


def names_of(plan: Plan, positions: list[int]) -> tuple[str, ...]:
    """Return the names of the variables that have the indices `positions` in `plan.variables`.

    Optimizer state is left out, unless all of the variables are optimizer state.
    """
    written = [plan.variables[position] for position in dict.fromkeys(positions)]
    parameters = [node for node in written if getattr(node, "owner", None) is None]
    return tuple(str(node.attrs["name"]) for node in parameters or written)


def shown_names(names: tuple[str, ...]) -> str:
    """Return a text such as "w1, w2 and 3 more"."""
    num_others = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {num_others} more" if num_others > 0 else "")
