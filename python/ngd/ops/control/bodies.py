# SPDX-License-Identifier: Apache-2.0
"""Bodies of loops and branches: graphs inside the graph (`Body` in ngd/graph).

A body is traced once, so the size of a program does not depend on the number of iterations. Nodes
that a body reads from outside become operands (`close_over`). In each iteration, the body of a loop
reads two kinds of changing inputs: the carried values, which the preceding iteration has computed,
and one slice along axis 0 of some tensors. A node that depends on none of these inputs is computed
once, outside the loop.

A body may contain collectives. Then a loop must have the same number of iterations on all ranks,
and the predicate of a branch must be known to be equal on all ranks: its node has the mark
`uniform`. Without this mark, `Control.expect_agreement` raises a CompileError if a branch contains
a collective.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final, TypeAlias

from ...dtypes import Array, Type
from ...errors import CompileError, ShapeError
from ...graph.graph import Body, Graph, bodies_of, communicates
from ...graph.leaves import CONSTANT, PLACEHOLDER, Leaf
from ...graph.node import Node, Op, topological
from ...graph.order import Order
from ...graph.samples import Operand, Sample
from .._arithmetic import add
from .._creation import zeros
from ..collectives.reductions import Collective

SMALL: Final = 64
"""The maximum number of elements of a constant that `simplify` moves into a loop or a branch."""


Evaluate: TypeAlias = Callable[[Graph, Sequence[Array]], list[Array]]
"""A function (graph, values of its inputs) that computes the outputs of the graph in NumPy.

The graph is the body of a loop or a branch. It contains no variables: it reads them as inputs.
"""


class Control(Op):
    """The base of loops and branches: ops that run graphs (bodies) and have several results."""

    public = False
    dtypes = ()

    def is_uniform(self, inputs: Sequence[Node], attrs: Mapping[str, Any]) -> bool:
        """Return True if all operands, and all outputs of the bodies, are equal on all ranks."""
        bodies = (value.graph for value in attrs.values() if isinstance(value, Body))
        outputs = chain.from_iterable(graph.outputs for graph in bodies)
        return all(node.uniform for node in chain(inputs, outputs))

    def with_order(self, order: Order) -> Control:
        """Return a copy of the op with the attribute `order` set.

        `order` is a sort key that the compiler computes. The collectives of a step, and the loops
        and branches whose bodies contain collectives, start in the order of their keys on all
        ranks.
        """
        op = type(self)()
        op.order = order
        return op

    def first_shared_positions(self, node: Node) -> tuple[int, int]:
        """Return (i, j), the positions from which operands and body inputs correspond.

        Operand i + n is body input j + n, for n = 0, 1, 2, ... The op passes these operands
        unchanged to the body. Operands before position i have other uses, such as the predicate of
        a branch.
        """
        raise NotImplementedError(self.name)

    def simplify(self, node: Node) -> Node | None:
        """Move small constants from the operands into the bodies, so that kernels use their values.

        A loop or a branch is built with the constants from outside its bodies as operands, because
        a gradient may be taken with respect to them. The compiler calls this method later, when the
        graph already contains all gradients. Return the new node, or None if no operand is a small
        constant.
        """
        outside, inside = self.first_shared_positions(node)
        constants = {
            inside + i: operand
            for i, operand in enumerate(node.inputs[outside:])
            if operand.op is CONSTANT and operand.type.count <= SMALL
        }
        if not constants:
            return None
        bodies = {
            key: with_constants(value.graph, constants)
            for key, value in node.attrs.items()
            if isinstance(value, Body)
        }
        operands = [x for i, x in enumerate(node.inputs) if i - outside + inside not in constants]
        return self.node(operands, {**node.attrs, **bodies})

    def expect_agreement(self, node: Node) -> None:
        """Raise CompileError if ranks may run different collectives in the bodies of this node."""
        for body in bodies_of(node):
            expect_agreement(body)

    def grad(self, node: Node, dy: Any) -> Sequence[Node | None]:
        return self.grad_of(node, dy, [True for _ in node.inputs])

    def run(self, evaluate: Evaluate, *inputs: Any, **attrs: Any) -> tuple[Array, ...]:
        """Return the results, computed in NumPy. `evaluate` computes the outputs of a body."""
        raise NotImplementedError(self.name)

    def expect(self, operands: Sequence[Type], wanted: Sequence[Type]) -> None:
        """Raise ShapeError unless operands have the types with which the body was traced.

        A type is a dtype with a shape. `wanted` has the types of the traced body. A wrong dtype
        raises a ShapeError too.
        """
        if list(operands) != list(wanted):
            expected, got = (", ".join(map(str, types)) for types in (wanted, operands))
            raise ShapeError(
                f"{self.name}: expected {expected}, for which the body was traced; got {got}"
            )


def body_input(type: Type, uniform: bool = True) -> Node:
    """Return a new input of a body. `uniform` is True if its value is equal on all ranks."""
    return Node(PLACEHOLDER, (), {"name": "inside", "uniform": uniform}, type)


def with_constants(body: Graph, constants: Mapping[int, Node]) -> Body:
    """Return a body in which some inputs are replaced by constants.

    The keys of `constants` are the positions of these inputs, and the values are nodes of
    constants. Each input gets a new constant node of its own, even if two constants are equal:
    they may be equal on one rank only. With one shared node, the compiler of this rank would merge
    equal collectives that read the constants. The other ranks would not merge them.
    """
    constant_nodes = {
        body.inputs[i]: Node(CONSTANT, (), constant.attrs, constant.type)
        for i, constant in constants.items()
    }
    inputs = tuple(p for p in body.inputs if p not in constant_nodes)
    changed = body.rewrite(
        lambda node, operands: constant_nodes.get(node, node).with_inputs(operands)
    )
    return Body(Graph(inputs, changed.outputs))


def with_uniform_inputs(body: Graph, uniform: Sequence[bool]) -> Graph:
    """Return a copy of a body whose inputs have new values of the mark `uniform`.

    The argument `uniform` has one bool per input. True means that the value of the input is equal
    on all ranks. False means that it may differ between ranks.
    """
    inputs = {p: body_input(p.type, equal) for p, equal in zip(body.inputs, uniform, strict=True)}
    return body.rewrite(lambda node, operands: inputs.get(node, node).with_inputs(operands))


def expect_agreement(graph: Graph) -> None:
    """Raise CompileError if ranks may run different collectives in a loop or branch of the graph.

    If a predicate may differ between ranks and only one branch has a collective, some ranks would
    wait in the collective, while the other ranks compute the other branch.
    """
    for node in graph.nodes:
        if isinstance(node.op, Control) and communicates(node):
            node.op.expect_agreement(node)


def close_over(
    outputs: Sequence[Node], inputs: Sequence[Node], since: int | None = None
) -> tuple[tuple[Node, ...], list[tuple[Node, Node]]]:
    """Rewrite the outputs of a body of a loop or a branch, so that they depend only on body inputs.

    Return (new outputs, pairs). `inputs` are the body inputs that exist already. `outputs` may also
    depend on nodes outside of the body. A node that the body reads or returns, but does not
    compute, is captured: a new body input replaces it. Each pair is (captured node, new body
    input).

    The body computes all nodes that depend on `inputs`. If `since` is None, it computes no other
    nodes. Otherwise the caller got `since` from `newest()`, and then called the user's function
    for the body. The body then also computes the nodes that this function created: their `id` is
    greater than `since`. The body does not compute nodes whose value is known before the compiled
    step runs, such as placeholders.
    """
    order = topological(outputs)
    computed = nodes_computed_inside(order, inputs, since)
    expect_no_messages(node for node in order if node in computed)
    captured = captured_inputs(order, outputs, computed)
    return read_captured(order, outputs, computed, captured), list(captured.items())


def nodes_computed_inside(
    order: Sequence[Node], inputs: Sequence[Node], since: int | None
) -> set[Node]:
    """Return the set of a body's inputs and of the nodes of `order` that the body computes.

    The body computes the nodes that depend on `inputs`. If `since` is not None, the body also
    computes the nodes whose `id` is greater than `since`, except those whose value is known before
    the compiled step runs (`is_known_before_run`).
    """
    computed = set(inputs)
    for node in order:
        is_newer = since is not None and node.id > since
        if (is_newer and not is_known_before_run(node)) or not computed.isdisjoint(node.inputs):
            computed.update(node.results)
    return computed


def is_known_before_run(node: Node) -> bool:
    """Return True for a placeholder, a variable or `own_rank`, and False for all other nodes.

    A body reads the value of such a node as an input. The result is False for a constant, because
    a constant that the function of a branch creates is part of the branch.
    """
    is_operand = isinstance(node.op, Leaf) and node.op is not CONSTANT
    return is_operand or node.op.comm.has_group_value


def captured_inputs(
    order: Sequence[Node], outputs: Sequence[Node], computed: set[Node]
) -> dict[Node, Node]:
    """Return {node: new body input} for nodes that a body reads or returns but does not compute."""
    read = chain.from_iterable(node.inputs for node in order if node in computed)
    captured: dict[Node, Node] = {}
    for node in chain(read, outputs):
        if node not in computed and node not in captured:
            captured[node] = body_input(node.type)
    return captured


def expect_no_messages(nodes: Iterable[Node]) -> None:
    """Raise CompileError if a node of a body is a send or a receive."""
    for node in nodes:
        if isinstance(node.op, Collective) and node.op.kind.is_point_to_point:
            raise CompileError(
                f"{node.op.name} (made at {node.site}): expected no messages between two ranks in "
                "a loop or a branch; got one. Take it out."
            )


def read_captured(
    order: Sequence[Node],
    outputs: Sequence[Node],
    computed: set[Node],
    captured: Mapping[Node, Node],
) -> tuple[Node, ...]:
    """Return the outputs of a body, rewritten to read body inputs instead of captured nodes.

    The keys of `captured` are the captured nodes, which the body reads but does not compute. The
    values are the body inputs that replace them.
    """

    def change(node: Node, operands: tuple[Node, ...]) -> Node | tuple[Node, ...]:
        if node in computed:
            return node.with_inputs(operands)
        read = tuple(captured.get(result, result) for result in node.results)
        return read if node.has_several_results else read[0]

    outside = dict.fromkeys(node.results[0] for node in captured)
    inner = [node for node in order if node in computed]
    return Graph((), tuple(outputs)).rewrite(change, [*outside, *inner]).outputs


def sum_of(like: Node, parts: Sequence[Node | None]) -> Node:
    """Return the sum of the nodes in `parts` that are not None.

    If all are None, return zeros of the type of `like`.
    """
    terms = [part for part in parts if part is not None]
    total = terms[0] if terms else zeros(like.shape, like.dtype)
    for part in terms[1:]:
        total = add(total, part)
    return total


def add_to(sums: dict[Node, Node], key: Node, part: Node) -> None:
    """Add a term to sums[key], or store the term there if it is the first one."""
    sums[key] = add(sums[key], part) if key in sums else part


def sample_of(node: Node) -> Sample:
    """Return a test case (`Sample`) for the op of a node, with its attributes and operand types."""
    operands = (Operand(x.shape, dtype=x.dtype) for x in node.inputs)
    return Sample(tuple(operands), node.attrs)
