# SPDX-License-Identifier: Apache-2.0
"""Two-byte floats are computed in float32 and rounded once: also where several ops make one.

A kernel and a reference see to it themselves. An expansion, and the gradient of an op that rounds,
are several nodes, each of which would round; so they are made of float32, and only the result is
narrowed.
"""

from __future__ import annotations

from ..dtype import float32
from ..ir import Node
from .casting import cast
from .operands import HALVES


def is_narrow(node: Node) -> bool:
    """Whether this computes on two-byte floats."""
    return any(x.dtype in HALVES for x in node.inputs)


def widened(node: Node) -> Node:
    """The same op on float32 where its operands are two-byte floats."""
    wide = (cast(x, float32) if x.dtype in HALVES else x for x in node.inputs)
    return node.with_inputs(tuple(wide))


def expansion(node: Node) -> tuple[Node, ...]:
    """The same results in terms of other ops."""
    if is_narrow(node):
        wide = widened(node).results
        return tuple(cast(w, n.dtype) for w, n in zip(wide, node.results, strict=True))
    made = node.op.expand(*node.inputs, **node.attrs)
    return made if isinstance(made, tuple) else (made,)
