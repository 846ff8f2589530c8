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

    The share of a rank is the sum over the cores in its affinity mask. A core that is in the masks
    of k ranks counts 1/k. So a rank that its launcher bound to separate cores uses all of them.

    The ranks exchange their masks only if all ranks are on one host, because each host numbers its
    cores from 0. In a world of several hosts, a rank whose mask has all cores gets 1/local_size of
    them, and a rank with a smaller mask gets the whole mask. The ranks of a host divide a cgroup
    quota evenly.
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
    """Return the number of threads of a kernel; raise InitError if NGD_THREADS is invalid."""
    return _core.thread_count()
