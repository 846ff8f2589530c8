# SPDX-License-Identifier: Apache-2.0
"""LSTM and GRU of several layers and directions; each is a loop in the graph (ops.scan)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

from .. import Node, ops
from .initializers import uniform
from .linear import Dropout
from .module import Module, Parameter


class Recurrent(Module):
    """What both share. The variables are PyTorch's: weight_ih_l0, ..., bias_hh_l1_reverse.

    x is [places, batch, input_size], or [batch, places, input_size] with batch_first. Between the
    layers stands dropout. All variables begin evenly in [-a, a) of a = 1 / sqrt(hidden_size).
    """

    gates: ClassVar[int]
    states: ClassVar[int]
    layer: ClassVar[Callable[..., Any]]

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
        """The last layer's h of all places, and the last states [layers * directions, batch, H].

        `first` are the states before the first place, zeros by default.
        """
        y: Node = ops.transpose(x, (1, 0, 2)) if self.batch_first else x
        shape = (self.num_layers * len(self.directions), y.shape[1], self.hidden_size)
        begins = first or [ops.zeros(shape, y.dtype)] * self.states
        ends: list[list[Node]] = [[] for _ in begins]
        for number in range(self.num_layers):
            outputs = []
            for turn, direction in enumerate(self.directions):
                place = number * len(self.directions) + turn
                states = [begin[place] for begin in begins]
                variables = [getattr(self, f"{kind}_l{number}{direction}") for kind in self.kinds]
                variables += [None] * (4 - len(variables))
                output, *last = type(self).layer(y, *states, *variables, bool(direction))
                outputs.append(output)
                for end, state in zip(ends, last, strict=True):
                    end.append(state)
            y = outputs[0] if len(outputs) == 1 else ops.concat(outputs, -1)
            if number < self.num_layers - 1:
                y = self.dropout(y)
        y = ops.transpose(y, (1, 0, 2)) if self.batch_first else y
        return y, [ops.stack(end) for end in ends]

    def describe(self) -> str:
        """See Module."""
        return f"{self.input_size}, {self.hidden_size}, num_layers={self.num_layers}"


class LSTM(Recurrent):
    """Hochreiter and Schmidhuber, 1997 (Neural Computation 9): ops.lstm."""

    gates, states, layer = 4, 2, ops.lstm

    def forward(
        self, x: Node, first: tuple[Any, Any] | None = None
    ) -> tuple[Node, tuple[Node, Node]]:
        """Output, and (h, c), from x and the first (h, c)."""
        y, (h, c) = self.run(x, None if first is None else list(first))
        return y, (h, c)


class GRU(Recurrent):
    """Cho et al., 2014 (arXiv:1406.1078), with the reset gate behind the product: ops.gru."""

    gates, states, layer = 3, 1, ops.gru

    def forward(self, x: Node, first: Any = None) -> tuple[Node, Node]:
        """Output, and h, from x and the first h."""
        y, (h,) = self.run(x, None if first is None else [first])
        return y, h
