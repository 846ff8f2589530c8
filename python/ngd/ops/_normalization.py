# SPDX-License-Identifier: Apache-2.0
"""Normalization ops. 16-bit floats are computed in float32 and rounded once.

The functions layer_norm, group_norm and batch_norm subtract the mean and divide by the standard
deviation, each over its own axes. All three use the op `standardize`. It can be expanded into other
ops, but a device may have one kernel for it.
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
from ._shape import broadcast_to, reshape, transpose_cheaply
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
"""Pairs of a shape and the axes to normalize over, for test samples."""


class Moments(Op):
    """Three results: the mean of x along some axes, the mean's rounding error, and the variance.

    The variance is divided by the number of elements (ddof=0 in NumPy). The first result is the
    rounded mean. The second one is the mean of x minus the first result, so their sum is closer to
    the exact mean. The results keep the reduced axes, with size 1. For 16-bit floats they are
    float32.
    """

    # Attribute of a node: axes.
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
        moved_node = self.node(node.inputs[0].inputs, attrs)
        return tuple(transpose_cheaply(result, axes) for result in moved_node.results)

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
    """Return (x - mean) / sqrt(variance + eps), the mean and the variance.

    Parameters
    ----------
    x : node or array
        Numbers of any shape, with at least one element along the axes. Integers become floats.
    axis : int or sequence of int, default -1
        The axis or axes over which mean and variance are computed. None means all axes.
    eps : float, default 1e-05
        A number >= 0 that is added to the variance.

    Returns
    -------
    tuple of Node
        The normalized x, the mean and the variance. Mean and variance keep the reduced axes, with
        size 1.

    Raises
    ------
    ShapeError
        There is no element along the axes.
    ValueError
        eps is negative.

    Notes
    -----
    The variance is divided by the number of elements (ddof=0 in NumPy). The computed mean has a
    rounding error, so the mean of x - mean is a small number instead of 0. The op subtracts this
    number from x - mean, and adds it to the mean that it returns.

    Examples
    --------
    ::

        >>> ngd.function(lambda x: ops.standardize(x, eps=0.0)[0])(np.array([1.0, 2.0, 3.0]))
        array([-1.2247,  0.    ,  1.2247])
    """

    # Attributes of a node: axes, eps.
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
        # Ioffe and Szegedy 2015 (arXiv:1502.03167), section 3. The formula uses the op's result
        # `value` for (x - mean) / sqrt(variance + eps). The derivative of the variance by x is
        # 2 (x - mean) / count.
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
    """x / sqrt(mean(x * x) + eps) along some axes, without a weight.

    Zhang and Sennrich 2019 (arXiv:1910.07467), equation 4.
    """

    # Attributes of a node: axes, eps.
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
    """Return y * weight + bias, cast to the dtype of `like`.

    A weight or bias that is not None is reshaped to `shape` first, so that it broadcasts to y.
    """
    if weight is not None:
        y = y * reshape(weight, shape)
    if bias is not None:
        y = y + reshape(bias, shape)
    return cast(y, like.dtype)


def _parameters(
    where: str, shape: Shape, dtype: DType, **values: Value | None
) -> tuple[Node | None, ...]:
    """Return the values (weights, biases, statistics) as nodes of a dtype.

    The keyword of a value is its name in the error message. For a value None, the entry is None.
    Any other value must have the shape `shape`, else a ShapeError is raised.
    """
    nodes = []
    for name, value in values.items():
        node = None if value is None else as_node(value, where=where)
        if node is not None and node.shape != shape:
            raise ShapeError(f"{where}: expected {name} of shape {shape}; got {node.type}")
        nodes.append(None if node is None else cast(node, dtype))
    return tuple(nodes)


def _operand(where: str, x: Value) -> tuple[Node, Node]:
    """Return x as a node of floats, and this node cast to the dtype that the op computes in."""
    node = as_node(x, where=where)
    node = cast(node, float_of(node.dtype))
    return node, cast(node, compute_dtype(node.dtype))


def _last(where: str, x: Node, normalized_shape: int | Sequence[int]) -> tuple[Shape, Shape]:
    """Return normalized_shape as a tuple, and the indices of the last axes of x.

    For example, x of shape (2, 3, 4) and normalized_shape (3, 4) give ((3, 4), (1, 2)).
    """
    extents = normalized_shape
    shape = (extents,) if isinstance(extents, (int, np.integer)) else tuple(extents)
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

    The result is (x - mean) / sqrt(variance + eps) * weight + bias. Mean and variance are computed
    over the last axes, and the variance is divided by the number of elements n, not by n - 1.

    Parameters
    ----------
    x : node or array
        An array whose last axes have the shape normalized_shape.
    normalized_shape : int or sequence of int
        The shape of the axes to normalize over.
    weight, bias : node or array, optional
        A factor and a summand of shape normalized_shape.
    eps : float, default 1e-05
        A number that is added to the variance.

    Raises
    ------
    ShapeError
        x does not end with normalized_shape, or weight or bias has another shape.

    Notes
    -----
    Ba, Kiros and Hinton 2016 (arXiv:1607.06450), equation 4.

    Examples
    --------
    ::

        >>> ngd.function(lambda x: ops.layer_norm(x, 3))(np.array([[1.0, 2.0, 3.0]]))
        array([[-1.2247,  0.    ,  1.2247]])
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
    """Divide by the root mean square over the last axes, as torch.nn.functional.rms_norm.

    The result is x / sqrt(mean(x ** 2) + eps) * weight.

    Parameters
    ----------
    x : node or array
        An array whose last axes have the shape normalized_shape.
    normalized_shape : int or sequence of int
        The shape of the axes to normalize over.
    weight : node or array, optional
        A factor of shape normalized_shape.
    eps : float, default 1e-05
        A number that is added to the mean square. In PyTorch the default depends on the dtype.

    Raises
    ------
    ShapeError
        x does not end with normalized_shape, or the weight has another shape.

    Notes
    -----
    Zhang and Sennrich 2019 (arXiv:1910.07467), equation 4.

    Examples
    --------
    ::

        >>> ngd.function(lambda x: ops.rms_norm(x, 2))(np.array([[3.0, 4.0]]))
        array([[0.8485, 1.1314]])
    """
    node, wide = _operand("rms_norm", x)
    shape, axes = _last("rms_norm", node, normalized_shape)
    (w,) = _parameters("rms_norm", shape, wide.dtype, weight=weight)
    return _affine(rms_standardize(wide, axes, eps), shape, w, None, node)


def _of_channels(where: str, x: Node) -> Shape:
    """Return the shape (C, 1, ..., 1), in which one value per channel broadcasts to [N, C, ...]."""
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
) -> Node:  # long because each argument is described
    """Normalize over groups of channels of [N, C, ...], as torch.nn.functional.group_norm.

    The channels are split into num_groups groups. Each group of each sample is normalized with the
    mean and variance of its channels at all positions. The result is
    (x - mean) / sqrt(variance + eps) * weight + bias.

    Parameters
    ----------
    x : node or array
        [N, C, ...]: N samples of C channels.
    num_groups : int
        The number of groups, which divides C.
    weight, bias : node or array, optional
        [C]: a factor and a summand for each channel.
    eps : float, default 1e-05
        A number that is added to the variance.

    Raises
    ------
    ShapeError
        x has fewer than two axes, num_groups does not divide C, or weight or bias is not [C].

    Notes
    -----
    Wu and He 2018 (arXiv:1803.08494), section 3.1.

    Examples
    --------
    ::

        >>> x = np.array([[1.0, 3.0, 10.0, 30.0]])
        >>> ngd.function(lambda x: ops.group_norm(x, 2))(x).round(3)
        array([[-1.,  1., -1.,  1.]])
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
    x : node or array
        [N, C, ...]: N samples of C channels.
    weight, bias : node or array, optional
        [C]: a factor and a summand for each channel.
    eps : float, default 1e-05
        A number that is added to the variance.

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
) -> tuple[Node, Node, Node]:  # long because each argument is described
    """Normalize each channel of [N, C, ...] with the statistics of the batch.

    The result is (x - mean) / sqrt(variance + eps) * weight + bias for each channel, as
    torch.nn.functional.batch_norm in training mode. Mean and variance are computed over all axes
    except the channels.

    Parameters
    ----------
    x : node or array
        [N, C, ...]: N samples of C channels.
    weight, bias : node or array, optional
        [C]: a factor and a summand for each channel.
    eps : float, default 1e-05
        A number that is added to the variance.

    Returns
    -------
    tuple of Node
        The normalized x, the mean [C] and the variance [C]. Mean and variance are float32 for
        16-bit floats.

    Raises
    ------
    ShapeError
        x has fewer than two axes, or weight or bias is not [C].

    Notes
    -----
    Ioffe and Szegedy 2015 (arXiv:1502.03167), algorithm 1. The variance is divided by the number n
    of elements per channel. PyTorch multiplies it by n / (n - 1) for its running variance.

    Examples
    --------
    ::

        >>> value, mean, variance = ngd.function(ops.batch_norm)(np.array([[1.0, 5.0], [3.0, 5.0]]))
        >>> mean, variance
        (array([2., 5.]), array([1., 0.]))
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
    """Normalize each channel of [N, C, ...] with given statistics.

    The result is (x - mean) / sqrt(variance + eps) * weight + bias for each channel, as
    torch.nn.functional.batch_norm in evaluation mode.

    Parameters
    ----------
    x : node or array
        [N, C, ...]: N samples of C channels.
    mean, variance : node or array
        [C]: the statistics of each channel.
    weight, bias : node or array, optional
        [C]: a factor and a summand for each channel.
    eps : float, default 1e-05
        A number that is added to the variance.

    Raises
    ------
    ShapeError
        x has fewer than two axes, or another array is not [C].

    Examples
    --------
    ::

        >>> mean, variance = np.array([1.0, 2.0]), np.array([1.0, 4.0])
        >>> ngd.function(ops.batch_norm_inference)(np.array([[2.0, 6.0]]), mean, variance)
        array([[1., 2.]])
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
