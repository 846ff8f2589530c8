# SPDX-License-Identifier: Apache-2.0
"""Rematerialisation: functions whose values the backward pass recomputes (`remat`).

The operands of such a function are its arguments and the other nodes that it reads. The forward
pass computes its results as usual. The op `with_gradient` then returns these results unchanged, but
gives them a gradient rule. In the backward pass, the rule copies the nodes that compute the results
from the operands, and differentiates the copy.

The copy reads each operand x through a node after(x, adjoints of the results). The value of this
node is x, but it is computed only after the adjoints. So the copy runs in the backward pass, and
the compiler does not merge it with the first computation.
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
    """Return the nodes that a function reads directly, but has not made.

    They are nodes that existed before the call of the function, or are placeholders or variables.
    `since` is the number that `newest()` returned before the call: the nodes with a smaller id
    existed before the call. Constants are left out.
    """
    read: dict[Node, None] = {}
    for node in chain(results, chain.from_iterable(n.inputs for n in topological(results))):
        if node.op is not CONSTANT and (node.id < since or isinstance(node.op, Leaf)):
            read[node] = None
    inner = topological(results, stop=read)
    used = chain(results, chain.from_iterable(n.inputs for n in inner))
    return list(dict.fromkeys(node for node in used if node in read))


def wait_for_all(operands: Sequence[Node], adjoints: Sequence[Node | None]) -> list[Node | None]:
    """Return the adjoints of operands; delay those with which the backward pass continues.

    An operand of a `remat` function is a leaf (an input of the graph, or a variable such as a
    weight), or the result of ops before the function. With the adjoint of such a result, the
    backward pass continues in these ops. So this adjoint is delayed until the adjoints of all other
    operands are computed. Adjoints of leaves are not delayed.

    For example, g(f(x), w) calls the `remat` functions f and g. The backward pass of g computes the
    adjoints of f(x) and of the weight w from recomputed values of g. Without the delay, the adjoint
    of w could be computed at the end of the step, and these values would stay in memory until then.
    With the delay, their memory is free before the backward pass recomputes the values of f.
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

    The operands are the arguments of the function and the other nodes that it reads. The rule walks
    the graph from the results back to the operands, and copies the nodes on the way.

    The walk can fail if the function was called in the body of a loop. A value that is equal in all
    iterations may be computed outside of the body, and become an input of the body. If the walk
    reaches such an input that is not an operand, the rule recomputes nothing. The backward pass
    then differentiates the nodes of the forward pass, and uses their stored values.
    """

    follows_graph = True
    """True because `__call__` reads only its arguments and the nodes that compute them.

    `vmap` first traces a function on nodes without the mapped axis. Then it makes new nodes that
    have this axis. A gradient rule with follows_graph = True is called with the new nodes. Any
    other rule may also read other traced nodes, so it is called with the traced nodes, and its
    results are rewritten. See ops/batching/user_functions.py.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(
        self, results: Sequence[Node], operands: Sequence[Node], dy: Sequence[Node | None]
    ) -> Sequence[Node | None]:
        """Return an adjoint or None for each of `results`, then for each of `operands`.

        `dy` has the adjoints of the results. If the rule recomputes the results, it returns None
        for each result, so that the backward pass does not differentiate the first computation. If
        it recomputes nothing (see the class), it returns `dy` for the results, and None for each
        operand.
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
