# SPDX-License-Identifier: Apache-2.0
"""Tests of common mistakes: some are accepted, the others raise an error with advice."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ngd
from ngd import ops
from ngd.errors import ShapeError
from ngd.graph.node import Node

DEVICES = ("CPU", "INTERPRETER")


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_lists_of_numbers_are_arrays(device: str) -> None:
    x, n = ngd.placeholder("x", (2, 2)), ngd.placeholder("n", (2,), "uint8")
    step = ngd.compile([x, n], [x * 2, n], device=device)
    doubled, same = step([[1, 2.5], (3, 4)], [0, 255])
    np.testing.assert_array_equal(doubled, [[2, 5], [6, 8]])
    np.testing.assert_array_equal(same, [0, 255])
    (empty,) = ngd.compile([e := ngd.placeholder("e", (0,), "int8")], [e], device=device)([])
    assert empty.shape == (0,)


@pytest.mark.parametrize(
    ("x", "n", "says"),
    [
        (np.ones((2, 2)), [1, 2], r"input 0 \('x'\): .*got float64.*\.astype\(np\.float32\)"),
        ([np.ones(2), np.ones(2)], [1, 2], r"got float64.*\.astype\(np\.float32\)"),
        ([[1e39, 0], [0, 0]], [1, 2], "expected a value of float32"),
        ([[2**24 + 1, 0], [0, 0]], [1, 2], "expected a value of float32"),
        ([[1, 2], [3, 4]], [1, 256], r"input 1 \('n'\): expected a value of uint8"),
        ([[1, 2], [3, 4]], [1.0, 2], r"expected a value of uint8"),
        ([[1, 2], [3, 4]], [1, -1], r"expected a value of uint8"),
        ([[1, 2], [3]], [1, 2], r"expected float32\[2, 2\]; got lists of different"),
        ([["a", "b"], [3, 4]], [1, 2], r"expected an array float32.*got text"),
    ],
)
def test_conversions_that_lose_information_raise(x: Any, n: Any, says: str) -> None:
    floats, small = ngd.placeholder("x", (2, 2)), ngd.placeholder("n", (2,), "uint8")
    step = ngd.compile([floats, small], [floats * 2, small])
    with pytest.raises((TypeError, ShapeError), match=says):
        step(x, n)


def test_inputs_can_be_passed_by_name(device: str) -> None:
    x, y = ngd.placeholder("x", (2,)), ngd.placeholder("y", (2,))
    step = ngd.compile([x, y], [x - y], device=device)
    a, b = np.array([5, 6], np.float32), np.array([1, 2], np.float32)
    out = np.empty(2, np.float32)
    for result in (step(a, b), step(a, y=b), step(y=b, x=a), step(y=b, x=a, out=[out])):
        np.testing.assert_array_equal(result[0], [4, 4])
    for call, says in (
        (
            lambda: step(a, x=a),
            r"^step compiled at .*: expected input 'x' once; got it by position and by name",
        ),
        (lambda: step(a, z=b), r"expected inputs by name among \(x, y\); got 'z'"),
        (lambda: step(y=b), r"expected 2 arrays \(x, y\); got 1, without x"),
        (lambda: step(a, b, a), r"expected 2 arrays \(x, y\); got 3"),
    ):
        with pytest.raises(TypeError, match=says):
            call()
    alike = ngd.placeholder("x", (2,))
    with pytest.raises(TypeError, match="got 'x', the name of 2 inputs: give those by position"):
        ngd.compile([x, alike], [x + alike])(x=a)


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "sum": lambda x: np.sum(x, axis=1),
    "mean": lambda x: np.mean(x, axis=(0, 1), keepdims=True),
    "prod": lambda x: np.prod(x, 0),
    "max": np.max,
    "amin": lambda x: np.min(x, axis=-1),
    "var": lambda x: np.var(x, axis=0),
    "argmax": lambda x: np.argmax(x, axis=1),
    "argmin": np.argmin,
    "where": lambda x: np.where(x > 0, x, 0),
    "round": np.round,
    "abs": np.abs,
    "rint": np.rint,
    "concatenate": lambda x: np.concatenate([x, x], axis=1),
    "stack": lambda x: np.stack([x, x]),
    "split": lambda x: np.split(x, 3, axis=1)[1],
    "reshape": lambda x: np.reshape(x, (3, -1)),
    "transpose": np.transpose,
    "broadcast_to": lambda x: np.broadcast_to(x, (2, 2, 3)),
    "expand_dims": lambda x: np.expand_dims(x, 1),
    "squeeze": lambda x: np.squeeze(x[:1]),
    "take": lambda x: np.take(x, [2, 0], axis=1),
    "take_flat": lambda x: np.take(x, [[5], [1]]),
    "dot": lambda x: np.dot(x, np.ones((3, 2))),
    "dot_vector": lambda x: np.dot(x, np.arange(3.0)),
    "dot_scalar": lambda x: np.dot(np.reshape(x, (1, 2, 3)), 2.0),
    "norm": lambda x: np.linalg.norm(x),
    "norm_of_bools": lambda x: np.linalg.norm(x > 0),
    "norm_axis": lambda x: np.linalg.norm(x, 1, axis=1, keepdims=True),
    "ravel": lambda x: np.ravel(x),
    "zeros_like": lambda x: np.zeros_like(x) + x,
    "ones_like": lambda x: np.ones_like(x) + x,
    "full_like": lambda x: np.full_like(x, 2.5) + x,
    "shape": lambda x: np.zeros(np.shape(x)) + np.ndim(x) + np.size(x) + x,
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_numpys_functions_are_ops(function: Callable[[Any], Any], device: str) -> None:
    array = np.random.default_rng(1).normal(size=(2, 3)) * 3
    x = ngd.placeholder("x", (2, 3), "float64")
    (result,) = ngd.compile([x], [function(x)], device=device)(array)
    expected = function(array)
    assert result.shape == expected.shape
    np.testing.assert_allclose(result, expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda x: np.unwrap(x), r"numpy\.unwrap: .* has no op: use the functions of ngd\.ops"),
        (lambda x: np.linalg.inv(x), r"numpy\.linalg\.inv: .* has no op: .*/limitations/"),
        (lambda x: np.nonzero(x), r"numpy\.nonzero: .* has no op: .*ngd\.ops\.where\(mask, x, y\)"),
        (lambda x: np.linalg.norm(x, 1), r"numpy\.linalg\.norm: expected ord=None, or a number"),
        (lambda x: np.linalg.norm(x, "fro"), r"numpy\.linalg\.norm: expected ord=None.*'fro'"),
        (lambda x: np.linalg.norm(x, axis=()), r"numpy\.linalg\.norm: expected one axis or two"),
        (lambda x: np.dot(x, np.ones((2, 3, 2))), r"numpy\.dot: expected at most 2 axes"),
        (
            lambda x: np.var(x, out=0),
            r"numpy\.var: expected \(x, axis, .*ddof\) .*; got .*out",
        ),
        (lambda x: np.subtract.reduce(x), r"numpy\.subtract\.reduce: expected arrays; got a Node"),
        (
            lambda x: np.add.reduce(x, where=True),
            r"numpy\.add\.reduce: expected \(x, axis.*'where'",
        ),
        (
            lambda x: np.asarray(x),
            r"numpy\.asarray: expected .*test_messages\.py:\d+.*ngd\.function",
        ),
        (lambda x: np.array([x, x]), "numpy.asarray: expected an array; got a Node"),
        (
            lambda x: ops.where(x is None, x, 0),
            "where: expected a node or an array as the condition; got the Python bool False",
        ),
        (lambda x: np.where(True, x, 0), "where: .*got the Python bool True, which `is`"),
        (
            lambda x: ops.cond(x == None, lambda: x, lambda: -x),  # noqa: E711
            "cond: expected a node or an array as the condition; got the Python bool False",
        ),
        (
            lambda x: ops.concat(x, x),
            r"concat: expected a list of .* Write concat\(\[a, b\]",
        ),
        (lambda x: ops.stack(x, 0), r"stack: expected a list of tensors"),
        (lambda x: ops.reshape(x, (4, -1)), r"reshape: expected 6 elements .*that divide them"),
        (lambda x: ops.reshape(x, (-1, 0)), r"reshape: .*that divide them; got \(-1, 0\)"),
        (lambda x: ops.reshape(x, (-1, -1)), r"reshape: expected 6 elements .*got \(-1, -1\)"),
        (
            lambda x: ngd.grad(ops.sum(x), {"x": None}),
            r"grad: wrt\['x'\]: expected a node",
        ),
        (lambda x: ngd.compile([x], [x], updates=[(x, x)]), r"updates: expected \{variable: node"),
        (
            lambda x: ops.softmax_cross_entropy(x, ngd.placeholder("y", (2, 3))),
            r"softmax_cross_entropy: .*integer labels.*one-hot.*ngd\.ops\.argmax\(labels, -1\)",
        ),
        (
            lambda x: ops.softmax_cross_entropy(x, np.eye(2, 3, dtype=int)),
            r"softmax_cross_entropy: .*one-hot.*ngd\.ops\.argmax\(labels, -1\)",
        ),
    ],
)
def test_error_messages_advise(function: Callable[[Node], Any], says: str) -> None:
    with pytest.raises((TypeError, ShapeError), match=re.compile(says, re.DOTALL)):
        function(ngd.placeholder("x", (2, 3)))
