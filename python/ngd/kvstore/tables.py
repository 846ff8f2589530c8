# SPDX-License-Identifier: Apache-2.0
"""The two kinds of table of a store. A table holds all values of a store and updates them.

A store has one table at a time. After `set_optimizer` with an optimizer of ngd, the table is an
`InGraph`, which updates values with this optimizer. Otherwise it is a `Plain`, which updates values
with a function (an updater), or without an updater replaces each value by the pushed sum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from .. import checkpoint, ops
from ..comm import Group
from ..compiler.driver import compile as compile_step
from ..devices.executable import Executable
from ..dtypes import Array
from ..graph.variable import Variable, placeholder, variable
from ..optim import Optimizer, clip_by_global_norm
from .arguments import Key

Updater: TypeAlias = Callable[[Key, Array, Array], Any]
"""A function of key, sum of gradients, and stored value. It changes the stored value in place."""


class Plain:
    """A table of NumPy arrays. A push updates the value of a key with the sum of pushed arrays.

    Parameters
    ----------
    updater : function, optional
        A push calls `updater(key, sum, value)`, where `sum` is the sum of the pushed arrays. The
        function changes `value` in place. By default the sum replaces the value.
    """

    def __init__(self, updater: Updater | None = None) -> None:
        self.updater = updater
        self._values: dict[Key, Array] = {}
        self._buffers: dict[Key, Array] = {}

    def names(self) -> list[Key]:
        """Return all keys, in the order in which they were added."""
        return list(self._values)

    def check(self, key: Key, dtype: np.dtype[Any]) -> None:
        """Do nothing: this table supports values of all dtypes."""

    def add(self, key: Key, value: Array) -> None:
        """Add a key with a copy of its value."""
        self._values[key] = value.copy()

    def value(self, key: Key) -> Array:
        """Return the stored array. It may change at the next push."""
        return self._values[key]

    def sum_buffer(self, key: Key) -> Array:
        """Return an array into which the caller writes the sum of the pushed arrays of `key`.

        Without an updater, the array is the stored value itself: the sum is the new value, so
        `push` has nothing to copy. With an updater, the array is a separate one, because the
        updater needs both the sum and the old value.
        """
        if self.updater is None:
            return self._values[key]
        if key not in self._buffers:
            self._buffers[key] = np.empty_like(self._values[key])
        return self._buffers[key]

    def push(self, key: Key, gradient: Array) -> None:
        """Update the value of a key with `gradient`, the sum of the pushed arrays.

        Without an updater, `gradient` replaces the value.
        """
        stored = self._values[key]
        if self.updater is not None:
            self.updater(key, gradient, stored)
        elif gradient is not stored:
            np.copyto(stored, gradient)

    def save(self, path: Path, dump_optimizer: bool) -> None:
        """Write the result of `updater.get_states(dump_optimizer)`, the optimizer state, to a file.

        The updater of an MXNet optimizer has the method `get_states`. Raise ValueError if the table
        has no updater, or if its updater is a function without this method.
        """
        states = self._updater_method("save_optimizer_states", "get_states")(dump_optimizer)
        checkpoint.replace(path, [states])

    def load(self, path: Path) -> None:
        """Read the state of the updater from a file that `save` wrote."""
        self._updater_method("load_optimizer_states", "set_states")(path.read_bytes())

    def _updater_method(self, where: str, method: str) -> Any:
        """Return a method of the updater; ValueError if the updater does not have it."""
        function = getattr(self.updater, method, None)
        if function is None:
            raise ValueError(
                f"{where}: expected a store with an optimizer; got none. Call set_optimizer first."
            )
        return function


class InGraph:
    """A table of variables that an optimizer of ngd updates in compiled steps.

    A step has the all-reduce of the gradients and the updates of the keys of one push. Each key has
    its own optimizer state and count of updates, so any set of keys can be pushed together.

    Parameters
    ----------
    optimizer : ngd.optim.Optimizer
        The optimizer, which is copied for each key.
    group : Group or None
        The ranks of the all-reduce; None for no all-reduce.
    """

    def __init__(self, optimizer: Optimizer, group: Group | None) -> None:
        self.optimizer, self.group = optimizer, group
        self._variables: dict[Key, Variable] = {}
        self._optimizers: dict[Key, Optimizer] = {}
        self._steps: dict[tuple[tuple[Key, ...], bool, bool], Executable] = {}

    def names(self) -> list[Key]:
        """Return all keys, in the order in which they were added."""
        return list(self._variables)

    def check(self, key: Key, dtype: np.dtype[Any]) -> None:
        """Raise TypeError unless the dtype is a float."""
        if dtype.kind not in "fV":  # V: bfloat16
            raise TypeError(
                f"init: key {key!r}: expected floats, which an optimizer updates; got {dtype}"
            )

    def add(self, key: Key, value: Array) -> None:
        """Add a key: create a variable with the value, and an optimizer state for this key only."""
        self.check(key, value.dtype)
        added = self._variables[key] = variable(str(key), value)
        optimizer = self._optimizers[key] = self.optimizer.with_own_state(
            f"{self.optimizer.name}.{key}"
        )
        # This creates the state of the optimizer.
        optimizer.apply({added: placeholder("gradient", added.shape, added.dtype)})

    def value(self, key: Key) -> Array:
        """Return a copy of the value."""
        return self._variables[key].numpy()

    def push(
        self, gradients: Mapping[Key, Array], outs: Mapping[Key, Array] | None, summed: bool
    ) -> None:
        """Update the values of the keys of `gradients` in one compiled step.

        If `outs` is not None, also write the new value of each key into the array of `outs`. If
        `summed` is True, each gradient is already the sum over the ranks, and no all-reduce runs.
        If `summed` is False, the gradients are those of this rank. The compiled step then adds them
        up over the ranks of the table's group, if the table has a group.
        """
        step = self._step(tuple(gradients), outs is not None, summed or self.group is None)
        step(*gradients.values(), out=None if outs is None else list(outs.values()))

    def _step(self, keys: tuple[Key, ...], with_values: bool, summed: bool) -> Executable:
        """Return the compiled step that updates `keys`. The first use compiles it.

        If `with_values` is True, the step returns the new values. If `summed` is False, the step
        adds up the gradients over the ranks first.
        """
        which = keys, with_values, summed
        if which not in self._steps:
            variables = [self._variables[key] for key in keys]
            placeholders = [
                placeholder(f"gradient of {v.name}", v.shape, v.dtype) for v in variables
            ]
            sums = placeholders if summed else [ops.all_reduce(g, op="sum") for g in placeholders]
            gradients = dict(zip(variables, sums, strict=True))
            if self.optimizer.clip_norm is not None:
                gradients, _ = clip_by_global_norm(gradients, self.optimizer.clip_norm)
            updates: dict[Any, Any] = {}
            for key, v in zip(keys, variables, strict=True):
                updates |= self._optimizers[key].apply({v: gradients[v]})
            outputs = [updates[v] for v in variables] if with_values else []
            self._steps[which] = compile_step(placeholders, outputs, updates, group=self.group)
        return self._steps[which]

    def _state(self) -> dict[str, Variable]:
        """Return the state variables of all optimizers of this table, by name."""
        states = [each.state for each in self._optimizers.values()]
        return {name: v for state in (*states, self.optimizer.state) for name, v in state.items()}

    def save(self, path: Path, dump_optimizer: bool) -> None:
        """Write the optimizer state of all keys, and the learning rate, as safetensors."""
        if dump_optimizer:
            raise ValueError(
                "save_optimizer_states: dump_optimizer: expected False with an optimizer of ngd; "
                "got True. Leave it out: the state is saved, and the program makes the optimizer."
            )
        checkpoint.replace(path, checkpoint.safetensors(self._state()))

    def load(self, path: Path) -> None:
        """Read the optimizer state from a file that `save` wrote."""
        saved, state = checkpoint.read_safetensors(path), self._state()
        if saved.keys() != state.keys():
            raise ValueError(
                f"load_optimizer_states: {path}: expected the state of this store's keys, "
                f"{sorted(state)}; got {sorted(saved)}"
            )
        for name, v in state.items():
            v.assign(saved[name])


def copy_values(old: Plain | InGraph, new: Plain | InGraph) -> Plain | InGraph:
    """Copy all values of the old table into the new one, and return the new one.

    `set_optimizer` and `set_updater` replace the table of a store. The values are kept.
    """
    for key in old.names():
        new.add(key, old.value(key))
    return new
