# SPDX-License-Identifier: Apache-2.0
# The file is long because each argument is described.
"""Reductions over axes of one array.

All are called as in NumPy: (x, axis=None | int | tuple, keepdims=False). The attributes of a node
are `axes`, sorted and non-negative, and `keepdims`. Sums of bools and small integers are int64 or
uint64, and means of integers are float64. float16 and bfloat16 are accumulated in float32 and
rounded once.
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
from ._shape import broadcast_to, reshape, stop_gradient, transpose, transpose_cheaply
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
    """Return the shape of the result of a reduction."""
    if keepdims:
        return tuple(1 if i in axes else n for i, n in enumerate(shape))
    return tuple(n for i, n in enumerate(shape) if i not in axes)


def restore(reduced: Node, x: Node, axes: Shape) -> Node:
    """Insert the reduced axes into the result of a reduction of x, with size 1."""
    return reshape(reduced, reduced_shape(x.shape, axes, True))


def broadcast_back(dy: Node, x: Node, axes: Shape) -> Node:
    """Repeat dy along the reduced axes, so that the returned node has the shape of x.

    dy is the adjoint of the result of a reduction of x over these axes. It has the shape of this
    result.
    """
    return broadcast_to(restore(dy, x, axes), x.shape)


def extent(shape: Shape, axes: Shape) -> int:
    """Return the number of elements that a reduction over the axes combines to one result."""
    return math.prod(shape[a] for a in axes)


class Reduction(Op):
    """The base of reductions: an op whose result combines the elements along some axes."""

    # Attributes of a node: axes, keepdims.
    batching = "axes"
    numerics = Numerics(needs_float32_gradient=True)
    compute: ClassVar[Callable[..., Any]]
    has_identity: ClassVar[bool] = True
    """True if the reduction of no elements has a result. For example, the sum of no elements is 0.

    If it is False, a reduction of no elements raises a ShapeError.
    """
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
        (x,), reduced_axes = node.inputs, node.attrs["axes"]
        attrs = {**node.attrs, "axes": tuple(sorted(axes[axis] for axis in reduced_axes))}
        moved_node = self.node(x.inputs, attrs)
        if node.attrs["keepdims"]:
            return transpose_cheaply(moved_node, axes)
        new_positions = [axes[axis] for axis in range(x.ndim) if axis not in reduced_axes]
        return transpose_cheaply(
            moved_node, tuple(sorted(new_positions).index(axis) for axis in new_positions)
        )

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
    """Return the sum of the elements along the axes, and 0 for no elements.

    Parameters
    ----------
    x : node or array
        Numbers of any shape. Bools and small integers become int64 or uint64.
    axis : int or sequence of int, optional
        The axis or axes to reduce. The default is all axes.
    keepdims : bool, default False
        If True, the result keeps the reduced axes, with size 1.

    Examples
    --------
    ::

        >>> ngd.function(lambda x: ops.sum(x, axis=1))(np.array([[1.0, 2.0], [3.0, 4.0]]))
        array([3., 7.])
    """

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
    """Return the mean of the elements along the axes, and NaN for no elements.

    Parameters
    ----------
    x : node or array
        Numbers of any shape. Integers become float64.
    axis : int or sequence of int, optional
        The axis or axes to reduce. The default is all axes.
    keepdims : bool, default False
        If True, the result keeps the reduced axes, with size 1.

    Examples
    --------
    ::

        >>> ngd.function(lambda x: ops.mean(x, axis=1))(np.array([[1.0, 2.0], [3.0, 4.0]]))
        array([1.5, 3.5])
    """

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
    """Return the product of the elements along the axes, and 1 for no elements.

    Parameters
    ----------
    x : node or array
        Numbers of any shape. Bools and small integers become int64 or uint64.
    axis : int or sequence of int, optional
        The axis or axes to reduce. The default is all axes.
    keepdims : bool, default False
        If True, the result keeps the reduced axes, with size 1.

    Examples
    --------
    ::

        >>> ngd.function(lambda x: ops.prod(x, axis=1))(np.array([[1.0, 2.0], [3.0, 4.0]]))
        array([ 2., 12.])
    """

    name = "prod"
    kernel = Kernel(reduction="prod")
    dtypes = (int64, uint64, *FLOATS)
    compute = np.prod

    def prepare(self, x: Node) -> Node:
        return cast(x, accumulator(x.dtype))

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        # The derivative by an element is the product of the other elements: of those before it and
        # those after it, along one axis that joins all reduced axes. There is no division, so zeros
        # need no special case.
        (x,) = node.inputs
        axes = node.attrs["axes"]
        other_axes = tuple(i for i in range(x.ndim) if i not in axes)
        order = (*other_axes, *axes)
        transposed = transpose(x, order)
        line = reshape(transposed, (*(x.shape[i] for i in other_axes), extent(x.shape, axes)))
        reverse = (..., builtins.slice(None, None, -1))
        others = _before(line) * _before(line[reverse])[reverse]
        inverse_order = sorted(range(x.ndim), key=order.__getitem__)
        products = transpose(reshape(others, transposed.shape), inverse_order)
        return (restore(dy, x, axes) * products,)


def _before(line: Node) -> Node:
    """Return, for each element, the product of all elements before it along the last axis.

    It is a parallel prefix product. The elements are first shifted by one position. In round k = 0,
    1, ..., each element is multiplied by the one that is 2 ** k positions before it, until 2 ** k
    is at least the size of the axis.
    """
    size = line.shape[-1]
    product = _shifted(line, builtins.min(1, size))
    distance = 1
    while distance < size:
        product = product * _shifted(product, distance)
        distance *= 2
    return product


def _shifted(line: Node, distance: int) -> Node:
    """Shift the elements by `distance` towards the end of the last axis, and fill with ones."""
    ones = full((*line.shape[:-1], distance), 1, line.dtype)
    return concat([ones, line[..., : line.shape[-1] - distance]], axis=-1)


prod: Final[Prod] = register(Prod())


class Extremum(Reduction):
    """The base of max and min. NaN propagates.

    If several elements are the extremum, each of them gets an equal part of the gradient.
    """

    dtypes = NUMBERS
    has_identity = False
    distinct = True
    smooth = False

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        (x,) = node.inputs
        axes = node.attrs["axes"]
        is_extremum = equal(x, restore(node, x, axes))
        count = sum(cast(is_extremum, x.dtype), axes, keepdims=True)
        return (where(is_extremum, restore(dy, x, axes) / count, 0),)


class Max(Extremum):
    """Return the largest element along the axes. NaN propagates.

    If several elements are the largest, each of them gets an equal part of the gradient.

    Parameters
    ----------
    x : node or array
        Numbers of any shape, at least one element along the axes.
    axis : int or sequence of int, optional
        The axis or axes to reduce. The default is all axes.
    keepdims : bool, default False
        If True, the result keeps the reduced axes, with size 1.

    Raises
    ------
    ShapeError
        There is no element along the axes.

    Examples
    --------
    ::

        >>> ngd.function(lambda x: ops.max(x, axis=1))(np.array([[1.0, 2.0], [3.0, 4.0]]))
        array([2., 4.])
    """

    name = "max"
    kernel = Kernel(reduction="max")
    compute = np.max


max: Final[Max] = register(Max())


class Min(Extremum):
    """Return the smallest element along the axes. NaN propagates.

    If several elements are the smallest, each of them gets an equal part of the gradient.

    Parameters
    ----------
    x : node or array
        Numbers of any shape, at least one element along the axes.
    axis : int or sequence of int, optional
        The axis or axes to reduce. The default is all axes.
    keepdims : bool, default False
        If True, the result keeps the reduced axes, with size 1.

    Raises
    ------
    ShapeError
        There is no element along the axes.

    Examples
    --------
    ::

        >>> ngd.function(lambda x: ops.min(x, axis=1))(np.array([[1.0, 2.0], [3.0, 4.0]]))
        array([1., 3.])
    """

    name = "min"
    kernel = Kernel(reduction="min")
    compute = np.min


min: Final[Min] = register(Min())


class Truth(Reduction):
    """The base of the ops `any` and `all`. An element other than 0 is True."""

    dtypes = (bool_,)
    has_identity = False  # the kernel is max or min; `__call__` handles no elements
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
    """Return True if an element along the axes is not 0, and False for no elements.

    Parameters
    ----------
    x : node or array
        Values of any shape and dtype.
    axis : int or sequence of int, optional
        The axis or axes to reduce. The default is all axes.
    keepdims : bool, default False
        If True, the result keeps the reduced axes, with size 1.

    Examples
    --------
    ::

        >>> ngd.function(lambda x: ops.any(x, axis=1))(np.array([[0, 1], [0, 0]]))
        array([ True, False])
    """

    name = "any"
    kernel = Kernel(reduction="max")
    of_none = False
    compute = np.any


any: Final[AnyTrue] = register(AnyTrue())


class AllTrue(Truth):
    """Return True if no element along the axes is 0, and True for no elements.

    Parameters
    ----------
    x : node or array
        Values of any shape and dtype.
    axis : int or sequence of int, optional
        The axis or axes to reduce. The default is all axes.
    keepdims : bool, default False
        If True, the result keeps the reduced axes, with size 1.

    Examples
    --------
    ::

        >>> ngd.function(lambda x: ops.all(x, axis=1))(np.array([[0, 1], [1, 1]]))
        array([False,  True])
    """

    name = "all"
    kernel = Kernel(reduction="min")
    of_none = True
    compute = np.all


all: Final[AllTrue] = register(AllTrue())


class ArgExtremum(Op):
    """The base of argmax and argmin, which return the index of an extremum as int64."""

    # Attribute of a node: axis.
    batching = "axis"
    compute: ClassVar[Callable[..., Any]]

    def __call__(self, x: Value, axis: int | None = None, keepdims: bool = False) -> Node:
        x = as_node(x, where=self.name)
        x = cast(x, uint8) if x.dtype == bool_ else x
        line = reshape(x, (x.type.count,)) if axis is None else x
        reduced_axis = as_axis(self.name, 0 if axis is None else axis, line.ndim, x.type)
        index = self.node((line,), {"axis": reduced_axis})
        axes = range(x.ndim) if axis is None else (reduced_axis,)
        return reshape(index, reduced_shape(x.shape, tuple(axes), keepdims))

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
    """Return the index of the largest element, an int64.

    If several elements are the largest, the result is the index of the first one. NaN counts as the
    largest element.

    Parameters
    ----------
    x : node or array
        Numbers of any shape, at least one element along the axis.
    axis : int, optional
        The axis to reduce. The default returns an index into the flattened array.
    keepdims : bool, default False
        If True, the result keeps the reduced axes, with size 1.

    Raises
    ------
    ShapeError
        There is no element along the axis.

    Examples
    --------
    ::

        >>> ngd.function(lambda x: ops.argmax(x, axis=1))(np.array([[1.0, 9.0], [3.0, 2.0]]))
        array([1, 0])
    """

    name = "argmax"
    compute = np.argmax


argmax: Final[ArgMax] = register(ArgMax())


class ArgMin(ArgExtremum):
    """Return the index of the smallest element, an int64.

    If several elements are the smallest, the result is the index of the first one. NaN counts as
    the smallest element.

    Parameters
    ----------
    x : node or array
        Numbers of any shape, at least one element along the axis.
    axis : int, optional
        The axis to reduce. The default returns an index into the flattened array.
    keepdims : bool, default False
        If True, the result keeps the reduced axes, with size 1.

    Raises
    ------
    ShapeError
        There is no element along the axis.

    Examples
    --------
    ::

        >>> ngd.function(lambda x: ops.argmin(x, axis=1))(np.array([[1.0, 9.0], [3.0, 2.0]]))
        array([0, 1])
    """

    name = "argmin"
    compute = np.argmin


argmin: Final[ArgMin] = register(ArgMin())


def _shift(x: Node, axes: Shape) -> Node:
    """Return the number to subtract from x along the axes, so that exp does not overflow.

    The number is the largest element along the axes. It is 0 if that element is infinite or NaN,
    because inf - inf is NaN.
    """
    largest = max(x, axes, keepdims=True)
    return stop_gradient(where(abs(largest) < math.inf, largest, 0))


class LogSumExp(Reduction):
    """Return log(sum(exp(x))) along the axes, without overflow.

    The gradient is the softmax of x, and 0 where all elements are -inf.

    Parameters
    ----------
    x : node or array
        Numbers of any shape, at least one element along the axes. Integers become floats.
    axis : int or sequence of int, optional
        The axis or axes to reduce. The default is all axes.
    keepdims : bool, default False
        If True, the result keeps the reduced axes, with size 1.

    Raises
    ------
    ShapeError
        There is no element along the axes.

    Examples
    --------
    ::

        >>> ngd.function(ops.logsumexp)(np.array([1000.0, 1000.0]))
        array(1000.6931)
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
        powers = exp(x - _shift(x, axes))  # more exact than exp(x - node) for large x
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
    """Return x minus its mean along the axes.

    The rounding error of the mean grows with the distance of x from zero. So the mean of the
    difference is computed and subtracted too.
    """
    distance = x - mean(x, axes, keepdims=True)
    return distance - mean(distance, axes, keepdims=True)


class Var(Reduction):
    """Return the variance along the axes: the mean of the squared distances from the mean.

    Parameters
    ----------
    x : node or array
        Numbers of any shape. Integers become float64.
    axis : int or sequence of int, optional
        The axis or axes to reduce. The default is all axes.
    keepdims : bool, default False
        If True, the result keeps the reduced axes, with size 1.
    ddof : int, default 0
        The divisor of the sum of squares is the number of elements minus ddof. torch.var has
        ddof=1.

    Examples
    --------
    ::

        >>> ngd.function(ops.var)(np.array([1.0, 2.0, 3.0, 4.0]))
        array(1.25)
    """

    name = "var"
    dtypes = FLOATS

    def __call__(self, x: Value, axis: Axis = None, keepdims: bool = False, ddof: int = 0) -> Node:
        variance = super().__call__(x, axis, keepdims)
        if not ddof:
            return variance
        operand = variance.inputs[0]
        count = extent(operand.shape, normalize_axes(self.name, axis, operand.type))
        divisor = count - ddof
        return variance * local_number(count / divisor if divisor > 0 else math.nan, variance)

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
    """The square root of the sum of squares. The gradient is 0 where all elements are 0."""

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
    """Return the norm of all elements along the axes, as numpy.linalg.vector_norm.

    It is (sum of abs(x) ** ord) ** (1 / ord).

    Parameters
    ----------
    x : node or array
        Numbers of any shape. Integers become floats.
    axis : int or sequence of int, optional
        The axis or axes to reduce. The default is all axes.
    keepdims : bool, default False
        If True, the result keeps the reduced axes, with size 1.
    ord : float, default 2
        The order of the norm. math.inf gives the largest abs(x), and -math.inf the smallest.

    Raises
    ------
    ValueError
        ord is 0 or NaN.

    Examples
    --------
    ::

        >>> ngd.function(ops.vector_norm)(np.array([3.0, 4.0]))
        array(5.)
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
