# SPDX-License-Identifier: Apache-2.0
"""x[index] and x.at[index]: basic indexing, arrays of integers, and masks, as NumPy means them.

An index is taken apart in two. The *basic* part has the slices, None, and each axis whole that an
array stands for. What that gives is then seen as rows: the axes that arrays index become one, in
front, and the arrays one array of places along it.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ..dtypes import INTEGERS, Array, Shape, Type, bool_, int64, is_float
from ..errors import DTypeError, ShapeError
from ..graph.node import Node
from ..graph.registry import public
from ._arithmetic import add, maximum, minimum, multiply
from ._casting import cast
from ._compare import equal, not_equal, where
from ._concatenation import concat
from ._creation import arange, ones
from ._gathering import scatter_add, take
from ._operands import Value, as_node, broadcast_shapes, is_weak
from ._rows import row_number
from ._shape import broadcast_to, reshape, transpose
from ._slicing import basic_index, pad_slice, slice
from ._sorting import argsort

__all__ = ["at", "getitem"]

CAST: Final = 'Cast: x.astype("int64").'
WHOLE: Final = builtins.slice(None)
MASK: Final = (
    "expected an index of static size; got a mask, and how many elements it chooses is known only "
    "when the step runs. Choose by ngd.ops.where(mask, x, y), or change by x.at[mask].set(y)."
)


@dataclass(frozen=True)
class Selection:
    """An index with arrays, taken apart."""

    basic: tuple[Any, ...]
    """Slices and None, with a whole axis for each array."""
    axes: tuple[int, ...]
    """Of what `basic` gives: those that the arrays index, each its own."""
    arrays: tuple[Node | Array, ...]
    """Integers; what is no node lies in [0, n)."""
    indexed: tuple[int, ...]
    """The axes of the tensor itself that the arrays index."""
    shape: Shape
    """Of the arrays, broadcast together."""
    together: bool
    """Whether the arrays stand side by side: then their shape stands there in the result, else in
    front."""


def is_index_array(item: Any) -> bool:
    """Whether this part of an index is an array or a mask, and no int, slice, None or `...`."""
    if isinstance(item, (Node, list, tuple, range)):
        return True
    if not hasattr(item, "__array__"):
        return isinstance(item, bool)
    return np.ndim(item) > 0 or np.asarray(item).dtype == bool_


def taken_apart(where_: str, x: Type, index: Any) -> Selection | None:
    """An index with arrays; None for one without."""
    items = index if isinstance(index, tuple) else (index,)
    if not any(map(is_index_array, items)):
        expect_no_nodes(where_, items)
        return None
    items = tuple(part for item in items for part in as_arrays(where_, item))
    missing = len(x.shape) - sum(item is not None and item is not Ellipsis for item in items)
    if missing < 0:
        raise ShapeError(
            f"{where_}: expected at most {len(x.shape)} indices for {x}; got more. Leave some out."
        )
    if sum(item is Ellipsis for item in items) > 1:
        raise ShapeError(f"{where_}: expected at most one ...; got several. Remove one.")
    if not any(item is Ellipsis for item in items):
        items = (*items, Ellipsis)
    basic: list[Any] = []
    chosen: dict[int, Any] = {}  # by the axis of what `basic` gives
    numbers: list[int] = []  # of the items that are arrays
    indexed: list[int] = []
    axis = 0  # of x
    for number, item in enumerate(items):
        if item is Ellipsis:
            basic += [WHOLE] * missing
            axis += missing
        elif item is None or isinstance(item, builtins.slice):
            basic.append(item)
            axis += item is not None
        else:
            chosen[len(basic)] = within(where_, item, x, axis)
            numbers.append(number)
            indexed.append(axis)
            basic.append(WHOLE)
            axis += 1
    expect_no_nodes(where_, basic)
    arrays = tuple(chosen.values())
    return Selection(
        tuple(basic),
        tuple(chosen),
        arrays,
        tuple(indexed),
        broadcast_shapes(where_, *(array.shape for array in arrays)),
        numbers == list(range(numbers[0], numbers[0] + len(numbers))),
    )


def expect_no_nodes(where_: str, items: Sequence[Any]) -> None:
    """Refuse slices between places that a step computes."""
    for item in items:
        if isinstance(item, builtins.slice):
            bounds = (item.start, item.stop, item.step)
            if any(isinstance(bound, Node) for bound in bounds):
                raise DTypeError(
                    f"{where_}: expected slices between ints; got a bound that a step computes. "
                    "Use ngd.ops.dynamic_slice, which takes a part of a fixed size from there."
                )


def as_arrays(where_: str, item: Any) -> Sequence[Any]:
    """One part of an index, with arrays of integers for arrays, ints and masks."""
    if item is None or item is Ellipsis or isinstance(item, builtins.slice):
        return (item,)
    if isinstance(item, Node):
        if item.dtype == bool_:
            raise DTypeError(f"{where_}: {MASK}")
        if item.dtype not in INTEGERS:
            raise DTypeError(f"{where_}: expected integers as an index; got {item.type}. {CAST}")
        return (cast(item, int64),)
    array = np.asarray(item)
    if array.size == 0 and not hasattr(item, "dtype"):
        array = array.astype(np.int64)
    if array.dtype == bool_ and array.ndim:
        return [_Places(places, n) for places, n in zip(array.nonzero(), array.shape, strict=True)]
    if array.dtype not in INTEGERS:
        raise DTypeError(
            f"{where_}: expected ints, slices, None, ..., arrays of integers, or masks of at least "
            f"one axis as an index; got {item!r}"
        )
    return (array.astype(np.int64),)


@dataclass(frozen=True)
class _Places:
    """Where a mask is true along one of its axes."""

    places: Array
    extent: int


def within(where_: str, item: Any, x: Type, axis: int) -> Node | Array:
    """The places along an axis: known ones are checked, and counted from the beginning."""
    n = x.shape[axis]
    if isinstance(item, _Places):
        if item.extent != n:
            raise ShapeError(
                f"{where_}: expected a mask of {n} elements along axis {axis} of {x}; got "
                f"{item.extent}. Make the mask from this tensor."
            )
        return item.places
    if isinstance(item, Node):
        return item
    array: Array = item
    bad = array[(array < -n) | (array >= n)]
    if bad.size:
        raise ShapeError(
            f"{where_}: expected indices in [{-n}, {n}) for axis {axis} of {x}; got {bad.flat[0]}"
        )
    return np.where(array < 0, array + n, array)


class Rows:
    """What the basic part of an index gives, with the axes that arrays index made one, in front."""

    def __init__(self, where_: str, x: Node, selection: Selection) -> None:
        self.where, self.x, self.selection = where_, x, selection
        self.rest = tuple(a for a in range(x.ndim) if a not in selection.axes)
        self.extents = tuple(x.shape[a] for a in selection.axes)
        self.count = math.prod(self.extents)
        self.order = (*selection.axes, *self.rest)
        self.row = tuple(x.shape[a] for a in self.rest)
        self.rows = reshape(transpose(x, self.order), (self.count, *self.row))

    @property
    def before(self) -> int:
        """How many axes of the result stand before those of the arrays."""
        return self.selection.axes[0] if self.selection.together else 0

    def places(self) -> Node | Array:
        """Return the row of each element of the arrays; indices that are nodes are checked."""
        shape, arrays = self.selection.shape, self.selection.arrays
        if all(isinstance(a, np.ndarray) for a in arrays):
            known = np.zeros(shape, np.int64)
            for array, n in zip(arrays, self.extents, strict=True):
                known = known * n + array
            return known
        return row_number.node(
            [broadcast_to(as_node(array), shape) for array in arrays],
            {"extents": self.extents, "axes": self.selection.indexed, "caller": self.where},
        )

    def back(self, rows: Node) -> Node:
        """Rows as what the basic part gave."""
        whole = reshape(rows, (*self.extents, *self.row))
        return transpose(whole, np.argsort(self.order).tolist())

    def taken(self) -> Node:
        """The rows that the arrays mean, in the shape of the result."""
        selection = self.selection
        if len(selection.axes) == 1:
            attrs = {"axis": selection.axes[0], "caller": self.where}
            return take.node((self.x, as_node(selection.arrays[0])), attrs)
        found = take(self.rows, self.places(), 0)
        many, before = len(selection.shape), self.before
        order = [*range(many, many + before), *range(many), *range(many + before, found.ndim)]
        return transpose(found, order)

    def given(self, where_: str, values: Node) -> Node:
        """Values in the shape of the result, as one row for each element of the arrays."""
        many, before = len(self.selection.shape), self.before
        shape = (*self.row[:before], *self.selection.shape, *self.row[before:])
        values = fitted(where_, values, shape)
        order = [
            *range(before, before + many),
            *range(before),
            *range(before + many, values.ndim),
        ]
        return reshape(transpose(values, order), (math.prod(self.selection.shape), *self.row))


@public
def getitem(x: Value, index: Any) -> Node:
    """Take a part of a tensor: x[index], as NumPy's.

    An index has ints, slices, None, `...`, arrays or lists of integers, nodes of integers, and
    masks that are known now; a mask that is a node is an error, since the result's shape would
    depend on it. A known index out of range is a ShapeError. One that a step computes is an
    OutOfRangeError, which is an IndexError and a ValueError, when that step runs. Gradients flow to
    x; those of an element that is taken several times are summed.
    """
    x = as_node(x, where="getitem")
    selection = taken_apart("getitem", x.type, index)
    if selection is None:
        return slice(x, index)
    return Rows("getitem", slice(x, selection.basic), selection).taken()


def fitted(where_: str, values: Node, shape: Shape) -> Node:
    """Values broadcast to the part that they are for."""
    try:
        return broadcast_to(values, shape)
    except ShapeError:
        raise ShapeError(
            f"{where_}: expected values that broadcast to {shape}, the shape of x[index]; got "
            f"{values.type}. Reshape them."
        ) from None


Combine = Callable[[Node, Node], Node]


class Part:
    """x.at[index]: what x would be with that part changed; x itself stays as it is."""

    def __init__(self, x: Node, index: Any) -> None:
        self.x, self.index = x, index

    def get(self) -> Node:
        """The part: x[index]."""
        return getitem(self.x, self.index)

    def set(self, values: Value) -> Node:
        """With these values there; where an index stands twice, with the last one, as NumPy."""
        return self._changed("set", values, None)

    def add(self, values: Value) -> Node:
        """With these values added; where an index stands twice, with all of them."""
        return self._changed("add", values, add)

    def multiply(self, values: Value) -> Node:
        """Multiplied with these values; where an index stands twice, with all of them."""
        return self._changed("multiply", values, multiply)

    def min(self, values: Value) -> Node:
        """With the least of what is there and these values."""
        return self._changed("min", values, minimum)

    def max(self, values: Value) -> Node:
        """With the greatest of what is there and these values."""
        return self._changed("max", values, maximum)

    def _changed(self, name: str, values: Value, combine: Combine | None) -> Node:
        where_, x = f"at[...].{name}", self.x
        given = as_node(values, x, where_)
        fit = is_float(x.dtype) or np.can_cast(given.dtype, x.dtype, "same_kind")
        if not fit and not is_weak(values):
            raise DTypeError(
                f"{where_}: expected values for {x.type}; got {given.type}. Cast the values."
            )
        given = cast(given, x.dtype)
        mask = self._mask(where_, given)
        if mask is not None:
            rest = x.shape[mask.ndim :]
            new = fitted(where_, given, rest)
            chosen = reshape(mask, (*mask.shape, *(1 for _ in rest)))
            return where(chosen, combine(x, new) if combine else new, x)
        selection = taken_apart(where_, x.type, self.index)
        if selection is None:
            return self._placed(where_, given, combine)
        part = slice(x, selection.basic)
        rows = Rows(where_, part, selection)
        changed = rows.back(changed_rows(rows, rows.given(where_, given), combine))
        return Part(x, selection.basic)._placed(where_, changed, None)

    def _mask(self, where_: str, values: Node) -> Node | None:
        """A mask that can be told by `where`: it is alone, and all elements get the same row."""
        mask = self.index
        if isinstance(mask, tuple) and len(mask) == 1:
            (mask,) = mask
        known = isinstance(mask, (np.ndarray, list)) and np.asarray(mask).dtype == bool_
        if not known and not (isinstance(mask, Node) and mask.dtype == bool_):
            return None
        node = as_node(mask, where=where_)
        if node.shape != self.x.shape[: node.ndim]:
            raise ShapeError(
                f"{where_}: expected a mask of the shape of {self.x.type}, or of its first axes; "
                f"got {node.type}"
            )
        return None if known and values.ndim > self.x.ndim - node.ndim else node

    def _placed(self, where_: str, values: Node, combine: Combine | None) -> Node:
        """Change a basic part, in which no element stands twice."""
        ranges, shape = basic_index(
            self.x.type, self.index if isinstance(self.index, tuple) else (self.index,)
        )
        values = fitted(where_, values, shape)
        if combine is not None and combine is not add:
            values = combine(slice(self.x, self.index), values)
        values = reshape(values, tuple(len(r) for r in ranges))
        starts, steps = tuple(r.start for r in ranges), tuple(r.step for r in ranges)
        whole = all(r == range(n) for r, n in zip(ranges, self.x.shape, strict=True))
        if not whole:
            chosen = pad_slice(ones(values.shape, bool_), self.x.shape, starts, steps)
            values = pad_slice(values, self.x.shape, starts, steps)
        if combine is add:
            return add(self.x, values)
        return values if whole else where(chosen, values, self.x)


class At:
    """x.at: `x.at[index].set(values)` and its like, which give a changed x."""

    def __init__(self, x: Node) -> None:
        self.x = x

    def __getitem__(self, index: Any) -> Part:
        return Part(self.x, index)


@public
def at(x: Value) -> At:
    """Change parts of a tensor, which gives another one: at(x)[index].set(values).

    A node has it as x.at[index]. Beside `set` there are `add`, `multiply`, `min` and `max`, and
    `get` for the part. The index is as in `getitem`, and may also be a mask that a step computes,
    of the shape of x or of its first axes: the values then are scalars, or of the shape of the
    other axes. Gradients flow to x and to the values that are used.
    """
    return At(as_node(x, where="at"))


def changed_rows(rows: Rows, values: Node, combine: Combine | None) -> Node:
    """Rows with others set to, or combined with, values: one for each place.

    Of several values for one row, `combine` makes one, or the last is taken. To that end values are
    sorted by the row that they are for; in a run of equal ones the last stands for all.
    """
    found, count, many = rows.places(), rows.count, values.shape[0]
    if many == 0:
        return rows.rows
    places = reshape(as_node(found), (many,))
    if combine is add:
        return add(rows.rows, scatter_add(values, places, 0, count))
    order = arange(many)
    if isinstance(found, np.ndarray) and np.unique(found).size == many:
        lasts = ones((many,), bool_)
    else:
        order = argsort(places)
        places = take(places, order)
        lasts = concat([not_equal(places[1:], places[:-1]), ones((1,), bool_)])
        if combine is not None:
            values, order = combined_runs(take(values, order), places, combine), arange(many)
    # For each row the number of its value, from 1 on; 0 for none.
    source = scatter_add(where(lasts, order + 1, 0), places, 0, count)
    chosen = reshape(source > 0, (count, *(1 for _ in rows.row)))
    new = take(values, maximum(source - 1, 0))
    return where(chosen, combine(rows.rows, new) if combine else new, rows.rows)


def combined_runs(values: Node, places: Node, combine: Combine) -> Node:
    """Each value combined with all before it that are for the same place; places are sorted.

    In log2(n) rounds: after each, a value stands for twice as many as before.
    """
    many, distance = values.shape[0], 1
    while distance < many:
        same = equal(places[distance:], places[:-distance])
        same = reshape(same, (many - distance, *(1 for _ in values.shape[1:])))
        joined = combine(values[:-distance], values[distance:])
        behind = where(same, joined, values[distance:])
        values = concat([values[:distance], behind])
        distance *= 2
    return values
