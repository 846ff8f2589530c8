# SPDX-License-Identifier: Apache-2.0
"""Names of variables that are unique among the variables of one step or optimizer.

A variable's own name depends only on its model. So in every program, a model has the same keys in
checkpoints and the same random first values, which depend on the names. Two models may have
variables with the same name, such as "weight". If a step or an optimizer uses both models, the
names of the model that was constructed later get a prefix with a number, such as "model_1.weight".
The order of construction is equal on all ranks that run the same program.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from ..errors import CompileError

_next_number: Final = itertools.count(1)


def new_number() -> int:
    """Return a number that is greater than those of all models that were constructed before."""
    return next(_next_number)


@dataclass(eq=False)
class Scope:
    """The namespace of a model: no two variables of the model have the same name."""

    prefix: str = ""
    """The name of the model, with which the names of its variables begin."""
    number: int = field(default_factory=new_number)
    is_copy: bool = False
    """True if the model was made by copying or unpickling another model, with its values."""


def scope_of(variable: Any) -> Scope | None:
    """Return the namespace of the model that a variable belongs to; None if it has no model."""
    return getattr(variable, "scope", None)


def sort_key(variable: Any) -> tuple[str, int]:
    """Return the key (name, number of the model) by which variables are sorted."""
    return str(variable.attrs["name"]), number_of_model(variable)


def number_of_model(variable: Any) -> int:
    """Return the number of a variable's model, or 0 for a variable of no model.

    Models are numbered from 1 in the order in which they are constructed.
    """
    scope = scope_of(variable)
    return scope.number if scope else 0


class UniqueNames:
    """A table of variables, which gives each variable a name that no other one has."""

    def __init__(self) -> None:
        self.by_name: dict[str, Any] = {}
        """The variables by their unique names."""
        self.names: dict[Any, str] = {}
        """The unique name of each variable."""
        self.prefixes: dict[Scope | None, str] = {}
        """A dict from each model (its `Scope`) to the prefix of the unique names of its variables.
        The prefix is the model's own, such as "model". If a unique name with this prefix is already
        used for a variable outside of the model, the prefix gets a number, such as "model_1"."""

    def add(self, variables: Iterable[Any]) -> None:
        """Add variables; raise a ValueError for equal names in one model or outside of models."""
        new = [v for v in variables if v not in self.names]
        scopes: dict[Scope | None, list[Any]] = {}
        for v in sorted(new, key=number_of_model):
            scopes.setdefault(scope_of(v), []).append(v)
        for scope, members in scopes.items():
            if scope is not None and scope not in self.prefixes:
                self.prefixes[scope] = self.free_prefix(scope, members)
            for v in members:
                name = self.prefixed_name(v, scope)
                other = self.by_name.setdefault(name, v)
                if other is not v:
                    raise DuplicateNameError(other, v)
                self.names[v] = name

    def free_prefix(self, scope: Scope, members: Iterable[Any]) -> str:
        """Return `scope.prefix` if it is free, else the first free one of PREFIX_1, PREFIX_2, ...

        PREFIX is `scope.prefix`, or "model" if that is empty. A prefix is free if, with it, no
        variable of the model gets a name that another variable already has.
        """
        prefix, number = scope.prefix, 0
        while any(with_prefix(v, scope.prefix, prefix) in self.by_name for v in members):
            number += 1
            prefix = f"{scope.prefix or 'model'}_{number}"
        return prefix

    def prefixed_name(self, variable: Any, scope: Scope | None) -> str:
        """Return the name of a variable with the prefix that `prefixes` has for its model."""
        own = scope.prefix if scope else ""
        return with_prefix(variable, own, self.prefixes.get(scope, own))


class DuplicateNameError(ValueError):
    """The error for two variables with the same name, `first` and `second`."""

    def __init__(self, first: Any, second: Any) -> None:
        super().__init__(f"two variables called {first.attrs['name']!r}")
        self.first, self.second = first, second


def unique_names(variables: Iterable[Any]) -> dict[Any, str]:
    """Return unique names of the variables of a graph, or raise a CompileError."""
    unique = UniqueNames()
    try:
        unique.add(variables)
    except DuplicateNameError as error:
        raise CompileError(
            f"compile: expected variables with different names; got {error}: one made at "
            f"{error.first.site}, one at {error.second.site}. Give each variable a name of its "
            "own, and each optimizer and nn.Random a name=."
        ) from None
    return unique.names


def with_prefix(variable: Any, own: str, prefix: str) -> str:
    """Return the name of a variable, with the prefix `own` of its model replaced by `prefix`.

    For example, "model.weight" becomes "model_1.weight" if `own` is "model" and `prefix` is
    "model_1". If `own` is "", the name has no prefix, and `prefix` is added.
    """
    name = str(variable.attrs["name"])
    if prefix == own:
        return name
    own_name = name.removeprefix(f"{own}.") if own else name
    return f"{prefix}.{own_name}"
