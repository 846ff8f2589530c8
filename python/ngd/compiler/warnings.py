# SPDX-License-Identifier: Apache-2.0
"""Warnings of ngd.compile about graphs that are legal, but probably not what their author meant."""

from __future__ import annotations

from typing import Any

from .._util.callsite import warn
from ..errors import EqualModelsWarning, PromotionWarning, UpdatesWarning
from ..graph import notes
from ..graph.graph import Graph
from ..graph.variable_names import scope_of

MAX_LAYERS = 5
"""The number of layers that a warning names."""


def warn_of_graph(graph: Graph) -> None:
    """Issue the warnings about a graph that is about to be compiled, at most one of each kind."""
    graph_notes = notes.find(graph.nodes)
    if graph_notes:
        _warn_of_updates(graph, [note for _, note in graph_notes])
        _warn_of_promotions(graph_notes)
    _warn_of_equal_models(graph)


def _warn_of_updates(graph: Graph, graph_notes: list[object]) -> None:
    """Warn if the step lacks updates that its layers expect, such as those of running means.

    `graph_notes` has the objects that ops and variables have added to the graph's nodes with
    `notes.add`. An object of type `ExpectedUpdate` has a variable that the step should update.
    """
    updated = {variable for variable, _ in graph.updates}
    missing: dict[str, list[str]] = {}
    for note in graph_notes:
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
        "statistics do not change. Give state.updates and the updates of the optimizer. If this is "
        "wanted, build the graph in nn.training(..., updates=False).",
        UpdatesWarning,
    )


def _warn_of_equal_models(graph: Graph) -> None:
    """Warn if the step trains two models whose random initial values are equal."""
    updated = {variable for variable, _ in graph.updates}
    by_name: dict[str, Any] = {}
    for variable in graph.variables:
        other = by_name.setdefault(variable.attrs["name"], variable)
        if (
            other is not variable
            and {other, variable} <= updated
            and have_equal_values(other, variable)
        ):
            warn(
                f"compile: expected models that begin with different values; got {other.name!r} "
                f"of two models (made at {other.site} and at {variable.site}) with the same random "
                'values. Give one of the models a name before its first call, model.name = "second"'
                ", or call its initialize(seed=1). If this is wanted, make one of them by "
                "copy.deepcopy.",
                EqualModelsWarning,
            )
            return


def have_equal_values(one: Any, other: Any) -> bool:
    """Return True if two variables have equal random initial values, and neither was assigned."""
    scopes = scope_of(one), scope_of(other)
    if one.type != other.type or any(scope is None or scope.is_copy for scope in scopes):
        return False
    if one.version or other.version:
        return False
    first = one.numpy()
    return bool(first.size and (first != first.flat[0]).any() and (first == other.numpy()).all())


def _warn_of_promotions(graph_notes: list[tuple[int, object]]) -> None:
    """Warn about the first node that casts a narrower float to float64.

    `graph_notes` has pairs (id of a node, a note of the node). A note of type `Promotion` marks
    such a cast.
    """
    promotions = [(id, note) for id, note in graph_notes if isinstance(note, notes.Promotion)]
    if not promotions:
        return
    _, first = min(promotions, key=lambda pair: pair[0])
    warn(
        f"compile: expected floats to keep their width; got float64 of {first.op} of "
        f"{first.operands} (made at {first.site}). Values computed from it are float64 too, at "
        f"about half the speed. {first.advice} If float64 is wanted, cast the narrower operand.",
        PromotionWarning,
    )
