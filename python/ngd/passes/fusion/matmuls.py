# SPDX-License-Identifier: Apache-2.0
"""Matmuls that elementwise kernels compute block by block, and whose results are not stored.

For example, the gradient of a layer's weights is a matmul, and an elementwise kernel reads the
gradient to update the weights. In a step whose batch is small compared to the layer, writing the
gradient and reading it again takes a tenth of the time of the matmul. Such a matmul is A^T B, and A
and B are its *factors* (`Op.gradient_factors`). If the gradient is a sum over the ranks, the ranks
may exchange the factors (gradient_factors.py). Then the kernel computes one matmul per rank, from
the factors of that rank, and adds the results. The device reports whether the fused kernel is
faster.

The fusion saves the memory of the result, but the factors stay in memory until the kernel runs. So
the two factors together may have no more bytes than the result. Factors that are inputs or
variables are not counted, because they stay in memory anyway. The kernel is the only reader of a
matmul that it computes, so the fusion makes no cycle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from ...comm.summation import sum_in_order
from ...dtypes import Type
from ...graph.graph import Graph
from ...graph.leaves import PLACEHOLDER, Leaf
from ...graph.node import Node
from ...ops._arithmetic import add
from ..options import CompileOptions
from ..target import Target, query_node
from ..views import source_of
from .elementwise import dense_operands, fuse_elementwise
from .kernel_body import FusedKernel, Products, body_of, fused_node, is_elementwise_kernel
from .patterns import uses

MOST_PRODUCTS: Final = 4
MOST_DEPTH: Final = 256
"""The largest number of rows of A and of B in a matmul A^T B that a kernel computes. MOST_PRODUCTS
is the largest number of matmuls in one kernel. Both are limits of the C++ kernel
(src/cpp/kernels/fused/elementwise_product.cpp)."""


def fuse_products(graph: Graph, target: Target, options: CompileOptions) -> Graph:
    """Replace elementwise kernels that read matmuls by kernels that compute these matmuls, too."""
    counts = uses(graph)

    def change(node: Node, inputs: tuple[Node, ...]) -> Node:
        new_node = node.with_inputs(inputs)
        if is_elementwise_kernel(node):
            taken = fusible_operands(node, counts)
            if taken:
                fused = with_matmuls(new_node, taken)
                if query_node(target, fused).accepted:
                    return fused
        return new_node

    return graph.rewrite(change)


def fusible_operands(kernel: Node, counts: Mapping[Node, int]) -> list[int]:
    """Return the numbers of the operands of a kernel that are matmuls which it may compute.

    All of these matmuls have the same op, attributes and types of operands. `counts` has the number
    of readers of each node.
    """
    dense = dense_operands(kernel)
    candidates = [
        number
        for operand, number in dense.items()
        if counts[operand] == 1 and can_be_fused(source_of(operand), counts)
    ]
    first = [source_of(kernel.inputs[number]) for number in candidates[:1]]
    matching = [n for n in candidates if is_same_matmul(source_of(kernel.inputs[n]), first[0])]
    return matching[:MOST_PRODUCTS]


def can_be_fused(product: Node, counts: Mapping[Node, int]) -> bool:
    """Return whether a node has a single reader and is a matmul A^T B with small A and B."""
    return counts[product] == 1 and has_small_factors(product)


def has_small_factors(product: Node) -> bool:
    """Return whether a node is a matmul A^T B, and its factors A and B have few rows and bytes.

    A and B have at most MOST_DEPTH rows. Together, they have at most the bytes of the result. A
    factor that is an input, variable or constant is not counted: it stays in memory anyway.
    """
    factors = product.op.gradient_factors(product)
    if factors is None or factors[0].shape[0] > MOST_DEPTH:
        return False
    sources = {source_of(factor) for factor in factors}
    bytes_kept = sum(factor.type.bytes for factor in sources if not isinstance(factor.op, Leaf))
    return bytes_kept <= product.type.bytes


def is_same_matmul(product: Node, other: Node) -> bool:
    """Return whether two matmuls have the same op, attributes and types of operands."""
    matching = [factor.type for factor in product.inputs] == [
        factor.type for factor in other.inputs
    ]
    return matching and product.op is other.op and product.attrs == other.attrs


def with_matmuls(kernel: Node, numbers: Sequence[int]) -> Node:
    """Return a kernel that also computes the matmuls which `kernel` reads as operands.

    `numbers` has the numbers of these operands. Each of them is a matmul or a view of a matmul.
    """
    products = [source_of(kernel.inputs[number]) for number in numbers]
    other_inputs = [x for number, x in enumerate(kernel.inputs) if number not in numbers]
    _, attrs = products[0].op.lower(**products[0].attrs)
    taken = Products(tuple(numbers), products[0].shape, tuple(attrs.items()))
    factors = [factor for product in products for factor in product.inputs]
    members = [member for each in products for member in each.op.fused_ops(each)]
    return fused_node(
        (*factors, *other_inputs),
        replace(body_of(kernel), products=taken),
        [result.type for result in kernel.results],
        (*members, *kernel.op.fused_ops(kernel)),
        products=tuple(products),
    )


def accepts_sum(product: Node, ranks: int, target: Target, options: CompileOptions) -> bool:
    """Return whether the device accepts a kernel for this rank's rows of a sum over the ranks.

    The sum has one matmul A^T B per rank, and `product` is the matmul of one rank. The kernel would
    read the factors A and B of all ranks, and compute 1 / `ranks` of the rows of the sum.
    """
    factors = product.op.gradient_factors(product)
    if factors is None:
        return False
    terms = []
    (depth, rows), b = factors[0].shape, factors[1].type
    for rank in range(ranks):
        part = Type(b.dtype, (depth, rows // ranks))
        terms.append(
            product.with_inputs((placeholder_of(f"a{rank}", part), placeholder_of(f"b{rank}", b)))
        )
    graph = fuse_elementwise(Graph((), (sum_in_order(terms, add),)), target, options)
    fused = fuse_products(graph, target, options).outputs[0]
    return isinstance(fused.op, FusedKernel) and body_of(fused).products is not None


def placeholder_of(name: str, value_type: Type) -> Node:
    """Return a placeholder of a type, for a graph that is made only to query the device."""
    return Node(PLACEHOLDER, (), {"name": name, "uniform": True}, value_type)


__all__ = [
    "MOST_PRODUCTS",
    "accepts_sum",
    "fuse_products",
    "has_small_factors",
]
