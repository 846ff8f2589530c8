# SPDX-License-Identifier: Apache-2.0
"""Tests of the rank and size of a process, from fixed environments and from real launchers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import ngd.comm.launchers.detect
from ngd.comm.launchers.base import Launch
from ngd.comm.launchers.detect import detect
from ngd.errors import InitError

OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "prterun-host-17@1",
    "PMIX_RANK": "3",
}
TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "run",
    "TORCHELASTIC_RESTART_COUNT": "2",
}
SRUN = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "3",
    "SLURM_PROCID": "5",
    "SLURM_STEP_NUM_TASKS": "7",
    "SLURM_NTASKS": "9",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "2",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),3",
}
FLUX = {
    "FLUX_JOB_ID": "1234567890",
    "FLUX_TASK_RANK": "3",
    "FLUX_JOB_SIZE": "4",
    "FLUX_JOB_NNODES": "2",
    "FLUX_TASK_LOCAL_ID": "1",
    "PMI_FD": "9",
    "PMI_RANK": "3",
    "PMI_SIZE": "4",
}
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"}
PBS = {
    "PBS_JOBID": "71.head",
    "PBS_NODEFILE": "/var/spool/pbs/aux/71.head",
    "PBS_TASKNUM": "1",
    "PBS_NODENUM": "0",
}
NGD = {
    "NGD_JOB": "a0b1",
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
}


@pytest.mark.parametrize(
    ("environ", "launch"),
    [
        ({}, Launch("alone", 0, 1, 0, 1, None)),
        (NGD, Launch("ngd", 1, 2, 1, 2, "ngd:a0b1")),
        (OPENMPI, Launch("openmpi", 3, 4, 1, 2, "pmix:prterun-host-17@1")),
        (TORCHRUN, Launch("torchrun", 5, 8, 1, 4, "torch:10.0.0.1:29500:run:2")),
        (SRUN, Launch("slurm", 5, 7, 1, 3, "slurm:77:3")),
        (
            {**SRUN, "PMIX_RANK": "5", "PMIX_NAMESPACE": "slurm.pmix.77.3"},
            Launch("pmix", 5, 7, 1, 3, "pmix:slurm.pmix.77.3"),
        ),
        ({**SRUN, **OPENMPI}, Launch("openmpi", 3, 4, 1, 2, "pmix:prterun-host-17@1")),
        (FLUX, Launch("flux", 3, 4, 1, 2, "flux:1234567890")),
        ({**FLUX, "FLUX_JOB_ID_PATH": "/a/b"}, Launch("flux", 3, 4, 1, 2, "flux:/a/b")),
        (
            {**SRUN, **FLUX},
            Launch("flux", 3, 4, 1, 2, "flux:1234567890"),
        ),  # Flux inside a Slurm job
        ({**FLUX, **OPENMPI}, Launch("openmpi", 3, 4, 1, 2, "pmix:prterun-host-17@1")),
        ({**PBS, **OPENMPI}, Launch("openmpi", 3, 4, 1, 2, "pmix:prterun-host-17@1")),
        (PBS, Launch("alone", 0, 1, 0, 1, None)),  # a batch script
        ({**OPENMPI, **NGD}, Launch("ngd", 1, 2, 1, 2, "ngd:a0b1")),
    ],
)
def test_each_launcher_gives_rank_and_size(environ: dict[str, str], launch: Launch) -> None:
    assert detect(environ) == launch
    assert launch.one_host == (launch.local_size == launch.size)


@pytest.mark.parametrize(
    "environ",
    [
        {"SLURM_JOB_ID": "77", "SLURM_NTASKS": "4"},  # an salloc shell
        {"SLURM_JOB_ID": "77", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"},  # a batch script
        {**SRUN, "SLURM_STEP_ID": "4294967290"},  # salloc with an interactive step
        {
            **SRUN,
            "SLURM_STEP_ID": "4294967291",
        },  # a batch script with the step number of its batch step
    ],
)
def test_a_shell_inside_an_allocation_of_slurm_is_alone(environ: dict[str, str]) -> None:
    assert detect(environ).launcher == "alone"


@pytest.mark.parametrize(
    ("size", "nodes", "local_id", "local_size"),
    [(4, 1, 0, 4), (1, 1, 0, 1), (4, 2, 0, 2), (5, 2, 3, 4), (5, 3, 0, 2), (2, 2, 0, 1)],
)
def test_flux_gives_nodes_but_not_tasks_per_node(
    size: int, nodes: int, local_id: int, local_size: int
) -> None:
    numbers = {"FLUX_JOB_SIZE": size, "FLUX_JOB_NNODES": nodes, "FLUX_TASK_LOCAL_ID": local_id}
    numbers |= {"FLUX_TASK_RANK": local_id, "PMI_SIZE": size, "PMI_RANK": local_id}
    launch = detect({**FLUX, **{name: str(number) for name, number in numbers.items()}})
    assert (launch.local_rank, launch.local_size) == (local_id, local_size)
    assert launch.one_host == (nodes == 1)


def test_srun_with_pmi2_gives_the_tasks_per_node() -> None:
    """Hydra in a task of srun numbers its own ranks."""
    pmi = {"PMI_RANK": "5", "PMI_SIZE": "7", "PMI_FD": "9"}
    of_srun, of_hydra = detect({**SRUN, **pmi}), detect({**SRUN, **HYDRA})
    assert (of_srun.launcher, of_srun.local_rank, of_srun.local_size) == ("pmi", 1, 3)
    assert (of_hydra.rank, of_hydra.local_rank, of_hydra.local_size) == (1, 0, 1)


def test_hydra_in_a_flux_task_starts_a_new_job() -> None:
    launch = detect({**FLUX, **HYDRA})
    assert (launch.launcher, launch.rank, launch.size) == ("pmi", 1, 2)


@pytest.mark.parametrize("environ", [TORCHRUN, FLUX, PBS, {}])
def test_a_job_of_an_unexpected_size_raises(environ: dict[str, str]) -> None:
    size = detect(environ).size
    for text in ("", str(size)):
        assert detect({**environ, "NGD_EXPECT_SIZE": text}).size == size
    for other in (size + 1, 100):
        with pytest.raises(InitError, match=rf"NGD_EXPECT_SIZE: expected {other} ranks; got "):
            detect({**environ, "NGD_EXPECT_SIZE": str(other)})
    with pytest.raises(InitError, match=r"expected a whole number .*; got NGD_EXPECT_SIZE='many'"):
        detect({**environ, "NGD_EXPECT_SIZE": "many"})


def test_two_restarts_of_one_torchrun_are_two_jobs() -> None:
    again = {**TORCHRUN, "TORCHELASTIC_RESTART_COUNT": "3"}
    assert detect(TORCHRUN).job_key != detect(again).job_key


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2"),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, "RANK='-1'"),
        ({"RANK": "one", "WORLD_SIZE": "2"}, "RANK='one'"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "WORLD_SIZE='0'"),
        ({"RANK": "0", "WORLD_SIZE": "٢"}, "WORLD_SIZE"),
        ({"RANK": "0"}, "WORLD_SIZE"),
        ({"WORLD_SIZE": "2"}, "RANK"),
        ({"NGD_JOB": "a"}, "WORLD_SIZE"),
        ({**NGD, "LOCAL_RANK": "2"}, "LOCAL_RANK=2"),
        ({**NGD, "LOCAL_WORLD_SIZE": "3"}, "WORLD_SIZE=2"),
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": "many"}, "LOCAL_WORLD_SIZE='many'"),
        ({k: v for k, v in TORCHRUN.items() if k != "MASTER_PORT"}, "MASTER_PORT"),
        ({k: v for k, v in TORCHRUN.items() if k != "MASTER_ADDR"}, "MASTER_ADDR"),
        ({**OPENMPI, "OMPI_COMM_WORLD_SIZE": "x"}, "OMPI_COMM_WORLD_SIZE='x'"),
        ({"PMI_RANK": "0"}, "PMI_SIZE"),
        ({**FLUX, "FLUX_JOB_NNODES": "none"}, "FLUX_JOB_NNODES='none'"),
        ({**FLUX, "FLUX_TASK_LOCAL_ID": "3"}, "FLUX_TASK_LOCAL_ID=3"),
        ({"FLUX_TASK_RANK": "0"}, "FLUX_JOB_SIZE is not set although FLUX_TASK_RANK is"),
        ({"PMIX_RANK": "0"}, "SLURM_STEP_NUM_TASKS"),
        ({**SRUN, "SLURM_STEP_TASKS_PER_NODE": "2(x2"}, "SLURM_STEP_TASKS_PER_NODE"),
        ({**SRUN, "SLURM_STEP_TASKS_PER_NODE": "two"}, "SLURM_STEP_TASKS_PER_NODE"),
        ({**SRUN, "SLURM_PROCID": "7"}, "SLURM_PROCID=7"),
    ],
)
def test_a_bad_value_is_an_error_that_names_the_variable(
    environ: dict[str, str], named: str
) -> None:
    with pytest.raises(InitError, match=named.replace("'", ".")):
        detect(environ)


def test_a_missing_local_rank_in_the_real_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """os.environ raises TypeError for a key that is not a string, which a dict does not."""
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    for name, value in NGD.items():
        if name != "LOCAL_RANK":
            monkeypatch.setenv(name, value)
    with pytest.raises(InitError, match=r"LOCAL_RANK is not set\. .* or set it\.$"):
        detect()


# Runs even if ngd is not installed: it uses the Python files without the compiled part.
PRINT_LAUNCH = """
import importlib.util, json, sys, types
for name in "ngd", "ngd.comm":
    package = types.ModuleType(name)
    package.__path__ = [sys.argv[1] + name.removeprefix("ngd").replace(".", "/")]
    sys.modules[name] = package
from ngd.comm.launchers.detect import detect
line = json.dumps(detect()._asdict()) + "\\n"
sys.stdout.write(line)
sys.stdout.flush()
"""
PACKAGE = str(Path(ngd.comm.launchers.detect.__file__).parents[2])
CLEAN = {k: os.environ[k] for k in ("PATH", "HOME", "LD_LIBRARY_PATH") if k in os.environ} | {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}
RANK_PROGRAM = [sys.executable, "-c", PRINT_LAUNCH, PACKAGE]


def detect_under_launcher(
    command: list[str], environ: dict[str, str] | None = None
) -> list[Launch]:
    """Run a launcher, and return what each rank detected, by rank."""
    done = subprocess.run(
        command, env=CLEAN | (environ or {}), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    launches = [Launch(**json.loads(line)) for line in done.stdout.splitlines()]
    return sorted(launches, key=lambda launch: launch.rank)


def check_job(launches: list[Launch], launcher: str, size: int) -> str:
    """Check that all ranks are in one job on one host, and return its key."""
    assert [launch.rank for launch in launches] == list(range(size))
    assert sorted(launch.local_rank for launch in launches) == list(range(size))
    assert {(f.launcher, f.size, f.local_size) for f in launches} == {(launcher, size, size)}
    (key,) = {launch.job_key for launch in launches}
    assert key
    return key


def mpirun(*library: str) -> str:
    """Return the mpirun whose version names one of these libraries.

    It is searched in this environment and then on the PATH.
    """
    own_mpirun = Path(sys.executable).with_name("mpirun")
    names = ("mpirun", "mpirun.openmpi", "mpirun.mpich", "mpiexec.hydra")
    candidates = [str(own_mpirun), *map(shutil.which, names)]
    for path in candidates:
        if path and os.path.exists(path):
            version = subprocess.run(
                [path, "--version"], env=CLEAN, capture_output=True, text=True, timeout=60
            )
            if any(name in version.stdout + version.stderr for name in library):
                return path
    pytest.skip(f"no mpirun of {library[0]} in this environment or on the PATH")


def test_under_mpirun_of_open_mpi() -> None:
    command = [mpirun("Open MPI", "OpenRTE"), "--oversubscribe", "-np", "3", *RANK_PROGRAM]
    keys = [check_job(detect_under_launcher(command), "openmpi", 3) for _ in range(2)]
    assert keys[0] != keys[1]


@pytest.mark.parametrize("wrapper", [[], ["sh", "-c", '"$@"; exit $?', "sh"]])
def test_under_mpirun_of_mpich(wrapper: list[str]) -> None:
    command = [mpirun("HYDRA", "mpich"), "-np", "3", *wrapper, *RANK_PROGRAM]
    keys = [check_job(detect_under_launcher(command), "pmi", 3) for _ in range(2)]
    assert keys[0] != keys[1]


@pytest.mark.parametrize("wrapper", [[], ["sh", "-c", '"$@"; exit $?', "sh"]])
def test_plain_ranks_are_identified_by_their_parent_process(wrapper: list[str]) -> None:
    script = 'for r in 0 1 2; do RANK=$r WORLD_SIZE=3 "$@" & done; wait'
    command = ["sh", "-c", script, "sh", *wrapper, *RANK_PROGRAM]
    keys = [check_job(detect_under_launcher(command), "plain", 3) for _ in range(2)]
    assert keys[0] != keys[1]


def test_a_process_without_a_launcher_is_alone() -> None:
    (launch,) = detect_under_launcher(RANK_PROGRAM)
    assert launch == Launch("alone", 0, 1, 0, 1, None)
