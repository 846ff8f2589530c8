# SPDX-License-Identifier: Apache-2.0
"""The group of a collective in the graph: one that the caller names, or the world.

A collective that is given no group, but needs one for the shape of its result, runs over the world.
If the world is not joined when the graph is built, the op holds the launcher's numbers, and
ngd.compile joins the world.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from ..._util.callsite import call_site
from ...comm import Group
from ...comm.launchers.detect import launched_rank_and_size
from ...comm.world import init, living_world
from ...errors import CompileError, NotMemberError
from ...graph.graph import Graph, bodies_of
from ...graph.node import Node

_last_joined: weakref.ref[Group] | None = None


@dataclass(frozen=True)
class LaunchedWorld:
    """The world before it is joined: the launcher's numbers."""

    rank: int
    size: int


Ranks: TypeAlias = Group | LaunchedWorld
"""The group of an op."""
ONE_RANK: Final = LaunchedWorld(0, 1)


def joined_world() -> Group | None:
    """Return the world that a graph was built for last, while the program holds it."""
    return _last_joined() if _last_joined is not None else None


def world_ranks() -> Ranks:
    """Return the world, or the launcher's numbers if it is not joined."""
    global _last_joined
    group = living_world()
    if group is None:
        return LaunchedWorld(*launched_rank_and_size())
    _last_joined = weakref.ref(group)
    return group


def settle_world(graph: Graph) -> None:
    """Give the collectives of a graph the world where they have the launcher's numbers.

    Joins the world if there is such a collective.
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
        node.attrs["group"] = group  # in place: other nodes refer to this one


def is_launched(group: Any) -> bool:
    """Return True for the world before it is joined."""
    return isinstance(group, LaunchedWorld)


def all_nodes(graph: Graph) -> Iterator[Node]:
    """Return the nodes of a graph and of the graphs that its ops run."""
    for node in graph.nodes:
        yield node
        for body in bodies_of(node):
            yield from all_nodes(body)


def expect_member(call: str, group: Ranks) -> Ranks:
    """Return a group that this rank is a member of; raise NotMemberError for another one."""
    if group.rank < 0:
        raise NotMemberError(
            f"{call}: group: expected a group that includes this rank; got {group!r}, of which "
            f"this rank is not a member (used at {call_site()}). Ask group.is_member before."
        )
    return group


def ranks_of(call: str, group: Ranks | None) -> Ranks:
    """Return the group that is named, or the world."""
    return world_ranks() if group is None else expect_member(call, group)


def with_group(call: str, attrs: Mapping[str, Any], group: Ranks | None) -> dict[str, Any]:
    """Return attributes that include the group, if there is one."""
    return dict(attrs) if group is None else {**attrs, "group": expect_member(call, group)}


def everywhere_equal(inputs: Sequence[Node], attrs: Mapping[str, Any]) -> bool:
    """Return whether a value that is equal in the group is equal on all ranks."""
    group = attrs.get("group")
    of_world = group is None or is_launched(group) or group is joined_world()
    return of_world or all(x.uniform for x in inputs)
