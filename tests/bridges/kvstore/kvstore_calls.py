# SPDX-License-Identifier: Apache-2.0
"""Make random calls of a store, MXNet's or ngd's, and return the results.

    python kvstore_calls.py SEED CALLS HOW FOLDER

This command is a worker of MXNet's dist_sync. Environment variables DMLC_* set its role.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

SHAPES = [(3,), (2, 3), (4, 1, 2)]
DTYPES = ["float32", "float64"]
MOST = 6
"""The largest number of values of a key in one call.

MXNet dies if a later call has more values than the first one.
"""
HOWS = ["sum", "updater", "sgd", "adam", "2bit"]


def add_twice(key: Any, gradient: Any, value: Any) -> None:
    """Update a value in place."""
    value += gradient * 2


class Calls:
    """Random calls of `store`, with arrays made by `array`. They depend only on the seed.

    `results` has one entry per call: the arrays that it wrote, or "error".
    """

    def __init__(self, store: Any, array: Callable[[Any], Any], seed: int, how: str) -> None:
        self.store, self.array, self.how = store, array, how
        self.random = np.random.default_rng(seed)
        self.text = bool(self.random.integers(2))
        self.keys: dict[Any, tuple[tuple[int, ...], str]] = {}
        self.results: list[Any] = []
        self.finish_call: Callable[[], Any] = lambda: None  # runs after each call

    def run(self, count: int, wrong: float = 0.05) -> list[Any]:
        """Make `count` calls and return the results. `wrong` is the rate per kind of bad call."""
        kinds = ["init", "push", "pull", "pushpull", "broadcast", "again", "unknown"]
        chances = [0.2 - 2 * wrong, 0.3, 0.25, 0.2, 0.05, wrong, wrong]
        self.init()
        while len(self.results) < count:
            getattr(self, str(self.random.choice(kinds, p=chances)))()
        return self.results

    def value(self, key: Any, like: Any = None) -> Any:
        """Return this worker's array. Every worker draws the arrays of all workers."""
        shape, dtype = self.keys[key] if like is None else like
        of_all = self.random.integers(-3, 4, (self.store.num_workers, *shape))
        return self.array(
            (of_all[self.store.rank] / 4 * (1 if dtype[0] == "f" else 4)).astype(dtype)
        )

    def one_or_list(self, make: Callable[[Any], Any], key: Any) -> Any:
        """Return one array for a key, or a list of arrays."""
        count = int(self.random.integers(1, 4))
        return make(key) if count == 1 else [make(key) for _ in range(count - 1)]

    def draw_keys(self) -> Any:
        """Return one key, or a list of keys in any order, in which a key may occur twice."""
        keys = list(self.keys)
        if self.random.random() < 0.5:
            return keys[int(self.random.integers(len(keys)))]
        return [
            keys[int(i)] for i in self.random.integers(len(keys), size=self.random.integers(1, 4))
        ]

    def arrays_for(self, keys: Any, make: Callable[[Any], Any]) -> Any:
        """Return the arrays that a call takes for these keys."""
        if isinstance(keys, list):
            return [self.one_or_list(make, key) for key in keys]
        return self.one_or_list(make, keys)

    def make_output(self, key: Any) -> Any:
        """Return an array that a call can write to."""
        shape, dtype = self.keys[key]
        return self.array(np.full(shape, 77, dtype))

    def draw_new_key(self) -> tuple[Any, tuple[tuple[int, ...], str]]:
        """Return a new key, its shape and its dtype."""
        number = len(self.keys)
        dtypes = DTYPES if self.how == "sum" else DTYPES[:1]
        like = SHAPES[self.random.integers(len(SHAPES))], str(self.random.choice(dtypes))
        return f"key{number}" if self.text else number, like

    def call(self, name: str, *arguments: Any, wrote: Any = ()) -> None:
        """Make a call, and append its result."""
        try:
            getattr(self.store, name)(*arguments)
            self.finish_call()
        except Exception as error:
            if type(error).__name__ not in ("MXNetError", "KeyError"):
                raise
            self.results.append("error")
            return
        flat: list[Any] = [wrote]
        while any(isinstance(each, (list, tuple)) for each in flat):
            flat = [
                part
                for each in flat
                for part in (each if isinstance(each, (list, tuple)) else [each])
            ]
        arrays = [each if isinstance(each, np.ndarray) else each.asnumpy() for each in flat]
        self.results.append([name, [[str(a.dtype), a.tolist()] for a in arrays]])

    def init(self) -> None:
        key, like = self.draw_new_key()
        self.call("init", key, self.value(key, like))
        self.add_key(key, like)

    def add_key(self, key: Any, like: Any) -> None:
        """Register a new key, and push the largest number of values to it."""
        self.keys[key] = like
        self.call("push", key, [self.value(key) for _ in range(MOST)])

    def broadcast(self) -> None:
        key, like = self.draw_new_key()
        out = self.array(np.zeros(*like))
        self.call("broadcast", key, self.value(key, like), out, wrote=out)
        self.add_key(key, like)

    def again(self) -> None:
        key = next(iter(self.keys))
        self.call("init", key, self.value(key))

    def unknown(self) -> None:
        _, like = self.draw_new_key()
        key = "never" if self.text else 10**6  # MXNet dies if it is initialized later
        name = str(self.random.choice(["push", "pull"]))
        self.call(name, key, self.value(key, like))

    def push(self) -> None:
        keys = self.draw_keys()
        self.call("push", keys, self.arrays_for(keys, self.value))

    def pull(self) -> None:
        keys = self.draw_keys()
        out = self.arrays_for(keys, self.make_output)
        self.call("pull", keys, out, wrote=out)

    def pushpull(self) -> None:
        if self.how == "2bit":  # MXNet's dist_sync has no pushpull with 2-bit compression
            self.push()
            return
        keys = self.draw_keys()
        values = self.arrays_for(keys, self.value)
        if self.random.random() < 0.5:
            self.call("pushpull", keys, values, wrote=values)
        else:
            out = self.arrays_for(keys, self.make_output)
            self.call("pushpull", keys, values, out, wrote=out)


def prepare(store: Any, how: str) -> None:
    """Set the updater, the optimizer or the compression of a store."""
    if how == "updater":
        store._set_updater(add_twice)
    if how == "2bit":
        store.set_gradient_compression({"type": "2bit", "threshold": 0.5})
    if how in ("sgd", "adam"):
        import mxnet as mx

        makers = {"sgd": mx.optimizer.SGD, "adam": mx.optimizer.Adam}
        options = {"momentum": 0.5} if how == "sgd" else {}
        store.set_optimizer(makers[how](learning_rate=0.1, wd=0.01, **options))


def main() -> None:
    """Run as a worker of MXNet."""
    import mxnet as mx

    seed, count, how = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    store = mx.kv.create("dist_sync")
    prepare(store, how)
    calls = Calls(store, lambda a: mx.nd.array(a, dtype=a.dtype), seed, how)
    # Otherwise a pull of one worker may run after the next push of the other worker.
    calls.finish_call = lambda: (mx.nd.waitall(), store._barrier())
    results = calls.run(count, wrong=0.0)
    file = Path(sys.argv[4], f"{store.rank}.json")
    file.with_suffix(".part").write_text(json.dumps(results))
    file.with_suffix(".part").rename(file)


if __name__ == "__main__":
    main()
