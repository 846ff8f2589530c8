# SPDX-License-Identifier: Apache-2.0
"""Collectives in the graph. Their results are equal on all ranks, so their nodes are uniform.

The references are those of one rank; an evaluator with a group calls the group instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from ..dtype import ALL, FLOATS, NUMBERS, bool_, float32, float64, is_float
from ..errors import GradientError, ShapeError
from ..ir import Array, DType, Node, Op, Operand, Sample, Type, register
from .elementwise import cast, equal, where
from .operands import HALVES, Value, as_node, expect_dtype

ALGORITHMS: Final = ("auto", "flat", "ring")
_DTYPES: Final[dict[str, tuple[DType, ...]]] = {
    "sum": NUMBERS,
    "mean": FLOATS,
    "min": ALL,
    "max": ALL,
    "prod": ALL,
}


class AllReduce(Op):
    """all_reduce(x, op=, weight=None, algorithm="auto"): x combined over the ranks of the group.

    op is "sum", "mean", "min", "max" or "prod"; there is no default. "mean" takes floats; sums of
    bools do not exist. Attrs: reduce_op, algorithm ("auto", "flat" or "ring").

    weight, a scalar, is for op="mean": the mean over ranks of x, each with the weight of its rank,
    so that uneven shards give what one process would. A rank of weight 0 contributes nothing, also
    if its x is NaN; if all weights are 0, so is the result. Weights are not checked for their sign.

    ngd.grad differentiates the sum of all ranks' losses: sum is its own adjoint, and so is mean.
    The others have no gradient.
    """

    name = "all_reduce"
    collective = True

    def __call__(
        self, x: Value, *, op: str, weight: Value | None = None, algorithm: str = "auto"
    ) -> Node:
        x = as_node(x, where=self.name)
        attrs = {"reduce_op": op, "algorithm": algorithm}
        if weight is None:
            return self.node((x,), attrs)
        if op != "mean":
            raise ValueError(f'all_reduce: a weight is for op="mean"; got op={op!r}')
        return self._weighted_mean(x, as_node(weight, where=self.name), algorithm)

    def _weighted_mean(self, x: Node, weight: Node, algorithm: str) -> Node:
        if weight.shape or not is_float(x.dtype):
            raise ShapeError(
                f"all_reduce: expected floats and a scalar weight; got {x.type} and {weight.type}"
            )
        dtype = float32 if x.dtype in HALVES else x.dtype  # the sums of a two-byte mean
        share = cast(weight, dtype)
        attrs = {"reduce_op": "sum", "algorithm": algorithm}
        weighted = self.node((where(equal(share, 0), 0, cast(x, dtype) * share),), attrs)
        total = self.node((share,), attrs)
        nothing = equal(total, 0)
        return cast(where(nothing, 0, weighted / where(nothing, 1, total)), x.dtype)

    def infer(self, x: Type, *, reduce_op: str, algorithm: str) -> Type:
        if reduce_op not in _DTYPES:
            raise ValueError(
                f"all_reduce: expected op among {', '.join(_DTYPES)}; got {reduce_op!r}"
            )
        if algorithm not in ALGORITHMS:
            raise ValueError(
                f"all_reduce: expected algorithm among {', '.join(ALGORITHMS)}; got {algorithm!r}"
            )
        expect_dtype(f'all_reduce(op="{reduce_op}")', (x,), _DTYPES[reduce_op])
        return x

    def uniform(self, inputs: Sequence[Node], attrs: Mapping[str, Any]) -> bool:
        return True

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        kind = node.attrs["reduce_op"]
        if kind not in ("sum", "mean"):
            raise GradientError(f'all_reduce(op="{kind}") has no gradient (used at {node.site})')
        return (self.node((dy,), node.attrs),)

    def reference(self, x: Array, *, reduce_op: str, algorithm: str) -> Array:
        return x

    def samples(self) -> Iterable[Sample]:
        for kind, dtype in (
            ("sum", None),
            ("min", None),
            ("max", None),
            ("prod", None),
            ("mean", float32),
            ("mean", float64),
            ("max", bool_),
        ):
            attrs = {"reduce_op": kind, "algorithm": "auto"}
            yield Sample((Operand((2, 3), dtype=dtype),), attrs)
        yield Sample((Operand((0,)),), {"reduce_op": "sum", "algorithm": "ring"})


all_reduce: Final[AllReduce] = register(AllReduce())


class Broadcast(Op):
    """broadcast(x, root=0): the root's x on every rank; attrs: root.

    The adjoint is the sum over ranks on the root, and zero elsewhere.
    """

    name = "broadcast"
    collective = True
    dtypes = ALL

    def __call__(self, x: Value, root: int = 0) -> Node:
        return self.node((as_node(x, where=self.name),), {"root": int(root)})

    def infer(self, x: Type, *, root: int) -> Type:
        if root < 0:
            raise ValueError(f"broadcast: expected a root >= 0; got {root}")
        return x

    def uniform(self, inputs: Sequence[Node], attrs: Mapping[str, Any]) -> bool:
        return True

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (where(is_rank(node.attrs["root"]), all_reduce(dy, op="sum"), 0),)

    def reference(self, x: Array, *, root: int) -> Array:
        return x

    def samples(self) -> Iterable[Sample]:
        yield Sample((Operand((2, 3)),), {"root": 0})
        yield Sample((Operand((0,)),), {"root": 0})


broadcast: Final[Broadcast] = register(Broadcast())


class IsRank(Op):
    """is_rank(root): whether this is the rank; attrs: root.

    The compiler knows, and puts a constant. The reference is that of rank 0 of 1.
    """

    name = "is_rank"
    dtypes = ()

    def __call__(self, root: int) -> Node:
        return self.node((), {"root": int(root)})

    def infer(self, *, root: int) -> Type:
        return Type(bool_, ())

    def uniform(self, inputs: Sequence[Node], attrs: Mapping[str, Any]) -> bool:
        return False

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return ()

    def reference(self, *, root: int) -> Array:
        return np.array(root == 0)

    def samples(self) -> Iterable[Sample]:
        yield Sample((), {"root": 0})
        yield Sample((), {"root": 1})


is_rank: Final[IsRank] = register(IsRank())
