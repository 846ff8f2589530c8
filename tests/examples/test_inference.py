# SPDX-License-Identifier: Apache-2.0
"""Tests of inference.py: any number of ranks predicts the classes that NumPy computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

from tests.examples.runs import needs_ranks, report_of, start

pytestmark = pytest.mark.long

EXAMPLE = "inference.py"


def classes_of(checkpoint: Path, x: NDArray[Any]) -> NDArray[Any]:
    """Return the classes that NumPy computes in float64."""
    (file,) = checkpoint.glob("*.safetensors")
    w = {name: value.astype(np.float64) for name, value in load_file(file).items()}
    hidden = np.maximum(x @ w["0.weight"].T + w["0.bias"], 0)
    return np.asarray((hidden @ w["3.weight"].T + w["3.bias"]).argmax(1))


@needs_ranks
def test_any_number_of_ranks_predicts_the_classes_of_numpy(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    trained = report_of(start(EXAMPLE, 2, "--smoke", "--checkpoint", checkpoint))
    assert trained["rows"] == 200
    assert trained["accuracy"] > 0.8
    x = np.random.default_rng(7).normal(size=(101, 16)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    files = ["--checkpoint", checkpoint, "--data", tmp_path / "x.npy"]
    expected = classes_of(checkpoint, x)
    assert len(set(expected)) == 4
    before = (checkpoint / "checkpoint.json").read_text()
    for ranks, batch in ((1, 256), (2, 16), (3, 10)):
        output = tmp_path / f"{ranks}.npy"
        options = [*files, "--output", output, "--batch", str(batch)]
        report = report_of(start(EXAMPLE, ranks, *options))
        assert (report["ranks"], report["rows"], report["accuracy"]) == (ranks, 101, None)
        np.testing.assert_array_equal(np.load(output), expected)
    assert (checkpoint / "checkpoint.json").read_text() == before


@needs_ranks
def test_rows_of_another_length_are_rejected(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    report_of(start(EXAMPLE, 1, "--smoke", "--checkpoint", checkpoint))
    np.save(tmp_path / "x.npy", np.zeros((5, 3), np.float32))
    done = start(EXAMPLE, 1, "--checkpoint", checkpoint, "--data", tmp_path / "x.npy")
    assert done.returncode == 1
    assert "--data: expected an array float32[rows, 16]; got float32[5, 3]" in done.stderr
