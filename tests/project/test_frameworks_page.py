# SPDX-License-Identifier: Apache-2.0
"""Tests that .ci/frameworks.py writes the table of docs/frameworks.md from runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / ".ci" / "frameworks.py"
PAGE = ROOT / "docs" / "frameworks.md"
RUN = """<testsuites><testsuite>
<testcase name="test_random_calls[2]"/><testcase name="test_random_calls[3]"/>
<testcase name="test_vmap"><skipped/></testcase>
<testcase name="test_ranks_train_as_one_process[2]"/>
<testcase name="test_ranks_train_as_one_process[3]"><failure/></testcase>
</testsuite></testsuites>"""

pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="a source distribution has no .ci")


def test_only_rows_of_frameworks_that_ran_change(tmp_path: Path) -> None:
    (tmp_path / "jax.xml").write_text(RUN)
    (tmp_path / "jax.txt").write_text("jax==9.9.1\nnumpy==2.0\n")
    page = tmp_path / "page.md"
    before = PAGE.read_text()
    page.write_text(before)
    command = [sys.executable, str(PROGRAM), str(tmp_path), str(page)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    (line,) = [line for line in page.read_text().splitlines() if line.startswith("| JAX | jax 9")]
    python = "{}.{}".format(*sys.version_info)
    assert line == f"| JAX | jax 9.9.1 | {python} | 2 | - | no | - | 3 | 1 |"
    assert line in done.stdout.splitlines()
    changed = set(before.splitlines()) ^ set(page.read_text().splitlines())
    assert all(re.match(r"\| JAX \| jax \d", each) for each in changed)
    subprocess.run(command, capture_output=True, timeout=60, check=True)
    assert page.read_text().splitlines().count(line) == 1
