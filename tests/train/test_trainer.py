# SPDX-License-Identifier: Apache-2.0
"""Tests of the trainer: steps, evaluations, checkpoints, logs, signals, and callbacks."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ngd
from ngd import checkpoint, data, ops, train
from ngd.errors import NotFiniteError
from tests.support import harness
from tests.train import lines


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


def test_the_trainer_takes_the_steps_of_numpy(world: Any) -> None:
    trainer, model = lines.trainer_of(world, 3)
    report = trainer.run()
    value, losses = lines.by_hand(3)
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
def test_ranks_train_and_evaluate_like_one_rank(ranks: int) -> None:
    (one, weights), (several, found) = on_ranks(1, 2), on_ranks(ranks, 2)
    np.testing.assert_allclose(np.hstack(found), np.hstack(weights), rtol=1e-12)
    for name in ("steps", "loss", "error", "distance"):
        assert several[name] == pytest.approx(one[name], rel=1e-12)


def test_a_trainer_resumes_in_the_middle_of_an_epoch(world: Any, tmp_path: Path) -> None:
    uninterrupted, model = lines.trainer_of(world, 3)
    uninterrupted.run()
    first, _ = lines.trainer_of(world, 3, save=tmp_path, every=4)
    original_step = first.step

    def interrupted(*columns: Any) -> Any:
        if first.done > 9:
            raise KeyboardInterrupt
        return original_step(*columns)

    first.step = interrupted
    with pytest.raises(KeyboardInterrupt):
        first.run()
    assert json.loads((tmp_path / "checkpoint.json").read_text())["position"]["step"] == 3
    second, resumed_model = lines.trainer_of(world, 3, save=tmp_path, resume=True, num_workers=1)
    assert second.done == 8
    second.run()
    second.loader.close()
    for variable, other in zip(model, resumed_model, strict=True):
        np.testing.assert_array_equal(variable.numpy(), other.numpy())


def test_an_interrupted_evaluation_is_repeated_after_resume(world: Any, tmp_path: Path) -> None:
    options: dict[str, Any] = {"save": tmp_path / "saved", "every": 1, "log": tmp_path / "log"}
    first, _ = lines.trainer_of(world, 2, **options)

    def interrupted() -> Any:
        raise KeyboardInterrupt

    first.evaluate = interrupted
    with pytest.raises(KeyboardInterrupt):
        first.run()
    second, _ = lines.trainer_of(world, 2, resume=True, **options)
    second.run()
    rows = [json.loads(line) for line in (tmp_path / "log" / train.LOG).read_text().splitlines()]
    assert [line["step"] for line in rows if "error" in line] == [5, 10]
    assert [line["step"] for line in rows if "training_loss" in line] == [*range(1, 11)]


def test_resume_without_a_checkpoint_starts_a_training(world: Any, tmp_path: Path) -> None:
    trainer, _ = lines.trainer_of(world, 1, save=tmp_path / "new", resume=True)
    assert trainer.done == 0
    trainer.run()
    assert checkpoint.exists(tmp_path / "new")
    again, _ = lines.trainer_of(world, 1, save=tmp_path / "new", resume=True)
    assert again.run()["loss"] is None


def test_each_step_is_logged_once_even_if_it_was_repeated(world: Any, tmp_path: Path) -> None:
    folder, log = tmp_path / "saved", tmp_path / "log"
    first, _ = lines.trainer_of(world, 1, save=folder, log=log)
    first.run()
    with (log / train.LOG).open("a") as file:
        file.write('{"step": 6, "epoch": 2, "training_loss": 1.0}\n')  # from a run that was killed
    second, _ = lines.trainer_of(world, 2, save=folder, log=log, resume=True)
    second.run()
    rows = [json.loads(line) for line in (log / train.LOG).read_text().splitlines()]
    losses = [line["training_loss"] for line in rows if "training_loss" in line]
    np.testing.assert_allclose(losses, lines.by_hand(2)[1], rtol=1e-12)
    assert [line["step"] for line in rows if "error" in line] == [5, 10]
    assert list(log.glob("events*"))


def test_a_loss_that_is_not_finite_stops_the_training(world: Any, tmp_path: Path) -> None:
    trainer, _ = lines.trainer_of(world, 50, rate=1e30, save=tmp_path, every=1)
    with pytest.raises(
        NotFiniteError, match=r"a finite loss; got (inf|nan) in step \d+\. .*NGD_CHECK_FINITE"
    ):
        trainer.run()
    assert trainer.done < 50


def test_weights_that_are_not_finite_are_not_saved(world: Any, tmp_path: Path) -> None:
    """The loss is computed before the update, so it is finite."""
    trainer, (w, _) = lines.trainer_of(world, 50, save=tmp_path, every=1)
    step = trainer.step

    def step_and_spoil(*columns: Any) -> Any:
        results = step(*columns)
        if trainer.done == 3:
            w.assign([np.inf, 0])
        return results

    trainer.step = step_and_spoil
    with pytest.raises(NotFiniteError, match=r"got NaN or infinity in 'w' after step 3, .*FINITE"):
        trainer.run()
    resumed, (w, _) = lines.trainer_of(world, 50, save=tmp_path, resume=True)
    assert resumed.done == 2
    assert np.isfinite(w.numpy()).all()


def test_the_op_with_the_first_nan_is_named(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NGD_CHECK_FINITE", "1")
    trainer, _ = lines.trainer_of(world, 50, rate=1e30)
    with pytest.raises(NotFiniteError, match="first appears in the result of"):
        trainer.run()


def test_buffers_are_averaged_for_evaluations(world: Any) -> None:
    steps = []

    class Model:
        @contextlib.contextmanager
        def averaged_buffers(self) -> Iterator[None]:
            steps.append(trainer.done)
            yield

        def buffers(self) -> dict[str, Any]:
            return {}

    trainer, _ = lines.trainer_of(world, 2, model=Model())
    trainer.run()
    assert steps == [5, 10]


def test_an_evaluation_starts_at_the_first_batch_after_a_break() -> None:
    sampler = data.Sampler(lines.TESTS, lines.BATCH, shuffle=False)
    loader = data.Loader(lines.points(lines.TESTS), sampler)
    for _ in loader:
        break
    (mean,) = train.evaluate(lambda x, y: [np.mean(y)], loader)
    assert mean == pytest.approx(np.mean(lines.points(lines.TESTS).columns[1]))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"epochs": -1}, "epochs: expected 0 or more; got -1"),
        ({"epochs": 1, "every": 0, "save": "x"}, "every: expected 1 or more steps; got 0"),
        ({"epochs": 1, "resume": True}, "expected save, a folder to save to"),
    ],
)
def test_bad_arguments_raise_value_error(options: dict[str, Any], words: str) -> None:
    loader = data.Loader(lines.points(8), data.Sampler(8, 4))
    with pytest.raises(ValueError, match=words):
        train.Trainer(lambda x, y: [0.0], loader, [], **options)


@pytest.mark.parametrize("options", [{}, {"drop_last": True}, {"replacement": True}])
def test_an_evaluation_weights_by_the_number_of_samples(options: dict[str, bool]) -> None:
    loader = data.Loader(lines.points(10), data.Sampler(10, 4, **options))
    assert train.evaluate(lambda x, y: [1.0], loader) == [1.0]


def test_a_batch_smaller_than_the_number_of_ranks_is_rejected() -> None:
    loader = data.Loader(lines.points(17), data.Sampler(17, 16, rank=1, size=2, shuffle=False))
    trainer = train.Trainer(lambda x, y: [0.0], loader, [], epochs=1, progress=False)
    with pytest.raises(ValueError, match=r"each of 2 ranks; got a batch of 1\. Write"):
        trainer.run()


def four_steps(returned: Any) -> dict[str, Any]:
    loader = data.Loader(data.Arrays(np.zeros(8)), data.Sampler(8, 2))
    trainer = train.Trainer(lambda x: returned, loader, [], epochs=1, progress=False)
    report: dict[str, Any] = trainer.run()
    return report


@pytest.mark.parametrize(
    "returned",
    [
        0.5,
        np.float32(0.5),
        np.array(0.5),
        [0.5],
        (np.array(0.5), 3),
        [0.5, np.zeros(3)],
        np.array([0.5, 0.25]),
    ],
    ids=str,
)
def test_a_step_may_return_a_loss_or_a_sequence(world: Any, returned: Any) -> None:
    assert four_steps(returned)["loss"] == 0.5


def test_a_traced_function_may_return_only_the_loss(world: Any) -> None:
    step = ngd.function(lambda x: ops.mean(x) + 0.5)
    loader = data.Loader(data.Arrays(np.zeros(8)), data.Sampler(8, 2))
    assert train.Trainer(step, loader, [], epochs=1, progress=False).run()["loss"] == 0.5


@pytest.mark.parametrize(
    ("returned", "shown"),
    [
        (None, "None"),
        ([], r"\[\]"),
        ({"loss": 0.5}, r"\{'loss': 0.5\}"),
        ([np.zeros(2)], r"\[array\(\[0., 0.\]\)\]"),
        (np.zeros((2, 2)), r"float64\[2, 2\]"),
        ("loss", "'loss'"),
    ],
    ids=str,
)
def test_a_step_without_a_loss_raises_type_error(world: Any, returned: Any, shown: str) -> None:
    message = rf"^train.Trainer: step: expected a function that returns the loss.*; got {shown}\. "
    with pytest.raises(TypeError, match=message):
        four_steps(returned)


def test_a_metric_may_return_a_scalar_or_a_sequence(world: Any) -> None:
    loader = data.Loader(data.Arrays(np.arange(5.0)), data.Sampler(5, 2, shuffle=False))
    assert train.evaluate(np.mean, loader) == [2.0]
    assert train.evaluate(lambda x: np.array([np.mean(x), 1]), loader) == [2.0, 1.0]
    with pytest.raises(TypeError, match=r"^train.evaluate: metric: expected .*; got None\."):
        train.evaluate(lambda x: None, loader)


def test_a_truncated_log_is_continued(tmp_path: Path) -> None:
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


def test_a_signal_stops_after_a_step_and_training_resumes(world: Any, tmp_path: Path) -> None:
    whole, model = lines.trainer_of(world, 3, log=tmp_path / "whole")
    report = whole.run()
    folder, log = tmp_path / "saved", tmp_path / "log"
    options: dict[str, Any] = {"save": folder, "log": log, "stop_at": [signal.SIGTERM]}
    first, _ = lines.trainer_of(world, 3, **options)
    first.step = signalling(first, 7)
    before = signal.getsignal(signal.SIGTERM)
    assert first.run()["steps"] == 7
    assert first.stopped is signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before
    assert json.loads((folder / "checkpoint.json").read_text())["position"]["step"] == 2
    second, again = lines.trainer_of(world, 3, resume=True, **options)
    resumed = second.run()
    assert second.stopped is None
    for variable, other in zip(model, again, strict=True):
        np.testing.assert_array_equal(variable.numpy(), other.numpy())
    for name in ("steps", "error", "distance"):
        assert resumed[name] == report[name]
    assert (log / train.LOG).read_text() == (tmp_path / "whole" / train.LOG).read_text()


def signalling(trainer: Any, number: int) -> Any:
    """Return the step of a trainer that sends SIGTERM to this process at a call of all runs."""
    made = trainer.step

    def step(*columns: Any) -> Any:
        if trainer.done == number:
            signal.raise_signal(signal.SIGTERM)
        return made(*columns)

    return step


def interrupted_rank(folder: str) -> list[Any]:
    """Send a signal to rank 1 only, early in the epoch."""
    world = ngd.init()
    trainer, model = lines.trainer_of(world, 3, save=folder, stop_at=[signal.SIGTERM])
    if world.rank == 1:
        trainer.step = signalling(trainer, 2)
    trainer.run()
    return [trainer.done, trainer.stopped, model[0].numpy().tolist()]


@harness.needs_ranks
def test_a_signal_on_one_rank_stops_all_ranks_at_the_same_step(tmp_path: Path) -> None:
    outcomes = harness.run(interrupted_rank, 3, arguments={"folder": str(tmp_path)})
    steps, stopped, weights = outcomes[0].value
    assert [outcome.value for outcome in outcomes] == [[steps, stopped, weights]] * 3
    assert (steps, stopped) == (2, signal.SIGTERM)
    assert checkpoint.exists(tmp_path)


def asked_in_groups() -> list[int | None]:
    """Send a signal to rank 2. The group of ranks 1 and 2 is asked, and rank 0 is separate."""
    world = ngd.init()
    group = world.split(int(world.rank > 0))
    with train.StopSignals(signal.SIGUSR1, group=group) as stop:
        before = stop.asked()
        if world.rank == 2:
            signal.raise_signal(signal.SIGUSR1)
        return [before, stop.asked()]


@harness.needs_ranks
def test_a_group_stops_without_the_other_ranks() -> None:
    outcomes = harness.run(asked_in_groups, 3)
    assert [o.value for o in outcomes] == [[None, None], *[[None, signal.SIGUSR1]] * 2]


@pytest.mark.parametrize(("number", "steps", "stops"), [(10, 10, True), (15, 15, False)])
def test_a_signal_at_the_end_of_an_epoch_stops_after_the_evaluation(
    world: Any, tmp_path: Path, number: int, steps: int, stops: bool
) -> None:
    """If no epoch is left, the training was not stopped."""
    trainer, _ = lines.trainer_of(world, 3, save=tmp_path, stop_at=[signal.SIGTERM])
    trainer.step = signalling(trainer, number)
    report = trainer.run()
    assert report["steps"] == steps
    assert (trainer.stopped is not None) == stops
    assert "error" in report
    assert trainer.run()["steps"] == 15  # the signal of the first run does not count again
    assert trainer.stopped is None


def test_signals_that_cannot_be_handled_keep_their_handlers() -> None:
    before = signal.getsignal(signal.SIGUSR1)
    stop = train.StopSignals(signal.SIGUSR1, signal.SIGKILL)
    with pytest.raises(OSError), stop:  # noqa: PT011
        pass
    assert signal.getsignal(signal.SIGUSR1) is before
    with train.StopSignals() as stop:
        assert stop.asked() is None


class Recorder(train.Callback):
    """A callback that records its calls, and ends the training at a step or after an epoch."""

    def __init__(self, step: int = 0, epoch: int = 0) -> None:
        self.step, self.epoch = step, epoch
        self.losses: list[float] = []
        self.results: list[Any] = []

    def on_step(self, trainer: train.Trainer, loss: float) -> Any:
        self.losses.append(loss)
        return np.bool_(trainer.done == self.step)

    def on_epoch(self, trainer: train.Trainer, results: Any) -> Any:
        self.results.append((trainer.done, trainer.epoch, dict(results)))
        return trainer.epoch == self.epoch or None


def test_callbacks_get_each_loss_and_each_evaluation(world: Any) -> None:
    recorder = Recorder()
    trainer, _ = lines.trainer_of(world, 3, callbacks=[recorder])
    report = trainer.run()
    np.testing.assert_allclose(recorder.losses, lines.by_hand(3)[1], rtol=1e-12)
    assert [call[:2] for call in recorder.results] == [(5, 1), (10, 2), (15, 3)]
    assert recorder.results[-1][2] == {name: report[name] for name in ("error", "distance")}
    assert (trainer.has_stopped_early, trainer.stopped) == (False, None)


@pytest.mark.parametrize(
    ("ends", "due", "evaluations"),
    [({"step": 7}, 7, 1), ({"step": 10}, 10, 2), ({"epoch": 2}, 10, 2)],
)
def test_a_callback_ends_the_training_and_a_second_run_continues(
    world: Any, tmp_path: Path, ends: dict[str, int], due: int, evaluations: int
) -> None:
    whole, model = lines.trainer_of(world, 3)
    whole.run()
    first, second = Recorder(**ends), Recorder(**ends)
    trainer, stopped = lines.trainer_of(world, 3, callbacks=[first, second], save=tmp_path)
    assert trainer.run()["steps"] == due
    assert (trainer.has_stopped_early, trainer.stopped) == (True, None)
    assert len(first.losses) == len(second.losses) == due
    assert len(first.results) == len(second.results) == evaluations
    position = json.loads((tmp_path / "checkpoint.json").read_text())["position"]
    assert position["epoch"] * 5 + position["step"] == due
    again, resumed = lines.trainer_of(world, 3, save=tmp_path, resume=True)
    for each, variables in ((trainer, stopped), (again, resumed)):
        assert each.run()["steps"] == 15
        assert not each.has_stopped_early
        for variable, other in zip(model, variables, strict=True):
            np.testing.assert_array_equal(variable.numpy(), other.numpy())


def test_a_callback_at_the_last_step_does_not_stop_early(world: Any) -> None:
    trainer, _ = lines.trainer_of(world, 2, callbacks=[Recorder(step=10, epoch=2)])
    assert trainer.run()["steps"] == 10
    assert not trainer.has_stopped_early


def test_stop_without_callbacks_ends_after_the_epoch(world: Any) -> None:
    trainer, _ = lines.trainer_of(world, 3)
    made = trainer.step

    def step(*columns: Any) -> Any:
        if trainer.done == 2:
            trainer.stop()
        return made(*columns)

    trainer.step = step
    report = trainer.run()
    assert (report["steps"], trainer.has_stopped_early) == (5, True)
    assert "error" in report


def test_a_callback_and_a_signal_may_come_at_the_same_step(world: Any, tmp_path: Path) -> None:
    options: dict[str, Any] = {"save": tmp_path, "stop_at": [signal.SIGTERM]}
    trainer, _ = lines.trainer_of(world, 3, callbacks=[Recorder(step=7)], **options)
    trainer.step = signalling(trainer, 7)
    assert trainer.run()["steps"] == 7
    assert (trainer.has_stopped_early, trainer.stopped) == (True, signal.SIGTERM)


def test_callbacks_need_no_base_class(world: Any) -> None:
    calls: list[Any] = []
    on_step = types.SimpleNamespace(on_step=lambda trainer, loss: calls.append(trainer.done))
    on_epoch = types.SimpleNamespace(on_epoch=lambda trainer, results: trainer.epoch == 1)
    trainer, _ = lines.trainer_of(world, 3, callbacks=(on_step, on_epoch))
    assert trainer.run()["steps"] == 5
    assert calls == [1, 2, 3, 4, 5]


def test_bad_callbacks_and_results_are_rejected(world: Any) -> None:
    for bad, words in (
        ([3], "objects with a method on_step or on_epoch; got 3"),
        ([train.Callback], "got the class Callback"),
        (train.Callback(), r"expected a list; got Callback\. Write callbacks=\[callback\]"),
    ):
        with pytest.raises(TypeError, match=words):
            lines.trainer_of(world, 1, callbacks=bad)
    wrong = types.SimpleNamespace(on_step=lambda trainer, loss: loss)
    trainer, _ = lines.trainer_of(world, 1, callbacks=[wrong])
    with pytest.raises(TypeError, match="True, False or None from on_step of SimpleNamespace; got"):
        trainer.run()
    with pytest.raises(TypeError, match=r"train\.Trainer: .*`callback` is called `callbacks`"):
        lines.trainer_of(world, 1, callback=[])


def stopped_epoch(values: list[float], **options: Any) -> int:
    """Return the epoch after which early stopping ends a training with these results."""
    stopping = train.EarlyStopping("metric", **options)
    results = iter(values)
    loader = data.Loader(lines.points(4), data.Sampler(4, 4))
    trainer = train.Trainer(
        lambda x, y: [0.0], loader, [], epochs=len(values), progress=False,
        evaluate=lambda: {"metric": next(results)}, callbacks=[stopping],
    )  # fmt: skip
    trainer.run()
    return trainer.epoch


@pytest.mark.parametrize(
    ("values", "options", "epoch"),
    [
        ([5, 4, 4, 4, 4, 4], {}, 5),
        ([5, 4, 4, 4, 4, 4], {"patience": 1}, 3),
        ([5, 4, 4.5, 3, 3.5, 3.2, 2], {"patience": 2}, 6),
        ([5, 4.95, 4.9, 4.85, 4.8], {"patience": 2, "min_delta": 0.1}, 3),
        ([5, 4.8, 4.6, 4.4, 4.2], {"patience": 1, "min_delta": 0.1}, 5),
        ([5, 4, 3, 2, 1], {"mode": "max", "patience": 2}, 3),
        ([1, 2, 3, 4, 5], {"mode": "max", "patience": 1}, 5),
        ([np.nan, np.nan, 1, np.nan, np.nan, 1], {"patience": 2}, 2),
        ([1, np.nan, 0, np.nan, np.nan, 1], {"patience": 2}, 5),
    ],
)
def test_early_stopping_stops_without_improvement(
    values: list[float], options: dict[str, Any], epoch: int
) -> None:
    assert stopped_epoch(values, **options) == epoch


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"patience": 0}, "patience: expected 1 or more; got 0"),
        ({"min_delta": -1.0}, "min_delta: expected a number >= 0; got -1"),
        ({"mode": "least"}, "mode: expected 'min' or 'max'; got 'least'"),
    ],
)
def test_bad_arguments_of_early_stopping_raise_errors(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        train.EarlyStopping("loss", **options)


def test_early_stopping_names_the_results_that_it_can_monitor(world: Any) -> None:
    trainer, _ = lines.trainer_of(world, 1, callbacks=[train.EarlyStopping("loss")])
    with pytest.raises(ValueError, match="result of the evaluation, error, distance; got 'loss'"):
        trainer.run()


def test_a_resumed_training_stops_early_after_the_same_epoch(world: Any, tmp_path: Path) -> None:
    values = [5.0, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0]

    def trainer_for(epochs: int) -> tuple[Any, train.EarlyStopping]:
        stopping = train.EarlyStopping("metric", patience=3)
        trainer, _ = lines.trainer_of(
            world, epochs, save=tmp_path, resume=True, callbacks=[Recorder(), stopping]
        )
        trainer.evaluate = lambda: {"metric": values[trainer.epoch - 1]}
        return trainer, stopping

    trainer_for(3)[0].run()
    resumed, stopping = trainer_for(7)
    assert stopping.state() == {"best": 4.0, "num_epochs_without_improvement": 1}
    resumed.run()
    assert (resumed.epoch, resumed.has_stopped_early) == (5, True)
    lines.trainer_of(world, 7, save=tmp_path, resume=True, callbacks=[Recorder()])


def test_stop_at_needs_a_folder_to_save_to(world: Any) -> None:
    with pytest.raises(ValueError, match="a folder to save to, for resume, every and stop_at"):
        lines.trainer_of(world, 1, stop_at=[signal.SIGTERM])
