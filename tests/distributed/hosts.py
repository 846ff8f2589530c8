# SPDX-License-Identifier: Apache-2.0
"""Several "hosts" on one machine: network namespaces on a bridge, Open MPI over TCP between them.

    with hosts.Hosts(2) as both:
        harness.run(program, 4, launcher=both.launcher(ranks_per_host=2))

Each host has its own network and its own host name (Open MPI hangs when two are equal); they share
the file system, pids and the boot id. `tests/distributed/hosts.py HOSTS RANKS COMMAND...` runs a
command so, with `--rate 1gbit` on links that slow.
"""

from __future__ import annotations

import argparse
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
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import harness
import pytest

PASSED_ON = (harness.MARKER, "NGD_TIMEOUT", "NGD_CHECK", "OMP_NUM_THREADS")
"""What the harness sets, for mpirun to give to the ranks of the other hosts."""


def command(*words: str) -> str:
    """Run a tool and return what it printed."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=30)
    if done.returncode != 0:
        raise OSError(f"{' '.join(words)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


@functools.cache
def why_not() -> str | None:
    """The reason why this machine cannot play several hosts; None if it can."""
    if harness.MODE != "OMPI" or not harness.HAS_OPEN_MPI:
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
    """Namespaces while the context lasts."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.name = f"ngd{os.getpid()}-{secrets.token_hex(2)}"
        self.bridge = f"ngd{secrets.token_hex(3)}"
        self.folder = Path(tempfile.mkdtemp(prefix="ngd-hosts-"))
        self.agent = self.folder / "agent"

    def __enter__(self) -> Hosts:
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
        # mpirun calls it as: agent ADDRESS COMMAND...
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
        """The namespace of a host, which is also its host name."""
        return f"{self.name}-{host}"

    def port(self, host: int) -> str:
        """The host's cable, where it enters the bridge."""
        return f"{self.bridge}.{host}"

    def inside(self, host: int, *words: str) -> str:
        """Run a tool on a host."""
        return command("ip", "netns", "exec", self.space(host), *words)

    def launcher(self, ranks_per_host: int | Sequence[int], *options: str) -> list[str]:
        """The command line before that of a program to be run on all hosts."""
        assert harness.MPIRUN is not None
        same = isinstance(ranks_per_host, int)
        per_host = [ranks_per_host] * self.count if same else list(ranks_per_host)
        places = ",".join(f"{address(h)}:{ranks}" for h, ranks in enumerate(per_host))
        first = ["ip", "netns", "exec", self.space(0), "unshare", "--uts", "/bin/sh", "-c"]
        names = [*PASSED_ON, *(["PYTHONPATH"] if "PYTHONPATH" in os.environ else [])]
        passed_on = [word for name in names for word in ("-x", name)]
        settings = {"pml": "ob1", "btl": "self,sm,tcp", "mpi_yield_when_idle": "1"}
        mca = [word for setting in settings.items() for word in ("--mca", *setting)]
        return [
            *first,
            'hostname "$0"; exec "$@"',
            self.space(0),
            harness.MPIRUN,
            *("--prtemca", "plm_ssh_agent", str(self.agent), "--host", places),
            *(*mca, *passed_on, "--bind-to", "none", *options),  # they have the same cores
            *("-np", str(sum(per_host))),
        ]

    def slow_down(self, rate: str, burst: str = "128k", limit: str | None = None) -> None:
        """Let every host send at most so much; what a queue of `limit` does not hold is lost."""
        wait = ("limit", limit) if limit else ("latency", "50ms")
        shape = ["root", "tbf", "rate", rate, "burst", burst, *wait]
        for host in range(self.count):
            self.inside(host, "tc", "qdisc", "add", "dev", "eth0", *shape)

    def lost(self, host: int) -> int:
        """The packets that a slow link has lost."""
        words = self.inside(host, "tc", "-s", "qdisc", "show", "dev", "eth0").split()
        return int(words[words.index("(dropped") + 1].rstrip(","))

    def cut_off(self, host: int) -> None:
        """Take a host off the network."""
        command("ip", "link", "set", self.port(host), "down")


def address(host: int) -> str:
    """A host's address on the bridge, which has a network of its own."""
    return f"10.77.0.{host + 1}"


def sent_bytes() -> int:
    """What the host of this process has sent so far."""
    return int(Path("/sys/class/net/eth0/statistics/tx_bytes").read_text())


@pytest.fixture
def permitted() -> None:
    """Skip a test where there can be no hosts, and say why."""
    if reason := why_not():
        pytest.skip(reason)


def main() -> int:
    """Run a command on several hosts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", help="of every link, as tc writes it: 1gbit")
    parser.add_argument("hosts", type=int)
    parser.add_argument("ranks", type=int, help="of each host")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    environment = {**os.environ, **harness.OPEN_MPI_ENVIRONMENT}
    with Hosts(args.hosts) as hosts:
        if args.rate:
            hosts.slow_down(args.rate)
        passed_on = [
            word for name in os.environ if name.startswith("NGD_") for word in ("-x", name)
        ]
        launcher = hosts.launcher(args.ranks, *passed_on)
        return subprocess.run([*launcher, *args.command], env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
