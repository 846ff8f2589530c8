# SPDX-License-Identifier: Apache-2.0
"""Tests of resnet50.py: any number of ranks, folders of images, checkpoints, variable names."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import resnet50
from safetensors.numpy import load_file, save_file

from tests.examples.configured import train_configured
from tests.examples.runs import ONE_RANK_ONLY, alone, expect_raised, needs_ranks, start

pytestmark = pytest.mark.long

EXAMPLE = "resnet50.py"
SOME = 1 if ONE_RANK_ONLY else 2


def train(ranks: int, *options: str | Path, **changes: Any) -> dict[str, Any]:
    return train_configured(EXAMPLE, ranks, "--smoke", *options, **changes)


@pytest.mark.parametrize("preset", ["momentum", "large-batch"])
def test_each_preset_runs_and_reports(preset: str) -> None:
    report = train(SOME, "--preset", preset, workers=1)
    names = ["ranks", "device", "depth", "steps", "loss", "accuracy", "images_per_s"]
    assert list(report) == names
    assert (report["ranks"], report["depth"], report["steps"]) == (SOME, 18, 8)
    assert 0 < report["loss"] < 4
    assert 0 <= report["accuracy"] <= 1
    assert report["images_per_s"] > 0


def test_bfloat16_learns_like_float32() -> None:
    kinds = ("float32", "bfloat16")
    exact, found = (train(1, function={"precision": kind})["loss"] for kind in kinds)
    assert found == pytest.approx(exact, rel=0.1)


@needs_ranks
@pytest.mark.parametrize(
    ("ranks", "dtype", "tolerance"), [(2, "float64", 1e-9), (3, "float32", 1e-3)]
)
def test_any_number_of_ranks_takes_the_same_steps(
    ranks: int, dtype: str, tolerance: float, tmp_path: Path
) -> None:
    """The three ranks have different numbers of samples. Convolutions in float64 are slow."""
    settings = {"sync": True, "lr": 0.02, "images": 32, "epochs": 1}
    one, several = (
        train(n, "--save", tmp_path / str(n), dtype=dtype, **settings) for n in (1, ranks)
    )
    assert one["steps"] == several["steps"] == 2
    assert several["loss"] == pytest.approx(one["loss"], rel=tolerance)
    assert several["accuracy"] == one["accuracy"]
    weights = [load_file(next((tmp_path / str(n)).glob("*.safetensors"))) for n in (1, ranks)]
    for name, value in weights[0].items():
        scale = max(1.0, float(np.abs(value).max()))
        np.testing.assert_allclose(weights[1][name], value, rtol=0, atol=tolerance * scale)


def test_training_resumes_from_a_checkpoint_bit_for_bit(tmp_path: Path) -> None:
    """The checkpoint is from the middle of the second epoch."""
    uninterrupted = train(SOME, "--save", tmp_path / "whole")
    part = train(SOME, "--save", tmp_path / "part", workers=1, stop_after=6)
    assert part["steps"] == 6
    index = json.loads((tmp_path / "part" / "checkpoint.json").read_text())
    assert (index["position"]["epoch"], index["position"]["step"]) == (1, 2)
    rest = train(SOME, "--resume", "--save", shutil.copytree(tmp_path / "part", tmp_path / "rest"))
    assert rest["steps"] == uninterrupted["steps"] == 8
    assert rest["accuracy"] == uninterrupted["accuracy"]
    ends = [load_file(next((tmp_path / n).glob("*.safetensors"))) for n in ("whole", "rest")]
    assert ends[0].keys() == ends[1].keys()
    for name, value in ends[0].items():
        np.testing.assert_array_equal(ends[1][name], value, name)


@needs_ranks
def test_a_sharded_update_gives_the_same_weights(tmp_path: Path) -> None:
    """Compare all bits, including those after a resume with and without shards."""
    host = {"function": {"shard": "host"}}
    train(2, "--save", tmp_path / "a copy per rank")
    train(2, "--save", tmp_path / "sharded", **host)
    train(2, "--save", tmp_path / "begun", stop_after=6, **host)
    for name, changes in (("ended", host), ("ended without shards", {})):
        train(
            2, "--resume", "--save", shutil.copytree(tmp_path / "begun", tmp_path / name), **changes
        )
    folders = ["a copy per rank", "sharded", "ended", "ended without shards"]
    first, *others = [load_file(next((tmp_path / n).glob("*.safetensors"))) for n in folders]
    for folder, other in zip(folders[1:], others, strict=True):
        assert other.keys() == first.keys()
        for name, value in first.items():
            np.testing.assert_array_equal(other[name], value, f"{folder}: {name}")


@pytest.mark.parametrize(("depth", "count"), [(18, 122), (34, 218), (50, 320)])
def test_variables_have_the_names_of_torchvision(depth: int, count: int) -> None:
    state = {key: p.shape for key, p in resnet50.ResNet(depth, 1000).declared()}
    assert len(state) == count
    num_channels = 2048 if depth == 50 else 512
    expected = {
        "conv1.weight": (64, 3, 7, 7),
        "bn1.num_batches_tracked": (),
        "layer2.0.downsample.0.weight": (num_channels // 4, 256 if depth == 50 else 64, 1, 1),
        "layer2.0.downsample.1.running_var": (num_channels // 4,),
        "layer4.1.bn2.weight": (512,),
        "fc.weight": (1000, num_channels),
        "fc.bias": (1000,),
    }
    assert expected.items() <= state.items()
    assert ("layer1.0.downsample.0.weight" in state) == (depth == 50)
    assert ("layer1.0.conv3.weight" in state) == (depth == 50)


def test_a_model_that_always_predicts_class_three_has_the_accuracy_of_that_class(
    tmp_path: Path,
) -> None:
    model = resnet50.ResNet(18, 10)
    state = {**model.state_dict(), "fc.bias": np.eye(10, dtype=np.float32)[3] * 1e6}
    save_file(state, tmp_path / "weights")
    report = train(SOME, "--weights", tmp_path / "weights", epochs=0)
    _, labels = resnet50.synthetic(64 // 4 + 1, 32, 2).columns
    assert report["accuracy"] == pytest.approx(np.mean(labels == 3))
    assert (report["steps"], report["loss"], report["images_per_s"]) == (0, None, None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    image = pytest.importorskip("PIL.Image", reason="needs Pillow")
    random = np.random.default_rng(0)
    for part, count in (("train", 12), ("val", 3)):
        for name, level in (("dark", 0), ("light", 155)):
            (tmp_path / part / name).mkdir(parents=True)
            for number in range(count):
                pixels = level + random.integers(0, 100, (40 + number, 50, 3), np.uint8)
                image.fromarray(pixels).save(tmp_path / part / name / f"{number}.jpg")
    return tmp_path


def test_a_folder_of_images_is_learned_equally_with_any_number_of_workers(folder: Path) -> None:
    reports = [train(SOME, "--data", folder, workers=count) for count in (0, 2)]
    assert reports[0]["steps"] == 2
    for name in ("steps", "loss", "accuracy"):
        assert reports[0][name] == reports[1][name]


def test_a_folder_with_other_classes_is_rejected(folder: Path) -> None:
    (folder / "val" / "dark").rename(folder / "val" / "black")
    done = start(EXAMPLE, SOME, "--smoke", "--data", folder)
    expect_raised(done, "train/ and val/ hold different classes")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--data", "/nowhere"], "/nowhere/train, which is not a directory"),
        (["--resume"], "train.Trainer: expected save"),
        (["--weights", __file__], "safetensors"),
        (["--save", __file__], "test_resnet50.py"),
    ],
)
def test_bad_arguments_raise_errors(options: list[str], words: str) -> None:
    expect_raised(alone(EXAMPLE, "--smoke", *options), words)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"epochs": -1}, "train.Trainer: epochs: expected 0 or more; got -1"),
        ({"workers": -1}, "data.Loader: num_workers: expected"),
    ],
)
def test_bad_settings_raise_errors(
    settings: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [EXAMPLE, "--smoke"])
    args = resnet50.parse_arguments()
    vars(args).update(settings)
    with pytest.raises(ValueError, match=words):
        resnet50.make_trainer(args)
