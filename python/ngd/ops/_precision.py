# SPDX-License-Identifier: Apache-2.0
"""Functions that keep float32 precision when several nodes compute one op on 16-bit floats.

An op on 16-bit floats computes in float32 and rounds only its result. A kernel does this itself,
and `Op.reference`, the NumPy code of an op, does it too. But `Op.expand` and `Op.grad` build
several nodes of other ops, and each of these nodes would round. So the functions here cast the
operands to float32 first, and cast only the final results back to 16 bits.
"""

from __future__ import annotations

from ..dtypes import float32
from ..errors import CompileError
from ..graph.node import Node
from ..graph.text import print_types
from ._casting import cast
from ._operands import FLOATS_16_BIT


def is_narrow(node: Node) -> bool:
    """Return True if an operand of the node is a 16-bit float."""
    return any(x.dtype in FLOATS_16_BIT for x in node.inputs)


def with_float32_operands(node: Node) -> Node:
    """Return a node of the same op whose operands of 16-bit floats are cast to float32."""
    wide = (cast(x, float32) if x.dtype in FLOATS_16_BIT else x for x in node.inputs)
    return node.with_inputs(tuple(wide))


def expansion(node: Node) -> tuple[Node, ...]:
    """Return one replacement node per result of `node`, with the type of this result.

    The nodes are those of `Op.expand`, which compute the results by other ops. But if an operand is
    a 16-bit float, the nodes compute the same op in float32 and cast its results.
    """
    if is_narrow(node):
        float32_results = with_float32_operands(node).results
        return tuple(cast(w, n.dtype) for w, n in zip(float32_results, node.results, strict=True))
    expanded = node.op.expand(*node.inputs, **node.attrs)
    results = expanded if isinstance(expanded, tuple) else (expanded,)
    expect_types(node, "expand", results)
    return results


def expect_types(node: Node, method: str, returned: tuple[Node, ...]) -> None:
    """Raise CompileError unless the nodes `returned` have the types of the results of `node`.

    `method` is the method of the op that made `returned`: "expand" or "simplify". The returned
    nodes replace the results of `node`, and write to the buffers of these results. A node of a
    larger type would write out of bounds.
    """
    expected = tuple(result.type for result in node.results)
    types = tuple(part.type for part in returned)
    if types != expected:
        raise CompileError(
            f"{node.op.name}: expected {type(node.op).__name__}.{method} to return "
            f"{print_types(expected)}, as infer does; got {print_types(types)} (made at "
            f"{node.site}). Cast or reshape in {method}."
        )
