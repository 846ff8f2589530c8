# SPDX-License-Identifier: Apache-2.0
"""x[index] and x.at[index]: basic indexing, arrays of integers, and masks, as in NumPy.

An index with arrays is split into a basic index and the arrays. The basic index keeps each slice
and each None, and has a full slice instead of each array. For example, x[1:3, rows] is split into
the basic index [1:3, :] and the array `rows`. If an index contains an array, its ints become arrays
too.

The basic index is applied to x first. Then the axes that are indexed by arrays are joined into one
axis, axis 0. A row is the subarray at one index of axis 0, and this index is the row number. The
arrays are combined into one array of row numbers, which selects rows.
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
"""The end of the error message for an index that is not an integer: cast it to int64."""
WHOLE: Final = builtins.slice(None)
MASK: Final = (
    "expected an index of static size; got a mask, and how many elements it chooses is known only "
    "when the step runs. Choose by ngd.ops.where(mask, x, y), or change by x.at[mask].set(y)."
)
"""The error message for x[mask] with a mask that is a node of the graph.

The shape of the result would depend on the values of the mask, which are known only at run time. A
mask that is a NumPy array is allowed.
"""


@dataclass(frozen=True)
class Selection:
    """An index that contains arrays, split into a basic index and the arrays.

    The basic index keeps each slice and each None, and has a full slice instead of each array. It
    is applied to x first. The arrays then index axes of the result.
    """

    basic: tuple[Any, ...]
    """The basic index: slices and None, and a slice of the whole axis in place of each array."""
    axes: tuple[int, ...]
    """For each array, the axis that it indexes after the basic index is applied to x."""
    arrays: tuple[Node | Array, ...]
    """The arrays of integers.

    A NumPy array is already checked, and its elements are in [0, size of the axis). The elements of
    a node may be negative, and are checked at run time.
    """
    indexed: tuple[int, ...]
    """For each array, the axis of x that it indexes, for error messages.

    `axes` has the axis of the result of the basic index instead. The two axes differ if a None
    precedes the array. For example, in x[None, rows] the array `rows` indexes axis 0 of x, but axis
    1 of x[None, :].
    """
    shape: Shape
    """The shape to which the arrays are broadcast."""
    is_adjacent: bool
    """True if the arrays are neighbours in the index, as in x[:, i, j].

    If True, the axes of the broadcast arrays replace the axes of x that they index. If False, the
    axes of the broadcast arrays come first in x[index], as in NumPy.
    """


def is_index_array(item: Any) -> bool:
    """Return True if a part of an index is an array or a mask, not an int, slice, None or `...`."""
    if isinstance(item, (Node, list, tuple, range)):
        return True
    if not hasattr(item, "__array__"):
        return isinstance(item, bool)
    return np.ndim(item) > 0 or np.asarray(item).dtype == bool_


def split_index(where_: str, x: Type, index: Any) -> Selection | None:
    """Split an index of x into slices and arrays, or return None if it contains no arrays.

    Raise a ShapeError or a DTypeError if the index does not fit x.
    """
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
    arrays_by_axis: dict[int, Any] = {}  # arrays by the axis of the result of `basic`
    positions: list[int] = []  # the positions of the arrays in the index
    indexed: list[int] = []
    axis = 0  # the axis of x that the next item indexes
    for position, item in enumerate(items):
        if item is Ellipsis:
            basic += [WHOLE] * missing
            axis += missing
        elif item is None or isinstance(item, builtins.slice):
            basic.append(item)
            axis += item is not None
        else:
            arrays_by_axis[len(basic)] = checked_indices(where_, item, x, axis)
            positions.append(position)
            indexed.append(axis)
            basic.append(WHOLE)
            axis += 1
    expect_no_nodes(where_, basic)
    arrays = tuple(arrays_by_axis.values())
    return Selection(
        tuple(basic),
        tuple(arrays_by_axis),
        arrays,
        tuple(indexed),
        broadcast_shapes(where_, *(array.shape for array in arrays)),
        positions == list(range(positions[0], positions[0] + len(positions))),
    )


def expect_no_nodes(where_: str, items: Sequence[Any]) -> None:
    """Raise DTypeError if a bound of a slice is a node.

    The bounds give the shape of the result, so they must be known when the graph is built.
    """
    for item in items:
        if isinstance(item, builtins.slice):
            bounds = (item.start, item.stop, item.step)
            if any(isinstance(bound, Node) for bound in bounds):
                raise DTypeError(
                    f"{where_}: expected slices between ints; got a bound that a step computes. "
                    "Use ngd.ops.dynamic_slice, which takes a part of a fixed size from there."
                )


def as_arrays(where_: str, item: Any) -> Sequence[Any]:
    """Return one entry of an index in the form that `split_index` takes.

    None, `...` and slices are unchanged. An int or an array becomes an array of integers. A mask
    becomes one array of indices per axis of the mask.
    """
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
        return [
            _MaskIndices(indices, n)
            for indices, n in zip(array.nonzero(), array.shape, strict=True)
        ]
    if array.dtype not in INTEGERS:
        raise DTypeError(
            f"{where_}: expected ints, slices, None, ..., arrays of integers, or masks of at least "
            f"one axis as an index; got {item!r}"
        )
    return (array.astype(np.int64),)


@dataclass(frozen=True)
class _MaskIndices:
    """The indices along one axis of the True elements of a mask.

    `extent` is the size of the mask along this axis.
    """

    indices: Array
    extent: int


def checked_indices(where_: str, item: Any, x: Type, axis: int) -> Node | Array:
    """Return the index array `item` of an axis of x; ShapeError if an index is out of range.

    Negative indices become non-negative. An index array that is a node is returned unchanged: its
    values are checked at run time.
    """
    n = x.shape[axis]
    if isinstance(item, _MaskIndices):
        if item.extent != n:
            raise ShapeError(
                f"{where_}: expected a mask of {n} elements along axis {axis} of {x}; got "
                f"{item.extent}. Make the mask from this tensor."
            )
        return item.indices
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
    """An indexed array, reshaped so that the arrays of the index select rows of it.

    `x` is the indexed array, to which the slices and each None of the index are already applied.
    In `rows`, all axes of `x` that are indexed by arrays are joined into axis 0. A row is the
    subarray at one index of axis 0.
    """

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
        """The number of axes of x[index] before the axes that come from the index arrays.

        For example, it is 1 for x[:, i, j]. It is 0 if the arrays are not neighbours in the index,
        as in x[i, :, j]: NumPy then puts the axes from the arrays first.
        """
        return self.selection.axes[0] if self.selection.is_adjacent else 0

    def row_numbers(self) -> Node | Array:
        """Combine the index arrays into one array of row numbers.

        A row number is an index along axis 0 of `self.rows`. If an array is a node, the op that
        computes the row numbers checks the indices at run time.
        """
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

    def restore(self, rows: Node) -> Node:
        """Return `rows`, a changed copy of `self.rows`, in the shape of `self.x`.

        This undoes the transpose and the reshape in `__init__`.
        """
        full = reshape(rows, (*self.extents, *self.row))
        return transpose(full, np.argsort(self.order).tolist())

    def gather(self) -> Node:
        """Return x[index]: select the rows by number, and put the axes in NumPy's order."""
        selection = self.selection
        if len(selection.axes) == 1:
            attrs = {"axis": selection.axes[0], "caller": self.where}
            return take.node((self.x, as_node(selection.arrays[0])), attrs)
        selected = take(self.rows, self.row_numbers(), 0)
        num_axes, before = len(selection.shape), self.before
        order = [
            *range(num_axes, num_axes + before),
            *range(num_axes),
            *range(num_axes + before, selected.ndim),
        ]
        return transpose(selected, order)

    def value_rows(self, where_: str, values: Node) -> Node:
        """Return `values`, the user's values for x[index], with one entry per selected row.

        Entry k is for the k-th number in `row_numbers()`, and has the shape of a row. The values
        are first broadcast to the shape of x[index]; ShapeError if they do not fit.
        """
        num_axes, before = len(self.selection.shape), self.before
        shape = (*self.row[:before], *self.selection.shape, *self.row[before:])
        values = broadcast_values(where_, values, shape)
        order = [
            *range(before, before + num_axes),
            *range(before),
            *range(before + num_axes, values.ndim),
        ]
        return reshape(transpose(values, order), (math.prod(self.selection.shape), *self.row))


@public
def getitem(x: Value, index: Any) -> Node:
    """Return x[index], as in NumPy.

    Parameters
    ----------
    x : node or array
        An array of any dtype.
    index : int, slice, None, `...`, array, or a tuple of them
        An array is a NumPy array, a list or a node of integers, or a mask: an array or a list of
        bools that is known when the graph is built.

    Raises
    ------
    ShapeError
        A known index is out of range, or there are too many indices.
    DTypeError
        An index has another type, or is a mask that is a node: the shape of the result would depend
        on the values of the mask.
    OutOfRangeError
        An element of a node of indices is out of range. The error is raised at run time, not when
        the graph is built. It is also an IndexError and a ValueError.

    Notes
    -----
    Gradients flow to x. The gradients of an element that is read several times are added.

    Examples
    --------
    ::

        >>> x = np.arange(6).reshape(2, 3)
        >>> ngd.function(lambda x: ops.getitem(x, (slice(None), [2, 0])))(x)
        array([[2, 0],
               [5, 3]])
    """
    x = as_node(x, where="getitem")
    selection = split_index("getitem", x.type, index)
    if selection is None:
        return slice(x, index)
    return Rows("getitem", slice(x, selection.basic), selection).gather()


def broadcast_values(where_: str, values: Node, shape: Shape) -> Node:
    """Broadcast values to the shape of x[index]; ShapeError if they do not fit."""
    try:
        return broadcast_to(values, shape)
    except ShapeError:
        raise ShapeError(
            f"{where_}: expected values that broadcast to {shape}, the shape of x[index]; got "
            f"{values.type}. Reshape them."
        ) from None


Combine = Callable[[Node, Node], Node]


class Part:
    """The part x[index] of an array. `get` returns it; other methods return a changed copy of x."""

    def __init__(self, x: Node, index: Any) -> None:
        self.x, self.index = x, index

    def get(self) -> Node:
        """Return x[index]."""
        return getitem(self.x, self.index)

    def set(self, values: Value) -> Node:
        """Return x with x[index] replaced by values.

        If an index occurs twice, the element is set to the last of its values.
        """
        return self._changed("set", values, None)

    def add(self, values: Value) -> Node:
        """Return x with values added to x[index].

        If an index occurs twice, both of its values are added to the element.
        """
        return self._changed("add", values, add)

    def multiply(self, values: Value) -> Node:
        """Return x with x[index] multiplied by values.

        If an index occurs twice, the element is multiplied by both of its values.
        """
        return self._changed("multiply", values, multiply)

    def min(self, values: Value) -> Node:
        """Return x with x[index] replaced by minimum(x[index], values)."""
        return self._changed("min", values, minimum)

    def max(self, values: Value) -> Node:
        """Return x with x[index] replaced by maximum(x[index], values)."""
        return self._changed("max", values, maximum)

    def _changed(self, name: str, values: Value, combine: Combine | None) -> Node:
        """Return x with x[index] replaced by values, or by combine(x[index], values).

        `name` is the name of the method that the user called, such as "set", for error messages.
        """
        where_, x = f"at[...].{name}", self.x
        operand = as_node(values, x, where_)
        can_cast = is_float(x.dtype) or np.can_cast(operand.dtype, x.dtype, "same_kind")
        if not can_cast and not is_weak(values):
            raise DTypeError(
                f"{where_}: expected values for {x.type}; got {operand.type}. Cast the values."
            )
        operand = cast(operand, x.dtype)
        mask = self._mask(where_, operand)
        if mask is not None:
            rest = x.shape[mask.ndim :]
            new = broadcast_values(where_, operand, rest)
            selected = reshape(mask, (*mask.shape, *(1 for _ in rest)))
            return where(selected, combine(x, new) if combine else new, x)
        selection = split_index(where_, x.type, self.index)
        if selection is None:
            return self._placed(where_, operand, combine)
        part = slice(x, selection.basic)
        rows = Rows(where_, part, selection)
        changed = rows.restore(changed_rows(rows, rows.value_rows(where_, operand), combine))
        return Part(x, selection.basic)._placed(where_, changed, None)

    def _mask(self, where_: str, values: Node) -> Node | None:
        """Return the index as a mask, or None if ops.where cannot compute the changed copy of x.

        ops.where needs an index that is one mask, and values that are equal for all True elements
        of the mask. For example, for 1-D x it can compute x.at[mask].set(0), but not
        x.at[mask].set([1, 2, 3]), which sets three elements to different values.
        """
        mask = self.index
        if isinstance(mask, tuple) and len(mask) == 1:
            (mask,) = mask
        is_known = isinstance(mask, (np.ndarray, list)) and np.asarray(mask).dtype == bool_
        if not is_known and not (isinstance(mask, Node) and mask.dtype == bool_):
            return None
        node = as_node(mask, where=where_)
        if node.shape != self.x.shape[: node.ndim]:
            raise ShapeError(
                f"{where_}: expected a mask of the shape of {self.x.type}, or of its first axes; "
                f"got {node.type}"
            )
        return None if is_known and values.ndim > self.x.ndim - node.ndim else node

    def _placed(self, where_: str, values: Node, combine: Combine | None) -> Node:
        """Return x with x[index] replaced by values, or by combine(x[index], values).

        `self.index` must not contain arrays. An index without arrays selects no element twice.
        """
        ranges, shape = basic_index(
            self.x.type, self.index if isinstance(self.index, tuple) else (self.index,)
        )
        values = broadcast_values(where_, values, shape)
        if combine is not None and combine is not add:
            values = combine(slice(self.x, self.index), values)
        values = reshape(values, tuple(len(r) for r in ranges))
        starts, steps = tuple(r.start for r in ranges), tuple(r.step for r in ranges)
        is_whole = all(r == range(n) for r, n in zip(ranges, self.x.shape, strict=True))
        if not is_whole:
            is_selected = pad_slice(ones(values.shape, bool_), self.x.shape, starts, steps)
            values = pad_slice(values, self.x.shape, starts, steps)
        if combine is add:
            return add(self.x, values)
        return values if is_whole else where(is_selected, values, self.x)


class At:
    """The attribute x.at of a node: `x.at[index].set(values)` returns a changed copy of x."""

    def __init__(self, x: Node) -> None:
        self.x = x

    def __getitem__(self, index: Any) -> Part:
        return Part(self.x, index)


@public
def at(x: Value) -> At:
    """Return an object whose methods return copies of x in which some elements are changed.

    For example, at(x)[index].set(values) returns a copy in which the elements x[index] are
    `values`. x itself does not change. If x is a node, x.at[index] is the same as at(x)[index].

    Parameters
    ----------
    x : node or array
        An array of any dtype.

    Returns
    -------
    At
        The methods of at(x)[index] are `set`, `add`, `multiply`, `min` and `max`, which return a
        changed copy of x, and `get`, which returns x[index]. The index is the same as for
        ops.getitem. It may also be a mask that is a node, of the shape of x or of its first
        axes. Then the values are scalars, or have the shape of the other axes.

    Notes
    -----
    Gradients flow to x and to the values that are used.

    Examples
    --------
    ::

        >>> ngd.function(lambda x: ops.at(x)[1].add(10.0))(np.array([1.0, 2.0, 3.0]))
        array([ 1., 12.,  3.])
    """
    return At(as_node(x, where="at"))


def changed_rows(rows: Rows, values: Node, combine: Combine | None) -> Node:
    """Return a copy of the array `rows.rows` in which the rows that the index selects are changed.

    A row is rows.rows[i], and i is its row number. values[k] is the value for the row with the k-th
    row number in `rows.row_numbers()`. One row may have several values. If `combine` is None, the
    last of them replaces the row. Otherwise the row becomes combine(row, value), where `value`
    combines all values of the row. To find the values of one row, `values` is sorted by row number.
    """
    row_numbers, count, num_values = rows.row_numbers(), rows.count, values.shape[0]
    if num_values == 0:
        return rows.rows
    sorted_rows = reshape(as_node(row_numbers), (num_values,))
    if combine is add:
        return add(rows.rows, scatter_add(values, sorted_rows, 0, count))
    order = arange(num_values)
    if isinstance(row_numbers, np.ndarray) and np.unique(row_numbers).size == num_values:
        is_last = ones((num_values,), bool_)
    else:
        order = argsort(sorted_rows)
        sorted_rows = take(sorted_rows, order)
        is_last = concat([not_equal(sorted_rows[1:], sorted_rows[:-1]), ones((1,), bool_)])
        if combine is not None:
            values, order = (
                combined_runs(take(values, order), sorted_rows, combine),
                arange(num_values),
            )
    # For each row, the position of its value plus 1, or 0 if the row has no value.
    source = scatter_add(where(is_last, order + 1, 0), sorted_rows, 0, count)
    has_value = reshape(source > 0, (count, *(1 for _ in rows.row)))
    new = take(values, maximum(source - 1, 0))
    return where(has_value, combine(rows.rows, new) if combine else new, rows.rows)


def combined_runs(values: Node, sorted_rows: Node, combine: Combine) -> Node:
    """Return each value combined with all earlier values for the same row.

    values[i] is for the row with number sorted_rows[i]. The numbers are sorted, so the values for
    one row are adjacent. This is a prefix computation in about log2(n) rounds for n values. In each
    round, value i is combined with value i - distance if both are for the same row. The distance is
    1 in the first round, and doubles in each round.
    """
    num_values, distance = values.shape[0], 1
    while distance < num_values:
        is_same_row = equal(sorted_rows[distance:], sorted_rows[:-distance])
        is_same_row = reshape(is_same_row, (num_values - distance, *(1 for _ in values.shape[1:])))
        combined = combine(values[:-distance], values[distance:])
        later = where(is_same_row, combined, values[distance:])
        values = concat([values[:distance], later])
        distance *= 2
    return values
