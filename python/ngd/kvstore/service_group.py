# SPDX-License-Identifier: Apache-2.0
"""The group of a store's service thread: the ranks of another group, in a group of their own."""

from __future__ import annotations

import secrets

import numpy as np

from .. import _core
from ..comm.group import Group
from ..comm.world import init, make_local_group, world_over_mpi


def world_ranks_of(group: Group) -> list[int]:
    """The ranks of the world that a group has, in its order; all of them call this."""
    mine = np.array([init().rank])
    return [int(rank) for rank in group.all_gather(mine, site="ngd.kvstore.create()")]


def make_service_group(group: Group, name: str) -> Group:
    """A group of the same ranks for another thread, which all of them make together.

    On one host it shares no family with `group`, so neither thread finds the other one inside.
    """
    if group.size == 1:
        return Group(_core.Communicator.make_self(), name)
    world, site = world_over_mpi(), "ngd.kvstore.create()"
    key = np.frombuffer(secrets.token_bytes(16), np.uint8)
    key = group.broadcast(key, 0, site=site).tobytes().hex()
    if world is None:
        return make_local_group(f"beside:{key}", group.rank, group.size, name)
    number = np.array([world.communicator.next_group_number()])
    number = group.all_reduce(number, op="max", site=site)
    return world.group_of(world_ranks_of(group), int(number[0]), f"beside:{key}", name)
