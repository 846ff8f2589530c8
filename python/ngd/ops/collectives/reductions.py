# SPDX-License-Identifier: Apache-2.0
"""The reductions and the broadcast. Other collectives are in exchanges.py and point_to_point.py.

Each collective takes `group=`, an ngd.Group. Without it all_reduce, broadcast, reduce, send and
recv run over the group of the executable (ngd.compile's group=, by default the world). All other
collectives need the number of ranks for the shape of their result, so they run over the world. If
this process has not joined the world by ngd.init when the graph is built, these other collectives
take the rank and the number of ranks from the launcher. ngd.compile then joins the world.

On a rank that gets no result, a collective returns zeros. For example, `reduce` returns zeros on
all ranks except the root. So each collective, except reductions such as max, is a linear map from
the operands of all ranks to the results of all ranks. Its gradient is the transpose of this map,
which is a collective too (docs/adr/0003-gradient-of-all-reduce.md).

The method `reference` of an op computes its result in NumPy. For a collective, this is the result
in a world of one rank. If a graph is evaluated in NumPy with a group of several ranks, the
evaluator calls the collective of the group instead.
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
    as_int,
    bfloat16,
    bool_,
    float32,
    float64,
    int64,
    is_float,
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
from .groups import ONE_RANK, Ranks, is_world, with_group

__all__ = ["all_reduce", "broadcast", "own_rank", "reduce"]

SUM: Final = "sum"
MEAN: Final = "mean"
COMBINED: Final = ("sum", "min", "max", "prod")
"""The reductions that may be computed in parts, because they are associative.

The elements are split into parts, and each part is reduced. The reduction of these results is then
the reduction of all elements. The mean is not in the list: parts may have different sizes.
"""


class Collective(Op):
    """The base of collectives."""

    # Attribute of a node: group (a Ranks). It is missing if the group is that of the executable.
    comm = Comm(is_collective=True)
    kind: ClassVar[Kind]
    """The entry of this collective in the table comm/kinds.py, with its name and properties."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.name = cls.kind.name
        cls.dtypes = NUMBERS if cls.kind.reduces else ALL
        if cls.kind.operand == "nothing":
            cls.dtypes = ()

    def is_uniform(self, inputs: Sequence[Node], attrs: Mapping[str, Any]) -> bool:
        if is_world(attrs.get("group")):
            return self.kind.has_equal_results
        return self.keeps_equal_operands(attrs) and all(x.uniform for x in inputs)

    def keeps_equal_operands(self, attrs: Mapping[str, Any]) -> bool:
        """Return True if the result is x whenever all ranks have the same operand x.

        For example, return True for the maximum. Return False for the sum: the result is 2 x in a
        group of 2 ranks and 3 x in a group of 3 ranks. Also return False for the mean, because it
        may differ from x by rounding.
        """
        return False

    def submission(self, x: Type, **attrs: Any) -> dict[str, Any]:
        """Return keyword arguments for the C++ communicator, which runs the collective of a node.

        They come from the node's attributes, such as root, reduce_op, algorithm and tag. If each
        rank has a block, the sizes of the blocks, in elements, are computed from the attributes
        and from `x`, the type of the operand (src/cpp/comm/collective.hpp).
        """
        return {k: v for k, v in attrs.items() if k != "group"}

    def offset_in_result(self, x: Type, **attrs: Any) -> int | None:
        """Return the offset in the result at which the operand can be stored, in elements, or None.

        The operand of this rank is then a part of the memory of the result, as in an all_gather in
        place. None means that operand and result cannot share memory in this way.
        """
        return None

    def offset_in_operand(self, x: Type, **attrs: Any) -> int | None:
        """Return the offset in the operand at which the result can be stored, in elements, or None.

        The result of this rank is then a part of the memory of the operand, as in a reduce_scatter
        in place. None means that operand and result cannot share memory in this way.
        """
        return None

    def reference(self, x: Array, **attrs: Any) -> Array:
        return x


def no_gradient(node: Node) -> GradientError:
    """Return the GradientError for a reduction that is not linear, such as max."""
    kind = node.attrs["reduce_op"]
    return GradientError(f'{node.op.name}(op="{kind}") has no gradient (used at {node.site})')


_TOTALS: Final[weakref.WeakValueDictionary[Any, Node]] = weakref.WeakValueDictionary()
"""The node with the sum of a weight over all ranks, for each weight of `AllReduce._weighted_mean`.

Several means with the same weight share this node, so that its collective runs once. The key is
the tuple (number of the node of the weight, algorithm, group). An entry is removed when its node no
longer exists.
"""


class AllReduce(Collective):
    """Reduce an array over all ranks, element by element. All ranks get the result.

    Parameters
    ----------
    x : node or array
        An array of one shape on all ranks.
    op : str
        "sum", "mean", "min", "max" or "prod". There is no default. "mean" takes floats, and "sum"
        takes no bools.
    weight : node or array, optional
        A scalar for op="mean": the weight of this rank. The result is the weighted mean of the
        arrays of all ranks. For example, if x is the mean over the samples of this rank, and the
        weight is their number, the result is the mean over the samples of all ranks. A rank of
        weight 0 contributes nothing, even if its x is NaN. If all weights are 0, the result is 0.
        The signs of the weights are not checked.
    algorithm : str, default "auto"
        "flat": each rank reduces one part of the arrays of all ranks and sends the result to all
        ranks. "ring": partial results pass from rank to rank in a ring. "auto": the value of the
        environment variable NGD_ALLREDUCE, or "flat" if it is not set.
    compression : str, optional
        "bf16" sends a float32 x as bfloat16, adds in float32 and rounds once. The gradient is
        compressed in the same way. ops.sparse_all_reduce sends only the largest elements.
    group : Group, optional
        The ranks. The default is the group of the compiled step.

    Returns
    -------
    Node
        An array of the shape and dtype of x.

    Raises
    ------
    ValueError
        The op or the algorithm does not exist, or weight and compression do not fit the other
        arguments.
    DTypeError
        The op or the compression does not accept the dtype of x.

    Notes
    -----
    ngd.grad differentiates the sum of the losses of all ranks. The adjoint of "sum" is "sum", and
    that of "mean" is "mean". The other reductions have no gradient.

    Examples
    --------
    The result of a single rank::

        >>> ngd.function(lambda x: ops.all_reduce(x, op="sum"))(np.arange(4.0))
        array([0., 1., 2., 3.])
    """

    # Attributes of a node: reduce_op, algorithm, group.
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
        """Round x to bfloat16, reduce it over the ranks, and return the result as float32.

        The ranks then send 2 bytes per element instead of 4.
        """
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
        """Return the mean of x over all ranks, with one weight per rank.

        The mean depends only on the ratios of the weights. So each rank divides its weight by the
        same power of two, which is computed from the weights of all ranks. For weights >= 0, the
        sum of the scaled weights is then below 1. So the sum of x times the scaled weight is at
        most the largest abs(x) of all ranks, and does not overflow.
        """
        if weight.shape or not is_float(x.dtype):
            error = ShapeError if weight.shape else DTypeError
            raise error(
                f"all_reduce: expected floats and a scalar weight; got {x.type} and {weight.type}. "
                "Cast x, and give one number."
            )
        # comm/reduction.py does the same for arrays.
        dtype = compute_dtype(x.dtype)  # sums of 16-bit floats are float32
        sums, largest = ({**attrs, "reduce_op": op} for op in ("sum", "max"))
        key = (weight.id, attrs["algorithm"], attrs.get("group"))
        total = _TOTALS.get(key)  # Means with the same weight share one sum.
        if total is None:
            wide = cast(weight, float64)
            unit = stop_gradient(power_of_two(self.node((abs(wide),), largest)))
            total = _TOTALS[key] = self.node((wide / unit,), sums)
        (own_weight,) = total.inputs
        unit = 4.0 * power_of_two(maximum(stop_gradient(abs(total)), 1.0))
        share, total_share = cast(own_weight / unit, dtype), cast(total / unit, dtype)
        weighted = self.node((where(equal(own_weight, 0), 0, cast(x, dtype) * share),), sums)
        is_zero = equal(total_share, 0)
        mean, largest_float = weighted / where(is_zero, 1, total_share), float(np.finfo(dtype).max)
        # A mean is at most the largest x. So if the weighted sum is finite, only rounding can make
        # the mean infinite, and the mean is clipped to the finite range.
        mean = where(
            abs(weighted) <= largest_float,
            minimum(maximum(mean, -largest_float), largest_float),
            mean,
        )
        return cast(where(is_zero, 0, mean), x.dtype)

    def keeps_equal_operands(self, attrs: Mapping[str, Any]) -> bool:
        return attrs["reduce_op"] in ("min", "max")

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
    """Return 2 ** floor(log2(x)) for a float64 x > 0, and 1 for x = 0.

    The logarithm is computed with rounding. So if x is close to a power of two, the result may be
    half or twice the value of this formula.
    """
    exponent = floor(log(where(equal(x, 0), 1, x)) / math.log(2))
    return power(scalar(2.0, float64, "power_of_two"), minimum(exponent, 1023.0))


def reductions_to_test() -> list[tuple[dict[str, Any], DType | None]]:
    """Return pairs ({"reduce_op": name}, dtype), for the tests of collectives that reduce.

    The method `samples` of such a collective yields one test case per pair. The dtype is that of
    the operand. It is None if the test runs the case with every dtype of numbers.
    """
    any_dtype: list[tuple[str, DType | None]] = [(op, None) for op in ("sum", "min", "max", "prod")]
    one_dtype: list[tuple[str, DType | None]] = [
        ("mean", float32),
        ("mean", float64),
        ("max", bool_),
    ]
    return [({"reduce_op": op}, dtype) for op, dtype in any_dtype + one_dtype]


all_reduce: Final[AllReduce] = register(AllReduce())


class Broadcast(Collective):
    """Copy the root's x to all ranks.

    Parameters
    ----------
    x : node or array
        An array of one shape on all ranks. Only the values on the root are read.
    root : int, default 0
        The rank whose array is copied.
    group : Group, optional
        The ranks. The default is the group of the compiled step.

    Returns
    -------
    Node
        The root's array, on every rank.

    Raises
    ------
    ValueError
        The root is not a rank of the group.

    Notes
    -----
    The adjoint is ops.reduce with op="sum": the root gets the sum of the adjoints of all ranks, and
    the other ranks get 0.

    Examples
    --------
    The result of a single rank::

        >>> ngd.function(lambda x: ops.broadcast(x))(np.arange(4.0))
        array([0., 1., 2., 3.])
    """

    # Attributes of a node: root, group.
    kind = KINDS["broadcast"]

    def __call__(self, x: Value, root: int = 0, *, group: Ranks | None = None) -> Node:
        return self.node(
            (as_node(x, where=self.name),),
            with_group(self.name, {"root": as_int(root, self.name, "root")}, group),
        )

    def keeps_equal_operands(self, attrs: Mapping[str, Any]) -> bool:
        return True

    def infer(self, x: Type, *, root: int, group: Ranks | None = None) -> Type:
        return expect_root(self.name, root, group, x)

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (reduce.node((dy,), {**node.attrs, "reduce_op": "sum"}),)

    def samples(self) -> Iterable[Sample]:
        yield Sample((Operand((2, 3)),), {"root": 0})
        yield Sample((Operand((0,)),), {"root": 0})


broadcast: Final[Broadcast] = register(Broadcast())


class Reduce(Collective):
    """Reduce an array over all ranks, element by element. Only the root gets the result.

    Parameters
    ----------
    x : node or array
        An array of one shape on all ranks.
    root : int, default 0
        The rank that gets the result.
    op : str
        "sum", "mean", "min", "max" or "prod", as for ops.all_reduce.
    group : Group, optional
        The ranks. The default is the group of the compiled step.

    Returns
    -------
    Node
        The reduction on the root, and zeros on the other ranks.

    Raises
    ------
    ValueError
        The op does not exist, or the root is not a rank of the group.

    Notes
    -----
    The adjoint of "sum" is ops.broadcast. The adjoint of "mean" is ops.broadcast divided by the
    number of ranks. The other reductions have no gradient.

    Examples
    --------
    The result of a single rank::

        >>> ngd.function(lambda x: ops.reduce(x, op="sum"))(np.arange(4.0))
        array([0., 1., 2., 3.])
    """

    # Attributes of a node: reduce_op, root, group.
    kind = KINDS["reduce"]

    def __call__(self, x: Value, root: int = 0, *, op: str, group: Ranks | None = None) -> Node:
        attrs = with_group(
            self.name, {"reduce_op": op, "root": as_int(root, self.name, "root")}, group
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
        if kind == "mean":  # the mean over all ranks of dy on the root and 0 on the other ranks
            group = attrs.get("group")
            root_adjoint = where(equal(own_rank(group=group), attrs["root"]), dy, 0)
            return (all_reduce(root_adjoint, op="mean", group=group),)
        raise no_gradient(node)

    def samples(self) -> Iterable[Sample]:
        for attrs, dtype in reductions_to_test():
            yield Sample((Operand((2, 3), dtype=dtype),), {**attrs, "root": 0})


reduce: Final[Reduce] = register(Reduce())


class OwnRank(Op):
    """Return the number of this rank, an int64 scalar.

    Parameters
    ----------
    group : Group, optional
        The ranks. The default is the group of the compiled step.

    Examples
    --------
    The result of a single rank::

        >>> ngd.function(lambda: ops.own_rank())()
        array(0)
    """

    # Attribute of a node: group. The compiler replaces the op by a constant. The reference is the
    # rank in a world of one rank.
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
