# SPDX-License-Identifier: Apache-2.0
"""Optimizers that scale each element's step by the size of its gradients so far."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from .. import Node, ops
from .optimizer import Optimizer, Rate, State
from .options import Check, at_least, flag, fraction, pair


def moments(g: Node, state: State) -> tuple[Node, Node]:
    """Adam's averages of the gradient and of its square, kept as state."""
    first, second = state["betas"]
    m = first * state.now("first_moment") + (1 - first) * g
    v = second * state.now("second_moment") + (1 - second) * (g * g)
    return state.keep("first_moment", m), state.keep("second_moment", v)


def corrections(state: State) -> tuple[Node, Node]:
    """Adam's 1 - beta^t for both moments, in float64."""
    first, second = state["betas"]
    return 1.0 - first**state.step, 1.0 - second**state.step


def adam_step(g: Node, state: State) -> Node:
    """What Adam subtracts from a variable."""
    m, v = moments(g, state)
    first, second = corrections(state)
    if state["amsgrad"]:
        v = state.keep("largest_second_moment", ops.maximum(state.now("largest_second_moment"), v))
    size: Node = ops.sqrt(v) / state.scalar(ops.sqrt(second)) + state["epsilon"]
    return state.scalar(state.rate / first) * (m / size)


class Adam(Optimizer):
    """Kingma and Ba, 2014 (arXiv:1412.6980), algorithm 1.

    m <- b1 m + (1 - b1) g;  v <- b2 v + (1 - b2) g^2;
    w <- w - rate * (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + epsilon).

    weight_decay adds weight_decay * w to g before; AdamW keeps it apart. amsgrad takes the largest
    v so far (Reddi et al., 2018, arXiv:1904.09237).
    """

    checks: ClassVar[Mapping[str, Check]] = {
        "betas": pair,
        "epsilon": at_least(0),
        "weight_decay": at_least(0),
        "amsgrad": flag,
    }

    def __init__(
        self,
        learning_rate: Rate = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        **common: Any,
    ) -> None:
        super().__init__(
            learning_rate,
            betas=betas,
            epsilon=epsilon,
            weight_decay=weight_decay,
            amsgrad=amsgrad,
            **common,
        )

    def rule(self, w: Node, g: Node, state: State) -> Node:
        """See the class."""
        if state["weight_decay"]:
            g = g + state["weight_decay"] * w
        return w - adam_step(g, state)


class AdamW(Adam):
    """Loshchilov and Hutter, 2017 (arXiv:1711.05101), algorithm 2: weight decay beside Adam.

    w <- w - rate * weight_decay * w, and then Adam's step of the plain gradient.
    """

    def __init__(
        self, learning_rate: Rate = 1e-3, *, weight_decay: float = 0.01, **common: Any
    ) -> None:
        super().__init__(learning_rate, weight_decay=weight_decay, **common)

    def rule(self, w: Node, g: Node, state: State) -> Node:
        """See the class."""
        if state["weight_decay"]:
            w = w * state.scalar(1.0 - state.rate * state["weight_decay"])
        return w - adam_step(g, state)


class RMSprop(Optimizer):
    """Tieleman and Hinton, 2012 (Coursera, lecture 6.5), with PyTorch's options.

    v <- alpha v + (1 - alpha) g^2;  w <- w - rate * g / (sqrt(v) + epsilon).

    centered subtracts the square of the gradient's average from v (Graves, 2013, arXiv:1308.0850,
    equations 38 to 45, but the place of epsilon); momentum is kept of the scaled gradient.
    """

    checks: ClassVar[Mapping[str, Check]] = {
        "alpha": fraction,
        "epsilon": at_least(0),
        "weight_decay": at_least(0),
        "momentum": at_least(0),
        "centered": flag,
    }

    def __init__(
        self,
        learning_rate: Rate = 1e-2,
        *,
        alpha: float = 0.99,
        epsilon: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
        **common: Any,
    ) -> None:
        super().__init__(
            learning_rate,
            alpha=alpha,
            epsilon=epsilon,
            weight_decay=weight_decay,
            momentum=momentum,
            centered=centered,
            **common,
        )

    def rule(self, w: Node, g: Node, state: State) -> Node:
        """See the class."""
        alpha = state["alpha"]
        if state["weight_decay"]:
            g = g + state["weight_decay"] * w
        v = state.keep("square", alpha * state.now("square") + (1 - alpha) * (g * g))
        if state["centered"]:
            mean = state.keep("mean", alpha * state.now("mean") + (1 - alpha) * g)
            v = v - mean * mean
        step: Node = g / (ops.sqrt(v) + state["epsilon"])
        if state["momentum"]:
            step = state.keep("momentum", state["momentum"] * state.now("momentum") + step)
        return w - state.scalar(state.rate) * step


class Adagrad(Optimizer):
    """Duchi, Hazan and Singer, 2011 (JMLR 12), the diagonal form, with PyTorch's options.

    s <- s + g^2;  w <- w - rate / (1 + (t - 1) rate_decay) * g / (sqrt(s) + epsilon).
    """

    checks: ClassVar[Mapping[str, Check]] = {
        "rate_decay": at_least(0),
        "initial": at_least(0),
        "epsilon": at_least(0),
        "weight_decay": at_least(0),
    }

    def __init__(
        self,
        learning_rate: Rate = 1e-2,
        *,
        rate_decay: float = 0.0,
        initial: float = 0.0,
        epsilon: float = 1e-10,
        weight_decay: float = 0.0,
        **common: Any,
    ) -> None:
        super().__init__(
            learning_rate,
            rate_decay=rate_decay,
            initial=initial,
            epsilon=epsilon,
            weight_decay=weight_decay,
            **common,
        )

    def rule(self, w: Node, g: Node, state: State) -> Node:
        """See the class."""
        if state["weight_decay"]:
            g = g + state["weight_decay"] * w
        s = state.keep("square", state.now("square", state["initial"]) + g * g)
        rate = state.rate / (1.0 + (state.step - 1.0) * state["rate_decay"])
        size: Node = ops.sqrt(s) + state["epsilon"]
        return w - state.scalar(rate) * (g / size)
