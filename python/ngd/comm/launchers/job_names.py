# SPDX-License-Identifier: Apache-2.0
"""Names that are derived from the key of a job, which they do not reveal."""

from __future__ import annotations

import hashlib
import os

from .base import Launch


def label_of(job_key: str | None) -> str:
    """Return the label of a job in logs and metrics. It does not reveal the key."""
    key = f"label/{job_key or f'alone:{os.getpid()}'}".encode(errors="surrogateescape")
    return hashlib.sha256(key).hexdigest()[:8]


def name_of_metrics(launch: Launch) -> str:
    """Return the name of the abstract socket that connects the metrics of the ranks of a host."""
    key = f"metrics/{launch.job_key or f'alone:{os.getpid()}'}".encode(errors="surrogateescape")
    return f"\0ngd-metrics-{hashlib.sha256(key).hexdigest()[:32]}"


def name_of_place(launch: Launch) -> str:
    """Return the name of the mark of a process that has this rank of its job."""
    place = f"{launch.job_key}/{launch.rank}".encode(errors="surrogateescape")
    return f"ngd-rank-{hashlib.sha256(place).hexdigest()[:32]}"
