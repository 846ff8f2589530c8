# SPDX-License-Identifier: Apache-2.0
"""Views: nodes whose value uses all or a part of the memory of another node's value."""

from __future__ import annotations

from ..graph.graph import Graph
from ..graph.leaves import VARIABLE
from ..graph.node import Node, offset_of


def parts_written(graph: Graph) -> dict[Node, Node]:
    """Return a dict {variable: part of this rank} of the variables that the ranks of a host share.

    The part is a view of the variable; this rank writes only these bytes.
    """
    return {source_of(v): v for v, _ in graph.updates if v.op is not VARIABLE}


def is_view(node: Node) -> bool:
    """Return whether the value of a node is in the memory of its input's value."""
    return node.op.kernel.is_view and offset_of(node) is not None


def source_of(node: Node) -> Node:
    """Return the node whose memory a view shows; a node that is not a view is its own source."""
    while is_view(node):
        node = node.inputs[0]
    return node


def span_of(view: Node) -> tuple[int, int]:
    """Return the offset of the first byte of a view, and the offset of the byte after its last one.

    The offsets are relative to the first byte of the view's source (`source_of`).
    """
    begin, node = 0, view
    while is_view(node):
        begin += offset_of(node) or 0
        node = node.inputs[0]
    return begin, begin + view.type.bytes
