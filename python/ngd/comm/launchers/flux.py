# SPDX-License-Identifier: Apache-2.0
"""The launcher of Flux, `flux run`."""

from __future__ import annotations

from typing import Final

from .base import Environ, Launch, Launcher, read_launch, read_number

RANK: Final = "FLUX_TASK_RANK"


def is_present(environ: Environ) -> bool:
    """Return True for a task of Flux.

    Return False if Hydra (mpiexec) started this process inside such a task. This process inherits
    the variables of Flux, but its PMI_SIZE is that of Hydra's job.
    """
    return RANK in environ and environ.get("PMI_SIZE") in (None, environ.get("FLUX_JOB_SIZE"))


def read(environ: Environ) -> Launch:
    """Return the `Launch` (rank, size and job) of a task of `flux run`.

    Flux gives the number of nodes, and not the number of tasks on this node. So the tasks are
    assumed to be spread evenly. Flux also sets the variables of PMI, with the same numbers.
    """
    size = read_number(environ, "FLUX_JOB_SIZE", least=1, because=RANK)
    nodes = read_number(environ, "FLUX_JOB_NNODES", least=1, because=RANK)
    local_rank = read_number(environ, "FLUX_TASK_LOCAL_ID", least=0, because=RANK)
    max_local_size = max(1, size - nodes + 1)  # if every other node has one task
    return read_launch(
        environ,
        "flux",
        f"flux:{environ.get('FLUX_JOB_ID_PATH') or environ.get('FLUX_JOB_ID', '')}",
        RANK,
        "FLUX_JOB_SIZE",
        "FLUX_TASK_LOCAL_ID",
        min(max(-(-size // nodes), local_rank + 1), max_local_size),
    )


FLUX: Final = Launcher("flux", is_present, read, ("FLUX_JOB_ID", RANK))
