# SPDX-License-Identifier: Apache-2.0
"""The key of a trace: which calls of a function run the same compiled step.

A `Key` has two parts: a `Form`, which is the nesting of the arguments, and one spec per leaf of the
arguments. An array is a placeholder of the trace, so its spec is its dtype and its shape. A
variable, and any value that is not an array, is fixed in the trace, so the value itself is the
spec.
"""

from __future__ import annotations

from array import array as buffer
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple, TypeAlias, TypeGuard

import numpy as np
from numpy import ndarray

from .._util.caller_arrays import view
from ..dtypes import DType
from ..graph.node import Node
from ..graph.variable import Variable
from ..trees import LEAF, Structure, split


class Default(Enum):
    """The type of `DEFAULT`, the mark of an argument that the call does not give."""

    NOT_GIVEN = "the default"

    def __repr__(self) -> str:
        return str(self.value)


DEFAULT: Final = Default.NOT_GIVEN
"""The mark of an argument that the call does not give. The Python function uses its default."""

STATIC_TYPES: Final = frozenset({int, bool, str, bytes, type(None), Default})
"""Types whose values are fixed in a trace, and are hashable."""
ARRAY_METHODS: Final = ("__dlpack__", "__array_interface__", "__array__")


class HasNodes(Exception):  # noqa: N818
    """The exception of `Form.key` if an argument is a node: the call then adds nodes to a graph."""


ArraySpec: TypeAlias = tuple[DType, tuple[int, ...]]
"""The spec of an array: its dtype and its shape. The array is a placeholder of the trace."""
FixedSpec: TypeAlias = tuple[type, Any]
"""The type and the value of a leaf that is fixed in the trace. For a variable, the value is its id.
1, 1.0 and True are equal, so the type is a part of the spec."""
FLOAT: Final = "a Python float"
"""The spec of a Python float, which is a placeholder of the trace, whatever its value is."""
LeafSpec: TypeAlias = ArraySpec | FixedSpec | str
"""The spec of a leaf. It is a plain tuple, because each call of a traced function makes many."""

_new: Final = tuple.__new__
"""The constructor of a key without the checks of `Key`, which are slow in each call of a function.
"""


def is_array_spec(spec: LeafSpec) -> TypeGuard[ArraySpec]:
    """Return whether a spec is the spec of an array."""
    return not isinstance(spec, str) and isinstance(spec[0], np.dtype)


def spec_text(spec: LeafSpec) -> str:
    """Return the text of a spec for a warning."""
    if isinstance(spec, str):
        return spec
    if is_array_spec(spec):
        dtype, shape = spec
        return f"{dtype}{[*shape]}"
    kind, value = spec
    return "another variable" if kind is Variable else f"{value!r}, a value fixed in the trace"


def classify(leaf: Any, where: str, path: str) -> tuple[LeafSpec, Any] | None:
    """Return the spec of an argument's leaf, and the value with which the step is run.

    The value is an array if NumPy can read the leaf. The result is None if `leaf` is a structure
    with leaves of its own. `Form.key` itself makes the specs of NumPy arrays, Python floats and the
    values of `STATIC_TYPES` (int, bool, str, bytes, None). It calls this function for other leaves.
    """
    if isinstance(leaf, Variable):
        return (Variable, leaf.id), leaf
    if isinstance(leaf, Node):
        raise HasNodes
    if split(leaf)[0] is not None:
        return None
    if is_array(leaf):
        array = view(leaf, f"{where}: {path}")
        return (array.dtype, array.shape), array
    return (type(leaf), hashable(leaf, f"{where}: {path}")), leaf


def hashable(leaf: Any, where: str) -> Any:
    """Return a leaf whose value is fixed in a trace, or raise a TypeError if it is not hashable."""
    try:
        hash(leaf)
    except TypeError:
        raise TypeError(
            f"{where}: expected an array, a number, or a hashable constant; got "
            f"{leaf!r}. Give lists, tuples or dicts of arrays and numbers."
        ) from None
    return leaf


def is_array(leaf: Any) -> bool:
    """Return whether NumPy can read a value as an array. Texts and types are excluded."""
    if isinstance(leaf, (np.ndarray, np.generic)):
        return not isinstance(leaf, (str, bytes))
    if isinstance(leaf, (memoryview, bytearray, buffer)):
        return True
    return not isinstance(leaf, type) and any(hasattr(leaf, name) for name in ARRAY_METHODS)


class Form:
    """The nesting of the arguments of a call: one structure per parameter."""

    def __init__(self, parts: Sequence[Structure], names: Sequence[str]) -> None:
        self.parts = tuple(parts)
        self.is_flat = all(part is LEAF for part in self.parts)
        pairs = zip(self.parts, names, strict=True)
        self.paths = [path for part, name in pairs for path in part.paths(name)]

    def take(self, values: Sequence[Any]) -> list[Any] | None:
        """Return the leaves of arguments; None if their nesting is not that of this form."""
        leaves: list[Any] = []
        for part, value in zip(self.parts, values, strict=True):
            if not part._take(value, leaves):
                return None
        return leaves

    def rebuild(self, leaves: Iterable[Any]) -> list[Any]:
        """Return arguments of this form with these leaves."""
        remaining = iter(leaves)
        return [part._rebuild(remaining) for part in self.parts]

    def key(self, values: Sequence[Any], where: str) -> tuple[Key, list[Any]] | None:
        """Return the key and the leaves of arguments; None if they do not have this nesting.

        In the leaves, arrays of other libraries and Python floats are converted to NumPy arrays.
        """
        leaves = [*values] if self.is_flat else self.take(values)
        if leaves is None:
            return None
        specs: list[LeafSpec] = []
        for index, leaf in enumerate(leaves):
            kind = type(leaf)
            if kind is ndarray:
                specs.append((leaf.dtype, leaf.shape))
            elif kind is float:
                leaves[index] = np.array(leaf)
                specs.append(FLOAT)
            elif kind in STATIC_TYPES:
                specs.append((kind, leaf))
            else:
                classified = classify(leaf, where, self.paths[index])
                if classified is None:
                    return None
                spec, leaves[index] = classified
                specs.append(spec)
        return _new(Key, (self, tuple(specs))), leaves


class Key(NamedTuple):
    """The key of a trace: calls with equal keys run the same compiled step."""

    form: Form
    specs: tuple[LeafSpec, ...]
    """The spec of each leaf of the arguments, in order."""


def without_extents(key: Key) -> tuple[Any, ...]:
    """Return a key that is equal for arguments whose arrays differ only in the sizes of axes.

    The key has the dtype and the number of axes of each array. Traces of a function with equal
    keys of this kind share one hash (`fingerprint.Family`), so the ranks regard these traces as
    the same computation.
    """
    ranks = ((x[0], len(x[1])) if is_array_spec(x) else x for x in key.specs)
    return (key.form, *ranks)


def reason(key: Key, earlier: Sequence[Key]) -> str:
    """Return a text with the reason for a new trace: how its key differs from earlier keys.

    `key` is the key of the new trace, and `earlier` has the keys of the earlier traces. The text
    has the differences between `key` and the most similar earlier key.
    """
    same_form = [other for other in reversed(earlier) if other.form is key.form]
    if not same_form:
        return "the arguments have another structure"
    nearest = min([differences(key, other) for other in same_form], key=len)
    return "; ".join(nearest)


def differences(key: Key, other: Key) -> list[str]:
    """Return the differences of two keys of one form, one text per leaf."""
    pairs = zip(key.form.paths, key.specs, other.specs, strict=True)
    return [
        f"{path} is {spec_text(new_spec)}, not {spec_text(old_spec)}"
        for path, new_spec, old_spec in pairs
        if new_spec != old_spec
    ]
