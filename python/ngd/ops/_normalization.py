# SPDX-License-Identifier: Apache-2.0
"""Normalizations. Two-byte floats are computed in float32 and rounded once.

layer_norm, group_norm and batch_norm take the mean off and divide by the root of the variance, each
over axes of its own: `standardize` does that, and all three are made of it. They are composites; a
kernel of the same name may come in their place.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from ..dtypes import FLOATS, Array, DType, Shape, Type
from ..errors import ShapeError
from ..graph.node import Node, Op
from ..graph.registry import public, register
from ..graph.samples import Operand, Sample
from ..graph.traits import Numerics
from ._arithmetic import square
from ._casting import cast
from ._operands import (
    Axis,
    Value,
    as_node,
    compute_dtype,
    expect_dtype,
    float_of,
    local_number,
    narrow,
    normalize_axes,
    widen,
)
from ._reductions import extent, mean, reduced_shape
from ._shape import broadcast_to, moved, reshape
from ._transcendental import rsqrt

__all__ = [
    "batch_norm",
    "batch_norm_inference",
    "group_norm",
    "instance_norm",
    "layer_norm",
    "rms_norm",
    "standardize",
]


def _expect_some(where: str, x: Type, axes: Shape) -> None:
    expect_dtype(where, (x,), FLOATS)
    if extent(x.shape, axes) == 0:
        raise ShapeError(f"{where}: expected at least one element along {axes}; got {x}")


def _mean(x: Array, axes: Shape) -> Array:
    return np.asarray(np.mean(x, axis=axes, keepdims=True))


_CASES: Final[tuple[tuple[Shape, Shape], ...]] = (
    ((5,), (0,)),
    ((3, 4), (1,)),
    ((2, 3, 4), (1, 2)),
    ((4, 3, 5), (0, 2)),
    ((0, 3), (1,)),
)
"""Shapes, and axes to normalize over."""


class Moments(Op):
    """The mean, what its rounding left, and the variance, along axes that stay; attrs: axes.

    The variance is that of all elements (NumPy's ddof=0). The mean of all elements is nearer to the
    sum of the first two results than to the first. Of two-byte floats all three are float32.
    """

    name = "moments"
    batching = "axes"
    numerics = Numerics(has_float32_results=True)
    public = False
    dtypes = FLOATS
    smooth = False

    def infer(self, x: Type, *, axes: Shape) -> tuple[Type, ...]:
        _expect_some(self.name, x, axes)
        return (Type(compute_dtype(x.dtype), reduced_shape(x.shape, axes, True)),) * 3

    def expand(self, x: Node, *, axes: Shape) -> tuple[Node, ...]:
        first = mean(x, axes, keepdims=True)
        distance = x - first
        rest = mean(distance, axes, keepdims=True)
        return first, rest, mean(square(distance - rest), axes, keepdims=True)

    def move_transpose(self, node: Node, axes: Shape) -> tuple[Node, ...]:
        attrs = {"axes": tuple(sorted(axes[axis] for axis in node.attrs["axes"]))}
        made = self.node(node.inputs[0].inputs, attrs)
        return tuple(moved(result, axes) for result in made.results)

    def reference(self, x: Array, *, axes: Shape) -> tuple[Array, ...]:
        wide = widen(x)
        first = _mean(wide, axes)
        rest = _mean(wide - first, axes)
        centered = wide - first - rest
        variance = _mean(centered * centered, axes)
        return first, rest, variance

    def samples(self) -> Iterable[Sample]:
        for shape, axes in _CASES:
            yield Sample((Operand(shape),), {"axes": axes})


moments: Final[Moments] = register(Moments())


class Standardize(Op):
    """standardize(x, axis, eps): (x - mean) / sqrt(variance + eps), the mean, and the variance.

    The variance is that of all elements (NumPy's ddof=0); both keep their axes, with extent 1. The
    mean is taken off twice, because the first one is rounded. Attrs: axes, eps.
    """

    name = "standardize"
    batching = "axes"
    dtypes = FLOATS
    numerics = Numerics(needs_float32_gradient=True)

    def __call__(self, x: Value, axis: Axis = -1, eps: float = 1e-5) -> tuple[Node, Node, Node]:
        x = as_node(x, where=self.name)
        x = cast(x, float_of(x.dtype))
        axes = normalize_axes(self.name, axis, x.type)
        value, center, variance = self.node((x,), {"axes": axes, "eps": float(eps)}).results
        return value, center, variance

    def infer(self, x: Type, *, axes: Shape, eps: float) -> tuple[Type, ...]:
        _expect_some(self.name, x, axes)
        if not eps >= 0:
            raise ValueError(f"{self.name}: expected eps >= 0; got {eps}")
        statistic = Type(x.dtype, reduced_shape(x.shape, axes, True))
        return x, statistic, statistic

    def expand(self, x: Node, *, axes: Shape, eps: float) -> tuple[Node, ...]:
        first, rest, variance = moments.node((x,), {"axes": axes}).results
        return (x - first - rest) * rsqrt(variance + eps), first + rest, variance

    def grad(self, node: Node, dy: tuple[Node | None, ...]) -> Sequence[Node | None]:
        # Ioffe and Szegedy 2015 (arXiv:1502.03167), section 3, with the value in place of
        # (x - mean) / sqrt(variance + eps); d variance / d x is 2 (x - mean) / count.
        (x,), (value, _, variance) = node.inputs, node.results
        axes, eps = node.attrs["axes"], node.attrs["eps"]
        to_value, to_mean, to_variance = dy
        count = extent(x.shape, axes)
        parts: list[Node] = []
        if to_value is not None:
            level = mean(to_value, axes, keepdims=True)
            slope = mean(to_value * value, axes, keepdims=True)
            parts.append((to_value - level - value * slope) * rsqrt(variance + eps))
        if to_mean is not None:
            parts.append(to_mean * local_number(1 / count, to_mean))
        if to_variance is not None:
            distance = x - mean(x, axes, keepdims=True)
            centered = distance - mean(distance, axes, keepdims=True)
            parts.append(centered * (to_variance * local_number(2 / count, to_variance)))
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return (broadcast_to(total, x.shape),)

    def reference(self, x: Array, *, axes: Shape, eps: float) -> tuple[Array, ...]:
        wide = widen(x)
        first = _mean(wide, axes)
        rest = _mean(wide - first, axes)
        centered = wide - first - rest
        variance = _mean(centered * centered, axes)
        value = centered / np.sqrt(variance + wide.dtype.type(eps))
        return narrow(value, x.dtype), narrow(first + rest, x.dtype), narrow(variance, x.dtype)

    def samples(self) -> Iterable[Sample]:
        for shape, axes in _CASES:
            yield Sample((Operand(shape),), {"axes": axes, "eps": 1e-5})
        yield Sample((Operand((3, 7), 4, 6),), {"axes": (1,), "eps": 0.1})


standardize: Final[Standardize] = register(Standardize())


class RmsStandardize(Op):
    """x / sqrt(mean(x * x) + eps) over the axes, without a weight; attrs: axes, eps.

    Zhang and Sennrich 2019 (arXiv:1910.07467), equation 4.
    """

    name = "rms_standardize"
    batching = "axes"
    public = False
    dtypes = FLOATS
    numerics = Numerics(needs_float32_gradient=True)

    def __call__(self, x: Node, axes: Shape, eps: float) -> Node:
        return self.node((x,), {"axes": axes, "eps": float(eps)})

    def infer(self, x: Type, *, axes: Shape, eps: float) -> Type:
        _expect_some(self.name, x, axes)
        return x

    def expand(self, x: Node, *, axes: Shape, eps: float) -> Node:
        return x * rsqrt(mean(square(x), axes, keepdims=True) + eps)

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        (x,) = node.inputs
        axes, eps = node.attrs["axes"], node.attrs["eps"]
        factor = rsqrt(mean(square(x), axes, keepdims=True) + eps)
        slope = mean(dy * node, axes, keepdims=True)
        return ((dy - node * slope) * factor,)

    def reference(self, x: Array, *, axes: Shape, eps: float) -> Array:
        wide = widen(x)
        root = np.sqrt(_mean(wide * wide, axes) + wide.dtype.type(eps))
        return narrow(wide / root, x.dtype)

    def samples(self) -> Iterable[Sample]:
        for shape, axes in _CASES:
            yield Sample((Operand(shape),), {"axes": axes, "eps": 1e-5})


rms_standardize: Final[RmsStandardize] = register(RmsStandardize())


def _affine(y: Node, shape: Shape, weight: Node | None, bias: Node | None, like: Node) -> Node:
    """Multiply with a weight and add a bias, of this shape among y's axes; round as `like` is."""
    if weight is not None:
        y = y * reshape(weight, shape)
    if bias is not None:
        y = y + reshape(bias, shape)
    return cast(y, like.dtype)


def _parameters(
    where: str, shape: Shape, dtype: DType, **given: Value | None
) -> tuple[Node | None, ...]:
    """Make nodes of weights, biases and statistics, of this shape, in this dtype."""
    nodes = []
    for what, value in given.items():
        node = None if value is None else as_node(value, where=where)
        if node is not None and node.shape != shape:
            raise ShapeError(f"{where}: expected {what} of shape {shape}; got {node.type}")
        nodes.append(None if node is None else cast(node, dtype))
    return tuple(nodes)


def _operand(where: str, x: Value) -> tuple[Node, Node]:
    """Make floats of an operand: as given, and in what everything is computed in."""
    node = as_node(x, where=where)
    node = cast(node, float_of(node.dtype))
    return node, cast(node, compute_dtype(node.dtype))


def _last(where: str, x: Node, normalized_shape: int | Sequence[int]) -> tuple[Shape, Shape]:
    """Read the axes to normalize over: the last ones, of these extents."""
    given = normalized_shape
    shape = (given,) if isinstance(given, (int, np.integer)) else tuple(given)
    if not shape or x.shape[-len(shape) :] != shape:
        raise ShapeError(
            f"{where}: expected last axes of shape {shape}, as normalized_shape says; got "
            f"{x.type}. Set normalized_shape to the last axes of x."
        )
    return shape, tuple(range(x.ndim - len(shape), x.ndim))


@public
def layer_norm(
    x: Value,
    normalized_shape: int | Sequence[int],
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
) -> Node:
    """Normalize over the last axes, as torch.nn.functional.layer_norm.

    (x - mean) / sqrt(variance + eps) * weight + bias; the variance is divided by n, not by n - 1.
    Ba, Kiros and Hinton 2016 (arXiv:1607.06450), equation 4.
    """
    node, wide = _operand("layer_norm", x)
    shape, axes = _last("layer_norm", node, normalized_shape)
    w, b = _parameters("layer_norm", shape, wide.dtype, weight=weight, bias=bias)
    return _affine(standardize(wide, axes, eps)[0], shape, w, b, node)


@public
def rms_norm(
    x: Value,
    normalized_shape: int | Sequence[int],
    weight: Value | None = None,
    eps: float = 1e-5,
) -> Node:
    """Divide by the root of the mean square over the last axes, as torch.nn.functional.rms_norm.

    x / sqrt(mean(x ** 2) + eps) * weight: Zhang and Sennrich 2019 (arXiv:1910.07467), equation 4.
    PyTorch's eps is by default the dtype's; here it is 1e-5.
    """
    node, wide = _operand("rms_norm", x)
    shape, axes = _last("rms_norm", node, normalized_shape)
    (w,) = _parameters("rms_norm", shape, wide.dtype, weight=weight)
    return _affine(rms_standardize(wide, axes, eps), shape, w, None, node)


def _of_channels(where: str, x: Node) -> Shape:
    """Place a number a channel among the axes of [N, C, ...]."""
    if x.ndim < 2:
        raise ShapeError(f"{where}: expected [N, C, ...]; got {x.type}. Reshape it.")
    return (x.shape[1], *(1,) * (x.ndim - 2))


@public
def group_norm(
    x: Value,
    num_groups: int,
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
) -> Node:
    """Normalize over groups of channels of [N, C, ...], as torch.nn.functional.group_norm.

    As layer_norm, with the mean and the variance of a group's channels at all places of a sample;
    weight and bias are [C].
    Wu and He 2018 (arXiv:1803.08494), section 3.1.
    """
    node, wide = _operand("group_norm", x)
    shape = _of_channels("group_norm", node)
    if num_groups < 1 or node.shape[1] % num_groups:
        raise ShapeError(
            f"group_norm: expected a number of groups that divides the channels of {node.type}; "
            f"got {num_groups}. Choose a divisor of the channels."
        )
    w, b = _parameters("group_norm", shape[:1], wide.dtype, weight=weight, bias=bias)
    groups = reshape(wide, (node.shape[0], num_groups, math.prod(node.shape[1:]) // num_groups))
    value, _, _ = standardize(groups, 2, eps)
    return _affine(reshape(value, node.shape), shape, w, b, node)


@public
def instance_norm(
    x: Value, weight: Value | None = None, bias: Value | None = None, eps: float = 1e-5
) -> Node:
    """Normalize each channel of each sample, as torch.nn.functional.instance_norm.

    Parameters
    ----------
    x
        [N, C, ...].
    weight, bias
        [C]: a factor and a summand for each channel.
    eps
        Added to the variance.

    Examples
    --------
    ::

        >>> ngd.function(lambda x: ops.instance_norm(x))(np.array([[[1.0, 3.0]]])).round(3)
        array([[[-1.,  1.]]])
    """
    node = as_node(x, where="instance_norm")
    channels = _of_channels("instance_norm", node)[0]
    return group_norm(node, channels, weight, bias, eps)


@public
def batch_norm(
    x: Value,
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
) -> tuple[Node, Node, Node]:
    """Normalize over all axes of [N, C, ...] but the channels': value, mean, variance.

    (x - mean) / sqrt(variance + eps) * weight + bias, a channel each, as
    torch.nn.functional.batch_norm in training. Mean and variance are [C], float32 for two-byte
    floats; the variance is that of the batch (PyTorch's running one is multiplied with n / (n - 1),
    of n elements a channel).
    Ioffe and Szegedy 2015 (arXiv:1502.03167), algorithm 1.
    """
    node, wide = _operand("batch_norm", x)
    shape = _of_channels("batch_norm", node)
    w, b = _parameters("batch_norm", shape[:1], wide.dtype, weight=weight, bias=bias)
    value, center, variance = standardize(wide, (0, *range(2, node.ndim)), eps)
    value = _affine(value, shape, w, b, node)
    return value, reshape(center, shape[:1]), reshape(variance, shape[:1])


@public
def batch_norm_inference(
    x: Value,
    mean: Value,
    variance: Value,
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
) -> Node:
    """Normalize by given statistics a channel, as torch.nn.functional.batch_norm in evaluation.

    (x - mean) / sqrt(variance + eps) * weight + bias; mean, variance, weight and bias are [C].
    """
    where = "batch_norm_inference"
    node, wide = _operand(where, x)
    shape = _of_channels(where, node)
    w, b = _parameters(where, shape[:1], wide.dtype, weight=weight, bias=bias)
    center, spread = _parameters(where, shape[:1], wide.dtype, mean=mean, variance=variance)
    if center is None or spread is None:
        raise TypeError(
            f"{where}: expected a mean and a variance; got None. Give both, or call ops.batch_norm."
        )
    factor = rsqrt(reshape(spread, shape) + eps)
    return _affine((wide - reshape(center, shape)) * factor, shape, w, b, node)
