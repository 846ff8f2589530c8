# SPDX-License-Identifier: Apache-2.0
"""The share of the host's cores that this rank's kernels use, as a number of threads."""

from __future__ import annotations

import logging
import os

import numpy as np

from .. import _core
from .group import Group

logger = logging.getLogger("ngd")


def share_cores(world: Group) -> None:
    """Set the number of threads of this rank's kernels, and log it once at debug level.

    The number of threads is the share of the rank in the host's cores, rounded down, and at least
    1. If NGD_THREADS is above 0, it is the number of threads instead.

    If all ranks are on one host, they exchange their affinity masks. Each core in the mask of a
    rank adds 1/k to the share of the rank, if k ranks have this core in their masks. For example,
    two ranks with the same mask of 8 cores have a share of 4 each. A rank that is bound to 8 cores
    of its own has a share of 8.

    If the ranks are on several hosts, they do not exchange masks, because the core numbers of
    different hosts overlap. If the mask of a rank has all cores of the host, the rank is not bound,
    and its share is 1/local_size of the cores. If the mask is smaller, the rank is assumed to be
    bound to cores of its own, and its share is the whole mask.

    If the cgroup quota allows fewer cores than the mask, the share is at most 1/local_size of the
    quota.
    """
    affinity = sorted(os.sched_getaffinity(0))
    if world.size == 1:
        share = float(len(affinity))
    elif world.local_size == world.size:
        ranks_per_core = np.zeros(4096, np.int16)
        ranks_per_core[affinity] = 1
        ranks_per_core = world.all_reduce(ranks_per_core, op="sum", site="ngd.init()")
        share = float((1 / ranks_per_core[affinity]).sum())
    else:
        share = (
            len(affinity) / world.local_size if len(affinity) == os.cpu_count() else len(affinity)
        )
    quota = _core.available_cores()
    if quota < len(affinity):
        share = min(share, quota / world.local_size)
    _core.set_thread_share(max(1, int(share + 1e-6)))
    logger.debug("rank %d of %d: %d threads", world.rank, world.size, _core.thread_count())


def available_cores() -> int:
    """Return the number of cores that the affinity mask and the cgroup quotas allow."""
    return _core.available_cores()


def thread_count() -> int:
    """Return the number of threads that compute a kernel, for example a matmul, in this rank.

    Raise InitError if NGD_THREADS is invalid.
    """
    return _core.thread_count()
