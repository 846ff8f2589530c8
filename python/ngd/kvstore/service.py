# SPDX-License-Identifier: Apache-2.0
"""The server thread that every rank of a `dist_async` store runs.

The server thread has its own group, and does all communication of the store. The thread answers
the requests of the other ranks about the keys that this rank owns, and sends the requests of this
rank. docs/adr/0035 describes the protocol.

- The *owner* of a key is the rank that stores the value of the key and applies the pushes.
- A *message* is a header of five numbers. A payload follows if its length in the header is not 0.
- A *ticket* is a number in a request. The answer has the same number.
- The *clock* of a key is a list with one number per rank: how many times that rank has pushed the
  key. With `staleness`, the answer to a push waits until the rank that pushed is at most
  `staleness` pushes ahead of the slowest rank.
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
"""The shortest and longest sleep of the server thread between two polls for messages, in seconds.

After a message the next message is likely, so the thread then sleeps for the shortest time. Each
poll without a message makes the sleep 1.5 times as long, up to the longest time.
"""


class Kind(IntEnum):
    """The kinds of messages between the server threads of a store.

    PUSH, PULL and ROWS (a pull of some rows) are requests to the owner of a key. ANSWER and LATE
    are the answers. HEARTBEAT, BYE and END belong to the closing of the store.
    """

    PUSH = 0
    PULL = 1
    ROWS = 2
    ANSWER = 3
    LATE = 4
    """The answer to a push that has waited too long for ranks with fewer pushes of the key.

    The limit is NGD_TIMEOUT. The payload is the list of these ranks, as ranks of the store's group.
    """
    HEARTBEAT = 5
    """A notice that the sender still uses the store.

    The sender sends it only to ranks that have closed the store by BYE. Such a rank waits in
    `close` until all ranks have sent BYE. The waiting rank raises an error if a rank that has not
    sent BYE sends no message for NGD_TIMEOUT.
    """
    BYE = 6
    """The sender will send no more requests."""
    END = 7
    """The last message of the sender, sent when all ranks have sent BYE (no more requests)."""


HEADER = 5
"""The number of int64 values in the header of a message.

They are the kind, the number of the key, the number of elements of the payload, the ticket (the
number by which an answer is matched to its request), and a flag. In a request, the flag is 1 if the
answer should have the value of the key, else 0.
"""

Answer: TypeAlias = Callable[[Kind, Array | None], None]
"""A function that sends the answer to a request. Its arguments are the kind and the payload."""


@dataclass(frozen=True)
class KeyInfo:
    """A key, its owner (the rank that stores the value), and the shape and dtype of the value."""

    key: Key
    owner: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class Peer:
    """The buffers to receive from another rank, the pending receive, and the last message's time.

    Parameters
    ----------
    rank : int
        The other rank.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.header = np.zeros(HEADER, np.int64)
        self.payload: Array | None = None
        self.work: Work | None = None
        self.last_message_time = 0.0
        """The time at which the last message of `rank` arrived, by time.monotonic().

        When this rank sends BYE (no more requests) or END (its last message), it sets the time to
        the current time. So `rank` has the full NGD_TIMEOUT for its next message.
        """
        self.ended = False
        """True if `rank` has sent END, its last message."""


@dataclass(frozen=True)
class PendingPush:
    """A push that the owner of the key has applied to the value, but not answered yet.

    The rank that pushed waits for the answer. The owner sends it when that rank is at most
    `staleness` pushes of the key ahead of the slowest rank.
    """

    from_rank: int
    number: int
    wants_value: bool
    answer: Answer
    since: float


class Service:
    """The server thread of a rank, its group, and the values that this rank stores.

    The server thread does all communication of a `dist_async` store. Other threads call only
    `call`, `collective`, `request` and `close`, which return a Future, and read `has_ended`. Only
    the server thread uses the group and the values, so no locks are needed.

    Parameters
    ----------
    group : Group
        A group for the server threads only.
    staleness : int or None
        The largest number of pushes of a key by which a rank may be ahead of the slowest rank; None
        means no limit.
    world_ranks : list of int
        The world rank of each rank of the group, for messages.
    """

    def __init__(self, group: Group, staleness: int | None, world_ranks: list[int]) -> None:
        self.group, self.staleness, self.world_ranks = group, staleness, world_ranks
        self.table: Plain | InGraph = Plain()
        self.keys: list[KeyInfo] = []
        """All keys of the store, with owner, shape and dtype. An index here is a key number."""
        self._clocks: dict[int, list[int]] = {}
        """A dict from key number (index in `keys`) to clock, for the keys that this rank stores.

        A clock is a list with one count per rank: how many times that rank has pushed the key.
        """
        self._ended_ranks: set[int] = set()
        """The ranks that have sent BYE: they have closed the store and send no more requests."""
        self._peers = [Peer(rank) for rank in range(group.size) if rank != group.rank]
        self._commands: deque[Callable[[], None]] = deque()
        self._wake = threading.Event()
        self._futures: set[Future[Any]] = set()
        self._sends: deque[Work] = deque()
        self._works: deque[tuple[Work, Future[Any]]] = deque()
        self._tickets: dict[int, Future[Any]] = {}
        self._num_tickets = 0
        self._pending_pushes: list[PendingPush] = []
        self._closing: Future[Any] | None = None
        self._has_sent_end = False
        self._active, self._last_heartbeat_time = False, time.monotonic()
        self._end_reason: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=group.name, daemon=True)
        self._thread.start()

    def call(self, function: Callable[[], Any]) -> Future[Any]:
        """Call a function in the server thread. The Future gets its result or its error."""
        future: Future[Any] = Future()

        def command() -> None:
            try:
                future.set_result(function())
            except Exception as error:  # it belongs to the caller and must not end the thread
                future.set_exception(error)

        return self._ask(command, future)

    def collective(self, start: Callable[[Group], Work]) -> Future[Any]:
        """Start a collective in the server thread. The Future gets the collective's result.

        The thread calls `start` with the group of the server threads. `start` starts the collective
        in this group and returns its handle.
        """
        future: Future[Any] = Future()
        return self._ask(lambda: self._works.append((start(self.group), future)), future)

    def request(
        self, kind: Kind, number: int, payload: Array | None, wants_value: bool
    ) -> Future[Any]:
        """Send a request to the rank that stores a key, and return a Future for the answer.

        The result of the Future is the tuple (kind, payload) of the answer. The argument `kind` is
        PUSH, PULL or ROWS, and `number` is the number of the key. The argument `payload` is not
        copied, so it must not change before the answer. If `wants_value` is True, the answer to a
        push has the new value.
        """
        future: Future[Any] = Future()
        owner, me = self.keys[number].owner, self.group.rank

        def serve_locally() -> None:
            self._serve(
                me, kind, number, payload, wants_value, lambda *result: future.set_result(result)
            )

        def send_request() -> None:
            self._num_tickets += 1
            self._tickets[self._num_tickets] = future
            self._send(owner, kind, number, payload, self._num_tickets, wants_value)

        return self._ask(serve_locally if owner == me else send_request, future)

    def close(self) -> Future[Any]:
        """Send BYE: this rank will send no more requests.

        The thread serves the other ranks until all ranks have sent BYE. Then the thread ends, and
        the Future gets None.
        """
        future: Future[Any] = Future()

        def command() -> None:
            self._closing = future
            self._ended_ranks.add(self.group.rank)
            for peer in self._peers:
                peer.last_message_time = time.monotonic()
                self._send(peer.rank, Kind.BYE)

        return self._ask(command, future)

    @property
    def has_ended(self) -> bool:
        """True if the thread has ended, with or without an error."""
        return self._end_reason is not None

    def _ask(self, command: Callable[[], None], future: Future[Any]) -> Future[Any]:
        """Append a command, which the server thread runs later, and return `future`.

        The command completes `future`. If the thread has ended, `future` gets the reason as error.
        """
        self._futures.add(future)
        future.add_done_callback(self._futures.discard)
        self._active = True
        self._commands.append(command)
        self._wake.set()
        if self._end_reason is not None:  # set before the last call of _fail_asked by the thread
            self._fail_asked(self._end_reason)
        return future

    def _fail_asked(self, why: BaseException) -> None:
        """Store the error `why` in each Future that has no result and no error yet."""
        for future in list(self._futures):
            with contextlib.suppress(InvalidStateError):  # it has a result or an error already
                future.set_exception(why)

    def _run(self) -> None:
        """Run the server thread: serve until the end, close the group, and complete all Futures."""
        why: BaseException = GroupClosedError("kvstore: this store was closed")
        try:
            for peer in self._peers:
                peer.work = self._receiving(peer, peer.header)
            self._serve_all()
        except BaseException as error:
            why = error
            if not isinstance(error, CollectiveError):
                self.group.abort("".join(traceback.format_exception(error)))
        self._end_reason = why
        self.group.close()
        if self._closing is not None and isinstance(why, GroupClosedError) and self._has_sent_end:
            self._closing.set_result(None)
        self._fail_asked(why)

    def _serve_all(self) -> None:
        """Run commands and process messages until the end. Pause while there is no work."""
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
        """Run all commands in the queue. Return True if there was a command, else False."""
        has_work = bool(self._commands)
        while self._commands:
            self._commands.popleft()()
        return has_work

    def _receive(self) -> bool:
        """Receive headers and payloads that have arrived, and process each complete message.

        Return True if a header or payload has arrived, else False.
        """
        has_work = False
        for peer in self._peers:
            if peer.work is None or not peer.work.done():
                continue
            peer.work.wait()
            peer.last_message_time, has_work = time.monotonic(), True
            kind, number, length = (int(n) for n in peer.header[:3])
            if length and peer.payload is None:
                has_indices = kind in (Kind.ROWS, Kind.LATE)
                dtype = np.dtype(np.int64) if has_indices else self.keys[number].dtype
                peer.payload = np.empty(length, dtype)
                peer.work = self._receiving(peer, peer.payload)
                continue
            payload, peer.payload = peer.payload, None
            ticket, wants_value = int(peer.header[3]), bool(peer.header[4])
            peer.ended = kind == Kind.END
            peer.work = None if peer.ended else self._receiving(peer, peer.header)
            self._handle(peer.rank, Kind(kind), number, payload, ticket, wants_value)
        return has_work

    def _receiving(self, peer: Peer, buffer: Array) -> Work:
        """Start to receive a header or a payload into `buffer`, and return the handle."""
        work: Work = self.group.recv(peer.rank, out=buffer, async_op=True, site="kvstore")
        return work

    def _handle(
        self,
        rank: int,
        kind: Kind,
        number: int,
        payload: Array | None,
        ticket: int,
        wants_value: bool,
    ) -> None:
        """Process a complete message of a rank. `payload` is None if it has no elements."""
        if kind in (Kind.PUSH, Kind.PULL, Kind.ROWS):
            if payload is None and kind != Kind.PULL:  # a payload without elements is not sent
                payload = np.empty(0, np.int64 if kind == Kind.ROWS else self.keys[number].dtype)

            def answer(answer_kind: Kind, value: Array | None) -> None:
                self._send(rank, answer_kind, number, value, ticket)

            self._serve(rank, kind, number, payload, wants_value, answer)
        elif kind in (Kind.ANSWER, Kind.LATE):
            self._tickets.pop(ticket).set_result((kind, payload))
        elif kind == Kind.BYE:
            self._ended_ranks.add(rank)

    def _serve(
        self,
        rank: int,
        kind: Kind,
        number: int,
        payload: Array | None,
        wants_value: bool,
        answer: Answer,
    ) -> None:
        """Serve a push, a pull, or a pull of some rows (ROWS) of a key that this rank stores.

        A push updates the value, and its answer may be sent later, by `_release`. The answer to
        the other requests is sent now. `rank` is the rank that sent the request. `answer` is the
        function that sends the answer.
        """
        if kind == Kind.PUSH:
            assert payload is not None
            self._apply(self.keys[number], payload)
            clock = self._clocks.setdefault(number, [0] * self.group.size)
            clock[rank] += 1
            self._pending_pushes.append(
                PendingPush(rank, number, wants_value, answer, time.monotonic())
            )
            self._release()
            return
        value = self._value(number)
        answer(Kind.ANSWER, value if kind == Kind.PULL else value[payload])

    def _apply(self, info: KeyInfo, gradient: Array) -> None:
        """Apply a push. While another thread uses the optimizer, retry.

        Raise BusyError after NGD_TIMEOUT.
        """
        array, table = gradient.reshape(info.shape), self.table
        if isinstance(table, Plain):
            table.push(info.key, array)
            return None
        end = time.monotonic() + self.group.timeout if self.group.timeout else None
        while True:
            try:
                return table.push({info.key: array}, None, summed=True)
            except BusyError:  # the program assigns the learning rate or reads the state now
                if end is not None and time.monotonic() > end:
                    raise
                time.sleep(SHORTEST_NAP)

    def _value(self, number: int) -> Array:
        """Return a copy of the value of a key. Later pushes do not change the copy."""
        value = self.table.value(self.keys[number].key)
        return value.copy() if isinstance(self.table, Plain) else value

    def _release(self) -> None:
        """Answer the pending pushes (applied, but not answered) that need not wait any more.

        A push waits while its rank is more than `staleness` pushes of the key ahead of another rank
        that has not closed the store. When the push need not wait, the answer has the kind ANSWER.
        If the push has waited longer than NGD_TIMEOUT, the answer has the kind LATE, and its
        payload is the list of the ranks for which the push waits.
        """
        for each in list(self._pending_pushes):
            clock = self._clocks[each.number]
            active = [
                r
                for r in range(self.group.size)
                if r not in self._ended_ranks or r == each.from_rank
            ]
            least = clock[each.from_rank] - (self.staleness or 0)
            slow = [] if self.staleness is None else [r for r in active if clock[r] < least]
            if not slow:
                each.answer(Kind.ANSWER, self._value(each.number) if each.wants_value else None)
            elif self._is_past_timeout(each.since):
                each.answer(Kind.LATE, np.array(slow, np.int64))
            else:
                continue
            self._pending_pushes.remove(each)

    def _is_past_timeout(self, since: float) -> bool:
        """Return True if NGD_TIMEOUT has passed since `since`, a time of time.monotonic()."""
        return bool(self.group.timeout) and time.monotonic() - since > self.group.timeout

    def _send(
        self,
        to: int,
        kind: Kind,
        number: int = 0,
        payload: Array | None = None,
        ticket: int = 0,
        wants_value: bool = False,
    ) -> None:
        """Start to send a message: a header, then the payload if it has elements."""
        flat = np.empty(0) if payload is None else np.ascontiguousarray(payload).reshape(-1)
        header = np.array([kind, number, flat.size, ticket, wants_value], np.int64)
        for part in [header, flat][: 2 if flat.size else 1]:
            self._sends.append(self.group.send(part, to, async_op=True, site="kvstore"))

    def _reap(self) -> bool:
        """Remove completed sends, and set the results of the Futures of completed collectives.

        The Futures get their results in the order in which the collectives started. If a send or
        collective has failed, this method raises its error. The error ends the server thread, and
        all Futures without a result get it. Return True if a send or a collective was complete,
        else False.
        """
        has_work = False
        for _ in range(len(self._sends)):
            work = self._sends.popleft()
            if work.done():
                work.wait()
                has_work = True
            else:
                self._sends.append(work)
        while self._works and self._works[0][0].done():
            work, future = self._works.popleft()
            future.set_result(work.wait())
            has_work = True
        return has_work

    def _keep_time(self) -> None:
        """Send HEARTBEAT to closed ranks. If this rank is closed, raise an error for silent ranks.

        A closed rank has called `close`, has sent BYE, and waits for the other ranks. If the
        program has used the store since the last HEARTBEAT, send HEARTBEAT to the closed ranks, at
        most once per quarter of NGD_TIMEOUT.

        A rank is silent if it is not closed and has sent no message for NGD_TIMEOUT. The error is
        CollectiveTimeoutError. When all ranks are closed, each sends END, its last message.
        After its own END, this rank raises CollectiveTimeoutError if the END of another rank does
        not arrive within NGD_TIMEOUT. If NGD_TIMEOUT is 0, do nothing.
        """
        limit = self.group.timeout
        if not limit or not self._ended_ranks:
            return
        now = time.monotonic()
        if self._active and now - self._last_heartbeat_time > limit / 4:
            for peer in self._peers:
                if peer.rank in self._ended_ranks and not peer.ended and not self._has_sent_end:
                    self._send(peer.rank, Kind.HEARTBEAT)
            self._active, self._last_heartbeat_time = False, now
        if self._closing is None:
            return
        silent = [
            self.world_ranks[p.rank]
            for p in self._peers
            if not p.ended
            and (p.rank not in self._ended_ranks or self._has_sent_end)
            and self._is_past_timeout(p.last_message_time)
        ]
        if silent:
            error = CollectiveTimeoutError(
                f"kvstore: close: rank {', '.join(map(str, silent))} has not closed the store, and "
                f"has not used it for {limit} s (NGD_TIMEOUT)"
            )
            error.ranks = tuple(silent)
            raise error

    def _at_end(self) -> bool:
        """Return True if the server thread can end, else False.

        When all ranks have sent BYE (no more requests), send END (the last message of this rank) to
        the other ranks once. The thread can end when all sends are complete and all other ranks
        have sent END too.
        """
        if self._closing is None or len(self._ended_ranks) < self.group.size:
            return False
        if not self._has_sent_end:
            self._has_sent_end = True
            for peer in self._peers:
                peer.last_message_time = time.monotonic()
                self._send(peer.rank, Kind.END)
        return not self._sends and all(peer.ended for peer in self._peers)
