# SPDX-License-Identifier: Apache-2.0
"""LSTM and GRU of several layers and directions. Each layer is a loop in the graph (ops.scan)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

from .. import ops
from ..graph.node import Node
from .initializers import uniform
from .inputs import expect_sequence
from .linear import Dropout
from .module import Module
from .parameter import Parameter


class Recurrent(Module):
    """The base class of LSTM and GRU.

    The names of the variables are PyTorch's: weight_ih_l0, ..., bias_hh_l1_reverse. The first
    values are uniform in [-a, a), with a = 1 / sqrt(hidden_size). Dropout is applied between the
    layers.
    """

    gates: ClassVar[int]
    """The number of blocks of hidden_size rows in each weight of a layer: 4 for LSTM, 3 for GRU.

    There is one block per gate, and one for the candidate, from which the new state is computed.
    """
    states: ClassVar[int]
    """The number of states that an element of the sequence passes to the next: 1 (h), or 2 (h,
    c)."""
    layer: ClassVar[Callable[..., Any]]
    """The function of ngd.ops that computes one layer in one direction."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
    ) -> None:
        if num_layers < 1 or hidden_size < 1:
            raise ValueError(
                f"nn.{type(self).__name__}: expected at least one layer and a hidden size of at "
                f"least 1; got num_layers={num_layers}, hidden_size={hidden_size}"
            )
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.batch_first, self.dropout = batch_first, Dropout(dropout)
        self.directions = ("", "_reverse") if bidirectional else ("",)
        self.kinds = ("weight_ih", "weight_hh", *(("bias_ih", "bias_hh") if bias else ()))
        rows, bound = self.gates * hidden_size, 1.0 / math.sqrt(hidden_size)
        for number in range(num_layers):
            inputs = hidden_size * len(self.directions) if number else input_size
            shapes = ((rows, inputs), (rows, hidden_size), (rows,), (rows,))
            for direction in self.directions:
                for kind, shape in zip(self.kinds, shapes, strict=False):
                    key = f"{kind}_l{number}{direction}"
                    setattr(self, key, Parameter(shape, uniform(-bound, bound)))

    def run(self, x: Node, first: list[Any] | None) -> tuple[Node, list[Node]]:
        """Return the outputs of the last layer, and the last states of all layers.

        `first` is a list of the initial states, [h] for a GRU or [h, c] for an LSTM. Each has the
        shape [layers * directions, batch, hidden_size]. If `first` is None, they are zeros.
        """
        expect_sequence(self, x, self.input_size, batch_first=self.batch_first)
        y = ops.transpose(x, (1, 0, 2)) if self.batch_first else x
        shape = (self.num_layers * len(self.directions), y.shape[1], self.hidden_size)
        initial_states = first or [ops.zeros(shape, y.dtype)] * self.states
        last_states: list[list[Node]] = [[] for _ in initial_states]
        for number in range(self.num_layers):
            outputs = []
            for direction_index, direction in enumerate(self.directions):
                index = number * len(self.directions) + direction_index
                states = [initial[index] for initial in initial_states]
                variables = [getattr(self, f"{kind}_l{number}{direction}") for kind in self.kinds]
                variables += [None] * (4 - len(variables))
                output, *layer_states = type(self).layer(y, *states, *variables, bool(direction))
                outputs.append(output)
                for states_of_kind, state in zip(last_states, layer_states, strict=True):
                    states_of_kind.append(state)
            y = outputs[0] if len(outputs) == 1 else ops.concat(outputs, -1)
            if number < self.num_layers - 1:
                y = self.dropout(y)
        y = ops.transpose(y, (1, 0, 2)) if self.batch_first else y
        return y, [ops.stack(states_of_kind) for states_of_kind in last_states]

    def describe(self) -> str:
        """Return the main arguments of the constructor, for `repr`."""
        return f"{self.input_size}, {self.hidden_size}, num_layers={self.num_layers}"


class LSTM(Recurrent):
    """A long short-term memory of one or more layers.

    Parameters
    ----------
    input_size : int
        The size of the last axis of the input.
    hidden_size : int
        The size of the hidden state.
    num_layers : int, default 1
        The number of layers. Each layer after the first takes the hidden states of the layer before
        it.
    bias : bool, default True
        Add biases to the gates.
    batch_first : bool, default False
        If True, axis 0 of input and output is the batch and axis 1 is the time. If False, axis 0 is
        the time and axis 1 is the batch.
    dropout : float, default 0.0
        The probability of dropout between layers, in [0, 1).
    bidirectional : bool, default False
        Run each layer in both directions, and concatenate the hidden states.

    Notes
    -----
    With the gates i, f and o and the candidate g, c <- f * c + i * g and h <- o * tanh(c). See
    Hochreiter and Schmidhuber, 1997 (Neural Computation 9).

    Input: [length, batch, input_size], or [batch, length, input_size] with batch_first. Output: the
    same with directions * hidden_size on the last axis. `directions` is 2 if bidirectional, and 1
    otherwise.

    The variables have PyTorch's names and layouts, such as `weight_ih_l0` [4 * hidden_size,
    input_size]. Their first values are uniform in [-a, a), with a = 1 / sqrt(hidden_size).

    Examples
    --------
    >>> lstm = nn.LSTM(16, 32, num_layers=2, batch_first=True)
    >>> sequences = ngd.placeholder("sequences", (8, 20, 16))
    >>> output, (h, c) = lstm(sequences)
    >>> output.shape, h.shape
    ((8, 20, 32), (2, 8, 32))
    """

    gates, states, layer = 4, 2, ops.lstm

    def forward(
        self, x: Node, first: tuple[Any, Any] | None = None
    ) -> tuple[Node, tuple[Node, Node]]:
        """Return the hidden states of the last layer, and the last states of all layers.

        Parameters
        ----------
        x : Node
            [length, batch, input_size], or [batch, length, input_size] with batch_first.
        first : tuple of two Nodes, optional
            The initial h and c, each [layers * directions, batch, hidden_size]. The default is
            zeros.

        Returns
        -------
        output : Node
            [length, batch, directions * hidden_size], or [batch, length, ...] with batch_first.
        last : tuple of two Nodes
            The last h and c, each [layers * directions, batch, hidden_size].
        """
        y, (h, c) = self.run(x, None if first is None else list(first))
        return y, (h, c)


class GRU(Recurrent):
    """Gated recurrent units of one or more layers.

    Parameters
    ----------
    input_size : int
        The size of the last axis of the input.
    hidden_size : int
        The size of the hidden state.
    num_layers : int, default 1
        The number of layers. Each layer after the first takes the hidden states of the layer before
        it.
    bias : bool, default True
        Add biases to the gates.
    batch_first : bool, default False
        If True, axis 0 of input and output is the batch and axis 1 is the time. If False, axis 0 is
        the time and axis 1 is the batch.
    dropout : float, default 0.0
        The probability of dropout between layers, in [0, 1).
    bidirectional : bool, default False
        Run each layer in both directions, and concatenate the hidden states.

    Notes
    -----
    With the gates r and z and the candidate n, h <- (1 - z) * n + z * h. The reset gate r
    multiplies the result of the matmul with weight_hh, as in PyTorch. See Cho et al., 2014
    (arXiv:1406.1078).

    Input: [length, batch, input_size], or [batch, length, input_size] with batch_first. Output: the
    same with directions * hidden_size on the last axis. `directions` is 2 if bidirectional, and 1
    otherwise.

    The variables have PyTorch's names and layouts, such as `weight_ih_l0` [3 * hidden_size,
    input_size]. Their first values are uniform in [-a, a), with a = 1 / sqrt(hidden_size).

    Examples
    --------
    >>> gru = nn.GRU(16, 32, bidirectional=True)
    >>> sequences = ngd.placeholder("sequences", (20, 8, 16))
    >>> output, h = gru(sequences)
    >>> output.shape, h.shape
    ((20, 8, 64), (2, 8, 32))
    """

    gates, states, layer = 3, 1, ops.gru

    def forward(self, x: Node, first: Any = None) -> tuple[Node, Node]:
        """Return the hidden states of the last layer, and the last states of all layers.

        Parameters
        ----------
        x : Node
            [length, batch, input_size], or [batch, length, input_size] with batch_first.
        first : Node, optional
            The initial h, [layers * directions, batch, hidden_size]. The default is zeros.

        Returns
        -------
        output : Node
            [length, batch, directions * hidden_size], or [batch, length, ...] with batch_first.
        last : Node
            The last h, [layers * directions, batch, hidden_size].
        """
        y, (h,) = self.run(x, None if first is None else [first])
        return y, h
