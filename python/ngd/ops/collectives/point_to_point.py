# SPDX-License-Identifier: Apache-2.0
"""Messages between two ranks: send and recv."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np

from ...comm.kinds import KINDS
from ...dtypes import Array, DType, Shape, Type, as_dtype, as_int, float32, float64, parse_shape
from ...errors import ShapeError
from ...graph.node import Node
from ...graph.registry import register
from ...graph.samples import Operand, Sample
from .._casting import cast
from .._operands import Value, as_node, scalar
from .checks import expect_other
from .groups import Ranks, with_group
from .reductions import Collective

__all__ = ["recv", "send"]


class Send(Collective):
    """Send x to another rank, which receives it with ops.recv.

    The send runs only if the compiled step needs its result, a token: make the token an output of
    the step, or add it to an output. A rank receives the arrays of another rank in the order in
    which they were sent, as with MPI. So both ranks must call ops.send and ops.recv for these
    arrays in the same order.

    Parameters
    ----------
    x : node or array
        An array of any shape and dtype.
    to : int
        The rank that receives.
    tag : int, default 0
        A number that is compared with the tag of the receive, to detect different orders.
    group : Group, optional
        The ranks. The default is the group of the compiled step.

    Returns
    -------
    Node
        The token: a scalar 0 of the dtype of x, which is available when the other rank has taken x.

    Raises
    ------
    ValueError
        `to` is not another rank of the group.

    Notes
    -----
    The gradient of a send is a receive: this rank receives the adjoint of x from the rank `to`,
    with the same tag. The rank `to` must send this adjoint. It does so if it computes the gradient
    of its ops.recv. The documentation of ops.recv has a program with both gradients.

    Examples
    --------
    The documentation of ops.recv has a program for two ranks. The token is a scalar::

        >>> token = ops.send(ngd.placeholder("x", (8, 4)), 1)
        >>> token.shape
        ()
    """

    # Attributes of a node: root (the other rank), tag, group.
    kind = KINDS["send"]

    def __call__(self, x: Value, to: int, tag: int = 0, *, group: Ranks | None = None) -> Node:
        attrs = with_group(
            self.name,
            {"root": as_int(to, self.name, "to"), "tag": as_int(tag, self.name, "tag")},
            group,
        )
        return self.node((as_node(x, where=self.name),), attrs)

    def infer(self, x: Type, *, root: int, tag: int, group: Ranks | None = None) -> Type:
        expect_other(self.name, root, group, x)
        return Type(x.dtype, ())

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        x = node.inputs[0].type
        attrs = {**node.attrs, "shape": x.shape, "dtype": x.dtype}
        # The receive depends on the send, so that it runs after the send.
        return (recv.node((dy + node,), attrs),)

    def reference(self, x: Array, **attrs: Any) -> Array:
        return np.zeros((), x.dtype)

    def samples(self) -> Iterable[Sample]:
        yield Sample((Operand((2, 3)),), {"root": 1, "tag": 0})


send: Final[Send] = register(Send())


class Recv(Collective):
    """Receive an array that another rank sends with ops.send.

    Parameters
    ----------
    source : int
        The rank that sends.
    tag : int, default 0
        A number that is compared with the tag of the send.
    shape : int or sequence of int
        The shape of the array.
    dtype : dtype
        The dtype of the array.
    after : node or array, optional
        A scalar that is computed before the receive, such as the token of a send. Its value is not
        read.
    group : Group, optional
        The ranks. The default is the group of the compiled step.

    Returns
    -------
    Node
        The received array.

    Raises
    ------
    ValueError
        `source` is not another rank of the group.
    ShapeError
        `after` is not a scalar.

    Notes
    -----
    The gradient of a receive is a send: this rank sends the adjoint of the received array to the
    rank `source`. This send returns a token, and the token is the adjoint of `after`. A send runs
    only if its token is needed. So if the loss of this rank depends on the received array,
    differentiate by `after` too, and make the adjoint of `after` an output of the compiled
    step. Otherwise the adjoint of the array is not sent, and the rank `source` waits for it.

    In this program, rank 0 has no loss. So it differentiates the token of its send: this token is
    always 0. gw is then the gradient of the loss of rank 1 with respect to w. Rank 1 returns
    `back`, the adjoint of `after`, so that it sends the adjoint of h.

    ::

        # rank 0
        token = ops.send(ops.tanh(x @ w), 1)
        gw = ngd.grad(token, w)
        step = ngd.compile([x], [token, gw])

        # rank 1
        start = ngd.constant(0.0)
        h = ops.recv(0, shape=(8, 4), dtype="float32", after=start)
        loss = ops.mean(ops.square(h @ v - y))
        gv, back = ngd.grad(loss, [v, start])
        step = ngd.compile([y], [loss, gv, back])

    Examples
    --------
    ::

        >>> h = ops.recv(0, shape=(8, 4), dtype="float32")
        >>> h.shape
        (8, 4)
    """

    # Attributes of a node: shape, dtype, root (the other rank), tag, group.
    kind = KINDS["recv"]

    def __call__(
        self,
        source: int,
        tag: int = 0,
        *,
        shape: int | Sequence[int],
        dtype: Any,
        after: Value | None = None,
        group: Ranks | None = None,
    ) -> Node:
        element_type = as_dtype(dtype, self.name)
        token = (
            scalar(0, element_type, self.name) if after is None else as_node(after, where=self.name)
        )
        attrs = {
            "shape": parse_shape(shape, self.name, element_type.itemsize),
            "dtype": element_type,
            "root": as_int(source, self.name, "source"),
            "tag": as_int(tag, self.name, "tag"),
        }
        return self.node((token,), with_group(self.name, attrs, group))

    def infer(
        self,
        after: Type,
        *,
        shape: Shape,
        dtype: DType,
        root: int,
        tag: int,
        group: Ranks | None = None,
    ) -> Type:
        if after.shape:
            raise ShapeError(
                f"recv: after: expected a scalar; got {after}. Reduce it, for example by ops.sum."
            )
        return expect_other(self.name, root, group, Type(dtype, shape))

    def submission(self, x: Type, **attrs: Any) -> dict[str, Any]:
        count = Type(attrs["dtype"], attrs["shape"]).count
        return {"root": attrs["root"], "tag": attrs["tag"], "count": count}

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        attrs = {k: v for k, v in node.attrs.items() if k not in ("shape", "dtype")}
        return (cast(send.node((dy,), attrs), node.inputs[0].dtype),)

    def reference(self, x: Array, **attrs: Any) -> Array:
        return np.zeros(attrs["shape"], attrs["dtype"])

    def samples(self) -> Iterable[Sample]:
        for dtype in (float32, float64):
            attrs = {"shape": (2, 3), "dtype": dtype, "root": 1, "tag": 0}
            yield Sample((Operand((), dtype=dtype),), attrs)


recv: Final[Recv] = register(Recv())
