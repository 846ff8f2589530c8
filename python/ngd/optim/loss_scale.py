# SPDX-License-Identifier: Apache-2.0
"""Dynamic loss scaling, so that small gradients do not underflow to zero in float16."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from .. import ops, trees
from ..dtypes import float32, float64
from ..graph.live_state import LiveState
from ..graph.node import Node
from ..graph.variable import Variable
from .options import count, number

SMALLEST: Final = 1.0
LARGEST: Final = 2.0**127  # the largest power of two that is finite in float32


def all_finite(gradients: Any, group: Any = None) -> Node:
    """Return a bool scalar: True if all elements of all nodes in a structure are finite.

    With a group, the elements on all ranks of the group must be finite.
    """
    leaves = trees.leaves_of(gradients)
    num_not_finite = [ops.sum(ops.cast(~(ops.abs(g) < math.inf), float32)) for g in leaves]
    count = ops.sum(ops.stack(num_not_finite))
    if group is not None:
        count = ops.all_reduce(count, op="max", group=group)
    return count == 0.0


class LossScale:
    """A dynamic loss scale, for training in float16.

    Small gradients become 0 in float16. So the loss is multiplied by a scale before it is
    differentiated, and the gradients are divided by the scale after their reduction over the ranks.
    If an element of a gradient is infinite or NaN, the gradients have overflowed: the update
    changes no parameter and no optimizer state, and the scale is halved. After `growth_interval`
    updates without an overflow, the scale is doubled. The scale stays between 1 and 2^127.

    An overflow on one rank makes the reduced gradient infinite or NaN on all ranks. So all ranks
    skip the same updates and have the same scale.

    Parameters
    ----------
    init_scale : float, default 2^15
        The scale of the first step, in [1, 2^127]. A power of two causes no rounding.
    growth_interval : int, default 2000
        The number of updates without an overflow after which the scale is doubled.
    group : Group, optional
        Ranks that must skip the same updates although their gradients differ, such as the stages of
        a pipeline. By default the ranks do not communicate, because data-parallel gradients are
        equal.
    name : str, default "loss_scale"
        The prefix of the names of the state.

    Notes
    -----
    Micikevicius et al., 2018 (arXiv:1710.03740), section 3.2.

    Two optimizers skip the same updates if both get the same `finite`. So pass the gradients of all
    their variables to one call of `unscaled`. Then pass to each optimizer the unscaled gradients of
    its own variables. The lines below show this for one optimizer. `gradients` is a dict from each
    variable to its gradient of `scale.scaled(loss)`, already reduced over the ranks.

        unscaled, finite = scale.unscaled(gradients)
        updates = optimizer.apply(unscaled, where=finite) | scale.updates(finite)

    Examples
    --------
    >>> optimizer = ngd.optim.AdamW(1e-3, loss_scale=ngd.optim.LossScale())
    >>> updates = optimizer.minimize(loss, parameters)
    >>> step = ngd.compile([x, y], loss, updates, precision="float16")
    """

    def __init__(
        self,
        init_scale: float = 2.0**15,
        *,
        growth_interval: int = 2000,
        group: Any = None,
        name: str = "loss_scale",
    ) -> None:
        where = "optim.LossScale"
        if not SMALLEST <= number(where, "init_scale", init_scale) <= LARGEST:
            raise ValueError(f"{where}: expected an initial scale in [1, 2**127]; got {init_scale}")
        self.growth_interval = count(where, "growth_interval", growth_interval)
        self.group, self.name = group, name
        self.state = LiveState(name)
        """The variables `scale` and `good_steps` by name, for checkpoints."""
        self.scale = self.state.variable(f"{name}.scale", lambda: np.float32(init_scale))
        self.good_steps = self.state.variable(f"{name}.good_steps", lambda: np.int64(0))
        """The number of updates since the scale last changed or an update was last skipped."""

    def scaled(self, loss: Node) -> Node:
        """Return the loss times the scale, which is the loss to differentiate.

        Parameters
        ----------
        loss : Node
            A floating scalar.
        """
        return loss * ops.cast(self.scale, loss.dtype)

    def unscaled(self, gradients: Any) -> tuple[Any, Node]:
        """Divide the gradients of the scaled loss by the scale.

        Parameters
        ----------
        gradients : structure of Node
            The gradients of `scaled(loss)`, after their reduction over the ranks.

        Returns
        -------
        unscaled : structure of Node
            The gradients divided by the scale, in float32 or float64.
        finite : Node
            A bool scalar: True if all elements are finite.
        """
        return trees.map(self._unscaled, gradients), all_finite(gradients, self.group)

    def updates(self, finite: Node) -> dict[Variable, Node]:
        """Return the new values of `scale` and `good_steps`, as nodes.

        Parameters
        ----------
        finite : Node
            The second result of `unscaled`.

        Returns
        -------
        dict of Variable to Node
            The new value of each of the two variables, for `updates=` of ngd.compile.
        """
        good_steps = self.good_steps + 1
        must_grow = good_steps == self.growth_interval
        grown = ops.where(must_grow, self.scale * 2.0, self.scale)
        scale = ops.where(finite, grown, self.scale * 0.5)
        return {
            self.scale: ops.clip(scale, SMALLEST, LARGEST),
            self.good_steps: ops.where(finite & ~must_grow, good_steps, 0),
        }

    def _unscaled(self, g: Node) -> Node:
        """Return a gradient divided by the scale, in float64 if `g` is float64, else in float32."""
        converted = g if g.dtype == float64 else ops.cast(g, float32)
        return converted / ops.cast(self.scale, converted.dtype)
