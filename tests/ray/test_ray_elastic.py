# SPDX-License-Identifier: Apache-2.0
"""Horovod's elastic training between hosts, by Ray; the hosts are network namespaces."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import harness
import pytest
from hosts import Hosts, address, command, permitted

pytest.importorskip("ray", reason="Ray is not installed: .ci/clusters installs it")
pytest.importorskip("torch", reason="PyTorch is not installed: .ci/clusters installs it")

__all__ = ["permitted"]

HERE = Path(__file__).parent
DEADLINE = 240.0
COMMITS_EACH = 4
PORT = 6379

pytestmark = [pytest.mark.timeout(DEADLINE + 40), pytest.mark.usefixtures("permitted")]


class Cluster:
    """Ray on these hosts; the first one has the driver, and no place for ranks."""

    def __init__(self, hosts: Hosts, folder: Path) -> None:
        self.hosts, self.folder = hosts, folder
        self.started: list[subprocess.Popen[bytes]] = []
        kept = {k: v for k, v in os.environ.items() if not harness.LAUNCHED.fullmatch(k)}
        self.env = {**kept, "NGD_TIMEOUT": "30", "RAY_USAGE_STATS_ENABLED": "0"}
        self.env |= {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,sm,tcp"}
        self.env |= {"OMPI_MCA_mpi_yield_when_idle": "1", "PYTHONUNBUFFERED": "1"}
        head = ["--head", f"--port={PORT}", "--num-cpus=0", "--include-dashboard=false"]
        self.ray(0, *head)

    def start(self, host: int, *words: str) -> subprocess.Popen[bytes]:
        """Start a program on a host; what it prints is in the folder."""
        space = self.hosts.space(host)
        there = ["ip", "netns", "exec", space, "unshare", "--uts", "/bin/sh", "-c"]
        with open(self.folder / f"{Path(words[0]).name}-{host}", "wb") as log:
            process = subprocess.Popen(
                [*there, 'hostname "$0"; exec "$@"', space, *words],
                env=self.env,
                cwd=self.folder,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.started.append(process)
        return process

    def ray(self, host: int, *words: str) -> None:
        """Make a host one of the cluster's: one at a time, for they share /tmp."""
        ray = str(Path(sys.executable).with_name("ray"))
        own = [f"--node-ip-address={address(host)}", "--object-store-memory=100000000"]
        self.start(host, ray, "start", "--block", *own, *words)
        log, limit = self.folder / f"ray-{host}", time.monotonic() + DEADLINE / 3
        while "Ray runtime started" not in log.read_text():
            assert time.monotonic() < limit, log.read_text()
            time.sleep(0.1)

    def join(self, host: int, cpus: int = 2) -> None:
        """The same of another host."""
        self.ray(host, f"--address={address(0)}:{PORT}", f"--num-cpus={cpus}")

    def lose(self, host: int) -> None:
        """Kill all that runs on a host."""
        for pid in command("ip", "netns", "pids", self.hosts.space(host)).split():
            os.kill(int(pid), signal.SIGKILL)

    def run(self, options: dict[str, Any], *words: str) -> subprocess.Popen[bytes]:
        """Start a driver."""
        job = str(HERE / "elastic_job.py")
        given = [f"{address(0)}:{PORT}", json.dumps(options), *words]
        return self.start(0, sys.executable, job, *given)

    @property
    def log(self) -> str:
        """What the driver has printed, ranks' output with it."""
        return (self.folder / f"{Path(sys.executable).name}-0").read_text()

    @property
    def steps(self) -> list[dict[str, Any]]:
        """What elastic_training.py has written."""
        path = self.folder / "progress"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Ray on the first of four hosts."""
    made = None
    try:
        with Hosts(4) as hosts:  # what runs there is killed at its end
            made = Cluster(hosts, tmp_path)
            yield made
    finally:
        for process in made.started if made else ():
            process.wait(30)


def wait(cluster: Cluster, until: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
    """The steps, once they are as wanted."""
    limit = time.monotonic() + DEADLINE / 3
    while not until(cluster.steps):
        assert time.monotonic() < limit, f"{cluster.steps[-3:]}\n{cluster.log}"
        time.sleep(0.1)
    return cluster.steps


@pytest.mark.parametrize("leads", [True, False])
def test_training_goes_on_without_a_lost_host_and_with_a_new_one(
    cluster: Cluster, leads: bool
) -> None:
    cluster.join(1)
    cluster.join(2)
    options = {"ranks": 2, "max_restarts": 1, "min_hosts": 1}
    job = cluster.run(options, str(HERE / "elastic_training.py"), str(cluster.folder))
    first = wait(cluster, lambda steps: len(steps) > 2 * COMMITS_EACH)
    assert {line["size"] for line in first} == {4}
    leader = int(first[0]["host"].rpartition("-")[2])
    victim = leader if leads else 3 - leader
    cluster.lose(victim)
    lost = len(first := cluster.steps)
    second = wait(cluster, lambda steps: len(steps) > lost + 2 * COMMITS_EACH)[lost:]
    assert {line["size"] for line in second} == {2}
    assert {line["host"] for line in second} == {cluster.hosts.space(3 - victim)}
    cluster.join(3)
    wait(cluster, lambda steps: steps[-1]["size"] == 4)
    grown = next(i for i, line in enumerate(cluster.steps) if i > lost and line["size"] == 4)
    wait(cluster, lambda steps: len(steps) > grown + COMMITS_EACH)
    (cluster.folder / "enough").touch()
    assert job.wait(60) == 0, cluster.log
    steps = cluster.steps
    # A lost host takes with it what came after the newest commit that another one has.
    assert steps[lost]["step"] % COMMITS_EACH == 1
    assert 0 <= first[-1]["step"] - (steps[lost]["step"] - 1) < 2 * COMMITS_EACH
    # For a new host the ranks end at a commit, and nothing is lost.
    assert steps[grown]["step"] == steps[grown - 1]["step"] + 1
    assert steps[grown]["step"] % COMMITS_EACH == 1
    assert all(line["weight"] == -1.5 * line["step"] for line in steps)
    log = cluster.log
    for words in (
        "world 1: 4 ranks on",
        f"{address(victim)} is lost",
        "0 restarts are left",
        f"world 2: 2 ranks on ['{address(3 - victim)}']",
        f"['{address(3)}'] wait",
        "new hosts come in",
        "world 3: 4 ranks on",
    ):
        assert words in log
    assert log.count("the end") == 4 or "repeated" in log


def test_what_cannot_be_run_is_an_error(cluster: Cluster) -> None:
    cluster.join(1)
    fails = [sys.executable, "-c", "raise SystemExit(3)"]
    job = cluster.run({"ranks": 2, "max_restarts": 1}, *fails)
    assert job.wait(90) == 0, cluster.log
    assert "mpirun returned 3; 0 restarts are left" in cluster.log
    assert "WorkerError: ngd.ray.run_elastic: mpirun returned 3, and no restart is left" in (
        cluster.log
    )
    job = cluster.run({"ranks": 2, "min_hosts": 2, "deadline": 10}, *fails)
    assert job.wait(90) == 0, cluster.log
    assert "expected 2 hosts with 2 free CPUs; there are 1 in 10 s" in cluster.log
