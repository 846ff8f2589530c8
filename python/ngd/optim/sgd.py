# SPDX-License-Identifier: Apache-2.0
"""Stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from .. import Node, ops
from .optimizer import Optimizer, Rate, State
from .options import Check, at_least, flag, number


class SGD(Optimizer):
    """Gradient descent, with momentum as Sutskever et al. (2013) and PyTorch write it.

    g <- g + weight_decay * w;  b <- momentum * b + (1 - dampening) * g, the first b is g;
    w <- w - rate * b; with nesterov: w <- w - rate * (g + momentum * b).

    The rate stands outside of the momentum: a schedule changes the whole step at once.
    """

    checks: ClassVar[Mapping[str, Check]] = {
        "momentum": at_least(0),
        "dampening": number,
        "nesterov": flag,
        "weight_decay": at_least(0),
    }

    def __init__(
        self,
        learning_rate: Rate,
        *,
        momentum: float = 0.0,
        dampening: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        **common: Any,
    ) -> None:
        super().__init__(
            learning_rate,
            momentum=momentum,
            dampening=dampening,
            nesterov=nesterov,
            weight_decay=weight_decay,
            **common,
        )
        if nesterov and (self.options["momentum"] == 0 or self.options["dampening"] != 0):
            raise ValueError("optim.SGD: nesterov needs a momentum > 0, and no dampening")

    def rule(self, w: Node, g: Node, state: State) -> Node:
        """See the class."""
        if state["weight_decay"]:
            g = g + state["weight_decay"] * w
        if state["momentum"]:
            b = state["momentum"] * state.now("momentum") + (1 - state["dampening"]) * g
            if state["dampening"]:
                b = ops.where(state.step == 1.0, g, b)
            b = state.keep("momentum", b)
            g = g + state["momentum"] * b if state["nesterov"] else b
        return w - state.scalar(state.rate) * g
