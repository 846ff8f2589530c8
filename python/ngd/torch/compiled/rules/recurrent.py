# SPDX-License-Identifier: Apache-2.0
"""Rules that translate recurrent layers of PyTorch into ngd nodes.

PyTorch passes the parameters of all layers as one list.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from .... import ops
from ....graph.node import Node
from .registry import Call, NodeOrNodes, Sample, T, as_node, rule

aten: Final = torch.ops.aten

FEATURES, HIDDEN = 3, 2


def _parameters(gates: int, layers: int, directions: int) -> list[T]:
    """Return random weights and biases of recurrent layers for a test of the rule.

    Each layer and direction has four tensors, in PyTorch's order.
    """
    rows = gates * HIDDEN
    sizes = [FEATURES] + [HIDDEN * directions] * (layers - 1)
    return [
        each
        for size in sizes
        for _ in range(directions)
        for each in (T((rows, size)), T((rows, HIDDEN)), T((rows,)), T((rows,)))
    ]


def _sample(gates: int, states: Any, layers: int, directions: int, batch_first: bool) -> Sample:
    parameters, is_two_way = _parameters(gates, layers, directions), directions == 2
    return Sample(
        T((4, 5, FEATURES)), states, parameters, True, layers, 0.0, True, is_two_way, batch_first
    )


def _run_layers(
    x: Node,
    states: Sequence[Node],
    parameters: Sequence[Node],
    has_biases: bool,
    num_layers: int,
    is_bidirectional: bool,
    run: Callable[..., tuple[Node, ...]],
    between_layers: Callable[[Node], Node],
) -> tuple[Node, ...]:
    """Run all layers, each in both directions if `is_bidirectional`.

    Return the outputs of the last layer, and the last states of all layers and directions.
    """
    per_layer, directions = (4 if has_biases else 2), (2 if is_bidirectional else 1)
    finals: list[tuple[Node, ...]] = []
    for layer in range(num_layers):
        outputs = []
        for direction in range(directions):
            index = layer * directions + direction
            weights = parameters[per_layer * index : per_layer * (index + 1)]
            initial = (state[index] for state in states)
            y, *last = run(x, *initial, *weights, reverse=direction == 1)
            outputs.append(y)
            finals.append(tuple(last))
        x = outputs[0] if directions == 1 else ops.concat(outputs, -1)
        if layer < num_layers - 1:
            x = between_layers(x)
    return x, *(ops.stack(list(each)) for each in zip(*finals, strict=True))


def _run(
    call: Call,
    run: Callable[..., tuple[Node, ...]],
    x: Any,
    states: Sequence[Any],
    parameters: Sequence[Any],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    is_training: bool,
    is_bidirectional: bool,
    batch_first: bool,
) -> NodeOrNodes:
    def between_layers(y: Node) -> Node:
        if dropout == 0 or not is_training:
            return y
        return ops.dropout(y, dropout, **call.draws.next())

    x = ops.swapaxes(as_node(x), 0, 1) if batch_first else as_node(x)
    y, *finals = _run_layers(
        x,
        [as_node(state) for state in states],
        [as_node(each) for each in parameters],
        has_biases,
        num_layers,
        is_bidirectional,
        run,
        between_layers,
    )
    return (ops.swapaxes(y, 0, 1) if batch_first else y), *finals


STATE: Final = T((2, 5, HIDDEN))
STATE_OF_FIRST: Final = T((1, 4, HIDDEN))


@rule(
    aten.lstm.input,
    samples=[
        _sample(4, [STATE, STATE], 2, 1, False),
        _sample(4, [STATE, STATE], 1, 2, False),
        _sample(4, [STATE_OF_FIRST, STATE_OF_FIRST], 1, 1, True),
    ],
    is_random=True,
)
def lstm(call: Call, x: Any, states: Sequence[Any], *how: Any) -> NodeOrNodes:
    return _run(call, ops.lstm, x, states, *how)


@rule(
    aten.gru.input,
    samples=[_sample(3, STATE, 2, 1, False), _sample(3, STATE_OF_FIRST, 1, 1, True)],
    is_random=True,
)
def gru(call: Call, x: Any, state: Any, *how: Any) -> NodeOrNodes:
    return _run(call, ops.gru, x, [state], *how)


@rule(
    aten.rnn_tanh.input,
    aten.rnn_relu.input,
    samples=[_sample(1, STATE, 2, 1, False), _sample(1, STATE, 1, 2, False)],
    is_random=True,
)
def rnn(call: Call, x: Any, state: Any, *how: Any) -> NodeOrNodes:
    activation = ops.tanh if "tanh" in call.name else ops.relu

    def run(
        xs: Node, h: Node, weight_ih: Node, weight_hh: Node, *biases: Node, reverse: bool
    ) -> tuple[Node, Node]:
        inputs = xs @ ops.swapaxes(weight_ih, 0, 1)
        for bias in biases:
            inputs = inputs + bias

        def cell(hidden: Node, part: Node) -> tuple[Node, Node]:
            hidden = activation(part + hidden @ ops.swapaxes(weight_hh, 0, 1))
            return hidden, hidden

        last, ys = ops.scan(cell, h, inputs, reverse=reverse)
        return ys, last

    return _run(call, run, x, [state], *how)
