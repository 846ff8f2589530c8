# SPDX-License-Identifier: Apache-2.0
"""Functions whose values the backward pass computes again: `remat`."""

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
from .gradient import like, pulled


def remat(f: Callable[..., Any]) -> Function:
    """Recompute the values of `f` in the backward pass instead of storing them; a decorator.

    PyTorch and JAX also call this checkpointing; `ngd.checkpoint` saves variables. Results and
    gradients are equal up to rounding. Between the forward and the backward pass, memory holds only
    the inputs and results of `f`. The backward pass runs the forward pass of `f` once more.

    Parameters
    ----------
    f : function
        Takes and returns any structure of arrays of any shape. It may read nodes and variables from
        outside. Its collectives run again too.

    Returns
    -------
    Function
        Takes the arguments of `f` and returns its result.

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
        made = iter(with_gradient(results, operands, ComputedAgain(name)).results)
        return structure.rebuild(next(made) if isinstance(x, Node) else x for x in leaves)

    return like(f, call, "remat")


def read_from_outside(results: Sequence[Node], since: int) -> list[Node]:
    """What was there before some function ran, or comes from outside the graph, and is read."""
    read: dict[Node, None] = {}
    for node in chain(results, chain.from_iterable(n.inputs for n in topological(results))):
        if node.op is not CONSTANT and (node.id < since or isinstance(node.op, Leaf)):
            read[node] = None
    inner = topological(results, stop=read)
    used = chain(results, chain.from_iterable(n.inputs for n in inner))
    return list(dict.fromkeys(node for node in used if node in read))


def go_on_last(operands: Sequence[Node], parts: Sequence[Node | None]) -> list[Node | None]:
    """The same adjoints; those with which the backward pass goes on wait for the others.

    So what was computed again is done with before the layers below compute theirs: the gradients of
    weights, which nobody else waits for, would else keep it until the end.
    """
    there = [part for part in parts if part is not None]
    made = []
    for x, part in zip(operands, parts, strict=True):
        others = [other for other in there if other is not part]
        while x.op is after:
            x = x.inputs[0]
        if part is None or not others or isinstance(x.op, Leaf):
            made.append(part)
        else:
            made.append(after(part, *others))
    return made


class ComputedAgain:
    """The rule of `remat`: compute the results again, then differentiate this computation.

    What is between operands and results is found in the graph, which may be a copy by now: that of
    a loop's body. There, what the loop computes once comes from outside, so that a result may be
    reached from no operand. Then nothing is computed again.
    """

    follows_graph = True
    """The rule reads only the nodes that it is called with (ops/batching/user_functions.py)."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(
        self, results: Sequence[Node], operands: Sequence[Node], dy: Sequence[Node | None]
    ) -> Sequence[Node | None]:
        """Return the adjoints of the values that are read from outside."""
        inner = topological(results, stop=operands)
        if any(isinstance(node.op, Leaf) and node.op is not CONSTANT for node in inner):
            return [*dy, *(None for _ in operands)]
        known = [part for part in dy if part is not None]
        again = {x: after(x, *known) for x in operands}
        first = list(dict.fromkeys(x.results[0] for x in operands))

        def change(node: Node, inputs: tuple[Node, ...]) -> Node | tuple[Node, ...]:
            if not any(result in again for result in node.results):
                return node.with_inputs(inputs)
            replaced = tuple(again.get(result, result) for result in node.results)
            return replaced if node.several else replaced[0]

        graph = Graph((), tuple(results)).rewrite(change, [*first, *inner])
        found = dict(zip(again, pulled(graph.outputs, dy, [*again.values()]), strict=True))
        return [*(None for _ in results), *go_on_last(operands, [found[x] for x in operands])]

    def __repr__(self) -> str:
        return f"remat({self.name})"


__all__ = ["remat"]
