# SPDX-License-Identifier: Apache-2.0
"""The INTERPRETER device: a graph evaluated by the NumPy references of its ops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from .errors import Error
from .ir import CONSTANT, Array, Graph, Node, Type, topological
from .ops.control import WALKS
from .passes.collectives import in_order


class Group(Protocol):
    """What evaluation asks of the other ranks."""

    @property
    def rank(self) -> int:
        """The number of this rank."""
        ...

    @property
    def size(self) -> int:
        """The number of ranks."""
        ...

    def start(self, node: Node, operand: Array) -> Callable[[], Array]:
        """Start a collective, in the group of its attribute or else in this one.

        The result is a function that waits for that of the collective.
        """
        ...


def evaluate(
    graph: Graph,
    inputs: Sequence[Array],
    variables: Mapping[Node, Array],
    group: Group | None = None,
) -> tuple[list[Array], list[Array]]:
    """Compute a graph's outputs and its variables' next values, in the order of `updates`.

    Without a group this is rank 0 of 1. Collectives start in the order of `in_order`, which is the
    same on all ranks, and are waited for where their result is first read. Integers wrap silently;
    floats follow IEEE 754.
    """
    values = dict(zip(graph.inputs, inputs, strict=True)) | dict(variables)
    for node, value in values.items():
        _check(node, value)
    order = topological([*in_order(graph), *graph.roots])
    uses = Counter((*graph.roots, *(i for n in order for i in n.inputs)))
    started: dict[Node, Callable[[], Array]] = {}

    def value_of(node: Node) -> Array:
        if node in started:
            values[node] = np.asarray(started.pop(node)(), order="C")
            _check(node, values[node])
        return values[node]

    for node in order:
        operands = [value_of(i) for i in node.inputs]
        ranks = node.attrs.get("group") or group
        if node.op.collective and group is not None and ranks is not None and ranks.size > 1:
            started[node] = group.start(node, operands[0])
        elif node not in values:
            with np.errstate(all="ignore"):
                made = _compute(node, operands, group)
            for result, value in zip(node.results, made, strict=True):
                if result in uses or result is node:
                    values[result] = np.asarray(value, order="C")
                    _check(result, values[result])
        for operand in node.inputs:
            uses[operand] -= 1
            if not uses[operand]:
                del values[operand]
    return [value_of(n) for n in graph.outputs], [value_of(n) for _, n in graph.updates]


def _outputs(graph: Graph, inputs: Sequence[Array]) -> list[Array]:
    return evaluate(graph, inputs, {})[0]


WALKS.evaluate = _outputs


def _compute(node: Node, operands: Sequence[Array], group: Group | None) -> tuple[Array, ...]:
    if node.op is CONSTANT:
        return (node.attrs["value"],)
    if node.op.settled_by == "group" and group is not None:
        return (node.op.settle(node.attrs.get("group") or group, **node.attrs),)
    made = node.op.reference(*operands, **node.attrs)
    return made if isinstance(made, tuple) else (made,)


def _check(node: Node, value: Array) -> None:
    found = Type(value.dtype, value.shape)
    if found != node.type:
        raise Error(
            f"internal error: the value of {node!r} (made at {node.site}) is {found} "
            f"instead of {node.type}"
        )
