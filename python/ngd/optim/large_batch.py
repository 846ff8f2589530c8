# SPDX-License-Identifier: Apache-2.0
"""Optimizers for large batches: they scale each variable's step by the norm of its weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from .. import ops
from ..graph.node import Node
from .adaptive import corrections, moments
from .clipping import norm
from .loss_scale import LossScale
from .optimizer import Optimizer, ParameterGroup, Rate, State
from .options import Check, at_least, flag, pair


class LARS(Optimizer):
    """The optimizer LARS: momentum with a learning rate per variable, for large batches.

    Parameters
    ----------
    lr : float, Node or schedule
        The learning rate.
    momentum : float, default 0.9
        The factor of the momentum buffer.
    weight_decay : float, default 0
        The factor of the L2 penalty: weight_decay * w is added to the gradient.
    trust_coefficient : float, default 0.001
        The factor of the ratio |w| / |g| in the learning rate of a variable.
    adapt : bool, default True
        Multiply the learning rate of a variable by `local` (see Notes). Biases and the weights of
        normalizations are usually excluded by groups=[ParameterGroup(optim.is_vector,
        weight_decay=0.0, adapt=False)]. `optim.is_vector` is True for variables with at most one
        axis.
    groups, clip_norm, loss_scale, name
        See Optimizer.

    Notes
    -----
    local = trust_coefficient |w| / (|g| + weight_decay |w|), and 1 where |w| or |g| is 0;
    b <- momentum * b + lr * local * (g + weight_decay * w);  w <- w - b.
    You, Gitman and Ginsburg, 2017 (arXiv:1708.03888), algorithm 1. As in the paper, the momentum
    buffer contains the learning rate.

    Examples
    --------
    >>> optimizer = ngd.optim.LARS(0.1, momentum=0.9)
    >>> updates = optimizer.minimize(loss, model.parameters())
    """

    checks: ClassVar[Mapping[str, Check]] = {
        "momentum": at_least(0),
        "weight_decay": at_least(0),
        "trust_coefficient": at_least(0),
        "adapt": flag,
    }

    def __init__(
        self,
        lr: Rate,
        *,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust_coefficient: float = 0.001,
        adapt: bool = True,
        groups: Sequence[ParameterGroup] = (),
        clip_norm: float | None = None,
        loss_scale: LossScale | None = None,
        name: str | None = None,
    ) -> None:
        options = {
            "momentum": momentum,
            "weight_decay": weight_decay,
            "trust_coefficient": trust_coefficient,
            "adapt": adapt,
        }
        super().__init__(
            lr, groups=groups, clip_norm=clip_norm, loss_scale=loss_scale, name=name, **options
        )

    def rule(self, w: Node, g: Node, state: State) -> Node:
        """Return `w` after one LARS update with the gradient `g`."""
        lr = state.scalar(state.lr)
        if state["adapt"]:
            weights, gradient = norm(w), norm(g)
            local = (
                state["trust_coefficient"] * weights / (gradient + state["weight_decay"] * weights)
            )
            lr = lr * ops.where((weights > 0) & (gradient > 0), local, 1.0)
        step = lr * (g + state["weight_decay"] * w)
        return w - state.keep("momentum", state["momentum"] * state.now("momentum") + step)


class LAMB(Optimizer):
    """The optimizer LAMB: Adam with a learning rate per variable, for large batches.

    Parameters
    ----------
    lr : float, Node or schedule, default 1e-3
        The learning rate.
    betas : pair of float, default (0.9, 0.999)
        The decays of the averages of the gradient and of its square.
    eps : float, default 1e-6
        The number that is added to the root of the second moment.
    weight_decay : float, default 0
        The factor of the weight decay: weight_decay * w is added to r (see Notes).
    adapt : bool, default True
        Multiply the learning rate of a variable by |w| / |u| (see Notes). Biases and the weights of
        normalizations are usually excluded by groups=[ParameterGroup(optim.is_vector,
        weight_decay=0.0, adapt=False)]. `optim.is_vector` is True for variables with at most one
        axis.
    groups, clip_norm, loss_scale, name
        See Optimizer.

    Notes
    -----
    With m and v of Adam, r = (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps);
    u = r + weight_decay * w;  w <- w - lr * |w| / |u| * u, the ratio 1 where |w| or |u| is 0.
    You et al., 2019 (arXiv:1904.00962), algorithm 2, with the identity as phi.

    Examples
    --------
    >>> optimizer = ngd.optim.LAMB(2e-3, weight_decay=0.01)
    >>> updates = optimizer.minimize(loss, model.parameters())
    """

    checks: ClassVar[Mapping[str, Check]] = {
        "betas": pair,
        "eps": at_least(0),
        "weight_decay": at_least(0),
        "adapt": flag,
    }

    def __init__(
        self,
        lr: Rate = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        adapt: bool = True,
        groups: Sequence[ParameterGroup] = (),
        clip_norm: float | None = None,
        loss_scale: LossScale | None = None,
        name: str | None = None,
    ) -> None:
        options = {"betas": betas, "eps": eps, "weight_decay": weight_decay, "adapt": adapt}
        super().__init__(
            lr, groups=groups, clip_norm=clip_norm, loss_scale=loss_scale, name=name, **options
        )

    def rule(self, w: Node, g: Node, state: State) -> Node:
        """Return `w` after one LAMB update with the gradient `g`."""
        m, v = moments(g, state)
        first, second = corrections(state)
        size = ops.sqrt(v / state.scalar(second)) + state["eps"]
        u: Node = m / state.scalar(first) / size + state["weight_decay"] * w
        lr = state.scalar(state.lr)
        if state["adapt"]:
            weights, step = norm(w), norm(u)
            lr = lr * ops.where((weights > 0) & (step > 0), weights / step, 1.0)
        return w - lr * u
