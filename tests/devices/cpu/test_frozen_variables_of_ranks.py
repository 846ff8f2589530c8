# SPDX-License-Identifier: Apache-2.0
"""Tests of variables that a step only reads: one copy per host, until a rank writes to them."""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np
import pytest

import ngd
from ngd import ops
from ngd.devices.cpu.variable_views import VariableView, assign_written, find_written
from tests.support import harness
from tests.support.standing import run_in_world

pytestmark = harness.needs_ranks
COUNT = 5000


def is_common(variable: ngd.Variable) -> bool:
    """Return True if a variable is in memory that the ranks of the host map."""
    return VariableView(variable, ngd.init()).common is not None


class Training:
    """A trained variable whose gradient is a frozen table times a value of the rank."""

    def __init__(self, table: np.ndarray[Any, Any] | None = None) -> None:
        values = np.arange(COUNT, dtype=np.float64) if table is None else table
        self.table = ngd.variable("table", values)
        self.small = ngd.variable("small", np.ones(3))
        self.w = ngd.variable("w", np.zeros(COUNT))
        x = ngd.placeholder("x", (), np.float64)
        self.gradient = ops.all_reduce(x * self.table * ops.sum(self.small), op="mean")
        self.step = ngd.compile(
            [x], [ops.sum(self.table)], {self.w: self.w + self.gradient}, shard="host"
        )
        world = ngd.init()
        self.factor, self.mean = world.rank + 1.0, 3 * (world.size + 1) / 2

    def run(self) -> float:
        return float(self.step(self.factor)[0])


def one_copy(has_hosts: bool) -> None:
    if has_hosts:
        os.environ["NGD_HOST"] = f"host-{int(harness.own_rank()) // 2}"
    ngd.init()
    training = Training()
    assert training.run() == COUNT * (COUNT - 1) / 2
    assert [is_common(v) for v in (training.table, training.small, training.w)] == [
        True,
        False,
        True,
    ]
    np.testing.assert_allclose(training.w.numpy(), np.arange(COUNT) * training.mean, rtol=1e-12)
    np.testing.assert_array_equal(training.table.numpy(), np.arange(COUNT))
    if os.fork() == 0:  # a forked child may read the variable, because no rank writes to it
        os._exit(int(not (training.table.numpy() == np.arange(COUNT)).all()))
    assert os.wait()[1] == 0
    ngd.shutdown()
    np.testing.assert_array_equal(training.table.numpy(), np.arange(COUNT))


@pytest.mark.parametrize("has_hosts", [False, pytest.param(True, marks=harness.needs_mpi)])
def test_the_ranks_of_a_host_share_one_copy(has_hosts: bool) -> None:
    how: dict[str, Any] = {"launcher": "mpirun"} if has_hosts else {}
    harness.run(one_copy, 4 if has_hosts else 3, arguments={"has_hosts": has_hosts}, **how)


def own_writes() -> None:
    """Let rank 1 assign a value, or write to a view. The other ranks keep the old value."""
    world = ngd.init()
    for write in ("assign", "view"):
        training = Training()
        training.run()
        if world.rank == 1:
            if write == "assign":
                training.table.assign(np.full(COUNT, 2.0))
            else:
                training.table.view()[...] = 2.0
        old = np.arange(COUNT, dtype=np.float64)
        expected = np.full(COUNT, 2.0) if world.rank == 1 else old
        np.testing.assert_array_equal(training.table.numpy(), expected)
        before = training.w.numpy()
        assert training.run() == expected.sum()
        assert is_common(training.table) == (world.rank != 1)
        sums = sum((rank + 1.0) * (np.full(COUNT, 2.0) if rank == 1 else old) for rank in range(3))
        np.testing.assert_allclose(training.w.numpy() - before, sums, rtol=1e-12)
        # A step that is compiled later finds different values, so the ranks keep their own copies.
        x = ngd.placeholder("x", (), np.float64)
        gradient = ops.all_reduce(x * training.table, op="sum")
        step = ngd.compile([x], [], {training.w: training.w * 0.0 + gradient}, shard="host")
        step(1.0)
        np.testing.assert_allclose(training.w.numpy(), 2 * old + 2.0, rtol=1e-12)
        np.testing.assert_array_equal(training.table.numpy(), expected)


def test_a_write_changes_the_value_of_one_rank_only() -> None:
    run_in_world(own_writes, "shm", 3)


def later_steps() -> None:
    """Train the variable in a later step, with and without sharding."""
    world = ngd.init()
    for shard in ("host", "none"):
        training = Training()
        training.run()
        mean = ops.all_reduce(ngd.placeholder("x", (), np.float64), op="mean")
        thaw = ngd.compile(mean.inputs, [], {training.table: training.table + mean}, shard=shard)
        thaw(float(world.rank))
        expected = np.arange(COUNT) + (world.size - 1) / 2
        np.testing.assert_array_equal(training.table.numpy(), expected)
        assert training.run() == expected.sum()
        assert is_common(training.table) == (shard == "host")


def test_a_later_step_can_train_the_variable() -> None:
    run_in_world(later_steps, "shm", 2)


def different_values() -> None:
    world = ngd.init()
    training = Training(np.full(COUNT, 1.0 + world.rank))
    for _ in range(2):
        assert training.run() == COUNT * (1 + world.rank)
    assert not is_common(training.table)
    total = sum(3 * (1.0 + rank) ** 2 for rank in range(world.size)) / world.size
    np.testing.assert_allclose(training.w.numpy(), 2 * total, rtol=1e-12)


def test_different_values_are_not_shared() -> None:
    run_in_world(different_values, "shm", 3)


def busy_on_one_rank() -> None:
    """Use the variable in a thread of rank 0 during the compilation. No rank shares it."""
    world = ngd.init()
    table = ngd.variable("table", np.arange(COUNT, dtype=np.float64))
    y = ngd.placeholder("y", (), np.float64)
    w = ngd.variable("w", np.zeros(COUNT))
    is_reading, may_end = threading.Event(), threading.Event()

    def wait(values: Any) -> Any:
        is_reading.set()
        assert may_end.wait(60)
        return values

    reader = threading.Thread(target=ngd.compile([], [ngd.call_host(wait, table, table)]))
    if world.rank == 0:
        reader.start()
        assert is_reading.wait(60)
    outputs, updates = [ops.sum(table)], {w: w + ops.all_reduce(y * table, op="sum")}
    step = ngd.compile([y], outputs, updates, shard="host")
    may_end.set()
    if world.rank == 0:
        reader.join()
    step(1.0)
    assert not is_common(table)
    np.testing.assert_array_equal(w.numpy(), np.arange(COUNT) * world.size)


def test_a_variable_in_use_is_not_shared() -> None:
    run_in_world(busy_on_one_rank, "shm", 2)


def writes_to_views(differs: bool) -> str:
    """Detect writes to private views of frozen variables, and compare them between the ranks."""
    world = ngd.init()
    training = Training()
    training.run()
    view = VariableView(training.table, world)
    assert not find_written([view])
    view.array[7] = 70.0 + (world.rank if differs else 0)
    try:
        assign_written("here", find_written([view]), world)
    except ngd.errors.VariableMismatchError as error:
        return str(error)
    assert training.run() == COUNT * (COUNT - 1) / 2 + 63
    view.show()
    assert view.array[7] == training.table.numpy()[7] == 70.0
    return ""


def test_writes_to_views_are_assigned() -> None:
    harness.run(writes_to_views, 2, arguments={"differs": False})


def test_different_writes_to_views_raise_variable_mismatch_error() -> None:
    for outcome in harness.run(writes_to_views, 3, arguments={"differs": True}):
        assert "expected the same write to 'table' on all ranks" in outcome.value
