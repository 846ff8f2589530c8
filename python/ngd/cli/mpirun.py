# SPDX-License-Identifier: Apache-2.0
"""`ngd run --hosts`: print the mpirun command that starts ranks on several hosts; start nothing."""

from __future__ import annotations

import collections
import os
import shlex
from collections.abc import Sequence
from typing import Final

from .._util import config
from ..comm.calls import build_info
from .streams import print_message

PASSED: Final = tuple(name for name in config.VARIABLES if name != "NGD_HOST")
"""The environment variables of ngd that the mpirun command passes to other hosts, if set.

They are all variables that users set, except NGD_HOST, whose value differs per host.
"""


def explain_mpirun(hosts: str, ranks: int | None, command: Sequence[str]) -> int:
    """Print the mpirun command for these hosts, start nothing, and return the exit status."""
    try:
        line = mpirun_command(hosts_in(hosts) if os.sep in hosts else hosts, command)
    except ValueError as error:
        print_message(f"--hosts: {error}")
        return 2
    if ranks is not None and line[2] != str(ranks):
        print_message(f"--hosts {hosts}: expected -n {line[2]} or no -n; got -n {ranks}")
        return 2
    print(shlex.join(line))
    print_message("nothing was started: run the command above, which starts the ranks on all hosts")
    print_message(
        "every host needs the same Python, ngd and script under the same paths, and ssh to it"
    )
    mode = build_info()["mode"]
    if mode != "OMPI":
        print_message(
            f"this ngd was built in mode {mode}, which supports one host; install it with pip "
            "--config-settings=cmake.define.NGD_DISTRIBUTED_ENABLE=OMPI"
        )
        return 1
    return 0


def hosts_in(path: str) -> str:
    """Read a file with one host name per rank, and return the hosts with their numbers of ranks.

    A file with the names a, a and b gives "a:2,b:1". Raise ValueError if the file is empty or
    cannot be read.
    """
    try:
        with open(path, encoding="utf-8") as file:
            names = file.read().split()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read {path}: {error}") from error
    if not names:
        raise ValueError(f"expected a host's name on each line of {path}; it is empty")
    return ",".join(f"{name}:{count}" for name, count in collections.Counter(names).items())


def mpirun_command(hosts: str, command: Sequence[str]) -> list[str]:
    """Return the mpirun command for hosts such as "a:2,b:2"; raise ValueError for another form."""
    slots_of_hosts = []
    for part in hosts.split(","):
        name, colon, slots = part.strip().partition(":")
        if not name or (colon and not (slots.isdecimal() and int(slots) > 0)):
            raise ValueError(f"expected HOST:RANKS,HOST:RANKS...; got {part!r} in {hosts!r}")
        slots_of_hosts.append((name, int(slots or 1)))
    ranks = sum(slots for _, slots in slots_of_hosts)
    host_list = ",".join(f"{name}:{slots}" for name, slots in slots_of_hosts)
    variables = [f"{name}={os.environ[name]}" for name in PASSED if name in os.environ]
    options = ["--bind-to", "none", *(word for each in variables for word in ("-x", each))]
    return ["mpirun", "-np", str(ranks), "--host", host_list, *options, *command]
