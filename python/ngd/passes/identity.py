# SPDX-License-Identifier: Apache-2.0
"""What a step computes, as a number by which the ranks tell their steps apart.

Two steps may call the same collectives and mean other data by them; called in different orders on
two ranks, they would mix. The ranks compare these numbers (src/cpp/comm/computations.hpp), and take
them for an error only where one of them holds both steps: what a step computes may differ between
ranks by right. What does so most often is left out, for the numbers to be equal where they can:
shapes and counts, which follow a rank's shard; groups and algorithms; the values of arrays.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

from ..dtype import float32
from ..ir import CONSTANT, Body, Graph, Node
from .collectives import in_order

LOCAL: Final = frozenset({"shape", "counts", "receive_counts", "group", "algorithm"})
"""Attributes that ranks may have different values of."""

SMALL: Final = 16
"""Constants of so many elements count with their values."""


def computation(graph: Graph) -> int:
    """The number of a step: of all that its collectives send, and of what it is for.

    That is what its variables become; of a step that updates none, what it returns. So a step that
    returns more than another one is the same.
    """
    return number_of(graph, {})


def number_of(graph: Graph, digests: dict[int, bytes]) -> int:
    """The number of a graph, where those of some nodes are known."""
    for node in graph.nodes:
        if node.id in digests:
            continue
        whole = digest(node, [digests[i.id] for i in node.inputs])
        digests[node.id] = whole
        for other in node.results[1:]:
            digests[other.id] = combined([whole, str(other.number).encode()])
    sent = [digests[node.id] for node in in_order(graph)]
    if graph.precision != float32:
        sent.append(graph.precision.name.encode())
    if graph.updates:
        made = [encoded(graph.names[v]) + digests[value.id] for v, value in graph.updates]
    else:
        made = [digests[node.id] for node in graph.outputs]
    return int.from_bytes(combined([b"sent", *sent, b"made", *made]), "little") or 1


def digest(node: Node, inputs: list[bytes]) -> bytes:
    """Of a node and all that it is made of."""
    attrs = [f"{k}={shown(node, k, v)}" for k, v in sorted(node.attrs.items()) if k not in LOCAL]
    what = f"{node.op.name} {node.dtype.name} {' '.join(attrs)}"
    return combined([what.encode(errors="backslashreplace"), *inputs])


def shown(node: Node, key: str, value: Any) -> str:
    """An attribute as the number counts it."""
    if node.op is CONSTANT and key == "value":
        return str(value.tobytes()) if value.size <= SMALL else ""
    if isinstance(value, Body):
        places = {p.id: str(i).encode() for i, p in enumerate(value.graph.inputs)}
        return str(number_of(value.graph, places))
    return repr(value)


def encoded(name: str) -> bytes:
    """Return the name of a variable as bytes."""
    return name.encode(errors="backslashreplace")


def combined(parts: list[bytes]) -> bytes:
    """One digest of several texts; where they part, counts."""
    whole = hashlib.blake2b(digest_size=8)
    for part in parts:
        whole.update(len(part).to_bytes(8, "little"))
        whole.update(part)
    return whole.digest()
