# SPDX-License-Identifier: Apache-2.0
"""Tests that the two lists of examples, examples/README.md and docs/examples.md, are complete."""

from __future__ import annotations

import re

from ngd.cli import examples
from tests.examples.runs import EXAMPLES

PROGRAMS = set(examples.find_scripts(EXAMPLES))


def test_the_readme_has_a_row_for_each_example() -> None:
    text = (EXAMPLES / "README.md").read_text()
    assert set(re.findall(r"^\| \[(\w+)\.py\]\(\1\.py\) \|", text, re.MULTILINE)) >= PROGRAMS


def test_the_page_has_a_row_for_each_example() -> None:
    text = (EXAMPLES.parent / "docs" / "examples.md").read_text()
    assert set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)) >= PROGRAMS
