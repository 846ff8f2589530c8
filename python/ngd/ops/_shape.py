# SPDX-License-Identifier: Apache-2.0
"""Ops that move elements and compute none: shapes, slices, indices, and constants."""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Any, Final

import numpy as np

from ..dtypes import (
    ALL,
    INTEGERS,
    NUMBERS,
    Array,
    Shape,
    Type,
    as_dtype,
    float32,
    int32,
    int64,
    lengths,
)
from ..errors import DTypeError, ShapeError
from ..graph.node import Node, Op
from ..graph.registry import public, register
from ..graph.samples import Operand, Sample
from ._casting import cast
from ._elementwise import align
from ._operands import (
    INDICES,
    Value,
    as_axis,
    as_node,
    as_shape,
    check_indices,
    expect_dtype,
    got,
    narrow,
    scalar,
    unchanged,
    widen,
)


def regrouped(old: Shape, new: Shape) -> list[tuple[range, range]]:
    """The fewest neighbouring axes that a reshape makes of fewest others; none of extents 0, 1."""
    pieces: list[tuple[range, range]] = []
    if math.prod(old) == 0 or 1 in old or 1 in new:
        return pieces
    i = j = 0
    while i < len(old):
        begin, left, right = (i, j), old[i], new[j]
        while left != right:
            if left < right:
                i += 1
                left *= old[i]
            else:
                j += 1
                right *= new[j]
        i, j = i + 1, j + 1
        pieces.append((range(begin[0], i), range(begin[1], j)))
    return pieces


class Reshape(Op):
    """reshape(x, shape): the same elements in row-major order; one extent may be -1."""

    name = "reshape"
    view = True
    dtypes = ALL

    def __call__(self, x: Value, shape: int | Sequence[int]) -> Node:
        x = as_node(x, where=self.name)
        extents = as_shape(shape)
        if extents.count(-1) == 1:
            i = extents.index(-1)
            known = math.prod(extents[:i] + extents[i + 1 :])
            if known <= 0 or x.type.count % known:
                raise ShapeError(
                    f"reshape: expected {x.type.count} elements as in {x.type}, and extents beside "
                    f"-1 that divide them; got {extents}. Choose extents whose product divides "
                    f"{x.type.count}."
                )
            extents = (*extents[:i], x.type.count // known, *extents[i + 1 :])
        return x if extents == x.shape else self.node((x,), {"shape": extents})

    def infer(self, x: Type, *, shape: Shape) -> Type:
        if any(n < 0 for n in shape) or math.prod(shape) != x.count:
            raise ShapeError(
                f"reshape: expected {x.count} elements as in {x}; got {shape}. Use -1 for one "
                "extent to compute it."
            )
        return Type(x.dtype, shape)

    def simplify(self, node: Node) -> Node | None:
        (x,) = node.inputs
        merged = x.op is self and node.type != x.type
        return self.node(x.inputs, node.attrs) if merged else unchanged(node)

    def ahead(self, node: Node, axes: Shape) -> Node | None:
        (x,), pieces = node.inputs, regrouped(node.inputs[0].shape, node.shape)
        found = sorted((axes[old[0]], old, new) for old, new in pieces)
        for first, old, _ in found:
            if [axes[axis] for axis in old] != [*range(first, first + len(old))]:
                return None
        order = [axis for _, _, new in found for axis in new]
        if not found or len(order) != node.ndim:
            return None
        made = self.node(x.inputs, {"shape": tuple(node.shape[axis] for axis in order)})
        return moved(made, inverse(tuple(order)))

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (self(dy, node.inputs[0].shape),)

    def reference(self, x: Array, *, shape: Shape) -> Array:
        return x.reshape(shape)

    def samples(self) -> Iterable[Sample]:
        for old, new in (((2, 6), (3, 4)), ((), (1, 1)), ((4,), (2, 1, 2)), ((0, 3), (3, 0, 2))):
            yield Sample((Operand(old),), {"shape": new})


reshape: Final[Reshape] = register(Reshape())


class Transpose(Op):
    """transpose(x, axes=None): the axes in another order, reversed by default; attrs: axes."""

    name = "transpose"
    moves = True
    permutes = True
    dtypes = ALL

    def __call__(self, x: Value, axes: Sequence[int] | None = None) -> Node:
        x = as_node(x, where=self.name)
        if axes is None:
            order = tuple(reversed(range(x.ndim)))
        else:
            order = tuple(as_axis(self.name, a, x.ndim, x.type) for a in axes)
        return x if order == tuple(range(x.ndim)) else self.node((x,), {"axes": order})

    def infer(self, x: Type, *, axes: Shape) -> Type:
        if sorted(axes) != list(range(len(x.shape))):
            raise ShapeError(
                f"transpose: expected each axis of {x} once; got {axes}. Give an order of all "
                f"axes, such as {tuple(reversed(range(len(x.shape))))}."
            )
        return Type(x.dtype, tuple(x.shape[a] for a in axes))

    def lower(self, **attrs: Any) -> tuple[str, dict[str, Any]]:
        return self.name, {"permutation": attrs["axes"]}

    def simplify(self, node: Node) -> Node | None:
        (x,) = node.inputs
        if x.op is not self:
            return None
        return self(x.inputs[0], [x.attrs["axes"][axis] for axis in node.attrs["axes"]])

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (self(dy, inverse(node.attrs["axes"])),)

    def reference(self, x: Array, *, axes: Shape) -> Array:
        return np.transpose(x, axes)

    def samples(self) -> Iterable[Sample]:
        for shape, axes in (
            ((2, 3), (1, 0)),
            ((2, 3, 4), (2, 0, 1)),
            ((33, 18), (1, 0)),
            ((2, 3, 4, 5), (0, 2, 1, 3)),
            ((0, 3), (1, 0)),
        ):
            yield Sample((Operand(shape),), {"axes": axes})


transpose: Final[Transpose] = register(Transpose())


def inverse(axes: Shape) -> Shape:
    """The order of axes that undoes this one."""
    return tuple(sorted(range(len(axes)), key=axes.__getitem__))


def moved(x: Node, axes: Shape) -> Node:
    """transpose(x, axes) with the fewest moves: none, a view, or before x is repeated."""
    if x.op is broadcast_to:
        (part,) = x.inputs
        whole = reshape(part, (*(1,) * (x.ndim - part.ndim), *part.shape))
        return broadcast_to(moved(whole, axes), [x.shape[axis] for axis in axes])
    if x.op is transpose:
        x, axes = x.inputs[0], tuple(x.attrs["axes"][axis] for axis in axes)
    filled = [axis for axis in axes if x.shape[axis] != 1]
    if filled != sorted(filled):
        return transpose(x, axes)
    shape = tuple(x.shape[axis] for axis in axes)
    return reshape(x.inputs[0] if x.op is reshape else x, shape)


class BroadcastTo(Op):
    """broadcast_to(x, shape): repeated along new axes and axes of extent 1, as NumPy."""

    name = "broadcast_to"
    broadcasts = True
    opcode = "copy"
    dtypes = ALL

    def __call__(self, x: Value, shape: int | Sequence[int]) -> Node:
        x = as_node(x, where=self.name)
        extents = as_shape(shape)
        return x if extents == x.shape else self.node((x,), {"shape": extents})

    def infer(self, x: Type, *, shape: Shape) -> Type:
        pairs = zip(reversed(x.shape), reversed(shape), strict=False)
        fits = len(x.shape) <= len(shape) and all(a in (1, b) for a, b in pairs)
        if not fits or any(n < 0 for n in shape):
            raise ShapeError(
                f"broadcast_to: expected a shape that {x} broadcasts to; got {shape}. Reshape it "
                "first."
            )
        return Type(x.dtype, shape)

    def simplify(self, node: Node) -> Node | None:
        return unchanged(node)

    def ahead(self, node: Node, axes: Shape) -> Node | None:
        (x,) = node.inputs
        if x.ndim != node.ndim:
            return None
        shape = tuple(node.shape[place] for place in inverse(axes))
        return moved(self.node(x.inputs, {"shape": shape}), axes)

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy,)

    def reference(self, x: Array, *, shape: Shape) -> Array:
        return np.broadcast_to(x, shape)

    def samples(self) -> Iterable[Sample]:
        for old, new in (((), (2, 3)), ((3,), (2, 3)), ((2, 1), (2, 4)), ((1, 3), (0, 3))):
            yield Sample((Operand(old),), {"shape": new})


broadcast_to: Final[BroadcastTo] = register(BroadcastTo())


def expect_list(where: str, values: Any) -> Sequence[Value]:
    """Refuse a node where several are expected."""
    if isinstance(values, Node):
        raise TypeError(
            f"{where}: expected a list of tensors; got {values!r}. Write {where}([a, b])."
        )
    return list(values)


class Concat(Op):
    """concat(values, axis=0): joined along an axis, promoted to one dtype; attrs: axis."""

    name = "concat"
    moves = True
    dtypes = ALL

    def __call__(self, values: Sequence[Value], axis: int = 0) -> Node:
        given = expect_list(self.name, values)
        if not given:
            raise ShapeError("concat: expected at least one tensor; got none")
        nodes = align(self.name, *given)
        along = as_axis(self.name, axis, nodes[0].ndim, nodes[0].type)
        return nodes[0] if len(nodes) == 1 else self.node(nodes, {"axis": along})

    def infer(self, *inputs: Type, axis: int) -> Type:
        dtype = expect_dtype(self.name, inputs, self.dtypes)
        others = {(*t.shape[:axis], *t.shape[axis + 1 :]) for t in inputs}
        if len(others) != 1 or len({len(t.shape) for t in inputs}) != 1:
            raise ShapeError(
                f"concat: expected shapes that differ only along axis {axis}; got {got(*inputs)}. "
                "Reshape or pad one."
            )
        shape = list(inputs[0].shape)
        shape[axis] = builtins.sum(t.shape[axis] for t in inputs)
        return Type(dtype, tuple(shape))

    def ahead(self, node: Node, axes: Shape) -> Node | None:
        made = self.node([x.inputs[0] for x in node.inputs], {"axis": axes[node.attrs["axis"]]})
        return moved(made, axes)

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        axis = node.attrs["axis"]
        ends = np.cumsum([x.shape[axis] for x in node.inputs])
        return split(dy, [int(n) for n in ends[:-1]], axis)

    def reference(self, *inputs: Array, axis: int) -> Array:
        return np.concatenate(inputs, axis)

    def samples(self) -> Iterable[Sample]:
        yield Sample((Operand((2,)), Operand((3,))), {"axis": 0})
        yield Sample((Operand((2, 3)), Operand((2, 1)), Operand((2, 0))), {"axis": 1})
        yield Sample((Operand((2, 3, 4)), Operand((5, 3, 4))), {"axis": 0})


concat: Final[Concat] = register(Concat())


class Slice(Op):
    """x[index]: ints, slices of any step, None and ..., as NumPy's basic indexing.

    Attrs: an axis of the result holds `sizes` elements, from `starts` on, `steps` apart. Axes that
    an int removes and None inserts are left to a reshape behind it.
    """

    name = "slice"
    moves = True
    dtypes = ALL
    view = True

    def __call__(self, x: Value, index: Any) -> Node:
        x = as_node(x, where=self.name)
        ranges, shape = basic_index(x.type, index if isinstance(index, tuple) else (index,))
        attrs = {
            "starts": tuple(r.start for r in ranges),
            "sizes": tuple(len(r) for r in ranges),
            "steps": tuple(r.step for r in ranges),
        }
        whole = all(r == range(n) for r, n in zip(ranges, x.shape, strict=True))
        return reshape(x if whole else self.node((x,), attrs), shape)

    def infer(self, x: Type, *, starts: Shape, sizes: Shape, steps: Shape) -> Type:
        for n, start, size, step in zip(x.shape, starts, sizes, steps, strict=True):
            if size and not (0 <= start < n and 0 <= start + (size - 1) * step < n):
                raise ShapeError(
                    f"slice: expected a part of {x}; got starts {starts}, sizes {sizes}, "
                    f"steps {steps}"
                )
        return Type(x.dtype, sizes)

    def ahead(self, node: Node, axes: Shape) -> Node | None:
        back = inverse(axes)
        attrs = {key: tuple(values[a] for a in back) for key, values in node.attrs.items()}
        return moved(self.node(node.inputs[0].inputs, attrs), axes)

    def offset(self, x: Type, *, starts: Shape, sizes: Shape, steps: Shape) -> int | None:
        """Nothing is moved where the elements taken stand side by side."""
        if 0 in sizes:
            return 0
        begin, stride, whole = 0, x.dtype.itemsize, True  # whole: of all axes behind
        for n, start, size, step in reversed(list(zip(x.shape, starts, sizes, steps, strict=True))):
            if size > 1 and not (whole and step == 1):
                return None
            begin += start * stride
            stride *= n
            whole = whole and size == n
        return begin

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        attrs = node.attrs
        return (pad_slice(dy, node.inputs[0].shape, attrs["starts"], attrs["steps"]),)

    def reference(self, x: Array, *, starts: Shape, sizes: Shape, steps: Shape) -> Array:
        return x[places(starts, sizes, steps)]

    def samples(self) -> Iterable[Sample]:
        for shape, starts, sizes, steps in (
            ((7,), (2,), (3,), (1,)),
            ((7,), (6,), (4,), (-2,)),
            ((4, 5), (1, 4), (3, 5), (1, -1)),
            ((3, 4, 5), (0, 1, 0), (2, 1, 3), (2, 1, 2)),
            ((3, 4), (0, 0), (0, 4), (1, 1)),
        ):
            yield Sample((Operand(shape),), {"starts": starts, "sizes": sizes, "steps": steps})


def basic_index(x: Type, index: tuple[Any, ...]) -> tuple[list[range], Shape]:
    """Resolve an index: the elements taken along each axis, and the shape of the result."""
    consuming = builtins.sum(i is not None and i is not Ellipsis for i in index)
    if consuming > len(x.shape):
        raise ShapeError(
            f"slice: expected at most {len(x.shape)} indices for {x}; got {consuming}. Leave some "
            "out."
        )
    if builtins.sum(i is Ellipsis for i in index) > 1:
        raise ShapeError("slice: expected at most one ...; got several. Remove one.")
    if all(i is not Ellipsis for i in index):
        index = (*index, Ellipsis)
    ranges: list[range] = []
    shape: list[int] = []
    for item in index:
        if item is None:
            shape.append(1)
        elif item is Ellipsis:
            skipped = x.shape[len(ranges) : len(ranges) + len(x.shape) - consuming]
            ranges += map(range, skipped)
            shape += skipped
        elif isinstance(item, builtins.slice):
            ranges.append(range(x.shape[len(ranges)])[item])
            shape.append(len(ranges[-1]))
        else:
            ranges.append(_one_place(x, len(ranges), item))
    return ranges, tuple(shape)


def _one_place(x: Type, axis: int, item: Any) -> range:
    try:
        if isinstance(item, (bool, np.bool_, Node)):
            raise TypeError
        place = operator.index(item)
    except TypeError:
        raise DTypeError(
            f"slice: expected ints, slices, None or ... as an index; got {item!r} "
            "(x[index] takes arrays of them, too)"
        ) from None
    n = x.shape[axis]
    if not -n <= place < n:
        raise ShapeError(
            f"slice: expected an index in [{-n}, {n}) for axis {axis} of {x}; got {place}"
        )
    return range(place % n, place % n + 1)


def places(starts: Shape, sizes: Shape, steps: Shape) -> tuple[builtins.slice, ...]:
    """Spell a slice node's attributes as an index of NumPy's."""
    index = []
    for start, size, step in zip(starts, sizes, steps, strict=True):
        stop = start + size * step
        index.append(builtins.slice(start, stop if stop >= 0 else None, step))
        if size == 0:
            index[-1] = builtins.slice(0, 0)
    return tuple(index)


slice: Final[Slice] = register(Slice())


class Split(Op):
    """split(x, sections, axis=0): equal parts, or cut at the given places, as numpy.split.

    Attrs: sizes, the extent of each part along axis. Along the outermost axis the parts are views.
    """

    name = "split"
    moves = True
    dtypes = ALL

    def __call__(self, x: Value, sections: int | Sequence[int], axis: int = 0) -> tuple[Node, ...]:
        x = as_node(x, where=self.name)
        along = as_axis(self.name, axis, x.ndim, x.type)
        n = x.shape[along]
        if isinstance(sections, (int, np.integer)):
            if sections < 1 or n % sections:
                raise ShapeError(
                    f"split: expected a number that divides the {n} elements along axis {axis} "
                    f"of {x.type}; got {sections}. Give the indices to split at, such as [1], for "
                    "sections of different sizes."
                )
            sizes = (n // int(sections),) * int(sections)
        else:
            cuts = [0, *(range(n)[: operator.index(cut)].stop for cut in sections), n]
            if cuts != sorted(cuts):
                raise ShapeError(f"split: expected ascending indices; got {sections}. Sort them.")
            sizes = tuple(end - begin for begin, end in pairwise(cuts))
        return self.node((x,), {"sizes": sizes, "axis": along}).results

    def infer(self, x: Type, *, sizes: Shape, axis: int) -> tuple[Type, ...]:
        if builtins.sum(sizes) != x.shape[axis]:
            raise ShapeError(
                f"split: expected sizes that fill axis {axis} of {x}; got {sizes}. Give sizes "
                "whose sum is the extent."
            )
        before, after = x.shape[:axis], x.shape[axis + 1 :]
        return tuple(Type(x.dtype, (*before, size, *after)) for size in sizes)

    def grad(self, node: Node, dy: tuple[Node | None, ...]) -> Sequence[Node | None]:
        parts = zip(dy, node.results, strict=True)
        whole = [zeros(r.shape, r.dtype) if d is None else d for d, r in parts]
        return (concat(whole, node.attrs["axis"]),)

    def expand(self, x: Node, *, sizes: Shape, axis: int) -> tuple[Node, ...]:
        before = (builtins.slice(None),) * axis
        bounds = pairwise(accumulate(sizes, initial=0))
        return tuple(slice(x, (*before, builtins.slice(a, b))) for a, b in bounds)

    def reference(self, x: Array, *, sizes: Shape, axis: int) -> tuple[Array, ...]:
        return tuple(np.split(x, list(accumulate(sizes))[:-1], axis))

    def samples(self) -> Iterable[Sample]:
        yield Sample((Operand((6,)),), {"sizes": (2, 0, 3, 1), "axis": 0})
        yield Sample((Operand((4, 3)),), {"sizes": (3, 1), "axis": 0})
        yield Sample((Operand((2, 5, 3)),), {"sizes": (1, 4), "axis": 1})
        yield Sample((Operand((1, 4, 2)),), {"sizes": (2, 2), "axis": 1})
        yield Sample((Operand((3, 2)),), {"sizes": (2,), "axis": 1})


split: Final[Split] = register(Split())


class PadSlice(Op):
    """pad_slice(x, shape, starts, steps): zeros, with x written where slice would read it."""

    name = "pad_slice"
    moves = True
    public = False
    dtypes = ALL

    def __call__(self, x: Value, shape: Shape, starts: Shape, steps: Shape) -> Node:
        attrs = {"shape": as_shape(shape), "starts": as_shape(starts), "steps": as_shape(steps)}
        return self.node((as_node(x, where=self.name),), attrs)

    def infer(self, x: Type, *, shape: Shape, starts: Shape, steps: Shape) -> Type:
        for n, start, size, step in zip(shape, starts, x.shape, steps, strict=True):
            if size and not (0 <= start < n and 0 <= start + (size - 1) * step < n):
                raise ShapeError(
                    f"pad_slice: expected places inside {shape}; got {x} at starts {starts}, "
                    f"steps {steps}"
                )
        return Type(x.dtype, shape)

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        attrs = {
            "starts": node.attrs["starts"],
            "sizes": node.inputs[0].shape,
            "steps": node.attrs["steps"],
        }
        return (slice.node((dy,), attrs),)

    def reference(self, x: Array, *, shape: Shape, starts: Shape, steps: Shape) -> Array:
        result = np.zeros(shape, x.dtype)
        result[places(starts, x.shape, steps)] = x
        return result

    def samples(self) -> Iterable[Sample]:
        for part, shape, starts, steps in (
            ((3,), (7,), (2,), (1,)),
            ((4,), (7,), (6,), (-2,)),
            ((3, 5), (4, 5), (1, 4), (1, -1)),
            ((2, 1, 3), (3, 4, 5), (0, 1, 0), (2, 1, 2)),
            ((0, 4), (3, 4), (0, 0), (1, 1)),
        ):
            yield Sample((Operand(part),), {"shape": shape, "starts": starts, "steps": steps})


pad_slice: Final[PadSlice] = register(PadSlice())


def as_indices(indices: Value, where: str, name: str = "indices") -> Node:
    """Make indices or labels, by their `name`, int32 or int64; they must be integers."""
    node = as_node(indices, where=where)
    if node.dtype not in INTEGERS:
        raise DTypeError(
            f"{where}: expected integer {name}; got {node.type}. Cast: {name}.astype('int64')."
        )
    return node if node.dtype in INDICES else cast(node, int64)


class Take(Op):
    """take(x, indices, axis=0): numpy.take. Negative indices count from the end; attrs: axis.

    An index out of range is an OutOfRangeError, an IndexError and a ValueError, when the step runs.
    """

    name = "take"
    moves = True
    dtypes = ALL

    def __call__(self, x: Value, indices: Value, axis: int = 0) -> Node:
        x = as_node(x, where=self.name)
        along = as_axis(self.name, axis, x.ndim, x.type)
        return self.node((x, as_indices(indices, self.name)), {"axis": along})

    def infer(self, x: Type, indices: Type, *, axis: int, **checked: Any) -> Type:
        expect_dtype(self.name, (indices,), INDICES)
        return Type(x.dtype, (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        x, indices = node.inputs
        attrs = {"caller": self.name, **node.attrs, "size": x.shape[node.attrs["axis"]]}
        return scatter_add.node((dy, indices), attrs), None

    def reference(
        self,
        x: Array,
        indices: Array,
        *,
        axis: int,
        caller: str | None = None,
        negative: bool = True,
    ) -> Array:
        check_indices(caller or self.name, indices, x.shape[axis], negative=negative)
        return np.take(x, indices, axis=axis)

    def lower(self, **attrs: Any) -> tuple[str, dict[str, Any]]:
        return "gather", {"caller": self.name, **attrs}

    def samples(self) -> Iterable[Sample]:
        yield Sample((Operand((5,)), Operand((3,), -5, 4, dtype=int64)), {"axis": 0})
        yield Sample((Operand((4, 3)), Operand((), 0, 3, dtype=int32)), {"axis": 0})
        yield Sample((Operand((4, 3)), Operand((2, 2), -3, 2, dtype=int64)), {"axis": 1})
        yield Sample((Operand((2, 3, 4)), Operand((5,), 0, 2, dtype=int32)), {"axis": 1})
        yield Sample((Operand((2, 3)), Operand((0,), 0, 1, dtype=int64)), {"axis": 0})
        attrs = {"axis": 0, "caller": "embedding", "negative": False}
        yield Sample((Operand((4, 3)), Operand((2,), 0, 3, dtype=int64)), attrs)


take: Final[Take] = register(Take())


class ScatterAdd(Op):
    """scatter_add(updates, indices, axis, size): zeros, with the updates added where take reads.

    Two-byte floats are accumulated in float32 and rounded once. Attrs: axis, size; caller and
    negative. An index out of range is an OutOfRangeError when the step runs, as that of take.
    """

    name = "scatter_add"
    dtypes = NUMBERS

    def __call__(self, updates: Value, indices: Value, axis: int, size: int) -> Node:
        updates = as_node(updates, where=self.name)
        chosen = as_indices(indices, self.name)
        ndim = updates.ndim - chosen.ndim + 1
        along = as_axis(self.name, axis, ndim, updates.type)
        return self.node((updates, chosen), {"axis": along, "size": lengths(size, self.name)[0]})

    def infer(self, updates: Type, indices: Type, *, axis: int, size: int, **checked: Any) -> Type:
        expect_dtype(self.name, (updates,), self.dtypes)
        expect_dtype(self.name, (indices,), INDICES)
        end = axis + len(indices.shape)
        if updates.shape[axis:end] != indices.shape:
            raise ShapeError(
                f"scatter_add: expected the updates' axes from {axis} on to be those of the "
                f"indices; got {updates} and {indices}"
            )
        return Type(updates.dtype, (*updates.shape[:axis], size, *updates.shape[end:]))

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        attrs = {"caller": self.name, **node.attrs}
        del attrs["size"]
        return take.node((dy, node.inputs[1]), attrs), None

    def reference(
        self,
        updates: Array,
        indices: Array,
        *,
        axis: int,
        size: int,
        caller: str | None = None,
        negative: bool = True,
    ) -> Array:
        before, after = updates.shape[:axis], updates.shape[axis + indices.ndim :]
        total = np.zeros((*before, size, *after), widen(updates).dtype)
        chosen = check_indices(caller or self.name, indices, size, negative=negative)
        index: Any = (*(builtins.slice(None),) * axis, chosen)
        np.add.at(total, index, widen(updates))
        return narrow(total, updates.dtype)

    def samples(self) -> Iterable[Sample]:
        for updates, indices, axis, size in (
            ((3,), Operand((3,), -5, 4, dtype=int64), 0, 5),
            ((3,), Operand((), 0, 3, dtype=int32), 0, 4),
            ((4, 2, 2), Operand((2, 2), -3, 2, dtype=int64), 1, 3),
            ((2, 9, 4), Operand((9,), 0, 2, dtype=int32), 1, 3),
            ((0, 3), Operand((0,), 0, 1, dtype=int64), 0, 2),
        ):
            yield Sample((Operand(updates), indices), {"axis": axis, "size": size})


scatter_add: Final[ScatterAdd] = register(ScatterAdd())


class StopGradient(Op):
    """stop_gradient(x): x, through which no gradient flows."""

    name = "stop_gradient"
    view = True
    dtypes = ALL
    smooth = False

    def __call__(self, x: Value) -> Node:
        return self.node((as_node(x, where=self.name),))

    def infer(self, x: Type) -> Type:
        return x

    def expand(self, x: Node) -> Node:
        return x

    def simplify(self, node: Node) -> Node | None:
        return unchanged(node)

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (None,)

    def reference(self, x: Array) -> Array:
        return x

    def samples(self) -> Iterable[Sample]:
        yield Sample((Operand((2, 3)),))


stop_gradient: Final[StopGradient] = register(StopGradient())


@public
def expand_dims(x: Value, axis: int) -> Node:
    """Insert an axis of extent 1 at this place of the result."""
    x = as_node(x, where="expand_dims")
    at = as_axis("expand_dims", axis, x.ndim + 1, x.type)
    return reshape(x, (*x.shape[:at], 1, *x.shape[at:]))


@public
def squeeze(x: Value, axis: int | Sequence[int] | None = None) -> Node:
    """Remove axes of extent 1: the given ones, or all."""
    x = as_node(x, where="squeeze")
    if axis is None:
        gone = {i for i, n in enumerate(x.shape) if n == 1}
    else:
        gone = {as_axis("squeeze", a, x.ndim, x.type) for a in as_shape(axis)}
    if any(x.shape[i] != 1 for i in gone):
        raise ShapeError(
            f"squeeze: expected axes of size 1; got {sorted(gone)} of {x.type}. Leave the other "
            "axes out, or join axes by ops.reshape."
        )
    return reshape(x, tuple(n for i, n in enumerate(x.shape) if i not in gone))


@public
def stack(values: Sequence[Value], axis: int = 0) -> Node:
    """Join tensors of one shape along a new axis."""
    nodes = align("stack", *expect_list("stack", values))
    if len({n.shape for n in nodes}) != 1:
        types = got(*(n.type for n in nodes))
        raise ShapeError(f"stack: expected tensors of one shape; got {types}. Reshape or pad them.")
    return concat([expand_dims(n, axis) for n in nodes], axis)


@public
def full(shape: int | Sequence[int], value: Any, dtype: Any = float32) -> Node:
    """Make a tensor of one value."""
    return broadcast_to(scalar(value, as_dtype(dtype, "full"), "full"), shape)


@public
def zeros(shape: int | Sequence[int], dtype: Any = float32) -> Node:
    """Make a tensor of zeros."""
    return full(shape, 0, dtype)


@public
def ones(shape: int | Sequence[int], dtype: Any = float32) -> Node:
    """Make a tensor of ones."""
    return full(shape, 1, dtype)
