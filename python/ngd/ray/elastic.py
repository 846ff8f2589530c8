# SPDX-License-Identifier: Apache-2.0
"""A data-parallel job on several hosts that survives the loss of a host and adds new hosts.

MPI cannot continue after the loss of a rank, so the job is a sequence of worlds. Ray reports the
available hosts and runs on them what mpirun would start by ssh (daemon.py). Within a world, the
ranks communicate by MPI. If a host is lost or a new host waits, the world ends. The next world
starts from the newest commit that a host still has. A commit is a copy of the training state, which
`ngd.horovod.torch.elastic` writes to a file of each host.
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

POLL_SECONDS: Final = 1.0
"""The time between two checks of the hosts of the cluster, in seconds."""
ANSWER_SECONDS: Final = 20.0
"""The longest time in seconds for the answer of a host. A host that does not answer is dropped."""
OTHER_LAUNCHERS: Final = ("SLURM_", "PBS_", "LSB_", "FLUX_", "PMI", "OMPI_COMM_", "PRTE_MCA_ess")
"""The prefixes of the environment variables of other launchers. Commands on a host do not inherit
them, because they would describe another job to mpirun."""
RESERVED: Final = ("NGD_ELASTIC_DIR", "NGD_ELASTIC_HOSTS", "NGD_EXPECT_SIZE", "NGD_RESTART_COUNT")
"""The environment variables of the ranks that ngd sets and the user must not set."""
WORLD: Final = "world"
"""The name of the folder, within a host's folder, for the temporary files of a world. Each world
uses the same name. The script RANK, which runs a rank, creates two empty files there: one when the
rank starts, and one when the rank ends without an error."""
RANK: Final = f"""
: "${{OMPI_MCA_btl_sm_backing_directory:=$NGD_ELASTIC_DIR/{WORLD}}}"
export OMPI_MCA_btl_sm_backing_directory
: >"$NGD_ELASTIC_DIR/{WORLD}/begun-$OMPI_COMM_WORLD_RANK"
"$@" || exit
: >"$NGD_ELASTIC_DIR/{WORLD}/ended-$OMPI_COMM_WORLD_RANK"
"""
"""The shell script that runs each rank. It creates an empty file as a mark when the rank starts,
and another one when the rank ends without an error.

The script also sets the directory for Open MPI's shared memory, whose path is different on each
host. If the environment of mpirun set the directory, all hosts would get the path of one host,
because mpirun sends its OMPI_... variables to all hosts."""


class Host:
    """The actor of a host, which runs commands there.

    The actor of the first host of a world runs mpirun. The actors of the other hosts run the
    commands by which mpirun starts ranks there (`ngd.ray.daemon`).

    NGD_ELASTIC_DIR is the folder of the host, in which the ranks store their commits: copies of the
    training state. The actor creates the file HOSTS_WAIT there to notify the ranks that new hosts
    wait to join the next world. If the ranks end to let these hosts join, they create the file
    AGAIN there. If the process of the actor is killed, another process on the host, the guard
    (`ngd.ray.guard`), ends the ranks and removes the folder.
    """

    def __init__(
        self, directory: str, environment: Mapping[str, str], ranks: int, cpus: int
    ) -> None:
        self.directory, self.ranks = directory, ranks
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(OTHER_LAUNCHERS)}
        path = f"{Path(sys.executable).parent}:{inherited.get('PATH', os.defpath)}"
        overrides = {"PATH": path, "NGD_THREADS": str(cpus), "OMP_NUM_THREADS": str(cpus)}
        if os.getuid() == 0:  # the usual user in a container
            overrides |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        self.environment = inherited | overrides | dict(environment)
        self.running: list[subprocess.Popen[bytes]] = []
        self.last_ended_world = 0
        """The number of the newest world (ranks that mpirun started together) that has ended."""
        self.lock = threading.Lock()
        """A lock that is held while processes of a world are started or ended."""

    def begin(self) -> tuple[str, str]:
        """Prepare the host. Return its name, and the path and version of its mpirun.

        Hosts must have different names and the same mpirun.

        Raises
        ------
        WorkerError
            This host has no directory with the path of the driver's working directory, no ngd that
            was built for Open MPI (mode OMPI), or no Open MPI 5.
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
        self.guard.wait()  # ends at once; the guard's child continues
        self.world = Path(self.folder, WORLD)
        self.environment |= {"NGD_ELASTIC_DIR": self.folder, "TMPDIR": str(self.world)}
        return socket.gethostname(), f"{mpirun}, {version}"

    def lead(self, world: int, arguments: Sequence[str], cluster: Mapping[str, str]) -> int:
        """Run mpirun on this host, to start ranks on this and other hosts; return its exit code.

        `world` counts the calls of mpirun in the job, from 1. `arguments` are those of mpirun.
        mpirun calls daemon.py to run commands on the other hosts. `cluster` has the environment
        variables that daemon.py reads.
        """
        agent = Path(self.folder, "agent")
        line = shlex.join([sys.executable, daemon.__file__])
        agent.write_text(f'#!/bin/sh\nexec {line} "$@"\n')
        agent.chmod(0o700)
        settings = ["--prtemca", "plm_ssh_agent", str(agent), "--leave-session-attached"]
        settings += ["--prtemca", "plm_ssh_no_tree_spawn", "1"]  # other hosts have no agent
        return self.run(world, [self.mpirun, *settings, *arguments], cluster)

    def run(self, world: int, command: Sequence[str], more: Mapping[str, str] = {}) -> int:
        """Run a command in a new POSIX session and return its exit code.

        The environment of the command is that of the host, plus the variables in `more`.

        Raises
        ------
        WorkerError
            World number `world` (the ranks of one call of mpirun) has already been ended.
        """
        with self.lock:
            if world <= self.last_ended_world:
                raise WorkerError(
                    f"ngd.ray.run_elastic: expected a world after {self.last_ended_world}; got "
                    f"world {world}, which has ended"
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

    def has_started(self) -> bool:
        """Return True if all ranks of this host have started, since the last `end_world`."""
        return len(list(self.world.glob("begun-*"))) == self.ranks

    def announce(self) -> bool:
        """Create the file HOSTS_WAIT, which notifies the ranks that new hosts wait to join."""
        Path(self.folder, HOSTS_WAIT).touch()
        return True

    def end_world(self, world: int) -> tuple[bool, bool]:
        """End all processes of a world (the ranks of one call of mpirun) and remove its files.

        Returns
        -------
        tuple of bool
            Two booleans. The first is True if all ranks on this host ended without an error. The
            second is True if the ranks ended to let new hosts join the next world.
        """
        with self.lock:
            self.last_ended_world = world
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
        """End all processes that this actor has started, and remove the folder of the host."""
        self.end_world(sys.maxsize)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.guard.communicate()

    def _tell_guard(self, sign: str, process: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(BrokenPipeError):  # a killed guard does not stop the ranks
            print(f"{sign}{process.pid}", file=self.guard.stdin, flush=True)


def _version(mpirun: str, environment: Mapping[str, str]) -> str:
    """Return the first line of `mpirun --version`."""
    done = subprocess.run(
        [mpirun, "--version"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=ANSWER_SECONDS,
    )
    return done.stdout.partition("\n")[0]


@dataclass(eq=False)
class HostRecord:
    """The driver's record of a host."""

    node: str
    address: str
    actor: Any
    name: str
    """The name of the Ray actor that runs commands on the host, such as `host 0`."""
    begin_ref: Any
    """The reference to the result of `Host.begin`."""
    identity: tuple[str, str] | None = None
    """The result of `Host.begin`: the name of the host, and a text with the path and version of its
    mpirun. None until the host is ready."""

    @property
    def is_ready(self) -> bool:
        """True if `Host.begin` has succeeded, so that ranks can be started on the host."""
        return self.identity is not None


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
    """Run a script on the hosts of a Ray cluster, and continue when hosts are lost or added.

    Open MPI starts `ranks` ranks on each host, and Ray reserves the cores for them. The script
    trains in a function that `ngd.horovod.torch.elastic.run` wraps, and saves its state by commits.
    If a host is lost or a rank fails, all ranks are started again on the remaining hosts, and
    continue from the newest commit. If a new host joins the cluster, the ranks end at the next
    commit, and are started again with it. A new host that cannot be used is left out. The logger
    "ngd" reports each event.

    Parameters
    ----------
    command : sequence of str
        A program and its arguments. A script whose name ends in .py is run by this Python. Each
        host runs the command in the directory that is the working directory of this process.
    ranks : int
        The number of ranks per host.
    cpus : int
        The number of CPUs that Ray reserves per rank, and the number of threads of each rank.
    min_hosts : int
        The smallest number of hosts. With fewer hosts, the job waits for new ones until the
        deadline.
    max_hosts : int, optional
        The largest number of hosts in a world. Additional hosts wait until others are lost, and Ray
        reserves their CPUs too. By default all hosts take part.
    max_restarts : int
        The number of times that the ranks may be started again after a failure. Restarts for new
        hosts are not counted.
    environment : mapping of str to str, optional
        Environment variables for the ranks, including settings of Open MPI (OMPI_MCA_...).
    deadline : float
        The longest time in seconds to wait for `min_hosts` hosts, and then for the start of the
        ranks of a world.

    Raises
    ------
    WorkerError
        There are too few hosts, one of the first hosts cannot be used, or no restart is left.
    """
    variables, host_limit = dict(environment or {}), sys.maxsize if max_hosts is None else max_hosts
    _check_words(command, variables)
    if (
        min(ranks, cpus, max_restarts + 1) < 1
        or not 1 <= min_hosts <= host_limit
        or not deadline > 0
    ):
        raise ValueError(
            "ngd.ray.run_elastic: expected ranks, cpus >= 1, 1 <= min_hosts <= max_hosts, "
            f"max_restarts >= 0, deadline > 0; got {ranks}, {cpus}, {min_hosts}, {max_hosts}, "
            f"{max_restarts}, {deadline}"
        )
    line = [sys.executable, *command] if command[0].endswith(".py") else list(command)
    job = _Job(line, (ranks, cpus), (min_hosts, host_limit), variables, deadline)
    try:
        job.run(max_restarts)
    finally:
        job.close()


def _check_words(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Raise a TypeError or a ValueError if the user's command or environment is not valid.

    The command must be a sequence of at least one string. The environment must map strings to
    strings, without the variables in RESERVED, which ngd sets itself.
    """
    where = "ngd.ray.run_elastic"
    if isinstance(command, str) or not all(isinstance(word, str) for word in command):
        raise TypeError(f"{where}: command: expected a list of strings; got {command!r}")
    if not command:
        raise ValueError(f"{where}: command: expected a program; got {command!r}")
    for name, value in environment.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"{where}: environment: expected strings; got {name!r}: {value!r}")
        if name in RESERVED:
            raise ValueError(
                f"{where}: environment: expected other variables than {name}; got it, but the job "
                "sets it itself. Remove it."
            )


class _Job:
    """The driver of an elastic job: its hosts, and the worlds (sets of ranks) that it starts."""

    def __init__(
        self,
        command: list[str],
        ranks: tuple[int, int],
        hosts: tuple[int, int],
        environment: dict[str, str],
        deadline: float,
    ) -> None:
        self.command, self.environment, self.deadline = command, environment, deadline
        self.ranks, self.cpus = ranks  # ranks per host, and CPUs per rank
        self.least, self.host_limit = hosts
        self.namespace = f"ngd-{secrets.token_hex(8)}"
        self.hosts: dict[str, HostRecord] = {}
        """The hosts, by Ray's ID of the node."""
        self.left_out: set[str] = set()
        """Ray's IDs of the nodes that cannot be used."""
        self.numbers = itertools.count()
        self.worlds = 0

    def run(self, restarts_left: int) -> None:
        """Start the ranks, if necessary again, until all of them have ended without an error.

        A world is the ranks that mpirun starts together on the hosts that are ready. If its ranks
        end to let new hosts join, start another world. After a failure, start another world if a
        restart is left, and otherwise raise WorkerError.
        """
        while True:
            world = self._gather()
            reason = self._world(world)
            asked = [host.actor.end_world.remote(self.worlds) for host in world]
            ends = [self._answer_of(host, end) for host, end in zip(world, asked, strict=True)]
            failed = [p.address for p, end in zip(world, ends, strict=True) if not (end and end[0])]
            if reason is None and failed:  # mpirun may return 0 although ranks have not ended
                reason = f"not all ranks on {', '.join(failed)} ended with status 0"
            if reason is None:
                if not any(again for _, again in ends):
                    return
                logger.info("ngd.ray.run_elastic: new hosts join")
                continue
            if restarts_left == 0:
                raise WorkerError(
                    f"ngd.ray.run_elastic: expected a job without failures; got {reason}, and no "
                    "restart is left. Raise max_restarts."
                )
            restarts_left -= 1
            logger.warning("ngd.ray.run_elastic: %s; %d restarts are left", reason, restarts_left)

    def close(self) -> None:
        """End all actors. If an actor does not end its ranks, its guard (`guard.py`) ends them."""
        closed = [
            (each, each.actor.close.remote()) for each in self.hosts.values() if each.is_ready
        ]
        try:
            for host, answer in closed:
                self._answer_of(host, answer)
        finally:
            for host in list(self.hosts.values()):
                self._forget(host)

    def _gather(self) -> list[HostRecord]:
        """Return the hosts of the next world: ready hosts, at most `host_limit`.

        `least` and `host_limit` are the arguments `min_hosts` and `max_hosts` of `run_elastic`.
        Wait until `least` hosts are ready. Before the first world, continue to wait until all known
        hosts are ready, or until the deadline. Raise WorkerError if fewer than `least` hosts are
        ready at the deadline.
        """
        limit = time.monotonic() + self.deadline
        while True:
            self._look()
            ready = [host for host in self.hosts.values() if host.is_ready]
            is_late = time.monotonic() > limit
            if len(ready) >= self.least and (
                self.worlds or len(ready) == len(self.hosts) or is_late
            ):
                return ready[: self.host_limit]
            if is_late:
                raise WorkerError(
                    f"ngd.ray.run_elastic: expected {self.least} hosts with "
                    f"{self.ranks * self.cpus} free CPUs; got {len(ready)} in "
                    f"{self.deadline:g} s. Add hosts, or lower min_hosts."
                )
            time.sleep(POLL_SECONDS)

    def _look(self) -> None:
        """Start an actor on each new node of Ray, and drop the hosts whose nodes are gone.

        A node is used if it has enough CPUs for all ranks of a host. When its actor has started,
        the host is ready to join a world (`_add_host`).
        """
        alive = {
            node["NodeID"]: node["NodeManagerAddress"]
            for node in ray.nodes()
            if node["Alive"] and node["Resources"].get("CPU", 0) >= self.ranks * self.cpus
        }
        for host in list(self.hosts.values()):
            if host.node not in alive:
                self._lose(host, "its node was lost")
                self.left_out -= {n for n, address in alive.items() if address == host.address}
        for node in alive.keys() - self.hosts.keys() - self.left_out:
            self._start(node, alive[node])
        for host in list(self.hosts.values()):
            if not host.is_ready and ray.wait([host.begin_ref], timeout=0)[0]:
                self._add_host(host)

    def _start(self, node: str, address: str) -> None:
        """Ask Ray to start the actor of a host as soon as its CPUs are free."""
        for old in [host for host in self.hosts.values() if host.address == address]:
            # The host has returned as a new node before Ray noticed the loss of the old node.
            self.left_out.add(old.node)
            self._lose(old, "another node has its address")
        name = f"host {next(self.numbers)}"
        actor = (
            ray.remote(Host)
            .options(
                name=name,
                namespace=self.namespace,
                num_cpus=self.ranks * self.cpus,
                max_concurrency=8,  # `run` blocks a thread while its command runs
                scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
            )
            .remote(os.getcwd(), self.environment, self.ranks, self.cpus)
        )
        self.hosts[node] = HostRecord(node, address, actor, name, actor.begin.remote())

    def _add_host(self, host: HostRecord) -> None:
        """Mark a host as ready when its actor has returned from `Host.begin`.

        If `Host.begin` raised, or `_difference_to_others` returns a reason, drop the host. If ranks
        have never been started, raise WorkerError instead.
        """
        try:
            identity = self._answer_of(host, host.begin_ref)
            reason = self._difference_to_others(identity) if identity else None
        except RayTaskError as error:
            reason = str(error.cause)
        if reason is None:
            host.identity = identity
            return
        if not self.worlds:
            raise WorkerError(f"ngd.ray.run_elastic: {host.address}: {reason}")
        self._lose(host, reason)

    def _difference_to_others(self, identity: tuple[str, str]) -> str | None:
        """Return the reason why a host cannot join the ready hosts, or None if it can.

        A host cannot join if a ready host has the same name, or another path or version of mpirun.
        `identity` is the result of `Host.begin`: the name and the mpirun of the host.
        """
        name, mpirun = identity
        for other in self.hosts.values():
            if other.identity and other.identity[0] == name:
                return f"{other.address} has the same host name, {name}"
            if other.identity and other.identity[1] != mpirun:
                return f"expected {other.identity[1]}, as {other.address} has; it has {mpirun}"
        return None

    def _world(self, world: list[HostRecord]) -> str | None:
        """Start the ranks on these hosts and wait until the ranks have ended.

        Return the reason if they have failed, and otherwise None.
        """
        code = self._start_ranks(world)
        limit = time.monotonic() + self.deadline
        has_started = has_announced = False
        while not ray.wait([code], timeout=POLL_SECONDS)[0]:
            self._look()
            if lost := [p.address for p in world if self.hosts.get(p.node) is not p]:
                return f"{', '.join(lost)} lost"
            if not has_started and time.monotonic() > limit:
                late = [
                    p.address for p in world if not self._answer_of(p, p.actor.has_started.remote())
                ]
                if late:
                    return f"ranks on {', '.join(late)} did not start in {self.deadline:g} s"
                has_started = True
            new = [p for p in self.hosts.values() if p.is_ready and p not in world]
            if new and not has_announced and len(world) < self.host_limit:
                logger.info("ngd.ray.run_elastic: new hosts %s wait", [p.address for p in new])
                for each in world:
                    self._answer_of(each, each.actor.announce.remote())
                has_announced = True
        exit_code = self._answer_of(world[0], code)
        if exit_code is None:
            return f"{world[0].address} lost, which ran mpirun"
        return f"mpirun returned {exit_code}" if exit_code else None

    def _start_ranks(self, world: list[HostRecord]) -> Any:
        """Let the first host run mpirun for all hosts; return a Ray reference to its exit code."""
        addresses = [host.address for host in world]
        size = self.ranks * len(world)
        variables = {"NGD_ELASTIC_HOSTS": "1", "NGD_EXPECT_SIZE": str(size)}
        variables["NGD_RESTART_COUNT"] = str(self.worlds)
        self.worlds += 1
        logger.info("ngd.ray.run_elastic: world %d: %d ranks on %s", self.worlds, size, addresses)
        arguments = ["--host", ",".join(f"{address}:{self.ranks}" for address in addresses)]
        arguments += ["-np", str(size), "--bind-to", "none"]
        for name, value in variables.items():  # the actors already have the user's variables
            arguments += ["-x", f"{name}={value}"]
        arguments += ["/bin/sh", "-c", RANK, "rank", *self.command]
        cluster = {
            daemon.CLUSTER: ray.get_runtime_context().gcs_address,
            daemon.NAMESPACE: self.namespace,
            daemon.HOSTS: json.dumps({host.address: host.name for host in world}),
            daemon.WORLD: str(self.worlds),
        }
        return world[0].actor.lead.remote(self.worlds, arguments, cluster)

    def _answer_of(self, host: HostRecord, answer: Any) -> Any:
        """Return the value of the Ray reference `answer`.

        If the host is lost or late, drop the host and return None.
        """
        try:
            return ray.get(answer, timeout=ANSWER_SECONDS)
        except GetTimeoutError:
            self._lose(host, f"did not answer in {ANSWER_SECONDS:g} s")
        except RayTaskError:  # an error of the task: the host is not lost
            raise
        except RayError as error:
            self._lose(host, f"{type(error).__name__}: {error}".partition("\n")[0])
        return None

    def _lose(self, host: HostRecord, reason: str) -> None:
        """Drop a host.

        If the host was not ready yet, its node is not tried again, because the node may be
        unusable. A host that was ready may return.
        """
        if self.hosts.get(host.node) is not host:
            return
        if not host.is_ready:
            self.left_out.add(host.node)
        what = "lost" if host.is_ready else "left out"
        logger.warning("ngd.ray.run_elastic: %s is %s: %s", host.address, what, reason)
        self._forget(host)

    def _forget(self, host: HostRecord) -> None:
        """Remove a host from `hosts` and kill its actor.

        The host's guard then ends the processes that the actor started.
        """
        if self.hosts.get(host.node) is host:
            del self.hosts[host.node]
        with contextlib.suppress(RayError):
            ray.kill(host.actor)


__all__ = ["run_elastic"]
