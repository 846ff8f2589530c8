# SPDX-License-Identifier: Apache-2.0
"""A store whose every rank holds all values, and whose pushes are all-reduces."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .. import optim
from ..comm import Group
from ..dtypes import Array
from ..errors import ShapeError
from .arguments import Key, by_key, expect_like, read, rows_of, target, total
from .compression import TwoBits
from .tables import InGraph, Plain, Updater, moved


class KVStore:
    """Values by key, with the methods of MXNet 1.9.1's KVStore, on arrays.

    A key is an integer or a string; all keys of a store are of one type. Methods take one key and
    its value, or a list of keys and a list of values; the value of a key is an array, or a list of
    arrays, whose sum counts: MXNet's one array a device. An array is what NumPy can read.

    All ranks of a distributed store make the same calls in one order, with the same keys; `pull`,
    `row_sparse_pull` and `save_optimizer_states` are a rank's own. Calls return when they are done,
    and `priority` changes nothing.

    Attributes
    ----------
    type
        The name that it was made by.
    rank, num_workers
        This process's number among those that share the store, and how many there are.
    """

    def __init__(self, type: str, group: Group | None) -> None:
        self.type, self.group = type, group
        self.rank = 0 if group is None else group.rank
        self.num_workers = 1 if group is None else group.size
        self._table: Plain | InGraph = Plain()
        self._compression: TwoBits | None = None
        self._shapes: dict[Key, Array] = {}

    def __repr__(self) -> str:
        return f"<ngd.kvstore {self.type}: worker {self.rank} of {self.num_workers}>"

    @property
    def updater(self) -> Updater | None:
        """What changes values, where that is neither an optimizer of ngd nor the sum itself."""
        return getattr(self._table, "updater", None)

    def init(self, key: Any, value: Any) -> None:
        """Make keys, each once, before anything else is done with them.

        Every rank gives values of the same shapes and dtypes, and those of rank 0 count.

        Raises
        ------
        KeyError
            There is such a key already, or the store's keys are of the other type.
        """
        given = {k: read("init", v[0]) for k, v in by_key("init", "value", key, value).items()}
        for k in given:
            self._expect_new("init", k)
        for k, array in zip(given, self._of_first(list(given.values())), strict=True):
            self._add(k, array)

    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        """Sum values over what is given for a key and over the ranks, and take the sum in.

        Without an optimizer or an updater the sum is the new value.

        Parameters
        ----------
        key, value
            See the class; of the stored value's shape and dtype.
        priority
            Taken, and not used.

        Raises
        ------
        KeyError
            A key that was not initialized.
        """
        self._push("push", self._given("push", key, value), None)

    def pull(
        self, key: Any, out: Any = None, priority: int = 0, ignore_sparse: bool = True
    ) -> None:
        """Copy values into `out`: an array a key, or a list of arrays, each of which gets it.

        The arrays are of the value's shape; another dtype gets the value converted.
        """
        for k, outs in self._targets("pull", key, out).items():
            value = self._value(k)
            for each in outs:
                np.copyto(each, value, casting="unsafe")

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """Push and pull in one: into `out`, or where it is None into the arrays of `value`."""
        where = "pushpull"
        given = self._given(where, key, value)
        self._push(where, given, self._targets(where, key, value if out is None else out))

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """Initialize keys with rank 0's values, and put these into `out`."""
        first = {k: v[0] for k, v in by_key("broadcast", "value", key, value).items()}
        self.init(list(first), list(first.values()))
        self.pull(key, out)

    def row_sparse_pull(
        self, key: Any, out: Any = None, priority: int = 0, row_ids: Any = None
    ) -> None:
        """Copy some rows of values into `out`, whose other rows become zero.

        Parameters
        ----------
        key, out
            As in `pull`.
        row_ids
            Numbers of rows, an array of one axis, in any order and as often as one likes; or a list
            of such, one for each array of `out`.
        """
        where = "row_sparse_pull"
        wanted = self._targets(where, key, out)
        ids = by_key(where, "row_ids", key, row_ids)
        for k, outs in wanted.items():
            numbers = ids[k] * len(outs) if len(ids[k]) == 1 else ids[k]
            if len(numbers) != len(outs):
                raise ValueError(
                    f"{where}: row_ids: expected one for each of {len(outs)} arrays of key {k!r}; "
                    f"got {len(numbers)}"
                )
            shape = self._shapes[k].shape
            if not shape:
                raise ShapeError(
                    f"{where}: key {k!r}: expected a value that has rows; got a scalar"
                )
            for each, of_each in zip(outs, numbers, strict=True):
                rows = rows_of(where, of_each, shape[0])
                values = self._rows(k, rows)
                each[...] = 0
                each[rows] = values

    def set_optimizer(self, optimizer: Any) -> None:
        """Update values by an optimizer from now on; what is pushed are gradients.

        Parameters
        ----------
        optimizer
            One of ngd.optim: the sum over the ranks and the update are one compiled step for the
            keys of a call, with a count of updates and a state for each key, and clip_norm over the
            keys of the call. Or one of MXNet's, whose arrays share the store's memory.
        """
        if isinstance(optimizer, optim.Optimizer):
            self._use(InGraph(optimizer, self.group))
        elif hasattr(optimizer, "create_state_multi_precision"):
            from .mxnet_optimizers import updater_of

            self._use(Plain(updater_of(optimizer)))
        else:
            raise TypeError(
                "set_optimizer: expected an optimizer of ngd.optim, or of MXNet; got "
                f"{type(optimizer).__name__}"
            )

    def set_updater(self, updater: Updater) -> None:
        """Update values by `updater(key, gradient, value)`, which changes `value` in place.

        All ranks give the same function, which depends on its arguments alone.
        """
        if not callable(updater):
            raise TypeError(f"set_updater: expected a function; got {type(updater).__name__}")
        self._use(Plain(updater))

    def set_gradient_compression(self, compression_params: Mapping[str, Any]) -> None:
        """Send float32 gradients in two bits an element: {"type": "2bit", "threshold": 0.5}.

        What that leaves out is kept, and added to the next gradient of the key. As in MXNet: a
        distributed store compresses what a rank sends, "device" each of the values of a key.
        """
        if self.group is None and "device" not in self.type:
            raise ValueError(
                "set_gradient_compression: expected a store of type device or dist; got "
                f"{self.type}"
            )
        self._compression = TwoBits(compression_params)

    def save_optimizer_states(
        self, fname: str | os.PathLike[str], dump_optimizer: bool = False
    ) -> None:
        """Write the optimizer's state: MXNet's as MXNet does, one of ngd's as safetensors."""
        self._table.save(Path(fname), dump_optimizer)

    def load_optimizer_states(self, fname: str | os.PathLike[str]) -> None:
        """Read what `save_optimizer_states` wrote; every rank does."""
        self._table.load(Path(fname))

    def is_capable(self, capability: str) -> bool:
        """Whether the store has "optimizer", the one capability that MXNet asks for: it has."""
        if capability.lower() != "optimizer":
            raise ValueError(f"is_capable: expected 'optimizer'; got {capability!r}")
        return True

    def barrier(self) -> None:
        """Return when all ranks have come."""
        if self.group is not None:
            self.group.barrier()

    def close(self) -> None:
        """Let go of the values; idempotent."""
        self._table = Plain()

    def _use(self, table: Plain | InGraph) -> None:
        self._table = moved(self._table, table)

    def _expect_new(self, where: str, key: Key) -> None:
        if key in self._shapes:
            raise KeyError(
                f"{where}: key {key!r}: expected a new key; got one that was initialized before. "
                "Use push, or another key."
            )
        other = next((k for k in self._shapes if type(k) is not type(key)), None)
        if other is not None:
            raise KeyError(
                f"{where}: expected keys of one type in a store, like {other!r}; got {key!r}"
            )

    def _expect_known(self, where: str, key: Key) -> Array:
        if key not in self._shapes:
            raise KeyError(f"{where}: expected a key that init() has made; got {key!r}")
        return self._shapes[key]

    def _add(self, key: Key, value: Array) -> None:
        self._table.add(key, value)
        self._shapes[key] = np.broadcast_to(np.empty((), value.dtype), value.shape)

    def _given(self, where: str, key: Any, value: Any) -> dict[Key, list[Array]]:
        """What is pushed, by key in rising order."""
        found = by_key(where, "value", key, value)
        given: dict[Key, list[Array]] = {}
        for k in sorted(found, key=lambda k: (isinstance(k, str), k)):
            like = self._expect_known(where, k)
            given[k] = [read(where, each) for each in found[k]]
            for array in given[k]:
                expect_like(where, k, array, like)
        return given

    def _targets(self, where: str, key: Any, out: Any) -> dict[Key, list[Array]]:
        """Where values are to go."""
        if out is None:
            raise TypeError(f"{where}: out: expected an array, or a list of arrays; got None")
        return {
            k: [target(where, k, each, self._expect_known(where, k).shape) for each in outs]
            for k, outs in by_key(where, "out", key, out).items()
        }

    def _of_first(self, values: list[Array]) -> list[Array]:
        """Rank 0's values."""
        if self.group is None or not values:
            return values
        first: list[Array] = self.group.broadcast(values, 0)
        return first

    def _push(
        self, where: str, given: dict[Key, list[Array]], outs: dict[Key, list[Array]] | None
    ) -> None:
        """Sum, update, and copy the new values where they are wanted."""
        if not given:
            return
        table = self._table
        if isinstance(table, InGraph):
            summed = self._compression is not None
            sums = self._compressed(given) if summed else {k: total(v) for k, v in given.items()}
            direct = direct_outs(sums, outs)
            table.push(sums, direct, summed)
            done = {} if direct is None else direct
        else:
            for k, gradient in self._sums(table, given).items():
                table.push(k, gradient)
            done = {}
        for k, wanted in (outs or {}).items():
            value = done[k] if k in done else self._value(k)
            for each in wanted:
                if each is not value:
                    np.copyto(each, value, casting="unsafe")

    def _sums(self, table: Plain, given: dict[Key, list[Array]]) -> dict[Key, Array]:
        """Over the values of a key, and over the ranks."""
        if self._compression is not None:
            return self._compressed(given)
        local = {k: total(v) for k, v in given.items()}
        if self.group is None:
            return local
        rooms = [table.room(k) for k in local]
        self.group.all_reduce(list(local.values()), op="sum", out=rooms)
        return dict(zip(local, rooms, strict=True))

    def _compressed(self, given: dict[Key, list[Array]]) -> dict[Key, Array]:
        """The same, of what two bits say of the values."""
        two_bits, sums = self._compression, {}
        assert two_bits is not None
        for k, values in given.items():
            if self.group is None:
                packed = np.stack([two_bits.encode((k, i), v) for i, v in enumerate(values)])
            else:
                packed = self.group.all_gather(two_bits.encode(k, total(values))[None])
            sums[k] = two_bits.total(packed, values[0].shape)
        return sums

    def _value(self, key: Key) -> Array:
        return self._table.value(key)

    def _rows(self, key: Key, rows: Array) -> Array:
        found: Array = self._table.value(key)[rows]
        return found


def direct_outs(
    sums: Mapping[Key, Array], outs: Mapping[Key, list[Array]] | None
) -> dict[Key, Array] | None:
    """The first array of each key, where a step can write into them while it reads the sums."""
    if outs is None or outs.keys() != sums.keys():
        return None
    chosen = {k: outs[k][0] for k in sums}
    for k, array in chosen.items():
        if array.dtype != sums[k].dtype or not array.flags.carray:
            return None
        if any(np.may_share_memory(array, other) for other in sums.values()):
            return None
    return chosen
