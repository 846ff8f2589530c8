# SPDX-License-Identifier: Apache-2.0
"""Matrices, tables, and dropout."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, ClassVar

import numpy as np

from .. import Node, ops
from .initializers import Initializer, normal, torch_default
from .modes import current
from .module import Module, Parameter


def affine(x: Node, weight: Node, bias: Node | None) -> Node:
    """X @ weight.T + bias, of x [..., inputs], weight [outputs, inputs] and bias [outputs].

    The bias is added to the one large product, whose kernel can do so.
    """
    rows = ops.reshape(x, (math.prod(x.shape[:-1]), x.shape[-1]))
    y: Node = ops.matmul(rows, ops.transpose(weight))
    if bias is not None:
        y = y + bias
    made: Node = ops.reshape(y, (*x.shape[:-1], weight.shape[0]))
    return made


class Linear(Module):
    """x @ weight.T + bias, of x [..., in_features] and weight [out_features, in_features]; floats.

    Weight and bias begin as PyTorch's do (torch_default), if no initializer is given.
    """

    weight: Any
    bias: Any

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        weight_initializer: Initializer | None = None,
        bias_initializer: Initializer | None = None,
    ) -> None:
        self.in_features, self.out_features = in_features, out_features
        default = torch_default(in_features)
        self.weight = Parameter((out_features, in_features), weight_initializer or default)
        self.bias = Parameter(out_features, bias_initializer or default) if bias else None

    def forward(self, x: Node) -> Node:
        """[..., in_features] to [..., out_features]."""
        return affine(x, self.weight, self.bias)

    def describe(self) -> str:
        """See Module."""
        has_bias = "bias" in self._parameters  # to read it would make the variable
        return f"{self.in_features}, {self.out_features}, bias={has_bias}"


class Embedding(Module):
    """Rows of a table by their numbers: integers [...] to floats [..., embedding_dim].

    The row padding_idx begins as zeros, and has no gradient. A number outside of
    [0, num_embeddings) is an OutOfRangeError, an IndexError and a ValueError, when the step runs.
    """

    weight: Any

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        initializer: Initializer | None = None,
    ) -> None:
        self.shape = num_embeddings, embedding_dim
        if padding_idx is not None:
            if not -num_embeddings <= padding_idx < num_embeddings:
                raise ValueError(
                    f"nn.Embedding: expected padding_idx among {num_embeddings} rows; "
                    f"got {padding_idx}"
                )
            padding_idx %= num_embeddings
        self.padding_idx = padding_idx
        self.weight = Parameter(self.shape, self._padded(initializer or normal()))

    def _padded(self, initializer: Initializer) -> Initializer:
        """Draw as this does, but for the row of zeros."""
        if self.padding_idx is None:
            return initializer
        return partial(_without_row, initializer, self.padding_idx)

    def forward(self, numbers: Node) -> Node:
        """[...] to [..., embedding_dim]."""
        found: Node = ops.embedding(numbers, self.weight, self.padding_idx)
        return found

    def describe(self) -> str:
        """See Module."""
        return f"{self.shape[0]}, {self.shape[1]}"


def _without_row(
    initializer: Initializer, row: int, random: np.random.Generator, shape: tuple[int, ...]
) -> Any:
    """Draw as an initializer does, with zeros in one row."""
    rows = np.arange(shape[0])[:, None]
    return initializer(random, shape) * (rows != row)


class Dropout(Module):
    """In training each element is 0 with probability p, else divided by 1 - p.

    Srivastava et al., 2014 (JMLR 15). The draws are those of nn.training(nn.Random(seed)).
    """

    def __init__(self, p: float = 0.5) -> None:
        if not 0 <= p < 1:
            raise ValueError(f"nn.Dropout: expected a probability in [0, 1); got {p}")
        self.p = p

    def forward(self, x: Node) -> Node:
        """Of the shape and dtype of x, a float."""
        state = current()
        if state is None or not self.p:
            return x
        dropped: Node = ops.dropout(x, self.p, **state.draw("nn.Dropout"))
        return dropped

    def describe(self) -> str:
        """See Module."""
        return str(self.p)


class ChannelDropout(Dropout):
    """Dropout of whole channels of [N, C, ...]."""

    axes: ClassVar[int]
    """The number of spatial axes."""

    def forward(self, x: Node) -> Node:
        """Of the shape and dtype of x, a float."""
        name = f"nn.{type(self).__name__}"
        if x.ndim != self.axes + 2:
            raise ValueError(f"{name}: expected [N, C, {self.axes} axes]; got {x!r}")
        state = current()
        if state is None or not self.p:
            return x
        channels = ops.ones((*x.shape[:2], *(1,) * self.axes), x.dtype)
        y: Node = x * ops.dropout(channels, self.p, **state.draw(name))
        return y


class Dropout1d(ChannelDropout):
    """In training each channel of [N, C, L] is 0 with probability p, else divided by 1 - p.

    Tompson et al., 2014 (arXiv:1411.4280), section 3.2.

    Parameters
    ----------
    p : float
        The probability, in [0, 1).
    """

    axes = 1


class Dropout2d(ChannelDropout):
    """Dropout1d of [N, C, H, W]."""

    axes = 2


class Dropout3d(ChannelDropout):
    """Dropout1d of [N, C, D, H, W]."""

    axes = 3


class EmbeddingBag(Module):
    """Means or sums of rows of a table, bag by bag: ops.embedding_bag.

    Parameters
    ----------
    num_embeddings, embedding_dim : int
        The shape of the table.
    mode : str
        "mean" or "sum".
    padding_idx : int, optional
        A row that counts for nothing. It begins as zeros, and has no gradient.
    initializer : Initializer, optional
        By default a normal distribution, as nn.Embedding has.
    """

    weight: Any

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        mode: str = "mean",
        padding_idx: int | None = None,
        *,
        initializer: Initializer | None = None,
    ) -> None:
        if mode not in ("mean", "sum"):
            raise ValueError(f'nn.EmbeddingBag: expected mode "mean" or "sum"; got {mode!r}')
        table = Embedding(num_embeddings, embedding_dim, padding_idx, initializer=initializer)
        self.shape, self.mode, self.padding_idx = table.shape, mode, table.padding_idx
        self.weight = Parameter(self.shape, table._padded(initializer or normal()))

    def forward(self, numbers: Node, offsets: Any = None, per_sample_weights: Any = None) -> Node:
        """Map [bags, n], or [n] and the first position of each bag, to [bags, embedding_dim]."""
        found: Node = ops.embedding_bag(
            numbers, self.weight, offsets, self.mode, per_sample_weights, self.padding_idx
        )
        return found

    def describe(self) -> str:
        """See Module."""
        return f"{self.shape[0]}, {self.shape[1]}, mode={self.mode!r}"
