# SPDX-License-Identifier: Apache-2.0
"""The group in which the server threads of a `dist_async` store communicate.

Every rank of the store has one server thread, which does all communication of the store.
"""

from __future__ import annotations

import secrets

import numpy as np

from .. import _core
from ..comm.group import Group
from ..comm.world import init, make_local_group, world_over_mpi


def world_ranks_of(group: Group) -> list[int]:
    """Return the world rank of each rank of a group. All ranks of the group call this function."""
    own_rank = np.array([init().rank])
    return [int(rank) for rank in group.all_gather(own_rank, site="ngd.kvstore.create()")]


def make_service_group(group: Group, name: str) -> Group:
    """Return a new group with the ranks of `group`, for the server threads of a `dist_async` store.

    Only these threads communicate in the new group. All ranks of `group` call this function.
    Rank 0 sends a random key to the other ranks, and the ranks of one host find each other by this
    key. If the world does not use MPI, the new group is a shared-memory group of this host. If the
    world uses MPI, `Group.group_of` splits the new group from the world. If `group` has one rank,
    the new group has only this process.
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
