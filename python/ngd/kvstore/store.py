# SPDX-License-Identifier: Apache-2.0
"""The class `KVStore`: every rank has all values, and a push is an all-reduce."""

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
from .tables import InGraph, Plain, Updater, copy_values


class KVStore:
    """A store of values by key, with the methods of MXNet 1.9.1's KVStore.

    Use ngd.kvstore.create to create one. A key is an integer or a string, and all keys of a store
    have the same type. A method that takes keys and values takes one key and its value, or a list
    of keys and a list of values of the same length. A pushed value is an array, or a list of arrays
    that `push` adds up, for example one array per device. An array is a NumPy array, a DLPack
    tensor or a buffer.

    All ranks of a "dist_sync" store make the same calls in the same order, with the same keys.
    `pull`, `row_sparse_pull` and `save_optimizer_states` are exceptions: any rank may call these
    methods at any time, because they do not communicate. A call returns when it is complete.

    Parameters
    ----------
    type : str
        The name of the store.
    group : Group or None
        The ranks that share the store; None for a store of this process.

    Attributes
    ----------
    type : str
        The name of the store.
    rank, num_workers : int
        The number of this rank among the ranks that share the store, and the number of these ranks.

    Examples
    --------
    >>> from ngd import kvstore, optim
    >>> store = kvstore.create("local")
    >>> store.set_optimizer(optim.SGD(0.5))
    >>> store.init("weight", np.ones(2, np.float32))
    >>> weight = np.empty(2, np.float32)
    >>> store.pushpull("weight", np.ones(2, np.float32), out=weight)
    >>> weight
    array([0.5, 0.5], dtype=float32)
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
        """The function that `push` calls to update a value, or None if there is no such function.

        After `set_updater`, it is the given function. After `set_optimizer` with an optimizer of
        MXNet, it is an updater that applies this optimizer. With an optimizer of ngd.optim it is
        None, because a compiled step updates the values. It is also None before these calls, and
        for a dist_async store, whose server thread has the updater.
        """
        return getattr(self._table, "updater", None)

    def init(self, key: Any, value: Any) -> None:
        """Create keys with initial values. Every key is created once, before its first use.

        Parameters
        ----------
        key : int, str, or list of them
            The new keys.
        value : array, or list of them
            The initial values. All ranks give the same shapes and dtypes, and the values of rank 0
            are stored.

        Raises
        ------
        KeyError
            The key exists already, or the other keys of the store have another type.
        """
        arrays = {k: read("init", v[0]) for k, v in by_key("init", "value", key, value).items()}
        for k in arrays:
            self._expect_new("init", k)
        for k, array in zip(arrays, self._values_of_root(list(arrays.values())), strict=True):
            self._add(k, array)

    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        """Add up the arrays of a key over all ranks, and update the value with the sum.

        With an optimizer or an updater, the sum is the gradient of the update. Otherwise it is the
        new value.

        Parameters
        ----------
        key : int, str, or list of them
            The keys.
        value : array, or list of them
            One array per key, or a list of arrays per key, which are added up. They have the shape
            and dtype of the stored value.
        priority : int
            Not used.

        Raises
        ------
        KeyError
            The key was not created by `init`.
        """
        self._push("push", self._read_arrays("push", key, value), None)

    def pull(
        self, key: Any, out: Any = None, priority: int = 0, ignore_sparse: bool = True
    ) -> None:
        """Copy values into arrays.

        Parameters
        ----------
        key : int, str, or list of them
            The keys.
        out : array, or list of them
            One array per key, or a list of arrays per key, each of which gets the value. An array
            has the shape of the value. The value is converted to the dtype of the array.
        priority, ignore_sparse
            Not used.
        """
        for k, outs in self._targets("pull", key, out).items():
            value = self._value(k)
            for each in outs:
                np.copyto(each, value, casting="unsafe")

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """Push arrays, and copy the new values into `out`.

        Parameters
        ----------
        key, value
            The same as in `push`.
        out : array, or list of them, optional
            The same as in `pull`. The default is `value`.
        priority : int
            Not used.
        """
        where = "pushpull"
        arrays = self._read_arrays(where, key, value)
        self._push(where, arrays, self._targets(where, key, value if out is None else out))

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """Create keys with the values of rank 0, and copy these into `out`.

        Parameters
        ----------
        key, value
            The same as in `init`.
        out
            The same as in `pull`.
        priority : int
            Not used.
        """
        first = {k: v[0] for k, v in by_key("broadcast", "value", key, value).items()}
        self.init(list(first), list(first.values()))
        self.pull(key, out)

    def row_sparse_pull(
        self, key: Any, out: Any = None, priority: int = 0, row_ids: Any = None
    ) -> None:
        """Copy some rows of values into arrays, and set the other rows of the arrays to zero.

        Parameters
        ----------
        key, out
            The same as in `pull`.
        priority : int
            Not used.
        row_ids : array of ints, or list of them
            The rows to copy: for one key, a one-dimensional array such as `np.array([0, 2])`, in
            any order. An index may occur several times. A list of integers such as `[0, 2]` raises
            ValueError. For a list of keys, give a list with one such array per key. If the `out` of
            a key is a list of arrays, the row_ids of the key are one array for all of them, or a
            list with one array per array of `out`.

        Raises
        ------
        IndexError
            An index is negative, or not less than the number of rows of the value.
        """
        where = "row_sparse_pull"
        destinations = self._targets(where, key, out)
        ids = by_key(where, "row_ids", key, row_ids)
        for k, outs in destinations.items():
            index_arrays = ids[k] * len(outs) if len(ids[k]) == 1 else ids[k]
            if len(index_arrays) != len(outs):
                raise ValueError(
                    f"{where}: row_ids: expected one for each of {len(outs)} arrays of key {k!r}; "
                    f"got {len(index_arrays)}"
                )
            shape = self._shapes[k].shape
            if not shape:
                raise ShapeError(
                    f"{where}: key {k!r}: expected a value that has rows; got a scalar"
                )
            for each, indices in zip(outs, index_arrays, strict=True):
                rows = rows_of(where, indices, shape[0])
                values = self._rows(k, rows)
                each[...] = 0
                each[rows] = values

    def set_optimizer(self, optimizer: Any) -> None:
        """Update values with an optimizer from now on. Pushed arrays are then gradients.

        Parameters
        ----------
        optimizer : ngd.optim.Optimizer or mxnet.optimizer.Optimizer
            The optimizer. With an optimizer of ngd.optim, the all-reduce and the updates of a push
            are one compiled step for all keys of the call. Each key has its own optimizer state and
            its own count of updates. The optimizer's argument `clip_norm` limits the norm of all
            gradients of the call together. A "dist_async" store is different: it updates each
            key separately, when a push of the key arrives, and `clip_norm` limits the norm of
            the pushed gradient. An optimizer of MXNet gets MXNet arrays that share the memory
            of the store, so nothing is copied.
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
        """Update values with a function from now on. Pushed arrays are then gradients.

        Parameters
        ----------
        updater : function
            It is called as `updater(key, gradient, value)` and changes `value` in place. All ranks
            must give the same function, and the new value must depend only on the arguments, so
            that all ranks compute equal values.
        """
        if not callable(updater):
            raise TypeError(f"set_updater: expected a function; got {type(updater).__name__}")
        self._use(Plain(updater))

    def set_gradient_compression(self, compression_params: Mapping[str, Any]) -> None:
        """Compress float32 gradients to two bits per element.

        The part of a gradient that is not sent is added to the next gradient of the key. As in
        MXNet, a "dist_sync" store compresses the sum of a rank's arrays of a key. A "device" store
        compresses each array of a key before it adds them up, as if each came from another device.
        A "local" or "dist_async" store raises ValueError.

        Parameters
        ----------
        compression_params : mapping
            {"type": "2bit", "threshold": 0.5}. An element is sent as the threshold, its negative,
            or zero.
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
        """Write the state of the optimizer to a file.

        Parameters
        ----------
        fname : str or path
            The file. For an optimizer of ngd it is a safetensors file, for one of MXNet it is
            MXNet's pickle.
        dump_optimizer : bool, default False
            If True, the file also has the MXNet optimizer object itself, not only its state. It
            must be False for an optimizer of ngd.
        """
        self._table.save(Path(fname), dump_optimizer)

    def load_optimizer_states(self, fname: str | os.PathLike[str]) -> None:
        """Replace the optimizer state by that of a file. Every rank calls this method.

        Parameters
        ----------
        fname : str or path
            The file, which `save_optimizer_states` wrote.
        """
        self._table.load(Path(fname))

    def is_capable(self, capability: str) -> bool:
        """Return True for "optimizer", the only capability that MXNet asks for.

        Raises
        ------
        ValueError
            The capability has another name.
        """
        if capability.lower() != "optimizer":
            raise ValueError(f"is_capable: expected 'optimizer'; got {capability!r}")
        return True

    def barrier(self) -> None:
        """Wait until all ranks have called this method."""
        if self.group is not None:
            self.group.barrier()

    def close(self) -> None:
        """Release the values. A second call does nothing."""
        self._table = Plain()

    def _use(self, table: Plain | InGraph) -> None:
        """Copy all values into `table`, which then replaces the table of the store."""
        self._table = copy_values(self._table, table)

    def _expect_new(self, where: str, key: Key) -> None:
        """Raise KeyError if `key` exists, or is a str and other keys are ints, or vice versa."""
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
        """Return a template (an array without values) of a key's value; KeyError if unknown."""
        if key not in self._shapes:
            raise KeyError(f"{where}: expected a key that init() has made; got {key!r}")
        return self._shapes[key]

    def _add(self, key: Key, value: Array) -> None:
        """Store a new key with its first value."""
        self._table.add(key, value)
        self._shapes[key] = np.broadcast_to(np.empty((), value.dtype), value.shape)

    def _read_arrays(self, where: str, key: Any, value: Any) -> dict[Key, list[Array]]:
        """Return a dict of each key's pushed arrays, with the keys in ascending order.

        Raise an error for an unknown key, or an array of another shape or dtype than the value.
        """
        values_of_key = by_key(where, "value", key, value)
        arrays: dict[Key, list[Array]] = {}
        for k in sorted(values_of_key, key=lambda k: (isinstance(k, str), k)):
            template = self._expect_known(where, k)
            arrays[k] = [read(where, each) for each in values_of_key[k]]
            for array in arrays[k]:
                expect_like(where, k, array, template)
        return arrays

    def _targets(self, where: str, key: Any, out: Any) -> dict[Key, list[Array]]:
        """Return a dict from each key to the list of its arrays in `out`.

        Raise an error for an unknown key, or an array that is read-only or has another shape than
        the value of the key.
        """
        if out is None:
            raise TypeError(f"{where}: out: expected an array, or a list of arrays; got None")
        return {
            k: [target(where, k, each, self._expect_known(where, k).shape) for each in outs]
            for k, outs in by_key(where, "out", key, out).items()
        }

    def _values_of_root(self, values: list[Array]) -> list[Array]:
        """Return rank 0's list of values on every rank. `values` is the list of this rank."""
        if self.group is None or not values:
            return values
        first: list[Array] = self.group.broadcast(values, 0)
        return first

    def _push(
        self, where: str, arrays: dict[Key, list[Array]], outs: dict[Key, list[Array]] | None
    ) -> None:
        """Add up gradients over the ranks, update the values, and copy the values into `outs`."""
        if not arrays:
            return
        table = self._table
        if isinstance(table, InGraph):
            summed = self._compression is not None
            sums = (
                self._sum_compressed(arrays) if summed else {k: total(v) for k, v in arrays.items()}
            )
            direct = direct_outs(sums, outs)
            table.push(sums, direct, summed)
            updated = {} if direct is None else direct
        else:
            for k, gradient in self._sums(table, arrays).items():
                table.push(k, gradient)
            updated = {}
        for k, destinations in (outs or {}).items():
            value = updated[k] if k in updated else self._value(k)
            for each in destinations:
                if each is not value:
                    np.copyto(each, value, casting="unsafe")

    def _sums(self, table: Plain, arrays: dict[Key, list[Array]]) -> dict[Key, Array]:
        """Return a dict from key to the sum of the key's arrays on all ranks."""
        if self._compression is not None:
            return self._sum_compressed(arrays)
        local = {k: total(v) for k, v in arrays.items()}
        if self.group is None:
            return local
        buffers = [table.sum_buffer(k) for k in local]
        self.group.all_reduce(list(local.values()), op="sum", out=buffers)
        return dict(zip(local, buffers, strict=True))

    def _sum_compressed(self, arrays: dict[Key, list[Array]]) -> dict[Key, Array]:
        """Compress the pushed arrays, and return for each key the float32 sum over all ranks.

        The sum is that of the decompressed arrays. In a store of several ranks, each rank adds up
        its arrays of a key and compresses this sum. A store of one process compresses each array.
        """
        two_bits, sums = self._compression, {}
        assert two_bits is not None
        for k, values in arrays.items():
            if self.group is None:
                packed = np.stack([two_bits.encode((k, i), v) for i, v in enumerate(values)])
            else:
                packed = self.group.all_gather(two_bits.encode(k, total(values))[None])
            sums[k] = two_bits.total(packed, values[0].shape)
        return sums

    def _value(self, key: Key) -> Array:
        return self._table.value(key)

    def _rows(self, key: Key, rows: Array) -> Array:
        """Return rows of a key's value. `rows` has their indices."""
        values: Array = self._table.value(key)[rows]
        return values


def direct_outs(
    sums: Mapping[Key, Array], outs: Mapping[Key, list[Array]] | None
) -> dict[Key, Array] | None:
    """Return a dict of the arrays into which a compiled step can write the new values, or None.

    `sums` has the summed gradient of each key, which the step reads. `outs` has the caller's list
    of output arrays of each key. The result has the first array of each list.

    The step can write only to contiguous, writable arrays that have the dtype of the key's sum and
    do not share memory with a sum. If the first array of any key does not meet these conditions,
    the result is None. It is also None if `outs` is None or has other keys than `sums`.
    """
    if outs is None or outs.keys() != sums.keys():
        return None
    chosen = {k: outs[k][0] for k in sums}
    for k, array in chosen.items():
        if array.dtype != sums[k].dtype or not array.flags.carray:
            return None
        if any(np.may_share_memory(array, other) for other in sums.values()):
            return None
    return chosen
