# SPDX-License-Identifier: Apache-2.0
"""Tests of UpdatesWarning, for steps that do not get the updates of nn.training."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.testing as npt
import pytest

import ngd
from ngd import nn, ops
from ngd.errors import UpdatesWarning
from ngd.graph import notes
from ngd.graph.node import Node

X = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.BatchNorm1d(8), nn.Dropout(0.5)))


def step_of(build: Callable[[Node], Any], given: Callable[[Any], Any]) -> ngd.Function:
    """Return a training step that gets a part of the updates."""

    @ngd.function(updates=True)
    def step(x: Node) -> Any:
        with nn.training(nn.Random(seed=1)) as state:
            y = build(x)
        return y, given(state)

    return step


def test_forgotten_updates_are_named_with_their_layers() -> None:
    step = step_of(network(), lambda state: {})
    with pytest.warns(UpdatesWarning) as caught:
        first = step(X)
    (warning,) = caught
    assert warning.filename == __file__
    text = str(warning.message)
    assert text.startswith("compile: expected state.updates of nn.training among the updates; got ")
    assert "1.1: Dropout(0.5) (random.step)" in text
    names = "num_batches_tracked, 1.0.running_mean, 1.0.running_var)"
    assert f"1.0: BatchNorm1d(8, eps=1e-05, momentum=0.1) (1.0.{names}" in text
    assert "0: Linear" not in text
    npt.assert_array_equal(step(X), first)  # the same draw again, as the warning says


def test_ngd_compile_warns_once_per_step() -> None:
    x = ngd.placeholder("x", X.shape)
    with nn.training(nn.Random(seed=1)) as state:
        y = nn.Dropout(0.5)(x)
    with pytest.warns(UpdatesWarning, match=r"got none for Dropout\(0\.5\) \(random\.step\)\. "):
        step = ngd.compile([x], [y])
    assert ngd.compile([x], [y]) is step  # no second warning
    ngd.compile([x], [y], state.updates)(X)


def test_only_missing_updates_are_named() -> None:
    def without_counter(state: nn.Training) -> Any:
        return {v: node for v, node in state.updates.items() if v.name != "random.step"}

    with pytest.warns(UpdatesWarning) as caught:
        step_of(network(), without_counter)(X)
    assert "Dropout" in str(caught[0].message)
    assert "BatchNorm" not in str(caught[0].message)


class Counter(nn.Module):
    """A module of the program, with a buffer."""

    def __init__(self) -> None:
        self.calls = nn.Buffer((), dtype="int64")

    def forward(self, x: Node) -> tuple[Node, dict[str, Node]]:
        state = nn.current()
        if state is not None:
            state.updates.update({self.calls: state.now(self.calls) + 1})
        return x, {"twice": x * 2}


FORGOTTEN: dict[str, tuple[Callable[[Node], Any], str]] = {
    "a buffer of one's own": (lambda x: Counter()(x)[1], r"Counter\(\) \(calls\)"),
    "a draw of one's own": (
        lambda x: x + ops.random_normal(x.shape, **nn.current().draw("noise")),  # type: ignore[union-attr]
        r"noise \(random\.step\)",
    ),
    "a loop": (
        lambda x: ops.scan(lambda c, t: (c, nn.Dropout(0.5)(t)), np.float32(0), x)[1],
        r"Dropout\(0\.5\) \(random\.step\)",
    ),
    "a branch": (
        lambda x: ops.cond(ops.sum(x) > 0, nn.Dropout(0.5), lambda x: x, x),
        r"Dropout\(0\.5\) \(random\.step\)",
    ),
    "a branch in a loop": (
        lambda x: ops.scan(
            lambda c, t: (c, ops.cond(t[0] > 0, nn.Dropout(0.5), lambda t: t, t)), np.float32(0), x
        )[1],
        r"Dropout\(0\.5\) \(random\.step\)",
    ),
    "rematerialisation": (lambda x: ngd.remat(network())(x), r"1\.1: Dropout.*random\.step|1\.0: "),
    "a gradient": (
        lambda x: ngd.grad(ops.sum(ops.square(nn.Dropout(0.5)(x))), x),
        r"Dropout\(0\.5\) \(random\.step\)",
    ),
    "many layers": (
        lambda x: nn.Sequential(*[nn.Dropout(0.5) for _ in range(9)])(x),
        r"4: Dropout\(0\.5\) \(random\.step\) and 4 more\. Each call",
    ),
}


@pytest.mark.parametrize("case", FORGOTTEN)
def test_draws_of_all_kinds_without_updates_warn(case: str) -> None:
    build, says = FORGOTTEN[case]
    with pytest.warns(UpdatesWarning, match=says):
        step_of(build, lambda state: [])(X)
    step_of(build, lambda state: state.updates)(X)  # no warning, which would be an error


def test_updates_false_keeps_masks_without_a_warning() -> None:
    net, random = network(), nn.Random(seed=1)
    x = ngd.placeholder("x", X.shape)
    with nn.training(random, updates=False) as state:
        frozen = ngd.compile([x], [net(x)])
        assert state.updates == {}
    with nn.training(random) as state:
        step = ngd.compile([x], [net(x)], state.updates)
    first = frozen(X)[0]
    npt.assert_array_equal(frozen(X)[0], first)
    assert net[1][0].num_batches_tracked.numpy() == 0
    npt.assert_array_equal(step(X)[0], first)  # same seed, draw number and step number
    assert random.step.numpy() == net[1][0].num_batches_tracked.numpy() == 1
    assert not np.array_equal(frozen(X)[0], first)


def test_steps_without_draws_or_statistics_do_not_warn() -> None:
    drop, x = nn.Dropout(0.5), ngd.placeholder("x", X.shape)
    with nn.training(nn.Random(seed=1)) as state:
        y = drop(x)
        with nn.evaluation():
            ngd.compile([x], [network()(x)])
        ngd.compile([x], [nn.Dropout(0.0)(x) * 2])
        ngd.compile([x], [nn.BatchNorm1d(8, track_running_stats=False)(x)])
        ngd.compile([x], [x * 3])  # the block draws, but this step does not
    ngd.compile([x], [y], state.updates)
    ngd.compile([x], [network()(x), drop(x)])


def test_notes_are_deleted_with_their_nodes() -> None:
    def build() -> None:
        x = ngd.placeholder("x", X.shape)
        with nn.training(nn.Random(seed=1)), warnings.catch_warnings():
            warnings.simplefilter("ignore", UpdatesWarning)
            ngd.compile([x], [network()(x)])(X)

    build()
    gc.collect()
    before = len(notes._notes)
    for _ in range(3):
        build()
    gc.collect()
    assert len(notes._notes) == before
