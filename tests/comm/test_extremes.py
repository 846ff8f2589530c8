# SPDX-License-Identifier: Apache-2.0
"""Tests of means of the largest floats, and of weights far outside their range."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import ngd
from ngd import ops
from tests.support import harness
from tests.support.harness import run
from tests.support.standing import run_in_world

each_world = pytest.mark.parametrize(("communicator", "ranks"), harness.worlds())


def check_means_of_the_largest() -> None:
    """Check means of the largest floats in every algorithm except the ring.

    These are the flag, the staging buffer, in place, in chunks, and in a step.
    """
    world = ngd.init()
    n, r = world.size, world.rank
    for dtype, count in itertools.product(("f4", "f8", ngd.bfloat16, "f2"), (n, 60_000 * n)):
        most = np.array(np.inf, dtype)
        most = np.nextafter(most, most.dtype.type(0)) if dtype is not ngd.bfloat16 else BFLOAT16
        close = 0.0 if np.dtype(dtype).itemsize < 8 else 1e-15  # float64 has no wider dtype
        for sign in (1, -1):
            mine = np.full(count, sign * most, dtype)
            mine[1::2] *= (-1) ** r
            if n % 2 == 0:
                expected = np.where(np.arange(count) % 2, 0.0, sign * float(most))
            else:
                expected = np.where(
                    np.arange(count) % 2, sign * float(most) / n, sign * float(most)
                )
            expected = expected.astype(np.float32).astype(dtype) if mine.itemsize < 4 else expected
            expected = expected.astype(dtype).astype(np.float64)
            results = [ngd.all_reduce(mine, op="mean"), ngd.reduce(mine, op="mean")]
            results.append(ngd.all_reduce(mine.copy(), op="mean", out=mine.copy()))
            results.append(ngd.all_reduce([mine, mine[:n]], op="mean")[0])
            results.append(ngd.all_gather(ngd.reduce_scatter(mine, op="mean")))
            x = ngd.placeholder("x", (count,), dtype)
            for device in ("CPU", "INTERPRETER"):
                step = ngd.compile([x], [ops.all_reduce(x, op="mean")], device=device)
                results.append(step(mine)[0])
            for number, result in enumerate(results):
                if result is not None:
                    got = result.astype(np.float64)
                    good = np.isclose(got, expected, rtol=close, atol=0)
                    assert good.all(), (dtype, count, sign, number, got[~good], expected[~good])
    mixed = np.float32([np.inf, np.nan, 3e38 if r else np.inf, -np.inf if r else 3e38])
    got = ngd.all_reduce(mixed, op="mean")
    assert got[0] == np.inf
    assert np.isnan(got[1])
    assert got[2] == np.inf
    assert got[3] == (-np.inf if n > 1 else np.float32(3e38))


BFLOAT16 = np.array(0x7F7F, np.uint16).view(ngd.bfloat16)[()]
"""The largest bfloat16."""


@each_world
def test_a_mean_of_the_largest_numbers_is_finite(communicator: str, ranks: int) -> None:
    run_in_world(check_means_of_the_largest, communicator, ranks)


def mean_between_numa_nodes() -> None:
    rank = ngd.init().rank
    import os

    ngd.shutdown()
    os.environ["NGD_NUMA_NODE"] = str(rank // 2)
    check_means_of_the_largest()


@harness.needs_ranks
def test_means_between_numa_nodes_are_finite() -> None:
    run(mean_between_numa_nodes, 4)


def weighted_means(values: list[float], weights: list[float], dtype: str) -> list[float]:
    """Return a weighted mean of an array, of a list, and of steps on both devices."""
    world = ngd.init()
    value = np.full(3, values[world.rank], dtype)
    weight = weights[world.rank]
    plain = ngd.all_reduce(value, op="mean", weight=weight)
    listed = ngd.all_reduce([np.ones(2, dtype), value], op="mean", weight=weight)[1]
    results = [plain, listed]
    x, w = ngd.placeholder("x", (3,), dtype), ngd.placeholder("w", (), np.float64)
    for device in ("CPU", "INTERPRETER"):
        step = ngd.compile([x, w], [ops.all_reduce(x, op="mean", weight=w)], device=device)
        results.append(step(value, np.float64(weight))[0])
    everyones = [ngd.all_gather(result).tobytes() for result in results]
    assert len(set(everyones)) == 1, results
    assert (
        len({everyones[0][i : i + value.nbytes] for i in range(0, world.size, value.nbytes)}) == 1
    )
    return [float(result[0]) for result in results]


def exact_mean(values: list[float], weights: list[float], dtype: str) -> float:
    """Return the weighted mean, computed with fractions."""
    total = sum(map(Fraction, weights))
    products = (
        Fraction(float(np.dtype(dtype).type(v))) * Fraction(w)
        for v, w in zip(values, weights, strict=True)
    )
    return float(sum(products) / total) if total else 0.0


MOST32, MOST64 = float(np.finfo("f4").max), float(np.finfo("f8").max)
CASES: list[tuple[list[float], list[float], str]] = [
    ([1.0, 2.0, 4.0], [1e39, 1e39, 2e39], "f4"),
    ([1.0, 2.0, 4.0], [1e-46, 3e-46, 1e-46], "f4"),
    ([1.0, 2.0, 4.0], [1e308, 1.7e308, 1.6e308], "f4"),
    ([1.0, 2.0, 4.0], [5e-324, 1e-323, 5e-324], "f8"),
    ([1.0, 2.0, 4.0], [5e-324, 1e308, 5e-324], "f8"),
    ([1.0, 2.0, 4.0], [1e-300, 1e-320, 1e-300], "f4"),
    ([MOST32] * 3, [1.0, 1.0, 1.0], "f4"),
    ([-MOST32] * 3, [1.0, 0.1, 7.3], "f4"),
    ([MOST64] * 3, [3.0, 0.7, 1e5], "f8"),
    ([MOST64, -MOST64, MOST64], [1e300, 1e300, 1e300], "f8"),
    ([1e-30, 3e-30, 2e-30], [1e-46, 1e-46, 1e-46], "f4"),
    ([65504.0] * 3, [1e30, 1e30, 1e-30], "f2"),
    ([1.0, 2.0, 4.0], [3.0, 5.0, 0.0], "f4"),
    ([1.0, 2.0, 4.0], [0.0, 0.0, 0.0], "f4"),
]


@each_world
def test_only_the_ratios_of_weights_matter(communicator: str, ranks: int) -> None:
    for values, weights, dtype in CASES:
        values, weights = values[:ranks] + values[:1] * (ranks - 3), weights[:ranks]
        weights += [weights[0]] * (ranks - 3)
        arguments: dict[str, Any] = {"values": values, "weights": weights, "dtype": dtype}
        expected = exact_mean(values, weights, dtype)
        tolerance = {"f2": 1e-3, "f4": 4e-7, "f8": 1e-15}[dtype]
        for outcome in run_in_world(weighted_means, communicator, ranks, **arguments):
            got = outcome.value
            np.testing.assert_allclose(got, expected, rtol=tolerance, err_msg=str(arguments))
