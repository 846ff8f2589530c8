# SPDX-License-Identifier: Apache-2.0
"""Analysis of a step's graph, which proves that values are equal on all ranks.

`Node.uniform` is set while a graph is built, and assumes that every variable is equal on all ranks.
This analysis also knows which variables may differ. It proves that values are equal on all ranks
that run the step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np

from ...graph.graph import Body, Graph, communicates
from ...graph.leaves import CONSTANT, PLACEHOLDER, VARIABLE
from ...graph.node import Node
from ...ops.collectives.groups import joined_world
from ...ops.collectives.reductions import Collective
from .uniform import is_per_rank


class Equal:
    """The nodes of a graph whose values are equal on the ranks of a group.

    `graph` is the graph of one compiled step. `varies(variable)` returns True if another compiled
    step writes values to the variable that may differ between these ranks.
    """

    def __init__(self, graph: Graph, group: Any, varies: Callable[[Node], bool]) -> None:
        self.graph, self.group, self.varies = graph, group, varies
        self.unproved: set[Node] = set()
        """The variables to which this step writes values that are not proved equal."""
        self.nodes: set[Node] = set()
        while True:
            self.nodes = self.proved()
            unproved = {v for v, value in graph.updates if value not in self.nodes}
            if unproved == self.unproved:
                break
            self.unproved = unproved

    def proved(self) -> set[Node]:
        """Return the nodes that are proved equal on all ranks of the group.

        The proof assumes that the variables in `self.unproved` may differ before the step. An
        earlier proof could not show that the step writes equal values to them.
        """
        equal: set[Node] = set()
        for node in self.graph.nodes:
            if self.is_equal(node, equal):
                equal.update(node.results)
        return equal

    def is_equal(self, node: Node, equal: set[Node]) -> bool:
        """Return whether a node is proved equal on all ranks of the group.

        `equal` has the earlier nodes that are proved equal.
        """
        if node.op is VARIABLE:
            return not (node in self.unproved or is_per_rank(node) or self.varies(node))
        if node.op is PLACEHOLDER:
            return bool(node.attrs.get("uniform"))
        if isinstance(node.op, Collective):
            return self.is_equal_collective(node)
        if node.op.comm.has_group_value or (node.op.kernel.control_flow and communicates(node)):
            return False
        return all(i in equal for i in node.inputs)

    def is_equal_collective(self, node: Node) -> bool:
        """Return whether the result of a collective is equal on all ranks of `self.group`."""
        assert isinstance(node.op, Collective)
        group = node.attrs.get("group", self.group)
        return node.op.kind.has_equal_results and (group == self.group or group is joined_world())

    def reaching(self, sources: set[Node]) -> set[Node]:
        """Return the nodes in `self.nodes` that depend on a collective or on one of `sources`.

        `self.nodes` has the nodes that are proved equal on all ranks. `sources` are variables that
        ranks share. The ranks may share another variable only if the returned nodes include the
        value that the step writes to it. So a variable that the step sets to a constant is not
        shared.
        """
        reached: set[Node] = set()
        for node in self.graph.nodes:
            is_collective = isinstance(node.op, Collective)
            if node in self.nodes and (
                is_collective or node in sources or any(i in reached for i in node.inputs)
            ):
                reached.update(node.results)
        return reached

    def dependencies_of(self, values: list[Node]) -> list[Node]:
        """Return the nodes of `values`, and the nodes from which they are computed.

        The operands of a collective are left out; the collective itself is included.
        """
        needed = set(values)
        for node in reversed(self.graph.nodes):
            if not needed.isdisjoint(node.results) and not isinstance(node.op, Collective):
                needed.update(node.inputs)
        return [node for node in self.graph.nodes if not needed.isdisjoint(node.results)]

    def digest(self, values: list[Node]) -> bytes:
        """Return a digest of how some values are computed, to compare between ranks."""
        hasher = hashlib.blake2b(digest_size=8)
        number: dict[Node, int] = {}
        for node in self.dependencies_of(values):
            is_collective = isinstance(node.op, Collective)
            inputs = (
                [] if is_collective else [(number[i.results[0]], i.number) for i in node.inputs]
            )
            attrs = sorted((k, attr_text(v)) for k, v in node.attrs.items() if k != "group")
            number[node] = len(number)
            hasher.update(repr((node.op.name, str(node.type), inputs, attrs)).encode())
            if node.op is CONSTANT:
                hasher.update(np.ascontiguousarray(node.attrs["value"]).tobytes())
        hasher.update(repr([(number[v.results[0]], v.number) for v in values]).encode())
        return hasher.digest()


def attr_text(value: Any) -> str:
    """Return the text of an attribute; for an array or a graph, only the name of its class."""
    return type(value).__name__ if isinstance(value, (np.ndarray, Body)) else repr(value)
