# SPDX-License-Identifier: Apache-2.0
"""Nested structures: what a call takes or gives may be in dicts, lists, tuples and dataclasses.

`flatten` takes one apart into its leaves, in a fixed order, and a `Structure`, which puts others
into the same places. A path names a leaf as Python would reach it: `['encoder'][0].weight`.

Anything else than a mapping, a list, a tuple and a dataclass's instance is a leaf, None too. A
mapping of any kind is rebuilt as a dict.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Structure:
    """How leaves are nested: `kind` is the type of the outermost, None for a leaf."""

    kind: type | None = None
    keys: tuple[Any, ...] = ()
    parts: tuple[Structure, ...] = ()

    shallow: bool = field(init=False, repr=False, compare=False)
    """Whether all parts are leaves."""

    def __post_init__(self) -> None:
        shallow = all(part.kind is None for part in self.parts)
        object.__setattr__(self, "shallow", shallow)

    @property
    def count(self) -> int:
        """The number of leaves."""
        return 1 if self.kind is None else sum(part.count for part in self.parts)

    def rebuild(self, leaves: Iterable[Any]) -> Any:
        """Put as many leaves into this structure, in the order of `flatten`."""
        if self.shallow and self.kind is dict:
            return dict(zip(self.keys, leaves, strict=True))
        return self._rebuild(iter(leaves))

    def _rebuild(self, leaves: Iterator[Any]) -> Any:
        if self.kind is None:
            return next(leaves)
        parts = [part._rebuild(leaves) for part in self.parts]
        if self.kind is list:
            return parts
        if self.kind is dict:
            return dict(zip(self.keys, parts, strict=True))
        if self.kind is tuple:
            return tuple(parts)
        return self.kind(**dict(zip(self.keys, parts, strict=True)))

    def paths(self, root: str = "") -> list[str]:
        """The path of each leaf."""
        if self.kind is None:
            return [root]
        steps = zip(self.keys, self.parts, strict=True)
        return [path for key, part in steps for path in part.paths(root + self.step(key))]

    def step(self, key: Any) -> str:
        """One step of a path."""
        return f"[{key!r}]" if self.kind in (dict, list, tuple) else f".{key}"

    def match(self, tree: Any, where: str) -> list[Any]:
        """The leaves of a tree of this structure, in its order; any other is a TypeError.

        Mappings may be of any order, and a list may stand for a tuple.
        """
        leaves: list[Any] = []
        if not self._take(tree, leaves):
            raise TypeError(self._misfit(tree, where))
        return leaves

    def _take(self, tree: Any, leaves: list[Any]) -> bool:
        """Add the leaves of a tree; whether it fits. Every call of a step comes here."""
        if self.kind is None:
            leaves.append(tree)
            return True
        found = tree if type(tree) is dict is self.kind else self._at_keys(tree)
        if found is None or len(found) != len(self.keys):
            return False
        try:
            values = [found[key] for key in self.keys]
        except KeyError:
            return False
        if self.shallow:
            leaves += values
            return True
        pairs = zip(self.parts, values, strict=True)
        return all(part._take(value, leaves) for part, value in pairs)

    def _at_keys(self, tree: Any) -> dict[Any, Any] | None:
        """What stands at each key of a tree of this kind; None for another kind."""
        kind, found = split(tree)
        alike = kind is self.kind or (kind in (list, tuple) and self.kind in (list, tuple))
        return found if alike else None

    def _misfit(self, tree: Any, where: str) -> str:
        """Say where a tree has another structure; empty where it fits."""
        if self.kind is None:
            return ""
        found = self._at_keys(tree)
        if found is None or found.keys() != set(self.keys):
            return f"{where}: expected {self}; got {shown(*split(tree), tree)}"
        parts = zip(self.keys, self.parts, strict=True)
        faults = (part._misfit(found[key], where + self.step(key)) for key, part in parts)
        return next(filter(None, faults), "")

    def __str__(self) -> str:
        return shown(self.kind, dict.fromkeys(self.keys), "a leaf")


LEAF = Structure()


def split(tree: Any) -> tuple[type | None, dict[Any, Any]]:
    """The kind of a tree, and what stands at each of its keys; None for a leaf."""
    if isinstance(tree, Mapping):
        return dict, dict(tree)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree), dict(zip(tree._fields, tree, strict=True))
    if isinstance(tree, (list, tuple)):
        return (list if isinstance(tree, list) else tuple), dict(enumerate(tree))
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        names = [field.name for field in dataclasses.fields(tree) if field.init]
        return type(tree), {name: getattr(tree, name) for name in names}
    return None, {}


def shown(kind: type | None, found: Mapping[Any, Any], tree: Any) -> str:
    """A tree's outermost part, for a message."""
    if kind is None:
        return tree if isinstance(tree, str) else repr(tree)
    if kind in (list, tuple):
        return f"a {kind.__name__} of {len(found)}"
    return f"a {kind.__name__} of {', '.join(map(str, found)) or 'nothing'}"


def flatten(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> tuple[list[Any], Structure]:
    """Return the leaves of a tree, from left to right, and its structure.

    A part for which `is_leaf` returns true is a leaf, whatever it is.
    """
    leaves: list[Any] = []
    return leaves, _flatten(tree, leaves, is_leaf)


def _flatten(
    tree: Any, leaves: list[Any], is_leaf: Callable[[Any], bool] | None = None
) -> Structure:
    kind, found = (None, {}) if is_leaf is not None and is_leaf(tree) else split(tree)
    if kind is None:
        leaves.append(tree)
        return LEAF
    parts = [_flatten(part, leaves, is_leaf) for part in found.values()]
    return Structure(kind, tuple(found), tuple(parts))


def leaves_of(tree: Any) -> list[Any]:
    """All leaves of a tree, in the order of `flatten`."""
    return flatten(tree)[0]


def map(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Apply a function to each leaf, and to those of other trees at the same place."""
    leaves, structure = flatten(tree)
    rows = [leaves, *[structure.match(other, "trees.map") for other in others]]
    return structure.rebuild([function(*row) for row in zip(*rows, strict=True)])


__all__ = ["Structure", "flatten", "leaves_of", "map"]
