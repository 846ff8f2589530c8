# SPDX-License-Identifier: Apache-2.0
"""The ancestors of this process, read from /proc."""

from __future__ import annotations

import contextlib
import os

from ...errors import InitError
from .base import Environ, Launch
from .job_names import mark_name


def process_job_key(environ: Environ, rank_name: str) -> str:
    """Return a job key for ranks of one host: the pid and the start time of their launcher process.

    `rank_name` is the environment variable with the rank. Between the launcher and this process
    there may be wrappers, such as a shell, numactl or a profiler. The launcher started a wrapper
    with the same value of `rank_name` as this process. So the launcher process is the nearest
    ancestor that was started with another value, or without one. The start time is in the key,
    because another process may later have the same pid.
    """
    pid = os.getppid()
    while pid > 1 and initial_variable(pid, rank_name) == environ.get(rank_name):
        pid = parent(pid)
    namespace = os.readlink("/proc/self/ns/pid")
    return f"process:{namespace}:{pid}:{start_time(pid)}"


def refuse_inherited_rank(launch: Launch) -> None:
    """Raise InitError if an ancestor of this process has joined the job with the same rank.

    Such an ancestor has a mark (`mark_name`). This process is then not a rank, but a child of that
    rank, and has inherited the rank's environment. A wrapper of a rank, such as a shell, has the
    same environment too, but does not join the job and has no mark.
    """
    mark, pid = mark_name(launch).encode(), os.getppid()
    while pid > 0:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/maps", "rb") as maps:
            if mark in maps.read():
                raise InitError(
                    f"ngd.init: rank {launch.rank} is process {pid}, which is in the job already; "
                    "this process descends from it and has inherited its environment. A child of "
                    "a rank is not a rank: make the call in the rank itself, or start a job of "
                    "the child's own (ngd run, or another NGD_JOB, RANK and WORLD_SIZE)"
                )
        pid = parent(pid)


def initial_variable(pid: int, name: str) -> str | None:
    """Return the value of a variable at the start of a process; None if unset or unreadable."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            entries = file.read().split(b"\0")
    except OSError:
        return None
    prefix = name.encode() + b"="
    return next((os.fsdecode(e[len(prefix) :]) for e in entries if e.startswith(prefix)), None)


def stat_fields(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat (see proc(5)), without the pid and the command's name.

    Item 0 of the list is the third field, the state of the process. For a process that does not
    exist, item 0 is "?", and the other items are "0".
    """
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return ["?", "0", *["0"] * 18]


def parent(pid: int) -> int:
    """Return the pid of the parent of a process; 0 if the process does not exist."""
    return int(stat_fields(pid)[1])


def start_time(pid: int) -> str:
    """Return the start time of a process, in clock ticks since the boot."""
    return stat_fields(pid)[19]
