# SPDX-License-Identifier: Apache-2.0
"""The job of `ngd run --min-ranks`, which continues when ranks leave or join.

Each process of the job is a member. It keeps its member number while its rank changes. A member
that calls ngd.init() waits until the launcher forms a new world, a new group of all ranks
(ngd.comm.membership). The members that wait are the ranks of this world. When a member is lost, the
other members continue. A new member replaces the lost one if --max-restarts allows that.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from typing import Final

from ..comm.membership import Board, World
from .environment import member_environment
from .job import Job, Options, Restarts
from .processes import describe_end

MAX_WAIT_SECONDS: Final = 3600.0
"""The longest wait for events. A deadline may be infinite, and `select` needs a finite time."""


class ElasticJob(Job):
    """A job that continues after the failure of a member (a process of the job).

    It continues while at least `min_ranks` members run or have ended with exit status 0.
    """

    def __init__(self, options: Options, restarts: Restarts, board: Board, min_ranks: int) -> None:
        super().__init__(options, restarts)
        self.board = board
        self.min_ranks = min_ranks
        self.num_done = 0
        """The number of members (processes of the job) that have ended with exit status 0."""

    def environment_of(self, rank: int) -> dict[str, str]:
        """Return the environment of a member, a process of this job; `rank` is its number."""
        return member_environment(rank, self.board.folder, super().environment_of(rank))

    def deadlines(self) -> list[float]:
        """Return the times at which `wait_for_events` stops waiting even if no event occurs.

        These are the times of `Job.deadlines`, and the deadline of the next world (group of all
        ranks), if there is one. By this deadline, each member that has been in a world or started
        with the job must wait in ngd.init().
        """
        deadlines = super().deadlines()
        if self.board.deadline is not None:
            deadlines.append(min(self.board.deadline, time.monotonic() + MAX_WAIT_SECONDS))
        return deadlines

    def wait_for_events(self) -> None:
        """Handle the next events. Then kill late members.

        A member, a process of the job, is late if it does not wait in ngd.init() at the deadline of
        the next world (group of all ranks). A member that replaces a failed one is never late
        before its first world.
        """
        super().wait_for_events()
        self._kill_late_members()

    def handle_waiting(self, members: Sequence[int]) -> None:
        """Record that members wait in ngd.init() for the next world, the next group of all ranks.

        A newcomer is a member that replaces a failed one and has not been in a world yet. All other
        members are veterans. Handle `members` one by one. If all veterans wait now, form the new
        world and print its members. Otherwise, if this member is a newcomer, print that it waits
        for the other members.
        """
        for member in members:
            if member not in self.ranks or self.attempt.ending is not None:
                continue
            self._announce(self.board.waits(member))
            if member in self.board.world.newcomers:
                self.say(f"member {member} waits for the other members")

    def handle_end(self, rank: int, code: int) -> None:
        """Continue or end the job after the process of a member has ended with `code`.

        `rank` is the member number, and `code` is the exit code, or -N for signal N. The job
        continues without the member, starts a replacement if that is allowed, or ends.
        """
        if self.attempt.ending is not None:
            super().handle_end(rank, code)
            return
        self.board.forget(rank)
        if code == 0:
            self.num_done += 1
        elif not self.num_done and self.restarts.left > 0:
            self._replace(rank, code)
        elif self._is_enough():
            self.say(
                f"member {rank} {describe_end(code)}; {len(self.ranks)} other members continue"
            )
        if self.attempt.ending is None:  # otherwise the replacement could not be started
            self._settle(rank, code)

    def _settle(self, rank: int, code: int) -> None:
        """End the job or continue it, after the end of a member.

        A veteran is a member that has been in a world (group of all ranks) or started with the job.
        Only veterans have the state of the training. So end the job if no veteran is left. Also end
        it if this member failed and too few members are left. Otherwise the job continues. If all
        veterans wait in ngd.init(), form the next world now.
        """
        veterans = self.board.veterans
        if code != 0 and not (self._is_enough() and (veterans or self.num_done)):
            self.restarts.forbid()
            self.fail(rank, code)
        elif self.ranks and not veterans:
            late = ", ".join(map(str, self.ranks))
            self.say(f"the training ended before these members joined: {late}")
            self.end(0, signal.SIGTERM)
        else:
            self._announce(self.board.settle())

    def _is_enough(self) -> bool:
        """Return True if at least `min_ranks` processes run or have ended with exit status 0."""
        return len(self.ranks) + self.num_done >= self.min_ranks

    def _replace(self, member: int, code: int) -> None:
        """Start a process with a new member number, on the cores of `member`, which has failed."""
        replacement = len(self.cores)
        self.cores.append(self.cores[member])
        self.restarts.use()
        self.say(f"member {member} {describe_end(code)}; member {replacement} replaces it")
        self.start_rank(replacement)

    def _announce(self, world: World | None) -> None:
        """Print the number of a new group of all ranks (a world), and its member numbers.

        Do nothing if `world` is None.
        """
        if world is not None:
            self.say(f"world {world.number} has the members {', '.join(map(str, world.members))}")

    def _kill_late_members(self) -> None:
        """Kill members that did not call ngd.init() in time to join the next group of all ranks."""
        for member in self.board.late_members():
            if self.attempt.ending is None and member in self.ranks:
                timeout = self.board.timeout
                self.say(f"member {member} did not arrive in {timeout:g} s, and is killed")
                self.ranks[member].send_signal(signal.SIGKILL)
