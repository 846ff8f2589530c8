# SPDX-License-Identifier: Apache-2.0
"""Convolutions and their gradients.

A convolution y = conv(x, w) is linear in the data x and in the weights w. Its adjoints are two ops
of their own, conv_data_grad(dy, w) and conv_weight_grad(x, dy), each linear in both operands too.
The gradient of each of the three ops applies the other two ops. Data is [N, C, spatial...], and
weights are [O, C / groups, kernel...], with 1 to 3 spatial axes: N samples, C channels of the data,
and O channels of y. 16-bit floats are accumulated in float32 and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Final

import numpy as np

from ..dtypes import FLOATS, Array, DType, Shape, Type
from ..errors import ShapeError
from ..graph.cost import Cost
from ..graph.node import Node, Op
from ..graph.registry import public, register
from ..graph.samples import Operand, Sample
from ..graph.traits import Fusion, Numerics
from ._activation import POSTS, adjoint_before_post, apply_post_operations
from ._elementwise import align
from ._operands import Value, describe_types, narrow, product_dtype, widen
from ._reductions import sum
from ._shape import reshape
from ._windows import (
    Padding,
    PerAxis,
    elements_at_offset,
    offsets,
    pad_spatial,
    paddings,
    per_axis,
    sides,
    spatial_axes,
    spatial_index,
    window_counts,
    window_extent,
)

__all__ = ["conv", "conv_transpose"]


def _expect(where: str, x: Type, w: Type, groups: int) -> None:
    """Raise a ShapeError unless x is data [N, C, ...] and w is weights [O, C / groups, ...]."""
    axes = spatial_axes(where, x)
    if not _is_weight(w, axes, groups) or w.shape[1] * groups != x.shape[1]:
        raise ShapeError(
            f"{where}: expected data [N, C, {axes} axes] and weights [O, C / {groups}, {axes} "
            f"axes], O a multiple of groups={groups}; got {describe_types(x, w)}. Transpose the "
            "weights, or change groups."
        )


def _is_weight(w: Type, axes: int, groups: int) -> bool:
    """Return True if w can be the weights of a convolution over `axes` spatial axes.

    w needs `axes` + 2 axes, and no spatial axis of size 0. `groups` must be a positive int that
    divides the size of the first axis of w.
    """
    is_valid_count = isinstance(groups, (int, np.integer)) and groups > 0
    return (
        is_valid_count
        and len(w.shape) == axes + 2
        and w.shape[0] % groups == 0
        and 0 not in w.shape[2:]
    )


def _split_channels(x: Array, groups: int, axis: int) -> Array:
    """Split the axis of the channels into groups, and join the axes after it.

    The result is [..., groups, channels / groups, product of the later axes].
    """
    before, channels = x.shape[:axis], x.shape[axis]
    return x.reshape(*before, groups, channels // groups, int(np.prod(x.shape[axis + 1 :])))


def _add_bias(where: str, y: Node, bias: Sequence[Node]) -> Node:
    """Return y plus a bias that has one element per channel.

    `bias` has one node, or is empty if the op has no bias. If it is empty, the result is y.
    """
    for addend in bias:
        if addend.shape != y.shape[1:2]:
            raise ShapeError(
                f"{where}: expected a bias of shape {y.shape[1:2]}; got {addend.type}. Reshape the "
                "bias."
            )
        y = y + reshape(addend, (*addend.shape, *(1,) * (y.ndim - 2)))
    return y


class ConvolutionOp(Op):
    """One of the three ops of a convolution: conv, conv_data_grad and conv_weight_grad.

    Attributes of a node: strides, padding, dilations, groups. If the operands are 16-bit floats,
    the compiler may set the attribute `dtype` to float32. Then the result is float32.
    """

    dtypes = FLOATS
    numerics = Numerics(is_contraction=True)
    result, weights = -1, 1
    """Two positions in the list (*operands, result) of this op.

    `result` is the position of the array that has the shape of the convolution's result. `weights`
    is the position of the array that has the shape of the convolution's weights. -1 is the last
    position. For example, the list of conv_data_grad is (dy, w, dx), so `result` is 0 and `weights`
    is 1: dy has the shape of y = conv(x, w).
    """
    shape_attr: ClassVar[str] = ""
    """The name of the attribute with the result's spatial extents.

    It is empty if the operands determine these extents.
    """

    def lower(self, **attrs: Any) -> tuple[str, dict[str, Any]]:
        return self.name, {k: v for k, v in attrs.items() if k not in (self.shape_attr, "dtype")}

    def cost(self, operands: Sequence[Type], results: Sequence[Type], **attrs: Any) -> Cost:
        """Return the cost: two operations per product of an element and a weight.

        Each element of y = conv(x, w) is a sum of C / groups * (size of the kernel) products, with
        C channels of x. The two gradients of conv have as many products as conv. A bias costs one
        more operation per element of the result of this op. So does each elementwise op in the
        attribute `post`, which the kernel applies to its result.
        """
        types = (*operands, *results)
        terms = math.prod(types[self.weights].shape[1:])
        extra = results[0].count * (len(operands) - 2 + len(attrs.get("post", ())))
        return Cost.touching(2 * types[self.result].count * terms + extra, types)

    def samples(self) -> Iterable[Sample]:
        """Yield the cases that tests run, one per row of the table below.

        A row is (data shape, weights shape, strides, ...). `sample` makes a case from it.
        """
        for x, w, strides, padding, dilations, groups in (
            ((2, 3, 5), (4, 3, 3), (1,), (1, 1), (1,), 1),
            ((1, 4, 9), (2, 2, 2), (3,), (0, 2), (2,), 2),
            ((2, 3, 5, 4), (2, 3, 3, 2), (1, 1), (0, 0, 0, 0), (1, 1), 1),
            ((1, 4, 7, 6), (6, 2, 3, 3), (2, 2), (1, 1, 0, 1), (1, 1), 2),
            ((2, 3, 5, 5), (3, 1, 3, 3), (1, 2), (2, 2, 1, 1), (2, 1), 3),
            ((2, 5, 3, 3), (4, 5, 1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1),
            ((1, 2, 3, 4, 5), (2, 2, 2, 1, 3), (1, 2, 1), (1, 0, 0, 0, 1, 1), (1, 1, 2), 1),
            ((0, 2, 4, 4), (3, 2, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1),
        ):
            attrs: dict[str, Any] = {"strides": strides, "padding": padding}
            attrs |= {"dilations": dilations, "groups": groups}
            result = conv.infer(Type(FLOATS[0], x), Type(FLOATS[0], w), **attrs)
            yield self.sample(x, w, result.shape, attrs)

    def sample(self, x: Shape, w: Shape, y: Shape, attrs: dict[str, Any]) -> Sample:
        """Return a case that tests run: random operands of this op, and its attributes.

        x, w and y are the shapes of data, weights and result of a convolution with `attrs`.
        """
        raise NotImplementedError(self.name)


class Conv(ConvolutionOp):
    """Convolve x with a weight, as torch.nn.functional.conv1d, conv2d and conv3d.

    Parameters
    ----------
    x
        Floats [N, C, spatial...]: N samples of C channels, with 1 to 3 spatial axes.
    weight
        [O, C / groups, kernel...], for O channels of the result.
    bias
        [O]: a summand for each channel of the result, or None.
    stride
        The distance between windows: an int for all spatial axes, or one per axis.
    padding
        The number of zeros before and after each spatial axis: an int, one per axis, or a pair
        (before, after) per axis. "valid" adds none. With "same", ceil(n / stride) windows
        fit along an axis of n elements. If this needs an odd number of zeros, there is one more
        after the axis than before it.
    dilation
        The distance between the elements of a window: an int, or one per axis.
    groups
        The number of groups of channels. It divides C and O.

    Returns
    -------
    Node
        [N, O, ...], with one element per window.

    Raises
    ------
    ShapeError
        The shapes do not fit, or a window does not fit into the padded data.

    Notes
    -----
    As in PyTorch, the kernel is not reversed (cross-correlation). 16-bit floats are accumulated in
    float32 and rounded once.

    Examples
    --------
    ::

        >>> images, weight = np.ones((8, 3, 32, 32)), np.ones((16, 3, 3, 3))
        >>> ngd.function(ops.conv)(images, weight, padding=1).shape
        (8, 16, 32, 32)
    """

    # Passes may add a third operand, the bias, and the attribute `post`, the names of the
    # post-operations.
    name = "conv"
    # relu is excluded: a convolution kernel would apply it in another pass over the result, as a
    # separate elementwise kernel does.
    fusion = Fusion(post_operations=tuple(name for name in POSTS if name != "relu"))

    def __call__(
        self,
        x: Value,
        weight: Value,
        bias: Value | None = None,
        stride: PerAxis = 1,
        padding: Padding = 0,
        dilation: PerAxis = 1,
        groups: int = 1,
    ) -> Node:
        x, weight, *rest = align(self.name, x, weight, *([] if bias is None else [bias]))
        _expect(self.name, x.type, weight.type, groups)
        axes, kernel = x.ndim - 2, weight.shape[2:]
        strides = per_axis(self.name, "stride", stride, axes, 1)
        dilations = per_axis(self.name, "dilation", dilation, axes, 1)
        zeros = paddings(self.name, padding, x.shape[2:], kernel, strides, dilations)
        attrs = {
            "strides": strides,
            "padding": zeros,
            "dilations": dilations,
            "groups": int(groups),
        }
        return _add_bias(self.name, self.node((x, weight), attrs), rest)

    def infer(
        self,
        x: Type,
        w: Type,
        *bias: Type,
        strides: Shape,
        padding: Shape,
        dilations: Shape,
        groups: int,
        post: tuple[str, ...] = (),
        dtype: DType | None = None,
    ) -> Type:
        dtype = product_dtype(self.name, (x, w), bias, self.dtypes, dtype)
        _expect(self.name, x, w, groups)
        if bias and bias[0].shape != w.shape[:1]:
            raise ShapeError(
                f"conv: expected a bias of shape {w.shape[:1]}; got {bias[0]}. Reshape the bias."
            )
        counts = window_counts(self.name, x, w.shape[2:], strides, padding, dilations)
        return Type(dtype, (x.shape[0], w.shape[0], *counts))

    def with_bias(self, node: Node, bias: Node) -> Node | None:
        return with_channel_bias(node, bias, 1)

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        x, w, *bias = node.inputs
        dy, _ = adjoint_before_post(node, dy)
        return (
            conv_data_grad(dy, w, x, node.attrs),
            conv_weight_grad(x, dy, w, node.attrs),
            *(sum(dy, (0, *range(2, dy.ndim))) for _ in bias),
        )

    def reference(self, x: Array, w: Array, *bias: Array, **attrs: Any) -> Array:
        shape = self.infer(Type(x.dtype, x.shape), Type(w.dtype, w.shape), **attrs).shape
        strides, dilations, groups = attrs["strides"], attrs["dilations"], attrs["groups"]
        data, weights = pad_spatial(widen(x), attrs["padding"]), widen(w)
        total = np.zeros(shape, data.dtype)
        for offset in offsets(w.shape[2:]):
            read = data[elements_at_offset(offset, shape[2:], strides, dilations)]
            taps = weights[spatial_index(offset)]
            product = np.matmul(_split_channels(taps, groups, 0), _split_channels(read, groups, 1))
            total += product.reshape(shape)
        for addend in bias:
            total += widen(addend).reshape(-1, *(1,) * (len(shape) - 2))
        total = apply_post_operations(total, attrs.get("post", ()))
        return narrow(total, attrs.get("dtype") or x.dtype)

    def sample(self, x: Shape, w: Shape, y: Shape, attrs: dict[str, Any]) -> Sample:
        return Sample((Operand(x, -1, 1), Operand(w, -1, 1)), attrs)


conv: Final[Conv] = register(Conv())


def with_channel_bias(node: Node, bias: Node, channels: int) -> Node | None:
    """Return a copy of a convolution that also adds a bias, or None if its kernel cannot add it.

    The kernel can add a bias that has one element per channel. It cannot if the convolution already
    has a bias, or has the attribute `post`: elementwise ops that the kernel applies to its result.
    `channels` is the axis of the channels in the result.
    """
    padded_shape = (*(1,) * (node.ndim - bias.ndim), *bias.shape)
    is_per_channel = all(
        n == 1 for axis, n in enumerate(padded_shape) if axis != channels % node.ndim
    )
    if len(node.inputs) > 2 or node.attrs.get("post") or not is_per_channel:
        return None
    if padded_shape[channels] != node.shape[channels]:
        return None
    return node.op.node((*node.inputs, reshape(bias, (padded_shape[channels],))), node.attrs)


class ConvDataGrad(ConvolutionOp):
    """The op that computes dx, the adjoint of a convolution's data x, from dy and the weights.

    ops.conv_transpose uses this op too.

    Attributes of a node: `spatial` (the spatial extents of the data), and the attributes of conv.
    """

    name = "conv_data_grad"
    result = 0
    public = False
    shape_attr = "spatial"

    def __call__(self, dy: Node, w: Node, x: Node, attrs: dict[str, Any]) -> Node:
        return self.node((dy, w), {**_common_attrs(attrs), "spatial": x.shape[2:]})

    def infer(
        self,
        dy: Type,
        w: Type,
        *,
        spatial: Shape,
        groups: int,
        dtype: DType | None = None,
        **attrs: Any,
    ) -> Type:
        dtype = product_dtype(self.name, (dy, w), (), self.dtypes, dtype)
        channels = w.shape[1] * groups if len(w.shape) > 1 else 0
        x = Type(dtype, (*dy.shape[:1], channels, *spatial))
        if conv.infer(Type(dy.dtype, x.shape), w, groups=groups, **attrs) != dy:
            raise ShapeError(
                f"{self.name}: expected dy to have the type of a convolution of {x}; got "
                f"{describe_types(dy, w)}, {attrs}"
            )
        return x

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        g, w = node.inputs
        return conv.node((dy, w), _common_attrs(node.attrs)), conv_weight_grad(dy, g, w, node.attrs)

    def reference(self, dy: Array, w: Array, **attrs: Any) -> Array:
        types = Type(dy.dtype, dy.shape), Type(w.dtype, w.shape)
        shape = self.infer(*types, **attrs).shape
        strides, dilations, groups = attrs["strides"], attrs["dilations"], attrs["groups"]
        margins = sides(attrs["padding"])
        padded_extents = [
            n + before + after for n, (before, after) in zip(shape[2:], margins, strict=True)
        ]
        adjoint, weights = widen(dy), widen(w)
        total = np.zeros((*shape[:2], *padded_extents), adjoint.dtype)
        for offset in offsets(w.shape[2:]):
            taps = _split_channels(weights[spatial_index(offset)], groups, 0)
            product = np.matmul(np.swapaxes(taps, 1, 2), _split_channels(adjoint, groups, 1))
            read = elements_at_offset(offset, dy.shape[2:], strides, dilations)
            total[read] += product.reshape(*shape[:2], *dy.shape[2:])
        unpadded = [slice(b, b + n) for n, (b, _) in zip(shape[2:], margins, strict=True)]
        return narrow(total[spatial_index(unpadded)], attrs.get("dtype") or dy.dtype)

    def sample(self, x: Shape, w: Shape, y: Shape, attrs: dict[str, Any]) -> Sample:
        return Sample((Operand(y, -1, 1), Operand(w, -1, 1)), {**attrs, "spatial": x[2:]})


conv_data_grad: Final[ConvDataGrad] = register(ConvDataGrad())


class ConvWeightGrad(ConvolutionOp):
    """The op that computes dw, the adjoint of a convolution's weights w, from the data and dy.

    Attributes of a node: `kernel` (the spatial extents of the weights), and the attributes of conv.
    """

    name = "conv_weight_grad"
    result, weights = 1, 2
    public = False
    shape_attr = "kernel"

    def __call__(self, x: Node, dy: Node, w: Node, attrs: dict[str, Any]) -> Node:
        return self.node((x, dy), {**_common_attrs(attrs), "kernel": w.shape[2:]})

    def infer(
        self,
        x: Type,
        dy: Type,
        *,
        kernel: Shape,
        groups: int,
        dtype: DType | None = None,
        **attrs: Any,
    ) -> Type:
        dtype = product_dtype(self.name, (x, dy), (), self.dtypes, dtype)
        spatial_axes(self.name, x)
        w = Type(dtype, (*dy.shape[1:2], x.shape[1] // max(groups, 1), *kernel))
        if conv.infer(x, Type(x.dtype, w.shape), groups=groups, **attrs) != dy:
            raise ShapeError(
                f"{self.name}: expected dy to have the type of a convolution by {w}; got "
                f"{describe_types(x, dy)}, {attrs}"
            )
        return w

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        x, g = node.inputs
        return conv_data_grad(g, dy, x, node.attrs), conv.node((x, dy), _common_attrs(node.attrs))

    def reference(self, x: Array, dy: Array, **attrs: Any) -> Array:
        shape = self.infer(Type(x.dtype, x.shape), Type(dy.dtype, dy.shape), **attrs).shape
        strides, dilations, groups = attrs["strides"], attrs["dilations"], attrs["groups"]
        data, adjoint = (
            pad_spatial(widen(x), attrs["padding"]),
            _split_channels(widen(dy), groups, 1),
        )
        total = np.zeros(shape, data.dtype)
        for offset in offsets(shape[2:]):
            read = _split_channels(
                data[elements_at_offset(offset, dy.shape[2:], strides, dilations)], groups, 1
            )
            product = np.sum(np.matmul(adjoint, np.swapaxes(read, 2, 3)), axis=0)
            total[spatial_index(offset)] = product.reshape(shape[:2])
        return narrow(total, attrs.get("dtype") or x.dtype)

    def sample(self, x: Shape, w: Shape, y: Shape, attrs: dict[str, Any]) -> Sample:
        return Sample((Operand(x, -1, 1), Operand(y, -1, 1)), {**attrs, "kernel": w[2:]})


conv_weight_grad: Final[ConvWeightGrad] = register(ConvWeightGrad())


def _common_attrs(attrs: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes that the convolution and its two gradients have in common."""
    return {name: attrs[name] for name in ("strides", "padding", "dilations", "groups")}


@public
def conv_transpose(
    x: Value,
    weight: Value,
    bias: Value | None = None,
    stride: PerAxis = 1,
    padding: Padding = 0,
    output_padding: PerAxis = 0,
    groups: int = 1,
    dilation: PerAxis = 1,
) -> Node:  # long because each argument is described
    """Apply a transposed convolution, as torch.nn.functional.conv_transpose1d, 2d and 3d.

    It is the adjoint, with respect to the data, of a convolution with the same weight.

    Parameters
    ----------
    x
        Floats [N, C, spatial...]: N samples of C channels, with 1 to 3 spatial axes.
    weight
        [C, O / groups, kernel...], for O channels of the result.
    bias
        [O]: a summand for each channel of the result, or None.
    stride
        The stride of the convolution whose adjoint this is: an int for all spatial axes, or one
        per axis.
    padding
        The padding of the convolution whose adjoint this is. It makes the result smaller: an int,
        one per axis, or a pair (before, after) per axis.
    output_padding
        The number of elements to add after each spatial axis of the result, less than the stride:
        an int, or one per axis.
    groups
        The number of groups of channels. It divides C and O.
    dilation
        The distance between the elements of a window: an int, or one per axis.

    Returns
    -------
    Node
        [N, O, ...]. The extent of a spatial axis is (n - 1) * stride - before - after + (k - 1) *
        dilation + 1 + output_padding. n is the extent of the axis of x, (before, after) its
        padding, and k the extent of the kernel.

    Raises
    ------
    ShapeError
        The shapes do not fit, `output_padding` is too large, or the result would be empty.
    ValueError
        The padding is "same".

    Examples
    --------
    ::

        >>> images, weight = np.ones((8, 3, 16, 16)), np.ones((3, 16, 2, 2))
        >>> ngd.function(ops.conv_transpose)(images, weight, stride=2).shape
        (8, 16, 32, 32)
    """
    where = "conv_transpose"
    x, weight, *rest = align(where, x, weight, *([] if bias is None else [bias]))
    axes, kernel = spatial_axes(where, x.type), weight.shape[2:]
    if not _is_weight(weight.type, axes, groups) or weight.shape[0] != x.shape[1]:
        raise ShapeError(
            f"{where}: expected data [N, C, {axes} axes] and weights [C, O / {groups}, {axes} "
            f"axes], C a multiple of groups={groups}; got {describe_types(x.type, weight.type)}. "
            "Transpose the weights, or change groups."
        )
    if padding == "same":
        raise ValueError(
            f'{where}: expected numbers for padding; got "same". Give the padding of each axis.'
        )
    strides = per_axis(where, "stride", stride, axes, 1)
    dilations = per_axis(where, "dilation", dilation, axes, 1)
    extra = per_axis(where, "output_padding", output_padding, axes, 0)
    if any(m >= s for m, s in zip(extra, strides, strict=True)):
        raise ShapeError(
            f"{where}: expected output_padding below the stride {strides}; got {extra}"
        )
    zeros = paddings(where, padding, x.shape[2:], kernel, strides, dilations)
    spatial = tuple(
        (n - 1) * stride - before - after + window_extent(k, dilation) + m
        for n, stride, (before, after), k, dilation, m in zip(
            x.shape[2:], strides, sides(zeros), kernel, dilations, extra, strict=True
        )
    )
    if any(n < 1 for n in (*x.shape[2:], *spatial)):
        raise ShapeError(
            f"{where}: expected a result with elements; got {spatial} of {x.type}. Use less "
            "padding, or a larger kernel."
        )
    attrs = {"strides": strides, "padding": zeros, "dilations": dilations, "groups": int(groups)}
    return _add_bias(where, conv_data_grad.node((x, weight), {**attrs, "spatial": spatial}), rest)
