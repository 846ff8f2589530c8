# SPDX-License-Identifier: Apache-2.0
"""The trainer: steps, evaluations over all ranks, checkpoints, logs, and its end at a NaN."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lines
import numpy as np
import pytest

import ngd
from ngd import checkpoint, data, train
from ngd.errors import NotFiniteError


@pytest.fixture(scope="module")
def world() -> Any:
    return ngd.init()


def on_ranks(ranks: int, epochs: int) -> Any:
    command = [sys.executable, "-m", "ngd.launch", "-n", str(ranks), "--no-prefix", "--"]
    done = subprocess.run(
        [*command, lines.__file__, str(epochs)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "NGD_TIMEOUT": "60"},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def by_hand(epochs: int) -> tuple[Any, list[float]]:
    """The same training in NumPy: weights, and each step's loss."""
    x, y = lines.points(lines.POINTS).columns
    value, momentum, losses = np.zeros(3), np.zeros(3), []
    for epoch in range(epochs):
        order = np.random.default_rng((0, epoch)).permutation(lines.POINTS)
        for step in range(lines.POINTS // lines.BATCH):
            batch = order[step * lines.BATCH : (step + 1) * lines.BATCH]
            wide = np.concatenate([x[batch], np.ones((lines.BATCH, 1))], 1)
            distance = wide @ value - y[batch]
            losses.append(float(np.mean(distance**2)))
            momentum = 0.9 * momentum + 2 * wide.T @ distance / lines.BATCH
            value = value - 0.05 * momentum
    return value, losses


def test_it_takes_the_steps_that_numpy_takes(world: Any) -> None:
    trainer, model = lines.trainer_of(world, 3)
    report = trainer.run()
    value, losses = by_hand(3)
    np.testing.assert_allclose([*model[0].numpy(), model[1].numpy()], value, rtol=1e-12)
    assert report["steps"] == 15
    assert report["loss"] == pytest.approx(np.mean(losses))
    assert report["samples_per_s"] > 0
    x, y = lines.points(lines.TESTS).columns
    distances = x @ value[:2] + value[2] - y
    assert report["error"] == pytest.approx(np.mean(distances**2))
    assert report["distance"] == pytest.approx(np.mean(np.abs(distances)))


@pytest.mark.skipif(ngd.build_info()["mode"] == "OFF", reason="built for one rank")
@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_train_and_judge_as_one(ranks: int) -> None:
    (one, weights), (several, found) = on_ranks(1, 2), on_ranks(ranks, 2)
    np.testing.assert_allclose(np.hstack(found), np.hstack(weights), rtol=1e-12)
    for name in ("steps", "loss", "error", "distance"):
        assert several[name] == pytest.approx(one[name], rel=1e-12)


def test_it_goes_on_from_the_middle_of_an_epoch(world: Any, tmp_path: Path) -> None:
    whole, model = lines.trainer_of(world, 3)
    whole.run()
    first, _ = lines.trainer_of(world, 3, save=tmp_path, every=4)
    made = first.step

    def interrupted(*columns: Any) -> Any:
        if first.done > 9:
            raise KeyboardInterrupt
        return made(*columns)

    first.step = interrupted
    with pytest.raises(KeyboardInterrupt):
        first.run()
    assert json.loads((tmp_path / "checkpoint.json").read_text())["position"]["step"] == 3
    second, again = lines.trainer_of(world, 3, save=tmp_path, resume=True, workers=1)
    assert second.done == 8
    second.run()
    second.loader.close()
    for variable, other in zip(model, again, strict=True):
        np.testing.assert_array_equal(variable.numpy(), other.numpy())


def test_resume_without_a_checkpoint_begins(world: Any, tmp_path: Path) -> None:
    trainer, _ = lines.trainer_of(world, 1, save=tmp_path / "new", resume=True)
    assert trainer.done == 0
    trainer.run()
    assert checkpoint.exists(tmp_path / "new")
    again, _ = lines.trainer_of(world, 1, save=tmp_path / "new", resume=True)
    assert again.run()["loss"] is None


def test_every_step_is_logged_once_also_if_it_was_made_twice(world: Any, tmp_path: Path) -> None:
    folder, log = tmp_path / "saved", tmp_path / "log"
    first, _ = lines.trainer_of(world, 1, save=folder, log=log)
    first.run()
    with (log / train.LOG).open("a") as file:
        file.write('{"step": 6, "epoch": 2, "training_loss": 1.0}\n')  # of a run that was killed
    second, _ = lines.trainer_of(world, 2, save=folder, log=log, resume=True)
    second.run()
    said = [json.loads(line) for line in (log / train.LOG).read_text().splitlines()]
    losses = [line["training_loss"] for line in said if "training_loss" in line]
    np.testing.assert_allclose(losses, by_hand(2)[1], rtol=1e-12)
    assert [line["step"] for line in said if "error" in line] == [5, 10]
    assert list(log.glob("events*"))


def test_it_stops_at_a_loss_that_is_none(world: Any, tmp_path: Path) -> None:
    trainer, _ = lines.trainer_of(world, 50, rate=1e30, save=tmp_path, every=1)
    with pytest.raises(
        NotFiniteError, match=r"the loss of step \d+ is (inf|nan); NGD_CHECK_FINITE"
    ):
        trainer.run()
    assert trainer.done < 50


def test_weights_that_are_none_are_not_saved(world: Any, tmp_path: Path) -> None:
    """The loss is computed before the update: it is finite still."""
    trainer, (w, _) = lines.trainer_of(world, 50, save=tmp_path, every=1)
    step = trainer.step

    def spoiled(*columns: Any) -> Any:
        results = step(*columns)
        if trainer.done == 3:
            w.assign([np.inf, 0])
        return results

    trainer.step = spoiled
    with pytest.raises(NotFiniteError, match=r"variable 'w' is not finite after step 3, .*FINITE"):
        trainer.run()
    resumed, (w, _) = lines.trainer_of(world, 50, save=tmp_path, resume=True)
    assert resumed.done == 2
    assert np.isfinite(w.numpy()).all()


def test_the_op_that_began_it_is_named(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NGD_CHECK_FINITE", "1")
    trainer, _ = lines.trainer_of(world, 50, rate=1e30)
    with pytest.raises(NotFiniteError, match="begins in the result of"):
        trainer.run()


def test_a_models_buffers_are_equal_in_evaluations(world: Any) -> None:
    called = []

    class Model:
        @contextlib.contextmanager
        def averaged_buffers(self) -> Iterator[None]:
            called.append(trainer.done)
            yield

        def buffers(self) -> dict[str, Any]:
            return {}

    trainer, _ = lines.trainer_of(world, 2, model=Model())
    trainer.run()
    assert called == [5, 10]


def test_an_evaluation_that_was_broken_off_begins_anew() -> None:
    sampler = data.Sampler(lines.TESTS, lines.BATCH, shuffle=False)
    loader = data.Loader(lines.points(lines.TESTS), sampler)
    for _ in loader:
        break
    (mean,) = train.evaluate(lambda x, y: [np.mean(y)], loader)
    assert mean == pytest.approx(np.mean(lines.points(lines.TESTS).columns[1]))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"epochs": -1}, "expected epochs >= 0 and every >= 1; got -1, None"),
        ({"epochs": 1, "every": 0, "save": "x"}, "expected epochs >= 0 and every >= 1; got 1, 0"),
        ({"epochs": 1, "resume": True}, "expected a folder to save to"),
    ],
)
def test_bad_arguments_are_refused(options: dict[str, Any], words: str) -> None:
    loader = data.Loader(lines.points(8), data.Sampler(8, 4))
    with pytest.raises(ValueError, match=words):
        train.Trainer(lambda x, y: [0.0], loader, [], **options)


@pytest.mark.parametrize("options", [{}, {"drop_last": True}, {"replace": True}])
def test_an_evaluation_counts_the_samples_that_it_has_seen(options: dict[str, bool]) -> None:
    loader = data.Loader(lines.points(10), data.Sampler(10, 4, **options))
    assert train.evaluate(lambda x, y: [1.0], loader) == [1.0]


def test_a_batch_that_leaves_a_rank_without_a_sample_is_refused() -> None:
    loader = data.Loader(lines.points(17), data.Sampler(17, 16, rank=1, size=2, shuffle=False))
    trainer = train.Trainer(lambda x, y: [0.0], loader, [], epochs=1, progress=False)
    with pytest.raises(ValueError, match="each of 2 ranks; a batch has 1: "):
        trainer.run()


def test_a_log_of_numpys_numbers_whose_end_is_lost(tmp_path: Path) -> None:
    loader = data.Loader(lines.points(8), data.Sampler(8, 4))
    folder, log = tmp_path / "kept", tmp_path / "log"

    def run(epochs: int) -> None:
        train.Trainer(
            lambda x, y: [0.0], loader, [ngd.variable("w", np.zeros(1))], epochs=epochs, log=log,
            evaluate=lambda: {"loss": np.float32(1)}, save=folder, resume=True, progress=False,
        ).run()  # fmt: skip

    run(1)
    with (log / "log.jsonl").open("a") as file:
        file.write('{"step": 3, "ep')
    run(2)
    steps = [json.loads(line)["step"] for line in (log / "log.jsonl").read_text().splitlines()]
    assert steps == [1, 2, 2, 3, 4, 4]
