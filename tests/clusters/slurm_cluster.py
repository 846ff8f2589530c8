# SPDX-License-Identifier: Apache-2.0
"""A cluster of Slurm on this machine: munged, slurmctld, and a slurmd for each of two nodes.

    with Cluster(folder) as cluster:
        done = cluster.call("srun", "-N1", "-n4", sys.executable, "train.py")

Keys, sockets, configuration, state and logs are in the folder, and nothing is read from /etc. The
daemons run as the calling user, and have a marker in their environment. The nodes are n1 and n2.
They share the machine, so a job on two hosts sets NGD_HOST to SLURMD_NODENAME.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support import harness

NODES: Final = ("n1", "n2")
CPUS: Final = 4
DAEMONS: Final = ("munged", "slurmctld", "slurmd")
PROGRAMS: Final = (*DAEMONS, "srun", "sbatch", "scontrol", "squeue", "sinfo")
ENDED: Final = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED")
PATH: Final = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/bin"

CONFIGURATION: Final = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=6
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=2,bf_interval=2
SlurmdParameters=config_overrides
ReturnToService=2
MpiDefault=none
MpiParams=ports={ports[3]}-{last}
KillWait=20
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs={cpus}
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs={cpus}
PartitionName=normal Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=20
PartitionName=urgent Nodes=n1,n2 MaxTime=INFINITE State=UP PriorityTier=9 PreemptMode=OFF
"""
"""The configuration, for Slurm 22.05 or newer without systemd and cgroups.

A requeued job waits for `cred_expire`.
"""


def missing() -> list[str]:
    """Return the programs of Slurm and munge that are not installed."""
    return [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]


needs_slurm = pytest.mark.skipif(
    bool(missing()), reason=f"needs slurm-wlm and munge: no {', '.join(missing())}"
)


class Cluster:
    """Two nodes that run jobs. At the end of the context, no daemon and no job remains."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.marker = secrets.token_hex(8)
        clean = {k: v for k, v in os.environ.items() if not harness.LAUNCHED.fullmatch(k)}
        self.env = {
            **clean,
            "PATH": PATH,
            "SLURM_CONF": str(folder / "slurm.conf"),
            "TMPDIR": str(folder / "tmp"),
            "NGD_TIMEOUT": "60",
            "OMP_NUM_THREADS": "1",
            harness.MARKER: self.marker,
            **harness.OPEN_MPI_ENVIRONMENT,
        }

    def __enter__(self) -> Cluster:
        for name in ("state", "tmp", *NODES):
            (self.folder / name).mkdir(parents=True)
        ports = free_ports(3 + 16)
        text = CONFIGURATION.format(
            host=socket.gethostname().partition(".")[0],
            user=getpass.getuser(),
            folder=self.folder,
            ports=ports,
            last=ports[-1],
            cpus=CPUS,
        )
        (self.folder / "slurm.conf").write_text(text)
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self) -> None:
        files = {"key-file": "key", "socket": "socket", "pid-file": "pid"}
        files |= {"log-file": "log", "seed-file": "seed"}
        paths = [f"--{option}={self.folder}/munge.{end}" for option, end in files.items()]
        self.call("munged", "--force", *paths)
        self.call("slurmctld", "-c")
        for node in NODES:
            self.call("slurmd", "-N", node)
        self.wait_until(lambda: self.states().count("idle") == len(NODES), "nodes are idle", 60)

    def call(
        self, *command: str, env: dict[str, str] | None = None, seconds: float = 120, code: int = 0
    ) -> subprocess.CompletedProcess[str]:
        """Run a program with the cluster's environment. Fail if its exit code is not `code`."""
        done = subprocess.run(
            command,
            env={**self.env, **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            cwd=self.folder,
        )
        message = f"{command} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert done.returncode == code, f"{message}\n{self.logs}"
        return done

    def submit(self, *command: str, env: dict[str, str] | None = None) -> str:
        """Submit a job with sbatch, and return its number. NUMBER.out gets its output."""
        output = [f"--output={self.folder}/%j.out", "--open-mode=append", "--parsable"]
        return self.call("sbatch", *output, *command, env=env).stdout.strip()

    def output(self, job: str) -> str:
        """Return the output of a job so far."""
        path = self.folder / f"{job}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    def state(self, job: str) -> dict[str, str]:
        """Return the fields that `scontrol show job` prints."""
        fields = self.call("scontrol", "show", "job", job).stdout.split()
        return dict(field.split("=", 1) for field in fields if "=" in field)

    def states(self) -> list[str]:
        """Return the states of the nodes."""
        return self.call("sinfo", "-h", "-N", "-p", "normal", "-o", "%t").stdout.split()

    def wait_for(self, job: str, seconds: float = 180) -> dict[str, str]:
        """Wait until a job has ended in any way, and return its fields."""
        self.wait_until(lambda: self.state(job)["JobState"] in ENDED, f"job {job} ended", seconds)
        return self.state(job)

    def wait_until(self, condition: Any, what: str, seconds: float) -> None:
        """Wait until a condition is true. Fail with the logs at the deadline."""
        limit = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > limit:
                output = "\n".join(p.read_text() for p in sorted(self.folder.glob("*.out")))
                pytest.fail(f"after {seconds} s it is not so that {what}:\n{output}\n{self.logs}")
            time.sleep(0.2)

    @property
    def logs(self) -> str:
        """The last lines of each daemon's log."""
        paths = sorted(self.folder.glob("*.log"))
        return "\n".join(f"--- {p.name}\n" + "\n".join(tail(p)) for p in paths)

    def __exit__(self, *_: object) -> None:
        """End the daemons, and then the remaining processes of their jobs. All have the marker."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            for pid in harness.marked_processes(self.marker):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            limit = time.monotonic() + 10
            while harness.marked_processes(self.marker) and time.monotonic() < limit:
                time.sleep(0.05)
        remaining = harness.marked_processes(self.marker)
        assert not remaining, f"processes were left: {remaining}"


def tail(path: Path, lines: int = 15) -> list[str]:
    """Return the last lines of a file."""
    return path.read_text(errors="replace").splitlines()[-lines:]


def free_ports(count: int) -> list[int]:
    """Return consecutive ports that are free now. Other programs may take them later."""
    for first in range(20000 + os.getpid() % 5000, 32000, count):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + count):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return list(range(first, first + count))
    raise OSError("no neighbouring ports are free")
