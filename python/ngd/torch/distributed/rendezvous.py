# SPDX-License-Identifier: Apache-2.0
"""The rendezvous: how the ranks of torch.distributed become a group of ngd.

- The default group is ngd's own default group (the *world*), if the environment variables of the
  launcher give ngd the same rank and number of ranks as torch.distributed.
- Any other group is created by its members alone, because torch.distributed calls this backend only
  on the members of the new group. Through the store of torch.distributed, the members exchange a
  key, a number for the group, and the names of their hosts. If ngd's world uses MPI, and its ranks
  have the same numbers as those of torch.distributed, the new group is a subgroup of the world.
  Otherwise the members share memory, so they must be on one host.
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
    """Create a group of `options.group_size` ranks. torch.distributed calls this function."""
    rank, size, store = options.group_rank, options.group_size, options.store
    ranks = list(options.global_ranks_in_group) or None  # None: the default group
    name = f"torch's group {options.group_id}"
    group = matching_world(rank, size) if ranks is None else None
    if group is not None:
        return ProcessGroup(group, ranks, options.timeout, store, owned=False)
    group, counts = create_group(store, rank, size, ranks, name)
    return ProcessGroup(group, ranks, options.timeout, store, owned=True, counts=counts)


def matching_world(rank: int, size: int) -> Group | None:
    """Return ngd's world if the launcher's rank and size are `rank` and `size`, otherwise None."""
    try:
        launch = detect()
    except InitError:
        return None
    if (launch.rank, launch.size) != (rank, size):
        return None
    return init()


def create_group(
    store: Any, rank: int, size: int, ranks: list[int] | None, name: str
) -> tuple[Group, bool]:
    """Return a new group, and a boolean for the argument `counts` of ProcessGroup.

    The boolean is True if ngd's errors about the group give ranks within the group, and False if
    they give global ranks.
    """
    world = world_over_mpi()
    if world is None or ranks is None or ranks[rank] != world.rank:
        number = 0  # no world over MPI, or torch numbers its ranks differently
    else:
        number = world.communicator.next_group_number()
    if rank == 0:
        store.set("ngd/key", secrets.token_hex(16))
    store.set(f"ngd/member/{rank}", f"{number} {host()}")
    messages = [store.get(f"ngd/member/{each}").decode().split(" ", 1) for each in range(size)]
    numbers = [int(number) for number, _ in messages]
    key = f"torch:{store.get('ngd/key').decode()}"
    if world is not None and ranks is not None and all(numbers):
        return world.group_of(ranks, max(numbers), key, name), False
    if len({host_name for _, host_name in messages}) > 1:
        host_names = ", ".join(
            f"rank {each} on {host_name}" for each, (_, host_name) in enumerate(messages)
        )
        raise InitError(
            f"{name}: expected the ranks of a group to be on one host, or torch's default group "
            f"to be ngd's world over MPI; got {host_names}, and no such world: "
            'new_group(..., backend="gloo") makes a group of other ranks'
        )
    return make_local_group(key, rank, size, name), True


def host() -> str:
    """Return a name of this host that is unique per network namespace.

    The ranks of a host find each other by abstract sockets, which are visible only within one
    network namespace.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return config.host() or f"{boot}:{Path('/proc/self/ns/net').stat().st_ino}"
