# SPDX-License-Identifier: Apache-2.0
"""Several "hosts" on one machine: network namespaces on a bridge, with Open MPI over TCP.

    with Hosts(2) as hosts:
        line = [*hosts.mpirun(ranks_per_host=2), "python", "train.py"]
        subprocess.run(line, env={**os.environ, **OPEN_MPI})

Each host has its own network and its own host name, because Open MPI hangs if two names are equal.
The hosts share the file system, the cores, pids and the boot id. This needs root, iproute2, mode
OMPI and Open MPI.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import ngd

MPIRUN = shutil.which("mpirun", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
OPEN_MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
}
"""The environment variables that mpirun needs."""


def command(*words: str) -> str:
    """Run a tool, and return its output."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=30)
    if done.returncode != 0:
        raise OSError(f"{' '.join(words)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


@functools.cache
def why_not() -> str | None:
    """Return the reason why this machine cannot have several hosts, or None."""
    if ngd.build_info()["mode"] != "OMPI" or MPIRUN is None:
        return "needs mode OMPI and Open MPI's mpirun"
    for tool in ("ip", "tc", "unshare", "hostname"):
        if shutil.which(tool) is None:
            return f"needs {tool}"
    try:
        with Hosts(2) as both:
            both.inside(1, "unshare", "--uts", "hostname", "other")
    except OSError as error:
        return f"network namespaces are not permitted: {error}"
    return None


class Hosts:
    """Network namespaces that exist during the block."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.name = f"ngd{os.getpid()}-{secrets.token_hex(2)}"
        self.bridge = f"ngd{secrets.token_hex(3)}"
        self.folder = Path(tempfile.mkdtemp(prefix="ngd-hosts-"))
        self.agent = self.folder / "agent"

    def __enter__(self) -> Self:
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._remove()

    def _make(self) -> None:
        command("ip", "link", "add", self.bridge, "type", "bridge")
        command("ip", "link", "set", self.bridge, "up")
        for host in range(self.count):
            space, port = self.space(host), self.port(host)
            command("ip", "netns", "add", space)
            veth = ["type", "veth", "peer", "name", "eth0", "netns", space]
            command("ip", "link", "add", port, *veth)
            command("ip", "link", "set", port, "master", self.bridge, "up")
            command("ip", "-n", space, "addr", "add", f"{address(host)}/24", "dev", "eth0")
            command("ip", "-n", space, "link", "set", "lo", "up")
            command("ip", "-n", space, "link", "set", "eth0", "up")
        # mpirun calls this as: agent ADDRESS COMMAND...
        self.agent.write_text(
            "#!/bin/sh\n"
            f"name={self.name}-$((${{1##*.}} - 1))\nshift\n"
            'exec ip netns exec "$name" unshare --uts /bin/sh -c "hostname $name; $*"\n'
        )
        self.agent.chmod(stat.S_IRWXU)

    def _remove(self) -> None:
        for host in range(self.count):
            with contextlib.suppress(OSError):
                for pid in command("ip", "netns", "pids", self.space(host)).split():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGKILL)
            for words in (("netns", "del", self.space(host)), ("link", "del", self.port(host))):
                with contextlib.suppress(OSError):
                    command("ip", *words)
        with contextlib.suppress(OSError):
            command("ip", "link", "del", self.bridge)
        shutil.rmtree(self.folder, ignore_errors=True)

    def space(self, host: int) -> str:
        """Return the namespace of a host, which is also its host name."""
        return f"{self.name}-{host}"

    def port(self, host: int) -> str:
        """Return the interface of a host on the bridge."""
        return f"{self.bridge}.{host}"

    def inside(self, host: int, *words: str) -> str:
        """Run a tool on a host."""
        return command("ip", "netns", "exec", self.space(host), *words)

    def mpirun(
        self,
        ranks_per_host: int | Sequence[int],
        names: Iterable[str] = (),
        options: Iterable[str] = (),
    ) -> list[str]:
        """Return the start of a command line that runs a program on all hosts.

        `names` are the environment variables that mpirun passes to the ranks of other hosts.
        """
        assert MPIRUN is not None
        same = isinstance(ranks_per_host, int)
        per_host = [ranks_per_host] * self.count if same else list(ranks_per_host)
        places = ",".join(f"{address(h)}:{ranks}" for h, ranks in enumerate(per_host))
        first = ["ip", "netns", "exec", self.space(0), "unshare", "--uts", "/bin/sh", "-c"]
        passed_on = [word for name in names for word in ("-x", name)]
        settings = {"pml": "ob1", "btl": "self,sm,tcp", "mpi_yield_when_idle": "1"}
        mca = [word for setting in settings.items() for word in ("--mca", *setting)]
        return [
            *first,
            'hostname "$0"; exec "$@"',
            self.space(0),
            MPIRUN,
            *("--prtemca", "plm_ssh_agent", str(self.agent), "--host", places),
            *(*mca, *passed_on, "--bind-to", "none", *options),  # the hosts have the same cores
            *("-np", str(sum(per_host))),
        ]

    def slow_down(self, rate: str, burst: str = "128k", limit: str | None = None) -> None:
        """Limit the rate at which every host sends. A queue of `limit` drops further packets."""
        wait = ("limit", limit) if limit else ("latency", "50ms")
        shape = ["root", "tbf", "rate", rate, "burst", burst, *wait]
        for host in range(self.count):
            self.inside(host, "tc", "qdisc", "add", "dev", "eth0", *shape)


def address(host: int) -> str:
    """Return the address of a host on the bridge, which is a separate network."""
    return f"10.77.0.{host + 1}"
