# SPDX-License-Identifier: Apache-2.0
"""Learning rate schedules: functions from the number of updates so far to the learning rate.

The number and the rate are nodes of the graph. The compiled step computes them in float64.
Schedules can be combined: `warm_up(cosine(0.1, steps=1000), 50)`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from .. import ops
from ..graph.node import Node
from ..graph.variable import constant as constant_node
from .options import describe, number, positive

Schedule: TypeAlias = Callable[[Node], Node]
"""A function that returns the learning rate.

Its argument is the number of updates so far. Both are nodes: float64 scalars.
"""


def expect_rate(where: str, name: str, lr: Any) -> float:
    """Return a learning rate as a float; raise an error unless it is a finite number >= 0."""
    return number(where, name, lr, least=0)


def expect_steps(where: str, steps: Any) -> float:
    """Return a number of steps as a float; raise an error unless it is > 0."""
    if number(where, "steps", steps) <= 0:
        raise ValueError(
            f"{where}: expected a number of steps > 0; got {steps}. Give at least one step."
        )
    return float(steps)


def constant(lr: float) -> Schedule:
    """Return a schedule with a constant learning rate, for example for warm_up.

    Parameters
    ----------
    lr : float
        The learning rate.

    Examples
    --------
    >>> schedule = ngd.optim.warm_up(ngd.optim.constant(0.1), 100)
    """
    lr = expect_rate("optim.constant", "lr", lr)
    return lambda step: constant_node(np.float64(lr))


def steps(lr: float, factors: Mapping[int, float]) -> Schedule:
    """Return a schedule that multiplies the learning rate at given steps.

    Parameters
    ----------
    lr : float
        The learning rate of the first steps.
    factors : dict of int to float
        A factor per step number. From that step on, the learning rate is multiplied by the factor.
        The factors accumulate.

    Examples
    --------
    >>> schedule = ngd.optim.steps(0.1, {3000: 0.1, 6000: 0.1})
    """
    where = "optim.steps"
    lr = expect_rate(where, "lr", lr)
    if not isinstance(factors, Mapping):
        raise TypeError(
            f"{where}: factors: expected a dict of factors by steps, as {{30: 0.1}}; "
            f"got {describe(factors)}"
        )
    pairs = sorted(
        (number(where, "a step", start), number(where, f"factors[{start!r}]", factor, least=0))
        for start, factor in factors.items()
    )

    def rate_at(step: Node) -> Node:
        value = constant_node(np.float64(lr))
        for start, factor in pairs:
            value = ops.where(step >= start, value * factor, value)
        return value

    return rate_at


def cosine(lr: float, steps: int, final_lr: float = 0.0) -> Schedule:
    """Return a schedule that decreases from `lr` to `final_lr` along half a period of a cosine.

    Parameters
    ----------
    lr : float
        The first learning rate.
    steps : int
        The number of steps until the learning rate is `final_lr`. It then stays constant.
    final_lr : float, default 0
        The last learning rate.

    Notes
    -----
    final_lr + (lr - final_lr) * (1 + cos(pi * step / steps)) / 2. Loshchilov and Hutter, 2016
    (arXiv:1608.03983), equation 5, without restarts.

    Examples
    --------
    >>> optimizer = ngd.optim.AdamW(ngd.optim.cosine(3e-4, steps=1000))
    """
    where = "optim.cosine"
    lr, final_lr = expect_rate(where, "lr", lr), expect_rate(where, "final_lr", final_lr)
    total = expect_steps(where, steps)

    def rate_at(step: Node) -> Node:
        fraction_done = ops.minimum(step / total, 1.0)
        return final_lr + (lr - final_lr) * 0.5 * (1.0 + ops.cos(fraction_done * math.pi))

    return rate_at


def polynomial(lr: float, steps: int, power: float = 1.0, final_lr: float = 0.0) -> Schedule:
    """Return a schedule that decreases from `lr` to `final_lr` as a power of the remaining steps.

    Parameters
    ----------
    lr : float
        The first learning rate.
    steps : int
        The number of steps until the learning rate is `final_lr`. It then stays constant.
    power : float, default 1
        The exponent. With 1 the decrease is linear.
    final_lr : float, default 0
        The last learning rate.

    Notes
    -----
    final_lr + (lr - final_lr) (1 - step / steps)^power.

    Examples
    --------
    >>> optimizer = ngd.optim.LAMB(ngd.optim.polynomial(2e-3, steps=1000))
    """
    where = "optim.polynomial"
    lr, final_lr = expect_rate(where, "lr", lr), expect_rate(where, "final_lr", final_lr)
    total, power = expect_steps(where, steps), positive(where, "power", power)

    def rate_at(step: Node) -> Node:
        fraction_left = 1.0 - ops.minimum(step / total, 1.0)
        return final_lr + (lr - final_lr) * fraction_left**power

    return rate_at


def warm_up(schedule: Schedule | float, steps: int, start_lr: float = 0.0) -> Schedule:
    """Return a schedule that rises linearly to the first rate of `schedule`, then follows it.

    Parameters
    ----------
    schedule : schedule or float
        The schedule after the warm-up, or a constant learning rate. The schedule gets the number of
        updates since the end of the warm-up.
    steps : int
        The number of steps of the warm-up.
    start_lr : float, default 0
        The first learning rate.

    Notes
    -----
    Goyal et al., 2017 (arXiv:1706.02677), section 2.2.

    Examples
    --------
    >>> schedule = ngd.optim.warm_up(ngd.optim.cosine(3e-4, steps=1000), 100)
    """
    where = "optim.warm_up"
    if callable(steps):
        raise TypeError(
            f"{where}: expected a schedule or a learning rate first, and a number of steps second; "
            f"got {schedule!r} and a function. Write warm_up(schedule, steps)."
        )
    total, start_lr = expect_steps(where, steps), expect_rate(where, "start_lr", start_lr)
    if not callable(schedule):
        schedule = constant(expect_rate(where, "schedule", schedule))
    after = schedule

    def rate_at(step: Node) -> Node:
        first_rate = after(constant_node(np.float64(0.0)))
        rising = start_lr + (first_rate - start_lr) * (step / total)
        return ops.where(step < total, rising, after(ops.maximum(step - total, 0.0)))

    return rate_at


def linear_scaling(lr: float, batch: int, base: int = 256) -> float:
    """Return the learning rate for the batch of all ranks: lr * batch / base.

    Parameters
    ----------
    lr : float
        A learning rate that was found for a batch of `base` samples.
    batch : int
        The number of samples in the batches of all ranks together.
    base : int, default 256
        The number of samples for which `lr` was found.

    Notes
    -----
    Goyal et al., 2017 (arXiv:1706.02677), section 2.1.

    Examples
    --------
    >>> ngd.optim.linear_scaling(0.1, batch=1024)
    0.4
    """
    where = "optim.linear_scaling"
    for name, value in (("batch", batch), ("base", base)):
        positive(where, name, value)
    return expect_rate(where, "lr", lr) * batch / base
