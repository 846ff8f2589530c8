# SPDX-License-Identifier: Apache-2.0
"""Members that come and go, under `ngd run --min-ranks` (docs/adr/0036).

Each process is a *member* with a number of its own (NGD_MEMBER). A world is made of the members
that wait for one at a time: `ngd.init()` says to the launcher that this member waits, by the pipe
NGD_LAUNCHER, and reads the answer in NGD_ELASTIC_DIR, a file that is replaced as a whole. The
launcher, which sees its processes end, answers once all that live and hold the training's state
wait; it ends those that do not come within NGD_TIMEOUT.

Between hosts a world ends with its processes, and `ngd.ray.run_elastic` starts the next one. In
NGD_ELASTIC_DIR, which each host has for itself, ranks see that new hosts wait, and say that they
have ended for them.
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
from .launchers.launcher_pipe import say_to_launcher
from .launchers.registry import surroundings

logger = logging.getLogger("ngd")

FILE: Final = "members.json"
HOSTS_WAIT: Final = "hosts-wait"
"""The file that is there while new hosts wait for the next world."""
AGAIN: Final = "again"
"""The file by which ranks say that they end for the next world, not because all is done."""
WAITS: Final = "+"
"""What a member puts before its number to say to the launcher that it waits."""
MEETING_SECONDS: Final = 20.0
"""In which the members of a world meet: all were there when it was made. Who died since is not
waited for any longer; who is that slow is in the next world."""
LOOKS_EACH: Final = 0.01
"""Seconds between two looks at the file, which has changed when the answer is there."""


class World(NamedTuple):
    """What the launcher says: the world of now, and who waits to get into the next one."""

    number: int = 0
    """Which world of the job it is, from 1; 0: there was none yet."""
    job: str = ""
    """The key by which its ranks meet."""
    members: tuple[int, ...] = ()
    """The ranks' numbers as members, in the order of the ranks."""
    newcomers: tuple[int, ...] = ()
    """Members that have been in no world, and wait."""


def read(folder: str) -> World:
    """What the launcher says now."""
    try:
        with open(os.path.join(folder, FILE)) as file:
            found = json.load(file)
    except FileNotFoundError:
        return World()
    found["members"], found["newcomers"] = tuple(found["members"]), tuple(found["newcomers"])
    return World(**found)


def number_of(environ: Environ) -> int | None:
    """Which member a process is; None where the ranks are fixed."""
    of_another = environ.get("NGD_SURROUNDINGS") != surroundings(environ)
    number = environ.get("NGD_MEMBER", "")
    return int(number) if number.isdecimal() and not of_another else None


def seat(environ: Environ) -> Launch | None:
    """A member's place in the job, whatever its rank is in the world of now; None as above."""
    number = number_of(environ)
    if number is None:
        return None
    key = f"members:{environ['NGD_ELASTIC_DIR']}"
    return Launch("ngd", number, number + 1, number, number + 1, key)


def take_place(environ: MutableMapping[str, str], timeout: float) -> None:
    """Wait for the next world, and set the environment to this member's place there.

    A member that has been in a world waits for the others of it; the launcher sees to it that this
    takes no longer than `timeout` seconds (0: for ever). A new one waits until the others want it.
    InitError where the launcher does not hear, or does not answer.
    """
    number, folder = number_of(environ), environ["NGD_ELASTIC_DIR"]
    before, new = int(environ.get("NGD_WORLD", "0")), environ.get("NGD_RESTART_COUNT") != "0"
    if not say_to_launcher(f"{WAITS}{number}", environ):
        raise InitError(
            "ngd.init: expected an answer of `ngd run`, which starts the ranks; got none. Check "
            "that it still runs, and start the job again."
        )
    patience = timeout + max(10.0, timeout / 10) if timeout and (before or not new) else None
    limit = None if patience is None else time.monotonic() + patience
    while True:
        world = read(folder)
        if world.number > before and number in world.members:
            break
        if limit is not None and time.monotonic() > limit:
            raise InitError(
                f"ngd.init: expected a new world of `ngd run`; got none in {patience:.0f} s. Set "
                "NGD_TIMEOUT to more seconds if ranks start slowly."
            )
        time.sleep(LOOKS_EACH)
    rank, size = str(world.members.index(number)), str(len(world.members))
    environ["NGD_JOB"], environ["NGD_WORLD"] = world.job, str(world.number)
    environ["RANK"] = environ["LOCAL_RANK"] = rank
    environ["WORLD_SIZE"] = environ["LOCAL_WORLD_SIZE"] = size
    logger.info("member %d is rank %s of world %d: %s", number, rank, world.number, world.members)


def to_meet(timeout: float) -> float:
    """How many seconds members are given to meet."""
    return min(timeout, MEETING_SECONDS) if timeout else MEETING_SECONDS


def newcomers() -> int | None:
    """Return the number of new ranks that wait for the next world of an elastic job.

    They join when all ranks have called ngd.shutdown() and then ngd.init(). The ranks may read
    different numbers for a moment, so let them agree by an all_reduce before they act on it.

    Returns
    -------
    int or None
        None if the ranks of the job are fixed.

    Examples
    --------
    >>> ngd.newcomers() is None
    True
    """
    if number_of(os.environ) is None:
        return None
    return len(read(os.environ["NGD_ELASTIC_DIR"]).newcomers)


def hosts_wait() -> bool | None:
    """Whether new hosts wait for the ranks to end; None where nobody would start them again."""
    if os.environ.get("NGD_ELASTIC_HOSTS") != "1":
        return None
    return os.path.exists(os.path.join(os.environ["NGD_ELASTIC_DIR"], HOSTS_WAIT))


def end_for_hosts() -> None:
    """Say that this host's ranks end for the next world. All have kept what they need."""
    with open(os.path.join(os.environ["NGD_ELASTIC_DIR"], AGAIN), "a"):
        pass


class Board:
    """The launcher's side: who lives, who waits, and what it says to them."""

    def __init__(self, folder: str, size: int, timeout: float) -> None:
        self.folder, self.timeout = folder, timeout
        self.veterans = set(range(size))
        """Who lives and has been in a world, or begins the job: they hold the training's state."""
        self.waiting: set[int] = set()
        self.world = World()
        self.deadline: float | None = None
        """Until when all veterans are to wait, once one does."""

    def waits(self, member: int) -> World | None:
        """Note that a member waits; the new world where that makes one."""
        self.waiting.add(member)
        return self.settle()

    def forget(self, member: int) -> None:
        """Note that a member has ended; settle() if the others go on."""
        self.veterans.discard(member)
        self.waiting.discard(member)

    def late(self) -> list[int]:
        """Who has not come by the deadline; asked once."""
        if self.deadline is None or time.monotonic() < self.deadline:
            return []
        self.deadline = None
        return sorted(self.veterans - self.waiting)

    def settle(self) -> World | None:
        """Make a world where all veterans wait; else say who is new."""
        number, job, members = self.world.number, self.world.job, self.world.members
        if self.veterans and self.veterans <= self.waiting:
            members = tuple(sorted(self.waiting))
            self.world = World(number + 1, secrets.token_hex(16), members)
            self.veterans, self.waiting, self.deadline = set(members), set(), None
            self._publish()
            return self.world
        if self.deadline is None and self.timeout and self.veterans & self.waiting:
            self.deadline = time.monotonic() + self.timeout
        new = tuple(sorted(self.waiting - self.veterans))
        if new != self.world.newcomers:
            self.world = World(number, job, members, new)
            self._publish()
        return None

    def _publish(self) -> None:
        """Replace the file as a whole; the folder is its owner's alone."""
        path = os.path.join(self.folder, FILE)
        with open(f"{path}.part", "w") as file:
            json.dump(self.world._asdict(), file)
        os.replace(f"{path}.part", path)


__all__ = ["newcomers"]
