# SPDX-License-Identifier: Apache-2.0
"""Checks of the options of optimizers, averages and schedules."""

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
"""The keywords with which other libraries pass a model's parameters to an optimizer.

ngd's optimizers do not have them. The error for such a keyword refers to `minimize`.
"""


def unknown_option(where: str, name: str, known: Sequence[str]) -> TypeError:
    """Return the error for a keyword `name` of a call that takes only the `known` ones."""
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
    """Return the names of the keywords that the constructor of a class accepts.

    If the constructor has `**options`, the keywords of its base class are included.
    """
    names: dict[str, None] = {}
    for base in kind.__mro__[:-1]:
        if "__init__" not in vars(base):
            continue
        parameters = [*inspect.signature(vars(base)["__init__"]).parameters.values()][1:]
        named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        names |= dict.fromkeys(p.name for p in parameters if p.kind in named)
        if all(p.kind is not inspect.Parameter.VAR_KEYWORD for p in parameters):
            break
    return tuple(names)


def public_name(kind: type) -> str:
    """Return the name of an optimizer class for messages, such as "optim.Adam".

    A class that a user has defined outside of ngd.optim has no prefix "optim.".
    """
    inside = kind.__module__.startswith(f"{__package__}.")
    return f"optim.{kind.__name__}" if inside else kind.__qualname__


def check_call(where: str, kind: type, args: tuple[Any, ...], options: Mapping[str, Any]) -> None:
    """Raise TypeError for a constructor call whose first argument is parameters of a model.

    Also raise it for a keyword that the optimizer class `kind` does not have.
    """
    if args and is_parameters(args[0]):
        raise TypeError(
            f"{where}: expected a learning rate first; got {describe(args[0])}. {PARAMETERS_GO}"
        )
    known = options_of(kind)
    for name in options:
        if name not in known:
            raise unknown_option(where, name, known)


def is_parameters(value: Any) -> bool:
    """Return True if a value may be the parameters of a model.

    Such a value is a variable with at least one axis, or an iterable that is not a string, bytes,
    a NumPy array or a node.
    """
    if isinstance(value, Variable):
        return value.shape != ()
    return isinstance(value, Iterable) and not isinstance(value, (str, bytes, Node, np.ndarray))


def describe(value: Any) -> str:
    """Describe a value in a few words, for an error message."""
    if isinstance(value, (Mapping, list, tuple, set)):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, (Node, Iterable)) and not isinstance(value, (str, bytes)):
        return repr(value)
    return f"{value!r} ({type(value).__name__})"


def number(where: str, name: str, value: Any, *, least: float = -math.inf) -> float:
    """Return an option that must be a finite number >= `least`; raise an error for other values."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (Real, np.number)):
        raise TypeError(
            f"{where}: {name}: expected a number; got {describe(value)}. Convert it by float()."
        )
    result = float(value)
    if not math.isfinite(result):
        raise ValueError(
            f"{where}: {name}: expected a finite number; got {value!r}. Remove the NaN or infinity."
        )
    if result < least:
        raise ValueError(f"{where}: {name}: expected a number >= {least:g}; got {value}")
    return result


def at_least(least: float) -> Callable[[str, str, Any], float]:
    """Return a check for options that must be finite numbers >= `least`."""
    return functools.partial(number, least=least)


def positive(where: str, name: str, value: Any) -> float:
    """Return an option that must be a number > 0 or infinity; raise an error for other values."""
    is_infinite = isinstance(value, (float, np.floating)) and value == math.inf
    result = math.inf if is_infinite else number(where, name, value)
    if result <= 0:
        raise ValueError(f"{where}: {name}: expected a number > 0; got {value}")
    return result


def fraction(where: str, name: str, value: Any) -> float:
    """Return an option that must be a number in [0, 1); raise an error for other values."""
    result = number(where, name, value)
    if not 0 <= result < 1:
        raise ValueError(f"{where}: {name}: expected a number in [0, 1); got {value}")
    return result


def pair(where: str, name: str, value: Any) -> tuple[float, float]:
    """Return an option that must be two numbers in [0, 1); raise an error for other values."""
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise TypeError(
            f"{where}: {name}: expected a pair of numbers; got {describe(value)}. Write (0.9, "
            "0.999)."
        )
    first, second = (fraction(where, f"{name}[{i}]", each) for i, each in enumerate(value))
    return first, second


def flag(where: str, name: str, value: Any) -> bool:
    """Return an option that must be True or False; raise an error for other values."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{where}: {name}: expected True or False; got {describe(value)}")
    return bool(value)


def count(where: str, name: str, value: Any) -> int:
    """Return an option that must be an integer >= 1; raise an error for other values."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise TypeError(
            f"{where}: {name}: expected a whole number; got {describe(value)}. Convert it: "
            "int(value)."
        )
    if value < 1:
        raise ValueError(f"{where}: {name}: expected a whole number >= 1; got {value}")
    return int(value)


Check: TypeAlias = Callable[[str, str, Any], Any]
"""A function that checks the value of an option.

Its arguments are the name of the public function, the name of the option, and the value. The names
are for error messages. The check returns the value, possibly converted to a Python number, or
raises an error.
"""


def checked(where: str, checks: Mapping[str, Check], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options by name, with each value replaced by the result of its check.

    An option without a check in `checks` is returned unchanged.
    """
    return {
        name: checks[name](where, name, value) if name in checks else value
        for name, value in options.items()
    }


def add_names(where: str, variables: Iterable[Variable], names: UniqueNames) -> None:
    """Add variables to `names`, which gives each variable a unique name.

    Raise ValueError for equal names in one model, or among variables outside of models. Variables
    of different models may have the same name: `names` adds a prefix.
    """
    try:
        names.add(variables)
    except DuplicateNameError as error:
        raise ValueError(
            f"{where}: expected variables of different names; got two that are called "
            f"{error.second.name!r}, made at {error.first.site} and at {error.second.site}. Give "
            "each variable a name of its own, or make an optimizer for each."
        ) from None
