# SPDX-License-Identifier: Apache-2.0
"""Notes on nodes, which ngd.compile reads for its warnings and for ngd.print.

A note belongs to a node of the graph that the user built. Notes are stored by the id of the node,
and are dropped with the node. The nodes that passes make have no notes. The body of a loop or
branch is a copy of traced nodes, so the node of the loop or branch takes over their notes
(`take_over`).
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from functools import partial
from typing import Any, Final, NamedTuple


class ExpectedUpdate(NamedTuple):
    """The note of a node whose step should also update `variable`.

    ngd.compile warns about a step that computes the node and does not update the variable. Examples
    of the variable are a running mean, and the counter of a source of random numbers.
    """

    variable: Any
    layer: str
    """The text that names the layer whose call sets the next value of the variable."""


class Promotion(NamedTuple):
    """The note that the node casts a narrower float to float64, as its other operand requires."""

    op: str
    operands: str
    advice: str
    site: str


class Print(NamedTuple):
    """The note of a node with ngd.print: a step that computes the node calls `function`."""

    function: Any


_notes: Final[dict[int, tuple[weakref.ref[Any], list[Any]]]] = {}
"""A dict from the id of a node to a weak reference to the node, and the notes of the node. When the
node is deleted, the callback of the reference removes the entry."""


def _drop(id: int, reference: Any) -> None:
    _notes.pop(id, None)


def add(node: Any, note: Any) -> None:
    """Add a note to a node; if its op has several results, to the first one."""
    node = node.results[0]
    if node.id not in _notes:
        _notes[node.id] = weakref.ref(node, partial(_drop, node.id)), []
    _notes[node.id][1].append(note)


def take_over(node: Any, traced: Iterable[Any]) -> None:
    """Add the notes of traced nodes to `node`, a loop or branch.

    The body of the loop or branch has copies of the traced nodes. Notes of the class Print are left
    out.
    """
    if _notes:
        for _, note in find(traced):
            if not isinstance(note, Print):  # the body prints if it uses the result of the print
                add(node, note)


def find(nodes: Iterable[Any]) -> list[tuple[int, Any]]:
    """Return the notes of some nodes, each with the id of its node."""
    if not _notes:
        return []
    entries = [(node.id, _notes[node.id][1]) for node in nodes if node.id in _notes]
    return [(id, note) for id, node_notes in entries for note in node_notes]
