# SPDX-License-Identifier: Apache-2.0
"""What the launcher left in the environment: who am I, of how many, and of which job.

docs/launchers.md is the table of this module. Nothing is imported from, or asked of, any launcher.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from ...errors import InitError

Environ: TypeAlias = Mapping[str, str]

MOST: Final = 2**31 - 1
"""Of ranks, and of whatever else launchers count."""
_RECOGNISED: Final = (
    "OMPI_COMM_WORLD_RANK",
    "PMIX_NAMESPACE",
    "PMIX_RANK",
    "PMI_RANK",
    "PMI_FD",
    "FLUX_JOB_ID",
    "FLUX_TASK_RANK",
    "TORCHELASTIC_RUN_ID",
    "SLURM_STEP_ID",
    "SLURM_PROCID",
)
"""What other launchers are recognised by, and their jobs."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One rank's place in its job, as its launcher tells it."""

    launcher: str
    """"ngd", "openmpi", "flux", "pmi", "pmix", "torchrun", "plain", "slurm" or "alone"."""
    rank: int
    size: int
    local_rank: int
    """My number among the ranks of my host. Where the launcher is silent, one host is assumed."""
    local_size: int
    job_key: str | None
    """Equal on all ranks of the job and on no rank of another; None where a rank is alone."""

    @property
    def one_host(self) -> bool:
        """Whether all ranks are on this host, by the launcher's account."""
        return self.local_size == self.size


def detect(environ: Environ | None = None) -> Launch:
    """Find this process's place, by the first launcher whose variables are set; alone if none is.

    Raises InitError that names the variable where one is missing, no number, or out of range; or
    where there are not as many ranks as NGD_EXPECT_SIZE says.
    """
    environ = os.environ if environ is None else environ
    found = told_by_launcher(environ)
    expect_size(found.size, found.launcher, environ)
    return found


def launched_rank_and_size() -> tuple[int, int]:
    """Return the launcher's rank and number of ranks for this process."""
    launch = detect()
    return launch.rank, launch.size


def told_by_launcher(environ: Environ) -> Launch:
    """The same, of however many ranks: for what only names this process."""
    places = (launcher(environ) for launcher in _LAUNCHERS)
    return next((place for place in places if place is not None), Launch("alone", 0, 1, 0, 1, None))


def expect_size(size: int, launcher: str, environ: Environ) -> None:
    """Refuse a job of another size than NGD_EXPECT_SIZE, where that is set."""
    if not environ.get("NGD_EXPECT_SIZE"):
        return
    count = _number(environ, "NGD_EXPECT_SIZE", least=1)
    if size != count:
        raise InitError(
            f"ngd.init: NGD_EXPECT_SIZE: expected {count} ranks; got {size} "
            f"({'no launcher' if launcher == 'alone' else launcher}). Check the launcher's number "
            "of ranks and list of hosts: run ngd doctor under the same launcher."
        )


def surroundings(environ: Environ) -> str:
    """Which job other launchers say that this is. A launcher inside a rank changes it."""
    found = {name: environ[name] for name in _RECOGNISED if name in environ}
    return hashlib.sha256(repr(found).encode(errors="surrogateescape")).hexdigest()[:16]


def address_of_launcher(pipe: int) -> str:
    """Where ranks say that they are about to end: a pipe of this process, for NGD_LAUNCHER.

    A pipe has no name that others could take, and the kernel opens it to processes of its own user
    only. They open it when they have something to say; the inode shows that it is still the same.
    """
    return f"/proc/{os.getpid()}/fd/{pipe} {os.fstat(pipe).st_ino}"


def tell_launcher(environ: Environ | None = None) -> None:
    """Let `ngd run` know that this rank is about to end, before its peers know."""
    environ = os.environ if environ is None else environ
    if "NGD_MEMBER" in environ or "RANK" in environ:
        say_to_launcher(environ.get("NGD_MEMBER") or environ["RANK"], environ)


def say_to_launcher(word: str, environ: Environ) -> bool:
    """Say a word to the `ngd run` that has started this process; False where nobody hears it."""
    path, _, inode = environ.get("NGD_LAUNCHER", "").partition(" ")
    of_another = environ.get("NGD_SURROUNDINGS") != surroundings(environ)
    if not path or of_another:
        return False
    with contextlib.suppress(OSError):
        found = os.stat(path)
        if not stat.S_ISFIFO(found.st_mode) or str(found.st_ino) != inode:
            return False
        pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.write(pipe, f"{word}\n".encode())
            return True
        finally:
            os.close(pipe)
    return False


def label_of(job_key: str | None) -> str:
    """What logs and metrics call a job: nobody learns the key from it. A rank alone: its pid's."""
    key = f"label/{job_key or f'alone:{os.getpid()}'}".encode(errors="surrogateescape")
    return hashlib.sha256(key).hexdigest()[:8]


def name_of_metrics(launch: Launch) -> str:
    """Where the ranks of a host meet for their metrics: an abstract socket, which is no file."""
    key = f"metrics/{launch.job_key or f'alone:{os.getpid()}'}".encode(errors="surrogateescape")
    return f"\0ngd-metrics-{hashlib.sha256(key).hexdigest()[:32]}"


def name_of_place(launch: Launch) -> str:
    """What a process is marked with that has this place in its job."""
    place = f"{launch.job_key}/{launch.rank}".encode(errors="surrogateescape")
    return f"ngd-rank-{hashlib.sha256(place).hexdigest()[:32]}"


def refuse_inherited_place(launch: Launch) -> None:
    """Raise InitError if an ancestor is the rank that the environment says that this process is."""
    mark, pid = name_of_place(launch).encode(), os.getppid()
    while pid > 0:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/maps", "rb") as maps:
            if mark in maps.read():
                raise InitError(
                    f"ngd.init: rank {launch.rank} is process {pid}, which is in the job already; "
                    "this process descends from it and has inherited its environment. A child of "
                    "a rank is no rank: let the rank itself make the call, or start a job of the "
                    "child's own (ngd run, or another NGD_JOB, RANK and WORLD_SIZE)"
                )
        pid = _parent(pid)


def _ngd(environ: Environ) -> Launch | None:
    if "NGD_JOB" not in environ:
        return None
    if environ.get("NGD_SURROUNDINGS") not in (None, surroundings(environ)):
        return None  # what `ngd run` has started started another launcher
    return _world(environ, "ngd", f"ngd:{environ['NGD_JOB']}")


def _openmpi(environ: Environ) -> Launch | None:
    rank_name = "OMPI_COMM_WORLD_RANK"
    if rank_name not in environ:
        return None
    namespace = environ.get("PMIX_NAMESPACE")
    return _launch(
        environ,
        "openmpi",
        f"pmix:{namespace}" if namespace else _launcher_process(environ, rank_name),
        rank_name,
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    )


def _flux(environ: Environ) -> Launch | None:
    """A task of `flux run`; it has PMI's variables as well, with the same numbers.

    How many tasks a node has is not told, only how many nodes there are: on several, the tasks are
    taken to be spread evenly.
    """
    if "FLUX_TASK_RANK" not in environ:
        return None
    if environ.get("PMI_SIZE") not in (None, environ.get("FLUX_JOB_SIZE")):
        return None  # a task of Flux started Hydra
    size = _number(environ, "FLUX_JOB_SIZE", least=1, because="FLUX_TASK_RANK")
    nodes = _number(environ, "FLUX_JOB_NNODES", least=1, because="FLUX_TASK_RANK")
    local_rank = _number(environ, "FLUX_TASK_LOCAL_ID", least=0, because="FLUX_TASK_RANK")
    most = max(1, size - nodes + 1)  # where every other node has one
    return _launch(
        environ,
        "flux",
        f"flux:{environ.get('FLUX_JOB_ID_PATH') or environ.get('FLUX_JOB_ID', '')}",
        "FLUX_TASK_RANK",
        "FLUX_JOB_SIZE",
        "FLUX_TASK_LOCAL_ID",
        min(max(-(-size // nodes), local_rank + 1), most),
    )


def _pmi(environ: Environ) -> Launch | None:
    """Hydra (MPICH, Intel MPI) and srun --mpi=pmi2.

    The job's name could be asked for over PMI_FD, but there is no way back from the first request:
    Hydra kills the other ranks, with exit code 0, when a rank that has spoken PMI exits without
    `finalize`; and after `finalize` it has closed the channel, so that a later MPI_Init of the same
    process aborts (seen with MPICH 5.0.2). Every rank of a host descends from one launcher process,
    though, and in mode MLSL a job is on one host.
    """
    if "PMI_RANK" not in environ:
        return None
    of_srun = "MPI_LOCALNRANKS" not in environ and all(
        environ.get(ours) == environ.get(slurms)
        for ours, slurms in (("PMI_RANK", "SLURM_PROCID"), ("PMI_SIZE", "SLURM_STEP_NUM_TASKS"))
    )
    return _launch(
        environ,
        "pmi",
        _launcher_process(environ, "PMI_RANK"),
        "PMI_RANK",
        "PMI_SIZE",
        "SLURM_LOCALID" if of_srun else "MPI_LOCALRANKID",
        _slurm_local_size(environ) if of_srun else "MPI_LOCALNRANKS",
    )


def _pmix(environ: Environ) -> Launch | None:
    """PMIx without Open MPI's variables: srun --mpi=pmix, whose step tells the size."""
    if "PMIX_RANK" not in environ:
        return None
    namespace = environ.get("PMIX_NAMESPACE")
    return _launch(
        environ,
        "pmix",
        f"pmix:{namespace}" if namespace else _launcher_process(environ, "PMIX_RANK"),
        "PMIX_RANK",
        "SLURM_STEP_NUM_TASKS",
        "SLURM_LOCALID",
        _slurm_local_size(environ),
    )


def _torchrun(environ: Environ) -> Launch | None:
    if "RANK" not in environ and "WORLD_SIZE" not in environ:
        return None
    if "MASTER_ADDR" not in environ and "MASTER_PORT" not in environ:
        return _world(environ, "plain", _launcher_process(environ, "RANK"))
    meeting_point = ("MASTER_ADDR", "MASTER_PORT")
    for name in meeting_point:
        if name not in environ:
            other = meeting_point[name == "MASTER_ADDR"]
            raise InitError(
                f"ngd.init: expected both {other} and {name}, or neither; got {other} only. Set "
                "both."
            )
    parts = (*meeting_point, "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")
    return _world(environ, "torchrun", ":".join(["torch", *(environ.get(p, "") for p in parts)]))


def _slurm(environ: Environ) -> Launch | None:
    """A task of srun. A shell of salloc or a batch script is none, whatever SLURM_NTASKS says."""
    step = environ.get("SLURM_STEP_ID", "")
    # Slurm numbers the interactive, the batch and the external step from the top of 32 bits.
    is_task = step.isdecimal() and int(step) < 0xFFFF_FFF0 and "SLURM_PROCID" in environ
    if not is_task:
        return None
    size_name = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environ else "SLURM_NTASKS"
    return _launch(
        environ,
        "slurm",
        f"slurm:{environ.get('SLURM_JOB_ID', '')}:{step}",
        "SLURM_PROCID",
        size_name,
        "SLURM_LOCALID",
        _slurm_local_size(environ),
    )


# The most specific first: Open MPI's ranks see PMIx's and, inside a job of Slurm, srun's as well;
# Flux's see PMI's.
_LAUNCHERS: Final[tuple[Callable[[Environ], Launch | None], ...]] = (
    _ngd,
    _openmpi,
    _flux,
    _pmi,
    _pmix,
    _torchrun,
    _slurm,
)


def _world(environ: Environ, launcher: str, job_key: str) -> Launch:
    """A launch by RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    return _launch(environ, launcher, job_key, *names)


def _launch(
    environ: Environ,
    launcher: str,
    job_key: str,
    rank_name: str,
    size_name: str,
    local_rank_name: str,
    local_size: str | int | None,
) -> Launch:
    """Read four variables; the local ones may be absent. A local size may be known already."""
    size = _number(environ, size_name, least=1, because=rank_name)
    rank = _number(environ, rank_name, least=0, because=size_name)
    if rank >= size:
        raise InitError(
            f"ngd.init: expected a rank below {size_name}={size}; got {rank_name}={rank}, which "
            "is not below it. Ranks count from 0."
        )
    if isinstance(local_size, str):
        known = local_size in environ
        local_size = _number(environ, local_size, least=1) if known else None
    if local_size is None:
        return Launch(launcher, rank, size, rank, size, job_key)
    if local_size > size:
        raise InitError(
            f"ngd.init: expected at most {size_name}={size} ranks on this host; got {local_size}. "
            "Set both as the launcher does."
        )
    local_rank = _number(environ, local_rank_name, least=0) if local_size > 1 else 0
    if local_rank >= local_size:
        raise InitError(
            f"ngd.init: expected a local rank below {local_size}, the number of ranks on this host "
            f"by {launcher}; got {local_rank_name}={local_rank}, which is not below it. "
            "Set both as the launcher does."
        )
    return Launch(launcher, rank, size, local_rank, local_size, job_key)


def _number(environ: Environ, name: str, least: int, because: str | None = None) -> int:
    text = environ.get(name)
    if text is None:
        hint = f" although {because} is" if because in environ else ""
        raise InitError(
            f"ngd.init: expected the variable {name}; got none: {name} is not set{hint}. Start the "
            "ranks with a launcher, or set both."
        )
    plain = text.isascii() and text.isdecimal() and len(text) <= 2 * len(str(MOST))
    if not plain or not least <= int(text) <= MOST:
        shown = text if len(text) < 40 else f"{text[:40]}..."
        raise InitError(
            f"ngd.init: expected a whole number from {least} to {MOST}; got {name}={shown!r}. "
            "Set it as the launcher does, or unset it."
        )
    return int(text)


def _slurm_local_size(environ: Environ) -> int | None:
    """The tasks on this node, from a list such as "4(x2),3": two nodes with 4 tasks, one with 3."""
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


def _launcher_process(environ: Environ, rank_name: str) -> str:
    """A job key for ranks of one host: the nearest ancestor that is none of this rank's wrappers.

    A wrapper (a shell, numactl, a profiler) was started with the rank in its environment as this
    process was; the launcher was not. A pid may be used again, but not with the same start time.
    """
    pid = os.getppid()
    while pid > 1 and _started_with(pid, rank_name) == environ.get(rank_name):
        pid = _parent(pid)
    namespace = os.readlink("/proc/self/ns/pid")
    return f"process:{namespace}:{pid}:{_start_time(pid)}"


def _started_with(pid: int, name: str) -> str | None:
    """The value of a variable in the environment that a process was started with, if we may see."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            entries = file.read().split(b"\0")
    except OSError:
        return None
    prefix = name.encode() + b"="
    return next((os.fsdecode(e[len(prefix) :]) for e in entries if e.startswith(prefix)), None)


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the command's name (proc(5): the third one is first)."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return ["?", "0", *["0"] * 18]


def _parent(pid: int) -> int:
    return int(_stat(pid)[1])


def _start_time(pid: int) -> str:
    return _stat(pid)[19]
