# SPDX-License-Identifier: Apache-2.0
"""A data-parallel job between hosts that goes on without a lost one, and takes in new ones.

MPI cannot lose a rank. So Ray says which hosts there are, and starts what mpirun wants on them
(daemon.py, in the place of ssh); inside a world ranks speak by MPI. Where a host is lost, or a new
one waits, the world ends and the next one starts, from the newest commit that a host still has
(`ngd.horovod.torch.elastic`).
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import re
import secrets
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ..comm.calls import build_info
from ..comm.membership import AGAIN, HOSTS_WAIT
from ..errors import WorkerError
from . import daemon, guard

logger = logging.getLogger("ngd")

LOOKS_EACH: Final = 1.0
"""Seconds between two looks at the hosts of the cluster."""
ANSWER_SECONDS: Final = 20.0
"""In which a host answers that is asked to clear up; else it is lost."""
OTHER_LAUNCHERS: Final = ("SLURM_", "PBS_", "LSB_", "FLUX_", "PMI", "OMPI_COMM_", "PRTE_MCA_ess")
"""How variables begin that would tell mpirun of another job."""
OWN: Final = ("NGD_ELASTIC_DIR", "NGD_ELASTIC_HOSTS", "NGD_EXPECT_SIZE", "NGD_RESTART_COUNT")
"""Variables of ranks that the job alone sets."""
WORLD: Final = "world"
"""The folder, in that of a host, of what a world leaves behind: temporary files, and marks."""
RANK: Final = f"""
: "${{OMPI_MCA_btl_sm_backing_directory:=$NGD_ELASTIC_DIR/{WORLD}}}"
export OMPI_MCA_btl_sm_backing_directory
: >"$NGD_ELASTIC_DIR/{WORLD}/begun-$OMPI_COMM_WORLD_RANK"
"$@" || exit
: >"$NGD_ELASTIC_DIR/{WORLD}/ended-$OMPI_COMM_WORLD_RANK"
"""
"""What the shell of each rank does: it marks that the rank has begun, and that it has ended well.

mpirun passes variables OMPI_... of its own host on to all; so this one is set here.
"""


class Host:
    """The actor of a host: runs mpirun, or what mpirun wants there; its ranks are their children.

    Its folder is NGD_ELASTIC_DIR of these ranks. They keep their commits there, and there they see
    that new hosts wait (members.hosts_wait), and say that they have ended for them. A guard
    (guard.py) clears up should this process be killed.
    """

    def __init__(
        self, directory: str, environment: Mapping[str, str], ranks: int, cpus: int
    ) -> None:
        self.directory, self.ranks = directory, ranks
        kept = {k: v for k, v in os.environ.items() if not k.startswith(OTHER_LAUNCHERS)}
        path = f"{Path(sys.executable).parent}:{kept.get('PATH', os.defpath)}"
        own = {"PATH": path, "NGD_THREADS": str(cpus), "OMP_NUM_THREADS": str(cpus)}
        if os.getuid() == 0:  # as in most containers
            own |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        self.environment = kept | own | dict(environment)
        self.running: list[subprocess.Popen[bytes]] = []
        self.over = 0
        """The number of the newest world that has ended."""
        self.lock = threading.Lock()
        """Held while processes of a world are started or ended."""

    def begin(self) -> tuple[str, str]:
        """Be ready; the host's name, which is its own, and its mpirun, which all hosts have.

        WorkerError where something is missing that ranks need.
        """
        if not Path(self.directory).is_dir():
            raise WorkerError(
                f"expected a directory {self.directory}, as on the driver; got none. Create it on "
                "each host."
            )
        if (mode := build_info()["mode"]) != "OMPI":
            raise WorkerError(
                f"expected an ngd of mode OMPI; got mode {mode}. Install such a build on each host."
            )
        mpirun = shutil.which("mpirun", path=self.environment["PATH"])
        version = _version(mpirun, self.environment) if mpirun else "none"
        if mpirun is None or not re.search(r"\(Open MPI\) ([5-9]|\d\d)", version):
            raise WorkerError(
                f"expected mpirun of Open MPI 5 in PATH; got {version}. Install it on each host."
            )
        self.mpirun = mpirun
        where = self.environment.get("TMPDIR") or None
        self.folder = tempfile.mkdtemp(prefix="ngd-elastic-", dir=where)
        self.guard = subprocess.Popen(
            [sys.executable, "-I", "-S", guard.__file__, self.folder],
            stdin=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.guard.wait()  # its child goes on
        self.world = Path(self.folder, WORLD)
        self.environment |= {"NGD_ELASTIC_DIR": self.folder, "TMPDIR": str(self.world)}
        return socket.gethostname(), f"{mpirun}, {version}"

    def lead(self, world: int, arguments: Sequence[str], cluster: Mapping[str, str]) -> int:
        """Run mpirun with these arguments; its exit code. `cluster` is for daemon.py."""
        agent = Path(self.folder, "agent")
        line = shlex.join([sys.executable, daemon.__file__])
        agent.write_text(f'#!/bin/sh\nexec {line} "$@"\n')
        agent.chmod(0o700)
        settings = ["--prtemca", "plm_ssh_agent", str(agent), "--leave-session-attached"]
        settings += ["--prtemca", "plm_ssh_no_tree_spawn", "1"]  # other hosts have no agent
        return self.run(world, [self.mpirun, *settings, *arguments], cluster)

    def run(self, world: int, command: Sequence[str], more: Mapping[str, str] = {}) -> int:
        """Run a command in a session of its own, with more variables; its exit code.

        WorkerError where the world that it is for has ended.
        """
        with self.lock:
            if world <= self.over:
                raise WorkerError(
                    f"ngd.ray.run_elastic: expected a world after {self.over}; got world {world}, "
                    "which has ended"
                )
            self.world.mkdir(exist_ok=True)
            process = subprocess.Popen(
                command,
                cwd=self.directory,
                env={**self.environment, **more},
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
            self.running.append(process)
            self._tell_guard("+", process)
        return process.wait()

    def begun(self) -> bool:
        """Whether all ranks of the world have begun here."""
        return len(list(self.world.glob("begun-*"))) == self.ranks

    def announce(self) -> bool:
        """Let the ranks see that new hosts wait."""
        Path(self.folder, HOSTS_WAIT).touch()
        return True

    def end_world(self, world: int) -> tuple[bool, bool]:
        """Leave nothing of it; whether all ranks ended well here, and whether for new hosts."""
        with self.lock:
            self.over = world
            for process in self.running:
                guard.end_session(process.pid)
                self._tell_guard("-", process)
            self.running.clear()
        well = len(list(self.world.glob("ended-*"))) == self.ranks
        shutil.rmtree(self.world, ignore_errors=True)
        asked = Path(self.folder, AGAIN).exists()
        for name in (AGAIN, HOSTS_WAIT):
            Path(self.folder, name).unlink(missing_ok=True)
        return well, asked

    def close(self) -> None:
        """Leave nothing at all."""
        self.end_world(sys.maxsize)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.guard.communicate()

    def _tell_guard(self, sign: str, process: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(BrokenPipeError):  # somebody killed it: the ranks run on
            print(f"{sign}{process.pid}", file=self.guard.stdin, flush=True)


def _version(mpirun: str, environment: Mapping[str, str]) -> str:
    """What mpirun says of itself."""
    done = subprocess.run(
        [mpirun, "--version"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=ANSWER_SECONDS,
    )
    return done.stdout.partition("\n")[0]


@dataclass(eq=False)
class Place:
    """A host, as the driver has it."""

    node: str
    address: str
    actor: Any
    name: str
    """Of the actor."""
    begun: Any
    """What becomes of Host.begin."""
    told: tuple[str, str] | None = None
    """What it has told, once it is ready."""

    @property
    def ready(self) -> bool:
        """Whether it can take part in a world."""
        return self.told is not None


def run_elastic(
    command: Sequence[str],
    *,
    ranks: int,
    cpus: int = 1,
    min_hosts: int = 1,
    max_hosts: int | None = None,
    max_restarts: int = 0,
    environment: Mapping[str, str] | None = None,
    deadline: float = 60.0,
) -> None:  # long because each argument is described
    """Run a script on the hosts of a Ray cluster, with whichever of them are there.

    It is started by Open MPI, with `ranks` ranks on each host, whose cores Ray keeps for them. The
    script trains in `ngd.horovod.torch.elastic.run`. Where a host is lost or a rank fails, all
    ranks are started again on the hosts that are left, and go on from the newest commit. Where a
    new host comes, they end at the next commit, and are started again with it. A new host that
    cannot be used is left out. Each event is logged, by the logger "ngd".

    Parameters
    ----------
    command
        A program and its arguments; a script that ends in .py is run by this Python. It is found
        on each host in this process's working directory.
    ranks
        Of each host.
    cpus
        Of each rank: so many CPUs of Ray's are asked for, and so many threads compute.
    min_hosts
        With fewer, new ones are waited for until the deadline.
    max_hosts
        More stand ready until others are lost: Ray keeps their CPUs, too. None: all take part.
    max_restarts
        How often the ranks may be started again after a failure; new hosts do not count.
    environment
        Variables for the ranks, and settings of Open MPI (OMPI_MCA_...).
    deadline
        Seconds in which `min_hosts` hosts are to be there, and then the ranks of a world to begin.

    Raises
    ------
    WorkerError
        There are too few hosts, one of the first cannot be used, or no restart is left.
    """
    given, most = dict(environment or {}), sys.maxsize if max_hosts is None else max_hosts
    _check_words(command, given)
    if min(ranks, cpus, max_restarts + 1) < 1 or not 1 <= min_hosts <= most or not deadline > 0:
        raise ValueError(
            "ngd.ray.run_elastic: expected ranks, cpus >= 1, 1 <= min_hosts <= max_hosts, "
            f"max_restarts >= 0, deadline > 0; got {ranks}, {cpus}, {min_hosts}, {max_hosts}, "
            f"{max_restarts}, {deadline}"
        )
    line = [sys.executable, *command] if command[0].endswith(".py") else list(command)
    job = _Job(line, (ranks, cpus), (min_hosts, most), given, deadline)
    try:
        job.run(max_restarts)
    finally:
        job.close()


def _check_words(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Refuse what is no command line, and what is no environment, by name."""
    where = "ngd.ray.run_elastic"
    if isinstance(command, str) or not all(isinstance(word, str) for word in command):
        raise TypeError(f"{where}: command: expected a list of strings; got {command!r}")
    if not command:
        raise ValueError(f"{where}: command: expected a program; got {command!r}")
    for name, value in environment.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"{where}: environment: expected strings; got {name!r}: {value!r}")
        if name in OWN:
            raise ValueError(
                f"{where}: environment: expected other variables than {name}; got it, but the job "
                "sets it itself. Remove it."
            )


class _Job:
    """The driver: the hosts that there are, and one world after the other."""

    def __init__(
        self,
        command: list[str],
        ranks: tuple[int, int],
        hosts: tuple[int, int],
        environment: dict[str, str],
        deadline: float,
    ) -> None:
        self.command, self.environment, self.deadline = command, environment, deadline
        self.ranks, self.cpus = ranks  # of a host, and of a rank
        self.least, self.most = hosts
        self.namespace = f"ngd-{secrets.token_hex(8)}"
        self.places: dict[str, Place] = {}
        """By Ray's name of the node."""
        self.left_out: set[str] = set()
        """Nodes that cannot be used."""
        self.numbers = itertools.count()
        self.worlds = 0

    def run(self, restarts_left: int) -> None:
        """Make worlds until one has finished."""
        while True:
            world = self._gather()
            why = self._world(world)
            asked = [place.actor.end_world.remote(self.worlds) for place in world]
            ends = [self._got(place, end) for place, end in zip(world, asked, strict=True)]
            failed = [p.address for p, end in zip(world, ends, strict=True) if not (end and end[0])]
            if why is None and failed:  # mpirun may return 0 in the middle of it
                why = f"not all ranks on {', '.join(failed)} ended well"
            if why is None:
                if not any(again for _, again in ends):
                    return
                logger.info("ngd.ray.run_elastic: new hosts come in")
                continue
            if restarts_left == 0:
                raise WorkerError(
                    f"ngd.ray.run_elastic: expected a job without failures; got {why}, and no "
                    "restart is left. Raise max_restarts."
                )
            restarts_left -= 1
            logger.warning("ngd.ray.run_elastic: %s; %d restarts are left", why, restarts_left)

    def close(self) -> None:
        """End all actors; what a guard does for one that is not ready, or does not answer."""
        closed = [(each, each.actor.close.remote()) for each in self.places.values() if each.ready]
        try:
            for place, answer in closed:
                self._got(place, answer)
        finally:
            for place in list(self.places.values()):
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
                    f"ngd.ray.run_elastic: expected {self.least} hosts with "
                    f"{self.ranks * self.cpus} free CPUs; got {len(ready)} in "
                    f"{self.deadline:g} s. Add hosts, or lower min_hosts."
                )
            time.sleep(LOOKS_EACH)

    def _look(self) -> None:
        """Ask Ray for its nodes: take in new ones, forget those that are gone."""
        alive = {
            node["NodeID"]: node["NodeManagerAddress"]
            for node in ray.nodes()
            if node["Alive"] and node["Resources"].get("CPU", 0) >= self.ranks * self.cpus
        }
        for place in list(self.places.values()):
            if place.node not in alive:
                self._lose(place, "its node is gone")
                self.left_out -= {n for n, address in alive.items() if address == place.address}
        for node in alive.keys() - self.places.keys() - self.left_out:
            self._start(node, alive[node])
        for place in list(self.places.values()):
            if not place.ready and ray.wait([place.begun], timeout=0)[0]:
                self._take_in(place)

    def _start(self, node: str, address: str) -> None:
        """Have Ray make the actor of a host, now or when its CPUs are free."""
        for old in [place for place in self.places.values() if place.address == address]:
            self.left_out.add(old.node)  # a host that comes again, before Ray sees that it went
            self._lose(old, "another node has its address")
        name = f"host {next(self.numbers)}"
        actor = (
            ray.remote(Host)
            .options(
                name=name,
                namespace=self.namespace,
                num_cpus=self.ranks * self.cpus,
                max_concurrency=8,  # `run` lasts
                scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
            )
            .remote(os.getcwd(), self.environment, self.ranks, self.cpus)
        )
        self.places[node] = Place(node, address, actor, name, actor.begin.remote())

    def _take_in(self, place: Place) -> None:
        """Count a host in that has begun; before the first world it is an error if it cannot."""
        try:
            told = self._got(place, place.begun)
            why = self._unlike_others(told) if told else None
        except RayTaskError as error:
            why = str(error.cause)
        if why is None:
            place.told = told
            return
        if not self.worlds:
            raise WorkerError(f"ngd.ray.run_elastic: {place.address}: {why}")
        self._lose(place, why)

    def _unlike_others(self, told: tuple[str, str]) -> str | None:
        """Why a host that has told this can be in no world with those that are ready."""
        name, mpirun = told
        for other in self.places.values():
            if other.told and other.told[0] == name:
                return f"{other.address} has the same host name, {name}"
            if other.told and other.told[1] != mpirun:
                return f"expected {other.told[1]}, as {other.address} has; it has {mpirun}"
        return None

    def _world(self, world: list[Place]) -> str | None:
        """Start the ranks, and watch until they have ended; why they failed."""
        code = self._start_ranks(world)
        limit = time.monotonic() + self.deadline
        begun = announced = False
        while not ray.wait([code], timeout=LOOKS_EACH)[0]:
            self._look()
            if gone := [p.address for p in world if self.places.get(p.node) is not p]:
                return f"{', '.join(gone)} lost"
            if not begun and time.monotonic() > limit:
                late = [p.address for p in world if not self._got(p, p.actor.begun.remote())]
                if late:
                    return f"ranks on {', '.join(late)} did not begin in {self.deadline:g} s"
                begun = True
            new = [p for p in self.places.values() if p.ready and p not in world]
            if new and not announced and len(world) < self.most:
                logger.info("ngd.ray.run_elastic: %s wait", [p.address for p in new])
                for each in world:
                    self._got(each, each.actor.announce.remote())
                announced = True
        returned = self._got(world[0], code)
        if returned is None:
            return f"{world[0].address}, where mpirun ran, lost"
        return f"mpirun returned {returned}" if returned else None

    def _start_ranks(self, world: list[Place]) -> Any:
        """Have the first host run mpirun for a new world; what becomes of it."""
        addresses = [place.address for place in world]
        size = self.ranks * len(world)
        told = {"NGD_ELASTIC_HOSTS": "1", "NGD_EXPECT_SIZE": str(size)}
        told["NGD_RESTART_COUNT"] = str(self.worlds)
        self.worlds += 1
        logger.info("ngd.ray.run_elastic: world %d: %d ranks on %s", self.worlds, size, addresses)
        arguments = ["--host", ",".join(f"{address}:{self.ranks}" for address in addresses)]
        arguments += ["-np", str(size), "--bind-to", "none"]
        for name, value in told.items():  # what is the user's the actors have
            arguments += ["-x", f"{name}={value}"]
        arguments += ["/bin/sh", "-c", RANK, "rank", *self.command]
        cluster = {
            daemon.CLUSTER: ray.get_runtime_context().gcs_address,
            daemon.NAMESPACE: self.namespace,
            daemon.HOSTS: json.dumps({place.address: place.name for place in world}),
            daemon.WORLD: str(self.worlds),
        }
        return world[0].actor.lead.remote(self.worlds, arguments, cluster)

    def _got(self, place: Place, answer: Any) -> Any:
        """What a host answers; None, and it is forgotten, where it is lost or late."""
        try:
            return ray.get(answer, timeout=ANSWER_SECONDS)
        except GetTimeoutError:
            self._lose(place, f"did not answer in {ANSWER_SECONDS:g} s")
        except RayTaskError:  # the host lives
            raise
        except RayError as error:
            self._lose(place, f"{type(error).__name__}: {error}".partition("\n")[0])
        return None

    def _lose(self, place: Place, why: str) -> None:
        """Go on without a host; one that never was ready is not tried again."""
        if self.places.get(place.node) is not place:
            return
        if not place.ready:
            self.left_out.add(place.node)
        what = "lost" if place.ready else "left out"
        logger.warning("ngd.ray.run_elastic: %s is %s: %s", place.address, what, why)
        self._forget(place)

    def _forget(self, place: Place) -> None:
        """End its actor, and by its guard what it has started."""
        if self.places.get(place.node) is place:
            del self.places[place.node]
        with contextlib.suppress(RayError):
            ray.kill(place.actor)


__all__ = ["run_elastic"]
