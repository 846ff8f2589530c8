# SPDX-License-Identifier: Apache-2.0
"""Functions by which the trainer checks callbacks and saves their states in checkpoints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

CALLBACKS: Final = "callbacks"
"""The key of the callbacks' states in the dict `position`, which a checkpoint contains.

The dict also has the epoch and the step of the next batch.
"""
HOOKS: Final = ("on_step", "on_epoch")
"""The names of the methods of a callback that the trainer calls."""

Hook = TypeVar("Hook", bound=Callable[..., Any])


def empty_hook(method: Hook) -> Hook:
    """Mark a method of the base class Callback as empty.

    The trainer does not call a method with this mark. A method that overrides it has no mark.
    """
    method.is_empty_hook = True  # type: ignore[attr-defined]
    return method


def has_hook(callback: Any, hook: str) -> bool:
    """Return True if a callback has a method `hook`, and not just the empty one of Callback."""
    method = getattr(callback, hook, None)
    return callable(method) and not getattr(method, "is_empty_hook", False)


def check_callbacks(callbacks: Any) -> list[Any]:
    """Return the callbacks as a list. Raise TypeError unless they are a sequence of callbacks."""
    if not isinstance(callbacks, Sequence):
        raise TypeError(
            f"train.Trainer: callbacks: expected a list; got {type(callbacks).__name__}. Write "
            "callbacks=[callback]."
        )
    for callback in callbacks:
        if isinstance(callback, type) or not any(
            callable(getattr(callback, hook, None)) for hook in HOOKS
        ):
            what = f"the class {callback.__name__}" if isinstance(callback, type) else callback
            raise TypeError(
                "train.Trainer: callbacks: expected objects with a method on_step or on_epoch; got "
                f"{what!s}. Derive a class from train.Callback, and give an instance of it."
            )
    return list(callbacks)


def stateful(callbacks: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Yield (key, callback) for each callback that has the methods `state` and `load_state`.

    The key is the name of the class and an index among these callbacks of the class, such as
    "EarlyStopping.0" for the first EarlyStopping.
    """
    counts: Counter[str] = Counter()
    for callback in callbacks:
        methods = (getattr(callback, name, None) for name in ("state", "load_state"))
        if all(map(callable, methods)):
            name = type(callback).__name__
            yield f"{name}.{counts[name]}", callback
            counts[name] += 1


def callback_states(callbacks: Sequence[Any]) -> dict[str, Any]:
    """Return the results of `state()`, such as {"EarlyStopping.0": {"best": 0.5, ...}}.

    The dict has only the callbacks with the methods `state` and `load_state`. The function
    `stateful` yields these callbacks and their keys.
    """
    return {name: callback.state() for name, callback in stateful(callbacks)}


def load_callbacks(callbacks: Sequence[Any], position: Any) -> None:
    """Pass the saved states to the callbacks.

    `position` is the dict that the trainer saved with the variables of a checkpoint. Its entry
    CALLBACKS has the states. A callback without a saved state is not changed.
    """
    states = position.get(CALLBACKS, {}) if isinstance(position, Mapping) else {}
    for name, callback in stateful(callbacks):
        if name in states:
            callback.load_state(states[name])
