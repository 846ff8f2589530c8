# SPDX-License-Identifier: Apache-2.0
"""The evaluation of a graph in NumPy, by `Op.reference` of each op."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

import numpy as np

from ..._util import config
from ...dtypes import FLOATS, Array, Type
from ...errors import Error, NotFiniteError, OutOfRangeError
from ...graph.graph import Graph
from ...graph.leaves import CONSTANT, Leaf
from ...graph.node import Node, topological
from ...ops.control.bodies import Control
from ...passes.collective_order import collectives_in_order


class Group(Protocol):
    """The interface of a group of ranks that the evaluation of a graph needs."""

    @property
    def rank(self) -> int:
        """The number of this rank."""
        ...

    @property
    def size(self) -> int:
        """The number of ranks."""
        ...

    def start(self, node: Node, operand: Array) -> Callable[[], Array]:
        """Start the collective of a node. Return a function that waits for the result.

        The collective runs in the group that is the node's attribute `group`, or in this group if
        the attribute is None. The function returns the result.
        """
        ...


def evaluate(
    graph: Graph,
    inputs: Sequence[Array],
    variables: Mapping[Node, Array],
    group: Group | None = None,
) -> tuple[list[Array], list[Array]]:
    """Return the values of a graph's outputs, and the values that its variables get.

    The variables are in the order of `graph.updates`. Without a group, the process acts as rank 0
    of 1. Collectives start in the order of `collectives_in_order`, which is the same on all ranks.
    The evaluation waits for a collective when another node first reads its result.
    Integers wrap silently; floats follow IEEE 754.
    """
    finite = config.check_finite()
    values = dict(zip(graph.inputs, inputs, strict=True)) | dict(variables)
    for node, value in values.items():
        _check(node, value)
    order = topological([*collectives_in_order(graph), *graph.roots])
    uses = Counter((*graph.roots, *(i for n in order for i in n.inputs)))
    started: dict[Node, Callable[[], Array]] = {}

    def value_of(node: Node) -> Array:
        if node in started:
            values[node] = np.asarray(started.pop(node)(), order="C")
            _check(node, values[node])
        return values[node]

    for node in order:
        operands = [value_of(i) for i in node.inputs]
        ranks = node.attrs.get("group") or group
        has_others = ranks is not None and ranks.size > 1
        if node.op.comm.is_collective and group is not None and has_others:
            started[node] = group.start(node, operands[0])
        elif node not in values:
            with np.errstate(all="ignore"):
                made = _compute(node, operands, group)
            if finite:
                _expect_finite(node, operands, made)
            for result, value in zip(node.results, made, strict=True):
                if result in uses or result is node:
                    values[result] = np.asarray(value, order="C")
                    _check(result, values[result])
        for operand in node.inputs:
            uses[operand] -= 1
            if not uses[operand]:
                del values[operand]
    return [value_of(n) for n in graph.outputs], [value_of(n) for _, n in graph.updates]


def _outputs(graph: Graph, inputs: Sequence[Array], group: Group | None = None) -> list[Array]:
    """Return the outputs of a graph without variables, such as the body of a control op."""
    return evaluate(graph, inputs, {}, group)[0]


def _compute(node: Node, operands: Sequence[Array], group: Group | None) -> tuple[Array, ...]:
    """Return one array per result of a node, usually computed by `Op.reference`."""
    if node.op is CONSTANT:
        return (node.attrs["value"],)
    if node.op.comm.has_group_value and group is not None:
        return (node.op.group_value(node.attrs.get("group") or group, **node.attrs),)
    if isinstance(node.op, Control):
        return node.op.run(partial(_outputs, group=group), *operands, **node.attrs)
    try:
        made = node.op.reference(*operands, **node.attrs)
    except OutOfRangeError as error:
        raise OutOfRangeError(f"{error} (made at {node.site})") from None
    return made if isinstance(made, tuple) else (made,)


def _expect_finite(node: Node, operands: Sequence[Array], made: Sequence[Array]) -> None:
    """Raise a NotFiniteError if a NaN or an infinity begins at the op of `node`.

    `made` has the results of the op. There are three errors: a NaN in a result if no operand has a
    NaN, even if one has an infinity; an infinity in a result if all operands are finite; and a NaN
    in an argument or a variable that the op reads.
    """
    if node.op is CONSTANT:
        return
    for operand, value in zip(node.inputs, operands, strict=True):
        if isinstance(operand.op, Leaf) and operand.op is not CONSTANT and _faults([value])[0]:
            raise NotFiniteError(
                f"NGD_CHECK_FINITE: {operand!r} holds a NaN; it is read by {node.op.name}, "
                f"made at {node.site}"
            )
    (nan, infinite), (had_nan, had_infinite) = _faults(made), _faults(operands)
    if (nan and not had_nan) or (infinite and not (had_nan or had_infinite)):
        raise NotFiniteError(
            f"NGD_CHECK_FINITE: {'a NaN' if nan and not had_nan else 'an infinity'} first appears "
            f"in the result of {node.op.name}, made at {node.site}"
        )


def _faults(values: Sequence[Array]) -> tuple[bool, bool]:
    """Return (has_nan, has_infinity): True if at least one of the arrays has such an element."""
    floats = [v for v in values if v.dtype in FLOATS]
    return (
        any(bool(np.isnan(v).any()) for v in floats),
        any(bool(np.isinf(v).any()) for v in floats),
    )


def _check(node: Node, value: Array) -> None:
    """Raise an internal error if a value has another dtype or shape than its node."""
    actual = Type(value.dtype, value.shape)
    if actual != node.type:
        raise Error(
            f"internal error: the value of {node!r} (made at {node.site}) is {actual} "
            f"instead of {node.type}"
        )
