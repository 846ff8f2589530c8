# SPDX-License-Identifier: Apache-2.0
"""The order of execution.

Collectives start in the order of their numbers, each as soon as its operand is there, and are
waited for where their result is first read. What runs graphs with collectives is one of them, and
ends where it starts. The variables' new values come last, after every wait,
so that a step that a peer's failure ends has changed no variable.

If the ranks of a host share a variable (sharding/updates.py), each writes its part when all ranks
have computed everything else. After that, a rank reads only its own part of the variable.
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
    """Nodes in the order of execution, and how the variables get their new values."""

    graph: Graph
    order: tuple[Node, ...]
    """Everything but the leaves, each after what it reads."""
    direct: dict[Node, Node]
    """Value -> the variable, or the part of one, in whose memory it is computed.

    They stand at the end of `order`.
    """
    stores: tuple[tuple[Node, Node], ...]
    """(variable or part of one, value): copied after everything else."""


def schedule(graph: Graph, target: Target) -> Schedule:
    """Order the graph's nodes; see the head of this file."""
    starts = sorted((n for n in graph.nodes if n.op.order is not None), key=order_of)
    if len({n.op.order for n in starts}) < len(starts):
        raise CompileError("two collectives have one place in the order of all")
    deep = depths(graph)
    roots = [*starts, *sorted(graph.roots, key=lambda root: deep[root])]
    order = [n for n in topological(roots) if not isinstance(n.op, Leaf)]
    candidates = direct_candidates(graph, starts)
    writing = {value.results[0] for value in candidates}
    tail: set[Node] = set()
    for node in order:
        if node in writing or any(i in tail for i in node.inputs):
            tail.update(node.results if node.several else (node,))
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
    """Whether it reads of a shared variable what another rank may be writing."""
    if not shared or is_view(node):
        return False
    read = ((shared.get(source_of(operand)), operand) for operand in node.inputs)
    return any(mine is not None and span_of(mine) != span_of(operand) for mine, operand in read)


def direct_candidates(graph: Graph, starts: list[Node]) -> dict[Node, Node]:
    """Values that could be computed in their variable's memory: one variable's, nobody's output."""
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
    """Drop every candidate that would overwrite what is still to be read.

    A kernel may write over an operand only where the device says so; a store that copies another
    variable's old value reads it before any candidate writes (plan_memory sees to that).
    """
    position = {node: i for i, node in enumerate(order)}
    last_read: dict[Node, int] = {}
    for i, node in enumerate(order):
        for operand in node.inputs:
            last_read[source_of(operand)] = i
    for output in graph.outputs:
        last_read[source_of(output)] = len(order)

    def safe(value: Node, variable: Node) -> bool:
        source = source_of(variable)
        last, now = last_read.get(source, -1), position[value.results[0]]
        if last != now:
            return last < now
        in_place = query_node(target, value).in_place
        return all(
            span_of(operand) == span_of(variable) and (value.number, i) in in_place
            for i, operand in enumerate(value.inputs)
            if source_of(operand) is source
        )

    return {value: v for value, v in candidates.items() if safe(value, v)}
