# SPDX-License-Identifier: Apache-2.0
"""Stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from .. import ops
from ..graph.node import Node
from .loss_scale import LossScale
from .optimizer import Optimizer, ParameterGroup, Rate, State, decay_gradient
from .options import Check, at_least, flag, number


class SGD(Optimizer):
    """The optimizer SGD (stochastic gradient descent), with momentum as in PyTorch.

    Parameters
    ----------
    lr : float, Node or schedule
        The learning rate.
    momentum : float, default 0
        The factor of the momentum buffer, at least 0.
    dampening : float, default 0
        The fraction of the gradient that is not added to the momentum buffer.
    nesterov : bool, default False
        Use Nesterov's momentum. It needs momentum > 0 and dampening 0.
    weight_decay : float, default 0
        The factor of the L2 penalty: weight_decay * w is added to the gradient.
    groups, clip_norm, loss_scale, name
        See Optimizer.

    Notes
    -----
    g <- g + weight_decay * w;  b <- momentum * b + (1 - dampening) * g, and the first b is g;
    w <- w - lr * b. With nesterov: w <- w - lr * (g + momentum * b).

    See Sutskever et al., 2013 (ICML), for momentum. As in PyTorch, the momentum buffer does not
    contain the learning rate, so a schedule changes the whole step at once.

    Examples
    --------
    >>> optimizer = ngd.optim.SGD(0.1, momentum=0.9)
    >>> updates = optimizer.minimize(loss, model.parameters())
    """

    checks: ClassVar[Mapping[str, Check]] = {
        "momentum": at_least(0),
        "dampening": number,
        "nesterov": flag,
        "weight_decay": at_least(0),
    }

    def __init__(
        self,
        lr: Rate,
        *,
        momentum: float = 0.0,
        dampening: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        groups: Sequence[ParameterGroup] = (),
        clip_norm: float | None = None,
        loss_scale: LossScale | None = None,
        name: str | None = None,
    ) -> None:
        options = {
            "momentum": momentum,
            "dampening": dampening,
            "nesterov": nesterov,
            "weight_decay": weight_decay,
        }
        super().__init__(
            lr, groups=groups, clip_norm=clip_norm, loss_scale=loss_scale, name=name, **options
        )
        if nesterov and (self.options["momentum"] == 0 or self.options["dampening"] != 0):
            raise ValueError(
                "optim.SGD: expected a momentum > 0, and no dampening, with nesterov; got others. "
                "Write momentum=0.9, and leave dampening out."
            )

    def rule(self, w: Node, g: Node, state: State) -> Node:
        """Return the value that an SGD step gives to a variable of value `w` and gradient `g`."""
        g = decay_gradient(w, g, state)
        if state["momentum"]:
            b = state["momentum"] * state.now("momentum") + (1 - state["dampening"]) * g
            if state["dampening"]:
                b = ops.where(state.step == 1.0, g, b)
            b = state.keep("momentum", b)
            g = g + state["momentum"] * b if state["nesterov"] else b
        return w - state.scalar(state.lr) * g
