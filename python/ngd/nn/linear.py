# SPDX-License-Identifier: Apache-2.0
"""Linear layers, embeddings and dropout."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, ClassVar

import numpy as np

from .. import ops
from ..graph.node import Node
from .initializers import Initializer, normal, torch_default
from .inputs import expect_axes, expect_last_axis
from .modes import current
from .module import Module
from .parameter import Parameter


def affine(x: Node, weight: Node, bias: Node | None) -> Node:
    """Return x @ weight.T + bias, for x [..., inputs], weight [outputs, inputs] and bias [outputs].

    The function reshapes x to a matrix [n, inputs]. So one matmul computes all n rows of the
    result, and the kernel of this matmul adds the bias.
    """
    rows = ops.reshape(x, (math.prod(x.shape[:-1]), x.shape[-1]))
    y = ops.matmul(rows, ops.transpose(weight))
    if bias is not None:
        y = y + bias
    return ops.reshape(y, (*x.shape[:-1], weight.shape[0]))


class Linear(Module):
    """A fully connected layer, x @ weight.T + bias.

    Parameters
    ----------
    in_features : int
        The size of the last axis of the input.
    out_features : int
        The size of the last axis of the output.
    bias : bool, default True
        Add a bias.
    weight_initializer, bias_initializer : function, optional
        See `nn.initializers`. The default is PyTorch's initializer for both (`torch_default`).

    Notes
    -----
    Input: [..., in_features], floats. Output: [..., out_features].

    Variables: `weight` [out_features, in_features] and `bias` [out_features].

    Examples
    --------
    >>> layer = nn.Linear(3, 2)
    >>> features = ngd.placeholder("features", (4, 3))
    >>> layer(features).shape
    (4, 2)
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
        """Return x @ weight.T + bias.

        Parameters
        ----------
        x : Node
            Floats [..., in_features].

        Returns
        -------
        Node
            [..., out_features].
        """
        expect_last_axis(self, x, self.in_features, "in_features")
        return affine(x, self.weight, self.bias)

    def describe(self) -> str:
        """Return the arguments of the constructor, for `repr`."""
        has_bias = self._has_parameter("bias")  # to read self.bias would make the variable
        return f"{self.in_features}, {self.out_features}, bias={has_bias}"


class Embedding(Module):
    """A table of vectors that are looked up by integers.

    Parameters
    ----------
    num_embeddings : int
        The number of rows, such as the vocabulary size.
    embedding_dim : int
        The length of a row.
    padding_idx : int, optional
        The index of a row that starts as zeros and gets no gradient. A negative number counts from
        the end.
    initializer : function, optional
        See `nn.initializers`. The default is a normal distribution with standard deviation 1.

    Raises
    ------
    OutOfRangeError
        A step runs with an index outside of [0, num_embeddings). The error is also an IndexError
        and a ValueError.

    Notes
    -----
    Input: integers [...]. Output: floats [..., embedding_dim].

    Variable: `weight` [num_embeddings, embedding_dim].

    Examples
    --------
    >>> table = nn.Embedding(1000, 16)
    >>> tokens = ngd.placeholder("tokens", (8, 32), ngd.int64)
    >>> table(tokens).shape
    (8, 32, 16)
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
        """Return an initializer like `initializer`, except that row padding_idx starts as zeros.

        If padding_idx is None, return `initializer` itself.
        """
        if self.padding_idx is None:
            return initializer
        return partial(_without_row, initializer, self.padding_idx)

    def forward(self, numbers: Node) -> Node:
        """Return the row of the table for each index in `numbers`.

        Parameters
        ----------
        numbers : Node
            Integers [...], each in [0, num_embeddings).

        Returns
        -------
        Node
            [..., embedding_dim].
        """
        return ops.embedding(numbers, self.weight, self.padding_idx)

    def describe(self) -> str:
        """Return the arguments of the constructor, for `repr`."""
        return f"{self.shape[0]}, {self.shape[1]}"


def _without_row(
    initializer: Initializer, row: int, random: np.random.Generator, shape: tuple[int, ...]
) -> Any:
    """Return the values of `initializer` for a table, with zeros in the row `row`."""
    rows = np.arange(shape[0])[:, None]
    return initializer(random, shape) * (rows != row)


class Dropout(Module):
    """A layer that sets random elements to zero in training.

    In training each element becomes 0 with probability p, and x / (1 - p) otherwise. In evaluation
    the output is the input.

    Parameters
    ----------
    p : float, default 0.5
        The probability that an element is set to zero, in [0, 1).

    Notes
    -----
    Input: floats of any shape. Output: the shape and dtype of the input.

    The random numbers come from the block `nn.training(nn.Random(seed))` in which the graph is
    built. Srivastava et al., 2014 (JMLR 15).

    Examples
    --------
    >>> layer = nn.Dropout(0.1)
    >>> features = ngd.placeholder("features", (4, 3))
    >>> with nn.training(nn.Random(seed=1)):
    ...     dropped = layer(features)
    >>> dropped.shape
    (4, 3)
    """

    def __init__(self, p: float = 0.5) -> None:
        if not 0 <= p < 1:
            raise ValueError(f"nn.Dropout: expected a probability in [0, 1); got {p}")
        self.p = p

    def forward(self, x: Node) -> Node:
        """Return x with random zeros in training, and x itself in evaluation.

        Parameters
        ----------
        x : Node
            Floats of any shape.

        Returns
        -------
        Node
            An array with the shape and dtype of x.
        """
        state = current()
        if state is None or not self.p:
            return x
        return ops.dropout(x, self.p, **state.draw("nn.Dropout"))

    def describe(self) -> str:
        """Return the probability, for `repr`."""
        return str(self.p)


class ChannelDropout(Dropout):
    """The base class of dropout of whole channels of [batch, channels, ...]."""

    axes: ClassVar[int]
    """The number of spatial axes of the input: 1, 2 or 3."""

    def forward(self, x: Node) -> Node:
        """Return x with random channels of zeros in training, and x itself in evaluation.

        Parameters
        ----------
        x : Node
            Floats [batch, channels, spatial...].

        Returns
        -------
        Node
            An array with the shape and dtype of x.
        """
        name = f"nn.{type(self).__name__}"
        expect_axes(self, x, self.axes)
        state = current()
        if state is None or not self.p:
            return x
        channels = ops.ones((*x.shape[:2], *(1,) * self.axes), x.dtype)
        return x * ops.dropout(channels, self.p, **state.draw(name))


class Dropout1d(ChannelDropout):
    """A layer that sets random channels of sequences to zero in training.

    In training each channel of a sample becomes zeros with probability p, and x / (1 - p)
    otherwise. In evaluation the output is the input.

    Input: floats [batch, channels, length]. Output: the shape and dtype of the input.

    Parameters
    ----------
    p : float, default 0.5
        The probability that a channel is set to zero, in [0, 1).

    Notes
    -----
    Tompson et al., 2014 (arXiv:1411.4280), section 3.2. The random numbers are as for `Dropout`.

    Examples
    --------
    >>> maps = ngd.placeholder("maps", (4, 3, 8))
    >>> nn.Dropout1d(0.1)(maps).shape
    (4, 3, 8)
    """

    axes = 1


class Dropout2d(ChannelDropout):
    """A layer that sets random channels of images to zero in training. See `Dropout1d`.

    Input: floats [batch, channels, height, width]. Output: the shape and dtype of the input.

    Parameters
    ----------
    p : float, default 0.5
        The probability that a channel is set to zero, in [0, 1).

    Examples
    --------
    >>> maps = ngd.placeholder("maps", (4, 3, 8, 8))
    >>> nn.Dropout2d(0.1)(maps).shape
    (4, 3, 8, 8)
    """

    axes = 2


class Dropout3d(ChannelDropout):
    """A layer that sets random channels of volumes to zero in training. See `Dropout1d`.

    Input: floats [batch, channels, depth, height, width]. Output: the shape and dtype of the input.

    Parameters
    ----------
    p : float, default 0.5
        The probability that a channel is set to zero, in [0, 1).

    Examples
    --------
    >>> maps = ngd.placeholder("maps", (4, 3, 2, 8, 8))
    >>> nn.Dropout3d(0.1)(maps).shape
    (4, 3, 2, 8, 8)
    """

    axes = 3


class EmbeddingBag(Module):
    """The mean or the sum of the rows of a table that each bag of indices selects.

    Input: integers [bags, n] if each bag has n indices. For bags of different lengths, the input is
    one list of the indices of all bags, integers [n]. The second argument, `offsets` [bags], then
    has the position in this list at which each bag starts. Output: [bags, embedding_dim], in the
    dtype of the table.

    Parameters
    ----------
    num_embeddings : int
        The number of rows, such as the vocabulary size.
    embedding_dim : int
        The length of a row.
    mode : {"mean", "sum"}, default "mean"
        The reduction of the rows of a bag. An empty bag gives zeros.
    padding_idx : int, optional
        The index of a row that is left out of the mean or sum of a bag. The row starts as zeros and
        gets no gradient. A negative number counts from the end.
    initializer : function, optional
        See `nn.initializers`. The default is a normal distribution with standard deviation 1.

    Notes
    -----
    See `ops.embedding_bag`. Variable: `weight` [num_embeddings, embedding_dim].

    Examples
    --------
    >>> tokens = ngd.placeholder("tokens", (4, 7), "int64")
    >>> nn.EmbeddingBag(100, 16)(tokens).shape
    (4, 16)
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
        """Return the mean or the sum of the rows of each bag.

        Parameters
        ----------
        numbers : Node
            The indices, each in [0, num_embeddings). Integers [bags, n] if each bag has n indices,
            or, with `offsets`, integers [n]: the indices of all bags in one list.
        offsets : array_like, optional
            [bags]: the position in `numbers` at which each bag starts, in ascending order from 0.
        per_sample_weights : array_like, optional
            A factor of each row, of the shape of `numbers`, only with mode "sum".

        Returns
        -------
        Node
            [bags, embedding_dim].
        """
        return ops.embedding_bag(
            numbers, self.weight, offsets, self.mode, per_sample_weights, self.padding_idx
        )

    def describe(self) -> str:
        """Return the main arguments of the constructor, for `repr`."""
        return f"{self.shape[0]}, {self.shape[1]}, mode={self.mode!r}"
