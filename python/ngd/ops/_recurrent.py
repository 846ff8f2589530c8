# SPDX-License-Identifier: Apache-2.0
"""LSTM and GRU: a cell each, and a layer that applies it along the first axis of a sequence.

Weights and the order of the gates are PyTorch's: [gates * H, I] of the input, [gates * H, H] of the
state, and a bias [gates * H] each. A layer is a scan: its cell is once in the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..errors import DTypeError, ShapeError
from ..graph.node import Node
from ..graph.registry import public
from ._activation import sigmoid
from ._concatenation import split
from ._elementwise import align
from ._matmul import matmul
from ._operands import Value, got
from ._shape import transpose
from ._transcendental import tanh
from .control.loops import scan

__all__ = ["gru", "gru_cell", "lstm", "lstm_cell"]

States = tuple[Node, ...]
Step = Callable[[Node, States, Node, Node | None], States]
"""The next states of: the input's part of the gates, states, weights of the state, their bias."""


def _operands(
    where: str, gates: int, sequence: bool, given: Sequence[Value | None]
) -> tuple[Node, States, Node, Node, Node | None, Node | None]:
    """Make nodes of x, states, two weights and two biases, and check their shapes."""
    if given[0] is None or any(weight is None for weight in given[-4:-2]):
        raise DTypeError(
            f"{where}: expected arrays for x and both weights; got None. Give all three."
        )
    present = iter(align(where, *(value for value in given if value is not None)))
    nodes = [None if value is None else next(present) for value in given]
    x, *states, of_input, of_state, input_bias, state_bias = nodes
    assert x is not None and of_input is not None and of_state is not None  # noqa: PT018
    size = of_state.shape[-1] if of_state.ndim else 0
    batch, inputs = x.shape[int(sequence) : -1], x.shape[-1:]
    wanted = [
        (of_input, (gates * size, *inputs)),
        (of_state, (gates * size, size)),
        *((state, (*batch, size)) for state in states),
        *((bias, (gates * size,)) for bias in (input_bias, state_bias)),
    ]
    fits = all(node is None or node.shape == shape for node, shape in wanted)
    if not fits or x.ndim < 1 + sequence:
        data = "[places, ..., I]" if sequence else "[..., I]"
        types = got(*(node.type for node in nodes if node is not None))
        raise ShapeError(
            f"{where}: expected x {data}, states [..., H], weights [{gates} H, I] and [{gates} H, "
            f"H], biases [{gates} H]; got {types}. Transpose or reshape them."
        )
    return x, tuple(s for s in states if s is not None), of_input, of_state, input_bias, state_bias


def _gates(x: Node, weight: Node, bias: Node | None) -> Node:
    product = matmul(x, transpose(weight))
    return product if bias is None else product + bias


def _lstm(from_input: Node, states: States, weight: Node, bias: Node | None) -> States:
    # Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000.
    h, c = states
    i, f, g, o = split(from_input + _gates(h, weight, bias), 4, axis=-1)
    c = sigmoid(f) * c + sigmoid(i) * tanh(g)
    return sigmoid(o) * tanh(c), c


def _gru(from_input: Node, states: States, weight: Node, bias: Node | None) -> States:
    # Cho et al. 2014 (arXiv:1406.1078), with the reset gate behind the product, as cuDNN has it.
    (h,) = states
    input_r, input_z, input_n = split(from_input, 3, axis=-1)
    state_r, state_z, state_n = split(_gates(h, weight, bias), 3, axis=-1)
    z = sigmoid(input_z + state_z)
    n = tanh(input_n + sigmoid(input_r + state_r) * state_n)
    return (n + z * (h - n),)


def _cell(where: str, gates: int, step: Step, *given: Value | None) -> States:
    x, states, of_input, of_state, input_bias, state_bias = _operands(where, gates, False, given)
    return step(_gates(x, of_input, input_bias), states, of_state, state_bias)


def _layer(where: str, gates: int, step: Step, reverse: bool, *given: Value | None) -> States:
    """All outputs, then the last states. The input's part of all gates is one product."""
    x, states, of_input, of_state, input_bias, state_bias = _operands(where, gates, True, given)

    def body(before: States, from_input: Node) -> tuple[States, Node]:
        after = step(from_input, before, of_state, state_bias)
        return after, after[0]

    last, outputs = scan(body, states, _gates(x, of_input, input_bias), reverse=reverse)
    return outputs, *last


@public
def lstm_cell(
    x: Value,
    h: Value,
    c: Value,
    weight_ih: Value,
    weight_hh: Value,
    bias_ih: Value | None = None,
    bias_hh: Value | None = None,
) -> tuple[Node, Node]:
    """One step of an LSTM, as torch.nn.LSTMCell: the next h and c of x [..., I], h, c [..., H].

    i, f, g, o are the four quarters of x @ weight_ih.T + bias_ih + h @ weight_hh.T + bias_hh. Then
    c = sigmoid(f) * c + sigmoid(i) * tanh(g), and h = sigmoid(o) * tanh(c).
    Hochreiter and Schmidhuber 1997 (Neural Computation 9), with the forget gate of Gers et al. 2000
    (Neural Computation 12).
    """
    h, c = _cell("lstm_cell", 4, _lstm, x, h, c, weight_ih, weight_hh, bias_ih, bias_hh)
    return h, c


@public
def gru_cell(
    x: Value,
    h: Value,
    weight_ih: Value,
    weight_hh: Value,
    bias_ih: Value | None = None,
    bias_hh: Value | None = None,
) -> Node:
    """One step of a GRU, as torch.nn.GRUCell: the next h of x [..., I] and h [..., H].

    r, z, n are the thirds of x @ weight_ih.T + bias_ih, and R, Z, N those of
    h @ weight_hh.T + bias_hh. With u = sigmoid(z + Z) and m = tanh(n + sigmoid(r + R) * N), h
    becomes (1 - u) * m + u * h.
    Cho et al. 2014 (arXiv:1406.1078), with the reset gate behind the product.
    """
    (h,) = _cell("gru_cell", 3, _gru, x, h, weight_ih, weight_hh, bias_ih, bias_hh)
    return h


@public
def lstm(
    x: Value,
    h: Value,
    c: Value,
    weight_ih: Value,
    weight_hh: Value,
    bias_ih: Value | None = None,
    bias_hh: Value | None = None,
    reverse: bool = False,
) -> tuple[Node, Node, Node]:
    """One layer of torch.nn.LSTM over x [places, ..., I]: h of all places, the last h and c.

    In reverse it begins at the last place, as the second direction of a bidirectional one.
    """
    given = (x, h, c, weight_ih, weight_hh, bias_ih, bias_hh)
    outputs, h, c = _layer("lstm", 4, _lstm, reverse, *given)
    return outputs, h, c


@public
def gru(
    x: Value,
    h: Value,
    weight_ih: Value,
    weight_hh: Value,
    bias_ih: Value | None = None,
    bias_hh: Value | None = None,
    reverse: bool = False,
) -> tuple[Node, Node]:
    """One layer of torch.nn.GRU over x [places, ..., I]: h of all places, and the last one.

    In reverse it begins at the last place.
    """
    given = (x, h, weight_ih, weight_hh, bias_ih, bias_hh)
    outputs, h = _layer("gru", 3, _gru, reverse, *given)
    return outputs, h
