# SPDX-License-Identifier: Apache-2.0
"""Tests of mnist_cnn.py: it learns on any number of ranks, and resumes from checkpoints."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ngd.checkpoint import read_safetensors
from tests.examples.runs import (
    DEADLINE,
    EXAMPLES,
    ONE_RANK_ONLY,
    alone,
    expect_raised,
    needs_ranks,
    report_of,
    start,
)

pytestmark = pytest.mark.long

EXAMPLE = "mnist_cnn.py"
RANKS = [1] if ONE_RANK_ONLY else [1, 2, 4]


@pytest.mark.parametrize("ranks", RANKS)
def test_the_network_learns_on_any_number_of_ranks(ranks: int) -> None:
    report = report_of(start(EXAMPLE, ranks, "--epochs", "6"))
    assert list(report) == ["ranks", "device", "steps", "loss", "samples_per_s", "accuracy"]
    assert (report["ranks"], report["device"], report["steps"]) == (ranks, "CPU", 6 * 22)
    assert report["accuracy"] >= 0.93
    assert report["loss"] < 0.5


def test_training_resumes_from_a_checkpoint(tmp_path: Path) -> None:
    saved = ["--smoke", "--save", tmp_path]
    first = report_of(alone(EXAMPLE, *saved))
    resumed = report_of(alone(EXAMPLE, *saved, "--resume"))
    assert first["steps"] == resumed["steps"] == 22  # no step was left
    more = report_of(alone(EXAMPLE, "--epochs", "2", "--save", tmp_path, "--resume"))
    assert more["steps"] == 44
    assert more["loss"] < first["loss"]


@needs_ranks
def test_a_signal_saves_a_checkpoint_from_which_training_resumes(tmp_path: Path) -> None:
    """`ngd run` forwards SIGTERM, and returns the exit code of the ranks."""
    options = ["--epochs", "3", "--save", str(tmp_path / "stopped")]
    command = [sys.executable, "-m", "ngd.launch", "-n", "2", "--grace", "60", "--no-prefix", "--"]
    job = subprocess.Popen(
        [*command, str(EXAMPLES / EXAMPLE), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert job.stderr is not None
        bar = ""
        while not re.search(r" [1-9]\d*/22", bar):  # after a step, both ranks handle the signal
            bar += job.stderr.read(1) or pytest.fail(bar)
        job.send_signal(signal.SIGTERM)
        output, errors = job.communicate(timeout=DEADLINE)
    finally:
        job.kill()
    assert job.returncode == os.EX_TEMPFAIL, errors
    stopped = json.loads(output.splitlines()[-1])
    assert stopped["steps"] < 3 * 22
    resumed = report_of(start(EXAMPLE, 2, *options, "--resume"))
    uninterrupted = report_of(start(EXAMPLE, 2, "--epochs", "3", "--save", tmp_path / "whole"))
    assert resumed["steps"] == uninterrupted["steps"] == 3 * 22
    first, second = (
        read_safetensors(next((tmp_path / name).glob("*.safetensors")))
        for name in ("stopped", "whole")
    )
    assert first.keys() == second.keys()
    for name, value in first.items():
        np.testing.assert_array_equal(value, second[name], err_msg=name)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--epochs", "-1"], "train.Trainer: epochs: expected 0 or more; got -1"),
        (["--batch", "0"], "data.Sampler: batch_size: expected"),
        (["--resume"], "train.Trainer: expected save"),
        (["--data", "/nowhere"], "/nowhere"),
    ],
)
def test_bad_arguments_raise_errors(options: list[str], words: str) -> None:
    expect_raised(alone(EXAMPLE, "--smoke", *options), words)
