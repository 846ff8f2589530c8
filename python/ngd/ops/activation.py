# SPDX-License-Identifier: Apache-2.0
"""Elementwise activations of neural networks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from ..dtype import FLOATS
from ..ir import Array, Node, register
from .compare import where
from .elementwise import Unary


class Relu(Unary):
    """max(x, 0); NaN propagates. Its gradient at 0 is 0."""

    name = post = "relu"
    gradient_rounds = False
    compute = staticmethod(lambda x: np.maximum(x, x.dtype.type(0)))
    kink_at_zero = True
    smooth = False

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (where(node > 0, dy, 0),)  # of the result: the operand need not be kept


relu: Final[Relu] = register(Relu())


def _sigmoid(x: Array) -> Array:
    small = np.exp(-np.abs(x))  # never overflows
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small))


class Sigmoid(Unary):
    """1 / (1 + exp(-x))."""

    name = "sigmoid"
    dtypes = FLOATS
    compute = staticmethod(_sigmoid)

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy * node * (1 - node),)


sigmoid: Final[Sigmoid] = register(Sigmoid())
