# SPDX-License-Identifier: Apache-2.0
"""First values of parameters. An initializer is a function of a NumPy generator and a shape.

A weight is [outputs, inputs, kernel...], as in PyTorch. Its fan-in is inputs * kernel, and its
fan-out is outputs * kernel. All initializers draw in float64. The values are then rounded to the
dtype of the parameter.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np

Generator: TypeAlias = np.random.Generator
Shape: TypeAlias = tuple[int, ...]
Initializer: TypeAlias = Callable[[Generator, Shape], Any]

GAINS: Final = {
    "linear": 1.0,
    "sigmoid": 1.0,
    "tanh": 5.0 / 3.0,
    "relu": math.sqrt(2.0),
    "selu": 0.75,
}
"""The gain per activation: the factor of the standard deviation of a layer's weights.

The gains have the values of torch.nn.init.calculate_gain. With its gain, an activation roughly
preserves the variance from layer to layer.
"""


def fans(shape: Shape) -> tuple[int, int]:
    """Return (fan-in, fan-out) of a weight of two axes or more."""
    if len(shape) < 2:
        raise ValueError(f"nn.initializers: expected a weight of two axes or more; got {shape}")
    kernel = math.prod(shape[2:])
    return shape[1] * kernel, shape[0] * kernel


def zeros(random: Generator, shape: Shape) -> Any:
    """Return zeros.

    Parameters
    ----------
    random : numpy.random.Generator
        Not used.
    shape : tuple of ints
        The shape of the array.
    """
    return np.zeros(shape)


def ones(random: Generator, shape: Shape) -> Any:
    """Return ones.

    Parameters
    ----------
    random : numpy.random.Generator
        Not used.
    shape : tuple of ints
        The shape of the array.
    """
    return np.ones(shape)


def constant(value: Any) -> Initializer:
    """Return an initializer that gives a constant value.

    Parameters
    ----------
    value : array_like
        A number, or an array that broadcasts to the shape of the parameter.

    Examples
    --------
    >>> layer = nn.Linear(3, 2, bias_initializer=nn.initializers.constant(0.5))
    >>> layer.bias.numpy()
    array([0.5, 0.5], dtype=float32)
    """
    return partial(_repeat, value)


def uniform(low: float = 0.0, high: float = 1.0) -> Initializer:
    """Return an initializer that draws uniformly from [low, high).

    Parameters
    ----------
    low, high : float
        The bounds. The defaults are 0 and 1.
    """
    return partial(_uniform, low, high)


def normal(mean: float = 0.0, std: float = 1.0) -> Initializer:
    """Return an initializer that draws from a normal distribution.

    Parameters
    ----------
    mean, std : float
        The mean and standard deviation. The defaults are 0 and 1.

    Examples
    --------
    >>> layer = nn.Linear(64, 64, weight_initializer=nn.initializers.normal(std=0.02))
    """
    return partial(_normal, mean, std)


def truncated_normal(std: float = 1.0, mean: float = 0.0, limit: float = 2.0) -> Initializer:
    """Return an initializer that draws from a truncated normal distribution.

    Parameters
    ----------
    std, mean : float
        The standard deviation and mean before truncation. The defaults are 1 and 0.
    limit : float, default 2.0
        Values farther than limit * std from the mean are drawn again.
    """
    return partial(_truncated_normal, std, mean, limit)


def xavier_uniform(gain: float = 1.0) -> Initializer:
    """Return an initializer that draws from [-a, a), a = gain * sqrt(6 / (fan-in + fan-out)).

    Glorot and Bengio, 2010 (AISTATS, volume 9), equation 16.

    Parameters
    ----------
    gain : float, default 1.0
        The factor of the bound.
    """
    return partial(_xavier_uniform, gain)


def xavier_normal(gain: float = 1.0) -> Initializer:
    """Return a normal initializer with standard deviation gain * sqrt(2 / (fan-in + fan-out)).

    Glorot and Bengio, 2010 (AISTATS, volume 9), equation 12.

    Parameters
    ----------
    gain : float, default 1.0
        The factor of the standard deviation.
    """
    return partial(_xavier_normal, gain)


def he_uniform(gain: float = GAINS["relu"], fan: str = "in") -> Initializer:
    """Return an initializer that draws from [-a, a), a = gain * sqrt(3 / fan).

    He et al., 2015 (arXiv:1502.01852), section 2.2.

    Parameters
    ----------
    gain : float, default sqrt(2)
        The factor of the bound. The default is the gain of ReLU.
    fan : {"in", "out"}, default "in"
        Use the fan-in or the fan-out.
    """
    return partial(_he_uniform, gain, fan)


def he_normal(gain: float = GAINS["relu"], fan: str = "in") -> Initializer:
    """Return a normal initializer with standard deviation gain / sqrt(fan).

    He et al., 2015 (arXiv:1502.01852), equation 10.

    Parameters
    ----------
    gain : float, default sqrt(2)
        The factor of the standard deviation. The default is the gain of ReLU.
    fan : {"in", "out"}, default "in"
        Use the fan-in or the fan-out.

    Examples
    --------
    >>> layer = nn.Conv2d(3, 16, 3, weight_initializer=nn.initializers.he_normal(fan="out"))
    """
    return partial(_he_normal, gain, fan)


def orthogonal(gain: float = 1.0) -> Initializer:
    """Return an initializer of orthonormal rows or columns, whichever are fewer, times gain.

    For a shape such as (8, 3, 5), a matrix of 8 rows and 15 columns is reshaped. See Saxe,
    McClelland and Ganguli, 2013 (arXiv:1312.6120). The matrix is Q of the QR decomposition of a
    matrix of normally distributed numbers, or the transpose of Q. The signs of Q are chosen so that
    the diagonal of R is positive. So Q is uniformly distributed over all orthogonal matrices
    (Mezzadri, 2007, arXiv:math-ph/0609050, section 5).

    Parameters
    ----------
    gain : float, default 1.0
        The factor of the matrix.
    """
    return partial(_orthogonal, gain)


def torch_default(fan_in: int | None = None) -> Initializer:
    """Return an initializer that draws from [-a, a), a = 1 / sqrt(fan-in), as PyTorch's layers do.

    It is he_uniform with gain sqrt(1/3).

    Parameters
    ----------
    fan_in : int, optional
        The fan-in. The default is the fan-in of the shape. A bias needs the fan-in of its weight.
    """
    return partial(_torch_default, fan_in)


def he_std(shape: Shape, gain: float, fan: str) -> float:
    """Return gain / sqrt(n), where n is the fan-in or the fan-out. `fan` is "in" or "out"."""
    if fan not in ("in", "out"):
        raise ValueError(f'nn.initializers: expected fan "in" or "out"; got {fan!r}')
    return gain / math.sqrt(fans(shape)[fan == "out"] or 1)


# The initializers are functions of this module and not closures, so that models can be pickled.


def _repeat(value: Any, random: Generator, shape: Shape) -> Any:
    """Return `value`, broadcast to the shape. Nothing is drawn from `random`."""
    return np.broadcast_to(value, shape)


def _uniform(low: float, high: float, random: Generator, shape: Shape) -> Any:
    return random.uniform(low, high, shape)


def _normal(mean: float, std: float, random: Generator, shape: Shape) -> Any:
    return random.normal(mean, std, shape)


def _truncated_normal(
    std: float, mean: float, limit: float, random: Generator, shape: Shape
) -> Any:
    """Draw normal numbers; redraw those farther than `limit` * `std` from `mean`."""
    values = random.standard_normal(shape)
    outside = np.abs(values) > limit
    while outside.any():
        values[outside] = random.standard_normal(int(outside.sum()))
        outside = np.abs(values) > limit
    return mean + std * values


def _xavier_uniform(gain: float, random: Generator, shape: Shape) -> Any:
    bound = gain * math.sqrt(6.0 / sum(fans(shape)))
    return random.uniform(-bound, bound, shape)


def _xavier_normal(gain: float, random: Generator, shape: Shape) -> Any:
    return random.normal(0.0, gain * math.sqrt(2.0 / sum(fans(shape))), shape)


def _he_uniform(gain: float, fan: str, random: Generator, shape: Shape) -> Any:
    bound = math.sqrt(3.0) * he_std(shape, gain, fan)
    return random.uniform(-bound, bound, shape)


def _he_normal(gain: float, fan: str, random: Generator, shape: Shape) -> Any:
    return random.normal(0.0, he_std(shape, gain, fan), shape)


def _orthogonal(gain: float, random: Generator, shape: Shape) -> Any:
    """Return `gain` times a random matrix with orthonormal rows or columns, reshaped."""
    fans(shape)
    rows, columns = shape[0], math.prod(shape[1:])
    matrix = random.standard_normal((max(rows, columns), min(rows, columns)))
    q, r = np.linalg.qr(matrix)
    q = q * np.where(np.diag(r) < 0, -1.0, 1.0)
    return gain * (q if rows >= columns else q.T).reshape(shape)


def _torch_default(fan_in: int | None, random: Generator, shape: Shape) -> Any:
    """Draw uniformly from [-b, b) with b = 1 / sqrt(fan_in).

    If `fan_in` is None, compute it from `shape`.
    """
    bound = 1.0 / math.sqrt((fans(shape)[0] if fan_in is None else fan_in) or 1)
    return random.uniform(-bound, bound, shape)
