# SPDX-License-Identifier: Apache-2.0
"""Nested structures: dicts, lists, tuples and dataclasses of arrays.

A *structure* is a mapping, list, tuple or dataclass instance. Everything else is a *leaf*,
including None. `flatten` returns the leaves of a structure in a fixed order, and a `Structure` that
rebuilds it from other leaves. A mapping of any kind is rebuilt as a dict. The *path* of a leaf is
the Python expression that reads it, such as `['encoder'][0].weight`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ._util.signature_errors import check_public_names


@dataclass(frozen=True)
class Structure:
    """The containers and keys of a nested structure, without its leaves. `flatten` creates it.

    Attributes
    ----------
    kind : type or None
        The type of the outermost container, or None for a leaf.
    keys : tuple
        The keys, indices or field names of the container.
    parts : tuple of Structure
        The structure of the value at each key.

    Examples
    --------
    >>> leaves, structure = ngd.trees.flatten({"a": 1, "b": [2, 3]})
    >>> structure.rebuild([10, 20, 30])
    {'a': 10, 'b': [20, 30]}
    """

    kind: type | None = None
    keys: tuple[Any, ...] = ()
    parts: tuple[Structure, ...] = ()

    shallow: bool = field(init=False, repr=False, compare=False)
    """True if no container is nested in another one, as in {"a": 1, "b": 2}."""

    def __post_init__(self) -> None:
        shallow = all(part.kind is None for part in self.parts)
        object.__setattr__(self, "shallow", shallow)

    @property
    def count(self) -> int:
        """The number of leaves."""
        return 1 if self.kind is None else sum(part.count for part in self.parts)

    def rebuild(self, leaves: Iterable[Any]) -> Any:
        """Return an object of this structure with other leaves.

        Parameters
        ----------
        leaves : iterable
            The leaves, in the order of `flatten`. There are `count` of them.
        """
        if self.shallow and self.kind is dict:
            return dict(zip(self.keys, leaves, strict=True))
        return self._rebuild(iter(leaves))

    def _rebuild(self, leaves: Iterator[Any]) -> Any:
        """Return the nested structure with the next items of `leaves` as its leaves."""
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
        """Return the path of each leaf, in the order of `flatten`.

        Parameters
        ----------
        root : str
            The text before each path, such as the name of an argument.

        Examples
        --------
        >>> _, structure = ngd.trees.flatten({"a": 1, "b": [2, 3]})
        >>> structure.paths("x")
        ["x['a']", "x['b'][0]", "x['b'][1]"]
        """
        if self.kind is None:
            return [root]
        steps = zip(self.keys, self.parts, strict=True)
        return [path for key, part in steps for path in part.paths(root + self.step(key))]

    def step(self, key: Any) -> str:
        """Return the Python code that reads the value at one key, such as "[0]" or ".weight"."""
        return f"[{key!r}]" if self.kind in (dict, list, tuple) else f".{key}"

    def match(self, tree: Any, where: str) -> list[Any]:
        """Return the leaves of a tree that has this structure.

        The keys of mappings may be in any order, and a list is accepted for a tuple.

        Parameters
        ----------
        tree : any structure
            The tree.
        where : str
            The beginning of the error message.

        Returns
        -------
        list
            The leaves, in the order of this structure.

        Raises
        ------
        TypeError
            The tree has another structure.
        """
        leaves: list[Any] = []
        if not self._take(tree, leaves):
            raise TypeError(self._misfit(tree, where))
        return leaves

    def _take(self, tree: Any, leaves: list[Any]) -> bool:
        """Append the leaves of `tree` to `leaves`; return False if `tree` has another structure.

        Every call of a compiled step with nested arguments runs this method, so it must be fast.
        """
        if self.kind is None:
            leaves.append(tree)
            return True
        by_key = tree if type(tree) is dict is self.kind else self._at_keys(tree)
        if by_key is None or len(by_key) != len(self.keys):
            return False
        try:
            values = [by_key[key] for key in self.keys]
        except KeyError:
            return False
        if self.shallow:
            leaves += values
            return True
        pairs = zip(self.parts, values, strict=True)
        return all(part._take(value, leaves) for part, value in pairs)

    def _at_keys(self, tree: Any) -> dict[Any, Any] | None:
        """Return the values of a tree by key, or None if the tree's container has another type.

        A list and a tuple count as the same type.
        """
        kind, values = split(tree)
        is_same_kind = kind is self.kind or (kind in (list, tuple) and self.kind in (list, tuple))
        return values if is_same_kind else None

    def _misfit(self, tree: Any, where: str) -> str:
        """Return the error message for the first difference between a tree and this structure.

        Return an empty text if the tree has this structure.
        """
        if self.kind is None:
            return ""
        values = self._at_keys(tree)
        if values is None or values.keys() != set(self.keys):
            actual = describe_container(*split(tree), tree)
            return f"{where}: expected {self}; got {actual}. Use the same structure."
        parts = zip(self.keys, self.parts, strict=True)
        messages = (part._misfit(values[key], where + self.step(key)) for key, part in parts)
        return next(filter(None, messages), "")

    def __str__(self) -> str:
        return describe_container(self.kind, dict.fromkeys(self.keys), "a leaf")


LEAF = Structure()


def split(tree: Any) -> tuple[type | None, dict[Any, Any]]:
    """Return the container type of a tree, and a dict with the value at each key.

    The keys are those of a mapping, indices or field names. Return (None, {}) for a leaf.
    """
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


def describe_container(kind: type | None, values: Mapping[Any, Any], tree: Any) -> str:
    """Describe the outermost container of a tree, or a leaf, for an error message.

    A container is described by its type and its keys or its number of parts, as in "a dict of x, y"
    and "a list of 2 parts".
    """
    if kind is None:
        return tree if isinstance(tree, str) else repr(tree)
    if kind in (list, tuple):
        return f"a {kind.__name__} of {len(values)} {'part' if len(values) == 1 else 'parts'}"
    return f"a {kind.__name__} of {', '.join(map(str, values)) or 'nothing'}"


def flatten(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> tuple[list[Any], Structure]:
    """Return the leaves of a tree, from left to right, and its structure.

    Parameters
    ----------
    tree : any structure
        Dicts, lists, tuples and dataclasses, nested in any way.
    is_leaf : function, optional
        A function that gets a container or leaf of the tree. If it returns True, the container is
        treated as a leaf.

    Returns
    -------
    leaves : list
        The leaves.
    structure : Structure
        The structure of the tree.

    Examples
    --------
    >>> leaves, structure = ngd.trees.flatten({"a": 1, "b": [2, 3]})
    >>> leaves
    [1, 2, 3]
    >>> structure.paths()
    ["['a']", "['b'][0]", "['b'][1]"]
    """
    leaves: list[Any] = []
    return leaves, _flatten(tree, leaves, is_leaf)


def _flatten(
    tree: Any, leaves: list[Any], is_leaf: Callable[[Any], bool] | None = None
) -> Structure:
    """Append the leaves of a tree to `leaves`, and return the structure of the tree."""
    kind, values = (None, {}) if is_leaf is not None and is_leaf(tree) else split(tree)
    if kind is None:
        leaves.append(tree)
        return LEAF
    parts = [_flatten(part, leaves, is_leaf) for part in values.values()]
    return Structure(kind, tuple(values), tuple(parts))


def leaves_of(tree: Any) -> list[Any]:
    """Return all leaves of a tree, in the order of `flatten`.

    Parameters
    ----------
    tree : any structure
        Dicts, lists, tuples and dataclasses, nested in any way.

    Returns
    -------
    list
        The leaves.

    Examples
    --------
    >>> ngd.trees.leaves_of({"a": 1, "b": [2, 3]})
    [1, 2, 3]
    """
    return flatten(tree)[0]


def map(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Call a function with each leaf of a tree and the leaves of other trees at the same position.

    Parameters
    ----------
    function : function
        A function of one leaf per tree. It returns a leaf of the result.
    tree : any structure
        The tree that gives the structure of the result.
    *others : any structure
        Other trees of the same structure.

    Returns
    -------
    any structure
        The results, in the structure of `tree`.

    Raises
    ------
    TypeError
        One of the other trees has another structure.

    Examples
    --------
    >>> ngd.trees.map(lambda a, b: a + b, {"a": 1, "b": 2}, {"a": 10, "b": 20})
    {'a': 11, 'b': 22}
    """
    leaves, structure = flatten(tree)
    rows = [leaves, *[structure.match(other, "trees.map") for other in others]]
    return structure.rebuild([function(*row) for row in zip(*rows, strict=True)])


__all__ = ["Structure", "flatten", "leaves_of", "map"]

check_public_names(globals())
