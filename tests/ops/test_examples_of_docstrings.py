# SPDX-License-Identifier: Apache-2.0
"""The examples in the docstrings of ngd.ops, run as doctests."""

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
def test_example(name: str) -> None:
    text = inspect.cleandoc(PUBLIC[name].__doc__ or "")
    names = {"ngd": ngd, "np": np, "ops": ops}
    test = doctest.DocTestParser().get_doctest(text, names, f"ops.{name}", None, 0)
    said: list[str] = []
    with np.printoptions(precision=4, suppress=True):
        results = doctest.DocTestRunner().run(test, out=said.append)
    assert results.attempted
    assert not results.failed, "".join(said)


def test_many_functions_have_one() -> None:
    assert len(EXAMPLES) > 100
