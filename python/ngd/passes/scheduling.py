# SPDX-License-Identifier: Apache-2.0
"""The order in which a step executes its nodes, and how it writes the next values of variables.

Collectives start in the order of their numbers, each as soon as its operand is computed. A
collective is *pending* from its start to its wait. The wait comes where the result is first read,
so kernels run while the collective communicates. A loop or branch whose body has collectives counts
as a collective that is complete when its instruction ends.

The next values of variables are written last, after every wait. So if the failure of another rank
ends the step, no variable has changed. A next value is *direct* if its kernel writes to the memory
of the variable. Otherwise it is a *store*: it is computed in other memory, and copied at the end.

If the ranks of a host share a variable (sharding/updates.py), each rank writes its part at the end
of the step, after all ranks have read the old value for the last time. The exception is the rank's
own part: no other rank writes it, so the rank may still read it while the ranks write.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from ..errors import CompileError
from ..graph.graph import Graph
from ..graph.leaves import Leaf
from ..graph.node import Node, topological
from .collective_order import Wait, order_of
from .fusion.elementwise import depths
from .target import Target, query_node
from .views import is_view, parts_written, source_of, span_of


@dataclass(frozen=True, eq=False)
class Schedule:
    """The order in which a step executes its nodes, and how it writes new values to variables."""

    graph: Graph
    order: tuple[Node, ...]
    """All nodes except leaves, each after its inputs."""
    direct: dict[Node, Node]
    """A dict {new value: variable} of the values that are computed in the memory of the variable.

    If the ranks of a host share the variable, the dict has only the part of the variable that this
    rank writes.
    The new values are at the end of `order`.
    """
    stores: tuple[tuple[Node, Node], ...]
    """The updates that are not in `direct`, as pairs (variable, new value). A new value is computed
    in other memory, and copied to the variable after all nodes of `order`. If the ranks share the
    variable, the pair has the part of the variable that this rank writes, and its new value."""


def schedule(graph: Graph, target: Target) -> Schedule:
    """Return the order in which a step executes a graph, and how it writes to its variables."""
    starts = sorted((n for n in graph.nodes if n.op.order is not None), key=order_of)
    if len({n.op.order for n in starts}) < len(starts):
        raise CompileError("schedule: two collectives have the same position in the order")
    depth_of = depths(graph)
    roots = [*starts, *sorted(graph.roots, key=lambda root: depth_of[root])]
    order = [n for n in topological(roots) if not isinstance(n.op, Leaf)]
    candidates = direct_candidates(graph, starts)
    writing = {value.results[0] for value in candidates}
    tail: set[Node] = set()
    for node in order:
        if node in writing or any(i in tail for i in node.inputs):
            tail.update(node.results if node.has_several_results else (node,))
    shared = parts_written(graph)
    if any(
        n.op.order is not None or isinstance(n.op, Wait) or reads_others(n, shared) for n in tail
    ):
        candidates, tail = {}, set()
    order = [n for n in order if n not in tail] + [n for n in order if n in tail]
    direct = keep_safe(candidates, order, graph, target)
    stores = tuple(
        (v, value) for v, value in graph.updates if value not in direct and value is not v
    )
    return Schedule(graph, tuple(order), direct, stores)


def reads_others(node: Node, shared: dict[Node, Node]) -> bool:
    """Return whether a node reads bytes of a shared variable that are not in this rank's own part.

    At the end of a step, other ranks write these bytes, so no node may read them then.
    """
    if not shared or is_view(node):
        return False
    read = ((shared.get(source_of(operand)), operand) for operand in node.inputs)
    return any(
        own_part is not None and span_of(own_part) != span_of(operand) for own_part, operand in read
    )


def direct_candidates(graph: Graph, starts: list[Node]) -> dict[Node, Node]:
    """Return the updates whose new value could be computed in the memory of its variable.

    The result is a dict {new value: variable}. Such a value is the new value of one variable only.
    It is not an output, and no collective needs it. `starts` has the collectives of the graph.
    """
    times = Counter(value for _, value in graph.updates)
    outputs = set(graph.outputs)
    sent = set(topological(starts))
    return {
        value: variable
        for variable, value in graph.updates
        if times[value] == 1
        and value not in outputs
        and value.results[0] not in sent
        and not isinstance(value.op, Leaf)
        and not is_view(value)
    }


def keep_safe(
    candidates: dict[Node, Node], order: list[Node], graph: Graph, target: Target
) -> dict[Node, Node]:
    """Return the candidates that do not overwrite an old value that is read later.

    `candidates` is a dict {new value: variable}: the updates that a kernel could write directly to
    the memory of the variable. If this kernel is the last reader of the variable's old value, the
    device must allow it to write the new value over the old one. The step may also assign the old
    value to another variable. This is safe, because plan_memory copies the old value before any
    candidate is written.
    """
    position = {node: i for i, node in enumerate(order)}
    last_read: dict[Node, int] = {}
    for i, node in enumerate(order):
        for operand in node.inputs:
            last_read[source_of(operand)] = i
    for output in graph.outputs:
        last_read[source_of(output)] = len(order)

    def is_safe(value: Node, variable: Node) -> bool:
        source = source_of(variable)
        last, own_position = last_read.get(source, -1), position[value.results[0]]
        if last != own_position:
            return last < own_position
        in_place = query_node(target, value).in_place
        return all(
            span_of(operand) == span_of(variable) and (value.number, i) in in_place
            for i, operand in enumerate(value.inputs)
            if source_of(operand) is source
        )

    return {value: v for value, v in candidates.items() if is_safe(value, v)}
