# SPDX-License-Identifier: Apache-2.0
"""The trainer's side of callbacks: checks, calls, and the states in checkpoints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

CALLBACKS: Final = "callbacks"
"""The key of the callbacks' states in the position of a checkpoint."""
HOOKS: Final = ("on_step", "on_epoch")

Hook = TypeVar("Hook", bound=Callable[..., Any])


def empty_hook(method: Hook) -> Hook:
    """Mark a method of the base class that does nothing, so that it costs nothing."""
    method.is_empty_hook = True  # type: ignore[attr-defined]
    return method


def has_hook(callback: Any, hook: str) -> bool:
    """Return whether a callback has a method of this name that does something."""
    method = getattr(callback, hook, None)
    return callable(method) and not getattr(method, "is_empty_hook", False)


def check_callbacks(callbacks: Any) -> list[Any]:
    """Check the callbacks of a trainer."""
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
    """Yield the callbacks that have a state, with the name of the class and a number."""
    counts: Counter[str] = Counter()
    for callback in callbacks:
        methods = (getattr(callback, name, None) for name in ("state", "load_state"))
        if all(map(callable, methods)):
            name = type(callback).__name__
            yield f"{name}.{counts[name]}", callback
            counts[name] += 1


def callback_states(callbacks: Sequence[Any]) -> dict[str, Any]:
    """Return the states of the callbacks that have one."""
    return {name: callback.state() for name, callback in stateful(callbacks)}


def load_callbacks(callbacks: Sequence[Any], position: Any) -> None:
    """Give callbacks their states from the position of a checkpoint, if it has them."""
    states = position.get(CALLBACKS, {}) if isinstance(position, Mapping) else {}
    for name, callback in stateful(callbacks):
        if name in states:
            callback.load_state(states[name])
