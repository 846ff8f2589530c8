# SPDX-License-Identifier: Apache-2.0
"""Tests of the pages about PyTorch models: programs run, and the table of ops lists the rules."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

DOCS = Path(__file__).parents[3] / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def test_the_program_learns_alone_and_on_two_ranks(tmp_path: Path) -> None:
    program, *_ = BLOCK.findall((DOCS / "torch_models.md").read_text())
    script = tmp_path / "train_step.py"
    script.write_text(program)
    for command in ([sys.executable], ["ngd", "run", "-n", "2"]):
        output = subprocess.run(
            [*command, str(script)], check=True, capture_output=True, text=True, timeout=300
        ).stdout
        assert output.count("accuracy 1.00") == (1 if len(command) == 1 else 2), output


def test_the_program_of_the_backend_runs(tmp_path: Path) -> None:
    _, program, *_ = BLOCK.findall((DOCS / "torch_models.md").read_text())
    script = tmp_path / "compiled.py"
    script.write_text(program + "\nprint(loss.item())\n")
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert 0 < float(done.stdout) < 1.5
    assert "FallbackWarning" not in done.stderr


def test_the_table_of_ops_is_that_of_the_rules() -> None:
    script = runpy.run_path(str(DOCS / "torch_rules.py"))
    assert (DOCS / "torch_ops.md").read_text() == script["page"]()
