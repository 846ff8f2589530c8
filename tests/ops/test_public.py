# SPDX-License-Identifier: Apache-2.0
"""Tests of public functions against NumPy, and against literals computed by hand."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.testing as npt
import pytest

from ngd import grad, ops
from ngd.dtypes import (
    FLOATS,
    INTEGERS,
    Array,
    Type,
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int8,
    int32,
    int64,
    uint8,
)
from ngd.errors import DTypeError, ShapeError
from ngd.graph.leaves import constant_node
from ngd.graph.node import Node
from ngd.ops._random import philox_4x32_10, random_words
from tests.ops.cases import placeholders, run_reference

NUMPY_DTYPES = (bool_, *INTEGERS, float16, float32, float64)


def value(node: Node) -> Array:
    """Return the value of a node that needs no input."""
    result: Array = run_reference([], [node], [])[0]
    return result


def agrees(ours: Node, theirs: Any) -> None:
    """Check that dtype, shape and values equal NumPy's result."""
    expected = np.asarray(theirs)
    found = value(ours)
    assert Type(found.dtype, found.shape) == Type(expected.dtype, expected.shape)
    npt.assert_array_equal(found, expected)


class TestPromotion:
    @pytest.mark.parametrize("a", NUMPY_DTYPES, ids=str)
    @pytest.mark.parametrize("b", NUMPY_DTYPES, ids=str)
    def test_the_dtype_of_two_arrays_equals_numpy(self, a: np.dtype[Any], b: np.dtype[Any]) -> None:
        x, y = np.array([0, 1, 1], a), np.array([1, 1, 0], b)
        agrees(ops.less(x, y), np.less(x, y))
        agrees(ops.where([True, False, True], x, y), np.where([True, False, True], x, y))
        agrees(ops.concat([x, y]), np.concatenate([x, y]))
        if a == b == bool_:
            with pytest.raises(DTypeError, match=r"^add: expected numbers; got bool\[3\] and"):
                ops.add(x, y)
            return
        agrees(ops.add(x, y), np.add(x, y))
        agrees(ops.multiply(x, y), np.multiply(x, y))
        agrees(ops.maximum(x, y), np.maximum(x, y))
        agrees(ops.divide(x + y, y + y.dtype.type(1)), np.divide(x + y, y + y.dtype.type(1)))

    @pytest.mark.parametrize("dtype", NUMPY_DTYPES, ids=str)
    @pytest.mark.parametrize("scalar", [True, 3, 2.5])
    def test_python_scalars_are_weak(self, dtype: np.dtype[Any], scalar: Any) -> None:
        if dtype == bool_ and scalar is True:
            return
        x = np.array([0, 1, 7], dtype)
        node = constant_node(x)
        agrees(node + scalar, x + scalar)
        agrees(scalar * node, scalar * x)
        agrees(node / scalar, x / scalar)
        agrees(node > scalar, x > scalar)

    @pytest.mark.parametrize("dtype", NUMPY_DTYPES, ids=str)
    def test_functions_of_integers_have_the_dtype_of_numpy(self, dtype: np.dtype[Any]) -> None:
        x = np.array([0, 1, 3], dtype)
        for ours, theirs in ((ops.exp, np.exp), (ops.sqrt, np.sqrt), (ops.tanh, np.tanh)):
            assert ours(x).dtype == theirs(x).dtype

    @pytest.mark.parametrize("dtype", NUMPY_DTYPES, ids=str)
    def test_reductions_equal_numpy(self, dtype: np.dtype[Any]) -> None:
        x = np.array([[0, 1, 3], [1, 1, 0]], dtype)
        agrees(ops.sum(x, 1), np.sum(x, 1))
        agrees(ops.prod(x, 0), np.prod(x, 0))
        assert ops.mean(x).dtype == np.mean(x).dtype
        assert ops.var(x).dtype == np.var(x).dtype
        agrees(ops.argmax(x), np.argmax(x))
        if dtype != bool_:
            agrees(ops.max(x, (0, 1), keepdims=True), np.max(x, (0, 1), keepdims=True))

    def test_bfloat16_and_python_scalars_give_bfloat16(self) -> None:
        x = constant_node(np.array([1.5], bfloat16))
        for node in (x + 1, x * 2.0, 1 - x, x / 3, x**2, ops.where(x > 0, x, 0.0)):
            assert node.dtype == bfloat16

    @pytest.mark.parametrize(
        ("other", "expected"),
        [(float16, float32), (int32, float32), (int8, bfloat16), (float32, float32)],
    )
    def test_bfloat16_and_other_dtypes_are_promoted(self, other: Any, expected: Any) -> None:
        assert ops.add(np.ones(1, bfloat16), np.ones(1, other)).dtype == expected

    def test_a_scalar_out_of_the_range_of_the_dtype_is_rejected(self) -> None:
        with pytest.raises(DTypeError, match=r"^add: expected .* fits into uint8.*; got 300"):
            ops.add(np.zeros(1, uint8), 300)

    @pytest.mark.parametrize("bad", ["text", None, 1j, np.array(["a"]), object()])
    def test_values_that_are_not_tensors_are_rejected(self, bad: Any) -> None:
        with pytest.raises(DTypeError, match=r"^(add|exp): expected"):
            ops.add(np.zeros(1), bad)
        with pytest.raises(DTypeError, match=r"^exp: expected"):
            ops.exp(bad)


class TestLiterals:
    """Literals computed by hand, or by exact arithmetic."""

    def test_cast_truncates_and_saturates(self) -> None:
        x = np.array([2.9, -2.9, 300, -300, np.nan, np.inf, -np.inf], float32)
        assert value(ops.cast(x, int8)).tolist() == [2, -2, 127, -128, 0, 127, -128]
        assert value(ops.cast(x, uint8)).tolist() == [2, 0, 255, 0, 0, 255, 0]
        wide = np.array([2.0**63, -(2.0**63), 2.0**62, 1e300])
        top = 2**63 - 1
        assert value(ops.cast(wide, int64)).tolist() == [top, -(2**63), 2**62, top]
        assert value(ops.cast(wide, "uint64")).tolist() == [2**63, 0, 2**62, 2**64 - 1]
        assert value(ops.cast(x, bool)).all()
        assert value(ops.cast(np.array([257, -1]), uint8)).tolist() == [1, 255]

    def test_rounding_functions_equal_literals(self) -> None:
        x = np.array([-2.5, -0.5, 0.5, 1.5, 2.5, 2.6])
        assert value(ops.round(x)).tolist() == [-2, 0, 0, 2, 2, 3]
        assert value(ops.floor(x)).tolist() == [-3, -1, 0, 1, 2, 2]
        assert value(ops.ceil(x)).tolist() == [-2, 0, 1, 2, 3, 3]
        assert ops.floor(np.array([1])).dtype == int64

    def test_integer_division_and_powers_equal_literals(self) -> None:
        a, b = np.array([7, -7, 7, -7, 5]), np.array([2, 2, -2, -2, 0])
        assert value(ops.floor_divide(a, b)).tolist() == [3, -4, -4, 3, 0]
        assert value(ops.remainder(a, b)).tolist() == [1, 1, -1, -1, 0]
        base, exponent = np.array([2, -1, -1, 1, 3, 0]), np.array([10, -3, -2, -5, -1, 0])
        assert value(ops.power(base, exponent)).tolist() == [1024, -1, 1, 1, 0, 1]

    def test_matmul_equals_literals(self) -> None:
        a, b = [[1, 2], [3, 4]], [[5, 6], [7, 8]]
        assert value(ops.matmul(a, b)).tolist() == [[19, 22], [43, 50]]
        assert value(ops.matmul([1, 2], [3, 4])).tolist() == 11

    def test_losses_equal_literals(self) -> None:
        loss = value(ops.softmax_cross_entropy(np.zeros((2, 4)), [0, 3]))
        npt.assert_allclose(loss, math.log(4), rtol=1e-15)
        npt.assert_allclose(value(ops.softmax(np.log([1.0, 2, 5]))), [0.125, 0.25, 0.625])
        npt.assert_allclose(value(ops.logsumexp([1000.0, 1000.0])), 1000 + math.log(2))
        assert value(ops.logsumexp([-np.inf, -np.inf])) == -np.inf
        assert value(ops.softmax_cross_entropy([1000.0, 0.0], 1)) == 1000

    def test_statistics_equal_literals(self) -> None:
        assert value(ops.var([1.0, 2, 3, 4])) == 1.25
        assert value(ops.mean([1, 2])) == 1.5
        assert math.isnan(float(value(ops.mean(np.zeros(0)))))
        assert value(ops.prod([2.0, 3, 4])) == 24

    def test_one_hot_and_arange_equal_numpy(self) -> None:
        assert value(ops.one_hot([2, 0, 3], 3)).tolist() == [[0, 0, 1], [1, 0, 0], [0, 0, 0]]
        assert value(ops.arange(3)).tolist() == [0, 1, 2]
        assert value(ops.arange(3, dtype=float32)).dtype == float32
        for bounds in ((0,), (-2,), (2, 9), (2, 9, 3), (9, 2, -3), (2, 9, -1), (5, -5, -10)):
            agrees(ops.arange(*bounds), np.arange(*bounds))
        for fractions in ((2.5,), (0.5, 3), (1, 0, -0.25), (0, 1, 0.1)):
            agrees(ops.arange(*fractions), np.arange(*fractions).astype(float32))
        with pytest.raises(ValueError, match=r"^arange: expected a step that is not 0; got 0"):
            ops.arange(1, 2, 0)
        with pytest.raises(TypeError, match=r"^arange: expected numbers; got the nodes"):
            ops.arange(constant_node(np.array(3)))

    def test_16_bit_floats_are_summed_in_float32(self) -> None:
        ones = np.ones(4096, float16)
        assert value(ops.sum(ones)) == 4096  # 2048 + 1 is 2048 in float16
        assert value(ops.matmul(ones, ones)) == 4096
        assert value(ops.sum(np.ones(1000, bfloat16))) == 1000  # 256 + 1 is 256 in bfloat16

    @pytest.mark.parametrize("dtype", [float16, bfloat16], ids=str)
    def test_16_bit_floats_are_rounded_once_per_op(self, dtype: np.dtype[Any]) -> None:
        x = np.linspace(0.01, 4, 999).astype(dtype)
        wide = x.astype(float32)
        exactly = {
            ops.rsqrt: 1 / np.sqrt(wide),
            ops.sigmoid: 1 / (1 + np.exp(-wide)),
            ops.softmax: np.exp(wide) / np.exp(wide).sum(),
        }
        for op, expected in exactly.items():
            differ = value(op(x)) != expected.astype(dtype)
            assert np.count_nonzero(differ) <= 5, op  # float32 also rounds, near a tie

    def test_equal_values_share_the_gradient(self) -> None:
        x, y = placeholders([Type(float64, (3,))] * 2)
        same = np.array([1.0, 2, 2])
        for op in (ops.maximum, ops.minimum):
            found = run_reference([x, y], grad(ops.sum(op(x, y)), [x, y]), [same, same])
            assert [g.tolist() for g in found] == [[0.5] * 3, [0.5] * 3]
        (found,) = run_reference([x], [grad(ops.max(x), x)], [same])
        assert found.tolist() == [0, 0.5, 0.5]
        for op in (ops.abs, ops.relu, ops.sign):
            (found,) = run_reference([x], [grad(ops.sum(op(x)), x)], [np.zeros(3)])
            assert found.tolist() == [0, 0, 0]

    def test_products_with_zeros_have_gradients_of_all_orders(self) -> None:
        (x,) = placeholders([Type(float64, (3,))])
        at = np.array([0.0, 0, 5])
        first = grad(ops.prod(x), x)
        second = grad(first[0], x)  # d/dx of x1 x2
        assert run_reference([x], [first, second], [at])[0].tolist() == [0, 0, 0]
        assert run_reference([x], [second], [at])[0].tolist() == [0, 5, 0]

    def test_gradients_of_powers_at_zero_equal_literals(self) -> None:
        x, n = placeholders([Type(float64, (3,))] * 2)
        found = run_reference(
            [x, n], grad(ops.sum(x**n), [x, n]), [np.zeros(3), np.array([0.0, 1, 2])]
        )
        assert [g.tolist() for g in found] == [[0, 1, 0], [0, 0, 0]]


class TestRandom:
    @pytest.mark.parametrize(
        ("counter", "key", "words"),
        [  # Random123's known answers for philox4x32 with 10 rounds
            ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
            (
                (0xFFFFFFFF,) * 4,
                (0xFFFFFFFF,) * 2,
                (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
            ),
            (
                (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
                (0xA4093822, 0x299F31D0),
                (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
            ),
        ],
    )
    def test_philox_gives_the_known_answers(self, counter: Any, key: Any, words: Any) -> None:
        found = philox_4x32_10(np.array(counter, np.uint32)[:, None], key)
        assert tuple(found[:, 0].tolist()) == words

    def test_the_counter_and_the_key_have_the_documented_layout(self) -> None:
        seed = np.array([0x0123456789ABCDEF, -1], np.int64)
        second_block = philox_4x32_10(
            np.array([[1], [0], [0xFFFFFFFF], [0xFFFFFFFF]], np.uint32), (0x89ABCDEF, 0x01234567)
        )
        assert random_words(seed, 8)[4:].tolist() == second_block[:, 0].tolist()

    def test_uniform_numbers_are_the_top_bits_of_the_words(self) -> None:
        words = value(ops.random_bits(6, seed=5, offset=7)).astype(object)
        uniform = value(ops.random_uniform((2, 3), seed=5, offset=7))
        assert uniform.reshape(-1).tolist() == [(w >> 8) / 2**24 for w in words]
        half = value(ops.random_uniform(6, float16, seed=5, offset=7))
        assert half.tolist() == [(w >> 21) / 2**11 for w in words]
        brain = value(ops.random_uniform(6, bfloat16, seed=5, offset=7))
        assert brain.tolist() == [(w >> 24) / 2**8 for w in words]
        wide = value(ops.random_uniform(3, float64, seed=5, offset=7))
        pairs = zip(words[::2], words[1::2], strict=True)
        assert wide.tolist() == [((high << 32 | low) >> 11) / 2**53 for low, high in pairs]

    @pytest.mark.parametrize("dtype", FLOATS, ids=str)
    def test_normal_numbers_follow_box_and_muller(self, dtype: np.dtype[Any]) -> None:
        source = float64 if dtype == float64 else float32
        u = value(ops.random_uniform(4, source, seed=5)).astype(float64).tolist()
        radii = [math.sqrt(-2 * math.log(1 - u[i])) for i in (0, 2)]
        expected = [
            radius * turn(2 * math.pi * angle)
            for radius, angle in zip(radii, (u[1], u[3]), strict=True)
            for turn in (math.cos, math.sin)
        ]
        found = value(ops.random_normal(3, dtype, seed=5)).astype(float64)
        step = {float16: 2**-11, bfloat16: 2**-8, float32: 2**-24}.get(dtype, 2**-50)
        npt.assert_allclose(found, expected[:3], rtol=step)

    @pytest.mark.parametrize("dtype", FLOATS, ids=str)
    def test_uniform_and_normal_numbers_have_the_expected_moments(
        self, dtype: np.dtype[Any]
    ) -> None:
        n = 40_000
        uniform = value(ops.random_uniform(n, dtype, seed=11)).astype(float64)
        assert uniform.min() >= 0
        assert uniform.max() < 1
        step = {float16: 2**-11, bfloat16: 2**-8}.get(dtype, 0)
        assert abs(uniform.mean() - 0.5 + step / 2) < 6 * math.sqrt(1 / 12 / n)
        normal = value(ops.random_normal(n, dtype, seed=11)).astype(float64)
        assert abs(normal.mean()) < 6 / math.sqrt(n)
        assert abs(normal.var() - 1) < 6 * math.sqrt(2 / n) + 2**-8
        assert abs((normal**4).mean() - 3) < 6 * math.sqrt(96 / n)
        assert abs(np.corrcoef(normal[0::2], normal[1::2])[0, 1]) < 6 / math.sqrt(n / 2)

    def test_seeds_may_be_scalars_or_nodes(self) -> None:
        (seed,) = placeholders([Type(int32, ())])
        node = ops.random_uniform(4, seed=seed, offset=2)
        (found,) = run_reference([seed], [node], [np.array(9, np.int32)])
        assert found.tolist() == value(ops.random_uniform(4, seed=9, offset=2)).tolist()
        assert found.tolist() != value(ops.random_uniform(4, seed=9, offset=3)).tolist()
        with pytest.raises(DTypeError, match=r"^random_uniform: .*; got float32\[\]"):
            ops.random_uniform(4, seed=constant_node(np.array(1, float32)))
        assert value(ops.random_bits(1, seed=2**64 - 1)) == value(ops.random_bits(1, seed=-1))

    def test_dropout_scales_and_drops(self) -> None:
        x = np.ones(10_000)
        kept = value(ops.dropout(x, 0.25, seed=3))
        assert set(np.unique(kept)) == {0, 1 / 0.75}
        assert abs((kept > 0).mean() - 0.75) < 6 * math.sqrt(0.75 * 0.25 / 10_000)
        assert (value(ops.dropout(x.astype(float16), 0.25, seed=3)) > 0).tolist() == (
            kept > 0
        ).tolist()
        with pytest.raises(ValueError, match=r"^dropout: expected a rate in \[0, 1\); got 1.0"):
            ops.dropout(x, 1, seed=0)


class TestShapes:
    X = np.arange(24).reshape(2, 3, 4)

    @pytest.mark.parametrize(
        "index",
        [
            0,
            -1,
            (1, 2, 3),
            (slice(None), 1),
            (..., 0),
            (0, ...),
            (slice(None, None, -1), ..., slice(3, 0, -2)),
            (None, 1, None, slice(1, 2)),
            slice(5, 9),
            (slice(None), slice(2, 0)),
            (..., None),
            (np.int32(1),),
            (slice(-1, None), slice(-2, None), slice(-3, -1)),
        ],
        ids=str,
    )
    def test_slices_equal_numpy(self, index: Any) -> None:
        agrees(constant_node(self.X)[index], self.X[index])

    @pytest.mark.parametrize(
        ("index", "error"),
        [
            (2, ShapeError),
            ((0, 0, 0, 0), ShapeError),
            ((..., ...), ShapeError),
            (True, DTypeError),
            ([0, 1], DTypeError),
            (1.0, DTypeError),
        ],
        ids=str,
    )
    def test_bad_slices_raise_errors(self, index: Any, error: type[Exception]) -> None:
        with pytest.raises(error, match=r"^slice: expected"):
            ops.slice(self.X, index)

    def test_views_equal_numpy(self) -> None:
        x = self.X
        agrees(ops.reshape(x, (4, -1)), x.reshape(4, -1))
        agrees(ops.reshape(x, -1), x.reshape(-1))
        agrees(ops.transpose(x), x.T)
        agrees(constant_node(x).T, x.T)
        agrees(ops.transpose(x, (1, 2, 0)), x.transpose(1, 2, 0))
        agrees(ops.transpose(x, (-1, 0, 1)), x.transpose(-1, 0, 1))
        agrees(ops.expand_dims(x, -1), np.expand_dims(x, -1))
        agrees(ops.squeeze(x[:1]), np.squeeze(x[:1]))
        agrees(ops.squeeze(x[:, :1], 1), np.squeeze(x[:, :1], 1))
        agrees(ops.broadcast_to(x[0], (5, 3, 4)), np.broadcast_to(x[0], (5, 3, 4)))
        agrees(ops.stack([x, x + 1], -1), np.stack([x, x + 1], -1))
        agrees(ops.full((2, 2), 7, int8), np.full((2, 2), 7, int8))
        agrees(ops.zeros(3), np.zeros(3, float32))
        agrees(ops.ones((2, 0), float64), np.ones((2, 0)))

    @pytest.mark.parametrize(("sections", "axis"), [(3, 1), ([1, 3], 2), ([], 0), (2, -1)])
    def test_split_equals_numpy(self, sections: Any, axis: int) -> None:
        ours = ops.split(self.X, sections, axis)
        for part, expected in zip(ours, np.split(self.X, sections, axis), strict=True):
            agrees(part, expected)

    @pytest.mark.parametrize("axis", [0, 1, -1])
    def test_take_equals_numpy(self, axis: int) -> None:
        indices = np.array([[1, -1], [0, 0]], int8)
        agrees(ops.take(self.X, indices, axis), np.take(self.X, indices, axis))

    def test_matmul_broadcasts_like_numpy(self) -> None:
        shapes = [(3,), (3, 3), (2, 3, 3), (4, 1, 3, 3)]
        rng = np.random.default_rng(0)
        for a, b in itertools.product(shapes, shapes):
            x, y = rng.integers(-9, 9, a), rng.integers(-9, 9, b)
            agrees(ops.matmul(x, y), np.matmul(x, y))

    @pytest.mark.parametrize("keepdims", [False, True])
    @pytest.mark.parametrize("axis", [None, 0, -1, (0, 2), (), (-1, 0)])
    def test_reductions_equal_numpy(self, axis: Any, keepdims: bool) -> None:
        for ours, theirs in ((ops.sum, np.sum), (ops.max, np.max), (ops.min, np.min)):
            agrees(ours(self.X, axis, keepdims), theirs(self.X, axis=axis, keepdims=keepdims))
        if axis is None or isinstance(axis, int):
            for ours, theirs in ((ops.argmax, np.argmax), (ops.argmin, np.argmin)):
                agrees(ours(-self.X, axis, keepdims), theirs(-self.X, axis, keepdims=keepdims))

    @pytest.mark.parametrize("k", [0, 1, 3])
    def test_top_k_equals_literals(self, k: int) -> None:
        x = np.array([[2, 7, 7, -1], [np.nan, 0, np.nan, 5]], "f")
        indices = np.array([[1, 2, 0], [0, 2, 3]])[:, :k]
        values, found = ops.top_k(x, k)
        agrees(found, indices)
        agrees(values, np.take_along_axis(x, indices, 1))
        agrees(ops.top_k(x > 1, k)[1], np.array([[0, 1, 2], [3, 0, 1]])[:, :k])

    def test_the_gradient_of_top_k_equals_literals(self) -> None:
        x = constant_node(np.array([[1.0, 3.0, 2.0], [6.0, 5.0, 4.0]]))
        values, _ = ops.top_k(x, 2)
        (gradient,) = grad(ops.sum(values * np.array([10.0, 1.0])), [x])
        agrees(gradient, np.array([[0.0, 10, 1], [10, 1, 0]]))


MESSAGES: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (
        lambda: ops.matmul(np.ones((2, 3), "f"), np.ones((4, 5), "f")),
        ShapeError,
        "matmul: expected the last axis of a to equal the second to last of b; "
        "got float32[2, 3] and float32[4, 5]",
    ),
    (
        lambda: ops.matmul(1.0, [1.0]),
        ShapeError,
        "matmul: expected tensors, not scalars; got float64[]",
    ),
    (
        lambda: ops.add([1, 2], [1, 2, 3]),
        ShapeError,
        "add: expected shapes that broadcast; got (2,) with (3,)",
    ),
    (
        lambda: ops.reshape([1, 2], (3, -1)),
        ShapeError,
        "reshape: expected 2 elements as in int64[2]",
    ),
    (lambda: ops.reshape([1, 2], (-1, -1)), ShapeError, "reshape: expected 2 elements"),
    (
        lambda: ops.transpose([[1]], (0, 0)),
        ShapeError,
        "transpose: expected each axis of int64[1, 1]",
    ),
    (lambda: ops.sum([1, 2], 1), ShapeError, "sum: expected an axis in [-1, 1) of int64[2]; got 1"),
    (lambda: ops.sum([[1]], (0, -2)), ShapeError, "sum: expected axes that differ; got (0, -2)"),
    (lambda: ops.max(np.ones((2, 0))), ShapeError, "max: expected at least one element"),
    (lambda: ops.argmin(np.ones(0)), ShapeError, "argmin: expected at least one element along 0"),
    (
        lambda: ops.top_k([1, 2], 3),
        ShapeError,
        "top_k: expected an axis of at least 3 elements; got int64[2]",
    ),
    (lambda: ops.top_k(1.0, 0), ShapeError, "top_k: expected an axis in [0, 0) of float64[]"),
    (lambda: ops.concat([]), ShapeError, "concat: expected at least one tensor; got none"),
    (lambda: ops.concat([[[1]], [1]]), ShapeError, "concat: expected shapes that differ"),
    (lambda: ops.stack([[1], [1, 2]]), ShapeError, "stack: expected tensors of one shape"),
    (
        lambda: ops.split([1, 2, 3], 2),
        ShapeError,
        "split: expected a number that divides the 3 elements along axis 0 of",
    ),
    (lambda: ops.split([1, 2, 3], [2, 1]), ShapeError, "split: expected ascending indices; got ["),
    (lambda: ops.squeeze([1, 2], 0), ShapeError, "squeeze: expected axes of size 1; got [0] of"),
    (
        lambda: ops.broadcast_to([1, 2], (3,)),
        ShapeError,
        "broadcast_to: expected a shape that int64[2]",
    ),
    (lambda: ops.take([1.0], [0.0]), DTypeError, "take: expected integer indices; got float64[1]"),
    (lambda: ops.one_hot([0], -1), ShapeError, "one_hot: expected a depth >= 0; got -1"),
    (lambda: ops.cast([1], "str"), DTypeError, "cast: expected a dtype among bool, int8 to int64"),
    (lambda: ops.softmax(np.ones((2, 0))), ShapeError, "softmax: expected at least one element"),
    (
        lambda: ops.softmax_cross_entropy(np.ones((2, 3)), [[0]]),
        ShapeError,
        "softmax_cross_entropy: expected logits [..., classes] and labels [...]; got float64",
    ),
    (
        lambda: value(ops.softmax_cross_entropy(np.ones((2, 3)), [0, 3])),
        ValueError,
        "softmax_cross_entropy: expected an index in [0, 3); got 3 at [1] of the indices (made",
    ),
    (
        lambda: value(ops.take([1, 2], [0, -3])),
        ValueError,
        "take: expected an index in [-2, 2); got -3 at [1] of the indices (made",
    ),
    (lambda: ops.all_reduce([1], op="mean"), DTypeError, 'all_reduce(op="mean"): expected floats'),
    (
        lambda: ops.all_reduce([True], op="sum"),
        DTypeError,
        'all_reduce(op="sum"): expected numbers',
    ),
    (lambda: ops.all_reduce([1], op="avg"), ValueError, "all_reduce: expected op among sum, mean"),
    (
        lambda: ops.all_reduce([1], op="sum", algorithm="tree"),
        ValueError,
        "all_reduce: expected algorithm among auto, flat, ring; got 'tree'",
    ),
    (
        lambda: ops.all_reduce([1.0], op="sum", weight=1),
        ValueError,
        "all_reduce: expected op=\"mean\" with weight; got op='sum'",
    ),
    (lambda: ops.broadcast([1], root=-1), ValueError, "broadcast: expected a root >= 0; got -1"),
]


@pytest.mark.parametrize(("call", "error", "message"), MESSAGES, ids=lambda v: str(v)[:40])
def test_bad_arguments_raise_errors(
    call: Callable[[], Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match="^" + re.escape(message)):
        call()


def test_all_reduce_needs_an_op() -> None:
    with pytest.raises(TypeError, match="op"):
        ops.all_reduce(np.ones(1))  # type: ignore[call-arg]
