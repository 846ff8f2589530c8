# SPDX-License-Identifier: Apache-2.0
"""Tests that a call with wrong arguments raises an error that names the public op."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ngd
from ngd import ops
from ngd.graph.registry import PUBLIC

X = np.ones((2, 3), np.float32)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda: ops.sum(X, dim=1),
            r"ops\.sum\(x, axis=None, keepdims=False\); .*'dim'\. `dim` is",
        ),
        (lambda: ops.max(X, 1, keepdim=True), r"ops\.max.*`keepdim` is called `keepdims`\.$"),
        (lambda: ops.softmax(X, dim=0), r"ops\.softmax.*`dim` is called `axis`\.$"),
        (lambda: ops.cross_entropy(X, [0, 1], reducton="sum"), r"`reducton` is called `reduction`"),
        (lambda: ops.concat([X], dim=0), r"ops\.concat.*`dim` is called `axis`"),
        (lambda: ops.exp(), r"ops\.exp: expected ops\.exp\(x\); got no `x`\. Give `x`\."),
        (lambda: ops.add(X), r"ops\.add: expected ops\.add\(.*\); got no `b`"),
        (
            lambda: ops.relu(X, X, X),
            r"ops\.relu: expected ops\.relu\(x\); got 3 positional arguments\. Remove the last 2\.",
        ),
    ],
)
def test_wrong_arguments_are_named(call: Callable[[], Any], said: str) -> None:
    with pytest.raises(TypeError, match=said):
        call()


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_every_op_is_named_in_its_errors(name: str) -> None:
    """An unknown keyword raises an error that begins with the name of the op."""
    with pytest.raises(TypeError, match=rf"^ops\.{re.escape(name)}: expected ops\.{name}\("):
        PUBLIC[name](nonsense=1)


def test_an_error_inside_the_op_is_unchanged() -> None:
    with pytest.raises(ngd.errors.DTypeError, match=r"^bitwise_not: expected"):
        ops.bitwise_not(X)


@pytest.mark.parametrize(
    "call",
    [
        lambda: ops.gather(X, indices=[1, 0]),  # type: ignore[call-arg]
        lambda: ops.gather(X, [1, 0]),  # type: ignore[arg-type]
        lambda: ops.gather(X, np.array([1, 0])),  # type: ignore[arg-type]
        lambda: ops.gather(X, ops.arange(2)),  # type: ignore[arg-type]
        lambda: ops.gather(X, [1, 0], 0),  # type: ignore[call-arg, arg-type]
    ],
)
def test_gather_with_indices_suggests_take(call: Callable[[], Any]) -> None:
    with pytest.raises(
        TypeError, match=r"gather: .*ops\.take\(x, indices, axis\) to take elements"
    ):
        call()


def test_a_wrong_argument_of_a_method_names_the_method() -> None:
    x = ngd.placeholder("x", (2, 3))
    with pytest.raises(TypeError, match=r"^Node\.sum\(\) got an unexpected keyword argument 'dim'"):
        x.sum(dim=1)
