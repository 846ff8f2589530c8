# SPDX-License-Identifier: Apache-2.0
"""Analysis of the body of a loop for its gradient.

It finds the inputs that have adjoints, the values that the loop stores for the gradient, and the
matrix products whose sum over all iterations is the gradient of a weight.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from ...dtypes import is_float
from ...graph.graph import Graph, bodies_of
from ...graph.node import Node, topological
from .._arithmetic import add
from .._custom import WithGradient
from .._shape import reshape


def inputs_with_adjoints(body: Graph, carries: int, wanted: Sequence[bool]) -> dict[Node, None]:
    """Return the inputs of a loop's body that need adjoints, as the keys of a dict.

    The dict is an ordered set: its values are None. `wanted` has one bool per input: True if the
    caller needs the adjoint of the loop's operand for this input. Each float input with True needs
    an adjoint. The first `carries` inputs are the carried values. Their adjoints pass from one
    iteration to the next. So a carried value also needs an adjoint if its value in the next
    iteration depends on an input that needs an adjoint.
    """
    inputs = body.inputs
    with_adjoint: dict[Node, None] = {
        p: None for p, want in zip(inputs, wanted, strict=True) if want and is_float(p.dtype)
    }
    while True:
        active = set(with_adjoint)
        for node in body.nodes:
            if any(i in active for i in node.inputs):
                active.update(r for r in node.results if is_float(r.dtype))
        pairs = zip(inputs[:carries], body.outputs, strict=False)
        added = [p for p, output in pairs if output in active and p not in with_adjoint]
        if not added:
            return with_adjoint
        with_adjoint.update(dict.fromkeys(added))


def worth_keeping(outputs: Sequence[Node], inputs: Sequence[Node]) -> list[Node]:
    """Return the results of heavy ops, such as matmul, that the loop stores for its gradient.

    `heavy_ends` finds them. Those that are outputs of the body are left out, because the loop
    stores its outputs anyway.
    """
    stored_anyway = set(outputs)
    return [node for node in heavy_ends(outputs, inputs) if node not in stored_anyway]


def heavy_ends(outputs: Sequence[Node], inputs: Sequence[Node]) -> list[Node]:
    """Return the results of the heavy ops of a body, such as matmul, convolution and attention.

    If the only reader of such a result adds a bias or a residual to it, the kernel of the heavy op
    can do this addition. Then the list has the sum, and not the result before the addition.

    The loop stores these results for its gradient. The gradient computes all other values again,
    and runs the collectives among them again. All ranks must run the same collectives, but shapes
    may differ between ranks. So the choice of the results depends only on the ops, not on shapes.

    The list is empty if an op of the body has a user-defined gradient. The user's function may read
    any node of the body, and a second-order gradient differentiates through these nodes. So the
    gradient must compute them again. A stored value is only an input of the gradient's body: it has
    no ops that can be differentiated.
    """
    order = topological(outputs)
    if has_rule(order):
        return []
    dependent = set(inputs)
    readers: dict[Node, list[Node]] = {output: [output] for output in outputs}
    for node in order:
        for operand in node.inputs:
            readers.setdefault(operand, []).append(node)
        if any(operand in dependent for operand in node.inputs):
            dependent.update(node.results)
    ends: dict[Node, None] = {}
    for node in order:
        if node not in dependent or not node.op.is_heavy or node.op.kernel.control_flow:
            continue
        for end in node.results:
            while len(end_readers := readers.get(end, [])) == 1:
                if end_readers[0] is end or not end_readers[0].op.fusion.is_addition:
                    break
                end = end_readers[0]
            if is_float(end.dtype):
                ends[end] = None
    return list(ends)


def has_rule(nodes: Iterable[Node]) -> bool:
    """Return True if one of the nodes has a user-defined gradient.

    The nodes in the bodies of loops and branches among `nodes` count as well.
    """
    return any(
        isinstance(node.op, WithGradient) or any(has_rule(body.nodes) for body in bodies_of(node))
        for node in nodes
    )


# The gradient of a weight that all iterations read is a sum over the iterations. If the body only
# multiplies by the weight, each term of the sum is a matrix product AᵀB. A and B have the rows of
# one iteration. The loop of the gradient then stacks A and B, unless a stack exists. One
# product of the stacks is computed after the loop. The decision does not depend on shapes, which
# may differ between ranks.


def products_of(adjoint: Node) -> list[Node]:
    """Return the matrix products AᵀB whose sum is the adjoint of a weight in one iteration.

    The list is empty if the adjoint is not such a sum. It is also empty if A or B is a result of a
    loop or a branch inside the body. An inner loop returns A and B as stacks over its own
    iterations. If the outer loop stored these stacks in each of its iterations, nested loops would
    not save memory.
    """
    if adjoint.op is add:
        parts = [products_of(x) if x.type == adjoint.type else [] for x in adjoint.inputs]
        return list(chain.from_iterable(parts)) if all(parts) else []
    if adjoint.op.gradient_factors(adjoint) is None:
        return []
    is_nested = any(before_reshapes(x).op.kernel.control_flow for x in factors_of(adjoint))
    return [] if is_nested else [adjoint]


def factors_of(product: Node) -> tuple[Node, Node]:
    """Return the nodes A and B of a product AᵀB that `products_of` has returned."""
    factors = product.op.gradient_factors(product)
    assert factors is not None
    return factors


def before_reshapes(node: Node) -> Node:
    """Return x for reshape(reshape(x)). A node that is not a reshape is returned unchanged."""
    while node.op is reshape:
        node = node.inputs[0]
    return node


def replace_nodes(outputs: Sequence[Node], replacements: Mapping[Node, Node]) -> list[Node]:
    """Return the outputs of a graph in which some nodes are replaced.

    A node that is a key of `replacements` is replaced by the value of this key. All nodes that
    depend on a replaced node are rebuilt.
    """

    def change(node: Node, operands: tuple[Node, ...]) -> Node | tuple[Node, ...]:
        rebuilt = node.with_inputs(operands)
        pairs = zip(node.results, rebuilt.results, strict=True)
        results = tuple(replacements.get(before, after) for before, after in pairs)
        return results if node.has_several_results else results[0]

    return list(Graph((), tuple(outputs)).rewrite(change).outputs)
