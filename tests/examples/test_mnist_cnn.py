# SPDX-License-Identifier: Apache-2.0
"""The example of a small convolutional network: it learns, on any number of ranks, and goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
from runs import ONE_RANK_ONLY, alone, expect_refused, report_of, start

EXAMPLE = "mnist_cnn.py"
RANKS = [1] if ONE_RANK_ONLY else [1, 2, 4]


@pytest.mark.parametrize("ranks", RANKS)
def test_it_learns(ranks: int) -> None:
    report = report_of(start(EXAMPLE, ranks, "--epochs", "6"))
    assert list(report) == ["ranks", "device", "steps", "loss", "samples_per_s", "accuracy"]
    assert (report["ranks"], report["device"], report["steps"]) == (ranks, "CPU", 6 * 22)
    assert report["accuracy"] >= 0.93
    assert report["loss"] < 0.5


def test_it_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    saved = ["--smoke", "--save", tmp_path]
    first = report_of(alone(EXAMPLE, *saved))
    again = report_of(alone(EXAMPLE, *saved, "--resume"))
    assert first["steps"] == again["steps"] == 22  # nothing was left to be done
    more = report_of(alone(EXAMPLE, "--epochs", "2", "--save", tmp_path, "--resume"))
    assert more["steps"] == 44
    assert more["loss"] < first["loss"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--lr", "0"], "--lr 0.0 is not a positive number"),
        (["--epochs", "-1"], "--epochs -1: at least 0 is needed"),
        (["--batch", "0"], "--batch 0: at least 1 is needed"),
        (["--resume"], "--resume goes on from --save DIR"),
        (["--data", "/nowhere"], "/nowhere"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(options: list[str], words: str) -> None:
    expect_refused(EXAMPLE, alone(EXAMPLE, "--smoke", *options), words)
