# SPDX-License-Identifier: Apache-2.0
"""Tests of random distributions: bounds, moments, and equal draws on all devices."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.testing as npt
import pytest

from ngd import ops
from ngd.dtypes import Array, bool_, float16, float32, float64, int8, int32, int64, uint64
from ngd.errors import DTypeError, ShapeError
from ngd.graph.node import Node
from tests.ops.conftest import Runner

N = 20_000


def draw(run: Runner, node: Node) -> Array:
    (found,) = run([], [node], [])
    return found


def test_randint_is_uniform_in_its_bounds(run: Runner) -> None:
    found = draw(run, ops.randint(N, -3, 7, int32, seed=1))
    assert found.dtype == int32
    counts = np.bincount(found + 3, minlength=10)
    assert counts.size == 10
    assert np.abs(counts - N / 10).max() < 6 * math.sqrt(N * 0.09)
    assert set(draw(run, ops.randint((3, 4), 5, 6, seed=1)).ravel()) == {5}
    large = draw(run, ops.randint(N, 0, 2**64, uint64, seed=2)).astype(float)
    assert abs(large.mean() / 2**63 - 1) < 0.05
    full = draw(run, ops.randint(N, -128, 128, int8, seed=3))
    assert (full.min(), full.max()) == (-128, 127)
    wide = draw(run, ops.randint(N, -(2**63), 2**63, int64, seed=3)).astype(float)
    assert abs(wide.mean()) < 2**63 / 20


def test_bernoulli_draws_with_the_given_probability(run: Runner) -> None:
    found = draw(run, ops.bernoulli(0.3, N, seed=1))
    assert found.dtype == bool_
    assert abs(found.mean() - 0.3) < 6 * math.sqrt(0.21 / N)
    assert draw(run, ops.bernoulli([[0.0], [1.0]], (2, 9), seed=1)).tolist() == [
        *([False] * 9, [True] * 9)
    ]
    assert draw(run, ops.bernoulli([0.0, 1.0], seed=1)).tolist() == [False, True]


def test_permutation_shuffles_all_positions(run: Runner) -> None:
    found = draw(run, ops.permutation(50, seed=1))
    assert sorted(found) == list(range(50))
    assert found.tolist() != list(range(50))
    x = np.arange(12).reshape(3, 4)
    columns = draw(run, ops.permutation(x, 1, seed=4))
    assert sorted(columns[0]) == [0, 1, 2, 3]
    npt.assert_array_equal(columns, x[:, columns[0]])
    firsts = [int(draw(run, ops.permutation(4, seed=1, offset=i))[0]) for i in range(60)]
    assert set(firsts) == {0, 1, 2, 3}


@pytest.mark.parametrize("dtype", [float16, float32, float64], ids=str)
def test_gumbel_has_the_expected_moments(dtype: Any, run: Runner) -> None:
    found = draw(run, ops.gumbel(N, dtype, seed=1))
    assert found.dtype == dtype
    wide = found.astype(float64)
    assert np.isfinite(wide).all()
    assert abs(wide.mean() - 0.5772156649) < 6 * math.sqrt(math.pi**2 / 6 / N)
    assert abs(wide.var() - math.pi**2 / 6) < 0.1


def test_categorical_draws_with_the_given_probabilities(run: Runner) -> None:
    probabilities = np.array([0.1, 0.6, 0.0, 0.3])
    with np.errstate(divide="ignore"):
        logits = np.log(probabilities)
    found = draw(run, ops.categorical(logits, shape=N, seed=1))
    assert found.dtype == int64
    npt.assert_allclose(np.bincount(found, minlength=4) / N, probabilities, atol=0.02)
    rows = draw(run, ops.categorical(np.eye(3) * 100, 0, seed=1))
    assert rows.tolist() == [0, 1, 2]


def test_multinomial_with_replacement_draws_with_the_given_probabilities(run: Runner) -> None:
    weights = np.array([[1, 6, 0, 3], [0, 0, 5, 5]])
    found = draw(run, ops.multinomial(weights, N, replacement=True, seed=1))
    assert found.dtype == int64
    assert found.shape == (2, N)
    for row, wanted in zip(found, weights / 10, strict=True):
        npt.assert_allclose(np.bincount(row, minlength=4) / N, wanted, atol=0.02)
    assert (found[0] != found[1]).any()


def test_multinomial_without_replacement_draws_different_classes(run: Runner) -> None:
    p = np.array([0.1, 0.6, 0.3])
    rows = draw(run, ops.multinomial(np.tile(p, (N, 1)), 2, seed=1))
    assert rows.shape == (N, 2)
    for first in range(3):
        for second in range(3):
            probability = p[first] * p[second] / (1 - p[first]) if first != second else 0
            count = ((rows[:, 0] == first) & (rows[:, 1] == second)).sum()
            assert abs(count / N - probability) < 6 * math.sqrt(probability / N) + 1e-9, (
                first,
                second,
            )
    whole = draw(run, ops.multinomial(np.ones((50, 6), np.float32), 6, seed=2))
    npt.assert_array_equal(np.sort(whole), np.tile(np.arange(6), (50, 1)))
    absent = ops.as_node(np.array([0.0, 1.0, 0.0, 2.0]))  # the values of nodes are not checked
    assert set(draw(run, ops.multinomial(absent, 3, seed=3))[:2]) == {1, 3}


def test_truncated_normal_has_the_expected_bounds_and_mean(run: Runner) -> None:
    found = draw(run, ops.truncated_normal(N, -1.0, 2.0, float64, seed=1))
    assert found.min() >= -1
    assert found.max() <= 2

    def density(x: float) -> float:
        return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)

    def cumulative_probability(x: float) -> float:
        return 0.5 * (1 + math.erf(x / math.sqrt(2)))

    mean = (density(-1) - density(2)) / (cumulative_probability(2) - cumulative_probability(-1))
    assert abs(found.mean() - mean) < 6 / math.sqrt(N)


MAKE: list[Callable[[int], Node]] = [
    lambda offset: ops.randint(9, 0, 99, seed=5, offset=offset),
    lambda offset: ops.bernoulli(0.5, 40, seed=5, offset=offset),
    lambda offset: ops.permutation(9, seed=5, offset=offset),
    lambda offset: ops.gumbel(9, seed=5, offset=offset),
    lambda offset: ops.categorical(np.zeros((9, 5)), seed=5, offset=offset),
    lambda offset: ops.multinomial(np.ones(9), 4, seed=5, offset=offset),
    lambda offset: ops.multinomial(np.ones(9), 9, True, seed=5, offset=offset),
    lambda offset: ops.truncated_normal(9, seed=5, offset=offset),
    lambda offset: ops.gumbel_softmax(np.zeros((3, 5)), seed=5, offset=offset),
]


@pytest.mark.parametrize("make", MAKE)
def test_another_offset_draws_other_numbers(make: Callable[[int], Node], run: Runner) -> None:
    first, again, other = (draw(run, make(offset)) for offset in (0, 0, 1))
    npt.assert_array_equal(first, again)
    assert (first != other).any()


def test_bad_arguments_raise_errors() -> None:
    with pytest.raises(ValueError, match=r"^randint: expected -128 <= low < high <= 128; got"):
        ops.randint(3, 0, 200, int8, seed=1)
    with pytest.raises(ValueError, match=r"^randint: expected .* low < high <= "):
        ops.randint(3, 5, 5, seed=1)
    with pytest.raises(DTypeError, match=r"^randint: expected an integer dtype"):
        ops.randint(3, 0, 5, float32, seed=1)
    with pytest.raises(DTypeError, match=r"^gumbel: expected a floating dtype"):
        ops.gumbel(3, int32, seed=1)
    with pytest.raises(ShapeError, match=r"bernoulli: "):
        ops.bernoulli([0.5, 0.5], 3, seed=1)
    with pytest.raises(ValueError, match=r"^truncated_normal: expected low < high"):
        ops.truncated_normal(3, 1, 1, seed=1)
    with pytest.raises(ValueError, match=r"^gumbel_softmax: expected tau > 0"):
        ops.gumbel_softmax([1.0], 0, seed=1)
    with pytest.raises(
        ShapeError, match=r"^multinomial: expected .* 3 or more classes.*; got float64\[2\]"
    ):
        ops.multinomial([0.5, 0.5], 3, seed=1)
    with pytest.raises(ShapeError, match=r"^multinomial: .* num_samples >= 1; got .*=0$"):
        ops.multinomial([0.5, 0.5], 0, replacement=True, seed=1)
    with pytest.raises(ValueError, match=r"^multinomial: .*; got -0.5. .* pass ops.softmax"):
        ops.multinomial([0.5, -0.5], 1, seed=1)
    with pytest.raises(ValueError, match=r"^multinomial: expected at least 2 positive weights"):
        ops.multinomial([[0.5, 0.5], [1.0, 0.0]], 2, seed=1)
