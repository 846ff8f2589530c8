# SPDX-License-Identifier: Apache-2.0
"""LSTM and GRU: one cell each, and a layer that applies the cell along a sequence.

In the shapes, `gates` is the number of gates (4 for LSTM, 3 for GRU), H is the size of a state, and
I the size of an input. The weights and the order of the gates are those of PyTorch: a weight
[gates * H, I] for the input, a weight [gates * H, H] for the state, and one bias [gates * H] for
each. The sequence is axis 0 of x. A layer is an ops.scan, so its cell occurs once in the graph.
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
from ._operands import Value, describe_types
from ._shape import transpose
from ._transcendental import tanh
from .control.loops import scan

__all__ = ["gru", "gru_cell", "lstm", "lstm_cell"]

States = tuple[Node, ...]
Step = Callable[[Node, States, Node, Node | None], States]
"""The type of a function that computes the next states of a recurrent cell.

The arguments are, in this order: the input x multiplied by its weight, with its bias added; the
present states; the weight [gates * H, H] of the hidden state; the bias of the hidden state or None.
"""


def _operands(
    where: str, gates: int, sequence: bool, values: Sequence[Value | None]
) -> tuple[Node, States, Node, Node, Node | None, Node | None]:
    """Return x, the states, weights and biases as nodes; ShapeError if their shapes do not fit."""
    if values[0] is None or any(weight is None for weight in values[-4:-2]):
        raise DTypeError(
            f"{where}: expected arrays for x and both weights; got None. Give all three."
        )
    present = iter(align(where, *(value for value in values if value is not None)))
    nodes = [None if value is None else next(present) for value in values]
    x, *states, of_input, of_state, input_bias, state_bias = nodes
    assert x is not None and of_input is not None and of_state is not None  # noqa: PT018
    size = of_state.shape[-1] if of_state.ndim else 0
    batch, inputs = x.shape[int(sequence) : -1], x.shape[-1:]
    expected_shapes = [
        (of_input, (gates * size, *inputs)),
        (of_state, (gates * size, size)),
        *((state, (*batch, size)) for state in states),
        *((bias, (gates * size,)) for bias in (input_bias, state_bias)),
    ]
    fits = all(node is None or node.shape == shape for node, shape in expected_shapes)
    if not fits or x.ndim < 1 + sequence:
        data = "[places, ..., I]" if sequence else "[..., I]"
        types = describe_types(*(node.type for node in nodes if node is not None))
        raise ShapeError(
            f"{where}: expected x {data}, states [..., H], weights [{gates} H, I] and [{gates} H, "
            f"H], biases [{gates} H]; got {types}. Transpose or reshape them."
        )
    return x, tuple(s for s in states if s is not None), of_input, of_state, input_bias, state_bias


def _gates(x: Node, weight: Node, bias: Node | None) -> Node:
    """Return x @ weight.T + bias, the contribution of x to all gates of a cell."""
    product = matmul(x, transpose(weight))
    return product if bias is None else product + bias


def _lstm(from_input: Node, states: States, weight: Node, bias: Node | None) -> States:
    """Return the next states (h, c) of an LSTM cell; see Step for the arguments."""
    # Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000.
    h, c = states
    i, f, g, o = split(from_input + _gates(h, weight, bias), 4, axis=-1)
    c = sigmoid(f) * c + sigmoid(i) * tanh(g)
    return sigmoid(o) * tanh(c), c


def _gru(from_input: Node, states: States, weight: Node, bias: Node | None) -> States:
    """Return the next state (h,) of a GRU cell; see Step for the arguments."""
    # Cho et al. 2014 (arXiv:1406.1078), with the reset gate after the matrix product, as in cuDNN.
    (h,) = states
    input_r, input_z, input_n = split(from_input, 3, axis=-1)
    state_r, state_z, state_n = split(_gates(h, weight, bias), 3, axis=-1)
    z = sigmoid(input_z + state_z)
    n = tanh(input_n + sigmoid(input_r + state_r) * state_n)
    return (n + z * (h - n),)


def _cell(where: str, gates: int, step: Step, *arguments: Value | None) -> States:
    """Check the operands of a cell, and return its next states. `step` is `_lstm` or `_gru`."""
    x, states, of_input, of_state, input_bias, state_bias = _operands(
        where, gates, False, arguments
    )
    return step(_gates(x, of_input, input_bias), states, of_state, state_bias)


def _layer(where: str, gates: int, step: Step, reverse: bool, *arguments: Value | None) -> States:
    """Return the outputs at all positions of a sequence, followed by the last states.

    One matrix product before the loop multiplies the inputs x of all positions by `weight_ih`, the
    weight of the input. The loop itself multiplies only the hidden states, by `weight_hh`.
    """
    x, states, of_input, of_state, input_bias, state_bias = _operands(where, gates, True, arguments)

    def body(states_before: States, from_input: Node) -> tuple[States, Node]:
        states_after = step(from_input, states_before, of_state, state_bias)
        return states_after, states_after[0]

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
) -> tuple[Node, Node]:  # long because each argument is described
    """Run one step of an LSTM, as torch.nn.LSTMCell.

    Parameters
    ----------
    x : node or array
        The input [..., I]: vectors of size I.
    h, c : node or array
        The hidden state and the cell state, [..., H] each: vectors of size H.
    weight_ih, weight_hh : node or array
        The weights of the input, [4 H, I], and of the hidden state, [4 H, H].
    bias_ih, bias_hh : node or array, optional
        The biases, [4 H] each.

    Returns
    -------
    tuple of Node
        The next h and c.

    Raises
    ------
    ShapeError
        The shapes do not fit.

    Notes
    -----
    i, f, g, o are the four quarters of x @ weight_ih.T + bias_ih + h @ weight_hh.T + bias_hh. Then
    c = sigmoid(f) * c + sigmoid(i) * tanh(g), and h = sigmoid(o) * tanh(c).

    Hochreiter and Schmidhuber 1997 (Neural Computation 9), with the forget gate of Gers et al. 2000
    (Neural Computation 12).

    Examples
    --------
    ::

        >>> cell, state = ngd.function(ops.lstm_cell), np.zeros((2, 5))
        >>> h, c = cell(np.ones((2, 4)), state, state, np.ones((20, 4)), np.ones((20, 5)))
        >>> h.shape, c.shape
        ((2, 5), (2, 5))
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
    """Run one step of a GRU, as torch.nn.GRUCell.

    Parameters
    ----------
    x : node or array
        The input [..., I]: vectors of size I.
    h : node or array
        The hidden state [..., H]: vectors of size H.
    weight_ih, weight_hh : node or array
        The weights of the input, [3 H, I], and of the hidden state, [3 H, H].
    bias_ih, bias_hh : node or array, optional
        The biases, [3 H] each.

    Returns
    -------
    Node
        The next h.

    Raises
    ------
    ShapeError
        The shapes do not fit.

    Notes
    -----
    r, z, n are the thirds of x @ weight_ih.T + bias_ih, and R, Z, N those of h @ weight_hh.T +
    bias_hh. With u = sigmoid(z + Z) and m = tanh(n + sigmoid(r + R) * N), the result is (1 - u) * m
    + u * h.

    Cho et al. 2014 (arXiv:1406.1078). The reset gate is applied after the matrix product, as in
    cuDNN.

    Examples
    --------
    ::

        >>> cell, h = ngd.function(ops.gru_cell), np.zeros((2, 5))
        >>> cell(np.ones((2, 4)), h, np.ones((15, 4)), np.ones((15, 5))).shape
        (2, 5)
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
    """Run one layer of an LSTM over a sequence, as torch.nn.LSTM.

    Parameters
    ----------
    x : node or array
        The sequence [L, ..., I] of L inputs, whose vectors have the size I.
    h, c : node or array
        The first hidden state and the first cell state, [..., H] each: vectors of size H.
    weight_ih, weight_hh : node or array
        The weights of the input, [4 H, I], and of the hidden state, [4 H, H].
    bias_ih, bias_hh : node or array, optional
        The biases, [4 H] each.
    reverse : bool, default False
        If True, run from the last position to the first, as the second direction of a bidirectional
        LSTM.

    Returns
    -------
    tuple of Node
        h at all positions, [L, ..., H], the last h and the last c.

    Raises
    ------
    ShapeError
        The shapes do not fit.

    Examples
    --------
    ::

        >>> x, h, c = np.ones((3, 2, 4)), np.zeros((2, 5)), np.zeros((2, 5))
        >>> outputs, h, c = ngd.function(ops.lstm)(x, h, c, np.ones((20, 4)), np.ones((20, 5)))
        >>> outputs.shape, h.shape, c.shape
        ((3, 2, 5), (2, 5), (2, 5))
    """
    arguments = (x, h, c, weight_ih, weight_hh, bias_ih, bias_hh)
    outputs, h, c = _layer("lstm", 4, _lstm, reverse, *arguments)
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
    """Run one layer of a GRU over a sequence, as torch.nn.GRU.

    Parameters
    ----------
    x : node or array
        The sequence [L, ..., I] of L inputs, whose vectors have the size I.
    h : node or array
        The first hidden state [..., H]: vectors of size H.
    weight_ih, weight_hh : node or array
        The weights of the input, [3 H, I], and of the hidden state, [3 H, H].
    bias_ih, bias_hh : node or array, optional
        The biases, [3 H] each.
    reverse : bool, default False
        If True, run from the last position to the first.

    Returns
    -------
    tuple of Node
        h at all positions, [L, ..., H], and the last h.

    Raises
    ------
    ShapeError
        The shapes do not fit.

    Examples
    --------
    ::

        >>> layer, h = ngd.function(ops.gru), np.zeros((2, 5))
        >>> outputs, h = layer(np.ones((3, 2, 4)), h, np.ones((15, 4)), np.ones((15, 5)))
        >>> outputs.shape, h.shape
        ((3, 2, 5), (2, 5))
    """
    arguments = (x, h, weight_ih, weight_hh, bias_ih, bias_hh)
    outputs, h = _layer("gru", 3, _gru, reverse, *arguments)
    return outputs, h
