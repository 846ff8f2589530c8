# SPDX-License-Identifier: Apache-2.0
"""Batching rules of loops, branches, the op `after`, and grouped_matmul.

The examples are the entries along the batch axis. The op after(x, *others) returns x, but only
after `others` have been computed. grouped_matmul and the op for its weight gradient are applied to
one example after the other, in a loop (`one_by_one`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...errors import CompileError
from ...graph.graph import Body, Graph, communicates
from ...graph.node import Node
from .._compare import where
from .._custom import After
from .._grouped_rows import GroupedOp
from .._rearrangement import moveaxis
from ..control.branches import Cond
from ..control.loops import Scan, scan
from .rewrite import Batched, Batching, Results, align_batch_axis, batches


@batches(GroupedOp)
def one_by_one(batching: Batching, node: Node, operands: Sequence[Batched]) -> Results:
    """Apply an op with one result to each example, in a loop (`scan`) over the batch axis."""

    def body(carry: Any, slices: Sequence[Node]) -> tuple[Any, Node]:
        rest = iter(slices)
        inputs = [next(rest) if x.is_mapped else x.node for x in operands]
        return carry, node.op.node(inputs, node.attrs)

    _, stacked = scan(body, (), [x.node for x in operands if x.is_mapped])
    result: Node = stacked
    return result


@batches(After)
def batch_after(batching: Batching, node: Node, operands: Sequence[Batched]) -> Results:
    """Apply after(x, *others), which returns x after `others` have been computed.

    The result has the batch axis if x has it.
    """
    result = node.op.node([x.node for x in operands], node.attrs)
    return [Batched(result, operands[0].is_mapped)]


@batches(Scan)
def batch_scan(batching: Batching, node: Node, operands: Sequence[Batched]) -> Results:
    """Batch the body of a loop.

    A value is mapped if it has the batch axis. A carried value that becomes mapped in one iteration
    must be mapped in all iterations, and can make other carried values mapped in the next one. So
    the body is rewritten repeatedly, each time with more mapped carried values, until no further
    carried value becomes mapped.
    """
    graph, n, m = node.attrs["body"].graph, node.attrs["carries"], node.attrs["slices"]
    mapped = [x.is_mapped for x in operands]
    while True:
        body = batching.body_on_inputs(graph, node, mapped)
        body_results = body.rewrite(graph.outputs)
        after = [a or x.is_mapped for a, x in zip(mapped[:n], body_results, strict=False)]
        if after == mapped[:n]:
            break
        mapped[:n] = after
    outputs = [
        body.with_batch_axis(x) if is_mapped else x.node
        for x, is_mapped in zip(body_results, after, strict=False)
    ]
    outputs += [x.node for x in body_results[n:]]
    new_operands = [
        batching.with_batch_axis(x) if is_mapped else x.node
        for x, is_mapped in zip(operands, after, strict=False)
    ]
    new_operands += [moveaxis(x.node, 0, 1) if x.is_mapped else x.node for x in operands[n : n + m]]
    new_operands += [x.node for x in operands[n + m :]]
    inputs = tuple(body.find(traced).node for traced in graph.inputs)
    attrs = {**node.attrs, "body": Body(Graph(inputs, tuple(outputs)))}
    results = node.op.node(new_operands, attrs).results
    stacked = [*(x.is_mapped for x in body_results[n:]), *after]
    return [
        *(Batched(x, is_mapped) for x, is_mapped in zip(results, after, strict=False)),
        *(
            Batched(moveaxis(x, 1, 0) if is_mapped else x, is_mapped)
            for x, is_mapped in zip(results[n:], stacked, strict=True)
        ),
    ]


@batches(Cond)
def batch_cond(batching: Batching, node: Node, operands: Sequence[Batched]) -> Results:
    """Batch both branches of a cond.

    If the predicate has the batch axis, examples take different branches. `choose_by_example` then
    computes both branches for all examples, and selects the result of each example.
    """
    names = ("on_true", "on_false")
    graphs = {name: node.attrs[name].graph for name in names}
    predicate, *rest = operands
    if predicate.is_mapped:
        return choose_by_example(batching, node, operands)
    mapped = [x.is_mapped for x in rest]
    inputs = batching.body_on_inputs(graphs["on_true"], node, mapped)
    branch_results = {}
    for name, graph in graphs.items():
        body = batching.body(graph, node)
        body.new.update(inputs.new)
        branch_results[name] = body.rewrite(graph.outputs)
    pairs = list(zip(*branch_results.values(), strict=True))
    is_result_mapped = [a.is_mapped or b.is_mapped for a, b in pairs]
    new_inputs = tuple(inputs.find(traced).node for traced in graphs["on_true"].inputs)
    attrs = {}
    for name, results_of_branch in branch_results.items():
        outputs = (
            batching.with_batch_axis(x) if m else x.node
            for x, m in zip(results_of_branch, is_result_mapped, strict=True)
        )
        attrs[name] = Body(Graph(new_inputs, tuple(outputs)))
    results = node.op.node([x.node for x in operands], attrs).results
    return [Batched(x, is_mapped) for x, is_mapped in zip(results, is_result_mapped, strict=True)]


def choose_by_example(batching: Batching, node: Node, operands: Sequence[Batched]) -> Results:
    """Compute both branches of a cond for all examples, and select each example's results."""
    if communicates(node):
        raise CompileError(
            "vmap: expected a cond without collectives; got one with collectives (made at "
            f"{node.site}), because its "
            "predicate differs between examples and both branches are computed. Move the "
            "collectives out of the branches."
        )
    predicate, *rest = operands
    branches = []
    for name in ("on_true", "on_false"):
        graph = node.attrs[name].graph
        body = batching.body(graph, node)
        body.new.update(zip(graph.inputs, rest, strict=True))
        branches.append(body.rewrite(graph.outputs))
    chosen = []
    for result, a, b in zip(node.results, *branches, strict=True):
        ndim = result.ndim
        chosen.append(
            where(
                align_batch_axis(predicate, ndim),
                align_batch_axis(a, ndim),
                align_batch_axis(b, ndim),
            )
        )
    return chosen
