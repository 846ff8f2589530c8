# SPDX-License-Identifier: Apache-2.0
"""Creation of a communicator: of one rank, over shared memory, or over MPI."""

from __future__ import annotations

import os
import sys
from typing import Any, Literal, TypeAlias

from .. import _core
from .._util import config
from ..errors import InitError
from .launchers.base import Launch
from .launchers.registry import mpi_of

Transport: TypeAlias = Literal["self", "shm", "mpi"]
"""The transport of a communicator.

"self" is for one rank and sends nothing. "shm" is shared memory, for ranks on one host. "mpi" is
MPI, for ranks on one or several hosts.
"""


def timeout_seconds() -> float:
    """Return NGD_TIMEOUT, the longest wait for a rank in seconds; 0 means no limit."""
    return _core.timeout_seconds()


def make_communicator(launch: Launch, timeout: float) -> _core.Communicator:
    """Return the communicator of the ranks that a launcher started.

    `timeout` limits the rendezvous over shared memory, in seconds. Over MPI, NGD_TIMEOUT is the
    limit, and `timeout` is not used.
    """
    return open_communicator(choose_transport(launch), launch, timeout)


def choose_transport(launch: Launch) -> Transport:
    """Return the transport that NGD_COMM names; for "auto", the result of `default_transport`.

    Raise an InitError if the build mode or the launch does not allow this transport.
    """
    mode = str(_core.build_info()["mode"])
    choice = config.communicator(mode)
    if choice == "auto":
        choice = default_transport(mode, launch)
    if choice == "self":
        expect_one_rank(launch)
        return "self"
    if choice == "shm":
        expect_one_host(mode, launch)
        expect_job_key(launch)
        return "shm"
    return "mpi"


def default_transport(mode: str, launch: Launch) -> Transport:
    """Return the transport for NGD_COMM=auto, which depends on the build mode and the launch.

    For one rank, it is "self" in each build mode. For several ranks, it depends on the mode:

    - MLSL, a build with shared memory only: "shm".
    - OMPI, a build with shared memory and MPI: "shm" if all ranks are on this host and NGD_HOST is
      not set, and otherwise "mpi".
    - OFF, a build for one rank: raise InitError.
    """
    if launch.size == 1:
        return "self"
    if mode == "OFF":
        raise InitError(
            f"ngd.init: expected a build for the {launch.size} ranks that {launch.launcher} "
            "started; got NGD_DISTRIBUTED_ENABLE=OFF. Build mode MLSL or OMPI."
        )
    if mode == "MLSL":
        return "shm"
    return "shm" if launch.one_host and config.host() is None else "mpi"


def expect_one_rank(launch: Launch) -> None:
    """Raise an InitError if NGD_COMM=self and the launcher started several ranks."""
    if launch.size != 1:
        raise InitError(
            f"ngd.init: expected one rank with NGD_COMM=self; got {launch.size} ranks of "
            f"{launch.launcher}. Unset NGD_COMM."
        )


def expect_one_host(mode: str, launch: Launch) -> None:
    """Raise an InitError if the ranks are on several hosts. The transport "shm" needs one host.

    The advice in the message depends on `mode`, the build mode: in mode OMPI to use MPI, and in
    another mode to build ngd in mode OMPI.
    """
    if launch.one_host:
        return
    limit, cure = f"mode {mode}", "build with NGD_DISTRIBUTED_ENABLE=OMPI and start with mpirun"
    if mode == "OMPI":
        limit, cure = "NGD_COMM=shm", "let mode OMPI use MPI: NGD_COMM=auto"
    raise InitError(
        f"ngd.init: expected all ranks on one host, because {limit} has only shared memory; "
        f"got {launch.size} ranks of {launch.launcher} on several hosts, {launch.local_size} "
        f"on this one. Start them all on one host (srun -N1, ngd run), or {cure}."
    )


def expect_job_key(launch: Launch) -> None:
    """Raise an InitError if a job of several ranks has no job key for their rendezvous."""
    if launch.size > 1 and launch.job_key is None:
        raise InitError(
            f"ngd.init: expected a launcher that sets a job key; got {launch.launcher}, which "
            "does not. Set NGD_JOB, RANK and WORLD_SIZE of each rank, or use ngd run."
        )


def open_communicator(transport: Transport, launch: Launch, timeout: float) -> _core.Communicator:
    """Return a communicator over a transport that `choose_transport` returned."""
    if transport == "self":
        return _core.Communicator.make_self()
    if transport == "shm":
        key = launch.job_key or f"alone:{os.getpid()}"
        return _core.Communicator.make_shm(key, launch.rank, launch.size, timeout)
    if _core.build_info()["mode"] == "OMPI":
        likely = mpi_of(launch.launcher) or ""
        load_mpi(config.mpi() or (likely if likely in mpis() else ""))
    communicator = make_mpi_communicator(-1)
    expect_size_of_mpi(communicator.size, launch)
    return communicator


def expect_size_of_mpi(size: int, launch: Launch) -> None:
    """Raise an InitError if MPI has another number of ranks than the launcher."""
    if size == launch.size:
        return
    reason = (
        "the launcher belongs to another MPI than the one that this process has loaded"
        if mpi_of(launch.launcher) is not None
        else f"{launch.launcher} does not pass its ranks to this MPI; start them with the "
        "mpirun of this MPI, which finds the hosts of a job of Slurm or PBS by itself"
    )
    raise InitError(
        f"ngd.init: {launch.launcher} started {launch.size} ranks, but MPI sees "
        f"{size}: {reason} ({_core.mpi_version()}); set NGD_MPI to one of "
        f"{', '.join(mpis())}"
    )


def communicator_of(comm: Any) -> _core.Communicator:
    """Return a communicator with the ranks of an mpi4py communicator."""
    mode = _core.build_info()["mode"]
    if mode != "OMPI":
        raise InitError(
            f"ngd.init: comm: expected a build with NGD_DISTRIBUTED_ENABLE=OMPI, which has MPI; "
            f"got mode {mode}. Install such a build, or leave comm out."
        )
    load_mpi_of(comm)
    return make_mpi_communicator(comm.py2f())


def load_mpi_of(comm: Any) -> None:
    """Load the MPI library of mpi4py; raise an InitError if ngd has loaded another one."""
    get_version = getattr(sys.modules.get(type(comm).__module__), "Get_library_version", None)
    if get_version is None or not hasattr(comm, "py2f"):
        raise InitError(
            f"ngd.init: comm: expected an mpi4py communicator; got {type(comm).__name__}. Pass "
            "MPI.COMM_WORLD of mpi4py."
        )
    mpi4py_version = get_version().strip("\0\n ")
    ngd_version = load_mpi("openmpi" if mpi4py_version.startswith("Open MPI") else "mpich")
    if mpi4py_version != ngd_version:
        raise InitError(
            f"ngd.init: comm: expected mpi4py and ngd to use one MPI; got {ngd_version} in "
            f"ngd and {mpi4py_version} in mpi4py. Install mpi4py for the MPI of ngd."
        )


def mpis() -> list[str]:
    """Return the names of the MPI libraries that this build supports."""
    return (_core.build_info()["mpi"] or "").split()


def load_mpi(name: str) -> str:
    """Load an MPI library into this process and return its version text.

    If `name` is empty, use the MPI library that this process has loaded already. If no library
    is loaded, load the first one that is found among those for which ngd was built.
    """
    built = mpis()
    if name and name not in built:
        raise InitError(
            f"ngd.init: expected an MPI among {', '.join(built)}, for which ngd was built; got "
            f"{name}. Build ngd with its mpi.h as well (cmake.define.NGD_MPI_INCLUDE)."
        )
    _core.load_mpi(name)
    return _core.mpi_version()


def make_mpi_communicator(fortran_handle: int) -> _core.Communicator:
    """Return a communicator with the ranks of an MPI communicator.

    `fortran_handle` is the handle that MPI_Comm_c2f returns; -1 means MPI_COMM_WORLD. With
    NGD_COMM=mpi, all data is sent over MPI. Otherwise, a group on one host uses only shared
    memory. On several hosts with equal numbers of ranks, large collectives use shared memory inside
    each host and MPI between hosts.
    """
    timeout = _core.timeout_seconds()
    if config.communicator() == "mpi":
        return _core.Communicator.make_mpi(fortran_handle, timeout)
    return _core.Communicator.make_hierarchical(fortran_handle, timeout)
