# SPDX-License-Identifier: Apache-2.0
"""The state of an optimizer, or of an average of weights: a mapping from names to variables.

The owner of the state (the optimizer or average) makes the variables when it first needs them. For
example, an optimizer makes the moments of a parameter when it first updates that parameter. With
`@ngd.function` this happens in the first call, which may come after a checkpoint was loaded. So a
LiveState keeps the values that were loaded for variables that do not exist yet. These values are
*pending*. A new variable takes its pending value. The first call of a step that updates a variable
of the state checks that no pending value is left. If a complete state was loaded, it also checks
that each variable had a pending value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np

from .._util.caller_arrays import view
from ..dtypes import Array, Type
from .variable import Variable, variable

MOST_NAMES: Final = 20
"""The number of names that a message lists."""


class LiveState(Mapping[str, Variable]):
    """A mapping from names to variables that grows as its owner makes variables.

    `optimizer.state` and `average.state` are such mappings. Give the mapping itself to
    `ngd.checkpoint` and `train.Trainer`: a copy, such as `dict(state)`, does not get the variables
    that are made later.

    Parameters
    ----------
    name : str
        The key of the state in a checkpoint. States in one checkpoint have different names.
    *parts : LiveState
        Other states. This state has their variables, too.

    Notes
    -----
    A value is pending if it was loaded and its variable does not exist yet. Iterating over a state
    with pending values raises a RuntimeError, because the iteration would leave them out.

    Examples
    --------
    >>> updates = optimizer.minimize(loss, model.parameters())
    >>> isinstance(optimizer.state, ngd.LiveState)
    True
    """

    def __init__(self, name: str, *parts: LiveState) -> None:
        if not isinstance(name, str) or not name:
            raise TypeError(f"LiveState: name: expected a non-empty text; got {name!r}")
        for part in parts:
            if not isinstance(part, LiveState):
                raise TypeError(f"LiveState: parts: expected other states; got {part!r}")
        self.name, self.parts = name, parts
        self._made: dict[str, Variable] = {}
        self._pending: dict[str, Array] = {}
        self._source: str | None = None
        self._missing: list[str] = []
        self._has_run = False
        self._is_complete = False

    @property
    def states(self) -> list[LiveState]:
        """A list of this state, the states that it contains (`parts`), those in them, and so on."""
        return [self, *(state for part in self.parts for state in part.states)]

    @property
    def variables(self) -> dict[str, Variable]:
        """The variables that exist now, by name."""
        return {name: v for state in self.states for name, v in state._made.items()}

    @property
    def pending(self) -> dict[str, Array]:
        """The values that were loaded for variables that do not exist yet, by name."""
        return {name: value for state in self.states for name, value in state._pending.items()}

    @property
    def own_variables(self) -> Mapping[str, Variable]:
        """The variables of this state by name, without those of other states that it contains."""
        return self._made

    @property
    def own_pending(self) -> Mapping[str, Array]:
        """The pending values of this state by name, without those of other states that it contains.

        A value is pending if it was loaded and its variable does not exist yet.
        """
        return self._pending

    @property
    def is_complete(self) -> bool:
        """True if each variable that the owner (an optimizer) needs exists or has a loaded value.

        It becomes True when the first step runs, because the owner makes no variables after that.
        It is also True after a complete state was loaded.
        """
        return self._is_complete

    def __getitem__(self, name: str) -> Variable:
        found = self.variables.get(name)
        if found is None:
            is_pending = " is pending: its variable is not made yet" if name in self.pending else ""
            raise KeyError(f"{name}{is_pending}")
        return found

    def __iter__(self) -> Iterator[str]:
        if self.pending:
            raise RuntimeError(
                f"state {self.name!r}: expected a variable for each value; got "
                f"{listed(self.pending)} "
                f"without one, from {self._source}: they are pending. Make the variables first, "
                "by a "
                "step or by step.trace(...). ngd.checkpoint.save saves pending values, too."
            )
        return iter(self.variables)

    def __len__(self) -> int:
        return len(self.variables)

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __contains__(self, name: object) -> bool:
        return name in self.variables

    def __or__(self, other: Any) -> Any:
        """Raise a TypeError: the result of `state | other` would not get variables made later."""
        raise TypeError(
            f"state {self.name!r}: expected a state; got a union, which is a copy and does not "
            "follow the "
            "state. Give a list: [model.variables(), optimizer.state]."
        )

    __ror__ = __or__

    def __repr__(self) -> str:
        pending_text = f", {len(self.pending)} pending" if self.pending else ""
        return f"<ngd.LiveState {self.name!r}, {len(self)} variables{pending_text}>"

    def __copy__(self) -> LiveState:
        """Return the state itself, because a copy would not get the variables made later."""
        return self

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Fill a deep copy or an unpickled state, and set `owner` of its variables to this state.

        This is necessary because copying or unpickling a variable does not restore its `owner`.
        """
        self.__dict__.update(state)
        for v in self._made.values():
            v.owner = self

    def variable(self, name: str, initial: Callable[[], Any]) -> Variable:
        """Return the variable of a name. The first call makes it.

        A new variable gets its pending value, which is a value that was loaded for this name
        before. Without a pending value, the variable gets the value that `initial()` returns. A
        pending value with another dtype or shape than `initial()` raises a ValueError.
        """
        found = self._made.get(name)
        if found is not None:
            return found
        made = variable(name, initial())
        value = self._pending.get(name)
        if value is not None:
            if (value.dtype, value.shape) != (made.dtype, made.shape):
                raise ValueError(
                    f"state {self.name!r}: expected {made.type} for variable {name!r}; got "
                    f"{Type(value.dtype, value.shape)} from {self._source} (made at {made.site}). "
                    "Load a checkpoint of the same model."
                )
            made.assign(value)
            del self._pending[name]
        elif self._source is not None:
            self._missing.append(name)
        made.owner = self
        self._made[name] = made
        return made

    def load(
        self, values: Mapping[str, Any], *, source: str = "a mapping", is_complete: bool = True
    ) -> None:
        """Assign values by name; store those of variables that do not exist yet as pending.

        A variable gets its pending value when it is made.

        Parameters
        ----------
        values : mapping of str to array_like
            An array for each variable that exists, by name, with the shape and dtype of the
            variable. Values of other names become pending.
        source : str, default "a mapping"
            The origin of the values, for messages.
        is_complete : bool, default True
            True if the state that was saved had its attribute `is_complete` set: `values` then has
            a value for every variable that the owner of the state, such as an optimizer, needs. In
            this case the first step raises a ValueError if a variable that was made after the load
            has no value in `values`.

        Raises
        ------
        ValueError
            A variable that exists has no value in `values`, or a value of another shape or dtype.
            Or a step that updates this state has run, and `values` has names without a variable. In
            both cases no value was assigned.
        """
        arrays = {name: view(value, f"state {self.name!r}: load") for name, value in values.items()}
        existing = self.variables
        check_values(f"state {self.name!r}: load", existing, arrays, source)
        extra = {name: array for name, array in arrays.items() if name not in existing}
        by_state = self.split(extra)
        for state in self.states:
            state.expect_not_run(by_state[state.name], source)
        for name, v in existing.items():
            v.assign(arrays[name])
        for state in self.states:
            state.restore(by_state[state.name], source, is_complete=is_complete)

    def split(self, values: Mapping[str, Array]) -> dict[str, dict[str, Array]]:
        """Return a dict of values for this state and for each of its parts, by the state's name.

        A value belongs to the state called STATE if the name of the value begins with "STATE.". If
        this is true for several states, it belongs to the one with the longest name. If it is true
        for no state, the value belongs to this state. The values keep their names.
        """
        found: dict[str, dict[str, Array]] = {state.name: {} for state in self.states}
        for name, value in values.items():
            owners = [each for each in found if name.startswith(f"{each}.")]
            found[max(owners, key=len, default=self.name)][name] = value
        return found

    def expect_not_run(self, extra: Mapping[str, Any], source: str) -> None:
        """Raise a ValueError if a step that updates this state has run and `extra` has values.

        `extra` has the loaded values for which the state has no variable. After the first step,
        such values would never be used, because the owner of the state (an optimizer, or an average
        of weights) makes no more variables.
        """
        if self._has_run and extra:
            raise ValueError(
                f"state {self.name!r}: expected values of its variables; got {listed(extra)} from "
                f"{source}, for which it has no variables. Load before the first step, or load a "
                "checkpoint of the same model."
            )

    def restore(self, pending: Mapping[str, Any], source: str, *, is_complete: bool = True) -> None:
        """Replace the pending values: loaded values whose variables do not exist yet.

        `load` calls this after it has assigned the values of the variables that exist. If
        `is_complete` is True, the first step raises a ValueError if a variable that was made after
        the load has no value in `pending`.
        """
        self._pending = {name: np.array(value) for name, value in pending.items()}
        self._missing = []
        self._source = source if is_complete and not self._has_run else None
        self._is_complete = is_complete or self._has_run

    def expect_complete(self) -> None:
        """Raise a ValueError if a loaded value has no variable, or a variable has no loaded value.

        The first call of a step that updates the state calls this. If a complete state was loaded,
        the variables that were made after the load need a loaded value. Other variables do not.
        """
        if self._pending or self._missing:
            unused = f"no variable for {listed(self._pending)}" if self._pending else ""
            missing = f"no value for {listed(self._missing)}" if self._missing else ""
            raise ValueError(
                f"state {self.name!r}: expected a value from {self._source} for each variable, and "
                f"a variable for each value; got {' and '.join(filter(None, (unused, missing)))}. "
                "Name the parameters as in the saved program, and if another step makes these "
                "variables, call its trace(...) before. If the difference is wanted, call "
                "step.trace(...) and then state.drop_pending()."
            )
        self._has_run = self._is_complete = True
        self._source = None

    def drop_pending(self) -> None:
        """Remove the pending values: loaded values whose variables do not exist yet.

        The first step then also accepts variables for which no value was loaded. Use this if a
        model has changed on purpose. Call it after `step.trace(...)` has made the variables: before
        that, all loaded values are pending, and all of them would be removed.
        """
        for state in self.states:
            state._pending, state._missing, state._source = {}, [], None


def check_values(
    where: str, variables: Mapping[str, Variable], arrays: Mapping[str, Any], source: str
) -> None:
    """Raise a ValueError if a variable has no array, or one of another shape or dtype."""
    for name, v in variables.items():
        array = arrays.get(name)
        if array is None or array.shape != v.shape or array.dtype != v.dtype:
            has = "nothing" if array is None else Type(array.dtype, array.shape)
            raise ValueError(
                f"{where}: expected {v.type} for variable {name!r}; got {has} in {source}"
            )


def listed(names: Mapping[str, Any] | list[str]) -> str:
    """Return a text with at most MOST_NAMES of the names, such as "'a', 'b' and 3 more"."""
    shown = ", ".join(repr(name) for name in [*names][:MOST_NAMES])
    return f"{shown} and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else shown


__all__ = ["LiveState"]
