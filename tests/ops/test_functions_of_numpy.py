# SPDX-License-Identifier: Apache-2.0
"""Tests of functions that NumPy has too: values on both devices, and gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.testing as npt
import pytest

import ngd
from ngd import grad, ops
from ngd.dtypes import Array, Type, float32, float64, int32
from ngd.errors import DTypeError, OutOfRangeError, ShapeError
from ngd.graph.node import Node
from tests.ops.cases import placeholders, run_reference
from tests.ops.conftest import Runner

pytestmark = pytest.mark.filterwarnings("ignore::ngd.errors.PromotionWarning")


class Same(NamedTuple):
    """A call of ngd, the same call of NumPy, and the shapes of the operands."""

    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    integers: bool = True
    """True if the function is tested with integers too."""
    gradient: bool = True


EDGES = np.array([-1.0, 0.0, 0.5, 2.0])
SAME: dict[str, Same] = {
    "trunc": Same(ops.trunc, np.trunc, ((3, 4),), gradient=False),
    "fmod": Same(ops.fmod, np.fmod, ((3, 4), (4,)), gradient=False),
    "fmod by 0.7": Same(lambda x: ops.fmod(x, 0.7), lambda x: np.fmod(x, 0.7), ((3, 4),), False),
    "heaviside": Same(ops.heaviside, np.heaviside, ((3, 4), (4,)), False, False),
    "logical_xor": Same(ops.logical_xor, np.logical_xor, ((3, 4), (4,)), gradient=False),
    "isnan": Same(ops.isnan, np.isnan, ((3, 0),), gradient=False),
    "isinf": Same(ops.isinf, np.isinf, ((3,),), gradient=False),
    "isfinite": Same(ops.isfinite, np.isfinite, ((),), gradient=False),
    "nan_to_num": Same(ops.nan_to_num, np.nan_to_num, ((3,),)),
    "logaddexp": Same(ops.logaddexp, np.logaddexp, ((3, 4), (4,))),
    "select": Same(
        lambda x: ops.select([x < -1, x < 1], [x * 2, x * x], -7),
        lambda x: np.select([x < -1, x < 1], [x * 2, x * x], np.asarray(-7, x.dtype)),
        ((3, 5),),
    ),
    "diagonal": Same(ops.diagonal, np.diagonal, ((3, 4),)),
    "diagonal of axes": Same(
        lambda x: ops.diagonal(x, -1, 2, 0), lambda x: np.diagonal(x, -1, 2, 0), ((3, 2, 4),)
    ),
    "diagonal beyond": Same(
        lambda x: ops.diagonal(x, 9), lambda x: np.diagonal(x, 9), ((3, 4),), gradient=False
    ),
    "diagonal below": Same(lambda x: ops.diagonal(x, -2), lambda x: np.diagonal(x, -2), ((4, 3),)),
    "diagonal of none": Same(ops.diagonal, np.diagonal, ((3, 0),), gradient=False),
    "diag": Same(ops.diag, np.diag, ((4,),)),
    "diag above": Same(lambda x: ops.diag(x, 2), lambda x: np.diag(x, 2), ((3,),)),
    "diag below": Same(lambda x: ops.diag(x, -1), lambda x: np.diag(x, -1), ((3,),)),
    "diag of a matrix": Same(lambda x: ops.diag(x, 1), lambda x: np.diag(x, 1), ((3, 4),)),
    "trace": Same(ops.trace, np.trace, ((3, 4),)),
    "trace of axes": Same(
        lambda x: ops.trace(x, 1, 1, 2), lambda x: np.trace(x, 1, 1, 2), ((2, 3, 4),)
    ),
    "outer": Same(ops.outer, np.outer, ((2, 3), (4,))),
    "inner": Same(ops.inner, np.inner, ((2, 3), (4, 3))),
    "inner of vectors": Same(ops.inner, np.inner, ((3,), (3,))),
    "inner of scalars": Same(ops.inner, np.inner, ((), (3,))),
    "vdot": Same(ops.vdot, np.vdot, ((2, 3), (2, 3))),
    "kron": Same(ops.kron, np.kron, ((2, 3), (3, 2))),
    "kron of ranks": Same(ops.kron, np.kron, ((2,), (3, 1, 2))),
    "cross": Same(ops.cross, np.cross, ((2, 3), (2, 3))),
    "cross of axes": Same(
        lambda x, y: ops.cross(x, y, axis=0), lambda x, y: np.cross(x, y, axis=0), ((3, 2), (3, 2))
    ),
    "tensordot": Same(ops.tensordot, np.tensordot, ((2, 3, 4), (3, 4, 5))),
    "tensordot 0": Same(
        lambda x, y: ops.tensordot(x, y, 0), lambda x, y: np.tensordot(x, y, 0), ((2,), (3,))
    ),
    "tensordot pairs": Same(
        lambda x, y: ops.tensordot(x, y, ((2, 0), (1, 2))),
        lambda x, y: np.tensordot(x, y, ((2, 0), (1, 2))),
        ((2, 5, 4), (3, 4, 2)),
    ),
    "std": Same(ops.std, np.std, ((3, 4),)),
    "std ddof": Same(
        lambda x: ops.std(x, 1, True, 1),
        lambda x: np.std(x, axis=1, keepdims=True, ddof=1),
        ((3, 4),),
    ),
    "var ddof": Same(
        lambda x: ops.var(x, (0, 2), ddof=1), lambda x: np.var(x, (0, 2), ddof=1), ((2, 3, 4),)
    ),
    "median": Same(ops.median, np.median, ((3, 4),)),
    "median of axes": Same(
        lambda x: ops.median(x, (0, 2), True),
        lambda x: np.median(x, (0, 2), keepdims=True),
        ((3, 2, 3),),
    ),
    "quantile": Same(lambda x: ops.quantile(x, 0.3), lambda x: np.quantile(x, 0.3), ((3, 4),)),
    "quantiles": Same(
        lambda x: ops.quantile(x, [[0.0, 0.25], [0.9, 1.0]], 1),
        lambda x: np.quantile(x, [[0.0, 0.25], [0.9, 1.0]], 1),
        ((3, 7),),
    ),
    **{
        f"quantile {method}": Same(
            lambda x, m=method: ops.quantile(x, [0.1, 0.5], 0, True, m),
            lambda x, m=method: np.quantile(x, [0.1, 0.5], 0, keepdims=True, method=m),
            ((6, 2),),
            integers=method in ("linear", "midpoint"),
        )
        for method in ("linear", "lower", "higher", "nearest", "midpoint")
    },
    "percentile": Same(
        lambda x: ops.percentile(x, 40, -1), lambda x: np.percentile(x, 40, -1), ((3, 6),)
    ),
    "ptp": Same(lambda x: ops.ptp(x, 0), lambda x: np.ptp(x, 0), ((3, 4),)),
    "count_nonzero": Same(
        lambda x: ops.count_nonzero(x > 0, 1),
        lambda x: np.count_nonzero(x > 0, 1),
        ((3, 4),),
        gradient=False,
    ),
    "average": Same(ops.average, np.average, ((3, 4),)),
    "average of weights": Same(
        lambda x: ops.average(x, 1, np.arange(1.0, 5).astype(x.dtype)),
        lambda x: np.average(x, 1, np.arange(1.0, 5).astype(x.dtype)),
        ((3, 4),),
        integers=False,
    ),
    "average of all weights": Same(
        lambda x, w: ops.average(x, None, w * w),
        lambda x, w: np.average(x, None, w * w),
        ((3, 4),) * 2,
    ),
    "nansum": Same(lambda x: ops.nansum(x, 0), lambda x: np.nansum(x, 0), ((3, 4),)),
    "nanprod": Same(lambda x: ops.nanprod(x, 0), lambda x: np.nanprod(x, 0), ((3, 4),)),
    "nanmax": Same(lambda x: ops.nanmax(x, 1), lambda x: np.nanmax(x, 1), ((3, 4),)),
    "nanmin": Same(ops.nanmin, np.nanmin, ((3, 4),)),
    "nanvar": Same(lambda x: ops.nanvar(x, 0), lambda x: np.nanvar(x, 0), ((3, 4),)),
    "nanstd": Same(
        lambda x: ops.nanstd(x, (0, 2), True, 1),
        lambda x: np.nanstd(x, (0, 2), ddof=1, keepdims=True),
        ((3, 2, 4),),
    ),
    "nanmedian": Same(
        lambda x: ops.nanmedian(x, (0, 2)), lambda x: np.nanmedian(x, (0, 2)), ((3, 2, 3),)
    ),
    "nanquantile": Same(
        lambda x: ops.nanquantile(x, [0.3, 0.9], 1),
        lambda x: np.nanquantile(x, [0.3, 0.9], 1),
        ((3, 4),),
    ),
    "nanpercentile": Same(
        lambda x: ops.nanpercentile(x, 35.0), lambda x: np.nanpercentile(x, 35.0), ((3, 4),)
    ),
    "nancumsum": Same(ops.nancumsum, np.nancumsum, ((3, 4),)),
    "nancumprod": Same(lambda x: ops.nancumprod(x, 1), lambda x: np.nancumprod(x, 1), ((3, 4),)),
    "fmax": Same(ops.fmax, np.fmax, ((3, 4), (4,))),
    "fmin": Same(ops.fmin, np.fmin, ((3, 4), (3, 1))),
    "copysign": Same(ops.copysign, np.copysign, ((3, 4), (4,)), False),
    "logaddexp2": Same(ops.logaddexp2, np.logaddexp2, ((3, 4), (4,))),
    "deg2rad": Same(ops.deg2rad, np.deg2rad, ((3, 4),)),
    "rad2deg": Same(ops.rad2deg, np.rad2deg, ((3, 4),)),
    "append": Same(ops.append, np.append, ((3, 4), (2,))),
    "dstack": Same(lambda x, y: ops.dstack([x, y]), lambda x, y: np.dstack([x, y]), ((3,), (3,))),
    "column_stack": Same(
        lambda x, y: ops.column_stack([x, y]),
        lambda x, y: np.column_stack([x, y]),
        ((3,), (3, 2)),
    ),
    "hsplit": Same(lambda x: ops.hsplit(x, 2)[1], lambda x: np.hsplit(x, 2)[1], ((3, 4),)),
    "ediff1d": Same(
        lambda x: ops.ediff1d(x, 9, [8, 7]), lambda x: np.ediff1d(x, 9, [8, 7]), ((4,),), False
    ),
    **{
        f"correlate {mode}": Same(
            lambda x, y, m=mode: ops.correlate(x, y, m),
            lambda x, y, m=mode: np.correlate(x, y, m),
            shapes,
            integers=False,
        )
        for mode, shapes in (
            ("valid", ((5,), (3,))),
            ("full", ((3,), (5,))),
            ("same", ((4,), (3,))),
        )
    },
    "nanmean": Same(lambda x: ops.nanmean(x, 0), lambda x: np.nanmean(x, 0), ((3, 4),)),
    "cov": Same(ops.cov, np.cov, ((3, 5),)),
    "cov of columns": Same(
        lambda x: ops.cov(x, False, 0), lambda x: np.cov(x, rowvar=False, ddof=0), ((5, 2),)
    ),
    "cov of one": Same(ops.cov, np.cov, ((5,),)),
    "corrcoef": Same(ops.corrcoef, np.corrcoef, ((3, 5),)),
    "cumprod": Same(lambda x: ops.cumprod(x, 1), lambda x: np.cumprod(x, 1), ((3, 5),)),
    "cumprod flat": Same(ops.cumprod, np.cumprod, ((2, 3),)),
    "cumprod of none": Same(ops.cumprod, np.cumprod, ((0, 3),), gradient=False),
    "cummax": Same(lambda x: ops.cummax(x, 0), lambda x: np.maximum.accumulate(x, 0), ((7, 2),)),
    "cummin": Same(lambda x: ops.cummin(x, 1), lambda x: np.minimum.accumulate(x, 1), ((2, 6),)),
    "logcumsumexp": Same(
        lambda x: ops.logcumsumexp(x, 1), lambda x: np.logaddexp.accumulate(x, 1), ((2, 6),), False
    ),
    "repeat": Same(lambda x: ops.repeat(x, 2), lambda x: np.repeat(x, 2), ((2, 3),)),
    "repeat axis": Same(lambda x: ops.repeat(x, 3, 1), lambda x: np.repeat(x, 3, 1), ((2, 3),)),
    "repeats": Same(
        lambda x: ops.repeat(x, [2, 0, 1], -1), lambda x: np.repeat(x, [2, 0, 1], -1), ((2, 3),)
    ),
    "repeat 0": Same(
        lambda x: ops.repeat(x, 0, 0), lambda x: np.repeat(x, 0, 0), ((2, 3),), gradient=False
    ),
    "vstack": Same(lambda x, y: ops.vstack([x, y]), lambda x, y: np.vstack([x, y]), ((3,), (2, 3))),
    "hstack": Same(
        lambda x, y: ops.hstack([x, y]), lambda x, y: np.hstack([x, y]), ((2, 1), (2, 3))
    ),
    "hstack of lines": Same(
        lambda x, y: ops.hstack([x, y]), lambda x, y: np.hstack([x, y]), ((), (2,))
    ),
    "atleast_1d": Same(ops.atleast_1d, np.atleast_1d, ((),)),
    "atleast_2d": Same(ops.atleast_2d, np.atleast_2d, ((3,),)),
    "atleast_3d": Same(ops.atleast_3d, np.atleast_3d, ((3, 2),)),
    "atleast_3d of a line": Same(ops.atleast_3d, np.atleast_3d, ((3,),)),
    "diff": Same(ops.diff, np.diff, ((3, 4),)),
    "diff 2": Same(lambda x: ops.diff(x, 2, 0), lambda x: np.diff(x, 2, 0), ((4, 2),)),
    "diff of bools": Same(
        lambda x: ops.diff(x > 0), lambda x: np.diff(x > 0), ((9,),), gradient=False
    ),
    "gradient": Same(ops.gradient, np.gradient, ((5,),)),
    "gradient axis": Same(
        lambda x: ops.gradient(x, 0.5, axis=1), lambda x: np.gradient(x, 0.5, axis=1), ((2, 5),)
    ),
    "gradient of places": Same(
        lambda x: ops.gradient(x, EDGES), lambda x: np.gradient(x, EDGES), ((4,),)
    ),
    "gradient of two": Same(
        lambda x: ops.gradient(x, 2.0, EDGES)[1], lambda x: np.gradient(x, 2.0, EDGES)[1], ((3, 4),)
    ),
    "trapezoid": Same(ops.trapezoid, np.trapezoid, ((3, 4),)),
    "trapezoid of places": Same(
        lambda x: ops.trapezoid(x, EDGES, axis=0),
        lambda x: np.trapezoid(x, EDGES, axis=0),
        ((4, 2),),
    ),
    "convolve": Same(ops.convolve, np.convolve, ((7,), (3,)), False),
    "convolve same": Same(
        lambda x, y: ops.convolve(x, y, "same"),
        lambda x, y: np.convolve(x, y, "same"),
        ((3,), (6,)),
        False,
    ),
    "convolve valid": Same(
        lambda x, y: ops.convolve(x, y, "valid"),
        lambda x, y: np.convolve(x, y, "valid"),
        ((7,), (4,)),
        False,
    ),
    **{
        f"rot90 {k}": Same(
            lambda x, k=k: ops.rot90(x, k, (2, 0)),
            lambda x, k=k: np.rot90(x, k, (2, 0)),
            ((2, 3, 4),),
        )
        for k in (-1, 0, 1, 2, 3)
    },
    "pad replicate": Same(
        lambda x: ops.pad(x, (2, 1), "replicate"), lambda x: np.pad(x, (2, 1), "edge"), ((2, 3),)
    ),
    "pad circular": Same(
        lambda x: ops.pad(x, (2, 1), "circular"), lambda x: np.pad(x, (2, 1), "wrap"), ((2, 3),)
    ),
    "searchsorted": Same(
        lambda v: ops.searchsorted(EDGES.astype(v.dtype), v),
        lambda v: np.searchsorted(EDGES.astype(v.dtype), v),
        ((3, 4),),
        gradient=False,
    ),
    "searchsorted right": Same(
        lambda v: ops.searchsorted(EDGES, v, "right"),
        lambda v: np.searchsorted(EDGES, v, "right"),
        ((),),
        gradient=False,
    ),
    "digitize": Same(
        lambda x: ops.digitize(x, EDGES), lambda x: np.digitize(x, EDGES), ((9,),), gradient=False
    ),
    "digitize right": Same(
        lambda x: ops.digitize(x, EDGES[::-1], True),
        lambda x: np.digitize(x, EDGES[::-1], True),
        ((9,),),
        gradient=False,
    ),
    "interp": Same(
        lambda x, f: ops.interp(x, EDGES, f),
        lambda x, f: np.interp(x, EDGES, f),
        ((3, 4), (4,)),
    ),
    "interp of bounds": Same(
        lambda x: ops.interp(x, EDGES, EDGES**2, left=-5.0, right=7.0),
        lambda x: np.interp(x, EDGES, EDGES**2, left=-5.0, right=7.0),
        ((3, 4),),
    ),
    "partition": Same(lambda x: ops.partition(x, 2), lambda x: np.sort(x), ((3, 5),)),
    "histogram": Same(
        lambda x: ops.histogram(x, 5)[0], lambda x: np.histogram(x, 5)[0], ((40,),), gradient=False
    ),
    "histogram edges": Same(
        lambda x: ops.histogram(x, 5)[1], lambda x: np.histogram(x, 5)[1], ((40,),), False
    ),
    "histogram of edges": Same(
        lambda x: ops.histogram(x, EDGES)[0],
        lambda x: np.histogram(x, EDGES)[0],
        ((9, 5),),
        gradient=False,
    ),
    "histogram range": Same(
        lambda x: ops.histogram(x, 4, (-1.0, 1.0), density=True)[0],
        lambda x: np.histogram(x, 4, (-1.0, 1.0), density=True)[0],
        ((50,),),
        gradient=False,
    ),
    "meshgrid": Same(
        lambda x, y: ops.meshgrid(x, y)[0], lambda x, y: np.meshgrid(x, y)[0], ((3,), (4,))
    ),
    "meshgrid ij": Same(
        lambda x, y, z: ops.meshgrid(x, y, z, indexing="ij")[1],
        lambda x, y, z: np.meshgrid(x, y, z, indexing="ij")[1],
        ((3,), (4,), ()),
    ),
    "meshgrid sparse": Same(
        lambda x, y: ops.meshgrid(x, y, sparse=True)[1],
        lambda x, y: np.meshgrid(x, y, sparse=True)[1],
        ((3,), (4,)),
    ),
    "linspace": Same(
        lambda x, y: ops.linspace(x, y, 7), lambda x, y: np.linspace(x, y, 7), ((), ()), False
    ),
    "array_split": Same(
        lambda x: ops.array_split(x, 3, 1)[0], lambda x: np.array_split(x, 3, 1)[0], ((2, 7),)
    ),
    "array_split at": Same(
        lambda x: ops.array_split(x, [2, 3])[1], lambda x: np.array_split(x, [2, 3])[1], ((7,),)
    ),
}


def drawn(dtype: Any, shapes: tuple[tuple[int, ...], ...]) -> list[Array]:
    """Return numbers in [-2, 2]. Floats are all different."""
    rng = np.random.default_rng(5)
    if np.dtype(dtype).kind == "i":
        return [np.asarray(rng.integers(-3, 4, shape), dtype) for shape in shapes]
    return [
        np.asarray(rng.permutation(np.linspace(-2, 1.9, math.prod(shape))).reshape(shape), dtype)
        for shape in shapes
    ]


CASES = [
    (name, dtype)
    for name, same in SAME.items()
    for dtype in (float32, float64, *([int32] if same.integers else []))
]


@pytest.mark.parametrize(("name", "dtype"), CASES, ids=str)
def test_values_equal_numpy(name: str, dtype: Any, run: Runner) -> None:
    same = SAME[name]
    arrays = drawn(dtype, same.shapes)
    with np.errstate(all="ignore"):
        expected = np.asarray(same.theirs(*arrays))
    inputs = placeholders([Type(a.dtype, a.shape) for a in arrays])
    (found,) = run(inputs, [same.ours(*inputs)], arrays)
    assert found.shape == expected.shape
    assert found.dtype.kind == expected.dtype.kind
    tolerance = 1e-5 if dtype == float32 else 1e-12
    npt.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", [name for name, same in SAME.items() if same.gradient])
def test_gradients_equal_finite_differences(name: str) -> None:
    same = SAME[name]
    arrays = drawn(float64, same.shapes)
    inputs = placeholders([Type(a.dtype, a.shape) for a in arrays])
    y = same.ours(*inputs)
    seed = np.random.default_rng(6).uniform(-1, 1, y.shape)
    loss = ops.sum(y * seed)
    slopes = run_reference(inputs, grad(loss, inputs, unused="zero"), arrays)
    for number, slope in enumerate(slopes):
        for place in range(arrays[number].size):
            ends = []
            for sign in (1, -1):
                changed = [a.copy() for a in arrays]
                changed[number].reshape(-1)[place] += sign * 1e-6
                ends.append(float(np.sum(np.asarray(same.theirs(*changed)) * seed)))
            wanted = (ends[0] - ends[1]) / 2e-6
            npt.assert_allclose(slope.reshape(-1)[place], wanted, rtol=2e-5, atol=2e-6)


def value(node: Node) -> Array:
    """Return the value of a node that needs no input."""
    found: Array = run_reference([], [node], [])[0]
    return found


def test_functions_of_nan_and_infinity_follow_numpy() -> None:
    x = np.array([1.0, np.nan, np.inf, -np.inf], float32)
    assert value(ops.isnan(x)).tolist() == [False, True, False, False]
    assert value(ops.isinf(x)).tolist() == [False, False, True, True]
    assert value(ops.isfinite(x)).tolist() == [True, False, False, False]
    npt.assert_array_equal(value(ops.nan_to_num(x)), np.nan_to_num(x))
    npt.assert_array_equal(value(ops.nan_to_num(x, 2, 3, 4)), [1, 2, 3, 4])
    assert math.isnan(value(ops.heaviside(x, 0.5))[1])
    assert value(ops.nansum(x[:2])) == 1
    assert value(ops.nanmean(x[:2])) == 1
    assert math.isnan(float(value(ops.nanmean(x[1:2]))))
    assert math.isnan(float(value(ops.median(x))))
    assert np.isnan(value(ops.quantile(x[:, None], [0.1, 0.2], 0))).all()
    assert value(ops.cummax(x))[:1] == 1
    places = value(ops.searchsorted([0.0, 1.0, np.nan], [np.nan, 0.5]))
    assert places.tolist() == np.searchsorted([0.0, 1.0, np.nan], [np.nan, 0.5]).tolist()
    assert value(ops.logaddexp([np.inf, -np.inf], [np.inf, -np.inf])).tolist() == [np.inf, -np.inf]


def test_chunk_and_unbind_follow_torch() -> None:
    x = np.arange(7.0)
    assert [value(p).tolist() for p in ops.chunk(x, 3)] == [[0, 1, 2], [3, 4, 5], [6]]
    assert len(ops.chunk(x, 6)) == 4
    assert [value(p).tolist() for p in ops.unbind(np.eye(2), 1)] == [[1, 0], [0, 1]]
    assert len(ops.unbind(np.ones((0, 2)))) == 0


def test_eye_and_linspace_equal_numpy() -> None:
    for arguments in ((3,), (2, 4), (4, 2, -1), (3, 3, 2), (0, 2), (2, 2, 5)):
        npt.assert_array_equal(value(ops.eye(*arguments)), np.eye(*arguments, dtype=float32))
    assert value(ops.eye(2, dtype=bool)).tolist() == [[True, False], [False, True]]
    for arguments in ((0, 1, 5), (1, 0, 2), (3, 3, 1), (0, 1, 0), (0, 1, 4, False)):
        expected = np.linspace(*arguments).astype(float32)
        npt.assert_array_equal(value(ops.linspace(*arguments)), expected)
    assert value(ops.linspace(0, 10, 3, dtype=int32)).tolist() == [0, 5, 10]


def test_bincount_equals_numpy_and_checks_its_indices(run: Runner) -> None:
    (x,) = placeholders([Type(int32, (5,))])
    given = np.array([3, 0, 3, 1, 3], int32)
    weights = np.arange(5.0)
    found = run([x], [ops.bincount(x, 5), ops.bincount(x, 4, weights)], [given])
    assert found[0].tolist() == [1, 1, 0, 3, 0]
    npt.assert_array_equal(found[1], np.bincount(given, weights))
    for bad in (5, -1):
        with pytest.raises(OutOfRangeError, match=r"bincount: expected an index in \[0, 5\)"):
            run([x], [ops.bincount(x, 5)], [np.full(5, bad, int32)])


MESSAGES: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: ops.select([], []), ShapeError, "select: expected a choice for each"),
    (lambda: ops.linspace(0, [1.0, 2.0]), ShapeError, "linspace: expected stop as a scalar"),
    (lambda: ops.linspace(0, 1, -1), ShapeError, "linspace: expected num >= 0; got -1"),
    (lambda: ops.eye(-1), ShapeError, "eye: expected extents >= 0"),
    (lambda: ops.meshgrid([[1]]), ShapeError, "meshgrid: expected tensors of one axis"),
    (lambda: ops.meshgrid([1], indexing="yx"), ValueError, "meshgrid: expected indexing"),
    (lambda: ops.diagonal([1]), ShapeError, "diagonal: expected at least two axes"),
    (lambda: ops.diagonal([[1]], 0, 1, -1), ShapeError, "diagonal: expected two axes that differ"),
    (lambda: ops.diag([[[1]]]), ShapeError, "diag: expected one axis or two"),
    (lambda: ops.trace([1]), ShapeError, "trace: expected at least two axes"),
    (lambda: ops.inner([1, 2], [1]), ShapeError, "inner: expected last axes of one extent"),
    (lambda: ops.vdot([1, 2], [1]), ShapeError, "vdot: expected equal numbers of elements"),
    (lambda: ops.cross([1, 2], [1, 2]), ShapeError, "cross: expected extent 3 along axis -1"),
    (lambda: ops.tensordot([1, 2], [1]), ShapeError, "tensordot: expected axes in both; got 2"),
    (lambda: ops.tensordot([1, 2], [1], 1), ShapeError, "tensordot: expected axes of equal"),
    (lambda: ops.quantile([1.0], 1.5), ValueError, "quantile: expected q in"),
    (lambda: ops.quantile([1.0], 0.5, method="x"), ValueError, "quantile: expected a method"),
    (lambda: ops.median(np.ones((2, 0)), 1), ShapeError, "median: expected at least one element"),
    (lambda: ops.average([1.0], weights=[[1.0]]), ShapeError, "average: expected weights of"),
    (lambda: ops.average([1.0], 0, [1.0, 2]), ShapeError, "average: expected 1 weights"),
    (lambda: ops.cov(np.ones((1, 1, 1))), ShapeError, "cov: expected one axis or two"),
    (lambda: ops.repeat([1, 2], -1), ShapeError, "repeat: expected a number >= 0"),
    (lambda: ops.repeat([1, 2], ops.arange(2)), ShapeError, "repeat: expected numbers that are"),
    (lambda: ops.hstack([]), ShapeError, "hstack: expected at least one tensor"),
    (lambda: ops.array_split([1], 0), ShapeError, "array_split: expected at least one part"),
    (lambda: ops.chunk([1], 0), ShapeError, "chunk: expected at least one part"),
    (lambda: ops.diff([1], -1), ValueError, "diff: expected n >= 0; got -1"),
    (lambda: ops.gradient([1.0]), ShapeError, "gradient: expected two elements along axis 0"),
    (lambda: ops.gradient([1.0, 2], 1, 2), ShapeError, "gradient: expected a spacing for each"),
    (lambda: ops.convolve([], [1.0]), ShapeError, "convolve: expected two tensors of one axis"),
    (lambda: ops.convolve([1.0], [1.0], "x"), ValueError, "convolve: expected mode full"),
    (lambda: ops.rot90([[1]], 1, (0, 0)), ShapeError, "rot90: expected two axes that differ"),
    (lambda: ops.searchsorted([[1]], 1), ShapeError, "searchsorted: expected the sorted tensor"),
    (lambda: ops.searchsorted([1], 1, "up"), ValueError, "searchsorted: expected side"),
    (lambda: ops.bincount([1.0], 3), DTypeError, "bincount: expected integer indices"),
    (lambda: ops.bincount([1], 3, [1, 2]), ShapeError, "bincount: expected a weight for each"),
    (lambda: ops.interp([1.0], [1.0, 2], [1.0]), ShapeError, "interp: expected a value for each"),
    (lambda: ops.partition([1, 2], 2), ShapeError, r"partition: expected kth in \[-2, 2\); got 2"),
    (lambda: ops.histogram([1.0], "auto"), ValueError, "histogram: expected a number of bins"),
]


@pytest.mark.parametrize(("call", "error", "message"), MESSAGES, ids=lambda v: str(v)[:40])
def test_bad_arguments_raise_errors(
    call: Callable[[], Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=f"^{message}"):
        call()


def test_numpy_functions_accept_nodes() -> None:
    given = np.random.default_rng(0).uniform(-0.9, 0.9, (3, 3))
    x = ops.as_node(given)
    for function in (
        *(np.tan, np.arctan, np.arcsin, np.arccos, np.sinh, np.cosh, np.arcsinh, np.arctanh),
        *(np.exp2, np.cbrt, np.sinc, np.trunc, np.isnan, np.isfinite, np.nan_to_num),
        *(np.std, np.median, np.ptp, np.count_nonzero, np.average, np.nansum, np.nanmean),
        *(np.cumprod, np.diagonal, np.diag, np.trace, np.diff, np.rot90, np.cov, np.corrcoef),
        *(np.atleast_3d, np.trapezoid),
    ):
        npt.assert_allclose(value(function(x)), function(given), rtol=1e-12, atol=1e-15)
    for function in (
        np.arctan2,
        np.hypot,
        np.fmod,
        np.logaddexp,
        np.outer,
        np.inner,
        np.kron,
        np.cross,
    ):
        npt.assert_allclose(value(function(x, given[0])), function(given, given[0]), rtol=1e-12)
    npt.assert_allclose(value(x.std(0, ddof=1)), given.std(0, ddof=1))
    npt.assert_allclose(value(x.repeat(2, 1)), given.repeat(2, 1))
    npt.assert_allclose(value(x.dot(given)), given.dot(given))
    npt.assert_allclose(value(x.trace()), given.trace())
    with pytest.raises(
        TypeError,
        match=r"numpy.unique: expected arrays; got a Node.* no op: its shape",
    ):
        np.unique(x)
    with pytest.raises(
        TypeError, match=r"decompositions of matrices\. .*See https://.*/limitations"
    ):
        np.linalg.inv(x)


NAN, INF = np.nan, np.inf
HOLES = np.array([[1.0, NAN, -3.0], [NAN, NAN, NAN], [INF, 2.0, -INF]])
WHOLE = np.array([[15, -25, 34], [7, 0, -1]])
SINCE_2_1 = {
    "unstack": lambda np_, x: np_.unstack(x, axis=1),
    "cumulative_sum": lambda np_, x: np_.cumulative_sum(x, axis=1),
    "cumulative_sum initial": lambda np_, x: np_.cumulative_sum(
        x, axis=-2, include_initial=True, dtype=float64
    ),
    "cumulative_prod": lambda np_, x: np_.cumulative_prod(x, axis=0, include_initial=True),
    "cumulative_prod line": lambda np_, x: np_.cumulative_prod(np_.ravel(x)),
}
COMPOSED: dict[str, Callable[[Any], Any]] = {
    "amax": lambda x: np.amax(x, axis=1),
    "amin": lambda x: np.amin(x, axis=0, keepdims=True),
    "around": lambda x: np.around(x / 7, 2),
    "around halves": lambda x: np.around(x / 2),
    "around tens": lambda x: np.around(x, decimals=-1),
    "round": lambda x: np.round(x, 1),
    "flipud": np.flipud,
    "fliplr": np.fliplr,
    "isclose": lambda x: np.isclose(x, x + 1e-6),
    "isclose of others": lambda x: np.isclose(x, 7.05, rtol=0.01, atol=0.0),
    "isclose nan": lambda x: np.isclose(x, x[::-1][::-1], equal_nan=True),
    "column_stack": lambda x: np.column_stack([x[0], x, x[1]]) if len(x) == 3 else x,
    "dstack": lambda x: np.dstack([x, x * 2]),
    "dstack of lines": lambda x: np.dstack([x[0], x[1]]),
    "isin": lambda x: np.isin(x, [7, 15, 2]),
    "isin invert": lambda x: np.isin(x, x[0], invert=True),
    "nanmax": np.nanmax,
    "nanmax axis": lambda x: np.nanmax(x, 1, keepdims=True),
    "nanmin axis": lambda x: np.nanmin(x, axis=0),
    "matrix_transpose": np.matrix_transpose,
    "matrix_transpose of linalg": lambda x: np.linalg.matrix_transpose(x),
    "empty_like": lambda x: np.empty_like(x).shape,
    "copy": np.copy,
    "block": lambda x: np.block([[x, x[:, :1]], [x[0], x[1, 0]]]),
    "block of rows": lambda x: np.block([[x[0], x[1, :2]], [x[1, 1:], x[0]]]),
    "delete": lambda x: np.delete(x, 1),
    "delete axis": lambda x: np.delete(x, [0, -1], axis=1),
    "delete slice": lambda x: np.delete(x, np.s_[::2], axis=0),
    "rollaxis": lambda x: np.rollaxis(x[..., None], 2, 1),
    "rollaxis to the front": lambda x: np.rollaxis(x, 1),
    "diagflat": lambda x: np.diagflat(x[:, :2], 1),
    "polyval": lambda x: np.polyval(x[:, 0] * 0 + 2, x),
    "fix": np.fix,
    "nanprod": lambda x: np.nanprod(x, 0),
    "nanvar": lambda x: np.nanvar(x / 3, ddof=1),
    "nanvar axis": lambda x: np.nanvar(x[:2], 1, keepdims=True),
    "nanstd": lambda x: np.nanstd(x[:2], 0),
    "nanstd of few": lambda x: np.nanstd(x[:2], 1, ddof=2),
    "nanargmax": lambda x: np.nanargmax(x[::2], 1),
    "nanargmin": lambda x: np.nanargmin(x),
    "nanmedian": lambda x: np.nanmedian(x[:2]),
    "nanmedian axis": lambda x: np.nanmedian(x[:2], 1, keepdims=True),
    "nanquantile": lambda x: np.nanquantile(
        x[:2].astype(float64), [[0.2, 0.5], [0.0, 1.0]], axis=1
    ),
    "nanquantile of columns": lambda x: np.nanquantile(x[:2], 0.3, 0, keepdims=True),
    **{
        f"nanpercentile {method}": lambda x, m=method: np.nanpercentile(x[:2] / 2, 40, method=m)
        for method in ("lower", "higher", "nearest", "midpoint")
    },
    "nancumsum": np.nancumsum,
    "nancumprod": lambda x: np.nancumprod(x, 1),
    "fmax": lambda x: np.fmax(x, x[::-1]),
    "fmin": lambda x: np.fmin(x[0], x),
    "signbit": lambda x: np.signbit(np.nan_to_num(x)),
    "signbit of zeros": lambda x: np.signbit(np.sign(np.nan_to_num(x)) * 0.0),
    "copysign": lambda x: np.copysign(x, np.array([-0.0, 3, -1], float32)),
    "hsplit": lambda x: tuple(np.hsplit(x, 3)),
    "hsplit of a line": lambda x: tuple(np.hsplit(x[0], [1])),
    "vsplit": lambda x: tuple(np.vsplit(x, [1, 2])),
    "dsplit": lambda x: tuple(np.dsplit(x[None], [2])),
    "append": lambda x: np.append(x, x[0]),
    "append axis": lambda x: np.append(x, x[:1], axis=0),
    "ediff1d": np.ediff1d,
    "ediff1d ends": lambda x: np.ediff1d(x, x[0, :1], x[0, 1:]),
    "deg2rad": np.deg2rad,
    "radians": np.radians,
    "rad2deg": np.rad2deg,
    "degrees": np.degrees,
    "conjugate": np.conj,
    "logaddexp2": lambda x: np.logaddexp2(x, 2.0 * x[0]),
    "maximum.accumulate": np.maximum.accumulate,
    "minimum.accumulate": lambda x: np.minimum.accumulate(x, axis=1),
    "add.accumulate": lambda x: np.add.accumulate(x, axis=-1),
    "multiply.accumulate": np.multiply.accumulate,
    "add.reduce": np.add.reduce,
    "multiply.reduce": lambda x: np.multiply.reduce(x, axis=1, keepdims=True),
    "maximum.reduce": lambda x: np.maximum.reduce(x, axis=None),
    "minimum.reduce": np.minimum.reduce,
    "logical_or.reduce": lambda x: np.logical_or.reduce(x > 0, axis=1),
    "logical_and.reduce": lambda x: np.logical_and.reduce(x < 99),
    "logaddexp.reduce": lambda x: np.logaddexp.reduce(x * 1.0, axis=1, keepdims=True),
    "logaddexp.accumulate": lambda x: np.logaddexp.accumulate(x * 1.0),
    "multiply.outer": lambda x: np.multiply.outer(x, x[1]),
    "broadcast_arrays": lambda x: np.broadcast_arrays(x, x[:1], 2.0),
    **{
        name: lambda x, call=call: call(np, x)
        for name, call in SINCE_2_1.items()
        if hasattr(np, name.split()[0])
    },
}


@pytest.mark.filterwarnings("ignore:All-NaN", "ignore:invalid value", "ignore:Degrees of")
@pytest.mark.parametrize("given", [HOLES, WHOLE, HOLES.astype(float32)], ids=["f64", "i64", "f32"])
@pytest.mark.parametrize("name", list(COMPOSED))
def test_functions_composed_of_others_equal_numpy(name: str, given: Array) -> None:
    call = COMPOSED[name]
    expected, found = call(given), call(ops.as_node(given))
    if name == "empty_like":
        assert found == expected
        return
    pairs = [(expected, found)]
    if isinstance(found, tuple):
        pairs = list(zip(expected, found, strict=True))
    for wanted, node in pairs:
        assert node.dtype == np.asarray(wanted).dtype
        npt.assert_allclose(value(node), wanted, rtol=1e-6 if given.dtype == float32 else 1e-12)


def test_functions_composed_of_others_reject_too_few_axes() -> None:
    line = ops.as_node(np.ones(3))
    for function, name in ((np.fliplr, "fliplr"), (np.matrix_transpose, "numpy.matrix_transpose")):
        with pytest.raises(ShapeError, match=rf"^{name}: expected at least 2 axes; got float64"):
            function(line)
    with pytest.raises(ShapeError, match=r"^flipud: expected at least one axis; got float64\[\]"):
        np.flipud(line[0])
    with pytest.raises(ShapeError, match=r"^numpy.block: expected lists .* one depth"):
        np.block([[line], line])
    with pytest.raises(ShapeError, match=r"^numpy.delete: expected indices that are known"):
        np.delete(line, ops.arange(2))
    with pytest.raises(ShapeError, match=r"^numpy.polyval: expected p of one axis"):
        np.polyval(line[0], line)
    if hasattr(np, "cumulative_sum"):
        with pytest.raises(ShapeError, match=r"numpy.cumulative_sum: expected an axis"):
            np.cumulative_sum(ops.as_node(np.ones((2, 2))))


def test_nan_functions_of_rows_of_nan_follow_numpy() -> None:
    x = np.array([[NAN, NAN], [NAN, 3.0]])
    assert value(ops.nanargmax(x, 1)).tolist() == [-1, 1]
    assert value(ops.nanargmin(x)) == 3
    for function in (ops.nanmax, ops.nanmedian, ops.nanmean, ops.nanvar):
        found = value(function(x, 1))
        assert np.isnan(found[0])
        assert found[1] == (0 if function is ops.nanvar else 3)
    given = ngd.placeholder("x", (2, 2), "float64")
    loss = ops.sum(ops.nan_to_num(ops.nanstd(given, 1) + ops.nanvar(given, 1)))
    (slope,) = run_reference([given], grad(loss, [given]), [x])
    assert slope.tolist() == [[0, 0], [0, 0]]


def test_weights_of_a_histogram_have_the_shape_of_x() -> None:
    given, weights = np.arange(6.0).reshape(2, 3), np.arange(1.0, 7.0).reshape(2, 3)
    found = value(ops.histogram(given, 2, weights=weights)[0])
    npt.assert_array_equal(found, np.histogram(given, 2, weights=weights)[0])
    for bad_weights in (np.ones(1), np.ones(6), np.ones((2, 1))):
        with pytest.raises(ShapeError, match=r"^histogram: expected a weight for each element"):
            ops.histogram(given, 2, weights=bad_weights)


def test_fmod_of_the_smallest_integer_and_of_negative_zero_equals_numpy() -> None:
    smallest = np.iinfo(np.int64).min
    first, second = (
        np.array([smallest, smallest, 7, -7, 7, -6]),
        np.array([3, -3, smallest, 3, -3, 3]),
    )
    npt.assert_array_equal(value(ops.fmod(first, second)), np.fmod(first, second))
    small = np.arange(-128, 128).astype(np.int8)
    pairs = small[:, None], small[small != 0]
    npt.assert_array_equal(value(ops.fmod(*pairs)), np.fmod(*pairs))
    floats = (
        np.array([-0.0, 0.0, -4.0, 4.0, -5.5, -1e-20]),
        np.array([2.0, 2.0, 2.0, -2.0, 2.0, 1.0]),
    )
    result, expected = value(ops.fmod(*floats)), np.fmod(*floats)
    npt.assert_array_equal(result, expected)
    npt.assert_array_equal(np.signbit(result), np.signbit(expected))


def test_gradients_of_composed_functions_equal_literals() -> None:
    x = ngd.placeholder("x", (2, 3), "float64")
    loss = np.nanmax(x) + ops.sum(np.isclose(x, 1.0) * x) + ops.sum(np.flipud(x)[0])
    (slope,) = run_reference([x], grad(loss, [x]), [np.array([[1.0, 5.0, 2.0], [0.0, NAN, 3.0]])])
    assert slope.tolist() == [[1, 1, 0], [1, 1, 1]]
