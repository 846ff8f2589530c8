# SPDX-License-Identifier: Apache-2.0
"""What mpirun calls in the place of ssh: `daemon.py ADDRESS COMMAND...` runs it there, by Ray."""

from __future__ import annotations

import json
import logging
import os
import sys
from typing import Final

import ray

CLUSTER: Final = "NGD_RAY_CLUSTER"
"""The variable that says where the cluster is,"""
NAMESPACE: Final = "NGD_RAY_NAMESPACE"
"""in which namespace the actors of this job's hosts are,"""
HOSTS: Final = "NGD_RAY_HOSTS"
"""their names by the hosts' addresses, JSON,"""
WORLD: Final = "NGD_RAY_WORLD"
"""and for which world the command is."""


def main() -> int:
    """Run the command there; its exit code."""
    address, *words = sys.argv[1:]
    namespace = os.environ[NAMESPACE]
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    ray.init(address=os.environ[CLUSTER], namespace=namespace, **quiet)
    host = ray.get_actor(json.loads(os.environ[HOSTS])[address], namespace=namespace)
    world, command = int(os.environ[WORLD]), ["/bin/sh", "-c", " ".join(words)]
    return int(ray.get(host.run.remote(world, command)))


if __name__ == "__main__":
    sys.exit(main())
