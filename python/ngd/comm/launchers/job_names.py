# SPDX-License-Identifier: Apache-2.0
"""Names that are derived from the key of a job, which they do not reveal."""

from __future__ import annotations

import hashlib
import os

from .base import Launch


def label_of(job_key: str | None) -> str:
    """What logs and metrics call a job: nobody learns the key from it. A rank alone: its pid's."""
    key = f"label/{job_key or f'alone:{os.getpid()}'}".encode(errors="surrogateescape")
    return hashlib.sha256(key).hexdigest()[:8]


def name_of_metrics(launch: Launch) -> str:
    """Where the ranks of a host meet for their metrics: an abstract socket, which is no file."""
    key = f"metrics/{launch.job_key or f'alone:{os.getpid()}'}".encode(errors="surrogateescape")
    return f"\0ngd-metrics-{hashlib.sha256(key).hexdigest()[:32]}"


def name_of_place(launch: Launch) -> str:
    """What a process is marked with that has this place in its job."""
    place = f"{launch.job_key}/{launch.rank}".encode(errors="surrogateescape")
    return f"ngd-rank-{hashlib.sha256(place).hexdigest()[:32]}"
