# SPDX-License-Identifier: Apache-2.0
"""Tests of Horovod's elastic training on several hosts by Ray. The hosts are network namespaces."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.support import harness
from tests.support.hosts import Hosts, address, command, permitted

ray = pytest.importorskip("ray", reason="Ray is not installed: .ci/clusters installs it")
pytest.importorskip("torch", reason="PyTorch is not installed: .ci/clusters installs it")

from ngd.errors import WorkerError  # noqa: E402
from ngd.ray import elastic, guard, run_elastic  # noqa: E402

__all__ = ["permitted"]

HERE = Path(__file__).parent
DEADLINE = 240.0
COMMITS_EACH = 4
PORT = 6379

pytestmark = [pytest.mark.timeout(DEADLINE + 40), pytest.mark.usefixtures("permitted")]


class Cluster:
    """Ray on these hosts. The first host has the driver, and cannot run ranks."""

    def __init__(self, hosts: Hosts, folder: Path) -> None:
        self.hosts, self.folder = hosts, folder
        self.started: list[subprocess.Popen[bytes]] = []
        inherited = {k: v for k, v in os.environ.items() if not harness.LAUNCHED.fullmatch(k)}
        self.env = {**inherited, "NGD_TIMEOUT": "30", "RAY_USAGE_STATS_ENABLED": "0"}
        self.env |= {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,sm,tcp"}
        self.env |= {"OMPI_MCA_mpi_yield_when_idle": "1", "PYTHONUNBUFFERED": "1"}
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self.before = open_mpi_files()
        head = ["--head", f"--port={PORT}", "--num-cpus=0", "--include-dashboard=false"]
        self.ray(0, *head)

    def start(self, host: int, *words: str) -> subprocess.Popen[bytes]:
        """Start a program on a host. A file in the folder gets its output."""
        space = self.hosts.space(host)
        inside_host = ["ip", "netns", "exec", space, "unshare", "--uts", "/bin/sh", "-c"]
        with open(self.folder / f"{Path(words[0]).name}-{host}", "wb") as log:
            process = subprocess.Popen(
                [*inside_host, 'hostname "$0"; exec "$@"', space, *words],
                env=self.env,
                cwd=self.folder,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.started.append(process)
        return process

    def ray(self, host: int, *words: str) -> None:
        """Start a node of the cluster on a host. One at a time, because the hosts share /tmp."""
        ray = str(Path(sys.executable).with_name("ray"))
        own = [f"--node-ip-address={address(host)}", "--object-store-memory=100000000"]
        self.start(host, ray, "start", "--block", *own, *words)
        log, limit = self.folder / f"ray-{host}", time.monotonic() + DEADLINE / 3
        while "Ray runtime started" not in log.read_text():
            assert time.monotonic() < limit, log.read_text()
            time.sleep(0.1)

    def join(self, host: int, cpus: int = 2) -> None:
        """Start a node on another host."""
        self.ray(host, f"--address={address(0)}:{PORT}", f"--num-cpus={cpus}")

    def lose(self, host: int) -> None:
        """Kill all processes of a host."""
        for pid in command("ip", "netns", "pids", self.hosts.space(host)).split():
            os.kill(int(pid), signal.SIGKILL)

    def run(self, options: dict[str, Any], *words: str) -> subprocess.Popen[bytes]:
        """Start a driver."""
        job = str(HERE / "elastic_job.py")
        options = {**options, "environment": {"TMPDIR": str(self.temporary)}}
        arguments = [f"{address(0)}:{PORT}", json.dumps(options), *words]
        return self.start(0, sys.executable, job, *arguments)

    def find(self, word: str, host: int | None = None) -> list[int]:
        """Return the process IDs of ranks or mpirun whose command line contains a word."""
        pids_of_host = (
            None if host is None else command("ip", "netns", "pids", self.hosts.space(host))
        )
        pids = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                line, pid = path.read_text(errors="replace"), path.parent.name
                is_of_this_job = str(self.temporary) in line or str(self.folder) in line
                if word in line and (
                    is_of_this_job if pids_of_host is None else pid in pids_of_host.split()
                ):
                    pids.append(int(pid))
        return pids

    def left(self, lost: int) -> list[Any]:
        """Return the files and processes that a job left. Guards of `lost` hosts are lost, too."""
        folders = sorted(self.temporary.iterdir())
        files = sorted(open_mpi_files() - self.before)
        return [*(folders if len(folders) > lost else ()), *files, *self.find("elastic_training")]

    @property
    def log(self) -> str:
        """The output of the driver, which includes the output of the ranks."""
        return (self.folder / f"{Path(sys.executable).name}-0").read_text()

    @property
    def steps(self) -> list[dict[str, Any]]:
        """The lines that elastic_training.py has written."""
        path = self.folder / "progress"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def open_mpi_files() -> set[Path]:
    """Return the files that Open MPI may leave in folders that all hosts share."""
    return {*Path("/tmp").glob("ompi.*"), *Path("/dev/shm").glob("sm_segment.*")}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Start Ray on the first of four hosts."""
    cluster_on_hosts = None
    try:
        with Hosts(4) as hosts:  # kills the processes of the hosts at its end
            cluster_on_hosts = Cluster(hosts, tmp_path)
            yield cluster_on_hosts
    finally:
        for process in cluster_on_hosts.started if cluster_on_hosts else ():
            process.wait(30)


def wait(cluster: Cluster, until: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
    """Wait until the steps satisfy a condition, and return them."""
    limit = time.monotonic() + DEADLINE / 3
    while not until(cluster.steps):
        assert time.monotonic() < limit, f"{cluster.steps[-3:]}\n{cluster.log}"
        time.sleep(0.1)
    return cluster.steps


@pytest.mark.parametrize("leads", [True, False])
def test_training_continues_after_a_host_leaves_or_joins(cluster: Cluster, leads: bool) -> None:
    cluster.join(1)
    cluster.join(2)
    options = {"ranks": 2, "max_restarts": 2, "min_hosts": 1}
    training = [str(HERE / "elastic_training.py"), str(cluster.folder)]
    job = cluster.run(options, *training, "2")  # the third world makes no commit
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
    if leads:
        cluster.lose(3 - victim)
        again = len(cluster.steps)
        wait(cluster, lambda steps: len(steps) > again)
    (cluster.folder / "enough").touch()
    assert job.wait(60) == 0, cluster.log
    steps = cluster.steps
    # A lost host loses the steps after the newest commit that another host has.
    assert steps[lost]["step"] % COMMITS_EACH == 1
    assert 0 <= first[-1]["step"] - (steps[lost]["step"] - 1) < 2 * COMMITS_EACH
    # The ranks stop at a commit to let a new host join, so no step is lost.
    assert steps[grown]["step"] == steps[grown - 1]["step"] + 1
    assert steps[grown]["step"] % COMMITS_EACH == 1
    if leads:  # it has this commit from its start, and continues alone
        assert steps[again] == {**steps[grown], "size": 2, "host": cluster.hosts.space(3)}
        assert f"world 4: 2 ranks on ['{address(3)}']" in cluster.log
    assert all(line["weight"] == -1.5 * line["step"] for line in steps)
    log = cluster.log
    for words in (
        "world 1: 4 ranks on",
        f"{address(victim)} is lost",
        "1 restarts are left",
        f"world 2: 2 ranks on ['{address(3 - victim)}']",
        f"['{address(3)}'] wait",
        "new hosts join",
        "world 3: 4 ranks on",
    ):
        assert words in log
    assert "the end" in log
    ends = (cluster.folder / "ends").read_text().split()
    assert sorted(ends) == (["0", "1"] if leads else ["0", "1", "2", "3"])
    assert cluster.left(lost=2 if leads else 1) == []


def test_killed_processes_lose_no_commit_and_leave_no_files(cluster: Cluster) -> None:
    cluster.join(1)
    cluster.join(2)
    training = [str(HERE / "elastic_training.py"), str(cluster.folder)]
    job = cluster.run({"ranks": 1, "max_restarts": 2}, *training)
    first = wait(cluster, lambda steps: len(steps) > COMMITS_EACH)
    leader = int(first[0]["host"].rpartition("-")[2])
    # mpirun returns 0 if its replacement of ssh dies.
    (agent,) = cluster.find("ray/daemon.py", leader)
    os.kill(agent, signal.SIGKILL)
    wait(cluster, lambda _: "world 2: 2 ranks on" in cluster.log)
    ended = len(cluster.steps)
    wait(cluster, lambda steps: len(steps) > ended + COMMITS_EACH)
    os.kill(cluster.find("elastic_training", leader)[-1], signal.SIGKILL)
    wait(cluster, lambda _: "world 3: 2 ranks on" in cluster.log)
    failed = len(cluster.steps)
    steps = wait(cluster, lambda steps: len(steps) > failed + COMMITS_EACH)
    for begin in (ended, failed):
        assert steps[begin]["step"] % COMMITS_EACH == 1
        assert steps[begin]["step"] > COMMITS_EACH
    job.kill()
    limit = time.monotonic() + 20
    while (remaining := cluster.left(lost=0)) and time.monotonic() < limit:
        time.sleep(0.1)
    assert remaining == []


def test_a_job_that_cannot_run_raises(cluster: Cluster) -> None:
    cluster.join(1)
    fails = [sys.executable, "-c", "raise SystemExit(3)"]
    job = cluster.run({"ranks": 2, "max_restarts": 1}, *fails)
    assert job.wait(90) == 0, cluster.log
    assert "mpirun returned 3; 0 restarts are left" in cluster.log
    assert "expected a job without failures; got mpirun returned 3, and no restart" in cluster.log
    job = cluster.run({"ranks": 1, "cpus": 2, "min_hosts": 2, "deadline": 10}, *fails)
    assert job.wait(90) == 0, cluster.log
    assert "expected 2 hosts with 2 free CPUs; got 1 in 10 s" in cluster.log
    assert cluster.left(lost=0) == []


@pytest.mark.parametrize(
    ("command", "how", "error", "words"),
    [
        ("train.py", {}, TypeError, "command: expected a list of strings; got 'train.py'"),
        ([], {}, ValueError, "command: expected a program"),
        (["x"], {"environment": {"X": 1}}, TypeError, "environment: expected strings; got 'X': 1"),
        (
            ["x"],
            {"environment": {"NGD_ELASTIC_DIR": "/x"}},
            ValueError,
            "other variables than NGD_ELASTIC_DIR",
        ),
        (["x"], {"deadline": float("nan")}, ValueError, "deadline > 0; got .* nan$"),
        (["x"], {"deadline": 0.0}, ValueError, "deadline > 0"),
        (["x"], {"cpus": 0}, ValueError, "ranks, cpus >= 1"),
    ],
)
def test_bad_arguments_raise(
    command: Any, how: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        run_elastic(command, ranks=1, **how)


STARTS_OTHERS = ["/bin/sh", "-c", "while :; do sleep 600 & sleep 0.01; done"]


def test_a_host_ends_all_processes_of_a_world(tmp_path: Path) -> None:
    host = elastic.Host(str(tmp_path), {"TMPDIR": str(tmp_path)}, ranks=1, cpus=3)
    host.begin()
    assert host.environment["NGD_THREADS"] == host.environment["OMP_NUM_THREADS"] == "3"
    codes: list[int] = []
    running = threading.Thread(target=lambda: codes.append(host.run(1, STARTS_OTHERS)))
    running.start()
    limit = time.monotonic() + 20
    while not host.running or len(guard.processes(host.running[0].pid)) < 20:
        assert time.monotonic() < limit
        time.sleep(0.01)
    session = host.running[0].pid
    assert host.end_world(1) == (False, False)
    running.join(20)
    assert codes == [-signal.SIGKILL]
    assert guard.processes(session) == []
    with pytest.raises(WorkerError, match="got world 1, which has ended"):
        host.run(1, ["true"])
    mark = ["/bin/sh", "-c", elastic.RANK, "rank", "true"]
    assert host.run(2, mark, {"OMPI_COMM_WORLD_RANK": "5"}) == 0
    assert host.has_started()
    assert host.end_world(2) == (True, False)
    assert not host.has_started()
    host.close()
    assert list(tmp_path.iterdir()) == []


KILLS_ITSELF = f"""
import os, signal, sys, threading, time
from ngd.ray import elastic
host = elastic.Host(sys.argv[1], {{"TMPDIR": sys.argv[1]}}, 1, 1)
host.begin()
threading.Thread(target=lambda: host.run(1, {STARTS_OTHERS})).start()
time.sleep(0.5)
assert os.path.exists(host.folder)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_guard_cleans_up_after_a_killed_actor(tmp_path: Path) -> None:
    marker = secrets.token_hex(8)
    line = [sys.executable, "-c", KILLS_ITSELF, str(tmp_path)]
    done = subprocess.run(line, env={**os.environ, harness.MARKER: marker}, timeout=60)
    assert done.returncode == -signal.SIGKILL
    limit = time.monotonic() + 20
    while (remaining := harness.marked_processes(marker)) and time.monotonic() < limit:
        time.sleep(0.05)
    assert remaining == []
    assert list(tmp_path.iterdir()) == []


class FakeRay:
    """A replacement of the module `ray`. A reference is its result, or an exception to raise."""

    exceptions = ray.exceptions

    def __init__(self) -> None:
        self.alive: dict[str, str] = {}
        self.remote = mock.MagicMock()
        self.kill = mock.MagicMock()
        self.get_runtime_context = mock.MagicMock()

    def get(self, answer: Any, timeout: float) -> Any:
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def wait(self, answers: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        return [], answers

    def nodes(self) -> list[dict[str, Any]]:
        properties = {"Alive": True, "Resources": {"CPU": 8.0}}
        return [{"NodeID": n, "NodeManagerAddress": a, **properties} for n, a in self.alive.items()]


@pytest.fixture
def fake_ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    fake = FakeRay()
    monkeypatch.setattr(elastic, "ray", fake)
    return fake


NODE, AGAIN = "cd" * 28, "ab" * 28
"""Identifiers of nodes, in the form that Ray has."""
MPIRUN = "/x/mpirun, mpirun (Open MPI) 5.0.8"


def job_of(deadline: float = 60.0) -> tuple[Any, Any]:
    """Return a job with one host that is ready."""
    job = elastic._Job(["x"], (1, 1), (1, sys.maxsize), {}, deadline)
    place = elastic.HostRecord(NODE, "10.0.0.1", mock.MagicMock(), "host 0", None, ("a", MPIRUN))
    job.hosts[NODE] = place
    return job, place


@pytest.mark.parametrize(
    ("begun", "words"),
    [
        (("a", MPIRUN), "10.0.0.1 has the same host name, a"),
        (("b", "/y"), f"expected {MPIRUN}, as 10.0.0.1 has; it has /y"),
        (ray.exceptions.RayTaskError("begin", "", WorkerError("no directory")), "no directory"),
        (ray.exceptions.RayTaskError("begin", "", OSError("disk full")), "disk full"),
    ],
)
def test_an_unusable_host_raises_first_and_is_ignored_later(
    fake_ray: FakeRay, caplog: pytest.LogCaptureFixture, begun: Any, words: str
) -> None:
    job, first = job_of()
    job.hosts["other"] = new = elastic.HostRecord("other", "10.0.0.2", None, "host 1", begun)
    with pytest.raises(WorkerError) as caught:
        job._add_host(new)
    assert str(caught.value) == f"ngd.ray.run_elastic: 10.0.0.2: {words}"
    job.worlds = 1
    with caplog.at_level(logging.WARNING, "ngd"):
        job._add_host(new)
        fake_ray.alive = {NODE: "10.0.0.1", "other": "10.0.0.2"}
        job._look()  # it is not tried again
    assert f"10.0.0.2 is left out: {words}" in caplog.text
    assert job.hosts == {NODE: first}
    fake_ray.kill.assert_called_once()


def test_an_actor_that_cannot_start_is_not_retried(
    fake_ray: FakeRay, caplog: pytest.LogCaptureFixture
) -> None:
    job, first = job_of()
    begun = ray.exceptions.RayActorError()
    job.hosts["other"] = new = elastic.HostRecord("other", "10.0.0.2", None, "host 1", begun)
    fake_ray.alive = {NODE: "10.0.0.1", "other": "10.0.0.2"}
    with caplog.at_level(logging.WARNING, "ngd"):
        job._add_host(new)
        job._look()
    assert "10.0.0.2 is left out: RayActorError" in caplog.text
    assert job.hosts == {NODE: first}


def test_a_second_node_at_an_address_replaces_the_first(fake_ray: FakeRay) -> None:
    job, first = job_of()
    fake_ray.alive = {NODE: "10.0.0.1", AGAIN: "10.0.0.1"}
    for _ in range(3):
        job._look()
        assert job.hosts.keys() == {AGAIN}
    job._lose(first, "late news")
    assert job.hosts.keys() == {AGAIN}
    fake_ray.alive = {NODE: "10.0.0.1"}
    job._look()
    job._look()
    assert job.hosts.keys() == {NODE}


def test_an_error_of_a_host_is_not_the_loss_of_it(fake_ray: FakeRay) -> None:
    job, first = job_of()
    with pytest.raises(ray.exceptions.RayTaskError):
        job._answer_of(first, ray.exceptions.RayTaskError("end_world", "", OSError("disk full")))
    assert job._answer_of(first, ray.exceptions.GetTimeoutError()) is None
    assert job.hosts == {}


def test_ranks_that_do_not_start_end_the_world(fake_ray: FakeRay) -> None:
    job, first = job_of(deadline=0.01)
    fake_ray.alive = {NODE: "10.0.0.1"}
    first.actor.has_started.remote.return_value = False
    assert job._world([first]) == "ranks on 10.0.0.1 did not start in 0.01 s"


def test_ranks_that_have_not_ended_count_as_failed(
    fake_ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, first = job_of()
    fake_ray.alive = {NODE: "10.0.0.1"}
    first.actor.end_world.remote.return_value = (False, False)
    monkeypatch.setattr(job, "_world", lambda world: None)  # mpirun returned 0
    with pytest.raises(
        WorkerError, match=r"not all ranks on 10.0.0.1 ended with status 0, and no restart"
    ):
        job.run(0)
