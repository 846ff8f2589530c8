# SPDX-License-Identifier: Apache-2.0
"""The key of a trace: which calls of a function run the same compiled step.

A trace is one compiled version of an `@ngd.function`. The *leaves* are the values that remain after
nested arguments are unpacked: x and 2 for `f({"a": x, "b": 2})`. A `Key` has a `Form`, which is the
nesting of the arguments, and one *spec* per leaf:

- An array, or a Python float, is an input of the compiled step. The spec of an array is its dtype
  and its shape. All Python floats have the same spec.
- A variable, or any other value, is a constant of the trace. Its spec is its type and the value (of
  a variable, its id), so a call with another value needs another trace.
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
"""The hashable types whose values are constants of a trace: another value needs another trace."""
ARRAY_METHODS: Final = ("__dlpack__", "__array_interface__", "__array__")


class HasNodes(Exception):  # noqa: N818
    """The exception of `Form.key` if an argument is a node: the call then adds nodes to a graph."""


ArraySpec: TypeAlias = tuple[DType, tuple[int, ...]]
"""The (dtype, shape) of an argument that is an array, and so an input of the compiled step."""
FixedSpec: TypeAlias = tuple[type, Any]
"""The (type, value) of an argument that is a constant of the trace, such as (int, 2). The value of
a variable is its id. The type is included because in Python 1 == 1.0 == True."""
FLOAT: Final = "a Python float"
"""The entry of a `Key` for any Python float. Floats are inputs of the compiled step, so calls with
different floats run the same step."""
LeafSpec: TypeAlias = ArraySpec | FixedSpec | str
"""The entry of a `Key` for one leaf, a value in the nested arguments of a call. It is a plain tuple
or a text, not a class, because each call of an `@ngd.function` makes one per leaf."""

_new: Final = tuple.__new__
"""A function: `_new(Key, (form, specs))` is a faster way to write `Key(form, specs)`, which runs
Python code. Speed matters here, because each call of an `@ngd.function` makes a `Key`."""


def is_array_spec(spec: LeafSpec) -> TypeGuard[ArraySpec]:
    """Return whether `spec`, the entry of a `Key` for one argument, stands for an array."""
    return not isinstance(spec, str) and isinstance(spec[0], np.dtype)


def spec_text(spec: LeafSpec) -> str:
    """Return the text for a spec in a warning, such as "float32[2, 3]" or "a Python float"."""
    if isinstance(spec, str):
        return spec
    if is_array_spec(spec):
        dtype, shape = spec
        return f"{dtype}{[*shape]}"
    kind, value = spec
    return "another variable" if kind is Variable else f"{value!r}, a value fixed in the trace"


def classify(leaf: Any, where: str, path: str) -> tuple[LeafSpec, Any] | None:
    """Return (spec, value) for `leaf`, an argument or an entry of a nested argument.

    `spec` represents this leaf in the `Key`: it is (dtype, shape) for an array, and (type, value)
    for a constant. `value` is the leaf, or a NumPy array if NumPy can read the leaf as an array. If
    `leaf` is a container, such as a list, the result is None.

    `Form.key` itself handles the usual types: NumPy arrays, Python floats and `STATIC_TYPES` (int,
    bool, str, bytes, None). It calls this function for other leaves.
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
    """Return `leaf`, an argument that is a constant of the trace; raise TypeError if unhashable."""
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
    """The nesting of the arguments of a call: one `trees.Structure` per parameter.

    The leaves are the values in the nested containers. `f(x, {"a": y})` has the leaves x and y.
    """

    def __init__(self, parts: Sequence[Structure], names: Sequence[str]) -> None:
        self.parts = tuple(parts)
        self.is_flat = all(part is LEAF for part in self.parts)
        pairs = zip(self.parts, names, strict=True)
        self.paths = [path for part, name in pairs for path in part.paths(name)]

    def take(self, values: Sequence[Any]) -> list[Any] | None:
        """Return the leaves of the arguments `values`; None if this form has another nesting.

        The leaves are the values in the nested containers: [1, 2, 3] for the arguments 1, [2, 3].
        """
        leaves: list[Any] = []
        for part, value in zip(self.parts, values, strict=True):
            if not part._take(value, leaves):
                return None
        return leaves

    def rebuild(self, leaves: Iterable[Any]) -> list[Any]:
        """Return arguments with the nesting of this form, whose innermost values are `leaves`."""
        remaining = iter(leaves)
        return [part._rebuild(remaining) for part in self.parts]

    def key(self, values: Sequence[Any], where: str) -> tuple[Key, list[Any]] | None:
        """Return (key, leaves) for arguments; None if they do not have the nesting of this form.

        `leaves` are the innermost values of the arguments. Python floats and arrays of other
        libraries are converted to NumPy arrays.
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
    """One entry per innermost value of the nested arguments, in order, such as the dtype and shape
    of an array."""


def without_extents(key: Key) -> tuple[Any, ...]:
    """Return a key that is equal for arguments whose arrays differ only in the sizes of axes.

    For an array, the returned key has the dtype and the number of axes. All compiled steps of a
    function with the same returned key get one number (`fingerprint.Family`). Ranks compare these
    numbers, and regard steps with equal numbers as the same computation.
    """
    ranks = ((x[0], len(x[1])) if is_array_spec(x) else x for x in key.specs)
    return (key.form, *ranks)


def reason(key: Key, earlier: Sequence[Key]) -> str:
    """Return the reason why a function was compiled again for new arguments, as a text.

    `key` describes the new arguments, and `earlier` those of the earlier compilations. The text
    has the differences between `key` and the most similar earlier key.
    """
    same_form = [other for other in reversed(earlier) if other.form is key.form]
    if not same_form:
        return "the arguments have another structure"
    nearest = min([differences(key, other) for other in same_form], key=len)
    return "; ".join(nearest)


def differences(key: Key, other: Key) -> list[str]:
    """Return a text for each argument whose entry, such as a dtype and shape, differs in two keys.

    The arguments have the same nesting (`form`) in both keys. An example of the result is
    ["x is float32[3], not float32[2]"].
    """
    pairs = zip(key.form.paths, key.specs, other.specs, strict=True)
    return [
        f"{path} is {spec_text(new_spec)}, not {spec_text(old_spec)}"
        for path, new_spec, old_spec in pairs
        if new_spec != old_spec
    ]
