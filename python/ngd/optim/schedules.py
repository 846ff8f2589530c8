# SPDX-License-Identifier: Apache-2.0
"""Schedules of the learning rate: functions from the number of updates made, a node, to the rate.

They are computed in the step, in float64; `warm_up(cosine(0.1, steps=1000), 50)` is one too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np

from .. import Node, ops
from .. import constant as constant_node

Schedule: TypeAlias = Callable[[Node], Node]


def positive(where: str, count: float) -> float:
    """Refuse a number of steps that is none."""
    if not count > 0:
        raise ValueError(f"{where}: expected a number of steps > 0; got {count}")
    return float(count)


def constant(rate: float) -> Schedule:
    """The same rate always: something to warm up to."""
    return lambda step: constant_node(np.float64(rate))


def steps(rate: float, factors: Mapping[int, float]) -> Schedule:
    """The rate is multiplied by a factor from each of these steps on: {30: 0.1, 60: 0.1}."""

    def at(step: Node) -> Node:
        value = constant_node(np.float64(rate))
        for first, factor in sorted(factors.items()):
            value = ops.where(step >= float(first), value * factor, value)
        return value

    return at


def cosine(rate: float, steps: int, final: float = 0.0) -> Schedule:
    """Half a cosine from `rate` to `final` in so many steps, then `final`.

    Loshchilov and Hutter, 2016 (arXiv:1608.03983), equation 5, without restarts.
    """
    total = positive("cosine", steps)

    def at(step: Node) -> Node:
        passed = ops.minimum(step / total, 1.0)
        return final + (rate - final) * 0.5 * (1.0 + ops.cos(passed * math.pi))

    return at


def polynomial(rate: float, steps: int, power: float = 1.0, final: float = 0.0) -> Schedule:
    """A power of what is left: final + (rate - final) (1 - step / steps)^power, then `final`."""
    total = positive("polynomial", steps)

    def at(step: Node) -> Node:
        left = 1.0 - ops.minimum(step / total, 1.0)
        return final + (rate - final) * left**power

    return at


def warm_up(schedule: Schedule | float, steps: int, start: float = 0.0) -> Schedule:
    """A straight line from `start` to a schedule's first rate in so many steps, then the schedule.

    Goyal et al., 2017 (arXiv:1706.02677), section 2.2. The schedule's own steps count from the end
    of the warm-up.
    """
    total = positive("warm_up", steps)
    then = schedule if callable(schedule) else constant(schedule)

    def at(step: Node) -> Node:
        first = then(constant_node(np.float64(0.0)))
        rising = start + (first - start) * (step / total)
        return ops.where(step < total, rising, then(ops.maximum(step - total, 0.0)))

    return at


def linear_scaling(rate: float, batch: int, base: int = 256) -> float:
    """The rate for a batch of all ranks, of one that was found for `base`: rate * batch / base.

    Goyal et al., 2017 (arXiv:1706.02677), section 2.1.
    """
    return rate * batch / base
