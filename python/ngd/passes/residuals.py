# SPDX-License-Identifier: Apache-2.0
"""The cut of a graph with gradients into a forward program and a backward program.

The forward pass computes the outputs. The gradients are nodes of the same graph that also read
values of the forward pass. A *residual* is a value of the forward pass that the forward program
returns and the backward program takes as an input. The inputs of the forward program are inputs of
the backward program, too.

A *cheap* value is the result of an elementwise op, a broadcast or a move of elements
(recompute.is_cheap). The backward program recomputes a cheap value if it can do so from inputs,
constants and residuals. The residuals are chosen in three steps:

1. Each value that is read by a gradient and is not cheap is a residual.
2. A value that is not cheap and that no gradient reads is a residual if this saves memory. For
   example, gradients read two cheap values of the size of p = x @ w, which are both computed from
   p. Then p is stored, and the two values are recomputed from it. In general, add the bytes of the
   cheap values that gradients read and that can be recomputed from p and other residuals. If the
   sum is larger than the bytes of p, p is a residual.
3. Each cheap value that is read by a gradient, and cannot be recomputed yet, is a residual.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from ..graph.graph import Graph
from ..graph.leaves import Leaf
from ..graph.node import Node, topological
from .recompute import is_cheap

MAX_SOURCES: Final = 8
"""A limit for step 2 of the choice of residuals (see the module docstring). A cheap value can be
recomputed from a set of values that are not cheap. If the set has more than this number of values,
step 2 treats the cheap value as one that is not cheap. So the sets stay small."""


def choose_residuals(
    outputs: Sequence[Node], gradients: Sequence[Node], overwritten: Sequence[Node] = ()
) -> list[Node]:
    """Return the values of the forward pass to store for the backward pass.

    Parameters
    ----------
    outputs : sequence of Node
        The results of the forward pass.
    gradients : sequence of Node
        The results of the backward pass.
    overwritten : sequence of Node
        Inputs that the forward pass writes to, so the backward pass cannot read their old values.
        If a gradient reads such a value, it is stored.

    Returns
    -------
    list of Node
        The residuals, in the order in which the forward pass computes them.
    """
    forward = [result for node in topological(outputs) for result in node.results]
    lost = set(overwritten)
    read = read_values(forward, gradients, lost)
    stored = {value for value in read if not is_cheap(value)}
    stored |= _shared_sources(forward, [v for v in read if v not in stored], stored, lost)
    available = set(stored)
    for value in forward:
        if value in available:
            continue
        if _is_given(value, lost) or (is_cheap(value) and available.issuperset(value.inputs)):
            available.add(value)
        elif value in read:
            stored.add(value)
            available.add(value)
    needed = set(topological_values(gradients, stored))
    return [value for value in forward if value in stored and value in needed]


def read_values(
    forward: Sequence[Node], gradients: Sequence[Node], overwritten: set[Node]
) -> dict[Node, None]:
    """Return the values of the forward pass that gradients read directly, in the forward order."""
    computed = {value for value in forward if not _is_given(value, overwritten)}
    reached = set(topological_values(gradients, computed))
    return {value: None for value in forward if value in computed and value in reached}


def topological_values(roots: Sequence[Node], ends: set[Node]) -> list[Node]:
    """Return `roots` and the nodes that they are computed from, each node once.

    A depth-first walk from the roots to their operands finds the nodes. So the order is not
    topological, in spite of the name. The walk includes a node of `ends`, but does not visit the
    operands of this node.
    """
    found: dict[Node, None] = {}
    stack = list(roots)
    while stack:
        value = stack.pop()
        if value not in found:
            found[value] = None
            if value not in ends:
                stack += value.inputs
    return list(found)


def _is_given(value: Node, overwritten: set[Node]) -> bool:
    """Return whether the backward pass can read a value as an input, a variable or a constant.

    An input in `overwritten` cannot be read, because it has another value in the backward pass.
    """
    return isinstance(value.op, Leaf) and value not in overwritten


def _shared_sources(
    forward: Sequence[Node], cheap: Sequence[Node], stored: set[Node], overwritten: set[Node]
) -> set[Node]:
    """Return values that save memory if they are stored, because cheap values depend on them.

    This is step 2 of the choice of residuals (see the module docstring). `cheap` has the values
    that gradients read and that take about one pass over memory to compute. For each other value v,
    add the bytes of the values in `cheap` that can be recomputed from v and the residuals. If the
    sum is larger than the bytes of v, return v.
    """
    sources: dict[Node, frozenset[Node]] = {}
    for value in forward:
        if value in stored or _is_given(value, overwritten):
            sources[value] = frozenset()
            continue
        found = frozenset[Node]().union(*(sources[operand] for operand in value.inputs))
        is_source = not is_cheap(value) or len(found) > MAX_SOURCES
        sources[value] = frozenset((value,)) if is_source else found
    dependent: dict[Node, int] = {}
    for value in cheap:
        if len(sources[value]) == 1:
            (source,) = sources[value]
            dependent[source] = dependent.get(source, 0) + value.type.bytes
    return {source for source, size in dependent.items() if size > source.type.bytes}


def read_residuals(gradients: Sequence[Node], residuals: Mapping[Node, Node]) -> list[Node]:
    """Return gradients that read placeholders instead of values of the forward pass.

    Parameters
    ----------
    gradients : sequence of Node
        The results of the backward pass.
    residuals : mapping of Node to Node
        The placeholder of each residual.

    Returns
    -------
    list of Node
        The gradients, in which all other values of the forward pass are recomputed.
    """

    def change(node: Node, inputs: tuple[Node, ...]) -> Node | tuple[Node, ...]:
        if not any(result in residuals for result in node.results):
            return node.with_inputs(inputs)
        if not node.has_several_results:
            return residuals[node]
        new_results = node.with_inputs(inputs).results
        pairs = zip(node.results, new_results, strict=True)
        return tuple(residuals.get(old, new) for old, new in pairs)

    return list(Graph((), tuple(gradients)).rewrite(change).outputs)
