# SPDX-License-Identifier: Apache-2.0
"""The launcher of Open MPI, `mpirun`."""

from __future__ import annotations

from typing import Final

from .base import Environ, Launch, Launcher, read_launch
from .process_tree import process_job_key

RANK: Final = "OMPI_COMM_WORLD_RANK"


def is_present(environ: Environ) -> bool:
    """Return True for a rank that Open MPI's mpirun started."""
    return RANK in environ


def read(environ: Environ) -> Launch:
    """Return the `Launch` (rank, size and job) of a rank of Open MPI."""
    namespace = environ.get("PMIX_NAMESPACE")
    return read_launch(
        environ,
        "openmpi",
        f"pmix:{namespace}" if namespace else process_job_key(environ, RANK),
        RANK,
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    )


OPENMPI: Final = Launcher("openmpi", is_present, read, (RANK,), mpi="openmpi")
