# SPDX-License-Identifier: Apache-2.0
"""Multi-head attention."""

from __future__ import annotations

from typing import Any

from .. import ops
from ..graph.node import Node
from .initializers import xavier_uniform, zeros
from .inputs import expect_embedded
from .linear import Linear, affine
from .module import Module
from .parameter import Parameter


class MultiHeadAttention(Module):
    """Multi-head attention with its projections.

    Parameters
    ----------
    embed_dim : int
        The size of the last axis of query, key, value and output.
    num_heads : int
        The number of heads, which divides embed_dim.
    bias : bool, default True
        Add a bias in each projection.

    Notes
    -----
    softmax(q @ k^T / sqrt(d)) @ v per head, with d = embed_dim / num_heads. See Vaswani et al.,
    2017 (arXiv:1706.03762), section 3.2.2.

    Input: query [batch, length, embed_dim], key and value [batch, key_length, embed_dim].
    Output: [batch, length, embed_dim].

    The variables have the names, shapes and first values of torch.nn.MultiheadAttention. They are
    `in_proj_weight`, `in_proj_bias`, `out_proj.weight` and `out_proj.bias`.

    Two things differ from PyTorch. The batch is the first axis. In a mask of bools, True means that
    the position takes part.

    Examples
    --------
    >>> attention = nn.MultiHeadAttention(64, num_heads=4)
    >>> hidden = ngd.placeholder("hidden", (8, 16, 64))
    >>> attention(hidden, causal=True).shape
    (8, 16, 64)
    """

    in_proj_weight: Any
    in_proj_bias: Any

    def __init__(self, embed_dim: int, num_heads: int, bias: bool = True) -> None:
        if num_heads < 1 or embed_dim % num_heads:
            raise ValueError(
                f"nn.MultiHeadAttention: expected a number of heads that divides {embed_dim}; "
                f"got {num_heads}. Choose a divisor of embed_dim."
            )
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.in_proj_weight = Parameter((3 * embed_dim, embed_dim), xavier_uniform())
        self.in_proj_bias = Parameter(3 * embed_dim, zeros) if bias else None
        self.out_proj = Linear(embed_dim, embed_dim, bias, bias_initializer=zeros)

    def forward(
        self,
        query: Node,
        key: Node | None = None,
        value: Node | None = None,
        mask: Any = None,
        causal: bool = False,
    ) -> Node:
        """Return the attention of query to key and value.

        Parameters
        ----------
        query : Node
            [batch, length, embed_dim].
        key : Node, optional
            [batch, key_length, embed_dim]. The default is the query.
        value : Node, optional
            [batch, key_length, embed_dim]. The default is the key.
        mask : array_like, optional
            Broadcasts to [batch, num_heads, length, key_length]. Bools are True at positions that
            take part. Floats are added to q @ k^T / sqrt(d). Integers raise DTypeError: convert
            them by `mask != 0`.
        causal : bool, default False
            Position i of the query attends to positions up to i only.

        Returns
        -------
        Node
            [batch, length, embed_dim].
        """
        q, k, v = (self._split_heads(x) for x in self._project(query, key, value))
        heads = ops.transpose(ops.attention(q, k, v, mask, causal), (0, 2, 1, 3))
        concatenated = ops.reshape(heads, (*heads.shape[:2], self.embed_dim))
        output: Node = self.out_proj(concatenated)
        return output

    def _project(self, query: Node, key: Node | None, value: Node | None) -> list[Node]:
        """Return the projected query, key and value.

        If all three are the same node, as in self-attention, one matmul computes them.
        """
        weight, bias = self.in_proj_weight, self.in_proj_bias
        for x in (query, key, value):
            if x is not None:
                expect_embedded(self, x, self.embed_dim)
        if key is None and value is None:
            return list(ops.split(affine(query, weight, bias), 3, -1))
        key = query if key is None else key
        operands = (query, key, key if value is None else value)
        weights = ops.split(weight, 3, 0)
        biases = [None] * 3 if bias is None else ops.split(bias, 3, 0)
        projections = zip(operands, weights, biases, strict=True)
        return [affine(x, w, b) for x, w, b in projections]

    def _split_heads(self, x: Node) -> Node:
        """Split the last axis of [batch, length, embed_dim] into heads.

        The result is [batch, num_heads, length, embed_dim / num_heads].
        """
        heads = ops.reshape(x, (*x.shape[:2], self.num_heads, self.embed_dim // self.num_heads))
        return ops.transpose(heads, (0, 2, 1, 3))

    def describe(self) -> str:
        """Return the arguments of the constructor, for `repr`."""
        return f"{self.embed_dim}, {self.num_heads}"
