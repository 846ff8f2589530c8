# SPDX-License-Identifier: Apache-2.0
"""The cores of this rank, and the number of threads of its kernels."""

from __future__ import annotations

import logging
import os

import numpy as np

from .. import _core
from .group import Group

logger = logging.getLogger("ngd")


def share_cores(world: Group) -> None:
    """Set the number of threads of this rank's kernels, and log it once at debug level.

    A core that k ranks may run on counts 1/k for each of them, so ranks that a launcher bound to
    cores of their own keep them whole. Between hosts, where the numbers of cores repeat, ranks are
    taken to share alike.
    """
    mine = sorted(os.sched_getaffinity(0))
    if world.size == 1:
        share = float(len(mine))
    elif world.local_size == world.size:
        ranks_on = np.zeros(4096, np.int16)
        ranks_on[mine] = 1
        ranks_on = world.all_reduce(ranks_on, op="sum", site="ngd.init()")
        share = float((1 / ranks_on[mine]).sum())
    else:
        share = len(mine) / world.local_size if len(mine) == os.cpu_count() else len(mine)
    quota = _core.available_cores()
    if quota < len(mine):
        share = min(share, quota / world.local_size)
    _core.set_thread_share(max(1, int(share + 1e-6)))
    logger.debug("rank %d of %d: %d threads", world.rank, world.size, _core.thread_count())


def available_cores() -> int:
    """Return the number of cores that the affinity mask and the cgroup quotas allow."""
    return _core.available_cores()


def thread_count() -> int:
    """Return the number of threads of a kernel; InitError if NGD_THREADS is invalid."""
    return _core.thread_count()
