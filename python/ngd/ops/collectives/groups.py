# SPDX-License-Identifier: Apache-2.0
"""The group of a collective in the graph: the group that the caller passes, or the world.

A collective whose result shape depends on the number of ranks needs a group: without one it takes
the world. If ngd.init has not joined the world when the graph is built, the op takes the rank and
the number of ranks from the launcher, in a LaunchedWorld. ngd.compile then joins the world and
replaces each LaunchedWorld by it.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
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
    """The world of a graph that was built before ngd.init has joined the world.

    It has only the rank and the number of ranks that the launcher gave to this process.
    """

    rank: int
    size: int


Ranks: TypeAlias = Group | LaunchedWorld
"""The type of the attribute `group` of a collective.

If the graph is built before ngd.init joins the world, the attribute may be a LaunchedWorld, which
has only the rank and the number of ranks. ngd.compile replaces it by the world, which is a Group.
"""
ONE_RANK: Final = LaunchedWorld(0, 1)
"""A world that has only rank 0. The NumPy reference of the op `own_rank` returns its rank, 0."""


def joined_world() -> Group | None:
    """Return the world that was recorded last for a graph with collectives, or None.

    `world_ranks` records the world when a graph is built, and `settle_world` when it is compiled.
    The result is None if no world is recorded, or if the recorded world no longer exists.
    """
    return _last_joined() if _last_joined is not None else None


def world_ranks() -> Ranks:
    """Return the world.

    If it is not joined, return a LaunchedWorld with the rank and the number of ranks that the
    launcher set.
    """
    global _last_joined
    group = open_world()
    if group is None:
        return LaunchedWorld(*launched_rank_and_size())
    _last_joined = weakref.ref(group)
    return group


def settle_world(graph: Graph) -> None:
    """Join the world (ngd.init), and replace each LaunchedWorld in a graph's collectives by it.

    If the graph has no LaunchedWorld, do nothing. Raise CompileError if a LaunchedWorld differs
    from the world in the number of ranks, or in the rank of this process.
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
        node.attrs["group"] = group  # in place, as other nodes have this node as input


def is_launched(group: Any) -> bool:
    """Return True for a LaunchedWorld, the substitute for the world before ngd.init joins it."""
    return isinstance(group, LaunchedWorld)


def all_nodes(graph: Graph) -> Iterator[Node]:
    """Yield the nodes of a graph, and of the bodies of its loops and branches."""
    for node in graph.nodes:
        yield node
        for body in bodies_of(node):
            yield from all_nodes(body)


def expect_member(call: str, group: Ranks) -> Ranks:
    """Return the group; raise NotMemberError if this process is not one of its ranks."""
    if group.rank < 0:
        raise NotMemberError(
            f"{call}: group: expected a group that includes this rank; got {group!r}, of which "
            f"this rank is not a member (used at {call_site()}). Ask group.is_member before."
        )
    return group


def ranks_of(call: str, group: Ranks | None) -> Ranks:
    """Return the group that the user passes, or the world for None."""
    return world_ranks() if group is None else expect_member(call, group)


def with_group(call: str, attrs: Mapping[str, Any], group: Ranks | None) -> dict[str, Any]:
    """Return a copy of `attrs`, to which the attribute `group` is added unless it is None.

    Raise NotMemberError if this process is not a rank of the group.
    """
    return dict(attrs) if group is None else {**attrs, "group": expect_member(call, group)}


def is_world(group: Ranks | None) -> bool:
    """Return True if the group of a collective is the world; None stands for the world too."""
    return group is None or is_launched(group) or group is joined_world()
