# SPDX-License-Identifier: Apache-2.0
"""Dynamic loss scaling: gradients that float16 can hold."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from .. import LiveState, Node, Variable, float32, float64, ops, trees
from .options import count, number

SMALLEST: Final = 1.0
LARGEST: Final = 2.0**127  # the largest power of two in float32


def all_finite(gradients: Any, group: Any = None) -> Node:
    """Whether no element of a structure of nodes is infinite or NaN, a bool.

    With a group, whether that holds on all of its ranks.
    """
    leaves = trees.leaves_of(gradients)
    others = [ops.sum(ops.cast(~(ops.abs(g) < math.inf), float32)) for g in leaves]
    count = ops.sum(ops.stack(others))
    if group is not None:
        count = ops.all_reduce(count, op="max", group=group)
    return count == 0.0


class LossScale:
    """Micikevicius et al., 2018 (arXiv:1710.03740), section 3.2: a factor of the loss.

        optimizer = AdamW(1e-3, loss_scale=LossScale())
        updates = optimizer.update(loss, parameters)
        step = ngd.compile([x, y], [loss], updates, precision="float16")

    Small gradients are 0 in float16. So the loss is multiplied by a scale before it is
    differentiated, and the gradients are divided by it after their reduction over the ranks. Where
    an element of a gradient is then infinite or NaN, the step updates no parameter and no state of
    the optimizer, and the scale is halved. After `growth_interval` steps without that the scale is
    doubled. It stays between 1 and 2^127.

    Where `update` does not serve, as for two optimizers that skip together: with gradients of
    `scale.scaled(loss)`, by their variables and reduced,

        found, finite = scale.unscaled(gradients)
        updates = optimizer.updates(found, where=finite) | scale.updates(finite)

    What one rank overflows is infinite or NaN in the reduced gradient of all, so all skip the same
    updates and have the same scale.

    Parameters
    ----------
    initial
        The scale of the first step; a power of two rounds nothing.
    growth_interval
        How many updates in a row double the scale.
    group
        Ranks that skip together although their gradients differ, as the parts of a model do
        (docs/numerics.md). By default no rank is asked: data-parallel gradients are equal.
    name
        What the names of the state begin with.
    """

    def __init__(
        self,
        initial: float = 2.0**15,
        *,
        growth_interval: int = 2000,
        group: Any = None,
        name: str = "loss_scale",
    ) -> None:
        where = "optim.LossScale"
        if not SMALLEST <= number(where, "initial", initial) <= LARGEST:
            raise ValueError(f"{where}: expected an initial scale in [1, 2**127]; got {initial}")
        self.growth_interval = count(where, "growth_interval", growth_interval)
        self.group, self.name = group, name
        self.state = LiveState(name)
        """The scale, and the count of good steps, by name, for checkpoints."""
        self.scale = self.state.variable(f"{name}.scale", lambda: np.float32(initial))
        self.good_steps = self.state.variable(f"{name}.good_steps", lambda: np.int64(0))
        """The number of updates since the scale changed or an update was skipped."""

    def scaled(self, loss: Node) -> Node:
        """The loss to differentiate."""
        node: Node = loss * ops.cast(self.scale, loss.dtype)
        return node

    def unscaled(self, gradients: Any) -> tuple[Any, Node]:
        """Divide gradients of the scaled loss; return them, and whether all of them are finite."""
        return trees.map(self._unscaled, gradients), all_finite(gradients, self.group)

    def updates(self, finite: Node) -> dict[Variable, Node]:
        """Return the scale's own updates for ngd.compile: see the class."""
        done = self.good_steps + 1
        grows = done == self.growth_interval
        grown = ops.where(grows, self.scale * 2.0, self.scale)
        scale = ops.where(finite, grown, self.scale * 0.5)
        return {
            self.scale: ops.clip(scale, SMALLEST, LARGEST),
            self.good_steps: ops.where(finite & ~grows, done, 0),
        }

    def _unscaled(self, g: Node) -> Node:
        wide = g if g.dtype == float64 else ops.cast(g, float32)
        node: Node = wide / ops.cast(self.scale, wide.dtype)
        return node
