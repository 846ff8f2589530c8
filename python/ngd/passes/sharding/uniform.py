# SPDX-License-Identifier: Apache-2.0
"""Analysis of the values that a step writes to variables: which are equal, and on which ranks.

Such a value, the *next value* of its variable, is computed from collectives, variables, constants
and arguments. On each path to the next value, only the last collective counts: if it gives all
ranks of its group the same result, the results are equal even if the operands differ between the
ranks. So the value of a variable should be equal on the ranks that are in the groups of all these
last collectives (docs/adr/0047-variables-that-differ.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ...comm.kinds import Kind
from ...graph.graph import Graph, bodies_of, communicates
from ...graph.leaves import PLACEHOLDER, VARIABLE
from ...graph.node import Node
from ...ops.collectives.reductions import Collective
from ..fingerprint import digest

NO_GROUPS: frozenset[Any] = frozenset()


class Origin(NamedTuple):
    """Facts about the collectives and leaves from which a value is computed.

    On each path to the value, only the last collective counts, not the nodes before it.
    """

    groups: frozenset[Any] = NO_GROUPS
    """The groups of the last collectives on the paths to the value."""
    varies: bool = False
    """True if the value may differ between ranks. The cause is a leaf or a collective whose value
    may differ, and from which a path leads to this value without another collective."""
    is_shard: bool = False
    """True if a collective that gives each rank a different result, such as a reduce_scatter or a
    receive, is the last one on a path to the value."""


CONSTANT_ORIGIN = Origin()


class NextValue(NamedTuple):
    """A value that a step writes to a variable, and that should be equal on several ranks."""

    variable: Node
    value: Node
    groups: frozenset[Any]
    """Groups of ranks. The ranks that are in all of these groups should write equal values to the
    variable."""
    varies: bool
    """True if `value`, which the step writes to the variable, may differ between ranks."""
    computation: bytes
    """A digest of how the value is computed from collectives, variables, constants and arguments.

    It depends on the values of small constants, such as a learning rate, and on no shape.
    """


def gives_shards(kind: Kind) -> bool:
    """Return whether this kind of collective gives each rank a different result.

    Examples are reduce_scatter, and a receive from another rank.
    """
    return kind.result == "block" or kind.operand == "blocks" or kind.is_point_to_point


def groups_of(graph: Graph, group: Any) -> frozenset[Any]:
    """Return the groups of all collectives of a graph, without sends and receives.

    `group` is the group of collectives that have no group of their own.
    """
    found: set[Any] = set()
    for node in graph.nodes:
        if isinstance(node.op, Collective) and not node.op.kind.is_point_to_point:
            found.add(node.attrs.get("group") or group)
        for body in bodies_of(node):
            found |= groups_of(body, group)
    return frozenset(found)


def origins(graph: Graph, group: Any) -> dict[Node, Origin]:
    """Return a dict from each node of a graph to its `Origin`.

    An `Origin` has facts about the collectives and leaves from which a value is computed.
    """
    found: dict[Node, Origin] = {}
    for node in graph.nodes:
        origin = origin_of(node, [found[i] for i in node.inputs], group)
        for result in node.results:
            found[result] = origin
    return found


def origin_of(node: Node, inputs: Sequence[Origin], group: Any) -> Origin:
    """Return the `Origin` of a node, computed from those of its inputs.

    An `Origin` has facts about the collectives and leaves from which a value is computed.
    `group` is the group of collectives that have no group of their own.
    """
    if node.op is VARIABLE:
        return Origin(varies=is_per_rank(node))
    if node.op is PLACEHOLDER:
        return Origin(varies=bool(node.shape) and not node.attrs.get("uniform"))
    if node.op.comm.has_group_value:
        return Origin(varies=True)
    if isinstance(node.op, Collective):
        kind = node.op.kind
        if gives_shards(kind):
            return Origin(is_shard=True)
        return Origin(frozenset([node.attrs.get("group") or group]), not kind.has_equal_results)
    origin = merged(inputs)
    if node.op.kernel.control_flow and communicates(node):
        inside = [groups_of(body, group) for body in bodies_of(node)]
        return origin._replace(groups=origin.groups.union(*inside))
    return origin


def merged(inputs: Sequence[Origin]) -> Origin:
    """Merge the origins of the operands of an op, and return the origin of its result.

    An `Origin` has facts about the collectives and leaves from which a value is computed.
    """
    if not inputs:
        return CONSTANT_ORIGIN
    first, *other_origins = inputs
    for other in other_origins:
        if other is not first and other != first:
            groups = first.groups
            if other.groups != groups:
                groups = groups | other.groups
            first = Origin(groups, first.varies or other.varies, first.is_shard or other.is_shard)
    return first


def is_per_rank(variable: Node) -> bool:
    """Return whether a variable was made with `per_rank=True`."""
    return bool(getattr(variable, "per_rank", False))


def next_values(graph: Graph, group: Any) -> list[NextValue]:
    """Return the next values that should be equal on several ranks.

    A next value is the value that the step writes to a variable. Two kinds are left out: those of
    variables with `per_rank=True`, and those that are computed from a value that a collective makes
    different on each rank, such as the block of a reduce_scatter. If a step has no collectives, the
    list is empty. `NextValue.groups` has the groups of the last collectives before the value. If
    the value does not depend on a collective, it has the groups of all collectives of the step.
    """
    if not graph.updates:
        return []
    groups = groups_of(graph, group)
    if all(each.size == 1 for each in groups):
        return []
    found, computations = origins(graph, group), computations_of(graph)
    values = []
    for variable, value in graph.updates:
        origin = found[value]
        if not is_per_rank(variable) and not origin.is_shard and value is not variable:
            over, computation = origin.groups or groups, computations[value]
            values.append(NextValue(variable, value, over, origin.varies, computation))
    return values


def computations_of(graph: Graph) -> dict[Node, bytes]:
    """Return, for each node, a digest of how it is computed, to compare between ranks.

    The digest covers the ops from collectives and leaves to the node. It does not cover the
    operands of these collectives.
    """
    found: dict[Node, bytes] = {}
    for node in graph.nodes:
        below = [] if isinstance(node.op, Collective) else [found[i] for i in node.inputs]
        node_digest = digest(node, below)
        for result in node.results:
            found[result] = node_digest + bytes([result.number])
    return found


def source_of_variation(value: Node, group: Any) -> Node:
    """Return a node that makes a value differ between ranks, to name it in an error message.

    The returned node is a leaf or a collective. A path leads from it to `value` without another
    collective.
    """
    to_visit, seen = [value], {value}
    while to_visit:
        node = to_visit.pop()
        if not node.inputs or isinstance(node.op, Collective):
            if origin_of(node, [], group).varies:
                return node
            continue
        unseen = [i for i in reversed(node.inputs) if i not in seen]
        seen.update(unseen)
        to_visit.extend(unseen)
    return value


def varying(values: Iterable[NextValue]) -> list[NextValue]:
    """Return the next values that should be equal on several ranks, but may differ between them.

    A value should be equal on the ranks that are in all of its groups (`NextValue.groups`). If one
    of the groups has only one rank, no two ranks need equal values, and the value is left out.
    """
    return [v for v in values if v.varies and all(each.size > 1 for each in v.groups)]


__all__ = ["NextValue", "is_per_rank", "next_values", "source_of_variation", "varying"]
