# SPDX-License-Identifier: Apache-2.0
"""Run the examples as users start them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ngd
from tests.support.paths import PYTHONPATH, ROOT

EXAMPLES = ROOT / "examples"
DEADLINE = 120
ONE_RANK_ONLY = ngd.build_info()["mode"] == "OFF"
needs_ranks = pytest.mark.skipif(ONE_RANK_ONLY, reason="built with NGD_DISTRIBUTED_ENABLE=OFF")

Run = subprocess.CompletedProcess[str]


def run(command: list[str]) -> Run:
    """Run a command, with a time limit."""
    environ = {**os.environ, "NGD_TIMEOUT": "60", "PYTHONPATH": PYTHONPATH}
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, env=environ)


def start(example: str, ranks: int, *options: str | Path) -> Run:
    """Run an example on a number of ranks."""
    launcher = [sys.executable, "-m", "ngd.launch", "-n", str(ranks), "--no-prefix", "--"]
    done = run([*launcher, str(EXAMPLES / example), *map(str, options)])
    assert "VaryingVariableWarning" not in done.stderr, done.stderr
    return done


def alone(example: str, *options: str | Path) -> Run:
    """Run an example without a launcher."""
    return run([sys.executable, str(EXAMPLES / example), *map(str, options)])


def report_of(done: Run) -> dict[str, Any]:
    """Return the report in the last line of an example that succeeded."""
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


def expect_refused(example: str, done: Run, words: str) -> None:
    """Expect one line of error from one rank, and no other output."""
    assert done.returncode == 1
    said = [line for line in done.stderr.splitlines() if not line.startswith("ngd run:")]
    assert len(said) == 1, done.stderr
    assert said[0].startswith(f"{example}: ")
    assert words in said[0]
    assert done.stdout == ""


def expect_raised(done: Run, words: str) -> None:
    """Expect an exception whose last line contains the words, and no output."""
    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if not line.startswith("ngd run:")]
    assert words in lines[-1], done.stderr
    assert done.stdout == ""
