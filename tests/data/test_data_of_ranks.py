# SPDX-License-Identifier: Apache-2.0
"""Tests of samplers, loaders and trainers on several ranks."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import ngd
from ngd import checkpoint, data, ops, optim, train
from tests.support import harness

ROWS, FEATURES, BATCH = 23, 3, 10


def shards_before_and_after_init() -> list[list[list[int]]]:
    """Create a sampler before `ngd.init`, as most programs do."""
    sampler = data.Sampler(10, 4, shuffle=False)
    before = [shard.indices.tolist() for shard in sampler]
    ngd.init()
    after = [shard.indices.tolist() for shard in sampler]
    return [before, after]


@harness.needs_ranks
@pytest.mark.parametrize("launcher", ["plain", "ngd run"])
def test_a_sampler_divides_the_samples_among_the_ranks(launcher: str) -> None:
    outcomes = harness.run(shards_before_and_after_init, 2, launcher=launcher)
    expected = [[[0, 1], [4, 5], [8]], [[2, 3], [6, 7], [9]]]
    assert [outcome.value for outcome in outcomes] == [[each, each] for each in expected]


def shards_of_a_mesh() -> list[Any]:
    mesh = ngd.make_mesh((2, 2), ("data", "model"))
    shards = [data.Sampler(8, 4, mesh=mesh, shuffle=False).shard(0).indices.tolist()]
    by_model = data.Sampler(8, 4, mesh=mesh, axis="model", shuffle=False)
    return [*shards, by_model.shard(0).indices.tolist()]


@harness.needs_ranks
def test_a_sampler_of_a_mesh_divides_the_samples_along_its_data_axis() -> None:
    outcomes = harness.run(shards_of_a_mesh, 4)
    assert [outcome.value[0] for outcome in outcomes] == [[0, 1], [0, 1], [2, 3], [2, 3]]
    assert [outcome.value[1] for outcome in outcomes] == [[0, 1], [2, 3], [0, 1], [2, 3]]


def points() -> Any:
    random = np.random.default_rng(1)
    x = random.normal(size=(ROWS, FEATURES))
    return x, x @ [1.0, -2.0, 0.5]


def fit(has_weight: bool, dtype: str = "float64") -> dict[str, Any]:
    """Train with the loop of the documentation. Each batch has 10 or 3 samples."""
    x, y = (each.astype(dtype) for each in points())
    w = ngd.variable("w", np.zeros(FEATURES, dtype))
    optimizer = optim.SGD(0.05, momentum=0.9)

    @ngd.function(updates=True)
    def step(x: Any, y: Any, weight: Any) -> Any:
        loss = ops.mean(ops.square(ops.sum(x * w, 1) - y))
        return ops.all_reduce(loss, op="mean", weight=weight), optimizer.minimize(
            loss, [w], weight=weight
        )

    loader = data.Loader(data.Arrays(x, y), data.Sampler(ROWS, BATCH, seed=3))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            for batch in loader:
                loss = step(*batch, batch.weight if has_weight else 1.0)
    return {
        "w": w.numpy().tolist(),
        "loss": float(loss),
        "dtype": np.asarray(loss).dtype.name,
        "warnings": [each.category.__name__ for each in caught],
    }


@pytest.mark.long
@harness.needs_ranks
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float32", 1e-5)])
def test_any_number_of_ranks_takes_the_same_steps_with_batch_weights(
    dtype: str, tolerance: float
) -> None:
    """With five ranks, two ranks have no sample of the last batch."""
    arguments = {"has_weight": True, "dtype": dtype}
    (one,) = harness.run(fit, 1, arguments=arguments)
    assert (one.value["warnings"], one.value["dtype"]) == ([], dtype)
    for ranks in (2, 3, 5):
        for outcome in harness.run(fit, ranks, arguments=arguments):
            np.testing.assert_allclose(outcome.value["w"], one.value["w"], rtol=tolerance)
            assert outcome.value["loss"] == pytest.approx(one.value["loss"], rel=tolerance)
            assert outcome.value["warnings"] == []


@harness.needs_ranks
def test_training_without_batch_weights_warns_once_on_each_rank() -> None:
    (one,) = harness.run(fit, 1, arguments={"has_weight": True})
    for outcome in harness.run(fit, 2, arguments={"has_weight": False}):
        assert outcome.value["warnings"] == ["UnevenBatchWarning"]
        assert not np.allclose(outcome.value["w"], one.value["w"], rtol=1e-6)


class StopAt(train.Callback):
    """A callback that stops the training on one rank at a step, in one of two ways."""

    def __init__(self, rank: int, step: int, by_call: bool) -> None:
        self.rank, self.step, self.by_call = rank, step, by_call
        self.steps: list[int] = []

    def on_step(self, trainer: train.Trainer, loss: float) -> bool:
        self.steps.append(trainer.done)
        due = ngd.init().rank == self.rank and trainer.done == self.step
        if due and self.by_call:
            trainer.stop()
        return due and not self.by_call


class StopAfterEpoch:
    """A callback without a base class."""

    def __init__(self, rank: int, epoch: int) -> None:
        self.rank, self.epoch = rank, epoch

    def on_epoch(self, trainer: train.Trainer, results: Any) -> bool:
        return ngd.init().rank == self.rank and trainer.epoch == self.epoch


def trainer_of(callbacks: list[Any], **options: Any) -> tuple[train.Trainer, Any]:
    x, y = points()
    w = ngd.variable("w", np.zeros(FEATURES))
    optimizer = optim.SGD(0.05, momentum=0.9)

    @ngd.function(updates=True)
    def step(x: Any, y: Any) -> Any:
        loss = ops.mean(ops.square(ops.sum(x * w, 1) - y))
        weight = ngd.constant(np.float64(y.shape[0]))
        updates = optimizer.minimize(loss, [w], weight=weight)
        return [ops.all_reduce(loss, op="mean", weight=weight)], updates

    loader = data.Loader(data.Arrays(x, y), data.Sampler(ROWS, 4, drop_last=True))
    trainer = train.Trainer(
        step, loader, [w, optimizer.state], epochs=4, callbacks=callbacks, progress=False, **options
    )
    return trainer, w


def stop_early(kind: str, rank: int, folder: str) -> dict[str, Any]:
    """Stop after step 7 of 20, or after the second epoch. Then train to the end."""
    ends = StopAfterEpoch(rank, 2) if kind == "epoch" else StopAt(rank, 7, kind == "call")
    trainer, w = trainer_of([ends], save=folder)
    report = trainer.run()
    stopped = {
        "steps": report["steps"],
        "done": trainer.done,
        "early": trainer.has_stopped_early,
        "signal": trainer.stopped,
        "w": w.numpy().tolist(),
    }
    again = trainer.run()
    return {
        **stopped,
        "then": [again["steps"], trainer.has_stopped_early],
        "end": w.numpy().tolist(),
    }


@harness.needs_ranks
@pytest.mark.parametrize("kind", ["result", "call", "epoch"])
def test_a_callback_on_one_rank_stops_the_training_on_all_ranks(kind: str, tmp_path: Any) -> None:
    due = 10 if kind == "epoch" else 7
    outcome_of = {}
    for ranks in (1, 2):
        folder = tmp_path / f"{ranks}"
        arguments = {"kind": kind, "rank": ranks - 1, "folder": str(folder)}
        outcomes = harness.run(stop_early, ranks, arguments=arguments)
        values = [outcome.value for outcome in outcomes]
        assert all(value == values[0] for value in values)
        outcome_of[ranks] = values[0]
        assert checkpoint.exists(folder)
    for value in outcome_of.values():
        assert (value["steps"], value["done"], value["early"]) == (due, due, True)
        assert value["signal"] is None
        assert value["then"] == [20, False]
    for name in ("w", "end"):
        np.testing.assert_allclose(outcome_of[2][name], outcome_of[1][name], rtol=1e-12)


class FailsOnOneRank(train.Callback):
    def on_step(self, trainer: train.Trainer, loss: float) -> None:
        if ngd.init().rank == 1 and trainer.done == 3:
            raise KeyError("of a callback")


def fail_in_a_callback() -> None:
    trainer, _ = trainer_of([FailsOnOneRank()])
    trainer.run()


@harness.needs_ranks
def test_an_exception_in_a_callback_of_one_rank_ends_all_ranks() -> None:
    with harness.Job(fail_in_a_callback, 2) as job:
        first, second = job.wait(60)
    assert first.code == second.code == 1
    assert "KeyError: 'of a callback'" in second.err
    assert "RemoteRankError" in first.err
    assert "of a callback" in first.err
