# SPDX-License-Identifier: Apache-2.0
"""The hosts of benchmarks/namespaces.py, for ranks that a test starts.

    with hosts.Hosts(2) as both:
        harness.run(program, 4, launcher=both.launcher(ranks_per_host=2))

`python -m tests.support.hosts HOSTS RANKS COMMAND...` runs a command on such hosts. `--rate 1gbit`
limits the speed of their links.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support import harness

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import namespaces
from namespaces import address, command

__all__ = ["Hosts", "address", "command", "permitted", "sent_bytes", "why_not"]

PASSED_ON = (harness.MARKER, "NGD_TIMEOUT", "NGD_CHECK", "OMP_NUM_THREADS")
"""Variables that the harness sets. mpirun passes them to ranks on the other hosts."""


def why_not() -> str | None:
    """Return the reason why this machine cannot simulate several hosts, or None."""
    return namespaces.why_not() if harness.HAS_OPEN_MPI else "needs Open MPI's mpirun"


class Hosts(namespaces.Hosts):
    """Hosts of network namespaces while the context lasts, with faults of their links."""

    def launcher(self, ranks_per_host: int | Sequence[int], *options: str) -> list[str]:
        """Return the command line of a launcher on all hosts, to which the program's is added."""
        names = [*PASSED_ON, *(["PYTHONPATH"] if "PYTHONPATH" in os.environ else [])]
        return self.mpirun(ranks_per_host, names, options)

    def lost(self, host: int) -> int:
        """Return the number of packets that a slow link has lost."""
        words = self.inside(host, "tc", "-s", "qdisc", "show", "dev", "eth0").split()
        return int(words[words.index("(dropped") + 1].rstrip(","))

    def cut_off(self, host: int) -> None:
        """Disconnect a host from the network."""
        command("ip", "link", "set", self.port(host), "down")


def sent_bytes() -> int:
    """Return the number of bytes that the host of this process has sent."""
    return int(Path("/sys/class/net/eth0/statistics/tx_bytes").read_text())


@pytest.fixture
def permitted() -> None:
    """Skip a test if several hosts are not possible, and give the reason."""
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
