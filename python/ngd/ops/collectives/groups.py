# SPDX-License-Identifier: Apache-2.0
"""The group of a collective in the graph: the group that the caller passes, or the world.

A collective without a group runs over the world if it needs the number of ranks for the shape of
its result. If the world is not joined when the graph is built, the op has the launcher's rank and
number of ranks, and ngd.compile joins the world.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from ..._util.callsite import call_site
from ...comm import Group
from ...comm.launchers.detect import launched_rank_and_size
from ...comm.world import init, open_world
from ...errors import CompileError, NotMemberError
from ...graph.graph import Graph, bodies_of
from ...graph.node import Node

_last_joined: weakref.ref[Group] | None = None


@dataclass(frozen=True)
class LaunchedWorld:
    """The world before it is joined: the rank and the number of ranks from the launcher."""

    rank: int
    size: int


Ranks: TypeAlias = Group | LaunchedWorld
"""The group of an op: a Group, or the world before it is joined."""
ONE_RANK: Final = LaunchedWorld(0, 1)
"""A world of one rank."""


def joined_world() -> Group | None:
    """Return the world of the last graph that was built, or None if it no longer exists."""
    return _last_joined() if _last_joined is not None else None


def world_ranks() -> Ranks:
    """Return the world, or the launcher's numbers if the world is not joined."""
    global _last_joined
    group = open_world()
    if group is None:
        return LaunchedWorld(*launched_rank_and_size())
    _last_joined = weakref.ref(group)
    return group


def settle_world(graph: Graph) -> None:
    """Replace the launcher's numbers in the collectives of a graph by the world.

    It joins the world if there is such a collective.
    """
    global _last_joined
    nodes = [node for node in all_nodes(graph) if is_launched(node.attrs.get("group"))]
    if not nodes:
        return
    group = init()
    _last_joined = weakref.ref(group)
    for node in nodes:
        launched = node.attrs["group"]
        if (launched.rank, launched.size) != (group.rank, group.size):
            raise CompileError(
                f"compile: expected {node.op.name} (made at {node.site}) in a world of "
                f"{launched.size} ranks as rank {launched.rank}, as the launcher said; got a "
                f"world of {group.size} ranks as rank {group.rank}. Build the graph after "
                "ngd.init()."
            )
        node.attrs["group"] = group  # in place, because other nodes refer to this node


def is_launched(group: Any) -> bool:
    """Return True for the world before it is joined."""
    return isinstance(group, LaunchedWorld)


def all_nodes(graph: Graph) -> Iterator[Node]:
    """Yield the nodes of a graph and of the graphs that its ops run."""
    for node in graph.nodes:
        yield node
        for body in bodies_of(node):
            yield from all_nodes(body)


def expect_member(call: str, group: Ranks) -> Ranks:
    """Return a group; raise NotMemberError if this rank is not a member of it."""
    if group.rank < 0:
        raise NotMemberError(
            f"{call}: group: expected a group that includes this rank; got {group!r}, of which "
            f"this rank is not a member (used at {call_site()}). Ask group.is_member before."
        )
    return group


def ranks_of(call: str, group: Ranks | None) -> Ranks:
    """Return the group that is passed, or the world."""
    return world_ranks() if group is None else expect_member(call, group)


def with_group(call: str, attrs: Mapping[str, Any], group: Ranks | None) -> dict[str, Any]:
    """Return the attributes of a node, with the group if there is one."""
    return dict(attrs) if group is None else {**attrs, "group": expect_member(call, group)}


def is_equal_on_all_ranks(inputs: Sequence[Node], attrs: Mapping[str, Any]) -> bool:
    """Return True if a value that is equal on all ranks of the group is equal on all ranks."""
    group = attrs.get("group")
    of_world = group is None or is_launched(group) or group is joined_world()
    return of_world or all(x.uniform for x in inputs)
