# SPDX-License-Identifier: Apache-2.0
"""The training of a line that is fitted to points, used by tests on one and on several ranks."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

import ngd
from ngd import data, ops, optim, train

POINTS, BATCH, TESTS = 23, 4, 11


def points(count: int) -> data.Arrays:
    random = np.random.default_rng(count)
    x = random.normal(size=(count, 2))
    return data.Arrays(x, x @ [2.0, -1.0] + 0.5 + 0.1 * random.normal(size=count))


def weights() -> list[Any]:
    return [ngd.variable("w", np.zeros(2)), ngd.variable("b", np.zeros(()))]


def errors(model: list[Any], x: Any, y: Any) -> Any:
    return ops.square(ops.sum(x * model[0], 1) + model[1] - y)


class Steps:
    """A step that is compiled per number of points. Shards are uneven, and none is empty."""

    def __init__(self, model: list[Any], rate: float) -> None:
        self.model, self.optimizer = model, optim.SGD(rate, momentum=0.9)
        self.steps_by_size: dict[int, Any] = {}

    def __call__(self, x: Any, y: Any) -> Any:
        if len(y) not in self.steps_by_size:
            given = [ngd.placeholder("x", x.shape, "f8"), ngd.placeholder("y", y.shape, "f8")]
            loss = ops.mean(errors(self.model, *given))
            weight = ngd.constant(np.float64(len(y)))
            updates = self.optimizer.minimize(loss, self.model, weight=weight)
            mean = ops.all_reduce(loss, op="mean", weight=weight)
            self.steps_by_size[len(y)] = ngd.compile(given, [mean], updates)
        return self.steps_by_size[len(y)](x, y)


def judge_of(model: list[Any]) -> Any:
    def judge(x: Any, y: Any) -> tuple[float, float]:
        w, b = (v.numpy() for v in model)
        distances = x @ w + b - y
        return float(np.mean(distances**2)), float(np.mean(np.abs(distances)))

    return judge


def trainer_of(
    world: Any, epochs: int, rate: float = 0.05, num_workers: int = 0, **options: Any
) -> tuple[Any, list[Any]]:
    """Return a trainer and its model."""
    model = weights()
    steps = Steps(model, rate)
    rank_and_size = {"rank": world.rank, "size": world.size}
    parts = data.Sampler(POINTS, BATCH, drop_last=True, **rank_and_size)
    tests = data.Sampler(TESTS, BATCH, shuffle=False, **rank_and_size)
    test_loader = data.Loader(points(TESTS), tests)
    trainer = train.Trainer(
        steps,
        data.Loader(points(POINTS), parts, num_workers=num_workers),
        [model, state_of(steps, model)],
        epochs=epochs,
        evaluate=lambda: dict(
            zip(["error", "distance"], train.evaluate(judge_of(model), test_loader), strict=True)
        ),
        progress=False,
        **options,
    )
    return trainer, model


def state_of(steps: Steps, model: list[Any]) -> Any:
    """Return the optimizer's state, which exists after `minimize` has been called."""
    x = np.zeros((1, 2))
    given = [ngd.placeholder("x", x.shape, "f8"), ngd.placeholder("y", (1,), "f8")]
    steps.optimizer.minimize(ops.mean(errors(model, *given)), model)
    return steps.optimizer.state


def by_hand(epochs: int) -> tuple[Any, list[float]]:
    """Return the weights and the losses of the same training in NumPy."""
    x, y = points(POINTS).columns
    value, momentum, losses = np.zeros(3), np.zeros(3), []
    for epoch in range(epochs):
        order = np.random.default_rng((0, epoch)).permutation(POINTS)
        for step in range(POINTS // BATCH):
            batch = order[step * BATCH : (step + 1) * BATCH]
            extended = np.concatenate([x[batch], np.ones((BATCH, 1))], 1)
            distance = extended @ value - y[batch]
            losses.append(float(np.mean(distance**2)))
            momentum = 0.9 * momentum + 2 * extended.T @ distance / BATCH
            value = value - 0.05 * momentum
    return value, losses


if __name__ == "__main__":
    group = ngd.init()
    trained, fitted = trainer_of(group, int(sys.argv[1]))
    report = trained.run()
    if group.rank == 0:
        values = [v.numpy().tolist() for v in fitted]
        print(json.dumps([report, values]))
    ngd.barrier()
