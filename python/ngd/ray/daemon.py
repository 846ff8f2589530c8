# SPDX-License-Identifier: Apache-2.0
"""The program that mpirun calls instead of ssh, as `daemon.py ADDRESS COMMAND...`.

mpirun calls it to start ranks on another host of the job. ADDRESS is the address of that host. The
program lets the actor of the host (`elastic.Host`) run the command, so no ssh is needed.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from typing import Final

import ray

CLUSTER: Final = "NGD_RAY_CLUSTER"
"""The environment variable with the address of the Ray cluster."""
NAMESPACE: Final = "NGD_RAY_NAMESPACE"
"""The environment variable with the namespace of the actors of this job."""
HOSTS: Final = "NGD_RAY_HOSTS"
"""The environment variable with a JSON object {address of a host: name of a Ray actor}. This actor,
an `elastic.Host`, runs commands on the host."""
WORLD: Final = "NGD_RAY_WORLD"
"""The environment variable with the number of the world that the command belongs to.

A world is the ranks that mpirun starts together. Worlds are counted from 1; each start of the ranks
is a new world. A host refuses the commands of a world that has ended."""


def main() -> int:
    """Let the actor of a host run a command, and return the exit code of the command.

    The address of the host and the command are the arguments of this program.
    """
    address, *words = sys.argv[1:]
    namespace = os.environ[NAMESPACE]
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    ray.init(address=os.environ[CLUSTER], namespace=namespace, **quiet)
    host = ray.get_actor(json.loads(os.environ[HOSTS])[address], namespace=namespace)
    world, command = int(os.environ[WORLD]), ["/bin/sh", "-c", " ".join(words)]
    return int(ray.get(host.run.remote(world, command)))


if __name__ == "__main__":
    sys.exit(main())
