# SPDX-License-Identifier: Apache-2.0
"""Lion, whose step is the sign of a momentum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from .. import ops
from ..graph.node import Node
from .loss_scale import LossScale
from .optimizer import Optimizer, ParameterGroup, Rate, State
from .options import Check, at_least, pair


class Lion(Optimizer):
    """The optimizer Lion: the sign of a momentum. It needs one value of state per weight.

    Parameters
    ----------
    lr : float, Node or schedule, default 1e-4
        The learning rate. Lion usually needs 1/10 to 1/3 of the learning rate of AdamW.
    betas : pair of float, default (0.9, 0.99)
        The decay of the momentum that updates w, and the decay of the momentum that is stored.
    weight_decay : float, default 0
        The factor of the weight decay: lr * weight_decay * w is subtracted from w in each step.
    groups, clip_norm, loss_scale, name
        See Optimizer.

    Notes
    -----
    c = b1 m + (1 - b1) g;  w <- w - lr * (sign(c) + weight_decay * w);  m <- b2 m + (1 - b2) g.
    Chen et al., 2023 (arXiv:2302.06675), algorithm 2.

    Examples
    --------
    >>> optimizer = ngd.optim.Lion(1e-4, weight_decay=0.1)
    >>> updates = optimizer.minimize(loss, model.parameters())
    """

    checks: ClassVar[Mapping[str, Check]] = {"betas": pair, "weight_decay": at_least(0)}

    def __init__(
        self,
        lr: Rate = 1e-4,
        *,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        groups: Sequence[ParameterGroup] = (),
        clip_norm: float | None = None,
        loss_scale: LossScale | None = None,
        name: str | None = None,
    ) -> None:
        options = {"betas": betas, "weight_decay": weight_decay}
        super().__init__(
            lr, groups=groups, clip_norm=clip_norm, loss_scale=loss_scale, name=name, **options
        )

    def rule(self, w: Node, g: Node, state: State) -> Node:
        """Return `w` after one Lion update with the gradient `g`."""
        first, second = state["betas"]
        m = state.now("momentum")
        c = first * m + (1 - first) * g
        state.keep("momentum", second * m + (1 - second) * g)
        step: Node = ops.sign(c) + state["weight_decay"] * w
        return w - state.scalar(state.lr) * step
