# SPDX-License-Identifier: Apache-2.0
"""The `dist_async` store: each value is on one rank, which applies pushes when they arrive."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

import numpy as np

from ..comm import Group
from ..dtypes import Array
from ..errors import CollectiveTimeoutError
from .arguments import Key, total
from .service import KeyInfo, Kind, Service
from .service_group import make_service_group, world_ranks_of
from .store import KVStore
from .tables import InGraph, Plain, copy_values


class AsyncStore(KVStore):
    """MXNet's `dist_async` store, a parameter server with a server thread on every rank.

    The owner of a key is the rank that stores the value of the key: the rank whose stored values
    have the fewest bytes in total when the key is initialized. A push sends this rank's gradient to
    the owner. The owner applies the gradient when it arrives, and gradients of different ranks one
    after the other. If `staleness` is set, the push then waits until this rank is not too far ahead
    of the slowest rank. Without `staleness`, a push never waits for other ranks' pushes. `pull`
    returns the value that the owner has when the request arrives.

    All ranks call `init`, `broadcast`, `set_optimizer`, `set_updater`, `barrier` and `close`
    together. A rank makes the other calls independently of the other ranks. `close` is the last
    call. If the program does not call `close`, ngd calls it at the end of the program.

    Parameters
    ----------
    type : str
        The name of the store.
    group : Group
        The ranks that share the store.
    staleness : int or None
        The largest number of pushes of a key by which a rank may be ahead of the slowest rank; see
        `create`. None means no limit.
    """

    def __init__(self, type: str, group: Group, staleness: int | None) -> None:
        super().__init__(type, group)
        self.staleness = staleness
        self._members = world_ranks_of(group)
        service_group = make_service_group(group, f"kvstore {type}")
        self._service = Service(service_group, staleness, self._members)
        self._key_numbers: dict[Key, int] = {}
        self._bytes = [0] * group.size
        self._updates = False
        self._process = os.getpid()
        atexit.register(self._leave)

    def set_gradient_compression(self, compression_params: Any) -> None:
        """Raise ValueError, because this kind of store does not support compression."""
        raise ValueError(
            "set_gradient_compression: expected a dist_sync or device store; got dist_async. "
            "Remove the call."
        )

    def save_optimizer_states(
        self, fname: str | os.PathLike[str], dump_optimizer: bool = False
    ) -> None:
        """Raise ValueError, as MXNet does, because no rank has the optimizer state of all keys.

        A rank has the optimizer state of only the keys whose values it stores.
        """
        raise ValueError(
            "save_optimizer_states: expected a dist_sync or local store; got dist_async. Save the "
            "values instead."
        )

    def load_optimizer_states(self, fname: str | os.PathLike[str]) -> None:
        """Raise ValueError, as MXNet does: a dist_async store cannot load optimizer states."""
        raise ValueError(
            "load_optimizer_states: expected a dist_sync or local store; got dist_async. Load the "
            "values instead."
        )

    def barrier(self) -> None:
        """Wait until all ranks have called this method."""
        self._run_collective("barrier", lambda group: group.barrier(async_op=True, site="kvstore"))

    def close(self) -> None:
        """Close the store on this rank, and return when all ranks have closed it.

        Until then, this rank still answers the requests of the other ranks. A second call does
        nothing.

        Raises
        ------
        CollectiveTimeoutError
            During this call, another rank neither closed the store nor used the store for
            NGD_TIMEOUT seconds. The message names that rank. If NGD_TIMEOUT is 0, there is no
            limit.
        """
        atexit.unregister(self._leave)
        if not self._service.has_ended:
            self._service.close().result()

    def _leave(self) -> None:
        """Close the store at the end of the program, if the program has not closed it.

        Do nothing if the store's server thread, which does all communication of this rank, has
        ended already: after `close` or an error. Do nothing in a forked child of the process that
        created the store.
        """
        if os.getpid() == self._process and not self._service.has_ended:
            self.close()

    def _use(self, table: Plain | InGraph) -> None:
        """Copy the values of this rank into `table`, and use it for pushes. Wait for all ranks."""
        service = self._service
        for key, template in self._shapes.items():  # all keys, so that all ranks raise
            table.check(key, template.dtype)

        def change() -> None:
            if isinstance(table, InGraph):
                table.group = None  # a push has the gradient of one rank: no all-reduce
            service.table = copy_values(service.table, table)

        self._wait("set_optimizer", service.call(change))
        self.barrier()
        self._updates = True

    def _values_of_root(self, values: list[Array]) -> list[Array]:
        return [
            self._run_collective(
                "init", partial(Group.broadcast, x=v, async_op=True, site="kvstore")
            )
            for v in values
        ]

    def init(self, key: Any, value: Any) -> None:
        """Create keys with the values of rank 0, and wait until all ranks have created the keys."""
        super().init(key, value)
        self.barrier()

    def _add(self, key: Key, value: Array) -> None:
        """Select the owner of a new key, the same on all ranks. The owner stores `value`."""
        self._service.table.check(key, value.dtype)
        owner = self._bytes.index(min(self._bytes))
        self._bytes[owner] += value.nbytes
        self._shapes[key] = np.broadcast_to(np.empty((), value.dtype), value.shape)
        number = self._key_numbers[key] = len(self._key_numbers)
        service, info = self._service, KeyInfo(key, owner, value.shape, value.dtype)

        def add() -> None:
            assert len(service.keys) == number
            service.keys.append(info)
            if owner == service.group.rank:
                service.table.add(key, value)

        self._wait("init", service.call(add))

    def _push(
        self, where: str, arrays: dict[Key, list[Array]], outs: dict[Key, list[Array]] | None
    ) -> None:
        """Send the gradient of each key to the key's owner, then wait for the owners' answers.

        The owner of a key is the rank that stores its value. If `outs` has arrays for a key, the
        owner's answer has the new value, which is copied to these arrays.
        """
        if not self._updates:
            raise ValueError(
                f"{where}: expected a dist_async store with an optimizer or updater; got none. "
                "Call set_optimizer or set_updater first."
            )
        destinations = outs or {}
        futures = {
            k: self._request(Kind.PUSH, k, total(values), k in destinations)
            for k, values in arrays.items()
        }
        for k, future in futures.items():
            value = self._answer(where, k, future)
            for each in destinations.get(k, []):
                np.copyto(each, value, casting="unsafe")

    def _value(self, key: Key) -> Array:
        """Request the value of a key from its owner, wait for it, and return it."""
        return self._answer("pull", key, self._request(Kind.PULL, key, None, True))

    def _rows(self, key: Key, rows: Array) -> Array:
        """Request rows of a key from its owner, wait, and return them. `rows` has their indices."""
        where = "row_sparse_pull"
        shape = (len(rows), *self._shapes[key].shape[1:])
        if not len(rows):
            return np.empty(shape, self._shapes[key].dtype)
        future = self._request(Kind.ROWS, key, rows, True)
        return self._answer(where, key, future).reshape(shape)

    def _request(
        self, kind: Kind, key: Key, payload: Array | None, wants_value: bool
    ) -> Future[Any]:
        """Send a request to a key's owner. The Future gets the (kind, payload) of the answer."""
        return self._service.request(kind, self._key_numbers[key], payload, wants_value)

    def _answer(self, where: str, key: Key, future: Future[Any]) -> Array:
        """Wait for the answer of a key's owner and return the value in the answer.

        The owner is the rank that stores the value. Return an empty array if the answer has no
        value. Raise CollectiveTimeoutError if the owner answers that slower ranks have not pushed
        in time.
        """
        owner = self._members[self._service.keys[self._key_numbers[key]].owner]
        kind, payload = self._wait(f"{where}: key {key!r}", future, owner)
        if kind == Kind.LATE:
            slow = [self._members[int(rank)] for rank in payload]
            raise late_error(
                f"{where}: key {key!r}: expected at most {self.staleness} pushes more on rank "
                f"{self._members[self.rank]} than on rank {', '.join(map(str, slow))}; got more, "
                f"and no push of it for {self._service.group.timeout} s (NGD_TIMEOUT). Find out "
                "why it is slow, or raise staleness",
                slow,
            )
        if payload is None:
            template = self._shapes[key]
            return np.empty(
                0 if template.size or where == "row_sparse_pull" else template.shape, template.dtype
            )
        value: Array = payload
        return value if where == "row_sparse_pull" else value.reshape(self._shapes[key].shape)

    def _run_collective(self, where: str, start: Callable[[Group], Any]) -> Any:
        """Run a collective over the ranks of the store, in the server thread; return its result.

        The server threads of all ranks have a group of their own, which no other thread uses. The
        server thread calls `start` with this group; `start` starts the collective and returns its
        handle. `where` is the public call, for error messages.
        """
        return self._wait(where, self._service.collective(start))

    def _wait(self, what: str, future: Future[Any], owner: int | None = None) -> Any:
        """Wait for the result of an operation of the server thread, and return it.

        `future` gets the result. Raise CollectiveTimeoutError after twice NGD_TIMEOUT; if
        NGD_TIMEOUT is 0, there is no limit. This error names `what`, the operation, and `owner`,
        the world rank that should answer. If `owner` is None, all other ranks should answer. The
        limit is longer than NGD_TIMEOUT, because after NGD_TIMEOUT the server thread itself raises
        an error with a more exact message.
        """
        limit = 2 * self._service.group.timeout
        try:
            return future.result(limit or None)
        except TimeoutError as error:
            if isinstance(error, CollectiveTimeoutError):
                raise
            ranks = [] if owner is None else [owner]
            ranks_text = "the other ranks" if owner is None else f"rank {owner}, which stores it"
            message = f"{what}: expected an answer from {ranks_text}; got none in {limit} s"
            raise late_error(message, ranks) from None


def late_error(message: str, ranks: list[int]) -> CollectiveTimeoutError:
    """Return a CollectiveTimeoutError for ranks that did not answer in time."""
    error = CollectiveTimeoutError(f"kvstore: {message}")
    error.ranks = tuple(ranks)
    return error
