# SPDX-License-Identifier: Apache-2.0
"""Tests of elementwise functions at literals computed by mpmath, and at the ends of domains."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.testing as npt
import pytest

from ngd import grad, ops
from ngd.dtypes import Type, float32, float64
from tests.ops.cases import placeholders
from tests.ops.conftest import Runner

INF, NAN = math.inf, math.nan
LITERALS: dict[str, list[tuple[float, float]]] = {
    "lgamma": [
        *((1e-10, 23.025850929882736), (0.3, 1.0957979948180756), (0.5, 0.5723649429247001)),
        *((1.0, 0.0), (1.0000001, -5.772155829918507e-08), (1.4, -0.1196129141723713)),
        *((1.6, -0.11259176569675577), (2.0, 0.0), (2.3, 0.15418945495963046)),
        *((3.7, 1.428072326665388), (9.9, 12.57717990421988), (10.5, 13.940625219403763)),
        *((50.0, 144.5657439463449), (1e10, 220258509288.81058), (-0.5, 1.2655121234846454)),
        *((-1.5, 0.860047015376481), (-7.3, -7.779101629826852)),
    ],
    "digamma": [
        *((1e-10, -10000000000.577215), (0.3, -3.502524222200133), (1.0, -0.5772156649015329)),
        *((1.5, 0.03648997397857652), (9.9, 2.2411803166063815), (50.0, 3.901989673427892)),
        *((1e10, 23.025850929890456), (-0.5, 0.03648997397857652), (-7.3, 4.33730730551005)),
    ],
    "erfinv": [
        *((1e-300, 8.86226925452758e-301), (1e-05, 8.862269254759594e-06)),
        *((0.1, 0.08885599049425769), (0.5, 0.4769362762044699), (0.9, 1.1630871536766743)),
        *((0.999, 2.3267537655135246), (-0.3, -0.2724627147267543)),
    ],
}
SLOPES = {
    "digamma": [(0.3, 12.245364546107732), (1.0, 1.6449340668482264), (-0.5, 8.934802200544679)]
}

ENDS: dict[str, list[tuple[float, float]]] = {
    "tan": [(0, 0), (INF, NAN)],
    "atan": [(INF, math.pi / 2), (-INF, -math.pi / 2), (1e300, math.pi / 2), (NAN, NAN)],
    "asin": [(1, math.pi / 2), (-1, -math.pi / 2), (1.1, NAN)],
    "acos": [(1, 0), (-1, math.pi), (-1.1, NAN)],
    "sinh": [(INF, INF), (-INF, -INF), (710.0, 1.1169973830808557e308), (1e-9, 1e-9)],
    "cosh": [(INF, INF), (-710.0, 1.1169973830808557e308), (0, 1)],
    "asinh": [(INF, INF), (-1e300, -691.4686750787736), (1e-300, 1e-300)],
    "acosh": [(1, 0), (0.9, NAN), (-1e300, NAN), (1e300, 691.4686750787736), (INF, INF)],
    "atanh": [(1, INF), (-1, -INF), (1.1, NAN), (1e-12, 1e-12)],
    "sinc": [(0, 1), (1e-300, 1)],
    "log2": [(0, -INF), (-1, NAN), (INF, INF), (2.0**-1000, -1000), (2.0**63, 63)],
    "log10": [(0, -INF), (-1, NAN), (1000, 3), (1e-5, -5)],
    "exp2": [(INF, INF), (-INF, 0), (10, 1024), (-3, 0.125)],
    "cbrt": [(0, 0), (-27, -3), (INF, INF), (1e300, 1e100)],
    "lgamma": [(0, INF), (-3, INF), (INF, INF), (NAN, NAN), (1e300, 6.897755278982137e302)],
    "digamma": [(0, -INF), (-3, NAN), (INF, INF)],
    "erfinv": [(1, INF), (-1, -INF), (1.1, NAN), (0, 0)],
}


@pytest.mark.parametrize(("name", "dtype"), [(n, d) for n in LITERALS for d in (float64, float32)])
def test_values_equal_literals(name: str, dtype: Any, run: Runner) -> None:
    pairs = LITERALS[name]
    if dtype == float32:  # points where the slope is moderate, so that rounding of x matters little
        pairs = [p for p in pairs if 0.05 < abs(p[0]) < 60 and abs(p[0]) != 0.999]
    given = np.array([x for x, _ in pairs], dtype)
    (x,) = placeholders([Type(given.dtype, given.shape)])
    (found,) = run([x], [getattr(ops, name)(x)], [given])
    tolerance = 1e-14 if dtype == float64 else 2e-6
    npt.assert_allclose(found, [y for _, y in pairs], rtol=tolerance, atol=tolerance / 5)


@pytest.mark.parametrize("name", SLOPES)
def test_slopes_equal_literals(name: str, run: Runner) -> None:
    given = np.array([x for x, _ in SLOPES[name]])
    (x,) = placeholders([Type(given.dtype, given.shape)])
    (found,) = run([x], [grad(ops.sum(getattr(ops, name)(x)), x)], [given])
    npt.assert_allclose(found, [y for _, y in SLOPES[name]], rtol=1e-14)


@pytest.mark.parametrize("name", ENDS)
def test_values_at_the_ends_of_domains_follow_numpy(name: str, run: Runner) -> None:
    given = np.array([x for x, _ in ENDS[name]], float64)
    (x,) = placeholders([Type(given.dtype, given.shape)])
    (found,) = run([x], [getattr(ops, name)(x)], [given])
    npt.assert_allclose(found, [y for _, y in ENDS[name]], rtol=1e-15, atol=1e-300)


def test_atan2_covers_all_quadrants(run: Runner) -> None:
    values = np.array([0.0, -0.0, 1.0, -1.0, INF, -INF, 1e-300])
    a, b = (m.ravel() for m in np.meshgrid(values, values))
    x, y = placeholders([Type(a.dtype, a.shape)] * 2)
    found, *slopes = run([x, y], [ops.atan2(x, y), *grad(ops.sum(ops.atan2(x, y)), [x, y])], [a, b])
    npt.assert_allclose(found, np.arctan2(a, b), rtol=1e-15)
    at_zero = (a == 0) & (b == 0)
    assert all((slope[at_zero] == 0).all() for slope in slopes)
    (x, y) = placeholders([Type(a.dtype, a.shape)] * 2)
    (found,) = run([x, y], [ops.hypot(x, y)], [a, b])
    npt.assert_allclose(found, np.hypot(a, b), rtol=1e-15)
