# SPDX-License-Identifier: Apache-2.0
"""Reverse-mode differentiation: one walk back through the graph, which adds nodes to the graph.

The adjoint of a node is the derivative of the loss with respect to the node. A node is active if it
is a target of the gradient, or a float that depends on an active node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from .._util.callsite import at_site
from .._util.signature_errors import GRADIENT_CALL
from ..dtypes import Shape, float32, is_float
from ..errors import Error, GradientError
from ..graph.leaves import constant_node
from ..graph.node import Node, Op, topological
from ..graph.precision_marks import KEEPS_FLOAT32, keep_float32
from ..trees import flatten
from ._arithmetic import add
from ._casting import cast
from ._creation import zeros
from ._operands import FLOATS_16_BIT
from ._precision import expansion, is_narrow, with_float32_operands
from ._reductions import sum
from ._shape import broadcast_to, reshape

UNUSED: Final = ("error", "zero")
"""The allowed values of the argument `unused` of ngd.grad."""


def gradients(loss: Node, wrt: Any, *, unused: str = "error") -> Any:
    """Return the gradient of a loss node for each node in `wrt`, in the structure of `wrt`.

    ngd.grad calls this function if the loss is a node. If the loss does not depend on a node in
    `wrt`, unused="error" raises a GradientError, and unused="zero" returns zeros for this node.
    """
    call, root = GRADIENT_CALL.get()
    targets, structure = flatten(wrt)
    if not isinstance(loss, Node):
        raise TypeError(f"grad: loss: expected a node or a function; got {loss!r}")
    for node, path in zip(targets, structure.paths("wrt"), strict=True):
        if not isinstance(node, Node):
            raise TypeError(f"grad: {path}: expected a node or a structure of nodes; got {node!r}")
    if unused not in UNUSED:
        raise ValueError(f'grad: expected unused "error" or "zero"; got {unused!r}')
    if loss.shape or not is_float(loss.dtype):
        raise GradientError(
            f"{call}: expected a floating scalar to differentiate; got {loss.type} "
            f"(made at {loss.site}). Reduce it first, by ngd.ops.mean or ngd.ops.sum."
        )
    for target in targets:
        if not is_float(target.dtype):
            raise GradientError(
                f"grad: expected floats to differentiate by; got {_name(target)}. Leave it "
                "out of wrt."
            )
    with at_site(loss.site):
        seed = constant_node(np.ones((), loss.dtype))
    adjoints = walk_back({loss: seed}, targets)
    results: list[Node] = []
    for target in targets:
        adjoint = adjoints.get(target)
        if adjoint is None:
            if unused == "error":
                path = structure.paths(root)[len(results)] if root else ""
                raise GradientError(without_gradient(loss, target, adjoints, path))
            adjoint = zeros(target.shape, target.dtype)
        results.append(adjoint)
    return structure.rebuild(results)


def _name(node: Node) -> str:
    """Describe a node for an error message: op, name if it has one, type and call site."""
    name = node.attrs.get("name")
    return f"{node.op.name}{f' {name!r}' if name else ''} {node.type} (made at {node.site})"


def without_gradient(loss: Node, target: Node, adjoints: Mapping[Node, Node], path: str) -> str:
    """Return the error message for a target that gets no gradient from a loss.

    The message names the op at which the gradient stops on its way from the loss to the target.
    If an optimizer computes the gradients of its argument `parameters`, `path` is the path of the
    target in this argument, such as "parameters[0]". If the user called ngd.grad, `path` is empty,
    and the message names only the target.
    """
    call, argument = GRADIENT_CALL.get()
    end = end_of_path(loss, target, adjoints)
    through = "" if end is None else f" through differentiable ops: the path ends at {_name(end)}"
    fix = 'Leave it out, or call ngd.grad(..., unused="zero"), which returns zeros for it.'
    if path:
        fix = f"Use it in the loss, or leave it out of {argument}."
    return (
        f"{call}: expected a loss that depends on {path and f'{path}, '}{_name(target)}; got one "
        f"(made at {loss.site}) that does not{through}. {fix}"
    )


def end_of_path(loss: Node, target: Node, adjoints: Mapping[Node, Node]) -> Node | None:
    """Return the first node that stops the gradient between a target and the loss, or None.

    The target has no gradient. The nodes that depend on the target are visited in the order in
    which they are computed. A node stops the gradient if none of its results is a float, or if its
    gradient rule returns no gradient. None means that the loss does not depend on the target.
    """
    dependent, active = {target}, {target}
    for node in topological((loss,)):
        dependent_inputs = [i for i in node.inputs if i in dependent]
        if not dependent_inputs:
            continue
        dependent.update(node.results)
        is_reached = any(i in active for i in dependent_inputs)
        floats = [r for r in node.results if is_float(r.dtype)]
        has_adjoint = any(r in adjoints for r in node.results)
        if is_reached and (
            not floats or (has_adjoint and not any(i in adjoints for i in dependent_inputs))
        ):
            return node
        if is_reached:
            active.update(floats)
    return None


def walk_back(
    seeds: Mapping[Node, Node], targets: Iterable[Node], past_targets: bool = True
) -> Mapping[Node, Node]:
    """Walk from the roots back to the targets; return {node: adjoint} for active nodes on the way.

    A node is active if it is a target, or a float that depends on a target. The keys of `seeds` are
    the roots, the nodes from which the walk starts; the values are their adjoints. A node is
    visited after all nodes that read it, and adds adjoints to its active inputs. If `past_targets`
    is True, adjoints also flow through one target to another target. If it is False, the walk ends
    at each target.
    """
    ends = () if past_targets else tuple(targets)
    order = topological(seeds, stop=ends)
    active = active_nodes(order, targets)
    adjoints = {root: seed for root, seed in seeds.items() if root in active}
    for node in reversed(order):
        dy = adjoint_of_results(node, adjoints)
        if dy is None or not any(operand in active for operand in node.inputs):
            continue
        with at_site(node.site), keep_float32(node.keeps_float32 or KEEPS_FLOAT32.get()):
            wanted = [operand in active for operand in node.inputs]
            parts = _input_adjoints(node, dy, wanted)
            for operand, part in zip(node.inputs, parts, strict=True):
                if part is not None and operand in active:
                    add_adjoint(adjoints, operand, part, node.op.name)
    return adjoints


def active_nodes(order: Iterable[Node], targets: Iterable[Node]) -> set[Node]:
    """Return the targets and the float nodes that depend on them.

    `order` has the nodes of the graph in topological order.
    """
    active = set(targets)
    for node in order:
        if any(operand in active for operand in node.inputs):
            active.update(result for result in node.results if is_float(result.dtype))
    return active


def adjoint_of_results(node: Node, adjoints: Mapping[Node, Node]) -> Any:
    """Return the adjoint of a node's result; a tuple of adjoints if it has several results.

    The tuple has None for a result without an adjoint. If no result has an adjoint, return None
    instead of a tuple.
    """
    if not node.has_several_results:
        return adjoints.get(node)
    parts = tuple(adjoints.get(result) for result in node.results)
    return parts if any(part is not None for part in parts) else None


def add_adjoint(adjoints: dict[Node, Node], operand: Node, part: Node, op: str) -> None:
    """Add `part` to the adjoint of an operand.

    `part` is the contribution of one op that reads the operand, and `op` is its name.
    """
    part = _unbroadcast(part, operand.shape)
    if operand.dtype in FLOATS_16_BIT and part.dtype == float32:
        part = cast(part, operand.dtype)
    if part.type != operand.type:
        raise Error(
            f"internal error: {op} made a gradient {part.type} for an operand {operand.type}"
        )
    before = adjoints.get(operand)
    adjoints[operand] = part if before is None else add(before, part)


def _input_adjoints(node: Node, dy: Any, wanted: Sequence[bool]) -> Sequence[Node | None]:
    """Return the adjoints of the inputs of a node, None for inputs without a gradient.

    The gradient rule of the op computes them. An op without a rule may have an expansion: a graph
    of other ops that computes the same result. This graph is then differentiated. `wanted` has a
    bool per input: True if the adjoint of the input is used.
    """
    op = node.op
    if op.numerics.needs_float32_gradient and is_narrow(node):
        node, dy = with_float32_operands(node), _widened_adjoints(dy)
    if type(op).grad is not Op.grad or not op.has_expansion:
        return op.grad_of(node, dy, wanted)
    seeds: dict[Node, Node] = {}
    for root, part in zip(expansion(node), dy if node.has_several_results else (dy,), strict=True):
        if part is not None:  # two results may be one node
            seeds[root] = add(seeds[root], part) if root in seeds else part
    adjoints = walk_back(seeds, node.inputs, past_targets=False)
    first_positions = {
        operand: position for position, operand in reversed(list(enumerate(node.inputs)))
    }
    return [adjoints.get(x) if first_positions[x] == i else None for i, x in enumerate(node.inputs)]


def _widened_adjoints(dy: Any) -> Any:
    """Cast an adjoint of 16-bit floats, or each adjoint in a tuple, to float32.

    A None in the tuple stays None.
    """
    if isinstance(dy, tuple):
        return tuple(None if part is None else cast(part, float32) for part in dy)
    return cast(dy, float32)


def _unbroadcast(part: Node, shape: Shape) -> Node:
    """Return `part` in `shape`, the shape of an operand.

    `part` is the contribution of one op to the adjoint of the operand. If the op has broadcast the
    operand, `part` is larger than the operand. It is then summed over the axes along which the
    operand was repeated. A scalar `part` applies to every element, and is broadcast to `shape`.
    """
    if part.shape == shape or not part.shape:
        return broadcast_to(part, shape)
    added = part.ndim - len(shape)
    repeated = (i for i, n in enumerate(shape) if n == 1 and part.shape[added + i] != 1)
    axes = (*range(added), *(added + i for i in repeated))
    return reshape(sum(part, axes), shape)
