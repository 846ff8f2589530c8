# SPDX-License-Identifier: Apache-2.0
"""The launcher of Slurm, `srun`."""

from __future__ import annotations

from typing import Final

from ...errors import InitError
from .base import Environ, Launch, Launcher, read_launch

FIRST_SPECIAL_STEP: Final = 0xFFFF_FFF0
"""The lowest step number that is not from srun.

Slurm gives the batch script, interactive shells and the external step numbers near 2**32. Their
processes are not tasks of srun.
"""


def is_present(environ: Environ) -> bool:
    """Return True if `environ` is that of a task, a process that srun has started.

    The shell that salloc opens and a batch script are not tasks, although SLURM_NTASKS is set in
    them.
    """
    step = environ.get("SLURM_STEP_ID", "")
    return step.isdecimal() and int(step) < FIRST_SPECIAL_STEP and "SLURM_PROCID" in environ


def read(environ: Environ) -> Launch:
    """Return the `Launch` (rank, size and job) of a task of srun."""
    size_name = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environ else "SLURM_NTASKS"
    return read_launch(
        environ,
        "slurm",
        f"slurm:{environ.get('SLURM_JOB_ID', '')}:{environ['SLURM_STEP_ID']}",
        "SLURM_PROCID",
        size_name,
        "SLURM_LOCALID",
        tasks_on_this_node(environ),
    )


def tasks_on_this_node(environ: Environ) -> int | None:
    """Return the number of tasks on this node, or None if Slurm does not give it.

    Slurm gives a list for all nodes. "4(x2),3" means two nodes with 4 tasks and one with 3.
    """
    tasks = environ.get("SLURM_STEP_TASKS_PER_NODE", environ.get("SLURM_TASKS_PER_NODE"))
    if tasks is None:
        return None
    counts: list[int] = []
    try:
        for item in tasks.split(","):
            count, _, times = item.partition("(x")
            counts += [int(count)] * int(times.removesuffix(")") or 1)
        return counts[int(environ.get("SLURM_NODEID", "0"))]
    except (ValueError, IndexError):
        raise InitError(
            "ngd.init: expected the number of tasks on this node; got SLURM_STEP_TASKS_PER_NODE="
            f"{tasks!r} with SLURM_NODEID={environ.get('SLURM_NODEID')!r}, which does not give it. "
            "Set both as Slurm does, or unset them."
        ) from None


SLURM: Final = Launcher("slurm", is_present, read, ("SLURM_STEP_ID", "SLURM_PROCID"))
