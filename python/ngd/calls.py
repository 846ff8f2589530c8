# SPDX-License-Identifier: Apache-2.0
"""Errors of calls whose arguments do not fit a signature: they name the public call."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any, Final, ParamSpec, TypeVar

Given = ParamSpec("Given")
Made = TypeVar("Made")

SYNONYMS: Final = {
    "dim": ("axis", "axes"),
    "dims": ("axes", "axis"),
    "keepdim": ("keepdims",),
    "input": ("x", "logits", "prediction"),
    "other": ("y", "b"),
    "eps": ("epsilon", "eps"),
    "min": ("low", "minimum"),
    "max": ("high", "maximum"),
}
"""Other libraries' names of parameters, and what ngd may call them."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that was probably meant."""
    names = list(known)
    for synonym in SYNONYMS.get(name, ()):
        if synonym in names:
            return synonym
    return next(iter(get_close_matches(name, names, 1)), None)


def expect_fit(call: str, signature: inspect.Signature, args: Any, kwargs: Any) -> None:
    """Raise a TypeError that names the public call, where arguments do not fit its signature."""
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        message = f"{call}: expected {call}{shown(signature)}; {error}"
        taken = {p.name for p in signature.parameters.values() if p.kind not in NAMELESS}
        hints = [
            f"`{name}` is called `{found}`"
            for name in kwargs
            if name not in taken and (found := nearest(name, taken))
        ]
        ending = f". {' and '.join(hints)}." if hints else "."
        raise TypeError(message + ending) from None


NAMELESS: Final = (
    inspect.Parameter.VAR_POSITIONAL,
    inspect.Parameter.VAR_KEYWORD,
    inspect.Parameter.POSITIONAL_ONLY,
)


def shown(signature: inspect.Signature) -> str:
    """Return the signature as a message shows it: without annotations."""
    empty = inspect.Parameter.empty
    parameters = [p.replace(annotation=empty) for p in signature.parameters.values()]
    return str(inspect.Signature(parameters))


def explained(call: str, function: Callable[Given, Made]) -> Callable[Given, Made]:
    """Wrap a public function, so that the errors of its signature name it as users call it."""

    @functools.wraps(function)
    def checked(*args: Given.args, **kwargs: Given.kwargs) -> Made:
        try:
            return function(*args, **kwargs)
        except TypeError:
            expect_fit(call, inspect.signature(function), args, kwargs)
            raise

    return checked


def explained_method(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the call of an op, whose instance has the name."""

    @functools.wraps(method)
    def checked(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except TypeError:
            bound = inspect.signature(method.__get__(self))
            expect_fit(f"ops.{self.name}", bound, args, kwargs)
            raise

    return checked
