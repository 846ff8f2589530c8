# SPDX-License-Identifier: Apache-2.0
"""The manifests' launcher and workers, run as containers that share nothing but a network.

The tests do what the operators do: make the key, the file of hosts and the hosts' names, set the
variables of Open MPI 4, start sshd in the workers and, once they are ready, mpirun in the launcher.
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
"""How the operators call the workers; Open MPI has to use these names whole."""

FROM_OPERATORS = {
    "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile",
    "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
    "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
}
TELL = "import ngd, socket; w = ngd.init(); print(socket.gethostname(), w.rank, w.size)"
UNHEARD = "PRTE_MCA_prte_default_hostfile"


class Cluster(NamedTuple):
    """The pods of a job, of which the last is the launcher's."""

    job: manifests.Training
    names: list[str]
    """What the operator calls the workers."""

    network: hosts.Hosts
    folder: Path

    def pod(
        self,
        place: int,
        name: str,
        words: list[str],
        env: Mapping[str, str],
        options: Sequence[str] = (),
    ) -> list[str]:
        """The command line that runs `words` in a pod."""
        space = self.network.space(place)
        addresses = {name: hosts.address(place) for place, name in enumerate(self.names)}
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

    def work(self, place: int, log: IO[str]) -> subprocess.Popen[str]:
        """Start a worker, by the manifest's command."""
        words = manifests.container(self.job.worker)["command"]
        line = self.pod(place, self.names[place].split(".")[0], words, {})
        return subprocess.Popen(line, stdout=log, stderr=log, text=True)

    def launch(
        self, *program: str, env: Mapping[str, str] | None = None, options: Sequence[str] = ()
    ) -> subprocess.CompletedProcess[str]:
        """Run the launcher to its end, with another program where one is given."""
        container = self.job.launcher
        words = [*container["command"], *(program or container["args"])]
        settings = {entry["name"]: entry["value"] for entry in container["env"]}
        settings |= FROM_OPERATORS | (env or {})
        listed = ("--volume", f"{self.folder}/mpi:/etc/mpi:ro")  # which the workers do not have
        line = self.pod(self.job.pods, "launcher", words, settings, (*listed, *options))
        return subprocess.run(line, capture_output=True, text=True, timeout=240)


@contextmanager
def started(training: Callable[[], manifests.Training], folder: Path) -> Iterator[Cluster]:
    """The workers of a manifest, ready, while the context lasts."""
    job = training()
    names = [WORKERS[training].format(pod) for pod in range(job.pods)]
    make_key(folder / "ssh")
    (folder / "mpi").mkdir()
    (folder / "mpi/hostfile").write_text("".join(f"{n} slots={job.slots}\n" for n in names))
    with hosts.Hosts(job.pods + 1) as network, (folder / "workers.txt").open("w") as log:
        cluster = Cluster(job, names, network, folder)
        workers = [cluster.work(place, log) for place in range(job.pods)]
        try:
            for place in range(job.pods):
                wait_until_ready(cluster, place)
            yield cluster
        finally:
            for worker in workers:
                worker.terminate()
            for worker in workers:
                worker.wait(60)


def make_key(folder: Path) -> None:
    """A key of the job's own, as a secret is mounted with fsGroup: 1000."""
    folder.mkdir()
    hosts.command("ssh-keygen", "-q", "-t", "rsa", "-N", "", "-f", str(folder / "id_rsa"))
    shutil.copy(folder / "id_rsa.pub", folder / "authorized_keys")
    for file in folder.iterdir():
        os.chown(file, 0, 1000)
        file.chmod(0o440)


def wait_until_ready(cluster: Cluster, place: int) -> None:
    """Probe a worker as the kubelet does."""
    port = manifests.container(cluster.job.worker)["readinessProbe"]["tcpSocket"]["port"]
    limit = time.monotonic() + 120
    while True:
        try:
            listening = f": </dev/tcp/{hosts.address(place)}/{port}"
            cluster.network.inside(place, "bash", "-c", listening)
            return
        except OSError as error:
            if time.monotonic() > limit:
                pytest.fail(f"{error}\n{(cluster.folder / 'workers.txt').read_text()}")
            time.sleep(0.2)


@pytest.mark.parametrize("training", WORKERS)
def test_job_trains_on_the_ranks_of_all_pods(
    training: Callable[[], manifests.Training], tmp_path: Path
) -> None:
    with started(training, tmp_path) as cluster:
        trained = cluster.launch()
        assert trained.returncode == 0, trained.stdout + trained.stderr
        report = json.loads(trained.stdout.splitlines()[-1])
        assert report["ranks"] == 4
        assert report["test_accuracy"] >= 0.93

        told = cluster.launch("python", "-c", TELL)
        pods = [name.split(".")[0] for name in cluster.names]
        expected = [f"{pods[rank // 2]} {rank} 4" for rank in range(4)]
        assert sorted(told.stdout.splitlines()) == expected, told.stderr


def test_launcher_that_has_not_found_its_hosts_is_refused(tmp_path: Path) -> None:
    """What the operators set is for Open MPI 4: the image's own variable is what 5 hears."""
    deaf, other = ("--unsetenv", UNHEARD), (os.cpu_count() or 1) + 1  # mpirun starts a rank a core
    with started(manifests.mpijob, tmp_path) as cluster:
        expected = {"NGD_EXPECT_SIZE": str(other)}
        refused = cluster.launch("python", "-c", TELL, options=deaf, env=expected)
        assert refused.returncode != 0
        assert refused.stdout == ""
        assert f"NGD_EXPECT_SIZE: expected {other} ranks; got " in refused.stderr

        trapped = cluster.launch("python", "-c", TELL, options=deaf, env={"NGD_EXPECT_SIZE": ""})
        assert trapped.returncode == 0, trapped.stderr
        assert {line.split()[0] for line in trapped.stdout.splitlines()} == {"launcher"}


def test_lost_list_of_hosts_is_an_error_of_mpirun(tmp_path: Path) -> None:
    with started(manifests.mpijob, tmp_path) as cluster:
        lost = cluster.launch("python", "-c", TELL, env={UNHEARD: "/etc/mpi/none"})
        assert lost.returncode != 0
        assert "unable to open the hostfile" in lost.stdout + lost.stderr
