# SPDX-License-Identifier: Apache-2.0
"""Ranks of torch.distributed over ngd, for the tests of this folder."""

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
    """For job and run: the ranks of this machine are two on each of several hosts.

    mpirun ends no rank when another one dies.
    """
    assert harness.MPIRUN is not None
    mpirun = [harness.MPIRUN, "--oversubscribe", "--enable-recovery", "-np", str(ranks)]
    return {"launcher": [*mpirun, "sh", "-c", _TWO_PER_HOST, "sh"]}


def job(program: Callable[..., Any], ranks: int, **how: Any) -> harness.Job:
    """Ranks of `program`, which calls join() first; the store is a file of its own."""
    how["env"] = {**ENVIRONMENT, **how.get("env", {})}
    return harness.Job(program, ranks, **how)


def run(program: Callable[..., Any], ranks: int, **how: Any) -> list[Any]:
    """What the ranks of `program` return."""
    how["env"] = {**ENVIRONMENT, **how.get("env", {})}
    return [outcome.value for outcome in harness.run(program, ranks, **how)]


def join(backend: str = "ngd", store: str = "store", **how: Any) -> tuple[int, int]:
    """Make the default group, and return my rank and the number of ranks."""
    torch.set_num_threads(1)
    folder = Path(sys.argv[-1])  # the job's
    names = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
    rank, size = (int(os.environ[n]) for n in (names if names[0] in os.environ else PLAIN))
    meeting = f"file://{folder}/{store}"
    dist.init_process_group(backend, init_method=meeting, rank=rank, world_size=size, **how)
    return rank, size
