# SPDX-License-Identifier: Apache-2.0
"""Elastic jobs: how the launcher and the ranks form the next world (docs/adr/0036).

Each process of a job under `ngd run --min-ranks` is a *member*. It keeps its number, NGD_MEMBER,
while its rank changes from world to world. A *veteran* is a member that has been in a world, or
started with the job, so it has the state of the training. A *newcomer* is a member that waits for
its first world.

The next world is formed in these steps:

1. `ngd.init()` in a member notifies the launcher that the member waits, through the pipe
   NGD_LAUNCHER.
2. The launcher forms the world when all living veterans wait. Its members are all that wait,
   including newcomers. If veterans do not wait within NGD_TIMEOUT after the first one, the launcher
   kills them.
3. The launcher publishes the world in a file in NGD_ELASTIC_DIR, which it replaces atomically.
   `ngd.init()` reads the file and sets the variables of the rank.

A job over several hosts, under `ngd.ray.run_elastic`, is different. All processes of a world end
when the world ends, and `run_elastic` starts new processes for the next world. NGD_ELASTIC_DIR is
then a folder of the host, in which two files may exist. `run_elastic` creates the file HOSTS_WAIT
to notify the ranks that new hosts wait for the next world. To let these hosts join, the ranks
create the file AGAIN (`end_for_hosts`), and then end. If `run_elastic` finds AGAIN after the end of
a world, the training is not done, and `run_elastic` starts the next world.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import time
from collections.abc import MutableMapping
from typing import Final, NamedTuple

from ..errors import InitError
from .launchers.base import Environ, Launch
from .launchers.launcher_pipe import send_to_launcher
from .launchers.registry import surroundings

logger = logging.getLogger("ngd")

FILE: Final = "members.json"
"""The name of the file in NGD_ELASTIC_DIR in which `ngd run` publishes the present ranks."""
HOSTS_WAIT: Final = "hosts-wait"
"""The name of a file in NGD_ELASTIC_DIR, which exists while new hosts wait to join the job."""
AGAIN: Final = "again"
"""The name of a file in NGD_ELASTIC_DIR.

Ranks create it if they end before the training is done, so that new hosts can join.
"""
WAITS: Final = "+"
"""The first character of a message to `ngd run`.

"+3" means that process 3 waits for the next world, the new group of all ranks.
"""
RENDEZVOUS_SECONDS: Final = 20.0
"""The time limit of the rendezvous of a new world, in seconds.

All members were alive when the launcher formed the world. If one of them ends before it arrives at
the rendezvous, the other members wait for it until this limit. Then ngd.init() raises an error in
the other members. A member that arrives after the limit joins the next world.
"""
LOOKS_EACH: Final = 0.01
"""The interval, in seconds, at which a process that waits for a new world reads members.json."""


class World(NamedTuple):
    """The content of the file members.json: the present ranks, and the new processes that wait.

    `ngd run` writes this file. When ranks join or leave, all ranks form a new world, the group of
    all ranks. A member is a process of the job. A newcomer is a member that waits for its first
    world.
    """

    number: int = 0
    """The number of this world: 1 for the first world of the job, and 0 before it."""
    job: str = ""
    """The job key of this world: a text by which its ranks find each other at the rendezvous."""
    members: tuple[int, ...] = ()
    """The member numbers of the ranks, by rank. A process keeps its number when ranks change."""
    newcomers: tuple[int, ...] = ()
    """The numbers of the newcomers: members that wait for their first world."""


def read(folder: str) -> World:
    """Return the content of members.json in `folder`; an empty `World` if there is no such file."""
    try:
        with open(os.path.join(folder, FILE)) as file:
            fields = json.load(file)
    except FileNotFoundError:
        return World()
    fields["members"], fields["newcomers"] = tuple(fields["members"]), tuple(fields["newcomers"])
    return World(**fields)


def number_of(environ: Environ) -> int | None:
    """Return the number that `ngd run` gave this process of an elastic job (its member number).

    Return None if the job is not elastic. The number stays the same when ranks change.
    """
    is_foreign = environ.get("NGD_SURROUNDINGS") != surroundings(environ)
    number = environ.get("NGD_MEMBER", "")
    return int(number) if number.isdecimal() and not is_foreign else None


def member_launch(environ: Environ) -> Launch | None:
    """Return a `Launch` with the member number of this process as its rank.

    Return None if the job is not elastic. A member is a process that `ngd run` started. Its number
    never changes, but its rank may change when ranks join or leave.

    ngd.init() uses this `Launch` to find out if this process is a member, or a child of a member.
    Such a child inherits the member's environment, but must not join the job as the same member.
    So each member marks itself with a name made from this `Launch` (`mark_name`). If an ancestor of
    this process has that mark, ngd.init() raises an error.
    """
    number = number_of(environ)
    if number is None:
        return None
    key = f"members:{environ['NGD_ELASTIC_DIR']}"
    return Launch("ngd", number, number + 1, number, number + 1, key)


def join_next_world(environ: MutableMapping[str, str], timeout: float) -> None:
    """Wait for the next world (group of all ranks), and set the variables of this rank.

    A veteran is a process that has been in a world or started with the job. It waits for the other
    veterans. The launcher kills veterans that do not begin to wait within `timeout` seconds after
    the first one; 0 means no limit. All other processes of the job are newcomers. They wait without
    a limit until the veterans form a new world.

    Raise InitError if the launcher's pipe is closed, or if this process is a veteran and its wait
    exceeds a limit. The limit is `timeout` plus 10 seconds, or 1.1 * `timeout` if this is more;
    `timeout` = 0 means no limit. It is longer than `timeout`, so the launcher kills late veterans
    before this error is raised.
    """
    number, folder = number_of(environ), environ["NGD_ELASTIC_DIR"]
    last_world, is_newcomer = (
        int(environ.get("NGD_WORLD", "0")),
        environ.get("NGD_RESTART_COUNT") != "0",
    )
    if not send_to_launcher(f"{WAITS}{number}", environ):
        raise InitError(
            "ngd.init: expected an answer of `ngd run`, which starts the ranks; got none. Check "
            "that it still runs, and start the job again."
        )
    limit = (
        timeout + max(10.0, timeout / 10) if timeout and (last_world or not is_newcomer) else None
    )
    deadline = None if limit is None else time.monotonic() + limit
    while True:
        world = read(folder)
        if world.number > last_world and number in world.members:
            break
        if deadline is not None and time.monotonic() > deadline:
            raise InitError(
                f"ngd.init: expected a new world of `ngd run`; got none in {limit:.0f} s. Set "
                "NGD_TIMEOUT to more seconds if ranks start slowly."
            )
        time.sleep(LOOKS_EACH)
    rank, size = str(world.members.index(number)), str(len(world.members))
    environ["NGD_JOB"], environ["NGD_WORLD"] = world.job, str(world.number)
    environ["RANK"] = environ["LOCAL_RANK"] = rank
    environ["WORLD_SIZE"] = environ["LOCAL_WORLD_SIZE"] = size
    logger.info("member %d is rank %s of world %d: %s", number, rank, world.number, world.members)


def rendezvous_seconds(timeout: float) -> float:
    """Return the time limit of the rendezvous of a new world, in seconds.

    It is the smaller one of RENDEZVOUS_SECONDS and `timeout`, the value of NGD_TIMEOUT. If
    `timeout` is 0, the user has set no limit, and RENDEZVOUS_SECONDS is the limit.
    """
    return min(timeout, RENDEZVOUS_SECONDS) if timeout else RENDEZVOUS_SECONDS


def newcomers() -> int | None:
    """Return the number of new ranks that wait for the next world of an elastic job.

    The new ranks join when all present ranks have called ngd.shutdown() and then ngd.init(). Ranks
    that call this function at the same time may get different numbers. So combine the numbers with
    an all_reduce, for example with op="max", before an action that depends on them.

    Returns
    -------
    int or None
        The number of waiting ranks, or None if the job is not elastic.

    Examples
    --------
    >>> ngd.newcomers() is None
    True
    """
    if number_of(os.environ) is None:
        return None
    return len(read(os.environ["NGD_ELASTIC_DIR"]).newcomers)


def hosts_wait() -> bool | None:
    """Return True if new hosts wait to join the job, and False if none waits.

    The new hosts join when all ranks have ended, and `ngd.ray.run_elastic` has started ranks on all
    hosts again. Return None if the job was not started by `run_elastic`.
    """
    if os.environ.get("NGD_ELASTIC_HOSTS") != "1":
        return None
    return os.path.exists(os.path.join(os.environ["NGD_ELASTIC_DIR"], HOSTS_WAIT))


def end_for_hosts() -> None:
    """Notify `ngd.ray.run_elastic` that the ranks of this host will end so that new hosts can join.

    This function only creates the file AGAIN, which shows `run_elastic` that the training is not
    done. The caller then ends the ranks. The ranks must have saved their state before the call.
    """
    with open(os.path.join(os.environ["NGD_ELASTIC_DIR"], AGAIN), "a"):
        pass


class Board:
    """The record in `ngd run` of the living and waiting members of an elastic job.

    A member is a process of the job. The Board forms each new world, the group of all ranks, and
    writes it to the file members.json. A veteran is a member that has been in a world or started
    with the job.

    Parameters
    ----------
    folder : str
        The folder NGD_ELASTIC_DIR.
    size : int
        The number of members that start with the job.
    timeout : float
        The time, in seconds, within which all veterans must begin to wait for the next world. It
        starts when the first veteran waits. 0 means no limit.
    """

    def __init__(self, folder: str, size: int, timeout: float) -> None:
        self.folder, self.timeout = folder, timeout
        self.veterans = set(range(size))
        """The living members that have been in a world or started with the job.

        They have the state of the training. A member that waits for its first world has not.
        """
        self.waiting: set[int] = set()
        """The members that wait until a new world, the group of all ranks, is formed."""
        self.world = World()
        self.deadline: float | None = None
        """The time, by `time.monotonic`, by which all veterans must have begun to wait for a world.

        A veteran is a member with the state of the training (`veterans`). The value is None while
        no veteran waits for the next world, and always if `timeout` is 0. It is set to None again
        when a new world is formed, and when `late_members` finds that the time has passed.
        """

    def waits(self, member: int) -> World | None:
        """Record that a member waits for the next world.

        If all veterans wait now, form the new world and return it. Otherwise return None. A veteran
        is a member that has been in a world or started with the job.
        """
        self.waiting.add(member)
        return self.settle()

    def forget(self, member: int) -> None:
        """Record that a member has ended.

        If the job continues, call settle() next. It forms a new world if all other members that
        have the state of the training (`veterans`) wait already.
        """
        self.veterans.discard(member)
        self.waiting.discard(member)

    def late_members(self) -> list[int]:
        """Return the veterans that have not begun to wait for the next world by `deadline`.

        A veteran is a member that has been in a world or started with the job. The list is empty
        before the deadline. A call after the deadline returns the veterans and sets `deadline` to
        None. So later calls return an empty list until a new deadline passes.
        """
        if self.deadline is None or time.monotonic() < self.deadline:
            return []
        self.deadline = None
        return sorted(self.veterans - self.waiting)

    def settle(self) -> World | None:
        """If all veterans wait for the next world, form a new world and return it.

        Otherwise return None. A veteran is a member that has been in a world or started with the
        job. If a veteran waits, there is no deadline yet, and `timeout` is not 0, set the deadline:
        the other veterans must begin to wait within `timeout` seconds from now.

        If the waiting members that are not veterans differ from those in the file members.json,
        write the file again.
        """
        number, job, members = self.world.number, self.world.job, self.world.members
        if self.veterans and self.veterans <= self.waiting:
            members = tuple(sorted(self.waiting))
            self.world = World(number + 1, secrets.token_hex(16), members)
            self.veterans, self.waiting, self.deadline = set(members), set(), None
            self._publish()
            return self.world
        if self.deadline is None and self.timeout and self.veterans & self.waiting:
            self.deadline = time.monotonic() + self.timeout
        newcomers = tuple(sorted(self.waiting - self.veterans))
        if newcomers != self.world.newcomers:
            self.world = World(number, job, members, newcomers)
            self._publish()
        return None

    def _publish(self) -> None:
        """Replace the file members.json atomically by one with the content of `self.world`.

        Only the user of the job can write to the folder, so no other user can change the file.
        """
        path = os.path.join(self.folder, FILE)
        with open(f"{path}.part", "w") as file:
            json.dump(self.world._asdict(), file)
        os.replace(f"{path}.part", path)


__all__ = ["newcomers"]
