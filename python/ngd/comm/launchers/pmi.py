# SPDX-License-Identifier: Apache-2.0
"""Launchers that start ranks with PMI or PMIx: Hydra (MPICH, Intel MPI) and `srun --mpi`.

PMI and PMIx are the interfaces through which MPI libraries get rank and size from a launcher.
"""

from __future__ import annotations

from typing import Final

from .base import Environ, Launch, Launcher, read_launch
from .process_tree import process_job_key
from .slurm import tasks_on_this_node


def has_pmi(environ: Environ) -> bool:
    """Return True for a rank that a launcher with PMI started."""
    return "PMI_RANK" in environ


def read_pmi(environ: Environ) -> Launch:
    """Return the `Launch` of a rank of Hydra (MPICH, Intel MPI) or of `srun --mpi=pmi2`.

    No variable has the name of the job. So the job key is made from the launcher process on this
    host, the common ancestor of the ranks of the host (`process_job_key`). This is enough for a
    rendezvous over shared memory, whose ranks are all on one host.

    A PMI request over the channel PMI_FD would return the name of the job. But ngd sends no
    requests, because they have two side effects. First, if a rank has sent a request and then
    exits without the request `finalize`, Hydra kills the other ranks with exit code 0. Second,
    Hydra closes the channel at the request `finalize`, and a later MPI_Init of the same process
    then aborts (seen with MPICH 5.0.2).
    """
    is_srun = "MPI_LOCALNRANKS" not in environ and all(
        environ.get(pmi_name) == environ.get(slurm_name)
        for pmi_name, slurm_name in (
            ("PMI_RANK", "SLURM_PROCID"),
            ("PMI_SIZE", "SLURM_STEP_NUM_TASKS"),
        )
    )
    return read_launch(
        environ,
        "pmi",
        process_job_key(environ, "PMI_RANK"),
        "PMI_RANK",
        "PMI_SIZE",
        "SLURM_LOCALID" if is_srun else "MPI_LOCALRANKID",
        tasks_on_this_node(environ) if is_srun else "MPI_LOCALNRANKS",
    )


def has_pmix(environ: Environ) -> bool:
    """Return True for a rank that a launcher with PMIx started."""
    return "PMIX_RANK" in environ


def read_pmix(environ: Environ) -> Launch:
    """Return the `Launch` of a rank of `srun --mpi=pmix`.

    Such a rank has variables of PMIx, but not those that Open MPI's mpirun sets. So the number of
    ranks is read from the variables of the Slurm step.
    """
    namespace = environ.get("PMIX_NAMESPACE")
    return read_launch(
        environ,
        "pmix",
        f"pmix:{namespace}" if namespace else process_job_key(environ, "PMIX_RANK"),
        "PMIX_RANK",
        "SLURM_STEP_NUM_TASKS",
        "SLURM_LOCALID",
        tasks_on_this_node(environ),
    )


PMI: Final = Launcher("pmi", has_pmi, read_pmi, ("PMI_RANK", "PMI_FD"), mpi="mpich")
PMIX: Final = Launcher("pmix", has_pmix, read_pmix, ("PMIX_NAMESPACE", "PMIX_RANK"), mpi="")
