# SPDX-License-Identifier: Apache-2.0
"""MXNet's KVStore over ngd's collectives, on arrays.

    store = ngd.kvstore.create("dist_sync")
    store.set_optimizer(ngd.optim.SGD(0.1))
    store.init("weight", weight)
    store.pushpull("weight", gradient, out=weight)

`ngd.kvstore.mxnet` gives it to MXNet itself. docs/mxnet.md tells what it does and what it does not.
"""

from __future__ import annotations

from typing import Final

from ..comm import Group
from ..comm.world import init
from .store import KVStore

LOCAL: Final = ("local", "local_allreduce_cpu", "local_allreduce_device", "device")
SYNCHRONOUS: Final = ("dist", "dist_sync", "dist_device_sync")
ASYNCHRONOUS: Final = ("dist_async", "dist_device_async")


def create(
    name: str = "local", *, group: Group | None = None, staleness: int | None = None
) -> KVStore:
    """Make a store.

    Parameters
    ----------
    name
        "local", "device" and their longer names: this process alone. "dist_sync" ("dist",
        "dist_device_sync"): all ranks hold all values, and a push is an all-reduce. "dist_async"
        ("dist_device_async"): each value lives on one rank, which applies what the others push as
        it comes.
    group
        Who shares a store whose name begins with "dist"; by default the world. All of them call
        this.
    staleness
        Of "dist_async": by how many pushes of a key a worker may be ahead of the slowest one; it
        waits after a push that takes it further (Ho et al. 2013, "More Effective Distributed ML
        via a Stale Synchronous Parallel Parameter Server"). None: it never waits.

    Raises
    ------
    ValueError
        There is no such store, or `staleness` does not fit it.
    """
    if not isinstance(name, str):
        raise TypeError(f"kvstore.create: name: expected a string; got {type(name).__name__}")
    kind, names = name.lower(), (*LOCAL, *SYNCHRONOUS, *ASYNCHRONOUS)
    if kind not in names:
        raise ValueError(f"kvstore.create: name: expected one of {', '.join(names)}; got {name!r}")
    if staleness is not None and (kind not in ASYNCHRONOUS or staleness < 0):
        raise ValueError(
            f"kvstore.create: staleness: expected a number >= 0, with dist_async; got {staleness} "
            f"with {kind}"
        )
    if kind in LOCAL:
        if group is not None:
            raise ValueError(
                f"kvstore.create: group: expected a store of several ranks; got {kind}"
            )
        return KVStore(kind, None)
    ranks = init() if group is None else group
    if kind in SYNCHRONOUS:
        return KVStore(kind, ranks)
    from .asynchronous import AsyncStore

    return AsyncStore(kind, ranks, staleness)


__all__ = ["KVStore", "create"]
