# SPDX-License-Identifier: Apache-2.0
"""The launchers other than `ngd run`, in the order in which they are tried."""

from __future__ import annotations

import hashlib
from typing import Final

from .base import Environ, Launcher
from .flux import FLUX
from .openmpi import OPENMPI
from .pmi import PMI, PMIX
from .slurm import SLURM
from .torchrun import TORCHRUN

# The most specific launcher comes first. Ranks of Open MPI also have the variables of PMIx and, in
# a job of Slurm, those of srun. Ranks of Flux also have the variables of PMI.
OTHER_LAUNCHERS: Final[tuple[Launcher, ...]] = (OPENMPI, FLUX, PMI, PMIX, TORCHRUN, SLURM)


def surroundings(environ: Environ) -> str:
    """Return a hash of the values of `Launcher.variables` of all launchers except `ngd run`.

    `ngd run` sets NGD_SURROUNDINGS to this hash in its ranks. If such a rank starts a job with
    another launcher, the processes of that job inherit NGD_SURROUNDINGS, but the other launcher
    changes the variables. So a hash that differs from NGD_SURROUNDINGS shows that a process is not
    a rank of `ngd run`.
    """
    names = (name for launcher in OTHER_LAUNCHERS for name in launcher.variables)
    variables = {name: environ[name] for name in names if name in environ}
    return hashlib.sha256(repr(variables).encode(errors="surrogateescape")).hexdigest()[:16]


def mpi_of(name: str) -> str | None:
    """Return the name of the MPI library that ranks of this launcher use; "" for any library.

    `name` is the name of the launcher. Return None if it is unknown or uses no MPI.
    """
    return next((each.mpi for each in OTHER_LAUNCHERS if each.name == name), None)
