# SPDX-License-Identifier: Apache-2.0
"""The INTERPRETER device: a graph evaluated by the NumPy references of its ops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from .errors import Error
from .ir import Array, Graph, Node, Type
from .ops.collective import all_reduce, broadcast, is_rank


class Group(Protocol):
    """What evaluation asks of a group of ranks."""

    @property
    def rank(self) -> int:
        """The number of this rank."""
        ...

    def all_reduce(self, array: Array, *, op: str, site: str) -> Array:
        """Combine an array over the ranks; `site` is for messages."""
        ...

    def broadcast(self, array: Array, *, root: int, site: str) -> Array:
        """Return the root's array; `site` is for messages."""
        ...


def evaluate(
    graph: Graph,
    inputs: Sequence[Array],
    variables: Mapping[Node, Array],
    group: Group | None = None,
) -> tuple[list[Array], list[Array]]:
    """Compute a graph's outputs and its variables' next values, in the order of `updates`.

    Without a group this is rank 0 of 1. Collectives run in the graph's own order, which is the same
    on all ranks. Integers wrap silently; floats follow IEEE 754.
    """
    values = dict(zip(graph.inputs, inputs, strict=True)) | dict(variables)
    for node, value in values.items():
        _check(node, value)
    order = graph.nodes
    uses = dict.fromkeys(order, 0)
    for node in (*graph.roots, *(i for n in order for i in n.inputs)):
        uses[node] += 1
    for node in order:
        if node not in values:
            with np.errstate(all="ignore"):
                value = _compute(node, [values[i] for i in node.inputs], group)
            values[node] = np.asarray(value, order="C")
            _check(node, values[node])
        for operand in node.inputs:
            uses[operand] -= 1
            if not uses[operand]:
                del values[operand]
    return [values[n] for n in graph.outputs], [values[n] for _, n in graph.updates]


def _compute(node: Node, operands: Sequence[Array], group: Group | None) -> Array:
    if node.op.name == "constant":
        value: Array = node.attrs["value"]
        return value
    if group is not None:
        if node.op is all_reduce:
            return group.all_reduce(operands[0], op=node.attrs["reduce_op"], site=node.site)
        if node.op is broadcast:
            return group.broadcast(operands[0], root=node.attrs["root"], site=node.site)
        if node.op is is_rank:
            return np.array(group.rank == node.attrs["root"])
    return node.op.reference(*operands, **node.attrs)


def _check(node: Node, value: Array) -> None:
    found = Type(value.dtype, value.shape)
    if found != node.type:
        raise Error(
            f"internal error: the value of {node!r} (made at {node.site}) is {found} "
            f"instead of {node.type}"
        )
