# SPDX-License-Identifier: Apache-2.0
"""Analysis of the body of a loop for its gradient.

It finds the inputs that have adjoints, the values that the gradient reads instead of computing them
again, and the products that a sum over all iterations consists of.
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
    """The inputs of a loop's body whose adjoints those of the wanted ones are made of, and these.

    The adjoint of a carried value is handed from round to round where the next value depends on
    what is wanted.
    """
    given = body.inputs
    found: dict[Node, None] = {
        p: None for p, want in zip(given, wanted, strict=True) if want and is_float(p.dtype)
    }
    while True:
        active = set(found)
        for node in body.nodes:
            if any(i in active for i in node.inputs):
                active.update(r for r in node.results if is_float(r.dtype))
        pairs = zip(given[:carries], body.outputs, strict=False)
        more = [p for p, made in pairs if made in active and p not in found]
        if not more:
            return found
        found.update(dict.fromkeys(more))


def worth_keeping(outputs: Sequence[Node], inputs: Sequence[Node]) -> list[Node]:
    """What heavy ops of a body make and a gradient may read, that is not among the outputs."""
    made = set(outputs)
    return [node for node in heavy_ends(outputs, inputs) if node not in made]


def heavy_ends(outputs: Sequence[Node], inputs: Sequence[Node]) -> list[Node]:
    """What the heavy ops of a body make of its inputs, behind the sums that their kernels take.

    A bias and a residual sum join the kernel of a heavy op only where nobody else reads what they
    are added to. So the sum is the end, where it is the only reader. Shapes are not asked: they may
    differ between ranks, and what is not kept is computed again, its collectives too.

    A body with a gradient of the user's keeps nothing: that rule holds nodes of the body, and a
    second gradient asks for what they are made of.
    """
    order = topological(outputs)
    if has_rule(order):
        return []
    own = set(inputs)
    readers: dict[Node, list[Node]] = {output: [output] for output in outputs}
    for node in order:
        for operand in node.inputs:
            readers.setdefault(operand, []).append(node)
        if any(operand in own for operand in node.inputs):
            own.update(node.results)
    ends: dict[Node, None] = {}
    for node in order:
        if node not in own or not node.op.is_heavy or node.op.kernel.control_flow:
            continue
        for end in node.results:
            while len(reading := readers.get(end, [])) == 1:
                if reading[0] is end or not reading[0].op.fusion.is_addition:
                    break
                end = reading[0]
            if is_float(end.dtype):
                ends[end] = None
    return list(ends)


def has_rule(nodes: Iterable[Node]) -> bool:
    """Return whether nodes, or the bodies that they run, have a gradient of the user."""
    return any(
        isinstance(node.op, WithGradient) or any(has_rule(body.nodes) for body in bodies_of(node))
        for node in nodes
    )


# The gradient of a weight that all iterations read is a sum over the iterations. If the body only
# multiplies by the weight, each term is a product AᵀB of the rows of one iteration. The loop then
# stacks these rows, unless a stack of them exists, and one product follows the loop. The decision
# does not depend on extents, which may differ between ranks.


def products_of(adjoint: Node) -> list[Node]:
    """Return the products AᵀB of which an adjoint is the sum; none if other terms are in it.

    A factor that an inner loop stacked is refused: the user nests loops to keep less than all
    iterations of both, and the product has many rows already.
    """
    if adjoint.op is add:
        parts = [products_of(x) if x.type == adjoint.type else [] for x in adjoint.inputs]
        return list(chain.from_iterable(parts)) if all(parts) else []
    if adjoint.op.gradient_factors(adjoint) is None:
        return []
    is_nested = any(before_reshapes(x).op.kernel.control_flow for x in factors_of(adjoint))
    return [] if is_nested else [adjoint]


def factors_of(product: Node) -> tuple[Node, Node]:
    """Return A and B of a product AᵀB."""
    found = product.op.gradient_factors(product)
    assert found is not None
    return found


def before_reshapes(node: Node) -> Node:
    """Return the node that a chain of reshapes begins with."""
    while node.op is reshape:
        node = node.inputs[0]
    return node


def replace_nodes(outputs: Sequence[Node], places: Mapping[Node, Node]) -> list[Node]:
    """Return outputs in which some of the nodes that they depend on are replaced."""

    def change(node: Node, operands: tuple[Node, ...]) -> Node | tuple[Node, ...]:
        made = node.with_inputs(operands)
        results = zip(node.results, made.results, strict=True)
        known = tuple(places.get(before, after) for before, after in results)
        return known if node.several else known[0]

    return list(Graph((), tuple(outputs)).rewrite(change).outputs)
