# SPDX-License-Identifier: Apache-2.0
"""Names that logs show or other processes can see, made from a job key.

A process that knows the job key can find the rendezvous of the job. So these names are hashes of
the job key, from which the job key cannot be computed.
"""

from __future__ import annotations

import hashlib
import os

from .base import Launch


def label_of(job_key: str | None) -> str:
    """Return the label of a job in logs and metrics: 8 hexadecimal digits of a hash of the key.

    If `job_key` is None, the label is made from the pid of this process.
    """
    key = f"label/{job_key or f'alone:{os.getpid()}'}".encode(errors="surrogateescape")
    return hashlib.sha256(key).hexdigest()[:8]


def name_of_metrics(launch: Launch) -> str:
    """Return the name of the abstract socket for the metrics of the job on this host.

    One rank of the host listens there and serves the metrics. The other ranks of the host send
    their metrics to it.
    """
    key = f"metrics/{launch.job_key or f'alone:{os.getpid()}'}".encode(errors="surrogateescape")
    return f"\0ngd-metrics-{hashlib.sha256(key).hexdigest()[:32]}"


def mark_name(launch: Launch) -> str:
    """Return the name of the mark of a process, made from its rank and job.

    A mark (_core.Mark) is a memory mapping. Its name in /proc/PID/maps shows that the process PID
    has this rank. A child of the process looks for this name (`refuse_inherited_rank`), so that the
    child does not join the job as the same rank.
    """
    key = f"{launch.job_key}/{launch.rank}".encode(errors="surrogateescape")
    return f"ngd-rank-{hashlib.sha256(key).hexdigest()[:32]}"
