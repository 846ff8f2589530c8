# SPDX-License-Identifier: Apache-2.0
"""The op `cond`, a choice between two branches, and its gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, Final

from ... import trees
from ...dtypes import Array, Type, align_up, bool_, float32, float64, is_float
from ...errors import CompileError, DTypeError, ShapeError
from ...graph import notes
from ...graph.cost import Cost
from ...graph.graph import Body, Graph, bodies_of, communicates
from ...graph.node import Node, newest, topological
from ...graph.registry import public, register
from ...graph.samples import Sample
from ...graph.traits import Kernel
from .._compare import expect_choice
from .._operands import as_node
from .._reverse_mode import walk_back
from .._transcendental import tanh
from .bodies import (
    Control,
    Evaluate,
    add_to,
    body_input,
    close_over,
    expect_agreement,
    sample_of,
    sum_of,
    with_uniform_inputs,
)

__all__ = ["cond"]


class Cond(Control):
    """A choice between two branches, which have the same inputs and the same types of results.

    Operands: a bool scalar, the predicate; and the values that a branch reads.
    """

    # Attributes of a node: on_true, on_false.
    name = "cond"
    kernel = Kernel(control_flow="cond")

    def infer(self, *inputs: Type, on_false: Body, on_true: Body) -> tuple[Type, ...]:
        if inputs[0] != Type(bool_, ()):
            raise DTypeError(
                f"cond: expected a bool scalar to choose by; got {inputs[0]}. Reduce it by "
                "ops.all or ops.any."
            )
        self.expect(inputs[1:], [node.type for node in on_true.graph.inputs])
        return tuple(node.type for node in on_true.graph.outputs)

    def lower(self, **attrs: Any) -> tuple[str, dict[str, Any]]:
        return self.name, {}

    def cost(self, operands: Sequence[Type], results: Sequence[Type], **attrs: Any) -> Cost:
        """Return the cost of the more expensive branch.

        This is the branch with more floating-point operations, or, if both have the same number,
        the one that reads and writes more bytes.
        """
        branches: Sequence[Cost] = attrs["bodies"]
        return max(branches, key=lambda cost: (cost.flops, cost.bytes))

    def first_shared_positions(self, node: Node) -> tuple[int, int]:
        return 1, 0

    def scratch_bytes(self, **attrs: Any) -> int:
        """Return the total size in bytes of the spare buffers, one per result of a branch.

        A branch computes all its results. If the compiled step does not use a result, the result
        has no other memory, and the branch writes it to the spare buffer.
        """
        return sum(align_up(node.type.bytes) for node in attrs["on_true"].graph.outputs)

    def expect_agreement(self, node: Node) -> None:
        """Raise CompileError if a branch has a collective and the predicate may differ by rank."""
        predicate, equal = node.inputs[0], [x.uniform for x in node.inputs[1:]]
        bodies = [with_uniform_inputs(body, equal) for body in bodies_of(node)]
        for inner in chain.from_iterable(body.nodes for body in bodies):
            if communicates(inner) and not predicate.uniform:
                raise CompileError(
                    f"cond (made at {node.site}): expected branches without collectives, because "
                    f"ranks may take different ones; got {inner.op.name} (made at {inner.site}). "
                    "Choose by a value that is equal on all ranks, such as "
                    'all_reduce(predicate, op="max").'
                )
        for body in bodies:
            expect_agreement(body)

    def run(
        self, evaluate: Evaluate, *inputs: Array, on_false: Body, on_true: Body
    ) -> tuple[Array, ...]:
        chosen = on_true if inputs[0] else on_false
        return tuple(evaluate(chosen.graph, inputs[1:]))

    def samples(self) -> Iterable[Sample]:
        for dtype in (float32, float64):
            x, w = (body_input(Type(dtype, (3, 2))) for _ in range(2))
            x_input = body_input(x.type)
            branches = [[tanh(x_input) * w, w], [x_input, x_input + w]]
            yield sample_of(choose(body_input(Type(bool_, ())), [(x, x_input)], branches)[0])

    def grad_of(
        self, node: Node, dy: Sequence[Node | None], wanted: Sequence[bool]
    ) -> Sequence[Node | None]:
        """Return the adjoints of the operands: a `cond` between the gradients of both branches."""
        body_inputs = node.attrs["on_true"].graph.inputs
        wanted_inputs = [
            i for i, operand in enumerate(body_inputs) if wanted[i + 1] and is_float(operand.dtype)
        ]
        result_adjoints = [(i, d, body_input(d.type)) for i, d in enumerate(dy) if d is not None]
        pairs = list(zip(node.inputs[1:], body_inputs, strict=True)) + [
            (d, p) for _, d, p in result_adjoints
        ]
        branches = []
        for name in ("on_true", "on_false"):
            outputs, seeds = node.attrs[name].graph.outputs, dict[Node, Node]()
            for i, _, seed in result_adjoints:
                add_to(seeds, outputs[i], seed)
            inner = walk_back(seeds, [body_inputs[i] for i in wanted_inputs])
            branches.append(
                [sum_of(body_inputs[i], [inner.get(body_inputs[i])]) for i in wanted_inputs]
            )
        input_adjoints = choose(node.inputs[0], pairs, branches)
        adjoints = dict(zip(wanted_inputs, input_adjoints, strict=True))
        return [None, *(adjoints.get(i) for i in range(len(body_inputs)))]


COND: Final[Cond] = register(Cond())


def choose(
    predicate: Node,
    pairs: Sequence[tuple[Node, Node]],
    branches: Sequence[Sequence[Node]],
    since: int | None = None,
) -> tuple[Node, ...]:
    """Return the results of a new `cond` between two branches.

    Each of `pairs` is (operand, body input for this operand). `branches` has the outputs of the
    branch for True, then those for False. The branches compute the nodes that depend on body
    inputs. If `since` is not None, they also compute the nodes that the branch functions created.
    `since` is a node number from a call of `newest()` before the branch functions ran: the nodes
    that they created have a greater `id`. Other nodes that the branches read become further
    operands. `close_over` has the exact rules.
    """
    outputs, captured = close_over([*branches[0], *branches[1]], [p for _, p in pairs], since)
    pairs = [*pairs, *captured]
    inputs, half = tuple(p for _, p in pairs), len(branches[0])
    attrs = {
        "on_false": Body(Graph(inputs, outputs[half:])),
        "on_true": Body(Graph(inputs, outputs[:half])),
    }
    node = COND.node([predicate, *(x for x, _ in pairs)], attrs)
    notes.take_over(node, topological([*branches[0], *branches[1]]))
    return node.results


@public
def cond(
    predicate: Any, on_true: Callable[..., Any], on_false: Callable[..., Any], *operands: Any
) -> Any:  # long because each argument is described
    """Compute one of two functions, depending on a bool scalar.

    A function may contain collectives if the predicate is known to be equal on all ranks. This is
    known for variables, constants, placeholders with `uniform=True`, the results of collectives
    such as all_reduce, and nodes that depend only on these. If a variable nevertheless differs
    between ranks, the collectives raise CollectiveMismatchError.

    Parameters
    ----------
    predicate : node or array
        A bool scalar.
    on_true, on_false : callable
        Each is traced once, with the operands. Both return the same structure of nodes with the
        same dtypes and shapes. They may read nodes and variables from outside.
    operands : node, array, or a structure of them
        The arguments of both functions.

    Returns
    -------
    Any
        The result of the chosen function. A step computes only this function, and only its
        gradient.

    Raises
    ------
    ShapeError, DTypeError
        The two functions return different types, or the predicate is not a bool scalar.
    CompileError
        A function contains a send or a receive. ngd.compile raises it for a collective, if the
        predicate is not known to be equal on all ranks.

    Examples
    --------
    ::

        >>> def clipped(x):
        ...     return ops.cond(ops.max(x) > 1, lambda: x / ops.max(x), lambda: x)
        >>> ngd.function(clipped)(np.array([1.0, 2.0]))
        array([0.5, 1. ])
    """
    expect_choice("cond", predicate)
    leaves, structure = trees.flatten(list(operands))
    nodes = [as_node(leaf, where="cond: operands") for leaf in leaves]
    since = newest()
    pairs = [(node, body_input(node.type)) for node in nodes]
    results, structures = [], []
    for function in (on_true, on_false):
        result_leaves, nesting = trees.flatten(function(*structure.rebuild([p for _, p in pairs])))
        structures.append(nesting)
        results.append(
            [as_node(leaf, where="cond: the result of a function") for leaf in result_leaves]
        )
    expect_equal_types(structures, results)
    chosen = choose(as_node(predicate, where="cond: predicate"), pairs, results, since)
    return structures[0].rebuild(chosen)


def expect_equal_types(
    structures: Sequence[trees.Structure], results: Sequence[list[Node]]
) -> None:
    """Raise an error unless both functions of a cond returned equal structures and types."""
    if structures[0] != structures[1]:
        structures[0].match(structures[1].rebuild(results[1]), "cond: the result of on_false")
    for path, one, other in zip(structures[0].paths("result"), *results, strict=True):
        if one.type != other.type:
            raise (DTypeError if one.dtype != other.dtype else ShapeError)(
                f"cond: expected both functions to return {path} of one type; got {one.type} "
                f"(made at {one.site}) and {other.type} (made at {other.site}). Cast or "
                "reshape one."
            )
