# SPDX-License-Identifier: Apache-2.0
"""Tests of DiLoCo on a GPT: the loss after a worker was killed and replaced."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.examples.configured import program
from tests.examples.runs import EXAMPLES, alone, needs_ranks, report_of, run

DOCS = EXAMPLES.parent / "docs"
SMALL = {"width": 32, "layers": 1, "context": 32, "lr": 5e-3}
OPTIONS = ("--data", DOCS, "--rounds", 50, "--every", 10)
SPREAD = 0.011
"""The relative standard deviation of the final loss over 24 runs with other seeds.

The loss of the disturbed run depends on when its new member joins. Over six seeds it was 1.2 %
higher.
"""


def elastic(*options: Any) -> tuple[dict[str, Any], str]:
    launcher = [sys.executable, "-m", "ngd.launch", "-n", "4", "--no-prefix"]
    launcher += ["--min-ranks", "2", "--max-restarts", "1"]
    done = run([*launcher, *program("diloco.py", *OPTIONS, *options, **SMALL)])
    return report_of(done), done.stderr


@pytest.mark.long
@needs_ranks
def test_a_killed_worker_hardly_changes_the_loss() -> None:
    undisturbed, _ = elastic()
    disturbed, log = elastic("--lose", "1:3", "--wire", "int8")
    assert undisturbed["ranks"] == 4
    assert undisturbed["bits_a_token"] < 5.5  # 8 before the first step
    assert disturbed["rounds"] == 50
    assert disturbed["loss"] == pytest.approx(undisturbed["loss"], rel=0.012 + 3 * SPREAD)
    for words in (
        "member 1 was killed by SIGKILL; member 4 replaces it",
        "world 2 has the members 0, 2, 3",
        "outer step 4, 3 ranks",
        "1 new members join",
        "world 3 has the members 0, 2, 3, 4",
        "got the state of rank 0",
        "outer step 50, 4 ranks",
    ):
        assert words in log


def test_diloco_runs_on_one_rank(tmp_path: Path) -> None:
    report = report_of(alone("diloco.py", *OPTIONS, "--rounds", 1))
    assert report["rounds"] == 1
