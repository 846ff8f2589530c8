# SPDX-License-Identifier: Apache-2.0
"""MXNet's KVStore for NumPy arrays, on the collectives of ngd.

    store = ngd.kvstore.create("dist_sync")
    store.set_optimizer(ngd.optim.SGD(0.1))
    store.init("weight", weight)
    store.pushpull("weight", gradient, out=weight)

`ngd.kvstore.mxnet` has the same stores for MXNet's arrays. docs/mxnet.md lists the supported calls
and the differences from MXNet.
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
) -> KVStore:  # long because each argument is described
    """Create a store of values by key.

    Parameters
    ----------
    name : str, default "local"
        The kind of store, as in MXNet:

        - "local", "local_allreduce_cpu", "local_allreduce_device" or "device": a store of this
          process.
        - "dist_sync", "dist" or "dist_device_sync", three names of one kind: every rank has all
          values. A push is an all-reduce.
        - "dist_async" or "dist_device_async", two names of one kind: each value is on one rank, its
          owner. The owner applies each push when the push arrives.
    group : Group, optional
        The ranks that share a "dist" store. All of them call this function. The default is the
        world.
    staleness : int, optional
        For "dist_async": the largest difference between a rank's number of pushes of a key and that
        of the slowest rank. A push that makes the difference larger is applied, and then waits
        until the slower ranks have pushed. By default a push never waits for other ranks.

    Returns
    -------
    KVStore
        The store.

    Raises
    ------
    ValueError
        `name` is unknown, `group` is given for a store of this process, or `staleness` is negative
        or is given for a store that is not "dist_async".

    Notes
    -----
    The bound by `staleness` is the stale synchronous parallel model of Ho et al. 2013, "More
    Effective Distributed ML via a Stale Synchronous Parallel Parameter Server", with a count of
    pushes per key.

    Examples
    --------
    >>> from ngd import kvstore
    >>> store = kvstore.create("local")
    >>> store.init("weight", np.zeros(2))
    >>> store.push("weight", np.ones(2))
    >>> out = np.empty(2)
    >>> store.pull("weight", out=out)
    >>> out
    array([1., 1.])
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
