# SPDX-License-Identifier: Apache-2.0
"""The stores of ngd.kvstore for MXNet 1.9.1: on its arrays, and by `mx.kv.create("ngd")`.

    import ngd.kvstore.mxnet   # before mxnet
    import mxnet as mx

    trainer = mx.gluon.Trainer(parameters, "sgd", {"learning_rate": 0.1}, kvstore="ngd")

Stores read and write the memory of MXNet's arrays; docs/mxnet.md has what to install.
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

from mxnet.kvstore import KVStoreBase  # isort: skip  # once mx is there

NDArray: Any = mx.nd.NDArray


class Shared:
    """What NumPy asks for the memory of an array of MXNet's, when nobody uses it any more."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **_: Any) -> Any:
        return self.array.to_dlpack_for_write()

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0  # DLPack's number of the CPU


def writable(array: Any) -> Array:
    """The memory of a dense array of MXNet's on the CPU, once MXNet has done what it had to.

    NumPy marks what comes by DLPack as read-only, so its address is taken.
    """
    if array.context.device_type not in ("cpu", "cpu_pinned", "cpu_shared"):
        raise TypeError(f"ngd.kvstore: expected an array of MXNet on the CPU; got {array.context}")
    if array.size == 0:
        return np.empty(array.shape, array.dtype)
    seen = np.from_dlpack(Shared(array))
    memory = (ctypes.c_byte * seen.nbytes).from_address(seen.ctypes.data)
    memory.keeps = seen  # type: ignore[attr-defined]
    return np.ndarray(seen.shape, seen.dtype, memoryview(memory))


def given(values: Any) -> Any:
    """Arrays of MXNet's in a structure of lists, as NumPy sees them."""
    if isinstance(values, (list, tuple)):
        return [given(each) for each in values]
    if not isinstance(values, NDArray):
        return values
    if values.stype != "default":
        raise TypeError(
            "ngd.kvstore: expected dense arrays of MXNet here; row_sparse_pull, init and push take "
            f"sparse ones; got {values.stype}"
        )
    return writable(values)


def dense(values: Any) -> Any:
    """The same structure with the sparse ones made dense."""
    if isinstance(values, (list, tuple)):
        return [dense(each) for each in values]
    sparse = isinstance(values, NDArray) and values.stype != "default"
    return values.tostype("default") if sparse else values


def pairs(one: Any, other: Any) -> list[tuple[Any, Any]]:
    """What stands in the same places of two structures."""
    if isinstance(one, (list, tuple)):
        return [pair for each in zip(one, other, strict=True) for pair in pairs(*each)]
    return [(one, other)]


class Store(KVStoreBase):
    """A store of ngd's on arrays of MXNet's; its methods are those of ngd.kvstore.KVStore.

    Sparse arrays that are initialized or pushed are made dense, and row_sparse_pull fills sparse
    ones; elsewhere they are refused.
    """

    def __init__(self, store: KVStore) -> None:
        self.store = store

    def init(self, key: Any, value: Any) -> None:
        """See ngd.kvstore.KVStore.init, as for all of these."""
        self.store.init(key, given(dense(value)))

    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        """See KVStore.push."""
        self.store.push(key, given(dense(value)))

    def pull(
        self, key: Any, out: Any = None, priority: int = 0, ignore_sparse: bool = True
    ) -> None:
        """See KVStore.pull."""
        self.store.pull(key, given(out))

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """See KVStore.pushpull."""
        values = given(value)
        self.store.pushpull(key, values, values if out is None else given(out))

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """See KVStore.broadcast."""
        self.store.broadcast(key, given(value), given(out))

    def row_sparse_pull(
        self, key: Any, out: Any = None, priority: int = 0, row_ids: Any = None
    ) -> None:
        """See KVStore.row_sparse_pull; `out` is dense or row_sparse."""
        filled = dense(out)
        self.store.row_sparse_pull(key, given(filled), row_ids=given(row_ids))
        for wanted, full in pairs(out, filled):
            if full is not wanted:
                full.tostype(wanted.stype).copyto(wanted)

    def set_optimizer(self, optimizer: Any) -> None:
        """See KVStore.set_optimizer."""
        self.store.set_optimizer(optimizer)

    def set_updater(self, updater: Callable[[Any, Any, Any], Any]) -> None:
        """As KVStore.set_updater, of a function on arrays of MXNet's."""
        self.store.set_updater(Updater(updater))

    _set_updater = set_updater

    def set_gradient_compression(self, compression_params: Any) -> None:
        """See KVStore.set_gradient_compression."""
        self.store.set_gradient_compression(compression_params)

    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> None:
        """See KVStore.save_optimizer_states."""
        self.store.save_optimizer_states(fname, dump_optimizer)

    def load_optimizer_states(self, fname: str) -> None:
        """See KVStore.load_optimizer_states."""
        self.store.load_optimizer_states(fname)

    def is_capable(self, capability: str) -> bool:
        """See KVStore.is_capable."""
        return self.store.is_capable(capability)

    def barrier(self) -> None:
        """See KVStore.barrier."""
        self.store.barrier()

    _barrier = barrier

    def close(self) -> None:
        """See KVStore.close."""
        self.store.close()

    @property
    def _updater(self) -> Any:
        """What MXNet's Trainer takes the optimizer of, after it has loaded its states."""
        return getattr(self.store.updater, "updater", None)

    @property
    def type(self) -> str:
        """The name that the store was made by; that of "ngd" is "dist_sync"."""
        return self.store.type

    @property
    def rank(self) -> int:
        """See KVStore."""
        return self.store.rank

    @property
    def num_workers(self) -> int:
        """See KVStore."""
        return self.store.num_workers


def create(
    name: str = "dist_sync", *, group: Group | None = None, staleness: int | None = None
) -> Store:
    """Make a store for MXNet's arrays, with the arguments of ngd.kvstore.create.

    MXNet's `Trainer` and `Module` take it as their `kvstore`.
    """
    return Store(create_on_arrays(name, group=group, staleness=staleness))


@KVStoreBase.register
class NGD(Store):
    """What `mx.kv.create("ngd")` makes: a dist_sync store over the world."""

    def __init__(self) -> None:
        super().__init__(create_on_arrays("dist_sync"))


def serve_strings() -> None:
    """Let MXNet make the store also where it passes over names without "dist".

    Its Trainer and Module train alone, without a word, where they have one device and such a name.
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
