# SPDX-License-Identifier: Apache-2.0
"""Tests that the tests and paths that docs/architecture.md and docs/code-map.md name exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
MAX_LINE = 100
PACKAGES = (
    "_util",
    *("comm", "comm/launchers", "graph"),
    *("passes", "passes/fusion", "passes/memory", "passes/sharding"),
    *("devices", "devices/cpu", "devices/interpreter"),
    *("compiler", "transforms", "cli"),
)
"""The packages of python/ngd whose modules the code map lists."""
TITLES = {"Top level": ".", "C++": "src/cpp", "Python": "python/ngd", "Tests": "tests"}
"""The folder that each section of the code map describes."""


def known_tests() -> set[str]:
    """Return the names of all Python and C++ tests."""
    names: set[str] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        names |= set(re.findall(r"^ *def (test_\w+)\(", path.read_text(), re.MULTILINE))
    for path in (ROOT / "tests" / "cpp").rglob("*_test.cpp"):
        suites = re.findall(r"^TEST(?:_[PF])?\((\w+),\s*(\w+)\)", path.read_text(), re.MULTILINE)
        names |= {f"{suite}.{name}" for suite, name in suites}
    return names


def listed_paths() -> list[Path]:
    """Return the paths that the code map lists."""
    paths: list[Path] = []
    folder = ROOT
    for line in (DOCS / "code-map.md").read_text().splitlines():
        if line.startswith("#"):
            title = line.strip("# ").split(":")[0]
            name = title.strip("`/")
            folder = ROOT / TITLES.get(title, f"python/ngd/{name}")
        elif row := re.match(r"\| `([^`]+)` \|", line):
            paths.append(folder / row[1])
    return paths


def test_every_invariant_names_tests_that_exist() -> None:
    text = (DOCS / "architecture.md").read_text()
    rows = text.split("## Invariants")[1].split("\n\n")[1].splitlines()[2:]
    assert len(rows) == 10
    for row in rows:
        named = re.findall(r"`(test_\w+|[A-Z]\w+\.[A-Z]\w+)`", row)
        assert named, row
        assert set(named) <= known_tests(), row


def test_the_architecture_page_lists_all_passes_in_order() -> None:
    from ngd import passes
    from ngd.passes import pipeline

    text = (DOCS / "architecture.md").read_text()
    listed = re.findall(r"^\| `(\w+)` \|", text.split("| pass |")[1].split("\n\n")[0], re.MULTILINE)
    passes_run = [each for each, _ in pipeline.listed_passes()]
    names = [each.__name__ for each in (*passes_run, passes.schedule, passes.plan_memory)]
    assert listed == names


def test_the_code_map_lists_paths_that_exist() -> None:
    missing = [str(path) for path in listed_paths() if not path.exists()]
    assert missing == []


def test_the_code_map_is_complete() -> None:
    listed = set(listed_paths())
    package, core, tests = ROOT / "python" / "ngd", ROOT / "src" / "cpp", ROOT / "tests"
    expected = {p for p in core.rglob("*") if p.is_dir() and any(p.glob("*.cpp"))}
    expected |= {p.parent for p in package.rglob("*.py")} - {package}
    expected |= {p for folder in ("", *PACKAGES) for p in (package / folder).glob("*.py")}
    expected |= {p.parent for p in tests.glob("*/*.py")}
    assert {str(p) for p in expected - listed} == set()


def test_lines_of_the_code_map_are_short() -> None:
    lines = (DOCS / "code-map.md").read_text().splitlines()
    assert [line for line in lines if len(line) > MAX_LINE] == []
