# SPDX-License-Identifier: Apache-2.0
"""Tests of writes to arrays that show variables: detected, compared between ranks, assigned."""

from __future__ import annotations

from typing import Any

import numpy as np

import ngd
from ngd.devices.cpu.variable_views import VariableView, assign_written, find_written
from tests.support import harness

pytestmark = harness.needs_ranks


def train_and_write(differs: bool) -> dict[str, Any]:
    """Write to views of a shared and of a small variable between two steps."""
    world = ngd.init()
    shared = ngd.variable("shared", np.zeros(5000))
    other = ngd.variable("other", np.zeros(5000))
    small = ngd.variable("small", np.zeros(3))
    gradient = ngd.ops.all_reduce(ngd.placeholder("x", (), np.float64), op="sum")
    updates = {v: v + gradient for v in (shared, other, small)}
    step = ngd.compile(gradient.inputs, [gradient], updates, shard="host")
    step(1.0)
    views = [VariableView(v, world) for v in (shared, other, small)]
    unchanged = len(find_written(views))
    views[0].array[1234] = 7.0 + (world.rank if differs else 0)
    views[2].array[:] = 5.0
    before = shared.numpy()[1234]
    names = [view.variable.name for view in find_written(views)]
    try:
        assign_written("here", find_written(views), world)
    except ngd.errors.VariableMismatchError as error:
        return {"error": str(error)}
    step(1.0)
    for view in views:
        view.remember()  # to be called after each step
    return {
        "unchanged": unchanged,
        "before": before,
        "names": names,
        "left": len(find_written(views)),
        "shared": [shared.numpy()[1234], shared.numpy()[1233], views[0].array[1234]],
        "small": small.numpy().tolist(),
    }


def test_equal_writes_to_views_are_assigned() -> None:
    for outcome in harness.run(train_and_write, 3, arguments={"differs": False}):
        assert outcome.value == {
            "unchanged": 0,
            "before": 3.0,  # a write is private until it is assigned
            "names": ["shared", "small"],
            "left": 0,
            "shared": [10.0, 6.0, 10.0],
            "small": [8.0, 8.0, 8.0],
        }


def test_different_writes_to_views_raise_variable_mismatch_error() -> None:
    for outcome in harness.run(train_and_write, 3, arguments={"differs": True}):
        assert "here: expected the same write to 'shared' on all ranks" in outcome.value["error"]
