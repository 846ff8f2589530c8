# SPDX-License-Identifier: Apache-2.0
"""Tests of the docstrings of ngd.data and ngd.train: sections, parameters and examples."""

from __future__ import annotations

import doctest
import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from ngd import data, train

RUNS_PILLOW = {"data.ImageFolder"}


def public_callables() -> Iterator[tuple[str, Any]]:
    """Return the public functions, classes, and methods of classes."""
    for module, name in ((m, n) for m in (data, train) for n in m.__all__):
        thing = getattr(module, name)
        if not callable(thing):
            continue
        full = f"{module.__name__.removeprefix('ngd.')}.{name}"
        yield full, thing
        for key, method in vars(thing).items() if inspect.isclass(thing) else ():
            if inspect.isfunction(method) and (key == "__call__" or not key.startswith("_")):
                yield f"{full}.{key}", method


FOUND = dict(public_callables())


def parameters_of(thing: Any) -> list[str]:
    if inspect.isclass(thing) and issubclass(thing, tuple):
        return []
    names = [name for name in inspect.signature(thing).parameters if name != "self"]
    return [name for name in names if name not in ("args", "kwargs")]


@pytest.mark.parametrize("name", FOUND)
def test_a_docstring_has_its_sections(name: str) -> None:
    thing = FOUND[name]
    doc = inspect.getdoc(thing) or ""
    first = doc.split("\n\n")[0]
    assert "\n" not in first
    assert first.endswith(".")
    overridden = name.endswith(".image") and name != "data.ImageTransform.image"
    if parameters_of(thing) and not overridden:
        section = doc.partition("Parameters\n----------\n")[2].partition("\n\n")[0]
        documented = [
            each.strip().lstrip("*")
            for line in section.splitlines()
            if not line.startswith(" ")
            for each in line.partition(":")[0].split(",")
        ]
        assert documented == parameters_of(thing)
    if inspect.isclass(thing):
        assert "Examples\n--------" in doc


@pytest.mark.parametrize("name", FOUND)
def test_the_examples_run(name: str) -> None:
    if name in RUNS_PILLOW:
        pytest.importorskip("PIL")
    runner = doctest.DocTestRunner(optionflags=doctest.REPORT_NDIFF)
    thing = FOUND[name]
    test = doctest.DocTestParser().get_doctest(inspect.getdoc(thing) or "", {}, name, None, 0)
    outputs: list[str] = []
    runner.run(test, out=outputs.append)
    assert not runner.failures, "".join(outputs)
