# SPDX-License-Identifier: Apache-2.0
"""Batching rules of user functions: custom gradients, and Python functions for ngd.call_host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...dtypes import Array, Type, is_float
from ...graph.node import Node
from .._arithmetic import multiply
from .._custom import Rule, WithGradient
from .._host import CallHost, HostFunction
from .._reductions import sum
from ..control.bodies import body_input
from .rewrite import Batched, Batching, Results, batches


@batches(WithGradient)
def batch_with_gradient(batching: Batching, node: Node, operands: Sequence[Batched]) -> Results:
    """Make a with_gradient node whose gradient rule computes the adjoints of all examples.

    A with_gradient node returns the results of a user's function, and has the user's gradient rule.
    If the attribute `follows_graph` of the rule is True, the rule reads only its arguments and the
    nodes from which they are computed. So the new node has the same rule.

    Any other rule may also use other nodes of the traced function, which computes one example. So
    the new node has a BatchedRule instead. It calls the user's rule with traced nodes, and replaces
    the returned adjoints by nodes that compute them for all examples.
    """
    count, rule = node.attrs["count"], node.attrs["rule"]
    if getattr(rule, "follows_graph", False):
        results = node.op.node([x.node for x in operands], node.attrs).results
        return [Batched(r, x.is_mapped) for r, x in zip(results, operands, strict=False)]
    new_operands = [
        *(batching.with_batch_axis(x) for x in operands[:count]),
        *(x.node for x in operands[count:]),
    ]
    return node.op.node(new_operands, {"count": count, "rule": BatchedRule(batching, node, rule)})


class BatchedRule:
    """A gradient rule for all examples, made from the user's rule for one example.

    The traced function computes one example. The user's rule of `custom_gradient` may use any nodes
    of this function. So BatchedRule calls the user's rule with the traced nodes. Then `Batching`
    replaces the returned adjoints by nodes that compute them for all examples.
    """

    def __init__(self, batching: Batching, node: Node, rule: Rule) -> None:
        self.batching, self.node, self.rule = batching, node, rule

    def __call__(
        self, results: Sequence[Node], operands: Sequence[Node], dy: Sequence[Node | None]
    ) -> Sequence[Node | None]:
        """Return one adjoint per entry of `results`, then one per entry of `operands`.

        The adjoints are for all examples. `results` are the nodes that the user's function has
        returned, and `operands` are the operands of this function. `dy` has one adjoint per result,
        with the batch axis, or None for a result on which the loss does not depend.
        """
        node, batching = self.node, Batching(self.batching.size, self.batching.since, self.batching)
        seeds: list[Node | None] = []
        for result, part in zip(node.results, dy, strict=True):
            seeds.append(None if part is None else body_input(result.type))
            if part is not None:
                batching.new[seeds[-1]] = Batched(part)  # type: ignore[index]
        count = node.attrs["count"]
        traced_adjoints = self.rule(node.inputs[:count], node.inputs[count:], seeds)
        rewritten = iter(batching.rewrite([part for part in traced_adjoints if part is not None]))
        adjoints = [None if part is None else next(rewritten) for part in traced_adjoints]
        of_results, of_operands = adjoints[:count], adjoints[count:]
        return [
            *(None if part is None else batching.with_batch_axis(part) for part in of_results),
            *map(self.adjoint, of_operands, node.inputs[count:]),
        ]

    def adjoint(self, part: Batched | None, operand: Node) -> Node | None:
        """Return the adjoint of an operand of the user's function, for all examples.

        The user's rule returned an adjoint for one example. `part` replaces this adjoint, and
        computes it for all examples. If `part` is None, the operand has no gradient: return None.
        If all examples share the operand, return the sum of `part` over the examples.
        """
        if part is None or self.batching.find(operand).is_mapped:
            return None if part is None else self.batching.with_batch_axis(part)
        return sum(part.node, 0) if part.is_mapped else multiply(part.node, self.batching.size)

    def __repr__(self) -> str:
        return f"vmap({self.rule!r})"


@batches(CallHost)
def batch_call_host(batching: Batching, node: Node, operands: Sequence[Batched]) -> Results:
    """Call the Python function, and its gradient if it has one, once per example."""
    function: HostFunction = node.attrs["function"]
    is_mapped = [x.is_mapped for x in operands]
    nodes = tuple(x.node for x in operands)
    results = tuple(batching.batched_type_of(result) for result in function.results)
    forward = once_per_example(function, function.results, is_mapped, batching.size)
    gradient = function.gradient and gradient_per_example(
        function, function.gradient, is_mapped, batching.size
    )
    types = tuple(x.type for x in nodes)
    return node.op.node(nodes, {"function": HostFunction(forward, types, results, gradient)})


def once_per_example(
    function: Callable[..., Any], results: Sequence[Type], is_mapped: Sequence[bool], size: int
) -> Callable[..., Any]:
    """Return a function that calls `function` once per example, and stacks the results.

    `is_mapped` has a bool per argument: True if each example gets its own slice of the argument.
    """

    def examples(*arrays: Array) -> Any:
        stacks = [np.empty((size, *result.shape), result.dtype) for result in results]
        for i in range(size):
            row = [a[i] if mapped else a for a, mapped in zip(arrays, is_mapped, strict=True)]
            returned = function(*row)
            values = returned if isinstance(returned, tuple) else (returned,)
            for stack, value in zip(stacks, values, strict=True):
                stack[i] = value
        return tuple(stacks) if len(stacks) > 1 else stacks[0]

    return examples


def gradient_per_example(
    function: HostFunction, one: Callable[..., Any], is_mapped: Sequence[bool], size: int
) -> Callable[..., Any]:
    """Return a gradient function for all examples, which calls `one` once per example.

    `one` is the gradient function of one example. `is_mapped` has a bool per operand. True means
    that each example has its own slice of the operand: the adjoints of the slices are stacked.
    False means that all examples share the operand: its adjoint is the sum over the examples.
    """
    floats = [i for i, operand in enumerate(function.inputs) if is_float(operand.dtype)]
    types = [function.inputs[i] for i in floats]
    all_mapped = [*is_mapped, *(True for _ in function.results)]

    def gradient(*arrays: Array) -> Any:
        each = once_per_example(one, types, all_mapped, size)(*arrays)
        stacks = each if len(types) > 1 else (each,)
        adjoints = [
            stack if is_mapped[i] else stack.sum(0) for i, stack in zip(floats, stacks, strict=True)
        ]
        return tuple(adjoints) if len(adjoints) > 1 else adjoints[0]

    return gradient
