# SPDX-License-Identifier: Apache-2.0
"""Tests of the main example: equal steps on any number of ranks, checkpoints, and the report."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import ngd
from ngd import data, nn
from ngd.checkpoint import read_safetensors
from tests.examples.mnist_files import write_images
from tests.examples.runs import (
    EXAMPLES,
    ONE_RANK_ONLY,
    Run,
    alone,
    needs_ranks,
    report_of,
    run,
    start,
)

EXAMPLE = "dist_mnist_mlp.py"
RANKS = [1] if ONE_RANK_ONLY else [1, 2, 3]
SOME = RANKS[min(1, len(RANKS) - 1)]
KEYS = ["ranks", "device", "mode", "steps", "loss", "test_accuracy", "images_per_s"]
MPIRUN = shutil.which("mpirun", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")

Weights = dict[str, NDArray[Any]]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write 641 training images, so that the last batch of 16 has one image."""
    return write_images(tmp_path_factory.mktemp("images") / "plain", 641)


def weights_in(folder: Path) -> Weights:
    """Return the values in a checkpoint by name."""
    (file,) = folder.glob("*.safetensors")
    return dict(read_safetensors(file))


def printed_losses(done: Run) -> list[float]:
    """Return the losses of the epochs, as rank 0 prints them."""
    return [float(loss) for loss in re.findall(r"^epoch \d+: loss (\S+)$", done.stdout, re.M)]


def assert_close(a: Weights, b: Weights, tolerance: float) -> None:
    """Compare checkpoints, relative to the largest value of each variable."""
    assert a.keys() == b.keys()
    for name, value in a.items():
        difference = np.max(np.abs(value - b[name]), initial=0)
        assert difference <= tolerance * np.max(np.abs(value), initial=0), name


@pytest.mark.long
def test_any_number_of_ranks_takes_the_same_steps(images: Path, tmp_path: Path) -> None:
    reports, losses, weights = {}, {}, {}
    for ranks in RANKS:
        folder = tmp_path / str(ranks)
        options = ["--data", images, "--batch", "16", "--epochs", "3", "--lr", "0.01"]
        done = start(EXAMPLE, ranks, *options, "--save", folder)
        reports[ranks], losses[ranks] = report_of(done), printed_losses(done)
        weights[ranks] = weights_in(folder)
        assert (reports[ranks]["ranks"], reports[ranks]["steps"]) == (ranks, 3 * 41)
    assert len(losses[1]) == 3
    assert losses[1][0] > losses[1][-1]
    for ranks in RANKS[1:]:
        assert losses[ranks] == pytest.approx(losses[1], rel=1e-3, abs=1e-4)
        assert reports[ranks]["test_accuracy"] == pytest.approx(reports[1]["test_accuracy"])
        assert_close(weights[1], weights[ranks], 1e-3)


def numpy_training(images: Path, seed: int, lr: float, epochs: int) -> tuple[list[float], Weights]:
    """Train the network with NumPy on all images per step, in float64."""
    pixels, labels = data.mnist(images, dtype="float64")[0].columns
    x, one_hot = pixels.reshape(len(pixels), -1), np.eye(10)[labels]
    network = nn.Sequential(nn.Flatten(), nn.Linear(36, 600), nn.ReLU(), nn.Linear(600, 10))
    network.initialize(seed)
    w0, b0, w1, b1 = weights = [
        network.state_dict()[name].astype(np.float64)
        for name in ("1.weight", "1.bias", "3.weight", "3.bias")
    ]
    momenta = [np.zeros_like(w) for w in weights]
    losses = []
    for _ in range(epochs):
        hidden = np.maximum(x @ w0.T + b0, 0)
        logits = hidden @ w1.T + b1
        probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        losses.append(float(-np.mean(np.log(np.sum(probabilities * one_hot, 1)))))
        d_logits = (probabilities - one_hot) / len(x)
        d_hidden = (d_logits @ w1) * (hidden > 0)
        gradients = [d_hidden.T @ x, d_hidden.sum(0), d_logits.T @ hidden, d_logits.sum(0)]
        for weight, momentum, gradient in zip(weights, momenta, gradients, strict=True):
            momentum *= 0.9
            momentum += gradient
            weight -= lr * momentum
    return losses, {"1.weight": w0, "1.bias": b0, "3.weight": w1, "3.bias": b1}


@pytest.mark.parametrize("device", ["CPU", "INTERPRETER"])
def test_the_steps_equal_those_of_numpy(images: Path, tmp_path: Path, device: str) -> None:
    options = ["--batch", "641", "--epochs", "4", "--lr", "0.2", "--seed", "3", "--device", device]
    done = start(EXAMPLE, SOME, "--data", images, *options, "--save", tmp_path)
    losses, weights = numpy_training(images, seed=3, lr=0.2, epochs=4)
    assert printed_losses(done) == pytest.approx(losses, abs=2e-4)
    report = report_of(done)
    assert report["device"] == device
    assert report["loss"] == pytest.approx(losses[-1], rel=1e-5)
    found = weights_in(tmp_path)
    assert_close(weights, {name: found[name] for name in weights}, 1e-4)


@pytest.mark.long
def test_a_resumed_training_has_the_bits_of_an_uninterrupted_one(
    images: Path, tmp_path: Path
) -> None:
    options = ["--data", images, "--batch", "64", "--resume"]
    whole = start(EXAMPLE, SOME, *options, "--epochs", "3", "--save", tmp_path / "whole")
    parts = [*options, "--save", tmp_path / "parts"]
    first = start(EXAMPLE, SOME, *parts, "--epochs", "1")
    second = start(EXAMPLE, SOME, *parts, "--epochs", "3")
    assert printed_losses(first) + printed_losses(second) == printed_losses(whole)
    assert report_of(second)["steps"] == report_of(whole)["steps"] == 3 * 11
    weights, expected = weights_in(tmp_path / "parts"), weights_in(tmp_path / "whole")
    assert weights.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(weights[name], value, err_msg=name)

    complete = report_of(start(EXAMPLE, RANKS[-1], *parts, "--epochs", "3"))
    assert complete["steps"] == 3 * 11
    assert (complete["loss"], complete["images_per_s"]) == (None, None)
    assert complete["test_accuracy"] == pytest.approx(report_of(whole)["test_accuracy"])


def test_the_last_line_is_a_report(images: Path) -> None:
    done = start(EXAMPLE, SOME, "--data", images, "--epochs", "3")
    report = report_of(done)
    assert list(report) == KEYS
    assert [json.loads(line) for line in done.stdout.splitlines() if line[0] == "{"] == [report]
    assert (report["ranks"], report["device"], report["steps"]) == (SOME, "CPU", 3 * 6)
    assert report["mode"] == ngd.build_info()["mode"]
    assert report["loss"] == pytest.approx(printed_losses(done)[-1], abs=1e-4)
    assert report["test_accuracy"] > 0.95
    assert report["images_per_s"] > 0


@pytest.mark.long
def test_the_digits_of_scikit_learn_are_the_default() -> None:
    assert report_of(start(EXAMPLE, SOME))["test_accuracy"] >= 0.93


@pytest.mark.long
@needs_ranks
def test_a_batch_may_have_fewer_images_than_ranks(images: Path) -> None:
    options = ["--data", images, "--batch", "2", "--smoke"]
    one, three = (report_of(start(EXAMPLE, ranks, *options)) for ranks in (1, 3))
    assert three["loss"] == pytest.approx(one["loss"], rel=1e-4)


@pytest.mark.long
def test_a_copied_example_runs_with_smoke(tmp_path: Path) -> None:
    copy = shutil.copy(EXAMPLES / EXAMPLE, tmp_path)
    command = [sys.executable, "-m", "ngd.launch", "-n", str(SOME), "--no-prefix", "--"]
    report = report_of(run([*command, copy, "--smoke"]))
    assert (report["ranks"], report["steps"]) == (SOME, 4)
    assert [path.name for path in tmp_path.iterdir()] == [EXAMPLE]


@pytest.mark.long
@pytest.mark.skipif(MPIRUN is None or ONE_RANK_ONLY, reason="no mpirun here, or mode OFF")
def test_mpirun_starts_the_example() -> None:
    assert MPIRUN is not None
    program = [sys.executable, str(EXAMPLES / EXAMPLE), "--smoke"]
    assert report_of(run([MPIRUN, "--oversubscribe", "-np", "2", *program]))["ranks"] == 2


def test_resume_needs_save() -> None:
    done = alone(EXAMPLE, "--resume")
    assert done.returncode == 2
    assert "--resume: expected --save DIR too" in done.stderr


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    done = alone(EXAMPLE, "--data", tmp_path / "nothing")
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert "data.mnist: expected a folder with the IDX files" in last
    assert str(tmp_path / "nothing") in last
