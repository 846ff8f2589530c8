# SPDX-License-Identifier: Apache-2.0
"""Tests of low_level_mnist.py: equal steps on any number of ranks and in all dtypes, bad input."""

from __future__ import annotations

import os
import shutil
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import ngd
from tests.examples.mnist_files import write_idx, write_images
from tests.examples.runs import EXAMPLES, ONE_RANK_ONLY, expect_refused, report_of, run, start

pytestmark = pytest.mark.long

EXAMPLE = "low_level_mnist.py"
RANKS = [1] if ONE_RANK_ONLY else [1, 2, 3, 4]
SOME = RANKS[min(1, len(RANKS) - 1)]

MPIRUN = shutil.which("mpirun", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")


def train(ranks: int, *options: str | Path) -> dict[str, Any]:
    """Run the example, and return the report in its last line."""
    return report_of(start(EXAMPLE, ranks, *options))


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write 641 training images, so that the last batch of 16 has one image."""
    return write_images(tmp_path_factory.mktemp("images") / "plain", 641)


def logged_losses(directory: Path) -> dict[int, float]:
    """Return each step's loss from TensorBoard's file. Its records are length, crc, data, crc."""
    from tensorboardX.proto.event_pb2 import Event

    (file,) = directory.glob("events*")
    data = file.read_bytes()

    def events() -> Iterator[Any]:
        at = 0
        while at < len(data):
            (length,) = struct.unpack_from("<Q", data, at)
            yield Event.FromString(data[at + 12 : at + 12 + length])
            at += 16 + length

    return {e.step: v.simple_value for e in events() for v in e.summary.value if v.tag == "loss"}


def relative_difference(a: NDArray[Any], b: NDArray[Any]) -> float:
    """Return the largest difference divided by the largest value."""
    return float(np.max(np.abs(a - b)) / np.max(np.abs(a)))


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-9), ("float32", 1e-3)])
def test_any_number_of_ranks_takes_the_same_steps(
    images: Path, tmp_path: Path, dtype: str, tolerance: float
) -> None:
    from safetensors.numpy import load_file

    options = ["--data", images, "--dtype", dtype, "--batch", "16", "--epochs", "3"]
    losses, weights = {}, {}
    for ranks in RANKS:
        saved, log = tmp_path / f"{ranks}.safetensors", tmp_path / f"log{ranks}"
        report = train(ranks, *options, "--save", saved, "--log-dir", log)
        assert report["ranks"] == ranks
        assert report["steps"] == 3 * 41
        losses[ranks] = np.array([logged_losses(log)[step] for step in range(1, 124)])
        weights[ranks] = load_file(saved)
        assert {w.dtype for w in weights[ranks].values()} == {np.dtype(dtype)}
    # TensorBoard's file stores float32, so losses cannot be compared with a smaller tolerance.
    loss_tolerance = max(tolerance, 1e-7)
    for ranks in RANKS[1:]:
        assert relative_difference(losses[1][:100], losses[ranks][:100]) <= loss_tolerance
        for name, value in weights[1].items():
            assert relative_difference(value, weights[ranks][name]) <= tolerance, name


def test_the_first_loss_equals_numpy(images: Path, tmp_path: Path) -> None:
    """Compute the loss of the first step from the initial weights with NumPy."""
    options = ["--data", images, "--dtype", "float64", "--batch", "16", "--epochs", "1"]
    train(SOME, *options, "--log-dir", tmp_path, "--seed", "3")
    pixels = np.frombuffer((images / "train-images-idx3-ubyte").read_bytes()[16:], np.uint8)
    labels = np.frombuffer((images / "train-labels-idx1-ubyte").read_bytes()[8:], np.uint8)
    batch = np.random.default_rng((3, 0)).permutation(641)[:16]
    x, t = pixels.reshape(641, 36)[batch] / 255, labels[batch]
    random = np.random.default_rng(3)
    W0 = random.standard_normal((36, 600)) * np.sqrt(2 / 36)
    W1 = random.standard_normal((600, 3)) * np.sqrt(2 / 600)
    logits = np.maximum(x @ W0, 0) @ W1
    losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(16), t]
    assert logged_losses(tmp_path)[1] == pytest.approx(losses.mean(), rel=1e-6)


def test_training_reports_and_resumes_from_a_checkpoint(images: Path, tmp_path: Path) -> None:
    saved = tmp_path / "weights.safetensors"
    report = train(SOME, "--data", images, "--epochs", "2", "--save", saved)
    names = ["ranks", "device", "mode", "steps", "loss", "test_accuracy", "images_per_s"]
    assert list(report) == names
    assert report["mode"] == ngd.build_info()["mode"]
    assert (report["ranks"], report["device"], report["steps"]) == (SOME, "CPU", 12)
    assert report["test_accuracy"] > 0.95
    assert report["loss"] < 1.1  # ln 3 is the loss of a uniform guess
    assert report["images_per_s"] > 0
    for ranks in RANKS:
        resumed = train(ranks, "--data", images, "--epochs", "0", "--load", saved)
        assert resumed["test_accuracy"] == report["test_accuracy"]
        assert (resumed["steps"], resumed["loss"], resumed["images_per_s"]) == (0, None, None)


def test_the_interpreter_learns_like_the_cpu(images: Path) -> None:
    options = ["--data", images, "--epochs", "2", "--dtype", "float64"]
    cpu, slow = (train(SOME, *options, "--device", d) for d in ("CPU", "INTERPRETER"))
    assert slow["device"] == "INTERPRETER"
    assert slow["loss"] == pytest.approx(cpu["loss"], rel=1e-9)
    assert slow["test_accuracy"] == cpu["test_accuracy"]


def test_gzipped_and_plain_files_give_the_same_loss(images: Path, tmp_path: Path) -> None:
    zipped = write_images(tmp_path / "zipped", 641, zipped=True)
    options = ["--epochs", "1", "--batch", "64"]
    reports = [train(1, "--data", d, *options) for d in (images, zipped)]
    assert reports[0]["loss"] == reports[1]["loss"]


def test_the_bundled_digits_are_the_default() -> None:
    assert train(SOME, "--epochs", "3")["test_accuracy"] > 0.85


def test_smoke_runs_one_epoch(images: Path) -> None:
    assert train(SOME, "--smoke", "--data", images)["steps"] == 6


@pytest.mark.skipif(MPIRUN is None or ONE_RANK_ONLY, reason="no mpirun here, or mode OFF")
def test_mpirun_starts_the_example(images: Path) -> None:
    assert MPIRUN is not None
    options = ["--data", str(images), "--epochs", "1"]
    program = [sys.executable, str(EXAMPLES / EXAMPLE), *options]
    done = run([MPIRUN, "--oversubscribe", "-np", "2", *program])
    assert report_of(done)["ranks"] == 2


def truncate(path: Path, count: int = 10) -> None:
    path.write_bytes(path.read_bytes()[:-count])


def relabel(directory: Path) -> None:
    write_idx(directory / "train-labels-idx1-ubyte", np.zeros(7))


def swap(directory: Path) -> None:
    (directory / "train-images-idx3-ubyte").rename(directory / "x")
    (directory / "train-labels-idx1-ubyte").rename(directory / "train-images-idx3-ubyte")
    (directory / "x").rename(directory / "train-labels-idx1-ubyte")


def truncate_zipped(directory: Path) -> None:
    path = directory / "t10k-images-idx3-ubyte"
    write_idx(path, np.zeros((150, 6, 6)), zipped=True)
    path.unlink()
    truncate(path.with_name(path.name + ".gz"))


Damage = Callable[[Path], object]
DAMAGES: dict[str, tuple[Damage, str]] = {
    "missing": (lambda d: (d / "t10k-labels-idx1-ubyte").unlink(), "t10k-labels-idx1-ubyte"),
    "truncated": (lambda d: truncate(d / "train-images-idx3-ubyte"), "truncated"),
    "headless": (lambda d: (d / "train-images-idx3-ubyte").write_bytes(b"\0\0\x08\x03"), "header"),
    "empty": (lambda d: (d / "train-images-idx3-ubyte").write_bytes(b""), "not an IDX file"),
    "wrong": (lambda d: (d / "t10k-images-idx3-ubyte").write_text("hello"), "not an IDX file"),
    "swapped": (swap, "expected grey images"),
    "unequal": (relabel, "7 labels"),
    "half a gzip": (truncate_zipped, "gzip"),
    "no directory": (shutil.rmtree, "is not a directory"),
}


def check_refused(ranks: int, words: str, *options: str | Path) -> None:
    """Expect one line of error from one rank, and exit codes other than 0 from all ranks."""
    expect_refused(EXAMPLE, start(EXAMPLE, ranks, *options), words)


@pytest.mark.parametrize("damage", DAMAGES)
def test_bad_data_is_refused_in_one_line(images: Path, tmp_path: Path, damage: str) -> None:
    directory = shutil.copytree(images, tmp_path / "damaged")
    harm, words = DAMAGES[damage]
    harm(directory)
    check_refused(SOME, words, "--data", directory)


def test_bad_arguments_are_refused_in_one_line(images: Path, tmp_path: Path) -> None:
    check_refused(SOME, "--epochs -1", "--epochs", "-1")
    check_refused(SOME, "--lr 0.0", "--lr", "0")
    check_refused(SOME, "--lr nan", "--lr", "nan")
    check_refused(SOME, "--seed -2", "--seed", "-2")
    check_refused(SOME, "cannot be made", "--save", tmp_path / "none" / "weights")
    check_refused(SOME, "cannot be made", "--save", tmp_path)
    check_refused(SOME, "is not a directory", "--log-dir", images / "train-labels-idx1-ubyte")
    check_refused(RANKS[-1], "smaller than the number of ranks", "--batch", str(RANKS[-1] - 1))


@pytest.mark.skipif(ONE_RANK_ONLY, reason="one rank has always enough images")
def test_fewer_images_than_ranks_are_refused_in_one_line(tmp_path: Path) -> None:
    few = write_images(tmp_path / "few", 2)
    check_refused(3, "2 training images for 3 ranks", "--data", few)


def test_a_bad_checkpoint_is_refused_in_one_line(images: Path, tmp_path: Path) -> None:
    saved = tmp_path / "digits"
    train(1, "--epochs", "0", "--save", saved)
    check_refused(SOME, "holds shape (64, 600) for W0", "--data", images, "--load", saved)
    truncate(saved)
    check_refused(SOME, "is not a safetensors file", "--load", saved)
    check_refused(SOME, "No such file", "--load", tmp_path / "nothing")
