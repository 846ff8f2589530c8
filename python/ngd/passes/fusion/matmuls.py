# SPDX-License-Identifier: Apache-2.0
"""Products that elementwise kernels take a block at a time, and that are stored nowhere.

The gradient of a layer's weights is such a product, and the update of the weights such a kernel: in
a step whose batch is small beside the layer, to write the gradient and to read it again takes a
tenth of the product's time. If such a gradient is summed over the ranks (gradient_factors.py), the
kernel takes a product of each. The op defines such a product (`factors`), and the device reports if
it is faster.

What is multiplied has to live until the kernel runs; so it may have no more bytes than the product,
inputs and variables left out, which live anyway. A kernel is the only reader of a product that it
takes, so this makes no circle.
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
"""What a kernel takes (src/cpp/kernels/fused/elementwise_product.cpp)."""


def fuse_products(graph: Graph, target: Target, options: CompileOptions) -> Graph:
    """Let elementwise kernels take products: see the head of this file."""
    counts = uses(graph)

    def change(node: Node, inputs: tuple[Node, ...]) -> Node:
        made = node.with_inputs(inputs)
        if is_elementwise_kernel(node):
            taken = to_take(node, counts)
            if taken:
                fused = taking(made, taken)
                if query_node(target, fused).accepted:
                    return fused
        return made

    return graph.rewrite(change)


def to_take(kernel: Node, counts: Mapping[Node, int]) -> list[int]:
    """Which operands of a kernel are products that it may take: all like the first of them."""
    dense = dense_operands(kernel)
    found = [
        number
        for operand, number in dense.items()
        if counts[operand] == 1 and may_be_taken(source_of(operand), counts)
    ]
    first = [source_of(kernel.inputs[number]) for number in found[:1]]
    alike = [n for n in found if is_like(source_of(kernel.inputs[n]), first[0])]
    return alike[:MOST_PRODUCTS]


def may_be_taken(product: Node, counts: Mapping[Node, int]) -> bool:
    """Whether nobody else reads a product, and its factors may live for longer."""
    return counts[product] == 1 and has_small_factors(product)


def has_small_factors(product: Node) -> bool:
    """Whether this is a flat A^T B, of factors that live anyway or have no more bytes than it."""
    factors = product.op.gradient_factors(product)
    if factors is None or factors[0].shape[0] > MOST_DEPTH:
        return False
    kept = {source_of(factor) for factor in factors}
    bytes_kept = sum(factor.type.bytes for factor in kept if not isinstance(factor.op, Leaf))
    return bytes_kept <= product.type.bytes


def is_like(product: Node, other: Node) -> bool:
    """Whether two products are of one op, type and depth."""
    alike = [factor.type for factor in product.inputs] == [factor.type for factor in other.inputs]
    return alike and product.op is other.op and product.attrs == other.attrs


def taking(kernel: Node, numbers: Sequence[int]) -> Node:
    """A kernel that takes the products which it reads as those operands, or views of them."""
    products = [source_of(kernel.inputs[number]) for number in numbers]
    others = [x for number, x in enumerate(kernel.inputs) if number not in numbers]
    _, attrs = products[0].op.lower(**products[0].attrs)
    taken = Products(tuple(numbers), products[0].shape, tuple(attrs.items()))
    factors = [factor for product in products for factor in product.inputs]
    members = [member for each in products for member in each.op.fused_ops(each)]
    return fused_node(
        (*factors, *others),
        replace(body_of(kernel), products=taken),
        [result.type for result in kernel.results],
        (*members, *kernel.op.fused_ops(kernel)),
        products=tuple(products),
    )


def accepts_sum(product: Node, ranks: int, target: Target, options: CompileOptions) -> bool:
    """Whether one kernel adds a product a rank, each of a part of these rows."""
    factors = product.op.gradient_factors(product)
    if factors is None:
        return False
    terms = []
    (depth, rows), b = factors[0].shape, factors[1].type
    for rank in range(ranks):
        part = Type(b.dtype, (depth, rows // ranks))
        terms.append(product.with_inputs((stand_in(f"a{rank}", part), stand_in(f"b{rank}", b))))
    graph = fuse_elementwise(Graph((), (sum_in_order(terms, add),)), target, options)
    fused = fuse_products(graph, target, options).outputs[0]
    return isinstance(fused.op, FusedKernel) and body_of(fused).products is not None


def stand_in(name: str, typed: Type) -> Node:
    """A node of that type, to ask the device with."""
    return Node(PLACEHOLDER, (), {"name": name, "uniform": True}, typed)


__all__ = [
    "MOST_PRODUCTS",
    "accepts_sum",
    "fuse_products",
    "has_small_factors",
]
