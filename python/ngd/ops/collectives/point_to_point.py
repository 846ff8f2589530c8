# SPDX-License-Identifier: Apache-2.0
"""Messages between two ranks: send and recv."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np

from ...comm.kinds import KINDS
from ...dtypes import Array, DType, Shape, Type, as_dtype, float32, float64, lengths, whole
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
    """send(x, to, tag=0, group=None): give x to another rank, whose recv takes it.

    The result is a token: a scalar 0 of x's dtype that is there when x has been taken. Nothing is
    sent unless the token is wanted: make it an output of the step, or add it to something that is.
    Attrs: root (the other rank), tag, group.

    What one rank sends to another is received in the order in which it was made: both scripts make
    their sends and receives in one order, as with MPI. A tag is compared, to notice if they do not.
    The adjoint receives from `to` what its recv's adjoint sends, with the same tag, so a loss that
    holds the token is differentiated through the other rank; see recv.
    """

    kind = KINDS["send"]

    def __call__(self, x: Value, to: int, tag: int = 0, *, group: Ranks | None = None) -> Node:
        attrs = with_group(
            self.name,
            {"root": whole(to, self.name, "to"), "tag": whole(tag, self.name, "tag")},
            group,
        )
        return self.node((as_node(x, where=self.name),), attrs)

    def infer(self, x: Type, *, root: int, tag: int, group: Ranks | None = None) -> Type:
        expect_other(self.name, root, group, x)
        return Type(x.dtype, ())

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        x = node.inputs[0].type
        attrs = {**node.attrs, "shape": x.shape, "dtype": x.dtype}
        return (recv.node((dy + node,), attrs),)  # what comes back rests on what was sent

    def reference(self, x: Array, **attrs: Any) -> Array:
        return np.zeros((), x.dtype)

    def samples(self) -> Iterable[Sample]:
        yield Sample((Operand((2, 3)),), {"root": 1, "tag": 0})


send: Final[Send] = register(Send())


class Recv(Collective):
    """recv(source, tag=0, shape=, dtype=, after=None, group=None): what another rank sends.

    `after` is a scalar that is computed before, such as the token of a send; its value is not read.
    Its adjoint is the token of the send that returns the adjoint of the received array to `source`.
    So a rank whose loss depends on the received array differentiates by `after` too, and makes that
    token an output. Otherwise the other rank waits.

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

    gw is the gradient of the sum of the ranks' losses, the token's value being 0. Attrs: shape,
    dtype, root (the other rank), tag, group.
    """

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
        wanted = as_dtype(dtype, self.name)
        token = scalar(0, wanted, self.name) if after is None else as_node(after, where=self.name)
        attrs = {
            "shape": lengths(shape, self.name, wanted.itemsize),
            "dtype": wanted,
            "root": whole(source, self.name, "source"),
            "tag": whole(tag, self.name, "tag"),
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
                f"recv: expected a scalar to come after; got {after}. Reduce it, for example by "
                "ops.sum."
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
