# SPDX-License-Identifier: Apache-2.0
"""Activation functions of torch.nn.functional that are composed of other ops."""

from __future__ import annotations

from typing import Final

from ..errors import ShapeError
from ..graph.node import Node
from ..graph.registry import public
from ._activation import sigmoid, softplus
from ._arithmetic import clip, minimum
from ._casting import cast
from ._compare import where
from ._composite import as_compute_dtype
from ._concatenation import split
from ._creation import one_hot
from ._operands import Value, as_axis, as_node, describe_types
from ._random_draws import gumbel
from ._rearrangement import moveaxis
from ._reductions import argmax
from ._shape import reshape, stop_gradient
from ._softmax import softmax
from ._transcendental import expm1, tanh

__all__ = [
    "glu",
    "gumbel_softmax",
    "hardtanh",
    "logsigmoid",
    "mish",
    "prelu",
    "selu",
    "softmin",
    "softsign",
]

SELU_ALPHA: Final = 1.6732632423543772
SELU_SCALE: Final = 1.0507009873554805


@public
def glu(x: Value, axis: int = -1) -> Node:
    """Return the first half of an axis times the sigmoid of the second half: a gated linear unit.

    Parameters
    ----------
    x
        Floats of any shape. Integers become floats.
    axis
        The axis, with an even extent. The result has half of it.

    Raises
    ------
    ShapeError
        The extent of the axis is odd.

    Notes
    -----
    Dauphin et al. 2016 (arXiv:1612.08083), equation 1.

    Examples
    --------
    ::

        >>> ngd.function(ops.glu)(np.array([1.0, 2.0, 0.0, 0.0]))
        array([0.5, 1. ])
    """
    node = as_node(x, where="glu")
    along = as_axis("glu", axis, node.ndim, node.type)
    if node.shape[along] % 2:
        raise ShapeError(
            f"glu: expected an even extent of axis {axis}; got {node.type}. Choose another axis, "
            "or pad it."
        )
    operand, dtype = as_compute_dtype("glu", node)
    first, second = split(operand, 2, along)
    return cast(first * sigmoid(second), dtype)


@public
def mish(x: Value) -> Node:
    """Return x * tanh(softplus(x)).

    Parameters
    ----------
    x
        Floats of any shape. Integers become floats.

    Notes
    -----
    Misra 2019 (arXiv:1908.08681), equation 1.

    Examples
    --------
    ::

        >>> ngd.function(ops.mish)(np.array([-1.0, 0.0, 1.0]))
        array([-0.3034,  0.    ,  0.8651])
    """
    operand, dtype = as_compute_dtype("mish", x)
    return cast(operand * tanh(softplus(operand)), dtype)


@public
def prelu(x: Value, weight: Value) -> Node:
    """Return x where it is positive, and weight * x elsewhere.

    Parameters
    ----------
    x
        Numbers [N, C, ...], or of any shape for one weight.
    weight
        The slope for negative x: one number, or [C], one per channel. The channels are axis 1 of x,
        or axis 0 if x has one axis. It is cast to the dtype of x.

    Raises
    ------
    ShapeError
        The number of weights is neither 1 nor the number of channels.

    Notes
    -----
    He et al. 2015 (arXiv:1502.01852), equation 1.

    Examples
    --------
    ::

        >>> ngd.function(ops.prelu)(np.array([-2.0, 2.0]), np.array([0.25]))
        array([-0.5,  2. ])
    """
    node, slope = as_node(x, where="prelu"), as_node(weight, where="prelu")
    slope = cast(slope, node.dtype)
    if slope.type.count == 1:
        slope = reshape(slope, ())
    else:
        channels = 1 if node.ndim > 1 else 0
        if slope.ndim != 1 or not node.ndim or slope.shape[0] != node.shape[channels]:
            raise ShapeError(
                "prelu: expected one weight, or one per channel; got "
                f"{describe_types(node.type, slope.type)}"
            )
        slope = reshape(slope, [-1 if a == channels else 1 for a in range(node.ndim)])
    return where(node > 0, node, slope * node)


@public
def selu(x: Value) -> Node:
    """Return scale * x where x is positive, and scale * alpha * (exp(x) - 1) elsewhere.

    Parameters
    ----------
    x
        Floats of any shape. Integers become floats.

    Notes
    -----
    Klambauer et al. 2017 (arXiv:1706.02515), equation 2, with alpha = 1.6733 and scale = 1.0507.

    Examples
    --------
    ::

        >>> ngd.function(ops.selu)(np.array([-1.0, 0.0, 1.0]))
        array([-1.1113,  0.    ,  1.0507])
    """
    operand, dtype = as_compute_dtype("selu", x)
    negative = SELU_ALPHA * expm1(minimum(operand, 0))
    return cast(SELU_SCALE * where(operand > 0, operand, negative), dtype)


@public
def softsign(x: Value) -> Node:
    """Return x / (1 + abs(x)).

    Parameters
    ----------
    x
        Floats of any shape. Integers become floats.

    Examples
    --------
    ::

        >>> ngd.function(ops.softsign)(np.array([-1.0, 0.0, 3.0]))
        array([-0.5 ,  0.  ,  0.75])
    """
    operand, dtype = as_compute_dtype("softsign", x)
    size = where(operand < 0, -operand, operand)  # abs(x), but with slope 1 at 0
    return cast(operand / (1 + size), dtype)


@public
def logsigmoid(x: Value) -> Node:
    """Return log(sigmoid(x)), without overflow.

    Parameters
    ----------
    x
        Floats of any shape. Integers become floats.

    Examples
    --------
    ::

        >>> ngd.function(ops.logsigmoid)(np.array([-1000.0, 0.0]))
        array([-1000.    ,    -0.6931])
    """
    operand, dtype = as_compute_dtype("logsigmoid", x)
    return cast(-softplus(-operand), dtype)


@public
def hardtanh(x: Value, min: float = -1.0, max: float = 1.0) -> Node:
    """Limit each element of x to [min, max].

    The gradient of x is that of the result where min <= x <= max, and 0 elsewhere.

    Parameters
    ----------
    x
        Numbers of any shape.
    min, max
        The bounds.

    Examples
    --------
    ::

        >>> ngd.function(ops.hardtanh)(np.array([-2.0, 0.5, 3.0]))
        array([-1. ,  0.5,  1. ])
    """
    return clip(x, min, max)


@public
def softmin(x: Value, axis: int = -1) -> Node:
    """Return softmax(-x) along an axis.

    Parameters
    ----------
    x
        Floats with at least one element along the axis. Integers become floats.
    axis
        The axis along which the result sums to 1.

    Examples
    --------
    ::

        >>> ngd.function(ops.softmin)(np.array([0.0, 0.0]))
        array([0.5, 0.5])
    """
    return softmax(-as_node(x, where="softmin"), axis)


@public
def gumbel_softmax(
    logits: Value,
    tau: float = 1.0,
    hard: bool = False,
    axis: int = -1,
    *,
    seed: int | Node,
    offset: int | Node = 0,
) -> Node:
    """Return softmax((logits + Gumbel noise) / tau), a differentiable random draw of a class.

    Parameters
    ----------
    logits
        Unnormalized logarithms of probabilities.
    tau
        The temperature, > 0.
    hard
        If True, the result is one-hot, and its gradient is that of the softmax.
    axis
        The axis of the classes.
    seed, offset
        Integers of 64 bits. Equal seeds and offsets give equal noise; other ones give other noise.

    Raises
    ------
    ValueError
        `tau` is not positive.

    Notes
    -----
    Jang et al. 2016 (arXiv:1611.01144), equation 2.

    Examples
    --------
    ::

        >>> ngd.function(lambda: ops.gumbel_softmax([0.0, 9.0], hard=True, seed=1))()
        array([0., 1.])
    """
    if not tau > 0:
        raise ValueError(f"gumbel_softmax: expected tau > 0; got {tau}")
    operand, dtype = as_compute_dtype("gumbel_softmax", logits)
    along = as_axis("gumbel_softmax", axis, operand.ndim, operand.type)
    noise = gumbel(operand.shape, operand.dtype, seed=seed, offset=offset)
    soft = softmax((operand + noise) * (1 / tau), along)
    if hard:
        chosen = one_hot(argmax(soft, along), operand.shape[along], operand.dtype)
        soft = stop_gradient(moveaxis(chosen, -1, along) - soft) + soft
    return cast(soft, dtype)
