# SPDX-License-Identifier: Apache-2.0
"""Rematerialisation: functions whose values the backward pass recomputes (`remat`).

The operands of such a function are its arguments and the other nodes that it reads. The graph has
the computation of its results as usual, and a node with a gradient rule follows the results. The
rule copies the computation from operands to results, and differentiates the copy. The copied
operands are `after` nodes that wait for the adjoints of the results, so that the copy runs in the
backward pass and is not merged with the first computation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

from ..compiler.functions import Function
from ..graph.graph import Graph
from ..graph.leaves import CONSTANT, Leaf
from ..graph.node import Node, newest, topological
from ..ops._custom import after, with_gradient
from ..trees import flatten
from .gradient import function_like, pull_back


def remat(f: Callable[..., Any]) -> Function:
    """Recompute the values of `f` in the backward pass instead of storing them; a decorator.

    PyTorch and JAX also call this checkpointing, but `ngd.checkpoint` saves variables. Results and
    gradients are equal up to rounding. Between the forward and the backward pass, memory holds only
    the inputs and results of `f`. The backward pass runs the forward pass of `f` once more.

    Parameters
    ----------
    f : function
        A function of any structures of arrays of any shape. It may also read nodes and variables
        that are not arguments. Its collectives run again, too.

    Returns
    -------
    Function
        A function of the arguments of `f` that returns its result.

    Examples
    --------
    >>> block = ngd.remat(lambda a: ops.tanh(ops.exp(a)))
    >>> ngd.grad(lambda a: ops.sum(block(a)))(np.zeros(1)).shape
    (1,)
    """
    name = getattr(f, "__qualname__", repr(f))

    def call(*args: Any, **kwargs: Any) -> Any:
        since = newest()
        returned = f(*args, **kwargs)
        leaves, structure = flatten(returned)
        results = [leaf for leaf in leaves if isinstance(leaf, Node)]
        if not results:
            return returned
        operands = read_from_outside(results, since)
        outputs = iter(with_gradient(results, operands, Recomputation(name)).results)
        return structure.rebuild(next(outputs) if isinstance(x, Node) else x for x in leaves)

    return function_like(f, call, "remat")


def read_from_outside(results: Sequence[Node], since: int) -> list[Node]:
    """Return the nodes that a function reads: nodes from before its call, and leaves.

    Leaves are placeholders and variables. `since` is a node number: nodes with a smaller one
    existed before the call. A node is left out if the function reads it only through other nodes of
    the list.
    """
    read: dict[Node, None] = {}
    for node in chain(results, chain.from_iterable(n.inputs for n in topological(results))):
        if node.op is not CONSTANT and (node.id < since or isinstance(node.op, Leaf)):
            read[node] = None
    inner = topological(results, stop=read)
    used = chain(results, chain.from_iterable(n.inputs for n in inner))
    return list(dict.fromkeys(node for node in used if node in read))


def wait_for_all(operands: Sequence[Node], adjoints: Sequence[Node | None]) -> list[Node | None]:
    """Return the adjoints of the operands, some of which wait for all other adjoints.

    These are the adjoints of operands that are not leaves: the backward pass continues with them.
    It does not need the gradients of weights, which could be computed at the end of the step. Until
    then they would keep the recomputed values in memory. With this order, the recomputed values of
    one function are free before the function in front of it recomputes its values.
    """
    known = [adjoint for adjoint in adjoints if adjoint is not None]
    ordered = []
    for x, adjoint in zip(operands, adjoints, strict=True):
        others = [other for other in known if other is not adjoint]
        while x.op is after:
            x = x.inputs[0]
        if adjoint is None or not others or isinstance(x.op, Leaf):
            ordered.append(adjoint)
        else:
            ordered.append(after(adjoint, *others))
    return ordered


class Recomputation:
    """The gradient rule of `remat`: recompute the results, and differentiate the recomputation.

    The rule finds the computation from the operands to the results in the graph. The graph may be a
    copy, as the body of a loop is. Values that the loop computes only once are inputs of the body,
    so a result may depend on an input that is not among the operands. Then nothing is recomputed:
    the rule returns the adjoints as those of the results.
    """

    follows_graph = True
    """A mark for vmap: the rule reads only the nodes that it is called with.

    See ops/batching/user_functions.py.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(
        self, results: Sequence[Node], operands: Sequence[Node], dy: Sequence[Node | None]
    ) -> Sequence[Node | None]:
        """Return the adjoints of the results and of the operands.

        Those of the results are None, unless nothing is recomputed. The operands are the values
        that the function reads from outside.
        """
        inner = topological(results, stop=operands)
        if any(isinstance(node.op, Leaf) and node.op is not CONSTANT for node in inner):
            return [*dy, *(None for _ in operands)]
        known_adjoints = [part for part in dy if part is not None]
        copies = {x: after(x, *known_adjoints) for x in operands}
        operand_nodes = list(dict.fromkeys(x.results[0] for x in operands))

        def change(node: Node, inputs: tuple[Node, ...]) -> Node | tuple[Node, ...]:
            if not any(result in copies for result in node.results):
                return node.with_inputs(inputs)
            replaced = tuple(copies.get(result, result) for result in node.results)
            return replaced if node.has_several_results else replaced[0]

        graph = Graph((), tuple(results)).rewrite(change, [*operand_nodes, *inner])
        adjoints = dict(zip(copies, pull_back(graph.outputs, dy, [*copies.values()]), strict=True))
        return [
            *(None for _ in results),
            *wait_for_all(operands, [adjoints[x] for x in operands]),
        ]

    def __repr__(self) -> str:
        return f"remat({self.name})"


__all__ = ["remat"]
