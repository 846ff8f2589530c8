# SPDX-License-Identifier: Apache-2.0
"""The exchange of gradient factors between ranks, instead of the reduction of gradients.

The gradient of a layer's weights is A^T B. A and B are the *gradient factors*: they have one row
for each of the rank's samples. In a large layer with few samples, they have far fewer elements than
their product. If a rank needs only some rows of the sum of the gradients over the ranks
(updates.py), it is cheaper to exchange the factors. Rows i to j of A^T B are computed from columns
i to j of A, and from B. So each rank gathers, from all ranks, B and these columns of A, and
multiplies them. With N ranks, a rank then computes N matmuls with 1 / N of the rows, which takes as
many operations as one matmul with all rows. But no gradient is written or reduced, and the update
computes the matmuls block by block (fusion/matmuls.py). This is sufficient factor broadcasting (P.
Xie et al. 2016, "Lighter-Communication Distributed Machine Learning via Sufficient Factor
Broadcasting", UAI), within a host.

The result has the same bits as the reduction of the gradients. Each matmul is computed by itself,
and the results are added as a balanced binary tree over the ranks
(docs/adr/0006-order-of-reduction.md). All ranks must make the same decision. So factors are
exchanged only if the step has the same types on all ranks (Sharing.has_uniform_types), because a
rank with fewer samples has other shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ...comm.summation import sum_in_order
from ...graph.node import Node
from ...graph.order import Order, Stage
from ...ops._arithmetic import add
from ...ops._shape import reshape
from ...ops._slicing import slice as slice_rows
from ...ops.collectives.exchanges import all_gather, all_to_all, blocks_of
from ...ops.collectives.reductions import MEAN, SUM
from ..collective_order import Ordered
from ..fusion.matmuls import MOST_PRODUCTS, accepts_sum
from ..options import CompileOptions
from ..target import Target


class Factors(NamedTuple):
    """A matmul A^T B and its factors: A is [depth, rows], B is [depth, columns]."""

    product: Node
    a: Node
    b: Node


def factors_of(
    old: Node,
    operand: Node,
    reads: int,
    bounds: Sequence[int],
    target: Target,
    options: CompileOptions,
) -> Factors | None:
    """Return the gradient factors for a sum over the ranks, or None if they are not exchanged.

    `old` is the sum in the old graph, and `operand` is the sum's operand in the new graph. Its
    factors are A and B if it is a matmul A^T B. `reads` is the number of readers of the operand in
    the old graph. If the sum is not the only reader, the operand is computed anyway, and the result
    is None. `bounds` has the index at which each rank's shard of the sum begins, and the index at
    which the last shard ends.
    """
    ranks, one_host = target.size, target.sharing.partition.counterparts.size == 1
    if not (target.sharing.has_uniform_types and one_host) or options.has_low_precision:
        return None
    if reads != 1 or ranks > MOST_PRODUCTS:
        return None
    factors = operand.op.gradient_factors(operand)
    if factors is None or old.attrs["reduce_op"] not in (SUM, MEAN):
        return None
    a, b = factors
    (depth, rows), columns = a.shape, b.shape[1]
    by_rows = all(begin * ranks == rank * rows * columns for rank, begin in enumerate(bounds))
    is_cheaper = (
        ranks * depth * (rows + ranks * columns) <= rows * columns
    )  # the limit of has_small_factors for a shard
    if (
        rows % ranks
        or not by_rows
        or not is_cheaper
        or not accepts_sum(operand, ranks, target, options)
    ):
        return None
    return Factors(operand, a, b)


def slice_of_sum(old: Node, exchanged: Factors, target: Target) -> Node:
    """Return this rank's rows of a sum of matmuls A^T B over the ranks, as a 1-d array.

    The ranks do not reduce the products. Each rank gathers, from all ranks, B and the columns of A
    that it needs, and computes its rows of the sum.
    """
    assert isinstance(old.op, Ordered)
    number, ranks, (product, a, b) = old.op.order.number, target.size, exchanged
    group = {"group": target.sharing.group}
    all_b = Ordered(all_gather, Order(number)).node((b,), group)
    exchange = Ordered(all_to_all, Order(number, Stage.OTHER_FACTOR))
    columns_of_a = exchange.node((blocks_of(all_to_all.name, a, 1, ranks),), group)
    parts = []
    for rank in range(ranks):
        a_of_rank = reshape(slice_rows(columns_of_a, rank), (a.shape[0], a.shape[1] // ranks))
        rows = slice(rank * b.shape[0], (rank + 1) * b.shape[0])
        part = product.with_inputs((a_of_rank, slice_rows(all_b, rows)))
        parts.append(reshape(part, (part.type.count,)))
    total = sum_in_order(parts, add)
    if old.attrs["reduce_op"] == MEAN:
        return total * (1 / ranks) if ranks & (ranks - 1) == 0 else total / ranks
    return total


__all__ = ["Factors", "factors_of", "slice_of_sum"]
