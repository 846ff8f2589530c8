# SPDX-License-Identifier: Apache-2.0
"""The stores of ngd.kvstore for the arrays of MXNet 1.9.1.

    import ngd.kvstore.mxnet   # first: it defines numpy.bool, which mxnet needs
    import mxnet as mx

    trainer = mx.gluon.Trainer(parameters, "sgd", {"learning_rate": 0.1}, kvstore="ngd")

The import of this module registers the name "ngd" with MXNet, so `mx.kv.create("ngd")` returns a
store too. The stores read and write the memory of MXNet's arrays. docs/mxnet.md lists the packages
to install.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from ..comm import Group
from ..dtypes import Array
from . import create as create_on_arrays
from .mxnet_optimizers import Updater, mx
from .store import KVStore

from mxnet.kvstore import KVStoreBase  # isort: skip  # after the import of `mx`

NDArray: Any = mx.nd.NDArray


class WritableMemory:
    """An object with DLPack methods, by which NumPy gets the writable memory of an MXNet array.

    Before NumPy gets the memory, MXNet waits until all its operations on the array are complete.
    """

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **_: Any) -> Any:
        return self.array.to_dlpack_for_write()

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0  # DLPack's number of the CPU


def writable(array: Any) -> Array:
    """Return the memory of a dense MXNet array on the CPU as a writable NumPy array.

    This function waits until MXNet has completed all operations on the array. `np.from_dlpack`
    returns a read-only NumPy array. So this function returns another NumPy array, which is writable
    and has the same memory.
    """
    if array.context.device_type not in ("cpu", "cpu_pinned", "cpu_shared"):
        raise TypeError(f"ngd.kvstore: expected an array of MXNet on the CPU; got {array.context}")
    if array.size == 0:
        return np.empty(array.shape, array.dtype)
    view = np.from_dlpack(WritableMemory(array))
    memory = (ctypes.c_byte * view.nbytes).from_address(view.ctypes.data)
    memory.keeps = view  # type: ignore[attr-defined]
    return np.ndarray(view.shape, view.dtype, memoryview(memory))


def as_numpy(values: Any) -> Any:
    """Return nested lists of dense MXNet arrays as nested lists of NumPy arrays.

    Each NumPy array shares the memory of its MXNet array. Values that are not MXNet arrays stay.
    Raise TypeError for a sparse array.
    """
    if isinstance(values, (list, tuple)):
        return [as_numpy(each) for each in values]
    if not isinstance(values, NDArray):
        return values
    if values.stype != "default":
        raise TypeError(
            "ngd.kvstore: expected dense arrays of MXNet here; row_sparse_pull, init and push take "
            f"sparse ones; got {values.stype}"
        )
    return writable(values)


def as_dense(values: Any) -> Any:
    """Return nested lists of MXNet arrays in which a dense copy replaces each sparse array."""
    if isinstance(values, (list, tuple)):
        return [as_dense(each) for each in values]
    sparse = isinstance(values, NDArray) and values.stype != "default"
    return values.tostype("default") if sparse else values


def pairs(one: Any, other: Any) -> list[tuple[Any, Any]]:
    """Return a flat list of pairs (a, b): the arrays at the same position of two nested lists.

    `a` is an array of `one`, and `b` is the array at the same position of `other`. The two lists
    must have the same structure.
    """
    if isinstance(one, (list, tuple)):
        return [pair for each in zip(one, other, strict=True) for pair in pairs(*each)]
    return [(one, other)]


class Store(KVStoreBase):
    """A store of ngd for MXNet arrays, with the methods of ngd.kvstore.KVStore.

    `init` and `push` convert sparse arrays to dense ones, and `row_sparse_pull` fills sparse
    arrays. The other methods raise TypeError for sparse arrays.

    Parameters
    ----------
    store : KVStore
        The store for NumPy arrays that holds the values.
    """

    def __init__(self, store: KVStore) -> None:
        self.store = store

    def init(self, key: Any, value: Any) -> None:
        """Create keys with the values of rank 0; see KVStore.init."""
        self.store.init(key, as_numpy(as_dense(value)))

    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        """Add up gradients over the ranks and update the values; see KVStore.push."""
        self.store.push(key, as_numpy(as_dense(value)))

    def pull(
        self, key: Any, out: Any = None, priority: int = 0, ignore_sparse: bool = True
    ) -> None:
        """Copy values into `out`; see KVStore.pull."""
        self.store.pull(key, as_numpy(out))

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """Push, then copy the new values into `out`; see KVStore.pushpull."""
        values = as_numpy(value)
        self.store.pushpull(key, values, values if out is None else as_numpy(out))

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """Create keys, and copy the values of rank 0 into `out`; see KVStore.broadcast."""
        self.store.broadcast(key, as_numpy(value), as_numpy(out))

    def row_sparse_pull(
        self, key: Any, out: Any = None, priority: int = 0, row_ids: Any = None
    ) -> None:
        """Copy rows of values into `out`, dense or row_sparse; see KVStore.row_sparse_pull."""
        filled = as_dense(out)
        self.store.row_sparse_pull(key, as_numpy(filled), row_ids=as_numpy(row_ids))
        for destination, full in pairs(out, filled):
            if full is not destination:
                full.tostype(destination.stype).copyto(destination)

    def set_optimizer(self, optimizer: Any) -> None:
        """Update values with an optimizer; see KVStore.set_optimizer."""
        self.store.set_optimizer(optimizer)

    def set_updater(self, updater: Callable[[Any, Any, Any], Any]) -> None:
        """Update values with a function on MXNet arrays; see KVStore.set_updater."""
        self.store.set_updater(Updater(updater))

    _set_updater = set_updater

    def set_gradient_compression(self, compression_params: Any) -> None:
        """Compress pushed gradients to two bits; see KVStore.set_gradient_compression."""
        self.store.set_gradient_compression(compression_params)

    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> None:
        """Write the optimizer state to a file; see KVStore.save_optimizer_states."""
        self.store.save_optimizer_states(fname, dump_optimizer)

    def load_optimizer_states(self, fname: str) -> None:
        """Read the optimizer state from a file; see KVStore.load_optimizer_states."""
        self.store.load_optimizer_states(fname)

    def is_capable(self, capability: str) -> bool:
        """Return True for "optimizer", the only capability; see KVStore.is_capable."""
        return self.store.is_capable(capability)

    def barrier(self) -> None:
        """Wait until all ranks have called this method."""
        self.store.barrier()

    _barrier = barrier

    def close(self) -> None:
        """Leave the store, and release the values."""
        self.store.close()

    @property
    def _updater(self) -> Any:
        """The function on MXNet arrays that updates the values, or None.

        After `set_optimizer` with an optimizer of MXNet, it is MXNet's updater of this optimizer.
        After `set_updater`, it is the given function. In all other cases it is None: before these
        calls, with an optimizer of ngd, and for a dist_async store. MXNet's `Trainer.load_states`
        loads a file into the store, and then reads the optimizer from `_updater.optimizer`.
        """
        return getattr(self.store.updater, "updater", None)

    @property
    def type(self) -> str:
        """The kind of store, for example "local". For `mx.kv.create("ngd")` it is "dist_sync"."""
        return self.store.type

    @property
    def rank(self) -> int:
        """The number of this rank among the ranks that share the store."""
        return self.store.rank

    @property
    def num_workers(self) -> int:
        """The number of ranks that share the store."""
        return self.store.num_workers


def create(
    name: str = "dist_sync", *, group: Group | None = None, staleness: int | None = None
) -> Store:
    """Create a store for MXNet arrays, with the arguments of ngd.kvstore.create.

    Returns
    -------
    Store
        The store. MXNet's `Trainer` and `Module` accept it as their `kvstore`.
    """
    return Store(create_on_arrays(name, group=group, staleness=staleness))


@KVStoreBase.register
class NGD(Store):
    """The class of the store that `mx.kv.create("ngd")` returns: a dist_sync store of all ranks."""

    def __init__(self) -> None:
        super().__init__(create_on_arrays("dist_sync"))


def serve_strings() -> None:
    """Make MXNet's Trainer and Module create a store of ngd for the string `kvstore="ngd"`.

    If a Trainer or Module has only one device, MXNet creates a store only if the string contains
    "dist". So MXNet would create no store for "ngd", and each rank would train separately, without
    a warning. This function therefore replaces MXNet's `_create_kvstore`, which Trainer and Module
    call with the string.
    """
    from mxnet import model, module
    from mxnet.gluon import trainer

    original = model._create_kvstore

    def create_kvstore(kvstore: Any, num_device: int, arg_params: Any) -> Any:
        if isinstance(kvstore, str) and kvstore.lower() == "ngd":
            kvstore = mx.kv.create(kvstore)
        return original(kvstore, num_device, arg_params)

    for user in (model, trainer, module.module):
        user._create_kvstore = create_kvstore


serve_strings()
