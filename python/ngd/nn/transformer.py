# SPDX-License-Identifier: Apache-2.0
"""Layers of Transformers. Classes and variables have PyTorch's names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final

from .. import ops
from ..graph.node import Node
from .attention import MultiHeadAttention
from .containers import ModuleList
from .linear import Dropout, Linear
from .module import Module
from .normalization import LayerNorm

ACTIVATIONS: Final[dict[str, Callable[[Any], Node]]] = {"relu": ops.relu, "gelu": ops.gelu}


class TransformerLayer(Module):
    """The base class of TransformerEncoderLayer and TransformerDecoderLayer."""

    has_memory: ClassVar[bool] = False
    """True for a decoder layer, which also attends to a memory: the result of an encoder."""

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str = "relu",
        layer_norm_eps: float = 1e-5,
        norm_first: bool = False,
    ) -> None:
        if activation not in ACTIVATIONS:
            raise ValueError(
                f"nn.{type(self).__name__}: activation: expected "
                f'"relu" or "gelu"; got {activation!r}'
            )
        self.activation, self.norm_first = activation, norm_first
        self.self_attn = MultiHeadAttention(d_model, nhead)
        if self.has_memory:
            self.multihead_attn = MultiHeadAttention(d_model, nhead)
        self.linear1 = Linear(d_model, dim_feedforward)
        self.linear2 = Linear(dim_feedforward, d_model)
        self.norm1 = LayerNorm(d_model, layer_norm_eps)
        self.norm2 = LayerNorm(d_model, layer_norm_eps)
        if self.has_memory:
            self.norm3 = LayerNorm(d_model, layer_norm_eps)
        self.dropout, self.dropout1, self.dropout2 = (Dropout(dropout) for _ in range(3))
        if self.has_memory:
            self.dropout3 = Dropout(dropout)

    def _attend(self, x: Node, mask: Any, causal: bool) -> Node:
        """Return the self-attention of x, with dropout applied to the result."""
        output: Node = self.dropout1(self.self_attn(x, mask=mask, causal=causal))
        return output

    def _feed_forward(self, x: Node) -> Node:
        """Return the feed-forward network of x: two linear layers, an activation and dropout."""
        inner = self.dropout(ACTIVATIONS[self.activation](self.linear1(x)))
        output: Node = self.linear2(inner)
        return output

    def describe(self) -> str:
        """Return the main options, for `repr`."""
        return f"norm_first={self.norm_first}, activation={self.activation!r}"


class TransformerEncoderLayer(TransformerLayer):
    """Self-attention and a feed-forward network, each with a residual connection.

    Parameters
    ----------
    d_model : int
        The size of the last axis of input and output.
    nhead : int
        The number of heads, which divides d_model.
    dim_feedforward : int, default 2048
        The width of the feed-forward network.
    dropout : float, default 0.1
        The probability of dropout after attention and feed-forward network, and inside the network.
    activation : str, default "relu"
        "relu" or "gelu".
    layer_norm_eps : float, default 1e-5
        Added to the variance in the normalizations.
    norm_first : bool, default False
        Normalize the inputs of attention and feed-forward network, instead of the residual sums.

    Notes
    -----
    Input and output: [batch, length, d_model]. See Vaswani et al., 2017 (arXiv:1706.03762), section
    3.1.

    The variables have the names, shapes and first values of torch.nn.TransformerEncoderLayer with
    `batch_first=True`. Attention weights have no dropout.

    Examples
    --------
    >>> layer = nn.TransformerEncoderLayer(64, nhead=4, dim_feedforward=128)
    >>> hidden = ngd.placeholder("hidden", (8, 16, 64))
    >>> layer(hidden).shape
    (8, 16, 64)
    """

    def forward(self, x: Node, mask: Any = None, causal: bool = False) -> Node:
        """Apply the layer. Return the new hidden states.

        Parameters
        ----------
        x : Node
            [batch, length, d_model].
        mask : array_like, optional
            Broadcasts to [batch, nhead, length, length]; see MultiHeadAttention.
        causal : bool, default False
            Each position attends to itself and to positions before it.

        Returns
        -------
        Node
            [batch, length, d_model].
        """
        if self.norm_first:
            x = x + self._attend(self.norm1(x), mask, causal)
            x = x + self.dropout2(self._feed_forward(self.norm2(x)))
        else:
            x = self.norm1(x + self._attend(x, mask, causal))
            x = self.norm2(x + self.dropout2(self._feed_forward(x)))
        return x


class TransformerDecoderLayer(TransformerLayer):
    """Self-attention, attention to a memory, and a feed-forward network, with residual connections.

    Parameters
    ----------
    d_model : int
        The size of the last axis of input, memory and output.
    nhead : int
        The number of heads, which divides d_model.
    dim_feedforward : int, default 2048
        The width of the feed-forward network.
    dropout : float, default 0.1
        The probability of dropout after each attention and after the feed-forward network, and
        inside the network.
    activation : str, default "relu"
        "relu" or "gelu".
    layer_norm_eps : float, default 1e-5
        Added to the variance in the normalizations.
    norm_first : bool, default False
        Normalize the inputs of each attention and of the feed-forward network, instead of the
        residual sums.

    Notes
    -----
    Input and output: [batch, length, d_model]. Memory: [batch, memory_length, d_model]. See Vaswani
    et al., 2017 (arXiv:1706.03762), section 3.1.

    The variables have the names, shapes and first values of torch.nn.TransformerDecoderLayer with
    `batch_first=True`. Attention weights have no dropout.

    Examples
    --------
    >>> layer = nn.TransformerDecoderLayer(64, nhead=4, dim_feedforward=128)
    >>> hidden = ngd.placeholder("hidden", (8, 16, 64))
    >>> memory = ngd.placeholder("memory", (8, 20, 64))
    >>> layer(hidden, memory, causal=True).shape
    (8, 16, 64)
    """

    has_memory = True

    def forward(
        self,
        x: Node,
        memory: Node,
        mask: Any = None,
        memory_mask: Any = None,
        causal: bool = False,
    ) -> Node:
        """Apply the layer. Return the new hidden states.

        Parameters
        ----------
        x : Node
            [batch, length, d_model].
        memory : Node
            [batch, memory_length, d_model], the result of an encoder.
        mask : array_like, optional
            Broadcasts to [batch, nhead, length, length]; see MultiHeadAttention.
        memory_mask : array_like, optional
            Broadcasts to [batch, nhead, length, memory_length].
        causal : bool, default False
            Each position attends to itself and to positions of x before it.

        Returns
        -------
        Node
            [batch, length, d_model].
        """
        if self.norm_first:
            x = x + self._attend(self.norm1(x), mask, causal)
            x = x + self._attend_to_memory(self.norm2(x), memory, memory_mask)
            x = x + self.dropout3(self._feed_forward(self.norm3(x)))
        else:
            x = self.norm1(x + self._attend(x, mask, causal))
            x = self.norm2(x + self._attend_to_memory(x, memory, memory_mask))
            x = self.norm3(x + self.dropout3(self._feed_forward(x)))
        return x

    def _attend_to_memory(self, x: Node, memory: Node, mask: Any) -> Node:
        """Return the attention of x to `memory`, with dropout applied to the result.

        `memory` is the result of the encoder.
        """
        output: Node = self.dropout2(self.multihead_attn(x, memory, mask=mask))
        return output


def make_layers(where: str, make_layer: Callable[[], Module], num_layers: int) -> ModuleList:
    """Return `num_layers` layers, each made by a call of `make_layer`.

    Raise TypeError if `make_layer` is not a function, for example if it is a layer.
    """
    if isinstance(make_layer, Module) or not callable(make_layer):
        raise TypeError(
            f"{where}: expected a function that returns a layer; got {make_layer!r}. Write "
            f"{where}(lambda: layer(...), num_layers)."
        )
    return ModuleList(make_layer() for _ in range(num_layers))


class TransformerEncoder(Module):
    """Several encoder layers, applied one after the other.

    Parameters
    ----------
    make_layer : callable
        A function without arguments that returns a layer, such as a TransformerEncoderLayer. It is
        called once per layer.
    num_layers : int
        The number of layers.
    norm : Module, optional
        A normalization that is applied to the result of the last layer.

    Notes
    -----
    Input and output: [batch, length, d_model]. The variables are those of
    torch.nn.TransformerEncoder: `layers.0.linear1.weight` and so on. PyTorch takes a layer and
    copies it. This module takes a function, so that each layer initializes its own variables.

    Examples
    --------
    >>> encoder = nn.TransformerEncoder(lambda: nn.TransformerEncoderLayer(64, 4), num_layers=2)
    >>> hidden = ngd.placeholder("hidden", (8, 16, 64))
    >>> encoder(hidden, causal=True).shape
    (8, 16, 64)
    """

    def __init__(
        self, make_layer: Callable[[], Module], num_layers: int, norm: Module | None = None
    ) -> None:
        self.layers = make_layers("nn.TransformerEncoder", make_layer, num_layers)
        self.norm = norm

    def forward(self, x: Node, mask: Any = None, causal: bool = False) -> Node:
        """Return the hidden states after the last layer.

        Parameters
        ----------
        x : Node
            [batch, length, d_model].
        mask, causal
            See `TransformerEncoderLayer.forward`. All layers get the same mask.

        Returns
        -------
        Node
            [batch, length, d_model].
        """
        for layer in self.layers:
            x = layer(x, mask=mask, causal=causal)
        return x if self.norm is None else self.norm(x)


class TransformerDecoder(Module):
    """Several decoder layers, applied one after the other. All attend to one memory.

    Parameters
    ----------
    make_layer : callable
        A function without arguments that returns a layer, such as a TransformerDecoderLayer. It is
        called once per layer.
    num_layers : int
        The number of layers.
    norm : Module, optional
        A normalization that is applied to the result of the last layer.

    Notes
    -----
    Input and output: [batch, length, d_model]. Memory: [batch, memory_length, d_model]. The
    variables are those of torch.nn.TransformerDecoder: `layers.0.linear1.weight` and so on. PyTorch
    takes a layer and copies it. This module takes a function, so that each layer initializes
    its own variables.

    Examples
    --------
    >>> decoder = nn.TransformerDecoder(lambda: nn.TransformerDecoderLayer(64, 4), num_layers=2)
    >>> hidden = ngd.placeholder("hidden", (8, 16, 64))
    >>> memory = ngd.placeholder("memory", (8, 20, 64))
    >>> decoder(hidden, memory, causal=True).shape
    (8, 16, 64)
    """

    def __init__(
        self, make_layer: Callable[[], Module], num_layers: int, norm: Module | None = None
    ) -> None:
        self.layers = make_layers("nn.TransformerDecoder", make_layer, num_layers)
        self.norm = norm

    def forward(
        self,
        x: Node,
        memory: Node,
        mask: Any = None,
        memory_mask: Any = None,
        causal: bool = False,
    ) -> Node:
        """Return the hidden states after the last layer.

        Parameters
        ----------
        x : Node
            [batch, length, d_model].
        memory : Node
            [batch, memory_length, d_model], the result of an encoder.
        mask, memory_mask, causal
            See `TransformerDecoderLayer.forward`. All layers get the same masks.

        Returns
        -------
        Node
            [batch, length, d_model].
        """
        for layer in self.layers:
            x = layer(x, memory, mask=mask, memory_mask=memory_mask, causal=causal)
        return x if self.norm is None else self.norm(x)
