# SPDX-License-Identifier: Apache-2.0
# The file is long because each argument is described.
"""Pooling: the maximum or the mean of each window over the spatial axes of [N, C, spatial...].

_windows.py defines the positions of windows. 16-bit floats are summed in float32 and rounded once.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Iterable, Sequence
from functools import lru_cache, reduce
from typing import Any, Final, Literal, overload

import numpy as np

from ..dtypes import FLOATS, Array, Shape, Type, int64
from ..errors import ShapeError
from ..graph.cost import Cost
from ..graph.node import Node, Op
from ..graph.registry import public, register
from ..graph.samples import Operand, Sample
from ..graph.traits import Numerics
from ._along_axis import add_along_axis
from ._casting import cast
from ._concatenation import concat
from ._matmul import matmul
from ._operands import Value, as_node, describe_types, expect_dtype, float_of, narrow, widen
from ._rearrangement import moveaxis
from ._reductions import max, mean
from ._shape import reshape, transpose_cheaply
from ._windows import (
    Padding,
    PerAxis,
    channels_first_order,
    channels_last_order,
    elements_at_offset,
    offsets,
    pad_spatial,
    paddings,
    per_axis,
    permute_shape,
    sides,
    spatial_axes,
    spatial_index,
    window_counts,
    window_extent,
)

__all__ = ["adaptive_avg_pool", "adaptive_max_pool", "avg_pool", "max_pool"]


@lru_cache(maxsize=4096)
def _sizes(
    n: int, count: int, kernel: int, stride: int, before: int, after: int, dilation: int
) -> tuple[Shape, Shape]:
    """Return two tuples, each with one count of elements per window along an axis.

    The first tuple counts elements of x only. The second tuple counts padding elements too.
    """
    num_inside, num_padded = [], []
    for window in range(count):
        start = window * stride - before
        positions = range(start, start + window_extent(kernel, dilation), dilation)
        num_inside.append(sum(0 <= position < n for position in positions))
        num_padded.append(sum(position < n + after for position in positions))
    return tuple(num_inside), tuple(num_padded)


class Pool(Op):
    """The base of pooling ops over data [N, C, spatial...]."""

    # Attributes of a node: kernel, strides, padding, dilations, ceil.
    dtypes = FLOATS

    def cost(self, operands: Sequence[Type], results: Sequence[Type], **attrs: Any) -> Cost:
        """Return the cost: one operation per element of each window."""
        windows = results[0].count
        return Cost.touching(windows * math.prod(attrs["kernel"]), (*operands, *results))

    def attributes(
        self,
        x: Type,
        kernel: PerAxis,
        stride: PerAxis | None,
        padding: Padding,
        dilation: PerAxis,
        ceil_mode: bool,
    ) -> dict[str, Any]:
        """Convert the user's arguments to the attributes of a node.

        For example, kernel=2 becomes (2, 2) for two spatial axes. `padding` gets two numbers per
        axis, before and after.
        """
        axes = spatial_axes(self.name, x)
        extents = per_axis(self.name, "kernel", kernel, axes, 1)
        steps = extents if stride is None else per_axis(self.name, "stride", stride, axes, 1)
        dilations = per_axis(self.name, "dilation", dilation, axes, 1)
        zeros = paddings(self.name, padding, x.shape[2:], extents, steps, dilations)
        attrs: dict[str, Any] = {"kernel": extents, "strides": steps, "padding": zeros}
        return {**attrs, "dilations": dilations, "ceil": bool(ceil_mode)}

    def pooled_type(
        self,
        x: Type,
        *,
        kernel: Shape,
        strides: Shape,
        padding: Shape,
        dilations: Shape,
        ceil: bool,
    ) -> Type:
        """Return the type of the result; ShapeError if a window contains only padding."""
        dtype = expect_dtype(self.name, (x,), self.dtypes)
        if len(kernel) != spatial_axes(self.name, x):
            raise ShapeError(f"{self.name}: expected a kernel over {x}; got {kernel}")
        counts = window_counts(self.name, x, kernel, strides, padding, dilations, ceil)
        for n, *axis in zip(
            x.shape[2:],
            counts,
            kernel,
            strides,
            padding[::2],
            padding[1::2],
            dilations,
            strict=True,
        ):
            if 0 in _sizes(n, *axis)[0]:
                raise ShapeError(
                    f"{self.name}: expected no window that has only padding; got {x}, kernel "
                    f"{kernel}, strides {strides}, padding {padding}, dilations {dilations}"
                )
        return Type(dtype, (*x.shape[:2], *counts))

    def attribute_samples(self) -> Iterable[tuple[Shape, dict[str, Any]]]:
        """Yield (shape of x, attributes of the node) for each test case of a pooling op."""
        for shape, kernel, strides, padding, ceil in (
            ((2, 3, 6), (2,), (2,), (0, 0), False),
            ((1, 2, 7), (3,), (2,), (1, 1), True),
            ((2, 2, 5, 6), (3, 2), (2, 2), (1, 1, 0, 1), False),
            ((1, 2, 5, 5), (2, 3), (1, 2), (0, 0, 1, 1), True),
            ((1, 2, 3, 4, 3), (2, 2, 3), (1, 2, 1), (0, 0, 1, 0, 1, 1), False),
            ((0, 2, 4, 4), (2, 2), (2, 2), (0, 0, 0, 0), False),
        ):
            attrs: dict[str, Any] = {"kernel": kernel, "strides": strides, "padding": padding}
            yield shape, {**attrs, "dilations": (1,) * len(kernel), "ceil": ceil}


def _reaching(x: Array, counts: Shape, value: Any, attrs: dict[str, Any]) -> Array:
    """Pad the spatial axes of x with `value`, so that all windows are inside the array.

    With ceil_mode, the last window may end after the padding. In this case the padding at the end
    of the axis is made larger, up to the end of the last window.
    """
    margins: list[int] = []
    for n, count, kernel, stride, (before, after), dilation in zip(
        x.shape[2:],
        counts,
        attrs["kernel"],
        attrs["strides"],
        sides(attrs["padding"]),
        attrs["dilations"],
        strict=True,
    ):
        end = (count - 1) * stride + window_extent(kernel, dilation)
        margins += (before, builtins.max(after, end - n - before))
    return pad_spatial(x, tuple(margins), value)


class MaxPool(Pool):
    """Return the maximum of each window of x [N, C, spatial...].

    It is torch.nn.functional.max_pool1d, max_pool2d and max_pool3d.

    Parameters
    ----------
    x : node or array
        [N, C, spatial...] with one to three spatial axes.
    kernel : int or sequence of int
        The size of a window: one number for all spatial axes, or one per axis.
    stride : int or sequence of int, optional
        The distance between windows. The default is the kernel.
    padding : int, str, or sequence, default 0
        The padding on both sides of each axis: one number, one number per axis, or one pair
        (before, after) per axis. "valid" is no padding, and "same" makes ceil(n / stride) windows
        for n elements. Padding is never the maximum.
    dilation : int or sequence of int, default 1
        The distance between the elements of a window.
    ceil_mode : bool, default False
        If True, an axis gets one more window if its last window ends before the end of the padded
        axis. The added window must start before the end of x, and it ends after the padded axis.
        For example, 5 elements with kernel 2 give 3 windows instead of 2.
    return_indices : bool, default False
        If True, the indices of the maxima are returned too.

    Returns
    -------
    Node, or tuple of Node
        The maxima [N, C, windows...]. With return_indices, also the index of each maximum in the
        flattened spatial axes, int64. If several elements of a window are the maximum, the index
        is that of the first one. NaN counts as the maximum.

    Raises
    ------
    ShapeError
        x has another number of axes, a window does not fit, or a window contains only padding.

    Notes
    -----
    The gradient of a window goes to the element with the returned index.

    Examples
    --------
    ::

        >>> x = np.array([[[1.0, 5.0, 2.0, 3.0]]])
        >>> ngd.function(lambda x: ops.max_pool(x, 2))(x)
        array([[[5., 3.]]])
    """

    # The compiler sets the attribute channels_last: then x and the results are [N, spatial..., C].
    name = "max_pool"
    numerics = Numerics(can_keep_16_bits=True)

    @overload
    def __call__(
        self,
        x: Value,
        kernel: PerAxis,
        stride: PerAxis | None = None,
        padding: Padding = 0,
        dilation: PerAxis = 1,
        ceil_mode: bool = False,
        return_indices: Literal[False] = False,
    ) -> Node: ...

    @overload
    def __call__(
        self,
        x: Value,
        kernel: PerAxis,
        stride: PerAxis | None = None,
        padding: Padding = 0,
        dilation: PerAxis = 1,
        ceil_mode: bool = False,
        *,
        return_indices: Literal[True],
    ) -> tuple[Node, Node]: ...

    def __call__(
        self,
        x: Value,
        kernel: PerAxis,
        stride: PerAxis | None = None,
        padding: Padding = 0,
        dilation: PerAxis = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Node | tuple[Node, Node]:
        x = as_node(x, where=self.name)
        attrs = self.attributes(x.type, kernel, stride, padding, dilation, ceil_mode)
        values, indices = self.node((x,), attrs).results
        return (values, indices) if return_indices else values

    def infer(self, x: Type, *, channels_last: bool = False, **attrs: Any) -> tuple[Type, ...]:
        if channels_last:
            plain = Type(x.dtype, permute_shape(x.shape, channels_first_order(len(x.shape))))
            values = self.pooled_type(plain, **attrs)
            values = Type(x.dtype, permute_shape(values.shape, channels_last_order(len(x.shape))))
        else:
            values = self.pooled_type(x, **attrs)
        return values, Type(int64, values.shape)

    def move_transpose(self, node: Node, axes: Shape) -> tuple[Node, ...] | None:
        (x,) = node.inputs
        if axes != channels_first_order(x.ndim) or "channels_last" in node.attrs:
            return None
        moved_node = self.node(x.inputs, {**node.attrs, "channels_last": True})
        return tuple(transpose_cheaply(result, axes) for result in moved_node.results)

    def grad(self, node: Node, dy: tuple[Node | None, Node | None]) -> Sequence[Node | None]:
        (x,), (_, indices), (d_values, _) = node.inputs, node.results, dy
        if d_values is None:
            return (None,)
        axis = 1 if "channels_last" in node.attrs else 2
        spatial = slice(axis, axis + x.ndim - 2)
        flat = (
            *x.shape[:axis],
            int(np.prod(indices.shape[spatial])),
            *x.shape[axis + x.ndim - 2 :],
        )
        size = int(np.prod(x.shape[spatial]))
        dx = add_along_axis(reshape(d_values, flat), reshape(indices, flat), axis, size)
        return (reshape(dx, x.shape),)

    def reference(
        self, x: Array, *, channels_last: bool = False, **attrs: Any
    ) -> tuple[Array, ...]:
        if channels_last:
            results = self.reference(np.transpose(x, channels_first_order(x.ndim)), **attrs)
            return tuple(np.transpose(result, channels_last_order(x.ndim)) for result in results)
        shape = self.infer(Type(x.dtype, x.shape), **attrs)[0].shape
        numbers = np.broadcast_to(np.arange(np.prod(x.shape[2:])).reshape(x.shape[2:]), x.shape)
        data = _reaching(widen(x), shape[2:], 0, attrs)
        flat_indices = _reaching(numbers, shape[2:], -1, attrs)
        values, indices = np.zeros(shape, data.dtype), np.full(shape, -1)
        for offset in offsets(attrs["kernel"]):
            read = elements_at_offset(offset, shape[2:], attrs["strides"], attrs["dilations"])
            value, index = data[read], flat_indices[read]
            is_larger = (value > values) | (np.isnan(value) & ~np.isnan(values))
            is_better = (index >= 0) & ((indices < 0) | is_larger)
            values, indices = (
                np.where(is_better, value, values),
                np.where(is_better, index, indices),
            )
        return narrow(values, x.dtype), narrow(indices, int64)

    def samples(self) -> Iterable[Sample]:
        for shape, attrs in self.attribute_samples():
            yield Sample((Operand(shape, distinct=True),), attrs)
            channels_last = Operand(
                permute_shape(shape, channels_last_order(len(shape))), distinct=True
            )
            yield Sample((channels_last,), {**attrs, "channels_last": True})
        attrs = {"kernel": (2, 3), "strides": (2, 1), "padding": (1, 0, 2, 2), "dilations": (2, 2)}
        yield Sample((Operand((1, 2, 6, 5), distinct=True),), {**attrs, "ceil": False})


max_pool: Final[MaxPool] = register(MaxPool())


class AvgPool(Pool):
    """Return the mean of each window of x [N, C, spatial...].

    It is torch.nn.functional.avg_pool1d, avg_pool2d and avg_pool3d.

    Parameters
    ----------
    x : node or array
        [N, C, spatial...] with one to three spatial axes. Integers become floats.
    kernel : int or sequence of int
        The size of a window: one number for all spatial axes, or one per axis.
    stride : int or sequence of int, optional
        The distance between windows. The default is the kernel.
    padding : int, str, or sequence, default 0
        Zeros on both sides of each axis: one number, one number per axis, or one pair (before,
        after) per axis. "valid" is no padding, and "same" makes ceil(n / stride) windows for n
        elements.
    ceil_mode : bool, default False
        If True, an axis gets one more window if its last window ends before the end of the padded
        axis. The added window must start before the end of x, and it ends after the padded axis.
        For example, 5 elements with kernel 2 give 3 windows instead of 2.
    count_include_pad : bool, default True
        If True, the zeros of the padding count as elements of a window.

    Raises
    ------
    ShapeError
        x has another number of axes, a window does not fit, or a window contains only padding.

    Examples
    --------
    ::

        >>> x = np.array([[[1.0, 5.0, 2.0, 3.0]]])
        >>> ngd.function(lambda x: ops.avg_pool(x, 2))(x)
        array([[[3. , 2.5]]])
    """

    name = "avg_pool"
    numerics = Numerics(can_keep_16_bits=True)

    def __call__(
        self,
        x: Value,
        kernel: PerAxis,
        stride: PerAxis | None = None,
        padding: Padding = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> Node:
        x = as_node(x, where=self.name)
        x = cast(x, float_of(x.dtype))
        attrs = self.attributes(x.type, kernel, stride, padding, 1, ceil_mode)
        return self.node((x,), {**attrs, "include_pad": bool(count_include_pad)})

    def infer(self, x: Type, *, include_pad: bool, **attrs: Any) -> Type:
        return self.pooled_type(x, **attrs)

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (avg_pool_grad(dy, node.inputs[0].shape[2:], node.attrs),)

    def reference(self, x: Array, **attrs: Any) -> Array:
        shape = self.infer(Type(x.dtype, x.shape), **attrs).shape
        data = _reaching(widen(x), shape[2:], 0, attrs)
        total = np.zeros(shape, data.dtype)
        for offset in offsets(attrs["kernel"]):
            total += data[
                elements_at_offset(offset, shape[2:], attrs["strides"], attrs["dilations"])
            ]
        return narrow(total / divisors(x.shape[2:], shape[2:], attrs, total.dtype), x.dtype)

    def samples(self) -> Iterable[Sample]:
        for number, (shape, attrs) in enumerate(self.attribute_samples()):
            yield Sample((Operand(shape),), {**attrs, "include_pad": number % 2 == 0})
            yield Sample((Operand(shape),), {**attrs, "include_pad": number % 2 == 1})


def divisors(spatial: Shape, counts: Shape, attrs: dict[str, Any], dtype: Any) -> Array:
    """Return the numbers by which avg_pool divides the sums of windows, an array of shape `counts`.

    Each is the number of elements in a window, including padding if the attribute `include_pad` is
    True. `spatial` has the sizes of the spatial axes of x, and `counts` the numbers of windows.
    """
    sizes = [
        _sizes(n, *axis)[attrs["include_pad"]]
        for n, *axis in zip(
            spatial,
            counts,
            attrs["kernel"],
            attrs["strides"],
            attrs["padding"][::2],
            attrs["padding"][1::2],
            attrs["dilations"],
            strict=True,
        )
    ]
    return np.asarray(
        reduce(np.multiply.outer, [np.asarray(axis_sizes, dtype) for axis_sizes in sizes])
    )


avg_pool: Final[AvgPool] = register(AvgPool())


class AvgPoolGrad(Op):
    """The op that computes the gradient of avg_pool with respect to x.

    The gradient of a window's mean is divided by n, the divisor of this mean in avg_pool. The
    quotient is added to the gradient of each element of x in the window.
    """

    # Attributes of a node: spatial, the sizes of the spatial axes of x, and those of avg_pool.
    name = "avg_pool_grad"
    numerics = Numerics(can_keep_16_bits=True)
    public = False
    dtypes = FLOATS

    def __call__(self, dy: Node, spatial: Shape, attrs: dict[str, Any]) -> Node:
        return self.node((dy,), {**attrs, "spatial": spatial})

    def infer(self, dy: Type, *, spatial: Shape, **attrs: Any) -> Type:
        expect_dtype(self.name, (dy,), self.dtypes)
        x = Type(dy.dtype, (*dy.shape[:2], *spatial))
        if avg_pool.infer(x, **attrs) != dy:
            raise ShapeError(
                f"{self.name}: expected dy to have the type of avg_pool({x}); got "
                f"{describe_types(dy)}"
            )
        return x

    def lower(self, **attrs: Any) -> tuple[str, dict[str, Any]]:
        return self.name, {k: v for k, v in attrs.items() if k != "spatial"}

    def cost(self, operands: Sequence[Type], results: Sequence[Type], **attrs: Any) -> Cost:
        """Return the same cost as that of avg_pool."""
        return avg_pool.cost(results, operands, **attrs)

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (avg_pool.node((dy,), {k: v for k, v in node.attrs.items() if k != "spatial"}),)

    def reference(self, dy: Array, *, spatial: Shape, **attrs: Any) -> Array:
        counts = dy.shape[2:]
        share = widen(dy) / divisors(spatial, counts, attrs, widen(dy).dtype)
        x = np.zeros((*dy.shape[:2], *spatial), share.dtype)
        total = _reaching(x, counts, 0, attrs)
        for offset in offsets(attrs["kernel"]):
            total[elements_at_offset(offset, counts, attrs["strides"], attrs["dilations"])] += share
        before = attrs["padding"][::2]
        interior = spatial_index(slice(b, b + n) for n, b in zip(spatial, before, strict=True))
        return narrow(total[interior], dy.dtype)

    def samples(self) -> Iterable[Sample]:
        for sample in avg_pool.samples():
            x = Type(FLOATS[0], sample.operands[0].shape)
            dy = avg_pool.infer(x, **sample.attrs)
            yield Sample((Operand(dy.shape),), {**sample.attrs, "spatial": x.shape[2:]})


avg_pool_grad: Final[AvgPoolGrad] = register(AvgPoolGrad())


def _adaptive(where: str, x: Value, size: PerAxis | Sequence[int | None]) -> tuple[Node, Shape]:
    """Return x as a node, and the number of windows along each spatial axis.

    `size` is the user's argument. An entry None means one window per element along this axis.
    """
    node = as_node(x, where=where)
    axes = spatial_axes(where, node.type)
    requested = (size,) * axes if isinstance(size, (int, np.integer)) else tuple(size)
    if len(requested) == axes:
        requested = tuple(
            n if g is None else g for n, g in zip(node.shape[2:], requested, strict=True)
        )
    counts = per_axis(where, "an output size", requested, axes, 1)
    if 0 in node.shape[2:]:
        raise ShapeError(
            f"{where}: expected elements along each axis; got {node.type}. Leave empty batches out."
        )
    return node, counts


def _bounds(n: int, count: int) -> list[tuple[int, int]]:
    """Return (first index, last index + 1) of each of `count` windows over n elements.

    The windows are those of adaptive_avg_pool. Their sizes differ by at most one. The windows
    overlap if count does not divide n.
    """
    return [(i * n // count, -(-(i + 1) * n // count)) for i in range(count)]


@public
def adaptive_avg_pool(
    x: Value, output_size: PerAxis | Sequence[int | None]
) -> Node:  # long because each argument is described
    """Return the mean of each window, for a given number of windows per spatial axis.

    It is torch.nn.functional.adaptive_avg_pool1d, adaptive_avg_pool2d and adaptive_avg_pool3d.

    Parameters
    ----------
    x : node or array
        [N, C, spatial...] with one to three spatial axes. Integers become floats.
    output_size : int or sequence of int and None
        The number of windows: one number for all spatial axes, or one per axis. None keeps the size
        of an axis.

    Returns
    -------
    Node
        [N, C, *output_size].

    Raises
    ------
    ShapeError
        x has another number of axes, or a spatial axis has size 0.

    Notes
    -----
    Window i of `count` windows over n elements is [floor(i n / count), ceil((i + 1) n / count)).

    Examples
    --------
    ::

        >>> x = np.array([[[1.0, 5.0, 2.0, 3.0]]])
        >>> ngd.function(lambda x: ops.adaptive_avg_pool(x, 2))(x)
        array([[[3. , 2.5]]])
    """
    node, counts = _adaptive("adaptive_avg_pool", x, output_size)
    node = cast(node, float_of(node.dtype))
    if all(count == 1 for count in counts):
        return mean(node, tuple(range(2, node.ndim)), keepdims=True)
    if all(n % count == 0 for n, count in zip(node.shape[2:], counts, strict=True)):
        kernel = [n // count for n, count in zip(node.shape[2:], counts, strict=True)]
        return avg_pool(node, kernel)
    result = node
    if result.dtype.itemsize == 2:  # Round once, after the products of all axes.
        result = cast(result, np.dtype(np.float32))
    for axis, count in enumerate(counts, 2):
        n = result.shape[axis]
        weights = np.zeros((n, count), result.dtype)
        for i, (begin, end) in enumerate(_bounds(n, count)):
            weights[begin:end, i] = 1 / (end - begin)
        result = moveaxis(matmul(moveaxis(result, axis, -1), weights), -1, axis)
    return cast(result, node.dtype)


@public
def adaptive_max_pool(x: Value, output_size: PerAxis | Sequence[int | None]) -> Node:
    """Return the maximum of each window, for a given number of windows per spatial axis.

    It is torch.nn.functional.adaptive_max_pool1d, adaptive_max_pool2d and adaptive_max_pool3d. The
    windows are those of ops.adaptive_avg_pool.

    Parameters
    ----------
    x : node or array
        [N, C, spatial...] with one to three spatial axes.
    output_size : int or sequence of int and None
        The number of windows: one number for all spatial axes, or one per axis. None keeps the size
        of an axis.

    Returns
    -------
    Node
        [N, C, *output_size].

    Raises
    ------
    ShapeError
        x has another number of axes, or a spatial axis has size 0.

    Examples
    --------
    ::

        >>> x = np.array([[[1.0, 5.0, 2.0, 3.0]]])
        >>> ngd.function(lambda x: ops.adaptive_max_pool(x, 2))(x)
        array([[[5., 3.]]])
    """
    node, counts = _adaptive("adaptive_max_pool", x, output_size)
    if all(n % count == 0 for n, count in zip(node.shape[2:], counts, strict=True)):
        kernel = [n // count for n, count in zip(node.shape[2:], counts, strict=True)]
        return max_pool(node, kernel)
    for axis, count in enumerate(counts, 2):
        leading = (slice(None),) * axis
        parts = [node[(*leading, slice(a, b))] for a, b in _bounds(node.shape[axis], count)]
        node = concat([max(part, axis, keepdims=True) for part in parts], axis)
    return node
