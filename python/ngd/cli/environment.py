# SPDX-License-Identifier: Apache-2.0
"""The environment of a rank: the variables that `ngd run` sets for each process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ..comm.launchers.registry import surroundings

SET_BY_INIT: Final = (
    "NGD_JOB",
    "NGD_WORLD",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
)
"""The variables that ngd.init() sets in a process of `ngd run --min-ranks`.

It sets them whenever the process joins a new world (group of all ranks), because its rank and the
number of ranks differ between worlds.
"""


def rank_environment(
    rank: int,
    size: int,
    job: str,
    port: int,
    restarts: int,
    environ: Mapping[str, str],
    launcher: str = "",
    folder: str | None = None,
) -> dict[str, str]:
    """Return the complete environment of a rank.

    It has the variables of `environ`, and variables that describe the job, which
    comm/launchers/ngd.py reads in the rank.

    Parameters
    ----------
    rank, size : int
        The number of the rank and the number of ranks.
    job : str
        The job key, a text that differs between jobs. The ranks of a job find each other by it.
    port : int
        The value of MASTER_PORT, a free port that the ranks may use, as torch.distributed does.
    restarts : int
        The number of restarts so far.
    environ : mapping
        The environment of the launcher.
    launcher : str
        The value of NGD_LAUNCHER: the address of the pipe by which ranks notify the launcher. See
        comm/launchers/launcher_pipe.py.
    folder : str, optional
        The value of NGD_ELASTIC_DIR, a folder that exists until the job ends.
    """
    # If a rank of an elastic job starts another job, that job has its own members and worlds.
    outside = {k: v for k, v in environ.items() if k not in ("NGD_MEMBER", "NGD_WORLD")}
    return {
        "PYTHONUNBUFFERED": "1",
        **({} if folder is None else {"NGD_ELASTIC_DIR": folder}),
        **outside,
        "NGD_JOB": job,
        "NGD_LAUNCHER": launcher,
        "NGD_SURROUNDINGS": surroundings(environ),
        "NGD_RESTART_COUNT": str(restarts),
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def member_environment(member: int, folder: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a member of an elastic job.

    `environ` is a result of `rank_environment`. The variables in SET_BY_INIT are removed.
    NGD_MEMBER is set to the member number, and NGD_ELASTIC_DIR to `folder`. The launcher writes the
    members of each world to a file in `folder`, and ngd.init() reads the file.
    """
    inherited = {name: value for name, value in environ.items() if name not in SET_BY_INIT}
    return {**inherited, "NGD_MEMBER": str(member), "NGD_ELASTIC_DIR": folder}
