# SPDX-License-Identifier: Apache-2.0
"""The formulas of papers in NumPy: one generator of weights per optimizer.

The options have the names of the paper. Options that the paper does not name have those of
ngd.optim.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

Array = Any


def lars(
    w: Array, gradient: Any, *, rate: float, m: float, beta: float, eta: float
) -> Iterator[Any]:
    """You, Gitman and Ginsburg, arXiv:1708.03888, algorithm 1."""
    v = np.zeros_like(w)
    while True:
        g = gradient(w)
        weights, size = np.linalg.norm(w), np.linalg.norm(g)
        local = eta * weights / (size + beta * weights) if weights > 0 and size > 0 else 1.0
        v = m * v + rate * local * (g + beta * w)
        w = w - v
        yield w


def lamb(
    w: Array, gradient: Any, *, rate: float, betas: Any, epsilon: float, decay: float
) -> Iterator[Any]:
    """You et al., arXiv:1904.00962, algorithm 2, with phi(z) = z."""
    m, v, t = np.zeros_like(w), np.zeros_like(w), 0
    while True:
        g, t = gradient(w), t + 1
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g**2
        r = (m / (1 - betas[0] ** t)) / (np.sqrt(v / (1 - betas[1] ** t)) + epsilon)
        step = r + decay * w
        weights, size = np.linalg.norm(w), np.linalg.norm(step)
        w = w - rate * (weights / size if weights > 0 and size > 0 else 1.0) * step
        yield w


def lion(w: Array, gradient: Any, *, rate: float, betas: Any, decay: float) -> Iterator[Any]:
    """Chen et al., arXiv:2302.06675, algorithm 2."""
    m = np.zeros_like(w)
    while True:
        g = gradient(w)
        c = betas[0] * m + (1 - betas[0]) * g
        w = w - rate * (np.sign(c) + decay * w)
        m = betas[1] * m + (1 - betas[1]) * g
        yield w


def muon(
    w: Array, gradient: Any, *, rate: float, mu: float, nesterov: bool, decay: float
) -> Iterator[Any]:
    """Jordan et al., https://kellerjordan.github.io/posts/muon/, as in the authors' repository."""
    buffer = np.zeros_like(w)
    while True:
        g = gradient(w)
        buffer = buffer + (1 - mu) * (g - buffer)
        update = g + mu * (buffer - g) if nesterov else buffer
        x = update.reshape(len(w), -1)
        scale = max(1, x.shape[0] / x.shape[1]) ** 0.5
        is_transposed = x.shape[0] > x.shape[1]
        x = x.T if is_transposed else x
        x = x / (np.linalg.norm(x) + 1e-7)
        for _ in range(5):
            a = x @ x.T
            x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
        x = x.T if is_transposed else x
        w = w * (1 - rate * decay) - rate * scale * x.reshape(w.shape)
        yield w
