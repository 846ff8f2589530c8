# SPDX-License-Identifier: Apache-2.0
"""Tests of every launcher: ranks and sizes, and how jobs end."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ngd
from tests.support import harness
from tests.support.harness import Job, Outcome, run, say

pytestmark = harness.needs_ranks

needs_mpirun = pytest.mark.skipif(not harness.HAS_OPEN_MPI, reason="needs Open MPI's mpirun")
LAUNCHERS = ["plain", "ngd run", pytest.param("mpirun", marks=needs_mpirun)]


def mpich() -> str | None:
    """Return the path of MPICH's mpirun, which has several names."""
    for name in ("mpiexec.hydra", "mpirun.mpich", "mpiexec.mpich"):
        path = shutil.which(name)
        if path is not None:
            return path
    return None


def rank_and_size() -> list[int]:
    world = ngd.init()
    ranks = ngd.all_reduce(np.eye(world.size, dtype=np.int64)[world.rank], op="sum")
    assert ranks.tolist() == [1] * world.size
    return [world.rank, world.size, world.local_rank, world.local_size]


def check_ranks_and_sizes(outcomes: list[Outcome], ranks: int) -> None:
    assert [o.value for o in outcomes] == [[r, ranks, r, ranks] for r in range(ranks)]


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_each_launcher_starts_the_ranks(launcher: str, ranks: int) -> None:
    check_ranks_and_sizes(run(rank_and_size, ranks, launcher=launcher), ranks)


@pytest.mark.skipif(mpich() is None, reason="needs MPICH's mpirun (mpiexec.hydra)")
@pytest.mark.parametrize("ranks", [2, 3])
def test_mpich_starts_the_ranks(ranks: int) -> None:
    check_ranks_and_sizes(
        run(rank_and_size, ranks, launcher=[str(mpich()), "-n", str(ranks)]), ranks
    )


def test_a_process_without_a_launcher_is_one_rank() -> None:
    with Job(rank_and_size, 1, start=[]) as job:
        job.start(0, {})
        check_ranks_and_sizes(job.wait(60), 1)


def test_the_environment_of_torchrun() -> None:
    """Ranks without a common parent share only MASTER_ADDR and MASTER_PORT."""
    with Job(rank_and_size, 2, start=[]) as job:
        for rank in range(2):
            env = harness.plain_environment(rank, 2)
            env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517"}
            job.start(rank, env, wrapper=["/bin/sh", "-c", '"$@"; exit $?', "sh"])
        check_ranks_and_sizes(job.wait(60), 2)


def test_the_environment_of_slurm() -> None:
    with Job(rank_and_size, 2, start=[]) as job:
        for rank in range(2):
            env = {"SLURM_JOB_ID": "71", "SLURM_STEP_ID": "3", "SLURM_PROCID": str(rank)}
            env |= {"SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": str(rank)}
            env |= {"SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_NODEID": "0"}
            job.start(rank, env)
        check_ranks_and_sizes(job.wait(60), 2)


SEVERAL_HOSTS = {
    "slurm": {
        "SLURM_JOB_ID": "71",
        "SLURM_STEP_ID": "3",
        "SLURM_PROCID": "0",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_LOCALID": "0",
        "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
        "SLURM_NODEID": "0",
    },
    "flux": {
        "FLUX_JOB_ID": "97",
        "FLUX_TASK_RANK": "0",
        "FLUX_TASK_LOCAL_ID": "0",
        "FLUX_JOB_SIZE": "2",
        "FLUX_JOB_NNODES": "2",
    },
    "torchrun": {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29518",
    },
}


def init_error() -> dict[str, Any]:
    return harness.caught(ngd.init)


@pytest.mark.parametrize("launcher", SEVERAL_HOSTS)
def test_unreachable_hosts_raise_with_a_fix(launcher: str) -> None:
    """Mode MLSL has one host. In mode OMPI, MPI must find all ranks."""
    reason = {
        "MLSL": "expected all ranks on one host, because mode MLSL has only shared memory; got 2 "
        f"ranks of {launcher} on several hosts, 1 on this one",
        "OMPI": f"{launcher} started 2 ranks, but MPI sees 1: {launcher} does not pass its ranks "
        "to this MPI",
    }
    with Job(init_error, 1, start=[]) as job:
        job.start(0, SEVERAL_HOSTS[launcher])
        (outcome,) = job.wait(60)
    assert outcome.value is not None, outcome
    assert outcome.value["error"] == "InitError"
    assert f"ngd.init: {reason[harness.MODE]}" in outcome.value["message"]
    assert "mpirun" in outcome.value["message"]


def test_the_environment_of_flux() -> None:
    with Job(rank_and_size, 2, start=[]) as job:
        for rank in range(2):
            env = {"FLUX_JOB_ID": "97", "FLUX_JOB_SIZE": "2", "FLUX_JOB_NNODES": "1"}
            env |= {"FLUX_TASK_RANK": str(rank), "FLUX_TASK_LOCAL_ID": str(rank)}
            job.start(rank, env)
        check_ranks_and_sizes(job.wait(60), 2)


def run_many_collectives(number: int) -> list[int]:
    """Run many collectives, to overlap with another job."""
    world = ngd.init()
    total = sum(int(ngd.all_reduce(number, op="sum")) for _ in range(2000))
    assert total == 2000 * world.size * number
    return [world.size, number]


@pytest.mark.long
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("ngd run", "ngd run"),
        ("plain", "ngd run"),
        pytest.param("mpirun", "mpirun", marks=needs_mpirun),
        pytest.param("plain", "mpirun", marks=needs_mpirun),
    ],
)
def test_two_jobs_at_once(first: str, second: str) -> None:
    with (
        Job(run_many_collectives, 2, arguments={"number": 1}, launcher=first) as one,
        Job(run_many_collectives, 3, arguments={"number": 1000}, launcher=second) as other,
    ):
        assert [o.value for o in one.wait(60)] == [[2, 1]] * 2, one.said
        assert [o.value for o in other.wait(60)] == [[3, 1000]] * 3, other.said


def end_badly(how: str) -> None:
    """End rank 1 while rank 0 waits for it."""
    if how == "exit slowly" and os.environ["RANK"] == "1":
        atexit.register(time.sleep, 0.5)  # after ngd has closed the world
    rank = ngd.init().rank
    ngd.barrier()
    say("up")
    if rank == 1:
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "raise":
            raise ValueError("broken")
        sys.exit(3)
    ngd.barrier()
    time.sleep(60)


def init_and_sleep() -> None:
    ngd.init()
    say("up")
    time.sleep(60)


@needs_mpirun
def test_a_killed_mpirun_does_not_prevent_the_next_start() -> None:
    """Open MPI names its folder after a process ID. An existing folder prevents a start."""
    with Job(init_and_sleep, 2, launcher="mpirun") as job:
        assert job.launcher is not None
        name = f"ompi.{job.launcher.pid}"
        job.wait_for(0, "up")
        assert (job.folder / name).exists()
        job.abandon()
    assert not (Path(tempfile.gettempdir()) / name).exists()
    assert not job.folder.exists()


@pytest.mark.parametrize(
    ("launcher", "communicator"),
    [
        ("ngd run", "auto"),
        pytest.param("mpirun", "auto", marks=needs_mpirun),
        pytest.param("mpirun", "mpi", marks=harness.communicators()[1].marks),
    ],
)
@pytest.mark.parametrize(("how", "code"), [("kill", 137), ("raise", 1), ("exit", 3)])
def test_launcher_ends_a_job_that_fails(
    launcher: str, communicator: str, how: str, code: int
) -> None:
    env = {"NGD_COMM": communicator}
    with Job(end_badly, 2, arguments={"how": how}, launcher=launcher, env=env) as job:
        job.wait_for(1, "up")
        since = time.monotonic()
        job.wait(20)
        assert job.launcher is not None
        assert time.monotonic() - since < 10
        # mpirun returns the code of the first rank that ends: that may be the other one, with 1.
        # MPICH's mpirun returns the number of the signal.
        codes = (code,) if launcher == "ngd run" else (code, code & 127, 1)
        assert job.launcher.returncode in codes, job.said


@pytest.mark.long
def test_the_first_rank_that_leaves_sets_the_exit_code() -> None:
    with Job(end_badly, 3, arguments={"how": "exit slowly"}, launcher="ngd run") as job:
        job.wait(20)
        assert job.launcher is not None
        assert job.launcher.returncode == 3, job.said
        assert "rank 1, which had ended before, returned 3" in job.said


@pytest.mark.parametrize(("how", "words"), [("kill", "rank 1 (process "), ("raise", "broken")])
def test_ranks_of_ngd_run_report_the_failure(how: str, words: str) -> None:
    with Job(end_badly, 3, arguments={"how": how}, launcher="ngd run") as job:
        outcomes = job.wait(20)
        for rank in (0, 2):
            assert words in outcomes[rank].err, outcomes[rank]


def count_to(limit: int, folder: str) -> list[int]:
    """Count up by one per step from a checkpoint. Rank 1 dies during the first two runs."""
    world = ngd.init()
    restarts = int(os.environ["NGD_RESTART_COUNT"])
    saved = Path(folder, "count")
    count = np.array(int(saved.read_text()) if saved.exists() else 0)
    ngd.broadcast(count, out=count)
    begin = int(count)
    while count < limit:
        if world.rank == 1 and count == begin + limit // 3 and restarts < 2:
            os.kill(os.getpid(), signal.SIGKILL)
        count += ngd.all_reduce(1, op="max")
        if world.rank == 0:
            saved.with_suffix(".part").write_text(str(count))
            saved.with_suffix(".part").rename(saved)
    return [restarts, begin, int(count)]


@pytest.mark.long
def test_a_restarted_job_resumes(tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "ngd.launch", "-n", "3", "--max-restarts", "4"]
    arguments = {"limit": 300, "folder": str(tmp_path)}
    outcomes = run(count_to, 3, arguments=arguments, launcher=launcher)
    restarts, begin, count = outcomes[0].value
    assert [o.value for o in outcomes] == [outcomes[0].value] * 3
    assert restarts == 2
    assert 198 <= begin <= 202
    assert count == 300


def join_and_sleep() -> None:
    ngd.init()
    ngd.barrier()
    say("up")
    time.sleep(60)


@pytest.mark.parametrize("launcher", ["ngd run", pytest.param("mpirun", marks=needs_mpirun)])
@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)]
)
def test_signal_to_the_launcher_ends_all(launcher: str, number: int) -> None:
    with Job(join_and_sleep, 3, launcher=launcher) as job:
        for rank in range(3):
            job.wait_for(rank, "up")
        assert job.launcher is not None
        job.launcher.send_signal(number)
        job.wait(20)
        assert job.launcher.returncode != 0


def test_kill_of_ngd_run_ends_its_ranks() -> None:
    with Job(join_and_sleep, 2, launcher="ngd run") as job:
        job.wait_for(0, "up")
        job.wait_for(1, "up")
        assert job.launcher is not None
        job.launcher.kill()
        job.wait(5)


@pytest.mark.long
@needs_mpirun
def test_example_under_mpirun_prints_one_report() -> None:
    """Run the command of the README with fewer epochs."""
    example = harness.EXAMPLES / "dist_mnist_mlp.py"
    env: dict[str, Any] = {k: v for k, v in os.environ.items() if not harness.LAUNCHED.fullmatch(k)}
    env |= harness.OPEN_MPI_ENVIRONMENT
    command = [*harness.launcher_command("mpirun", 2), sys.executable, str(example)]
    pytest.importorskip("sklearn")
    done = subprocess.run(
        [*command, "--epochs", "1"], env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(lines) == 1
    assert '"ranks": 2' in lines[0]
