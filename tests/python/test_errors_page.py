# SPDX-License-Identifier: Apache-2.0
"""docs/errors.md: every row of its tables names tests, and these exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "errors.md"
ROWS = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
FAULTS = [row for row in ROWS if not row.startswith(("| fault |", "| --- |"))]


def named_in(text: str) -> list[str]:
    """Of Python `test_name`, of C++ `Suite.Name`."""
    return re.findall(r"`(test_\w+|[A-Z]\w+\.[A-Z]\w+)`", text)


def known_tests() -> set[str]:
    found: set[str] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        found |= set(re.findall(r"^def (test_\w+)\(", path.read_text(), re.MULTILINE))
    for path in (ROOT / "tests" / "cpp").rglob("*_test.cpp"):
        suites = re.findall(r"^TEST(?:_[PF])?\((\w+),\s*(\w+)\)", path.read_text(), re.MULTILINE)
        found |= {f"{suite}.{name}" for suite, name in suites}
    return found


def test_the_page_has_its_tables() -> None:
    assert len(FAULTS) >= 38
    assert len([row for row in ROWS if row.startswith("| fault |")]) == 4


@pytest.mark.parametrize("row", FAULTS, ids=lambda row: row.split("|")[1].strip()[:50])
def test_every_fault_has_a_test(row: str) -> None:
    named = named_in(row.strip().strip("|").split("|")[-1])
    assert named
    assert set(named) <= known_tests()


def test_what_the_text_names_exists() -> None:
    assert set(named_in(PAGE.read_text())) <= known_tests()
