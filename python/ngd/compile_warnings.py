# SPDX-License-Identifier: Apache-2.0
"""Warnings of ngd.compile: graphs that are legal, and mostly not what their author meant."""

from __future__ import annotations

from . import notes
from .errors import PromotionWarning, UpdatesWarning
from .ir import Graph
from .sites import warn

MAX_LAYERS = 5
"""A warning names this many layers."""


def warn_of_graph(graph: Graph) -> None:
    """Warn once per kind of fault in a graph that is about to be compiled."""
    found = notes.find(graph.nodes)
    if found:
        _warn_of_updates(graph, [note for _, note in found])
        _warn_of_promotions(found)


def _warn_of_updates(graph: Graph, found: list[object]) -> None:
    """Warn if random draws or statistics are not updated."""
    updated = {variable for variable, _ in graph.updates}
    missing: dict[str, list[str]] = {}
    for note in found:
        if isinstance(note, notes.ExpectedUpdate) and note.variable not in updated:
            names = missing.setdefault(note.layer, [])
            if note.variable.name not in names:
                names.append(note.variable.name)
    if not missing:
        return
    layers = [f"{layer} ({', '.join(names)})" for layer, names in missing.items()]
    rest = f" and {len(layers) - MAX_LAYERS} more" if len(layers) > MAX_LAYERS else ""
    warn(
        "compile: expected state.updates of nn.training among the updates; got none for "
        f"{'; '.join(layers[:MAX_LAYERS])}{rest}. Each call of the step draws the same masks, and "
        "statistics do not change. Give state.updates beside the updates of the optimizer. If this "
        "is wanted, build the graph in nn.training(..., updates=False).",
        UpdatesWarning,
    )


def _warn_of_promotions(found: list[tuple[int, object]]) -> None:
    """Warn where float64 first came of a narrower float."""
    promotions = [(id, note) for id, note in found if isinstance(note, notes.Promotion)]
    if not promotions:
        return
    _, first = min(promotions, key=lambda pair: pair[0])
    warn(
        f"compile: expected floats to keep their width; got float64 of {first.op} of "
        f"{first.operands} (made at {first.site}), and what is computed of it is float64 too, at "
        f"about half the speed. {first.advice} If float64 is wanted, cast the narrower operand.",
        PromotionWarning,
    )
