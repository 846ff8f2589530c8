# SPDX-License-Identifier: Apache-2.0
"""Runs a function of a test file as the ranks of a job: real processes with a deadline.

    outcomes = harness.run(program, ranks=2, arguments={"count": 5})

Every rank imports the test's file and calls the function. Its return value, which must be JSON, is
`outcomes[rank].value`. A rank that raises ends as any script does. `Job` gives a test access to the
running processes, so that it can kill or stop them.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import ngd

MARKER = "NGD_TEST_JOB"
LAUNCHED = re.compile(
    r"(RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|(MASTER_|TORCHELASTIC_|OMPI_COMM_|PMIX?_|PRTE_"
    r"|MPI_LOCAL|SLURM_|FLUX_|PET_|NGD_).*)"
)
MPI_OWN = re.compile(r"(mpich_shm|sm_segment|vader_segment|ucx_shm|psm2|sem\.|open_?mpi)")
"""Files that MPI keeps in /dev/shm while it runs, and leaves after it was killed.

In TMPDIR it keeps a folder with the process ID of mpirun in its name. If an mpirun finds such a
folder of a killed one with the same process ID, it does not start. Therefore each job has its own
TMPDIR.
"""

EXAMPLES = Path(__file__).parents[2] / "examples"
OPEN_MPI_ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
}

MODE = ngd.build_info()["mode"]
MPIRUN = shutil.which("mpirun", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")

needs_ranks = pytest.mark.skipif(MODE == "OFF", reason="built with NGD_DISTRIBUTED_ENABLE=OFF")


def mpi_of_mpirun() -> str | None:
    """Return the MPI of the installed mpirun as NGD_MPI names it, or None."""
    if MPIRUN is None:
        return None
    version = subprocess.run([MPIRUN, "--version"], capture_output=True, text=True, timeout=30)
    return "openmpi" if "Open MPI" in version.stdout else "mpich"


MPI = mpi_of_mpirun()
HAS_OPEN_MPI = MPI == "openmpi"


needs_mpi = pytest.mark.skipif(
    MODE != "OMPI" or MPI not in (ngd.build_info()["mpi"] or "").split(),
    reason="needs mode OMPI and the mpirun of an MPI that it was built for",
)


def communicators() -> list[Any]:
    """Return the communicators of this build as parameters of a test."""
    return [pytest.param("shm", marks=needs_ranks), pytest.param("mpi", marks=needs_mpi)]


def worlds(*sizes: int) -> list[Any]:
    """Return pairs (communicator, ranks) as parameters of a test.

    The numbers of ranks are `sizes`, by default 1 to 4. MPI is by far the slowest, so it is tested
    with only one number: the smallest of `sizes`, or 3, the smallest number with a middle rank.
    """
    shm, mpi = communicators()
    pairs = [(shm, ranks) for ranks in sizes or (1, 2, 3, 4)] + [(mpi, min(sizes, default=3))]
    return [pytest.param(*c.values, ranks, marks=c.marks) for c, ranks in pairs]


@dataclass
class Outcome:
    """The end of a rank. `code` is None if only its launcher knows it."""

    rank: int
    code: int | None
    out: str
    err: str
    value: Any

    def __str__(self) -> str:
        summary = f"rank {self.rank} ended with {self.code} and returned {self.value!r}"
        return f"{summary}\n--- out\n{self.out}--- err\n{self.err}"


class Job:
    """Running ranks. At the end of the context, no process and no file of them remains."""

    def __init__(
        self,
        program: Callable[..., Any],
        ranks: int,
        *,
        arguments: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
        launcher: str | Sequence[str] = "plain",
        start: Sequence[int] | None = None,
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ngd-job-"))
        self.ranks = ranks
        self.marker = secrets.token_hex(8)
        self.shm_before = set(os.listdir("/dev/shm"))
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.launcher: subprocess.Popen[bytes] | None = None
        self.answers = True  # True if the job must leave no processes and files
        self.env = {k: v for k, v in os.environ.items() if not LAUNCHED.fullmatch(k)}
        self.env |= {
            MARKER: self.marker,
            "NGD_TIMEOUT": "60",
            "NGD_CHECK": "1",
            "OMP_NUM_THREADS": "1",
            "TMPDIR": str(self.folder),  # see MPI_OWN
            **OPEN_MPI_ENVIRONMENT,
            **(env or {}),
        }
        file = program.__globals__["__file__"]
        call = [file, program.__name__, json.dumps(arguments or {}), str(self.folder)]
        self.command = [sys.executable, __file__, *call]
        if launcher == "plain":
            for rank in range(ranks) if start is None else start:
                self.start(rank, plain_environment(rank, ranks))
        else:
            self.launcher = self._popen([*launcher_command(launcher, ranks), *self.command], {})

    def start(self, rank: int, env: Mapping[str, str], wrapper: Sequence[str] = ()) -> None:
        """Start one more rank. `env` has its number."""
        self.processes[rank] = self._popen([*wrapper, *self.command], env)

    def _popen(self, command: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        with (self.folder / "launcher.txt").open("ab") as output:
            return subprocess.Popen(
                command,
                env={**self.env, **env},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def read(self, rank: int, what: str) -> str:
        """Return the output of a rank so far. `what` is "out" or "err"."""
        path = self.folder / f"{rank}.{what}"
        return path.read_text(errors="replace") if path.exists() else ""

    def wait_for(self, rank: int, text: str, seconds: float = 60) -> None:
        """Wait until a rank has printed `text`."""
        limit = time.monotonic() + seconds
        while text not in self.read(rank, "out"):
            if time.monotonic() > limit:
                pytest.fail(f"rank {rank} has not said {text!r} in {seconds} s:\n{self.everything}")
            time.sleep(0.002)

    def kill(self, rank: int, number: int = signal.SIGKILL) -> None:
        """Send a signal to a rank. A dead rank remains a zombie."""
        os.kill(self.processes[rank].pid, number)

    def abandon(self) -> None:
        """Kill the launcher. Its ranks may continue until the context ends, as under mpirun."""
        assert self.launcher is not None
        self.launcher.kill()
        self.launcher.wait()
        self.answers = False

    def wait(self, seconds: float, ranks: Sequence[int] | None = None) -> list[Outcome]:
        """Wait until ranks (default: all) have ended, and then reap them. Fail at the deadline."""
        limit = time.monotonic() + seconds
        waited = self.processes if ranks is None else {r: self.processes[r] for r in ranks}
        pids = [p.pid for p in waited.values()] or [self._launcher_pid()]
        for pid in pids:
            while not has_ended(pid):
                if time.monotonic() > limit:
                    pytest.fail(f"the job did not end in {seconds} s:\n{self.everything}")
                time.sleep(0.002)
        if self.launcher is not None:
            self.launcher.wait()
        for process in waited.values():
            process.wait()
        return [self.outcome(rank) for rank in (waited or range(self.ranks))]

    def values(self, ranks: Sequence[int], seconds: float = 60) -> list[Any]:
        """Return the values of these ranks, before their launcher ends them."""
        limit = time.monotonic() + seconds
        while any(self.outcome(rank).value is None for rank in ranks):
            assert time.monotonic() < limit, self.everything
            time.sleep(0.02)
        return [self.outcome(rank).value for rank in ranks]

    def any_has_ended(self) -> bool:
        """Return if a rank, or the launcher, has ended."""
        pids = [p.pid for p in self.processes.values()] or [self._launcher_pid()]
        return any(has_ended(pid) for pid in pids)

    def _launcher_pid(self) -> int:
        assert self.launcher is not None
        return self.launcher.pid

    @property
    def said(self) -> str:
        """The output of the launcher."""
        return (self.folder / "launcher.txt").read_text(errors="replace")

    @property
    def everything(self) -> str:
        """The outcomes of all ranks, and the output of the launcher."""
        return "\n".join([*(str(self.outcome(r)) for r in range(self.ranks)), self.said])

    def outcome(self, rank: int) -> Outcome:
        """Return the outcome of a rank, which may still run."""
        process, value = self.processes.get(rank), self.folder / f"{rank}.json"
        return Outcome(
            rank,
            process.returncode if process is not None else None,
            self.read(rank, "out"),
            self.read(rank, "err"),
            json.loads(value.read_text()) if value.exists() else None,
        )

    def __enter__(self) -> Job:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        started = [*self.processes.values(), *([self.launcher] if self.launcher else [])]
        for process in started:
            if process.poll() is None:
                self.answers = False  # only a job that ends by itself must leave nothing
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        remaining = self._left(3 if self.answers else 0)
        for pid in remaining:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._left(10)  # a killed process may still write into the folder
        new = set(os.listdir("/dev/shm")) - self.shm_before
        shm = {file for file in new if not MPI_OWN.match(file)}
        shutil.rmtree(self.folder, ignore_errors=True)
        if kind is None and self.answers:
            assert not remaining, f"processes were left: {remaining}"
            assert not shm, f"files were left in /dev/shm: {shm}"

    def _left(self, seconds: float) -> list[int]:
        """Return the processes of the job that remain after `seconds`."""
        limit = time.monotonic() + seconds
        while (remaining := marked_processes(self.marker)) and time.monotonic() < limit:
            time.sleep(0.02)
        return remaining


def plain_environment(rank: int, ranks: int) -> dict[str, str]:
    """Return the environment that a shell loop would export."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(ranks),
    }


def launcher_command(launcher: str | Sequence[str], ranks: int) -> list[str]:
    """Return the command line of a launcher, to which the program's is added."""
    if launcher == "mpirun":
        assert MPIRUN is not None
        return [MPIRUN, *(["--oversubscribe"] if HAS_OPEN_MPI else []), "-np", str(ranks)]
    if launcher == "ngd run":
        return [sys.executable, "-m", "ngd.launch", "-n", str(ranks)]
    assert not isinstance(launcher, str), launcher
    return list(launcher)


def run(
    program: Callable[..., Any],
    ranks: int,
    *,
    arguments: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
    launcher: str | Sequence[str] = "plain",
    seconds: float = 120,
) -> list[Outcome]:
    """Run a job whose ranks must all succeed, and return their outcomes."""
    with Job(program, ranks, arguments=arguments, env=env, launcher=launcher) as job:
        outcomes = job.wait(seconds)
        good = job.launcher is None or job.launcher.returncode == 0
        good = good and all(o.code in (0, None) for o in outcomes)
        assert good, "\n".join([*map(str, outcomes), job.said])
        return outcomes


def over(communicator: str, ranks: int = 2, **how: Any) -> dict[str, Any]:
    """Return arguments of Job and run for "shm" in the plain environment, or "mpi" under mpirun."""
    name = communicator if ranks > 1 else "auto"
    env = {"NGD_COMM": name, **how.pop("env", {})}
    return {"launcher": "mpirun" if communicator == "mpi" else "plain", "env": env, **how}


def has_ended(pid: int) -> bool:
    """Return if a child is a zombie, without reaping it."""
    flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
    with contextlib.suppress(ChildProcessError):
        return os.waitid(os.P_PID, pid, flags) is not None
    return True


def marked_processes(marker: str) -> list[int]:
    """Return the live processes that have the marker of a job in their environment."""
    entry = f"{MARKER}={marker}".encode()
    return [pid for pid, environment in environments() if entry in environment.split(b"\0")]


def environments() -> Iterator[tuple[int, bytes]]:
    """Yield the environment of every process that is accessible. A zombie has none."""
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            with contextlib.suppress(OSError):
                yield int(entry), Path(f"/proc/{entry}/environ").read_bytes()


def say(text: str) -> None:
    """Print a line for Job.wait_for."""
    print(text, flush=True)


def hurried(seconds: float) -> ngd.Group:
    """Return a new world with this timeout. The first init() has the longer timeout of the job."""
    ngd.init()
    os.environ["NGD_TIMEOUT"] = str(seconds)
    ngd.shutdown()
    return ngd.init()


def caught(call: Callable[[], Any]) -> dict[str, Any]:
    """Return the class, the message and the ranks of the error that a call must raise."""
    try:
        result = call()
    except (ngd.errors.Error, ValueError, TypeError, NotImplementedError, MemoryError) as error:
        ranks = list(getattr(error, "ranks", ()))
        return {"error": type(error).__name__, "message": str(error), "ranks": ranks}
    raise AssertionError(f"no error, but {result!r}")


def own_rank() -> str:
    """Return the number of this rank, by its launcher."""
    names = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "FLUX_TASK_RANK", "SLURM_PROCID")
    return next((os.environ[n] for n in names if n in os.environ), "0")


def rank_main(file: str, name: str, arguments: str, folder: str) -> None:
    """Run the program of one rank."""
    rank = own_rank()
    for what, stream in (("out", sys.stdout), ("err", sys.stderr)):
        descriptor = os.open(f"{folder}/{rank}.{what}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(descriptor, stream.fileno())
        os.close(descriptor)
    sys.path[0] = str(Path(__file__).parents[2])  # not the folder of this file
    from tests.support.paths import import_file

    value = getattr(import_file(file), name)(**json.loads(arguments))
    partial = Path(folder, f"{rank}.part")
    partial.write_text(json.dumps(value))
    partial.rename(f"{folder}/{rank}.json")


if __name__ == "__main__":
    rank_main(*sys.argv[1:])
