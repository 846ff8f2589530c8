# SPDX-License-Identifier: Apache-2.0
"""Muon: momentum whose matrices are made orthogonal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from .. import Node, ops
from .clipping import norm
from .optimizer import Optimizer, Rate, State
from .options import Check, at_least, count, flag

COEFFICIENTS: Final = (3.4445, -4.7750, 2.0315)
SCALES: Final = {
    "shape": lambda rows, columns: max(1.0, rows / columns) ** 0.5,
    "rms": lambda rows, columns: 0.2 * max(rows, columns) ** 0.5,
}
"""By name: the factor of a matrix's step (Jordan, 2024; Liu et al., 2025, arXiv:2502.16982)."""


def scale_name(where: str, name: str, value: Any) -> str:
    """Check the name of a scale."""
    if value not in SCALES:
        raise ValueError(f'{where}: {name}: expected "shape" or "rms"; got {value!r}')
    return str(value)


def orthogonal(x: Node, rounds: int) -> Node:
    """About U V^T of the matrix U S V^T: a Newton-Schulz iteration of degree five.

    With x of norm at most 1, each round is x <- a x + b (x x^T) x + c (x x^T)^2 x. The coefficients
    bring all singular values near 1, within some tenths, in about five rounds (Jordan et al., 2024,
    https://kellerjordan.github.io/posts/muon/).
    """
    a, b, c = COEFFICIENTS
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    x = x / (norm(x) + 1e-7)
    for _ in range(rounds):
        square = x @ x.T
        x = a * x + (b * square + c * (square @ square)) @ x
    return x.T if tall else x


class Muon(Optimizer):
    """Jordan et al., 2024 (https://kellerjordan.github.io/posts/muon/).

    b <- momentum * b + (1 - momentum) * g;  u = (1 - momentum) g + momentum * b with nesterov, else
    b;  w <- (1 - rate * weight_decay) * w - rate * scale * orthogonal(u).

    For matrices; a tensor of more axes, as a convolution's weights, counts as a matrix of shape[0]
    rows. Biases, embeddings and the last layer take another optimizer, with its own updates:
    `updates=[muon.update(loss, matrices), adamw.update(loss, others)]`. scale "shape" is the
    post's sqrt(max(1, rows / columns)); "rms" is 0.2 sqrt(max(rows, columns)), with which AdamW's
    rates serve (Liu et al., 2025, arXiv:2502.16982).
    """

    checks: ClassVar[Mapping[str, Check]] = {
        "momentum": at_least(0),
        "nesterov": flag,
        "weight_decay": at_least(0),
        "rounds": count,
        "scale": scale_name,
    }

    def __init__(
        self,
        learning_rate: Rate = 0.02,
        *,
        momentum: float = 0.95,
        nesterov: bool = True,
        weight_decay: float = 0.0,
        rounds: int = 5,
        scale: str = "shape",
        **common: Any,
    ) -> None:
        super().__init__(
            learning_rate,
            momentum=momentum,
            nesterov=nesterov,
            weight_decay=weight_decay,
            rounds=rounds,
            scale=scale,
            **common,
        )

    def rule(self, w: Node, g: Node, state: State) -> Node:
        """See the class."""
        if w.ndim < 2:
            raise ValueError(f"muon: expected parameters of two axes or more; got {w!r}")
        momentum = state["momentum"]
        b = momentum * state.now("momentum") + (1 - momentum) * g
        b = state.keep("momentum", b)
        u = (1 - momentum) * g + momentum * b if state["nesterov"] else b
        matrix = ops.reshape(u, (w.shape[0], -1))
        scale = SCALES[state["scale"]](*matrix.shape)
        step = ops.reshape(orthogonal(matrix, state["rounds"]), w.shape)
        if state["weight_decay"]:
            w = w * state.scalar(1.0 - state.rate * state["weight_decay"])
        return w - state.scalar(state.rate * scale) * step
