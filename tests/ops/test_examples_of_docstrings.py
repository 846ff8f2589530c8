# SPDX-License-Identifier: Apache-2.0
"""Tests that run the examples in the docstrings of ngd.ops as doctests."""

from __future__ import annotations

import doctest
import inspect

import numpy as np
import pytest

import ngd
from ngd import ops
from ngd.graph.registry import PUBLIC

EXAMPLES = sorted(name for name, function in PUBLIC.items() if ">>> " in (function.__doc__ or ""))


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_runs(name: str) -> None:
    text = inspect.cleandoc(PUBLIC[name].__doc__ or "")
    names = {"ngd": ngd, "np": np, "ops": ops}
    test = doctest.DocTestParser().get_doctest(text, names, f"ops.{name}", None, 0)
    output: list[str] = []
    with np.printoptions(precision=4, suppress=True):
        results = doctest.DocTestRunner().run(test, out=output.append)
    assert results.attempted
    assert not results.failed, "".join(output)


def test_more_than_100_functions_have_an_example() -> None:
    assert len(EXAMPLES) > 100
