# SPDX-License-Identifier: Apache-2.0
"""A data-parallel job between hosts that goes on without a lost one, and takes in new ones.

MPI cannot lose a rank. So Ray says which hosts there are, and starts what mpirun wants on them
(daemon.py, in the place of ssh); inside a world ranks speak by MPI. Where a host is lost, or a new
one waits, the world ends and the next one starts, from the newest commit that a host still has
(`ngd.horovod.torch.elastic`).
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import logging
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ..errors import WorkerError
from ..launch import PR_SET_PDEATHSIG
from ..members import AGAIN, HOSTS_WAIT
from . import daemon

logger = logging.getLogger("ngd")

LOOKS_EACH: Final = 1.0
"""Seconds between two looks at the hosts of the cluster."""
ANSWER_SECONDS: Final = 20.0
"""In which a host answers that is asked to clear up; else it is lost."""
OTHER_LAUNCHERS: Final = ("SLURM_", "PBS_", "LSB_", "FLUX_", "PMI", "OMPI_COMM_", "PRTE_MCA_ess")
"""How variables begin that would tell mpirun of another job."""


class Host:
    """The actor of a host: runs mpirun, or what mpirun wants there; its ranks are their children.

    Its folder is NGD_ELASTIC_DIR of these ranks. They keep their commits there, and there they see
    that new hosts wait (members.hosts_wait), and say that they have ended for them.
    """

    def __init__(self, directory: str, environment: Mapping[str, str]) -> None:
        self.directory = directory
        self.folder = tempfile.mkdtemp(prefix="ngd-elastic-")
        self.running: list[subprocess.Popen[bytes]] = []
        kept = {k: v for k, v in os.environ.items() if not k.startswith(OTHER_LAUNCHERS)}
        path = f"{Path(sys.executable).parent}:{kept.get('PATH', os.defpath)}"
        own = {"PATH": path, "NGD_ELASTIC_DIR": self.folder}
        if os.getuid() == 0:  # as in most containers
            own |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        self.environment = kept | own | dict(environment)

    def begin(self) -> bool:
        """Be ready."""
        if not Path(self.directory).is_dir():
            raise WorkerError(
                f"ngd.ray.run_elastic: expected a directory {self.directory}, as the driver has, "
                f"on {ray.util.get_node_ip_address()}"
            )
        return True

    def lead(self, arguments: Sequence[str], cluster: Mapping[str, str]) -> int:
        """Run mpirun with these arguments; its exit code. `cluster` is for daemon.py."""
        mpirun = shutil.which("mpirun", path=self.environment["PATH"])
        if mpirun is None:
            raise WorkerError("ngd.ray.run_elastic: expected Open MPI's mpirun in PATH")
        agent = Path(self.folder, "agent")
        line = shlex.join([sys.executable, daemon.__file__])
        agent.write_text(f'#!/bin/sh\nexec {line} "$@"\n')
        agent.chmod(0o700)
        settings = ("--prtemca", "plm_ssh_agent", str(agent), "--leave-session-attached")
        return self.run([mpirun, *settings, *arguments], cluster)

    def run(self, command: Sequence[str], more: Mapping[str, str] = {}) -> int:
        """Run a command in a session of its own, with more variables; its exit code."""
        parent = os.getpid()
        process = subprocess.Popen(
            command,
            cwd=self.directory,
            env={**self.environment, **more},
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=lambda: _die_with(parent),
        )
        self.running.append(process)
        return process.wait()

    def announce(self) -> bool:
        """Let the ranks see that new hosts wait."""
        Path(self.folder, HOSTS_WAIT).touch()
        return True

    def end_world(self) -> tuple[bool, bool]:
        """Leave nothing running; whether all ended well here, and whether for new hosts."""
        well = all(process.poll() in (None, 0) for process in self.running)
        for process in self.running:
            for pid in _session(process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.running.clear()
        asked = Path(self.folder, AGAIN).exists()
        for name in (AGAIN, HOSTS_WAIT):
            Path(self.folder, name).unlink(missing_ok=True)
        return well, asked

    def close(self) -> None:
        """Leave nothing at all."""
        self.end_world()
        shutil.rmtree(self.folder, ignore_errors=True)


def _die_with(parent: int) -> None:
    """Have the kernel end this process with the thread that started it."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _session(leader: int) -> list[int]:
    """The processes of a session, which leave it for none of their own."""
    found = []
    for name in os.listdir("/proc"):
        with contextlib.suppress(ValueError, ProcessLookupError, PermissionError):
            if os.getsid(int(name)) == leader:
                found.append(int(name))
    return found


@dataclass(eq=False)
class Place:
    """A host, as the driver has it."""

    node: str
    address: str
    actor: Any
    name: str
    """Of the actor."""
    begun: Any
    """What becomes of making it."""
    ready: bool = False


def run_elastic(
    command: Sequence[str],
    *,
    ranks: int,
    min_hosts: int = 1,
    max_hosts: int | None = None,
    max_restarts: int = 0,
    environment: Mapping[str, str] | None = None,
    deadline: float = 60.0,
) -> None:
    """Run a script on the hosts of a Ray cluster, with whichever of them are there.

    It is started by Open MPI, with `ranks` ranks on each host, whose cores Ray keeps for them. The
    script trains in `ngd.horovod.torch.elastic.run`. Where a host is lost or a rank fails, all
    ranks are started again on the hosts that are left, and go on from the newest commit. Where a
    new host comes, they end at the next commit, and are started again with it. Each event is
    logged, by the logger "ngd".

    Parameters
    ----------
    command
        A program and its arguments; a script that ends in .py is run by this Python. It is found
        on each host in this process's working directory.
    ranks
        Of each host; as many CPUs of Ray's are asked for.
    min_hosts
        With fewer, new ones are waited for.
    max_hosts
        More take no part until others are lost; None: all do.
    max_restarts
        How often the ranks may be started again after a failure; new hosts do not count.
    environment
        Variables for the ranks, and settings of Open MPI (OMPI_MCA_...).
    deadline
        Seconds in which so many hosts are to be there.

    Raises
    ------
    WorkerError
        There are too few hosts, or the ranks failed and no restart is left.
    """
    most = max_hosts if max_hosts is not None else sys.maxsize
    if not command or ranks < 1 or not 1 <= min_hosts <= most or max_restarts < 0:
        raise ValueError(
            "ngd.ray.run_elastic: expected a command, ranks >= 1, 1 <= min_hosts <= max_hosts and "
            f"max_restarts >= 0; got {command!r}, {ranks}, {min_hosts}, {max_hosts} and "
            f"{max_restarts}"
        )
    line = [sys.executable, *command] if command[0].endswith(".py") else list(command)
    job = _Job(line, ranks, min_hosts, most, dict(environment or {}), deadline)
    try:
        job.run(max_restarts)
    finally:
        job.close()


class _Job:
    """The driver: the hosts that there are, and one world after the other."""

    def __init__(
        self,
        command: list[str],
        ranks: int,
        least: int,
        most: int,
        environment: dict[str, str],
        deadline: float,
    ) -> None:
        self.command, self.ranks, self.least, self.most = command, ranks, least, most
        self.environment, self.deadline = environment, deadline
        self.namespace = f"ngd-{secrets.token_hex(8)}"
        self.places: dict[str, Place] = {}
        """By Ray's name of the node."""
        self.numbers = itertools.count()
        self.worlds = 0

    def run(self, restarts_left: int) -> None:
        """Make worlds until one has finished."""
        while True:
            world = self._gather()
            why = self._world(world)
            ends = [self._got(place, place.actor.end_world.remote()) for place in world]
            for place, end in zip(world, ends, strict=True):  # mpirun may return 0 without a host
                if why is None and not (end and end[0]):
                    why = f"{place.address} lost"
            if why is None:
                if not any(asked for _, asked in ends):
                    return
                logger.info("ngd.ray.run_elastic: new hosts come in")
                continue
            if restarts_left == 0:
                raise WorkerError(f"ngd.ray.run_elastic: {why}, and no restart is left")
            restarts_left -= 1
            logger.warning("ngd.ray.run_elastic: %s; %d restarts are left", why, restarts_left)

    def close(self) -> None:
        """End all actors."""
        for place in list(self.places.values()):
            if place.ready:
                self._got(place, place.actor.close.remote())
            self._forget(place)

    def _gather(self) -> list[Place]:
        """The hosts of the next world: those that are ready. The first one waits for all."""
        limit = time.monotonic() + self.deadline
        while True:
            self._look()
            ready = [place for place in self.places.values() if place.ready]
            late = time.monotonic() > limit
            if len(ready) >= self.least and (self.worlds or len(ready) == len(self.places) or late):
                return ready[: self.most]
            if late:
                raise WorkerError(
                    f"ngd.ray.run_elastic: expected {self.least} hosts with {self.ranks} free "
                    f"CPUs; there are {len(ready)} in {self.deadline:g} s"
                )
            time.sleep(LOOKS_EACH)

    def _look(self) -> None:
        """Ask Ray for its nodes: take in new ones, forget those that are gone."""
        alive = {
            node["NodeID"]: node["NodeManagerAddress"]
            for node in ray.nodes()
            if node["Alive"] and node["Resources"].get("CPU", 0) >= self.ranks
        }
        for place in list(self.places.values()):
            if place.node not in alive:
                self._lose(place, "its node is gone")
        for node in alive.keys() - self.places.keys():
            self._start(node, alive[node])
        for place in list(self.places.values()):
            if not place.ready and ray.wait([place.begun], timeout=0)[0]:
                place.ready = self._got(place, place.begun) is not None

    def _start(self, node: str, address: str) -> None:
        """Have Ray make the actor of a host, now or when its CPUs are free."""
        if any(place.address == address for place in self.places.values()):
            raise WorkerError(f"ngd.ray.run_elastic: two nodes have the address {address}")
        name = f"host {next(self.numbers)}"
        actor = (
            ray.remote(Host)
            .options(
                name=name,
                namespace=self.namespace,
                num_cpus=self.ranks,
                max_concurrency=8,  # `run` lasts
                scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
            )
            .remote(os.getcwd(), self.environment)
        )
        self.places[node] = Place(node, address, actor, name, actor.begin.remote())

    def _world(self, world: list[Place]) -> str | None:
        """Start the ranks, and watch until they have ended; why they failed."""
        addresses = [place.address for place in world]
        size = self.ranks * len(world)
        told = {
            "NGD_ELASTIC_HOSTS": "1",
            "NGD_EXPECT_SIZE": str(size),
            "NGD_RESTART_COUNT": str(self.worlds),
            **self.environment,
        }
        self.worlds += 1
        logger.info("ngd.ray.run_elastic: world %d: %d ranks on %s", self.worlds, size, addresses)
        arguments = ["--host", ",".join(f"{address}:{self.ranks}" for address in addresses)]
        arguments += ["-np", str(size), "--bind-to", "none"]
        for name, value in told.items():
            arguments += [] if name.startswith("OMPI_") else ["-x", f"{name}={value}"]
        cluster = {
            daemon.CLUSTER: ray.get_runtime_context().gcs_address,
            daemon.NAMESPACE: self.namespace,
            daemon.HOSTS: json.dumps({place.address: place.name for place in world}),
        }
        code = world[0].actor.lead.remote([*arguments, *self.command], cluster)
        announced = False
        while not ray.wait([code], timeout=LOOKS_EACH)[0]:
            self._look()
            if gone := [place for place in world if place.node not in self.places]:
                return f"{', '.join(place.address for place in gone)} lost"
            new = [p for p in self.places.values() if p.ready and p not in world]
            if new and not announced and len(world) < self.most:
                logger.info("ngd.ray.run_elastic: %s wait", [p.address for p in new])
                for each in world:
                    self._got(each, each.actor.announce.remote())
                announced = True
        returned = self._got(world[0], code)
        if returned is None:
            return f"{addresses[0]}, where mpirun ran, lost"
        return f"mpirun returned {returned}" if returned else None

    def _got(self, place: Place, answer: Any) -> Any:
        """What a host answers; None, and it is forgotten, where it is lost or late."""
        try:
            return ray.get(answer, timeout=ANSWER_SECONDS)
        except GetTimeoutError:
            self._lose(place, f"did not answer in {ANSWER_SECONDS:g} s")
        except RayError as error:
            if isinstance(getattr(error, "cause", None), WorkerError):
                raise
            self._lose(place, f"{type(error).__name__}: {error}".partition("\n")[0])
        return None

    def _lose(self, place: Place, why: str) -> None:
        if place.ready:
            logger.warning("ngd.ray.run_elastic: %s is lost: %s", place.address, why)
        self._forget(place)

    def _forget(self, place: Place) -> None:
        self.places.pop(place.node, None)
        with contextlib.suppress(RayError):
            ray.kill(place.actor)


__all__ = ["run_elastic"]
