# SPDX-License-Identifier: Apache-2.0
"""Tests of docs/failure-model.md (each row names existing tests) and of docs/errors.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import ngd

ROOT = Path(__file__).parents[2]
HELP = ROOT / "docs" / "errors.md"
MODEL = ROOT / "docs" / "failure-model.md"
ROWS = [line for line in MODEL.read_text().splitlines() if line.startswith("| ")]
FAULTS = [row for row in ROWS if not row.startswith(("| fault |", "| --- |"))]
CLASSES = sorted(
    name
    for name, value in vars(ngd.errors).items()
    if isinstance(value, type) and issubclass(value, Exception) and not name.startswith("_")
)
BUILTINS = ["ImportError", "KeyboardInterrupt", "MemoryError", "TimeoutError"]
BUILTINS += ["RuntimeError", "TypeError", "ValueError"]


def named_in(text: str) -> list[str]:
    """Return the tests that a text names: `test_name` of Python, `Suite.Name` of C++."""
    return re.findall(r"`(test_\w+|[A-Z]\w+\.[A-Z]\w+)`", text)


def known_tests() -> set[str]:
    names: set[str] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        names |= set(re.findall(r"^def (test_\w+)\(", path.read_text(), re.MULTILINE))
    for path in (ROOT / "tests" / "cpp").rglob("*_test.cpp"):
        suites = re.findall(r"^TEST(?:_[PF])?\((\w+),\s*(\w+)\)", path.read_text(), re.MULTILINE)
        names |= {f"{suite}.{name}" for suite, name in suites}
    return names


def sections(text: str) -> dict[str, str]:
    """Return the text of each section of the third level by its heading."""
    parts = re.split(r"^(#{2,3}) (.+)\n", text, flags=re.MULTILINE)[1:]
    triples = zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    return {heading: body for level, heading, body in triples if level == "###"}


def test_the_page_has_its_tables() -> None:
    assert len(FAULTS) >= 155
    assert len([row for row in ROWS if row.startswith("| fault |")]) == 4


@pytest.mark.parametrize("row", FAULTS, ids=lambda row: row.split("|")[1].strip()[:50])
def test_every_fault_has_a_test(row: str) -> None:
    named = named_in(row.strip().strip("|").split("|")[-1])
    assert named
    assert set(named) <= known_tests()


@pytest.mark.parametrize("page", [HELP, MODEL], ids=lambda page: page.name)
def test_what_the_text_names_exists(page: Path) -> None:
    assert set(named_in(page.read_text())) <= known_tests()


@pytest.mark.parametrize("name", [*CLASSES, *BUILTINS])
def test_every_class_has_a_section(name: str) -> None:
    """It has the condition of the error, a message or a program, and the pages to read."""
    body = sections(HELP.read_text())[name]
    if name not in ("Error", "CollectiveError"):
        assert "**When.**" in body
        assert "**What to do.**" in body
        assert "\n```text\n" in body
        assert re.search(r"\]\([a-z_-]*\.md", body), "no link to a guide"
    else:
        assert "\n```python\n" in body


def test_every_class_is_in_the_list_of_messages() -> None:
    listed = HELP.read_text().partition("## How to read")[0]
    for name in [*CLASSES, *BUILTINS]:
        if name not in ("Error", "CollectiveError", "KeyboardInterrupt"):
            assert f"[{name}](#{name.lower()})" in listed, name


def test_every_link_within_the_pages_has_its_heading() -> None:
    for page in (HELP, MODEL, ROOT / "docs" / "troubleshooting.md"):
        for file, anchor in re.findall(r"\]\(([\w-]*(?:\.md)?)#([\w-]+)\)", page.read_text()):
            target = (ROOT / "docs" / file if file else page).read_text()
            headings = re.findall(r"^#+ (.+)$", target, re.MULTILINE)
            slugs = {re.sub(r"[^\w\s-]", "", h.lower()).strip().replace(" ", "-") for h in headings}
            assert anchor in slugs, f"{page.name}: {file}#{anchor}"
