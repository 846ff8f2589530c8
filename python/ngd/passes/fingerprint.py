# SPDX-License-Identifier: Apache-2.0
"""The number of a step (a compiled graph): a hash by which ranks recognise equal steps.

Two steps may call equal collectives on different data. If two ranks called these steps in different
orders, the data would mix. So the ranks compare the numbers of the steps that they are running
(src/cpp/comm/computations.hpp). One step may also have different numbers on two ranks, for example
if only one of them computes an additional branch. So a difference alone is not an error. A rank
raises an error only if it has also loaded a step with the other rank's number: then the two ranks
are running two different steps.

The number leaves out properties that usually differ between ranks: shapes, constants that are
computed from shapes, the values of large arrays, and the groups and algorithms of collectives.

The traces of one ngd.function that differ only in the sizes of axes have one number (`Family`). So
a Python number that the function takes from a shape, such as `x.shape[0]`, does not change the
number of the step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

from ..dtypes import DType, float32
from ..graph.graph import Body, Graph
from ..graph.leaves import CONSTANT
from ..graph.node import Node
from .collective_order import collectives_in_order

EXTENTS: Final = frozenset({"shape", "extents", "length", "size", "sizes", "spatial"})
LOCAL: Final = EXTENTS | {"counts", "receive_counts", "group", "algorithm"}
"""The names of the attributes of nodes (`Node.attrs`) that may differ between ranks. The hash of a
compiled graph (`computation`) does not contain them."""

SMALL: Final = 16
"""The largest number of elements of a constant whose values are a part of the hash of a compiled
graph (`computation`)."""


@dataclass
class Family:
    """The traces of one function that differ only in the sizes of axes.

    `number` is the hash of the graph of the trace that is compiled first. All traces of the family
    use this hash. It is 0 until a trace is compiled.
    """

    number: int = 0


_family: ContextVar[Family | None] = ContextVar("ngd.family", default=None)


@contextmanager
def compiling(family: Family) -> Iterator[None]:
    """Give one number to all steps that are compiled in this block and in other blocks of `family`.

    The steps of a family are the traces of one function that differ only in the sizes of axes. The
    number is the hash of the first of these steps that was compiled. Ranks compare the numbers of
    steps to check that they run the same computation, so the steps of a family pass the check.
    """
    before = _family.set(family)
    try:
        yield
    finally:
        _family.reset(before)


def computation(graph: Graph, precision: DType = float32) -> int:
    """Return the number of a step (a compiled graph): a hash of its graph and its precision.

    The hash covers all collectives with their operands, and the values that the step stores in
    variables. If the step stores none, the hash covers the outputs instead. So a training step that
    also returns a metric has the same number as the step without the metric. All steps that are
    compiled in `compiling` blocks of one `Family` get the hash of the first of them.
    """
    family = _family.get()
    if family is None:
        return number_of(graph, {}, precision)
    family.number = family.number or number_of(graph, {}, precision)
    return family.number


def number_of(graph: Graph, digests: dict[int, bytes], precision: DType = float32) -> int:
    """Return the number of a graph: a hash of its computation.

    `digests` has the hash of each node by the id of the node. The function adds missing hashes.
    """
    for node in graph.nodes:
        if node.id in digests:
            continue
        whole = digest(node, [digests[i.id] for i in node.inputs])
        digests[node.id] = whole
        for other in node.results[1:]:
            digests[other.id] = combine_digests([whole, str(other.number).encode()])
    sent = [digests[node.id] for node in collectives_in_order(graph)]
    if precision != float32:
        sent.append(precision.name.encode())
    if graph.updates:
        made = [encode_name(graph.names[v]) + digests[value.id] for v, value in graph.updates]
    else:
        made = [digests[node.id] for node in graph.outputs]
    return int.from_bytes(combine_digests([b"sent", *sent, b"made", *made]), "little") or 1


def digest(node: Node, inputs: list[bytes]) -> bytes:
    """Return the digest of a node, computed from the digests of its inputs."""
    attrs = [
        f"{k}={attr_text(node, k, v)}" for k, v in sorted(node.attrs.items()) if k not in LOCAL
    ]
    text = f"{node.op.name} {node.dtype.name} {' '.join(attrs)}"
    return combine_digests([text.encode(errors="backslashreplace"), *inputs])


def attr_text(node: Node, key: str, value: Any) -> str:
    """Return the text of an attribute for the digest of a node.

    For the body of a loop or branch, the text is the hash of its graph. The text is empty for a
    large array. It is also empty for a constant with the attribute `local`: such a constant was
    computed from shapes, which may differ between ranks.
    """
    if node.op is CONSTANT and key == "value":
        is_compared = value.size <= SMALL and not node.attrs.get("local")
        return str(value.tobytes()) if is_compared else ""
    if isinstance(value, Body):
        input_digests = {p.id: str(i).encode() for i, p in enumerate(value.graph.inputs)}
        return str(number_of(value.graph, input_digests))
    return repr(value)


def encode_name(name: str) -> bytes:
    """Return the name of a variable in UTF-8, with lone surrogates escaped."""
    return name.encode(errors="backslashreplace")


def combine_digests(parts: list[bytes]) -> bytes:
    """Return one digest of several byte strings and of their lengths."""
    whole = hashlib.blake2b(digest_size=8)
    for part in parts:
        whole.update(len(part).to_bytes(8, "little"))
        whole.update(part)
    return whole.digest()
