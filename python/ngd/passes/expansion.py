# SPDX-License-Identifier: Apache-2.0
"""The expansion of ops for which the device has no kernel into ops for which it has one."""

from __future__ import annotations

from .._util import config
from .._util.callsite import ExpansionSite, at_site
from ..errors import CompileError
from ..graph.graph import Graph
from ..graph.leaves import Leaf
from ..graph.node import Node, offset_of, topological
from ..ops._precision import expansion
from .options import CompileOptions
from .target import Target, query_node


def needs_kernel(node: Node) -> bool:
    """Return whether the device must have a kernel for the op of a node.

    This is False for elementwise ops and broadcasts, which become parts of fused kernels, and for
    loops and branches, which run the programs of their bodies. It is also False for leaves,
    collectives and views, which run no kernel.
    """
    kernel = node.op.kernel
    if kernel.is_elementwise or kernel.is_broadcast or kernel.control_flow:
        return False
    is_free = isinstance(node.op, Leaf) or node.op.comm.is_collective
    return not is_free and offset_of(node) is None


def expand_op(node: Node) -> tuple[Node, ...]:
    """Return the nodes of other ops that together compute the results of `node`.

    With NGD_CHECK_FINITE=1, the call site of each new node also stores the name of the op of
    `node`, so that errors name the op that the user called.
    """
    if not config.check_finite() or isinstance(node.site, ExpansionSite):
        return expansion(node)
    with at_site(ExpansionSite(node.site, node.op.name)):
        return expansion(node)


def expand(graph: Graph, target: Target, options: CompileOptions) -> Graph:
    """Replace ops for which the device has no kernel by other ops, until it has all kernels.

    Raise CompileError if an op has neither a kernel nor a replacement.
    """

    def settle(node: Node) -> Node | tuple[Node, ...]:
        if not needs_kernel(node):
            return node
        verdict = query_node(target, node)
        if verdict.accepted:
            return node
        if not node.op.has_expansion:
            raise CompileError(
                f"{node.op.name} (made at {node.site}): expected operands for which the device has "
                f"a kernel; got {', '.join(str(i.type) for i in node.inputs)}: "
                f"{verdict.implementation}. Cast them, or use device='INTERPRETER'."
            )
        roots = expand_op(node)
        accepted_results = (
            Graph((), roots).rewrite(change, topological(roots, stop=node.inputs)).outputs
        )
        return accepted_results if node.has_several_results else accepted_results[0]

    def change(node: Node, inputs: tuple[Node, ...]) -> Node | tuple[Node, ...]:
        return settle(node.with_inputs(inputs))

    return graph.rewrite(change)
