# SPDX-License-Identifier: Apache-2.0
"""Muon: momentum with orthogonalized matrices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from .. import ops
from ..graph.node import Node
from .clipping import norm
from .loss_scale import LossScale
from .optimizer import Optimizer, ParameterGroup, Rate, State, decay_weight
from .options import Check, at_least, count, flag

COEFFICIENTS: Final = (3.4445, -4.7750, 2.0315)
"""The coefficients a, b and c of the iteration in `orthogonalize` (Jordan et al., 2024)."""
ADJUSTMENTS: Final = {
    "original": lambda rows, columns: max(1.0, rows / columns) ** 0.5,
    "match_rms_adamw": lambda rows, columns: 0.2 * max(rows, columns) ** 0.5,
}
"""A dict from each value of Muon's option adjust_lr_fn to a function of the shape of a matrix.

The function gets the numbers of rows and columns, and returns the factor of the learning rate. The
factor "original" is by Jordan et al., 2024, and "match_rms_adamw" is by Liu et al., 2025.
"""


def adjustment_name(where: str, name: str, value: Any) -> str:
    """Return the option adjust_lr_fn; raise ValueError if it is not a key of ADJUSTMENTS."""
    if value not in ADJUSTMENTS:
        known = " or ".join(f'"{key}"' for key in ADJUSTMENTS)
        raise ValueError(f"{where}: {name}: expected {known}; got {value!r}")
    return str(value)


def orthogonalize(x: Node, num_iterations: int) -> Node:
    """Return an approximation of U V^T for a matrix U S V^T, by Newton-Schulz iterations.

    The matrix is first divided by its norm. An iteration is the polynomial of degree five
    x <- a x + b (x x^T) x + c (x x^T)^2 x, which changes only the singular values of x. The
    coefficients bring all singular values close to 1, within some tenths, in about five iterations
    (Jordan et al., 2024, https://kellerjordan.github.io/posts/muon/). A matrix with more rows than
    columns is transposed first, so that x x^T is the smaller square matrix.
    """
    a, b, c = COEFFICIENTS
    is_tall = x.shape[0] > x.shape[1]
    x = x.T if is_tall else x
    x = x / (norm(x) + 1e-7)
    for _ in range(num_iterations):
        square = x @ x.T
        x = a * x + (b * square + c * (square @ square)) @ x
    return x.T if is_tall else x


class Muon(Optimizer):
    """The optimizer Muon: momentum with orthogonalized matrices, with PyTorch's options.

    Muon is for matrices. A tensor of more axes, such as the weight of a convolution, is treated as
    a matrix of shape[0] rows. Use another optimizer for biases, embeddings and the last layer:
    `updates=[muon.minimize(loss, matrices), adamw.minimize(loss, others)]`.

    Parameters
    ----------
    lr : float, Node or schedule, default 0.02
        The learning rate.
    momentum : float, default 0.95
        The decay of the momentum buffer.
    nesterov : bool, default True
        Use Nesterov's momentum.
    weight_decay : float, default 0
        The factor of the weight decay: lr * weight_decay * w is subtracted from w in each step.
    ns_steps : int, default 5
        The number of Newton-Schulz iterations.
    adjust_lr_fn : str, default "original"
        The factor of the learning rate of a matrix. "original" is sqrt(max(1, rows / columns)).
        "match_rms_adamw" is 0.2 sqrt(max(rows, columns)), for which learning rates of AdamW are
        suitable (Liu et al., 2025, arXiv:2502.16982).
    groups, clip_norm, loss_scale, name
        See Optimizer.

    Notes
    -----
    b <- momentum * b + (1 - momentum) * g;
    u = (1 - momentum) * g + momentum * b with nesterov, and u = b without it;
    w <- (1 - lr * weight_decay) * w - lr * factor * orthogonalize(u).
    Jordan et al., 2024 (https://kellerjordan.github.io/posts/muon/).

    Examples
    --------
    >>> optimizer = ngd.optim.Muon(0.02, momentum=0.95)
    >>> matrices = {key: v for key, v in model.parameters().items() if len(v.shape) == 2}
    >>> updates = optimizer.minimize(loss, matrices)
    """

    checks: ClassVar[Mapping[str, Check]] = {
        "momentum": at_least(0),
        "nesterov": flag,
        "weight_decay": at_least(0),
        "ns_steps": count,
        "adjust_lr_fn": adjustment_name,
    }

    def __init__(
        self,
        lr: Rate = 0.02,
        *,
        momentum: float = 0.95,
        nesterov: bool = True,
        weight_decay: float = 0.0,
        ns_steps: int = 5,
        adjust_lr_fn: str = "original",
        groups: Sequence[ParameterGroup] = (),
        clip_norm: float | None = None,
        loss_scale: LossScale | None = None,
        name: str | None = None,
    ) -> None:
        options = {
            "momentum": momentum,
            "nesterov": nesterov,
            "weight_decay": weight_decay,
            "ns_steps": ns_steps,
            "adjust_lr_fn": adjust_lr_fn,
        }
        super().__init__(
            lr, groups=groups, clip_norm=clip_norm, loss_scale=loss_scale, name=name, **options
        )

    def rule(self, w: Node, g: Node, state: State) -> Node:
        """Return `w` after one Muon update with the gradient `g`."""
        if w.ndim < 2:
            raise ValueError(f"muon: expected parameters of two axes or more; got {w!r}")
        momentum = state["momentum"]
        b = momentum * state.now("momentum") + (1 - momentum) * g
        b = state.keep("momentum", b)
        u = (1 - momentum) * g + momentum * b if state["nesterov"] else b
        matrix = ops.reshape(u, (w.shape[0], -1))
        factor = ADJUSTMENTS[state["adjust_lr_fn"]](*matrix.shape)
        step = ops.reshape(orthogonalize(matrix, state["ns_steps"]), w.shape)
        return decay_weight(w, state) - state.scalar(state.lr * factor) * step
