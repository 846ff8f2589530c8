# SPDX-License-Identifier: Apache-2.0
"""Tests of data-parallel training of known networks: 2, 3 and 4 ranks train like one rank."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import ngd
from ngd import nn, ops, optim
from tests.support import harness
from tests.support.standing import run_in_world

sys.path.insert(0, str(harness.EXAMPLES))
import gpt
import lstm
import resnet50

BATCH, CLASSES, TOKENS, LENGTH = 12, 5, 40, 8


def network(name: str) -> tuple[nn.Module, tuple[int, ...]]:
    """Return a network, and the shape of an image or of a row of tokens."""
    if name == "resnet18":
        return resnet50.ResNet(18, CLASSES, synchronized=True), (3, 16, 16)
    if name == "gpt":
        return gpt.GPT(TOKENS, LENGTH, 16, 2, 2), (LENGTH,)
    return lstm.LanguageModel(TOKENS, 16, 2, 0.0), (LENGTH,)


def train(name: str, steps: int) -> list[float]:
    """Return the losses, and the sum and the norm of all trained values."""
    world = ngd.init()
    model, shape = network(name)
    model.astype("float64")
    images = len(shape) == 3
    rows = BATCH // world.size
    x = ngd.placeholder("x", (rows, *shape), "float64" if images else "int64")
    y = ngd.placeholder("y", (rows, *(() if images else shape)), "int64")
    with nn.training() as state:
        logits = model(x)
        loss = ops.mean(ops.cross_entropy(ops.reshape(logits, (-1, logits.shape[-1])), y.ravel()))
    updates = [optim.SGD(0.01, momentum=0.9).minimize(loss, model.parameters()), state.updates]
    step = ngd.compile([x, y], [ops.all_reduce(loss, op="mean")], updates)
    random = np.random.default_rng(5)
    inputs = random.normal(size=(BATCH, *shape))
    if not images:
        inputs = random.integers(TOKENS, size=(BATCH, *shape))
    labels = random.integers(CLASSES, size=(BATCH, *y.shape[1:]))
    shard = slice(world.rank * rows, (world.rank + 1) * rows)
    losses = [float(step(inputs[shard], labels[shard])[0]) for _ in range(steps)]
    trained = np.concatenate([v.numpy().ravel() for v in model.variables().values()])
    return [*losses, float(trained.sum()), float(np.linalg.norm(trained))]


@pytest.mark.long
@pytest.mark.parametrize("communicator", harness.communicators())
@pytest.mark.parametrize(
    ("name", "steps", "sizes"),
    [("resnet18", 4, (3,)), ("gpt", 20, (2, 3, 4)), ("lstm", 20, (2, 3, 4))],
    ids=["resnet18", "gpt", "lstm"],
)
def test_any_number_of_ranks_trains_like_one_rank(
    name: str, steps: int, sizes: tuple[int, ...], communicator: str
) -> None:
    """The ResNet, whose gradients take 90 MB, is trained for a few steps only."""
    (one,) = run_in_world(train, communicator, 1, name=name, steps=steps)
    assert one.value[steps - 1] < one.value[0]
    for ranks in sizes:
        for outcome in run_in_world(train, communicator, ranks, name=name, steps=steps):
            np.testing.assert_allclose(outcome.value, one.value, rtol=1e-8)
