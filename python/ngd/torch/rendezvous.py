# SPDX-License-Identifier: Apache-2.0
"""How the ranks of torch.distributed become a group of ngd's.

The default group is ngd's world where ngd's environment tells of the same ranks. Every other group
is made anew by its members, who alone take part in torch's new_group: their job's key comes through
the store over which torch's ranks have met.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

from .. import config, distributed, environment
from ..collectives import Group
from ..errors import InitError
from .process_group import ProcessGroup


def create(options: Any, _: Any = None) -> ProcessGroup:
    """Make a group of `options.group_size` ranks: what torch.distributed calls."""
    rank, size = options.group_rank, options.group_size
    ranks = list(options.global_ranks_in_group) or None  # None: the default group
    world = our_world(rank, size) if ranks is None else None
    group = world or meet(options.store, rank, size, f"torch's group {options.group_id}")
    return ProcessGroup(group, ranks, options.timeout, options.store, owned=world is None)


def our_world(rank: int, size: int) -> Group | None:
    """The world of ngd, if it has the same ranks."""
    try:
        launch = environment.detect()
    except InitError:
        return None
    if (launch.rank, launch.size) != (rank, size):
        return None
    return distributed.init()


def meet(store: Any, rank: int, size: int, name: str) -> Group:
    """A new group of ranks of this host."""
    store.set(f"ngd/host/{rank}", host())
    if rank == 0:
        store.set("ngd/key", secrets.token_hex(16))
    hosts = [store.get(f"ngd/host/{each}").decode() for each in range(size)]
    if len(set(hosts)) > 1:
        places = ", ".join(f"rank {each} on {place}" for each, place in enumerate(hosts))
        raise InitError(
            f"{name}: expected the ranks of a group to be on one host, or to be ngd's world; got "
            f'{places}: new_group(..., backend="gloo") makes a group of other ranks'
        )
    return distributed.meet(f"torch:{store.get('ngd/key').decode()}", rank, size, name)


def host() -> str:
    """What this rank's host is called; abstract sockets reach as far as a network namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return config.host() or f"{boot}:{Path('/proc/self/ns/net').stat().st_ino}"
