# SPDX-License-Identifier: Apache-2.0
"""The precision of 16-bit floats in expansions and gradients.

Ops on 16-bit floats compute in float32 and round once. A kernel and a reference do this themselves.
The expansion or the gradient of an op has several nodes, and each of them would round. So the
functions here build these nodes in float32, and cast only the final result.
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
    """Return nodes of other ops that compute the results of a node, in the same types.

    16-bit floats are computed in float32, and only the results are rounded.
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
