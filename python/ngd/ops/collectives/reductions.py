# SPDX-License-Identifier: Apache-2.0
"""Reductions in the graph. Exchanges of rows are in exchanges.py, messages in point_to_point.py.

Each takes `group=`, an ngd.Group. Without it all_reduce, broadcast, reduce, send and recv run
over the ranks of the executable (ngd.compile's group=, by default the world). The others need the
number of ranks for the shape of their result. They mean the world. If it is not joined when the
graph is built, they take the launcher's numbers, and ngd.compile joins the world.

A rank that gets no result has zeros instead, as all ranks except the root of `reduce`. So each
collective is a linear map of all ranks' operands to all ranks' results. Its gradient is the
transpose, which is a collective too (docs/adr/0003-gradient-of-all-reduce.md).

The references are those of one rank; an evaluator with a group calls the group instead.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final

import numpy as np

from ...comm.kinds import ALGORITHMS, KINDS, Kind
from ...dtypes import (
    ALL,
    NUMBERS,
    Array,
    DType,
    Type,
    bfloat16,
    bool_,
    float32,
    float64,
    int64,
    is_float,
    whole,
)
from ...errors import DTypeError, GradientError, ShapeError
from ...graph.node import Node, Op
from ...graph.registry import register
from ...graph.samples import Operand, Sample
from ...graph.traits import Comm
from .._arithmetic import abs, floor, maximum, minimum
from .._casting import cast
from .._compare import equal, where
from .._operands import Value, as_node, compute_dtype, scalar
from .._shape import stop_gradient
from .._transcendental import log, power
from .checks import expect_reduction, expect_root
from .groups import ONE_RANK, Ranks, everywhere_equal, with_group

__all__ = ["all_reduce", "broadcast", "own_rank", "reduce"]

SUM: Final = "sum"
MEAN: Final = "mean"
COMBINED: Final = ("sum", "min", "max", "prod")
"""Those by which results of parts are reduced to that of the whole, too."""


class Collective(Op):
    """What the blocks here share; attrs: group (a Ranks), left out where it is the executable's."""

    comm = Comm(is_collective=True)
    kind: ClassVar[Kind]
    """Its row in the table of kinds, which says its name and what it takes."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.name = cls.kind.name
        cls.dtypes = NUMBERS if cls.kind.reduces else ALL
        if cls.kind.gives == "nothing":
            cls.dtypes = ()

    def is_uniform(self, inputs: Sequence[Node], attrs: Mapping[str, Any]) -> bool:
        return self.kind.equal_results and everywhere_equal(inputs, attrs)

    def submission(self, x: Type, **attrs: Any) -> dict[str, Any]:
        """What the communicator is told, as far as the operand does not say it.

        root, reduce_op, algorithm, tag; counts in elements. See src/cpp/comm/collective.hpp.
        """
        return {k: v for k, v in attrs.items() if k != "group"}

    def place_in_result(self, x: Type, **attrs: Any) -> int | None:
        """The element of the result where this rank's operand may already lie; None: nowhere."""
        return None

    def place_in_operand(self, x: Type, **attrs: Any) -> int | None:
        """The element of the operand where this rank's result may lie; None: nowhere."""
        return None

    def reference(self, x: Array, **attrs: Any) -> Array:
        return x


def no_gradient(node: Node) -> GradientError:
    """The error of a reduction that is not linear."""
    kind = node.attrs["reduce_op"]
    return GradientError(f'{node.op.name}(op="{kind}") has no gradient (used at {node.site})')


_TOTALS: Final[weakref.WeakValueDictionary[Any, Node]] = weakref.WeakValueDictionary()
"""By weight, algorithm and group: the sum of the ranks' weights, in a common unit."""


class AllReduce(Collective):
    """all_reduce(x, op=, weight=None, algorithm="auto", compression=None, group=None).

    x combined over the ranks.

    op is "sum", "mean", "min", "max" or "prod"; there is no default. "mean" takes floats; sums of
    bools do not exist. Attrs: reduce_op, algorithm ("auto", "flat" or "ring"), group.

    weight, a scalar, is for op="mean": the mean over ranks of x, each with the weight of its rank,
    so that uneven shards give what one process would. A rank of weight 0 contributes nothing, also
    if its x is NaN; if all weights are 0, so is the result. Weights are not checked for their sign.

    compression="bf16": a float32 x travels as bfloat16, is added up in float32 and rounded once; so
    does its gradient. sparse_all_reduce sends the largest elements alone.

    ngd.grad differentiates the sum of all ranks' losses: sum is its own adjoint, and so is mean.
    The others have no gradient.
    """

    kind = KINDS["all_reduce"]

    def __call__(
        self,
        x: Value,
        *,
        op: str,
        weight: Value | None = None,
        algorithm: str = "auto",
        compression: str | None = None,
        group: Ranks | None = None,
    ) -> Node:
        x = as_node(x, where=self.name)
        attrs = with_group(self.name, {"reduce_op": op, "algorithm": algorithm}, group)
        if compression is not None:
            return self._rounded(x, weight, compression, attrs)
        if weight is None:
            return self.node((x,), attrs)
        if op != "mean":
            raise ValueError(
                f'all_reduce: expected op="mean" with weight; got op={op!r}. '
                "Write op='mean', or leave weight out."
            )
        return self._weighted_mean(x, as_node(weight, where=self.name), attrs)

    def _rounded(
        self, x: Node, weight: Value | None, compression: str, attrs: Mapping[str, Any]
    ) -> Node:
        if compression != "bf16":
            raise ValueError(
                f"all_reduce: compression: expected 'bf16' or None; got {compression!r}"
            )
        if weight is not None:
            raise ValueError(
                "all_reduce: expected weight or compression; got both. Scale x instead of weight."
            )
        if x.dtype != float32:
            raise DTypeError(
                f"all_reduce: expected float32 for compression='bf16'; got {x.type}. Cast x, or "
                "leave compression out."
            )
        return cast(self.node((cast(x, bfloat16),), attrs), float32)

    def _weighted_mean(self, x: Node, weight: Node, attrs: Mapping[str, Any]) -> Node:
        if weight.shape or not is_float(x.dtype):
            wrong = ShapeError if weight.shape else DTypeError
            raise wrong(
                f"all_reduce: expected floats and a scalar weight; got {x.type} and {weight.type}. "
                "Cast x, and give one number."
            )
        # Weights count by their ratios alone. In a unit that is a power of two their sum is in
        # [1/4, 1/2): none is beyond the dtype, no sum of weighted x overflows, and no bit changes.
        # A mean is no larger than the largest x: only rounding can make it so.
        # Arrays are weighted likewise: comm/reduction.py.
        dtype = compute_dtype(x.dtype)  # sums of 16-bit floats are float32
        sums, largest = ({**attrs, "reduce_op": op} for op in ("sum", "max"))
        key = (weight.id, attrs["algorithm"], attrs.get("group"))
        total = _TOTALS.get(key)  # all that have one weight are told it once
        if total is None:
            wide = cast(weight, float64)
            unit = stop_gradient(power_of_two(self.node((abs(wide),), largest)))
            total = _TOTALS[key] = self.node((wide / unit,), sums)
        (mine,) = total.inputs
        unit = 4.0 * power_of_two(maximum(stop_gradient(abs(total)), 1.0))
        share, whole = cast(mine / unit, dtype), cast(total / unit, dtype)
        weighted = self.node((where(equal(mine, 0), 0, cast(x, dtype) * share),), sums)
        nothing = equal(whole, 0)
        mean, most = weighted / where(nothing, 1, whole), float(np.finfo(dtype).max)
        mean = where(abs(weighted) <= most, minimum(maximum(mean, -most), most), mean)
        return cast(where(nothing, 0, mean), x.dtype)

    def infer(self, x: Type, *, reduce_op: str, algorithm: str, group: Ranks | None = None) -> Type:
        expect_reduction(self.name, reduce_op, x)
        if algorithm not in ALGORITHMS:
            raise ValueError(
                f"all_reduce: expected algorithm among {', '.join(ALGORITHMS)}; got {algorithm!r}"
            )
        return x

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        if node.attrs["reduce_op"] not in ("sum", "mean"):
            raise no_gradient(node)
        return (self.node((dy,), node.attrs),)

    def samples(self) -> Iterable[Sample]:
        for attrs, dtype in reductions_to_test():
            yield Sample((Operand((2, 3), dtype=dtype),), {**attrs, "algorithm": "auto"})
        yield Sample((Operand((0,)),), {"reduce_op": "sum", "algorithm": "ring"})


def power_of_two(x: Node) -> Node:
    """The greatest that is no more than x, or next to it; x is a float64 >= 0. Of 0 it is 1."""
    exponent = floor(log(where(equal(x, 0), 1, x)) / math.log(2))
    return power(scalar(2.0, float64, "power_of_two"), minimum(exponent, 1023.0))


def reductions_to_test() -> list[tuple[dict[str, Any], DType | None]]:
    """Each reduction, with a dtype where it does not take all numbers."""
    free: list[tuple[str, DType | None]] = [(op, None) for op in ("sum", "min", "max", "prod")]
    fixed: list[tuple[str, DType | None]] = [("mean", float32), ("mean", float64), ("max", bool_)]
    return [({"reduce_op": op}, dtype) for op, dtype in free + fixed]


all_reduce: Final[AllReduce] = register(AllReduce())


class Broadcast(Collective):
    """broadcast(x, root=0, group=None): the root's x on every rank; attrs: root, group.

    The adjoint is the sum over ranks on the root, and zero elsewhere: reduce.
    """

    kind = KINDS["broadcast"]

    def __call__(self, x: Value, root: int = 0, *, group: Ranks | None = None) -> Node:
        return self.node(
            (as_node(x, where=self.name),),
            with_group(self.name, {"root": whole(root, self.name, "root")}, group),
        )

    def infer(self, x: Type, *, root: int, group: Ranks | None = None) -> Type:
        return expect_root(self.name, root, group, x)

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (reduce.node((dy,), {**node.attrs, "reduce_op": "sum"}),)

    def samples(self) -> Iterable[Sample]:
        yield Sample((Operand((2, 3)),), {"root": 0})
        yield Sample((Operand((0,)),), {"root": 0})


broadcast: Final[Broadcast] = register(Broadcast())


class Reduce(Collective):
    """reduce(x, root=0, op=, group=None): x reduced over the ranks on the root, zero elsewhere.

    op as in all_reduce; attrs: reduce_op, root, group. The adjoint of sum is broadcast, that of
    mean a broadcast of the root's share; the others have no gradient.
    """

    kind = KINDS["reduce"]

    def __call__(self, x: Value, root: int = 0, *, op: str, group: Ranks | None = None) -> Node:
        attrs = with_group(
            self.name, {"reduce_op": op, "root": whole(root, self.name, "root")}, group
        )
        return self.node((as_node(x, where=self.name),), attrs)

    def infer(self, x: Type, *, reduce_op: str, root: int, group: Ranks | None = None) -> Type:
        expect_reduction(self.name, reduce_op, x)
        return expect_root(self.name, root, group, x)

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        attrs = dict(node.attrs)
        kind = attrs.pop("reduce_op")
        if kind == "sum":
            return (broadcast.node((dy,), attrs),)
        if kind == "mean":  # the mean over ranks of what the root has, and the others have not
            group = attrs.get("group")
            mine = where(equal(own_rank(group=group), attrs["root"]), dy, 0)
            return (all_reduce(mine, op="mean", group=group),)
        raise no_gradient(node)

    def samples(self) -> Iterable[Sample]:
        for attrs, dtype in reductions_to_test():
            yield Sample((Operand((2, 3), dtype=dtype),), {**attrs, "root": 0})


reduce: Final[Reduce] = register(Reduce())


class OwnRank(Op):
    """own_rank(group=None): the number of this rank, int64; attrs: group.

    By default in the ranks of the executable, as for collectives. The compiler knows it, and puts a
    constant. The reference is that of rank 0 of 1.
    """

    name = "own_rank"
    dtypes = ()
    comm = Comm(has_group_value=True)

    def __call__(self, *, group: Ranks | None = None) -> Node:
        return self.node((), with_group(self.name, {}, group))

    def infer(self, *, group: Ranks | None = None) -> Type:
        return Type(int64, ())

    def is_uniform(self, inputs: Sequence[Node], attrs: Mapping[str, Any]) -> bool:
        return False

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return ()

    def group_value(self, ranks: Any, **attrs: Any) -> Array:
        return np.array(ranks.rank, int64)

    def reference(self, *, group: Ranks | None = None) -> Array:
        return self.group_value(ONE_RANK)

    def samples(self) -> Iterable[Sample]:
        yield Sample((), {})


own_rank: Final[OwnRank] = register(OwnRank())
