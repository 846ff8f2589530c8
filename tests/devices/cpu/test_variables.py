# SPDX-License-Identifier: Apache-2.0
"""Tests of variables in several threads: reads are consistent, and no update is lost."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import ngd
from ngd import ops
from ngd.devices.interpreter.device import HostStorage
from ngd.errors import BusyError, PoisonedVariableError

DEVICES = ("CPU", "INTERPRETER")
DEADLINE = 60.0


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True)
def threads_alternate_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def call_until_not_busy(call: Callable[[], Any]) -> Any:
    """Call until the call does not raise BusyError."""
    ends = time.monotonic() + DEADLINE
    while True:
        try:
            return call()
        except BusyError:
            assert time.monotonic() < ends
            time.sleep(0)


@contextmanager
def in_threads(*works: Callable[[], None]) -> Iterator[None]:
    """Run functions in threads during the block. Raise their first exception at its end."""
    errors: list[BaseException] = []

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for thread in threads:
            thread.join(DEADLINE)
    assert not any(thread.is_alive() for thread in threads)
    if errors:
        raise errors[0]


def test_no_update_of_two_executables_is_lost(device: str) -> None:
    v = ngd.variable("v", np.zeros((300, 300)))
    same = np.eye(300)  # the matmul takes a while between the read and the write
    steps = [ngd.compile([], [], updates={v: v @ same + n}, device=device) for n in (1.0, 2.0)]
    num_rounds = 50

    def repeat(step: Any) -> Callable[[], None]:
        def run() -> None:
            for _ in range(num_rounds):
                call_until_not_busy(step)

        return run

    with in_threads(*(repeat(step) for step in steps)):
        pass
    np.testing.assert_array_equal(v.numpy(), 3.0 * num_rounds)
    assert v.version == 2 * num_rounds


def test_a_read_during_updates_returns_one_complete_value(device: str) -> None:
    v = ngd.variable("v", np.zeros(1_000_000, np.float32))
    step = ngd.compile([], [], updates={v: v + 1}, device=device)
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            value = call_until_not_busy(v.numpy)
            assert value.min() == value.max()

    with in_threads(read):
        for _ in range(60):
            call_until_not_busy(step)
        done.set()
    assert v.numpy()[0] == 60


def slow_step(v: ngd.Variable, device: str, *, writes: bool) -> Any:
    """Return a step that takes a while, and that reads or writes the variable."""
    product = v
    for _ in range(4 if device == "CPU" else 12):
        product = product @ v
    return ngd.compile(
        [], [ops.sum(product)], updates={v: product} if writes else {}, device=device
    )


@pytest.mark.parametrize("writes", [False, True])
def test_a_call_that_meets_a_locked_variable_raises_busy_error(device: str, writes: bool) -> None:
    v = ngd.variable("weights", np.eye(500))
    step = slow_step(v, device, writes=writes)
    reader = ngd.compile([], [v + 1], device=device)
    writer = ngd.compile([], [], updates={v: v * 1}, device=device)
    num_refused: dict[str, int] = dict.fromkeys(("numpy", "assign", "reader", "writer"), 0)
    calls: dict[str, Callable[[], Any]] = {
        "numpy": v.numpy,
        "assign": lambda: v.assign(np.eye(500)),
        "reader": reader,
        "writer": writer,
    }
    expected = set(calls) if writes else {"assign", "writer"}
    done = threading.Event()

    def call_repeatedly() -> None:
        while not done.is_set():
            for name, call in calls.items():
                try:
                    call()
                except BusyError as error:
                    messages.append(str(error))
                    num_refused[name] += 1
                time.sleep(0)

    messages: list[str] = []
    ends = time.monotonic() + DEADLINE
    with in_threads(call_repeatedly):
        while not all(num_refused[name] for name in expected):
            assert time.monotonic() < ends, num_refused
            call_until_not_busy(step)
        done.set()
    assert all("variable 'weights' is " in m and "by a step that runs now" in m for m in messages)
    np.testing.assert_array_equal(v.numpy(), np.eye(500))


def test_several_steps_may_read_a_variable_at_the_same_time() -> None:
    v = ngd.variable("v", np.eye(600))
    steps = [slow_step(v, "CPU", writes=False) for _ in range(2)]
    assert steps[0] is not steps[1]
    barrier = threading.Barrier(2)

    def call(step: Any) -> Callable[[], None]:
        def run() -> None:
            barrier.wait(DEADLINE)
            for _ in range(5):
                np.testing.assert_array_equal(step()[0], 600)
                np.testing.assert_array_equal(v.numpy(), np.eye(600))

        return run

    with in_threads(*map(call, steps)):
        pass


def test_a_step_that_fails_its_checks_locks_no_variable(device: str) -> None:
    a, b = ngd.variable("a", np.zeros(2)), ngd.variable("b", np.zeros(2))
    both = ngd.compile([], [], updates={a: a + 1, b: b + 1}, device=device)
    b.cell.poisoned = True
    with pytest.raises(PoisonedVariableError, match="'b'"):
        both()
    np.testing.assert_array_equal(a.numpy(), 0)
    a.assign([1, 1])  # no lock is held
    b.assign([5, 5])
    both()
    np.testing.assert_array_equal(a.numpy(), 2)


def test_a_failure_during_a_write_poisons_the_variable() -> None:
    v, table = ngd.variable("v", np.zeros((2, 2))), ngd.variable("table", np.ones((3, 2)))
    i = ngd.placeholder("i", (2,), "int64")
    step = ngd.compile([i], [], updates={v: ops.take(table, i)}, device="CPU")
    with pytest.raises(ValueError, match="9"):
        step(np.array([0, 9]))
    with pytest.raises(PoisonedVariableError, match="'v'"):
        v.numpy()
    np.testing.assert_array_equal(table.numpy(), 1)
    v.assign(np.zeros((2, 2)))
    step(np.array([0, 2]))
    np.testing.assert_array_equal(v.numpy(), 1)


def test_an_assignment_that_fails_half_way_poisons_the_variable() -> None:
    v = ngd.variable("v", np.zeros(2))
    for device in DEVICES:
        ngd.compile([], [v * 1], device=device)

    class Failing(HostStorage):
        def write(self, value: Any) -> None:
            raise KeyboardInterrupt

    v._storages["CPU"] = Failing.__new__(Failing)
    with pytest.raises(KeyboardInterrupt):
        v.assign([1, 1])
    with pytest.raises(PoisonedVariableError):
        v.numpy()
