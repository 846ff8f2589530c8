# SPDX-License-Identifier: Apache-2.0
"""Random calls of a store, MXNet's or ngd's, and what they gave: one program for both.

python kvstore_calls.py SEED CALLS HOW FOLDER   # a worker of MXNet's own dist_sync, told by DMLC_*
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
"""Values of a key in one call. MXNet dies where a later call has more than the first one had."""
HOWS = ["sum", "updater", "sgd", "adam", "2bit"]


def double(key: Any, gradient: Any, value: Any) -> None:
    """An updater."""
    value += gradient * 2


class Calls:
    """Calls `store` with arrays made by `array`; the same calls for the same seed everywhere.

    `seen` has, for each call, the arrays that it wrote, or the word error.
    """

    def __init__(self, store: Any, array: Callable[[Any], Any], seed: int, how: str) -> None:
        self.store, self.array, self.how = store, array, how
        self.random = np.random.default_rng(seed)
        self.text = bool(self.random.integers(2))
        self.keys: dict[Any, tuple[tuple[int, ...], str]] = {}
        self.seen: list[Any] = []
        self.settle: Callable[[], Any] = lambda: None  # after each call

    def run(self, count: int, wrong: float = 0.05) -> list[Any]:
        """So many calls; of two kinds of wrong ones this part."""
        kinds = ["init", "push", "pull", "pushpull", "broadcast", "again", "unknown"]
        chances = [0.2 - 2 * wrong, 0.3, 0.25, 0.2, 0.05, wrong, wrong]
        self.init()
        while len(self.seen) < count:
            getattr(self, str(self.random.choice(kinds, p=chances)))()
        return self.seen

    def value(self, key: Any, like: Any = None) -> Any:
        """What this worker gives; all draw what all of them give."""
        shape, dtype = self.keys[key] if like is None else like
        of_all = self.random.integers(-3, 4, (self.store.num_workers, *shape))
        return self.array(
            (of_all[self.store.rank] / 4 * (1 if dtype[0] == "f" else 4)).astype(dtype)
        )

    def several(self, make: Callable[[Any], Any], key: Any) -> Any:
        """One array for a key, or a list of them."""
        count = int(self.random.integers(1, 4))
        return make(key) if count == 1 else [make(key) for _ in range(count - 1)]

    def some(self) -> Any:
        """One key, or a list of them, in any order, perhaps one of them twice."""
        keys = list(self.keys)
        if self.random.random() < 0.5:
            return keys[int(self.random.integers(len(keys)))]
        return [
            keys[int(i)] for i in self.random.integers(len(keys), size=self.random.integers(1, 4))
        ]

    def of(self, keys: Any, make: Callable[[Any], Any]) -> Any:
        """What a call takes for these keys."""
        if isinstance(keys, list):
            return [self.several(make, key) for key in keys]
        return self.several(make, keys)

    def room(self, key: Any) -> Any:
        """An array to write to."""
        shape, dtype = self.keys[key]
        return self.array(np.full(shape, 77, dtype))

    def new(self) -> tuple[Any, tuple[tuple[int, ...], str]]:
        """A key that there is not yet."""
        number = len(self.keys)
        dtypes = DTYPES if self.how == "sum" else DTYPES[:1]
        like = SHAPES[self.random.integers(len(SHAPES))], str(self.random.choice(dtypes))
        return f"key{number}" if self.text else number, like

    def call(self, name: str, *arguments: Any, wrote: Any = ()) -> None:
        """Do it, and note what came of it."""
        try:
            getattr(self.store, name)(*arguments)
            self.settle()
        except Exception as error:
            if type(error).__name__ not in ("MXNetError", "KeyError"):
                raise
            self.seen.append("error")
            return
        flat: list[Any] = [wrote]
        while any(isinstance(each, (list, tuple)) for each in flat):
            flat = [
                part
                for each in flat
                for part in (each if isinstance(each, (list, tuple)) else [each])
            ]
        arrays = [each if isinstance(each, np.ndarray) else each.asnumpy() for each in flat]
        self.seen.append([name, [[str(a.dtype), a.tolist()] for a in arrays]])

    def init(self) -> None:
        key, like = self.new()
        self.call("init", key, self.value(key, like))
        self.take(key, like)

    def take(self, key: Any, like: Any) -> None:
        """There is a new key."""
        self.keys[key] = like
        self.call("push", key, [self.value(key) for _ in range(MOST)])

    def broadcast(self) -> None:
        key, like = self.new()
        out = self.array(np.zeros(*like))
        self.call("broadcast", key, self.value(key, like), out, wrote=out)
        self.take(key, like)

    def again(self) -> None:
        key = next(iter(self.keys))
        self.call("init", key, self.value(key))

    def unknown(self) -> None:
        _, like = self.new()
        key = "never" if self.text else 10**6  # MXNet dies where it is initialized later
        name = str(self.random.choice(["push", "pull"]))
        self.call(name, key, self.value(key, like))

    def push(self) -> None:
        keys = self.some()
        self.call("push", keys, self.of(keys, self.value))

    def pull(self) -> None:
        keys = self.some()
        out = self.of(keys, self.room)
        self.call("pull", keys, out, wrote=out)

    def pushpull(self) -> None:
        if self.how == "2bit":  # MXNet's dist_sync has no pushpull of two bits
            self.push()
            return
        keys = self.some()
        values = self.of(keys, self.value)
        if self.random.random() < 0.5:
            self.call("pushpull", keys, values, wrote=values)
        else:
            out = self.of(keys, self.room)
            self.call("pushpull", keys, values, out, wrote=out)


def prepare(store: Any, how: str) -> None:
    """How the store updates."""
    if how == "updater":
        store._set_updater(double)
    if how == "2bit":
        store.set_gradient_compression({"type": "2bit", "threshold": 0.5})
    if how in ("sgd", "adam"):
        import mxnet as mx

        makers = {"sgd": mx.optimizer.SGD, "adam": mx.optimizer.Adam}
        options = {"momentum": 0.5} if how == "sgd" else {}
        store.set_optimizer(makers[how](learning_rate=0.1, wd=0.01, **options))


def main() -> None:
    """A worker of MXNet's."""
    import mxnet as mx

    seed, count, how = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    store = mx.kv.create("dist_sync")
    prepare(store, how)
    calls = Calls(store, lambda a: mx.nd.array(a, dtype=a.dtype), seed, how)
    # A pull of one worker may else come behind the next push of the other one.
    calls.settle = lambda: (mx.nd.waitall(), store._barrier())
    seen = calls.run(count, wrong=0.0)
    file = Path(sys.argv[4], f"{store.rank}.json")
    file.with_suffix(".part").write_text(json.dumps(seen))
    file.with_suffix(".part").rename(file)


if __name__ == "__main__":
    main()
