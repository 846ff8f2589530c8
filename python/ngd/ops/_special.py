# SPDX-License-Identifier: Apache-2.0
"""Special functions: the logarithm of gamma, its derivative, and the inverse error function."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from ..dtypes import float64
from ..graph.node import Node
from ..graph.registry import register
from ._arithmetic import abs, clip, floor, round, square
from ._casting import cast
from ._compare import equal, where
from ._composite import CompositeUnary, polynomial
from ._transcendental import cos, erf, exp, log, log1p, sin, sqrt

__all__ = ["digamma", "erfinv", "lgamma"]

NEAR_TWO: Final = (
    0.42278433509846713,
    -0.10031730167435392,
    0.032965000621155864,
    -0.012384192193371297,
    0.00499864116469194,
    -0.0021081308339532027,
    0.0009153769225258352,
    -0.0004057073976405256,
    0.00018255263198029055,
    -8.309512288139664e-05,
    3.816899450869808e-05,
    -1.7661727092640293e-05,
    8.221243547899526e-06,
    -3.846868630984396e-06,
    1.813340925941714e-06,
    -8.554745925302383e-07,
    3.863844148542206e-07,
    -1.8333634733806836e-07,
    1.2211977636940668e-07,
    -5.832930129320894e-08,
)
"""The coefficients of a polynomial in u for lgamma(2 + u) / (u * (1 + u)), abs(u) <= 1 / 2.

It interpolates at 20 Chebyshev nodes; the relative error is below 2e-19.
"""
STIRLING: Final = (
    1 / 12,
    -1 / 360,
    1 / 1260,
    -1 / 1680,
    1 / 1188,
    -691 / 360360,
    1 / 156,
    -3617 / 122400,
)
"""The coefficients B(2k) / (2k (2k - 1)) of Stirling's series of lgamma in 1 / x.

B(2k) are the Bernoulli numbers (NIST's DLMF, 5.11.1).
"""
STIRLING_SLOPE: Final = tuple(c * (2 * k + 1) for k, c in enumerate(STIRLING))
"""The coefficients B(2k) / 2k of the asymptotic series of digamma, the derivative of lgamma.

B(2k) are the Bernoulli numbers (DLMF, 5.11.2).
"""
SHIFTS: Final = 8
"""The maximum number of steps w -> w - 1 in `Lgamma.near`, which computes lgamma(w) for small w.

Each step uses the recurrence gamma(w) = (w - 1) gamma(w - 1).
"""
LARGE: Final = SHIFTS + 2.5
"""The smallest x for which Stirling's series is used.

For this x, the eighth and last term of the series is 1e-18 times lgamma(x).
"""


def _lgamma(x: float) -> float:
    """Return math.lgamma(x), or infinity at a pole or if the result is too large."""
    try:
        return math.lgamma(x)
    except (ValueError, OverflowError):  # x is a pole, or the result is too large
        return math.inf


class Lgamma(CompositeUnary):
    """Return the logarithm of abs(gamma(x)), as torch.lgamma; inf at 0, -1, -2, ...

    The gradient is ops.digamma(x).

    Parameters
    ----------
    x : node or array
        Floats of any shape. Integers become floats.

    Notes
    -----
    Between 1.5 and 2.5 it is a polynomial. The recurrence gamma(x + 1) = x gamma(x) extends it to
    all x from 0 to 10.5. Stirling's series is used above 10.5, and the reflection formula below 0
    (DLMF, section 5). The relative error is a few units in the last place, except near roots at
    x < 0.

    Examples
    --------
    ::

        >>> ngd.function(ops.lgamma)(np.array([0.5, 1.0, 10.0]))
        array([ 0.5724,  0.    , 12.8018])
    """

    name = "lgamma"
    compute = np.vectorize(_lgamma, otypes=[np.float64])
    domain = ((0.2, 3),)
    further = ((3, 40), (1e-3, 0.4), (-2.9, -2.1))

    def expand(self, x: Node) -> Node:
        is_negative = x < 0
        w = where(is_negative, 1 - x, x)
        value = where(w < LARGE, self.near(w), self.far(w))
        reflected = math.log(math.pi) - log(abs(sin(math.pi * (x - round(x))))) - value
        return where(is_negative, reflected, value)

    @staticmethod
    def near(w: Node) -> Node:
        """Return lgamma(w) for 0 <= w < LARGE, by a polynomial and the recurrence of gamma."""
        steps = clip(floor(w - 1.5), 0, SHIFTS)
        u = where(w < 0.5, w, where(w < 1.5, w - 1, w - (steps + 2)))
        product = where(w - 1.5 >= 1, w - 1, 1)
        for step in range(2, SHIFTS + 1):
            product = product * where(w - 1.5 >= step, w - step, 1)
        below = where(w < 1.5, log(w), 0) + where(w < 0.5, log1p(w), 0)
        return u * (1 + u) * polynomial(u, NEAR_TWO) + log(product) - below

    @staticmethod
    def far(w: Node) -> Node:
        """Return lgamma(w) for w >= LARGE, by Stirling's series."""
        series = polynomial(1 / square(w), STIRLING) / w
        return (w - 0.5) * (log(w) - 1) + (0.5 * math.log(2 * math.pi) - 0.5 + series)

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy * digamma(node.inputs[0]),)


lgamma: Final[Lgamma] = register(Lgamma())


def _shifted(x: Node) -> tuple[Node, list[Node]]:
    """Add 1 to x until x is at least LARGE. Return the last x, and a list of the earlier ones.

    digamma and trigamma then sum 1 / t or 1 / t**2 over the entries t of the list. The list has a
    fixed length. After x has reached LARGE, the further entries are inf, which add 0 to these sums.
    """
    terms = []
    for _ in range(SHIFTS + 3):
        is_small = x < LARGE
        terms.append(where(is_small, x, math.inf))
        x = where(is_small, x + 1, x)
    return x, terms


def trigamma(x: Node) -> Node:
    """Return the derivative of digamma (DLMF, section 5.15). It can be differentiated."""
    is_negative = x < 0
    large, terms = _shifted(where(is_negative, 1 - x, x))
    inverse = 1 / large
    value = inverse + square(inverse) * (0.5 + inverse * _trigamma_series(square(inverse)))
    for term in terms:
        value = value + 1 / square(term)
    fraction = where(is_negative, x - round(x), 0.5)
    return where(is_negative, square(math.pi / sin(math.pi * fraction)) - value, value)


def _trigamma_series(z: Node) -> Node:
    """Return B(2) + B(4) z + B(6) z**2 + ..., where B(2k) are the Bernoulli numbers."""
    return polynomial(z, [c * (2 * k + 2) for k, c in enumerate(STIRLING_SLOPE)])


def _digamma(x: float) -> float:
    """Return digamma(x) for the NumPy reference, with which tests compare the op `digamma`.

    The recurrence digamma(x) = digamma(x + 1) - 1 / x is applied until x >= 30; the op stops at
    LARGE. The reference and the op then use the same series, but the reference needs fewer terms.
    """
    if x <= 0 and x == math.floor(x):
        return -math.inf if x == 0 else math.nan
    if x < 0:
        return _digamma(1 - x) - math.pi / math.tan(math.pi * (x - math.floor(x)))
    shifts = 0.0
    while x < 30:
        shifts, x = shifts + 1 / x, x + 1
    series = 1 / 12 - (1 / 120 - (1 / 252 - 1 / (240 * x * x)) / (x * x)) / (x * x)
    return math.log(x) - 0.5 / x - series / (x * x) - shifts


class Digamma(CompositeUnary):
    """Return the derivative of lgamma, as torch.digamma; -inf at 0, NaN at -1, -2, ...

    Parameters
    ----------
    x : node or array
        Floats of any shape. Integers become floats.

    Notes
    -----
    The recurrence digamma(x + 1) = digamma(x) + 1 / x is used between 0 and 10.5, the asymptotic
    series above 10.5, and the reflection formula below 0 (DLMF, section 5). The absolute error is
    about 1e-15 in float64, so the relative error is large near the roots.

    Examples
    --------
    ::

        >>> ngd.function(ops.digamma)(np.array([0.5, 1.0, 10.0]))
        array([-1.9635, -0.5772,  2.2518])
    """

    name = "digamma"
    compute = np.vectorize(_digamma, otypes=[np.float64])
    domain = ((0.2, 3),)
    further = ((3, 40), (-2.8, -2.2))

    def expand(self, x: Node) -> Node:
        is_negative = x < 0
        large, terms = _shifted(where(is_negative, 1 - x, x))
        inverse = 1 / large
        series = square(inverse) * polynomial(square(inverse), STIRLING_SLOPE)
        shifts = 1 / terms[-1]
        for term in reversed(terms[:-1]):
            shifts = shifts + 1 / term
        value = log(large) - 0.5 * inverse - series - shifts
        angle = math.pi * where(is_negative, x - round(x), 0.5)
        pole = where(equal(angle, 0), math.nan, sin(angle))
        return where(is_negative, value - math.pi * cos(angle) / pole, value)

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy * trigamma(node.inputs[0]),)


digamma: Final[Digamma] = register(Digamma())


def _erfinv(x: float) -> float:
    """Return erfinv(x) by NormalDist().inv_cdf of Python, for evaluation of the op in NumPy."""
    if not -1 < x < 1:
        return math.copysign(math.inf, x) if x in (-1, 1) else math.nan
    from statistics import NormalDist  # imported here, because it is slow

    value = NormalDist().inv_cdf((x + 1) / 2) / math.sqrt(2)
    if not -0.9 < x < 0.9:
        return value
    slope = 2 / math.sqrt(math.pi) * math.exp(-value * value)
    return value - (math.erf(value) - x) / slope


WINITZKI: Final = 0.147
"""The constant a of Winitzki's approximation of the inverse error function (see `Erfinv`)."""


class Erfinv(CompositeUnary):
    """Return the number whose error function is x, as torch.erfinv.

    It is inf at 1, -inf at -1, and NaN outside of [-1, 1].

    Parameters
    ----------
    x : node or array
        Floats of any shape. Integers become floats.

    Notes
    -----
    The first value is Winitzki's approximation ("A handy approximation for the error function and
    its inverse", 2008, equation 7). Three of Halley's steps follow, in float64 for all dtypes. The
    relative error in float64 is at most about 1e-16 / (1 - abs(x)). Next to 1 and -1, where this
    bound is large, the error is at most 2e-3.

    Examples
    --------
    ::

        >>> ngd.function(ops.erfinv)(np.array([-0.5, 0.0, 0.99]))
        array([-0.4769,  0.    ,  1.8214])
    """

    name = "erfinv"
    compute = np.vectorize(_erfinv, otypes=[np.float64])
    domain = ((-0.9, 0.9),)
    further = ((-1e-3, 1e-3), (0.97, 0.995))

    def expand(self, x: Node) -> Node:
        wide = cast(x, float64)
        is_inside = abs(wide) < 1
        y = where(is_inside, wide, 0)
        size = log1p(-square(y))
        half = 2 / (math.pi * WINITZKI) + 0.5 * size
        ratio = -size / WINITZKI
        value = sqrt(ratio / (sqrt(square(half) + ratio) + half))
        value = where(y < 0, -value, value)
        for _ in range(3):
            step = (erf(value) - y) * (0.5 * math.sqrt(math.pi)) * exp(square(value))
            change = step / (1 + value * step)
            value = value - where(abs(change) < 0.01, change, 0)
        edge = where(equal(abs(wide), 1), math.inf * wide, math.nan)
        return cast(where(is_inside, value, edge), x.dtype)

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy * (0.5 * math.sqrt(math.pi)) * exp(square(node)),)


erfinv: Final[Erfinv] = register(Erfinv())
