# SPDX-License-Identifier: Apache-2.0
"""How the ranks of torch.distributed become a group of ngd's.

The default group is ngd's world where ngd's environment tells of the same ranks. Every other group
is made anew by its members, who alone take part in torch's new_group: what they must agree on goes
through the store over which torch's ranks have met. Where ngd's world is over MPI it is a group of
that world's family; else its members meet in the shared memory of their host.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

from ..._util import config
from ...comm import Group
from ...comm.launchers.detect import detect
from ...comm.world import init, make_local_group, world_over_mpi
from ...errors import InitError
from .process_group import ProcessGroup


def create(options: Any, _: Any = None) -> ProcessGroup:
    """Make a group of `options.group_size` ranks: what torch.distributed calls."""
    rank, size, store = options.group_rank, options.group_size, options.store
    ranks = list(options.global_ranks_in_group) or None  # None: the default group
    name = f"torch's group {options.group_id}"
    group = our_world(rank, size) if ranks is None else None
    if group is not None:
        return ProcessGroup(group, ranks, options.timeout, store, owned=False)
    group, counts = meet(store, rank, size, ranks, name)
    return ProcessGroup(group, ranks, options.timeout, store, owned=True, counts=counts)


def our_world(rank: int, size: int) -> Group | None:
    """The world of ngd, if it has the same ranks."""
    try:
        launch = detect()
    except InitError:
        return None
    if (launch.rank, launch.size) != (rank, size):
        return None
    return init()


def meet(
    store: Any, rank: int, size: int, ranks: list[int] | None, name: str
) -> tuple[Group, bool]:
    """A new group, and whether its errors count its ranks from 0 instead of globally."""
    world = world_over_mpi()
    if world is None or ranks is None or ranks[rank] != world.rank:
        number = 0  # no member of ngd's world, or a world that torch counts otherwise
    else:
        number = world.communicator.next_group_number()
    if rank == 0:
        store.set("ngd/key", secrets.token_hex(16))
    store.set(f"ngd/member/{rank}", f"{number} {host()}")
    members = [store.get(f"ngd/member/{each}").decode().split(" ", 1) for each in range(size)]
    numbers = [int(number) for number, _ in members]
    key = f"torch:{store.get('ngd/key').decode()}"
    if world is not None and ranks is not None and all(numbers):
        return world.group_of(ranks, max(numbers), key, name), False
    if len({place for _, place in members}) > 1:
        places = ", ".join(f"rank {each} on {place}" for each, (_, place) in enumerate(members))
        raise InitError(
            f"{name}: expected the ranks of a group to be on one host, or torch's default group "
            f"to be ngd's world over MPI; got {places}, without such a world: "
            'new_group(..., backend="gloo") makes a group of other ranks'
        )
    return make_local_group(key, rank, size, name), True


def host() -> str:
    """What this rank's host is called; abstract sockets reach as far as a network namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return config.host() or f"{boot}:{Path('/proc/self/ns/net').stat().st_ino}"
