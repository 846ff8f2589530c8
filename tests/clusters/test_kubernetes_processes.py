# SPDX-License-Identifier: Apache-2.0
"""Tests of the manifests' launcher and workers in containers that share only a network.

The tests do the work of the operators: they make the key, the file of hosts and the hosts' names,
set the variables of Open MPI 4, and start sshd in the workers. When the workers are ready, they
start mpirun in the launcher.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

import pytest

from tests.clusters import engine

pytest.importorskip("yaml", reason="yaml is not installed: .ci/clusters does it")
from tests.clusters import manifests
from tests.support import hosts

IMAGE = "localhost/ngd:ompi"
pytestmark = [
    engine.needs(IMAGE),
    pytest.mark.skipif(shutil.which("ip") is None, reason="needs iproute2"),
]
WORKERS = {
    manifests.mpijob: "ngd-mnist-worker-{}.ngd-mnist.default.svc",
    manifests.trainjob: "ngd-mnist-node-0-{}.ngd-mnist",
    manifests.jobset: "ngd-mnist-worker-0-{}.ngd-mnist",
}
"""The names that the operators give to the workers. Open MPI must use these names unchanged."""

FROM_OPERATORS = {
    "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile",
    "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
    "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
}
TELL = "import ngd, socket; w = ngd.init(); print(socket.gethostname(), w.rank, w.size)"
HOSTFILE_OF_OPEN_MPI_5 = "PRTE_MCA_prte_default_hostfile"


class Cluster(NamedTuple):
    """The pods of a job. The last one is the launcher."""

    job: manifests.Training
    names: list[str]
    """The names that the operator gives to the workers."""

    network: hosts.Hosts
    folder: Path

    def pod(
        self,
        number: int,
        name: str,
        words: list[str],
        env: Mapping[str, str],
        options: Sequence[str] = (),
    ) -> list[str]:
        """Return the command line that runs `words` in a pod."""
        space = self.network.space(number)
        addresses = {name: hosts.address(number) for number, name in enumerate(self.names)}
        repeated = [("--add-host", ":".join(pair)) for pair in addresses.items()]
        repeated += [("--env", "=".join(pair)) for pair in env.items()]
        return engine.command(
            IMAGE,
            words,
            *("--network", f"ns:/run/netns/{space}", "--hostname", name),
            *("--user", "1000:1000", "--group-add", "1000", "--cap-drop", "all"),
            *("--security-opt", "no-new-privileges"),
            *("--volume", f"{self.folder}/ssh:/home/mpiuser/.ssh:ro"),
            *(word for pair in repeated for word in pair),
            *options,
        )

    def work(self, number: int, log: IO[str]) -> subprocess.Popen[str]:
        """Start a worker by the command of the manifest."""
        words = manifests.container(self.job.worker)["command"]
        line = self.pod(number, self.names[number].split(".")[0], words, {})
        return subprocess.Popen(line, stdout=log, stderr=log, text=True)

    def launch(
        self, *program: str, env: Mapping[str, str] | None = None, options: Sequence[str] = ()
    ) -> subprocess.CompletedProcess[str]:
        """Run the launcher to its end. `program` replaces its program."""
        container = self.job.launcher
        words = [*container["command"], *(program or container["args"])]
        settings = {entry["name"]: entry["value"] for entry in container["env"]}
        settings |= FROM_OPERATORS | (env or {})
        listed = ("--volume", f"{self.folder}/mpi:/etc/mpi:ro")  # the workers do not have it
        line = self.pod(self.job.pods, "launcher", words, settings, (*listed, *options))
        return subprocess.run(line, capture_output=True, text=True, timeout=240)


@contextmanager
def start_workers(training: Callable[[], manifests.Training], folder: Path) -> Iterator[Cluster]:
    """Start the workers of a manifest. They are ready while the context lasts."""
    job = training()
    names = [WORKERS[training].format(pod) for pod in range(job.pods)]
    make_key(folder / "ssh")
    (folder / "mpi").mkdir()
    (folder / "mpi/hostfile").write_text("".join(f"{n} slots={job.slots}\n" for n in names))
    with hosts.Hosts(job.pods + 1) as network, (folder / "workers.txt").open("w") as log:
        cluster = Cluster(job, names, network, folder)
        workers = [cluster.work(number, log) for number in range(job.pods)]
        try:
            for number in range(job.pods):
                wait_until_ready(cluster, number)
            yield cluster
        finally:
            for worker in workers:
                worker.terminate()
            for worker in workers:
                worker.wait(60)


def make_key(folder: Path) -> None:
    """Make a key with the owner and mode of a secret that is mounted with fsGroup: 1000."""
    folder.mkdir()
    hosts.command("ssh-keygen", "-q", "-t", "rsa", "-N", "", "-f", str(folder / "id_rsa"))
    shutil.copy(folder / "id_rsa.pub", folder / "authorized_keys")
    for file in folder.iterdir():
        os.chown(file, 0, 1000)
        file.chmod(0o440)


def wait_until_ready(cluster: Cluster, number: int) -> None:
    """Probe a worker as the kubelet does, until it is ready."""
    port = manifests.container(cluster.job.worker)["readinessProbe"]["tcpSocket"]["port"]
    limit = time.monotonic() + 120
    while True:
        try:
            listening = f": </dev/tcp/{hosts.address(number)}/{port}"
            cluster.network.inside(number, "bash", "-c", listening)
            return
        except OSError as error:
            if time.monotonic() > limit:
                pytest.fail(f"{error}\n{(cluster.folder / 'workers.txt').read_text()}")
            time.sleep(0.2)


@pytest.mark.parametrize("training", WORKERS)
def test_a_job_trains_on_the_ranks_of_all_pods(
    training: Callable[[], manifests.Training], tmp_path: Path
) -> None:
    with start_workers(training, tmp_path) as cluster:
        trained = cluster.launch()
        assert trained.returncode == 0, trained.stdout + trained.stderr
        report = json.loads(trained.stdout.splitlines()[-1])
        assert report["ranks"] == 4
        assert report["test_accuracy"] >= 0.93

        ranks_of_pods = cluster.launch("python", "-c", TELL)
        pods = [name.split(".")[0] for name in cluster.names]
        expected = [f"{pods[rank // 2]} {rank} 4" for rank in range(4)]
        assert sorted(ranks_of_pods.stdout.splitlines()) == expected, ranks_of_pods.stderr


def test_a_launcher_without_its_hosts_raises(tmp_path: Path) -> None:
    """The operators set variables of Open MPI 4, but Open MPI 5 reads only that of the image."""
    without_hostfile, other = (
        ("--unsetenv", HOSTFILE_OF_OPEN_MPI_5),
        (os.cpu_count() or 1) + 1,
    )  # mpirun starts one rank per core
    with start_workers(manifests.mpijob, tmp_path) as cluster:
        expected = {"NGD_EXPECT_SIZE": str(other)}
        failed = cluster.launch("python", "-c", TELL, options=without_hostfile, env=expected)
        assert failed.returncode != 0
        assert failed.stdout == ""
        assert f"NGD_EXPECT_SIZE: expected {other} ranks; got " in failed.stderr

        unchecked = cluster.launch(
            "python", "-c", TELL, options=without_hostfile, env={"NGD_EXPECT_SIZE": ""}
        )
        assert unchecked.returncode == 0, unchecked.stderr
        assert {line.split()[0] for line in unchecked.stdout.splitlines()} == {"launcher"}


def test_a_missing_hostfile_is_an_error_of_mpirun(tmp_path: Path) -> None:
    with start_workers(manifests.mpijob, tmp_path) as cluster:
        failed = cluster.launch("python", "-c", TELL, env={HOSTFILE_OF_OPEN_MPI_5: "/etc/mpi/none"})
        assert failed.returncode != 0
        assert "unable to open the hostfile" in failed.stdout + failed.stderr
