# SPDX-License-Identifier: Apache-2.0
"""The processes above this one, as /proc shows them."""

from __future__ import annotations

import contextlib
import os

from ...errors import InitError
from .base import Environ, Launch
from .job_names import name_of_place


def process_job_key(environ: Environ, rank_name: str) -> str:
    """A job key for ranks of one host: the nearest ancestor that is none of this rank's wrappers.

    A wrapper (a shell, numactl, a profiler) was started with the rank in its environment as this
    process was; the launcher was not. A pid may be used again, but not with the same start time.
    """
    pid = os.getppid()
    while pid > 1 and initial_variable(pid, rank_name) == environ.get(rank_name):
        pid = parent(pid)
    namespace = os.readlink("/proc/self/ns/pid")
    return f"process:{namespace}:{pid}:{start_time(pid)}"


def refuse_inherited_place(launch: Launch) -> None:
    """Raise InitError if an ancestor is the rank that the environment says that this process is."""
    mark, pid = name_of_place(launch).encode(), os.getppid()
    while pid > 0:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/maps", "rb") as maps:
            if mark in maps.read():
                raise InitError(
                    f"ngd.init: rank {launch.rank} is process {pid}, which is in the job already; "
                    "this process descends from it and has inherited its environment. A child of "
                    "a rank is no rank: let the rank itself make the call, or start a job of the "
                    "child's own (ngd run, or another NGD_JOB, RANK and WORLD_SIZE)"
                )
        pid = parent(pid)


def initial_variable(pid: int, name: str) -> str | None:
    """The value of a variable in the environment that a process was started with, if we may see."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            entries = file.read().split(b"\0")
    except OSError:
        return None
    prefix = name.encode() + b"="
    return next((os.fsdecode(e[len(prefix) :]) for e in entries if e.startswith(prefix)), None)


def stat_fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the command's name (proc(5): the third one is first)."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return ["?", "0", *["0"] * 18]


def parent(pid: int) -> int:
    """Return the pid of a process's parent; 0 if the process does not exist."""
    return int(stat_fields(pid)[1])


def start_time(pid: int) -> str:
    """Return the time at which a process started, in clock ticks since the boot."""
    return stat_fields(pid)[19]
