# SPDX-License-Identifier: Apache-2.0
"""Optimizers for large batches: the step of each variable is as long as its weights allow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from .. import Node, ops
from .adaptive import corrections, moments
from .clipping import norm
from .optimizer import Optimizer, Rate, State
from .options import Check, at_least, flag, pair


class LARS(Optimizer):
    """You, Gitman and Ginsburg, 2017 (arXiv:1708.03888), algorithm 1.

    local = trust |w| / (|g| + weight_decay |w|), 1 where |w| or |g| is 0;
    b <- momentum * b + rate * local * (g + weight_decay * w);  w <- w - b.

    The rate stands inside of the momentum, as in the paper. Biases and norms' scales usually get
    ParameterGroup(is_vector, weight_decay=0.0, adapt=False), for which local is 1.
    """

    checks: ClassVar[Mapping[str, Check]] = {
        "momentum": at_least(0),
        "weight_decay": at_least(0),
        "trust": at_least(0),
        "adapt": flag,
    }

    def __init__(
        self,
        learning_rate: Rate,
        *,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 0.001,
        adapt: bool = True,
        **common: Any,
    ) -> None:
        super().__init__(
            learning_rate,
            momentum=momentum,
            weight_decay=weight_decay,
            trust=trust,
            adapt=adapt,
            **common,
        )

    def rule(self, w: Node, g: Node, state: State) -> Node:
        """See the class."""
        rate = state.scalar(state.rate)
        if state["adapt"]:
            weights, gradient = norm(w), norm(g)
            local = state["trust"] * weights / (gradient + state["weight_decay"] * weights)
            rate = rate * ops.where((weights > 0) & (gradient > 0), local, 1.0)
        step = rate * (g + state["weight_decay"] * w)
        return w - state.keep("momentum", state["momentum"] * state.now("momentum") + step)


class LAMB(Optimizer):
    """You et al., 2019 (arXiv:1904.00962), algorithm 2, whose phi is the identity.

    m and v as Adam has them;  r = (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + epsilon);
    u = r + weight_decay * w;  w <- w - rate * |w| / |u| * u, the ratio 1 where |w| or |u| is 0.

    Biases and norms' scales usually get ParameterGroup(is_vector, weight_decay=0.0, adapt=False),
    for which the ratio is 1.
    """

    checks: ClassVar[Mapping[str, Check]] = {
        "betas": pair,
        "epsilon": at_least(0),
        "weight_decay": at_least(0),
        "adapt": flag,
    }

    def __init__(
        self,
        learning_rate: Rate = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-6,
        weight_decay: float = 0.0,
        adapt: bool = True,
        **common: Any,
    ) -> None:
        super().__init__(
            learning_rate,
            betas=betas,
            epsilon=epsilon,
            weight_decay=weight_decay,
            adapt=adapt,
            **common,
        )

    def rule(self, w: Node, g: Node, state: State) -> Node:
        """See the class."""
        m, v = moments(g, state)
        first, second = corrections(state)
        size = ops.sqrt(v / state.scalar(second)) + state["epsilon"]
        u: Node = m / state.scalar(first) / size + state["weight_decay"] * w
        rate = state.scalar(state.rate)
        if state["adapt"]:
            weights, step = norm(w), norm(u)
            rate = rate * ops.where((weights > 0) & (step > 0), weights / step, 1.0)
        return w - rate * u
