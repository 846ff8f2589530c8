# SPDX-License-Identifier: Apache-2.0
"""The server that every rank of a `dist_async` store runs: a thread with a group of its own.

All communication of the store is this thread's: it answers the other ranks' requests about the keys
that live here, and sends this rank's own. A message is a header of five numbers and, where it says
so, a payload; docs/adr/0035 has the protocol.
"""

from __future__ import annotations

import contextlib
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeAlias

import numpy as np

from ..comm import Group, Work
from ..dtypes import Array
from ..errors import BusyError, CollectiveError, CollectiveTimeoutError, GroupClosedError
from .arguments import Key
from .tables import InGraph, Plain

SHORTEST_NAP, LONGEST_NAP = 20e-6, 1e-3
"""Seconds between two looks for messages: after one the next comes soon, and an idle store costs
little (see docs/adr/0035)."""


class Kind(IntEnum):
    """What a message is."""

    PUSH = 0
    PULL = 1
    ROWS = 2
    ANSWER = 3
    LATE = 4
    """The answer to a push whose worker has waited in vain for the ranks of the payload."""
    HERE = 5
    """My worker goes on: to a rank that has said bye."""
    BYE = 6
    """My worker will ask for nothing more."""
    END = 7
    """All have said bye, and this is my last message."""


HEADER = 5
"""int64: the kind, the key's number, elements of the payload, the ticket, is a value wanted."""

Answer: TypeAlias = Callable[[Kind, Array | None], None]


@dataclass(frozen=True)
class Home:
    """A key: where it lives, and what it is."""

    key: Key
    owner: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class Peer:
    """What comes from another rank."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.header = np.zeros(HEADER, np.int64)
        self.payload: Array | None = None
        self.work: Work | None = None
        self.heard = 0.0
        self.ended = False


@dataclass(frozen=True)
class Waiting:
    """A push that is done, whose worker may be too far ahead to go on."""

    who: int
    number: int
    want: bool
    answer: Answer
    since: float


class Service:
    """The thread, its group and this rank's part of the values.

    Whoever uses the store asks by a method, which gives a Future. All else is the thread's.
    """

    def __init__(self, group: Group, staleness: int | None) -> None:
        self.group, self.staleness = group, staleness
        self.table: Plain | InGraph = Plain()
        self.homes: list[Home] = []
        self._clocks: dict[int, list[int]] = {}
        """Of each key that lives here: the pushes of each rank."""
        self._gone: set[int] = set()
        self._peers = [Peer(rank) for rank in range(group.size) if rank != group.rank]
        self._commands: deque[Callable[[], None]] = deque()
        self._wake = threading.Event()
        self._asked: set[Future[Any]] = set()
        self._sends: deque[Work] = deque()
        self._works: deque[tuple[Work, Future[Any]]] = deque()
        self._tickets: dict[int, Future[Any]] = {}
        self._tickets_given = 0
        self._waiting: list[Waiting] = []
        self._closing: Future[Any] | None = None
        self._said_end = False
        self._active, self._told = False, time.monotonic()
        self._over: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=group.name, daemon=True)
        self._thread.start()

    def call(self, function: Callable[[], Any]) -> Future[Any]:
        """Let the thread call a function."""
        future: Future[Any] = Future()

        def command() -> None:
            try:
                future.set_result(function())
            except Exception as error:  # the caller's, not the thread's
                future.set_exception(error)

        return self._ask(command, future)

    def collective(self, start: Callable[[Group], Work]) -> Future[Any]:
        """Let the thread start a collective of its group; gives what it returns."""
        future: Future[Any] = Future()
        return self._ask(lambda: self._works.append((start(self.group), future)), future)

    def request(self, kind: Kind, number: int, payload: Array | None, want: bool) -> Future[Any]:
        """Ask where a key lives; gives the kind and the payload of the answer.

        The payload that is sent is not copied.
        """
        future: Future[Any] = Future()
        owner, me = self.homes[number].owner, self.group.rank

        def here() -> None:
            self._serve(me, kind, number, payload, want, lambda *said: future.set_result(said))

        def away() -> None:
            self._tickets_given += 1
            self._tickets[self._tickets_given] = future
            self._send(owner, kind, number, payload, self._tickets_given, want)

        return self._ask(here if owner == me else away, future)

    def close(self) -> Future[Any]:
        """Say bye, and serve the others until all have; the thread ends then."""
        future: Future[Any] = Future()

        def command() -> None:
            self._closing = future
            self._gone.add(self.group.rank)
            for peer in self._peers:
                peer.heard = time.monotonic()
                self._send(peer.rank, Kind.BYE)

        return self._ask(command, future)

    @property
    def over(self) -> bool:
        """Whether the thread has ended, in good order or not."""
        return self._over is not None

    def _ask(self, command: Callable[[], None], future: Future[Any]) -> Future[Any]:
        self._asked.add(future)
        future.add_done_callback(self._asked.discard)
        self._active = True
        self._commands.append(command)
        self._wake.set()
        if self._over is not None:  # set before the thread looks for the last time who has asked
            self._fail_asked(self._over)
        return future

    def _fail_asked(self, why: BaseException) -> None:
        for future in list(self._asked):
            with contextlib.suppress(InvalidStateError):  # it has an end, or gets one this moment
                future.set_exception(why)

    def _run(self) -> None:
        why: BaseException = GroupClosedError("kvstore: this store was closed")
        try:
            for peer in self._peers:
                peer.work = self._receiving(peer, peer.header)
            self._serve_all()
        except BaseException as error:
            why = error
            if not isinstance(error, CollectiveError):
                self.group.abort("".join(traceback.format_exception(error)))
        self._over = why
        self.group.close()
        if self._closing is not None and isinstance(why, GroupClosedError) and self._said_end:
            self._closing.set_result(None)
        self._fail_asked(why)

    def _serve_all(self) -> None:
        nap = SHORTEST_NAP
        while not self._at_end():
            if self._take_commands() | self._receive() | self._reap():
                nap = SHORTEST_NAP
                continue
            self._release()
            self._keep_time()
            if self._wake.wait(nap):
                self._wake.clear()
            nap = min(1.5 * nap, LONGEST_NAP)

    def _take_commands(self) -> bool:
        moved = bool(self._commands)
        while self._commands:
            self._commands.popleft()()
        return moved

    def _receive(self) -> bool:
        """Take in what has come."""
        moved = False
        for peer in self._peers:
            if peer.work is None or not peer.work.done():
                continue
            peer.work.wait()
            peer.heard, moved = time.monotonic(), True
            kind, number, length = (int(n) for n in peer.header[:3])
            if length and peer.payload is None:
                numbers = kind in (Kind.ROWS, Kind.LATE)
                dtype = np.dtype(np.int64) if numbers else self.homes[number].dtype
                peer.payload = np.empty(length, dtype)
                peer.work = self._receiving(peer, peer.payload)
                continue
            payload, peer.payload = peer.payload, None
            ticket, want = int(peer.header[3]), bool(peer.header[4])
            peer.ended = kind == Kind.END
            peer.work = None if peer.ended else self._receiving(peer, peer.header)
            self._handle(peer.rank, Kind(kind), number, payload, ticket, want)
        return moved

    def _receiving(self, peer: Peer, buffer: Array) -> Work:
        work: Work = self.group.recv(peer.rank, out=buffer, async_op=True, site="kvstore")
        return work

    def _handle(
        self, who: int, kind: Kind, number: int, payload: Array | None, ticket: int, want: bool
    ) -> None:
        if kind in (Kind.PUSH, Kind.PULL, Kind.ROWS):
            if payload is None and kind != Kind.PULL:  # of no elements, which are not sent
                payload = np.empty(0, np.int64 if kind == Kind.ROWS else self.homes[number].dtype)

            def answer(said: Kind, value: Array | None) -> None:
                self._send(who, said, number, value, ticket)

            self._serve(who, kind, number, payload, want, answer)
        elif kind in (Kind.ANSWER, Kind.LATE):
            self._tickets.pop(ticket).set_result((kind, payload))
        elif kind == Kind.BYE:
            self._gone.add(who)

    def _serve(
        self, who: int, kind: Kind, number: int, payload: Array | None, want: bool, answer: Answer
    ) -> None:
        """Do what a worker asks of a key that lives here."""
        if kind == Kind.PUSH:
            assert payload is not None
            self._apply(self.homes[number], payload)
            clock = self._clocks.setdefault(number, [0] * self.group.size)
            clock[who] += 1
            self._waiting.append(Waiting(who, number, want, answer, time.monotonic()))
            self._release()
            return
        value = self._value(number)
        answer(Kind.ANSWER, value if kind == Kind.PULL else value[payload])

    def _apply(self, home: Home, gradient: Array) -> None:
        given, table = gradient.reshape(home.shape), self.table
        if isinstance(table, Plain):
            table.push(home.key, given)
            return None
        end = time.monotonic() + self.group.timeout if self.group.timeout else None
        while True:
            try:
                return table.push({home.key: given}, None, summed=True)
            except BusyError:  # the program assigns the learning rate, or reads the state
                if end is not None and time.monotonic() > end:
                    raise
                time.sleep(SHORTEST_NAP)

    def _value(self, number: int) -> Array:
        """A copy, which no later push changes."""
        value = self.table.value(self.homes[number].key)
        return value.copy() if isinstance(self.table, Plain) else value

    def _release(self) -> None:
        """Answer the pushes whose workers are not too far ahead, or have waited too long."""
        for each in list(self._waiting):
            clock = self._clocks[each.number]
            active = [r for r in range(self.group.size) if r not in self._gone or r == each.who]
            least = clock[each.who] - (self.staleness or 0)
            slow = [] if self.staleness is None else [r for r in active if clock[r] < least]
            if not slow:
                each.answer(Kind.ANSWER, self._value(each.number) if each.want else None)
            elif self._past(each.since):
                each.answer(Kind.LATE, np.array(slow, np.int64))
            else:
                continue
            self._waiting.remove(each)

    def _past(self, since: float) -> bool:
        return bool(self.group.timeout) and time.monotonic() - since > self.group.timeout

    def _send(
        self,
        to: int,
        kind: Kind,
        number: int = 0,
        payload: Array | None = None,
        ticket: int = 0,
        want: bool = False,
    ) -> None:
        flat = np.empty(0) if payload is None else np.ascontiguousarray(payload).reshape(-1)
        header = np.array([kind, number, flat.size, ticket, want], np.int64)
        for part in [header, flat][: 2 if flat.size else 1]:
            self._sends.append(self.group.send(part, to, async_op=True, site="kvstore"))

    def _reap(self) -> bool:
        """Let go of what has arrived: sends, and collectives in their order."""
        moved = False
        for _ in range(len(self._sends)):
            work = self._sends.popleft()
            if work.done():
                work.wait()
                moved = True
            else:
                self._sends.append(work)
        while self._works and self._works[0][0].done():
            work, future = self._works.popleft()
            future.set_result(work.wait())
            moved = True
        return moved

    def _keep_time(self) -> None:
        """Tell those that have closed that the worker goes on; notice a worker that does not."""
        limit = self.group.timeout
        if not limit or not self._gone:
            return
        now = time.monotonic()
        if self._active and now - self._told > limit / 4:
            for peer in self._peers:
                if peer.rank in self._gone and not peer.ended and not self._said_end:
                    self._send(peer.rank, Kind.HERE)
            self._active, self._told = False, now
        if self._closing is None:
            return
        silent = [p.rank for p in self._peers if not p.ended and self._past(p.heard)]
        if silent:
            error = CollectiveTimeoutError(
                f"kvstore: close: rank {', '.join(map(str, silent))} has not closed the store, nor "
                f"used it for {limit} s (NGD_TIMEOUT)"
            )
            error.ranks = tuple(silent)
            raise error

    def _at_end(self) -> bool:
        """Whether all is said; says the last word where all have said bye."""
        if self._closing is None or len(self._gone) < self.group.size:
            return False
        if not self._said_end:
            self._said_end = True
            for peer in self._peers:
                self._send(peer.rank, Kind.END)
        return not self._sends and all(peer.ended for peer in self._peers)
