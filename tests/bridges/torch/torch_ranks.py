# SPDX-License-Identifier: Apache-2.0
"""Helpers that run ranks of torch.distributed over ngd, for the tests of this folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import ngd.torch  # noqa: F401
from tests.support import harness
from tests.support.paths import PYTHONPATH

# torch.distributed prints warnings when it ends, which these tests expect.
ENVIRONMENT = {
    "PYTHONPATH": PYTHONPATH,
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "GLOO_SOCKET_IFNAME": "lo",
}
PLAIN = ("RANK", "WORLD_SIZE")
_TWO_PER_HOST = 'NGD_HOST=host$((OMPI_COMM_WORLD_RANK / 2)) exec "$@"'


def on_hosts(ranks: int) -> dict[str, Any]:
    """Return arguments of job and run that put two ranks on each host. NGD_HOST names the hosts.

    mpirun does not end the other ranks when a rank dies.
    """
    assert harness.MPIRUN is not None
    mpirun = [harness.MPIRUN, "--oversubscribe", "--enable-recovery", "-np", str(ranks)]
    return {"launcher": [*mpirun, "sh", "-c", _TWO_PER_HOST, "sh"]}


def job(program: Callable[..., Any], ranks: int, **how: Any) -> harness.Job:
    """Start ranks of `program`, which calls join() first. The store is a file of the job."""
    how["env"] = {**ENVIRONMENT, **how.get("env", {})}
    return harness.Job(program, ranks, **how)


def run(program: Callable[..., Any], ranks: int, **how: Any) -> list[Any]:
    """Run ranks of `program`, and return their results."""
    how["env"] = {**ENVIRONMENT, **how.get("env", {})}
    return [outcome.value for outcome in harness.run(program, ranks, **how)]


def join(backend: str = "ngd", store: str = "store", **how: Any) -> tuple[int, int]:
    """Make the default group, and return this rank and the number of ranks."""
    torch.set_num_threads(1)
    folder = Path(sys.argv[-1])  # the folder of the job
    names = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
    rank, size = (int(os.environ[n]) for n in (names if names[0] in os.environ else PLAIN))
    address = f"file://{folder}/{store}"
    dist.init_process_group(backend, init_method=address, rank=rank, world_size=size, **how)
    return rank, size
