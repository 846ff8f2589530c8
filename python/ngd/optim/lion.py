# SPDX-License-Identifier: Apache-2.0
"""Lion: the sign of a momentum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from .. import Node, ops
from .optimizer import Optimizer, Rate, State
from .options import Check, at_least, pair


class Lion(Optimizer):
    """Chen et al., 2023 (arXiv:2302.06675), algorithm 2.

    c = b1 m + (1 - b1) g;  w <- w - rate * (sign(c) + weight_decay * w);  m <- b2 m + (1 - b2) g.
    """

    checks: ClassVar[Mapping[str, Check]] = {"betas": pair, "weight_decay": at_least(0)}

    def __init__(
        self,
        learning_rate: Rate = 1e-4,
        *,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        **common: Any,
    ) -> None:
        super().__init__(learning_rate, betas=betas, weight_decay=weight_decay, **common)

    def rule(self, w: Node, g: Node, state: State) -> Node:
        """See the class."""
        first, second = state["betas"]
        m = state.now("momentum")
        c = first * m + (1 - first) * g
        state.keep("momentum", second * m + (1 - second) * g)
        step: Node = ops.sign(c) + state["weight_decay"] * w
        return w - state.scalar(state.rate) * step
