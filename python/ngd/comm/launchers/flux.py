# SPDX-License-Identifier: Apache-2.0
"""`flux run`."""

from __future__ import annotations

from typing import Final

from .base import Environ, Launch, Launcher, read_launch, read_number

RANK: Final = "FLUX_TASK_RANK"


def is_present(environ: Environ) -> bool:
    """Return True for a task of Flux, but not for a rank of Hydra that such a task started."""
    return RANK in environ and environ.get("PMI_SIZE") in (None, environ.get("FLUX_JOB_SIZE"))


def read(environ: Environ) -> Launch:
    """A task of `flux run`; it has PMI's variables as well, with the same numbers.

    How many tasks a node has is not told, only how many nodes there are: on several, the tasks are
    taken to be spread evenly.
    """
    size = read_number(environ, "FLUX_JOB_SIZE", least=1, because=RANK)
    nodes = read_number(environ, "FLUX_JOB_NNODES", least=1, because=RANK)
    local_rank = read_number(environ, "FLUX_TASK_LOCAL_ID", least=0, because=RANK)
    most = max(1, size - nodes + 1)  # where every other node has one
    return read_launch(
        environ,
        "flux",
        f"flux:{environ.get('FLUX_JOB_ID_PATH') or environ.get('FLUX_JOB_ID', '')}",
        RANK,
        "FLUX_JOB_SIZE",
        "FLUX_TASK_LOCAL_ID",
        min(max(-(-size // nodes), local_rank + 1), most),
    )


FLUX: Final = Launcher("flux", is_present, read, ("FLUX_JOB_ID", RANK))
