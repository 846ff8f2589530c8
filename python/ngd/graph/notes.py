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
    """A note on a node: a step that computes this node should also update `variable`.

    ngd.compile warns about a step that computes the node and does not update the variable. Examples
    of the variable are a running mean, and the counter of a source of random numbers.
    """

    variable: Any
    layer: str
    """The layer whose call computes the new value of `variable`. ngd.compile names this layer if it
    warns that a step does not update `variable`."""


class Promotion(NamedTuple):
    """A note on a cast from a narrower float to float64, which ngd inserted.

    The cast value is an operand of an op with another operand that requires float64. `op` and
    `operands` are texts that name this op and the types of its operands.
    """

    op: str
    operands: str
    advice: str
    site: str


class Print(NamedTuple):
    """A note on the operand of ngd.print. A step that computes the operand calls `function`.

    `function` prints the value of the operand.
    """

    function: Any


_notes: Final[dict[int, tuple[weakref.ref[Any], list[Any]]]] = {}
"""A dict from the id of a node to (weak reference to the node, list of the notes on it). A note is
an ExpectedUpdate, a Promotion or a Print. When the node is deleted, the callback of the reference
removes the entry."""


def _drop(id: int, reference: Any) -> None:
    """Remove the notes of a deleted node, whose id was `id`."""
    _notes.pop(id, None)


def add(node: Any, note: Any) -> None:
    """Add a note (an ExpectedUpdate, Promotion or Print) to a node.

    If the op of the node has several results, the first one gets the note.
    """
    node = node.results[0]
    if node.id not in _notes:
        _notes[node.id] = weakref.ref(node, partial(_drop, node.id)), []
    _notes[node.id][1].append(note)


def take_over(node: Any, traced: Iterable[Any]) -> None:
    """Add the ExpectedUpdate and Promotion notes of the nodes `traced` to their replacement `node`.

    `node` is a loop or branch with copies of these nodes in its body, or a node that ngd.vmap made
    in place of one node. Print notes are not added.
    """
    if _notes:
        for _, note in find(traced):
            if not isinstance(note, Print):  # the body prints if it uses the result of the print
                add(node, note)


def find(nodes: Iterable[Any]) -> list[tuple[int, Any]]:
    """Return (id of the node, note) for each ExpectedUpdate, Promotion or Print on these nodes."""
    if not _notes:
        return []
    entries = [(node.id, _notes[node.id][1]) for node in nodes if node.id in _notes]
    return [(id, note) for id, node_notes in entries for note in node_notes]
