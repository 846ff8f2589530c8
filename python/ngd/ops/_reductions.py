# SPDX-License-Identifier: Apache-2.0
"""Reductions over axes of one tensor.

All are called as NumPy's: (x, axis=None | int | tuple, keepdims=False). Nodes carry `axes`, sorted
and non-negative, and `keepdims`. Sums of bools and small integers are int64 or uint64, means of
integers float64. float16 and bfloat16 are accumulated in float32 and rounded once.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Final

import numpy as np

from ..dtypes import FLOATS, NUMBERS, Array, Shape, Type, bool_, int64, uint8, uint64
from ..errors import ShapeError
from ..graph.node import Node, Op
from ..graph.registry import public, register
from ..graph.samples import Operand, Sample
from ..graph.traits import Fusion, Kernel, Numerics
from ._arithmetic import abs, square
from ._casting import as_floats, cast
from ._compare import equal, not_equal, where
from ._concatenation import concat
from ._creation import full
from ._operands import (
    Axis,
    Value,
    accumulator,
    as_axis,
    as_node,
    expect_dtype,
    float_of,
    local_number,
    narrow,
    normalize_axes,
    widen,
)
from ._shape import broadcast_to, moved, reshape, stop_gradient, transpose
from ._transcendental import exp, log, power, sqrt

__all__ = [
    "all",
    "any",
    "argmax",
    "argmin",
    "logsumexp",
    "max",
    "mean",
    "min",
    "prod",
    "sum",
    "var",
    "vector_norm",
]


def reduced_shape(shape: Shape, axes: Shape, keepdims: bool) -> Shape:
    """Return the shape after a reduction."""
    if keepdims:
        return tuple(1 if i in axes else n for i, n in enumerate(shape))
    return tuple(n for i, n in enumerate(shape) if i not in axes)


def restore(reduced: Node, x: Node, axes: Shape) -> Node:
    """Give a result of reducing x its reduced axes back, with extent 1."""
    return reshape(reduced, reduced_shape(x.shape, axes, True))


def broadcast_back(dy: Node, x: Node, axes: Shape) -> Node:
    """Give every element of x the value at the result that it went into."""
    return broadcast_to(restore(dy, x, axes), x.shape)


def extent(shape: Shape, axes: Shape) -> int:
    """Count the elements that each result is made of."""
    return math.prod(shape[a] for a in axes)


class Reduction(Op):
    """One result for all elements along the axes; attrs: axes, keepdims."""

    batching = "axes"
    numerics = Numerics(needs_float32_gradient=True)
    compute: ClassVar[Callable[..., Any]]
    has_identity: ClassVar[bool] = True
    """True if a reduction of no elements has a result."""
    distinct: ClassVar[bool] = False

    def __call__(self, x: Value, axis: Axis = None, keepdims: bool = False) -> Node:
        x = self.prepare(as_node(x, where=self.name))
        axes = normalize_axes(self.name, axis, x.type)
        return self.node((x,), {"axes": axes, "keepdims": bool(keepdims)})

    def prepare(self, x: Node) -> Node:
        """Cast the operand to the dtype in which NumPy accumulates."""
        return x

    def infer(self, x: Type, *, axes: Shape, keepdims: bool) -> Type:
        dtype = expect_dtype(self.name, (x,), self.dtypes)
        if not self.has_identity and extent(x.shape, axes) == 0:
            raise ShapeError(f"{self.name}: expected at least one element along {axes}; got {x}")
        return Type(dtype, reduced_shape(x.shape, axes, keepdims))

    def move_transpose(self, node: Node, axes: Shape) -> Node | None:
        (x,), over = node.inputs, node.attrs["axes"]
        attrs = {**node.attrs, "axes": tuple(sorted(axes[axis] for axis in over))}
        made = self.node(x.inputs, attrs)
        if node.attrs["keepdims"]:
            return moved(made, axes)
        kept = [axes[axis] for axis in range(x.ndim) if axis not in over]
        return moved(made, tuple(sorted(kept).index(axis) for axis in kept))

    def reference(self, x: Array, *, axes: Shape, keepdims: bool) -> Array:
        return narrow(type(self).compute(widen(x), axis=axes, keepdims=keepdims), x.dtype)

    def lower(self, **attrs: Any) -> tuple[str, dict[str, Any]]:
        return "reduce", {"op": self.kernel.reduction, "axes": attrs["axes"]}

    def samples(self) -> Iterable[Sample]:
        for shape, axes, keepdims in (
            ((), (), False),
            ((7,), (0,), False),
            ((2, 3, 4), (0, 1, 2), False),
            ((2, 3, 4), (1,), True),
            ((2, 3, 4), (0, 2), False),
            ((5, 33), (1,), False),
            ((33, 5), (0,), True),
            ((0, 3), (1,), False),
        ):
            operand = Operand(shape, distinct=self.distinct)
            yield Sample((operand,), {"axes": axes, "keepdims": keepdims})
        if self.has_identity:
            yield Sample((Operand((2, 0)),), {"axes": (1,), "keepdims": False})


class Sum(Reduction):
    """The sum of the elements; 0 of none."""

    name = "sum"
    kernel = Kernel(reduction="sum")
    fusion = Fusion(is_linear_reduction=True)
    numerics = Numerics(needs_float32_gradient=False)
    dtypes = (int64, uint64, *FLOATS)
    compute = np.sum

    def prepare(self, x: Node) -> Node:
        return cast(x, accumulator(x.dtype))

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        (x,) = node.inputs
        return (broadcast_back(dy, x, node.attrs["axes"]),)


sum: Final[Sum] = register(Sum())


class Mean(Reduction):
    """The sum of the elements divided by their number; NaN of none."""

    name = "mean"
    kernel = Kernel(reduction="mean")
    fusion = Fusion(is_linear_reduction=True)
    dtypes = FLOATS

    def prepare(self, x: Node) -> Node:
        return as_floats(x)

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        (x,) = node.inputs
        axes = node.attrs["axes"]
        count = local_number(extent(x.shape, axes) or 1, dy)
        return (broadcast_back(dy / count, x, axes),)

    def reference(self, x: Array, *, axes: Shape, keepdims: bool) -> Array:
        total = np.sum(widen(x), axis=axes, keepdims=keepdims)
        return narrow(np.divide(total, total.dtype.type(extent(x.shape, axes))), x.dtype)


mean: Final[Mean] = register(Mean())


class Prod(Reduction):
    """The product of the elements; 1 of none."""

    name = "prod"
    kernel = Kernel(reduction="prod")
    dtypes = (int64, uint64, *FLOATS)
    compute = np.prod

    def prepare(self, x: Node) -> Node:
        return cast(x, accumulator(x.dtype))

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        # The product of the others, without division, so that zeros are no special case: what
        # precedes an element, times what follows it, along one axis that holds all reduced ones.
        (x,) = node.inputs
        axes = node.attrs["axes"]
        kept = tuple(i for i in range(x.ndim) if i not in axes)
        order = (*kept, *axes)
        moved = transpose(x, order)
        line = reshape(moved, (*(x.shape[i] for i in kept), extent(x.shape, axes)))
        backwards = (..., builtins.slice(None, None, -1))
        others = _before(line) * _before(line[backwards])[backwards]
        undone = sorted(range(x.ndim), key=order.__getitem__)
        back = transpose(reshape(others, moved.shape), undone)
        return (restore(dy, x, axes) * back,)


def _before(line: Node) -> Node:
    """Multiply all that precedes each element of the last axis: a scan by doubling distances."""
    size = line.shape[-1]
    product = _shifted(line, builtins.min(1, size))
    distance = 1
    while distance < size:
        product = product * _shifted(product, distance)
        distance *= 2
    return product


def _shifted(line: Node, distance: int) -> Node:
    ones = full((*line.shape[:-1], distance), 1, line.dtype)
    return concat([ones, line[..., : line.shape[-1] - distance]], axis=-1)


prod: Final[Prod] = register(Prod())


class Extremum(Reduction):
    """An element that none exceeds; NaN propagates. Equal ones share the gradient equally."""

    dtypes = NUMBERS
    has_identity = False
    distinct = True
    smooth = False

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        (x,) = node.inputs
        axes = node.attrs["axes"]
        chosen = equal(x, restore(node, x, axes))
        count = sum(cast(chosen, x.dtype), axes, keepdims=True)
        return (where(chosen, restore(dy, x, axes) / count, 0),)


class Max(Extremum):
    """The largest element; NaN propagates. Equal ones share the gradient equally."""

    name = "max"
    kernel = Kernel(reduction="max")
    compute = np.max


max: Final[Max] = register(Max())


class Min(Extremum):
    """The smallest element; NaN propagates. Equal ones share the gradient equally."""

    name = "min"
    kernel = Kernel(reduction="min")
    compute = np.min


min: Final[Min] = register(Min())


class Truth(Reduction):
    """One bool of many; anything but 0 is True."""

    dtypes = (bool_,)
    has_identity = False  # of a node: the kernel's extremum has none
    of_none: ClassVar[bool]

    def __call__(self, x: Value, axis: Axis = None, keepdims: bool = False) -> Node:
        x = as_node(x, where=self.name)
        axes = normalize_axes(self.name, axis, x.type)
        if extent(x.shape, axes) == 0:
            return full(reduced_shape(x.shape, axes, keepdims), self.of_none, bool_)
        return super().__call__(x if x.dtype == bool_ else not_equal(x, 0), axis, keepdims)

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (None,)


class AnyTrue(Truth):
    """Return True if any element is not 0; of no elements, False."""

    name = "any"
    kernel = Kernel(reduction="max")
    of_none = False
    compute = np.any


any: Final[AnyTrue] = register(AnyTrue())


class AllTrue(Truth):
    """Return True if no element is 0; of no elements, True."""

    name = "all"
    kernel = Kernel(reduction="min")
    of_none = True
    compute = np.all


all: Final[AllTrue] = register(AllTrue())


class ArgExtremum(Op):
    """The place of an extremum, int64; attrs: axis."""

    batching = "axis"
    compute: ClassVar[Callable[..., Any]]

    def __call__(self, x: Value, axis: int | None = None, keepdims: bool = False) -> Node:
        x = as_node(x, where=self.name)
        x = cast(x, uint8) if x.dtype == bool_ else x
        line = reshape(x, (x.type.count,)) if axis is None else x
        along = as_axis(self.name, 0 if axis is None else axis, line.ndim, x.type)
        found = self.node((line,), {"axis": along})
        axes = range(x.ndim) if axis is None else (along,)
        return reshape(found, reduced_shape(x.shape, tuple(axes), keepdims))

    def infer(self, x: Type, *, axis: int) -> Type:
        expect_dtype(self.name, (x,), self.dtypes)
        if x.shape[axis] == 0:
            raise ShapeError(f"{self.name}: expected at least one element along {axis}; got {x}")
        return Type(int64, reduced_shape(x.shape, (axis,), False))

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (None,)

    def reference(self, x: Array, *, axis: int) -> Array:
        return narrow(type(self).compute(widen(x), axis=axis), int64)

    def samples(self) -> Iterable[Sample]:
        for shape, axis in (((7,), 0), ((2, 3, 4), 1), ((5, 33), 1), ((33, 5), 0), ((0, 3), 1)):
            yield Sample((Operand(shape),), {"axis": axis})


class ArgMax(ArgExtremum):
    """The index of the largest element, int64: the first of equals, or the first NaN.

    axis=None counts along the flattened tensor.
    """

    name = "argmax"
    compute = np.argmax


argmax: Final[ArgMax] = register(ArgMax())


class ArgMin(ArgExtremum):
    """The index of the smallest element, int64: the first of equals, or the first NaN.

    axis=None counts along the flattened tensor.
    """

    name = "argmin"
    compute = np.argmin


argmin: Final[ArgMin] = register(ArgMin())


def _shift(x: Node, axes: Shape) -> Node:
    """Return the largest element, or 0 if it is infinite; exp(x - shift) does not overflow."""
    largest = max(x, axes, keepdims=True)
    return stop_gradient(where(abs(largest) < math.inf, largest, 0))


class LogSumExp(Reduction):
    """log(sum(exp(x))), without overflow; integers become floats first.

    Its gradient is the softmax of x; 0 where all of x is -inf.
    """

    name = "logsumexp"
    dtypes = FLOATS
    has_identity = False

    def prepare(self, x: Node) -> Node:
        return cast(x, float_of(x.dtype))

    def expand(self, x: Node, *, axes: Shape, keepdims: bool) -> Node:
        shift = _shift(x, axes)
        result = log(sum(exp(x - shift), axes, keepdims=True)) + shift
        return reshape(result, reduced_shape(x.shape, axes, keepdims))

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        (x,) = node.inputs
        axes = node.attrs["axes"]
        powers = exp(x - _shift(x, axes))  # exp(x - node) would lose what x has beside an offset
        total = sum(powers, axes, keepdims=True)
        return (restore(dy, x, axes) * (powers / where(equal(total, 0), 1, total)),)

    def reference(self, x: Array, *, axes: Shape, keepdims: bool) -> Array:
        wide = widen(x)
        largest = np.max(wide, axis=axes, keepdims=True)
        shift = np.where(np.isfinite(largest), largest, wide.dtype.type(0))
        result = np.log(np.sum(np.exp(wide - shift), axis=axes, keepdims=True)) + shift
        return narrow(result, x.dtype).reshape(reduced_shape(x.shape, axes, keepdims))


logsumexp: Final[LogSumExp] = register(LogSumExp())


def centered(x: Node, axes: Shape) -> Node:
    """Subtract the mean twice: the first mean is rounded, the more the farther x is from zero."""
    distance = x - mean(x, axes, keepdims=True)
    return distance - mean(distance, axes, keepdims=True)


class Var(Reduction):
    """var(x, axis=None, keepdims=False, ddof=0): the mean of the squared distances from the mean.

    Integers become float64. With ddof, the sum of squares is divided by the number of elements
    minus ddof; torch.var has ddof=1.
    """

    name = "var"
    dtypes = FLOATS

    def __call__(self, x: Value, axis: Axis = None, keepdims: bool = False, ddof: int = 0) -> Node:
        found = super().__call__(x, axis, keepdims)
        if not ddof:
            return found
        operand = found.inputs[0]
        count = extent(operand.shape, normalize_axes(self.name, axis, operand.type))
        divisor = count - ddof
        return found * local_number(count / divisor if divisor > 0 else math.nan, found)

    def prepare(self, x: Node) -> Node:
        return as_floats(x)

    def expand(self, x: Node, *, axes: Shape, keepdims: bool) -> Node:
        return mean(square(centered(x, axes)), axes, keepdims)

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        (x,) = node.inputs
        axes = node.attrs["axes"]
        slope = centered(x, axes) * local_number(2 / (extent(x.shape, axes) or 1), x)
        return (restore(dy, x, axes) * slope,)

    def reference(self, x: Array, *, axes: Shape, keepdims: bool) -> Array:
        wide = widen(x)
        distance = wide - mean.reference(wide, axes=axes, keepdims=True)
        distance = distance - mean.reference(distance, axes=axes, keepdims=True)
        return narrow(mean.reference(distance * distance, axes=axes, keepdims=keepdims), x.dtype)


var: Final[Var] = register(Var())


class L2Norm(Reduction):
    """The root of the sum of squares; its gradient is 0 where all elements are."""

    name = "l2_norm"
    public = False
    dtypes = FLOATS

    def expand(self, x: Node, *, axes: Shape, keepdims: bool) -> Node:
        return sqrt(sum(square(x), axes, keepdims))

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        (x,) = node.inputs
        slope = dy / where(equal(node, 0), 1, node)
        return (x * restore(slope, x, node.attrs["axes"]),)

    def reference(self, x: Array, *, axes: Shape, keepdims: bool) -> Array:
        wide = widen(x)
        return narrow(np.sqrt(np.sum(wide * wide, axis=axes, keepdims=keepdims)), x.dtype)


l2_norm: Final[L2Norm] = register(L2Norm())


@public
def vector_norm(x: Value, axis: Axis = None, keepdims: bool = False, ord: float = 2) -> Node:
    """The norm of all elements along the axes, as numpy.linalg.vector_norm.

    (sum of abs(x) ** ord) ** (1 / ord); math.inf and -math.inf give the largest and the smallest
    abs(x). Integers become floats.
    """
    x = as_node(x, where="vector_norm")
    x = cast(x, float_of(x.dtype))
    if not ord or math.isnan(ord):
        raise ValueError(
            f"vector_norm: expected an ord that is not 0; got {ord}. Use ops.count_nonzero instead."
        )
    if ord == 2:
        return l2_norm(x, axis, keepdims)
    if math.isinf(ord):
        return (max if ord > 0 else min)(abs(x), axis, keepdims)
    if ord == 1:
        return sum(abs(x), axis, keepdims)
    return power(sum(power(abs(x), ord), axis, keepdims), 1 / ord)
