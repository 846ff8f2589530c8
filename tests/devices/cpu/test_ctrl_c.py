# SPDX-License-Identifier: Apache-2.0
"""Tests of Ctrl-C in a step on the CPU, which is detected between two instructions."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.testing as npt
import pytest

import ngd
from ngd import ops

AFTER_SECONDS = 0.5
"""The time of the signal, in seconds after the start of the step."""

SEEN_SECONDS = 0.6
"""The longest delay of the handler: 0.1 s, one instruction, and the delay of a loaded machine."""

N = 384


@contextmanager
def interrupted_after(seconds: float) -> Iterator[list[float]]:
    """Send SIGALRM to a handler that raises KeyboardInterrupt. Yield a list for its delay."""
    delays: list[float] = []

    def handler(*_: Any) -> None:
        delays.append(time.monotonic() - begin - seconds)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, handler)
    begin = time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield delays
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def chain(x: Any, products: int) -> Any:
    for _ in range(products):
        x = ops.matmul(x, x) * (1 / N)
    return x


def looped(x: Any, products: int) -> Any:
    return ops.scan(lambda c, _: (ops.matmul(c, c) * (1 / N), None), x, length=products)[0]


@pytest.mark.parametrize("made", [chain, looped])
def test_ctrl_c_ends_a_long_step(made: Any) -> None:
    """The step takes several seconds. Its variable stays unchanged, and a step can run again."""
    a = np.ones((N, N), np.float32)
    w = ngd.variable("w", a)
    x = ngd.placeholder("x", (N, N))
    one = ngd.compile([x], [chain(x, 1)])
    one(a)
    begin = time.perf_counter()
    for _ in range(20):
        one(a)
    products = int(6 / ((time.perf_counter() - begin) / 20))
    products = min(products, 3000) if made is chain else products
    step = ngd.compile([x], [], {w: made(x + w, products) * 2})
    with interrupted_after(AFTER_SECONDS) as delays, pytest.raises(KeyboardInterrupt):
        step(a)
    assert delays[0] < SEEN_SECONDS
    npt.assert_array_equal(w.numpy(), a)
    assert one(a)[0][0, 0] == 1


def test_a_signal_handler_that_returns_does_not_end_the_step() -> None:
    """A step whose signal handler raises nothing returns its result."""
    calls: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda *_: calls.append(1))
    x = ngd.placeholder("x", (N, N))
    step = ngd.compile([x], [looped(x, 400)])
    signal.setitimer(signal.ITIMER_REAL, 0.02, 0.05)
    try:
        (found,) = step(np.ones((N, N), np.float32))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert calls
    npt.assert_allclose(found, 1, rtol=1e-3)


def test_an_interrupt_during_an_update_poisons_no_variable() -> None:
    """Once a step writes variables, it completes. Then the interrupt is raised."""
    n, many = 1 << 20, 60
    variables = [ngd.variable(f"v{i}", np.zeros(n, np.float32)) for i in range(many)]
    updates: dict[Any, Any] = {v: ops.sin(ops.cos(ops.sin(v + i))) for i, v in enumerate(variables)}
    step = ngd.compile([], [], updates)
    step()
    begin = time.perf_counter()
    step()
    seconds = time.perf_counter() - begin

    def run() -> None:
        for _ in range(1000):
            step()

    with interrupted_after(seconds / 2), pytest.raises(KeyboardInterrupt):
        run()
    for variable in variables:
        assert np.isfinite(variable.numpy()).all()
