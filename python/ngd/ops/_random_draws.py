# SPDX-License-Identifier: Apache-2.0
"""Random draws from further distributions, computed from the draws of _random.py.

The functions take a seed and an offset, as those of _random.py. Equal seeds and offsets give equal
numbers on every device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from ..dtypes import FLOATS, INTEGERS, DType, as_dtype, float32, float64, int64, uint64
from ..errors import DTypeError, ShapeError
from ..graph.node import Node
from ..graph.registry import public
from ._arithmetic import clip, maximum, remainder
from ._casting import cast
from ._creation import arange
from ._gathering import take
from ._operands import Value, as_axis, as_node, as_shape, scalar
from ._random import random_bits, random_uniform
from ._rearrangement import moveaxis
from ._reductions import argmax
from ._shape import expand_dims
from ._sorting import argsort, top_k
from ._special import erfinv
from ._transcendental import log

__all__ = [
    "bernoulli",
    "categorical",
    "gumbel",
    "multinomial",
    "permutation",
    "randint",
    "truncated_normal",
]

LEAST: Final = 2.0**-54
"""Half of the smallest positive number that ops.random_uniform draws in float64.

It replaces a draw of 0 before a logarithm, because log(0) is -inf.
"""


def _expect_float(where_: str, dtype: Any) -> Any:
    """Return `dtype` as a NumPy dtype; DTypeError if it is not a floating dtype."""
    kind = as_dtype(dtype, where_)
    if kind not in FLOATS:
        raise DTypeError(
            f"{where_}: expected a floating dtype; got {kind}. Cast the result instead."
        )
    return kind


def _expect_bounds(kind: DType, low: int, high: int) -> None:
    """Raise an error unless the dtype is an integer type that represents all of [low, high)."""
    if kind not in INTEGERS:
        raise DTypeError(
            f"randint: expected an integer dtype; got {kind}. Cast the result instead."
        )
    limits = np.iinfo(kind)
    if not limits.min <= low < high <= int(limits.max) + 1:
        raise ValueError(
            f"randint: expected {limits.min} <= low < high <= {int(limits.max) + 1}; got {low}, "
            f"{high}. Change the bounds, or use a wider dtype."
        )


@public
def randint(
    shape: int | Sequence[int],
    low: int,
    high: int,
    dtype: Any = int64,
    *,
    seed: int | Node,
    offset: int | Node = 0,
) -> Node:
    """Draw integers in [low, high), whose probabilities differ by at most 2 ** -64.

    Parameters
    ----------
    shape : int or sequence of int
        The shape of the result.
    low, high : int
        The bounds: low is a possible result, and high is not. Nodes are not allowed.
    dtype : dtype, default int64
        An integer dtype that represents all integers in [low, high).
    seed, offset : int or node
        The same as for ops.random_uniform.

    Raises
    ------
    DTypeError
        The dtype is not an integer dtype.
    ValueError
        low is not less than high, or the dtype does not represent all integers in [low, high).

    Examples
    --------
    ::

        >>> ngd.function(lambda: ops.randint(5, 0, 10, seed=1))()
        array([8, 9, 6, 7, 3])
    """
    int_dtype = as_dtype(dtype, "randint")
    _expect_bounds(int_dtype, low, high)
    count = high - low
    extents = as_shape(shape)
    words = cast(random_bits((*extents, 2), seed=seed, offset=offset), uint64)
    bits = words[..., 0] * scalar(2**32, uint64, "randint") + words[..., 1]
    if count < 2**64:
        bits = remainder(bits, scalar(count, uint64, "randint"))
    if low < 0:  # correct, since cast and sum wrap modulo 2 ** 64
        return cast(cast(bits, int64) + low, int_dtype)
    return cast(bits + scalar(low, uint64, "randint"), int_dtype)


@public
def bernoulli(
    p: Value,
    shape: int | Sequence[int] | None = None,
    *,
    seed: int | Node,
    offset: int | Node = 0,
) -> Node:
    """Draw bools that are True with probability p.

    Parameters
    ----------
    p : node or array
        Probabilities: a number, or a tensor that broadcasts to the shape.
    shape : int or sequence of int, optional
        The shape of the result. The default is the shape of p.
    seed, offset : int or node
        The same as for ops.random_uniform.

    Examples
    --------
    ::

        >>> ngd.function(lambda: ops.bernoulli(0.5, 4, seed=1))()
        array([False, False, False, False])
    """
    node = cast(as_node(p, where="bernoulli"), float64)
    extents = node.shape if shape is None else as_shape(shape)
    is_drawn = random_uniform(extents, float64, seed=seed, offset=offset) < node
    if is_drawn.shape != extents:
        raise ShapeError(
            f"bernoulli: expected p that broadcasts to {extents}; got {node.type}. Reshape p."
        )
    return is_drawn


@public
def permutation(x: int | Value, axis: int = 0, *, seed: int | Node, offset: int | Node = 0) -> Node:
    """Return the slices of x along an axis, or the ints 0 to x - 1, in random order.

    Parameters
    ----------
    x : int, node or array
        An array, or an int n for a permutation of arange(n).
    axis : int, default 0
        The axis to permute.
    seed, offset : int or node
        The same as for ops.random_uniform.

    Examples
    --------
    ::

        >>> ngd.function(lambda: ops.permutation(5, seed=1))()
        array([4, 3, 1, 2, 0])
    """
    if isinstance(x, (int, np.integer)) and not isinstance(x, bool):
        x = arange(int(x))
    node = as_node(x, where="permutation")
    permuted_axis = as_axis("permutation", axis, node.ndim, node.type)
    keys = random_uniform(node.shape[permuted_axis], float64, seed=seed, offset=offset)
    return take(node, argsort(keys), permuted_axis)


@public
def gumbel(
    shape: int | Sequence[int],
    dtype: Any = float32,
    *,
    seed: int | Node,
    offset: int | Node = 0,
) -> Node:
    """Draw from the standard Gumbel distribution: -log(-log(u)) for uniform u.

    Parameters
    ----------
    shape : int or sequence of int
        The shape of the result.
    dtype : dtype, default float32
        A floating dtype. The numbers are drawn in float64 and rounded once.
    seed, offset : int or node
        The same as for ops.random_uniform.

    Examples
    --------
    ::

        >>> ngd.function(lambda: ops.gumbel(3, seed=1))().shape
        (3,)
    """
    float_dtype = _expect_float("gumbel", dtype)
    u = random_uniform(as_shape(shape), float64, seed=seed, offset=offset)
    return cast(-log(-log(maximum(u, LEAST))), float_dtype)


@public
def categorical(
    logits: Value,
    axis: int = -1,
    shape: int | Sequence[int] | None = None,
    *,
    seed: int | Node,
    offset: int | Node = 0,
) -> Node:  # long because each argument is described
    """Draw indices with the probabilities softmax(logits), as jax.random.categorical.

    The draws are independent of each other. ops.multinomial can draw without replacement.

    Parameters
    ----------
    logits : node or array
        Unnormalized logarithms of probabilities; ops.log(p) for probabilities p.
    axis : int, default -1
        The axis of the classes.
    shape : int or sequence of int, optional
        The shape of the result. The default is the shape of the logits without the axis of the
        classes. That shape must broadcast to `shape`.
    seed, offset : int or node
        The same as for ops.random_uniform.

    Returns
    -------
    Node
        Indices of classes, int64.

    Raises
    ------
    ShapeError
        The logits do not broadcast to the shape.

    Notes
    -----
    The index is the argmax of the logits plus Gumbel noise: Gumbel 1954, see Maddison et al. 2014
    (arXiv:1411.0030), section 2.

    Examples
    --------
    ::

        >>> ngd.function(lambda: ops.categorical([0.0, 9.0], shape=3, seed=1))()
        array([1, 1, 1])
    """
    node = cast(as_node(logits, where="categorical"), float64)
    node = moveaxis(node, as_axis("categorical", axis, node.ndim, node.type), -1)
    extents = node.shape[:-1] if shape is None else as_shape(shape)
    noise = gumbel((*extents, node.shape[-1]), float64, seed=seed, offset=offset)
    total = node + noise
    if total.shape != noise.shape:
        raise ShapeError(
            f"categorical: expected logits that broadcast to {extents}; got {node.type}. Reshape "
            "the logits, or change shape."
        )
    return argmax(total, -1)


@public
def multinomial(
    p: Value,
    num_samples: int,
    replacement: bool = False,
    *,
    seed: int | Node,
    offset: int | Node = 0,
) -> Node:  # long because each argument is described
    """Draw several indices with given probabilities, as torch.multinomial.

    Parameters
    ----------
    p : node or array
        The weights of the classes along the last axis, numbers >= 0. The probabilities are the
        weights divided by their sum.
    num_samples : int
        The number of draws, at least 1. Without replacement, it is at most the number of classes.
    replacement : bool, default False
        If True, draws are independent, and an index may occur several times. If False, indices
        differ, and each one is drawn from the remaining classes.
    seed, offset : int or node
        The same as for ops.random_uniform.

    Returns
    -------
    Node
        int64, the shape of p with num_samples in place of the number of classes.

    Raises
    ------
    ShapeError
        p has no axis or no class, num_samples is less than 1, or replacement is False and
        num_samples is greater than the number of classes.
    ValueError
        p is an array, and a weight is negative or not finite, or too few weights are positive: less
        than num_samples without replacement, or none with replacement.

    Notes
    -----
    If p is a node, its weights are not checked. Draws without replacement then return classes of
    weight 0 after all other classes.

    The draws without replacement are the indices of the num_samples largest elements of log(p) plus
    Gumbel noise: Kool et al. 2019 (arXiv:1903.06059), section 2.2.

    Examples
    --------
    ::

        >>> ngd.function(lambda: ops.multinomial([0.2, 0.0, 0.8], 2, seed=1))()
        array([2, 0])
    """
    node = cast(as_node(p, where="multinomial"), float64)
    least = 1 if replacement else num_samples
    if not node.ndim or node.shape[-1] < least or num_samples < 1:
        raise ShapeError(
            f"multinomial: expected weights of {max(least, 1)} or more classes, and num_samples >= "
            f"1; got {node.type}, num_samples={num_samples}"
        )
    if not isinstance(p, Node):
        _expect_weights(np.asarray(p, np.float64), least)
    logits = log(node)
    if replacement:
        shape = (*node.shape[:-1], num_samples)
        return categorical(expand_dims(logits, -2), shape=shape, seed=seed, offset=offset)
    return top_k(logits + gumbel(node.shape, float64, seed=seed, offset=offset), num_samples)[1]


def _expect_weights(weights: Any, least: int) -> None:
    """Raise ValueError for a weight outside [0, inf), or a row with fewer than `least` above 0."""
    is_weight = (weights >= 0) & (weights < np.inf)
    if not is_weight.all():
        raise ValueError(
            f"multinomial: expected weights in [0, inf); got {weights[~is_weight][0]}. Pass "
            "probabilities; for logits, pass ops.softmax(logits)."
        )
    positive = (weights > 0).sum(-1)
    if (positive < least).any():
        raise ValueError(
            f"multinomial: expected at least {least} positive weights; got {positive.min()}. Draw "
            "fewer samples, or set replacement=True."
        )


@public
def truncated_normal(
    shape: int | Sequence[int],
    low: float = -2.0,
    high: float = 2.0,
    dtype: Any = float32,
    *,
    seed: int | Node,
    offset: int | Node = 0,
) -> Node:
    """Draw from the standard normal distribution between two bounds.

    Parameters
    ----------
    shape : int or sequence of int
        The shape of the result.
    low, high : float
        The bounds of the result. They are numbers, and nodes are not allowed.
    dtype : dtype, default float32
        A floating dtype.
    seed, offset : int or node
        The same as for ops.random_uniform.

    Raises
    ------
    ValueError
        low is not less than high.

    Notes
    -----
    The numbers are sqrt(2) * erfinv(u) for u uniform between erf(low / sqrt(2)) and
    erf(high / sqrt(2)): the inverse of the distribution function.

    Examples
    --------
    ::

        >>> ngd.function(lambda: ops.truncated_normal(3, seed=1))().shape
        (3,)
    """
    float_dtype = _expect_float("truncated_normal", dtype)
    if not low < high:
        raise ValueError(
            f"truncated_normal: expected low < high; got {low}, {high}. Swap the bounds."
        )
    first, last = (math.erf(bound / math.sqrt(2)) for bound in (low, high))
    u = random_uniform(as_shape(shape), float64, seed=seed, offset=offset)
    drawn = erfinv(first + u * (last - first)) * math.sqrt(2)
    return cast(clip(drawn, float(low), float(high)), float_dtype)
