# SPDX-License-Identifier: Apache-2.0
"""Tests that copy each example into an empty folder, and run it there with --smoke on two ranks."""

from __future__ import annotations

import ast
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ngd.cli import examples
from tests.examples.runs import EXAMPLES, ONE_RANK_ONLY

PROGRAMS = sorted(examples.find_scripts(EXAMPLES))
RANKS = 1 if ONE_RANK_ONLY else 2
DEADLINE = 240
"""A time limit in seconds. It is long, for machines that run other tests at the same time."""

PACKAGES = {
    "hf_causal_lm": ("torch", "transformers"),
    "hf_finetune": ("torch", "transformers"),
    "timm_train": ("torch", "timm"),
    "torch_ddp": ("torch",),
}
"""Packages that an example needs, and that the test environment may not have."""

MAX_LINES = {"dist_mnist_mlp": 100, "gpt": 200, "resnet50": 180}
OTHERS_MAX_LINES = 130


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_copied_example_runs_with_smoke(name: str, tmp_path: Path) -> None:
    for package in PACKAGES.get(name, ()):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    shutil.copy(EXAMPLES / f"{name}.py", tmp_path)
    launcher = [sys.executable, "-m", "ngd.launch", "-n", str(RANKS), "--no-prefix", "--"]
    done = subprocess.run(
        [*launcher, f"{name}.py", "--smoke"],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        cwd=tmp_path,
        env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert "VaryingVariableWarning" not in done.stderr
    assert "UnevenBatchWarning" not in done.stderr


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name != "low_level_mnist"])
def test_an_example_is_short(name: str) -> None:
    lines = (EXAMPLES / f"{name}.py").read_text().splitlines()
    assert len(lines) <= MAX_LINES.get(name, OTHERS_MAX_LINES)


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_example_imports_no_other_example(name: str) -> None:
    tree = ast.parse((EXAMPLES / f"{name}.py").read_text())
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
    assert not imported & {path.stem for path in EXAMPLES.glob("*.py")}
