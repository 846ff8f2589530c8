# SPDX-License-Identifier: Apache-2.0
"""The variables that the collectives of a step update, for reports and timelines."""

from __future__ import annotations

from collections import defaultdict

from ..passes import Plan
from ..passes.memory.plan import Storage

NAMED = 2
"""The number of variables that a text names."""


def variables_of(plan: Plan) -> dict[int, tuple[str, ...]]:
    """Return the names of the variables that each collective updates, by its instructions.

    An instruction that reads the result of a collective and writes a variable updates it. If it
    writes optimizer state too, the names are those of the other variables.
    """
    readers = updating_reads(plan)
    found: dict[int, tuple[str, ...]] = {}
    for number, step in enumerate(plan.steps):
        if step.action not in ("start", "wait"):
            continue
        type, result = step.outputs[0]
        places = [result.place] if result.lane == "variable" and type.bytes else []
        for reader, operand, written in readers[id(result.whole or result)]:
            if reader > number and type.bytes and operand.meets(result):
                places += written
        found[number] = names_of(plan, places)
    return found


def updating_reads(plan: Plan) -> defaultdict[int, list[tuple[int, Storage, list[int]]]]:
    """Return the reads of instructions that write variables, by the id of the whole storage."""
    found: defaultdict[int, list[tuple[int, Storage, list[int]]]] = defaultdict(list)
    for number, step in enumerate(plan.steps):
        written = [storage.place for _, storage in step.outputs if storage.lane == "variable"]
        for _, storage in step.inputs if written else ():
            found[id(storage.whole or storage)].append((number, storage, written))
    return found


def names_of(plan: Plan, places: list[int]) -> tuple[str, ...]:
    """Return the names of variables, without optimizer state if there are others."""
    written = [plan.variables[place] for place in dict.fromkeys(places)]
    parameters = [node for node in written if getattr(node, "owner", None) is None]
    return tuple(str(node.attrs["name"]) for node in parameters or written)


def shown_names(names: tuple[str, ...]) -> str:
    """Return the first names and the number of the others."""
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")
