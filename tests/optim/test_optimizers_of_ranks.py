# SPDX-License-Identifier: Apache-2.0
"""Tests that every optimizer takes the same steps on one rank and on two."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import ngd
from ngd import ops, optim
from tests.support import harness
from tests.support.standing import run_in_world

OPTIMIZERS: dict[str, Callable[[], optim.Optimizer]] = {
    "sgd": lambda: optim.SGD(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: optim.Adam(0.03, amsgrad=True),
    "adamw": lambda: optim.AdamW(optim.warm_up(optim.cosine(0.03, 10), 3), clip_norm=0.5),
    "rmsprop": lambda: optim.RMSprop(0.03, momentum=0.9, centered=True),
    "adagrad": lambda: optim.Adagrad(0.1),
    "lars": lambda: optim.LARS(1.0, trust_coefficient=0.02),
    "lamb": lambda: optim.LAMB(0.03, weight_decay=0.1),
    "lion": lambda: optim.Lion(0.01),
    "muon": lambda: optim.Muon(0.02),
}


def train_on_shards(micro_batches: int) -> dict[str, list[float]]:
    """Take five steps with every optimizer, on uneven shards."""
    world = ngd.init()
    random = np.random.default_rng(5)
    batches = random.normal(size=(5, 6, 4))
    results = {}
    for name, make in OPTIMIZERS.items():
        w = ngd.variable("w", np.random.default_rng(6).normal(size=(4, 3)))
        optimizer = make()
        shard = np.array_split(np.arange(6), [4])[world.rank] if world.size == 2 else np.arange(6)
        x = ngd.placeholder("x", (len(shard) // micro_batches, 4), "float64")
        loss = ops.mean(ops.square(ops.tanh(x @ w) - 0.5))
        weight = ngd.constant(np.float64(len(shard)))
        add = ngd.compile([x], [], updates=optimizer.accumulate(loss, w, weight=weight))
        updates = optimizer.minimize(loss, w, weight=weight, micro_batches=micro_batches)
        step = ngd.compile([x], [], updates=updates)
        for batch in batches:
            *first, last = np.split(batch[shard], micro_batches)
            for part in first:
                add(part)
            step(last)
        results[name] = w.numpy().ravel().tolist()
    return results


@harness.needs_ranks
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_two_ranks_take_the_steps_of_one(micro_batches: int) -> None:
    (alone,) = run_in_world(train_on_shards, "shm", 1, micro_batches=1)
    both = run_in_world(train_on_shards, "shm", 2, micro_batches=micro_batches)
    for name, wanted in alone.value.items():
        assert both[0].value[name] == both[1].value[name], name
        np.testing.assert_allclose(both[0].value[name], wanted, 1e-9, 1e-11, err_msg=name)


def train_with_an_empty_shard() -> list[float]:
    """Take three steps. The second rank has no samples, so its loss is NaN."""
    world = ngd.init()
    w = ngd.variable("w", np.ones(4))
    samples = 6 if world.rank == 0 else 0
    x = ngd.placeholder("x", (samples, 4), "float64")
    loss = ops.mean(ops.square(ops.tanh(x @ w) - 0.5))
    updates = optim.SGD(0.1).minimize(loss, w, weight=samples)
    step = ngd.compile([x], [loss], updates=updates)
    for batch in np.random.default_rng(7).normal(size=(3, 6, 4)):
        (value,) = step(batch[:samples])
        assert np.isnan(value) == (samples == 0)
    return list(w.numpy().tolist())


@harness.needs_ranks
def test_a_rank_without_samples_does_not_change_the_step() -> None:
    (alone,) = run_in_world(train_with_an_empty_shard, "shm", 1)
    both = run_in_world(train_with_an_empty_shard, "shm", 2)
    assert both[0].value == both[1].value
    np.testing.assert_allclose(both[0].value, alone.value, 1e-12)
