# SPDX-License-Identifier: Apache-2.0
"""Adaptive optimizers: Adam, AdamW, RMSprop and Adagrad.

They divide the step of each element by the root of a sum or average of its squared gradients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from .. import ops
from ..graph.node import Node
from .loss_scale import LossScale
from .optimizer import Optimizer, ParameterGroup, Rate, State, decay_gradient, decay_weight
from .options import Check, at_least, flag, fraction, pair


def moments(g: Node, state: State) -> tuple[Node, Node]:
    """Return Adam's moments: the moving averages of the gradient and of its square.

    Also set them, by `state.keep`, as the new values of the state variables "first_moment" and
    "second_moment".
    """
    first, second = state["betas"]
    m = first * state.now("first_moment") + (1 - first) * g
    v = second * state.now("second_moment") + (1 - second) * (g * g)
    return state.keep("first_moment", m), state.keep("second_moment", v)


def corrections(state: State) -> tuple[Node, Node]:
    """Return the bias corrections 1 - beta^t of the first and the second moment, in float64."""
    first, second = state["betas"]
    return 1.0 - first**state.step, 1.0 - second**state.step


def adam_step(g: Node, state: State) -> Node:
    """Return the change that Adam subtracts from a variable."""
    m, v = moments(g, state)
    first, second = corrections(state)
    if state["amsgrad"]:
        v = state.keep("largest_second_moment", ops.maximum(state.now("largest_second_moment"), v))
    size: Node = ops.sqrt(v) / state.scalar(ops.sqrt(second)) + state["eps"]
    return state.scalar(state.lr / first) * (m / size)


class Adam(Optimizer):
    """The optimizer Adam, with PyTorch's options.

    Parameters
    ----------
    lr : float, Node or schedule, default 1e-3
        The learning rate.
    betas : pair of float, default (0.9, 0.999)
        The decays of the averages of the gradient and of its square, each in [0, 1).
    eps : float, default 1e-8
        The number that is added to the root of the second moment.
    weight_decay : float, default 0
        The factor of the L2 penalty: weight_decay * w is added to the gradient. AdamW decays the
        weight itself.
    amsgrad : bool, default False
        Use the largest second moment so far (Reddi et al., 2018, arXiv:1904.09237).
    groups, clip_norm, loss_scale, name
        See Optimizer.

    Notes
    -----
    m <- b1 m + (1 - b1) g;  v <- b2 v + (1 - b2) g^2;
    w <- w - lr * (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps).
    Kingma and Ba, 2014 (arXiv:1412.6980), algorithm 1.

    Examples
    --------
    >>> optimizer = ngd.optim.Adam(1e-3)
    >>> updates = optimizer.minimize(loss, model.parameters())
    """

    checks: ClassVar[Mapping[str, Check]] = {
        "betas": pair,
        "eps": at_least(0),
        "weight_decay": at_least(0),
        "amsgrad": flag,
    }

    def __init__(
        self,
        lr: Rate = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        groups: Sequence[ParameterGroup] = (),
        clip_norm: float | None = None,
        loss_scale: LossScale | None = None,
        name: str | None = None,
    ) -> None:
        options = {"betas": betas, "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad}
        super().__init__(
            lr, groups=groups, clip_norm=clip_norm, loss_scale=loss_scale, name=name, **options
        )

    def rule(self, w: Node, g: Node, state: State) -> Node:
        """Return `w` after one Adam update with the gradient `g`."""
        return w - adam_step(decay_gradient(w, g, state), state)


class AdamW(Adam):
    """The optimizer AdamW: Adam with decoupled weight decay.

    Parameters
    ----------
    lr : float, Node or schedule, default 1e-3
        The learning rate.
    betas, eps
        See Adam.
    weight_decay : float, default 0.01
        The factor of the weight decay: lr * weight_decay * w is subtracted from w in each step.
    amsgrad : bool, default False
        See Adam.
    groups, clip_norm, loss_scale, name
        See Optimizer.

    Notes
    -----
    w <- w - lr * weight_decay * w, and then a step of Adam with weight_decay=0.
    Loshchilov and Hutter, 2017 (arXiv:1711.05101), algorithm 2.

    Examples
    --------
    >>> schedule = ngd.optim.warm_up(ngd.optim.cosine(3e-4, steps=1000), 100)
    >>> optimizer = ngd.optim.AdamW(schedule, weight_decay=0.1, clip_norm=1.0)
    """

    def __init__(
        self,
        lr: Rate = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        amsgrad: bool = False,
        groups: Sequence[ParameterGroup] = (),
        clip_norm: float | None = None,
        loss_scale: LossScale | None = None,
        name: str | None = None,
    ) -> None:
        options: dict[str, Any] = {
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "amsgrad": amsgrad,
        }
        super().__init__(
            lr, groups=groups, clip_norm=clip_norm, loss_scale=loss_scale, name=name, **options
        )

    def rule(self, w: Node, g: Node, state: State) -> Node:
        """Return `w` after weight decay and one Adam update with the gradient `g`."""
        return decay_weight(w, state) - adam_step(g, state)


class RMSprop(Optimizer):
    """The optimizer RMSprop, with PyTorch's options.

    Parameters
    ----------
    lr : float, Node or schedule, default 1e-2
        The learning rate.
    alpha : float, default 0.99
        The decay of the average of the squared gradient, in [0, 1).
    eps : float, default 1e-8
        The number that is added to the root.
    weight_decay : float, default 0
        The factor of the L2 penalty: weight_decay * w is added to the gradient.
    momentum : float, default 0
        The factor of the momentum buffer b. If it is not 0, the update is
        b <- momentum * b + g / (sqrt(v) + eps);  w <- w - lr * b.
    centered : bool, default False
        Subtract the square of the gradient's average from v (Graves, 2013, arXiv:1308.0850,
        equations 38 to 45, except where eps is added).
    groups, clip_norm, loss_scale, name
        See Optimizer.

    Notes
    -----
    v <- alpha v + (1 - alpha) g^2;  w <- w - lr * g / (sqrt(v) + eps).
    Tieleman and Hinton, 2012 (Coursera, lecture 6.5).

    Examples
    --------
    >>> optimizer = ngd.optim.RMSprop(1e-3)
    >>> updates = optimizer.minimize(loss, model.parameters())
    """

    checks: ClassVar[Mapping[str, Check]] = {
        "alpha": fraction,
        "eps": at_least(0),
        "weight_decay": at_least(0),
        "momentum": at_least(0),
        "centered": flag,
    }

    def __init__(
        self,
        lr: Rate = 1e-2,
        *,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
        groups: Sequence[ParameterGroup] = (),
        clip_norm: float | None = None,
        loss_scale: LossScale | None = None,
        name: str | None = None,
    ) -> None:
        options = {
            "alpha": alpha,
            "eps": eps,
            "weight_decay": weight_decay,
            "momentum": momentum,
            "centered": centered,
        }
        super().__init__(
            lr, groups=groups, clip_norm=clip_norm, loss_scale=loss_scale, name=name, **options
        )

    def rule(self, w: Node, g: Node, state: State) -> Node:
        """Return `w` after one RMSprop update with the gradient `g`."""
        alpha = state["alpha"]
        g = decay_gradient(w, g, state)
        v = state.keep("square", alpha * state.now("square") + (1 - alpha) * (g * g))
        if state["centered"]:
            mean = state.keep("mean", alpha * state.now("mean") + (1 - alpha) * g)
            v = v - mean * mean
        step: Node = g / (ops.sqrt(v) + state["eps"])
        if state["momentum"]:
            step = state.keep("momentum", state["momentum"] * state.now("momentum") + step)
        return w - state.scalar(state.lr) * step


class Adagrad(Optimizer):
    """The optimizer Adagrad in its diagonal form, with PyTorch's options.

    Parameters
    ----------
    lr : float, Node or schedule, default 1e-2
        The learning rate.
    lr_decay : float, default 0
        The decay of the learning rate: it is divided by 1 + (t - 1) * lr_decay in update t.
    initial_accumulator_value : float, default 0
        The first value of the sum of squared gradients.
    eps : float, default 1e-10
        The number that is added to the root.
    weight_decay : float, default 0
        The factor of the L2 penalty: weight_decay * w is added to the gradient.
    groups, clip_norm, loss_scale, name
        See Optimizer.

    Notes
    -----
    s <- s + g^2;  w <- w - lr / (1 + (t - 1) lr_decay) * g / (sqrt(s) + eps).
    Duchi, Hazan and Singer, 2011 (JMLR 12).

    Examples
    --------
    >>> optimizer = ngd.optim.Adagrad(1e-2)
    >>> updates = optimizer.minimize(loss, model.parameters())
    """

    checks: ClassVar[Mapping[str, Check]] = {
        "lr_decay": at_least(0),
        "initial_accumulator_value": at_least(0),
        "eps": at_least(0),
        "weight_decay": at_least(0),
    }

    def __init__(
        self,
        lr: Rate = 1e-2,
        *,
        lr_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        weight_decay: float = 0.0,
        groups: Sequence[ParameterGroup] = (),
        clip_norm: float | None = None,
        loss_scale: LossScale | None = None,
        name: str | None = None,
    ) -> None:
        options = {
            "lr_decay": lr_decay,
            "initial_accumulator_value": initial_accumulator_value,
            "eps": eps,
            "weight_decay": weight_decay,
        }
        super().__init__(
            lr, groups=groups, clip_norm=clip_norm, loss_scale=loss_scale, name=name, **options
        )

    def rule(self, w: Node, g: Node, state: State) -> Node:
        """Return `w` after one Adagrad update with the gradient `g`."""
        g = decay_gradient(w, g, state)
        s = state.keep("square", state.now("square", state["initial_accumulator_value"]) + g * g)
        rate = state.lr / (1.0 + (state.step - 1.0) * state["lr_decay"])
        size: Node = ops.sqrt(s) + state["eps"]
        return w - state.scalar(rate) * (g / size)
