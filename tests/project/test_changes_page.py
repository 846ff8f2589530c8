# SPDX-License-Identifier: Apache-2.0
"""Tests of docs/changes.md: the old names are gone, and the new ones exist."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import ngd
from ngd import optim

PAGE = (Path(__file__).parents[2] / "docs" / "changes.md").read_text()


def table(head: str) -> list[list[str]]:
    """Return the cells of the rows below a header row."""
    (body,) = re.findall(rf"^{re.escape(head)}\n[| -]+\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in body.splitlines()]


NAMES = table("| Old name | New name |")
PARAMETERS = table("| Call | Old parameter | New parameter |")


def names_in(cell: str) -> str:
    (name,) = re.findall(r"^`(ngd[\w.]+)`", cell)
    return str(name)


def resolve(name: str) -> Any:
    """Return the object of a dotted name, or raise AttributeError."""
    value: Any = ngd
    for part in name.split(".")[1:]:
        value = getattr(value, part)
    return value


@pytest.mark.parametrize(("old", "new"), NAMES)
def test_a_name_has_changed(old: str, new: str) -> None:
    assert resolve(names_in(new)) is not None
    with pytest.raises(AttributeError):
        resolve(names_in(old))


@pytest.mark.parametrize(("call", "old", "new"), PARAMETERS)
def test_a_parameter_has_changed(call: str, old: str, new: str) -> None:
    parameters = inspect.signature(resolve(names_in(call))).parameters
    assert new.strip("`") in parameters
    assert old.strip("`") not in parameters


@pytest.mark.parametrize(
    "name", ["SGD", "Adam", "AdamW", "LAMB", "LARS", "Lion", "Muon", "RMSprop"]
)
def test_optimizers_have_a_learning_rate_lr(name: str) -> None:
    assert next(iter(inspect.signature(getattr(optim, name)).parameters)) == "lr"


def test_old_keywords_of_optimizers_are_errors() -> None:
    for old in ("learning_rate", "epsilon"):
        with pytest.raises(TypeError, match=old):
            optim.Adam(**{old: 0.1})
