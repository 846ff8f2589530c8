# SPDX-License-Identifier: Apache-2.0
"""Schedules of the learning rate: functions from the number of updates made, a node, to the rate.

They are computed in the step, in float64; `warm_up(cosine(0.1, steps=1000), 50)` is one too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from .. import Node, ops
from .. import constant as constant_node
from .options import describe, number, positive, public_function

Schedule: TypeAlias = Callable[[Node], Node]


def expect_rate(where: str, name: str, rate: Any) -> float:
    """Check a learning rate of a schedule."""
    return number(where, name, rate, least=0)


def expect_steps(where: str, steps: Any) -> float:
    """Check a number of steps."""
    if number(where, "steps", steps) <= 0:
        raise ValueError(f"{where}: expected a number of steps > 0; got {steps}")
    return float(steps)


@public_function
def constant(rate: float) -> Schedule:
    """Return a schedule that always gives the same rate: something to warm up to."""
    rate = expect_rate("optim.constant", "rate", rate)
    return lambda step: constant_node(np.float64(rate))


@public_function
def steps(rate: float, factors: Mapping[int, float]) -> Schedule:
    """Return a schedule that multiplies the rate at given steps: {30: 0.1, 60: 0.1}."""
    where = "optim.steps"
    rate = expect_rate(where, "rate", rate)
    if not isinstance(factors, Mapping):
        raise TypeError(
            f"{where}: factors: expected a dict of factors by steps, as {{30: 0.1}}; "
            f"got {describe(factors)}"
        )
    pairs = sorted(
        (number(where, "a step", first), number(where, f"factors[{first!r}]", factor, least=0))
        for first, factor in factors.items()
    )

    def at(step: Node) -> Node:
        value = constant_node(np.float64(rate))
        for first, factor in pairs:
            value = ops.where(step >= first, value * factor, value)
        return value

    return at


@public_function
def cosine(rate: float, steps: int, final: float = 0.0) -> Schedule:
    """Return half a cosine from `rate` to `final` in the given number of steps, then `final`.

    Loshchilov and Hutter, 2016 (arXiv:1608.03983), equation 5, without restarts.
    """
    where = "optim.cosine"
    rate, final = expect_rate(where, "rate", rate), expect_rate(where, "final", final)
    total = expect_steps(where, steps)

    def at(step: Node) -> Node:
        passed = ops.minimum(step / total, 1.0)
        return final + (rate - final) * 0.5 * (1.0 + ops.cos(passed * math.pi))

    return at


@public_function
def polynomial(rate: float, steps: int, power: float = 1.0, final: float = 0.0) -> Schedule:
    """Return final + (rate - final) (1 - step / steps)^power, and `final` after these steps."""
    where = "optim.polynomial"
    rate, final = expect_rate(where, "rate", rate), expect_rate(where, "final", final)
    total, power = expect_steps(where, steps), positive(where, "power", power)

    def at(step: Node) -> Node:
        left = 1.0 - ops.minimum(step / total, 1.0)
        return final + (rate - final) * left**power

    return at


@public_function
def warm_up(schedule: Schedule | float, steps: int, start: float = 0.0) -> Schedule:
    """Return a line from `start` to a schedule's first rate, followed by the schedule.

    Goyal et al., 2017 (arXiv:1706.02677), section 2.2. The line takes the given number of steps;
    the schedule's own steps count from its end.
    """
    where = "optim.warm_up"
    if callable(steps):
        raise TypeError(
            f"{where}: expected a schedule or a rate first, and a number of steps second; got "
            f"{schedule!r} and a function. Write warm_up(schedule, steps)."
        )
    total, start = expect_steps(where, steps), expect_rate(where, "start", start)
    if not callable(schedule):
        schedule = constant(expect_rate(where, "schedule", schedule))
    then = schedule

    def at(step: Node) -> Node:
        first = then(constant_node(np.float64(0.0)))
        rising = start + (first - start) * (step / total)
        return ops.where(step < total, rising, then(ops.maximum(step - total, 0.0)))

    return at


@public_function
def linear_scaling(rate: float, batch: int, base: int = 256) -> float:
    """Return the rate for a batch of all ranks: rate * batch / base.

    Goyal et al., 2017 (arXiv:1706.02677), section 2.1. `rate` was found for a batch of `base`.
    """
    where = "optim.linear_scaling"
    for name, value in (("batch", batch), ("base", base)):
        positive(where, name, value)
    return expect_rate(where, "rate", rate) * batch / base
