# SPDX-License-Identifier: Apache-2.0
"""Fusion of biases and post-operations into the kernel of the heavy op before them.

A *heavy op* (`Op.is_heavy`) is, for example, a matmul or a convolution. A *post-operation* is an op
that the kernel of a heavy op applies to the result before the kernel stores it, such as an
activation or a residual sum. For example, relu(a @ b + bias) becomes one matrix multiplication. A
heavy op lists the post-operations of its kernel (`Fusion.post_operations`). With 16-bit floats the
separate ops would round each result, so they are not fused.

The kernel does not store the operand of a post-operation. So a post-operation is fused only if
nothing else reads its operand. For example, the gradients of gelu and silu read the operands of
gelu and silu. So these two are fused in inference, but not in a step that computes the gradients.
The fused node keeps the call site of the heavy op, so that reports and errors name the line and the
layer of the heavy op.

The pass `expand` replaces an op such as gelu by the ops that it is composed of. So if the graph has
such ops (has_composites), they are fused before `expand` runs, and equal nodes are merged before
the fusion. Otherwise one of two equal matmuls could be fused with its reader, and the other matmul
would still be computed for another reader.
"""

from __future__ import annotations

from functools import cache
from typing import Final

from ..._util.callsite import at_site
from ...dtypes import float32, float64
from ...graph.graph import Graph
from ...graph.node import Node
from ...graph.registry import OPS
from ...ops._activation import ADDED
from ...ops._shape import reshape
from ..options import CompileOptions
from ..target import Target
from .matmuls import has_small_factors
from .patterns import Match, Pattern, Rule, apply_rules

HEAVY: Final = Pattern("heavy", trait=lambda op: op.is_heavy, read_once=True)
RESHAPED: Final = Pattern("view", lambda op: op.kernel.is_view, (HEAVY,), read_once=True)


def same_type(match: Match) -> bool:
    """Return whether the types allow the fusion of a heavy op and the op that reads its result.

    The heavy op is, for example, a matmul. The other op must not change the shape or the dtype. The
    dtype must be float32 or float64: separate 16-bit ops would round once more than the fused ones.
    `ngd.full_precision` must apply to both ops or to neither.
    """
    behind = match["behind"]
    read = match.get("view", match["heavy"])
    if "view" in match and len(read.inputs) > 1:  # the view also waits for other nodes
        return False
    is_compatible = (
        read.type.count == match["heavy"].type.count
        and behind.keeps_float32 == match["heavy"].keeps_float32
    )
    return is_compatible and behind.type == read.type and behind.dtype in (float32, float64)


def with_bias(match: Match) -> Node | None:
    """Return a heavy op, such as a matmul, plus a bias as one node; None if this is impossible."""
    heavy = match["heavy"]
    with at_site(heavy.site):
        return heavy.op.with_bias(heavy, match["bias"])


def post_operation_name(behind: Node) -> str:
    """Return the name of the C++ kernel that computes the node `behind`, such as "relu".

    A heavy op, such as a matmul, lists by such names the ops that its kernel can apply to its
    result.
    """
    return behind.op.lower(**behind.attrs)[0]


def takes_residual(match: Match) -> bool:
    """Return whether the kernel of a heavy op, such as a matmul, should add the residual.

    The residual is the other operand of an addition that reads the heavy op's result. The kernel
    can add only one residual. The result is also False in two cases in which an elementwise kernel
    should add the residual:

    - The residual is a broadcast. The heavy op's kernel would need the result of the broadcast in
      memory.
    - The heavy op is a matmul with small factors. The elementwise kernel may compute the matmul,
      too (matmuls.py).
    """
    heavy, residual = match["heavy"], match["residual"]
    if has_small_factors(heavy):
        return False
    can_add = ADDED in heavy.op.fusion.post_operations and ADDED not in heavy.attrs.get("post", ())
    is_compatible = residual.type == match["behind"].type and not residual.op.kernel.is_broadcast
    return can_add and is_compatible and same_type(match)


def with_residual(match: Match) -> Node:
    """Return the result of a heavy op (such as a matmul) plus a residual, from one kernel."""
    heavy = match["heavy"]
    return with_post_operation(match, ADDED, (reshape(match["residual"], heavy.shape),))


def takes_post(match: Match) -> bool:
    """Return whether the kernel of a heavy op, such as a matmul, can apply the op that follows.

    The op that follows, such as relu, reads only the result of the heavy op.
    """
    behind = match["behind"]
    is_unary = (
        len(behind.inputs) == 1
        and post_operation_name(behind) in match["heavy"].op.fusion.post_operations
    )
    return is_unary and same_type(match)


def with_post(match: Match) -> Node:
    """Return the result of an op such as relu, computed by the kernel of the heavy op before it.

    For example, the kernel of a matmul (a heavy op) computes relu(a @ b).
    """
    return with_post_operation(match, post_operation_name(match["behind"]))


def with_post_operation(match: Match, name: str, operands: tuple[Node, ...] = ()) -> Node:
    """Return a heavy op, such as a matmul, whose kernel also applies the op `name` to its result.

    If the graph applies `name` to a view of the heavy op's result (a reshape, for example), return
    the same view of the new node. `operands` has the other operands of `name`.
    """
    heavy = match["heavy"]
    attrs = {**heavy.attrs, "post": (*heavy.attrs.get("post", ()), name)}
    with at_site(heavy.site):
        new_node = heavy.op.node((*heavy.inputs, *operands), attrs)
        return match["view"].with_inputs((new_node,)) if "view" in match else new_node


def adds(*operands: Pattern) -> Pattern:
    """Return the pattern of a sum of two operands in either order."""
    return Pattern("behind", lambda op: op.fusion.is_addition, operands, any_order=True)


RULES: Final = (
    Rule(adds(HEAVY, Pattern("bias")), same_type, with_bias),
    Rule(adds(HEAVY, Pattern("residual")), takes_residual, with_residual),
    Rule(adds(RESHAPED, Pattern("residual")), takes_residual, with_residual),
    Rule(Pattern("behind", operands=(HEAVY,)), takes_post, with_post),
    Rule(Pattern("behind", operands=(RESHAPED,)), takes_post, with_post),
)


def fuse_post_operations(graph: Graph, target: Target, options: CompileOptions) -> Graph:
    """Fuse biases and ops such as activations into the matmul or other heavy op before them."""
    return apply_rules(graph, RULES, target)


@cache
def post_operation_names() -> frozenset[str]:
    """Return the names of the ops that the kernel of some heavy op can apply to its result.

    For example, the kernel of a matmul can apply "relu".
    """
    return frozenset(post for op in OPS.values() for post in op.fusion.post_operations)


def has_composites(graph: Graph, options: CompileOptions, changed: bool) -> bool:
    """Return whether a graph has an op, such as gelu, to fuse before `expand` replaces it.

    Such an op is composed of other ops, and the kernel of some heavy op (for example a matmul) can
    apply it.
    """
    return any(
        node.op.has_expansion and post_operation_name(node) in post_operation_names()
        for node in graph.nodes
    )
