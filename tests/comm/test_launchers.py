# SPDX-License-Identifier: Apache-2.0
"""The launchers: every way in which ranks are started, and how their jobs end."""

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
    """MPICH's mpirun, by whichever name it has."""
    for name in ("mpiexec.hydra", "mpirun.mpich", "mpiexec.mpich"):
        path = shutil.which(name)
        if path is not None:
            return path
    return None


def place() -> list[int]:
    world = ngd.init()
    ranks = ngd.all_reduce(np.eye(world.size, dtype=np.int64)[world.rank], op="sum")
    assert ranks.tolist() == [1] * world.size
    return [world.rank, world.size, world.local_rank, world.local_size]


def check_places(outcomes: list[Outcome], ranks: int) -> None:
    assert [o.value for o in outcomes] == [[r, ranks, r, ranks] for r in range(ranks)]


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_launcher(launcher: str, ranks: int) -> None:
    check_places(run(place, ranks, launcher=launcher), ranks)


@pytest.mark.skipif(mpich() is None, reason="needs MPICH's mpirun (mpiexec.hydra)")
@pytest.mark.parametrize("ranks", [2, 3])
def test_mpich(ranks: int) -> None:
    check_places(run(place, ranks, launcher=[str(mpich()), "-n", str(ranks)]), ranks)


def test_alone() -> None:
    with Job(place, 1, start=[]) as job:
        job.start(0, {})
        check_places(job.wait(60), 1)


def test_torchruns_environment() -> None:
    """Ranks without a common parent: MASTER_ADDR and MASTER_PORT are what they share."""
    with Job(place, 2, start=[]) as job:
        for rank in range(2):
            env = harness.plain_environment(rank, 2)
            env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517"}
            job.start(rank, env, wrapper=["/bin/sh", "-c", '"$@"; exit $?', "sh"])
        check_places(job.wait(60), 2)


def test_slurms_environment() -> None:
    with Job(place, 2, start=[]) as job:
        for rank in range(2):
            env = {"SLURM_JOB_ID": "71", "SLURM_STEP_ID": "3", "SLURM_PROCID": str(rank)}
            env |= {"SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": str(rank)}
            env |= {"SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_NODEID": "0"}
            job.start(rank, env)
        check_places(job.wait(60), 2)


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


def refused() -> dict[str, Any]:
    return harness.caught(ngd.init)


@pytest.mark.parametrize("launcher", SEVERAL_HOSTS)
def test_hosts_that_ngd_cannot_reach_are_refused_with_the_cure(launcher: str) -> None:
    """In mode MLSL there is one host; in mode OMPI MPI has to know of the ranks."""
    reason = {
        "MLSL": "expected all ranks on one host, because mode MLSL has only shared memory; got 2 "
        f"ranks of {launcher} on several hosts, 1 on this one",
        "OMPI": f"{launcher} started 2 ranks, but MPI sees 1: {launcher} tells this MPI nothing of "
        "its ranks",
    }
    with Job(refused, 1, start=[]) as job:
        job.start(0, SEVERAL_HOSTS[launcher])
        (outcome,) = job.wait(60)
    assert outcome.value is not None, outcome
    assert outcome.value["error"] == "InitError"
    assert f"ngd.init: {reason[harness.MODE]}" in outcome.value["message"]
    assert "mpirun" in outcome.value["message"]


def test_fluxs_environment() -> None:
    with Job(place, 2, start=[]) as job:
        for rank in range(2):
            env = {"FLUX_JOB_ID": "97", "FLUX_JOB_SIZE": "2", "FLUX_JOB_NNODES": "1"}
            env |= {"FLUX_TASK_RANK": str(rank), "FLUX_TASK_LOCAL_ID": str(rank)}
            job.start(rank, env)
        check_places(job.wait(60), 2)


def mark(number: int) -> list[int]:
    """Many collectives, to overlap with another job's."""
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
        Job(mark, 2, arguments={"number": 1}, launcher=first) as one,
        Job(mark, 3, arguments={"number": 1000}, launcher=second) as other,
    ):
        assert [o.value for o in one.wait(60)] == [[2, 1]] * 2, one.said
        assert [o.value for o in other.wait(60)] == [[3, 1000]] * 3, other.said


def end_badly(how: str) -> None:
    """Rank 1 goes; rank 0 waits for it."""
    if how == "exit slowly" and os.environ["RANK"] == "1":
        atexit.register(time.sleep, 0.5)  # after ngd's own farewell
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


def stay() -> None:
    ngd.init()
    say("up")
    time.sleep(60)


@needs_mpirun
def test_a_killed_mpirun_leaves_nothing_that_another_stumbles_over() -> None:
    """Open MPI's folder is named after a process ID; who finds it there does not start."""
    with Job(stay, 2, launcher="mpirun") as job:
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
        # With mpirun the first rank to end decides: it may be the other one, which ends with 1.
        # MPICH's gives the number of the signal.
        codes = (code,) if launcher == "ngd run" else (code, code & 127, 1)
        assert job.launcher.returncode in codes, job.said


@pytest.mark.long
def test_the_first_to_leave_decides_though_another_ends_before() -> None:
    with Job(end_badly, 3, arguments={"how": "exit slowly"}, launcher="ngd run") as job:
        job.wait(20)
        assert job.launcher is not None
        assert job.launcher.returncode == 3, job.said
        assert "rank 1, which had left before, returned 3" in job.said


@pytest.mark.parametrize(("how", "words"), [("kill", "rank 1 (process "), ("raise", "broken")])
def test_ranks_of_ngd_run_say_what_they_saw(how: str, words: str) -> None:
    with Job(end_badly, 3, arguments={"how": how}, launcher="ngd run") as job:
        outcomes = job.wait(20)
        for rank in (0, 2):
            assert words in outcomes[rank].err, outcomes[rank]


def count_to(limit: int, folder: str) -> list[int]:
    """Adds up a step at a time, from its checkpoint; rank 1 dies in the middle of the first two."""
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
def test_a_job_that_is_started_again_resumes(tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "ngd.launch", "-n", "3", "--max-restarts", "4"]
    arguments = {"limit": 300, "folder": str(tmp_path)}
    outcomes = run(count_to, 3, arguments=arguments, launcher=launcher)
    restarts, begin, count = outcomes[0].value
    assert [o.value for o in outcomes] == [outcomes[0].value] * 3
    assert restarts == 2
    assert 198 <= begin <= 202
    assert count == 300


def sleep_on() -> None:
    ngd.init()
    ngd.barrier()
    say("up")
    time.sleep(60)


@pytest.mark.parametrize("launcher", ["ngd run", pytest.param("mpirun", marks=needs_mpirun)])
@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)]
)
def test_signal_to_the_launcher_ends_all(launcher: str, number: int) -> None:
    with Job(sleep_on, 3, launcher=launcher) as job:
        for rank in range(3):
            job.wait_for(rank, "up")
        assert job.launcher is not None
        job.launcher.send_signal(number)
        job.wait(20)
        assert job.launcher.returncode != 0


def test_kill_of_ngd_run_ends_its_ranks() -> None:
    with Job(sleep_on, 2, launcher="ngd run") as job:
        job.wait_for(0, "up")
        job.wait_for(1, "up")
        assert job.launcher is not None
        job.launcher.kill()
        job.wait(5)


@pytest.mark.long
@needs_mpirun
def test_example_under_mpirun_prints_one_report() -> None:
    """The command of the README, shortened."""
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
