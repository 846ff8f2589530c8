# SPDX-License-Identifier: Apache-2.0
"""Tests of Slurm jobs by the scripts of examples/cluster/slurm, on a controller and two nodes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ngd import train
from tests.clusters import training
from tests.clusters.slurm_cluster import Cluster, needs_slurm
from tests.support import harness
from tests.train import lines

pytestmark = [needs_slurm, harness.needs_ranks]

SCRIPTS = harness.EXAMPLES / "cluster" / "slurm"
PROGRAM = (sys.executable, training.__file__)
AS_HOSTS = ("sh", "-c", 'NGD_HOST=$SLURMD_NODENAME exec "$@"', "sh")
"""A command that makes two hosts of the two nodes, which are one machine."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("slurm")) as started:
        yield started


@pytest.fixture(scope="module")
def uninterrupted(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The log of four ranks that run without interruption. Its losses are those of NumPy."""
    folder = tmp_path_factory.mktemp("undisturbed")
    done = cluster.call("srun", "-N1", "-n4", *PROGRAM, str(folder))
    assert reports(done.stdout)[0]["world"] == [4, 4, "shm"]
    check_losses(folder)
    return log_of(folder)


def log_of(folder: Path) -> str:
    return (folder / "log" / train.LOG).read_text()


def check_losses(folder: Path) -> None:
    """Check the loss of each step with NumPy."""
    reports = [json.loads(line) for line in log_of(folder).splitlines()]
    losses = [line["training_loss"] for line in reports if "training_loss" in line]
    np.testing.assert_allclose(losses, lines.by_hand(training.EPOCHS)[1], rtol=1e-9)


def reports(output: str) -> list[dict[str, Any]]:
    """Return the report of rank 0 at the end of each run of a job."""
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def test_four_ranks_train_on_one_host(uninterrupted: str) -> None:
    assert len(uninterrupted.splitlines()) == 6 * training.EPOCHS


@pytest.mark.parametrize("launcher", ["none", "pmi2"])
def test_two_hosts_raise_in_mode_mlsl(cluster: Cluster, tmp_path: Path, launcher: str) -> None:
    if harness.MODE != "MLSL":
        pytest.skip(f"this build is of mode {harness.MODE}")
    options = ["-N2", "-n4", "--ntasks-per-node=2", f"--mpi={launcher}"]
    done = cluster.call("srun", *options, *PROGRAM, str(tmp_path), code=1)
    name = {"none": "slurm", "pmi2": "pmi"}[launcher]
    for words in (
        f"got 4 ranks of {name} on several hosts, 2 on this one",
        "mode MLSL",
        "srun -N1",
        "NGD_DISTRIBUTED_ENABLE=OMPI",
    ):
        assert done.stderr.count(words) == 4, done.stderr


def test_pmi2_trains_on_one_host(cluster: Cluster, uninterrupted: str, tmp_path: Path) -> None:
    cluster.call("srun", "-N1", "-n4", "--mpi=pmi2", *PROGRAM, str(tmp_path))
    assert log_of(tmp_path) == uninterrupted


def test_a_job_saves_and_is_requeued_at_its_time_limit(
    cluster: Cluster, uninterrupted: str, tmp_path: Path
) -> None:
    """Slurm counts limits in minutes, and checks every 30 s which signals are due."""
    limit = ["--time=1", "--signal=TERM@25"]
    script = str(SCRIPTS / "one_host.sbatch")
    job = cluster.submit(*limit, script, *PROGRAM, str(tmp_path), "slow")
    check_resumed(cluster, job, uninterrupted, tmp_path, "SIGTERM")


def check_resumed(
    cluster: Cluster, job: str, uninterrupted: str, folder: Path, name: str
) -> list[dict[str, Any]]:
    """Check that a job was stopped once, resumed, and took the steps of an uninterrupted job."""
    fields = cluster.wait_for(job)
    assert (fields["JobState"], fields["Restarts"]) == ("COMPLETED", "1"), cluster.output(job)
    first, second = reports(cluster.output(job))
    assert (first["stopped"], second["stopped"]) == (name, None)
    assert 0 < first["done"] == second["began"] < second["done"] == 5 * training.EPOCHS
    assert log_of(folder) == uninterrupted
    return [first, second]


def test_a_job_of_higher_priority_requeues_it(
    cluster: Cluster, uninterrupted: str, tmp_path: Path
) -> None:
    script = str(SCRIPTS / "one_host.sbatch")
    job = cluster.submit("--time=10", script, *PROGRAM, str(tmp_path), "slow")
    run_urgent_job(cluster, job)
    check_resumed(cluster, job, uninterrupted, tmp_path, "SIGTERM")


def run_urgent_job(cluster: Cluster, job: str) -> None:
    """Wait until a job trains, and then run another job on all nodes."""
    cluster.wait_until(lambda: "it trains" in cluster.output(job), "it trains", 60)
    urgent = ["--partition=urgent", "-N2", "--exclusive", "hostname"]
    cluster.call("srun", *urgent, seconds=60)


@harness.needs_mpi
@pytest.mark.parametrize("why", ["limit", "priority"])
def test_two_hosts_train_by_open_mpi(cluster: Cluster, tmp_path: Path, why: str) -> None:
    """The signal passes through mpirun, at the time limit or when another job has priority."""
    script = str(SCRIPTS / "open_mpi.sbatch")
    limit = ["--time=1", "--signal=B:USR1@25"] if why == "limit" else ["--time=10"]
    job = cluster.submit(*limit, script, *AS_HOSTS, *PROGRAM, str(tmp_path), "slow")
    if why == "priority":
        run_urgent_job(cluster, job)
    fields = cluster.wait_for(job)
    assert (fields["JobState"], fields["Restarts"]) == ("COMPLETED", "1"), cluster.output(job)
    first, second = reports(cluster.output(job))
    assert (first["stopped"], second["stopped"]) == ("SIGUSR1", None)
    assert first["world"] == second["world"] == [4, 2, "hierarchical"]
    check_losses(tmp_path)


@pytest.mark.skipif(
    "MPICH" not in os.environ.get("NGD_MPI", "").upper(), reason="needs NGD_MPI to name an MPICH"
)
def test_two_hosts_train_by_mpich(cluster: Cluster, tmp_path: Path) -> None:
    job = cluster.submit(str(SCRIPTS / "mpich.sbatch"), *AS_HOSTS, *PROGRAM, str(tmp_path))
    assert cluster.wait_for(job)["JobState"] == "COMPLETED", cluster.output(job)
    assert reports(cluster.output(job))[0]["world"] == [4, 2, "hierarchical"]
    check_losses(tmp_path)
