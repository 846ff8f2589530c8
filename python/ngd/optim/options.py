# SPDX-License-Identifier: Apache-2.0
"""Checks of the options that optimizers, averages and schedules are made with."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Real
from typing import Any, Final, ParamSpec, TypeAlias, TypeVar

import numpy as np

from .._util.signature_errors import nearest
from ..graph.node import Node
from ..graph.variable import Variable
from ..graph.variable_names import DuplicateNameError, UniqueNames

P = ParamSpec("P")
T = TypeVar("T")

PARAMETERS: Final = ("params", "parameters", "variables", "model")


def unknown_option(where: str, name: str, known: Sequence[str]) -> TypeError:
    """Return the error of a keyword that a call does not take."""
    text = f"{where}: expected options among {', '.join(known)}; got {name!r}."
    meant = nearest(name, known)
    if meant is not None:
        return TypeError(f"{text} Did you mean {meant}?")
    if name in PARAMETERS:
        return TypeError(f"{text} {PARAMETERS_GO}")
    return TypeError(f"{text} Remove it, or write it as one of these.")


PARAMETERS_GO: Final = (
    "The parameters are an argument of minimize: optimizer.minimize(loss, model.parameters())."
)


@functools.cache
def options_of(kind: type) -> tuple[str, ...]:
    """Return the names that the constructor of a class takes, with those that it passes on."""
    names: dict[str, None] = {}
    for each in kind.__mro__[:-1]:
        if "__init__" not in vars(each):
            continue
        parameters = [*inspect.signature(vars(each)["__init__"]).parameters.values()][1:]
        named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        names |= dict.fromkeys(p.name for p in parameters if p.kind in named)
        if all(p.kind is not inspect.Parameter.VAR_KEYWORD for p in parameters):
            break
    return tuple(names)


def public_name(kind: type) -> str:
    """Return how a user writes the name of a class of optimizers."""
    inside = kind.__module__.startswith(f"{__package__}.")
    return f"optim.{kind.__name__}" if inside else kind.__qualname__


def check_call(where: str, kind: type, args: tuple[Any, ...], options: Mapping[str, Any]) -> None:
    """Check the call of an optimizer's constructor: parameters and unknown keywords."""
    if args and is_parameters(args[0]):
        raise TypeError(
            f"{where}: expected a learning rate first; got {describe(args[0])}. {PARAMETERS_GO}"
        )
    known = options_of(kind)
    for name in options:
        if name not in known:
            raise unknown_option(where, name, known)


def is_parameters(value: Any) -> bool:
    """Return whether this looks like the parameters of a model: no rate does."""
    if isinstance(value, Variable):
        return value.shape != ()
    return isinstance(value, Iterable) and not isinstance(value, (str, bytes, Node, np.ndarray))


def describe(value: Any) -> str:
    """Return a short text for a value in a message."""
    if isinstance(value, (Mapping, list, tuple, set)):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, (Node, Iterable)) and not isinstance(value, (str, bytes)):
        return repr(value)
    return f"{value!r} ({type(value).__name__})"


def number(where: str, name: str, value: Any, *, least: float = -math.inf) -> float:
    """Check an option that is a finite number."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (Real, np.number)):
        raise TypeError(
            f"{where}: {name}: expected a number; got {describe(value)}. Convert it by float()."
        )
    found = float(value)
    if not math.isfinite(found):
        raise ValueError(
            f"{where}: {name}: expected a finite number; got {value!r}. Remove the NaN or infinity."
        )
    if found < least:
        raise ValueError(f"{where}: {name}: expected a number >= {least:g}; got {value}")
    return found


def at_least(least: float) -> Callable[[str, str, Any], float]:
    """Return a check of a finite number with a lower bound."""
    return functools.partial(number, least=least)


def positive(where: str, name: str, value: Any) -> float:
    """Check an option that is a number > 0, or infinite."""
    is_infinite = isinstance(value, (float, np.floating)) and value == math.inf
    found = math.inf if is_infinite else number(where, name, value)
    if found <= 0:
        raise ValueError(f"{where}: {name}: expected a number > 0; got {value}")
    return found


def fraction(where: str, name: str, value: Any) -> float:
    """Check a decay: a number in [0, 1)."""
    found = number(where, name, value)
    if not 0 <= found < 1:
        raise ValueError(f"{where}: {name}: expected a number in [0, 1); got {value}")
    return found


def pair(where: str, name: str, value: Any) -> tuple[float, float]:
    """Check the two decays of moments."""
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise TypeError(
            f"{where}: {name}: expected a pair of numbers; got {describe(value)}. Write (0.9, "
            "0.999)."
        )
    first, second = (fraction(where, f"{name}[{i}]", each) for i, each in enumerate(value))
    return first, second


def flag(where: str, name: str, value: Any) -> bool:
    """Check an option that is True or False."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{where}: {name}: expected True or False; got {describe(value)}")
    return bool(value)


def count(where: str, name: str, value: Any) -> int:
    """Check an option that counts something, at least 1."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise TypeError(
            f"{where}: {name}: expected a whole number; got {describe(value)}. Convert it: "
            "int(value)."
        )
    if value < 1:
        raise ValueError(f"{where}: {name}: expected a whole number >= 1; got {value}")
    return int(value)


Check: TypeAlias = Callable[[str, str, Any], Any]
"""Takes the public call, the option's name and its value; returns the value, or raises."""


def checked(where: str, checks: Mapping[str, Check], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with checked values; Python numbers among them take the dtype of arrays."""
    return {
        name: checks[name](where, name, value) if name in checks else value
        for name, value in options.items()
    }


def add_names(where: str, variables: Iterable[Variable], names: UniqueNames) -> None:
    """Give variables unique names, by which their state is named."""
    try:
        names.add(variables)
    except DuplicateNameError as error:
        raise ValueError(
            f"{where}: expected variables of different names; got two that are called "
            f"{error.second.name!r}, made at {error.first.site} and at {error.second.site}. Give "
            "each variable a name of its own, or make an optimizer for each."
        ) from None
