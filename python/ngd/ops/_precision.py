# SPDX-License-Identifier: Apache-2.0
"""Two-byte floats are computed in float32 and rounded once: also where several ops make one.

A kernel and a reference see to it themselves. An expansion, and the gradient of an op that rounds,
are several nodes, each of which would round; so they are made of float32, and only the result is
narrowed.
"""

from __future__ import annotations

from ..dtypes import float32
from ..errors import CompileError
from ..graph.node import Node
from ..graph.text import print_types
from ._casting import cast
from ._operands import HALVES


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
    results = made if isinstance(made, tuple) else (made,)
    expect_types(node, "expand", results)
    return results


def expect_types(node: Node, method: str, made: tuple[Node, ...]) -> None:
    """Raise CompileError unless a method of an op returned nodes of the types of the op's results.

    The buffers of the results have these types, so other nodes would write out of bounds.
    """
    expected = tuple(result.type for result in node.results)
    found = tuple(part.type for part in made)
    if found != expected:
        raise CompileError(
            f"{node.op.name}: expected {type(node.op).__name__}.{method} to return "
            f"{print_types(expected)}, as infer does; got {print_types(found)} (made at "
            f"{node.site}). Cast or reshape in {method}."
        )
